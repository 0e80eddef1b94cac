"""Pictures of the second stage: what goes in, where attention goes, and how well it serves."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import sparsefam as sf
from sparsefam.plotting import plot_attention

from .look import Look
from .mechanisms import Attention, Examples
from .training import Run

__all__ = ["draw_accuracy", "draw_attention", "draw_input"]


def draw_input(
    look: Look, whole: Tensor, example: Examples, basis: sf.bases.Basis, penalty: float
) -> Figure:
    """One recording: all of its points, those kept, and the value function at two penalties."""
    figure, (ax,) = look.panels(1, 1, 2.9)
    t = (torch.arange(len(whole)) + 0.5) / len(whole)
    ax.plot(t, whole, ".", color=look.ink, alpha=0.4, markersize=4, label="whole recording")
    positions, values = _observed(example)
    ax.plot(positions, values, "o", color=look.palette[3], markersize=4, label="points kept")
    grid = torch.linspace(0, 1, 801)
    for strength, style in ((0.1, ":"), (penalty, "-")):
        ridge = sf.attention.RidgeRegression(basis, strength)
        curve = ridge.fit(positions[None], values[None, :, None])(grid[None]).reshape(-1)
        label = f"penalty {strength:g}"
        ax.plot(grid, curve, style, color=look.palette[0], linewidth=1.4, label=label)
    margin = 0.3 * float(whole.max() - whole.min())
    ax.set_ylim(float(whole.min()) - margin, float(whole.max()) + margin)
    ax.set_xlabel("position")
    figure.legend(loc="outside lower center", ncols=2 if look.narrow else 4)
    return figure


def draw_attention(
    look: Look, models: Mapping[str, Attention], examples: Examples, basis: sf.bases.Basis
) -> Figure:
    """Each mechanism in a row, each recording in a column; a narrow picture has one column."""
    shown = 1 if look.narrow else len(examples)
    figure, axes = look.panels(len(models), shown, 2.0, sharex=True)
    for row, (name, model) in enumerate(models.items()):
        for column in range(shown):
            ax = axes[row * shown + column]
            _draw_heads(ax, model, examples[torch.tensor([column])], basis)
            title = f"speaker {int(examples.labels[column]) + 1}" if row == 0 else ""
            ax.set_title(f"{name}\n" if shown == 1 else title, loc="left")
            if column == 0 and not look.narrow:
                ax.set_ylabel(name)
    for ax in axes[-shown:]:
        ax.set_xlabel("position")
    return figure


def _draw_heads(ax: Axes, model: Attention, example: Examples, basis: sf.bases.Basis) -> None:
    with torch.no_grad():
        attention = model.attend(example)
    value = sf.attention.ValueFunction(basis, example.coefficients)
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
    ax.set_xlim(None, 100)
    ax.grid(axis="x", alpha=0.25)
    ax.set_xlabel("test accuracy, %")
    return figure
