"""Loops for Chebyshev series, one in each column, by Clenshaw's recurrence.

Two steps at a time, after which all numbers are where they were: less goes through memory.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled

__all__ = ["gathered", "series_at", "sum_series", "sum_values"]

_Array = NDArray[Any]
_F32 = np.float32
_ZERO, _TWO, _FOUR = _F32(0), _F32(2), _F32(4)


@compiled
def gathered(coefficients: _Array, shift: _Array, column: _Array) -> _Array:
    """The coefficients of some columns less their shifts, (m, n)."""
    found = np.empty((len(coefficients), len(column)), coefficients.dtype)
    for j in range(len(coefficients)):
        for i in range(len(column)):
            found[j, i] = coefficients[j, column[i]]
    for i in range(len(column)):
        found[0, i] -= shift[column[i]]
    return found


@compiled
def series_at(coefficients: _Array, x: Any) -> Any:
    """Value, slope and curvature."""
    value, rate, curve = _ZERO, _ZERO, _ZERO
    b, d, e = _ZERO, _ZERO, _ZERO
    for j in range(len(coefficients) - 1, 0, -1):
        e, curve = _TWO * x * e - curve + _FOUR * d, e
        d, rate = _TWO * x * d - rate + _TWO * b, d
        b, value = _TWO * x * b - value + coefficients[j], b
    return x * b - value + coefficients[0], x * d - rate + b, x * e - curve + _TWO * d


@compiled
def sum_series(own: _Array, x: _Array, parts: _Array) -> None:
    """Adds values, slopes and curvatures of polynomials at x to parts (6, n), which are zero."""
    value, rate, curve, b, d, e = parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]
    if len(own) % 2:
        for i in range(len(x)):
            value[i] = own[len(own) - 1, i]
    for j in range(len(own) - 1 - len(own) % 2, 1, -2):
        first, second = own[j], own[j - 1]
        for i in range(len(x)):
            twice = _TWO * x[i]
            e[i] = twice * curve[i] - e[i] + _FOUR * rate[i]
            d[i] = twice * rate[i] - d[i] + _TWO * value[i]
            b[i] = twice * value[i] - b[i] + first[i]
            curve[i] = twice * e[i] - curve[i] + _FOUR * d[i]
            rate[i] = twice * d[i] - rate[i] + _TWO * b[i]
            value[i] = twice * b[i] - value[i] + second[i]
    for i in range(len(x)):
        twice = _TWO * x[i]
        e[i] = twice * curve[i] - e[i] + _FOUR * rate[i]
        d[i] = twice * rate[i] - d[i] + _TWO * value[i]
        b[i] = twice * value[i] - b[i] + own[1, i]
        curve[i] = x[i] * e[i] - curve[i] + _TWO * d[i]
        rate[i] = x[i] * d[i] - rate[i] + b[i]
        value[i] = x[i] * b[i] - value[i] + own[0, i]


@compiled
def sum_values(own: _Array, ends: _Array, node: Any, value: _Array) -> None:
    """Values at a node of a rule on pieces, which comes third; work space comes second."""
    found, other, y = value[0], value[1], value[2]
    lower, upper, count = ends[0], ends[1], len(own)
    for i in range(len(y)):
        y[i] = lower[i] + node * (upper[i] - lower[i])
        found[i] = other[i] = 0
    if count % 2:
        for i in range(len(y)):
            found[i] = own[count - 1, i]
    for j in range(count - 1 - count % 2, 1, -2):
        first, second = own[j], own[j - 1]
        for i in range(len(y)):
            twice = _TWO * y[i]
            other[i] = twice * found[i] - other[i] + first[i]
            found[i] = twice * other[i] - found[i] + second[i]
    for i in range(len(y)):
        other[i] = _TWO * y[i] * found[i] - other[i] + own[1, i]
        found[i] = y[i] * other[i] - found[i] + own[0, i]
