"""Model selection: criteria, the quadratic score, the search for settings, its progress."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch.distributions import Uniform

from sparsefam.estimators import BetaGaussianDensity, SparseDensity, quadratic_score, sparse_density
from sparsefam.estimators._model_selection import held_out_loss

SETTINGS: dict[str, Any] = {
    "inducing_points": np.linspace(0, 1, 8),
    "penalty": 1e-3,
    "bandwidth": 0.15,
    "base": Uniform(-0.25, 1.25),
}


def two_bumps(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.concatenate([0.4 * rng.beta(2, 2, count), 0.7 + 0.3 * rng.beta(2, 2, count)])
    return rng.permutation(x)[:, None]


@pytest.mark.parametrize(
    "model",
    [SparseDensity(1.5, **SETTINGS), BetaGaussianDensity(1.0)],
    ids=lambda model: type(model).__name__,
)
def test_the_quadratic_score_on_a_grid(model: Any) -> None:
    x, unseen = two_bumps(30), np.concatenate([two_bumps(10, 1), [[1.2]]])
    model.fit(x)
    grid = np.linspace(-2, 3, 5001)[:, None]
    square = trapezoid(np.exp(2 * model.score_samples(grid)), grid[:, 0])
    due = 2 * np.exp(model.score_samples(unseen)).mean() - square
    assert quadratic_score(model, unseen) == pytest.approx(due, abs=1e-5)


def test_the_held_out_loss_is_that_of_leaving_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, alpha = two_bumps(40), 1.5
    found: dict[float, float] = {}

    def kept(fit: Any, *others: Any) -> float:
        found[fit.objective.alpha] = held_out_loss(fit, *others)
        return found[fit.objective.alpha]

    monkeypatch.setattr(sparse_density, "held_out_loss", kept)
    monkeypatch.setattr(sparse_density, "_ALPHAS", (alpha, 2.0))
    SparseDensity(None, **SETTINGS).fit(x)
    model = SparseDensity(alpha, **SETTINGS).fit(x)
    own = -quadratic_score(model, x)
    every = range(0, 80, 8)
    left_out = [
        SparseDensity(alpha, **SETTINGS).fit(np.delete(x, i, 0)).score_samples(x[i : i + 1])[0]
        for i in every
    ]
    drops = np.exp(model.score_samples(x[list(every)])) - np.exp(left_out)
    # What leaving out adds, of every eighth observation, against the estimate over all.
    assert found[alpha] - own == pytest.approx(2 * drops.mean(), rel=0.1)


def test_the_best_alpha_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = two_bumps(40)
    losses = {2.0: 0.3, 1.5: -0.4, 1.0: 0.1}
    monkeypatch.setattr(
        sparse_density, "held_out_loss", lambda fit, *_: losses[fit.objective.alpha]
    )
    model = SparseDensity(None, **SETTINGS).fit(x)
    assert model.alpha_ == 1.5
    due = SparseDensity(1.5, **SETTINGS).fit(x)
    np.testing.assert_array_equal(model.score_samples(x), due.score_samples(x))


def test_kernels_of_densities_are_the_wider_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).random((300, 1))
    found = SparseDensity(inducing_points=40).fit(x)
    monkeypatch.setattr(sparse_density, "BIAS_FACTOR", 1)
    assert found.bandwidth_ > SparseDensity(inducing_points=40).fit(x).bandwidth_


@pytest.mark.parametrize(
    ("terminal", "verbose", "shown"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_long_fits_show_a_bar(
    terminal: bool,
    verbose: bool | None,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sparse_density, "_DELAY", 0)
    SparseDensity(verbose=verbose, **SETTINGS).fit(two_bumps(30))
    out, found = capsys.readouterr()
    assert out == "" and ("SparseDensity" in found) == shown


def test_space_with_two_balls() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    x *= 0.5 * (rng.beta(1.5, 2, (400, 1)) ** 0.5) / np.linalg.norm(x, axis=1, keepdims=True)
    centers = np.array([[0.0, 0.0, 0.0], [2.0, 0.5, 0.0]])
    x += centers[rng.integers(0, 2, 400)]
    model = SparseDensity(penalty=1e-4, bandwidth=0.5, inducing_points=20, random_state=0).fit(x)
    assert model.score_samples([[1.0, 0.25, 0.0]]) == -np.inf
    found = model.sample(1000, random_state=0)
    away = np.linalg.norm(found[:, None] - centers, axis=-1).min(1)
    assert (away > 0.65).mean() < 0.02
    assert (found[:, 0] > 1).mean() == pytest.approx((x[:, 0] > 1).mean(), abs=0.05)


def test_bandwidths_that_nodes_cannot_resolve_end_the_search() -> None:
    """In space there are nodes for the widest kernels only."""
    x = np.random.default_rng(0).random((60, 3)) ** 4
    model = SparseDensity(penalty=1e-2, inducing_points=8, random_state=0).fit(x)
    assert model.bandwidth_ is not None
    assert (model.bandwidth_ >= 0.25 * x.std(0) * (1 - 1e-12)).all()
    assert torch.isfinite(model.density_.mean).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_density_estimates_have_scores(weighted: bool) -> None:
    """By sums over a grid, of scikit-learn's and scipy's."""
    rng = np.random.default_rng(0)
    x, unseen = rng.normal(size=(40, 2)), rng.normal(size=(30, 2))
    weight = 1.0 + np.arange(40) % 3 if weighted else None
    axis = np.linspace(-6, 6, 241)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    kde = KernelDensity(bandwidth=0.4).fit(x, sample_weight=weight)
    smooth = gaussian_kde(x.T, weights=weight)
    pairs = ((kde, lambda t: np.exp(kde.score_samples(t))), (smooth, lambda t: smooth(t.T)))
    for estimate, density in pairs:
        due = 2 * density(unseen).mean() - (density(grid) ** 2).sum() * (axis[1] - axis[0]) ** 2
        assert quadratic_score(estimate, unseen) == pytest.approx(due, rel=1e-6)
    with pytest.raises(ValueError, match="estimator must have a Gaussian kernel"):
        quadratic_score(KernelDensity(kernel="tophat").fit(x), unseen)
