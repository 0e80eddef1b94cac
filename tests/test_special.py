"""Gamma functions, tails and characteristic functions against mpmath."""

import math
from functools import cache

import mpmath as mp
import pytest
import torch
from torch import Tensor

from sparsefam.numerics.special import (
    characteristic,
    digamma_difference,
    log_ball_tail,
    log_gamma_ratio,
)

DTYPES = [torch.float32, torch.float64]
ULP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ARGUMENTS = [0.5, 1.0, 3.0, 9.0, 50.0, 1e3, 1e6, 1e8]
DELTAS = [0.5, 4.0, 50.0]
# (r, m), all exact in float32: the centre, the middle, far in the tail and next to the edge.
TAILS = [
    (2.0**-20, 0.0),
    (0.25, 0.0),
    (1 - 2.0**-20, 0.03125),
    (0.0625, 0.5),
    (0.9375, 1.5),
    (2.0**-10, 2.0),
    (0.5, 13.0),
    (1 - 2.0**-12, 13.0),
    (0.03125, 300.0),
    (0.25, 300.0),
    (0.0009765625, 1e6),
    (0.00390625, 1e6),
]


def _log_tail(r: mp.mpf, m: mp.mpf, dim: int) -> mp.mpf:
    """The logarithm of the incomplete beta function, which mpmath takes from its series."""
    return mp.log(mp.betainc(m + 1, mp.mpf(dim) / 2, 0, 1 - r**2, regularized=True))


@cache
def _tails(dim: int) -> Tensor:
    """Logarithms and their slopes in r and m."""
    rows = []
    with mp.workdps(40):
        for r, m in ((mp.mpf(r), mp.mpf(m)) for r, m in TAILS):
            value, step = _log_tail(r, m, dim), mp.mpf(10) ** -12
            high, low = (_log_tail(r, m + s * step, dim) for s in (1, 0))
            density = 2 * r ** (dim - 1) * (1 - r**2) ** m / mp.beta(m + 1, mp.mpf(dim) / 2)
            rows.append([value, -density / mp.exp(value), (high - low) / step])
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gamma_differences(dtype: torch.dtype, delta: float) -> None:
    x = torch.tensor(ARGUMENTS, dtype=dtype, requires_grad=True)
    with mp.workdps(40):
        exact = [mp.mpf(v) for v in x.tolist()]
        log_ratio = [float(mp.loggamma(v + delta) - mp.loggamma(v)) for v in exact]
        first = [float(mp.digamma(v + delta) - mp.digamma(v)) for v in exact]
        second = [float(mp.psi(1, v + delta) - mp.psi(1, v)) for v in exact]
    value, digamma = log_gamma_ratio(x, delta), digamma_difference(x, delta)
    scale = delta * (1 + x.detach().double().log().abs())
    error = (value.detach().double() - torch.tensor(log_ratio, dtype=torch.float64)) / scale
    assert error.abs().max() < 5 * ULP[dtype]
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    (trigamma,) = torch.autograd.grad(digamma.sum(), x)
    for found, expected in (
        (slope, first),
        (digamma, first),
        (curvature, second),
        (trigamma, second),
    ):
        exact = torch.tensor(expected, dtype=torch.float64)
        assert ((found.detach().double() - exact) / exact).abs().max() < 10 * ULP[dtype]


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tails_of_beta_gaussians(dtype: torch.dtype, dim: int) -> None:
    r, m = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in zip(*TAILS, strict=True))
    value = log_ball_tail(r, m, dim)
    assert value.dtype == dtype
    slopes = torch.autograd.grad(value.sum(), (r, m))
    exact, rate, in_order = _tails(dim).unbind(-1)
    bound = {torch.float32: 3e-6, torch.float64: 3e-12}[dtype]
    assert ((value.double() - exact).abs() / (1 + exact.abs())).max() < bound / 10
    # In several dimensions such terms cancel at small radii.
    terms = ((m + 1).sqrt() + (m + 1) * r, r) if dim > 1 else (0.0, 0.0)
    for slope, goal, term in zip(slopes, (rate, in_order), terms, strict=True):
        assert ((slope - goal).abs() / (goal.abs() + term)).max() < bound


# Characteristic functions
BOUND = {torch.float32: 3e-7, torch.float64: 2e-15}
ORDERS = [0.5, 0.6, 0.75, 1.0, 2.5, 8.0, 30.0, 50.0, 1e3, 1e6]
RATIOS = [0.0, 1e-3, 0.5, 0.9, 0.999, 1.0, 1.2, 10.0, 300.0, 2e3]


def _exact(rho: mp.mpf, nu: mp.mpf) -> mp.mpf:
    if rho < 50 or rho**2 < 8 * nu:
        return mp.hyp0f1(nu + 1, -(rho**2) / 4)
    return mp.gamma(nu + 1) * (2 / rho) ** nu * mp.besselj(nu, rho)


@cache
def _grid(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Frequencies around the switch of integrals, and around the width, of every order."""
    points = []
    for nu in ORDERS:
        switch = max(5.0, 1.5 * nu)
        reach = 1.2e4 if nu <= 50 else 2e3
        points += [(r * switch, nu) for r in RATIOS if r * switch <= reach]
        points += [(w * math.sqrt(nu + 1), nu) for w in (0.3, 1.0, 2.0, 4.0, 8.0, 8.6, 11.0)]
    rho, nu = torch.tensor(points, dtype=dtype).unbind(-1)
    with mp.workdps(30):
        exact = [
            float(_exact(mp.mpf(r), mp.mpf(n)))
            for r, n in zip(rho.tolist(), nu.tolist(), strict=True)
        ]
    return rho, nu, torch.tensor(exact, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_absolute_error_is_rounding(dtype: torch.dtype) -> None:
    rho, nu, exact = _grid(dtype)
    found = characteristic(rho, nu)
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() < BOUND[dtype]
