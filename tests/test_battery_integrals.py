"""The battery: mass, moments, entropies and normalizers, against the stated density."""

import math

import numpy as np
import torch
from battery import DOUBLE, Case, exp_beta, frame, interior, masses
from cases import (
    every_case,
    every_multivariate_case,
    every_scalar,
    every_scored_case,
    every_univariate_case,
    half_of_the_cases,
)
from references import Values
from torch import Tensor
from torch.distributions import kl_divergence

from sparsefam import BetaGaussian, MultivariateBetaGaussian, rpm

CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def log(x: Values) -> Values:
    return np.log(np.maximum(x, 1e-300))


# The density
@every_case
def test_prob_is_the_stated_density(case: Case) -> None:
    p = case()
    t = interior(p, 20)
    rows = t.reshape(len(t), -1, *case.event_shape).unbind(1)
    pairs = zip(case.references, rows, strict=True)
    stated = np.stack([r.densities(row.numpy()) for r, row in pairs], -1)
    expected = torch.as_tensor(stated).reshape(len(t), *p.batch_shape)
    torch.testing.assert_close(p.prob(t), expected, rtol=1e-11, atol=0)
    torch.testing.assert_close(p.log_prob(t), expected.log(), rtol=1e-11, atol=1e-11)


@every_case
def test_the_mass_is_one(case: Case) -> None:
    found = masses(case, case())
    torch.testing.assert_close(found, torch.ones_like(found), rtol=1e-10, atol=0)


# Moments and entropies
@every_case
def test_moments_and_mode(case: Case) -> None:
    p = case()
    mean = case.reference(lambda r: r.expect(lambda t: t))
    variance = case.reference(lambda r: r.expect(lambda t: (t - r.center) ** 2))
    torch.testing.assert_close(p.mean, mean, **CLOSE)
    torch.testing.assert_close(p.variance, variance, **CLOSE)
    torch.testing.assert_close(p.stddev, variance.sqrt(), **CLOSE)
    near = interior(p, 101 if case.event_shape else 4001)
    assert (p.prob(p.mode) >= p.prob(near) * (1 - 1e-12)).all()


@every_univariate_case
def test_moments_of_higher_order(case: Case) -> None:
    p = case()
    for n in (1, 3, 4, 5):
        raw = case.reference(lambda r, n=n: r.expect(lambda t: t**n))
        torch.testing.assert_close(p.moment(n), raw, **CLOSE)
    second, third, fourth = (
        case.reference(lambda r, n=n: r.expect(lambda t: (t - r.center) ** n)) for n in (2, 3, 4)
    )
    torch.testing.assert_close(p.moment(2, central=True), second, **CLOSE)
    torch.testing.assert_close(p.skewness, third / second**1.5, **CLOSE)
    torch.testing.assert_close(p.kurtosis, fourth / second**2 - 3, **CLOSE)
    median = case.reference(lambda r: r.integral(r.density, upper=0.0))
    assert ((p.median < 0) == (median > 0.5)).all()
    torch.testing.assert_close(p.cdf(p.median), torch.full_like(p.median, 0.5), **CLOSE)


@every_multivariate_case
def test_covariance_matrix(case: Case) -> None:
    expected = case.reference(
        lambda r: r.expect(lambda t: np.einsum("qi,qj->qij", t - r.center, t - r.center))
    )
    torch.testing.assert_close(case().covariance_matrix, expected, **CLOSE)


@every_case
def test_shannon_entropy(case: Case) -> None:
    expected = case.reference(lambda r: -r.expect(lambda t: log(r.density(t))))
    # The effective weights of kernel densities are those of powers, not of their logarithms.
    close = {"rtol": 0.0, "atol": 1e-7} if case.family.signed else CLOSE
    torch.testing.assert_close(case().entropy(), expected, **close)


@every_case
def test_tsallis_entropy(case: Case) -> None:
    p = case()
    alpha = p.alpha.flatten().tolist()[0]
    if math.isinf(alpha):
        expected = torch.where(p.prob(p.mode) > 1, -math.inf, 0.0).to(DOUBLE)
    elif alpha == 1:
        expected = p.entropy()
    else:
        powers = torch.stack([_power_integral(case, a) for a in p.alpha.flatten().tolist()], -1)
        index = torch.arange(p.batch_shape.numel()).reshape(p.batch_shape).unsqueeze(-1)
        expected = (1 - powers.gather(-1, index).squeeze(-1)) / (p.alpha * (p.alpha - 1))
    torch.testing.assert_close(p.tsallis_entropy(), expected, **CLOSE)


def _power_integral(case: Case, power: float) -> Tensor:
    return case.reference(lambda r: r.integral(lambda t: r.density(t) ** power))


# Divergences
@half_of_the_cases(1)
def test_divergences_from_escorts(case: Case) -> None:
    p = case()
    assert kl_divergence(p, case()).abs().max() < 1e-12
    mean_log = case.reference(lambda r: r.expect(lambda t: log(r.density(t))))
    close = {"rtol": 0.0, "atol": 2e-7} if case.family.signed else CLOSE
    for beta in {*case.family.escorts} - {None, 0.0}:
        # log q = beta log p - log of the integral of p^beta.
        expected = (1 - beta) * mean_log + _power_integral(case, beta).log()
        found = kl_divergence(p, p.escort(beta))
        torch.testing.assert_close(found, expected, **close)


@every_scalar
def test_divergences_are_infinite_where_a_support_is_too_small(case: Case) -> None:
    p = case()
    center, factor = frame(p)
    make = MultivariateBetaGaussian if case.event_shape else BetaGaussian
    assert (kl_divergence(p, make(center, 0.25 * factor, 1.5)) == math.inf).all()


# The prediction map
@every_scored_case
def test_log_normalizer_completes_the_deformed_exponential(case: Case) -> None:
    p = case()
    t = torch.cat([interior(p), p.mean + 50 * p.stddev.unsqueeze(0)])
    found = exp_beta(p.score(t) - p.log_normalizer, 2 - p.alpha) * case.family.base(t)
    torch.testing.assert_close(found, p.prob(t), rtol=1e-11, atol=1e-14)


@every_scored_case
def test_the_prediction_map_of_the_score_gives_the_density_back(case: Case) -> None:
    p = case()
    alphas = p.alpha.unique()
    q = rpm(p.score, alphas.item() if len(alphas) == 1 else p.alpha)
    assert type(q) is type(p)
    t = interior(p)
    if "loc" in type(p).arg_constraints:
        torch.testing.assert_close(q.loc, p.loc, rtol=0, atol=0)
    torch.testing.assert_close(q.prob(t), p.prob(t), rtol=1e-11, atol=0)
