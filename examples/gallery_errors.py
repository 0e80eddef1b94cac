"""How exact expectations of Gaussian functions are, by this package's rule and by the papers'."""

import math
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import sparsefam as sf

from .look import Look
from .page import Picture

__all__ = ["closed_form", "errors_picture", "line_errors", "plane_errors", "polar_rule"]

_WIDTH = 9.4
_RATIOS = torch.logspace(-3, 3, 37, dtype=torch.float64)
_WIDTHS = torch.logspace(-2.5, 0.5, 19, dtype=torch.float64)
_NODES = 64
_ANGLES, _MANY = 100, 4000


def closed_form(scale: Tensor, offset: Tensor, width: Tensor) -> Tensor:
    """E_p of Gaussian functions at `offset` from the centre of a truncated parabola.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eqs. 49 and 50.
    """
    u, v = (-offset - scale) / width, (-offset + scale) / width
    between = (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))) / 2
    at_u, at_v = (torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) for x in (u, v))
    square = width**2 * (between - v * at_v + u * at_u)
    square = square + 2 * offset * width * (at_u - at_v) + offset**2 * between
    return 3 / (4 * scale) * (between - square / scale**2)


def _error(found: Tensor, exact: Tensor) -> float:
    """Largest error, relative to the largest function."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def line_errors(ratios: Tensor) -> dict[str, list[float]]:
    """Errors in float32 of three rules, for each half-width of the support in widths."""
    found: dict[str, list[float]] = {"eq. 50": [], f"{_NODES} nodes": [], "expect": []}
    for ratio in ratios:
        offsets = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64) * (ratio + 1)
        # As float32 sees it, so that the rounding of the problem is no error of the rules.
        scale, offsets = ratio.float().double(), offsets.float().double()
        exact = _exact_on_line(scale, offsets)
        s, c = scale.float(), offsets.float()
        p, basis = sf.TruncatedParabola(0.0, s), sf.bases.GaussianRBF(c, 1.0)
        nodes, weights = p.quadrature(_NODES // 2)
        rules = (closed_form(s, c, torch.ones(())), weights @ basis(nodes), p.expect(basis))
        for name, value in zip(found, rules, strict=True):
            found[name].append(_error(value, exact))
    return found


def _exact_on_line(scale: Tensor, offsets: Tensor) -> Tensor:
    """In float64, the closed form where it cancels nothing, else 400 nodes."""
    if scale > 5:
        return closed_form(scale, offsets, torch.ones(()).double())
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(400))
    t = scale * x[:, None]
    hills = torch.exp(-0.5 * (t - offsets).square()) / math.sqrt(2 * math.pi)
    return (0.75 * w[:, None] * (1 - x[:, None] ** 2) * hills).sum(0)


def polar_rule(scale_tril: Tensor, offset: Tensor, width: float, angles: Tensor) -> Tensor:
    """E_p (N) of Gaussian functions at `offset` (N, 2) from the centre of a paraboloid, in float64.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eqs. 56 to 60.
    """
    a = torch.stack([angles.cos(), angles.sin()], -1)
    mean = torch.linalg.solve_triangular(scale_tril, offset.mT, upper=False).mT
    precision = scale_tril.mT @ scale_tril / width**2
    s = (a @ precision * a).sum(-1).rsqrt()[:, None]
    r0 = s**2 * (a @ precision @ mean.mT)
    whole = (mean @ precision * mean).sum(-1)
    front = s / math.sqrt(2 * math.pi) * torch.exp(-0.5 * (whole - (r0 / s) ** 2))
    front = front * torch.linalg.det(precision).sqrt()
    u, v = -r0 / s, (1 - r0) / s
    at_u, at_v = (torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) for x in (u, v))
    between = torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))
    radial = (2 * s**3 + r0**2 * s + r0 * s) * at_v - (2 * s**3 + r0**2 * s - s) * at_u
    radial = radial - (r0**3 + (3 * s**2 - 1) * r0) / 2 * between
    return 4 / torch.linalg.det(scale_tril) * (front * radial).mean(0)


def plane_errors(widths: Tensor) -> dict[str, list[float]]:
    """Errors of the rule of angles and of `expect`, for each width of the functions."""
    ticks = (torch.arange(10, dtype=torch.float64) + 0.5) / 10
    centers = torch.cartesian_prod(ticks, ticks).float().double()
    loc = torch.tensor([0.5, 0.5], dtype=torch.float64)
    tril = torch.tensor([[0.4, 0.0], [0.25, 0.04]]).double()
    turn = 2 * math.pi
    closed = torch.linspace(0, turn, _ANGLES, dtype=torch.float64)
    found: dict[str, list[float]] = {"both ends": [], "angles": [], "expect": []}
    for width in widths.tolist():
        width = torch.tensor(width).item()
        many = torch.arange(_MANY, dtype=torch.float64) * (turn / _MANY)
        exact = polar_rule(tril, centers - loc, width, many)
        few = torch.arange(_ANGLES, dtype=torch.float64) * (turn / _ANGLES)
        p = sf.TruncatedParaboloid(loc.float(), tril.float())
        basis = sf.bases.GaussianRBF(centers.float(), torch.full((100,), width))
        rules = (
            *(polar_rule(tril, centers - loc, width, x) for x in (closed, few)),
            p.expect(basis),
        )
        for name, value in zip(found, rules, strict=True):
            found[name].append(_error(value, exact))
    return found


_LABELS = {
    "eq. 50": "closed form, eqs. 49 and 50",
    f"{_NODES} nodes": f"{_NODES} nodes on the support",
    "both ends": f"{_ANGLES} angles, both ends counted",
    "angles": f"{_ANGLES} angles, float64",
    "expect": "p.expect, float32",
}


@cache
def _measured() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What both versions of the picture show."""
    return line_errors(_RATIOS), plane_errors(_WIDTHS)


def _draw(look: Look) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(_WIDTH, 3.4), layout="constrained")
    colours, marks = (look.palette[3], look.palette[1], look.palette[0]), ("v", "s", "o")
    panels = zip((left, right), (_RATIOS, _WIDTHS), _measured(), strict=True)
    for ax, x, errors in panels:
        for (name, values), colour, mark in zip(errors.items(), colours, marks, strict=True):
            ax.loglog(x, values, marker=mark, markersize=3.5, color=colour, label=_LABELS[name])
        ax.set_ylabel("largest error / largest value")
        ax.legend(loc="upper center", fontsize=7.5)
    left.set_ylim(3e-9, 100)
    right.set_ylim(1e-16, 1e4)
    left.set(title="On the line, float32, α = 2", xlabel="half-width of the support / width of ψ")
    right.set(
        title="In the plane, 100 functions, α = 2", xlabel="width of ψ (support 0.95 by 0.07)"
    )
    return figure


def errors_picture() -> Picture:
    """Errors of expectations against the widths of what is integrated."""
    return Picture(
        "errors",
        _draw,
        "Two panels of errors, on logarithmic axes. The package's stay near one rounding error; "
        "the closed form's are above 1 for narrow supports, nodes fail on wide ones, and angles "
        "for narrow functions.",
        "Each rule is right somewhere; expect chooses.",
    )
