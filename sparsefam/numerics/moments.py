"""Integrals of powers of polynomials times Chebyshev polynomials, over pieces of [-1, 1].

Arrays hold one panel in each column. Where a power is 0, 1 or 2 its integrals follow from those of
Chebyshev polynomials alone, so that no panel needs nodes of its own.
"""

from functools import cache

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from .quadrature import constant

__all__ = ["chebyshev_polynomials", "piece_integrals", "short_moments"]


def chebyshev_polynomials(y: Tensor, count: int) -> Tensor:
    """Chebyshev polynomials (count, ...) at y."""
    basis = y.new_empty(count, *y.shape)
    basis[0], basis[1] = 1, y
    twice = 2 * y
    for k in range(2, count):
        torch.mul(twice, basis[k - 1], out=basis[k])
        basis[k] -= basis[k - 2]
    return basis


def piece_integrals(lower: Tensor, upper: Tensor, count: int) -> Tensor:
    """Integrals of Chebyshev polynomials over all pieces (K, n), (count, n)."""
    ends = chebyshev_polynomials(torch.cat([upper, lower]), count + 1)
    change = ends[:, : len(upper)].sum(1) - ends[:, len(upper) :].sum(1)
    return _antiderivatives(count, change.dtype, change.device) @ change


def short_moments(coefficients: Tensor, power: int, integrals: Tensor) -> Tensor:
    """Integrals of a polynomial's power times Chebyshev polynomials, (m, n).

    Args:
        coefficients: Chebyshev coefficients of the polynomial (m, n).
        power: 0, 1 or 2.
        integrals: Those of Chebyshev polynomials, (count, n) with count > (power + 1)(m - 1).
    """
    order = len(coefficients)
    if power == 0:
        return integrals[:order]
    if power == 2:
        values, back = _squaring(order, coefficients.dtype, coefficients.device)
        coefficients = back @ (values @ coefficients).square_()
    # T_j T_l = (T_{j + l} + T_|j - l|)/2: slices of the integrals, the second reversed.
    mirrored = torch.cat([*integrals[1:order].split(1)[::-1], integrals])
    ahead = torch.zeros_like(integrals[:order])
    behind = torch.zeros_like(ahead)
    for j, c in enumerate(coefficients):
        ahead.addcmul_(c, integrals[j : j + order], value=0.5)
        behind.addcmul_(c, mirrored[j : j + order], value=0.5)
    return ahead.add_(torch.cat(behind.split(1)[::-1]))


@cache
def _antiderivatives(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """From Chebyshev polynomials to antiderivatives, (count, count + 1)."""
    found = np.zeros((count, count + 1))
    for j in range(count):
        antiderivative = chebyshev.chebint(np.eye(count)[j])
        found[j, 1 : j + 2] = antiderivative[1 : j + 2]
    return constant(found, dtype, device)


@cache
def _squaring(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """From coefficients to values at enough points, and from their squares to coefficients."""
    count = 2 * order - 1
    values = chebyshev.chebvander(chebyshev.chebpts1(count), count - 1).astype(np.float64)
    back = np.linalg.inv(values).astype(np.float64)
    return constant(values[:, :order], dtype, device), constant(back, dtype, device)
