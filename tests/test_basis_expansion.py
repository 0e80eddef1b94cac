"""Densities whose scores are expansions in a basis, against quadrature and entmax."""

import copy
import math

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, apart
from cases_kernel import bell
from entmax import entmax_bisect
from references import Array, Kernel
from refusals import refused
from torch import Tensor
from torch.distributions import Uniform

from sparsefam import KernelDeformedExp, KernelExp, rpm
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Product
from sparsefam.scores import BasisExpansion

KNOTS = [0.0] * 3 + torch.linspace(0, 1, 17).tolist() + [1.0] * 3
BASES: dict[str, Basis] = {
    "GaussianRBF": GaussianRBF.grid(24, 0.04),
    "BSpline": BSpline(KNOTS, 3),
    "Fourier": Fourier((2 * math.pi * torch.arange(1, 7)).tolist()),
}
UNIT = Uniform(0.0, 1.0)
TARGET = GaussianRBF.grid(16, 0.1)


def reference(weights: Tensor, basis: Basis, alpha: float) -> Kernel:
    """Of one density, whose kernel has the functions of the basis for its columns."""

    def columns(t: Array, _: Array) -> Array:
        return basis.in_float64(torch.as_tensor(t)).numpy()

    kinks = () if basis.breaks is None else tuple(basis.breaks.tolist())
    centers = np.linspace(0, 1, len(basis))
    return Kernel(weights.numpy(), centers, columns, 0.04, kinks=kinks, alpha=alpha)


def target(t: Array) -> Array:
    return TARGET.in_float64(torch.as_tensor(t)).numpy()


@pytest.mark.parametrize(
    ("name", "alpha", "size"),
    [
        *(("GaussianRBF", 1.0, 100.0), ("GaussianRBF", 2.0, 1.0), ("GaussianRBF", 1.5, 10.0)),
        *(("BSpline", 1.5, 100.0), ("BSpline", 2.0, 10.0), ("Fourier", 1.0, 10.0)),
        ("Fourier", 2.0, 100.0),
    ],
)
def test_means_and_gradients_are_those_of_quadrature(name: str, alpha: float, size: float) -> None:
    draw, basis = torch.Generator().manual_seed(0), copy.deepcopy(BASES[name])
    weights = torch.randn(3, len(basis), generator=draw, dtype=DOUBLE)
    spread = (basis.in_float64(torch.linspace(0, 1, 500)) @ weights.mT).std(0)
    weights = (size * weights / spread.unsqueeze(-1)).float().double()
    above = torch.randn(3, len(TARGET), generator=draw, dtype=DOUBLE)
    exact = [reference(row, basis, alpha) for row in weights]
    due = np.stack([r.expect(target) for r in exact])
    slopes = [y @ r.jacobian(target) for r, y in zip(exact, above.numpy(), strict=True)]
    for dtype, most, most_grad in ((SINGLE, 2e-6, 2e-5), (DOUBLE, 1e-11, 1e-9)):
        own = weights.to(dtype).requires_grad_()
        p = rpm(BasisExpansion(own, basis.to(dtype)), alpha, UNIT)
        found = p.expect(copy.deepcopy(TARGET).to(dtype))
        (grad,) = torch.autograd.grad((found * above.to(dtype)).sum(), own)
        assert apart(found, due) < most
        assert apart(grad, np.stack(slopes)) < most_grad


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_indicators_give_entmax_over_bins(alpha: float) -> None:
    """Bins of length h have the entmax of w h^(alpha - 1)."""
    weights, bins = 2 * torch.randn(7, 8, dtype=DOUBLE), Indicator(torch.linspace(0, 1, 9).tolist())
    p = rpm(BasisExpansion(weights, bins), alpha)
    scaled = weights * 8 ** (1 - alpha)
    due = torch.softmax(scaled, -1) if alpha == 1 else entmax_bisect(scaled, alpha, n_iter=80)
    found = p.expect(bins)
    assert (found - due).abs().max() < 1e-12
    if alpha > 1:
        middles = (torch.arange(8, dtype=DOUBLE) + 0.5) / 8
        assert torch.equal(p.support.check(middles.unsqueeze(-1)).T, due > 0)


