"""The gallery's densities: the family tree, one and two dimensions, ellipses.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Figure 1.
"""

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import sparsefam as sf
from sparsefam.plotting import plot_density

from .look import Look
from .page import Picture

__all__ = ["ellipses_picture", "families_of_both", "tree_picture"]

_WIDTH = 9.4
_ALPHAS = {"1": 1.0, "4/3": 4 / 3, "3/2": 1.5, "2": 2.0, "∞": math.inf}
_NAMES = {
    "Quadratic": ["Normal", "triweight", "biweight", "TruncatedParabola", "uniform"],
    "AbsoluteDeviation": ["Laplace", "BetaLaplace", "BetaLaplace", "Triangular", "uniform"],
}
_SCORES: dict[str, sf.scores.Score] = {
    "Quadratic": sf.scores.Quadratic(0.0, 1.0),
    "AbsoluteDeviation": sf.scores.AbsoluteDeviation(0.0, 1.0),
}
_VIEW = (-3.6, 3.6)


def _tree(look: Look) -> Figure:
    figure, axes = plt.subplots(2, 6, figsize=(_WIDTH, 3.5), layout="constrained")
    for row, (name, score) in zip(axes, _SCORES.items(), strict=True):
        t = torch.linspace(*_VIEW, 201)
        row[0].plot(t, score(t), color=look.ink)
        row[0].set(ylim=(-3.2, 0.4), xlim=_VIEW, yticks=[0, -2])
        row[0].set_title(f"f(t) = {'−t²/2' if name == 'Quadratic' else '−|t|'}", fontsize=8.5)
        row[0].set_ylabel("score")
        for ax, (alpha, value), title in zip(row[1:], _ALPHAS.items(), _NAMES[name], strict=True):
            plot_density(sf.rpm(score, value), ax, color=look.palette[0], view=_VIEW)
            ax.set_title(f"α = {alpha}\n{title}", fontsize=8.5)
            ax.set_ylim(-0.07, 1.1)
            ax.set_yticks([0, 0.5, 1] if alpha == "1" else [])
            ax.set_xticks([-2, 0, 2])
    return figure


def tree_picture() -> Picture:
    """Two scores, and what five values of alpha make of each."""
    return Picture(
        "tree",
        _tree,
        "Two rows: a parabola and a tent as scores, and beside each the densities for alpha from 1 "
        "to infinity. The first is positive everywhere, the others end, ever sooner.",
        "Two scores and their prediction maps.",
    )


def _line_panel(ax: Any, dense: sf.SparseDistribution, sparse: sf.SparseDistribution) -> None:
    names = [type(p).__name__ for p in (dense, sparse)]
    for p, name in zip((dense, sparse), names, strict=True):
        plot_density(p, ax, label=name, view=_VIEW)
    ax.legend(loc="upper right", fontsize=7.5)
    low, high = ax.get_ylim()
    ax.set(xlabel="t", ylabel="p(t)", ylim=(low, 1.45 * high))


def _surface(ax: Any, p: sf.SparseDistribution, title: str, look: Look) -> None:
    ticks = torch.linspace(-2.6, 2.6, 105)
    x, y = torch.meshgrid(ticks, ticks, indexing="ij")
    colours = LinearSegmentedColormap.from_list("ramp", look.ramp)
    height = p.prob(torch.stack([x, y], -1))
    style = {"cmap": colours, "linewidth": 0, "rstride": 1, "cstride": 1, "antialiased": False}
    ax.plot_surface(x.numpy(), y.numpy(), height.numpy(), vmin=0, vmax=0.56, **style)
    ax.set(zlim=(0, 0.58), title=title, xlabel="t₁", ylabel="t₂")
    ax.set_zticks([0, 0.25, 0.5])
    ax.tick_params(labelsize=7)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color((0, 0, 0, 0))


def _first_figure(look: Look) -> Figure:
    solid = {"projection": "3d"}
    figure, axes = plt.subplot_mosaic(
        [["quadratic", "dense", "sparse"], ["absolute", "dense", "sparse"]],
        per_subplot_kw={"dense": solid, "sparse": solid},
        width_ratios=[1, 1.1, 1.1],
        figsize=(_WIDTH, 4.0),
        layout="constrained",
    )
    for name, score in zip(("quadratic", "absolute"), _SCORES.values(), strict=True):
        _line_panel(axes[name], sf.rpm(score, 1.0), sf.rpm(score, 2.0))
    score = sf.scores.MultivariateQuadratic([0.0, 0.0], torch.eye(2))
    for name, alpha, title in (("dense", 1.0, "N(0, I)"), ("sparse", 2.0, "TP(0, I)")):
        _surface(axes[name], sf.rpm(score, alpha), title, look)
    return figure


def families_of_both() -> Picture:
    """Figure 1 of Martins et al.: one and two dimensions at alpha = 1 and 2."""
    return Picture(
        "martins-figure-1",
        _first_figure,
        "Left: a normal with a truncated parabola, a Laplace with a triangular density. Right: "
        "surfaces of a normal and of a truncated paraboloid, which ends on a circle.",
        "Figure 1 of Martins et al. (2020), by this package.",
    )


def _ellipses(look: Look) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(_WIDTH, 3.9), layout="constrained")
    loc = torch.tensor([[0.34, 0.36], [0.68, 0.64]])
    sigma = torch.tensor([[[20.0, 12.0], [12.0, 12.0]], [[6.0, -4.0], [-4.0, 12.0]]])
    score = sf.scores.MultivariateQuadratic.from_sigma(loc, 1.5e-4 * sigma)
    for ax, alpha in zip(axes, (1.0, 1.5, 2.0), strict=True):
        p = sf.rpm(score, alpha)
        plot_density(p, ax, view=(0.0, 1.0))
        title = f"α = {alpha:g}\n{type(p).__name__}"
        ax.set(title=title, aspect="equal", xlabel="t₁", ylabel="t₂")
    lines = [
        Line2D([], [], color=look.ink, linestyle=style, label=label)
        for style, label in (("-", "edge of the support"), ("--", "99.9 % of the mass"))
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=2)
    return figure


def ellipses_picture() -> Picture:
    """Two densities of vectors at three alphas, with what their supports are."""
    return Picture(
        "ellipses",
        _ellipses,
        "Three panels, two elliptic densities each. At alpha 1 dashed ellipses mark most of the "
        "mass, at 1.5 and 2 solid ones mark where the densities end.",
        "One score, three alphas.",
    )
