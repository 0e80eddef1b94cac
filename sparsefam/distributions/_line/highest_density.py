r"""Sets of highest density, $\{p \ge c\}$ of a given mass, as intervals.

The level c is the root of a decreasing function, the mass above a level. The ends of the intervals
for a level are breakpoints at which the density jumps, and roots that a grid brackets.
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from ..._numerics.quadrature import sort_cuts
from ..._numerics.roots import increasing_root

__all__ = ["highest_density", "mass_above"]

# Locations in all, and the least and the largest number between two breakpoints.
_LOCATIONS, _LEAST, _MOST = 64, 8, 32
# Steps that move locations to the extrema of the density next to them, and how close to the end of
# a piece, relative to the distance to the first location, an extremum is looked for.
_EXTREMA, _BESIDE = 6, 0.01
# Steps for the first level; the ratio of heights beyond which a density is not linear between them;
# the least and the largest height relative to the mean, in float32.
_START, _STEEPEST, _SMALL, _LARGE = 7, 4.0, 1e-20, 1e5
# The largest number of levels; the tolerated error of the mass before the last two steps, and where
# it jumps; the length of the last step relative to the distance to the height of an extremum.
_LEVELS, _CLOSE, _ENOUGH, _SHORT = 60, 1e-5, 1e-10, 0.1
# Levels beyond this ratio differ in their order of magnitude: their middle is the geometric mean.
_WIDE = 4.0
# Errors of the density at a root, relative to the level: the tolerated one, by the number of Newton
# steps, and one beyond which the density is taken to jump across the level.
_INEXACT, _MISSED = {2: 1e-7, 3: 1e-12}, 1e-6
# Relative distances within which a level counts as a height of an extremum, an end as a breakpoint.
_APART, _AWAY = 1e-12, 1e-12
# The error of the level at a root, relative to the distance to the height at an end of its cell.
_CLOSER = 1e-4
# A density is level between two locations if it changes by less than this, relative to the level.
_LEVEL = 1e-10
# Roundings of heights that count as one.
_ROUNDING = 64


class _Univariate(Protocol):
    """A density of numbers."""

    def prob(self, value: Tensor) -> Tensor: ...

    def cdf(self, value: Tensor) -> Tensor: ...

    def detach(self) -> Self: ...

    def __getitem__(self, index: Tensor) -> Self: ...


def highest_density(p: _Univariate, mass: Tensor, cuts: Tensor) -> Tensor:
    """Return the intervals (*batch, K, 2) of the smallest set {p >= c} with at least a mass.

    They are padded with NaN. Ends have the derivatives of the implicit function theorem.

    Args:
        p: A density of numbers (*batch), in float64.
        mass: In (0, 1).
        cuts: Locations (*batch, J) between which the density is smooth, padded with NaN.
    """
    q, mass = p.detach(), mass.double()
    breakpoints = _ascending(cuts)
    with torch.no_grad():
        grid = _Grid.of(q, breakpoints.detach())
        edges = _Edges(q, grid, _level(q, grid, mass.detach()), steps=3)
    t = edges.polished(p, mass, breakpoints)
    return t.unflatten(0, (-1, 2)).movedim((0, 1), (-2, -1))


def _level(q: _Univariate, grid: "_Grid", mass: Tensor) -> Tensor:
    """Return the levels (*batch) above which densities have a given mass.

    Each step goes along a parabola, to the middle of the bracket if that leaves it, and never past
    the height of an extremum. Densities that have converged leave the loop.

    Args:
        q: Densities (*batch).
        grid: Locations and heights of these densities.
        mass: In (0, 1), (*batch).
    """
    level = grid.level_of(mass)
    shape, levels = level.shape, level.flatten().clone()
    # Indices into the flattened batch of the densities that are still in the loop.
    rows = torch.arange(len(levels), device=level.device)
    # All mass is above 0, and none above twice the largest height of the grid, which may miss the
    # maximum by a little.
    bracket = _Bracket(torch.zeros_like(level), grid.heights.amax(0) * 2, mass - 1, mass)
    for _ in range(_LEVELS):
        edges = _Edges(q, grid, level)
        gap, slope = mass - edges.mass(q, edges.t), edges.rate
        bracket, step = bracket.narrowed(level, gap, slope)
        inside = (slope < 0) & (bracket.low < level + step) & (level + step < bracket.high)
        target = torch.where(inside, level + step, bracket.middle())
        # An interval begins or ends at the height of an extremum, and the mass bends most there.
        extrema, apart = grid.extrema, _APART * level
        floor = torch.where(extrema < level - apart, extrema, 0.0).amax(0)
        ceiling = torch.where(extrema > level + apart, extrema, math.inf).amin(0)
        target = torch.minimum(torch.maximum(target, floor), ceiling)
        # A step that is short beside the distance to the height of an extremum leaves an error of
        # second order in `gap`: the level after it is trusted if `gap` is below _CLOSE. Else the
        # level before it is the result if its own mass is right to _ENOUGH.
        near = (extrema - level).abs().amin(0)
        trusted = inside & ((target - level).abs() <= _SHORT * near)
        met = gap.abs() <= torch.where(trusted, _CLOSE, _ENOUGH)
        target = torch.where(met & ~trusted, level, target)
        ended = bracket.high - bracket.low <= _ROUNDING * 2.0**-52 * bracket.high
        # Where the mass jumps, no level meets it: `low` is the one with more mass.
        level = torch.where(ended & ~met, bracket.low, target)
        levels[rows] = level.flatten()
        remaining = ~(met | ended)
        if not bool(remaining.any()):
            break
        if 4 * int(remaining.sum()) <= 3 * remaining.numel():
            q, grid, rows = q[remaining], grid.take(remaining), rows[remaining.flatten()]
            mass, level = mass[remaining], level[remaining]
            bracket = _Bracket(*(x[remaining] for x in bracket))
    return levels.reshape(shape)


class _Bracket(NamedTuple):
    """Levels (*batch) between which the level of a mass lies.

    Attributes:
        low: A level with enough mass above it.
        high: A level with too little mass above it.
        gap_low: The mass that is missing above `low`: at most _ENOUGH, and negative for a surplus.
        gap_high: The mass that is missing above `high`.
    """

    low: Tensor
    high: Tensor
    gap_low: Tensor
    gap_high: Tensor

    def narrowed(self, level: Tensor, gap: Tensor, slope: Tensor) -> tuple["_Bracket", Tensor]:
        """Return the bracket with a level as one of its ends, and a step from it to the root.

        The step is along a parabola, the level as a function of the mass, which has the mass and
        its slope at the level, and the mass at the other end of the bracket: next to an extremum
        the level is quadratic in the mass.

        Args:
            level: A level in the bracket (*batch).
            gap: The mass that is missing above it (*batch).
            slope: Derivative of the mass above it (*batch); the step has no meaning if it is 0.
        """
        # A mass that is short by the tolerated error is enough.
        enough = gap <= _ENOUGH
        low, high = torch.where(enough, level, self.low), torch.where(enough, self.high, level)
        gap_low = torch.where(enough, gap, self.gap_low)
        gap_high = torch.where(enough, self.gap_high, gap)
        # From the level to the other end of the bracket, and from `gap` to the gap there.
        away = torch.where(enough, high, low) - level
        rise = torch.where(enough, gap_high, gap_low) - gap
        rate = torch.where(slope < 0, slope, -1.0)
        # To gain a mass x, go to level + x / rate + bend (x / rise)^2, with bend such that
        # x = -rise leads to the other end. A straight line, if that is far above the level.
        bend = torch.where(away <= _WIDE * level, away + rise / rate, 0.0)
        step = gap / rate + bend * (gap / rise).square()
        return _Bracket(low, high, gap_low, gap_high), step

    def middle(self) -> Tensor:
        """Return the mean of both ends, geometric if they differ in their order of magnitude."""
        wide = (self.low > 0) & (self.high > _WIDE * self.low)
        mean = self.low + (self.high - self.low) / 2
        return torch.where(wide, self.low.sqrt() * self.high.sqrt(), mean)


@torch.no_grad()
def mass_above(q: _Univariate, value: Tensor, cuts: Tensor) -> Tensor:
    """Return the mass (*batch) of the set {q >= q(value)}, 1 where q(value) is 0.

    Args:
        q: A density of numbers (*batch), in float64.
        value: Locations (*batch).
        cuts: Locations (*batch, J) between which the density is smooth, padded with NaN.
    """
    # A peak that only rounding puts above the level has no mass.
    level = q.prob(value.double()) * (1 + _ROUNDING / 2 * 2.0**-52)
    edges = _Edges(q, _Grid.of(q, _ascending(cuts)), level, steps=3)
    return torch.where(level > 0, edges.mass(q, edges.t), 1.0)


class _Grid(NamedTuple):
    """Locations between breakpoints, and the heights of a density there.

    Attributes:
        t: Locations (J, *batch), `size` of them in each of the B - 1 pieces between breakpoints.
        heights: Density at these locations (J, *batch).
        extrema: Heights (n, *batch) of its extrema, of other locations, and 0 as padding.
        breakpoints: In ascending order (B, *batch).
        size: Number of locations in a piece.
    """

    t: Tensor
    heights: Tensor
    extrema: Tensor
    breakpoints: Tensor
    size: int

    @classmethod
    def of(cls, q: _Univariate, breakpoints: Tensor) -> "_Grid":
        """Return a grid of `size` evenly spaced locations on each piece, some moved to extrema.

        Pieces lie between neighbors among the breakpoints (J + 1, *batch); locations and heights
        are (J size, *batch). Those at the ends of a piece are a few roundings inside, as the
        density may jump at the breakpoint.
        """
        count = min(max(_LOCATIONS // (len(breakpoints) - 1), _LEAST), _MOST)
        low, high = breakpoints[:-1], breakpoints[1:]
        step = _ROUNDING * 2.0**-54 * torch.maximum(low.abs(), high.abs())
        # Breakpoints that are the same up to rounding have all locations of the piece between them
        # on the left of both, so that no interval begins or ends there.
        empty = high - low <= 4 * step
        first, last = (torch.where(empty, low - step, x) for x in (low + step, high - step))
        fraction = torch.linspace(0, 1, count, dtype=low.dtype, device=low.device)
        fraction = fraction.reshape(-1, *(1,) * (low.dim() - 1))
        t = torch.lerp(first.unsqueeze(1), last.unsqueeze(1), fraction)
        t[:, -1] = last  # lerp may round beyond
        heights = _heights(q, t.flatten(0, 1)).reshape(t.shape)
        extrema = _move_to_extrema(q, t, heights)
        return cls(t.flatten(0, 1), heights.flatten(0, 1), extrema, breakpoints, count)

    def take(self, rows: Tensor) -> "_Grid":
        """Return the grid of the densities at which a mask `rows` (*batch) is true."""
        t, heights, extrema, breakpoints = (x[:, rows] for x in self[:4])
        return _Grid(t, heights, extrema, breakpoints, self.size)

    def level_of(self, mass: Tensor) -> Tensor:
        """Estimate the level of a mass (*batch), as if densities were linear on the grid.

        It is the root of the mass above a level, a sum over the cells between neighbors on the
        grid.
        """
        t, heights = (x.unflatten(0, (-1, self.size)) for x in (self.t, self.heights))
        width = t.diff(dim=1).clamp_min(0).flatten(0, 1)
        width = width / width.sum(0)
        u, v = heights[:, :-1].flatten(0, 1), heights[:, 1:].flatten(0, 1)
        low, high = torch.minimum(u, v), torch.maximum(u, v)
        mean = (low * width).sum(0).clamp_min(1e-300)
        low = (low / mean).clamp_min(_SMALL)
        # From here on heights are relative to `mean`. One of them may be almost infinite, at a
        # pole, and steep cells are not linear.
        high = torch.minimum((high / mean).clamp_min(2 * _SMALL), _STEEPEST * low.clamp_min(1))
        # A fraction s = (high - level) / (high - low) of a cell is above the level, and its mass is
        # s rectangle - s^2 triangle. Float32 suffices for an estimate.
        rate = 1 / torch.maximum(high - low, 1e-6 * high)
        start, rate, rectangle, triangle = (
            x.float() for x in (high * rate, rate, width * high, width * (high - low) / 2)
        )
        total, top = (rectangle - triangle).sum(0), high.amax(0).clamp(max=_LARGE).float()
        goal = mass.float() * total

        def excess(x: Tensor) -> Tensor:
            # With level = x / (1 - x) in units of `mean`, s is start - rate level.
            s = torch.addcmul(start, rate, x / (x - 1)).clamp_(0, 1)
            return goal - torch.addcmul(rectangle, s, triangle, value=-1).mul_(s).sum(0)

        # Levels of all sizes are in a short bracket for x = level / (level + 1).
        x = increasing_root(excess, torch.zeros_like(total), top / (top + 1), _START)
        return mean * (x / (1 - x)).double()


def _may_be_extrema(heights: Tensor) -> Tensor:
    """Return which locations may be next to an extremum, a mask (J, count, *batch).

    The first and the last location of a piece are none of them.

    Args:
        heights: Densities (J, count, *batch) at `count` locations in each of J pieces.
    """
    sign = torch.sign(heights.flatten(0, 1).diff(dim=0))
    candidate = torch.zeros_like(heights, dtype=torch.bool)
    candidate.flatten(0, 1)[1:-1] = sign[1:] != sign[:-1]
    # Three heights that rise or fall may hide an extremum next to the end of a piece. The location
    # beside the end is a candidate if the change is smaller towards the end.
    for first, second, third in ((0, 1, 2), (-1, -2, -3)):
        x, y, z = (heights[:, k] for k in (first, second, third))
        candidate[:, second] |= (y - x).abs() < (z - y).abs()
    candidate[:, 0] = candidate[:, -1] = False
    return candidate


def _move_to_extrema(q: _Univariate, t: Tensor, heights: Tensor) -> Tensor:
    """Move locations to extrema of the density between their neighbors, and return heights there.

    Args:
        q: Densities (*batch).
        t: Locations (J, count, *batch), `count` in each piece, changed in place.
        heights: Densities there, changed in place.

    Returns:
        Heights (n, *batch): of the extrema, of locations that may have been next to one, and the
        largest of all; 0 where a density has fewer than others.
    """
    count, flat = t.shape[1], heights.flatten(0, 1)
    row, present = _true_rows(_may_be_extrema(heights).flatten(0, 1))
    # Each candidate b between its neighbors a and c, with the heights v, u and w.
    a, b, c = (t.flatten(0, 1).gather(0, (row + k).clamp_min(0)) for k in (-1, 0, 1))
    u, v, w = (flat.gather(0, (row + k).clamp_min(0)) for k in (-1, 0, 1))
    rank = row % count  # in its piece
    for _ in range(_EXTREMA):
        # Between the neighbors, or else between b and a neighbor at the end of the piece.
        extreme = (v >= torch.maximum(u, w)) | (v <= torch.minimum(u, w))
        start = torch.where(extreme | (rank == 1), a, b)
        end = torch.where(extreme | (rank == count - 2), c, b)
        # The vertex of the parabola through three points, as in Brent (1973), ch. 5.
        lower_area, upper_area = (b - a) * (v - w), (b - c) * (v - u)
        shift = ((b - a) * lower_area - (b - c) * upper_area) / (2 * (lower_area - upper_area))
        # Close to the end of a piece, a height tells whether there is an extremum before the first.
        close = _BESIDE * (end - start)
        moved = (b - shift.nan_to_num(0.0, 0.0, 0.0)).clamp(start + close, end - close)
        moved = torch.where(present, moved, b)
        height = _heights(q, moved)
        three = torch.stack([u, v, w])
        better = (height > three.amax(0)) | (height < three.amin(0))
        if not bool(better.any()):
            break
        # The next parabola is through the best location and its neighbors.
        other, beside = torch.where(better, b, moved), torch.where(better, v, height)
        b, v = torch.where(better, moved, b), torch.where(better, height, v)
        left, right = ((extreme | better) & x for x in (other < b, other > b))
        a, u = torch.where(left, other, a), torch.where(left, beside, u)
        c, w = torch.where(right, other, c), torch.where(right, beside, w)
    row = torch.where(present, row, 0)
    # Padding writes the first value onto itself: the first location is no candidate.
    for old, new in ((t, b), (heights, v)):
        values = old.flatten(0, 1)
        values.scatter_(0, row, torch.where(present, new, values[:1]))
    return torch.cat([torch.where(present, v, 0.0), heights.amax((0, 1)).unsqueeze(0)])


def _ascending(cuts: Tensor) -> Tensor:
    """Return cuts (*batch, J) as (J, *batch) in float64, in ascending order and contiguous."""
    return sort_cuts(cuts.double()).contiguous()


def _heights(q: _Univariate, t: Tensor) -> Tensor:
    """Return densities at locations in float64, NaN replaced by 0 and infinity by 1e300."""
    return q.prob(t).double().nan_to_num(0.0, 1e300).contiguous()


def _true_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each density the rows at which a mask (n, *batch) is true, in ascending order.

    Returns:
        Rows (K, *batch), of which K is the largest number, padded with 0; and which of them are no
        padding (K, *batch).
    """
    batch = mask.shape[1:]
    row, density = mask.reshape(len(mask), batch.numel()).nonzero().unbind(-1)
    density, order = density.sort(stable=True)
    counts = density.bincount(minlength=batch.numel())
    # How many rows of the same density come before.
    rank = torch.arange(len(density), device=mask.device) - (counts.cumsum(0) - counts)[density]
    # Both ends of an interval, if the batch is empty.
    shape = int(counts.amax()) if batch.numel() else 2, batch.numel()
    rows, present = row.new_zeros(shape), mask.new_zeros(shape)
    rows[rank, density], present[rank, density] = row[order], True
    return rows.reshape(shape[0], *batch), present.reshape(shape[0], *batch)


