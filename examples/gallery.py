"""Draw the pictures of the documentation, each for light and for dark pages.

`python -m examples.gallery` writes them into docs/assets; `make docs` draws them again for the
site.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Figure 1.
    Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention,
    Figure 1.
    Okabe and Ito (2008), Color Universal Design. (light.mplstyle and dark.mplstyle)
"""

import argparse
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import gaussian_kde
from sklearn.datasets import load_iris
from torch import Tensor

import sparsefam as sf
from sparsefam.estimators import SparseDensity
from sparsefam.plotting import plot_attention, plot_density

from . import series
from .common import save

QUADRATIC, ABSOLUTE = sf.scores.Quadratic(0.0, 1.0), sf.scores.AbsoluteDeviation(0.0, 1.0)
WIDTH = 9.4  # of a page, in inches


def draw_start(narrow: bool = False) -> Figure:
    """Draw a density with a gap, attention to an irregular series, and a posterior that ends.

    Args:
        narrow: Whether for a phone, one below the other.
    """
    shape, size = ((3, 1), (3.6, 6.6)) if narrow else ((1, 3), (WIDTH, 2.7))
    figure, (left, middle, right) = plt.subplots(*shape, figsize=size)
    petals = load_iris().data[:, 2:3]
    estimate = SparseDensity(bandwidth=0.88, penalty=1e-5).fit(petals)
    t = np.linspace(0, 8.5, 401)
    left.plot(t, gaussian_kde(petals.T)(t), "--", color="C3", label="gaussian_kde")
    estimate.plot(left, color="C0", label="SparseDensity", data=petals, view=(0.0, 8.5))
    left.set(title="a density with a gap", xlabel="length of petals, cm", yticks=[])
    left.legend(loc="upper right")

    generator = torch.Generator().manual_seed(3)
    times = torch.rand(40, generator=generator).sort().values
    series = torch.sin(9 * times) + 0.2 * torch.randn(40, generator=generator)
    regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(16, 0.08), penalty=0.3)
    function = regression.fit(times, series[None, :, None])
    heads = sf.TruncatedParabola(torch.tensor([0.2, 0.7]), torch.tensor([0.12, 0.2]))
    options: dict[str, Any] = {"value_function": lambda at: function(at[None])[0, :, 0]}
    plot_attention(heads, times, series, ax=middle, view=(0.0, 1.0), **options)
    middle.set(title="two heads read parts of a series", xlabel="time")
    figure.axes[-1].set_yticks([])

    readings = torch.tensor([2.1, 2.6, 1.9, 2.4])
    level = torch.linspace(1.2, 3.6, 2001)
    likelihood = sf.TruncatedParabola(level, 0.6).log_prob(readings.unsqueeze(-1)).sum(0).exp()
    posterior = likelihood / torch.trapezoid(likelihood, level)
    right.plot(level, posterior, color="C0", label="posterior")
    right.fill_between(level, posterior, color="C0", alpha=0.18, linewidth=0)
    rows = -0.35 * torch.arange(1, 5)
    right.errorbar(readings, rows, xerr=0.6, fmt="o", color="C1", markersize=4, label="readings")
    right.set(title="a posterior that ends", xlabel="level", yticks=[], ylim=(-1.7, 4.3))
    right.legend(loc="upper right")
    return figure


def draw_families() -> Figure:
    """Draw nine densities with their supports and escorts."""
    power = sf.scores.LocationScale(0.0, 1.0, lambda x: x**4 / 12)
    families = {
        "Normal, α = 1": sf.rpm(QUADRATIC, 1.0),
        "BetaGaussian, α = 4/3": sf.rpm(QUADRATIC, 4 / 3),
        "BetaGaussian, α = 3/2": sf.rpm(QUADRATIC, 1.5),
        "TruncatedParabola, α = 2": sf.rpm(QUADRATIC, 2.0),
        "BetaGaussian, α = ∞ (uniform)": sf.rpm(QUADRATIC, math.inf),
        "LocationScale, α = 2, g = x⁴/12": sf.rpm(power, 2.0),
        "Laplace, α = 1": sf.rpm(ABSOLUTE, 1.0),
        "BetaLaplace, α = 3/2": sf.rpm(ABSOLUTE, 1.5),
        "Triangular, α = 2": sf.rpm(ABSOLUTE, 2.0),
    }
    figure, axes = plt.subplots(3, 3, figsize=(WIDTH, 5.25))
    for ax, (title, p) in zip(axes.flat, families.items(), strict=True):
        # At alpha = inf every escort is the same uniform density, and the default one has no index.
        finite = bool(p.alpha.isfinite())
        plot_density(p, ax, escort=finite, color="C0", view=(-3.7, 3.7))
        ax.set_title(title)
    styles = {"density": {}, "escort": {"linestyle": "--"}, "support": {"linewidth": 4}}
    lines = [Line2D([], [], color="C0", label=label, **style) for label, style in styles.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=3)
    return figure


