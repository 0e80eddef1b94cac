"""Scores: their factors, refused arguments, and the prediction map of densities of torch."""

import math

import pytest
import torch
from battery import DOUBLE
from refusals import refused
from torch import distributions as td

import sparsefam as sf
from sparsefam import scores

LOC, WIDTH = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE), torch.tensor([0.5, 2.0, 8.0]).double()
T = torch.linspace(-3, 3, 13, dtype=DOUBLE).reshape(13, 1, 1)
CENTER = torch.tensor([[[0.25, -1.0, 3.0]], [[1.0, 0.0, -2.0]]], dtype=DOUBLE)
TRIL = torch.tensor(
    [[[0.5, 0.0, 0.0], [-2.0, 3.0, 0.0], [0.25, 1.0, 0.125]], torch.eye(3).tolist()], dtype=DOUBLE
)
EYE = torch.eye(2)


def test_the_matrix_itself_and_its_factor_are_the_same_score() -> None:
    f = scores.MultivariateQuadratic.from_sigma(CENTER, TRIL @ TRIL.mT)
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
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), 0.5), "alpha must be at least 1, got 0.5"),
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), torch.tensor(1.0)), "alpha must be greater"),
        (lambda: sf.rpm(scores.LocationScale(0.0, 1.0, lambda x: x**2), 1.5), "alpha must be 2"),
        (
            lambda: sf.rpm(scores.MultivariateQuadratic([0.0], torch.eye(1)), torch.tensor(1.0)),
            "alpha must be greater than 1",
        ),
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), 2, base="normal"), "base must be None"),
        (lambda: scores.Finite(torch.full((2, 3), -math.inf)), "at least one category"),
    ]
)


def test_functions_of_another_shape_are_refused_in_inference_mode() -> None:
    with torch.inference_mode(), pytest.raises(ValueError, match="g must be .* elementwise"):
        scores.LocationScale(0.0, 1.0, lambda x: x.square().sum())


# The prediction map
def test_densities_of_torchs_are_their_own_maps() -> None:
    law = td.Gamma(torch.tensor(2.0), torch.tensor(4.0))
    found = sf.rpm(scores.LogDensity(law), 1.0)
    assert isinstance(found, sf.SparseDistribution)
    t = torch.tensor([0.1, 1.0, -1.0])
    torch.testing.assert_close(found.prob(t)[:2].float(), law.log_prob(t[:2]).exp())
    assert found.prob(t)[2] == 0
    with pytest.raises(ValueError, match="alpha must be 1 for the logarithm of a density, got 2"):
        sf.rpm(scores.LogDensity(law), 2)
    with pytest.raises(
        ValueError, match="a distribution must be continuous to have a density, got Poisson"
    ):
        sf.rpm(scores.LogDensity(td.Poisson(1.0)), 1.0)
