"""What holds in every dimension."""

import torch
from torch import Tensor

from ..bases import Stack
from ..dispatch import register_expect
from ..distributions import SparseDistribution

__all__ = ["damped_waves", "stack_expectation"]


@register_expect(SparseDistribution, Stack)
def stack_expectation(p: SparseDistribution, psi: Stack) -> Tensor:
    """Expectations of several bases side by side."""
    return torch.cat([p.expect(basis) for basis in psi.bases], -1)


def damped_waves(angles: Tensor, amplitudes: Tensor) -> Tensor:
    """Fourier functions at the centre, damped by the characteristic function of what is around it.

    Args:
        angles: The frequencies times the centre, (*batch, K).
        amplitudes: The characteristic function of the density moved to zero, which is real where it
            is symmetric, at the frequencies (*batch, K).
    """
    return torch.cat([angles.cos() * amplitudes, angles.sin() * amplitudes], -1)
