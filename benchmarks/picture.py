"""The pictures of docs/benchmarks.md: error against scale over width, and time against size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from examples.look import Look

__all__ = ["Panels", "draw", "draw_growth"]

# Told apart by marker and dash as well as by colour.
_STYLES = ({"marker": "o"}, {"marker": "^", "linestyle": "--"}, {"marker": "s", "linestyle": ":"})
# No digit is left at 1; what is above the range is as wrong.
_SHOWN = (1e-9, 1e4)
# What grows, to its sizes and, for each method, the milliseconds at each size.
Panels = Mapping[str, tuple[Sequence[int], Mapping[str, Sequence[float]]]]


def draw(
    path: Path,
    ratios: Sequence[float],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    limit: float,
) -> None:
    """Writes a PNG.

    Args:
        path: The file.
        ratios: scale / width.
        panels: Title of a panel to label of a curve to its errors.
        limit: A line to hold the errors against.
    """
    look = Look()
    with look.applied():
        figure, axes = look.panels(1, len(panels), 3.3)
        for ax, (title, curves) in zip(axes, panels.items(), strict=True):
            for (label, values), style in zip(curves.items(), _STYLES, strict=True):
                ax.loglog(ratios, values, label=label, markersize=3, linewidth=1.3, **style)
            ax.axhline(limit, color=look.ink, linewidth=0.8)
            ax.set(title=title, xticks=[1e-4, 1e-2, 1, 1e2, 1e4], ylim=_SHOWN)
            ax.set_xlabel("half-width / width of basis functions")
            ax.grid(True, linewidth=0.4, alpha=0.4)
        axes[0].set_ylabel("relative error of E[ψ], 2-norm")
        axes[0].text(ratios[0], limit * 1.5, f"limit {limit:g}", fontsize=8, va="bottom")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def draw_growth(path: Path, panels: Panels, unit: str = "forward and backward, ms") -> None:
    """Writes a PNG of milliseconds, or of another unit, against size: a panel for each."""
    look = Look()
    with look.applied():
        figure, axes = look.panels(1, len(panels), 3.0)
        for ax, (title, (sizes, curves)) in zip(axes, panels.items(), strict=True):
            for (label, values), style in zip(curves.items(), _STYLES, strict=False):
                ax.loglog(sizes, values, label=label, markersize=4, linewidth=1.3, **style)
            ax.set_xticks(sizes, [str(size) for size in sizes])
            ax.set_xticks([], minor=True)
            ax.set_xlabel(title)
            ax.grid(True, linewidth=0.4, alpha=0.4)
        low = min(ax.get_ylim()[0] for ax in axes)
        high = max(ax.get_ylim()[1] for ax in axes)
        for ax in axes:
            ax.set_ylim(low, high)
        axes[0].set_ylabel(unit)
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)
