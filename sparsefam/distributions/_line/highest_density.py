r"""Sets of highest density, $\{p \ge c\}$ of a given mass, as intervals.

The level c is the root of a decreasing function, the mass above a level. The ends of the intervals
for a level are breakpoints at which the density jumps, and roots that a grid brackets.
"""

import copy
import math
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from ..._numerics.quadrature import sort_cuts
from ..._numerics.roots import increasing_root

__all__ = ["highest_density", "mass_above"]

# Locations in all, and the least and the largest number between two breakpoints.
_LOCATIONS, _LEAST, _MOST = 256, 8, 64
# Steps that move locations to the extrema of the density next to them.
_EXTREMA = 3
# The largest number of levels, and the tolerated error of the mass before the last step.
_LEVELS, _CLOSE = 60, 1e-10
# Levels beyond this ratio differ in their order of magnitude: their middle is the geometric mean.
_WIDE = 4.0
# Relative errors: of the level at a root, and of a breakpoint as the location of a jump.
_MISSED, _AWAY = 1e-6, 1e-12
# A density is level between two locations if it changes by less than this, relative to the level.
_LEVEL = 1e-10
# Roundings of heights that count as one.
_ROUNDING = 16


class Univariate(Protocol):
    """A density of numbers."""

    def prob(self, value: Tensor) -> Tensor: ...

    def cdf(self, value: Tensor) -> Tensor: ...

    def detach(self) -> Self: ...

    def __getitem__(self, index: Tensor) -> Self: ...


def highest_density(p: Univariate, mass: Tensor, cuts: Tensor) -> Tensor:
    """Return the intervals (*batch, K, 2) of the smallest set {p >= c} with at least a mass.

    They are padded with NaN. Ends have the derivatives of the implicit function theorem.

    Args:
        p: A density of numbers (*batch), in float64.
        mass: In (0, 1).
        cuts: Locations (*batch, J) between which the density is smooth, padded with NaN.
    """
    q, mass = p.detach(), mass.double()
    breakpoints = sort_cuts(cuts.double())
    with torch.no_grad():
        grid = _Grid(q, breakpoints.detach())
        edges = _Edges(q, grid, _level(q, grid, mass.detach()))
    t = edges.polished(p, q, mass, breakpoints)
    return t.unflatten(0, (-1, 2)).movedim((0, 1), (-2, -1))


def _level(q: Univariate, grid: "_Grid", mass: Tensor) -> Tensor:
    """Return the levels (*batch) above which densities have a mass.

    A step goes along the parabola that has the mass and its slope at the level, and the mass at the
    other end of the bracket: next to an extremum the level is quadratic in the mass. Steps that
    leave the bracket become bisections. Once half of the densities have converged, the loop goes on
    with the others.
    """
    level = grid.level_of(mass)
    shape, levels = level.shape, level.flatten().clone()
    rows = torch.arange(len(levels), device=level.device)
    low, high = torch.zeros_like(level), grid.heights.amax(0) * 2
    gap_low, gap_high = mass - 1, mass
    for _ in range(_LEVELS):
        edges = _Edges(q, grid, level)
        gap, slope = mass - edges.mass(q, edges.t), edges.slope(q)
        enough, met = gap <= _CLOSE, gap.abs() <= _CLOSE
        low, high = torch.where(enough, level, low), torch.where(enough, high, level)
        gap_low, gap_high = torch.where(enough, gap, gap_low), torch.where(enough, gap_high, gap)
        done = met | (high - low <= _ROUNDING * 2.0**-52 * high)
        # Where the mass jumps, no level meets it: `low` is the one with more mass.
        levels[rows] = torch.where(met, level, low).flatten()
        if bool(done.all()):
            break
        away = torch.where(enough, high, low) - level
        rise = torch.where(enough, gap_high, gap_low) - gap
        rate = torch.where(slope < 0, slope, -1.0)
        # A level of another order of magnitude says nothing of the bend.
        bend = torch.where(away <= _WIDE * level, away + rise / rate, 0.0)
        step = gap / rate + bend * (gap / rise).square()
        inside = (low < level + step) & (level + step < high)
        safe = (slope < 0) & inside
        wide = (low > 0) & (high > _WIDE * low)
        middle = torch.where(wide, low.sqrt() * high.sqrt(), low + (high - low) / 2)
        step = torch.where(safe, step, middle - level)
        level = level + torch.where(done, 0.0, step)
        remaining = ~done
        if 2 * int(remaining.sum()) <= remaining.numel():
            q, grid, rows = q[remaining], grid.take(remaining), rows[remaining.flatten()]
            state = mass, level, low, high, gap_low, gap_high
            mass, level, low, high, gap_low, gap_high = (x[remaining] for x in state)
    return levels.reshape(shape)


