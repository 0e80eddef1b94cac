"""The battery: draws follow the density, and their derivatives those of expectations."""

from collections.abc import Callable

import pytest
import torch
from cases import Case, every_case, every_dtype
from pyro.distributions.testing.gof import auto_goodness_of_fit
from torch import Tensor

Function = Callable[[Tensor], Tensor]
DRAWS, PATHS = 20_000, 8_000
# Between many more draws the gaps would be as small as float32's spacing.
SPACED = {torch.float32: 4_000, torch.float64: DRAWS}


@every_dtype
@every_case
def test_draws_follow_the_density(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    t = p.sample((SPACED[dtype],))
    assert not t.requires_grad
    columns = zip(*(x.reshape(len(t), -1).unbind(-1) for x in (t, p.prob(t))), strict=True)
    for draws, probs in columns:
        assert auto_goodness_of_fit(draws, probs) > 1e-3 / p.batch_shape.numel()


@every_dtype
@every_case
def test_draws_repeat_with_the_seed_and_differ_within(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    torch.manual_seed(3)
    t = p.sample((100,))
    torch.manual_seed(3)
    assert torch.equal(p.rsample((100,)).detach(), t)
    assert len(t.flatten().unique()) > 0.98 * t.numel()


def square(t: Tensor) -> Tensor:
    return t.square()


@pytest.mark.parametrize("g", [square, torch.cos], ids=["square", "cos"])
@every_dtype
@every_case
def test_pathwise_gradients_are_those_of_the_expectation(
    case: Case, dtype: torch.dtype, g: Function
) -> None:
    p = case(dtype)
    # A parameter for every draw: its gradient is one draw of the estimate.
    leaves, spread = (
        {
            name: v.detach().expand(shape).clone().requires_grad_()
            for name, v in case.leaves(dtype).items()
        }
        for shape in (p.batch_shape, (PATHS, *p.batch_shape))
    )
    expected = case.family.make(**leaves).expect(g, 200)
    exact = torch.autograd.grad(expected.sum(), list(leaves.values()))
    value = g(case.family.make(**spread).rsample())
    draws = torch.autograd.grad(value.sum(), list(spread.values()))
    for name, found, goal in zip(leaves, draws, exact, strict=True):
        error = found.std(0) / PATHS**0.5
        assert ((found.mean(0) - goal).abs() < 5 * error).all(), name
