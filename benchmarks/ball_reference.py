r"""Expectations of Gaussians over an ellipsoid, with their derivatives, to about 18 digits.

In coordinates in which the support is the unit ball and a Gaussian has independent components,
`steepest` averages over the ball. The derivatives are averages of the integrand's own.

Every argument is a number that a tensor holds, taken exactly.
"""

from dataclasses import dataclass
from itertools import combinations

import mpmath as mp
import numpy as np

from .steepest import Descent, Extended, descent, extended

__all__ = ["Integrals", "cholesky", "integrals"]

_SWEEPS = 12


@dataclass(frozen=True)
class Integrals:
    r"""$r_j = E_p[N(t; c_j, S_j)]$ of N Gaussians under each of B densities, and derivatives.

    Attributes:
        value: r, shape (B, N).
        by_loc: dr/dloc, (B, N, D).
        by_scale_tril: In the lower triangle of scale_tril, (B, N, D, D).
        by_covariance: In the symmetric matrix S_j, (B, N, D, D).
        by_exponent: In m, (B, N).
    """

    value: Extended
    by_loc: Extended
    by_scale_tril: Extended
    by_covariance: Extended
    by_exponent: Extended


def integrals(
    loc: Extended, scale_tril: Extended, centers: Extended, factors: Extended, exponent: float
) -> Integrals:
    """For densities that each have Gaussians of their own.

    Args:
        loc: (B, D).
        scale_tril: (B, D, D).
        centers: (B, N, D).
        factors: Lower triangular roots of the covariances, (B, N, D, D), or standard deviations
            (B, N).
        exponent: m >= 0.
    """
    dim, shape = loc.shape[-1], centers.shape[:2]
    inverse = _invert(scale_tril)[:, None]
    turns, scales = _rotate(inverse if factors.ndim == 2 else inverse @ factors)
    lam = (scales if factors.ndim > 2 else scales * factors[..., None]) ** 2
    axes = _transposed(turns) @ inverse  # to the frame, (B, 1 | N, D, D)
    b = (axes @ (centers - loc[:, None])[..., None])[..., 0]
    path = descent(lam.reshape(-1, dim), b.reshape(-1, dim), exponent)
    first, second, in_ball = _slopes(path, lam, b)
    volume = np.prod(np.diagonal(scale_tril, axis1=-2, axis2=-1), -1)
    value = path.value.reshape(shape) * _constant(exponent, dim) / volume[:, None]
    size, back = value[..., None, None], _transposed(axes)
    by_tril = 2 * size * (_transposed(inverse) @ (turns @ in_ball @ _transposed(turns)))
    rise = extended(mp.digamma(mp.mpf(exponent) + 1 + mp.mpf(dim) / 2))
    return Integrals(
        value,
        size[..., 0] * (back @ first[..., None])[..., 0],
        np.tril(by_tril),
        size * (back @ second @ axes),
        value * (rise - path.average(np.log(path.nodes)).reshape(shape)),
    )


def _slopes(path: Descent, lam: Extended, b: Extended) -> list[Extended]:
    """Relative derivatives in b, in diag(lam) and in the ball's matrix, (B, N, D and D, D)."""
    z = path.nodes.reshape(-1, *b.shape[:2], 1)
    # Those of the Gaussian of b with covariance 1/pull, in its mean and its covariance.
    pull = 2 * z / (1 + 2 * z * lam)
    push = pull * b
    bend = push[..., :, None] * push[..., None, :] - pull[..., None] * np.eye(b.shape[-1])
    return [path.average(f) for f in (push, bend / 2, bend / (4 * z[..., None]))]


def cholesky(matrices: Extended) -> Extended:
    """Lower triangular roots (..., D, D)."""
    root = np.zeros_like(matrices)
    for i in range(matrices.shape[-1]):
        for j in range(i + 1):
            left = matrices[..., i, j] - (root[..., i, :j] * root[..., j, :j]).sum(-1)
            root[..., i, j] = np.sqrt(left) if i == j else left / root[..., j, j]
    return root


def _constant(exponent: float, dim: int) -> np.longdouble:
    """Of the density of the unit ball."""
    with mp.workdps(30):
        m, half = mp.mpf(exponent), mp.mpf(dim) / 2
        return extended(mp.gammaprod([m + 1 + half], [m + 1]) / mp.pi**half)


def _invert(tril: Extended) -> Extended:
    """Of lower triangular matrices (B, D, D)."""
    inverse = np.zeros_like(tril)
    for i in range(tril.shape[-1]):
        row = -(tril[:, i : i + 1, :i] @ inverse[:, :i])[:, 0]
        row[:, i] += 1
        inverse[:, i] = row / tril[:, i, i, None]
    return inverse


def _transposed(matrices: Extended) -> Extended:
    return np.swapaxes(matrices, -1, -2)


def _rotate(matrices: Extended) -> tuple[Extended, Extended]:
    """Left singular vectors and singular values of (..., D, D), small ones as exact as large ones.

    Jacobi's method from one side: columns are turned in pairs until all are orthogonal.
    """
    columns = np.array(matrices)
    dim = columns.shape[-1]
    for i, j in [*combinations(range(dim), 2)] * _SWEEPS:
        x, y = columns[..., i].copy(), columns[..., j].copy()
        gap, overlap = (y * y - x * x).sum(-1), 2 * (x * y).sum(-1)
        angle = np.arctan2(overlap, np.abs(gap)) / 2 * np.where(gap < 0, -1, 1)
        cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
        columns[..., i], columns[..., j] = cos * x - sin * y, sin * x + cos * y
    scales = np.sqrt((columns**2).sum(-2))
    return columns / scales[..., None, :], scales
