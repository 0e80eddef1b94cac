"""Coverage: exchangeable draws by a binomial test, the sets by hand, bad input."""

import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE
from refusals import refused
from scipy.spatial import cKDTree
from scipy.stats import binomtest, kstest
from torch.distributions import Normal, Uniform

from sparsefam import BetaGaussian, Mixture
from sparsefam.estimators import SparseDensity, conformal_mass

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
@pytest.mark.filterwarnings("ignore:X has columns of few distinct whole numbers")  # of ties
@pytest.mark.filterwarnings("ignore:support_ holds only")  # the bandwidth is fixed
@pytest.mark.filterwarnings("ignore:the density is zero at")  # of a poor fit
@pytest.mark.parametrize(("draw", "settings"), CASES)
def test_new_observations_are_covered(draw: Any, settings: dict[str, Any]) -> None:
    """Also if the fit itself is poor."""
    hits = share_of_new(draw, 100, 0.95, **settings)
    assert binomtest(hits, 100, 0.95, "less").pvalue > 1e-3


def folds(n: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).permutation(n) % 5


def test_intervals_hold_what_is_as_near_to_a_fit_as_all_but_few() -> None:
    """On a grid, by the distances of observations from fits without them."""
    x, coverage = np.random.default_rng(0).random((100, 1)), 0.985
    x, settings = np.where(x < 0.5, x, x + 0.5), FIXED | {"bandwidth": 0.15}
    model = SparseDensity(coverage=coverage, random_state=3, **settings).fit(x)
    own = SparseDensity(random_state=3, **settings).fit(x)
    fold, grid = folds(100, 3), np.linspace(-0.3, 1.8, 4201)[:, None]

    def off(support: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.maximum(support[:, 0] - t, t - support[:, 1]).clip(0).min(-1)

    fits = [SparseDensity(random_state=3, **settings).fit(x[fold != k]) for k in range(5)]
    far = np.concatenate([off(fits[k].support_, x[fold == k]) for k in range(5)])
    missed, radius = (far > 0).sum(), far.max()  # one of 101 may be further away
    nearest = np.min([off(inner.support_, grid) for inner in fits], 0)
    due = (nearest <= radius) | (own.predict(grid) > 0)
    assert due[own.predict(grid) < 0].any()
    assert ((model.predict(grid) > 0) != due).sum() <= 2  # rounding at ends
    p = model.density_
    assert isinstance(p, Mixture)
    ends = torch.from_numpy(model.support_)
    inside = torch.lerp(ends[:, 0], ends[:, 1], torch.linspace(0, 1, 99).double()[:, None])
    assert (p.prob(inside) > 0).all()
    assert float(p.cdf(ends).diff().sum()) == pytest.approx(1, abs=1e-9)
    # The density is the fit to all observations and a share that is uniform.
    share = (missed + 1) / 102
    flat = share / float(ends.diff().sum())
    torch.testing.assert_close(p.prob(inside), (1 - share) * own.density_.prob(inside) + flat)


COVERAGES = (0.9, 0.95, 0.98)


@pytest.mark.parametrize(
    ("draw", "settings"),
    [
        pytest.param(outliers, {}, id="numbers"),
        pytest.param(skewed, {"base": Normal(0.0, 2.0), "penalty": 1e-5}, id="a base"),
        pytest.param(crescent, {}, id="two columns", marks=pytest.mark.slow),
    ],
)
def test_supports_grow_with_coverage_and_hold_all_observations(
    draw: Any, settings: dict[str, Any]
) -> None:
    x = draw(np.random.default_rng(1), 100)
    settings = FIXED | settings
    if x.shape[1] == 2:
        settings["inducing_points"] = x[:10]
    fits = [
        SparseDensity(coverage=coverage, random_state=0, **settings).fit(x)
        for coverage in (None, *COVERAGES)
    ]
    low, high = x.min(0) - np.ptp(x, 0), x.max(0) + np.ptp(x, 0)
    grid = low + (high - low) * np.random.default_rng(0).random((4000, x.shape[1]))
    held = [fit.predict(np.concatenate([grid, x])) > 0 for fit in fits]
    for smaller, larger in itertools.pairwise(held):
        assert larger[smaller].all()
    if "base" not in settings:
        assert held[-1].sum() > held[1].sum()
        assert all(inside[len(grid) :].all() for inside in held)


@pytest.mark.slow
def test_folds_matter_little() -> None:
    """With one split, the ends moved by a tenth of the range and more."""
    x = np.random.default_rng(0).normal(size=(150, 1))
    supports = [
        SparseDensity(coverage=0.95, random_state=seed, **FIXED).fit(x).support_
        for seed in range(4)
    ]
    ends = np.array([[support[0, 0], support[-1, 1]] for support in supports])
    assert np.ptp(ends, 0).max() < 0.06 * np.ptp(x)


@pytest.mark.slow
def test_places_in_the_plane_that_are_not_far() -> None:
    x, settings = crescent(np.random.default_rng(1), 200), FIXED | {"inducing_points": 40}
    model = SparseDensity(coverage=0.97, random_state=1, **settings).fit(x)
    fold = folds(200, 1)
    low, high = x.min(0) - 1, x.max(0) + 1
    grid = low + (high - low) * np.random.default_rng(0).random((3000, 2))
    far, near = [], []
    for k in range(5):
        inner = SparseDensity(random_state=1, **settings).fit(x[fold != k])
        scale = inner.density_.variance.sqrt().numpy()
        parts = getattr(inner.density_, "components", [inner.density_])
        nodes = np.concatenate([part.mesh.nodes.numpy() for part in parts])
        tree = cKDTree(nodes[inner.predict(nodes) > 0] / scale)
        far.extend(tree.query(x[fold == k] / scale)[0])
        near.append(tree.query(grid / scale)[0])
    own = SparseDensity(random_state=1, **settings).fit(x)
    radius = np.sort(far)[-6]  # 6 of 201 may be further away
    due = (np.min(near, 0) <= radius) | (own.predict(grid) > 0)
    np.testing.assert_array_equal(model.predict(grid) > 0, due)
    assert (model.predict(model.sample(300, random_state=0)) == 1).all()
    cells = np.prod(high - low) / len(grid)
    assert np.exp(model.score_samples(grid)).sum() * cells == pytest.approx(1, abs=0.1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(grid), model.score_samples(grid))


def test_known_bounds_stay() -> None:
    x = np.random.default_rng(0).lognormal(size=(200, 1))
    x = x - x.min()
    for settings in ({}, {"bounds": (0, None)}, {"base": Uniform(0.0, 60.0)}):
        model = SparseDensity(coverage=0.98, random_state=0, **FIXED | settings).fit(x)
        assert (model.support_.min() >= 0) == bool(settings)
    kept = SparseDensity(bounds=[(0, None)], **FIXED).fit(x)
    assert kept.support_[0, 0] == 0 and kept.support_[-1, 1] < 1.25 * x.max()


NORMAL = np.random.default_rng(0).normal(size=(60, 1))
COVERED = SparseDensity(coverage=0.9, **FIXED)


def fit(**settings: Any) -> Callable[[], object]:
    return lambda: SparseDensity(**settings).fit(NORMAL)


test_bad_settings_are_named = refused(
    [
        (fit(coverage=0.0), "coverage must be a number between 0 and 1, or None, got 0.0"),
        (fit(coverage=math.nan), "coverage must be a number between 0 and 1, or None, got nan"),
        (fit(coverage=0.99), "coverage=0.99 takes at least 99 observations, got 60"),
        (fit(coverage=0.9, alpha=1.0), "coverage must be None with alpha=1"),
        (
            lambda: COVERED.fit(NORMAL, sample_weight=1 + np.arange(60)),
            "coverage must be None .* with unequal weights, got 0.9",
        ),
        (fit(bounds=(math.nan, 1)), r"bounds must be \(low, high\) with low below high"),
        (fit(bounds=(1, 0)), r"bounds must be .* with low below high, .* got \(1, 0\)"),
        (fit(bounds=[(0, None)] * 2), "a pair for each of 1 columns"),
        (fit(bounds=(0.5, None)), r"X must be inside bounds=\(0.5, None\), got values outside"),
        (fit(bounds=(-9, 9), base=Normal(0.0, 1.0)), "bounds must be None if base is given"),
    ]
)


def test_least_coverage_and_equal_weights() -> None:
    x = np.random.default_rng(0).random((60, 1))
    model = SparseDensity(coverage=1e-12, **FIXED).fit(x, sample_weight=np.full(60, 2.0))
    assert model.support_.shape == (1, 2)


def test_alpha_is_chosen_among_those_with_zeros() -> None:
    x = np.random.default_rng(7).normal(size=(80, 1))
    assert SparseDensity(None, **FIXED).fit(x).alpha_ == 1
    assert SparseDensity(None, coverage=0.9, random_state=0, **FIXED).fit(x).alpha_ > 1


def test_fits_of_constants_are_refused_with_what_is_left() -> None:
    x = np.zeros((60, 1))
    x[0] = 1
    with pytest.raises(ValueError, match="no constant column among the 48 .*coverage=0.9 leaves"):
        SparseDensity(coverage=0.9, random_state=0, **FIXED).fit(x)


# Answers of a regression


def regressed(count: int) -> tuple[Mixture, torch.Tensor]:
    """Densities with a gap, and answers that are not their draws."""
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, 1, dtype=DOUBLE, generator=generator)
    logits, centers = torch.cat([x, 1 - x], -1), torch.cat([x - 2, 2 * x + 1], -1)
    p = Mixture(logits, BetaGaussian(centers, 1.2, 1.5))
    noise = 0.4 * torch.randn(count, dtype=DOUBLE, generator=generator)
    return p, centers[torch.arange(count), torch.arange(count) % 2] + noise.clamp(-1, 1)


