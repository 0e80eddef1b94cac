"""Loops for integrals of powers of polynomials over the pieces of panels where they are positive.

Arrays hold one panel or piece in each column, so that the processor does many at once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled
from .series_loops import gathered, sum_values

__all__ = ["lowered_power", "near_panels", "piece_masses", "piece_moments"]

_Array = NDArray[Any]
_F32 = np.float32
_ZERO, _HALF, _ONE, _TWO = _F32(0), _F32(0.5), _F32(1), _F32(2)
# What is near an edge, as in `edges`.
_BEYOND = 16


@compiled
def lowered_power(u: Any, exponent: int) -> Any:
    """u^(exponent - 1) for u > 0, and 0 elsewhere, for exponents from 1 to 4."""
    u = max(u, _ZERO)
    if exponent == 1:
        return _ONE if u > 0 else _ZERO
    if exponent == 2:
        return u
    return u * u if exponent == 3 else u * u * u


@compiled
def near_panels(x: _Array, level: _Array, scale: Any, margin: Any) -> Any:
    """Panels where 1 + scale (x - level) changes sign, or would if the level moved by a margin.

    Of each its number, its row, and the values at its nodes (m, K).
    """
    order, count, size = x.shape
    low, high = np.empty(size, x.dtype), np.empty(size, x.dtype)
    panels, rows = np.empty(count * size, np.int64), np.empty(count * size, np.int64)
    slack, n = x.dtype.type(_BEYOND / (order * order)), 0
    for g in range(count):
        for i in range(size):
            low[i] = high[i] = x[0, g, i]
        for j in range(1, order):
            for i in range(size):
                low[i], high[i] = min(low[i], x[j, g, i]), max(high[i], x[j, g, i])
        for i in range(size):
            # How far values may go on between the outermost nodes and the ends.
            edge, away = level[i] - _ONE / scale, (high[i] - low[i]) * slack + margin
            panels[n], rows[n] = g, i
            n += low[i] < edge + away and high[i] > edge - away
    u, values, own = np.empty((order, n), x.dtype), x.reshape(order, -1), level[rows[:n]]
    for j in range(order):
        for k in range(n):
            u[j, k] = _ONE + scale * (values[j, panels[k] * size + rows[k]] - own[k])
    return panels[:n], rows[:n], u


@compiled
def piece_masses(
    coefficients: _Array,
    shift: _Array,
    pieces: Any,
    base: _Array,
    rule: Any,
    exponent: int,
    masses: _Array,
) -> None:
    """Adds integrals of a power and of the lowered power over pieces to those of columns (2, K).

    Times a base whose series (m, K) belong to columns, too; of a constant one the first row serves.
    """
    column, ends = pieces
    own, share = gathered(coefficients, shift, column), gathered(base, np.zeros_like(shift), column)
    value, other = np.empty((3, len(column)), own.dtype), np.empty((3, len(column)), own.dtype)
    found = np.zeros((2, len(column)), own.dtype)
    for q in range(len(rule[0])):
        sum_values(own, ends, rule[0][q], value)
        if len(base) > 1:
            sum_values(share, ends, rule[0][q], other)
        height = other[0] if len(base) > 1 else share[0]
        for i in range(len(column)):
            low = rule[1][q] * (ends[1, i] - ends[0, i]) * lowered_power(value[0, i], exponent)
            low *= height[i]
            found[0, i] += low * value[0, i]
            found[1, i] += low
    for i in range(len(column)):
        masses[0, column[i]] += found[0, i]
        masses[1, column[i]] += found[1, i]


@compiled
def piece_moments(
    coefficients: _Array, shift: _Array, pieces: Any, rule: Any, exponent: int
) -> _Array:
    """Integrals of both powers times Chebyshev polynomials over n pieces, (2, m, n)."""
    own, ends = gathered(coefficients, shift, pieces[0]), pieces[1]
    found = np.zeros((2, *own.shape), own.dtype)
    if exponent == 1:
        _linear_moments(own, ends, found)
        return found
    count, kind = own.shape[1], own.dtype
    value, heights, basis = (
        np.empty((3, count), kind),
        np.empty((2, count), kind),
        np.empty((2, count), kind),
    )
    for q in range(len(rule[0])):
        sum_values(own, ends, rule[0][q], value)
        for i in range(count):
            low = rule[1][q] * (ends[1, i] - ends[0, i]) * lowered_power(value[0, i], exponent)
            heights[0, i], heights[1, i] = low * value[0, i], low
            basis[0, i], basis[1, i] = _ONE, value[2, i]
        _add_moments(heights, basis, value[2], found)
    return found


@compiled
def _linear_moments(own: _Array, ends: _Array, found: _Array) -> None:
    """Adds those of polynomials themselves and of 1: 2 T_j T_k is T_(j+k) and T_(j-k)."""
    order = len(own)
    whole = np.zeros((2 * order - 1, own.shape[1]), own.dtype)
    _add_integrals(ends[1], _ONE, whole)
    _add_integrals(ends[0], -_ONE, whole)
    for j in range(order):
        high, low, integral = found[0, j], found[1, j], whole[j]
        for k in range(order):
            own_k, above, below = own[k], whole[j + k], whole[abs(j - k)]
            for i in range(len(high)):
                high[i] += _HALF * own_k[i] * (above[i] + below[i])
        for i in range(len(low)):
            low[i] += integral[i]


@compiled
def _add_integrals(y: _Array, factor: Any, found: _Array) -> None:
    """Adds a factor times integrals of Chebyshev polynomials up to y, (N, n)."""
    room = np.empty((2, len(y)), y.dtype)
    before, last, kind = room[0], room[1], y.dtype.type
    for i in range(len(y)):
        before[i], last[i] = _ONE, y[i]
        found[0, i] += factor * y[i]
        found[1, i] += factor * _HALF * y[i] * y[i]
    for j in range(2, len(found)):
        up, down, row = factor * kind(0.5 / (j + 1)), factor * kind(0.5 / (j - 1)), found[j]
        for i in range(len(y)):
            this = _TWO * y[i] * last[i] - before[i]
            row[i] += up * (_TWO * y[i] * this - last[i]) - down * last[i]
            before[i], last[i] = last[i], this


@compiled
def _add_moments(heights: _Array, basis: _Array, y: _Array, found: _Array) -> None:
    """Adds heights at y times Chebyshev polynomials, of which the first two are given."""
    count = found.shape[1]
    for j in range(0, count - 1, 2):
        for i in range(len(y)):
            t, above, twice = basis[0, i], basis[1, i], _TWO * y[i]
            found[0, j, i] += heights[0, i] * t
            found[1, j, i] += heights[1, i] * t
            found[0, j + 1, i] += heights[0, i] * above
            found[1, j + 1, i] += heights[1, i] * above
            basis[0, i] = twice * above - t
            basis[1, i] = twice * basis[0, i] - above
    if count % 2:
        for i in range(len(y)):
            found[0, count - 1, i] += heights[0, i] * basis[0, i]
            found[1, count - 1, i] += heights[1, i] * basis[0, i]
