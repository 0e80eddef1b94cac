"""Loops over densities side by side for the levels at which their masses are 1.

As `levels` does it: from a lower bound by the rule's own weights, which a norm being convex makes
safe, and then with the edges of supports, of which the mass needs no more than a root.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import compiled
from .piece_loops import lowered_power, near_panels, piece_masses
from .root_loops import find_pieces
from .series_loops import gathered

__all__ = ["level_step", "moved", "near_edges", "rough_levels", "step_with_edges"]

_Array = NDArray[Any]
_F32 = np.float32
_ZERO, _ONE, _TWO = _F32(0), _F32(1), _F32(2)
# Steps by the rule's own weights, and the last of them; with edges, and after what a parabola makes
# of one, or a smooth power's step, none more is due, in float32 and float64.
_STEPS, _NEAR = 8, _F32(1e-3)
_MORE_STEPS, _SETTLED = 6, (5e-4, 1e-6)
# Of so many rows one may be left, which goes on alone afterwards: another step of all takes longer.
_REST = 64
# Slopes at edges, at least.
_FLAT = _F32(1e-3)


@compiled
def level_step(mass: Any, rate: Any, exponent: int) -> Any:
    """Newton's step to a mass of 1 on the norm of the power."""
    if exponent == 1:
        return (mass - 1) / rate
    root = math.sqrt(mass) if exponent == 2 else mass ** (1 / exponent)
    return exponent * (root - 1) * mass / (root * rate)


@compiled
def rough_levels(x: _Array, measure: _Array, exponent: int, level: _Array) -> None:
    """Levels (n) of scores (m, G, n) by the rule's own weights."""
    _lower_bound(x, measure, exponent, level)
    masses = np.empty((2, x.shape[1], len(level)), x.dtype)
    for _ in range(_STEPS):
        _rule_masses(x, measure, exponent, level, masses)
        mass, rate = _summed(masses)
        largest = _ZERO
        for i in range(len(level)):
            step = x.dtype.type(level_step(mass[i], rate[i], exponent))
            level[i] += step
            largest = max(largest, abs(step))
        if largest < _NEAR:
            break


@compiled
def step_with_edges(
    x: _Array, measure: _Array, rules: Any, exponent: int, edges: Any, level: _Array
) -> None:
    """Steps with what the rule's own weights miss of panels with an edge, `near_edges`."""
    panels, row, series, checks, _ = edges
    masses = np.empty((2, x.shape[1], len(level)), x.dtype)
    base = gathered(rules[3], np.zeros(x.shape[1], x.dtype), panels)
    rule = rules[2] if len(base) == 1 else rules[1]
    scale, settled = x.dtype.type(1 / exponent), _SETTLED[0] if x.itemsize == 4 else _SETTLED[1]
    for _ in range(_MORE_STEPS if len(row) else 0):
        shift, found = moved(edges, level, scale), np.zeros((2, len(row)), x.dtype)
        pieces, roots = find_pieces(checks, series, rules[0][3], shift, exponent > 1)
        piece_masses(series, shift, pieces, base, rule, exponent, found)
        _rule_masses(x, measure, exponent, level, masses)
        for k in pieces[0]:
            for n in range(2):
                masses[n, panels[k], row[k]] = found[n, k]
        bend = np.zeros(len(level), x.dtype)
        for n in range(len(roots[0]) if exponent == 1 else 0):
            k = roots[0][n]
            bend[row[k]] += base[0, k] / max(roots[1][n], _FLAT)
        if _curved(masses, bend, exponent, level, settled) <= len(level) // _REST:
            break


@compiled
def near_edges(x: _Array, level: _Array, rules: Any, scale: Any, margin: Any) -> Any:
    """Panels where 1 + scale (x - level) changes sign, or would if the level moved by a margin.

    Of each its number, its row, its coefficients and values at check points, and the levels.
    """
    panels, row, u = near_panels(x, level, scale, margin)
    return panels, row, np.dot(rules[0][1], u), np.dot(rules[0][2], u), level.copy()


@compiled
def moved(edges: Any, level: _Array, scale: Any) -> _Array:
    """By how much values in panels are less than when these were found."""
    row = edges[1]
    shift = np.empty(len(row), level.dtype)
    for k in range(len(row)):
        shift[k] = scale * (level[row[k]] - edges[4][row[k]])
    return shift


@compiled
def _summed(masses: _Array) -> Any:
    """Masses and rates (n) from those by panel (2, G, n)."""
    total = np.zeros((2, masses.shape[2]), masses.dtype)
    for n in range(2):
        for g in range(masses.shape[1]):
            for i in range(masses.shape[2]):
                total[n, i] += masses[n, g, i]
    return total[0], total[1]


@compiled
def _curved(masses: _Array, bend: _Array, exponent: int, level: _Array, settled: float) -> int:
    """Takes steps to the root of a parabola; how many are not settled."""
    (mass, rate), left = _summed(masses), 0
    for i in range(len(level)):
        first = level.dtype.type(level_step(mass[i], rate[i], exponent))
        rest = max(_ONE - _TWO * first * bend[i] / rate[i], _ZERO)
        step = _TWO * first / (_ONE + math.sqrt(rest))
        level[i] += step
        left += (abs(step - first) if exponent == 1 else abs(step)) >= settled
    return left


@compiled
def _lower_bound(x: _Array, measure: _Array, exponent: int, level: _Array) -> None:
    """The best of Jensen's bounds over all nodes, each panel, each node: the mass is at least 1."""
    for i in range(len(level)):
        level[i] = -np.inf
    whole, total = np.zeros(len(level), x.dtype), _ZERO
    for g in range(x.shape[1]):
        mean, share = np.zeros(len(level), x.dtype), _ZERO
        for j in range(x.shape[0]):
            loss = _loss(measure[j, g], exponent)
            share += measure[j, g]
            for i in range(len(level)):
                level[i] = max(level[i], x[j, g, i] - loss)
                mean[i] += measure[j, g] * x[j, g, i]
        loss, total = _loss(share, exponent), total + share
        for i in range(len(level)):
            level[i] = max(level[i], mean[i] / share - loss) if share > 0 else level[i]
            whole[i] += mean[i]
    for i in range(len(level)):
        level[i] = max(level[i], whole[i] / total - _loss(total, exponent))


@compiled
def _loss(share: Any, exponent: int) -> Any:
    """What mass on a share of the base alone takes from the level."""
    if share <= 0:
        return _F32(np.inf)
    return _F32(exponent * (share ** (-1 / exponent) - 1))


@compiled
def _rule_masses(x: _Array, measure: _Array, exponent: int, level: _Array, masses: _Array) -> None:
    """Masses and their rates (2, G, n) by the rule's own weights."""
    scale = x.dtype.type(1 / exponent)
    for g in range(x.shape[1]):
        for i in range(len(level)):
            masses[0, g, i] = masses[1, g, i] = 0
        for j in range(x.shape[0]):
            share = measure[j, g]
            for i in range(len(level)):
                u = _ONE + scale * (x[j, g, i] - level[i])
                low = share * lowered_power(u, exponent)
                masses[0, g, i] += low * u
                masses[1, g, i] += low
