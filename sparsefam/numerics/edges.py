"""Where polynomials on panels are positive: their roots, and the pieces between them.

On each panel, mapped to [-1, 1], a function is known by its values at Gauss-Legendre nodes, and is
taken for the polynomial through them. Arrays hold one panel in each column, the last axis, so that
every operation runs along memory.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy  # whose parts load when they are asked for: importing this package stays quick
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from .moments import chebyshev_sum
from .quadrature import constant

__all__ = [
    "Panel",
    "Pieces",
    "Signs",
    "chebyshev_sum",
    "has_several",
    "near_edge",
    "panel_rule",
    "positive_pieces",
    "several_pieces",
    "sign_changes",
    "signs",
]

# How far from a check point the vertex of the parabola through it may lie, in half distances of
# check points: more than 1, as polynomials are no parabolas. At 1.2 a needle in forty is missed.
_REACH = 2.0
# The outermost of m nodes are 3 / m^2 from the ends, and a polynomial that they resolve rises by
# several of its ranges a panel.
_BEYOND = 16


class Panel(NamedTuple):
    """What turns m nodal values into something else.

    Attributes:
        weights: Gauss-Legendre weights (m,).
        coefficients: To Chebyshev coefficients, (m, m).
        checks: To values at `points`, (C, m).
        points: -cos of equidistant angles, both ends included, (C,).
        slope: From coefficients to those of the derivative, (m, m).
        bends: To a parabola's vertex below its middle value, at most, up to a sign, (C - 2, m).
        series: To coefficients of the polynomial and of its first two derivatives, (3 m, m).
    """

    weights: Tensor
    coefficients: Tensor
    checks: Tensor
    points: Tensor
    slope: Tensor
    bends: Tensor
    series: Tensor


class Pieces(NamedTuple):
    """Where n polynomials are positive: K pieces, some of them empty.

    Attributes:
        lower: Their lower ends, (K, n).
        upper: Their upper ends, (K, n).
    """

    lower: Tensor
    upper: Tensor


@cache
def _panel_rule(order: int, dtype: torch.dtype, device: torch.device) -> Panel:
    nodes, weights = scipy.special.roots_legendre(order)
    count = 1 + max(2 * min(order, 8), math.ceil(1.5 * order))
    points = -np.cos(np.pi * np.arange(count) / (count - 1))
    vander = chebyshev.chebvander(nodes, order - 1)
    coefficients = np.linalg.inv(vander)
    checks = chebyshev.chebvander(points, order - 1) @ coefficients
    slope = np.zeros((order, order))
    for k in range(1, order):
        derivative = chebyshev.chebder(np.eye(order)[k])
        slope[: len(derivative), k] = derivative
    bends = (checks[:-2] + checks[2:] - 2 * checks[1:-1]) * _REACH**2 / 8
    rate = slope @ coefficients
    series = np.concatenate([coefficients, rate, slope @ rate])
    parts = (weights, coefficients, checks, points, slope, bends, series)
    return Panel(*(constant(x, dtype, device) for x in parts))


def panel_rule(order: int, like: Tensor) -> Panel:
    """The constants of panels with a number of nodes, like a tensor."""
    return _panel_rule(order, like.dtype, like.device)


class Signs(NamedTuple):
    """What the values of n polynomials at check points tell about their roots.

    Attributes:
        values: Values at the check points, (C, n).
        starts: 1 where the first is positive, else 0, (n,).
        ends: The same of the last, (n,).
        positive: How many are positive, (n,).
        changes: How often the sign changes, (n,).
        dips: Above 0 where a dip through zero between check points cannot be excluded, (n,).
    """

    values: Tensor
    starts: Tensor
    ends: Tensor
    positive: Tensor
    changes: Tensor
    dips: Tensor


def near_edge(x: Tensor, edge: Tensor | float, slack: float | None = None) -> Tensor:
    """Columns (k,) of x (m, n) that come near an edge (n,), or lie on both sides; by the data.

    Args:
        x: Values at nodes.
        edge: A number or (n,).
        slack: What is near, as a share of a column's range; None for how far it may go on between
            the outermost nodes and the ends.
    """
    slack = _BEYOND / len(x) ** 2 if slack is None else slack
    low, high = x.amin(0), x.amax(0)
    away = (high - low) * slack
    return ((low < edge + away) & (high > edge - away)).nonzero().squeeze(-1)


def signs(values: Tensor, panel: Panel) -> Signs:
    """Signs of polynomials with nodal values (m, n); numbers for booleans, which are faster."""
    u, bends = panel.checks @ values, panel.bends @ values
    positive = u.sign().clamp_min_(0)
    changes = (positive[1:] - positive[:-1]).abs_().sum(0)
    dips = bends.abs_().sub_(u[1:-1].abs()).amax(0)
    return Signs(u, positive[0], positive[-1], positive.sum(0), changes, dips)


def has_several(found: Signs) -> Tensor:
    """Whether polynomials (n,) may have several roots, by a look at the data."""
    several = found.changes > 1
    place = ((found.dips > 0) & ~several).nonzero().squeeze(-1)
    dips = _near_zero(found.values.index_select(1, place)).any(0)
    return several.index_copy_(0, place, dips)


def _near_zero(u: Tensor) -> Tensor:
    """At which of the inner check points (C - 2, n) the values (C, n) may dip through zero."""
    left, mid, right = u[:-2], u[1:-1], u[2:]
    bend, tilt = left + right - 2 * mid, left - right
    near = (mid * bend > 0) & (tilt.abs() <= _REACH * bend.abs())
    # The parabola's depth, and a bit more.
    near &= mid.abs() <= _REACH**2 / 8 * bend.abs()
    return near & ((mid > 0) == (left > 0)) & ((mid > 0) == (right > 0))


def sign_changes(values: Tensor, panel: Panel) -> tuple[Tensor, Tensor, Tensor]:
    """Check points and values at them, (C, n), and where the sign changes after one, (C - 1, n).

    Args:
        values: Of the polynomials at the nodes, (m, n).
        panel: The constants of their panels.
    """
    u = panel.checks @ values
    ends = panel.points[[0, -1]].unsqueeze(-1).expand(2, u.shape[1])
    points, middle = _vertices(u, panel.series @ values, panel)
    x = torch.cat([ends[:1], points, ends[1:]])
    u = torch.cat([u[:1], middle, u[-1:]])
    positive = u > 0
    return x, u, positive[1:] != positive[:-1]


def _vertices(u: Tensor, series: Tensor, panel: Panel) -> tuple[Tensor, Tensor]:
    """Inner check points and values, (C - 2, n); moved to a vertex that is across zero.

    It is looked for from the vertex of the parabola through three points, by Newton's method.
    """
    points = panel.points[1:-1].unsqueeze(-1).repeat(1, u.shape[1])
    near, mid = _near_zero(u), u[1:-1].clone()
    if u.is_cuda:
        every = torch.arange(len(mid), device=u.device).unsqueeze(-1)
        x, height, crosses = _vertex(u, series, panel, every)
        crosses &= near
        return torch.where(crosses, x, points), torch.where(crosses, height, mid)
    row, column = near.nonzero(as_tuple=True)
    x, height, crosses = _vertex(u[:, column], series[:, column], panel, row.unsqueeze(0))
    place = row[crosses[0]], column[crosses[0]]
    points[place], mid[place] = x[crosses], height[crosses]
    return points, mid


def _vertex(u: Tensor, series: Tensor, panel: Panel, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Vertices after some check points (J, n), values there, and if they are across zero.

    Args:
        u: Values at check points (C, n).
        series: Coefficients of the polynomials and of two derivatives, (3 m, n).
        panel: The constants of their panels.
        row: The check points, (J, n) or (J, 1).
    """
    left, mid, right = (u.gather(0, (row + k).expand(-1, u.shape[1])) for k in range(3))
    spacing = math.pi / (len(u) - 1)
    x = -torch.cos(spacing * (1 + row + ((left - right) / (2 * (left + right - 2 * mid)))))
    parts = series.unflatten(0, (3, 1, -1)).movedim(2, 0)
    for _ in range(3):
        value, rate, curve = chebyshev_sum(parts, x.expand(3, *x.shape))
        step = (x - (rate / curve).nan_to_num(0.0)).clamp(-1, 1) - x
        x, value = x + step, value + step * (rate + step * curve / 2)
    inside = (x > panel.points[row]) & (x < panel.points[row + 2])
    return x, value, inside & ((value > 0) != (mid > 0))


