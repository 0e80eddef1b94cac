"""Supports, distribution functions, quantiles and samples of kernel families of numbers."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Size, Tensor
from torch.types import _size

from ..numerics.truncated_power import (
    Power,
    integrals,
    pieces_by_column,
    positive_pieces,
    power_quantiles,
)
from ..numerics.validation import broadcast_shapes, differentiable_once, in_eager, require
from ..supports import IntervalUnion

if TYPE_CHECKING:
    from .kernel_family import KernelDistribution

__all__ = [
    "draw_components",
    "quantiles",
    "support_intervals",
    "univariate_cdf",
    "univariate_icdf",
    "with_quantile_gradient",
]

# Units of rounding in masses.
_ROUNDING = 8


def _require_values(name: str) -> None:
    """Raise where the number of roots, which decides shapes, cannot be read."""
    if not in_eager():
        raise RuntimeError(
            f"{name} of a kernel family needs the values of its parameters, which torch.compile "
            "and torch.func.vmap hide: call it outside, on a density with a batch"
        )


# Supports


@torch.no_grad()
def support_intervals(p: "KernelDistribution") -> Tensor:
    """Return the intervals (*batch, K, 2) of the support, padded with NaN.

    Roots of the score's interpolant are improved by a Newton step on the score itself.
    """
    _require_values("the support, icdf and samples")
    if not p.batch_shape.numel():
        return p.weights.new_empty(*p.batch_shape, 1, 2)
    x = p._offsets_on(p.panels)
    power = p._power
    if isinstance(power.eps, Tensor):
        power = replace(power, eps=power.eps.repeat(x.shape[1]))
    inside = torch.ones_like(x) if power.is_exponential else power.inside(x.flatten(1))
    inside = inside.reshape(len(x), -1)
    lower, upper = pieces_by_column(positive_pieces(inside), inside.shape[1])
    breaks = p.panels.axes[0].breaks.to(lower)
    shape = (len(lower), len(breaks) - 1, -1)
    lower, upper = (end.reshape(shape).permute(2, 1, 0) for end in (lower, upper))
    low, high = breaks[:-1].unsqueeze(-1), breaks[1:].unsqueeze(-1)
    # Ends of subintervals are exact.
    ends = [
        torch.where(y == -1, low, torch.where(y == 1, high, (low + high + (high - low) * y) / 2))
        for y in (lower, upper)
    ]
    alive = (upper > lower) & (p.panels.measure > 0).any(0).unsqueeze(-1)
    ends = [torch.where(alive, end, math.nan).to(p.weights) for end in ends]
    found = IntervalUnion.merged(torch.stack(ends, -1).flatten(1, 2)).intervals
    most = int((~found[..., 0].isnan()).sum(-1).amax())
    found = _newton_step_on_edges(p, found[:, :most].reshape(*p.batch_shape, most, 2))
    # Ends of the mesh are those of the base, which may be infinite.
    first, last = _range(p)
    bounds = p.panels.base.bounds(0)
    lower = torch.where(found[..., 0] <= first, bounds[0], found[..., 0])
    return torch.stack([lower, torch.where(found[..., 1] >= last, bounds[1], found[..., 1])], -1)


def _newton_step_on_edges(p: "KernelDistribution", intervals: Tensor) -> Tensor:
    eps = p._batched_power().eps
    ends = intervals.flatten(-2).movedim(-1, 0)
    inner = _are_edges(p, ends)
    t = torch.where(inner, ends, p._inner_location())
    score, rate = _score_and_slope(p, t)
    above = score - p._batched(p._level).detach()
    step = (1 + eps * above) / (eps * rate)
    # An edge that would come near its neighbours is nearly tangent, and stays.
    gaps = ends.diff(dim=0).nan_to_num(math.inf)
    room = torch.cat([gaps[:1], torch.minimum(gaps[1:], gaps[:-1]), gaps[-1:]])
    moved = torch.where(inner & (step.abs() < room / 4), t - step, ends)
    return moved.movedim(0, -1).reshape(intervals.shape)


def _are_edges(p: "KernelDistribution", ends: Tensor) -> Tensor:
    """Return which ends of intervals are roots, not breaks of the base."""
    first, last = _range(p)
    return (ends > first) & (ends < last) & ~torch.isin(ends, p.panels.base.breaks(0).to(ends))


def _score_and_slope(p: "KernelDistribution", t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score at locations and its derivative there, both detached."""
    t = t.detach().requires_grad_()
    with torch.enable_grad():
        score = p._score_at(t)
        (slope,) = torch.autograd.grad(score.sum(), t)
    return score.detach(), slope