@pytest.mark.parametrize(("count", "coverage"), [(40, 0.9), (41, 0.5), (33, 0.93)])
def test_sets_calibrated_on_the_others_contain_the_exact_share(count: int, coverage: float) -> None:
    """Of n + 1 answers, each in turn as the new one, exactly ceil((n + 1) c): without ties."""
    p, y = regressed(count)
    others = ~torch.eye(count, dtype=torch.bool)
    mass = torch.stack([conformal_mass(p[here], y[here], coverage) for here in others])
    sets = p.highest_density(mass)
    inside = (sets.intervals[..., 0] <= y[:, None]) & (y[:, None] <= sets.intervals[..., 1])
    assert int(inside.any(-1).sum()) == math.ceil(count * coverage)
    assert (sets.count == 2).any()


def test_masses_of_draws_are_uniform() -> None:
    p, _ = regressed(400)
    torch.manual_seed(0)
    assert kstest(p.highest_density_mass(p.sample()), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("shift", "coverage", "message"),
    [
        (0.0, 1.0, "coverage must be a number between 0 and 1, got 1.0"),
        (0.0, 0.96, "coverage=0.96 takes at least 24 answers, got 20"),
        (9.0, 0.9, "y must be where p is positive for a share of 0.9, got 100% of the answers"),
    ],
)
def test_answers_that_cannot_be_calibrated(shift: float, coverage: float, message: str) -> None:
    p, y = regressed(20)
    with pytest.raises(ValueError, match=message):
        conformal_mass(p, y + shift, coverage)
    with pytest.raises(ValueError, match=r"y and p must have the same shape \(n,\), got \(19,\)"):
        conformal_mass(p, y[1:], 0.9)
