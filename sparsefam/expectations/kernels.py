"""Kernel families: one matrix product, on panels that also resolve the basis."""

from torch import Tensor

from ..bases import Basis, Stack
from ..dispatch import register_expect
from ..distributions import KernelDistribution
from .shared import stack_expectation

__all__: list[str] = []


@register_expect(KernelDistribution, Basis)
def _kernel_basis(p: KernelDistribution, psi: Basis) -> Tensor:
    panels = p.panels.for_basis(psi)
    return p._means(p._values_of(psi, panels), panels)


register_expect(KernelDistribution, Stack)(stack_expectation)
