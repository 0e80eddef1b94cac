"""Gamma differences and the incomplete beta function against mpmath and scipy."""

import warnings
from collections.abc import Callable
from functools import cache

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefam.numerics.special import (
    betainc,
    betaincc,
    decay_rule,
    digamma_difference,
    log_gamma_ratio,
)

DTYPES = [torch.float32, torch.float64]
ULP = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ARGUMENTS = [0.5, 0.7, 1.0, 1.5, 3.0, 9.0, 50.0, 1e3, 1e5, 1e6, 1e8]
DELTAS = [0.5, 1.0, 1.5, 4.0, 50.0]
# (a, b, x), all exact in float32: tails and centres, small, equal, and very different exponents.
CASES = [
    (0.0625, 0.0625, 0.25),
    (0.0625, 40.0, 0.001953125),
    (0.5, 1.0, 0.25),
    (0.5, 1.5, 0.9990234375),
    (0.5, 11.0, 0.75),
    (0.5, 1e3, 0.0009765625),
    (0.5, 1e5, 0.0001220703125),
    (0.5, 1e7, 2.0**-24),
    (0.5, 1e7, 2.0**-20),
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
    """I, 1 - I, dI/da, dI/db and dI/dx, from the side that keeps the digits."""
    with mp.workdps(40):
        point = mp.mpf(a), mp.mpf(b), mp.mpf(x)
        values = _tails(*point)
        side, sign = (0, 1) if a * (1 - x) >= b * x else (1, -1)
        slopes = []
        for i in (0, 1):
            step = point[i] * mp.mpf(10) ** -12
            up, down = ([v + s * step * (j == i) for j, v in enumerate(point)] for s in (1, -1))
            slopes.append(sign * (_tails(*up)[side] - _tails(*down)[side]) / (2 * step))
        return tuple(float(v) for v in (*values, *slopes, mp.exp(_log_density(*point))))


def _points(dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor(v, dtype=dtype, requires_grad=True) for v in zip(*CASES, strict=True)]


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
def test_both_tails_keep_their_digits(dtype: torch.dtype) -> None:
    expected = torch.tensor([_reference(*c) for c in CASES], dtype=torch.float64)
    a, b, x = _points(dtype)
    bound = {torch.float32: 6e-7, torch.float64: 1e-13}[dtype]
    for column, function in enumerate((betainc, betaincc)):
        found = function(a, b, x)
        assert found.dtype == dtype
        normal = expected[:, column] > torch.finfo(dtype).tiny
        assert _relative(found[normal], expected[normal, column]) < bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_in_all_arguments(dtype: torch.dtype) -> None:
    expected = torch.tensor([_reference(*c) for c in CASES], dtype=torch.float64)
    point = _points(dtype)
    bound = {torch.float32: 2e-6, torch.float64: 1e-12}[dtype]
    for sign, function in ((1, betainc), (-1, betaincc)):
        gradients = torch.autograd.grad(function(*point).sum(), point)
        for found, exact in zip(gradients, expected[:, 2:].unbind(-1), strict=True):
            normal = exact.abs() > torch.finfo(dtype).tiny
            assert _relative(sign * found[normal], exact[normal]) < bound


@pytest.mark.skipif(not hasattr(scipy.special, "betaincc"), reason="new in SciPy 1.12")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_points_against_scipy(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    a, b = 10 ** rng.uniform(-1.3, 7, (2, 3000))
    mean = a / (a + b)
    x = mean + 3 * rng.normal(size=3000) * np.sqrt(mean * (1 - mean) / (a + b + 1))
    x = np.where((x > 0) & (x < 1), x, mean * rng.uniform(size=3000))
    point = [torch.tensor(v, dtype=dtype) for v in (a, b, x)]
    exact = [t.double().numpy() for t in point]
    for ours, peer in (
        (betainc, scipy.special.betainc),
        (betaincc, scipy.special.betaincc),
    ):
        expected = torch.tensor(peer(*exact))
        normal = expected > 1e-30
        # Beyond a million the peer itself is only good to some 1e-12.
        bound = {torch.float32: 1e-6, torch.float64: 1e-11}[dtype]
        assert _relative(ours(*point)[normal], expected[normal]) < bound


@settings(max_examples=100, deadline=None)
@given(log_a=st.floats(-3, 5), log_b=st.floats(-3, 5), logit=st.floats(-30, 30), m=st.floats(0, 60))
def test_any_parameters(log_a: float, log_b: float, logit: float, m: float) -> None:
    a, b = float(np.exp(log_a)), float(np.exp(log_b))
    x = 1 / (1 + float(np.exp(-logit)))
    for p, q in ((a, b), (0.5, m + 1), (m + 1, m + 1)):
        with mp.workdps(40):
            expected = [float(v) for v in _tails(mp.mpf(p), mp.mpf(q), mp.mpf(x))]
        t = torch.tensor(x, dtype=torch.float64)
        found = [f(p, q, t).item() for f in (betainc, betaincc)]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_closed_forms_and_broadcasting() -> None:
    x = torch.linspace(0, 1, 9, dtype=torch.float64)
    m = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    power = betainc(m, 1.0, x)
    assert power.shape == (2, 9)
    torch.testing.assert_close(power, x**m, rtol=1e-14, atol=0)
    arcsine = 2 / torch.pi * torch.asin(x.sqrt())
    torch.testing.assert_close(betainc(0.5, 0.5, x), arcsine, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outside_and_at_the_ends(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.5, 0.0, 1.0, 1.5], dtype=dtype).requires_grad_()
    a = torch.tensor([[0.0625], [0.5], [1.0], [1e6]], dtype=dtype).requires_grad_()
    for b in (0.25, 1.0, 1e7):
        lower, upper = betainc(a, b, x), betaincc(a, b, x)
        assert torch.equal(lower, torch.tensor([0.0, 0, 1, 1], dtype=dtype).expand(4, 4))
        assert torch.equal(upper, 1 - lower)
        first = torch.autograd.grad((lower + 2 * upper).sum(), (a, x), create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), (a, x))
        assert all(torch.equal(g, torch.zeros_like(g)) for g in (*first, *second))
    nan = torch.tensor(float("nan"), dtype=dtype)
    assert betainc(2.0, 3.0, nan).isnan()
    assert betaincc(2.0, nan, nan.new_tensor(0.5)).isnan()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everywhere_finite(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(3, 8000, generator=generator, dtype=dtype)
    a, b = 10 ** (draws[:2] * 8.3 - 1.3)
    x = torch.where(draws[0] < 0.5, 10 ** (-37 * draws[2]), 1 - torch.finfo(dtype).eps / 2)
    x = torch.where(torch.arange(8000) < 4000, a / (a + b), x)
    point = [t.clone().requires_grad_() for t in (a, b, x)]
    for function in (betainc, betaincc):
        value = function(*point)
        assert ((value >= 0) & (value <= 1)).all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), point))


