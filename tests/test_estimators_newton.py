"""Meshes and Newton steps of fits to data with ties and outliers."""

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from sparsefam.estimators import SparseDensity, newton

_NARROWER = r"penalty must be larger, or bandwidth or alpha, .*got penalty 1e-09, .*bandwidth 0\.03"

TIES = np.repeat([0.0, 0.37, 1.0], [30, 50, 20])[:, None]


COUNTS = np.random.default_rng(0).poisson(3.0, 300).astype(float)[:, None]


@pytest.mark.parametrize(("alpha", "x"), [(1.0, COUNTS), (1.1, TIES)], ids=["counts", "ties"])
def test_the_loss_of_a_fit_is_that_of_its_density(alpha: float, x: np.ndarray) -> None:
    model = SparseDensity(alpha).fit(x)
    assert model.loss_ == pytest.approx(-model.score(x), abs=1e-5)


def test_later_data_may_be_narrower() -> None:
    smooth = np.linspace(-0.2, 1.2, 40)[:, None]
    model = SparseDensity(1.0, bandwidth=0.05, penalty=1e-8).fit(smooth)
    model.partial_fit(TIES.repeat(1000, 0))
    both = np.concatenate([smooth, TIES.repeat(1000, 0)])
    assert model.loss_ == pytest.approx(-model.score(both), abs=1e-5)


def test_what_stays_narrower_than_its_nodes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "_MOST_REFINED", 1)
    with pytest.raises(ValueError, match=_NARROWER):
        SparseDensity(1.0, bandwidth=0.03, penalty=1e-9).fit(TIES)


def test_a_plane_with_spikes_is_warned_of() -> None:
    alpha, bandwidth = 1.0, 0.25
    rng = np.random.default_rng(0)
    smooth, counts = rng.random((80, 2)), rng.integers(0, 6, (80, 2)).astype(float)
    settings: dict[str, Any] = {"inducing_points": 36, "penalty": 1e-8, "random_state": 0}
    narrow = SparseDensity(alpha, bandwidth=bandwidth, **settings)
    with pytest.warns(RuntimeWarning, match="density_ has peaks too narrow for its nodes"):
        narrow.fit(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseDensity(alpha, bandwidth=0.4, inducing_points=36, penalty=1e-3).fit(smooth)


def test_ties_by_rounding_are_an_error() -> None:
    """A range of few roundings has no room for nodes: halving subintervals never ended."""
    alpha = 2.0
    for size in (1e15, -1e15):
        with pytest.raises(ValueError, match="X must have columns whose range exceeds rounding"):
            SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None] + size)
    far = SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None] + 1e9)
    near = SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None])
    assert far.loss_ == pytest.approx(near.loss_, abs=1e-4)


def test_ties_far_from_zero_take_no_more_nodes() -> None:
    """Subintervals were halved for digits that coordinates there do not have."""
    counts = np.random.default_rng(0).poisson(6.0, 300).astype(float)[:, None]
    given: dict[str, Any] = {"bandwidth": 0.15, "penalty": 1e-8}
    near, far = (SparseDensity(1.0, **given).fit(counts + shift) for shift in (0.0, 1e5))
    assert far.loss_ == pytest.approx(near.loss_, abs=1e-5)
    assert len(far.density_.mesh.nodes) < 3 * len(near.density_.mesh.nodes)


HEAVY_TIE = np.concatenate([np.zeros(190), np.random.default_rng(0).normal(size=10)])
OUTLIER = np.append(np.random.default_rng(0).normal(size=100), 1e6)


@pytest.mark.parametrize("x", [HEAVY_TIE, OUTLIER], ids=["tie", "outlier"])
def test_narrow_densities_take_little_work(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """With edges located, which is the most expensive, the outlier took some 1,000 evaluations."""
    sizes: dict[str, list[int]] = {"normalized_weights": [], "_sum_over_nodes": []}

    def count(name: str) -> None:
        original = getattr(newton, name)

        def counted(scores: torch.Tensor, *rest: Any) -> Any:
            sizes[name].append(scores.numel())
            return original(scores, *rest)

        monkeypatch.setattr(newton, name, counted)

    count("normalized_weights")
    count("_sum_over_nodes")
    # Kernels as wide as the outlier is far leave little mass where the data are.
    expected = pytest.warns(RuntimeWarning, match="support_ holds only 0.02.* of the mass")
    with nullcontext() if x is HEAVY_TIE else expected:
        model = SparseDensity().fit(x[:, None])
    assert len(sizes["normalized_weights"]) < 60
    assert len(sizes["_sum_over_nodes"]) < (2500 if x is HEAVY_TIE else 600)
    assert max(map(max, sizes.values())) < 3000
    assert model.loss_ == pytest.approx(-model.score(x[:, None]), abs=1e-5 * abs(model.loss_))
    assert (model.score_samples(x[:, None]) > -np.inf).mean() >= 0.99
    near = torch.tensor([-0.1, 0.1], dtype=torch.float64)
    if x is HEAVY_TIE:
        assert float(model.density_.cdf(near).diff()) == pytest.approx(0.955, abs=0.02)


def test_numbers_near_the_largest_are_fitted_or_refused() -> None:
    alpha = 2.0
    x = np.random.default_rng(0).normal(size=(100, 1))
    due = SparseDensity(alpha, bandwidth=0.5, penalty=1e-3).fit(x)
    model = SparseDensity(alpha, bandwidth=0.5e300, penalty=1e-3).fit(1e300 * x)
    assert model.loss_ == pytest.approx(due.loss_, abs=1e-6)
    shift = np.log(1e300)
    np.testing.assert_allclose(
        model.score_samples(1e300 * x) + shift, due.score_samples(x), atol=1e-3
    )
    with pytest.raises(ValueError, match="X must have columns whose range is finite"):
        SparseDensity(alpha).fit(5e307 * np.linspace(-1, 1, 9)[:, None] * 1.7)


def test_negative_weights_at_edges_leave_a_curvature() -> None:
    """Two groups in space had such weights, and an indefinite Hessian: their fit was an error."""
    x = np.random.default_rng(0).normal(size=(60, 1))
    problem = SparseDensity(bandwidth=0.5, penalty=1e-3, inducing_points=20).fit(x)._objective
    at = problem._at(torch.zeros_like(problem.data.first), 1e-8)
    escort = at.escort.clone()
    escort[len(escort) // 2] = -0.5 * escort.sum()
    factor, center = problem._curvature(at._replace(escort=escort), 1e-8)
    assert factor.isfinite().all() and center.isfinite().all()


def test_searches_in_the_plane_compare_fits_on_a_coarse_mesh() -> None:
    alpha = 1.5
    x = np.random.default_rng(0).normal(size=(60, 2))
    exact = SparseDensity(alpha, bandwidth=0.5, penalty=1e-3, random_state=0).fit(x)._objective
    rough = exact.ignoring_edges()
    assert 4 * len(rough.mesh.nodes) == len(exact.mesh.nodes)
    start = torch.zeros_like(exact.data.first)
    criteria = [p.minimum(start, 1e-3, 1e-8, 100).criterion for p in (exact, rough)]
    assert criteria[1] == pytest.approx(criteria[0], abs=1e-3)
