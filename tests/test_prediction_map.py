"""The prediction map: types, constants of the papers, arguments, densities of torch."""

import math

import pytest
import torch
from refusals import refused
from torch import distributions as td

import sparsefam as sf
from sparsefam import scores

test_errors_name_the_argument = refused(
    [
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
