"""The loops of `shared_nodes` for the gradient, from what `shared_loops` writes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled

__all__ = ["pull_back_rows"]

_Array = NDArray[Any]
_F32 = np.float32


@compiled
def pull_back_rows(
    grad: _Array,
    scale_tril: _Array,
    width: float,
    near: _Array,
    axes: _Array,
    places: _Array,
    slopes: _Array,
    by_loc: _Array,
    by_scale_tril: _Array,
) -> None:
    """Fills gradients in loc and scale_tril, of zero, from that in the expectations (R, N)."""
    dim, above = scale_tril.shape[1], np.empty(grad.shape[1], _F32)
    by_y, by_ball, scale = np.zeros(3), np.zeros((3, 3)), width ** -(dim + 1)
    for r in range(len(grad)):
        row, place = grad[r], places[r]
        for i in range(near[r]):
            above[i] = row[place[i]]
        n = 0
        for d in range(dim):
            by_y[d] = _dot(above, slopes[r, n], near[r])
            n += 1
            for e in range(d + 1):
                by_ball[d, e] = by_ball[e, d] = _dot(above, slopes[r, n], near[r])
                n += 1
        if near[r] > 0:
            arrays = scale_tril[r], by_loc[r], by_scale_tril[r]
            _turn_back(axes[r], by_y, by_ball, width, scale, *arrays)


@compiled
def _dot(x: _Array, y: _Array, count: int) -> Any:
    total = _F32(0)
    for i in range(count):
        total += x[i] * y[i]
    return total


@compiled
def _turn_back(
    axes: _Array,
    by_y: _Array,
    by_ball: _Array,
    unit: float,
    scale: float,
    factor: _Array,
    by_loc: _Array,
    by_factor: _Array,
) -> None:
    """From gradients along axes to those in space: in y, and in A = L L', twice."""
    dim = len(factor)
    ball = np.zeros((3, 3))
    for i in range(dim):
        total = 0.0
        for d in range(dim):
            total += axes[i, d] * by_y[d]
            for e in range(dim):
                for j in range(dim):
                    ball[i, j] += axes[i, d] * by_ball[d, e] * axes[j, e]
        by_loc[i] = total * scale
    for i in range(dim):
        for j in range(i + 1):
            total = 0.0
            for k in range(dim):
                total += ball[i, k] * factor[k, j]
            by_factor[i, j] = total * (scale / unit)
