"""Integrals of mixtures of numbers against quadrature of scipy's densities; their quantiles."""

import copy
import math

import numpy as np
import pytest
import torch
from mixtures import DOUBLE, KNOWN, Array, Known, locations
from scipy.stats import kstest
from torch import Tensor
from torch import distributions as td

from sparsefam import Mixture, Normal, bases

SINGLE = torch.float32
every_known = pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}


def values(psi: bases.Basis, t: Array) -> Array:
    """Functions at locations (Q,), one in a row (N, Q)."""
    return psi(torch.as_tensor(t)).mT.numpy()


# Moments and expectations


@every_known
@every_dtype
def test_moments_entropy_and_mass_are_those_of_quadrature(known: Known, dtype: torch.dtype) -> None:
    p, tolerance = known.make(dtype), TOLERANCE[dtype]
    mean = known.expect(lambda t: t)
    variance = known.expect(lambda t: (t - mean) ** 2)
    entropy = known.expect(lambda t: -np.log(np.maximum(known.pdf(t), 1e-300)))
    assert p.mean.item() == pytest.approx(mean, rel=tolerance, abs=tolerance)
    assert p.variance.item() == pytest.approx(variance, rel=2 * tolerance)
    assert p.entropy().item() == pytest.approx(entropy, rel=2 * tolerance)
    assert torch.equal(p.tsallis_entropy(), p.entropy())
    nodes, weights = p.quadrature()
    assert weights.sum(0).item() == pytest.approx(1, abs=tolerance)
    cosine = known.expect(np.cos)
    assert (weights * nodes.cos()).sum(0).item() == pytest.approx(cosine, abs=tolerance)
    assert p.expect(torch.cos).item() == pytest.approx(cosine, abs=tolerance)


# About Gaussians of width 0.03 there.
NARROW = [c + x for c in (-0.25, 0.2, 3.0) for x in (-0.25, -0.12, -0.06, 0.0, 0.06, 0.12, 0.25)]
BASES = {
    "GaussianRBF": bases.GaussianRBF([-0.3, 0.2, 2.8], [0.1, 0.02, 3.0]),
    "Fourier": bases.Fourier([0.5, 3.0]),
    "Polynomial": bases.Polynomial(3),
    "BSpline": bases.BSpline([-0.4, -0.1, 0.1, 0.6, 2.9], 2),
    "Indicator": bases.Indicator([-0.3, 0.1, 2.9]),
    "Stack": bases.Polynomial(1) + bases.Fourier([1.0]),
}


@every_known
@pytest.mark.parametrize("psi", BASES.values(), ids=list(BASES))
def test_expectations_are_those_of_quadrature(known: Known, psi: bases.Basis) -> None:
    psi = copy.deepcopy(psi).double()
    breaks = [] if psi.breaks is None else psi.breaks.tolist()
    expected = torch.as_tensor(known.expect(lambda t: values(psi, t), *breaks, *NARROW))
    found = known.make(DOUBLE).expect(psi)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    single = known.make(SINGLE).expect(copy.deepcopy(psi).float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=2e-6)


