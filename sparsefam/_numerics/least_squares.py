"""Normal equations of least squares: their sums over chunks of the observations, and solutions."""

from __future__ import annotations  # before 2.9 torch compiles no inner function with a union

from collections.abc import Callable
from functools import partial, reduce
from itertools import repeat
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from .modes import branches_allowed
from .validation import map_tensors

__all__ = [
    "add_event_dims",
    "add_sums",
    "band_sums",
    "eliminate",
    "normal_sums",
    "recomputed",
    "solve_band",
    "solve_orthogonally",
    "solve_shared",
    "split_rows",
    "zero_masked",
]

Sums = tuple[Tensor, ...]

# Rows of a block of a band matrix, at least: where small batched products are fast.
_ROWS = 8


def normal_sums(
    design: nn.Module,
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    rows: int,
) -> Sums:
    r"""Compute five sums over rows, in float64.

    $F^\top F$ (S, N, N), $F^\top H$ (B, N, E), $\lVert H \rVert^2$ (B,), $F^\top 1$ (S, N) and
    $H^\top 1$ (B, E).

    `design` maps locations (S, L, *event) to F, where S is B, or 1 if examples share locations and
    there are no mask and no weights; H are the values (B, L, E). Nothing is read where the mask
    (B, L) is False. Rows count as often as their weights (B, L) say. F exists for one chunk of rows
    at a time, and backward evaluates it again.
    """
    chunks = split_rows(rows, positions, values, mask, weights)
    run: Callable[..., Sums] = partial(_sums, design)
    # The first checkpoint of a process takes a second, as does its first optimizer.
    if len(chunks) > 1 and torch.is_grad_enabled() and branches_allowed():
        run = recomputed(design, _sums)
    return reduce(add_sums, (run(*chunk) for chunk in chunks))


def _sums(
    design: nn.Module,
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
) -> Sums:
    f, h = _prepare(design(_prepare(positions, mask)), mask), _prepare(values, mask)
    left, weighted = _weigh(f, weights, mask), _weigh(h, weights, mask)
    squares = (weighted.flatten(1).unsqueeze(1) @ h.flatten(1).unsqueeze(2)).flatten()
    cross = _as_examples(left.mT @ _as_columns(h, f.shape[0]), h)
    # Last what has no gradient in values: a checkpoint need not compute it again.
    return left.mT @ f, cross, squares, left.sum(1), weighted.sum(1)


def _weigh(x: Tensor, weights: Tensor | None, mask: Tensor | None) -> Tensor:
    """Multiply rows (B, L, ...) by weights (B, L), if there are any."""
    if weights is None:
        return x
    return x * add_event_dims(_prepare(weights, mask), x.shape[2:])


