"""KL divergences of vectors beyond ellipsoids: marginals, products, kernels and mixtures."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from cases_kernel import kernel_density
from laws import Array
from scipy import stats
from scipy.integrate import quad
from scipy.special import roots_legendre
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence
from vectors import DOUBLE, SINGLE, centre, factor, member

from sparsefam import (
    BetaGaussian,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    TruncatedParabola,
    TruncatedParaboloid,
)

POINTS, WIDTH = ((0.25, 0.3125), (0.75, 0.625)), 0.3125


def rbf(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (x.unsqueeze(1) - z.unsqueeze(0)).square().sum(-1) / WIDTH**2)


def kernel(weights: tuple[float, float], alpha: float, dtype: torch.dtype = DOUBLE) -> Any:
    points = torch.tensor(POINTS, dtype=dtype)
    return kernel_density(torch.tensor(weights, dtype=dtype), points, rbf, None, alpha)


def grid(count: int) -> tuple[Array, Array]:
    """Nodes (Q, 2) and weights of the unit square."""
    x, w = roots_legendre(count)
    x, w = (x + 1) / 2, w / 2
    return np.stack([a.ravel() for a in np.meshgrid(x, x)], -1), np.outer(w, w).ravel()


def heights(weights: tuple[float, float], alpha: float, t: Array, rule: Array) -> Array:
    """The density relative to the uniform one on the square, at nodes of a rule."""
    squares = ((t[:, None] - np.array(POINTS)) ** 2).sum(-1)
    score = np.exp(-0.5 * squares / WIDTH**2) @ np.array(weights)
    if alpha == 1:
        found = np.exp(score)
        return np.asarray(found / (rule * found).sum())
    low, high = score.min() - 1 / (alpha - 1), score.max()
    for _ in range(80):
        level = (low + high) / 2
        found = (1 + (alpha - 1) * (score - level)).clip(0) ** (1 / (alpha - 1))
        low, high = (level, high) if (rule * found).sum() > 1 else (low, level)
    return np.asarray(found)


def marginal_mean(p: Any, d: int, alpha: float, log_q: Any, kink: float) -> float:
    """E[log q(t_d)] under the law that one coordinate of an elliptical density has."""
    loc, spread = p.loc[d].item(), p.scale_tril[d].norm().item()
    if alpha == 1:
        law, low, high = stats.norm(loc, spread), loc - 12 * spread, loc + 12 * spread
    else:
        m = 1 / (alpha - 1) + (p.event_shape[0] - 1) / 2
        law, low, high = (
            stats.beta(m + 1, m + 1, loc - spread, 2 * spread),
            loc - spread,
            loc + spread,
        )
    cuts = sorted({low, high, min(max(kink, low), high)})
    parts = [
        quad(lambda t: law.pdf(t) * log_q(t), a, b, epsabs=1e-13, epsrel=1e-13)[0]
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    return math.fsum(parts)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_against_independent_ones(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    loc = p.loc + torch.linspace(-0.4, 0.3, dim, dtype=DOUBLE)
    scale = torch.linspace(0.6, 1.1, dim, dtype=DOUBLE)
    for theirs, known in ((td.Laplace, stats.laplace), (td.Normal, stats.norm)):
        terms = [
            marginal_mean(p, d, alpha, known(loc[d].item(), scale[d].item()).logpdf, loc[d].item())
            for d in range(dim)
        ]
        found = kl_divergence(p, td.Independent(theirs(loc, scale), 1)).item()
        assert found == pytest.approx(-p.entropy().item() - math.fsum(terms), abs=1e-10)
        narrow = MultivariateBetaGaussian(loc, 0.1 * factor(dim), 2.0)
        assert kl_divergence(td.Independent(theirs(loc, scale), 1), narrow) == math.inf


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_in_a_box(dim: int) -> None:
    p = member(dim, 1.5)
    reach = p.scale_tril.norm(dim=-1)
    for size, finite in ((1 + 1e-9, True), (1.0, True), (1 - 1e-9, False)):
        box = td.Independent(td.Uniform(p.loc - size * reach, p.loc + 2 * reach), 1)
        found = kl_divergence(p, box)
        expected = ((2 + size) * reach).log().sum() - p.entropy() if finite else math.inf
        assert found.item() == pytest.approx(float(expected), abs=1e-12)


def test_a_box_in_an_ellipse() -> None:
    low, high = torch.tensor([[-0.2, 0.1], [0.4, 0.5]], dtype=DOUBLE)
    box = td.Independent(td.Uniform(low, high), 1)
    t, rule = grid(40)
    t = low.numpy() + (high - low).numpy() * t
    for alpha in (1.0, 1.5, 2.0):
        tril = torch.tensor([[1.0, 0.0], [0.2, 0.9]], dtype=DOUBLE)
        q: Any = MultivariateNormal(0 * low, scale_tril=tril)
        squares = (np.linalg.solve(tril.numpy(), t.T) ** 2).sum(0)
        log_q = -squares / 2 - math.log(2 * math.pi) - math.log(0.9)
        if alpha > 1:
            m = 1 / (alpha - 1)
            q = MultivariateBetaGaussian(0 * low, tril, alpha)
            log_q = m * np.log(1 - squares) + math.log((m + 1) / math.pi / 0.9)
        area = (high - low).prod().item()
        assert kl_divergence(box, q).item() == pytest.approx(
            -math.log(area) - (rule * log_q).sum(), abs=1e-10
        )
    half = TruncatedParaboloid(0 * low, 0.5 * tril)
    assert kl_divergence(box, half) == math.inf
    wide = td.Independent(TruncatedParabola(torch.zeros(4, dtype=DOUBLE), 0.1), 1)
    with pytest.raises(NotImplementedError, match="more than 3 numbers, got 4"):
        kl_divergence(
            wide, MultivariateBetaGaussian(torch.zeros(4).double(), torch.eye(4).double(), 2)
        )


@pytest.mark.parametrize("alpha", [1.2, 2.0])
def test_products_in_an_ellipsoid(alpha: float) -> None:
    tril = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.9, 0.0], [-0.1, 0.3, 1.1]], dtype=DOUBLE)
    loc, scale = torch.tensor([[0.1, 0.3, -0.1], [0.3, 0.2, 0.2]], dtype=DOUBLE)
    p = td.Independent(BetaGaussian(loc, scale, alpha), 1)
    q = MultivariateBetaGaussian(0 * loc, tril, 1.5)
    x, w = np.polynomial.legendre.leggauss(30)
    law = stats.beta(1 / (alpha - 1) + 1, 1 / (alpha - 1) + 1, -1, 2)
    shares = w * law.pdf(x)
    t = loc.numpy() + scale.numpy() * np.stack(np.meshgrid(x, x, x, indexing="ij"), -1)
    squares = (np.linalg.solve(tril.numpy(), t.reshape(-1, 3).T) ** 2).sum(0)
    logs = np.log(1 - squares).reshape(30, 30, 30)
    mean_log = np.einsum("i,j,k,ijk", shares, shares, shares, logs)
    # Gamma(m + 5/2)/Gamma(m + 1)/pi^(3/2)/|L| at m = 2.
    peak = math.log(math.gamma(4.5) / 2 / math.pi**1.5 / tril.det().item())
    expected = -3 * law.entropy() - scale.log().sum().item() - peak - 2 * mean_log
    assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_kernel_families_of_vectors(dtype: torch.dtype) -> None:
    one, two = (2.0, -1.0), (0.5, 1.5)
    t, rule = grid(60)
    p, q = (heights(w, 1.0, t, rule) for w in (one, two))
    density = kernel(one, 1.0, dtype)
    # Their nodes are for 1e-7 in float64, 1e-5 in float32.
    tolerance = 1e-8 if dtype == DOUBLE else 2e-6
    found = kl_divergence(density, kernel(two, 1.0, dtype))
    assert found.dtype == dtype
    assert found.item() == pytest.approx((rule * p * np.log(p / q)).sum(), rel=tolerance)
    loc, scale = torch.tensor([[0.3, 0.55], [0.5, 0.75]], dtype=dtype)
    at = loc.double().numpy()
    log_normal = stats.norm(at, [0.5, 0.75]).logpdf(t).sum(-1)
    expected = (rule * p * (np.log(p) - log_normal)).sum()
    for normal in (
        td.Independent(td.Normal(loc, scale), 1),
        MultivariateNormal(loc, scale_tril=scale.diag_embed()),
        td.MultivariateNormal(loc, scale_tril=scale.diag_embed()),
    ):
        assert kl_divergence(density, normal).item() == pytest.approx(expected, rel=tolerance)
        assert kl_divergence(normal, density) == math.inf
    # Kinks cut the panels: here four squares of the reference.
    parts = []
    for low, high in ((0.0, at[0]), (at[0], 1.0)):
        for left, right in ((0.0, at[1]), (at[1], 1.0)):
            size = np.array([high - low, right - left])
            s = np.array([low, left]) + size * t
            area = rule * size.prod()
            squares = ((s[:, None] - np.array(POINTS)) ** 2).sum(-1)
            score = np.exp(-0.5 * squares / WIDTH**2) @ np.array(one)
            log_q = stats.laplace(at, [0.5, 0.75]).logpdf(s).sum(-1)
            parts.append((area, score, log_q))
    area, score, log_q = (np.concatenate(x) for x in zip(*parts, strict=True))
    log_p = score - np.log((area * np.exp(score)).sum())
    expected = (area * np.exp(log_p) * (log_p - log_q)).sum()
    found = kl_divergence(density, td.Independent(td.Laplace(loc, scale), 1))
    assert found.item() == pytest.approx(expected, rel=tolerance)
    box = td.Independent(td.Uniform(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)), 1)
    expected = (rule * p * np.log(p)).sum()
    assert kl_divergence(density, box).item() == pytest.approx(expected, rel=tolerance)
    expected = -(rule * np.log(p)).sum()
    assert kl_divergence(box, density).item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("alpha", "tolerance"), [(1.5, 1e-5), (2.0, 1e-4)])
def test_sparse_kernel_families_of_vectors(alpha: float, tolerance: float) -> None:
    one, two = (6.0, -9.0), (0.5, 1.5)
    t, rule = grid(700)
    p = heights(one, alpha, t, rule)
    q = heights(two, 1.0, t, rule)
    alive = p > 0
    assert 0.2 < (rule * alive).sum() < 0.9
    log_p = np.log(np.where(alive, p, 1.0))
    density = kernel(one, alpha)
    found = kl_divergence(density, kernel(two, 1.0)).item()
    assert found == pytest.approx((rule * p * (log_p - np.log(q))).sum(), abs=tolerance)
    assert kl_divergence(kernel(two, 1.0), density) == math.inf
    assert kl_divergence(density, density).item() == pytest.approx(0, abs=1e-12)
    # Smaller weights have a larger support, on whose edge the nodes are not.
    other = (5.0, -7.5)
    wider = heights(other, alpha, t, rule)
    assert (wider[alive] > 0).all()
    log_q = np.log(np.where(wider > 0, wider, 1.0))
    found = kl_divergence(density, kernel(other, alpha)).item()
    assert found == pytest.approx((rule * p * (log_p - log_q)).sum(), abs=tolerance)
    assert kl_divergence(kernel(other, alpha), density) == math.inf


def test_an_ellipse_in_a_kernel_family() -> None:
    p = MultivariateBetaGaussian(
        torch.full((2,), 0.5, dtype=DOUBLE), 0.375 * torch.eye(2).double(), 1.5
    )
    t, rule = grid(60)
    weights = (2.0, -1.0)
    squares = ((t[:, None] - np.array(POINTS)) ** 2).sum(-1)
    level = math.log((rule * np.exp(np.exp(-0.5 * squares / WIDTH**2) @ np.array(weights))).sum())
    nodes, shares = p.quadrature(200)
    squares = ((nodes.numpy()[:, None] - np.array(POINTS)) ** 2).sum(-1)
    log_q = np.exp(-0.5 * squares / WIDTH**2) @ np.array(weights) - level
    expected = -p.entropy().item() - (shares.numpy() * log_q).sum()
    assert kl_divergence(p, kernel(weights, 1.0)).item() == pytest.approx(expected, abs=1e-9)
    outside = MultivariateBetaGaussian(p.loc, 1.4 * p.scale_tril, 1.5)
    assert kl_divergence(outside, kernel(weights, 1.0)) == math.inf


def test_mixtures_of_vectors() -> None:
    loc = torch.stack([centre(2), centre(2) + 0.3])
    p = Mixture(torch.zeros(2).double(), MultivariateBetaGaussian(loc, factor(2), 1.5))
    q = MultivariateNormal(centre(2) + 0.1, scale_tril=factor(2, seed=1.0))
    wide = MultivariateBetaGaussian(centre(2), 3 * torch.eye(2).double(), 1.5)
    for other in (q, wide, Mixture(torch.zeros(1).double(), [wide])):
        draws = p.sample((20_000,))
        ratio = p.log_prob(draws) - other.log_prob(draws)
        found = kl_divergence(p, other).item()
        assert abs(found - ratio.mean().item()) < 5 * ratio.std().item() / 20_000**0.5
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-12)
    assert kl_divergence(wide, p) == kl_divergence(q, p) == math.inf


def test_batches_and_gradients() -> None:
    tril = torch.stack([0.2 * factor(2), 0.4 * factor(2)])
    p = MultivariateBetaGaussian(0.5 + 0 * centre(2), tril, 1.5)
    q = kernel((2.0, -1.0), 1.0).expand((3, 1))
    found = kl_divergence(p, q)
    assert found.shape == (3, 2)
    one = MultivariateBetaGaussian(p.loc[1], tril[1], 1.5)
    torch.testing.assert_close(found[2, 1], kl_divergence(one, kernel((2.0, -1.0), 1.0)))

    def divergence(loc: Tensor, scale: Tensor, weights: Tensor, centres: Tensor) -> Tensor:
        p = MultivariateBetaGaussian(loc, scale.tril(), 1.7)
        points = torch.tensor(POINTS, dtype=DOUBLE)
        q = kernel_density(weights, points, rbf, None, 1.0)
        found: Tensor = kl_divergence(p, td.Independent(td.Laplace(centres, 1.0), 1))
        return (
            found + kl_divergence(p, q) + kl_divergence(q, td.Independent(td.Normal(loc, 1.0), 1))
        )

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        for x in ([0.5, 0.45], [[0.3, 0.0], [0.1, 0.25]], [2.0, -1.0], [0.4, 0.6])
    ]
    assert torch.autograd.gradcheck(divergence, leaves, atol=1e-7, rtol=1e-6)


def test_low_rank_normals() -> None:
    loc = centre(3)
    low = td.LowRankMultivariateNormal(loc, factor(3)[:, :2], 0.5 + loc.square())
    full = td.MultivariateNormal(loc, low.covariance_matrix)
    p = MultivariateNormal(loc + 0.25, scale_tril=factor(3))
    sparse = member(3, 1.5)
    for other in (p, sparse):
        torch.testing.assert_close(kl_divergence(other, low), kl_divergence(other, full))
        torch.testing.assert_close(kl_divergence(low, other), kl_divergence(full, other))
    theirs = td.MultivariateNormal(p.loc, scale_tril=p.scale_tril)
    torch.testing.assert_close(kl_divergence(p, full), kl_divergence(theirs, full))
