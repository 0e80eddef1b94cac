"""Pictures of streams: readings, value functions, and where heads look."""

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sparsefam as sf

from .look import Look
from .stream_data import Streams
from .stream_models import Reader, basis

__all__ = ["draw_stream"]

_STEPS = 800


def draw_stream(
    look: Look, readers: Mapping[str, Reader], streams: Streams, penalty: float
) -> Figure:
    """Streams in columns, above; the densities of readers with one head, below.

    Args:
        look: How pictures look; a narrow one has the first stream only.
        readers: Continuous attention, by name.
        streams: The streams.
        penalty: Of their value functions.
    """
    shown = 1 if look.narrow else len(streams)
    figure, axes = look.panels(2, shown, 2.0, sharex=True)
    for column in range(shown):
        one = streams[torch.tensor([column])]
        above, below = axes[column], axes[shown + column]
        _draw_readings(look, above, one, penalty)
        _draw_densities(look, below, readers, one)
        for ax in (above, below):
            _mark(look, ax, one)
        below.set_xlabel("position")
    axes[0].set_ylabel("blood pressure")
    axes[shown].set_ylabel("density")
    lines = [*axes[0].get_lines()[:3], *axes[shown].get_lines()[: len(readers)]]
    figure.legend(handles=lines, loc="outside lower center", ncols=2 if look.narrow else 3)
    return figure


def _draw_readings(look: Look, ax: Axes, one: Streams, penalty: float) -> None:
    grid = torch.linspace(0, 1, _STEPS)
    value = sf.attention.ValueFunction(basis(), one.coefficients)
    samples = (torch.arange(one.whole.shape[-1]) + 0.5) / one.whole.shape[-1]
    ax.plot(samples, one.whole[0], color=look.ink, lw=0.8, label="recording")
    ax.plot(one.positions[0], one.values[0], "o", ms=2.5, color=look.palette[3], label="readings")
    label = f"value function, penalty {penalty:g}"
    ax.plot(grid, value(grid[None])[0, :, 0], color=look.palette[2], label=label)


def _draw_densities(look: Look, ax: Axes, readers: Mapping[str, Reader], one: Streams) -> None:
    grid = torch.linspace(0, 1, _STEPS)
    colors = (look.palette[1], look.palette[0], look.palette[5])
    for (name, reader), color in zip(readers.items(), colors, strict=True):
        with torch.no_grad():
            density = reader.attend(one).log_prob(grid[:, None, None]).exp().reshape(-1)
        ax.plot(grid, torch.where(density > 0, density, torch.nan), color=color, label=name)
        ax.fill_between(grid, density, where=(density > 0).numpy(), color=color, alpha=0.2, lw=0)
    ax.set_ylim(bottom=0)


def _mark(look: Look, ax: Axes, one: Streams) -> None:
    """The saturated block, and the interval that is asked for."""
    begin, end = one.block[0].tolist()
    ax.axvspan(begin, end, color=look.ink, alpha=0.12, lw=0)
    middle, width = one.question[0].tolist()
    for x in (middle - width / 2, middle + width / 2):
        ax.axvline(x, color=look.ink, ls=":", lw=1)
