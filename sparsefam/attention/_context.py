r"""Contexts: expectations of value functions under the densities of queries, $E_p[\psi]^\top C$."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._numerics.fourier import without_values
from .._numerics.least_squares import recomputed
from .._numerics.modes import branches_allowed, compiled, exported, recording
from .._numerics.operators import Changes, differentiable, operator
from ..bases import Basis, GaussianRBF
from ..distributions import BetaGaussian, Mixture, Normal, SparseDistribution
from ..distributions._generators import alpha_of
from ..distributions._line.gaussians import distinct, gaussian_contexts
from ..distributions.base import StandardizedDistribution
from ..distributions.kernel_family import KernelDistribution
from ..distributions.univariate import SymmetricDistribution

__all__ = ["contexts"]

# Pairs of a query and a basis function in a block: large enough for threads, small enough for
# the cache. Fewer than four blocks are not worth their while.
_PAIRS = 2**18


def contexts(
    density: SparseDistribution,
    basis: Basis,
    coefficients: Tensor,
    centers: tuple[float, float] | None = None,
) -> Tensor:
    r"""Return contexts $E_p[\psi]^\top C$ by head, (B, Lq, heads, E), with C (B, N, heads, E).

    Expectations of N functions for every query and head would be more numbers than the rest of a
    layer. Those of Gaussian functions are not needed where a density is a row of waves. Others
    are computed in blocks of queries, if they are many, and again in the backward pass. Transforms
    of `torch.func` and kernel densities take all at once. Compiled graphs call this function for
    Gaussians and beta-Gaussians on a CPU, and take all at once otherwise.

    Args:
        density: Densities (B, heads, Lq).
        basis: The N functions.
        coefficients: C.
        centers: An interval in which all 1-D densities are known to be centred.
    """
    by_head = coefficients.transpose(1, 2)
    if isinstance(density, KernelDistribution):
        return density.combination_means(basis, by_head).to(by_head.dtype).transpose(1, 2)
    if compiled():
        inputs = _operator_inputs(density, basis, by_head)
        if inputs is not None:
            found: Tensor = _differentiable_contexts(*inputs)
            return found.transpose(1, 2)
    context = _by_waves(density, basis, by_head, centers)
    return _by_expectations(density, basis, by_head) if context is None else context


def _by_waves(
    density: SparseDistribution,
    basis: Basis,
    by_head: Tensor,
    centers: tuple[float, float] | None,
) -> Tensor | None:
    """Return contexts without the expectations of single functions, or None."""
    inner = density.components if isinstance(density, Mixture) else density
    # A Gaussian function under a normal density is cheaper than waves.
    if not isinstance(inner, SymmetricDistribution) or isinstance(inner, Normal):
        return None
    if not isinstance(basis, GaussianRBF):
        return None
    weights = density.logits.softmax(-1) if isinstance(density, Mixture) else None
    context = gaussian_contexts(inner, basis, by_head, centers, weights)
    return None if context is None else context.transpose(1, 2)


def _by_expectations(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Tensor:
    """Return contexts from the expectations of single functions, in blocks of queries."""
    # `numel` would fix the sizes of an exported graph.
    pairs = density.batch_shape.numel() * len(basis) if branches_allowed() else 0
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


# Compiled graphs do not read values, by which densities are told apart, and would compile neither
# blocks nor all cases well: they call operators.


def _operator_inputs(
    density: SparseDistribution, basis: Basis, by_head: Tensor
) -> tuple[Any, ...] | None:
    """Return the arguments of `_forward`, or None for other densities, functions and devices."""
    inner = density.components if isinstance(density, Mixture) else density
    if not isinstance(basis, GaussianRBF) or not isinstance(inner, BetaGaussian):
        return None
    if basis.widths is None or basis.event_shape or not by_head.is_cpu:
        return None
    if exported():
        return None
    number = inner._fixed_exponent
    logits = density.logits if isinstance(density, Mixture) else None
    # As few alphas as there are, each of which has a table.
    alpha = None if number is not None else distinct(inner.alpha)
    return inner.loc, inner.scale, alpha, logits, basis.centers, basis.widths, by_head, number


def _forward(
    loc: Tensor,
    scale: Tensor,
    alpha: Tensor | None,
    logits: Tensor | None,
    centers: Tensor,
    widths: Tensor,
    by_head: Tensor,
    number: float | None,
) -> Tensor:
    """Return contexts (B, heads, Lq, E) under beta-Gaussians or, with logits, their mixtures."""
    index: Any = alpha if number is None else alpha_of(number)
    density: SparseDistribution = BetaGaussian(loc, scale, index, validate_args=False)
    if logits is not None:
        density = Mixture(logits, density, validate_args=False)
    basis = GaussianRBF(centers, widths)
    return contexts(density, basis, by_head.transpose(1, 2)).transpose(1, 2).contiguous()


def _backward(
    slope: Tensor,
    loc: Tensor,
    scale: Tensor,
    alpha: Tensor | None,
    logits: Tensor | None,
    centers: Tensor,
    widths: Tensor,
    by_head: Tensor,
    number: float | None,
    needed: list[bool],
) -> list[Tensor]:
    """Return the gradients in all tensors, empty where they are not needed."""
    inputs = loc, scale, alpha, logits, centers, widths, by_head
    leaves: Any = [
        None if x is None else x.detach().requires_grad_(need)
        for x, need in zip(inputs, needed, strict=True)
    ]
    with recording(), without_values():
        value = _forward(*(leaves + [number]))
        wanted = [x for x in leaves if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(value, wanted, slope.contiguous()))
    return [next(found).contiguous() if need else slope.new_empty(0) for need in needed]


def _like_contexts(loc: Tensor, *others: Any) -> Tensor:
    by_head: Tensor = others[-2]
    return by_head.new_empty(*loc.shape[:3], by_head.shape[-1])


def _like_gradients(slope: Tensor, *arguments: Any) -> list[Tensor]:
    inputs, needed = arguments[:7], arguments[-1]
    return [
        torch.empty_like(x).contiguous() if need else slope.new_empty(0)
        for x, need in zip(inputs, needed, strict=True)
    ]


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    slopes = _backward_operator(*grads, *kept, list(needed[:-1]))
    return [x if need else None for x, need in zip(slopes, needed[:-1], strict=True)]


_backward_operator = operator("contexts_backward", _backward, _like_gradients)
_differentiable_contexts = differentiable(
    operator("contexts", _forward, _like_contexts), _pull_back, lambda inputs, outputs: inputs
)