def _range(p: "KernelDistribution") -> tuple[Tensor, Tensor]:
    breaks = p.panels.axes[0].breaks.to(p.weights)
    return breaks[0], breaks[-1]


# Distribution functions


def univariate_cdf(p: "KernelDistribution", value: Tensor) -> Tensor:
    """Return the distribution function at values (*S, *batch)."""
    if p._validate_args:
        p._validate_sample(value)
    value = value.expand(broadcast_shapes(value.shape, p.batch_shape))
    if not value.numel():
        return value.clone()
    first, last = _range(p)
    dtype = torch.promote_types(value.dtype, p._scores.dtype)
    t = value.detach().to(dtype).clamp(first.to(dtype), last.to(dtype))
    breaks = p.panels.axes[0].breaks.to(t)
    cell = (torch.searchsorted(breaks, t.contiguous()) - 1).clamp(0, len(breaks) - 2)
    low, high = breaks[cell], breaks[cell + 1]
    y = ((2 * t - low - high) / (high - low)).clamp(-1, 1)
    x, measure, power = _cell_values(p, cell)
    (part,) = integrals(x, measure, power, ("power",), y.reshape(-1).to(x))
    part = part.sum(0).reshape(value.shape) / p._mass.reshape(p.batch_shape)
    masses = _cell_masses(p)
    before = (masses.cumsum(-1) - masses).expand(*cell.shape, -1)
    before = before.gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    found = (before + part).to(torch.promote_types(value.dtype, p.weights.dtype))
    if value.requires_grad:
        density = p.prob(value.detach()).detach()
        found = differentiable_once(found + (value - value.detach()) * density)
    found = torch.where(value <= first, 0.0, torch.where(value >= last, 1.0, found))
    return found.clamp(0, 1)


def _cell_values(p: "KernelDistribution", cell: Tensor) -> tuple[Tensor, Tensor, Power]:
    """Return f - A (m, n), measure (m, n) and power of subintervals (*S, *batch)."""
    offsets = p._offsets_on(p.panels)
    row = torch.arange(offsets.shape[-1], device=cell.device).reshape(p.batch_shape)
    row, place = row.expand(cell.shape).reshape(-1), cell.reshape(-1)
    measure = p._measure(p.panels).squeeze(-1)[:, place]
    return offsets[:, place, row], measure, p._power.take(row)


def _cell_masses(p: "KernelDistribution") -> Tensor:
    """Return masses of subintervals (*batch, G)."""
    masses = p._weights_on(p.panels).sum(0)
    return masses.T.reshape(*p.batch_shape, len(masses))


def univariate_icdf(p: "KernelDistribution", value: Tensor) -> Tensor:
    """Return quantiles of levels (*S, *batch), differentiable once in levels and parameters."""
    _require_values("icdf")
    if p._validate_args:
        p._validate_sample(value)
        require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
    value = value.expand(broadcast_shapes(value.shape, p.batch_shape))
    t = quantiles(p, value.detach())
    # Where less mass than rounding is left beyond, quantiles move with the edge of the score.
    edge, beyond = _nearer_end(p, value.detach())
    last = _are_edges(p, edge) & (beyond < _ROUNDING * torch.finfo(t.dtype).eps)
    found = with_quantile_gradient(p, t, value)
    if not last.any():
        return found
    edge = torch.where(last, edge, p._inner_location())
    _, slope = _score_and_slope(p, edge)
    above = p._score_at(edge) - p._batched(p._level)
    return torch.where(last, _implicit(t, above * slope.sign(), slope.abs()), found)