def test_gaussian_functions_are_gaussian_kernels() -> None:
    """Also in what only kernel families do: escorts, quantiles, edges of the support."""
    points, width = torch.tensor([0.1, 0.4, 0.8], dtype=DOUBLE), 0.1
    weights = torch.tensor([[3.0, -2.0, 4.0], [1.0, 2.0, -3.0]], dtype=DOUBLE)
    peak = width * math.sqrt(2 * math.pi)

    p = KernelDeformedExp(weights, points, bell(width), alpha=1.5)
    score = BasisExpansion(peak * weights, GaussianRBF(points, width))
    q = KernelDeformedExp.from_score(score, UNIT, 1.5)
    t = torch.linspace(0, 1, 50, dtype=DOUBLE).unsqueeze(-1)
    levels = torch.tensor([[0.1], [0.7]], dtype=DOUBLE)
    for of in (
        lambda d: d.log_prob(t),
        lambda d: d.support.intervals.nan_to_num(0),
        lambda d: d.icdf(levels),
        lambda d: d.entropy(),
        lambda d: d.escort().mean,
        lambda d: d.expand([3, 2]).variance,
        lambda d: d.to_float64().mode,
        lambda d: rpm(d.score, 1.5, UNIT).mean,
    ):
        assert torch.allclose(of(p), of(q), rtol=1e-9, atol=1e-9)


def test_functions_of_vectors() -> None:
    """In the plane a score that is a sum over the axes gives a product of densities at alpha 1."""
    spline = BSpline([0.0, 0.0, 0.0, 0.4, 1.0, 1.0, 1.0], 2).double()
    rows, columns = torch.randn(2, 3, 4, dtype=DOUBLE)
    # B-splines sum to one.
    weights = (rows.unsqueeze(-1) + columns.unsqueeze(-2)).flatten(-2)
    p = rpm(BasisExpansion(weights, Product(spline, spline)), 1.0)
    due = torch.stack([rpm(BasisExpansion(w, spline), 1.0).mean for w in (rows, columns)], -1)
    assert (p.mean - due).abs().max() < 1e-6


def test_domains_are_exact_in_float64() -> None:
    spline = BSpline(torch.tensor([0.1] * 2 + [0.3] + [0.7] * 2, dtype=DOUBLE), 1)
    p = rpm(BasisExpansion(torch.zeros(3, dtype=DOUBLE), spline), 2.0)
    assert p.prob(torch.tensor([0.1, 0.7], dtype=DOUBLE)).sub(1 / 0.6).abs().max() < 1e-12


def test_a_mesh_of_other_functions_is_refused() -> None:
    """Also where they differ from their middle on only."""
    centers = torch.linspace(0, 1, 20)
    p = rpm(BasisExpansion(torch.ones(20), GaussianRBF(centers, 0.03)), 2.0, UNIT)
    others = GaussianRBF(torch.where(centers < 0.5, centers, 0.05 + 0.9 * centers), 0.03)
    with pytest.raises(ValueError, match="mesh must be of a density with the same basis, got"):
        KernelDeformedExp.from_score(BasisExpansion(torch.ones(20), others), UNIT, mesh=p.mesh)


test_bad_input_is_named = refused(
    [
        (lambda: BasisExpansion(torch.ones(3), Polynomial(3)), "weights must have .* 4, got"),
        (lambda: BasisExpansion(torch.full((4,), math.nan), Polynomial(3)), "weights must be fin"),
        (lambda: BasisExpansion(torch.ones(4), torch.sin), "basis must be a basis, got"),
        (lambda: rpm(BasisExpansion(torch.ones(4), Polynomial(3)), 1.5), "base must be given"),
        (lambda: rpm(BasisExpansion(torch.ones(24), BASES["GaussianRBF"]), 2.5), "alpha must be"),
        (lambda: KernelExp.from_score(torch.sin), "score must be a KernelExpansion or a Basis"),
    ]
)
