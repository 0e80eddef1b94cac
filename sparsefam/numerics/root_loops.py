"""Loops for the roots of polynomials on panels, as `edges` and `sides` find them.

Arrays hold one panel, root or piece in each column, so that the processor does many at once. Most
panels have one root; the others go one by one.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled, wave
from .series_loops import gathered, series_at, sum_series

__all__ = ["find_pieces"]

_Array = NDArray[Any]
_F32 = np.float32
_ZERO, _HALF, _ONE, _TWO = _F32(0), _F32(0.5), _F32(1), _F32(2)
_TINY = _F32(np.finfo(np.float32).tiny)
# How far from a check point the vertex of the parabola through it may lie, as in `edges`.
_REACH = _F32(2)
_BEND = _F32(2**2 / 8)
# Steps to a vertex, and from near a root to it, in float32 and float64.
_STEPS, _LAST_STEPS = 3, (1, 3)


@compiled
def find_pieces(
    checks: _Array, coefficients: _Array, points: _Array, shift: _Array, rootless: bool
) -> Any:
    """Where polynomials less a shift are positive that have a root in (-1, 1).

    Args:
        checks: Values at check points, (C, K).
        coefficients: Of Chebyshev polynomials, (m, K).
        points: The check points (C), both ends included.
        shift: (K).
        rootless: Whether those that are positive everywhere are wanted, too; their root is at 1.

    Returns:
        Of each piece its column, and its lower and upper end (2, n); of each root its column, and
        how steep the polynomial is there.
    """
    column, sign, x, ends, first = _brackets(checks, coefficients, points, shift, rootless)
    slope = _refine(gathered(coefficients, shift, column), sign, x, ends)
    return _between(column, sign, x, first), (column, slope)


@compiled
def _brackets(
    checks: _Array, coefficients: _Array, points: _Array, shift: _Array, rootless: bool
) -> Any:
    """Of each root its column, whether the polynomial falls, a start and bounds; in rising order.

    Last comes whether a root is the first one of its column.
    """
    seen, n, size = _signs(checks, shift), 0, 0
    for k in range(len(shift)):
        # Not by what was counted: compiled elsewhere the same sums may be rounded otherwise.
        size += 2 * len(points) if seen[2, k] > 0 or seen[1, k] > 1 else 1
    column, first, kind = np.empty(size, np.int64), np.ones(size, np.bool_), checks.dtype
    sign, x, ends = np.empty(size, kind), np.empty(size, kind), np.empty((2, size), kind)
    found = sign, x, ends, np.zeros((6, size), kind)
    for k in range(len(shift)):
        before = n
        if seen[2, k] > 0 or seen[1, k] > 1:
            n = _scan(checks, k, points, coefficients, shift[k], found, n)
        elif seen[1, k] > 0:
            falls, positive = checks[0, k] > shift[k], int(seen[0, k])
            after = positive - 1 if falls else len(points) - 1 - positive
            _note(checks, k, shift[k], points, after, found, n)
            n += 1
        elif rootless and seen[0, k] == len(points):
            sign[n] = x[n] = ends[0, n] = ends[1, n] = _ONE
            n += 1
        for i in range(before, n):
            column[i], first[i] = k, i == before
    _from_cubics(found[3], n, len(points) - 1, sign, x)
    # Slices of ends would not lie side by side in memory.
    return column[:n], sign[:n], x[:n], ends[:, :n].copy(), first[:n]


@compiled
def _note(
    checks: _Array, k: int, shift: Any, points: _Array, after: int, found: Any, n: int
) -> None:
    """What is known of a root in column k after a check point: it becomes the n-th."""
    sign, _, ends, values = found
    sign[n] = _ONE if checks[after, k] > shift else -_ONE
    ends[0, n], ends[1, n] = points[after], points[after + 1]
    start = min(max(after - 1, 0), len(points) - 4)
    for c in range(4):
        values[c, n] = checks[start + c, k] - shift
    values[4, n], values[5, n] = after - start, start


@compiled
def _signs(checks: _Array, shift: _Array) -> _Array:
    """How many values are positive, how often signs change, how many dips may be hidden (3, K)."""
    found = np.zeros((3, len(shift)), shift.dtype)
    for k in range(len(shift)):
        first, second = checks[0, k] > shift[k], checks[1, k] > shift[k]
        found[0, k] = (_ONE if first else _ZERO) + (_ONE if second else _ZERO)
        found[1, k] = _ONE if first != second else _ZERO
    for c in range(2, len(checks)):
        first, second, third = checks[c - 2], checks[c - 1], checks[c]
        for k in range(len(shift)):
            left, mid, right = first[k] - shift[k], second[k] - shift[k], third[k] - shift[k]
            found[0, k] += _ONE if right > 0 else _ZERO
            found[1, k] += _ONE if (mid > 0) != (right > 0) else _ZERO
            found[2, k] += _ONE if _may_dip(left, mid, right) else _ZERO
    return found


@compiled
def _may_dip(left: Any, mid: Any, right: Any) -> Any:
    """Whether the parabola through three values of one sign may have another in between."""
    bend, size = left + right - _TWO * mid, abs(mid)
    # Without a branch, so that the compiler does many at once.
    near = (abs(left - right) <= _REACH * abs(bend)) & (size <= _BEND * abs(bend))
    return near & (mid * bend > 0) & ((mid > 0) == (left > 0)) & ((mid > 0) == (right > 0))


@compiled
def _from_cubics(values: _Array, count: int, last: int, sign: _Array, x: _Array) -> None:
    """Roots of cubics in the angle through four values around a change of sign, after `values[4]`.

    Where values are zero there is nothing to do.
    """
    for i in range(count):
        a, b, c, d = values[0, i], values[1, i], values[2, i], values[3, i]
        left, third = values[4, i], _F32(1 / 3)
        first = third * d - _F32(1.5) * c + _F32(3) * b - _F32(11 / 6) * a
        second = a - _F32(2.5) * b + _TWO * c - _HALF * d
        cube = _HALF * (b - c + third * (d - a))
        low = a if left < _HALF else (b if left < _F32(1.5) else c)
        high = b if left < _HALF else (c if left < _F32(1.5) else d)
        t = left + low / (low - high)
        for _ in range(2):
            value = a + t * (first + t * (second + t * cube))
            rate = first + t * (_TWO * second + t * _F32(3) * cube)
            step = _parabola_step(value, rate, _TWO * second + _F32(6) * t * cube, sign[i])
            t = min(max(t + step, left), left + _ONE)
        cosine, _ = wave(_ZERO, (values[5, i] + t) / (_TWO * last))
        x[i] = -cosine if low != high else x[i]


@compiled
def _parabola_step(value: Any, rate: Any, curve: Any, sign: Any) -> Any:
    """To a parabola's root: of two to that where it falls or rises, as a sign says."""
    rest = math.sqrt(max(rate * rate - _TWO * value * curve, _ZERO))
    # Where there is nothing to divide by there is a root.
    divisor = rate + math.copysign(rest + _TINY, rate)
    return -divisor / curve if rate * sign > 0 else -_TWO * value / divisor


