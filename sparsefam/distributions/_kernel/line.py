"""Densities of numbers on a mesh: supports, distribution functions, quantiles and draws."""

import math

import torch
from torch import Size, Tensor
from torch.distributions.utils import lazy_property

from ..._numerics.cells import below, pieces_by_column, positive_pieces, power_quantiles
from ..._numerics.deformed import Power
from ..._numerics.modes import branches_allowed, in_forward_mode, may_have_tangent
from ..._numerics.operators import differentiable_once
from ..._numerics.truncated_power import integrals
from ..._numerics.validation import broadcast_shapes
from ...supports import IntervalUnion
from .solution import Solution

__all__ = ["Line"]

# Levels nearer to 0 or 1 than so many units of rounding have quantiles without derivatives.
_ROUNDING = 8
# From this many draws of a density on, quantiles are read from a table; its number of brackets.
# In brackets whose middle is off by more, relative to the range, quantiles are computed.
_TABLED, _BRACKETS = 2**13, 2**10
_TABLE_ERROR = {torch.float32: 1e-6, torch.float64: 1e-8}


class Line:
    """The distribution functions of densities of numbers, with their inverses.

    Args:
        solution: The densities (*batch).
    """

    def __init__(self, solution: Solution) -> None:
        self.solution = solution

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """The first and the last break of the mesh, tensors without axes."""
        breaks = self.solution.mesh.axes[0].breaks.to(self.solution.weights)
        return breaks[0], breaks[-1]

    @lazy_property
    @torch.no_grad()
    def intervals(self) -> Tensor:
        """The intervals (*batch, K, 2) of the supports, padded with NaN."""
        _require_values("the support, icdf and samples")
        s = self.solution
        if not s.batch.numel():
            return s.weights.new_empty(*s.batch, 1, 2)
        offsets = s.offsets_on(s.mesh)
        # On a subinterval 1 + eps (f - A) is a polynomial, whose roots are ends of the support.
        # Nodal values (m, G R); positive everywhere at alpha = 1.
        always = s.power.is_exponential
        polynomials = (torch.ones_like(offsets) if always else s.power.inside(offsets)).flatten(1)
        lower, upper = pieces_by_column(positive_pieces(polynomials), polynomials.shape[1])
        breaks = s.mesh.axes[0].breaks.to(lower)
        shape = (len(lower), len(breaks) - 1, -1)
        # Ends in [-1, 1] of pieces, (R, G, pieces). A piece counts if it has a length, on a
        # subinterval where the base has mass.
        lower, upper = (end.reshape(shape).permute(2, 1, 0) for end in (lower, upper))
        alive = (upper > lower) & (s.mesh.measure > 0).any(0).unsqueeze(-1)
        low, high = breaks[:-1].unsqueeze(-1), breaks[1:].unsqueeze(-1)
        # lerp is exact at the ends of subintervals.
        ends = torch.stack([torch.lerp(low, high, (1 + y) / 2) for y in (lower, upper)], -1)
        ends = torch.where(alive.unsqueeze(-1), ends, math.nan).to(s.weights)
        # Pieces that meet at a break become one interval.
        merged = IntervalUnion.merged(ends.flatten(1, 2)).intervals
        most = int((~merged[..., 0].isnan()).sum(-1).amax())
        lower, upper = merged[:, :most].reshape(*s.batch, most, 2).unbind(-1)
        # The mesh ends where tails are negligible; the support ends where the base does.
        (first, last), bounds = self._ends, s.mesh.base.bounds(0)
        lower = torch.where(lower <= first, bounds[0], lower)
        return torch.stack([lower, torch.where(upper >= last, bounds[1], upper)], -1)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function at values (*S, *batch)."""
        return self.tail(value, torch.zeros_like(value, dtype=torch.bool))

    def tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the mass below values, or above them where `upper`, all (*S, *batch).

        It is a sum over whole subintervals, plus the integral from the end of the subinterval of
        the value up to the value.
        """
        s = self.solution
        value, upper = torch.broadcast_tensors(value, upper)
        upper = upper.expand(broadcast_shapes(value.shape, s.batch))
        value = value.expand(broadcast_shapes(value.shape, s.batch))
        if not value.numel():
            return value.clone()
        dtype = torch.promote_types(value.dtype, s.scores.dtype)
        first, last = self._ends
        t = value.detach().to(dtype).clamp(first.to(dtype), last.to(dtype))
        breaks = s.mesh.axes[0].breaks.to(t)
        cell = (torch.searchsorted(breaks, t.contiguous()) - 1).clamp(0, len(breaks) - 2)
        within = self._mass_within(cell, t, upper)
        mass = (self._mass_beside(cell, upper) + within).to(
            torch.promote_types(value.dtype, s.weights.dtype)
        )
        if value.requires_grad or may_have_tangent(value):
            # dF/dt = p(t), which the integral up to the detached value lacks.
            density = self._density(value.detach()).detach()
            density = torch.where(upper, -density, density)
            mass = differentiable_once(mass + (value - value.detach()) * density)
        # All of the mass is above values before the mesh, and below values after it.
        outside = ((value <= first) == upper).to(mass.dtype)
        mass = torch.where((value <= first) | (value >= last), outside, mass)
        return mass.clamp(0, 1)

    def _mass_within(self, cell: Tensor, t: Tensor, upper: Tensor) -> Tensor:
        """Return the mass of subintervals below locations in them, or above, all (*S, *batch).

        Args:
            cell: The indices of the subintervals.
            t: The locations.
            upper: Where the mass above is asked for.
        """
        s, breaks = self.solution, self.solution.mesh.axes[0].breaks.to(t)
        low, high = breaks[cell], breaks[cell + 1]
        y = ((2 * t - low - high) / (high - low)).clamp(-1, 1)
        x, measure, power = self._cell_values(cell)
        # The mass above y is the mass below -y of the mirrored density.
        mirrored = upper.reshape(-1)
        x, measure = (torch.where(mirrored, v.flip(0), v) for v in (x, measure))
        x, measure = below(x, measure, torch.where(upper, -y, y).reshape(-1).to(x))
        (masses,) = integrals(x, measure, power, ("power",))
        return masses.sum(0).reshape(cell.shape) / s.Z.reshape(s.batch)

    def _mass_beside(self, cell: Tensor, upper: Tensor) -> Tensor:
        """Return the mass of all subintervals before those of an index, or after where `upper`."""
        masses, index = self._cell_masses(), cell.unsqueeze(-1)
        before, after = (
            (v.cumsum(-1) - v).expand(*cell.shape, -1) for v in (masses, masses.flip(-1))
        )
        before = before.gather(-1, index).squeeze(-1)
        after = after.gather(-1, masses.shape[-1] - 1 - index).squeeze(-1)
        return torch.where(upper, after, before)

    def _density(self, t: Tensor) -> Tensor:
        """Return the densities at locations (*S, *batch), in the same shape."""
        return self.solution.log_density(t.unsqueeze(-1)).exp()

    def _cell_values(self, cell: Tensor) -> tuple[Tensor, Tensor, Power]:
        """Return f - A (m, n), measure (m, n) and power of n subintervals (*S, *batch).

        `cell` has the index of a subinterval for each density, repeated for each sample.
        """
        s = self.solution
        offsets = s.offsets_on(s.mesh)
        row = torch.arange(offsets.shape[-1], device=cell.device).reshape(s.batch)
        row, column = row.expand(cell.shape).reshape(-1), cell.reshape(-1)
        measure = s.measure_on(s.mesh).squeeze(-1)[:, column]
        return offsets[:, column, row], measure, s.power.take(row)

    def _cell_masses(self) -> Tensor:
        """Return masses of subintervals (*batch, G)."""
        masses = self.solution.weights_on(self.solution.mesh).sum(0)
        return masses.T.reshape(*self.solution.batch, len(masses))

    def icdf(self, level: Tensor) -> Tensor:
        """Return quantiles of levels (*S, *batch), differentiable once in levels and parameters."""
        _require_values("icdf")
        level = level.expand(broadcast_shapes(level.shape, self.solution.batch))
        t = self.quantiles(level.detach())
        # Where the mass beyond t is less than rounding, the quotient of derivatives has no digits.
        at_end = torch.minimum(level, 1 - level) < _ROUNDING * torch.finfo(t.dtype).eps
        return torch.where(at_end, t, self.with_gradient(t, level))

    def with_gradient(self, t: Tensor, level: Tensor | float = 0.0) -> Tensor:
        """Return quantiles t with derivatives: from F(t; w) = q, dt = (dq - dF/dw dw)/p(t).

        A level q that is constant need not be given.
        """
        residual, slope = self.cdf(t) - level, self._density(t).detach()
        # It is 0 and has the derivative of F(t; w) - q.
        change = residual - residual.detach()
        change = torch.where(slope > 0, change / torch.where(slope > 0, slope, 1.0), 0.0)
        return differentiable_once(t.detach() - change)

    @torch.no_grad()
    def quantiles(self, level: Tensor) -> Tensor:
        """Return quantiles of levels (*S, *batch), without derivatives."""
        _require_values("icdf and samples")
        if not level.numel():
            return level.clone()
        masses = self._cell_masses().clamp_min(0)
        exact = level.to(masses)
        # The subinterval of a quantile first, then the root of the mass in it.
        cumulative = masses.cumsum(-1)
        cumulative = (cumulative / cumulative[..., -1:]).expand(*exact.shape, -1).contiguous()
        index = torch.searchsorted(cumulative, exact.unsqueeze(-1).contiguous())
        index = index.clamp_max(masses.shape[-1] - 1)
        mass_to_end, cell_mass = (
            x.expand(*exact.shape, -1).gather(-1, index).squeeze(-1) for x in (cumulative, masses)
        )
        mass = (cell_mass - (mass_to_end - exact)).clamp_min(0)
        t = self._quantiles_within(index.squeeze(-1), mass).to(level.dtype)
        # Rounding may have moved t off the support, to whose nearest location it is moved back.
        lower, upper = self.intervals.to(t).unbind(-1)
        inside = torch.minimum(torch.maximum(t.unsqueeze(-1), lower), upper)
        gap = (inside - t.unsqueeze(-1)).abs().nan_to_num(math.inf)  # infinite where it is padding
        t = inside.gather(-1, gap.argmin(-1, keepdim=True)).squeeze(-1)
        ends = torch.where(level > 0.5, upper.nan_to_num(-math.inf).amax(-1), lower[..., 0])
        return torch.where((level <= 0) | (level >= 1), ends, t)

    def _quantiles_within(self, cell: Tensor, mass: Tensor) -> Tensor:
        """Return locations in subintervals up to which these have given masses, all (*S, *batch).

        Args:
            cell: The indices of the subintervals.
            mass: The masses, from the start of each subinterval.
        """
        s, axis = self.solution, self.solution.mesh.axes[0]
        x, measure, power = self._cell_values(cell)
        _, lengths = axis.rule()
        density = measure / lengths.to(measure).T[:, cell.reshape(-1)]
        breaks = axis.breaks.to(mass)
        low, high = breaks[cell], breaks[cell + 1]
        # The power has the mass times Z. Over [-1, 1] integrals are 2 / (high - low) times as large
        # as over the subinterval.
        mass = mass * s.Z.reshape(s.batch)
        y = power_quantiles(x, density, power, (mass * 2 / (high - low)).reshape(-1))
        return torch.lerp(low, high, (1 + y.reshape(cell.shape)) / 2)

    def sample(self, shape: Size) -> Tensor:
        """Draw samples (*shape, *batch) by quantiles, many from a table."""
        s = self.solution
        whole = Size([*shape, *s.batch])
        level = torch.rand(whole, dtype=s.weights.dtype, device=s.weights.device)
        if shape.numel() < _TABLED:
            return self.quantiles(level)
        return self._tabled_quantiles(level.flatten(0, len(shape) - 1)).reshape(whole)

    def _tabled_quantiles(self, level: Tensor) -> Tensor:
        """Return quantiles of levels (n, *batch) by cubic Hermite interpolation in a table.

        They are computed where it is off in the middle of their bracket. The slope of a quantile
        function is 1/p; where it is infinite no bracket counts as close.
        """
        # Knots of even numbers are ends of brackets, the others are their middles.
        count = 2 * _BRACKETS + 1
        knots = torch.linspace(0, 1, count, dtype=level.dtype, device=level.device)
        knots = knots.reshape(-1, *(1,) * (level.dim() - 1)).expand(-1, *level.shape[1:])
        t = self.quantiles(knots)
        first, last, middle = t[:-1:2], t[2::2], t[1::2]
        start, end = (1 / (_BRACKETS * self._density(side)) for side in (first, last))
        rise = last - first
        # At a fraction u of the bracket the cubic is first + start u + (3 rise - 2 start - end) u^2
        # + (start + end - 2 rise) u^3. At u = 1/2 it is compared with the quantile there.
        error = (first + rise / 2 + (start - end) / 8 - middle).abs()
        close = error <= _TABLE_ERROR[t.dtype] * (t[-1] - t[0])
        bracket = (level * _BRACKETS).long().clamp_max(_BRACKETS - 1)
        u = level * _BRACKETS - bracket
        second, third = 3 * rise - 2 * start - end, start + end - 2 * rise
        low, a, b, c = (x.gather(0, bracket) for x in (first, start, second, third))
        interpolated = torch.minimum(low + u * (a + u * (b + u * c)), last.gather(0, bracket))
        interpolated, close = torch.maximum(interpolated, low), close.gather(0, bracket)
        # Draws of the whole batch are computed if the table is off for one of its densities.
        computed = (~close).reshape(len(close), -1).any(1).nonzero().squeeze(-1)
        return interpolated.index_copy(0, computed, self.quantiles(level[computed]))

    def components(self, shape: Size) -> tuple[Tensor, Tensor]:
        """Draw a location from every interval of the supports, with gradients.

        Returns:
            Locations (*shape, *batch, K), and the masses of the intervals (*batch, K).
        """
        lower, upper = self.intervals.unbind(-1)
        present = ~lower.isnan()
        # The first interval stands in for padding, whose mass is 0.
        ends = [torch.where(present, end, end[..., :1]).movedim(-1, 0) for end in (lower, upper)]
        before, after = (self.cdf(end) for end in ends)  # (K, *batch)
        masses = torch.where(present.movedim(-1, 0), after - before, 0.0)
        fraction = torch.rand([*shape, *before.shape], dtype=before.dtype, device=before.device)
        # A draw stays at its fraction u of the interval [a, b]: F(t) = F(a) + u (F(b) - F(a)).
        level = before + fraction * (after - before)
        t = self.quantiles(level.detach())
        t = self.with_gradient(torch.minimum(torch.maximum(t, ends[0]), ends[1]), level)
        return t.movedim(len(shape), -1), masses.movedim(0, -1)


def _require_values(name: str) -> None:
    """Raise where values are hidden: the number of roots decides the shapes of results.

    Args:
        name: Of the results, for the message.
    """
    if not branches_allowed() or in_forward_mode():
        raise RuntimeError(
            f"{name} of a kernel family needs the values of its parameters, which torch.compile, "
            "torch.func and forward mode hide: call it outside, on a density with a batch"
        )
