r"""Where the mass of a truncated power of scores is nearly 1: starts for the normaliser.

The norm $\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski), so
Newton's method on it rises to the root from any lower bound and never passes it. That is done on a
few of the nodes first, then on all. What is found need not be right to the last digit, but the
nearer it is, the more seldom are weights computed twice.
"""

from functools import partial

import torch
from torch import Tensor

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
    """The normaliser (R,) nearly, for scores (m, G, R) up to 0 and weights of a rule (m, G, 1)."""
    steps = _STEPS.get(f.dtype, _FEWER_STEPS)
    if f.is_cuda or torch.compiler.is_compiling() or not f.numel():
        return _risen(f, measure, of, _lower_bound(f, measure, of.eps), steps, None)
    if f.dtype != torch.float32:
        return _risen(f, measure, of, _lower_bound(f, measure, of.eps), steps, _NEAR)
    groups = max(1, len(f) // _THINNING)
    middles = torch.arange(len(f)).tensor_split(groups)
    few = f[[int(part[len(part) // 2]) for part in middles]]
    share = torch.stack([part.sum(0) for part in measure.tensor_split(groups)])
    level = _risen(few, share, of, _lower_bound(few, share, of.eps), steps, _ROUGHLY)
    # The top need not be among the few, and steps from far below it are too many.
    level = torch.maximum(level, _jensen(0.0, measure[measure > 0].amin(), of.eps))
    return _risen(f, measure, of, level, steps, _NEAR)


def level_step(mass: Tensor, rate: Tensor, eps: Tensor | float) -> Tensor:
    """Newton's step (R,) to a mass of 1, from it and minus its derivative."""
    if not isinstance(eps, Tensor) and eps == 1:
        return (mass - 1) / rate
    log = mass.log()
    if not isinstance(eps, Tensor) and eps == 0:
        return log * mass / rate
    return torch.expm1(eps * log) * torch.exp((1 - eps) * log) / (eps * rate)


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
    bound = partial(_jensen, eps=eps)
    by_panel = measure.sum(0)
    sums = (f * measure).sum(0)
    whole = bound(sums.sum(0) / measure.sum(), measure.sum())
    panels = bound(sums / by_panel.clamp_min(torch.finfo(f.dtype).tiny), by_panel).amax(0)
    nodes = bound(f, measure).flatten(0, 1).amax(0)
    return torch.maximum(whole, torch.maximum(panels, nodes))


def _jensen(mean: Tensor | float, share: Tensor, eps: Tensor | float) -> Tensor:
    log = -share.clamp_min(torch.finfo(share.dtype).tiny).log()
    return mean - torch.expm1(eps * log) / eps
