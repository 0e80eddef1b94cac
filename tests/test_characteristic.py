"""The characteristic function against mpmath's Bessel functions, with two orders of derivatives."""

import math
from functools import cache

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefam.numerics.special import characteristic

DTYPES = [torch.float32, torch.float64]
BOUND = {torch.float32: 3e-7, torch.float64: 2e-15}
ORDERS = [0.5, 0.55, 0.6, 0.7, 0.75, 0.9, 1.0, 1.5, 2.5, 4.0, 8.0, 17.0, 30.0, 50.0, 1e3, 1e5, 1e6]
RATIOS = [0.0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.0, 1.03, 1.2, 2.0, 10.0, 300.0, 2e3]


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
def test_order_one_half_is_the_uniform_density(dtype: torch.dtype) -> None:
    rho = torch.cat([torch.linspace(0, 60, 500), torch.logspace(-4, 4, 500)]).to(dtype)
    expected = torch.sinc(rho.double() / math.pi)
    found = characteristic(rho, 0.5).double()
    assert (found - expected).abs().max() < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_order_tends_to_a_gaussian(dtype: torch.dtype) -> None:
    width = torch.linspace(-6, 6, 101, dtype=dtype)
    for nu in (1e4, 1e6):
        gap = characteristic(width * math.sqrt(2 * (nu + 1)), nu) - torch.exp(-width.square() / 2)
        assert gap.abs().max() < 1 / nu + 1e-6


@settings(max_examples=150, deadline=None)
@given(nu=st.floats(0.5, 60), rho=st.floats(-150, 150))
def test_any_parameters(nu: float, rho: float) -> None:
    with mp.workdps(60):
        expected = float(mp.hyp0f1(mp.mpf(nu) + 1, -(mp.mpf(rho) ** 2) / 4))
    assert characteristic(torch.tensor(rho, dtype=torch.float64), nu).item() == pytest.approx(
        expected, rel=0, abs=2e-15
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    bound = {torch.float32: 2e-6, torch.float64: 2e-14}[dtype]
    for nu in (0.5, 0.55, 0.75, 1.5, 8.0, 30.0, 1000.0):
        for rho in (0.0, 2.0**-10, -0.5, 3.0, 4.875, 5.125, -12.25, 46.0, 1000.0):
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_at_zero(dtype: torch.dtype) -> None:
    rho = torch.zeros(4, dtype=dtype, requires_grad=True)
    nu = torch.tensor([0.5, 1.5, 40.0, 1e6], dtype=dtype, requires_grad=True)
    value = characteristic(rho, nu)
    assert torch.equal(value, torch.ones_like(value))
    first = torch.autograd.grad(value.sum(), (rho, nu), create_graph=True)
    assert all(torch.equal(g, torch.zeros_like(g)) for g in first)
    (curvature,) = torch.autograd.grad(first[0].sum(), rho)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(curvature, -0.5 / (nu.detach() + 1), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everywhere_finite_and_bounded(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2, 6000, generator=generator, dtype=dtype)
    rho = (10 ** (10 * draws[0] - 4)).requires_grad_()
    nu = (0.5 + 10 ** (9 * draws[1] - 3)).requires_grad_()
    value = characteristic(rho, nu)
    assert (value.abs() <= 1).all()
    first = torch.autograd.grad(value.sum(), (rho, nu), create_graph=True)
    second = [h for g in first for h in torch.autograd.grad(g.sum(), (rho, nu), retain_graph=True)]
    assert all(t.isfinite().all() for t in (*first, *second))


def test_gradcheck_of_two_orders() -> None:
    rho = torch.tensor([0.0, -0.7, 4.0, 6.0, 25.0], dtype=torch.float64, requires_grad=True)
    nu = torch.tensor([0.6, 2.0, 1.5, 0.8, 9.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(characteristic, (rho, nu))
    assert torch.autograd.gradgradcheck(characteristic, (rho, nu))


def test_broadcasting_and_vmap() -> None:
    rho, nu = torch.tensor([-20.0, -4.0, -0.3, 0.0, 0.3, 4.0, 20.0]), torch.tensor([[0.5], [3.0]])
    value = characteristic(rho, nu)
    assert value.shape == (2, 7)
    torch.testing.assert_close(value, value.flip(-1), rtol=0, atol=0)
    pairs = torch.broadcast_tensors(rho, nu)
    mapped = torch.vmap(torch.vmap(characteristic))(*pairs)
    torch.testing.assert_close(mapped, value, rtol=0, atol=1e-7)
    slopes = torch.vmap(torch.vmap(torch.func.grad(characteristic)))(*pairs)
    torch.testing.assert_close(slopes, -slopes.flip(-1), rtol=0, atol=1e-7)


def test_compiles_in_one_graph() -> None:
    compiled = torch.compile(characteristic, backend="aot_eager", fullgraph=True)
    rho, nu, _ = _grid(torch.float64)
    torch.testing.assert_close(compiled(rho, nu), characteristic(rho, nu), rtol=0, atol=1e-15)
