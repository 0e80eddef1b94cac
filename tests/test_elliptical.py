"""Characteristic functions of the squared frequency, and moments by Stein's identity."""

import math
from collections.abc import Iterator

import mpmath as mp
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.bases import Polynomial
from sparsefam.numerics.ellipsoid import elliptical_moments, radial_characteristic
from sparsefam.numerics.special import characteristic

DOUBLE = torch.float64
DTYPES = [torch.float32, DOUBLE]
ORDERS = [0.5, 1.0, 1.5, 4.0, 30.0, 1e6]
# On both sides of the switch at 1, and far out.
SQUARES = [0.0, 1e-12, 0.25, 1 - 2.0**-12, 1.0, 1 + 2.0**-12, 9.0, 1e4]


# Characteristic functions


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_characteristic_and_its_slope_against_mpmath(dtype: torch.dtype) -> None:
    bound = {torch.float32: 4e-7, DOUBLE: 2e-15}[dtype]
    for nu in ORDERS:
        square = torch.tensor(SQUARES, dtype=dtype, requires_grad=True)
        order = torch.tensor(nu, dtype=dtype)
        found = radial_characteristic(square, order)
        (slope,) = torch.autograd.grad(found.sum(), square)
        with mp.workdps(60):
            for x, value, tangent in zip(SQUARES, found.tolist(), slope.tolist(), strict=True):
                exact = mp.hyp0f1(nu + 1, -mp.mpf(x) / 4)
                assert value == pytest.approx(float(exact), abs=bound)
                exact = -mp.hyp0f1(nu + 2, -mp.mpf(x) / 4) / (4 * (nu + 1))
                assert tangent == pytest.approx(float(exact), abs=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_characteristic_is_smooth_at_zero(dtype: torch.dtype) -> None:
    frequency = torch.zeros(3, dtype=dtype, requires_grad=True)
    nu = torch.tensor(2.5, dtype=dtype)

    def value(w: Tensor) -> Tensor:
        return radial_characteristic(w.square().sum(), nu)

    assert value(frequency) == 1
    assert not torch.autograd.functional.jacobian(value, frequency).any()
    hessian = torch.autograd.functional.hessian(value, frequency)
    torch.testing.assert_close(hessian, torch.eye(3, dtype=dtype) / -7, rtol=1e-6, atol=0)


def test_gradients_of_the_characteristic() -> None:
    square = torch.tensor([0.0, 0.3, 0.999, 1.001, 30.0], dtype=DOUBLE, requires_grad=True)
    nu = torch.tensor([0.5, 1.5, 2.0, 2.0, 8.0], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(radial_characteristic, (square, nu + 1))
    assert gradgradcheck(radial_characteristic, (square, nu + 1))
    torch.testing.assert_close(
        radial_characteristic(square, nu), characteristic(square.sqrt(), nu), rtol=0, atol=1e-15
    )


# Moments


def pairings(axes: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All ways to split an even number of axes into pairs."""
    if not axes:
        yield []
    for i in range(1, len(axes)):
        for rest in pairings(axes[1:i] + axes[i + 1 :]):
            yield [(axes[0], axes[i]), *rest]


def wick(powers: list[int], spread: Tensor) -> float:
    """Isserlis' theorem: a central moment of a normal law, as a sum over pairings."""
    axes = [axis for axis, power in enumerate(powers) for _ in range(power)]
    sums = [math.prod(spread[i, j].item() for i, j in pairs) for pairs in pairings(axes)]
    return math.fsum(sums)


def moments(degree: int, loc: Tensor, spread: Tensor, factors: Tensor) -> Tensor:
    basis = Polynomial(degree, ndim=loc.shape[-1])
    return elliptical_moments(loc, spread, factors, basis.exponents, basis.lowered)


@pytest.mark.parametrize(("ndim", "degree"), [(1, 8), (2, 7), (3, 6), (5, 4)])
def test_central_moments_are_isserlis_sums(ndim: int, degree: int) -> None:
    factor = torch.randn(ndim, ndim, dtype=DOUBLE)
    spread = factor @ factor.mT
    ones = torch.ones(degree // 2, dtype=DOUBLE)
    powers = Polynomial(degree, ndim=ndim).exponents.tolist()
    exact = torch.tensor([wick(k, spread) for k in powers], dtype=DOUBLE)
    zero = torch.zeros(ndim, dtype=DOUBLE)
    torch.testing.assert_close(moments(degree, zero, spread, ones), exact, rtol=1e-13, atol=1e-13)
    # Of a law whose radius is another, each degree is multiplied by what its radius makes of it.
    factors = torch.rand(degree // 2, dtype=DOUBLE)
    scaled = exact * torch.tensor([factors[: sum(k) // 2].prod() for k in powers])
    torch.testing.assert_close(
        moments(degree, zero, spread, factors), scaled, rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_due_to_the_spread_keeps_its_digits_far_from_the_origin(
    dtype: torch.dtype,
) -> None:
    loc = torch.tensor([100.0, -50.0], dtype=dtype)
    spread = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=dtype) * 2.0**-14
    ones = torch.ones(1, dtype=dtype)
    slope = torch.autograd.functional.jacobian(
        lambda scale: moments(2, loc, scale * spread, ones), torch.ones((), dtype=dtype)
    )
    assert slope.tolist() == [0.0, 0.0, 0.0, *spread[[0, 0, 1], [0, 1, 1]].tolist()]


def test_low_degrees_need_no_factors() -> None:
    loc = torch.tensor([[3.0, 5.0], [7.0, 11.0]])
    spread, none = torch.eye(2).expand(2, 2, 2), torch.ones(2, 0)
    assert moments(0, loc, spread, none).tolist() == [[1.0], [1.0]]
    assert moments(1, loc, spread, none).tolist() == [[1.0, 3.0, 5.0], [1.0, 7.0, 11.0]]


def test_gradients_of_the_moments() -> None:
    loc = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    spread = torch.randn(2, 3, 3, dtype=DOUBLE, requires_grad=True)
    factors = torch.rand(2, 2, dtype=DOUBLE, requires_grad=True)

    def symmetric(loc: Tensor, spread: Tensor, factors: Tensor) -> Tensor:
        return moments(4, loc, spread + spread.mT, factors)

    assert gradcheck(symmetric, (loc, spread, factors))
    assert gradgradcheck(symmetric, (loc, spread, factors))