def several_pieces(values: Tensor, panel: Panel) -> Pieces:
    """Where polynomials with nodal values (m, n) are positive, by a look at the data."""
    points, heights, changes = sign_changes(values, panel)
    most = int(changes.sum(0).amax()) | 1
    return positive_pieces(panel.coefficients @ values, panel, points, heights, changes, most)


def positive_pieces(
    coefficients: Tensor, panel: Panel, points: Tensor, values: Tensor, changes: Tensor, most: int
) -> Pieces:
    """Pieces where polynomials with coefficients (m, n) are positive, `most` (odd) roots in each.

    Args:
        coefficients: Chebyshev coefficients (m, n).
        panel: The constants of their panels.
        points: Check points (C, n).
        values: Values there, (C, n).
        changes: Where the sign changes after a check point, (C - 1, n).
        most: How many roots are found; further ones are left out.
    """
    count = len(changes)
    left = torch.arange(count, 0, -1, dtype=values.dtype, device=changes.device).unsqueeze(-1)
    first = (changes * left).topk(min(most, count), 0).values
    found, after = first > 0, (count - first).long().clamp_max_(count - 1)
    brackets = (points.gather(0, after), points.gather(0, after + 1))
    heights = (values.gather(0, after), values.gather(0, after + 1))
    roots = torch.where(found, _from_secants(coefficients, panel, brackets, heights), 1.0)
    edges = torch.cat([-torch.ones_like(roots[:1]), roots, torch.ones_like(roots[:1])])
    starts = values[0] > 0
    lower = torch.where(starts, edges[0:-1:2], edges[1::2])
    upper = torch.where(starts, edges[1::2], edges[2::2])
    return Pieces(lower, torch.maximum(lower, upper))


