"""The Beta density on an interval against scipy and mpmath."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, double
from refusals import refused
from scipy import stats
from torch.distributions import kl_divergence

from sparsefam import ScaledBeta
from sparsefam._numerics.special import digamma_excess

# low, high, mean, concentration: bells, a uniform one, infinite at ends, and steep ones.
CASES = [
    (0.0, 1.0, 0.5, 2.0),
    (0.0, 1.0, 0.5, 1.0),
    (0.0, 1.0, 0.125, 0.25),
    (5.0, 6.0, 5.0078125, 10.0),
    (0.0, 1.0, 0.25, 1e4),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def make(case: tuple[float, ...], dtype: torch.dtype = DOUBLE) -> tuple[ScaledBeta, Any]:
    low, high, mean, concentration = case
    a, b = (concentration * x / (high - low) for x in (mean - low, high - mean))
    p = ScaledBeta(*(torch.tensor(x, dtype=dtype) for x in case))
    return p, stats.beta(a, b, low, high - low)


@every_case
def test_equivalent_to_scipys(case: tuple[float, ...]) -> None:
    p, law = make(case)
    u = np.array([1e-6, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-6])
    t = law.ppf(u)
    t = t[(case[0] < t) & (t < case[1])]
    close = {"rtol": 1e-11, "atol": 1e-11}
    for found, expected in (
        (p.log_prob(torch.as_tensor(t)), law.logpdf(t)),
        (p.cdf(torch.as_tensor(t)), law.cdf(t)),
        (p.survival(torch.as_tensor(t)), law.sf(t)),
        (p.icdf(torch.as_tensor(u)), law.ppf(u)),
        (p.mean, law.mean()),
        (p.variance, law.var()),
        (p.entropy(), law.entropy()),
        (p.expect(lambda t: t**3), law.moment(3)),
    ):
        torch.testing.assert_close(found, torch.as_tensor(expected), **close)


def test_log_tails() -> None:
    for mean, concentration, t in ((0.3, 1e3, 1e-3), (0.4, 5e3, 0.1), (0.9, 40.0, 0.01)):
        p = ScaledBeta(*double(0.0, 1.0, mean, concentration))
        a, b = mp.mpf(concentration) * mean, mp.mpf(concentration) * (1 - mp.mpf(mean))
        with mp.workdps(40):
            expected = float(mp.log(mp.betainc(a, b, 0, t, regularized=True)))
        assert p.log_cdf(double(t)).item() == pytest.approx(expected, rel=1e-12)
        mirrored = ScaledBeta(*double(0.0, 1.0, 1 - mean, concentration))
        assert mirrored.log_survival(double(1 - t)).item() == pytest.approx(expected, rel=1e-11)


def test_values_at_ends_and_modes() -> None:
    for a, b, at_low, at_high, mode in (
        (1.0, 1.0, 0.0, 0.0, 0.5),
        (2.0, 6.0, -math.inf, -math.inf, 1 / 6),
        (0.5, 1.5, math.inf, -math.inf, 0.0),
        (1.0, 3.0, math.log(3), -math.inf, 0.0),
        (3.0, 1.0, -math.inf, math.log(3), 1.0),
        (0.75, 0.25, math.inf, math.inf, 1.0),
    ):
        leaves = [x.requires_grad_() for x in double(0.0, 1.0, a / (a + b), a + b)]
        p = ScaledBeta(*leaves)
        log_p = p.log_prob(double(0.0, 1.0))
        torch.testing.assert_close(log_p, double(at_low, at_high))
        assert p.mode.item() == pytest.approx(mode)
        log_p = log_p[log_p.isinf()].sum() + p.log_prob(double(-1.0, 2.0)).sum()
        grads = torch.autograd.grad(log_p, leaves)
        assert all(g.isfinite() for g in grads)


def test_samples_of_mass_at_the_ends_are_inside() -> None:
    torch.manual_seed(0)
    for dtype in (SINGLE, DOUBLE):
        p = ScaledBeta(*(torch.tensor(x, dtype=dtype) for x in (-1.0, 1.0, 0.75, 0.02)))
        t = p.sample((2000,))
        assert t.dtype == dtype and ((-1 < t) & (t < 1)).all() and p.log_prob(t).isfinite().all()


def test_divergences() -> None:
    p, q = ScaledBeta(*double(-1.0, 2.0, 0.75, 3.0)), ScaledBeta(*double(-1.0, 2.0, 0.5, 9.0))
    nodes, weights = p.quadrature(200)
    expected = (weights * (p.log_prob(nodes) - q.log_prob(nodes))).nansum()
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-10, atol=1e-12)
    assert kl_divergence(p, p) == 0
    wide = ScaledBeta(*double(-2.0, 2.0, 0.5, 5.0))
    expected = (weights * (p.log_prob(nodes) - wide.log_prob(nodes))).nan_to_num(neginf=0).sum()
    torch.testing.assert_close(kl_divergence(p, wide), expected, rtol=1e-9, atol=1e-9)
    assert kl_divergence(wide, p) == math.inf
    # Close ones of high concentration, where values of lgamma would cancel.
    a, b = (ScaledBeta(*double(0.0, 1.0, m, 1e6)) for m in (0.25, 0.2501))
    x, y = mp.mpf(0.25), mp.mpf(0.2501)
    with mp.workdps(40):
        alpha, beta, gamma, delta = (1000000 * z for z in (x, 1 - x, y, 1 - y))
        exact = mp.log(mp.beta(gamma, delta) / mp.beta(alpha, beta))
        exact += (alpha - gamma) * (mp.digamma(alpha) - mp.digamma(beta))
    assert kl_divergence(a, b).item() == pytest.approx(float(exact), rel=1e-7)


def test_digamma_without_its_logarithm() -> None:
    x = [1e-3, 0.5, 3.0, 8.999, 9.001, 40.0, 1e8]
    with mp.workdps(30):
        expected = [float(mp.digamma(v) - mp.log(v)) for v in x]
    torch.testing.assert_close(digamma_excess(double(*x)), double(*expected), rtol=1e-13, atol=0)


test_bad_input_is_named = refused(
    [
        (lambda: ScaledBeta(1.0, 0.0, 0.5, 2.0), "low must be below high"),
        (lambda: ScaledBeta(0.0, 1.0, 1.0, 2.0), "mean must be strictly between low and high"),
        (lambda: ScaledBeta(0.0, 1.0, -0.5, 2.0), "mean must be strictly between low and high"),
    ]
)
