"""Gaussians of one width under many ellipsoids at once, by one path that serves all pairs.

What `shared_nodes` finds, as tensors with a gradient; rows that it cannot serve, and derivatives of
gradients, are left to the paths of pairs.
"""

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from .shared_nodes import Rows, integrate, is_available, is_fitted, pull_back
from .validation import in_eager, in_memory

__all__ = ["gaussians_on_shared_path", "shares_path"]

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
_ByPairs = Callable[[_Inputs, float], Tensor]


def shares_path(inputs: _Inputs, exponent: Tensor | float) -> bool:
    """Whether `gaussians_on_shared_path` is for these inputs.

    They are float32 on the CPU, in neither a compiled graph nor a transform, so that values can be
    looked at for nothing; the Gaussians have one width and no gradient; exponent and dimension are
    what the path was fitted for.
    """
    loc, _, centers, spread = inputs
    if isinstance(exponent, Tensor) or not is_fitted(exponent, loc.shape[-1]):
        return False
    if spread.dim() > 1 or not loc.numel() or centers.requires_grad or spread.requires_grad:
        return False
    single = all(x.dtype == torch.float32 for x in inputs)
    if not (single and in_eager() and in_memory(*inputs)):
        return False
    same = spread.stride() in ((), (0,)) or bool((spread == spread[0]).all())
    return same and is_available()


def gaussians_on_shared_path(inputs: _Inputs, exponent: float, by_pairs: _ByPairs) -> Tensor:
    """Expectations (*batch, N), differentiable in loc and scale_tril.

    Args:
        inputs: loc (*batch, D), scale_tril (*batch, D, D), centers (N, D) and standard deviations.
        exponent: m.
        by_pairs: The same of any inputs, for rows without digits and for second derivatives.
    """
    loc, scale_tril, centers, spread = inputs
    batch, dim = loc.shape[:-1], loc.shape[-1]
    if len(batch) != 1:
        loc, scale_tril = loc.reshape(-1, dim), scale_tril.reshape(-1, dim, dim)
    tracked = torch.is_grad_enabled() and (loc.requires_grad or scale_tril.requires_grad)
    arrays, width = (_array(loc), _array(scale_tril), _array(centers)), spread.numpy().item(0)
    rows, whole = integrate(*arrays, width, exponent, tracked, torch.get_num_threads())
    if tracked:
        inputs = loc, scale_tril, centers, spread
        values: Tensor = _Attach.apply(*inputs, rows, width, exponent, by_pairs)
    else:
        values = torch.from_numpy(rows.values)
    if not whole:
        others = torch.from_numpy(rows.near < 0).nonzero().squeeze(-1)
        found = by_pairs((loc[others], scale_tril[others], centers, spread), exponent)
        values = values.index_copy(0, others, found)
    return values if len(batch) == 1 else values.reshape(*batch, len(centers))


class _Attach(torch.autograd.Function):
    """Values (R, N) with their gradient; that of rows not good is zero."""

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        scale_tril: Tensor,
        centers: Tensor,
        spread: Tensor,
        rows: Rows,
        width: float,
        exponent: float,
        by_pairs: _ByPairs,
    ) -> Tensor:
        ctx.save_for_backward(loc, scale_tril, centers, spread)
        ctx.rows, ctx.width, ctx.exponent, ctx.by_pairs = rows, width, exponent, by_pairs
        # No view of a tensor that is there: those cannot be changed in place.
        return torch.from_numpy(rows.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, again = ctx.saved_tensors, torch.is_grad_enabled()
        # Numpy has no rules for `is_grads_batched`, nor for `vmap` and forward-mode derivatives.
        batched = torch._C._functorch.is_legacy_batchedtensor(grad)
        if again or batched or not (in_eager() and in_memory(grad)):
            needed = ctx.needs_input_grad
            with torch.enable_grad():
                wanted = [x for x, need in zip(inputs[:2], needed, strict=False) if need]
                values = ctx.by_pairs(inputs, ctx.exponent)
            wished = iter(torch.autograd.grad(values, wanted, grad, create_graph=again))
            slopes = [next(wished) if need else None for need in needed[:2]]
        else:
            found = pull_back(_array(grad), _array(inputs[1]), ctx.width, ctx.rows)
            slopes = [torch.from_numpy(x) for x in found]
        return *slopes, None, None, None, None, None, None


def _array(x: Tensor) -> NDArray[Any]:
    # Half as long as to detach it first.
    return (x if x.is_contiguous() else x.contiguous()).numpy(force=True)
