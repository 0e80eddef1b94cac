"""Scores as functions of locations: values, shapes, gradients, and refused arguments."""

import math

import pytest
import torch
from refusals import refused

from sparsefam import scores

DOUBLE = torch.float64
LOC, WIDTH = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE), torch.tensor([0.5, 2.0, 8.0]).double()
T = torch.linspace(-3, 3, 13, dtype=DOUBLE).reshape(13, 1, 1)


CENTRE = torch.tensor([[[0.25, -1.0, 3.0]], [[1.0, 0.0, -2.0]]], dtype=DOUBLE)
TRIL = torch.tensor(
    [[[0.5, 0.0, 0.0], [-2.0, 3.0, 0.0], [0.25, 1.0, 0.125]], torch.eye(3).tolist()], dtype=DOUBLE
)
EYE = torch.eye(2)


def test_the_matrix_itself_and_its_factor_are_the_same_score() -> None:
    f = scores.MultivariateQuadratic.from_sigma(CENTRE, TRIL @ TRIL.mT)
    torch.testing.assert_close(f.sigma_tril, TRIL.expand(2, 2, 3, 3), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(f.sigma, (TRIL @ TRIL.mT).expand(2, 2, 3, 3))
    line = scores.Quadratic(LOC, WIDTH)
    same = scores.MultivariateQuadratic.from_sigma(LOC[..., None], WIDTH.square()[:, None, None])
    torch.testing.assert_close(same(T.unsqueeze(-1)), line(T), rtol=1e-14, atol=0)


test_bad_arguments_are_named = refused(
    [
        (lambda: scores.Quadratic(0.0, math.inf), r"sigma must be positive and finite, got .*inf"),
        (lambda: scores.AbsoluteDeviation(0.0, 0.0), r"b must be positive and finite, got .*0"),
        (lambda: scores.MultivariateQuadratic([math.nan, 0.0], EYE), "loc must be.*got .*nan"),
        (lambda: scores.MultivariateQuadratic([0.0, 0.0, 0.0], EYE), "must be square"),
        (
            lambda: scores.MultivariateQuadratic.from_sigma([0.0, 0.0], torch.ones(2, 2)),
            "sigma must be positive definite, and is singular or indefinite: add a small multiple",
        ),
        (
            lambda: scores.MultivariateQuadratic([0.0, 0.0], EYE)(torch.zeros(4, 1)),
            r"t must have shape \(\.\.\., 2\), got \(4, 1\)",
        ),
        (lambda: scores.LocationScale(0.0, 1.0, lambda x: x.numpy()), "g must be a callable on te"),
        (lambda: scores.Finite(torch.tensor([0.0, math.inf])), r"numbers below \+inf, got .*inf"),
    ]
)


def test_functions_of_another_shape_are_refused_in_inference_mode() -> None:
    with torch.inference_mode(), pytest.raises(ValueError, match="g must be .* elementwise"):
        scores.LocationScale(0.0, 1.0, lambda x: x.square().sum())
