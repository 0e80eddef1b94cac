"""Gaussians under piecewise polynomials: against dense quadrature, and their derivatives."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.numerics.gaussian_interval import Profile, gaussian_expectation

F32, F64 = torch.float32, torch.float64
PROFILES = {
    "uniform": (0.5,),
    "parabola": (0.75, 0.0, -0.75),
    "triweight": (1.09375, 0.0, -3.28125, 0.0, 3.28125, 0.0, -1.09375),
    "tent": (1.0, -1.0),
    "tent-cubed": (2.0, -6.0, 6.0, -2.0),
}
every_profile = pytest.mark.parametrize("name", PROFILES)
# Ratios of scale to width on both sides of every switch, and close to the one at 2.5.
RATIOS = np.concatenate([np.logspace(-4, 4, 9), [2.4999, 2.5001]])
# Centers in widths from loc and from both edges, as far as 40 widths away.
STEPS = np.concatenate([np.linspace(-40, 40, 21), np.linspace(-4, 4, 9)])


def grid(dtype: torch.dtype, loc: float = 0.3, width: float = 0.37) -> tuple[Tensor, ...]:
    """loc (), scale (R, 1), centers (R, N) and width (): exact numbers of the dtype."""
    scale = RATIOS[:, None] * width
    inside = loc + scale * np.linspace(-0.97, 0.97, 13)
    outside = [loc + side * scale + STEPS * width for side in (-1, 0, 1)]
    values = (loc, scale, np.concatenate([inside, *outside], -1), width)
    return tuple(torch.tensor(v, dtype=dtype) for v in values)


@cache
def dense(dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """E, dE/dloc and dE/dscale on the grid in float64, by 40 subintervals of each half-support.

    In z = (t - c)/w if the support is wide, in x = (t - loc)/scale if it is narrow.
    """
    loc, scale, centers, width = (v.double() for v in grid(dtype))
    h, z0 = scale / width, (loc - centers) / width
    node, weight = (torch.from_numpy(v) for v in roots_legendre(16))
    share = ((torch.arange(40, dtype=F64)[:, None] + (node + 1) / 2) / 40).reshape(-1, 1, 1)
    weight = (weight / 80).repeat(40).reshape(-1, 1, 1)
    totals = {name: [torch.zeros_like(centers) for _ in range(3)] for name in PROFILES}
    for low, high in ((-1.0, 0.0), (0.0, 1.0)):
        start, end = ((z0 + side * h).clamp(-39, 39) for side in (low, high))
        wide = h > 1
        length = torch.where(wide, (end - start) / h, high - low)
        z = torch.where(wide, start + (end - start) * share, z0 + h * (low + share))
        x = torch.where(wide, (z - z0) / h, low + share)
        gauss = weight * length * torch.exp(-0.5 * z * z) / (width * math.sqrt(2 * math.pi))
        for name, coefficients in PROFILES.items():
            mass = gauss * sum(c * x.abs() ** k for k, c in enumerate(coefficients))
            for total, factor in zip(totals[name], (1, -z / width, -x * z / width), strict=True):
                total += (mass * factor).sum(0)
    return totals


def row_errors(found: Tensor, expected: Tensor) -> Tensor:
    return (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)


# Values


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"), [(F32, 2e-6, 2e-5), (F64, 1e-11, 1e-9)], ids=["32", "64"]
)
@every_profile
def test_every_ratio_of_scale_to_width(
    name: str, dtype: torch.dtype, forward: float, backward: float
) -> None:
    exact = dense(dtype)[name]
    loc, scale, centers, width = grid(dtype)
    # One loc and one scale for each pair: their gradients are the derivatives of every element.
    loc = loc.expand_as(centers).clone().requires_grad_()
    scale = scale.expand_as(centers).clone().requires_grad_()
    value = gaussian_expectation(loc, scale, centers, width, Profile(PROFILES[name]))
    slopes = torch.autograd.grad(value.sum(), (loc, scale))
    assert value.dtype == dtype
    assert row_errors(value, exact[0]).max() < forward
    assert row_errors(slopes[0], exact[1]).max() < backward
    assert row_errors(slopes[1], exact[2]).max() < backward


# Derivatives


@every_profile
def test_derivatives_of_two_orders(name: str) -> None:
    points = [(0.3, 0.5, 0.8, 0.7), (0.3, 2.0, 1.9, 0.4), (0.0, 1.0, 0.2, 0.1)]
    columns = zip(*points, strict=True)
    inputs = [torch.tensor(v, dtype=F64, requires_grad=True) for v in columns]

    def evaluate(*inputs: Tensor) -> Tensor:
        return gaussian_expectation(*inputs, Profile(PROFILES[name]))

    assert gradcheck(evaluate, inputs)
    assert gradgradcheck(evaluate, inputs)
