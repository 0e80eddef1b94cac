r"""Expectations of vector-valued piecewise polynomials under beta-Gaussians, compiled by numba.

A function V(t) in E channels is given on G cells of equal length by its coefficients in powers
$u^k$, k = 0..5, of the local coordinate u in [-1, 1] of a cell; outside of the cells it is zero.
The expectation under $p \propto (1 - x^2)_+^m$, $x = (t - \mu)/s$, is a Gauss-Jacobi rule,
$$E_p[V] \approx \sum_q \omega_q V(\mu + s x_q),$$
whose number of nodes grows with s over the length on which V varies.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shared_contour_numba import compiled

__all__ = ["expect", "pull_back"]

_Array = NDArray[Any]
_F32 = np.float32


@compiled
def expect(
    coefficients: _Array,
    cells: Any,
    loc: _Array,
    scale: _Array,
    orders: _Array,
    rules: _Array,
    out: _Array,
) -> None:
    """Fill `out` (R, E) with the expectations of V (G, 6, E) under densities loc, scale (R,).

    `cells` holds where the cells start, their length, and the length on which V varies; `rules`
    (K, 2, largest order) the nodes and weights of the rules with `orders` (K) nodes.
    """
    start, length, width = cells
    total = np.empty(coefficients.shape[2], _F32)
    for r in range(len(loc)):
        total[:] = 0
        middle, half = (loc[r] - start) / length, scale[r] / length
        if not (np.isfinite(middle) and np.isfinite(half)):
            out[r, :] = np.nan
            continue
        k = _rule(orders, scale[r] / width)
        for q in range(orders[k]):
            place = middle + half * rules[k, 0, q]
            if not 0 <= place < len(coefficients):
                continue
            cell = np.uint64(place)
            c, u, weight = coefficients[cell], _F32(2 * (place - cell) - 1), _F32(rules[k, 1, q])
            for e in range(len(total)):
                low = c[0, e] + u * (c[1, e] + u * c[2, e])
                total[e] += weight * (low + u * u * u * (c[3, e] + u * (c[4, e] + u * c[5, e])))
        for e in range(len(total)):
            out[r, e] = total[e]


@compiled
def _rule(orders: _Array, ratio: float) -> int:
    """Return which rule integrates a Gaussian to 2e-7 on a half-width of `ratio` of its widths."""
    k = 0
    while k < len(orders) - 1 and orders[k] < 2.85 * ratio + 3:
        k += 1
    return k


@compiled
def pull_back(
    coefficients: _Array,
    cells: Any,
    loc: _Array,
    scale: _Array,
    orders: _Array,
    rules: _Array,
    grad: _Array,
    by_loc: _Array,
    by_scale: _Array,
    by_coefficients: _Array,
) -> None:
    """Fill the gradients in loc and scale and add that in the coefficients, given that in `out`."""
    start, length, width = cells
    size = coefficients.shape[2]
    # In float64, as a derivative in a short scale is a small difference of slopes on both sides.
    slope, moment, upstream = np.empty(size), np.empty(size), np.empty(size, _F32)
    for r in range(len(loc)):
        middle, half = (loc[r] - start) / length, scale[r] / length
        if not (np.isfinite(middle) and np.isfinite(half)):
            by_loc[r], by_scale[r] = np.nan, np.nan
            continue
        slope[:], moment[:] = 0, 0
        for e in range(size):
            upstream[e] = grad[r, e]
        k = _rule(orders, scale[r] / width)
        # Two passes over the nodes: the coefficients and their gradient together exceed the cache.
        for q in range(orders[k]):
            x = rules[k, 0, q]
            place = middle + half * x
            if 0 <= place < len(coefficients):
                cell = np.uint64(place)
                c, u, weight = coefficients[cell], 2 * (place - cell) - 1, rules[k, 1, q]
                for e in range(size):
                    high = 3 * c[3, e] + u * (4 * c[4, e] + u * 5 * c[5, e])
                    d = weight * (c[1, e] + u * (2 * c[2, e] + u * high))
                    slope[e] += d
                    moment[e] += x * d
        for q in range(orders[k]):
            place = middle + half * rules[k, 0, q]
            if 0 <= place < len(coefficients):
                cell = np.uint64(place)
                u, b = _F32(2 * (place - cell) - 1), _F32(rules[k, 1, q])
                for n in range(coefficients.shape[1]):
                    for e in range(size):
                        by_coefficients[cell, n, e] += b * upstream[e]
                    b *= u
        first, second = 0.0, 0.0
        for e in range(size):
            first += slope[e] * upstream[e]
            second += moment[e] * upstream[e]
        by_loc[r], by_scale[r] = 2 * first / length, 2 * second / length
