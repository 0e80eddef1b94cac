"""Pictures of irregular series: what goes in, where attention goes, and how well it serves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor

import sparsefam as sf
from sparsefam.plotting import plot_attention

from .comparison import value_basis
from .look import Look
from .mechanisms import Examples
from .training import Run

__all__ = ["View", "draw_accuracy", "draw_attention", "draw_heads", "draw_input", "heights_of"]

_STEPS = 600
# Share of the densities' values that the colours tell apart; the highest peaks look alike.
_TOLD_APART = 0.99
_LEAST = 1e-30

# Where some heads look in an example: batch shape (1, heads).
View = Callable[[Examples], sf.SparseDistribution]


def draw_input(look: Look, whole: Tensor, example: Examples, penalty: float) -> Figure:
    """One recording: all of its points, those kept, and the value function at two penalties."""
    figure, (ax,) = look.panels(1, 1, 2.9)
    t = (torch.arange(len(whole)) + 0.5) / len(whole)
    ax.plot(t, whole, ".", color=look.ink, alpha=0.4, markersize=4, label="whole recording")
    positions, values = _observed(example)
    ax.plot(positions, values, "o", color=look.palette[3], markersize=4, label="points kept")
    grid = torch.linspace(0, 1, 801)
    for strength, style in ((0.1, ":"), (penalty, "-")):
        ridge = sf.attention.RidgeRegression(value_basis(), strength)
        curve = ridge.fit(positions[None], values[None, :, None])(grid[None]).reshape(-1)
        label = f"penalty {strength:g}"
        ax.plot(grid, curve, style, color=look.palette[0], linewidth=1.4, label=label)
    margin = 0.3 * float(whole.max() - whole.min())
    ax.set_ylim(float(whole.min()) - margin, float(whole.max()) + margin)
    ax.set_xlabel("position")
    figure.legend(loc="outside lower center", ncols=2 if look.narrow else 4)
    return figure


def draw_attention(look: Look, views: Mapping[str, View], examples: Examples, label: str) -> Figure:
    """Each view in a row, each example in a column; a narrow picture has one column.

    Args:
        look: How pictures look.
        views: What to show of an example, by the name of the row.
        examples: The examples.
        label: What the number of a class counts.

    Returns:
        The picture.
    """
    shown = 1 if look.narrow else len(examples)
    figure, axes = look.panels(len(views), shown, 2.0, sharex=True)
    for row, (name, view) in enumerate(views.items()):
        for column in range(shown):
            ax = axes[row * shown + column]
            _draw_heads(ax, view, examples[torch.tensor([column])])
            title = f"{label} {int(examples.labels[column]) + 1}" if row == 0 else ""
            ax.set_title(f"{name}\n" if shown == 1 else title, loc="left")
            if column == 0 and not look.narrow:
                ax.set_ylabel(name)
    for ax in axes[-shown:]:
        ax.set_xlabel("position")
    return figure


def _draw_heads(ax: Axes, view: View, example: Examples) -> None:
    with torch.no_grad():
        attention = view(example)
    value = sf.attention.ValueFunction(value_basis(), example.coefficients)
    positions, values = _observed(example)
    heads = (
        attention.probs[0, :, example.mask[0]]
        if isinstance(attention, sf.SparseCategorical)
        else attention
    )
    plot_attention(
        heads,
        positions,
        values,
        value_function=lambda t: value(t[None]).reshape(-1),
        ax=ax,
        view=(-0.04, 1.04),
    )


def heights_of(density: sf.SparseDistribution, labels: Tensor) -> Tensor:
    """Densities of batch shape (B, 1) at 600 positions, sorted by their labels (B,): (B, 600).

    Zero outside their supports, and positive inside, even where exponentials underflow.
    """
    t = ((torch.arange(_STEPS) + 0.5) / _STEPS).reshape(-1, 1, 1)
    support: Any = density.support
    with torch.no_grad():
        inside = density.prob(t).clamp_min(_LEAST)
        heights = torch.where(support.check(t), inside, 0.0)
    return heights.squeeze(-1).T[labels.argsort(stable=True)]


def draw_heads(look: Look, heights: Mapping[str, Tensor], labels: Tensor, label: str) -> Figure:
    """One head in each panel: a row for every example, by class; a narrow picture has the last.

    Args:
        look: How pictures look.
        heights: Densities (B, positions), sorted by class, by the name of the panel.
        labels: The classes (B,), in any order.
        label: What the number of a class counts.

    Returns:
        The picture.
    """
    shown = dict(list(heights.items())[-1:]) if look.narrow else heights
    most = max(height.quantile(_TOLD_APART).item() for height in shown.values())
    figure, axes = look.panels(1, len(shown), 4.2)
    colors = LinearSegmentedColormap.from_list("density", look.ramp).with_extremes(
        under=look.background
    )
    norm = Normalize(_LEAST, most)
    for ax, (name, height) in zip(axes, shown.items(), strict=True):
        image = ax.imshow(
            height.numpy(),
            cmap=colors,
            norm=norm,
            aspect="auto",
            interpolation="nearest",
            extent=(0, 1, len(labels), 0),
        )
        ax.set_title(name)
        ax.set_xlabel("position")
        _mark_classes(ax, labels, look)
    axes[0].set_ylabel(label)
    figure.colorbar(image, ax=axes, extend="max", label="density", aspect=40)
    return figure


def _mark_classes(ax: Axes, labels: Tensor, look: Look) -> None:
    """A line between classes, and the number of each in its middle."""
    ends = labels.bincount().cumsum(0)
    starts = ends - labels.bincount()
    for end in ends[:-1].tolist():
        ax.axhline(end, color=look.ink, linewidth=0.8)
    ax.set_yticks(((starts + ends) / 2).tolist(), [str(i + 1) for i in range(len(ends))])
    ax.tick_params(axis="y", length=0)


def _observed(example: Examples) -> tuple[Tensor, Tensor]:
    mask = example.mask[0]
    return example.positions[0, mask], example.values[0, mask]


def draw_accuracy(look: Look, runs: Mapping[str, Sequence[Run]]) -> Figure:
    """A dot for each seed, a bar at the mean."""
    figure, (ax,) = look.panels(1, 1, 0.6 + 0.27 * len(runs))
    for row, one in enumerate(runs.values()):
        accuracy = torch.tensor([100 * run.accuracy for run in one])
        ax.plot(accuracy, [row] * len(one), "o", color=look.palette[0], alpha=0.55, markersize=5)
        ax.plot([accuracy.mean()] * 2, [row - 0.3, row + 0.3], color=look.palette[3], linewidth=2.5)
    ax.set_yticks(range(len(runs)), list(runs))
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.25)
    ax.set_xlabel("test accuracy, %")
    return figure
