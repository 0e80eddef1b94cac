"""The prediction map: types, constants of the papers, and comparison with scipy and entmax."""

import math

import entmax
import pytest
import scipy.stats
import torch
from torch import distributions as td

import sparsefam as sf
from sparsefam import scores
from sparsefam.numerics.deformed import exp_beta

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


@pytest.mark.parametrize(
    ("alpha", "types"),
    [
        (1, (sf.Normal, sf.Laplace, sf.MultivariateNormal)),
        (1.5, (sf.BetaGaussian, sf.BetaLaplace, sf.MultivariateBetaGaussian)),
        (2.0, (sf.TruncatedParabola, sf.Triangular, sf.TruncatedParaboloid)),
        (math.inf, (sf.BetaGaussian, sf.BetaLaplace, sf.MultivariateBetaGaussian)),
        (torch.tensor(2.0), (sf.BetaGaussian, sf.BetaLaplace, sf.MultivariateBetaGaussian)),
    ],
)
def test_types(alpha: float, types: tuple[type, ...]) -> None:
    vectors = scores.MultivariateQuadratic([0.1, 0.0], torch.eye(2))
    numbers = scores.Quadratic(0.1, sigma=0.3), scores.AbsoluteDeviation(0.1, b=0.3)
    assert tuple(type(sf.rpm(score, alpha)) for score in (*numbers, vectors)) == types


@pytest.mark.parametrize("alpha", [1.0, 2.0, torch.tensor(1.7, dtype=F64)])
@pytest.mark.parametrize("size", [1, 5])
def test_density_of_vectors_is_the_deformed_exponential_of_the_score(
    size: int, alpha: float | torch.Tensor
) -> None:
    tril = torch.randn(2, size, size, dtype=F64).tril(-1) / 2 + torch.diag(
        torch.linspace(0.4, 2, size, dtype=F64)
    )
    f = scores.MultivariateQuadratic(torch.randn(3, 1, size, dtype=F64), tril)
    p = sf.rpm(f, alpha)
    assert p.batch_shape == (3, 2) and p.event_shape == (size,)
    t = p.loc + (3 * torch.rand(200, 1, 1, 1, dtype=F64)) * torch.randn(200, 3, 2, size, dtype=F64)
    expected = exp_beta(f(t) - p.log_normalizer, 2 - alpha)
    assert alpha == 1 or 20 < (expected == 0).sum() < 1180
    torch.testing.assert_close(p.prob(t), expected, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(p.score(t), f(t), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 2.0, 3.0])
@pytest.mark.parametrize("score", [scores.Quadratic, scores.AbsoluteDeviation])
def test_density_is_the_deformed_exponential_of_the_score(score: type, alpha: float) -> None:
    f = score(tensor(0.3, -1.0), tensor(0.4, 2.0))
    p = sf.rpm(f, alpha)
    t = torch.linspace(-4, 4, 81, dtype=F64)[:, None]
    expected = exp_beta(f(t) - p.log_normalizer, 2 - alpha)
    torch.testing.assert_close(p.prob(t), expected, rtol=1e-10, atol=1e-13)


def test_constants_of_the_papers() -> None:
    sigma, b = 0.37, 0.8
    parabola = sf.rpm(scores.Quadratic(tensor(0.0), tensor(sigma)), 2)
    assert parabola.scale.item() == pytest.approx((1.5 * sigma**2) ** (1 / 3), rel=1e-14)
    # Eq. 37: the height at the centre is -lambda.
    height = 0.5 * (3 / (2 * sigma)) ** (2 / 3)
    assert parabola.prob(tensor(0.0)).item() == pytest.approx(height, rel=1e-14)
    triangular = sf.rpm(scores.AbsoluteDeviation(tensor(0.0), tensor(b)), 2)
    assert triangular.scale.item() == pytest.approx(math.sqrt(b), rel=1e-14)
    epanechnikov = sf.TruncatedParabola.from_sigma(0.0, math.sqrt(2 / 3))
    assert epanechnikov.scale.item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("alpha", "c"), [(2.0, 4), (4 / 3, 8), (math.inf, 2)])
def test_scipy_knows_the_integer_exponents_as_rdist(alpha: float, c: int) -> None:
    twin = scipy.stats.rdist(c, loc=0.3, scale=0.7)
    p = sf.BetaGaussian(tensor(0.3), tensor(0.7), alpha)
    t, v = torch.linspace(-0.39, 0.99, 12, dtype=F64), torch.linspace(0.01, 0.99, 9, dtype=F64)
    torch.testing.assert_close(p.prob(t), torch.from_numpy(twin.pdf(t)), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.cdf(t), torch.from_numpy(twin.cdf(t)), rtol=1e-11, atol=0)
    torch.testing.assert_close(p.icdf(v), torch.from_numpy(twin.ppf(v)), rtol=1e-10, atol=1e-12)
    assert p.variance.item() == pytest.approx(twin.var(), rel=1e-12)
    assert p.entropy().item() == pytest.approx(float(twin.entropy()), rel=1e-8)


def test_finite_domains_are_softmax_sparsemax_and_entmax() -> None:
    f = torch.randn(5, 7, dtype=F64, requires_grad=True)
    twins = {
        1: torch.softmax(f, -1),
        1.3: entmax.entmax_bisect(f, 1.3, dim=-1),
        1.5: entmax.entmax15(f, dim=-1),
        2: entmax.sparsemax(f, dim=-1),
    }
    for alpha, expected in twins.items():
        found = sf.rpm(scores.Finite(f), alpha).probs
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        weights = torch.randn(5, 7, dtype=F64)
        slopes = [
            torch.autograd.grad((p * weights).sum(), f, retain_graph=True)[0]
            for p in (found, expected)
        ]
        torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), 0.5), "alpha must be at least 1, got 0.5"),
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), math.nan), "alpha must be at least 1, got nan"),
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), torch.tensor(1.0)), "alpha must be greater"),
        (lambda: sf.rpm(scores.LocationScale(0.0, 1.0, lambda x: x**2), 1.5), "alpha must be 2"),
        (
            lambda: sf.rpm(scores.MultivariateQuadratic([0.0], torch.eye(1)), torch.tensor(1.0)),
            "alpha must be greater than 1",
        ),
        (lambda: sf.rpm("score", 2), "score must be one of"),
        (lambda: sf.rpm(scores.Quadratic(0.0, 1.0), 2, base="normal"), "base must be None"),
        (lambda: scores.LocationScale(0.0, 1.0, 3), "g must be a callable"),
        (lambda: scores.Finite(torch.tensor([math.nan, 0.0])), "scores must be numbers below"),
        (lambda: scores.Finite(torch.full((2, 3), -math.inf)), "at least one category"),
        (lambda: scores.Finite(torch.tensor(1.0)), "scores must have shape"),
    ],
)
def test_errors_name_the_argument(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


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
