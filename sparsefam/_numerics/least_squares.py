"""Normal equations of least squares: their sums over chunks of the observations, and solutions."""

from collections.abc import Callable
from functools import partial, reduce
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.utils.checkpoint import checkpoint

from .modes import branches_allowed, exported
from .validation import map_tensors

__all__ = [
    "Cholesky",
    "add_event_dims",
    "add_sums",
    "normal_sums",
    "recomputed",
    "solve_orthogonally",
    "solve_shared",
    "split_rows",
    "zero_masked",
]

Sums = tuple[Tensor, ...]


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
    # One chunk needs no checkpoint, and the first one of a process takes a second.
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
    """Return the sums of `normal_sums`, of the same arguments, over one chunk of rows."""
    f, h = _prepare(design(_prepare(positions, mask)), mask), _prepare(values, mask)
    weighted_f, weighted_h = _weigh(f, weights, mask), _weigh(h, weights, mask)
    squares = (weighted_h * h).sum((1, 2))
    # Examples that share a design are further columns of one product.
    cross = torch.einsum("bln,ble->bne", weighted_f, h)
    # Sums without a gradient in values are last: a checkpoint need not compute them again.
    return weighted_f.mT @ f, cross, squares, weighted_f.sum(1), weighted_h.sum(1)


def _weigh(x: Tensor, weights: Tensor | None, mask: Tensor | None) -> Tensor:
    """Multiply rows (B, L, ...) by weights (B, L), if there are any, which are 0 where masked."""
    if weights is None:
        return x
    return x * add_event_dims(_prepare(weights, mask), x.shape[2:])


def recomputed(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(module, *inputs)` as a checkpoint: backward evaluates it again.

    Backward uses the parameters and buffers that the module has now, even if they come from a
    functional call that has ended by then.
    """
    run = partial(function, map_tensors(module, lambda x: x))
    return partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)


def _prepare(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (B or 1, L, ...) in float64, with zeros where a mask (B, L) is False.

    Other arithmetic follows: before it NaN must be gone, as 0 times NaN is NaN.
    """
    return zero_masked(x, mask).double()


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (B or 1, L, ...) with zeros where a mask (B, L) is False."""
    return x if mask is None else torch.where(add_event_dims(mask, x.shape[2:]), x, 0)


def add_sums(a: Sums, b: Sums) -> Sums:
    """Add the sums of two chunks."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


class Cholesky(NamedTuple):
    """Cholesky factors of matrices (S, N, N), and which of these are not positive definite."""

    factor: Tensor
    failed: Tensor  # 0 if the factor exists

    @classmethod
    def of(cls, matrix: Tensor) -> "Cholesky":
        """Factor matrices (S, N, N)."""
        return cls(*torch.linalg.cholesky_ex(matrix))

    def least_pivot(self) -> Tensor:
        """Return the least squared pivot (S,), 0 or NaN without a factor."""
        pivots = self.factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
        return torch.where(self.failed == 0, pivots, 0)


def solve_shared(matrix: Tensor, right: Tensor) -> tuple[Tensor, Cholesky]:
    r"""Solve $A X = Y$ for positive definite A (S, N, N).

    Examples may share A: Y has shape (B, N, E), and S is B or 1. Return X, and the factor of A.
    """
    cholesky = Cholesky.of(matrix)
    # Examples that share a matrix are further columns.
    count, channels = matrix.shape[0], right.shape[-1]
    shared_by = right.shape[0] // max(count, 1)
    columns = right.unflatten(0, (count, shared_by)).transpose(1, 2).flatten(2)
    solution = torch.cholesky_solve(columns, cholesky.factor)
    solution = solution.unflatten(2, (shared_by, channels)).transpose(1, 2).flatten(0, 1)
    return solution, cholesky


def solve_orthogonally(matrix: Tensor, design: Tensor, values: Tensor) -> tuple[Tensor, Cholesky]:
    r"""Solve $A C = F^\top H$, where $A - F^\top F$ is positive semidefinite.

    With the Cholesky factor K of A, $C = K^{-\top} (Q^\top H)$ and $Q = F K^{-\top}$. No singular
    value of Q exceeds 1, so that its product with H may be taken in the dtype of H: that changes
    fitted values no more than rounding H does. The hat matrix $K^{-\top} Q^\top$ in float32 has
    errors of functions that are 10 to 100 times as large, as its entries cancel.

    A (S, N, N) and F (S, L, N) are float64, H has shape (B, L, E), and S is B or 1. Returns are as
    for `solve_shared`.
    """
    cholesky = Cholesky.of(matrix)
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = torch.linalg.solve_triangular(cholesky.factor, unit, upper=False)
    products = (inverse @ design.mT).to(values.dtype) @ values
    return inverse.mT @ products.double(), cholesky


def add_event_dims(mask: Tensor, event: Size) -> Tensor:
    """Append axes of size 1 to a mask (B, L), to broadcast against locations (B, L, *event)."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def split_rows(rows: int, *tensors: Tensor | None) -> list[Any]:
    """Split tensors (., L, ...) into chunks of at most so many rows; None stays None."""
    length = max(0 if x is None else x.shape[1] for x in tensors)
    # A graph of dynamic length need not know how many there are, and an exported one cannot.
    if exported() or length <= rows:
        return [tensors]
    # The gradient of a slice would be as large as the whole. A tensor that is None gives a None to
    # each chunk; its endless iterator is why lengths are not compared.
    chunks = [repeat(None) if x is None else x.split(rows, 1) for x in tensors]
    return list(zip(*chunks, strict=False))
