"""The loops of `shared_nodes`, which says what they compute.

Row by row, so that what a row needs stays in the cache next to the processor, and with three axes:
one that a space of fewer dimensions lacks has a half-axis and offsets of zero. Centers out of reach
are left out; those that the edge of the support is near come first, then those well inside.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled, principal_axes
from .shared_pairs import find_pairs
from .shared_terms import LANES, LONG, SUMS, find_terms, sum_up

__all__ = ["integrate_rows"]

_Array = NDArray[Any]
_F32, _HALF, _ONE = np.float32, np.float32(0.5), np.float32(1)
# Where an integral is below exp of this it counts as zero, as the path would blow up.
_NOTHING = -13.0
# In widths: float64 keeps the digits of what the exponents of longer supports differ by.
_LONGEST = 1e4


@compiled
def integrate_rows(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    paths: _Array,
    exponent: float,
    share: float,
    rows: Any,
) -> int:
    """Fills the arrays of `Rows`, zeros and no row with digits; how many have them is returned."""
    values, near, axes, places, slopes = rows
    dim, size, square, good = loc.shape[1], len(centers), np.empty(3), 0
    points, middles, exact = _in_widths(centers, width), _in_widths(loc, width), np.zeros((3, size))
    y, sums = np.zeros((3, size + LANES), _F32), np.empty((SUMS[dim], size + LANES), _F32)
    some = sums[: SUMS[dim] if len(slopes) else 1]
    # The powers of the width come last: in the exponents they would cost digits.
    law = dim, exponent, share, width**-dim
    for r in range(len(loc)):
        longest = principal_axes(scale_tril[r], width, square, axes[r])
        _turn(middles[:, r], points, dim, axes[r], exact)
        row = exact, y, some, places[r], values[r]
        near[r] = _by_path(law, paths, square, longest, row)
        if near[r] < 0 and dim > 1 and exponent >= 1:
            near[r] = _by_pairs(law, square, longest, row)
        good += near[r] >= 0
        if near[r] >= 0 and len(slopes):
            _write_slopes(sums, y, square, near[r], dim, slopes[r])
    return good


@compiled
def _by_path(law: Any, paths: _Array, square: _Array, longest: float, row: Any) -> int:
    """How many centers have a share, by one path; below zero where the row has no digits."""
    dim, exponent, share, scale = law
    exact, y, sums, places, values = row
    path = _first_reaching(paths, longest)
    if path < 0:
        return -1
    offsets, kinds = exact.astype(_F32), np.empty(len(values), np.int8)
    _tell_apart(dim, square, longest, exponent == 1, offsets, kinds)
    edge, found = _gather(kinds, dim, offsets, places, y)
    nodes = int(paths[path, 0, 1])
    factors, rates, largest = find_terms(dim, square, paths[path, 1:], nodes, len(sums))
    sum_up(factors, rates, dim, y, edge, sums)
    if edge < found:
        _fill_inside(dim, square, y, edge, found, sums)
    top = _write_values(sums[0], scale, places, found, values)
    return found if share * largest * scale <= top < math.inf else -1


@compiled
def _by_pairs(law: Any, square: _Array, longest: float, row: Any) -> int:
    """The same by a path for each center, all of which have a share."""
    dim, exponent, _, scale = law
    exact, y, sums, places, values = row
    size = len(values)
    if longest > _LONGEST or not find_pairs(dim, exponent, math.log(scale), square, exact, sums):
        return -1
    for j in range(size):
        places[j] = j
    for d in range(dim):
        for j in range(size):
            # Squares of the others could overflow, and zero times infinity is no zero.
            y[d, j] = exact[d, j] if sums[0, j] > 0 else 0.0
    top = _write_values(sums[0], scale, places, size, values)
    return size if top < math.inf else -1


@compiled
def _first_reaching(paths: _Array, longest: float) -> int:
    for path in range(len(paths)):
        if longest <= paths[path, 0, 0]:
            return path
    return -1


@compiled
def _in_widths(points: _Array, width: float) -> _Array:
    """Points (N, D) as (3, N), float64."""
    found = np.zeros((3, len(points)))
    for d in range(points.shape[1]):
        for j in range(len(points)):
            found[d, j] = np.float64(points[j, d]) / width
    return found


@compiled
def _turn(loc: _Array, centers: _Array, dim: int, axes: _Array, offsets: _Array) -> None:
    """Offsets along the axes.

    In float64, as a float32 rotation would move what is far along a thin support.
    """
    a, b, c = loc[0], loc[1], loc[2]
    for d in range(dim):
        u, v, w = axes[0, d], axes[1, d], axes[2, d]
        for j in range(centers.shape[1]):
            offset = u * (centers[0, j] - a) + v * (centers[1, j] - b) + w * (centers[2, j] - c)
            offsets[d, j] = offset


@compiled
def _tell_apart(
    dim: int, square: _Array, longest: float, parabolic: bool, offsets: _Array, kinds: _Array
) -> None:
    """0 for a center without a share in the support, 2 for one well inside, 1 for others.

    By Chernoff's bounds: a term at any real z is more than the integral and, where z is negative,
    more than what the edge of a support takes from a parabola's integral over all of space.
    """
    rates, most = np.zeros((2, 3), _F32), np.empty(2, _F32)
    shortest, loss = longest, 0.0
    for d in range(dim):
        shortest = min(shortest, math.sqrt(square[d]))
    outside, inside = 2.5 * longest + 4, min(2.5 * longest, 0.3 * shortest * shortest)
    for d in range(dim):
        rates[0, d], rates[1, d] = 1 / (square[d] + 2 * outside), 1 / (square[d] - 2 * inside)
        loss -= 0.5 * math.log(1 - 2 * inside / square[d])
    most[0] = 1 - _NOTHING / outside
    most[1] = 1 + (_NOTHING - loss) / inside if parabolic else -1.0
    _count_below(rates, most, offsets, kinds)


@compiled
def _count_below(rates: _Array, most: _Array, offsets: _Array, kinds: _Array) -> None:
    """How many of two sums over the axes are at most a number."""
    a, b, c, first = rates[0, 0], rates[0, 1], rates[0, 2], most[0]
    d, e, f, second = rates[1, 0], rates[1, 1], rates[1, 2], most[1]
    for j in range(len(kinds)):
        x, y, z = offsets[0, j], offsets[1, j], offsets[2, j]
        x, y, z = x * x, y * y, z * z
        near, inside = a * x + b * y + c * z <= first, d * x + e * y + f * z <= second
        kinds[j] = np.int8(near) + np.int8(inside)


@compiled
def _gather(kinds: _Array, dim: int, offsets: _Array, places: _Array, y: _Array) -> Any:
    """How many centers are near the edge, how many in all have a share, and which.

    Their offsets go first, then zeros.
    """
    edge = 0
    for j in range(len(kinds)):
        places[edge] = j
        edge += kinds[j] == 1
    found = edge
    for j in range(len(kinds)):
        if kinds[j] == 2:
            places[found] = j
            found += 1
    for d in range(dim):
        for i in range(found):
            y[d, i] = offsets[d, places[i]]
        for i in range(found, found + LANES):
            y[d, i] = 0
    return edge, found


@compiled
def _fill_inside(dim: int, square: _Array, y: _Array, start: int, end: int, sums: _Array) -> None:
    """The sums at centers so far inside that a parabola's integral over all of space serves.

    It is the density at the center and half of what the Gaussian's variance makes of its curvature.
    """
    top = math.gamma(0.5 * dim + 2) / math.pi ** (0.5 * dim)
    for d in range(dim):
        top /= math.sqrt(square[d])
    value = sums[0, start:end]
    for i in range(len(value)):
        value[i] = top
    for d in range(dim):
        factor, offset = _F32(top / square[d]), y[d, start:end]
        for i in range(len(value)):
            value[i] -= factor * (offset[i] * offset[i] + _ONE)
    at = 1
    for d in range(dim if len(sums) > 1 else 0):
        for e in range(-1, d + 1):
            factor = 2 * top / square[d] * (2 / square[e] if e >= 0 else 1.0)
            row = sums[at, start:end]
            for i in range(len(row)):
                row[i] = factor
            at += 1


@compiled
def _write_values(total: _Array, scale: float, places: _Array, count: int, values: _Array) -> Any:
    """Values where they belong; the largest is returned."""
    top = _F32(0)
    for i in range(count):
        values[places[i]] = total[i] * scale
    for i in range(count):
        top = max(top, total[i])
    return top * scale


@compiled
def _write_slopes(
    sums: _Array, y: _Array, square: _Array, count: int, dim: int, slopes: _Array
) -> None:
    """Derivatives in y_d and, twice, in A_de, by axes."""
    at, to = 1, 0
    for d in range(dim):
        p = _F32(0.5 * square[d])
        for i in range(count):
            # The one of two that was not summed.
            by_y, less = sums[at, i], _HALF * sums[at, i]
            if p > LONG:
                less = _HALF * (sums[0, i] - by_y) / p
            else:
                by_y = sums[0, i] - p * by_y
            slopes[to, i] = y[d, i] * by_y
            slopes[to + d + 1, i] = _HALF * y[d, i] * y[d, i] * sums[at + d + 1, i] - less
        for e in range(d):
            for i in range(count):
                slopes[to + e + 1, i] = _HALF * y[d, i] * y[e, i] * sums[at + e + 1, i]
        at, to = at + d + 2, to + d + 2