def test_complement_keeps_digits_next_to_one() -> None:
    rest = torch.tensor([1e-3, 1e-7, 1e-12, 1e-20], dtype=torch.float32)
    x = (1 - rest).requires_grad_()
    found = betaincc(0.5, 1.5, x, rest)
    with mp.workdps(40):
        expected = [float(mp.betainc(1.5, 0.5, 0, v, regularized=True)) for v in rest.tolist()]
        slopes = [float(mp.exp(_log_density(mp.mpf(1.5), mp.mpf(0.5), v))) for v in rest.tolist()]
    assert _relative(found, torch.tensor(expected, dtype=torch.float64)) < 2e-6
    # All of the gradient comes through x, as if the complement were 1 - x.
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert _relative(-gradient, torch.tensor(slopes, dtype=torch.float64)) < 2e-6


def test_gradcheck_of_two_orders() -> None:
    values = [(0.5, 5.0, 0.02), (3.0, 0.6, 0.7), (40.0, 70.0, 0.4), (0.07, 0.3, 0.1)]
    point = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in zip(*values, strict=True)
    ]
    for function in (betainc, betaincc):
        assert torch.autograd.gradcheck(function, point)
        assert torch.autograd.gradgradcheck(function, point)


def test_second_derivatives_are_the_density_s() -> None:
    normal = [i for i, c in enumerate(CASES) if _reference(*c)[4] > 1e-30 and c[0] + c[1] < 500]
    a, b, x = (t.detach()[normal].requires_grad_() for t in _points(torch.float64))
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    density = torch.exp((a - 1) * torch.log(x) + (b - 1) * torch.log1p(-x) - log_beta)
    expected = torch.autograd.grad(density.sum(), (a, b, x))
    first = torch.autograd.grad(betainc(a, b, x).sum(), (a, b, x), create_graph=True)
    for slope, exact in zip(first, expected, strict=True):
        (mixed,) = torch.autograd.grad(slope.sum(), x, retain_graph=True)
        assert ((mixed - exact) / (density + exact.abs())).abs().max() < 1e-11


def _difference_and_ratio(x: Tensor) -> Tensor:
    return log_gamma_ratio(x, 0.5) + digamma_difference(x, 1.5)


@pytest.mark.parametrize("function", [betainc, betaincc, _difference_and_ratio])
def test_vmap_and_functional_gradients(function: Callable[..., Tensor]) -> None:
    point = [t.detach() for t in _points(torch.float64)]
    point = point[:1] if function is _difference_and_ratio else point
    point[0] = point[0] + 0.5
    torch.testing.assert_close(torch.vmap(function)(*point), function(*point), rtol=0, atol=0)
    mapped = torch.vmap(torch.func.grad(function))(*point)
    leaves = [t.requires_grad_() for t in point]
    (batched,) = torch.autograd.grad(function(*leaves).sum(), leaves[:1])
    torch.testing.assert_close(mapped, batched, rtol=1e-12, atol=0)


def test_forward_mode() -> None:
    a, b, x = (torch.tensor(v, dtype=torch.float64) for v in (0.5, 4.0, 0.25))
    with warnings.catch_warnings():
        # torch's own forward mode scripts its decompositions, which torch itself deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        forward = torch.func.jacfwd(betainc, (0, 1, 2))(a, b, x)
    backward = torch.func.grad(betainc, (0, 1, 2))(a, b, x)
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=0)


def test_compiles_in_one_graph() -> None:
    compiled = torch.compile(betainc, backend="aot_eager", fullgraph=True)
    results = []
    for function in (betainc, compiled):
        point = _points(torch.float32)
        value = function(*point)
        results.append((value, *torch.autograd.grad(value.sum(), point)))
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, eager, rtol=4 * ULP[torch.float32], atol=0)


def test_decay_rule_integrates_across_scales() -> None:
    nodes, weights = decay_rule(60, -3.6, 4.4, torch.empty((), dtype=torch.float64))
    for power in (0.0, 0.5, 3.0, 10.0):
        found = (weights * nodes**power * torch.exp(-nodes)).sum()
        expected = torch.lgamma(torch.tensor(power + 1, dtype=torch.float64)).exp()
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
