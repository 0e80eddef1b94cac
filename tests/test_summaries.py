"""Log tails to 40 deviations, heavy tails, and sets of highest density, against exact values."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from battery import DOUBLE, number
from cases import every_dtype
from pyro.distributions import InverseGamma
from scipy import stats
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution

import sparsefam as sf

PLACES = [-40.0, -12.0, -5.0, -1.0, -0.125, 0.0, 0.25, 1.0, 3.0, 9.0, 15.0, 40.0]

# The mass below x, and that above it.
Masses = Callable[[Any], tuple[Any, Any]]


def normal(x: Any) -> tuple[Any, Any]:
    return mpmath.ncdf(x), mpmath.ncdf(-x)


def laplace(x: Any) -> tuple[Any, Any]:
    small = mpmath.exp(-abs(x)) / 2
    return (small, 1 - small) if x < 0 else (1 - small, small)


def cut(x: Any) -> tuple[Any, Any]:
    """Of a normal density on [-1, 50]."""
    low, high = mpmath.ncdf(-1), mpmath.ncdf(-50)
    whole = 1 - low - high
    if x <= -1:
        return mpmath.mpf(0), mpmath.mpf(1)
    return (mpmath.ncdf(x) - low) / whole, (mpmath.ncdf(-x) - high) / whole


def mixed(x: Any) -> tuple[Any, Any]:
    pairs = zip(normal(x), laplace((x - 1) / 2), normal(3 * x + 2), strict=True)
    below, above = ((5 * a + 2 * b + c) / 8 for a, b, c in pairs)
    return below, above


def mixture(one: Tensor) -> sf.Mixture:
    parts = [sf.Normal(0 * one, one), sf.Laplace(one, 2 * one), sf.Normal(one * -2 / 3, one / 3)]
    absent = td.StudentT(1.5 * one)
    logits = torch.tensor([5.0, 2.0, 1.0, 0.0]).to(one).log()
    return sf.Mixture(logits, [*parts, absent])


FAR: dict[str, tuple[Callable[[Tensor], sf.SparseDistribution], Masses]] = {
    "Normal": (lambda one: sf.Normal(0 * one, one), normal),
    "Laplace": (lambda one: sf.Laplace(0 * one, one), laplace),
    "Truncated": (lambda one: sf.Truncated(sf.Normal(0 * one, one), -1.0, 50.0), cut),
    "Mixture": (mixture, mixed),
}


@every_dtype
@pytest.mark.parametrize("name", FAR)
def test_logarithms_keep_their_digits_to_40_deviations(name: str, dtype: torch.dtype) -> None:
    make, masses = FAR[name]
    p, t = make(torch.ones((), dtype=dtype)), torch.tensor(PLACES, dtype=dtype)
    low, high = t[:-1], t[1:]
    with mpmath.workdps(400):
        exact = [masses(mpmath.mpf(x)) for x in PLACES]
        logs = [[float(mpmath.log(m)) if m else -math.inf for m in pair] for pair in exact]
        parts = [
            float(mpmath.log(m)) if (m := min(b[0] - a[0], a[1] - b[1], key=abs)) else -math.inf
            for a, b in zip(exact, exact[1:], strict=False)
        ]
    below, above = torch.tensor(logs, dtype=DOUBLE).unbind(-1)
    # A small logarithm is an exponential of one of some tens.
    close = 1e-11 if dtype == DOUBLE else 1e-5
    for found, expected in (
        (p.log_cdf(t), below),
        (p.log_survival(t), above),
        (p.log_interval_prob(low, high), torch.tensor(parts, dtype=DOUBLE)),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=close, atol=1e-37)


# Moments under heavy tails
# Raw and central moments of order 1 to 4.
inf, nan = math.inf, math.nan
HEAVY: dict[str, tuple[Distribution, list[float], list[float]]] = {
    "Cauchy": (td.Cauchy(number(0.0), number(1.0)), [nan, inf, nan, inf], [nan] * 4),
    "HalfCauchy": (td.HalfCauchy(number(1.0)), [inf] * 4, [nan] * 4),
    "StudentT": (td.StudentT(number(2.5)), [0.0, 5.0, nan, inf], [0.0, 5.0, nan, inf]),
    "Pareto": (td.Pareto(number(1.0), number(2.5)), [5 / 3, 5.0, inf, inf], [0, 20 / 9, inf, inf]),
    "InverseGamma": (
        InverseGamma(number(2.5), number(1.0)),
        [2 / 3, 4 / 3, inf, inf],
        [0, 8 / 9, inf, inf],
    ),
    "FisherSnedecor": (
        td.FisherSnedecor(number(4.0), number(5.0)),
        [5 / 3, 12.5, inf, inf],
        [0, 12.5 - 25 / 9, inf, inf],
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_moments_that_do_not_exist_are_infinite_or_nan(name: str) -> None:
    law, raw, central = HEAVY[name]
    p = sf.Mixture(torch.zeros(1, dtype=DOUBLE), [law])
    close = {"rtol": 1e-3, "atol": 1e-9, "equal_nan": True}
    for expected, options in ((raw, {}), (central, {"central": True})):
        found = torch.stack([p.moment(n, **options) for n in (1, 2, 3, 4)])
        torch.testing.assert_close(found, torch.tensor(expected, dtype=DOUBLE), **close)
    ends = number(-3.0 if name in ("Cauchy", "StudentT") else 1.5), number(4.0)
    assert sf.Truncated(law, *ends).moment(4).isfinite()
    upper = sf.Truncated(law, ends[0])
    assert upper.moment(3) == math.inf
    if name in ("Cauchy", "StudentT"):
        assert sf.Truncated(law, None, ends[1]).moment(3) == -math.inf


# Sets of highest density
def intervals(p: sf.SparseDistribution, mass: float) -> list[list[float]]:
    return p.highest_density(mass).intervals.tolist()


def test_sets_of_two_peaks_may_be_two_intervals() -> None:
    far = sf.Mixture(
        torch.zeros(2, dtype=DOUBLE), sf.Normal(number(3.0) * torch.tensor([-1, 1]), 0.25)
    )
    half = 0.25 * stats.norm.ppf(0.95)
    expected = [[-3 - half, -3 + half], [3 - half, 3 + half]]
    torch.testing.assert_close(number(intervals(far, 0.9)), number(expected))
    # One peak alone is the higher of two unlike ones.
    p = sf.Mixture(torch.tensor([0.5, 0.0]), sf.BetaLaplace(torch.tensor([-2.0, 2.0]), 1.0, 1.5))
    assert len(intervals(p, 0.1)) == 1 and len(intervals(p, 0.9)) == 2
    both = sf.Mixture(torch.tensor([[0.5, 0.0], [0.0, 0.0]]), p.components)
    found = both.highest_density(torch.tensor([0.1, 0.9]))
    assert found.count.tolist() == [1, 2]


def test_a_level_with_more_than_the_mass_is_taken_whole() -> None:
    steps = sf.Mixture(
        number([0.3, 0.7]).log(), [td.Uniform(number(0.0), 3.0), td.Uniform(4.0, 5.0)]
    )
    assert intervals(steps, 0.5) == [[4.0, 5.0]]
    assert intervals(steps, 0.8) == [[0.0, 3.0], [4.0, 5.0]]
    flat = sf.Density(lambda t: 0 * t, number(-1.0), 2.0)
    assert intervals(flat, 0.25) == [[-1.0, 2.0]]
    assert intervals(sf.BetaGaussian(0.0, 1.0, math.inf), 0.25) == [[-1.0, 1.0]]


def test_a_density_that_is_infinite_at_an_end_has_sets_of_every_mass() -> None:
    p = sf.ScaledBeta(number(0.0), 1.0, number([0.22, 0.39, 0.82]), number([1.43, 0.84, 0.62]))
    for mass in (0.5, 0.9):
        edges = p.highest_density(mass).intervals.nan_to_num(0.0).movedim(0, -1)
        a, b = (p.concentration * x for x in (p.mean, 1 - p.mean))
        total = number(stats.beta.cdf(edges, a, b)).diff(dim=1).sum((0, 1))
        torch.testing.assert_close(total, torch.full_like(total, mass), rtol=0.0, atol=1e-12)


def test_a_set_that_ends_at_a_jump_has_its_mass() -> None:
    # Rounding puts the jump beyond the first location after the breakpoint.
    law = td.Uniform(number(0.1128242015838623), 2.371351420879364)
    logits = number([-0.006939702440392754, -4.973964225983146])
    p = sf.Mixture(logits, [law, sf.Normal(number(0.7555277347564697), 0.3)])
    (edges,) = intervals(p, 0.9)
    assert edges[0] == law.low
    assert float(p.cdf(number(edges)).diff()) == pytest.approx(0.9, abs=1e-10)


@pytest.mark.parametrize(
    ("loc", "mass"),
    [
        # One piece beside a breakpoint holds a peak that the heights at its locations do not show.
        ([-2.64176631, -0.30756533, 1.23094678], 0.5),
        # The level is close to that of a minimum, above which the interval is two.
        ([-0.94083971, -2.35840726, 3.99861574], 0.99),
    ],
)
def test_sets_of_highest_density_have_their_mass_next_to_an_extremum(
    loc: list[float], mass: float
) -> None:
    p = sf.Mixture(torch.zeros(3, dtype=DOUBLE), sf.Normal(torch.tensor(loc, dtype=DOUBLE), 1.0))
    low, high = p.highest_density(mass).intervals.unbind(-1)
    found = (p.cdf(high) - p.cdf(low)).sum()
    torch.testing.assert_close(found.item(), mass, rtol=0.0, atol=1e-9)
