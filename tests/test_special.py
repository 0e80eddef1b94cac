"""Gamma functions, tails, characteristic functions and deformed logarithms against mpmath."""

import math
from functools import cache

import mpmath as mp
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam._numerics.deformed import expm1_ratio, log1p_ratio, log_beta
from sparsefam._numerics.special import (
    characteristic,
    digamma_difference,
    log_ball_tail,
    log_gamma_ratio,
)

DTYPES = [torch.float32, torch.float64]
ULP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ARGUMENTS = [0.5, 1.0, 3.0, 9.0, 50.0, 1e3, 1e6, 1e8]
DELTAS = [0.5, 4.0, 50.0]
# (r, m), all exact in float32: the center, the middle, far in the tail and next to the edge.
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
def test_errors_of_characteristic_functions_are_rounding(dtype: torch.dtype) -> None:
    rho, nu, exact = _grid(dtype)
    found = characteristic(rho, nu)
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() < BOUND[dtype]


# Deformed logarithms, through beta = 1
SLOPES = [0.0, 1e-12, -1e-6, 1e-3, 0.3, 1.0, -0.5, 2.5]
LIMITS = [(torch.float32, 2e-6), (torch.float64, 4e-15)]


def exact_log(u: float, slope: float) -> mp.mpf:
    with mp.workdps(200):
        u, slope = mp.mpf(u), mp.mpf(slope)
        return mp.log(u) if slope == 0 else (u**slope - 1) / slope


def beta_of(slope: float, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """beta, and the slope 1 - beta that its rounding leaves."""
    beta = torch.tensor(1 - slope, dtype=dtype)
    return beta, (1 - beta).item()


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize(("dtype", "limit"), LIMITS)
def test_deformed_logarithms(slope: float, dtype: torch.dtype, limit: float) -> None:
    beta, kept = beta_of(slope, dtype)
    v = torch.tensor([1e-3, 0.3, 0.999, 1.0, 1.001, 2.7, 40.0], dtype=dtype)
    exact = torch.tensor([float(exact_log(x, kept)) for x in v.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_beta(v, beta).double(), exact, rtol=limit, atol=1e-30)
    x = v - 1
    ratio = torch.where(x == 0, 1.0, x.double().log1p() / x.double())
    torch.testing.assert_close(log1p_ratio(x).double(), ratio, rtol=limit, atol=0)


@pytest.mark.parametrize("slope", [1e-9, 0.05, 0.3, -1e-4])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
def test_their_derivative_in_beta(slope: float, dtype: torch.dtype, limit: float) -> None:
    beta, kept = beta_of(slope, dtype)
    v = torch.tensor(2.625, dtype=dtype)
    (found,) = torch.autograd.grad(log_beta(v, beta.requires_grad_()), beta)
    with mp.workdps(80):
        expected = -mp.diff(lambda s: exact_log(2.625, s), mp.mpf(kept))
    assert found.item() == pytest.approx(float(expected), rel=limit)


def test_deformed_logarithms_of_zero() -> None:
    zero = torch.zeros(())
    assert log_beta(zero, 0.5).item() == -2.0
    assert log_beta(zero, 1.0).item() == log_beta(zero, 1.5).item() == -math.inf


def test_second_derivatives_of_deformed_logarithms() -> None:
    x = torch.tensor([-0.6, -0.25, -0.1, 0.0, 1e-9, 0.2499, 0.25, 3.0], dtype=torch.float64)
    for function in (log1p_ratio, expm1_ratio):
        assert gradcheck(function, x.requires_grad_()) and gradgradcheck(function, x)
    v = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    for slope in (1e-7, 0.2, -0.3):
        beta = torch.tensor(1 - slope, dtype=torch.float64, requires_grad=True)
        assert gradgradcheck(log_beta, (v, beta))
