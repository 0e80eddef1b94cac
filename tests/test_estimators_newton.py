"""Newton steps of fits, and data with ties and outliers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from benchmarks.allocation import allocated_megabytes
from sparsefam._feature_maps import Gaussian
from sparsefam.distributions._kernel.mesh import KernelMesh
from sparsefam.estimators import SparseDensity
from sparsefam.estimators._newton import Cells, Objective
from sparsefam.estimators.sparse_density import kernel_density

EXACT = Cells(torch.zeros(1).double(), torch.tensor([[-torch.inf, torch.inf]]).double())
TIES = np.repeat([0.0, 0.37, 1.0], [30, 50, 20])[:, None]


def objective(alpha: float, count: int = 12) -> tuple[Objective, KernelMesh]:
    points = torch.linspace(0, 1, count, dtype=torch.float64).unsqueeze(-1)
    kernel = Gaussian(torch.tensor([0.1], dtype=torch.float64))
    p = kernel_density(kernel, points, torch.ones(count).double(), None, alpha)
    x = torch.rand(40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Objective.of(alpha, kernel, points, p, EXACT, x, torch.ones(40).double()), p.mesh


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_derivatives_are_those_of_the_loss(alpha: float) -> None:
    problem, _ = objective(alpha, 4)
    c = torch.randn(problem.mean.shape, dtype=torch.float64)
    (at, _), eye = problem.evaluate(c, 1e-2), 1e-5 * torch.eye(len(c), dtype=torch.float64)
    pairs = [[problem.evaluate(c + sign * e, 1e-2)[0] for sign in (1, -1)] for e in eye]
    slope = torch.tensor([(a.value - b.value) / 2e-5 for a, b in pairs]).double()
    torch.testing.assert_close(at.slope, slope, rtol=1e-5, atol=1e-7)
    hessian = torch.stack([(a.slope - b.slope) / 2e-5 for a, b in pairs])
    torch.testing.assert_close(at.hessian(), hessian, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounded", [False, True])
def test_sums_over_the_data_are_those_over_nodes(rounded: bool) -> None:
    """Also of observations beyond the nodes, where the base is negligible."""
    x = torch.randn(30_000, 1, generator=torch.Generator().manual_seed(0)).double()
    x = torch.cat([x.round(decimals=1) if rounded else x, torch.tensor([[-300.0], [500.0]])])
    weight = 1 + torch.arange(len(x)).double() % 3
    points = torch.linspace(-3, 3, 12, dtype=torch.float64).unsqueeze(-1)
    points = torch.cat([points, torch.tensor([[-300.0]])])
    kernel, base = Gaussian(torch.tensor([0.4]).double()), Normal(0.0, 1.0)
    p = kernel_density(kernel, points, torch.ones(13).double(), base, 1.0)
    cells = replace(EXACT, unit=torch.tensor([0.1 * rounded]).double())
    problem = Objective.of(1.0, kernel, points, p, cells, x, weight)
    phi = cells.mean(problem.features, x)
    assert x.amax() > p.mesh.axes[0].breaks[-1]
    torch.testing.assert_close(problem.first, weight @ phi, rtol=0, atol=1e-8 * len(x))
    second = (weight.unsqueeze(-1) * phi).mT @ phi
    torch.testing.assert_close(problem.second, second, rtol=0, atol=1e-8 * len(x))
    torch.testing.assert_close(problem.weight, weight.sum())
    torch.testing.assert_close(problem.squares, weight.square().sum())


def test_memory_does_not_grow_with_rows() -> None:
    """It took 2.4 kB a row."""
    x = np.random.default_rng(0).normal(size=(200_000, 1))
    model = SparseDensity(bandwidth=1.0, penalty=1e-4)
    few, many = (allocated_megabytes(lambda x=x: model.fit(x)) for x in (x[:2000], x))
    assert many < few + 20


def test_what_stays_narrower_than_its_nodes_is_an_error() -> None:
    rule = r"penalty must be larger, or bandwidth or alpha, .*got penalty 1e-10, .*bandwidth 0\.03"
    with pytest.raises(ValueError, match=rule):
        SparseDensity(1.0, bandwidth=0.03, penalty=1e-10).fit(TIES)
    atoms = np.concatenate([np.zeros((60, 2)), np.random.default_rng(0).random((40, 2))])
    settings: dict[str, Any] = {"inducing_points": 36, "penalty": 1e-10, "random_state": 0}
    with pytest.raises(ValueError, match="penalty must be larger"):
        SparseDensity(1.0, bandwidth=0.03, **settings).fit(atoms)


def test_ties_by_rounding_are_an_error() -> None:
    """A range of few roundings has no room for nodes."""
    alpha = 2.0
    for size in (1e15, -1e15):
        with pytest.raises(ValueError, match="X must have no .* range is lost in rounding"):
            SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None] + size)
    far = SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None] + 1e9)
    near = SparseDensity(alpha).fit(np.linspace(0.0, 1.0, 20)[:, None])
    assert far.loss_ == pytest.approx(near.loss_, abs=1e-4)


def test_an_outlier_makes_kernels_too_wide() -> None:
    x = np.append(np.random.default_rng(0).normal(size=100), 1e6)[:, None]
    with (
        pytest.warns(RuntimeWarning, match=r"support_ holds only 0\..* of the mass"),
        pytest.warns(RuntimeWarning, match=r"X has heavy tails .* numpy.log or numpy.arcsinh"),
    ):
        SparseDensity().fit(x)


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
    with pytest.raises(ValueError, match="X must have no .* or overflows"):
        SparseDensity(alpha).fit(5e307 * np.linspace(-1, 1, 9)[:, None] * 1.7)
