"""Constraints that know their intervals, and their bijections."""

import math

import pytest
import torch
from torch.distributions import biject_to, transform_to

from sparsefam import Normal, TruncatedParabola
from sparsefam.supports import Interval, RealLine, finite, positive_finite

LOWER, UPPER = torch.tensor([[-1.0], [2.0]]), torch.tensor([0.0, 5.0, 9.0])
BOUNDS = torch.broadcast_tensors(LOWER, torch.maximum(UPPER, LOWER + 1))


def test_interval_checks_elementwise_ends_included() -> None:
    interval = Interval(*BOUNDS)
    assert interval.check(BOUNDS[0]).all() and interval.check(BOUNDS[1]).all()
    assert not interval.check(BOUNDS[0] - 1e-3).any() and not interval.check(BOUNDS[1] + 1e-3).any()
    assert not interval.check(torch.full((2, 3), math.nan)).any()
    assert interval.intervals.shape == (2, 3, 1, 2)
    torch.testing.assert_close(interval.intervals[..., 0, :], torch.stack(BOUNDS, -1))


@pytest.mark.parametrize("registry", [biject_to, transform_to])
def test_interval_bijection_covers_it_with_an_exact_log_det(registry) -> None:
    bounds = [x.double() for x in BOUNDS]
    transform = registry(Interval(*bounds))
    u = torch.linspace(-6, 6, 7, dtype=torch.float64)[:, None, None].expand(7, 2, 3)
    u = u.clone().requires_grad_()
    t = transform(u)
    assert Interval(*bounds).check(t).all()
    torch.testing.assert_close(transform.inv(t), u, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(t.sum(), u)
    torch.testing.assert_close(transform.log_abs_det_jacobian(u, t), slope.log())


def test_bounds_carry_gradients_to_the_parameters() -> None:
    loc, scale = torch.tensor(0.3, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    lower, upper = TruncatedParabola(loc, scale).support.intervals[0]
    assert torch.autograd.grad(upper, (loc, scale), retain_graph=True) == (1.0, 1.0)
    assert torch.autograd.grad(lower, (loc, scale)) == (1.0, -1.0)


def test_real_line_has_infinite_intervals_of_the_batch_shape() -> None:
    support = Normal(torch.zeros(2, 3, dtype=torch.float64), 1.0).support
    assert isinstance(support, RealLine)
    assert support.intervals.shape == (2, 3, 1, 2)
    assert support.intervals.dtype == torch.float64
    assert (support.intervals[..., 0] == -math.inf).all()
    assert (support.intervals[..., 1] == math.inf).all()
    checked = support.check(torch.tensor([0.0, math.inf, math.nan]))
    assert checked.tolist() == [True, True, False]
    u = torch.randn(4)
    assert torch.equal(biject_to(support)(u), u)


def test_parameter_constraints_refuse_infinity() -> None:
    values = torch.tensor([-1.0, 0.0, 1e-30, 1e30, math.inf, -math.inf, math.nan])
    assert finite.check(values).tolist() == [True] * 4 + [False] * 3
    assert positive_finite.check(values).tolist() == [False, False, True, True] + [False] * 3
    assert positive_finite.check(transform_to(positive_finite)(torch.randn(9))).all()
    assert finite.check(transform_to(finite)(torch.randn(9))).all()