def draw_tree() -> Figure:
    """Draw two scores and the densities that five values of alpha make of each."""
    view = (-3.6, 3.6)
    alphas = {"1": 1.0, "4/3": 4 / 3, "3/2": 1.5, "2": 2.0, "∞": math.inf}
    titles = [
        ["Normal", "triweight", "biweight", "TruncatedParabola", "uniform"],
        ["Laplace", "BetaLaplace", "BetaLaplace", "Triangular", "uniform"],
    ]
    figure, axes = plt.subplots(2, 6, figsize=(WIDTH, 3.5))
    for row, score, names in zip(axes, (QUADRATIC, ABSOLUTE), titles, strict=True):
        t = torch.linspace(*view, 201)
        row[0].plot(t, score(t), color="C7")
        row[0].set(ylim=(-3.2, 0.4), xlim=view, yticks=[0, -2], ylabel="score")
        row[0].set_title(f"f(t) = {'−t²/2' if score is QUADRATIC else '−|t|'}", fontsize=8.5)
        for ax, (alpha, value), name in zip(row[1:], alphas.items(), names, strict=True):
            plot_density(sf.rpm(score, value), ax, color="C0", view=view)
            ax.set_title(f"α = {alpha}\n{name}", fontsize=8.5)
            ax.set_ylim(-0.07, 1.1)
            ax.set_yticks([0, 0.5, 1] if alpha == "1" else [])
            ax.set_xticks([-2, 0, 2])
    return figure


def draw_dimensions() -> Figure:
    """Draw Figure 1 of Martins et al.: one and two dimensions at alpha = 1 and 2."""
    solid = {"projection": "3d"}
    figure, axes = plt.subplot_mosaic(
        [["quadratic", "dense", "sparse"], ["absolute", "dense", "sparse"]],
        per_subplot_kw={"dense": solid, "sparse": solid},
        width_ratios=[1, 1.1, 1.1],
        figsize=(WIDTH, 4.0),
    )
    for name, score in {"quadratic": QUADRATIC, "absolute": ABSOLUTE}.items():
        ax = axes[name]
        for p in (sf.rpm(score, 1.0), sf.rpm(score, 2.0)):
            plot_density(p, ax, label=type(p).__name__, view=(-3.6, 3.6))
        ax.legend(loc="upper right", fontsize=7.5)
        low, high = ax.get_ylim()
        ax.set(xlabel="t", ylabel="p(t)", ylim=(low, 1.45 * high))
    plane = sf.scores.MultivariateQuadratic([0.0, 0.0], torch.eye(2))
    x, y = torch.meshgrid(*[torch.linspace(-2.6, 2.6, 105)] * 2, indexing="ij")
    for name, alpha, title in (("dense", 1.0, "N(0, I)"), ("sparse", 2.0, "TP(0, I)")):
        ax, height = axes[name], sf.rpm(plane, alpha).prob(torch.stack([x, y], -1))
        style = {"linewidth": 0, "rstride": 1, "cstride": 1, "antialiased": False}
        style |= {"cmap": plt.get_cmap()}
        ax.plot_surface(x.numpy(), y.numpy(), height.numpy(), vmin=-0.1, vmax=0.56, **style)
        ax.set(zlim=(0, 0.58), title=title, xlabel="t₁", ylabel="t₂", zticks=[0, 0.25, 0.5])
        ax.tick_params(labelsize=7)
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.set_pane_color((0, 0, 0, 0))
    return figure


@cache
def speakers() -> tuple[Any, series.Series]:
    """Train kernel sparsemax on the vowels of examples.series in ten seconds."""
    generator = torch.Generator().manual_seed(0)
    data, test = series.load("TRAIN", generator), series.load("TEST", generator)
    return series.train("kernel sparsemax", data, epochs=40, seed=0), test


