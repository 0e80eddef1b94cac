r"""Sets of highest density, $\{p \ge c\}$ of a given mass, as intervals.

The level c is the root of a decreasing function, the mass above a level. The ends of the intervals
for a level are breakpoints at which the density jumps, and roots that a grid brackets.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..numerics.quadrature import sort_cuts
from ..numerics.roots import increasing_root

__all__ = ["highest_density", "mass_above"]

# Locations in all, and the least and the largest number between two breakpoints.
_LOCATIONS, _LEAST, _MOST = 256, 8, 64
# Steps that move locations to the extrema of the density next to them.
_EXTREMA = 3
# The largest number of levels, and the tolerated error of the mass before the last step.
_LEVELS, _CLOSE = 60, 1e-13
# Roundings of heights that count as one.
_ROUNDING = 16


def highest_density(p: Any, mass: Tensor, cuts: Tensor) -> Tensor:
    """Return the intervals (*batch, K, 2) of the smallest set {p >= c} with at least a mass.

    They are padded with NaN. Ends have the derivatives of the implicit function theorem.

    Args:
        p: A density of numbers (*batch), in float64.
        mass: In (0, 1).
        cuts: Locations (*batch, J) between which the density is smooth, padded with NaN.
    """
    q, mass = p.detach(), mass.double()
    places = sort_cuts(cuts.double())
    with torch.no_grad():
        grid = _Grid(q, places.detach())
        level = grid.level_of(mass.detach())
        low, high = torch.zeros_like(level), grid.heights.amax(0) * 2
        for _ in range(_LEVELS):
            edges = _Edges(q, grid, level)
            found, slope = edges.mass(q, edges.t), edges.slope(q)
            gap = mass - found
            enough, met = gap <= _CLOSE, gap.abs() <= _CLOSE
            low, high = torch.where(enough, level, low), torch.where(enough, high, level)
            done = met | (high - low <= _ROUNDING * 2.0**-52 * high)
            if bool(done.all()):
                break
            step = level + gap / torch.where(slope < 0, slope, -1.0)
            safe = (slope < 0) & (low < step) & (step < high)
            level = torch.where(done, level, torch.where(safe, step, (low + high) / 2))
        # Where the mass jumps, the level with more.
        level = torch.where(met, level, low)
        edges = _Edges(q, grid, level)
    t = edges.polished(p, q, mass, places)
    return t.unflatten(0, (-1, 2)).movedim((0, 1), (-2, -1))


@torch.no_grad()
def mass_above(q: Any, value: Tensor, cuts: Tensor) -> Tensor:
    """Return the mass (*batch) of the set {q >= q(value)}, 1 where q(value) is 0.

    Args:
        q: A density of numbers (*batch), in float64.
        value: Locations (*batch).
        cuts: Locations (*batch, J) between which the density is smooth, padded with NaN.
    """
    level = q.prob(value.double())
    edges = _Edges(q, _Grid(q, sort_cuts(cuts.double())), level)
    return torch.where(level > 0, edges.mass(q, edges.t), 1.0)


class _Grid:
    """Locations between breakpoints (J, *batch), and the heights of a density there."""

    def __init__(self, q: Any, places: Tensor) -> None:
        count = len(places) - 1
        self.count = min(max(_LOCATIONS // count, _LEAST), _MOST)
        low, high = places[:-1], places[1:]
        step = _ROUNDING * 2.0**-54 * torch.maximum(low.abs(), high.abs())
        # Nothing happens between two breakpoints that are the same up to rounding.
        empty = high - low <= 4 * step
        first, last = (torch.where(empty, low - step, x) for x in (low + step, high - step))
        share = torch.linspace(0, 1, self.count, dtype=low.dtype, device=low.device)
        share = share.reshape(-1, *(1,) * low.dim())
        t = torch.lerp(first, last, share).movedim(0, 1)
        self.t = torch.cat([t[:, :-1], last.unsqueeze(1)], 1)
        self.heights = self._heights(q, self.t)
        for _ in range(_EXTREMA):
            self._sharpen(q)
        self.places = places
        width = self.t.diff(dim=1).clamp_min(0) / 2
        zero = torch.zeros_like(width[:, :1])
        self.weights = torch.cat([width, zero], 1) + torch.cat([zero, width], 1)
        self.t, self.heights, self.weights = (
            x.flatten(0, 1) for x in (self.t, self.heights, self.weights)
        )

    @staticmethod
    def _heights(q: Any, t: Tensor) -> Tensor:
        heights = q.prob(t.flatten(0, 1)).reshape(t.shape)
        return heights.double().nan_to_num(0.0).clamp(max=1e300)

    def _sharpen(self, q: Any) -> None:
        """Move locations towards extrema between their neighbours, by a parabola."""
        (a, b, c), (u, v, w) = ((x[:, :-2], x[:, 1:-1], x[:, 2:]) for x in (self.t, self.heights))
        highest, lowest = torch.maximum(u, w), torch.minimum(u, w)
        # Next to the first and the last location, which stay, there may be one of a monotone three.
        first, last = (torch.zeros_like(v, dtype=torch.bool) for _ in range(2))
        first[:, 0], last[:, -1] = True, True
        extreme = (v >= highest) | (v <= lowest)
        start, end = torch.where(extreme | first, a, b), torch.where(extreme | last, c, b)
        left, right = (b - a) * (v - w), (b - c) * (v - u)
        step = ((b - a) * left - (b - c) * right) / (2 * (left - right))
        moved = b - torch.where(step.isfinite(), step, 0.0)
        inside = (start < moved) & (moved < end)
        moved = torch.where(inside, moved, b)
        inner = self._heights(q, moved)
        beyond = (inner > torch.maximum(highest, v)) | (inner < torch.minimum(lowest, v))
        moved, inner = (torch.where(inside & beyond, x, y) for x, y in ((moved, b), (inner, v)))
        self.t, self.heights = (
            torch.cat([x[:, :1], y, x[:, -1:]], 1)
            for x, y in ((self.t, moved), (self.heights, inner))
        )

    def level_of(self, mass: Tensor) -> Tensor:
        """Return about the level of a mass (*batch)."""
        last = (x.movedim(0, -1).contiguous() for x in (self.heights, self.weights))
        heights, weights = last  # sorts are fast along the last axis
        order = heights.argsort(-1, descending=True)
        heights = heights.gather(-1, order)
        below = (heights * weights.gather(-1, order)).cumsum(-1)
        due = mass.unsqueeze(-1) * below[..., -1:]
        place = (below < due).sum(-1, keepdim=True).clamp_max(heights.shape[-1] - 1)
        return heights.gather(-1, place).squeeze(-1)


class _Edges:
    """Ends (K, *batch) of the intervals {q >= level}: lower ones and upper ones by turns."""

    def __init__(self, q: Any, grid: _Grid, level: Tensor) -> None:
        self.level, places = level, grid.places
        above = grid.heights >= level * (1 - _ROUNDING * 2.0**-52)
        outside = torch.zeros_like(above[:1])
        change = torch.cat([outside, above]) ^ torch.cat([above, outside])
        most = int(change.sum(0).amax()) if level.numel() else 2
        index = torch.arange(len(change), device=level.device)
        index = torch.where(change, index.reshape(-1, *(1,) * level.dim()), len(change))
        # The first ones; a sort of all is most of the time.
        first = index.movedim(0, -1).contiguous().topk(most, largest=False)
        index = first.values.movedim(-1, 0)
        self.present = index < len(change)
        index = torch.where(self.present, index, 0)
        sign = torch.where(torch.arange(most, device=level.device) % 2 == 0, -1.0, 1.0)
        self.sign = sign.to(level).reshape(-1, *(1,) * level.dim())
        # Between the last location before a breakpoint and the first one after it q jumps.
        self.fixed = index % grid.count == 0
        self.place = index // grid.count
        last = len(grid.t) - 1
        self.low, self.high = (
            grid.t.gather(0, i.clamp(0, last)) for i in (index - 1, index.clamp(max=last))
        )
        ends = places.gather(0, self.place)
        self.moving = self.present & ~self.fixed
        low, high = (
            torch.where(self.moving, x, end)
            for x, end in ((self.low, places[:1]), (self.high, places[-1:]))
        )

        def excess(t: Tensor) -> Tensor:
            return torch.where(self.moving, self.sign * (level - q.prob(t)), 0.0)

        self.t = torch.where(self.moving, increasing_root(excess, low, high), ends)

    def mass(self, p: Any, t: Tensor) -> Tensor:
        """Return the mass of the intervals with ends t."""
        return torch.where(self.present, self.sign * p.cdf(t), 0.0).sum(0)

    def slopes(self, q: Any) -> Tensor:
        """Return the derivatives (K, *batch) of q at ends that move, infinite elsewhere."""
        with torch.enable_grad():
            t = self.t.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(q.prob(t).sum(), t)
        return torch.where(self.moving & (slopes != 0), slopes.double(), math.inf)

    def slope(self, q: Any) -> Tensor:
        """Return the derivative (*batch) of the mass in the level, 0 if no end moves."""
        return (self.sign * self.level / self.slopes(q)).sum(0)

    def polished(self, p: Any, q: Any, mass: Tensor, places: Tensor) -> Tensor:
        """Return ends (K, *batch), NaN where there is none, after a Newton step for all at once."""
        with torch.no_grad():
            slopes = self.slopes(q)
            rate = (self.sign * self.level / slopes).sum(0)
        start = torch.where(self.moving, self.t, places.gather(0, self.place))
        excess = torch.where(self.moving, p.prob(start) - self.level, 0.0)
        gap = mass - self.mass(p, start) + (self.sign * self.level * excess / slopes).sum(0)
        meets = (mass - self.mass(q, self.t)).detach().abs() <= 1e-6
        change = torch.where((rate < 0) & meets, gap / torch.where(rate < 0, rate, -1.0), 0.0)
        t = start + (change - excess) / slopes
        t = torch.minimum(torch.maximum(t.detach(), self.low), self.high) + (t - t.detach())
        t = torch.where(self.moving, t, start)
        return torch.where(self.present, t, math.nan)
