"""Integrals of powers of polynomials times Lagrange polynomials, over pieces of [-1, 1].

Arrays hold one panel in each column. Where a power is 0, 1 or 2 its product with a Lagrange
polynomial is a polynomial of low degree, known by its values at nodes that all panels share: only
the weights of these nodes depend on the pieces, and all the rest are matrix products.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import scipy  # whose parts load when they are asked for: importing this package stays quick
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from .quadrature import constant

__all__ = [
    "chebyshev_polynomials",
    "chebyshev_sum",
    "piece_weights",
    "short_weights",
]


class _Grid(NamedTuple):
    """Nodes for products of a degree.

    Attributes:
        values: From values at the nodes of a panel to those at these, (N, m).
        shares: From Chebyshev polynomials (N + 1) at y to the nodes' weights on [-1, y].
    """

    values: Tensor
    shares: Tensor


def chebyshev_polynomials(y: Tensor, count: int) -> Tensor:
    r"""Chebyshev polynomials (count, ...) at y, several rows at a time.

    $T_{n} = 2 T_k T_{n-k} - T_{n-2k}$ for as large a k as is known.
    """
    basis = y.new_empty(count, *y.shape)
    basis[0] = 1
    basis[1] = y
    known = 2
    while known < count:
        k = known // 2
        more = min(k, count - known)
        first, rows = known - k, basis[known : known + more]
        torch.mul(basis[first : first + more], 2 * basis[k], out=rows)
        rows -= basis[first - k : first - k + more]
        known += more
    return basis


def chebyshev_sum(coefficients: Tensor, x: Tensor) -> Tensor:
    """Polynomials with coefficients (m, n) at x (..., n), by Clenshaw's recurrence."""
    twice = 2 * x
    above, current = torch.zeros_like(x), coefficients[-1].expand_as(x)
    for c in reversed(coefficients[1:-1].unbind()):
        above, current = current, torch.addcmul(c - above, twice, current)
    if len(coefficients) == 1:
        return current
    return torch.addcmul(coefficients[0] - above, x, current)


def piece_weights(order: int, power: int, lower: Tensor, upper: Tensor) -> Tensor:
    """Weights (N, n) on all pieces for products of a power with m Lagrange polynomials.

    Args:
        order: How many Lagrange polynomials there are.
        power: From 0 to 2.
        lower: Lower ends (K, n).
        upper: Upper ends (K, n).
    """
    shares = _grid(order, power, upper.dtype, upper.device).shares
    ends = chebyshev_polynomials(torch.cat([upper, lower]), shares.shape[1])
    return shares @ (ends[:, : len(upper)].sum(1) - ends[:, len(upper) :].sum(1))


def short_weights(u: Tensor, powers: list[int], weights: Tensor) -> list[Tensor]:
    """Integrals of powers of polynomials times Lagrange polynomials, (m, n) for each power.

    Args:
        u: Values of the polynomials at the nodes of panels, (m, n).
        powers: From 0 to 2.
        weights: `piece_weights` or `root_weights` for the greatest power.
    """
    values = _grid(len(u), max(powers), u.dtype, u.device).values
    found, at = [weights], values @ u
    for _ in range(max(powers)):
        found.append(found[-1] * at)
    return [values.T @ found[power] for power in powers]


@cache
def _grid(order: int, power: int, dtype: torch.dtype, device: torch.device) -> _Grid:
    nodes, _ = scipy.special.roots_legendre(order)
    count = (power + 1) * (order - 1) + 1
    places, _ = scipy.special.roots_legendre(count)
    coefficients = np.linalg.inv(chebyshev.chebvander(nodes, order - 1))
    values = chebyshev.chebvander(places, order - 1) @ coefficients
    lagrange = np.linalg.inv(chebyshev.chebvander(places, count - 1))
    shares = np.zeros((count, count + 1))
    for j, c in enumerate(lagrange.T):
        shares[j] = chebyshev.chebint(c, lbnd=-1)
    return _Grid(constant(values, dtype, device), constant(shares, dtype, device))
