"""Score matching: derivatives, the loss by autodiff, known densities, groups it cannot weigh."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor
from torch.distributions import Normal, Uniform

from sparsefam.estimators import ScoreMatchingKernelExp
from sparsefam.estimators.sparse_density import Gaussian

FIXED: dict[str, Any] = {"bandwidth": 1.5, "penalty": 1e-3, "inducing_points": 20}


def two_normals(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    near = rng.normal(-1, 0.5, int(0.6 * count))
    return np.concatenate([near, rng.normal(1, 0.7, count - len(near))])[:, None]


def test_overlapping_normals() -> None:
    x = two_normals(4000)
    model = ScoreMatchingKernelExp(random_state=0).fit(x)
    t = np.linspace(-8, 8, 1601)
    found = np.exp(model.score_samples(t[:, None]))
    due = 0.6 * norm(-1, 0.5).pdf(t) + 0.4 * norm(1, 0.7).pdf(t)
    assert found.sum() * 0.01 == pytest.approx(1, abs=1e-3)
    assert ((found - due) ** 2).sum() * 0.01 < 0.005
    slope = np.gradient(np.log(due), t)
    error = (model.gradient(t[:, None])[:, 0] - slope) ** 2
    assert (error * due).sum() * 0.01 < 0.1 * (slope**2 * due).sum() * 0.01


def test_the_score_is_the_loss_by_autodiff() -> None:
    x = two_normals(40)
    model = ScoreMatchingKernelExp(**FIXED).fit(x)
    assert model.loss_ == pytest.approx(-model.score(x), rel=1e-9)
    p, base = model.density_, model.base_[0]
    total = 0.0
    for value in x[:, 0]:
        t = torch.tensor(value, requires_grad=True)
        (of_base,) = torch.autograd.grad(base.log_prob(t), t)
        f = p.log_prob(t) - base.log_prob(t)
        (slope,) = torch.autograd.grad(f, t, create_graph=True)
        (bend,) = torch.autograd.grad(slope, t)
        total += (0.5 * slope**2 + bend + slope * of_base).item() / len(x)
    assert model.loss_ == pytest.approx(total, rel=1e-6)


def test_the_fit_is_the_minimum() -> None:
    """No other weights of the same norm or less have a lower loss, penalty included."""
    x = two_normals(60)
    model = ScoreMatchingKernelExp(**FIXED).fit(x)
    points = model.points_
    gram = model.kernel_(points, points)

    def penalized(w: Tensor) -> float:
        model.weights_ = w
        return -model.score(x) + 0.5 * 1e-3 * float(w @ gram @ w)

    best = model.weights_
    due = penalized(best)
    for seed in range(5):
        step = torch.randn(len(best), generator=torch.Generator().manual_seed(seed)).double()
        # Convex: the losses on both sides of a minimum are higher.
        assert min(penalized(best + 1e-3 * step), penalized(best - 1e-3 * step)) > due


def test_units_do_not_matter() -> None:
    x, unit = two_normals(200), 1e-6
    one, other = (ScoreMatchingKernelExp(random_state=0).fit(s * x) for s in (1.0, unit))
    due = one.score_samples(x) - np.log(unit)
    np.testing.assert_allclose(other.score_samples(unit * x), due, atol=1e-4)


def test_eight_dimensions() -> None:
    x = np.random.default_rng(0).normal(size=(1000, 8))
    model = ScoreMatchingKernelExp(inducing_points=40, random_state=0).fit(x)
    error = model.gradient(x[:200]) + x[:200]
    assert (error**2).mean() < 0.02
    assert not hasattr(model, "density_")
    for draw in (model.sample, model.plot):
        with pytest.raises(AttributeError, match="density_ exists for up to three columns, got 8"):
            draw()
    center, far = model.score_samples(np.stack([np.zeros(8), np.ones(8)]))
    assert far - center == pytest.approx(-4, abs=0.4)


def test_groups_that_no_kernel_joins_are_told() -> None:
    rng = np.random.default_rng(0)
    apart = np.concatenate([rng.normal(-1, 0.1, 120), rng.normal(1, 0.1, 80)])[:, None]
    with pytest.warns(UserWarning, match="2 groups"):
        ScoreMatchingKernelExp(bandwidth=0.1, penalty=1e-3).fit(apart)
    many = np.repeat(apart, 20, 0) + 1e-3 * rng.normal(size=(4000, 1))
    with pytest.warns(UserWarning, match="2 groups"):  # sorted: the first half sees one
        ScoreMatchingKernelExp(bandwidth=0.1, penalty=1e-3, inducing_points=9).fit(many)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ScoreMatchingKernelExp(**FIXED).fit(two_normals(100))


def test_scikit_learns_checks() -> None:
    outlying = ("check_outliers_train", "check_outliers_fit_predict")
    check_estimator(
        ScoreMatchingKernelExp(**{**FIXED, "inducing_points": 4}),
        expected_failed_checks=dict.fromkeys(outlying, "the density is positive everywhere"),
        on_skip=None,
    )


@pytest.mark.parametrize(
    ("settings", "x", "message"),
    [
        ({"penalty": 0.0}, two_normals(20), "penalty must be a positive"),
        (
            {"bandwidth": 0.1, "kernel": Gaussian(torch.ones(1))},
            two_normals(20),
            "bandwidth must be None if kernel",
        ),
        ({"kernel": "x"}, two_normals(20), "kernel must be a callable on matrices, got 'x'"),
        ({"base": [Normal(0, 1)] * 2}, two_normals(20), "base must be a univariate distribution"),
        ({"base": Uniform(-9, 9)}, two_normals(20), "base must have log densities .*got .Uni"),
        ({"base": [Uniform(5, 6)]}, two_normals(20), "X must be inside the support"),
        ({}, np.array([[0.0], [np.nan]]), "Input X contains NaN"),
        ({}, np.ones((5, 2)), "X must have no constant column"),
    ],
)
def test_bad_input_is_named(settings: dict[str, Any], x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreMatchingKernelExp(**settings).fit(x)
