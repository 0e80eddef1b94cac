"""Gauss rules: exactness, powers at ends, and one tensor by order, dtype and device."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparsefam.numerics.quadrature import gauss_legendre, smooth_unit_rule

Rule = Callable[[int, Tensor], tuple[Tensor, Tensor]]
LIKE = {dtype: torch.empty((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
DOUBLE = LIKE[torch.float64]


@pytest.mark.parametrize("order", [1, 7, 64])
def test_gauss_legendre_is_exact_to_its_degree_and_no_further(order: int) -> None:
    x, w = gauss_legendre(order, DOUBLE)
    assert x.shape == w.shape == (order,)
    degrees = range(2 * order)
    found = torch.stack([(w * x**k).sum() for k in degrees])
    exact = torch.tensor([2 / (k + 1) if k % 2 == 0 else 0 for k in degrees], dtype=DOUBLE.dtype)
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-14)  # the digits of scipy's nodes
    if order < 30:
        miss = (w * x ** (2 * order)).sum().item() - 2 / (2 * order + 1)
        assert abs(miss) > 1e-9


@pytest.mark.parametrize("power", [0.0, 0.25, 1.7, 20.0])
def test_smooth_rule_integrates_powers_at_both_ends(power: float) -> None:
    x, w = smooth_unit_rule(64, DOUBLE)
    assert ((x >= 0) & (x < 1)).all()
    for at_zero, at_one in ((power, 0.0), (0.0, power), (power, power)):
        exact = math.exp(
            math.lgamma(at_zero + 1) + math.lgamma(at_one + 1) - math.lgamma(at_zero + at_one + 2)
        )
        found = (w * x**at_zero * (1 - x) ** at_one).sum().item()
        assert found == pytest.approx(exact, rel=2e-11)


@pytest.mark.parametrize("rule", [gauss_legendre, smooth_unit_rule])
def test_rules_follow_the_dtype_and_are_made_once(rule: Rule) -> None:
    x, w = rule(24, LIKE[torch.float32])
    again, _ = rule(24, LIKE[torch.float32])
    assert x.dtype == w.dtype == torch.float32 and x.data_ptr() == again.data_ptr()
    exact, weights = rule(24, DOUBLE)
    torch.testing.assert_close(x.double(), exact, rtol=1e-7, atol=2e-7)
    torch.testing.assert_close(w.double(), weights, rtol=1e-7, atol=0)
    # In float32 too no node is at 1, where a density may have no finite logarithm.
    assert (x < 1).all()


def test_a_rule_made_in_inference_mode_enters_a_graph_later() -> None:
    with torch.inference_mode():
        gauss_legendre(13, DOUBLE)
    x, w = gauss_legendre(13, DOUBLE)
    scale = torch.tensor(2.0, dtype=DOUBLE.dtype, requires_grad=True)
    (slope,) = torch.autograd.grad((w * (scale * x).square()).sum(), scale)
    assert slope.item() == pytest.approx(4 * 2 / 3)
