"""What loops compiled by numba are made of. Imported when one is first run, as numba takes long."""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["compiled", "principal_axes", "wave"]

_Array = NDArray[Any]
_F32 = np.float32
_LEAST = _F32(-126)
# Fitted at Chebyshev's nodes, on [-1/2, 1/2], highest powers first: 2^t; in squares of the argument
# cos(pi t) and sin(pi t) / t, times the root of 2.
_POWER = tuple(
    _F32(x)
    for x in (1.5469732e-4, 1.3400432e-3, 9.6180256e-3, 5.5503272e-2, 0.24022651, 0.69314721, 1)
)
_COSINE = tuple(
    _F32(math.sqrt(2) * x) for x in (0.21968961, -1.33187657, 4.05841135, -4.93479283, 1)
)
_SINE = tuple(
    _F32(math.sqrt(2) * x) for x in (0.07765766, -0.59829129, 2.55007752, -5.16771009, 3.14159264)
)
# Sweeps of Jacobi's rotations, which take 3 x 3 matrices to rounding.
_SWEEPS = 6

# NaN and infinity mean what they mean elsewhere; sums may be taken in any order. What is compiled
# is kept on disk for the next process, by the date of the file that a function stands in: who
# changes this file removes the `*.nbi` of those that import it.
compiled = njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)


@compiled
def wave(log_size: Any, turns: Any) -> Any:
    """2^log_size times cosine and sine of an angle in whole turns, all float32.

    By polynomials, without a branch, so that the compiler does many at once.
    """
    size = max(log_size, _LEAST)
    whole = np.rint(size)
    rest = size - whole
    power = _POWER[0]
    for factor in _POWER[1:]:
        power = power * rest + factor
    power *= np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    # Half of the angle, whose cosine and sine give those of the whole, needs no quadrants: the root
    # of 2 in both saves doubling them.
    rest = turns - np.rint(turns)
    square = rest * rest
    cosine, sine = _COSINE[0], _SINE[0]
    for factor in _COSINE[1:]:
        cosine = cosine * square + factor
    for factor in _SINE[1:]:
        sine = sine * square + factor
    sine *= rest
    large = power * sine
    return power - large * sine, large * cosine


@compiled
def principal_axes(factor: _Array, unit: float, square: _Array, axes: _Array) -> float:
    """Half-axes squared (3), in units, and axes (3, 3), in columns, of the image of a ball.

    By a matrix of 3 x 3 or less; axes that are lacking have a length of zero. The longest is
    returned.
    """
    ball, size = np.zeros((3, 3)), len(factor)
    for i in range(3):
        for j in range(3):
            axes[i, j] = i == j
    for i in range(size):
        for j in range(size):
            for k in range(size):
                ball[i, j] += (factor[i, k] / unit) * (factor[j, k] / unit)
    for _ in range(_SWEEPS):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            if ball[i, j] != 0:
                _turn(ball, axes, i, j)
    for i in range(3):
        square[i] = max(ball[i, i], 0.0)
    return math.sqrt(max(square[0], square[1], square[2]))


@compiled
def _turn(ball: _Array, axes: _Array, i: int, j: int) -> None:
    """One of Jacobi's rotations."""
    slope = 0.5 * (ball[j, j] - ball[i, i]) / ball[i, j]
    tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1 + slope * slope))
    cosine = 1 / math.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    for k in range(3):
        x, y = ball[k, i], ball[k, j]
        ball[k, i], ball[k, j] = cosine * x - sine * y, sine * x + cosine * y
        x, y = axes[k, i], axes[k, j]
        axes[k, i], axes[k, j] = cosine * x - sine * y, sine * x + cosine * y
    for k in range(3):
        x, y = ball[i, k], ball[j, k]
        ball[i, k], ball[j, k] = cosine * x - sine * y, sine * x + cosine * y
    ball[i, j] = ball[j, i] = 0.0
