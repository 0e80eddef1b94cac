"""What a row of `shared_loops` sums over the nodes of its path."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled, wave

__all__ = ["LANES", "LONG", "NODES", "SUMS", "find_terms", "sum_up"]

_Array = NDArray[Any]
_F32 = np.float32
_LOG2E, _TURN = math.log2(math.e), 2 * math.pi
# As many nodes as the longest path has.
NODES = 32
# So many centers at a time, whose waves fit the cache; and they are filled up to a multiple of what
# the processor does at once.
_BLOCK, LANES = 256, 16
# Sums over nodes, by D: of values; for each axis of 1 / (z + p) or of z / (z + p); for each two
# axes of z / (z + p) / (z + q), where p and q are half of the squares of the half-axes.
SUMS = (1, 3, 6, 10)
# Each of the first two is one less p times the other. The smaller one is summed: where p is beyond
# this, some distance of the nodes from zero, the second.
LONG = 10.0
# Numbers of nodes, in the order of a scratch array: factors, products, z; and for each axis
# 1 / (z + p) and z / (z + p), all complex. Distances that the compiler knows let it do many nodes
# at once, so many; it would do the rest one by one.
_F, _G, _P, _Q, _X, _Y, _AXES = (NODES * i for i in range(7))
_U, _V, _S, _T = (NODES * i for i in range(4))
_EACH, _AT_ONCE = 4 * NODES, 8


@compiled
def find_terms(dim: int, square: _Array, path: _Array, count: int, sums: int) -> Any:
    """What `sum_up` needs, and the largest expectation there could be.

    That is, at each node, the logarithms and the angles of waves by y_d^2, (2, 3, n), and real and
    imaginary factors of the waves in the sums, (S, 2 n).
    """
    work, rates = np.empty(_AXES + dim * _EACH), np.zeros((2, 3, count), _F32)
    factors = np.empty((sums, 2 * count), _F32)
    more = -(-count // _AT_ONCE) * _AT_ONCE
    for k in range(more):
        work[_X + k], work[_Y + k] = path[0, k], path[1, k]
        work[_F + k], work[_G + k] = path[2, k], path[3, k]
    for d in range(dim):
        axis = work[_AXES + d * _EACH :]
        _shrink_along(0.5 * square[d], work, axis, more)
        for k in range(count):
            rates[0, d, k] = -0.5 * _LOG2E * axis[_S + k]
        for k in range(count):
            rates[1, d, k] = -0.5 / _TURN * axis[_T + k]
    largest, real, imag = 0.0, factors[0, :count], factors[0, count:]
    for k in range(count):
        largest += work[_F + k]
        real[k], imag[k] = work[_F + k], -work[_G + k]
    if sums > 1:
        _add_slopes(dim, square, work, factors)
    return factors, rates, largest


@compiled
def _shrink_along(p: float, work: _Array, axis: _Array, count: int) -> None:
    """1 / (z + p) and z / (z + p), and the factors by the root of z + p less."""
    for k in range(count):
        x, y = work[_X + k], work[_Y + k]
        moved = x + p
        size = math.sqrt(moved * moved + y * y)
        inverse = 1 / size
        u, v = moved * inverse * inverse, -y * inverse * inverse
        axis[_U + k], axis[_V + k] = u, v
        axis[_S + k], axis[_T + k] = x * u - y * v, y * u + x * v
        large = math.sqrt(0.5 * (size + abs(moved)))
        small = 0.5 * y / large
        real, imag = (large, small) if moved >= 0 else (small, large)
        f, g = work[_F + k] * inverse, work[_G + k] * inverse
        work[_F + k], work[_G + k] = f * real + g * imag, g * real - f * imag


@compiled
def _add_slopes(dim: int, square: _Array, work: _Array, factors: _Array) -> None:
    """The factors of the sums that only gradients need."""
    at, count = 1, factors.shape[1] // 2
    for d in range(dim):
        axis = work[_AXES + d * _EACH :]
        _write_product(work, axis[_S if 0.5 * square[d] > LONG else _U :], count, factors[at])
        for k in range(count):
            f, g, u, v = work[_F + k], work[_G + k], axis[_U + k], axis[_V + k]
            work[_P + k], work[_Q + k] = f * u - g * v, f * v + g * u
        for e in range(d + 1):
            other = work[_AXES + e * _EACH + _S :]
            _write_product(work[_P:], other, count, factors[at + e + 1])
        at += d + 2


@compiled
def _write_product(first: _Array, second: _Array, count: int, row: _Array) -> None:
    real, imag = row[:count], row[count:]
    for k in range(count):
        f, g, u, v = first[k], first[NODES + k], second[k], second[NODES + k]
        real[k], imag[k] = f * u - g * v, -f * v - g * u


@compiled
def sum_up(factors: _Array, rates: _Array, dim: int, y: _Array, count: int, sums: _Array) -> None:
    """Sums over the nodes of waves times their factors, for the first so many centers."""
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, -(-(count - start) // LANES) * LANES)
        total = np.dot(factors, _waves(rates, dim, y, start, size))
        for n in range(len(sums)):
            for i in range(size):
                sums[n, start + i] = total[n, i]


@compiled
def _waves(rates: _Array, dim: int, y: _Array, start: int, size: int) -> Any:
    """Cosines and then sines (2 n, N) of so many centers."""
    nodes = rates.shape[2]
    waves = np.empty((2, nodes * size), _F32)
    real, imag = waves[0].reshape((nodes, size)), waves[1].reshape((nodes, size))
    square = np.zeros((3, size), _F32)
    for d in range(dim):
        for i in range(size):
            square[d, i] = y[d, start + i] * y[d, start + i]
    for k in range(nodes):
        a, b, c = rates[0, 0, k], rates[0, 1, k], rates[0, 2, k]
        d, e, f = rates[1, 0, k], rates[1, 1, k], rates[1, 2, k]
        for i in range(size):
            real[k, i] = a * square[0, i] + b * square[1, i] + c * square[2, i]
            imag[k, i] = d * square[0, i] + e * square[1, i] + f * square[2, i]
    for i in range(nodes * size):
        waves[0, i], waves[1, i] = wave(waves[0, i], waves[1, i])
    return waves.reshape((2 * nodes, size))
