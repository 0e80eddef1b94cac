"""Divergences of densities of numbers: integrals cut at the edges and kinks of both."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..supports import Interval, IntervalUnion
from .adoption import cuts_of, intervals_of
from .dense import Normal
from .divergence_integrands import Logs, bregman_excess, kl_excess, surprise, tsallis_excess
from .divergence_normals import tsallis_of_normals
from .foreign_line import ForeignOnLine
from .kernel_family import KernelDistribution
from .line_integral import line_integral
from .mixture import Mixture
from .powers import PowerDistribution
from .symmetric import SymmetricDistribution

__all__ = ["bregman_on_line", "cross_entropy", "kl_on_line", "tsallis_on_line"]

# By how many rounding errors ends of supports may miss each other that are meant to be one; edges
# of kernel families are roots.
_ULPS, _ROOT_ULPS = 8, 2**12
# How often the range is doubled where what is integrated decays more slowly than the densities.
_DOUBLINGS = (*range(12), 16, 24, 36, 54, 80, 120)
# At how many distances, half a decade apart, powers are measured with which integrands diverge:
# towards an end of a support, from the next cut; away from the centre, from as far as there are
# cuts. And how near, of the end's size, there are enough digits.
_PROBES, _LEAST = 11, 1e-6
# By how much a power must be on the side where there is an integral.
_MARGIN = 1e-3


def kl_on_line(p: Any, q: Any, eps: float) -> Tensor:
    r"""$E_p[\log p - \log q]$ of float64 densities of numbers, infinite unless nested (*batch).

    Args:
        p: The density of the expectation.
        q: The other.
        eps: Rounding error of their parameters.
    """
    known = _closed_cross_entropy(p, q)
    if known is not None:
        nested, _ = _nested(p, q, eps)
        return torch.where(nested, known - p.entropy(), math.inf)
    return _finite_mean(p, q, eps, kl_excess)


def _closed_cross_entropy(p: Any, q: Any) -> Tensor | None:
    """That with a normal, by two moments, or with a uniform density; None of others."""
    if not isinstance(p, SymmetricDistribution):
        return None
    if isinstance(q, Normal):
        square = (p.variance + (p.mean - q.loc).square()) / q.scale.square()
        return 0.5 * square + 0.5 * math.log(2 * math.pi) + q.scale.log()
    if isinstance(q, PowerDistribution) and q._fixed_exponent == 0:
        return (2 * q.scale).log() + torch.zeros_like(p.loc)
    return None


def cross_entropy(p: Any, q: Any, eps: float) -> Tensor:
    r"""$-E_p[\log q]$ of float64 densities of numbers, infinite unless nested (*batch)."""
    return _finite_mean(p, q, eps, surprise)


def _finite_mean(p: Any, q: Any, eps: float, integrand: Callable[[Logs], Tensor]) -> Tensor:
    """Integral of p times what grows as log q, infinite where it has none."""
    nested, slack = _nested(p, q, eps)
    p, q = _recentred(p, q)
    cuts = _cuts(p, q)
    light = _has_integral(lambda at: at.p + (1 + at.q.abs()).log(), p, q, cuts, slack)
    value = _integral(integrand, p, q, _with_far(p, cuts))
    return torch.where(nested & light, value, math.inf)


def _integral(integrand: Callable[[Logs], Tensor], p: Any, q: Any, cuts: Tensor) -> Tensor:
    return line_integral(lambda t: integrand(Logs.of(p.log_prob(t), q.log_prob(t))), cuts)


def tsallis_on_line(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""$(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$ of float64 densities of numbers."""
    if isinstance(p, Normal) and isinstance(q, Normal):
        return tsallis_of_normals(p, q, alpha)
    integrand = partial(tsallis_excess, alpha=alpha)
    centred = _recentred(p, q)
    cuts = _cuts(*centred)
    if alpha < 1:
        return _integral(integrand, *centred, cuts)
    nested, slack = _nested(p, q, eps)
    light = _has_integral(lambda at: alpha * at.p + (1 - alpha) * at.q, *centred, cuts, slack)
    value = _integral(integrand, *centred, _with_far(p, cuts))
    return torch.where(nested & light, value, math.inf)


