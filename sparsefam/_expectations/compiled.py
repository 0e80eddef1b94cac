"""Contexts in compiled graphs, by an operator that runs the eager code.

Compiled graphs do not read values, by which an algorithm is chosen for each density, and would
compile neither blocks nor all cases well. The operator runs them in eager mode.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._choice import Mode, contexts
from .._numerics.fourier import without_values
from .._numerics.modes import recording
from .._numerics.operators import Changes, differentiable, operator
from ..bases import GaussianRBF
from ..distributions import BetaGaussian, Mixture, SparseDistribution
from ..distributions._generators import alpha_of
from .waves import distinct

__all__ = ["contexts_in_graph"]


def contexts_in_graph(p: BetaGaussian | Mixture, psi: GaussianRBF, by_head: Tensor) -> Tensor:
    """Return contexts (B, heads, Lq, E) of beta-Gaussians or their mixtures, by an operator.

    Args:
        p: Densities (B, heads, Lq).
        psi: N functions of numbers.
        by_head: Coefficients (B, heads, N, E).
    """
    # Operators take tensors and numbers: densities are taken apart, and made again in `_forward`.
    inner: Any = p.components if isinstance(p, Mixture) else p
    number = inner._fixed_exponent
    logits = p.logits if isinstance(p, Mixture) else None
    # Each alpha costs a table: those that were expanded are taken once.
    alpha = None if number is not None else distinct(inner.alpha)
    inputs = inner.loc, inner.scale, alpha, logits, psi.centers, psi.widths, by_head, number
    values: Tensor = _differentiable_contexts(*inputs)
    return values


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
    """Return contexts (B, heads, Lq, E) under beta-Gaussians or, with logits, their mixtures.

    Args:
        loc: Centers (B, heads, Lq), of components (B, heads, Lq, K).
        scale: Half-widths of the same shape.
        alpha: Entropic indices, which broadcast; None if the exponent is a number.
        logits: Of the components (B, heads, Lq, K), None for a density that is no mixture.
        centers: Of the N functions (N,).
        widths: Of the functions, () or (N,).
        by_head: Coefficients (B, heads, N, E).
        number: The exponent m if it is a number, else None.
    """
    index: Any = alpha if number is None else alpha_of(number)
    density: SparseDistribution = BetaGaussian(loc, scale, index, validate_args=False)
    if logits is not None:
        density = Mixture(logits, density, validate_args=False)
    return contexts(density, GaussianRBF(centers, widths), by_head, Mode()).contiguous()


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
    """Return the gradients in all tensors, empty where they are not needed.

    The arguments are the gradient in the contexts, the arguments of `_forward`, and whether each
    tensor of these needs a gradient.
    """
    inputs = loc, scale, alpha, logits, centers, widths, by_head
    leaves: Any = [
        None if x is None else x.detach().requires_grad_(need)
        for x, need in zip(inputs, needed, strict=True)
    ]
    # The values are those of the forward pass: only the graph of their derivatives is needed.
    with recording(), without_values():
        value = _forward(*(leaves + [number]))
        wanted = [x for x in leaves if x is not None and x.requires_grad]
        gradients = iter(torch.autograd.grad(value, wanted, slope.contiguous()))
    return [next(gradients).contiguous() if need else slope.new_empty(0) for need in needed]


def _like_contexts(loc: Tensor, *others: Any) -> Tensor:
    """Return an empty tensor like the result of `_forward`, from the same arguments."""
    by_head: Tensor = others[-2]
    return by_head.new_empty(*loc.shape[:3], by_head.shape[-1])


def _like_gradients(slope: Tensor, *arguments: Any) -> list[Tensor]:
    """Return empty tensors like the results of `_backward`, from the same arguments."""
    inputs, needed = arguments[:7], arguments[-1]
    return [
        torch.empty_like(x).contiguous() if need else slope.new_empty(0)
        for x, need in zip(inputs, needed, strict=True)
    ]


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return the gradients in the tensors among the arguments of `_forward`.

    Args:
        kept: The arguments of `_forward`.
        grads: The gradient in the contexts.
        needed: Whether each argument needs a gradient; the last one is a number.
    """
    slopes = _backward_operator(*grads, *kept, list(needed[:-1]))
    return [x if need else None for x, need in zip(slopes, needed[:-1], strict=True)]


_backward_operator = operator("contexts_backward", _backward, _like_gradients)
_differentiable_contexts = differentiable(
    operator("contexts", _forward, _like_contexts), _pull_back, lambda inputs, outputs: inputs
)