def with_quantile_gradient(
    p: "KernelDistribution", t: Tensor, level: Tensor | None = None
) -> Tensor:
    """Return quantiles t with the derivatives of the implicit function: dt = (dq - dF)/p."""
    mass = p.cdf(t)
    return _implicit(t, mass if level is None else mass - level, p.prob(t))


def _implicit(t: Tensor, residual: Tensor, slope: Tensor) -> Tensor:
    """Return t with the first derivatives of the root of a residual with a slope."""
    slope = slope.detach()
    change = residual - residual.detach()
    change = torch.where(slope > 0, change / torch.where(slope > 0, slope, 1.0), 0.0)
    return differentiable_once(t.detach() - change)


def _nearer_end(p: "KernelDistribution", level: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearer end of the support, and the mass between."""
    first, last = p._intervals[..., 0, 0], p._intervals[..., 1].nan_to_num(-math.inf)
    upper = level > 0.5
    return torch.where(upper, last.amax(-1), first), torch.where(upper, 1 - level, level)


@torch.no_grad()
def quantiles(p: "KernelDistribution", level: Tensor) -> Tensor:
    """Return quantiles of levels (*S, *batch), without derivatives."""
    _require_values("icdf and samples")
    if not level.numel():
        return level.clone()
    (end, beyond), dtype = _nearer_end(p, level), level.dtype
    masses = _cell_masses(p).clamp_min(0)
    level = level.to(masses)
    above = masses.cumsum(-1)
    above = (above / above[..., -1:]).expand(*level.shape, -1).contiguous()
    cell = torch.searchsorted(above, level.unsqueeze(-1).contiguous()).squeeze(-1)
    cell = cell.clamp_max(masses.shape[-1] - 1)
    last = above.gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    own = masses.expand(*level.shape, -1).gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    x, measure, power = _cell_values(p, cell)
    _, lengths = p.panels.axes[0].rule()
    density = measure / lengths.to(measure).T[:, cell.reshape(-1)]
    breaks = p.panels.axes[0].breaks.to(level)
    low, high = breaks[cell], breaks[cell + 1]
    due = (own - (last - level)).clamp_min(0) * p._mass.reshape(p.batch_shape)
    due = (due * 2 / (high - low)).reshape(-1)
    y = power_quantiles(x, density, power, due).reshape(level.shape)
    t = ((low + high + (high - low) * y) / 2).to(dtype)
    # Rounding may have left the support: the nearest location in it.
    lower, upper = p._intervals.to(t).unbind(-1)
    inside = torch.minimum(torch.maximum(t.unsqueeze(-1), lower), upper)
    gap = (inside - t.unsqueeze(-1)).abs().nan_to_num(math.inf)
    t = inside.gather(-1, gap.argmin(-1, keepdim=True)).squeeze(-1)
    return torch.where(beyond <= 0, end, t)


def draw_components(p: "KernelDistribution", sample_shape: _size) -> tuple[Tensor, Tensor]:
    """Draw from every interval of the support (*sample, *batch, K); also return their masses."""
    lower, upper = p._intervals.unbind(-1)
    present = ~lower.isnan()
    ends = [torch.where(present, end, end[..., :1]).movedim(-1, 0) for end in (lower, upper)]
    before, after = (p.cdf(end) for end in ends)  # (K, *batch)
    masses = torch.where(present.movedim(-1, 0), after - before, 0.0)
    shape = Size([*sample_shape, *before.shape])
    share = torch.rand(shape, dtype=before.dtype, device=before.device)
    # At a fixed share of its own component: d[F(t) - F(a)] = share d[F(b) - F(a)].
    level = before + share * (after - before)
    t = quantiles(p, level.detach())
    t = torch.minimum(torch.maximum(t, ends[0]), ends[1])
    return with_quantile_gradient(p, t, level).movedim(len(sample_shape), -1), masses.movedim(0, -1)
