"""Incomplete beta functions and characteristic functions against mpmath."""

import math
from functools import cache

import mpmath as mp
import pytest
import torch
from torch import Tensor

from sparsefam.numerics.special import (
    betaincc,
    characteristic,
    digamma_difference,
    log_gamma_ratio,
)

DTYPES = [torch.float32, torch.float64]
ULP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ARGUMENTS = [0.5, 1.0, 3.0, 9.0, 50.0, 1e3, 1e6, 1e8]
DELTAS = [0.5, 4.0, 50.0]
# (a, b, x), all exact in float32: tails and centres, small, equal, and very different exponents.
CASES = [
    (0.0625, 0.0625, 0.25),
    (0.0625, 40.0, 0.001953125),
    (0.5, 1.0, 0.25),
    (0.5, 1.5, 0.9990234375),
    (0.5, 11.0, 0.75),
    (0.5, 1e5, 0.0001220703125),
    (0.5, 1e7, 2.0**-24),
    (1.0, 1.0, 0.375),
    (2.5, 0.75, 2.0**-20),
    (2.5, 0.75, 0.96875),
    (11.0, 11.0, 0.25),
    (60.0, 110.0, 0.5),
    (1e3, 1e3, 0.453125),
    (3e3, 7e5, 0.0048828125),
    (1e6, 1e6, 0.5),
    (1e6, 1e6, 0.498046875),
    (1e7, 1e7, 0.49981689453125),
    (1e7, 0.25, 1 - 2.0**-23),
]


def _log_density(a: mp.mpf, b: mp.mpf, x: mp.mpf) -> mp.mpf:
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
    return (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x) - log_beta


