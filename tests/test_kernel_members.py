"""Kernel densities: escorts, covariances and the identities of the prediction map."""

import math

import numpy as np
import pytest
import torch
from battery import DOUBLE
from cases_kernel import density, distance, expansion, jacobian, reference
from kernel_references import KernelReference
from references import Array
from test_kernel_densities import basis, either, hills

from sparsefam import rpm, scores
from sparsefam.bases import GaussianRBF

WIDTH = 0.05
every_alpha = pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])


def sections(r: KernelReference) -> tuple[GaussianRBF, float]:
    """A basis, and what times its members is the kernel at each inducing point."""
    peak = r.width * math.sqrt(2 * math.pi)
    return GaussianRBF(torch.tensor(r.centers), r.width).to(DOUBLE), peak


@either
@every_alpha
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, 1.5, None])
def test_escorts(alpha: float, inside: bool, beta: float | None) -> None:
    r, p = reference(WIDTH, alpha, inside), density(WIDTH, alpha, inside)
    q, power = p.escort(beta), 2 - alpha if beta is None else beta
    t, shares = r.weighted(power)
    expected = np.einsum("q,qn->n", shares, hills(t)) / shares.sum()
    assert distance(q.expect(basis(DOUBLE)), expected) < 1e-9
    at = torch.tensor(t[:: len(t) // 50])
    density_there = r.relative(r.score(at.numpy()), r.shift, power) / r.mass**power / shares.sum()
    assert distance(q.prob(at), density_there) < 1e-9
    if alpha > 1:
        torch.testing.assert_close(q.support.intervals, p.support.intervals)
    assert q.log_prob(torch.tensor(1.5, dtype=DOUBLE)) == -math.inf


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_escorts_have_the_rest_of_the_interface(alpha: float) -> None:
    r, q = reference(WIDTH, alpha), density(WIDTH, alpha).escort(0.4)
    t, shares = r.weighted(0.4)
    shares = shares / shares.sum()
    mean = (shares * t).sum()
    assert abs(q.mean.item() - mean) < 1e-9
    assert abs(q.variance.item() - (shares * (t - mean) ** 2).sum()) < 1e-9
    at = torch.tensor([0.2, 0.5, 0.8], dtype=DOUBLE)
    nodes, weights = r.weighted(0.4, marks=at.numpy())
    levels = [weights[nodes < x].sum() / weights.sum() for x in at.tolist()]
    torch.testing.assert_close(q.cdf(at), torch.tensor(levels, dtype=DOUBLE), atol=1e-9, rtol=0)
    torch.testing.assert_close(q.cdf(q.icdf(at)), at, rtol=0, atol=1e-9)
    relative = r.relative(r.score(t), r.shift, 0.4) / r.weighted(0.4)[1].sum()
    relative = np.log(np.maximum(relative, 1e-300))
    assert abs(q.entropy().item() + (shares * relative).sum()) < 1e-8


@either
@every_alpha
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, None])
def test_generalized_covariances(alpha: float, inside: bool, beta: float | None) -> None:
    r, p = reference(WIDTH, alpha, inside), density(WIDTH, alpha, inside)
    phi, peak = sections(r)

    def columns(t: Array) -> Array:
        return r.kernel(t, r.centers) / peak

    found = p.generalized_covariance(phi, basis(DOUBLE), beta)
    expected = r.covariance(columns, hills, 2 - alpha if beta is None else beta)
    assert distance(found, expected) < 1e-8


@every_alpha
def test_covariances_are_the_jacobian_of_expectations(alpha: float) -> None:
    # Prop. 3; the twin by automatic differentiation.
    r, p = reference(WIDTH, alpha), density(WIDTH, alpha)
    phi, peak = sections(r)
    slopes = jacobian(p.expect(basis(DOUBLE)), p.weights)
    covariance = peak * p.generalized_covariance(phi, basis(DOUBLE)).mT
    assert distance(covariance, slopes.numpy()) < 1e-9


