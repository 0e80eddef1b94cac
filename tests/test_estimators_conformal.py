"""Coverage: exchangeable draws by a binomial test, the sets by hand, islands, bad input."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch.distributions import Normal, Uniform

from sparsefam import Mixture
from sparsefam.distributions.base_measure import UniformOn
from sparsefam.estimators import SparseDensity
from sparsefam.estimators.conformal import _around

FIXED: dict[str, Any] = {"bandwidth": 0.5, "penalty": 1e-3, "inducing_points": 10}


def outliers(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_t(3, (count, 1))


def counts(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.poisson(0.7, (count, 1)).astype(float)


def skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.lognormal(size=(count, 1))


def crescent(rng: np.random.Generator, count: int) -> np.ndarray:
    angle = np.pi * rng.random(count)
    return np.stack([np.cos(angle), np.sin(angle)], 1) + 0.3 * rng.standard_t(3, (count, 2))


def share_of_new(draw: Any, trials: int, coverage: float | None, **settings: Any) -> int:
    """The number of trials in which one more observation falls into the support of 44."""
    hits = 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        x, new = np.split(draw(rng, 45), [44])
        model = SparseDensity(coverage=coverage, random_state=seed, **FIXED | settings).fit(x)
        hits += int(model.predict(new)[0] == 1)
    return hits


CASES = [
    pytest.param(outliers, {}, id="heavy tails"),
    pytest.param(counts, {}, id="ties"),
    pytest.param(skewed, {"bounds": (0, None), "alpha": 1.5}, id="a bound"),
    pytest.param(skewed, {"base": Normal(0.0, 2.0), "penalty": 1e-5}, id="a base"),
    pytest.param(crescent, {}, id="two columns"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:support_ holds only")  # the bandwidth is fixed
@pytest.mark.parametrize(("draw", "settings"), CASES)
def test_new_observations_are_covered(draw: Any, settings: dict[str, Any]) -> None:
    """Also if the fit itself is poor."""
    hits = share_of_new(draw, 100, 0.95, **settings)
    assert binomtest(hits, 100, 0.95, "less").pvalue > 1e-3


def two_uniforms(count: int) -> np.ndarray:
    x = np.random.default_rng(0).random((count, 1))
    return np.where(x < 0.5, x, x + 0.5)


def test_intervals_are_widened_by_the_distance_of_a_rank() -> None:
    x, coverage = two_uniforms(100), 0.9
    settings = FIXED | {"bandwidth": 0.15}
    model = SparseDensity(coverage=coverage, random_state=3, **settings).fit(x)
    order = np.random.RandomState(3).permutation(100)
    inner = SparseDensity(random_state=3, **settings).fit(x[order[50:]])
    held = x[order[:50]]
    gaps = np.stack([inner.support_[:, 0] - held, held - inner.support_[:, 1]]).max(0).min(-1)
    radius = max(0.0, np.sort(gaps)[-5])  # 5 of 51 may be further away
    due = inner.support_ + [-radius, radius]
    np.testing.assert_allclose(model.support_, due, atol=1e-9)
    p = model.density_
    assert isinstance(p, Mixture)
    ends = torch.from_numpy(model.support_)
    inside = torch.lerp(ends[:, 0], ends[:, 1], torch.linspace(0, 1, 99).double()[:, None])
    assert (p.prob(inside) > 0).all()
    assert float(p.cdf(ends).diff().sum()) == pytest.approx(1, abs=1e-9)
    # Elsewhere the density is the fit to all observations, lifted by the share that was missed.
    whole = SparseDensity(random_state=3, **settings).fit(x)._whole
    missed = int(np.isneginf(inner.score_samples(held)).sum())
    share = (missed + 1) / 52
    ratio = (p.prob(inside) - share / float(ends.diff().sum())) / whole.prob(inside)
    here = whole.prob(inside) > 1e-3
    assert here.any()
    torch.testing.assert_close(ratio[here], ratio[here][:1].expand(int(here.sum())))


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_level_sets_hold_what_they_should(alpha: float) -> None:
    x, settings = crescent(np.random.default_rng(1), 200), FIXED | {"inducing_points": 40}
    model = SparseDensity(alpha, coverage=0.95, random_state=1, **settings).fit(x)
    order = np.random.RandomState(1).permutation(200)
    rest, held = (torch.from_numpy(x[rows]) for rows in (order[100:], order[:100]))
    inner = SparseDensity(alpha, random_state=1, **settings).fit(rest.numpy())
    low, high = (torch.stack([getattr(b, end) for b in inner.base_]) for end in ("low", "high"))
    points, (_, cover) = inner.density_.inducing_points, model.density_.components
    width = torch.from_numpy(inner.bandwidth_)
    nearest = points[torch.cdist(rest / width, points / width).argmin(-1)]

    def f(t: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * torch.cdist(t / width, nearest / width).square()).mean(-1)

    scores = torch.where(((low <= held) & (held <= high)).all(-1), f(held), -math.inf)
    level = scores.sort().values[4]  # 5 of 101 may be lower
    assert level > -math.inf
    share = torch.linspace(1e-3, 1 - 1e-3, 60, dtype=torch.float64)
    grid = low + (high - low) * torch.cartesian_prod(share, share)
    positive, values = cover.prob(grid) > 0, f(grid)
    assert positive[values >= level].all()
    slack = 2e-3 * (values.max() - level)
    assert not positive[values < level - slack].any()
    # Rows of a mask are values of y, as in matplotlib.
    across, up, mask, _ = model.support_
    i, j = mask.nonzero()
    assert (model.predict(np.stack([across[j], up[i]], 1)) == 1).all()
    # The density is linear in the score, to the power 1/(alpha - 1).
    heights = cover.prob(grid[positive]) ** (alpha - 1)
    slope = np.polyfit(values[positive], heights, 1)
    np.testing.assert_allclose(np.polyval(slope, values[positive]), heights, atol=1e-6)
    nodes, weights = cover.quadrature(200)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-4)
    assert nodes.shape[-1] == 2


def test_observations_beyond_the_box_widen_it() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random((60, 2)), 8 + rng.random((3, 2))])
    seed = 3  # holds out the last three rows
    held = np.random.RandomState(seed).permutation(63)[:33]
    assert (held >= 60).sum() == 3
    model = SparseDensity(
        coverage=0.97, random_state=seed, bounds=[(None, None), (None, 9.5)], **FIXED
    ).fit(x)
    first, second = model.density_.components[1].base
    assert isinstance(first, Uniform)
    # The end is the farthest observation, which is inside.
    assert float(first.high) == pytest.approx(x[:, 0].max(), rel=1e-9)
    assert (model.predict(x[held]) == 1).all()
    assert float(second.high) == 9.5 and float(second.low) < -9


def test_islands_go_where_coverage_does_not_need_them() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=5000), 5 + rng.random(5000)])[:, None]
    settings: dict[str, Any] = {"bandwidth": 0.3, "penalty": 1e-8}
    assert len(SparseDensity(**settings).fit(x).support_) > 2
    model = SparseDensity(coverage=0.99, random_state=0, **settings).fit(x)
    assert model.support_.shape == (2, 2)
    assert (model.predict(x) == 1).mean() > 0.99


def test_known_bounds_stay() -> None:
    x = np.random.default_rng(0).lognormal(size=(200, 1))
    for settings in ({}, {"bounds": (0, None)}, {"base": UniformOn(RANGE, Uniform(0.0, 60.0))}):
        model = SparseDensity(coverage=0.98, random_state=0, **FIXED | settings).fit(x)
        assert (model.support_.min() >= 0) == bool(settings)
    kept = SparseDensity(bounds=[(0, None)], **FIXED).fit(x)
    assert kept.support_[0, 0] == 0 and kept.support_[-1, 1] < 1.25 * x.max()


RANGE = torch.tensor([[0.0, 60.0]], dtype=torch.float64)


NORMAL = np.random.default_rng(0).normal(size=(60, 1))
COVERED = SparseDensity(coverage=0.9, **FIXED)


def fit(**settings: Any) -> Callable[[], object]:
    return lambda: SparseDensity(**settings).fit(NORMAL)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (fit(coverage=0.0), "coverage must be a number between 0 and 1, or None, got 0.0"),
        (fit(coverage=math.nan), "coverage must be a number between 0 and 1, or None, got nan"),
        (fit(coverage=0.99), "coverage=0.99 takes at least 119 observations, 99 of .*, got 60"),
        (fit(coverage=0.9, alpha=1.0), "coverage must be None with .* alpha=1"),
        (lambda: COVERED.partial_fit(NORMAL), "coverage must be None for partial_fit, got 0.9"),
        (
            lambda: COVERED.fit(NORMAL, sample_weight=1 + np.arange(60)),
            "coverage must be None .* with unequal weights, got 0.9",
        ),
        (fit(bounds=(math.nan, 1)), r"bounds must be \(low, high\) with low below high"),
        (fit(bounds=(1, 0)), r"bounds must be .* with low below high, .* got \(1, 0\)"),
        (fit(bounds=[(0, None)] * 2), "a pair for each of 1 columns"),
        (fit(bounds=(0.5, None)), r"X must be inside bounds=\(0.5, None\), got values outside"),
        (fit(bounds=(-9, 9), base=Normal(0.0, 1.0)), "bounds must be None if base is given"),
    ],
)
def test_bad_settings(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_least_coverage_and_equal_weights() -> None:
    x = np.random.default_rng(0).random((60, 1))
    model = SparseDensity(coverage=1e-12, **FIXED).fit(x, sample_weight=np.full(60, 2.0))
    assert model.support_.shape == (1, 2)


def test_alpha_is_chosen_among_those_with_zeros() -> None:
    x = np.random.default_rng(7).normal(size=(80, 1))
    assert SparseDensity(None, **FIXED).fit(x).alpha_ == 1
    chosen = SparseDensity(None, coverage=0.9, random_state=0, **FIXED).fit(x)
    assert chosen.alpha_ == 1.5
    # The observations held out had a say in that, so the support is that of a fit without it.
    given = SparseDensity(2.0, coverage=0.9, random_state=0, **FIXED).fit(x)
    np.testing.assert_array_equal(chosen.support_, given.support_)


def test_fits_of_constants_are_refused_with_what_is_left() -> None:
    x = np.zeros((60, 1))
    x[0] = 1
    for seed in range(20):
        left = np.random.RandomState(seed).permutation(60)[30:]
        model = SparseDensity(coverage=0.9, random_state=seed, **FIXED)
        if not x[left].any():
            break
    with pytest.raises(ValueError, match="no constant column among the 30 .*coverage=0.9 leaves"):
        model.fit(x)


def test_ends_contain_the_observations_that_they_are_made_from() -> None:
    # 3.6 + (7.7 - 3.6) is less than 7.7.
    inner = SimpleNamespace(support_mass_=np.ones(1), support_=np.array([[0.0, 3.6]]))
    held = torch.tensor([[7.7], [1.0]], dtype=torch.float64)
    assert _around(inner, held, 1, 0.5)[0, 1] >= 7.7
