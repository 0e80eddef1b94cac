"""Singular vectors of small matrices: by LAPACK on the CPU, by Jacobi rotations elsewhere.

On a GPU `torch.linalg.svd` stops the host to read an error code; a fixed number of rotations does
not.
"""

import math

import torch
from torch import Tensor

__all__ = ["orthogonalize", "rotate_columns"]

_TINY = 1e-300


def orthogonalize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A rotation V for which the columns of `matrix @ V` are orthogonal, and their lengths.

    The columns come in no particular order. V is a constant: what is computed from it must not
    depend on which of several rotations it is, so no derivative is needed, nor defined where
    singular values meet.

    Args:
        matrix: Float64, shape (*batch, R, D).

    Returns:
        V, shape (*batch, D, D), and the singular values, shape (*batch, D).
    """
    if matrix.device.type == "cpu":
        _, lengths, turned = torch.linalg.svd(matrix, full_matrices=False)
        return turned.mT, lengths
    return rotate_columns(matrix)


def rotate_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`orthogonalize` by one-sided Jacobi rotations, all of a round at once.

    References:
        Demmel and Veselic (1992), Jacobi's method is more accurate than QR. SIAM J. Matrix Anal.
        Appl. 13(4).
    """
    rows, dim = matrix.shape[-2:]
    unit = torch.eye(dim, dtype=matrix.dtype, device=matrix.device)
    if dim == 1:
        return unit.expand(*matrix.shape[:-2], 1, 1), torch.linalg.vector_norm(matrix, dim=-2)
    largest = matrix.abs().amax((-2, -1), keepdim=True).clamp_min(_TINY)
    stacked = torch.cat([matrix / largest, unit.expand(*matrix.shape[:-2], dim, dim)], -2)
    if dim % 2:
        stacked = torch.cat([stacked, torch.zeros_like(stacked[..., :1])], -1)
    left, right = stacked.chunk(2, -1)
    # One rotation is exact for two columns, up to what rounding leaves for the second.
    sweeps = 2 if dim == 2 else 4 + math.ceil(math.log2(dim))
    for _ in range(sweeps):
        for _ in range(2 * left.shape[-1] - 1):
            left, right = _next_partners(*_rotate(left, right, rows))
    turned = torch.cat([left, right], -1)[..., :dim]
    lengths = torch.linalg.vector_norm(turned[..., :rows, :], dim=-2)
    return turned[..., rows:, :], lengths * largest.squeeze(-1)


def _rotate(left: Tensor, right: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Make each column of `left` orthogonal to its partner in `right`, in their first rows."""
    a, b = left[..., :rows, :], right[..., :rows, :]
    cross = 2 * (a * b).sum(-2, keepdim=True)
    gap = ((b - a) * (b + a)).sum(-2, keepdim=True)
    root = torch.hypot(gap, cross) + gap.abs() + _TINY
    tangent = torch.where(gap < 0, -cross, cross) / root
    cosine = torch.rsqrt(1 + tangent * tangent)
    sine = cosine * tangent
    return cosine * left - sine * right, sine * left + cosine * right


def _next_partners(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The next round of a tournament; after a full turn every column is back in its place."""
    first, last = left[..., :1], left[..., -1:]
    if left.shape[-1] == 1:
        return left, right
    seated = torch.cat([first, right[..., :1], left[..., 1:-1]], -1)
    return seated, torch.cat([right[..., 1:], last], -1)
