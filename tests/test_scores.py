"""Scores as plain functions of locations: values, shapes, gradients and what they refuse."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparsefam import scores

DOUBLE = torch.float64
LOC, WIDTH = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE), torch.tensor([0.5, 2.0, 8.0]).double()
T = torch.linspace(-3, 3, 13, dtype=DOUBLE).reshape(13, 1, 1)


def cosh(x: Tensor) -> Tensor:
    return torch.cosh(x)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (scores.Quadratic(LOC, WIDTH), -((T - LOC) ** 2) / (2 * WIDTH**2)),
        (scores.AbsoluteDeviation(LOC, WIDTH), -(T - LOC).abs() / WIDTH),
        (
            scores.LocationScale(LOC, WIDTH, cosh),
            -torch.sinh((T - LOC).abs() / WIDTH) / WIDTH,
        ),
    ],
    ids=["quadratic", "absolute", "location-scale"],
)
def test_values_broadcast_over_the_batch(score: scores.Score, expected: Tensor) -> None:
    torch.testing.assert_close(score(T), expected, rtol=1e-14, atol=0)
    assert score(T).shape == (13, 2, 3)
    assert isinstance(score, scores.Score)


def test_numbers_and_mixed_precisions_become_tensors_of_one_dtype() -> None:
    f = scores.Quadratic(0, sigma=2)
    assert f.loc.dtype == f.sigma.dtype == torch.float32
    f = scores.Quadratic(torch.zeros(2), sigma=torch.ones((), dtype=DOUBLE))
    assert (f.loc.dtype, f.sigma.shape) == (DOUBLE, (2,))


def test_gradients_reach_locations_and_parameters() -> None:
    leaves = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.7, 0.25, 2.0)]
    for make in (
        scores.Quadratic,
        scores.AbsoluteDeviation,
        lambda loc, scale: scores.LocationScale(loc, scale, cosh),
    ):
        assert torch.autograd.gradcheck(lambda t, loc, width, f=make: f(loc, width)(t), leaves)


def test_slope_is_the_derivative_and_can_be_differentiated_again() -> None:
    x = torch.linspace(0.1, 2, 5, dtype=DOUBLE, requires_grad=True)
    power = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    slope = scores.slope_of(lambda v: v**power, x)
    torch.testing.assert_close(slope, power * x ** (power - 1))
    in_x, in_power = torch.autograd.grad(slope.sum(), (x, power))
    torch.testing.assert_close(in_x, 6 * x)
    torch.testing.assert_close(in_power, (x**2 * (1 + 3 * x.log())).sum())


def test_finite_scores_are_indexed_by_category() -> None:
    f = scores.Finite(torch.tensor([[1.0, -math.inf, 3.0], [4.0, 5.0, 6.0]]))
    assert f(torch.tensor(2)).tolist() == [3.0, 6.0]
    assert f(torch.tensor([0, 1])).tolist() == [[1.0, -math.inf], [4.0, 5.0]]


def test_a_score_must_say_how_to_be_called() -> None:
    with pytest.raises(NotImplementedError):
        scores.Score()(torch.zeros(()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scores.Quadratic(math.nan, 1.0), r"loc must be finite, got .*nan"),
        (lambda: scores.Quadratic(0.0, math.inf), r"sigma must be positive and finite, got .*inf"),
        (lambda: scores.AbsoluteDeviation(0.0, 0.0), r"b must be positive and finite, got .*0"),
        (lambda: scores.LocationScale(0.0, -3.0, cosh), r"scale must be positive .*-3"),
        (lambda: scores.Quadratic("left", 1.0), "loc must be a number or a tensor, got 'left'"),
        (
            lambda: scores.Quadratic(torch.zeros(2), torch.ones(3)),
            r"shapes must broadcast .* loc \(2,\), sigma \(3,\)",
        ),
        (lambda: scores.Finite(torch.zeros(2, 0)), r"scores must have shape .*\(2, 0\)"),
        (lambda: scores.Finite(torch.tensor([0.0, math.inf])), r"numbers below \+inf, got .*inf"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], scores.Score], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
