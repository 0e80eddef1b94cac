"""Products with units that overflow: infinite values, zero gradients, no NaN."""

import math

import torch
from torch import Tensor

from sparsefam.distributions.support_quadrature import in_units

LARGE = torch.tensor([1e30, math.inf])


def test_products_and_gradients_of_moderate_units() -> None:
    value = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    units = torch.rand(3, 1, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    found = in_units(value, *units)
    torch.testing.assert_close(found, value * units[0] * units[1])
    assert torch.autograd.gradgradcheck(lambda v: in_units(v.sin(), *units), value)


def test_zero_stays_zero_and_what_overflows_has_no_gradient() -> None:
    value = torch.tensor([[0.0, 0.0], [1e-3, -1e-3]], requires_grad=True)
    found = in_units(value, LARGE, torch.tensor(1e20))
    assert found.tolist() == [[0.0, 0.0], [math.inf, -math.inf]]
    (slope,) = torch.autograd.grad(found.sum(), value)
    assert (slope == 0).all()
    (slope,) = torch.autograd.grad(in_units(value, LARGE).sum(), value)
    torch.testing.assert_close(slope, torch.tensor([[1e30, 0.0], [1e30, 0.0]]))


def test_mapped_and_compiled() -> None:
    def slope(value: Tensor, unit: Tensor) -> Tensor:
        return torch.func.grad(lambda v: in_units(v, unit).square().sum())(value)

    value = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    expected = torch.tensor([[8.0, 0.0], [24.0, 0.0]])
    unit = torch.tensor([2.0, 0.0])
    torch.testing.assert_close(torch.func.vmap(slope, (0, None))(value, unit), expected)
    compiled = torch.compile(lambda v: in_units(v, unit), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(value), in_units(value, unit))
