r"""Where the mass of a truncated power of scores is nearly 1: starts for the normaliser.

The norm $\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski), so
Newton's method on it rises to the root from any lower bound and never passes it. That is done on a
few of the nodes first, then on all; last, at alpha = 2, with the edges of supports, of which the
mass alone needs no more than a root and an antiderivative. What is found need not be right to the
last digit, but the nearer it is, the more seldom are weights computed twice.
"""

from functools import cache

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from .deformed import expm1_ratio
from .edges import Panel, chebyshev_sum, panel_rule
from .quadrature import constant, gauss_legendre
from .truncated import Power

__all__ = ["level_step", "nearby_level"]

# A step after which the error is that of the rule's own weights, so that effective ones come next;
# the same among a few nodes.
_NEAR, _ROUGHLY = 1e-3, 1e-2
_STEPS = {torch.float64: 8}
_FEWER_STEPS = 6
# One node stands for so many.
_THINNING = 3


def nearby_level(f: Tensor, measure: Tensor, of: Power) -> Tensor:
    """The normaliser (R,) nearly, for scores (m, G, R) and weights of a rule (m, G, 1)."""
    steps = _STEPS.get(f.dtype, _FEWER_STEPS)
    if f.is_cuda or torch.compiler.is_compiling() or not f.numel():
        return _risen(f, measure, of, _lower_bound(f, measure, of.eps), steps, None)
    if f.dtype != torch.float32:
        return _risen(f, measure, of, _lower_bound(f, measure, of.eps), steps, _NEAR)
    groups = max(1, len(f) // _THINNING)
    middles = torch.arange(len(f)).tensor_split(groups)
    few = f[[int(part[len(part) // 2]) for part in middles]]
    share = torch.stack([part.sum(0) for part in measure.tensor_split(groups)])
    level = _lower_bound(few, share, of.eps)
    level = _risen(few, share, of, level, steps, _ROUGHLY)
    if isinstance(of.eps, Tensor) or of.eps != 1:
        return _risen(f, measure, of, level, steps, _NEAR)
    level = _risen(f, measure, of, level, 1, None)
    x = f - level
    mass, rate = _sums(x, measure, of)
    more, faster = _at_edges(1 + x, measure)
    return level + level_step(mass + more, rate + faster, of.eps)


def level_step(mass: Tensor, rate: Tensor, eps: Tensor | float) -> Tensor:
    """Newton's step (R,) to a mass of 1, from it and minus its derivative."""
    if not isinstance(eps, Tensor) and eps == 1:
        return (mass - 1) / rate
    log = mass.log()
    return log * expm1_ratio(eps * log) * torch.exp((1 - eps) * log) / rate


def _sums(x: Tensor, measure: Tensor, of: Power) -> tuple[Tensor, Tensor]:
    """Mass and rate (R,) by the rule's own weights."""
    share = measure.reshape(1, -1)
    mass, rate = ((share @ v.flatten(0, 1))[0] for v in of.pair(x))
    return mass, rate


def _risen(
    f: Tensor, measure: Tensor, of: Power, level: Tensor, steps: int, near: float | None
) -> Tensor:
    """A level after steps, of the rows alone for which the last one was not below `near`."""
    for _ in range(steps):
        step = level_step(*_sums(f - level, measure, of), of.eps)
        level = level + step
        if near is None:
            continue
        rows = (step.abs() >= near).nonzero().squeeze(-1)
        if 2 * len(rows) <= len(level):
            if len(rows) and steps > 1:
                some = of._replace(eps=of.eps[rows]) if isinstance(of.eps, Tensor) else of
                part = f.index_select(-1, rows)
                level[rows] = _risen(part, measure, some, level[rows], steps - 1, near)
            return level
    return level


def _lower_bound(f: Tensor, measure: Tensor, eps: Tensor | float) -> Tensor:
    """The best of Jensen's bounds over all nodes, each panel, each node: mass is at least 1 there.

    On a set S, A >= E_S[f] - log_{2 - alpha}(1 / Q(S)).
    """

    def bound(mean: Tensor, share: Tensor) -> Tensor:
        log = -share.clamp_min(torch.finfo(f.dtype).tiny).log()
        return mean - log * expm1_ratio(eps * log)

    by_panel = measure.sum(0)
    sums = (f * measure).sum(0)
    whole = bound(sums.sum(0) / measure.sum(), measure.sum())
    panels = bound(sums / by_panel.clamp_min(torch.finfo(f.dtype).tiny), by_panel).amax(0)
    nodes = bound(f, measure).flatten(0, 1).amax(0)
    return torch.maximum(whole, torch.maximum(panels, nodes))


def _at_edges(u: Tensor, measure: Tensor) -> tuple[Tensor, Tensor]:
    """What the rule's own weights miss of the integrals (R,) of u_+ and of its sign.

    Panels are looked at whose nodes (m, G, R) are on both sides of an edge; the base is taken for
    constant on each.
    """
    order, rows = len(u), u.shape[-1]
    count = u.sign().clamp_min_(0).sum(0).flatten()
    place = ((count > 0) & (count < order)).nonzero().squeeze(-1)
    u, panel = u.reshape(order, -1).index_select(1, place), panel_rule(order, u)
    found = torch.stack(_one_side(u, panel))
    found -= torch.stack([panel.weights @ u.clamp_min(0), panel.weights @ u.sign().clamp_min_(0)])
    scale = (measure.flatten(1) / panel.weights.unsqueeze(-1)).mean(0)
    found *= scale[place // rows]
    mass, rate = u.new_zeros(2, rows).index_add_(1, place % rows, found)
    return mass, rate


def _one_side(u: Tensor, panel: Panel) -> tuple[Tensor, Tensor]:
    """Integrals (n,) of u_+ and of its sign for polynomials (m, n) with one or two roots."""
    positive, last = u.sign().clamp_min_(0), len(u) - 2
    starts, count = positive[0], positive.sum(0)
    after = torch.lerp(last + 1 - count, count - 1, starts)
    twice = (starts == positive[-1]).nonzero().squeeze(-1)
    part = positive.index_select(1, twice)
    changes = (part[1:] - part[:-1]).abs_()
    order = torch.arange(1, last + 2, dtype=u.dtype, device=u.device).unsqueeze(-1)
    after[twice] = last + 1 - (changes * order.flip(0)).amax(0)
    right = (changes * order).amax(0) - 1
    area = _antiderivative(len(u), u.dtype, u.device) @ u
    y = _crossing(u, panel, after)
    z = _crossing(u.index_select(1, twice), panel, right)
    mass, rate, total = chebyshev_sum(area, y), 1 + y, panel.weights @ u
    # Beyond the last of two roots there is what is before the first.
    mass[twice] += total[twice] - chebyshev_sum(area.index_select(1, twice), z)
    rate[twice] += 1 - z
    return torch.lerp(total - mass, mass, starts), torch.lerp(2 - rate, rate, starts)


def _crossing(u: Tensor, panel: Panel, after: Tensor) -> Tensor:
    """Roots (n,) of polynomials (m, n) after some nodes, by a secant and a step of Newton's."""
    index, (nodes, _) = after.long().unsqueeze(0), gauss_legendre(len(u), u)
    left, right = u.gather(0, index)[0], u.gather(0, index + 1)[0]
    low, high = nodes[index[0]], nodes[index[0] + 1]
    y = torch.lerp(low, high, left / (left - right))
    coefficients = panel.coefficients @ u
    value, slope = (chebyshev_sum(c, y) for c in (coefficients, panel.slope @ coefficients))
    return torch.minimum(torch.maximum(y - value / slope, low), high)


@cache
def _antiderivative(order: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """From nodal values to Chebyshev coefficients of the integral from -1, (order + 1, order)."""
    nodes = np.polynomial.legendre.leggauss(order)[0]
    lagrange = np.linalg.inv(chebyshev.chebvander(nodes, order - 1))
    return constant(chebyshev.chebint(lagrange, lbnd=-1), dtype, device)