def _tails(a: mp.mpf, b: mp.mpf, x: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """I_x(a, b) and its complement: the hypergeometric series, or the density integrated."""
    if min(a, b) <= 1 or a + b <= 400:
        lower = mp.betainc(a, b, 0, x, regularized=True)
        return lower, mp.betainc(b, a, 0, 1 - x, regularized=True)
    mean = a / (a + b)
    step = mp.sqrt(mean * (1 - mean) / (a + b)) * (1 if x >= mean else -1)
    marks = [min(max(x + step * k, 0), 1) for k in (0, 0.25, 1, 2, 4, 8, 16)]
    marks = [t for i, t in enumerate(marks) if i == 0 or t != marks[i - 1]]
    tail = abs(mp.quad(lambda t: mp.exp(_log_density(a, b, t)), marks))
    return (1 - tail, tail) if x >= mean else (tail, 1 - tail)


@cache
def _reference(a: float, b: float, x: float) -> tuple[float, ...]:
    """1 - I and its slopes in a, b and x, from the side that keeps the digits."""
    with mp.workdps(40):
        point = mp.mpf(a), mp.mpf(b), mp.mpf(x)
        side, sign = (0, -1) if a * (1 - x) >= b * x else (1, 1)
        slopes = []
        for i in (0, 1):
            step = point[i] * mp.mpf(10) ** -12
            up, down = ([v + s * step * (j == i) for j, v in enumerate(point)] for s in (1, -1))
            slopes.append(sign * (_tails(*up)[side] - _tails(*down)[side]) / (2 * step))
        return tuple(float(v) for v in (_tails(*point)[1], *slopes, -mp.exp(_log_density(*point))))


def _upper_tail(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return betaincc(a, b, x, 1 - x)


def _relative(found: Tensor, expected: Tensor) -> float:
    return ((found.detach().double() - expected) / expected).abs().max().item()


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
        assert _relative(found, torch.tensor(expected, dtype=torch.float64)) < 10 * ULP[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_upper_tail_and_its_gradients_keep_their_digits(dtype: torch.dtype) -> None:
    # Both tails: the lower one of x is the upper one of 1 - x, with the exponents exchanged.
    cases = CASES + [(b, a, 1 - x) for a, b, x in CASES if x > 2.0**-20]
    expected = torch.tensor([_reference(*c) for c in cases], dtype=torch.float64)
    point = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in zip(*cases, strict=True)]
    value = _upper_tail(*point)
    assert value.dtype == dtype
    found = (value, *torch.autograd.grad(value.sum(), point))
    bounds = {torch.float32: (6e-7, 2e-6), torch.float64: (1e-13, 1e-12)}[dtype]
    for i, (x, exact) in enumerate(zip(found, expected.unbind(-1), strict=True)):
        normal = exact.abs() > torch.finfo(dtype).tiny
        assert _relative(x[normal], exact[normal]) < bounds[i > 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outside_and_at_the_ends(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.5, 0.0, 1.0, 1.5], dtype=dtype).requires_grad_()
    a = torch.tensor([[0.0625], [0.5], [1.0], [1e6]], dtype=dtype).requires_grad_()
    for b in (0.25, 1.0, 1e7):
        upper = _upper_tail(a, torch.tensor(b, dtype=dtype), x)
        assert torch.equal(upper, torch.tensor([1.0, 1, 0, 0], dtype=dtype).expand(4, 4))
        first = torch.autograd.grad(upper.sum(), (a, x), create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), (a, x))
        assert all(torch.equal(g, torch.zeros_like(g)) for g in (*first, *second))
    nan, half = torch.tensor([float("nan"), 0.5], dtype=dtype).unbind()
    assert _upper_tail(half, half, nan).isnan() and _upper_tail(half, nan, half).isnan()


def test_complement_keeps_digits_next_to_one() -> None:
    rest = torch.tensor([1e-3, 1e-7, 1e-12, 1e-20], dtype=torch.float32)
    x = (1 - rest).requires_grad_()
    found = betaincc(torch.tensor(0.5), torch.tensor(1.5), x, rest)
    with mp.workdps(40):
        expected = [float(mp.betainc(1.5, 0.5, 0, v, regularized=True)) for v in rest.tolist()]
        slopes = [float(mp.exp(_log_density(mp.mpf(1.5), mp.mpf(0.5), v))) for v in rest.tolist()]
    assert _relative(found, torch.tensor(expected, dtype=torch.float64)) < 2e-6
    # All of the gradient comes through x, as if the complement were 1 - x.
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert _relative(-gradient, torch.tensor(slopes, dtype=torch.float64)) < 2e-6


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


def _derivatives(rho: mp.mpf, nu: mp.mpf) -> list[float]:
    """d/drho, d/dnu, d2/drho2 and d2/drho dnu."""

    def slope(order: mp.mpf) -> mp.mpf:
        return -rho / (2 * (order + 1)) * _exact(rho, order + 1)

    curvature = -_exact(rho, nu + 1) / (2 * (nu + 1))
    curvature += rho**2 * _exact(rho, nu + 2) / (4 * (nu + 1) * (nu + 2))
    in_order = mp.diff(lambda order: _exact(rho, order), nu)
    return [float(v) for v in (slope(nu), in_order, curvature, mp.diff(slope, nu))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_absolute_error_is_rounding(dtype: torch.dtype) -> None:
    rho, nu, exact = _grid(dtype)
    found = characteristic(rho, nu)
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    bound = {torch.float32: 2e-6, torch.float64: 2e-14}[dtype]
    for nu in (0.5, 0.75, 8.0, 1000.0):
        for rho in (0.0, 2.0**-10, -0.5, 4.875, 5.125, -12.25, 46.0, 1000.0):
            point = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (rho, nu)]
            first = torch.autograd.grad(characteristic(*point), point, create_graph=True)
            second = torch.autograd.grad(first[0], point)
            with mp.workdps(50):
                size, order = mp.mpf(abs(rho)), mp.mpf(point[1].item())
                expected = _derivatives(size, order)
            sign = math.copysign(1, rho)
            expected = [sign * expected[0], expected[1], expected[2], sign * expected[3]]
            found = [t.item() for t in (*first, *second)]
            assert found == pytest.approx(expected, rel=0, abs=bound), (nu, rho)
