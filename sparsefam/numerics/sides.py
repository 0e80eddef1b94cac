"""Roots of polynomials on panels that have one at most, as most have."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .edges import Panel, Pieces, Signs
from .moments import chebyshev_sum
from .quadrature import constant

__all__ = ["single_piece"]

# From the root of a cubic; each has three times as many digits.
_MORE_STEPS = 3


class _Start(NamedTuple):
    """Where roots are looked for.

    Attributes:
        sign: 1 where a polynomial falls, -1 where it rises, 0 where there is no root, (k,).
        x: Starts (k,).
        low: Below the roots.
        high: Above them.
    """

    sign: Tensor
    x: Tensor
    low: Tensor
    high: Tensor


def single_piece(values: Tensor, found: Signs, panel: Panel) -> Pieces:
    """Where polynomials with nodal values (m, n) are positive whose sign changes once or never."""
    start = _start(found, panel)
    series, root = panel.series @ values, start.x
    for _ in range(1 if values.dtype == torch.float32 else _MORE_STEPS):
        root = _by_parabola(series, start, root)
    starts, crosses = found.starts, found.changes.clamp_max(1)
    lower = torch.lerp(-torch.ones_like(root), root, crosses * (1 - starts))
    upper = torch.lerp(torch.ones_like(root), root, crosses)
    upper = torch.lerp(2 * crosses - 1, upper, starts)
    return Pieces(lower.unsqueeze(0), upper.unsqueeze(0))


def _start(found: Signs, panel: Panel) -> _Start:
    """Right where a polynomial has one root, and without a sign elsewhere."""
    last = len(found.values) - 2
    after = torch.lerp(last + 1 - found.positive, found.positive - 1, found.starts)
    after = after.clamp_(0, last).long()
    sign = (2 * found.starts - 1) * (found.changes == 1)
    low, high = panel.points[after], panel.points[after + 1]
    return _Start(sign, _by_cubics(found.values, after, sign), low, high)


def _by_cubics(u: Tensor, after: Tensor, sign: Tensor) -> Tensor:
    """Roots (n,) of cubics in the angle through values (C, n) around check points."""
    first = (after - 1).clamp_(0, len(u) - 4)
    index = torch.arange(4, device=u.device).unsqueeze(-1)
    c = _cubic(u.dtype, u.device) @ u.gather(0, first + index)

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


def _by_parabola(series: Tensor, start: _Start, x: Tensor) -> Tensor:
    """Roots (k,) by a step from x (k,) to that of the parabola there."""
    parts = series.unflatten(0, (3, -1)).transpose(0, 1)
    value, rate, curve = chebyshev_sum(parts, x.expand(3, -1))
    return (x + _step(value, rate, curve, start.sign)).clamp_(start.low, start.high)


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