@torch.no_grad()
def mass_above(q: Univariate, value: Tensor, cuts: Tensor) -> Tensor:
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

    def __init__(self, q: Univariate, breakpoints: Tensor) -> None:
        count = len(breakpoints) - 1
        self.count = min(max(_LOCATIONS // count, _LEAST), _MOST)
        low, high = breakpoints[:-1], breakpoints[1:]
        step = _ROUNDING * 2.0**-54 * torch.maximum(low.abs(), high.abs())
        # Nothing happens between two breakpoints that are the same up to rounding.
        empty = high - low <= 4 * step
        first, last = (torch.where(empty, low - step, x) for x in (low + step, high - step))
        fraction = torch.linspace(0, 1, self.count, dtype=low.dtype, device=low.device)
        fraction = fraction.reshape(-1, *(1,) * low.dim())
        t = torch.lerp(first, last, fraction).movedim(0, 1)
        t = torch.cat([t[:, :-1], last.unsqueeze(1)], 1)
        self.t, self.breakpoints = t.flatten(0, 1), breakpoints
        self.heights = _heights(q, self.t)
        for _ in range(_EXTREMA):
            self._sharpen(q)

    def take(self, rows: Tensor) -> "_Grid":
        """Return the locations of some densities, by a mask."""
        new = copy.copy(self)
        for name in ("t", "heights", "breakpoints"):
            setattr(new, name, getattr(self, name)[:, rows])
        return new

    def _sharpen(self, q: Univariate) -> None:
        """Move locations toward extrema between their neighbors, by a parabola."""
        rise = self.heights.diff(dim=0)
        rank = torch.arange(len(rise), device=rise.device) % self.count
        rank = rank.reshape(-1, *(1,) * (rise.dim() - 1))[1:]
        # Next to the first and the last location, which stay, there may be one of a monotone three.
        near = (rank == 1) | (rank == self.count - 2)
        candidate = (rise[1:] * rise[:-1] <= 0) | near
        candidate &= (rank > 0) & (rank < self.count - 1) & ((rise[1:] != 0) | (rise[:-1] != 0))
        row, present = _true_rows(torch.cat([torch.zeros_like(candidate[:1]), candidate]))
        rows = (row - 1).clamp_min(0), row, row + 1
        (a, b, c), (u, v, w) = ([x.gather(0, i) for i in rows] for x in (self.t, self.heights))
        highest, lowest = torch.maximum(u, w), torch.minimum(u, w)
        extreme, rank = (v >= highest) | (v <= lowest), row % self.count
        start = torch.where(extreme | (rank == 1), a, b)
        end = torch.where(extreme | (rank == self.count - 2), c, b)
        # The vertex of the parabola through three points, as in Brent (1973), ch. 5.
        lower_area, upper_area = (b - a) * (v - w), (b - c) * (v - u)
        step = ((b - a) * lower_area - (b - c) * upper_area) / (2 * (lower_area - upper_area))
        moved = b - torch.where(step.isfinite(), step, 0.0)
        inside = present & (start < moved) & (moved < end)
        height = _heights(q, torch.where(inside, moved, b))
        better = (height > torch.maximum(highest, v)) | (height < torch.minimum(lowest, v))
        for x, new, old in ((self.t, moved, b), (self.heights, height, v)):
            x.scatter_(0, row, torch.where(inside & better, new, old))

    def level_of(self, mass: Tensor) -> Tensor:
        """Return about the level of a mass (*batch)."""
        t, heights = (x.unflatten(0, (-1, self.count)) for x in (self.t, self.heights))
        u, v = heights[:, :-1], heights[:, 1:]
        # Harmonic means of heights, as one of them may be almost infinite at a pole.
        half = t.diff(dim=1).clamp_min(0) * v * (u / (u + v)).nan_to_num(0.0)
        zero = torch.zeros_like(half[:, :1])
        masses = (torch.cat([half, zero], 1) + torch.cat([zero, half], 1)).flatten(0, 1)
        # The mass above a height: trapezoidal masses, summed in the order of heights.
        # Sorts are fast along the last axis.
        heights, masses = (x.movedim(0, -1).contiguous() for x in (self.heights, masses))
        order = heights.argsort(-1, descending=True)
        heights = heights.gather(-1, order)
        cumulative = masses.gather(-1, order).cumsum(-1)
        goal = mass.unsqueeze(-1) * cumulative[..., -1:]
        rank = (cumulative < goal).sum(-1, keepdim=True).clamp_max(heights.shape[-1] - 1)
        return heights.gather(-1, rank).squeeze(-1)


def _heights(q: Univariate, t: Tensor) -> Tensor:
    return q.prob(t).double().nan_to_num(0.0).clamp(max=1e300)


def _true_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (K, *batch) at which a mask (n, *batch) is true, and where there is none 0.

    The second result is the mask of the entries that are rows.
    """
    n, most = len(mask), int(mask.sum(0).amax()) if mask.numel() else 2
    row = torch.arange(n, device=mask.device).reshape(-1, *(1,) * (mask.dim() - 1))
    row = torch.where(mask, row, n).movedim(0, -1).contiguous()
    # Faster than a sort of all rows.
    row = row.topk(most, largest=False).values.movedim(-1, 0)
    return torch.where(row < n, row, 0), row < n


class _Edges:
    """Ends (K, *batch) of the intervals {q >= level}: lower ones and upper ones by turns."""

    def __init__(self, q: Univariate, grid: _Grid, level: Tensor) -> None:
        self.level, breakpoints = level, grid.breakpoints
        above = grid.heights >= level * (1 - _ROUNDING * 2.0**-52)
        outside = torch.zeros_like(above[:1])
        change = torch.cat([outside, above]) ^ torch.cat([above, outside])
        index, self.present = _true_rows(change)
        sign = torch.where(torch.arange(len(index), device=level.device) % 2 == 0, -1.0, 1.0)
        self.sign = sign.to(level).reshape(-1, *(1,) * level.dim())
        # q jumps between the last location before a breakpoint and the first one after it.
        self.moving = self.present & (index % grid.count != 0)
        piece, last = index // grid.count, len(grid.t) - 1
        self.low, self.high = (
            grid.t.gather(0, i.clamp(0, last)) for i in (index - 1, index.clamp(max=last))
        )
        low, high = (
            torch.where(self.moving, x, end)
            for x, end in ((self.low, breakpoints[:1]), (self.high, breakpoints[-1:]))
        )

        def excess(t: Tensor) -> Tensor:
            return torch.where(self.moving, self.sign * (level - q.prob(t)), 0.0)

        root = increasing_root(excess, low, high)
        between, self.moving = self.moving, self.moving & (excess(root).abs() <= _MISSED * level)
        # Breakpoints may have rounding errors, so that a jump is next to them.
        following = breakpoints.gather(0, (piece + 1).clamp_max(len(breakpoints) - 1))
        is_next = (following - root).abs() < (root - breakpoints.gather(0, piece)).abs()
        self.breakpoint = torch.where(between & is_next, piece + 1, piece)
        ends = breakpoints.gather(0, self.breakpoint)
        is_near = (ends - root).abs() <= _AWAY * root.abs()
        self.t = torch.where(between & (self.moving | ~is_near), root, ends)

    def mass(self, p: Univariate, t: Tensor) -> Tensor:
        """Return the mass of the intervals with ends t."""
        return torch.where(self.present, self.sign * p.cdf(t), 0.0).sum(0)

    def slopes(self, q: Univariate) -> Tensor:
        """Return the derivatives (K, *batch) of q at ends that move, infinite elsewhere.

        An end does not move where the density is level but for rounding.
        """
        with torch.enable_grad():
            t = self.t.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(q.prob(t).sum(), t)
        steep = slopes.abs() * (self.high - self.low) > _LEVEL * self.level
        return torch.where(self.moving & steep, slopes.double(), math.inf)

    def slope(self, q: Univariate) -> Tensor:
        """Return the derivative (*batch) of the mass in the level c, 0 if no end moves.

        An end with q(t) = c moves by dt/dc = 1/q'(t), and the mass there changes by c dt.
        """
        return (self.sign * self.level / self.slopes(q)).sum(0)

    def polished(self, p: Univariate, q: Univariate, mass: Tensor, breakpoints: Tensor) -> Tensor:
        """Return ends (K, *batch), NaN where there is none, after a Newton step for all at once."""
        with torch.no_grad():
            slopes = self.slopes(q)
            rate = (self.sign * self.level / slopes).sum(0)
        ends = breakpoints.gather(0, self.breakpoint)
        start = torch.where(self.t == ends.detach(), ends, self.t)
        excess = torch.where(self.moving, p.prob(start) - self.level, 0.0)
        gap = mass - self.mass(p, start) + (self.sign * self.level * excess / slopes).sum(0)
        # Newton's step: ends move by (dc - excess)/q' to the level c + dc, and c times the sum of
        # their signed steps is the gap in mass.
        meets = (mass - self.mass(q, self.t)).detach().abs() <= 1e-6
        change = torch.where((rate < 0) & meets, gap / torch.where(rate < 0, rate, -1.0), 0.0)
        t = start + (change - excess) / slopes
        t = torch.minimum(torch.maximum(t.detach(), self.low), self.high) + (t - t.detach())
        t = torch.where(self.moving, t, start)
        return torch.where(self.present, t, math.nan)