def draw_ellipses() -> Figure:
    """Draw two elliptical densities at three values of alpha."""
    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 3.9))
    loc = torch.tensor([[0.34, 0.36], [0.68, 0.64]])
    sigma = torch.tensor([[[20.0, 12.0], [12.0, 12.0]], [[6.0, -4.0], [-4.0, 12.0]]])
    score = sf.scores.MultivariateQuadratic.from_sigma(loc, 1.5e-4 * sigma)
    for ax, alpha in zip(axes, (1.0, 1.5, 2.0), strict=True):
        p = sf.rpm(score, alpha)
        plot_density(p, ax, view=(0.0, 1.0))
        title = f"α = {alpha:g}\n{type(p).__name__}"
        ax.set(title=title, aspect="equal", xlabel="t₁", ylabel="t₂")
    lines = [Line2D([], [], color="C7", linestyle=style) for style in ("-", "--")]
    labels = ("edge of the support", "99.9 % of the mass")
    figure.legend(lines, labels, loc="outside lower center", ncols=2)
    return figure


def closed_form(scale: Tensor, offset: Tensor, width: Tensor) -> Tensor:
    """Return E_p of Gaussians at `offset` from the center of a truncated parabola.

    References:
        Martins et al. (2020), eqs. 49 and 50.
    """
    u, v = (-offset - scale) / width, (-offset + scale) / width
    between = (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))) / 2
    at_u, at_v = (torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) for x in (u, v))
    square = width**2 * (between - v * at_v + u * at_u)
    square = square + 2 * offset * width * (at_u - at_v) + offset**2 * between
    return 3 / (4 * scale) * (between - square / scale**2)


def errors(ratios: Tensor) -> dict[str, list[float]]:
    """Return float32 errors of three rules for each ratio of half-width to basis width.

    They are the largest errors relative to the largest value.
    """
    errors_by_rule: dict[str, list[float]] = {"eqs. 49 and 50": [], "64 nodes": [], "p.expect": []}
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(400))
    one = torch.ones(())
    for ratio in ratios:
        # Round the inputs first: their rounding is not an error of the rules.
        s, c = ratio.float(), (torch.linspace(-1.5, 1.5, 31).double() * (ratio + 1)).float()
        # In float64 the closed form is accurate where the support is wide.
        exact = closed_form(s.double(), c.double(), one.double())
        if s <= 5:
            gauss = torch.exp(-0.5 * (s * x[:, None] - c).square()) / math.sqrt(2 * math.pi)
            exact = (0.75 * w[:, None] * (1 - x[:, None] ** 2) * gauss).sum(0)
        p, basis = sf.TruncatedParabola(0.0, s), sf.bases.GaussianRBF(c, 1.0)
        nodes, weights = p.quadrature(32)
        rules = (closed_form(s, c, one), weights @ basis(nodes), p.expect(basis))
        for name, value in zip(errors_by_rule, rules, strict=True):
            error = (value.double() - exact).abs().max() / exact.abs().max()
            errors_by_rule[name].append(error.item())
    return errors_by_rule


def draw_errors() -> Figure:
    """Draw the errors of expectations by the papers' rule, by fixed nodes and by `expect`."""
    figure, ax = plt.subplots(figsize=(0.7 * WIDTH, 3.4))
    ratios = torch.logspace(-3, 3, 37, dtype=torch.float64)
    styles = zip(("C3", "C1", "C0"), ("v", "s", "o"), strict=True)
    for (name, values), (color, mark) in zip(errors(ratios).items(), styles, strict=True):
        ax.loglog(ratios, values, marker=mark, markersize=3.5, color=color, label=name)
    ax.set(ylim=(3e-9, 100), title="1-D, float32, α = 2", ylabel="largest error / largest value")
    ax.set(xlabel="half-width of the support / width of ψ")
    ax.legend(loc="upper center", fontsize=7.5)
    return figure


PICTURES = {
    "start": draw_start,
    "start-narrow": partial(draw_start, narrow=True),
    "families": draw_families,
    "tree": draw_tree,
    "martins-figure-1": draw_dimensions,
    "moreno-figure-1": lambda: series.draw(*speakers()),
    "ellipses": draw_ellipses,
    "errors": draw_errors,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Draw the documentation's gallery.")
    parser.add_argument("names", nargs="*", help=f"which (all): {', '.join(PICTURES)}")
    parser.add_argument("--out", type=Path, default=Path("docs/assets"), help="folder to write")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PICTURES)
    if unknown:
        parser.error(f"names must be among {', '.join(PICTURES)}, got {', '.join(unknown)}")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        for tone in ("light", "dark"):
            path = options.out / f"{name}-{tone}.png"
            with plt.style.context(Path(__file__).with_name(f"{tone}.mplstyle")):
                figure = PICTURES[name]()
                save(figure, path)
                plt.close(figure)
            print(path)


if __name__ == "__main__":
    main()
