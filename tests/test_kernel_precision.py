"""Kernel densities in float32 where sums need more digits: wide kernels, large scores."""

import pytest
import torch
from battery import DOUBLE, SINGLE
from torch import Tensor

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.bases import BSpline, Fourier, GaussianRBF

POINTS = torch.linspace(0, 1, 200)
KINDS = [(1.0, "inside"), (1.25, "outside"), (1.5, "inside"), (2.0, "inside"), (2.0, "outside")]

kinds = pytest.mark.parametrize(("alpha", "mode"), KINDS)
# Bandwidth, standard deviation of the scores, and how many densities.
scenes = pytest.mark.parametrize("scene", [(0.25, 3.0, 6), (0.25, 3.0, 300), (0.03, 12.0, 6)])


def gaussian(bandwidth: float) -> object:
    return lambda x, y: torch.exp(-((x - y.mT) / bandwidth).square() / 2)


def weights(bandwidth: float, spread: float, rows: int) -> Tensor:
    draw = torch.randn(rows, len(POINTS), generator=torch.Generator().manual_seed(4))
    f = draw @ gaussian(bandwidth)(POINTS.unsqueeze(-1), POINTS.unsqueeze(-1))  # type: ignore[operator]
    # Positive somewhere, as supports outside must not be empty.
    sign = torch.where(f.amax(-1, keepdim=True) > 0, 1.0, -1.0)
    return sign * draw * spread / f.std(-1, keepdim=True)


def density(w: Tensor, bandwidth: float, alpha: float, mode: str) -> KernelExp | KernelDeformedExp:
    parts = w, POINTS.to(w.dtype), gaussian(bandwidth)
    if alpha == 1:
        return KernelExp(*parts)  # type: ignore[arg-type]
    return KernelDeformedExp(*parts, alpha=alpha, normalization=mode)  # type: ignore[arg-type]


def error(found: Tensor, truth: Tensor) -> float:
    """The largest norm-wise error of a density."""
    assert found.dtype == SINGLE
    apart = torch.linalg.vector_norm(found.double() - truth, dim=-1)
    return (apart / torch.linalg.vector_norm(truth, dim=-1)).max().item()


@scenes
@kinds
def test_expectations_and_gradients(
    alpha: float, mode: str, scene: tuple[float, float, int]
) -> None:
    bandwidth, spread, rows = scene
    psi = GaussianRBF(torch.linspace(0, 1, 30), torch.tensor(0.05)) + Fourier([3.0, 20.0])
    psi = psi + BSpline(torch.linspace(0, 1, 9), 3)
    above = torch.randn(rows, len(psi), generator=torch.Generator().manual_seed(5))
    found = []
    for dtype in (SINGLE, DOUBLE):
        w = weights(bandwidth, spread, rows).to(dtype).requires_grad_()
        p = density(w, bandwidth, alpha, mode)
        value = p.expect(psi.to(dtype))
        (slope,) = torch.autograd.grad(value, w, above.to(dtype))
        found.append((value.detach(), slope))
    for one, other in zip(*found, strict=True):
        assert error(one, other) < 2e-6


@kinds
def test_all_else_is_in_float32_and_right(alpha: float, mode: str) -> None:
    w, level = weights(0.25, 3.0, 6), torch.linspace(0.05, 0.95, 7).unsqueeze(-1)
    psi = GaussianRBF(torch.linspace(0, 1, 5), torch.tensor(0.2))
    found = []
    for dtype in (SINGLE, DOUBLE):
        p = density(w.to(dtype), 0.25, alpha, mode)
        t, basis = p.icdf(level.to(dtype)), psi.to(dtype)
        rows = [p.log_normalizer, p.mean, p.variance, p.entropy(), p.tsallis_entropy()]
        nodes, shares = p.quadrature(20)
        rows += [(nodes * shares).sum(0), p.escort(2.0).mean, p.escort().mean]
        if dtype == SINGLE:
            assert nodes.dtype == shares.dtype == p.sample((3,)).dtype == SINGLE
            near = t
        found.append((torch.stack(rows), t, p.cdf(near.to(dtype)), p.covariance_matrix.flatten(1)))
        found[-1] += (p.generalized_covariance(basis, basis).flatten(1),)
        assert p.support.intervals.dtype == dtype
    for one, other in zip(*found, strict=True):
        assert one.dtype == SINGLE
        torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=2e-6)


def test_learned_alpha_and_bases() -> None:
    alpha, w = torch.tensor(1.4, requires_grad=True), weights(0.25, 2.0, 3)
    centers = torch.linspace(0, 1, 5, requires_grad=True)
    found = []
    for dtype in (SINGLE, DOUBLE):
        p = KernelDeformedExp(w.to(dtype), POINTS.to(dtype), gaussian(0.25), alpha=alpha.to(dtype))  # type: ignore[arg-type]
        psi = GaussianRBF(torch.nn.Parameter(centers.to(dtype)), torch.tensor(0.1, dtype=dtype))
        value = p.expect(psi)[..., 0].sum()
        found.append([x.double() for x in torch.autograd.grad(value, (alpha, psi.centers))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@kinds
def test_transforms(alpha: float, mode: str) -> None:
    """Graphs and transforms, which cannot look at scores, know how wide a kernel is."""
    w = weights(0.25, 3.0, 6)
    p = density(w, 0.25, alpha, mode)
    psi = GaussianRBF(torch.linspace(0, 1, 5), torch.tensor(0.2))

    def means(w: Tensor) -> Tensor:
        parts = w, POINTS, p.kernel
        if alpha == 1:
            return KernelExp(*parts, mesh=p.mesh, validate_args=False).expect(psi)
        law = KernelDeformedExp(*parts, None, alpha, mode, mesh=p.mesh, validate_args=False)  # type: ignore[arg-type]
        return law.expect(psi)

    rows = torch.func.vmap(means)(w) if mode == "inside" else means(w)
    torch.compiler.reset()
    compiled = torch.compile(means, fullgraph=True, backend="aot_eager")(w)
    for found in (rows, compiled):
        torch.testing.assert_close(found, p.expect(psi), rtol=1e-6, atol=1e-7)
