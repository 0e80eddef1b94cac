"""The loops of `shared_nodes`, which says what they compute.

Row by row, so that what a row needs stays in the cache next to the processor, and with three axes:
one that a space of fewer dimensions lacks has a half-axis and offsets of zero. Centers out of reach
are left out, the others stand first.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled, principal_axes, quotient, root, wave

__all__ = ["integrate_rows"]

_Array = NDArray[Any]
_F32 = np.float32
# Where an integral is below exp of this it counts as zero, as the path would blow up.
_NOTHING = -13.0
_LOG2E, _TURN = math.log2(math.e), 2 * math.pi
# So many centers at a time, whose waves fit the cache; and they are filled up to a multiple of what
# the processor does at once.
_BLOCK, _LANES = 256, 16
# Sums over nodes: of values, and of what `_write_slopes` needs, by D.
_SUMS = (1, 4, 8, 13)


@compiled
def integrate_rows(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    paths: Any,
    share: float,
    sloped: bool,
) -> Any:
    """The arrays of `Rows`, by the arguments of `shared_nodes.integrate`."""
    (count, dim), size = loc.shape, len(centers)
    values, good, axes, near, places, slopes = rows = _new_rows(count, dim, size, sloped)
    points, square = _in_widths(centers, width), np.empty(3)
    bounds, y = np.empty(size), np.empty((3, size + _LANES), _F32)
    sums = np.empty((_SUMS[dim] if sloped else 1, size + _LANES), _F32)
    # The powers of the width come last: in the exponents they would cost digits.
    scale = width**-dim
    for r in range(count):
        longest = principal_axes(scale_tril[r], width, square, axes[r])
        path = _first_reaching(paths[0], longest)
        if path < 0:
            continue
        _offsets(_in_widths(loc[r : r + 1], width), points, square, axes[r], y, bounds)
        near[r] = _gather(bounds, places[r], y)
        terms, largest = _terms(dim, square, paths[1][path], paths[2][path], len(sums), sloped)
        _sum_up(terms, dim, y, near[r], sums)
        top = _write_values(sums[0], scale, places[r], near[r], values[r])
        good[r] = share * largest * scale <= top < math.inf
        if sloped:
            _write_slopes(sums, y, near[r], dim, slopes[r])
    return rows


@compiled
def _new_rows(count: int, dim: int, size: int, sloped: bool) -> Any:
    """Arrays of `Rows`, whose values are zero and which are not good."""
    values, good = np.zeros((count, size), _F32), np.zeros(count, np.bool_)
    axes, near = np.empty((count, 3, 3)), np.zeros(count, np.int32)
    places = np.empty((count, size), np.int32)
    slopes = np.empty((count if sloped else 0, dim * (dim + 3) // 2, size), _F32)
    return values, good, axes, near, places, slopes


@compiled
def _first_reaching(reach: Any, longest: float) -> int:
    for path in range(len(reach)):
        if longest <= reach[path]:
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
def _offsets(
    loc: _Array, centers: _Array, square: _Array, axes: _Array, y: _Array, bounds: _Array
) -> None:
    """Offsets along the axes, and numbers below zero where a center has a share in the support.

    By Chernoff's bound: a term at any real z is more than the integral.
    """
    z = 2.5 * math.sqrt(max(square[0], square[1], square[2])) + 4
    most = 1 - _NOTHING / z
    p, q, s = 1 / (square[0] + 2 * z), 1 / (square[1] + 2 * z), 1 / (square[2] + 2 * z)
    for j in range(centers.shape[1]):
        # In float64, as a float32 rotation would move what is far along a thin support.
        a, b, c = centers[0, j] - loc[0, 0], centers[1, j] - loc[1, 0], centers[2, j] - loc[2, 0]
        first = axes[0, 0] * a + axes[1, 0] * b + axes[2, 0] * c
        second = axes[0, 1] * a + axes[1, 1] * b + axes[2, 1] * c
        third = axes[0, 2] * a + axes[1, 2] * b + axes[2, 2] * c
        bounds[j] = p * first * first + q * second * second + s * third * third - most
        y[0, j], y[1, j], y[2, j] = first, second, third


@compiled
def _gather(bounds: _Array, places: _Array, y: _Array) -> int:
    """How many centers have a share, and which; their offsets go first, then zeros."""
    count = 0
    for j in range(len(bounds)):
        places[count] = j
        y[0, count], y[1, count], y[2, count] = y[0, j], y[1, j], y[2, j]
        count += bounds[j] <= 0
    for d in range(3):
        for j in range(count, count + _LANES):
            y[d, j] = 0
    return count


@compiled
def _terms(dim: int, square: _Array, nodes: _Array, front: _Array, sums: int, sloped: bool) -> Any:
    """What `_sum_up` needs, and the largest expectation there could be.

    That is, at each node, the logarithm and the angle of a wave by y_d^2 and the real and imaginary
    factors of the wave in the sums, (n, 2, D) and (S, 2 n).
    """
    shrink = np.empty((3, len(nodes)), np.complex128)
    factor, largest = np.empty(len(nodes), np.complex128), 0.0
    rates, factors = np.zeros((len(nodes), 2, 3), _F32), np.zeros((sums, 2 * len(nodes)), _F32)
    for k in range(len(nodes)):
        factor[k] = front[k]
    for d in range(dim):
        for k in range(len(nodes)):
            moved = nodes[k] + 0.5 * square[d]
            shrink[d, k] = quotient(nodes[k], moved)
            factor[k] = quotient(factor[k], root(moved))
            rates[k, 0, d] = -0.5 * _LOG2E * shrink[d, k].real
            rates[k, 1, d] = -0.5 / _TURN * shrink[d, k].imag
    for k in range(len(nodes)):
        largest += factor[k].real
        factors[0, k], factors[0, len(nodes) + k] = factor[k].real, -factor[k].imag
    if sloped:
        _add_slopes(dim, factor, nodes, shrink, factors)
    return (rates, factors), largest


@compiled
def _add_slopes(dim: int, factor: _Array, nodes: _Array, shrink: _Array, factors: _Array) -> None:
    """The factors in what `_write_slopes` needs."""
    at = 1
    for d in range(dim):
        for e in range(-2, d + 1):
            for k in range(len(nodes)):
                x = shrink[d, k] * factor[k]
                if e > -2:
                    x = quotient(0.5 * x, nodes[k])
                if e > -1:
                    x *= shrink[e, k]
                factors[at, k], factors[at, len(nodes) + k] = x.real, -x.imag
            at += 1


@compiled
def _sum_up(terms: Any, dim: int, y: _Array, count: int, sums: _Array) -> None:
    """Sums over the nodes of waves times their factors, for the first so many centers."""
    rates, factors = terms
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, -(-(count - start) // _LANES) * _LANES)
        total = np.dot(factors, _waves(rates, dim, y, start, size))
        for n in range(len(sums)):
            for i in range(size):
                sums[n, start + i] = total[n, i]


@compiled
def _waves(rates: _Array, dim: int, y: _Array, start: int, size: int) -> Any:
    """Cosines and then sines (2 n, N) of so many centers."""
    waves = np.empty((2, len(rates) * size), _F32)
    real, imag = waves[0].reshape((len(rates), size)), waves[1].reshape((len(rates), size))
    square = np.zeros((3, size), _F32)
    for d in range(dim):
        for i in range(size):
            square[d, i] = y[d, start + i] * y[d, start + i]
    for k in range(len(rates)):
        a, b, c = rates[k, 0, 0], rates[k, 0, 1], rates[k, 0, 2]
        d, e, f = rates[k, 1, 0], rates[k, 1, 1], rates[k, 1, 2]
        for i in range(size):
            real[k, i] = a * square[0, i] + b * square[1, i] + c * square[2, i]
            imag[k, i] = d * square[0, i] + e * square[1, i] + f * square[2, i]
    for i in range(len(rates) * size):
        waves[0, i], waves[1, i] = wave(waves[0, i], waves[1, i])
    return waves.reshape((2 * len(rates), size))


@compiled
def _write_values(total: _Array, scale: float, places: _Array, count: int, values: _Array) -> Any:
    """Values where they belong; the largest is returned."""
    top = _F32(0)
    for i in range(count):
        values[places[i]] = total[i] * scale
        top = max(top, values[places[i]])
    return top


@compiled
def _write_slopes(sums: _Array, y: _Array, count: int, dim: int, slopes: _Array) -> None:
    """Derivatives in y_d and, twice, in A_de, by axes."""
    at, to = 1, 0
    for d in range(dim):
        for i in range(count):
            slopes[to, i] = y[d, i] * sums[at, i]
        at, to = at + 2, to + 1
        for e in range(d + 1):
            for i in range(count):
                slopes[to, i] = y[d, i] * y[e, i] * sums[at, i]
            if e == d:
                for i in range(count):
                    slopes[to, i] -= sums[at - d - 1, i]
            at, to = at + 1, to + 1