def bregman_on_line(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""Bregman divergence of $\Omega_\alpha$ for float64 densities of numbers, alpha above 1.

    Finite whatever rounding makes of the supports: eps is there for the others' sake.
    """
    p, q = _recentred(p, q)
    return _integral(partial(bregman_excess, alpha=alpha), p, q, _cuts(p, q))


def _recentred(p: Any, q: Any) -> tuple[Any, Any]:
    """Both moved to where the narrower's centre is 0 if they can be: digits are kept there."""
    if not (isinstance(p, SymmetricDistribution) and isinstance(q, SymmetricDistribution)):
        return p, q
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(shape), q.expand(shape)
    centre = torch.where(p.scale <= q.scale, p.loc, q.loc).detach()
    p.loc, q.loc = p.loc - centre, q.loc - centre
    return p, q


def _nested(p: Any, q: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Whether the support of p lies in that of q (*batch), and what rounding moves ends by."""
    inner, outer = intervals_of(p).detach(), intervals_of(q).detach()
    ends = [torch.where(x.isfinite(), x, 0.0).abs().flatten(-2).amax(-1) for x in (inner, outer)]
    ulps = _ROOT_ULPS if any(isinstance(x, KernelDistribution) for x in (p, q)) else _ULPS
    slack = ulps * eps * torch.maximum(*ends)
    side = torch.tensor([-1.0, 1.0]).to(outer)
    outer = IntervalUnion.merged(outer + slack[..., None, None] * side).intervals.unsqueeze(-3)
    low, high = inner.unsqueeze(-2).unbind(-1)
    inside = ((outer[..., 0] <= low) & (high <= outer[..., 1])).any(-1)
    return (inside | inner[..., 0].isnan()).all(-1), slack


@torch.no_grad()
def _has_integral(
    log: Callable[[Logs], Tensor], p: Any, q: Any, cuts: Tensor, slack: Tensor
) -> Tensor:
    """Whether what has this logarithm can be integrated at the ends of p's support (*batch).

    Cuts nearer to an end than `slack` (*batch) are the same.
    """
    low, high = (x.unsqueeze(-1) for x in _span(cuts))
    found = torch.ones_like(low[..., 0], dtype=torch.bool)
    for end, inwards in zip(intervals_of(p).unbind(-1), (1.0, -1.0), strict=True):
        finite = end.isfinite()
        gaps = inwards * (cuts.unsqueeze(-2) - end.unsqueeze(-1))
        gap = torch.where(gaps > slack[..., None, None], gaps, math.inf).amin(-1)
        # Near enough for a power to show, and not so near that rounding does.
        gap = torch.maximum(gap, _LEAST * end.abs()) / 2
        start = torch.where(finite, end, (low + high) / 2)
        size = torch.where(finite, inwards * gap, inwards * (low - high))
        decades = (torch.arange(_PROBES).to(low) / 2).reshape(-1, *(1,) * size.dim())
        t = start + size * 10 ** torch.where(finite, -decades, decades)
        at = Logs.of(*(x.log_prob(t.movedim(-1, 1)).movedim(1, -1) for x in (p, q)))
        light = _decays(torch.where(at.in_both, log(at), math.nan), at, ~finite)
        found = found & (light | end.isnan()).all(-1)
    return found


def _decays(log: Tensor, at: Logs, outwards: Tensor) -> Tensor:
    """Whether powers measured over half decades (K, *shape) have an integral beyond the last.

    It is the last that can be measured: those before where q cannot be told from zero, as rounding
    of its edge or an underflow makes it. Where p cannot nothing is left to integrate.
    """
    power = log.diff(dim=0) / (0.5 * math.log(10))
    known = ~power.isnan()
    last = known * torch.arange(1, len(known) + 1).to(power).reshape(-1, *(1,) * (log.dim() - 1))
    power = power.gather(0, last.argmax(0, keepdim=True)).squeeze(0)
    # They have an integral at infinity below -1, at 0 above.
    light = torch.where(outwards, power < -_MARGIN - 1, -power > _MARGIN - 1)
    return light | ~at.in_p[-1]


def _cuts(p: Any, q: Any) -> Tensor:
    """Those of both (*batch, J)."""
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    found = [_own_cuts(x) for x in (p, q)]
    return torch.cat([x.expand(*shape, x.shape[-1]) for x in found], -1)


def _own_cuts(p: Any) -> Tensor:
    if isinstance(p, Mixture):
        return p._cuts()
    if isinstance(p, KernelDistribution):
        ends = _moving_edges(p)
        breaks = p.panels.axes[0].breaks.to(ends).expand(*p.batch_shape, -1)
        return torch.cat([torch.where(ends.isfinite(), ends, math.nan), breaks], -1)
    return cuts_of(p)


def _moving_edges(p: KernelDistribution) -> Tensor:
    """Ends of the support (*batch, J), with derivatives where the density jumps there."""
    ends = p._intervals.flatten(-2)
    power = p._batched_power()
    if not torch.is_grad_enabled() or not bool(torch.as_tensor(power.is_jump).any()):
        return ends
    t = ends.movedim(-1, 0)
    first, last = p.panels.axes[0].breaks[[0, -1]].to(t)
    inner = (t > first) & (t < last)
    safe = torch.where(inner, t, p._inner_location()).requires_grad_()
    # Where f - A is at a fixed level: dt = -d(f - A)/f'.
    offset = p._score_at(safe) - p._batched(p._level)
    (rate,) = torch.autograd.grad(offset.sum(), safe, retain_graph=True)
    offset = p._score_at(safe.detach()) - p._batched(p._level)
    moved = t - (offset - offset.detach()) / torch.where(rate == 0, math.inf, rate)
    return torch.where(inner, moved, t).movedim(0, -1)


def _span(cuts: Tensor) -> tuple[Tensor, Tensor]:
    """First and last of cuts (*batch, J)."""
    missing = cuts.isnan()
    low = torch.where(missing, math.inf, cuts).amin(-1)
    return low, torch.where(missing, -math.inf, cuts).amax(-1)


def _is_bounded(p: Any) -> bool:
    if isinstance(p, Mixture):
        return all(_is_bounded(part) for part in p.parts.parts)
    if isinstance(p, KernelDistribution):
        return all(math.isfinite(end) for end in p.panels.base.bounds(0))
    if isinstance(p, ForeignOnLine):
        return None not in p.ends
    return isinstance(p.support, Interval)


def _with_far(p: Any, cuts: Tensor) -> Tensor:
    """With cuts outside, further and further away, unless p is zero there."""
    if _is_bounded(p):
        return cuts
    low, high = (x.detach().unsqueeze(-1) for x in _span(cuts))
    steps = (high - low) * 2.0 ** torch.tensor(_DOUBLINGS).to(cuts)
    return torch.cat([cuts, low - steps, high + steps], -1)
