"""Functions with rules of their own for derivatives, in each mode of torch."""

from typing import Any

import pytest
import torch
from battery import DOUBLE, one_graph
from torch import Tensor
from torch.autograd import gradgradcheck

from sparsefam._numerics.operators import differentiable, differentiable_once, operator


def _cube(x: Tensor, factor: float) -> Tensor:
    return factor * x**3


def _slope(kept: Any) -> Tensor:
    x, factor = kept
    slope: Tensor = 3 * factor * x.square()
    return slope


CUBE = differentiable(
    operator("test_cube", _cube, lambda x, factor: torch.empty_like(x).contiguous()),
    lambda kept, grads, needed: (grads[0] * _slope(kept),),
    lambda inputs, outputs: inputs,
    push_forward=lambda kept, changes: changes[0] * _slope(kept),
)
X = torch.tensor([0.5, -2.0], dtype=DOUBLE, requires_grad=True)


def cube(x: Tensor) -> Tensor:
    y: Tensor = CUBE(x, 2.0)
    return y


def test_rules_hold_in_every_mode() -> None:
    due = 6 * X.detach().square()
    for way in (cube, one_graph(cube)):
        (slope,) = torch.autograd.grad(way(X).sum(), X)
        torch.testing.assert_close(slope, due)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(cube))(X.detach()), due)
    torch.testing.assert_close(torch.func.jvp(cube, (X.detach(),), (torch.ones_like(X),))[1], due)
    curvature = torch.func.jacfwd(torch.func.jacrev(lambda x: cube(x).sum()))(X.detach())
    torch.testing.assert_close(curvature.diagonal(), 12 * X.detach())
    assert gradgradcheck(cube, X)


def test_rules_of_forward_mode_are_not_differentiated_by_it() -> None:
    with pytest.raises(NotImplementedError, match="forward mode within forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(cube))(X.detach())


def test_second_derivatives_are_refused() -> None:
    y = differentiable_once(X.square()).sum()
    (slope,) = torch.autograd.grad(y, X, create_graph=True)
    torch.testing.assert_close(slope, 2 * X)
    with pytest.raises(RuntimeError, match="only first derivatives"):
        torch.autograd.grad(slope.sum(), X)
