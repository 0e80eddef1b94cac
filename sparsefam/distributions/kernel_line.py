"""Kernel families on the line: distribution functions, quantiles, samples, exact supports."""

import math

import torch
from torch import Tensor

from ..numerics.arguments import require
from ..numerics.truncated_power import *
from ..supports import IntervalUnion
from .kernel_power import KernelPower
from .once import once

__all__ = ["KernelLine"]

# Units of rounding that masses are off by.
_ROUNDING = 8


class KernelLine(KernelPower):
    """What only densities of numbers have."""

    # Supports

    @once
    def _intervals(self) -> Tensor:
        """Intervals (*batch, K, 2) of the support, padded with NaN."""
        if not self.batch_shape.numel():
            return self.weights.new_empty(*self.batch_shape, 1, 2)
        with torch.no_grad():
            pieces = edge_pieces(self._offsets_on(self.panels), self._power)
            breaks = self.panels.axes[0].breaks.to(pieces.lower)
            shape = (len(pieces.lower), len(breaks) - 1, -1)
            lower, upper = (end.reshape(shape).permute(2, 1, 0) for end in pieces)
            low, high = breaks[:-1].unsqueeze(-1), breaks[1:].unsqueeze(-1)
            ends = [
                torch.where(
                    y == -1, low, torch.where(y == 1, high, (low + high + (high - low) * y) / 2)
                )
                for y in (lower, upper)
            ]
            alive = (upper > lower) & (self.panels.measure > 0).any(0).unsqueeze(-1)
            ends = [torch.where(alive, end, math.nan).to(self.weights) for end in ends]
            found = IntervalUnion.merged(torch.stack(ends, -1).flatten(1, 2)).intervals
            most = int((~found[..., 0].isnan()).sum(-1).amax())
            found = self._polished(found[:, :most].reshape(*self.batch_shape, most, 2))
            return self._to_base(found)

    def _polished(self, intervals: Tensor) -> Tensor:
        """Ends moved by Newton's method on the score itself, where they are edges."""
        eps = self._power_of(self.weights).eps
        ends = intervals.flatten(-2).movedim(-1, 0)
        inner = self._are_edges(ends)
        t = torch.where(inner, ends, self._inner_location())
        score, rate = self._score_and_slope(t)
        above = score - self._batched(self._parts.level).detach()
        step = (1 + eps * above) / (eps * rate)
        # An edge that would come near its neighbours is as good as tangent, and stays.
        gaps = ends.diff(dim=0).nan_to_num(math.inf)
        room = torch.cat([gaps[:1], torch.minimum(gaps[1:], gaps[:-1]), gaps[-1:]])
        small = step.abs() < room / 4
        moved = torch.where(inner & small, t.detach() - step, ends)
        return moved.movedim(0, -1).reshape(intervals.shape)

    def _are_edges(self, ends: Tensor) -> Tensor:
        """Which ends of intervals are edges of the score's, and none of the base's."""
        first, last = self._range()
        return (
            (ends > first) & (ends < last) & ~torch.isin(ends, self.panels.base.breaks(0).to(ends))
        )

    def _score_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """The score at locations and its derivative in them, both without a derivative."""
        t = t.detach().requires_grad_()
        with torch.enable_grad():
            score = self._score_at(t)
            (slope,) = torch.autograd.grad(score.sum(), t)
        return score.detach(), slope

    def _range(self) -> tuple[Tensor, Tensor]:
        breaks = self.panels.axes[0].breaks.to(self.weights)
        return breaks[0], breaks[-1]

    def _to_base(self, intervals: Tensor) -> Tensor:
        """Ends at the range of the panels are those of the base, which may be infinite."""
        first, last = self._range()
        low, high = self.panels.base.bounds(0)
        lower, upper = intervals.unbind(-1)
        lower = torch.where(lower <= first, low, lower)
        return torch.stack([lower, torch.where(upper >= last, high, upper)], -1)

    # Distribution functions

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function."""
        if self._validate_args:
            self._validate_sample(value)
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        if not value.numel():
            return value.clone()
        first, last = self._range()
        t = value.clamp(first, last)
        panel, y = self._place(t.to(torch.promote_types(t.dtype, self._dtype)))
        x, measure, power = self._panel_values(panel)
        part = partial_masses(x, measure, power, y.reshape(-1).to(x))
        part = part.reshape(value.shape) / self._parts.mass.reshape(self.batch_shape)
        found = (self._mass_before(panel) + part).to(torch.result_type(value, self.weights))
        if value.requires_grad:
            found = attach_slope(found, value, self.prob(value))
        found = torch.where(value <= first, 0.0, torch.where(value >= last, 1.0, found))
        return found.clamp(0, 1)

    def _place(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Panels and places in them, from -1 to 1, of locations."""
        breaks = self.panels.axes[0].breaks.to(t)
        panel = (torch.searchsorted(breaks, t.detach().contiguous()) - 1).clamp(0, len(breaks) - 2)
        low, high = breaks[panel], breaks[panel + 1]
        return panel, ((2 * t - low - high) / (high - low)).clamp(-1, 1)

    def _panel_values(self, panel: Tensor) -> tuple[Tensor, Tensor, Power]:
        """f - A (m, n), measure (m, n) and the power of panels (*S, *batch)."""
        offsets = self._offsets_on(self.panels)
        row = torch.arange(offsets.shape[-1], device=panel.device).reshape(self.batch_shape)
        place = panel.reshape(-1)
        x = offsets[:, place, row.expand(panel.shape).reshape(-1)]
        power = self._power
        if isinstance(power.eps, Tensor):
            power = power._replace(
                eps=power.eps.reshape(self.batch_shape).expand(panel.shape).reshape(-1)
            )
        return x, self._measure(self.panels).squeeze(-1)[:, place], power

    def _mass_before(self, panel: Tensor) -> Tensor:
        """Mass of all panels before those given, (*S, *batch)."""
        masses = self._panel_masses()
        before = (masses.cumsum(-1) - masses).expand(*panel.shape, -1)
        return before.gather(-1, panel.unsqueeze(-1)).squeeze(-1)

    def _panel_masses(self) -> Tensor:
        """Masses of panels (*batch, G)."""
        masses = self._weights_on(self.panels).sum(0)
        return masses.T.reshape(*self.batch_shape, len(masses))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function, differentiable in the level and in the parameters.

        Raises:
            ValueError: Levels outside [0, 1].
        """
        if self._validate_args:
            self._validate_sample(value)
            require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        t = self._quantiles(value.detach())
        # Beyond these is a mass of less than rounding: they move as the edge of the score does.
        edge, beyond = self._ends(value.detach())
        last = self._are_edges(edge) & (beyond < _ROUNDING * torch.finfo(t.dtype).eps)
        if not last.any():
            return self._attached(t, value)
        edge = torch.where(last, edge, self._inner_location())
        _, slope = self._score_and_slope(edge)
        above = self._score_at(edge) - self._batched(self._parts.level)
        edges = attach_quantile(t, above * slope.sign(), None, slope.abs())
        return torch.where(last, edges, self._attached(t, value))

    def _ends(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """The nearer end of the support, and the mass between."""
        first, last = self._intervals[..., 0, 0], self._intervals[..., 1].nan_to_num(-math.inf)
        upper = level > 0.5
        return torch.where(upper, last.amax(-1), first), torch.where(upper, 1 - level, level)

    def _attached(self, t: Tensor, level: Tensor | None = None) -> Tensor:
        """Quantiles with the derivatives of the function that they are: dt = (dq - dF)/p."""
        return attach_quantile(t, self.cdf(t), level, self.prob(t))

    @torch.no_grad()
    def _quantiles(self, level: Tensor) -> Tensor:
        if not level.numel():
            return level.clone()
        (end, beyond), kind = self._ends(level), level.dtype
        masses = self._panel_masses().clamp_min(0)
        level = level.to(masses)
        above = masses.cumsum(-1)
        above = (above / above[..., -1:]).expand(*level.shape, -1).contiguous()
        panel = torch.searchsorted(above, level.unsqueeze(-1).contiguous()).squeeze(-1)
        panel = panel.clamp_max(masses.shape[-1] - 1)
        last = above.gather(-1, panel.unsqueeze(-1)).squeeze(-1)
        own = masses.expand(*level.shape, -1).gather(-1, panel.unsqueeze(-1)).squeeze(-1)
        x, measure, power = self._panel_values(panel)
        _, lengths = self.panels.axes[0].rule()
        density = measure / lengths.to(measure).T[:, panel.reshape(-1)]
        breaks = self.panels.axes[0].breaks.to(level)
        low, high = breaks[panel], breaks[panel + 1]
        due = (own - (last - level)).clamp_min(0) * self._parts.mass.reshape(self.batch_shape)
        due = (due * 2 / (high - low)).reshape(-1)
        y = panel_quantiles(x, density, power, due).reshape(level.shape)
        t = self._kept(((low + high + (high - low) * y) / 2).to(kind))
        return torch.where(beyond <= 0, end, t)

    def _kept(self, t: Tensor) -> Tensor:
        """Locations in the nearest interval of the support, which rounding may have left."""
        lower, upper = self._intervals.to(t).unbind(-1)
        inside = torch.minimum(torch.maximum(t.unsqueeze(-1), lower), upper)
        gap = (inside - t.unsqueeze(-1)).abs().nan_to_num(math.inf)
        return inside.gather(-1, gap.argmin(-1, keepdim=True)).squeeze(-1)
