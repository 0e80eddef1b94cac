"""First stage: the one-dimensional families side by side."""

import math
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

import sparsefam as sf
from sparsefam.plotting import plot_density

from .look import Look
from .page import Picture, Prose, Section, Table
from .progress import Reporter
from .settings import Settings

__all__ = ["families", "families_picture"]

_SIGMA = 1.0


def _fourth_power(x: Tensor) -> Tensor:
    return x**4 / 12


def _members() -> list[tuple[str, sf.SparseDistribution]]:
    """Nine families: a score -(t - mu)²/2sigma² or -|t - mu|/b at growing alpha, and eq. 13."""
    quadratic = sf.scores.Quadratic(0.0, sigma=_SIGMA)
    absolute = sf.scores.AbsoluteDeviation(0.0, b=_SIGMA)
    power = sf.scores.LocationScale(0.0, _SIGMA, _fourth_power)
    return [
        ("Normal, α = 1", sf.rpm(quadratic, 1.0)),
        ("BetaGaussian, α = 4/3", sf.rpm(quadratic, 4 / 3)),
        ("BetaGaussian, α = 3/2", sf.rpm(quadratic, 1.5)),
        ("TruncatedParabola, α = 2", sf.rpm(quadratic, 2.0)),
        ("BetaGaussian, α = ∞ (uniform)", sf.rpm(quadratic, math.inf)),
        ("LocationScale, α = 2, g = x⁴/12", sf.rpm(power, 2.0)),
        ("Laplace, α = 1", sf.rpm(absolute, 1.0)),
        ("BetaLaplace, α = 3/2", sf.rpm(absolute, 1.5)),
        ("Triangular, α = 2", sf.rpm(absolute, 2.0)),
    ]


def _draw(look: Look) -> Figure:
    figure, axes = look.panels(5 if look.narrow else 3, 2 if look.narrow else 3, 1.75)
    members = _members()
    for ax, (title, p) in zip(axes, members, strict=False):
        # The default escort exponent 2 - alpha has no meaning at infinity: there every escort is
        # the same uniform law.
        escort, color = bool(p.alpha.isfinite()), look.palette[0]
        plot_density(p, ax, escort=escort, color=color, view=(-3.7, 3.7))
        ax.set_title(title.replace(", ", ",\n", 1) if look.narrow else title)
    for ax in axes[len(members) :]:
        ax.set_axis_off()
    figure.legend(
        handles=[
            Line2D([], [], color=look.palette[0], label="density"),
            Line2D([], [], color=look.palette[0], linestyle="--", label="escort"),
            Line2D([], [], color=look.palette[0], linewidth=4, label="support"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return figure


def families_picture() -> Picture:
    """The nine families, as a picture that the documentation uses too."""
    return Picture(
        "families",
        _draw,
        "Nine densities in a grid. Each is shaded over its support, which a bar below the axis "
        "marks: the whole line for the normal and the Laplace, an interval for the others.",
        "A growing α. The first five have the score −t²/2 of the Gaussian, the bottom row the "
        "score −|t| of the Laplace, and the one between the score −g′(|t|) for a convex g. As α "
        "grows, the support (bar below the axis) shrinks from the whole line (arrows) to an "
        "interval, outside of which the density is exactly zero. Dashed: the escort, under which "
        "gradients are taken; at α = 2 it is uniform. Vertical lines are true jumps.",
    )


def families(_: Settings, reporter: Reporter) -> Section:
    """The picture, and numbers that the same objects give."""
    members = _members()
    reporter.note(f"{len(members)} families")
    numbers = {name: _numbers(p) for name, p in members}
    rows = [
        [name, _interval(p), *(_decimals(x) for x in numbers[name].values())] for name, p in members
    ]
    header = ["family", "support", "variance", "entropy", "Tsallis entropy"]
    return Section(
        "families",
        "One-dimensional families",
        [
            Prose(
                "A score <i>f</i> and a number α give a density: the one that maximises the "
                "expected score less the Tsallis negentropy of index α. At α = 1 it is positive "
                "everywhere (softmax); above 1 it can be exactly zero."
            ),
            families_picture(),
            Table("Score parameter σ or b equal to 1 throughout.", header, rows),
        ],
        numbers,
    )


def _interval(p: sf.SparseDistribution) -> str:
    support: Any = p.support
    low, high = support.intervals[0].tolist()
    return "the line" if math.isinf(low) else f"[{_decimals(low)}, {_decimals(high)}]"


def _decimals(x: float) -> str:
    # Adding zero turns a rounded −0.0 into 0.0.
    return f"{round(x, 3) + 0.0:.3f}".replace("-", "−")


def _numbers(p: sf.SparseDistribution) -> dict[str, float]:
    values = {
        "variance": p.variance,
        "entropy": p.entropy(),
        "tsallis_entropy": p.tsallis_entropy(),
    }
    return {name: float(value) for name, value in values.items()}
