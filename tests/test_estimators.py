"""Density estimates: optimality, known edges, leave-one-out refits, scikit-learn's own checks."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from refusals import refused
from scipy.integrate import quad
from scipy.spatial import cKDTree
from scipy.stats import gaussian_kde
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import check_estimator
from torch.distributions import Uniform, kl_divergence

from sparsefam import KernelDeformedExp
from sparsefam._feature_maps import Gaussian
from sparsefam.estimators import SparseDensity
from sparsefam.estimators._truncation import _cells_of, extreme_observations
from sparsefam.losses import fenchel_young
from sparsefam.scores import KernelExpansion
from sparsefam.supports import IntervalUnion

EDGES = np.array([[0.15, 0.41], [0.67, 0.83]])
GRID = np.linspace(-0.2, 1.2, 2801)


def two_bumps(count: int, seed: int = 0) -> np.ndarray:
    """Parabolas over two intervals, the first with six tenths of the mass."""
    rng = np.random.default_rng(seed)
    x = 2 * rng.beta(2, 2, count) - 1
    low, high = EDGES[(rng.random(count) > 0.6).astype(int)].T
    return ((low + high) / 2 + x * (high - low) / 2)[:, None]


def truth(t: np.ndarray) -> np.ndarray:
    total = np.zeros_like(t)
    for share, (low, high) in zip((0.6, 0.4), EDGES, strict=True):
        u = (2 * t - low - high) / (high - low)
        total += share * 1.5 / (high - low) * np.clip(1 - u**2, 0, None)
    return total


SETTINGS: dict[str, Any] = {
    "inducing_points": np.linspace(0, 1, 12),
    "penalty": 1e-3,
    "bandwidth": 0.15,
    "base": Uniform(-0.2, 1.2),
}


def densities(model: SparseDensity) -> np.ndarray:
    return np.exp(model.score_samples(GRID[:, None]))


def test_gaps_and_edges_are_found() -> None:
    x = two_bumps(2000)
    model = SparseDensity().fit(x)
    np.testing.assert_allclose(model.support_, EDGES, rtol=0, atol=0.012)
    shares = [((low < x) & (x < high)).mean() for low, high in EDGES]
    np.testing.assert_allclose(model.support_mass_, shares, atol=0.01)
    found = densities(model)
    kde = gaussian_kde(x.T, "silverman")(GRID)
    errors = [((f - truth(GRID)) ** 2).mean() for f in (found, kde)]
    assert errors[0] < errors[1] / 20
    outside = truth(GRID) == 0
    assert found[outside].mean() < 0.01 * kde[outside].mean()


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_the_fit_is_a_minimum(alpha: float) -> None:
    """The slope of the penalized Fenchel-Young loss of the density, by autodiff."""
    x, base, rho = two_bumps(200), Uniform(-0.2, 1.2), 1e-2
    given: dict[str, Any] = {"inducing_points": np.linspace(0, 1, 6), "bandwidth": 0.2}
    p = SparseDensity(alpha, penalty=rho, base=base, tol=1e-12, **given).fit(x).density_
    weights, points = p.weights.clone().requires_grad_(), p.inducing_points.reshape(-1, 1)
    score = KernelExpansion(weights, points, p.kernel)
    gram = p.kernel(points, points)
    penalty = rho / 2 * weights @ gram @ weights
    loss = fenchel_young(score, torch.from_numpy(x[:, 0]), alpha, base=p.base) + penalty
    (slope,) = torch.autograd.grad(loss, weights)
    assert slope.abs().max() < 1e-7


def test_the_criterion_is_that_of_leaving_one_out() -> None:
    x = two_bumps(80, seed=1)
    model = SparseDensity(2.0, **SETTINGS).fit(x)
    left_out = [
        -SparseDensity(2.0, **SETTINGS).fit(np.delete(x, i, 0)).score(x[i : i + 1])
        for i in range(0, 80, 4)
    ]
    own = [-model.score(x[i : i + 1]) for i in range(0, 80, 4)]
    excess = np.mean(np.array(left_out) - np.array(own))
    # What leaving out adds, of every fourth observation, against the estimate over all.
    assert model.criterion_ - model.loss_ == pytest.approx(excess, rel=0.05)
    assert model.loss_ == pytest.approx(-model.score(x), abs=1e-9)


def test_score_is_the_loss() -> None:
    x = two_bumps(100)
    model = SparseDensity(1.5, **SETTINGS).fit(x)
    p = model.density_
    due = fenchel_young(p.score, torch.from_numpy(x[:, 0]), 1.5, base=p.base)
    assert model.score(x) == pytest.approx(-due.item(), abs=1e-12)
    assert np.isfinite(model.score([[5.0]]))
    assert model.score_samples([[5.0]]) == -np.inf


def test_parameters_of_a_kernel_are_kept() -> None:
    kernel, x = RBF(1, lengthscale=torch.tensor(0.07, dtype=torch.float64)), two_bumps(60)
    model = SparseDensity(kernel=kernel, inducing_points=20).fit(x)
    own = SparseDensity(bandwidth=0.07, inducing_points=20).fit(x)
    np.testing.assert_allclose(model.score_samples(x), own.score_samples(x), rtol=1e-6)
    assert all(parameter.requires_grad for parameter in kernel.parameters())


def test_weights_count_observations() -> None:
    x = np.append(two_bumps(60), [[50.0]], 0)
    weight = np.append(np.arange(60) % 3, 0)
    weighted = SparseDensity(**SETTINGS).fit(x, sample_weight=weight)
    repeated = SparseDensity(**SETTINGS).fit(x.repeat(weight, 0))
    np.testing.assert_allclose(densities(weighted), densities(repeated), atol=1e-6)


def test_draws_are_reproducible_and_leave_torch_alone() -> None:
    model = SparseDensity(bandwidth=0.2, penalty=1e-3).fit(two_bumps(50))
    torch.manual_seed(3)
    due = torch.rand(2)
    torch.manual_seed(3)
    first, second = (model.sample(5, random_state=0) for _ in range(2))
    assert first.shape == (5, 1)
    np.testing.assert_array_equal(first, second)
    torch.testing.assert_close(torch.rand(2), due)


FIXED: dict[str, Any] = {"bandwidth": 1.0, "penalty": 1e-2, "inducing_points": 5}
# Checks with more columns than three, or with data that have negative numbers and five columns.
WIDE = (
    "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit",
    "check_estimators_dtypes",
    "check_sample_weight_equivalence_on_dense_data",
    "check_dtype_object",
    "check_non_transformer_estimators_n_iter",
)
# Checks that some of the fitted observations are outliers.
OUTLYING = ("check_outliers_train", "check_outliers_fit_predict")


@pytest.mark.filterwarnings("ignore:X has columns of few distinct whole numbers")
def test_scikit_learns_checks() -> None:
    expected = dict.fromkeys(WIDE, "their data have more than three columns")
    expected |= dict.fromkeys(OUTLYING, "fitted observations are in the support")
    results = check_estimator(
        SparseDensity(**FIXED), expected_failed_checks=expected, on_skip=None, on_fail="raise"
    )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "xfail"}
    assert set(failed) == set(expected)
    assert all("at most 3 features" in failed[x] or "negative" in failed[x] for x in WIDE)
    assert all("(shapes (1,), (2,) mismatch)" in failed[x] for x in OUTLYING)


test_bad_input_is_named = refused(
    [
        ({"alpha": 2.5}, two_bumps(20), "alpha must be a number from 1 to 2"),
        ({"penalty": -1.0}, two_bumps(20), "penalty must be a positive"),
        (
            {"bandwidth": 0.1, "kernel": Gaussian(torch.ones(1))},
            two_bumps(20),
            "bandwidth must be None if kernel is given",
        ),
        ({"bandwidth": [0.1, 0.2]}, two_bumps(20), "bandwidth must be one positive number or 1"),
        ({"inducing_points": np.zeros((3, 2))}, two_bumps(20), "inducing_points must be finite"),
        ({"max_iter": 1.5}, two_bumps(20), "max_iter must be an integer at least 1"),
        ({"max_iter": 0}, two_bumps(20), "max_iter must be at least 1, got 0"),
        ({"base": Uniform(0.3, 0.5)}, two_bumps(20), "X must be inside the support of the base"),
        ({}, np.ones((5, 1)), "X must have no constant column"),
        (
            {},
            np.zeros((5, 4)),
            "at most 3 features, got 4: choose .* BetaGaussianDensity",
        ),
        ({}, np.array([[0.0], [np.nan]]), "Input X contains NaN"),
        ({}, np.array([[0.0]]), "minimum of 2 is required"),
    ],
    of=lambda settings, x: SparseDensity(**settings).fit(x),
)


def test_some_weight_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least one non-zero|must be positive for some"):
        SparseDensity().fit(two_bumps(3), sample_weight=np.zeros(3))


# The ends of supports
GIVEN: dict[str, Any] = {"bandwidth": 0.15, "penalty": 1e-4, "inducing_points": 20}


def two_uniforms(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(count) < 0.5, 0.3 * rng.random(count), 1 - 0.4 * rng.random(count))


def box(x: np.ndarray) -> Uniform:
    """The default base, which as a given one is not cut."""
    margin = 0.25 * np.ptp(x)
    ends = torch.tensor([x.min() - margin, x.max() + margin], dtype=torch.float64)
    return Uniform(*ends, validate_args=False)


def test_beyond_the_data_is_no_more_than_half_of_what_they_miss() -> None:
    x, alpha = two_uniforms(150), 1.5
    model = SparseDensity(alpha, **GIVEN).fit(x[:, None])
    p, whole = model.density_, SparseDensity(alpha, base=box(x), **GIVEN).fit(x[:, None]).density_
    uncut = whole.support.intervals
    groups, due = [x[x < 0.45], x[x > 0.45]], 0.5 / 150
    assert model.support_.shape == (2, 2)
    for (low, high), data in zip(model.support_, groups, strict=True):
        ends = torch.tensor([low, data.min(), data.max(), high])
        beyond = whole.cdf(ends).diff()[[0, 2]]
        own = torch.isin(ends[[0, 3]], uncut)
        torch.testing.assert_close(beyond[~own], torch.full_like(beyond[~own], due))
        assert (beyond[own] <= due).all()
    # Elsewhere it is the density that it was, but for a constant.
    at = torch.linspace(-0.2, 1.2, 501, dtype=torch.float64)
    inside = p.support.check(at)
    mass = float(whole.cdf(p.support.intervals).diff().sum())
    torch.testing.assert_close(p.prob(at)[inside], whole.prob(at)[inside] / mass)
    assert (p.prob(at)[~inside] == 0).all() and (whole.prob(at)[~inside] > 0).any()
    assert float(kl_divergence(p, whole)) == pytest.approx(-math.log(mass), abs=1e-8)


def test_intervals_without_data_are_left_out() -> None:
    x = 0.5 + 0.5 * np.random.default_rng(0).beta(3, 3, 60)
    settings: dict[str, Any] = {"bandwidth": 0.06, "penalty": 1e-8, "inducing_points": 60}
    whole = SparseDensity(base=box(x), **settings).fit(x[:, None])
    model = SparseDensity(**settings).fit(x[:, None])
    empty = [((a <= x) & (x <= b)).sum() == 0 for a, b in whole.support_]
    assert any(empty)
    assert len(model.support_) == len(empty) - sum(empty)
    assert (model.score_samples(x[:, None]) > -np.inf).all()


def two_moons(count: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    x, upper = np.pi * rng.random(count), rng.random(count) < 0.5
    x = np.stack([np.cos(x), np.sin(x)], 1)
    return np.where(upper[:, None], x, [1, 0.5] - x) + rng.normal(0, 0.08, (count, 2))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_extremes_of_cells_come_with_the_weight_of_their_ties(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(4000, dim)).round(1 if dim == 1 else 0), rng.random(4000)
    x[2000:] += 1e-3 * rng.integers(0, 3, (2000, dim))
    box = [Uniform(torch.tensor(-6.0), torch.tensor(6.0)).expand(())] * dim
    cells: dict[tuple[int, ...], list[tuple[float, ...]]] = {}
    for row, cell in zip(x.tolist(), np.stack(_cells_of((x + 6) / 12), 1).tolist(), strict=True):
        cells.setdefault(tuple(cell), []).append(tuple(row))
    due = np.array(sorted({end(rows) for rows in cells.values() for end in (min, max)}))
    monkeypatch.setattr("sparsefam.estimators._data._SORTED", 700)
    found, total = extreme_observations(torch.from_numpy(x), torch.from_numpy(weight), box)
    np.testing.assert_array_equal(found.numpy(), due)
    sums = [weight[(x == row).all(1)].sum() for row in due]
    np.testing.assert_allclose(total.numpy(), sums)


# Parts without observations, and one with observations that goes on beyond them.
def test_parts_far_from_all_data_are_left_out_in_the_plane() -> None:
    """Sums of wide kernels have ripples, which are positive far from the moons."""
    x = two_moons(300)
    model = SparseDensity(bandwidth=0.4, penalty=1e-6, random_state=0).fit(x)
    p, whole = getattr(model.density_, "components", [model.density_])[0], model._uncut
    ends = torch.tensor([[side.low, side.high] for side in model.base_])
    share = (torch.arange(250, dtype=torch.float64) + 0.5) / 250
    grid = torch.cartesian_prod(*[torch.lerp(low, high, share) for low, high in ends])
    found, full = p.prob(grid), whole.prob(grid)
    low, size = ends[:, 0].numpy(), ends.diff().squeeze(-1).numpy()
    tree = cKDTree((x - low) / size)
    distance = torch.from_numpy(tree.query((grid.numpy() - low) / size)[0])
    reach = tree.query(tree.data, 2)[0][:, 1].max()
    assert float(distance[full > 0].amax()) > reach >= float(distance[found > 0].amax())
    # A density, elsewhere proportional to the fit.
    area = float((ends[:, 1] - ends[:, 0]).prod()) / len(grid)
    assert float(found.sum()) * area == pytest.approx(1, abs=1e-3)
    mass = float(full[found > 0].sum()) * area
    torch.testing.assert_close(found[found > 0] * mass, full[found > 0], rtol=1e-3, atol=0)
    assert (model.predict(model.sample(500, random_state=0)) == 1).all()
    assert (model.predict([[1e300, 0.0], [0.0, -1e300]]) == -1).all()
    kept = pickle.dumps(model)
    assert len(kept) < 2e7  # without the kernels at the nodes, which follow from the rest
    again = pickle.loads(kept)
    np.testing.assert_array_equal(again.score_samples(x), model.score_samples(x))


def test_a_value_of_many_observations_keeps_its_mass() -> None:
    x = np.concatenate([np.zeros(190), np.random.default_rng(0).normal(size=10)])
    model = SparseDensity(bandwidth=0.04, penalty=1e-5).fit(x[:, None])
    near = torch.tensor([-0.05, 0.05], dtype=torch.float64)
    share = (np.abs(x) < 0.05).mean()
    assert float(model.density_.cdf(near).diff()) == pytest.approx(share, abs=0.04)
    assert (model.score_samples(x[:, None]) > -np.inf).mean() >= 0.99


def test_a_density_on_intervals() -> None:
    """Under a kernel with kinks, whose mesh must end where the intervals do."""
    gaps = torch.tensor([[0.1, 0.4], [0.7, 0.9]], dtype=torch.float64)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(x - y.T).abs() / 0.2)

    points = torch.tensor([0.0, 0.5, 0.8], dtype=torch.float64)  # also off the intervals
    whole = KernelDeformedExp(torch.tensor([1.0, -0.5, 0.7]).double(), points, kernel)
    p = whole.restrict(IntervalUnion(gaps))

    def integral(of: Any) -> float:
        parts = [quad(lambda t: float(of(torch.tensor(t))), *ends)[0] for ends in gaps.tolist()]
        return sum(parts)

    torch.testing.assert_close(p.support.intervals, gaps)
    assert integral(p.prob) == pytest.approx(1, abs=1e-7)
    assert float(p.mean) == pytest.approx(integral(lambda t: t * p.prob(t)), abs=1e-7)
    entropy = integral(lambda t: -p.prob(t) * p.log_prob(t))
    assert float(p.entropy()) == pytest.approx(entropy, abs=1e-7)
    assert float(p.cdf(torch.tensor(0.55))) == pytest.approx(
        quad(lambda t: float(p.prob(torch.tensor(t))), 0.1, 0.4)[0], abs=1e-7
    )
    assert p.support.check(p.sample((200,))).all()
    levels = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    torch.testing.assert_close(p.cdf(p.icdf(levels)), levels)


def test_observations_beyond_an_interval_are_its_outermost() -> None:
    """The fit of petals ends between 1.7 and 1.9 cm: there it falls to zero without a jump."""
    petals = load_iris().data[:, 2:3]
    model = SparseDensity().fit(petals)
    near = np.linspace(1.7, 1.9, 401).reshape(-1, 1)
    heights = np.exp(model.score_samples(near))
    assert np.abs(np.diff(heights)).max() < 0.02 * heights.max()
    assert np.isfinite(model.score_samples(petals)).all()
