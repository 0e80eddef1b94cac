"""Expectations of bases under kernel families: one matrix product."""

from torch import Tensor

from ..bases import Basis, Stack
from ..dispatch import register_expect
from ..distributions import KernelDistribution
from .shared import stack_expectation

__all__: list[str] = []


@register_expect(KernelDistribution, Basis)
def _kernel_basis(p: KernelDistribution, psi: Basis) -> Tensor:
    return p.basis_means(psi)


register_expect(KernelDistribution, Stack)(stack_expectation)
