"""The gallery's attention maps, over words, images and recordings, as networks have learned them.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Figures 2 to 7. Moreno et al.
    (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention, Figure 1.
"""

import json
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pyro.contrib.gp.kernels import RBF
from torch import Tensor

import sparsefam as sf
from sparsefam.plotting import plot_attention_map

from .canvases import CANVAS, DIGIT
from .gallery_training import NAMES, PATH
from .look import Look
from .page import Picture

__all__ = ["images_picture", "shares_of", "speakers_picture", "words_picture"]

_WIDTH = 9.4
_TITLES = ("discrete softmax", "continuous softmax", "continuous sparsemax")
# The same in both looks: the canvases are black in both.
_HIGHLIGHT = "#E69F00"


@cache
def _found(part: str) -> dict[str, Any]:
    """What was kept of the training."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))[part]
    return found


def shares_of(p: sf.SparseDistribution, count: int) -> Tensor:
    """Mass (T, count) of densities (T,) in equal parts of [0, 1]; tails go to the outer ones."""
    edges = torch.linspace(0, 1, count + 1, dtype=torch.float64)[1:-1]
    below = p.cdf(edges[:, None]).mT
    ends = torch.zeros(len(below), 1).double(), torch.ones(len(below), 1).double()
    return torch.cat([ends[0], below, ends[1]], -1).diff(dim=-1)


def _weights(found: dict[str, Any], name: str) -> Tensor:
    """What each English word reads of each German one; exact zeros are 0, all else is above."""
    if name == "discrete":
        return torch.tensor(found[name])
    family = sf.Normal if name == "softmax" else sf.TruncatedParabola
    p = family(*(torch.tensor(found[name][x]).double() for x in ("loc", "scale")))
    shares = shares_of(p, len(found["german"]))
    return shares.clamp_min(1e-30) if name == "softmax" else shares


def _words(look: Look) -> Figure:
    found = _found("words")
    figure, axes = plt.subplots(1, 3, figsize=(_WIDTH, 4.15), sharey=True, layout="constrained")
    ramp = LinearSegmentedColormap.from_list("ramp", look.ramp)
    colours = ScalarMappable(PowerNorm(0.5, 0, 1), ramp)
    for ax, name, title in zip(axes, NAMES, _TITLES, strict=True):
        weights = _weights(found, name)
        for (i, j), share in zip(
            torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist(),
            weights.flatten().tolist(),
            strict=True,
        ):
            colour = colours.to_rgba(share) if share > 0 else "none"
            style = {"facecolor": colour, "edgecolor": look.ink, "linewidth": 0.3}
            ax.add_patch(Rectangle((j, i), 1, 1, **style))
        ax.set(title=title, xlim=(0, weights.shape[1]), ylim=(weights.shape[0], 0), aspect="equal")
        ax.set_xticks(torch.arange(weights.shape[1]) + 0.5, found["german"], rotation=90)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes[0].set_yticks(torch.arange(weights.shape[0]) + 0.5, found["english"])
    bar = figure.colorbar(colours, ax=axes, location="bottom", aspect=60, fraction=0.04)
    bar.set_ticks([0, 0.01, 0.1, 0.25, 0.5, 1])
    bar.set_label("share of a word in what is read; without colour: exactly zero")
    return figure


def words_picture() -> Picture:
    """Figure 2 of Martins et al., on a translation task that learns in a minute."""
    return Picture(
        "martins-figure-2",
        _words,
        "Three maps, English words in rows and German words in columns. All cells of the first two "
        "have some colour, most of the third have none. Dark cells are mostly a word's "
        "translation: the verb at the end, the number turned round.",
        "In the manner of Figure 2 of Martins et al. (2020).",
    )


def _density(found: dict[str, Any], name: str, row: int) -> Any:
    if name == "discrete":
        return torch.tensor(found[name][row])
    family = sf.MultivariateNormal if name == "softmax" else sf.TruncatedParaboloid
    loc, tril = (torch.tensor(found[name][x][row]) for x in ("loc", "scale_tril"))
    return family(loc, scale_tril=tril)


def _images(look: Look) -> Figure:
    found = _found("images")
    figure, axes = plt.subplots(2, 4, figsize=(_WIDTH, 4.9), layout="constrained")
    for row, asked in enumerate(found["asked"]):
        image = torch.tensor(found["images"][row])
        axes[row, 0].imshow(image, cmap="gray", extent=(0, 1, 1, 0))
        for ax, name in zip(axes[row, 1:], NAMES, strict=True):
            plot_attention_map(_density(found, name, row), image, ax=ax, color=_HIGHLIGHT)
        corner = [x / CANVAS for x in found["corners"][row]]
        for ax in axes[row]:
            _frame(ax, corner)
        axes[row, 0].set_ylabel(f"which digit is\n{asked}?")
    for ax, title in zip(axes[0], ("image", *_TITLES), strict=True):
        ax.set_title(title)
    return figure


def _frame(ax: Axes, corner: list[float]) -> None:
    """Around the digit that was asked about."""
    side = DIGIT / CANVAS
    style = {"fill": False, "linestyle": ":", "linewidth": 1.2, "edgecolor": "#ffffff"}
    ax.add_patch(Rectangle((corner[0], corner[1]), side, side, **style))
    ax.set(xticks=[], yticks=[], xlabel="", ylabel="")


def images_picture() -> Picture:
    """Figures 3 to 7 of Martins et al., on images of digits."""
    return Picture(
        "martins-figure-3",
        _images,
        "Two images of four digits in rows; the image, and over it cells, a dashed ellipse and a "
        "solid ellipse, each near the digit asked about, which is framed.",
        "In the manner of Figures 3 to 7 of Martins et al. (2020).",
    )


def _speakers(look: Look) -> Figure:
    found = _found("speakers")
    weights = torch.tensor(found["weights"])
    points = torch.linspace(0, 1, weights.shape[-1])
    p = sf.KernelDeformedExp(weights, points, RBF(1, lengthscale=torch.tensor(0.03)), alpha=2.0)
    t = torch.linspace(0, 1, 801)
    density = p.prob(t[:, None, None]).detach()
    ends = p.support.intervals.detach()
    figure, axes = plt.subplots(1, 3, figsize=(_WIDTH, 3.0), sharey=True, layout="constrained")
    step = 0.055 * float(density.max())
    for j, (ax, speaker) in enumerate(zip(axes, found["speakers"], strict=True)):
        for i in range(weights.shape[1]):
            colour = look.palette[i]
            ax.plot(t, density[:, j, i], color=colour, linewidth=1.1)
            inside = [end for end in ends[j, i].tolist() if end[0] == end[0]]
            ax.hlines([-step * (i + 1.5)] * len(inside), *zip(*inside, strict=True), colour, lw=2.4)
        ax.axhline(0, color=look.ink, linewidth=0.6)
        ax.set(title=f"speaker {speaker}", xlabel="t")
        ax.set_yticks([y for y in ax.get_yticks() if 0 <= y <= density.max()])
    axes[0].set_ylabel("density, and supports below")
    return figure


def speakers_picture() -> Picture:
    """Figure 1 of Moreno et al., on recordings of vowels."""
    return Picture(
        "moreno-figure-1",
        _speakers,
        "Three panels of six densities each, with bars below for their supports, of one to three "
        "intervals, at about the same places within a panel and at others in the next.",
        "In the manner of Figure 1 of Moreno et al. (2021).",
    )