def recomputed(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(module, *inputs)` as a checkpoint: backward evaluates it again.

    Backward uses the parameters and buffers that the module has now, which may be those of a
    functional call that has ended by then.
    """
    run = partial(function, map_tensors(module, lambda x: x))
    return partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)


def _prepare(x: Tensor, mask: Tensor | None) -> Tensor:
    """Convert to float64, with zeros where masked, before any arithmetic: 0 times NaN is NaN."""
    return zero_masked(x, mask).double()


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (B or 1, L, ...) with zeros where a mask (B, L) is False."""
    return x if mask is None else torch.where(add_event_dims(mask, x.shape[2:]), x, 0)


def add_sums(a: Sums, b: Sums) -> Sums:
    """Add the sums of two chunks."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def band_sums(
    nonzero: Callable[[Tensor], tuple[Tensor, Tensor]],
    size: int,
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    rows: int,
) -> Sums:
    """Compute the sums of `normal_sums` for B-splines; of the first, the bands for `solve_band`.

    `nonzero` returns indices, from 0 to size - 1, and values of those that may not be zero.
    """

    def sums(
        positions: Tensor, values: Tensor, mask: Tensor | None, weights: Tensor | None
    ) -> Sums:
        h = _prepare(values, mask)
        index, f = nonzero(_prepare(positions, mask))
        f = _prepare(f, mask)
        left, weighted = _weigh(f, weights, mask), _weigh(h, weights, mask)
        columns, examples, count = _as_columns(h, len(f)), len(f), f.shape[-1]
        gram = f.new_zeros(examples * size, count)
        cross = f.new_zeros(examples * size, columns.shape[-1])
        index = index + size * torch.arange(examples, device=f.device)[:, None, None]
        for k in range(count):
            to, each = index[..., k].flatten(), left[..., k : k + 1]
            products = pad(each * f[..., k:], (0, k)).flatten(0, 1)
            gram = gram.index_put((to,), products, accumulate=True)
            cross = cross.index_put((to,), (each * columns).flatten(0, 1), accumulate=True)
        gram, cross = (x.reshape(examples, size, x.shape[-1]) for x in (gram, cross))
        ones = f.new_zeros(examples * size).index_put((index.flatten(),), left.flatten(), True)
        ones = ones.reshape(examples, size)
        squares = (weighted * h).sum((1, 2))
        return gram, _as_examples(cross, h), squares, ones, weighted.sum(1)

    chunks = split_rows(rows, positions, values, mask, weights)
    return reduce(add_sums, (sums(*chunk) for chunk in chunks))


def solve_orthogonally(matrix: Tensor, design: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A C = F^\top H$, where $A - F^\top F$ is positive semidefinite.

    With the Cholesky factor K of A, $C = K^{-\top} (Q^\top H)$ and $Q = F K^{-\top}$. No singular
    value of Q exceeds 1, so that its product with H may be taken in the dtype of H: that changes
    fitted values no more than rounding H does. The hat matrix $K^{-\top} Q^\top$ in float32 has
    errors of functions that are 10 to 100 times as large, as its entries cancel.

    A (S, N, N) and F (S, L, N) are float64, H has shape (B, L, E), and S is B or 1. The result is
    that of `solve_shared`.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    unit = torch.eye(matrix.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False)
    products = (inverse @ design.mT).to(values.dtype) @ values
    return inverse.mT @ products.double(), _least_pivot(factor, failed)


def solve_shared(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A X = Y$ for positive definite A (S, N, N), or its bands as in `solve_band`.

    Examples may share A: Y has shape (B, N, E), and S is B or 1. Return X, and the least squared
    pivot of each matrix (S,), 0 or NaN if one is not positive.
    """
    columns = _as_columns(right, matrix.shape[0])
    if matrix.shape[-1] != matrix.shape[-2]:
        solution, pivots = solve_band(matrix, columns)
    else:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        solution, pivots = torch.cholesky_solve(columns, factor), _least_pivot(factor, failed)
    return _as_examples(solution, right), pivots


def solve_band(band: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A X = Y$ for positive definite A with p bands on either side of the diagonal.

    In blocks of at least p rows the matrix is block tridiagonal. Every other block is eliminated at
    once, which leaves such a matrix of half as many blocks: $O(\log N)$ steps, $O(N p (p + E))$
    work, and the errors of a Cholesky factorisation, as it is one in another order.

    The bands, (S, N, p + 1), are the diagonal and those on its right: entry (j, m) is
    $A_{j, j + m}$, and zero where there is none. Y has shape (S, N, E), and the result is that of
    `solve_shared`.

    References:
        Heller (1976), Some aspects of the cyclic reduction algorithm for block tridiagonal linear
        systems. SIAM J. Numerical Analysis 13.
    """
    size, width = band.shape[1:]
    count = 1
    while 2 * count * max(_ROWS, width - 1) <= size:
        count *= 2
    rows = -(-size // count)
    diagonal, upper = _blocks(band, count, rows)
    right = pad(right, (0, 0, 0, count * rows - size)).unflatten(1, (count, rows))
    levels, pivots = [], []
    while True:
        # Blocks with an even index are eliminated, with an odd one they stay.
        factor, failed = torch.linalg.cholesky_ex(diagonal[:, ::2])
        pivots.append(_least_pivot(factor, failed).amin(1))
        if diagonal.shape[1] == 1:
            break
        before = pad(upper[:, 1:-1:2].mT, (0, 0, 0, 0, 1, 0))
        columns = torch.cat([before, upper[:, ::2], right[:, ::2]], -1)
        solved = torch.linalg.solve_triangular(factor, columns, upper=False)
        levels.append((factor, solved))
        # Each block that stays has one on its left, and, but for the last, one on its right.
        later = pad(solved[:, 1:], (0, 0, 0, 0, 0, 1))
        by_left = solved[..., rows : 2 * rows].mT @ solved[..., rows:]
        by_right = later[..., :rows].mT @ later
        diagonal = diagonal[:, 1::2] - by_left[..., :rows] - by_right[..., :rows]
        upper = -by_right[..., rows : 2 * rows]
        right = right[:, 1::2] - by_left[..., rows:] - by_right[..., 2 * rows :]
    x = torch.cholesky_solve(right, factor)
    for factor, solved in reversed(levels):
        before, after, y = solved.tensor_split((rows, 2 * rows), -1)
        rest = y - before @ pad(x[:, :-1], (0, 0, 0, 0, 1, 0)) - after @ x
        even = torch.linalg.solve_triangular(factor.mT, rest, upper=True)
        x = torch.stack([even, x], 2).flatten(1, 2)
    return x.flatten(1, 2)[:, :size], torch.stack(pivots).amin(0)


def _least_pivot(factor: Tensor, failed: Tensor) -> Tensor:
    """Return the least squared pivot of Cholesky factors (..., N, N), 0 where they failed."""
    pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    return torch.where(failed == 0, pivots, 0)


def _blocks(band: Tensor, count: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the blocks on the diagonal and on its right, each (S, count, rows, rows)."""
    size, width = band.shape[1:]
    # Further equations, of a size with the others: A_11 x = 0.
    more = pad(band[:, :1, :1], (0, width - 1)).expand(-1, count * rows - size, -1)
    band = torch.cat([band, more], 1).unflatten(1, (count, rows))
    each = torch.arange(2 * rows, device=band.device)
    offset = each - each[:rows].unsqueeze(-1)
    index = offset.clamp(0, width - 1).expand(*band.shape[:2], -1, -1)
    within = (offset >= 0) & (offset < width)
    half, upper = torch.where(within, band.gather(-1, index), 0).split(rows, -1)
    return half + half.triu(1).mT, upper


def eliminate(matrix: Tensor, right: Tensor) -> Tensor:
    r"""Solve $A X = Y$ for positive definite A (S, N, N) by Gauss-Jordan elimination."""
    size = matrix.shape[-1]
    rows = torch.cat([matrix, _as_columns(right, matrix.shape[0])], -1)
    for k, unit in enumerate(torch.eye(size, dtype=rows.dtype, device=rows.device)):
        column = rows[..., k : k + 1]
        rows = rows - (column - unit.unsqueeze(-1)) * rows[:, k : k + 1] / column[:, k : k + 1]
    return _as_examples(rows[..., size:], right)


def _as_columns(x: Tensor, count: int) -> Tensor:
    """Reshape (B, l, E) to (S, l, B/S * E): examples that share a matrix are further columns."""
    x = x.reshape(count, x.shape[0] // max(count, 1), *x.shape[1:])
    return x.transpose(1, 2).flatten(2)


def _as_examples(x: Tensor, like: Tensor) -> Tensor:
    """Undo `_as_columns` for examples like (B, ..., E)."""
    each = like.shape[0] // max(x.shape[0], 1)
    return x.unflatten(2, (each, like.shape[-1])).transpose(1, 2).flatten(0, 1)


def add_event_dims(mask: Tensor, event: Size) -> Tensor:
    """Reshape a mask over locations to broadcast against locations of an event shape."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def split_rows(rows: int, *tensors: Tensor | None) -> list[Any]:
    """Split tensors (., L, ...) into chunks of at most so many rows; None stays None."""
    length = max(0 if x is None else x.shape[1] for x in tensors)
    # A graph of dynamic length need not know how many there are, and an exported one cannot.
    if torch.compiler.is_exporting() or length <= rows:
        return [tensors]
    # The gradient of a slice would be as large as the whole.
    parts = [repeat(None) if x is None else x.split(rows, 1) for x in tensors]
    return list(zip(*parts, strict=False))