def _from_secants(
    coefficients: Tensor,
    panel: Panel,
    bracket: tuple[Tensor, Tensor],
    heights: tuple[Tensor, Tensor],
) -> Tensor:
    (low, high), (first, last) = bracket, heights
    apart = first != last
    share = torch.where(apart, first / torch.where(apart, first - last, 1.0), 0.5)
    x = torch.addcmul(low, high - low, share.clamp(0.02, 0.98))
    steps = 2 if x.dtype == torch.float32 else 4
    return _roots(coefficients, panel, bracket, first <= 0, x, steps)


def _roots(
    coefficients: Tensor,
    panel: Panel,
    bracket: tuple[Tensor, Tensor],
    rising: Tensor,
    x: Tensor,
    steps: int,
) -> Tensor:
    """Roots in brackets (J, n), by steps from x (J, n).

    Each goes to the root of a parabola, which also serves where two roots nearly coincide.
    """
    low, high = bracket
    least = 8 * torch.finfo(x.dtype).eps
    slope = panel.slope @ coefficients
    parts = torch.stack([coefficients, slope, panel.slope @ slope], 1).unsqueeze(2)
    for _ in range(steps):
        value, rate, curve = chebyshev_sum(parts, x.expand(3, *x.shape))
        left = (value <= 0) == rising
        low, high = torch.where(left, x, low), torch.where(left, high, x)
        rest = (rate.square() - 2 * value * curve).clamp_min(0).sqrt()
        step = x - 2 * value / (rate + torch.copysign(rest, rate))
        # Rounding may put a root that is found outside its bracket, from which no step escapes.
        inside = ((step >= low) & (step <= high)) | ((step - x).abs() <= least)
        x = torch.where(inside, step, (low + high) / 2)
    return x