@every_known
@pytest.mark.parametrize("name", ["Fourier", "narrow", "Stack"])
def test_covariances_are_those_of_quadrature(known: Known, name: str) -> None:
    phi = bases.Polynomial(2).double()
    narrow = bases.GaussianRBF(torch.tensor([-0.25, 0.2, 3.0], dtype=DOUBLE), 0.03125)
    psi = {"Fourier": bases.Fourier([1.5]).double(), "narrow": narrow, "Stack": phi + narrow}[name]
    means = [known.expect(lambda t, b=b: values(b, t), *NARROW)[:, None] for b in (phi, psi)]
    rows = [
        known.expect(
            lambda t, j=j: (values(phi, t) - means[0])[j] * (values(psi, t) - means[1]), *NARROW
        )
        for j in range(3)
    ]
    p = known.make(DOUBLE)
    for beta in (None, 1, torch.tensor(1.0)):
        found = p.generalized_covariance(phi, psi, beta)
        torch.testing.assert_close(found, torch.as_tensor(np.stack(rows)), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("width", [0.001, 0.03, 0.25, 1.0, 10.0])
def test_covariances_with_gaussians_are_closed_forms(width: float) -> None:
    """Cov(t, psi) and Cov(psi, psi') under normals, to eleven digits."""
    weights, loc, scale = (
        torch.tensor(x, dtype=DOUBLE)
        for x in ([0.45, 0.2, 0.35], [-0.5, 0.3125, 2.5], [0.6875, 0.5, 0.75])
    )
    centers = torch.tensor([-1.0, -0.3, 0.0, 0.4, 2.0, 3.3], dtype=DOUBLE)
    own = torch.tensor(width, dtype=DOUBLE)

    def overlap(spread: Tensor, at: Tensor) -> Tensor:
        return td.Normal(loc, torch.hypot(scale, spread)).log_prob(at.unsqueeze(-1)).exp()

    psi = bases.GaussianRBF(centers, own)
    each = overlap(own, centers)
    mean = (weights * each).sum(-1)
    shrunk = (loc * own**2 + centers[:, None] * scale**2) / (scale**2 + own**2)
    first = (weights * each * (shrunk - (weights * loc).sum())).sum(-1)
    apart = td.Normal(0.0, math.sqrt(2) * own).log_prob(centers[:, None] - centers).exp()
    middle = (centers[:, None] + centers) / 2
    second = apart * (weights * overlap(own / math.sqrt(2), middle)).sum(-1)
    p = Mixture(weights.log(), Normal(loc, scale))
    line = bases.Polynomial(1).double()
    found = p.generalized_covariance(line, psi)[1]
    torch.testing.assert_close(found, first, rtol=1e-11, atol=0)
    torch.testing.assert_close(p.generalized_covariance(psi, line)[:, 1], first, rtol=1e-11, atol=0)
    # The closed form itself cancels where the Gaussians are wide.
    atol = 1e-15 * second.abs().max().item()
    both = p.generalized_covariance(psi, psi)
    torch.testing.assert_close(both, second - torch.outer(mean, mean), rtol=1e-11, atol=atol)


def test_covariance_of_powers_does_not_cancel() -> None:
    """At 100 the fifth digit of t is the first of what the components differ by."""
    loc, scale = torch.tensor([100.0, 100.0234375]), torch.tensor(0.0078125)
    psi = bases.Polynomial(3)
    single = Mixture(torch.zeros(2), Normal(loc, scale)).generalized_covariance(psi, psi)
    double = Mixture(torch.zeros(2), Normal(loc.double(), scale.double()))
    exact = double.generalized_covariance(psi.double(), psi)
    torch.testing.assert_close(single.double(), exact, rtol=2e-6, atol=0)
    assert exact.shape == (4, 4)


# Distribution functions


@every_known
@every_dtype
def test_distribution_function_is_scipys(known: Known, dtype: torch.dtype) -> None:
    t, p = locations(known), known.make(dtype)
    expected = torch.as_tensor(known.cdf(t.numpy()))
    found = p.cdf(t.to(dtype)).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])
    u = torch.tensor([1e-4, 0.1, 0.25, 0.35, 0.5, 0.7, 0.8999, 0.95, 0.999], dtype=dtype)
    quantiles = p.icdf(u)
    assert p.support.check(quantiles).all()
    back = torch.as_tensor(known.cdf(quantiles.double().numpy()))
    # The spacing of quantiles, times the density.
    atol = {SINGLE: 3e-6, DOUBLE: 1e-10}[dtype]
    torch.testing.assert_close(back, u.double(), rtol=0, atol=atol)
    assert (quantiles.diff() > 0).all()


def test_quantiles_of_the_tails_keep_their_digits() -> None:
    loc, scale = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])
    p = Mixture(torch.zeros(2), Normal(loc, scale))
    known = Mixture(torch.zeros(2).double(), Normal(loc.double(), scale.double()))
    low = torch.tensor([1e-30, 1e-12, 1e-6])
    high = 1 - torch.tensor([2.0**-24, 2.0**-20, 2.0**-12])
    for u in (low, high):
        torch.testing.assert_close(p.icdf(u).double(), known.icdf(u.double()), rtol=2e-6, atol=0)


def test_quantiles_skip_gaps_and_end_where_the_support_does() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    # At 0.3 exactly everything in the gap would do; the left end is the smallest.
    u = torch.tensor([0.0, 0.3 - 1e-15, 0.3 + 1e-15, 0.9 + 1e-15, 1.0], dtype=DOUBLE)
    expected = torch.tensor([-1.0, 1.0, 2.5, 4.25, 6.75], dtype=DOUBLE)
    torch.testing.assert_close(p.icdf(u), expected, rtol=0, atol=1e-6)
    dense = torch.cat([0.3 + torch.linspace(-1e-6, 1e-6, 4001).double(), torch.rand(4000).double()])
    assert p.support.check(p.icdf(dense)).all()
    assert p.support.check(KNOWN["disjoint"].make(SINGLE).icdf(dense.float())).all()
    assert KNOWN["normals"].make(DOUBLE).icdf(u)[[0, -1]].tolist() == [-math.inf, math.inf]
    with pytest.raises(ValueError, match=r"value must be a probability in \[0, 1\]"):
        p.icdf(torch.tensor(1.5))


# Draws


@every_known
@every_dtype
def test_draws_follow_the_distribution_function(known: Known, dtype: torch.dtype) -> None:
    p = known.make(dtype)
    draws = p.sample((100_000,))
    assert draws.dtype == dtype and p.support.check(draws).all()
    assert kstest(draws.double().numpy(), known.cdf).pvalue > 1e-3
    quantiles = p.icdf(torch.rand(5_000, dtype=dtype))
    assert p.support.check(quantiles).all()
    assert kstest(quantiles.double().numpy(), known.cdf).pvalue > 1e-3