class _Edges:
    """Ends of the intervals {q >= level}: lower ones and upper ones by turns.

    Args:
        q: Densities (*batch).
        grid: Locations and heights of these densities.
        level: Levels (*batch).
        steps: Newton steps towards an end, 2 or 3.

    Attributes:
        level: Levels (*batch).
        t: Ends (K, *batch); K is the largest number of them in the batch.
        present: Which of the K ends a density has.
        sign: -1 for lower ends, 1 for upper ones (K, *ones).
        low, high: Locations of the grid on both sides of each end (K, *batch).
        moving: Which ends are roots of q = level (K, *batch); at each other end q jumps.
        breakpoint: Index of the breakpoint at or next to an end (K, *batch).
        slopes: Slopes of q at the ends (K, *batch), infinite where an end does not move with the
            level.
        rate: Derivative of the mass in the level (*batch).
    """

    def __init__(self, q: _Univariate, grid: _Grid, level: Tensor, steps: int = 2) -> None:
        self.level, breakpoints = level, grid.breakpoints
        above = grid.heights >= level * (1 - _ROUNDING * 2.0**-52)
        outside = torch.zeros_like(above[:1])
        index, self.present = _true_rows(torch.cat([outside, above]) ^ torch.cat([above, outside]))
        sign = torch.where(torch.arange(len(index), device=level.device) % 2 == 0, -1.0, 1.0)
        self.sign = sign.to(level).reshape(-1, *(1,) * level.dim())
        # An end lies between the locations index - 1 and index. If these are in different pieces, q
        # jumps at the breakpoint between them.
        between = self.present & (index % grid.size != 0)
        piece = index // grid.size
        rows = [i.clamp(0, len(grid.t) - 1) for i in (index - 1, index)]
        self.low, self.high = (grid.t.gather(0, i) for i in rows)
        low, high = (
            torch.where(between, x, end)
            for x, end in ((self.low, breakpoints[:1]), (self.high, breakpoints[-1:]))
        )

        cells = torch.stack([low, high, *(grid.heights.gather(0, i) for i in rows)])
        solved = _roots(q, level, cells, between, steps)
        # Next to an extremum roots move far with the level.
        near = (cells[2:] - level).abs().amin(0)
        tolerated = torch.minimum(_INEXACT[steps] * level, _CLOSER * near)
        # A density with a root that is not accurate yet solves for all of its roots by a search.
        inaccurate = between & ~(solved[1] <= tolerated)
        if bool((late := inaccurate.any(0)).any()):
            solved[:, :, late] = _roots(
                q[late], level[late], cells[:, :, late], between[:, late], steps=0
            )
        root, error, slopes = solved
        self.moving = between & (error <= _MISSED * level)
        # Breakpoints may have rounding errors, so that a jump is next to them.
        following = breakpoints.gather(0, (piece + 1).clamp_max(len(breakpoints) - 1))
        is_next = (following - root).abs() < (root - breakpoints.gather(0, piece)).abs()
        self.breakpoint = torch.where(between & is_next, piece + 1, piece)
        ends = breakpoints.gather(0, self.breakpoint)
        is_near = (ends - root).abs() <= _AWAY * root.abs()
        self.t = torch.where(between & (self.moving | ~is_near), root, ends)
        # An end does not move where the density is level but for rounding.
        steep = slopes.abs() * (self.high - self.low) > _LEVEL * level
        self.slopes = torch.where(self.moving & steep, slopes, math.inf)
        # An end with q(t) = c moves by dt/dc = 1/q'(t), and the mass there changes by c dt.
        self.rate = (self.sign * level / self.slopes).sum(0)

    def mass(self, p: _Univariate, t: Tensor) -> Tensor:
        """Return the mass (*batch) of the intervals with ends t (K, *batch)."""
        return torch.where(self.present, self.sign * p.cdf(t), 0.0).sum(0)

    def polished(self, p: _Univariate, mass: Tensor, breakpoints: Tensor) -> Tensor:
        """Return ends (K, *batch), NaN where there is none, after a Newton step for all at once.

        The step takes away the rest of the error, and carries the derivatives of the implicit
        function theorem.

        Args:
            p: The densities with their graph.
            mass: Of the set (*batch), with its graph.
            breakpoints: In ascending order (B, *batch), with their graph.
        """
        ends = breakpoints.gather(0, self.breakpoint)
        start = torch.where(self.t == ends.detach(), ends, self.t)
        excess = torch.where(self.moving, p.prob(start) - self.level, 0.0)
        gap = mass - self.mass(p, start) + (self.sign * self.level * excess / self.slopes).sum(0)
        # Newton's step: ends move by (dc - excess)/q' to the level c + dc, and c times the sum of
        # their signed steps is the mass that is missing at `start`. So `gap`, which is still
        # missing at dc = 0, is `rate` times dc.
        # Where the mass jumps, no level meets it, and c stays.
        meets = (self.rate < 0) & (gap.detach().abs() <= _CLOSE)
        change = torch.where(meets, gap / torch.where(meets, self.rate, -1.0), 0.0)
        t = start + (change - excess) / self.slopes
        # Only the value is moved into its cell; the derivatives stay.
        t = torch.minimum(torch.maximum(t.detach(), self.low), self.high) + (t - t.detach())
        t = torch.where(self.moving, t, start)
        return torch.where(self.present, t, math.nan)


