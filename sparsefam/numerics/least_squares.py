"""Normal equations of least squares, summed over chunks of the observations."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Size, Tensor
from torch.utils.checkpoint import checkpoint

from .arguments import in_eager

__all__ = ["add_event_dims", "blocks", "normal_sums", "solve_shared", "sum_over_chunks"]

Sums = tuple[Tensor, ...]


def normal_sums(
    design: Callable[[Tensor], Tensor],
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    chunk_size: int,
) -> Sums:
    r"""Compute $F^\top F$, $F^\top H$ and $\lVert H \rVert^2$ in float64.

    Args:
        design: Maps locations (S, l, *event) in float64 to rows of $F$, shape (S, l, N).
        positions: Shape (S, L, *event), where S is B, or 1 if all examples share their positions.
        values: $H$, shape (B, L, E).
        mask: Shape (B, L), True where a row counts. Nothing else is read. None: all rows count.
        chunk_size: Number of rows of $F$ and $H$ that exist at a time, in backward, too.

    Returns:
        Tensors of shape (S, N, N), (B, N, E) and (B,); the first is (B, N, N) if there is a mask.
    """
    return sum_over_chunks(partial(_sums, design), chunk_size, positions, values, mask)


def sum_over_chunks(
    function: Callable[..., Sums], chunk_size: int, *tensors: Tensor | None
) -> Sums:
    """Add up a function's results over chunks of its arguments along their second dimension.

    Backward evaluates the function again, chunk by chunk, so that only one chunk's intermediate
    results are held at a time. Transforms of `torch.func` do not support that and hold them all.
    """
    lengths = {x.shape[1] for x in tensors if x is not None}
    if max(lengths) <= chunk_size:
        return function(*tensors)
    # Slices would each get a gradient of full length; the pieces of `split` have one together.
    chunks = [x.split(chunk_size, 1) for x in tensors if x is not None]
    recompute = torch.is_grad_enabled() and (torch.compiler.is_compiling() or in_eager())
    total: Sums | None = None
    for chunk in zip(*chunks, strict=True):
        rest = iter(chunk)
        parts = [None if x is None else next(rest) for x in tensors]
        if recompute:
            terms = checkpoint(function, *parts, use_reentrant=False, preserve_rng_state=False)
        else:
            terms = function(*parts)
        total = terms if total is None else tuple(a + b for a, b in zip(total, terms, strict=True))
    return total or ()


def _sums(
    design: Callable[[Tensor], Tensor], t: Tensor, h: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    t = t.double()
    if mask is not None:
        # Zeros come before arithmetic: gradients are zero times what else padding would become.
        t = torch.where(add_event_dims(mask, t.shape[2:]), t, 0)
        h = torch.where(mask.unsqueeze(-1), h, 0)
    f, h = design(t).double(), h.double()
    if mask is not None:
        f = torch.where(mask.unsqueeze(-1), f, 0)
    # In this order recomputation, which stops at the last tensor that backward needs, repeats no
    # product if f is constant, and only the first if not.
    squares = h.square().sum((-2, -1))
    cross = _as_examples(f.mT @ _as_columns(h, len(f)), h)
    return f.mT @ f, cross, squares


def solve_shared(factor: Tensor, right: Tensor) -> Tensor:
    r"""Solve $L L^\top X = Y$ for Cholesky factors (S, N, N) and (B, N, E), where S is B or 1."""
    solution = torch.cholesky_solve(_as_columns(right, len(factor)), factor)
    return _as_examples(solution, right)


def _as_columns(x: Tensor, count: int) -> Tensor:
    """Reshape (B, l, E) to (S, l, B/S * E): examples that share a matrix are further columns."""
    x = x.reshape(count, len(x) // max(count, 1), *x.shape[1:])
    return x.transpose(1, 2).flatten(2)


def _as_examples(x: Tensor, like: Tensor) -> Tensor:
    """Undo `_as_columns` for examples like (B, ..., E)."""
    each = len(like) // max(len(x), 1)
    found: Tensor = x.unflatten(2, (each, like.shape[-1])).transpose(1, 2).flatten(0, 1)
    return found


def add_event_dims(mask: Tensor, event: Size) -> Tensor:
    """Reshape a mask over locations to broadcast against locations of an event shape."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def blocks(length: int, rows: int) -> list[slice]:
    """Return slices of at most `rows` rows that cover `length`, at least one slice."""
    if length <= rows:  # a graph of dynamic length need not know how many there are
        return [slice(None)]
    return [slice(start, start + rows) for start in range(0, length, rows)]
