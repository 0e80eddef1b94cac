"""Gaussians of one width under many ellipsoids at once, by one path that serves all pairs.

What `shared_nodes` finds, as tensors with a gradient; rows that it cannot serve, and derivatives of
gradients, are left to the paths of pairs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arguments import in_eager, in_memory
from .shared_nodes import DIMENSIONS, EXPONENTS, Rows, integrate, pull_back

__all__ = ["gaussians_on_shared_path", "shares_path"]

# Pairs at a time, so that their nodes fit the cache.
_CHUNK = 8192

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
_ByPairs = Callable[[_Inputs, float], Tensor]


def shares_path(inputs: _Inputs, exponent: Tensor | float) -> bool:
    """Whether `gaussians_on_shared_path` is for these inputs.

    They are float32 on the CPU, in neither a compiled graph nor a transform, so that values can be
    looked at for nothing; the Gaussians have one width and no gradient; exponent and dimension are
    what the path was fitted for.
    """
    loc, _, centers, spread = inputs
    if isinstance(exponent, Tensor) or not EXPONENTS[0] <= exponent <= EXPONENTS[1]:
        return False
    if spread.dim() > 1 or loc.shape[-1] > DIMENSIONS or not loc.numel() or not in_eager():
        return False
    if not all(x.dtype == torch.float32 and in_memory(x) for x in inputs):
        return False
    if centers.requires_grad or spread.requires_grad:
        return False
    return spread.stride() in ((), (0,)) or bool((spread == spread[0]).all())


def gaussians_on_shared_path(inputs: _Inputs, exponent: float, by_pairs: _ByPairs) -> Tensor:
    """Expectations (*batch, N), differentiable in loc and scale_tril.

    Args:
        inputs: loc (*batch, D), scale_tril (*batch, D, D), centers (N, D) and standard deviations.
        exponent: m.
        by_pairs: The same of any inputs, for rows without digits and for second derivatives.
    """
    loc, scale_tril, centers, spread = inputs
    batch, (count, dim) = loc.shape[:-1], centers.shape
    step = max(1, _CHUNK // count)
    if len(batch) == 1 and len(loc) <= step:
        return _on_rows(inputs, exponent, by_pairs, True)
    rows = loc.reshape(-1, dim).split(step), scale_tril.reshape(-1, dim, dim).split(step)
    # What is kept of one chunk is in the cache in backward; of many, it costs more than it saves.
    kept = len(rows[0]) == 1
    parts = [
        _on_rows((some, factor, centers, spread), exponent, by_pairs, kept)
        for some, factor in zip(*rows, strict=True)
    ]
    return torch.cat(parts).reshape(*batch, count)


def _on_rows(inputs: _Inputs, exponent: float, by_pairs: _ByPairs, kept: bool) -> Tensor:
    loc, scale_tril, centers, spread = inputs
    tracked = torch.is_grad_enabled() and (loc.requires_grad or scale_tril.requires_grad)
    arrays = loc.numpy(force=True), scale_tril.numpy(force=True), centers.numpy(force=True)
    with np.errstate(all="ignore"):
        rows, good = integrate(*arrays, spread.flatten()[0].item(), exponent, kept and tracked)
    if good.all():
        found: Tensor
        found = _Attach.apply(*inputs, rows, exponent, by_pairs) if tracked else _values(rows)
        return found
    own = torch.from_numpy(good)
    others = by_pairs((loc[~own], scale_tril[~own], centers, spread), exponent)
    if not good.any():
        return others
    # Again, without rows that may hold no numbers to differentiate.
    found = _on_rows((loc[own], scale_tril[own], centers, spread), exponent, by_pairs, kept)
    places = torch.cat([own.nonzero(), (~own).nonzero()]).squeeze(-1)
    return torch.cat([found, others])[places.argsort()]


def _values(rows: Rows) -> Tensor:
    return torch.from_numpy(rows.values)


class _Attach(torch.autograd.Function):
    """Values (R, N) with their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        scale_tril: Tensor,
        centers: Tensor,
        spread: Tensor,
        rows: Rows,
        exponent: float,
        by_pairs: _ByPairs,
    ) -> Tensor:
        ctx.save_for_backward(loc, scale_tril, centers, spread)
        ctx.rows, ctx.exponent, ctx.by_pairs = rows, exponent, by_pairs
        return _values(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, again = ctx.saved_tensors, torch.is_grad_enabled()
        # Numpy has no rules for `is_grads_batched`.
        if again or torch._C._functorch.is_legacy_batchedtensor(grad):
            needed = ctx.needs_input_grad
            with torch.enable_grad():
                wanted = [x for x, need in zip(inputs[:2], needed, strict=False) if need]
                values = ctx.by_pairs(inputs, ctx.exponent)
            found = iter(torch.autograd.grad(values, wanted, grad, create_graph=again))
            slopes = [next(found) if need else None for need in needed[:2]]
        else:
            arrays = grad.numpy(force=True), inputs[1].numpy(force=True)
            with np.errstate(all="ignore"):
                slopes = [torch.from_numpy(x) for x in pull_back(*arrays, ctx.rows)]
        return *slopes, None, None, None, None, None
