"""Batches of kernel densities, also under `vmap`, against the reference of each member."""

import numpy as np
import pytest
import torch
from battery import DOUBLE
from cases_kernel import kernel_density
from kernel_references import KernelReference
from kernel_references import gaussian as profile
from references import Array
from torch import Tensor

from sparsefam import KernelDeformedExp, SparseDistribution
from sparsefam.bases import Fourier, GaussianRBF, Indicator, Polynomial
from sparsefam.distributions.kernel_mesh import _thinned as thinned
from sparsefam.numerics.chebyshev_mesh import ChebyshevMesh as Axis
from sparsefam.numerics.chebyshev_mesh import interpolation_errors as errors

WIDTH = 0.1
POINTS = torch.tensor([0.2, 0.5, 0.8], dtype=DOUBLE)
WEIGHTS = torch.tensor([[4.0, -4.0, 3.0], [1.0, 2.0, -1.0]], dtype=DOUBLE)
HILLS = GaussianRBF([0.25, 0.5, 0.875], [0.05, 0.01, 0.2])
SMOOTH = (HILLS + Fourier([3.0]) + Polynomial(2)).double()
EDGES = [0.125, 0.21875, 0.8125]
# Where the reference of expectations has its cells: a basis is narrower than the kernel.
MARKS = np.linspace(0, 1, 101)

every_family = pytest.mark.parametrize(
    ("alpha", "inside"), [(1.0, True), (1.5, True), (1.5, False), (2.0, True), (2.0, False)]
)


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - z.mT) / WIDTH).square())


@pytest.fixture(scope="module")
def mesh() -> object:
    return kernel_density(WEIGHTS, POINTS, gaussian, alpha=1.0).mesh


def density(alpha: float, inside: bool, mesh: object, weights: Tensor) -> SparseDistribution:
    return kernel_density(weights, POINTS, gaussian, None, alpha, inside, mesh=mesh)


def references(alpha: float, inside: bool) -> list[KernelReference]:
    parts = (POINTS.numpy(), profile(WIDTH), WIDTH)
    rows = WEIGHTS.numpy()
    return [KernelReference(row, *parts, alpha=alpha, inside=inside) for row in rows]


def smooth(t: Array) -> Array:
    values: Array = SMOOTH(torch.as_tensor(t)).numpy()
    return values


@every_family
def test_expectations_of_stacked_bases(alpha: float, inside: bool, mesh: object) -> None:
    p, rows = density(alpha, inside, mesh, WEIGHTS), references(alpha, inside)
    due = torch.tensor(np.stack([r.expect(smooth, MARKS) for r in rows]))
    torch.testing.assert_close(p.expect(SMOOTH), due, rtol=1e-9, atol=1e-9)
    levels = torch.tensor(np.stack([np.diff(r.cdf(np.array(EDGES))) for r in rows]))
    found = p.expect(Indicator(EDGES).double())
    torch.testing.assert_close(found, levels, rtol=1e-9, atol=1e-9)


@every_family
def test_jacobians_under_vmap(alpha: float, inside: bool, mesh: object) -> None:
    def means(weights: Tensor) -> Tensor:
        return density(alpha, inside, mesh, weights).expect(SMOOTH)

    found = torch.func.vmap(torch.func.jacrev(means))(WEIGHTS)
    due = torch.tensor(np.stack([r.jacobian(smooth, MARKS) for r in references(alpha, inside)]))
    torch.testing.assert_close(found, due, rtol=1e-9, atol=1e-9)


@every_family
def test_entropies_under_vmap(alpha: float, inside: bool, mesh: object) -> None:
    def entropies(weights: Tensor) -> Tensor:
        p = density(alpha, inside, mesh, weights)
        return torch.stack([p.entropy(), p.tsallis_entropy(), p.log_prob(POINTS[0])])

    found = torch.func.vmap(entropies)(WEIGHTS)
    for row, r in zip(found.tolist(), references(alpha, inside), strict=True):
        t, shares = r.weighted()
        log = np.log(np.maximum(r.density(t), 1e-300))
        powers = r.weighted(alpha)[1].sum()
        shannon = -(shares * log).sum()
        tsallis = shannon if alpha == 1 else (1 - powers) / (alpha * (alpha - 1))
        with np.errstate(divide="ignore"):
            here = np.log(r.density(POINTS[:1].numpy()))[0]
        assert row == pytest.approx([shannon, tsallis, here], rel=1e-8, abs=1e-8)


def test_equal_panels_are_as_few_as_an_error_allows() -> None:
    """Of waves, to half of the error that is allowed; unlike mesh stay as they are."""

    def waves(t: Tensor) -> Tensor:
        return torch.stack([(20 * t).sin(), (17 * t).cos()])

    axis = Axis(torch.linspace(0, 1, 17, dtype=torch.float64), 8)
    error = errors(waves, axis).amax().item()
    found = thinned(axis, waves, error / 1e-6)
    assert errors(waves, found).amax() <= 0.5e-6
    assert found.size < 0.6 * axis.size
    fewer = Axis(torch.linspace(0, 1, len(found.breaks) - 1, dtype=torch.float64), found.order)
    assert errors(waves, fewer).amax() > 0.5e-6
    unlike = axis.cut(torch.tensor([0.01]))
    assert thinned(unlike, waves, error / 1e-6) is unlike


def test_thinned_panels_replace_coarse_ones_of_as_many_nodes() -> None:
    """15 mesh of 8 nodes, halved for a score that cancels, thinned to 10 of 12."""
    points = torch.tensor([0.0037, 0.1545, 0.2676, 0.3695, 0.83])
    weights = 75.9 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])

    def near(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-171.3 * torch.cdist(x, z).square())

    p = KernelDeformedExp(weights, points, near)
    t = p.mesh.axes[0].rule()[0].flatten()
    rounding = 100 * torch.finfo(t.dtype).eps * p._exact_scores(t).abs().amax()
    assert errors(p._exact_scores, p.mesh.axes[0]).amax() <= 0.2 * p.mesh.tolerance + rounding
