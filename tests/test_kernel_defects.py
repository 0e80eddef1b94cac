"""Defects of kernel families that were found in use, each as it was met."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.bases import GaussianRBF

POINTS, WEIGHTS = torch.tensor([0.2, 0.5, 0.8]), torch.tensor([4.0, -4.0, 3.0])


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-20 * (x - z.mT).square())


def make(weights: Tensor, **options: Any) -> KernelDeformedExp:
    return KernelDeformedExp(weights, POINTS, gaussian, **options)


def test_a_basis_in_float64_promotes() -> None:
    short, long = (
        GaussianRBF(torch.tensor([0.0, 0.5]).to(d), 0.3) for d in (torch.float32, torch.float64)
    )
    for p in (make(WEIGHTS), KernelExp(WEIGHTS, POINTS, gaussian)):
        assert p.expect(long).dtype == torch.float64
        torch.testing.assert_close(p.expect(long).float(), p.expect(short))
        assert p.generalized_covariance(short, long).dtype == torch.float64


def test_an_escort_expands() -> None:
    p = make(torch.stack([WEIGHTS, 2 * WEIGHTS])).escort()
    torch.testing.assert_close(p.expand(torch.Size([3, 2])).mean, p.mean.expand(3, 2))


def test_a_basis_whose_centers_are_replaced() -> None:
    p, psi = make(WEIGHTS), GaussianRBF(torch.tensor([0.0, 0.5]), 0.01)
    for center in (0.2, 0.3, 0.8):
        psi.centers = torch.full((1,), center)
        psi.widths = torch.full((1,), 0.01)
        exact = make(WEIGHTS.double()).expect(GaussianRBF(torch.tensor([center]).double(), 0.01))
        torch.testing.assert_close(p.expect(psi).double(), exact, rtol=1e-5, atol=1e-6)


def test_shared_panels_do_not_evaluate_the_kernel_again() -> None:
    calls = []

    def counted(x: Tensor, z: Tensor) -> Tensor:
        calls.append(len(x))
        return gaussian(x, z)

    p = KernelExp(WEIGHTS, POINTS, counted)
    KernelExp(WEIGHTS, POINTS, counted, mesh=p.mesh)
    before = len(calls)
    KernelExp(2 * WEIGHTS, POINTS.clone(), counted, mesh=p.mesh)
    assert len(calls) == before


@pytest.mark.parametrize(
    "member",
    [lambda p: p.icdf(torch.tensor(0.3)), lambda p: p.support.intervals, lambda p: p.sample()],
    ids=["icdf", "support", "sample"],
)
def test_vmap_names_what_it_cannot_do(member: Callable[[Any], Tensor]) -> None:
    mesh = make(WEIGHTS).mesh

    def value(w: Tensor) -> Tensor:
        return member(make(w, mesh=mesh, validate_args=False))

    with pytest.raises(RuntimeError, match="kernel family needs the values of its parameters"):
        torch.func.vmap(value, randomness="different")(torch.stack([WEIGHTS, WEIGHTS]))


@pytest.mark.filterwarnings("ignore")
def test_cdf_compiles() -> None:
    mesh, t = make(WEIGHTS).mesh, torch.tensor([0.1, 0.3, 0.9])

    def value(w: Tensor) -> Tensor:
        return make(w, mesh=mesh, validate_args=False).cdf(t)

    found = torch.compile(value, fullgraph=True)(WEIGHTS)
    torch.testing.assert_close(found, value(WEIGHTS))
