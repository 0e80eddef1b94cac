"""Fits of beta-Gaussians: exact moments, likelihoods by other means, limits, bad input."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from refusals import refused
from scipy.special import roots_jacobi
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

import sparsefam as sf
from sparsefam.estimators import BetaGaussianDensity
from sparsefam.losses import fenchel_young

LOC = np.array([3.0, -1.0, 0.5])
TRIL = np.array([[2.0, 0.0, 0.0], [0.5, 0.25, 0.0], [-1.0, 0.1, 0.5]])


def directions(dim: int) -> np.ndarray:
    """Unit vectors whose moments up to the fourth are those of the sphere."""
    if dim == 1:
        return np.array([[1.0], [-1.0]])
    if dim == 2:
        angles = np.arange(6) * np.pi / 3
        return np.stack([np.cos(angles), np.sin(angles)], 1)
    golden = (1 + math.sqrt(5)) / 2
    corners = [(0.0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    found = np.array([np.roll(corner, k) for corner in corners for k in range(3)])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def weighted(dim: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Locations and weights with exactly the first moments of a beta-Gaussian."""
    half = dim / 2
    t, share = roots_jacobi(4, 1 / (alpha - 1), half - 1)
    around = directions(dim)
    x = np.sqrt((1 + t) / 2)[:, None, None] * around
    weight = np.repeat(share, len(around))
    return x.reshape(-1, dim) @ TRIL[:dim, :dim].T + LOC[:dim], weight


def draws(dim: int, alpha: float, count: int, seed: int = 0) -> np.ndarray:
    torch.manual_seed(seed)
    loc, tril = (torch.from_numpy(a) for a in (LOC[:dim], TRIL[:dim, :dim]))
    p = sf.MultivariateBetaGaussian(loc, tril.contiguous(), alpha)
    return p.sample((count,)).numpy()


@pytest.mark.parametrize(("dim", "alpha"), [(1, 1.1), (2, 3.0), (3, 1.5)])
def test_moments_of_a_density_give_it_back(dim: int, alpha: float) -> None:
    x, weight = weighted(dim, alpha)
    model = BetaGaussianDensity(method="moments").fit(x, sample_weight=weight)
    assert model.alpha_ == pytest.approx(alpha, rel=1e-9)
    p = model.density_
    if dim == 1:
        assert isinstance(p, sf.BetaGaussian)
        np.testing.assert_allclose([p.loc, p.scale], [3.0, 2.0], rtol=1e-9)
        np.testing.assert_allclose(model.support_, [[1.0, 5.0]], rtol=1e-9)
    else:
        np.testing.assert_allclose(p.loc, LOC[:dim], rtol=1e-9)
        np.testing.assert_allclose(p.scale_tril, TRIL[:dim, :dim], rtol=1e-9, atol=1e-9)


def test_moments_have_the_least_fenchel_young_loss() -> None:
    x = draws(1, 1.3, 100)
    model = BetaGaussianDensity(1.7, "moments").fit(x)
    p = model.density_
    loc, sigma = p.loc.clone().requires_grad_(), p.sigma.clone().requires_grad_()
    score = sf.scores.Quadratic(loc, sigma)
    fenchel_young(score, torch.from_numpy(x[:, 0]), 1.7).backward()
    # Against the slopes one per mille away.
    np.testing.assert_allclose([loc.grad, sigma.grad], 0.0, atol=1e-12)


@pytest.mark.parametrize(("dim", "alpha"), [(1, None), (3, None), (1, 1.25), (2, 4.0)])
def test_no_parameter_has_a_slope_left(dim: int, alpha: float | None) -> None:
    """Of the weighted likelihood of the density itself, alpha included unless it is given."""
    x, weight = draws(dim, 1.3, 1000), 1.0 + np.arange(1000) % 3
    model = BetaGaussianDensity(alpha).fit(x, sample_weight=weight)
    p, index = model.density_, torch.tensor(model.alpha_, dtype=torch.float64).requires_grad_()
    tril = p.scale.reshape(1, 1) if dim == 1 else p.scale_tril
    loc, tril = (a.clone().requires_grad_() for a in (p.loc.reshape(-1), tril))
    law = sf.MultivariateBetaGaussian(loc, tril, index)
    mean = torch.from_numpy(weight / weight.sum()) @ law.log_prob(torch.from_numpy(x))
    mean.backward()
    assert mean.item() == pytest.approx(weight @ model.score_samples(x) / weight.sum())
    np.testing.assert_allclose(loc.grad, 0.0, atol=1e-4)
    np.testing.assert_allclose(tril.grad.tril(), 0.0, atol=1e-4)  # type: ignore[union-attr]
    if alpha is None:
        np.testing.assert_allclose(index.grad, 0.0, atol=1e-3)
        assert 1.2 < model.alpha_ < 1.4


