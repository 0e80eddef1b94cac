"""Positive definite band matrices: systems of equations by block cyclic reduction."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["least_pivot", "solve_band"]

# Rows of a block, at least: where small batched products are fast.
_ROWS = 8


def solve_band(band: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A X = Y$ for positive definite A with p bands on either side of the diagonal.

    In blocks of at least p rows the matrix is block tridiagonal. Every other block is eliminated at
    once, which leaves such a matrix of half as many blocks: $O(\log N)$ steps, $O(N p (p + E))$
    work, and the errors of a Cholesky factorisation, as it is one in another order.

    References:
        Heller (1976), Some aspects of the cyclic reduction algorithm for block tridiagonal linear
        systems. SIAM J. Numerical Analysis 13.

    Args:
        band: The diagonal and the bands on its right, shape (S, N, p + 1): entry (j, m) is
            $A_{j, j + m}$, and zero where there is none.
        right: Y, shape (S, N, E).

    Returns:
        X, and the smallest squared pivot of each matrix (S,), 0 or NaN if one is not positive.
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
        pivots.append(least_pivot(factor, failed).amin(1))
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


def least_pivot(factor: Tensor, failed: Tensor) -> Tensor:
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
