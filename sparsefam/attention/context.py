r"""Contexts: expectations of value functions under the densities of queries, $E_p[\psi]^\top C$."""

import torch
from torch import Tensor

from ..bases import Basis, GaussianRBF
from ..distributions import Mixture, Normal, SparseDistribution
from ..distributions.base import StandardizedDistribution
from ..distributions.kernel_family import KernelDistribution
from ..distributions.line_gaussians import gaussian_contexts
from ..distributions.univariate import SymmetricDistribution
from ..numerics.least_squares import recomputed
from ..numerics.validation import in_eager

__all__ = ["contexts"]

# Pairs of a query and a basis function in a block: large enough for threads, small enough for
# the cache. Fewer than four blocks are not worth their while.
_PAIRS = 2**18


def contexts(
    density: SparseDistribution, basis: Basis, coefficients: Tensor, centred: bool = False
) -> Tensor:
    r"""Return contexts $E_p[\psi]^\top C$ by head, (B, Lq, heads, E), with C (B, N, heads, E).

    Expectations of N functions for every query and head would be more numbers than the rest of a
    layer. Those of Gaussian functions are not needed where a density is a row of waves. Others
    are computed in blocks of queries, if they are many, and again in the backward pass. Compiled
    graphs, transforms of `torch.func` and kernel densities take all at once.

    Args:
        density: Densities (B, heads, Lq).
        basis: The N functions.
        coefficients: C.
        centred: Whether all centres are known to be between the first and the last function.
    """
    by_head = coefficients.transpose(1, 2)
    if isinstance(density, KernelDistribution):
        return density.combination_means(basis, by_head).to(by_head.dtype).transpose(1, 2)
    context = _by_waves(density, basis, by_head, centred)
    return _by_expectations(density, basis, by_head) if context is None else context


def _by_waves(
    density: SparseDistribution, basis: Basis, by_head: Tensor, centred: bool
) -> Tensor | None:
    """Return contexts without the expectations of single functions, or None."""
    if not isinstance(basis, GaussianRBF):
        return None
    if isinstance(density, Mixture):
        return _of_mixture(density, basis, by_head, centred)
    # A Gaussian function under a normal density is cheaper than waves.
    if not isinstance(density, SymmetricDistribution) or isinstance(density, Normal):
        return None
    context = gaussian_contexts(density, basis, by_head, centred)
    return None if context is None else context.transpose(1, 2)


def _of_mixture(
    density: Mixture, basis: GaussianRBF, by_head: Tensor, centred: bool
) -> Tensor | None:
    inner = density.components
    if not isinstance(inner, SymmetricDistribution) or isinstance(inner, Normal):
        return None
    weights = density.logits.softmax(-1)  # (B, heads, Lq, K)
    context = gaussian_contexts(inner, basis, by_head, centred, weights)
    return None if context is None else context.transpose(1, 2)


def _by_expectations(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Tensor:
    """Return contexts from the expectations of single functions, in blocks of queries."""
    # `numel` would fix the sizes of an exported graph.
    pairs = density.batch_shape.numel() * len(basis) if in_eager() else 0
    inner = density.components if isinstance(density, Mixture) else density
    if pairs < 4 * _PAIRS or not isinstance(inner, StandardizedDistribution):
        return _contract(density.expect(basis), by_head)

    def block(basis: Basis, part: SparseDistribution) -> Tensor:
        return _contract(part.expect(basis), by_head)

    queries = density.batch_shape[2]
    rows = max(1, _PAIRS * queries // pairs)
    parts = [density[:, :, first : first + rows] for first in range(0, queries, rows)]
    run = recomputed(basis, block)
    return torch.cat([run(part) for part in parts], 1)


def _contract(features: Tensor, by_head: Tensor) -> Tensor:
    return (features.to(by_head.dtype) @ by_head).transpose(1, 2)
