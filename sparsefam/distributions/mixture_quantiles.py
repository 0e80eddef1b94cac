"""Distribution and quantile functions of mixtures, and draws with implicit derivatives."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..numerics.roots import attach_root_gradient, increasing_root
from .adoption import intervals_of, tail_of
from .pieces import snapped

if TYPE_CHECKING:
    from .mixture import Mixture

__all__ = ["attached", "quantile", "tail"]


def tail(p: "Mixture", value: Tensor, upper: Tensor) -> Tensor:
    """Mass below each value, or above where `upper`, with the digits that the components have."""
    _refuse_vectors(p)
    return p._weighed(p.parts.at(tail_of, value, upper))


def _excess(p: "Mixture", value: Tensor, goal: Tensor, upper: Tensor) -> Tensor:
    """Mass below each value, less what is wanted there; or the same from above."""
    gap = tail(p, value, upper) - goal
    return torch.where(upper, -gap, gap)


def quantile(p: "Mixture", value: Tensor) -> Tensor:
    """Quantiles of probabilities (*sample, *batch), differentiable in the parameters and in them.

    Between the components' own quantiles, and on the support to the last digit.
    """
    _refuse_vectors(p)
    inside = (value > 0) & (value < 1)
    share = torch.where(inside, value, 0.5)
    upper = share > 0.5
    goal = torch.where(upper, 1 - share, share)
    with torch.no_grad():
        present = p.logits > -math.inf
        own = p.parts.at(lambda q, u: q.icdf(u), share)
        low, high = (torch.where(present, own, end) for end in (math.inf, -math.inf))
        t = increasing_root(lambda t: _excess(p, t, goal, upper), low.amin(-1), high.amax(-1))
        t = snapped(t, intervals_of(p), _excess(p, t, goal, upper) >= 0)
    t = _implicit(p, t, goal, upper)
    ends = intervals_of(p)
    first, last = ends[..., 0, 0], torch.where(ends.isnan(), -math.inf, ends)[..., 1].amax(-1)
    return torch.where(inside, t, torch.where(value <= 0, first, last))


def _refuse_vectors(p: "Mixture") -> None:
    if p.event_shape:
        raise NotImplementedError("distribution functions are known of numbers only")


def attached(p: "Mixture", t: Tensor) -> Tensor:
    """Draws with the derivatives of quantiles at fixed probabilities."""
    with torch.no_grad():
        upper = tail(p, t, torch.zeros_like(t, dtype=torch.bool)) > 0.5
        goal = tail(p, t, upper)
    return _implicit(p, t, goal.detach(), upper)


def _implicit(p: "Mixture", t: Tensor, goal: Tensor, upper: Tensor) -> Tensor:
    """Quantiles with the derivatives of the equation that they solve; the value is kept."""
    moved = attach_root_gradient(t, lambda t: _excess(p, t, goal, upper), p.prob)
    return t.detach() + (moved - moved.detach())
