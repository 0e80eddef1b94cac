"""What docstrings say that densities are equivalent to in scipy and torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import sparsefam as sf

LOC, SCALE, M = 0.3, 1.7, 1.5
MATRIX = np.array([[1.2, 0.0], [-0.4, 0.7]])
NORMALS = torch.distributions.Normal(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0]))


def double(x: Any) -> torch.Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


TWO, ALPHA = (double(LOC), double(SCALE)), 1 + 1 / M
PAIRS: dict[str, tuple[Any, Any]] = {
    "BetaGaussian": (sf.BetaGaussian(*TWO, ALPHA), stats.rdist(2 * M + 2, LOC, SCALE)),
    "BetaGaussian of alpha 3": (sf.BetaGaussian(*TWO, 3.0), stats.semicircular(LOC, SCALE)),
    "TruncatedParabola": (sf.TruncatedParabola(*TWO), stats.rdist(4, LOC, SCALE)),
    "Triangular": (sf.Triangular(*TWO), stats.triang(0.5, LOC - SCALE, 2 * SCALE)),
    "Normal": (sf.Normal(*TWO), stats.norm(LOC, SCALE)),
    "Laplace": (sf.Laplace(*TWO), stats.laplace(LOC, SCALE)),
    "Truncated": (
        sf.Truncated(sf.Normal(*TWO), -1.0, 4.0),
        stats.truncnorm((-1.0 - LOC) / SCALE, (4.0 - LOC) / SCALE, LOC, SCALE),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_densities_of_scipy(name: str) -> None:
    p, law = PAIRS[name]
    t = double(law.ppf(np.linspace(0.01, 0.99, 25)))
    torch.testing.assert_close(p.log_prob(t), double(law.logpdf(t)), rtol=1e-9, atol=1e-9)


def test_a_beta_laplacian_is_a_sign_times_a_beta_variable() -> None:
    p, x = sf.BetaLaplace(double(LOC), double(SCALE), 1 + 1 / M), np.linspace(0.01, 1.69, 9)
    half = stats.beta(1, M + 1, 0, SCALE).pdf(x) / 2
    for t in (LOC + x, LOC - x):
        np.testing.assert_allclose(p.prob(double(t)), half, rtol=1e-12)


def test_vectors() -> None:
    loc, t = np.array([0.2, -1.0]), np.array([[0.3, -0.8], [0.9, -1.1]])
    p: Any = sf.MultivariateNormal(double(loc), scale_tril=double(MATRIX))
    law = stats.multivariate_normal(loc, MATRIX @ MATRIX.T)
    np.testing.assert_allclose(p.log_prob(double(t)), law.logpdf(t), rtol=1e-12)
    p = sf.MultivariateBetaGaussian(double(loc), double(MATRIX), 1 + 1 / M)
    u = np.linalg.solve(MATRIX, (t - loc).T)
    radius = (u**2).sum(0)
    # |u|^2 over the area of circles of this radius.
    of_u = stats.beta(1, M + 1).pdf(radius) / math.pi
    np.testing.assert_allclose(p.prob(double(t)), of_u / np.linalg.det(MATRIX), rtol=1e-12)


def test_mixtures_and_categories_of_torch() -> None:
    logits, t = torch.tensor([0.3, -0.5]), torch.linspace(-3, 4, 9)
    same = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=logits), NORMALS
    )
    torch.testing.assert_close(sf.Mixture(logits, NORMALS).log_prob(t), same.log_prob(t))
    probs, k = torch.tensor([0.2, 0.5, 0.3]), torch.arange(3)
    torch.testing.assert_close(
        sf.SparseCategorical(probs).log_prob(k), torch.distributions.Categorical(probs).log_prob(k)
    )
