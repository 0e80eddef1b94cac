r"""The loops of `shared_nodes` for supports that no center comes near: a path for each pair.

That of `contour`, in float64, for exponents of 1 and more. In units of the width the exponent at a
node is $z - (m+1) \log z - \sum_d (\log(z + p_d) + y_d^2 z/(z + p_d))/2$.
"""

import cmath
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled
from .shared_terms import LONG

__all__ = ["find_pairs"]

_Array = NDArray[Any]
# Log step, its slope, bend, its slope, damping, crossing and stretch of the path of `contour`, and
# how many nodes reach 1e-7.
_STEP, _STEP_SLOPE, _BEND, _BEND_SLOPE = -0.2022, 0.2554, 0.8460, -0.7663
_DAMP, _CROSS, _STRETCH = 0.5824, 4.0043, 0.0099
_NODES = 8
# From the left each of Newton's steps at least takes half of the way, near the saddle all of it.
_STEPS, _CLOSE = 40, 1e-6
# Logarithms of numbers that keep their digits in float32, whatever is added, and of those that are
# zero, with their derivatives.
_KEPT, _ZERO = -70.0, -130.0


@compiled
def find_pairs(
    dim: int, exponent: float, log_scale: float, square: _Array, y: _Array, sums: _Array
) -> bool:
    """Fills the sums of `shared_terms` at all centers; whether that keeps the digits of the row.

    Args:
        dim: D.
        exponent: m.
        log_scale: Logarithm of what the sums are to be multiplied by.
        square: Of half-axes.
        y: Offsets (3, N).
        sums: (S, N).
    """
    half, p, found = np.empty(3), 0.5 * square, np.empty(len(sums), np.complex128)
    front = math.lgamma(exponent + 1 + 0.5 * dim) - 0.5 * dim * math.log(2 * math.pi)
    largest = -math.inf
    for j in range(y.shape[1]):
        for d in range(dim):
            half[d] = 0.5 * y[d, j] * y[d, j]
        z = _saddle(dim, exponent + 1, p, half)
        level = _exponent(dim, exponent + 1, p, half, complex(z, 0.0)).real
        largest = max(largest, front + level)
        if front + level < _ZERO:
            # Zero as float32. Further out the exponent would have no digits left for its sums.
            sums[:, j] = 0
            continue
        size = _along_path(dim, exponent + 1, p, half, z, level, found)
        if not 0.5 < found[0].imag < 2:
            return False
        factor = size * math.exp(front + level)
        for n in range(len(sums)):
            sums[n, j] = factor * found[n].imag
    return largest > _KEPT or largest + max(log_scale, 0.0) < _ZERO


@compiled
def _saddle(dim: int, top: float, p: _Array, half: _Array) -> float:
    """Where the exponent is least on the positive axis."""
    z = top
    for d in range(dim):
        z = max(z, math.sqrt(half[d] * p[d]) - p[d])
    for _ in range(_STEPS):
        slope, bend = 1 - top / z, top / (z * z)
        for d in range(dim):
            inverse = 1 / (z + p[d])
            pull = half[d] * p[d] * inverse * inverse
            slope -= 0.5 * inverse + pull
            bend += (0.5 * inverse + 2 * pull) * inverse
        z -= slope / bend
        if abs(slope) < _CLOSE * bend * z:
            break
    return z


@compiled
def _exponent(dim: int, top: float, p: _Array, half: _Array, z: complex) -> complex:
    found = z - top * cmath.log(z)
    for d in range(dim):
        moved = z + p[d]
        found -= 0.5 * cmath.log(moved) + half[d] * z / moved
    return found


@compiled
def _shape(dim: int, top: float, p: _Array, half: _Array, z: float) -> Any:
    """Curvature at the saddle, and the path's ratio of derivatives and damping."""
    k2, k3, k4, k5 = top, 2 * top, 6 * top, 24 * top
    for d in range(dim):
        s = z / (z + p[d])
        g = half[d] * p[d] * z / (z + p[d]) ** 2 * s
        square = s * s
        k2 += 0.5 * square + 2 * g
        k3 += s * (square + 6 * g)
        k4 += square * (3 * square + 24 * g)
        k5 += s * square * (12 * square + 120 * g)
    c = k3 / (6 * k2)
    return k2, c, max(_DAMP * (k3 * c / 2 - k4 / 6 + k5 / (120 * c)) / k2, 0.0)


@compiled
def _along_path(
    dim: int,
    top: float,
    p: _Array,
    half: _Array,
    z: float,
    level: float,
    found: _Array,
) -> float:
    """Sums over the nodes, whose imaginary parts count, and what multiplies them."""
    k2, c, damp = _shape(dim, top, p, half, z)
    inverse = 1 / k2
    step, bend = math.exp(_STEP + _STEP_SLOPE * inverse), (_BEND + _BEND_SLOPE * inverse) * c
    found[:] = 0
    for k in range(_NODES):
        u = (k + 0.5) * step
        stretched = _STRETCH * inverse * u * u
        y = u * (1 + stretched) * math.sqrt(inverse)
        damped = 1 / (1 + damp * y * y)
        fall, speed = bend * y * damped, (1 + 3 * stretched) * step
        node = z * complex(1 + _CROSS * c * inverse - fall * y, y)
        weight = cmath.exp(_exponent(dim, top, p, half, node) - level)
        _add_node(dim, p, node, weight * complex(-2 * fall * damped * speed, speed), found)
    return z * math.sqrt(inverse) / math.pi


@compiled
def _add_node(dim: int, p: _Array, z: complex, weight: complex, found: _Array) -> None:
    found[0] += weight
    at = 1
    for d in range(dim if len(found) > 1 else 0):
        moved = weight / (z + p[d])
        found[at] += moved * z if p[d] > LONG else moved
        for e in range(d + 1):
            found[at + e + 1] += moved * z / (z + p[e])
        at += d + 2
