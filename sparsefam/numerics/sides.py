"""Roots of polynomials on panels, most of which have one at most."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .edges import Panel, Pieces, Signs, chebyshev_sum, near_zero, signs, vertex
from .quadrature import constant

__all__ = ["Roots", "all_roots", "single_piece"]

# From the root of a cubic; each has three times as many digits.
_MORE_STEPS = 3


class Roots(NamedTuple):
    """All roots of n polynomials: a place for one in each, and k further ones.

    The integral over where they are positive is the sum of those up to the roots times their signs,
    and of that over the panel where it ends positive.

    Attributes:
        root: The roots, (n + k,).
        sign: 1 where a polynomial falls, -1 where it rises, 0 in a place without a root, (n + k,).
        slope: The derivative, (n + k,).
        column: The polynomials, (n + k,).
        values: Their values at nodes, (m, n + k).
        ends: 1 where a polynomial is positive at 1, else 0, (n,).
    """

    root: Tensor
    sign: Tensor
    slope: Tensor
    column: Tensor
    values: Tensor
    ends: Tensor


class _Start(NamedTuple):
    """Where roots are looked for.

    Attributes:
        column: The polynomials, (k,).
        sign: As in `Roots`.
        x: Starts (k,).
        low: Below the roots.
        high: Above them.
    """

    column: Tensor
    sign: Tensor
    x: Tensor
    low: Tensor
    high: Tensor


def single_piece(values: Tensor, found: Signs, panel: Panel) -> Pieces:
    """Where polynomials with nodal values (m, n) are positive whose sign changes once or never."""
    start = _between(found, panel, *_first(found))
    series, root = panel.series @ values, start.x
    for _ in range(1 if values.dtype == torch.float32 else _MORE_STEPS):
        root, _ = _by_parabola(series, start, root)
    starts, crosses = found.starts, found.changes.clamp_max(1)
    lower = torch.lerp(-torch.ones_like(root), root, crosses * (1 - starts))
    upper = torch.lerp(torch.ones_like(root), root, crosses)
    upper = torch.lerp(2 * crosses - 1, upper, starts)
    return Pieces(lower.unsqueeze(0), upper.unsqueeze(0))


def all_roots(values: Tensor, panel: Panel) -> Roots:
    """Roots of polynomials with nodal values (m, n), by a look at the data; for float32."""
    found = signs(values, panel)
    seen = zip(_first(found), _further(found), strict=True)
    start = _between(found, panel, *(torch.cat(part) for part in seen))
    parts = zip(start, *_beside_dips(values, found, panel), strict=True)
    start = _Start(*(torch.cat(part) for part in parts))
    size = values.shape[1]
    lifted = torch.cat([values, values.index_select(1, start.column[size:])], 1)
    series = panel.series @ lifted
    root, slope = _by_parabola(series, start, start.x)
    # Several in a panel are harder to come by.
    more = _Start(*(part[size:] for part in start))
    root[size:], slope[size:] = _by_parabola(series[:, size:], more, root[size:])
    return Roots(root, start.sign, slope, start.column, lifted, found.ends)


def _first(found: Signs) -> tuple[Tensor, Tensor, Tensor]:
    """A column, a sign and a check point before a root for every polynomial.

    Right where it has one root, and without a sign elsewhere.
    """
    last = len(found.values) - 2
    after = torch.lerp(last + 1 - found.positive, found.positive - 1, found.starts)
    column = torch.arange(len(after), device=after.device)
    sign = (2 * found.starts - 1) * (found.changes == 1)
    return column, sign, after.clamp_(0, last).long()


def _further(found: Signs) -> tuple[Tensor, Tensor, Tensor]:
    """The same for all roots where the sign changes more than once."""
    several = (found.changes > 1).nonzero().squeeze(-1)
    positive = found.values.index_select(1, several).sign().clamp_min_(0)
    falls = positive[:-1] - positive[1:]
    row, place = falls.nonzero(as_tuple=True)
    return several[place], falls[row, place], row


def _between(found: Signs, panel: Panel, column: Tensor, sign: Tensor, after: Tensor) -> _Start:
    low, high = panel.points[after], panel.points[after + 1]
    return _Start(column, sign, _by_cubics(found.values, after, column, sign), low, high)


def _beside_dips(values: Tensor, found: Signs, panel: Panel) -> tuple[_Start, _Start]:
    """Starts before and after a vertex across zero, between check points on one side of it."""
    place = (found.dips > 0).nonzero().squeeze(-1)
    row, at = near_zero(found.values.index_select(1, place)).nonzero(as_tuple=True)
    column = place[at]
    u, series = found.values.index_select(1, column), panel.series @ values.index_select(1, column)
    x, height, curve, crosses = (part[0] for part in vertex(u, series, panel, row.unsqueeze(0)))
    # Two check points may lead to one vertex.
    key = torch.searchsorted(panel.points, x) + len(panel.points) * column
    key, order = torch.where(crosses, key, -1).sort()
    chosen = order[key.diff(prepend=key.new_full((1,), -1)) > 0]
    column, row, x, height, curve = (part[chosen] for part in (column, row, x, height, curve))
    away, sign = (2 * height / curve).abs().sqrt(), height.sign()
    before = _Start(column, -sign, x - away, panel.points[row], x)
    return before, _Start(column, sign, x + away, x, panel.points[row + 2])


def _by_cubics(u: Tensor, after: Tensor, column: Tensor, sign: Tensor) -> Tensor:
    """Roots (k,) of cubics in the angle through values (C, n) around check points in columns."""
    first = (after - 1).clamp_(0, len(u) - 4)
    index = torch.arange(4, device=u.device).unsqueeze(-1)
    c = _cubic(u.dtype, u.device) @ u.take((first + index) * u.shape[1] + column)

    def value(t: Tensor) -> Tensor:
        return torch.addcmul(c[0], t, torch.addcmul(c[1], t, torch.addcmul(c[2], t, c[3])))

    left = (after - first).to(u)
    right = left + 1
    low = value(left)
    t = left + (low / (low - value(right))).clamp_(0, 1).nan_to_num_(0.5)
    rate = torch.addcmul(c[1], t, torch.addcmul(c[4], t, c[5]))
    curve = torch.addcmul(c[4], t, c[5], value=2)
    t = (t + _step(value(t), rate, curve, sign)).clamp_(left, right)
    rate = torch.addcmul(c[1], t, torch.addcmul(c[4], t, c[5]))
    t = (t - (value(t) / rate).nan_to_num_(0.0)).clamp_(left, right)
    return torch.cos(math.pi - math.pi / (len(u) - 1) * (first + t))


def _by_parabola(series: Tensor, start: _Start, x: Tensor) -> tuple[Tensor, Tensor]:
    """Roots (k,) by a step from x (k,) to that of the parabola there; slopes."""
    parts = series.unflatten(0, (3, -1)).transpose(0, 1)
    value, rate, curve = chebyshev_sum(parts, x.expand(3, -1))
    root = (x + _step(value, rate, curve, start.sign)).clamp_(start.low, start.high)
    return root, torch.addcmul(rate, curve, root - x)


def _step(value: Tensor, rate: Tensor, curve: Tensor, sign: Tensor) -> Tensor:
    """To a parabola's root: of two to that where it falls, or rises, as a sign says."""
    rest = torch.addcmul(rate.square(), value, curve, value=-2).clamp_min_(0).sqrt_()
    # Where there is nothing to divide by there is a root.
    divisor = rest.copysign_(rate).add_(rate).add_(torch.finfo(rate.dtype).tiny)
    return torch.where(rate * sign > 0, -divisor / curve, -2 * value / divisor)


@cache
def _cubic(dtype: torch.dtype, device: torch.device) -> Tensor:
    """From values at 0, 1, 2, 3 to a cubic's coefficients and two of its slope's, (6, 4)."""
    found = np.linalg.inv(np.vander(np.arange(4.0), increasing=True))
    return constant(np.concatenate([found, found[2:] * [[2], [3]]]), dtype, device)
