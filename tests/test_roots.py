"""Roots of increasing functions, and the derivatives of what they define implicitly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from sparsefam.numerics.roots import attach_root_gradient, increasing_root

F64 = torch.float64


@given(
    st.floats(-5, 5), st.floats(0.3, 20), st.floats(0, 3), st.integers(0, 4), st.floats(0.0, 1.0)
)
def test_agrees_with_brentq(
    centre: float, rate: float, bend: float, power: int, level: float
) -> None:
    """Increasing functions from nearly straight to a step to flat at the root."""

    def f(x: torch.Tensor) -> torch.Tensor:
        z = x - centre
        return torch.tanh(rate * z) + bend * z ** (2 * power + 1) - 0.9 * (2 * level - 1)

    root = increasing_root(f, torch.tensor(-12.0, dtype=F64), torch.tensor(12.0, dtype=F64))
    exact = brentq(lambda x: f(torch.tensor(x, dtype=F64)).item(), -12, 12, xtol=1e-14, rtol=1e-14)
    assert root.item() == pytest.approx(exact, abs=1e-9 + 1e-9 * abs(exact))


def test_roots_at_the_ends_and_in_float32() -> None:
    ends = torch.tensor([0.0, 1.0])
    found = increasing_root(lambda x: x - ends, torch.zeros(2), torch.ones(2))
    torch.testing.assert_close(found, ends, atol=1e-6, rtol=0)
    assert found.dtype == torch.float32
    target = torch.linspace(1e-6, 1, 50)
    found = increasing_root(lambda x: x**3 - target, torch.zeros(50), torch.ones(50))
    torch.testing.assert_close(found, target ** (1 / 3), rtol=2e-6, atol=0)


def test_an_end_is_the_root_where_rounding_puts_it_beyond() -> None:
    zero, one = torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64)
    assert increasing_root(lambda x: (x - 1).clamp_max(-1e-17), zero, one) == 1
    assert increasing_root(lambda x: x.clamp_min(1e-17), zero, one) == 0


def test_first_second_and_third_derivatives_of_the_implicit_function() -> None:
    level = torch.tensor([0.2, 1.7], dtype=F64, requires_grad=True)
    start = increasing_root(
        lambda x: x.exp() + x - 1 - level, torch.zeros(2, dtype=F64), 2 * torch.ones(2, dtype=F64)
    )
    x = attach_root_gradient(start, lambda x: x.exp() + x - 1 - level, lambda x: x.exp() + 1)
    torch.testing.assert_close(x.detach(), start, rtol=1e-12, atol=0)
    e = start.exp()
    first = 1 / (1 + e)
    exact = [first, -e * first**3, first**4 * (3 * e**2 * first - e)]
    found = x
    for expected in exact:
        (found,) = torch.autograd.grad(found.sum(), level, create_graph=True)
        torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-12)


def test_a_flat_point_gets_no_gradient_instead_of_nan() -> None:
    level = torch.tensor(0.0, requires_grad=True)
    x = attach_root_gradient(torch.tensor(0.0), lambda x: x**3 - level, lambda x: 3 * x**2)
    (slope,) = torch.autograd.grad(x + 0 * level, level)
    assert slope.item() == 0
