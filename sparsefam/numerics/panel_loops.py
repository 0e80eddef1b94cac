"""The loops of `panel_rows`, which says what they compute.

Some densities at a time, so that all that is known of them stays in the cache next to the
processor, and side by side, so that it does several at once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .level_loops import level_step, moved, near_edges, rough_levels, step_with_edges
from .loops import compiled
from .piece_loops import lowered_power, piece_moments
from .root_loops import find_pieces

__all__ = ["weigh_rows"]

_Array = NDArray[Any]
_F32 = np.float32
_ZERO, _ONE = _F32(0), _F32(1)
# So many densities at a time, or fewer that have so many numbers, but no fewer than the last.
_BLOCK, _NUMBERS, _LEAST = 128, 2**22, 16
# By how much levels may move until panels near an edge are looked for again.
_MARGIN = _F32(0.05)
# Units of rounding by which a mass may be wrong, and how often its level is moved for that.
_CLOSE, _AGAIN = 8, 12


@compiled
def weigh_rows(
    f: _Array,
    measure: _Array,
    rules: Any,
    exponent: int,
    scale: float,
    normalized: bool,
    rows: Any,
    found: Any,
) -> None:
    """Writes levels and masses (R), weights and lowered weights (m, G, R) of rows from and to."""
    level, weights, lowered, mass = found
    size = max(_LEAST, min(_BLOCK, _NUMBERS // (f.shape[0] * f.shape[1])))
    for start in range(rows[0], rows[1], size):
        some = slice(start, min(start + size, rows[1]))
        x, top = f[:, :, some].copy(), np.zeros(some.stop - start, f.dtype)
        out = weights[:, :, some], lowered[:, :, some], np.empty((2, len(top)))
        at = np.zeros(len(top), f.dtype)
        if normalized:
            _lower(x, top)
            _normalize(x, measure, rules, exponent, at, out)
        else:
            unit = f.dtype.type(scale)
            edges = near_edges(x, at, rules, unit, _ZERO)
            _weigh(x, measure, rules, exponent, unit, edges, at, out)
        for i in range(len(top)):
            level[start + i], mass[start + i] = at[i] + top[i], out[2][0, i]


@compiled
def _lower(x: _Array, top: _Array) -> None:
    """Takes the largest scores off: next to it, where a density is, they keep all their digits."""
    for i in range(len(top)):
        top[i] = x[0, 0, i]
    for j in range(x.shape[0]):
        for g in range(x.shape[1]):
            for i in range(len(top)):
                top[i] = max(top[i], x[j, g, i])
    for j in range(x.shape[0]):
        for g in range(x.shape[1]):
            for i in range(len(top)):
                x[j, g, i] -= top[i]


@compiled
def _normalize(
    x: _Array, measure: _Array, rules: Any, exponent: int, level: _Array, out: Any
) -> None:
    """Levels, and weights whose sum is 1."""
    scale = x.dtype.type(1 / exponent)
    rough_levels(x, measure, exponent, level)
    edges = near_edges(x, level, rules, scale, _MARGIN)
    step_with_edges(x, measure, rules, exponent, edges, level)
    for i in range(len(level)):
        if abs(level[i] - edges[4][i]) > _MARGIN:
            edges = near_edges(x, level, rules, scale, _ZERO)
            break
    _weigh(x, measure, rules, exponent, scale, edges, level, out)
    _settle(x, measure, rules, exponent, scale, level, out)


@compiled
def _weigh(
    x: _Array,
    measure: _Array,
    rules: Any,
    exponent: int,
    scale: Any,
    edges: Any,
    level: _Array,
    out: Any,
) -> None:
    """Weights and lowered weights at a level, and sums of both."""
    weights, lowered, mass, rate = out[0], out[1], out[2][0], out[2][1]
    for i in range(len(level)):
        mass[i] = rate[i] = 0
    for g in range(x.shape[1]):
        some = np.zeros((2, len(level)), x.dtype)
        for j in range(x.shape[0]):
            share, values, low, high = measure[j, g], x[j, g], lowered[j, g], weights[j, g]
            for i in range(len(level)):
                u = _ONE + scale * (values[i] - level[i])
                low[i] = share * lowered_power(u, exponent)
                high[i] = low[i] * u
                some[0, i] += high[i]
                some[1, i] += low[i]
        # In float64, as these sums decide by how much a level is moved last.
        for i in range(len(level)):
            mass[i] += some[0, i]
            rate[i] += some[1, i]
    if len(edges[1]):
        _mend(edges, moved(edges, level, scale), measure, rules, exponent, out)


@compiled
def _mend(edges: Any, shift: _Array, measure: _Array, rules: Any, exponent: int, out: Any) -> None:
    """Effective weights where a sign changes, in place."""
    weights, lowered, mass, rate = out[0], out[1], out[2][0], out[2][1]
    panels, row, series, checks, _ = edges
    own, from_series = rules[0][0], rules[0][4]
    pieces, _ = find_pieces(checks, series, rules[0][3], shift, exponent > 1)
    moments = np.zeros((2, len(own), len(row)), own.dtype)
    piece_moments(series, shift, pieces, rules[1], exponent, moments)
    found, found_lowered = np.dot(from_series, moments[0]), np.dot(from_series, moments[1])
    count, columns = 0, np.empty(len(pieces[0]), np.int64)
    for k in pieces[0]:
        if count == 0 or columns[count - 1] != k:
            columns[count], count = k, count + 1
    # Node by node, as they lie in memory.
    for j in range(len(own)):
        above, below, inverse = found[j], found_lowered[j], _ONE / own[j]
        for k in columns[:count]:
            g, i = panels[k], row[k]
            high, low = measure[j, g] * inverse * above[k], measure[j, g] * inverse * below[k]
            mass[i] += high - weights[j, g, i]
            rate[i] += low - lowered[j, g, i]
            weights[j, g, i], lowered[j, g, i] = high, low


@compiled
def _settle(
    x: _Array, measure: _Array, rules: Any, exponent: int, scale: Any, level: _Array, out: Any
) -> None:
    """Moves levels to where masses are 1 to rounding, and weights along with them."""
    weights, lowered, mass, rate = out[0], out[1], out[2][0], out[2][1]
    step, to, other = np.empty_like(level), np.empty(1, level.dtype), np.empty((2, 1))
    close = _CLOSE * np.finfo(level.dtype).eps
    # Slices, as out has, so that all is compiled once.
    room = np.empty((2 * len(weights), weights.shape[1], 2), level.dtype)[:, :, :1]
    found = room[: len(weights)], room[len(weights) :], other
    for i in range(len(level)):
        here = slice(i, i + 1)
        for _ in range(_AGAIN):
            step[i] = level_step(mass[i], rate[i], exponent)
            if abs(mass[i] - 1) <= close:
                break
            to[0], alone = level[i] + step[i], x[:, :, here].copy()
            edges = near_edges(alone, to, rules, scale, _ZERO)
            _weigh(alone, measure, rules, exponent, scale, edges, to, found)
            # Rounding leaves steps that no longer help.
            if not abs(other[0, 0] - 1) < abs(mass[i] - 1):
                break
            level[i], mass[i], rate[i] = to[0], other[0, 0], other[1, 0]
            for j in range(len(weights)):
                for g in range(weights.shape[1]):
                    weights[j, g, i], lowered[j, g, i] = found[0][j, g, 0], found[1][j, g, 0]
        level[i] += step[i]
    for j in range(len(weights)):
        for g in range(weights.shape[1]):
            for i in range(len(level)):
                weights[j, g, i] -= step[i] * lowered[j, g, i]