def _roots(q: _Univariate, level: Tensor, cells: Tensor, between: Tensor, steps: int) -> Tensor:
    """Solve q = level in brackets.

    Args:
        q: Densities (*batch).
        level: Levels (*batch).
        cells: Lower and upper ends that bracket the roots, and heights there (4, K, *batch).
        between: Which ends (K, *batch) are no breakpoints.
        steps: Newton steps from the root of the chord; 0 for a search before the last one.

    Returns:
        Stacked (3, K, *batch): the roots, estimates of |q - level| there, and slopes of q beside
        them.
    """
    low, high, u, v = cells
    if steps:
        t = low + (high - low) * ((level - u) / (v - u)).nan_to_num(0.5).clamp(0, 1)
    else:
        sign = torch.sign(v - u)
        t = increasing_root(
            lambda t: torch.where(between, sign * (q.prob(t) - level), 0.0), low, high
        )
    for _ in range(max(steps, 1)):
        with torch.enable_grad():  # for slopes only: callers switch gradients off
            t = t.requires_grad_()
            height = q.prob(t)
            (slopes,) = torch.autograd.grad(height.sum(), t)
        t, height, slopes = t.detach(), height.detach(), slopes.double()
        missed = torch.where(between, level - height, 0.0)
        # After a step q misses the level by about q'' step^2 / 2. The slope, and its difference
        # from the chord's, over the width estimate q''; a step is taken where it helps.
        step, width = missed / slopes, high - low
        after = step.square() * (slopes.abs() + (slopes - (v - u) / width).abs()) / width
        helps = (after < missed.abs()) & (low <= t + step) & (t + step <= high)
        t, error = torch.where(helps, t + step, t), torch.where(helps, after, missed.abs())
    return torch.stack([t, error, slopes])