@every_alpha
def test_the_gradient_of_the_normalizer_is_an_escort_expectation(alpha: float) -> None:
    r, p = reference(WIDTH, alpha), density(WIDTH, alpha)
    phi, peak = sections(r)
    (slope,) = torch.autograd.grad(p.log_normalizer, p.weights, retain_graph=True)
    assert distance(slope, (peak * p.escort().expect(phi)).detach().numpy()) < 1e-9
    # Of the dual of -Omega it is the mean itself: E_p[f] + H(p).
    dual = (p.weights * peak * p.expect(phi)).sum() + p.tsallis_entropy()
    (slope,) = torch.autograd.grad(dual, p.weights)
    assert distance(slope, (peak * p.expect(phi)).detach().numpy()) < 1e-9


@either
@every_alpha
def test_entropies_and_moments(alpha: float, inside: bool) -> None:
    r, p = reference(WIDTH, alpha, inside), density(WIDTH, alpha, inside)
    t, shares = r.weighted()
    log = np.log(np.maximum(r.density(t), 1e-300))
    mean = (shares * t).sum()
    assert abs(p.mean.item() - mean) < 1e-10
    assert abs(p.variance.item() - (shares * (t - mean) ** 2).sum()) < 1e-10
    assert abs(p.entropy().item() + (shares * log).sum()) < 1e-8
    powers = r.weighted(alpha)[1].sum()
    tsallis = -(shares * log).sum() if alpha == 1 else (1 - powers) / (alpha * (alpha - 1))
    assert abs(p.tsallis_entropy().item() - tsallis) < 1e-9
    grid = torch.linspace(0, 1, 20001, dtype=DOUBLE)
    assert p.prob(p.mode) >= p.prob(grid).max() * (1 - 1e-12)


@either
@every_alpha
def test_the_score_and_the_normalizer_give_the_density_back(alpha: float, inside: bool) -> None:
    p = density(WIDTH, alpha, inside)
    q = rpm(p.score, alpha)
    t = torch.linspace(0.01, 0.99, 77, dtype=DOUBLE)
    torch.testing.assert_close(q.prob(t), p.prob(t), rtol=1e-9, atol=1e-9)
    x = p.score(t) - p.log_normalizer
    u = (1 + (alpha - 1) * x).clamp_min(0)
    found = x.exp() if alpha == 1 else u ** (1 / (alpha - 1))
    torch.testing.assert_close(found, p.prob(t), rtol=1e-9, atol=1e-9)


def test_the_map_of_a_kernel_expansion() -> None:
    weights, points = (torch.tensor(x) for x in expansion(WIDTH))
    p = density(WIDTH, 1.5)
    f = scores.KernelExpansion(weights, points, p.kernel)
    t = torch.linspace(0.01, 0.99, 77, dtype=DOUBLE)
    expected = reference(WIDTH, 1.5).score(t.numpy())
    torch.testing.assert_close(f(t), torch.as_tensor(expected), rtol=1e-9, atol=1e-9)
    q = rpm(f, 1.5, base=torch.distributions.Normal(0.5, 0.25))
    assert not torch.allclose(q.prob(t), p.prob(t), atol=0.01)
    torch.testing.assert_close(rpm(f, 1.5).prob(t), p.prob(t), rtol=1e-11, atol=1e-11)
    alpha = torch.tensor(1.5, dtype=DOUBLE)
    torch.testing.assert_close(rpm(f, alpha).prob(t), p.prob(t), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_what_was_computed_without_gradients_does_not_lose_them(alpha: float) -> None:
    fresh, p = density(WIDTH, alpha), density(WIDTH, alpha)
    with torch.no_grad():
        assert not p.expect(basis(DOUBLE)).requires_grad
    draws = p.sample((3,))
    assert p.support.check(draws).all()
    assert p.mode.isfinite()
    slopes = jacobian(p.expect(basis(DOUBLE)), p.weights)
    expected = jacobian(fresh.expect(basis(DOUBLE)), fresh.weights)
    torch.testing.assert_close(slopes, expected, rtol=0, atol=0)
    for value in (p.mean, p.log_normalizer, p.log_prob(draws)[0]):
        (slope,) = torch.autograd.grad(value, p.weights, retain_graph=True)
        assert slope.any()
    # Both are computed anew for a larger batch.
    with torch.no_grad():
        assert p.expand((4,)).mean.shape == (4,)
    assert p.expand((4,)).mean.requires_grad