@compiled
def _scan(
    checks: _Array, k: int, points: _Array, coefficients: _Array, shift: Any, found: Any, n: int
) -> int:
    """Notes all roots in column k from the n-th on, and says what comes after."""
    sign, x, ends, _ = found
    last, mid, right = -_TWO, checks[0, k] - shift, checks[1, k] - shift
    for c in range(1, len(points)):
        left, mid = mid, right
        right = checks[min(c + 1, len(points) - 1), k] - shift
        if (left > 0) != (mid > 0):
            _note(checks, k, shift, points, c - 1, found, n)
            n += 1
        elif c + 1 < len(points) and _may_dip(left, mid, right):
            turn = c + (left - right) / (_TWO * (left + right - _TWO * mid))
            vertex, height, curve = _vertex(turn, len(points), coefficients[:, k], shift)
            inside = points[c - 1] < vertex < points[c + 1] and (height > 0) != (mid > 0)
            # Two check points may lead to one vertex.
            if inside and vertex > last:
                last = points[c + 1] if vertex > points[c] else points[c]
                away = math.sqrt(abs(_TWO * height / curve))
                for side in range(2):
                    sign[n] = _ONE if (height > 0) == (side == 1) else -_ONE
                    x[n] = vertex + (away if side else -away)
                    ends[0, n] = vertex if side else points[c - 1]
                    ends[1, n] = points[c + 1] if side else vertex
                    n += 1
    return n


@compiled
def _vertex(turn: Any, count: int, coefficients: _Array, shift: Any) -> Any:
    """Where the slope of a polynomial vanishes near a check point; value and curvature."""
    x = coefficients.dtype.type(-math.cos(math.pi / (count - 1) * turn))
    for _ in range(_STEPS):
        value, rate, curve = series_at(coefficients, x)
        step = min(max(x - rate / curve, -_ONE), _ONE) - x
        x, value = x + step, value - shift + step * (rate + step * curve * _HALF)
    return x, value, curve


@compiled
def _refine(own: _Array, sign: _Array, x: _Array, ends: _Array) -> Any:
    """Roots of polynomials (m, n) by steps from nearby, in place; how steep these are there."""
    parts = np.empty((6, len(x)), x.dtype)
    for _ in range(_LAST_STEPS[0] if x.itemsize == 4 else _LAST_STEPS[1]):
        parts[:] = 0
        sum_series(own, x, parts)
        for i in range(len(x)):
            value, rate, curve, before = parts[0, i], parts[1, i], parts[2, i], x[i]
            step = _parabola_step(value, rate, curve, sign[i])
            x[i] = min(max(before + step, ends[0, i]), ends[1, i])
            parts[3, i] = abs(rate + curve * (x[i] - before))
    return parts[3]


@compiled
def _between(column: _Array, sign: _Array, x: _Array, first: _Array) -> Any:
    """Pieces from roots that stand in rising order in each column."""
    found, ends, n = np.empty(2 * len(x), np.int64), np.empty((2, 2 * len(x)), x.dtype), 0
    for i in range(len(x)):
        if sign[i] > 0:
            ends[0, n] = -_ONE if first[i] else x[i - 1]
            ends[1, n] = max(x[i], ends[0, n])
            found[n], n = column[i], n + 1
        elif i + 1 == len(x) or first[i + 1]:
            ends[0, n], ends[1, n] = x[i], _ONE
            found[n], n = column[i], n + 1
    return found[:n], ends[:, :n].copy()
