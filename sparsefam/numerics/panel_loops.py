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
_BLOCK, _NUMBERS, _LEAST = 256, 2**22, 16
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
    size, count = max(_LEAST, min(_BLOCK, _NUMBERS // measure.size)), rows[1] - rows[0]
    # Blocks of nearly one size: a small one takes almost as long as a large one.
    blocks = -(-count // size)
    for block in range(blocks):
        start, end = rows[0] + count * block // blocks, rows[0] + count * (block + 1) // blocks
        x, top = f[:, :, start:end].copy(), np.zeros(end - start, f.dtype)
        at, step = np.zeros_like(top), np.zeros_like(top)
        # Of this block alone: side by side in memory, and in the cache.
        out = np.empty((2, *x.shape), x.dtype), np.empty((2, len(top)))
        if normalized:
            _lower(x, top)
            _normalize(x, measure, rules, exponent, at, out, step)
        else:
            unit = f.dtype.type(scale)
            edges = near_edges(x, at, rules, unit, _ZERO)
            _weigh(x, measure, rules, exponent, unit, edges, at, out)
        level[start:end], mass[start:end] = at + top, out[1][0]
        _hand_over(out[0], step, start, weights, lowered)


@compiled
def _hand_over(both: _Array, step: _Array, start: int, weights: _Array, lowered: _Array) -> None:
    """Writes weights from a row on: those of levels a step further, along their derivative."""
    high, low, end = both[0], both[1], start + len(step)
    for j in range(len(high)):
        for g in range(high.shape[1]):
            for i in range(len(step)):
                high[j, g, i] -= step[i] * low[j, g, i]
    weights[:, :, start:end], lowered[:, :, start:end] = high, low


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
    x: _Array, measure: _Array, rules: Any, exponent: int, level: _Array, out: Any, step: _Array
) -> None:
    """Levels, and weights whose sum is 1 after a step along their derivative."""
    scale = x.dtype.type(1 / exponent)
    rough_levels(x, measure, exponent, level)
    edges = near_edges(x, level, rules, scale, _MARGIN)
    step_with_edges(x, measure, rules, exponent, edges, level)
    for i in range(len(level)):
        if abs(level[i] - edges[4][i]) > _MARGIN:
            edges = near_edges(x, level, rules, scale, _ZERO)
            break
    _weigh(x, measure, rules, exponent, scale, edges, level, out)
    _settle(x, measure, rules, exponent, level, out, step)


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
    weights, lowered, sums = out[0][0], out[0][1], out[1]
    masses = np.zeros((2, x.shape[1], len(level)), x.dtype)
    for j in range(x.shape[0]):
        for g in range(x.shape[1]):
            share = measure[j, g]
            for i in range(len(level)):
                u = _ONE + scale * (x[j, g, i] - level[i])
                low = share * lowered_power(u, exponent)
                weights[j, g, i], lowered[j, g, i] = low * u, low
                masses[0, g, i] += low * u
                masses[1, g, i] += low
    if len(edges[1]):
        _mend(edges, moved(edges, level, scale), measure, rules, exponent, out[0], masses)
    # In float64, as these sums decide by how much a level is moved last.
    sums[:] = 0
    for g in range(x.shape[1]):
        for i in range(len(level)):
            sums[0, i] += masses[0, g, i]
            sums[1, i] += masses[1, g, i]


@compiled
def _mend(
    edges: Any,
    shift: _Array,
    measure: _Array,
    rules: Any,
    exponent: int,
    both: _Array,
    masses: _Array,
) -> None:
    """Effective weights where a sign changes, and their sums in a panel, in place."""
    panels, row, series, checks, _ = edges
    own, from_series = rules[0][0], rules[0][4]
    pieces, _ = find_pieces(checks, series, rules[0][3], shift, exponent > 1)
    moments = piece_moments(series, shift, pieces, rules[1], exponent)
    found = np.zeros((2, len(own) + 1, len(pieces[0])), own.dtype)
    for n in range(2):
        found[n, :-1] = np.dot(from_series, moments[n])
    _times_base(found, panels[pieces[0]], measure, own)
    _replace(found, pieces[0], panels * masses.shape[2] + row, both, masses)


@compiled
def _times_base(found: _Array, panel: _Array, measure: _Array, own: _Array) -> None:
    """Weights (2, m + 1, n) times the base at nodes of panels (n); last come their sums."""
    for j in range(len(own)):
        share, inverse = measure[j], _ONE / own[j]
        high, low, mass, rate = found[0, j], found[1, j], found[0, -1], found[1, -1]
        for c in range(len(panel)):
            factor = share[panel[c]] * inverse
            high[c] *= factor
            low[c] *= factor
            mass[c] += high[c]
            rate[c] += low[c]


@compiled
def _replace(found: _Array, column: _Array, places: _Array, both: _Array, masses: _Array) -> None:
    """Writes weights and their sums of pieces, one or more in a column, to places of columns."""
    place, again = places[column], np.zeros(len(column), np.bool_)
    for c in range(1, len(column)):
        again[c] = column[c] == column[c - 1]
    for n in range(2):
        to = both[n].reshape(both.shape[1], -1)
        for j in range(len(to)):
            _put(found[n, j], place, again, to[j])
        _put(found[n, -1], place, again, masses[n].reshape(-1))


@compiled
def _put(values: _Array, place: _Array, again: _Array, to: _Array) -> None:
    """Writes values to places, or adds them to those that were there before."""
    for c in range(len(place)):
        to[place[c]] = values[c] + (to[place[c]] if again[c] else _ZERO)


@compiled
def _settle(
    x: _Array, measure: _Array, rules: Any, exponent: int, level: _Array, out: Any, step: _Array
) -> None:
    """Moves levels to where masses are 1 to rounding; by the last step weights are to follow."""
    both, sums = out
    scale, close = x.dtype.type(1 / exponent), _CLOSE * np.finfo(level.dtype).eps
    found = np.empty((*both.shape[:3], 1), level.dtype), np.empty((2, 1))
    to = np.empty(1, level.dtype)
    for i in range(len(level)):
        for _ in range(_AGAIN):
            step[i] = level_step(sums[0, i], sums[1, i], exponent)
            if abs(sums[0, i] - 1) <= close:
                break
            to[0], alone = level[i] + step[i], x[:, :, i : i + 1].copy()
            edges = near_edges(alone, to, rules, scale, _ZERO)
            _weigh(alone, measure, rules, exponent, scale, edges, to, found)
            # Rounding leaves steps that no longer help; but from masses below 1, which are convex
            # in the level, a step may go far beyond.
            before, after = sums[0, i], found[1][0, 0]
            if not (abs(after - 1) < abs(before - 1) or before < 1 < after):
                break
            level[i], sums[:, i], both[:, :, :, i] = to[0], found[1][:, 0], found[0][:, :, :, 0]
        level[i] += step[i]