@pytest.mark.parametrize("alpha", [1.5, 2.0, 50.0])
def test_the_likely_support_holds_all_observations(alpha: float) -> None:
    x = draws(2, 1.1, 500)
    model = BetaGaussianDensity(alpha).fit(x)
    assert np.isfinite(model.score(x))
    p = model.density_
    inside = torch.linalg.solve_triangular(
        p.scale_tril, (torch.from_numpy(x) - p.loc).T, upper=False
    ).norm(dim=0)
    # The least ellipsoid touches what spans it.
    assert inside.max() < 1
    assert alpha < 50 or int((inside > 0.99).sum()) >= 3


def test_heavy_tails_are_normal_and_two_heaps_uniform() -> None:
    x = np.random.default_rng(0).laplace(size=(500, 2))
    for method in ("likelihood", "moments"):
        with pytest.warns(UserWarning, match="alpha_ is 1: .* use SparseDensity"):
            model = BetaGaussianDensity(method=method).fit(x)  # type: ignore[arg-type]
        assert model.alpha_ == 1
        np.testing.assert_allclose(model.density_.mean, x.mean(0), atol=1e-12)
        np.testing.assert_allclose(
            model.density_.covariance_matrix, np.cov(x.T, bias=True), atol=1e-12
        )
    heaps = np.repeat([[0.0], [1.0], [9.0], [10.0]], 5, 0)
    model = BetaGaussianDensity(method="moments").fit(heaps)
    assert model.alpha_ == math.inf
    half = math.sqrt(3 * heaps.var())
    np.testing.assert_allclose(model.support_, [[5 - half, 5 + half]])


def test_units_and_places_do_not_matter() -> None:
    x = draws(2, 1.5, 300)
    near = BetaGaussianDensity().fit(x)
    far = BetaGaussianDensity().fit(x * [1e-6, 1e4] + [1.0, -1e9])
    assert far.alpha_ == pytest.approx(near.alpha_, rel=1e-4)
    np.testing.assert_allclose(
        far.score_samples(x[:20] * [1e-6, 1e4] + [1.0, -1e9]),
        near.score_samples(x[:20]) - math.log(1e-2),
        rtol=1e-3,
        atol=1e-3,
    )
    x, unit = x[:50], 1e200  # whose square overflows
    fit, far = (BetaGaussianDensity(alpha=1.5).fit(data).density_ for data in (x, x * unit))
    np.testing.assert_allclose(far.loc / unit, fit.loc, rtol=1e-9)
    np.testing.assert_allclose(far.scale_tril / unit, fit.scale_tril, rtol=1e-9)


def test_predictions_and_plots() -> None:
    x = draws(1, 1.5, 50)
    model = BetaGaussianDensity(alpha=1.5).fit(x)
    low, high = model.support_[0]
    np.testing.assert_array_equal(model.predict([[low - 1], [low + 1e-6], [high + 1]]), [-1, 1, -1])
    drawn = model.sample(20, random_state=0)
    assert drawn.shape == (20, 1) and (model.predict(drawn) == 1).all()
    np.testing.assert_array_equal(drawn, model.sample(20, random_state=0))
    _, other = plt.subplots()
    ax = model.plot(data=x)
    assert len(ax.lines) >= 3  # the density, its support and the data
    assert ax is not other and not other.lines
    assert model.plot(other) is other and other.lines
    plt.close("all")


FEW = "check_sample_weight_equivalence_on_dense_data"
OUTLYING = ("check_outliers_train", "check_outliers_fit_predict")


def test_scikit_learns_checks() -> None:
    expected = {FEW: "27 observations of 30 columns"}
    expected |= dict.fromkeys(OUTLYING, "fitted observations are in the support")
    results = check_estimator(
        BetaGaussianDensity(alpha=1.5), expected_failed_checks=expected, on_skip=None
    )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "xfail"}
    assert set(failed) == set(expected)
    assert "X must span its 30 columns" in failed[FEW]


def test_too_few_steps_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=1 steps ended before"):
        BetaGaussianDensity(1.5, max_iter=1).fit(draws(2, 1.1, 100))


test_bad_input_is_named = refused(
    [
        ({"alpha": 0.5}, np.eye(3, 1), "alpha must be a number from 1 to inf, got 0.5"),
        ({"alpha": math.inf}, np.eye(3, 1), "alpha must be at most 4.5e.15 for .*, got inf"),
        ({"method": "moments", "tol": 0}, np.eye(3, 1), "tol must be a positive, .* got 0"),
        ({"method": "moments", "max_iter": 0.5}, np.eye(3, 1), "max_iter must be an integer"),
        ({"method": "ml"}, np.eye(3, 1), "method must be 'likelihood' or 'moments', got 'ml'"),
        ({}, np.ones((5, 1)), "X must have no constant column"),
        ({}, np.arange(8.0).repeat(2).reshape(8, 2), "X must span its"),
    ],
    of=lambda settings, x: BetaGaussianDensity(**settings).fit(x),
)
