"""Functions that are smooth between cuts of the line: their integrals, maxima and gaps."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics.quadrature import smooth_unit_rule

__all__ = ["highest", "in_order", "piece_rule", "snapped"]

# Nodes on each piece of an integral; locations on each piece, and steps from there to the highest.
_ORDER, _LOCATIONS = 48, 8
_STEPS = {torch.float32: 30, torch.float64: 50}
_GOLDEN = 0.6180339887498949


def piece_rule(cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (Q, *batch) of integrals of what is smooth between cuts (*batch, J).

    Cuts come in any order; NaN is left out.
    """
    ordered = in_order(cuts)
    low, width = ordered[:-1], ordered.diff(dim=0)
    share, rule = (x.reshape(-1, *(1,) * low.dim()) for x in smooth_unit_rule(_ORDER, cuts))
    return (low + width * share).flatten(0, 1), (width * rule).flatten(0, 1)


def in_order(cuts: Tensor) -> Tensor:
    """Cuts (J, *batch), ascending, the last in place of NaN."""
    last = torch.where(cuts.isnan(), -math.inf, cuts).amax(-1, keepdim=True)
    return torch.where(cuts.isnan(), last, cuts).sort(dim=-1).values.movedim(-1, 0)


def highest(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Where a function is highest (*batch), without gradient.

    The best of the cuts (*batch, J) and of locations between them, then a golden section search
    between its neighbours: exact to the square root of a rounding error where the top is round.
    """
    with torch.no_grad():
        ordered = in_order(cuts)
        share = torch.linspace(0, 1, _LOCATIONS + 1).to(cuts).reshape(-1, *(1,) * ordered.dim())
        grid = (ordered[:-1] + share * ordered.diff(dim=0)).flatten(0, 1)
        best = grid.gather(0, function(grid).argmax(0, keepdim=True))
        low = torch.where(grid < best, grid, -math.inf).amax(0)
        high = torch.where(grid > best, grid, math.inf).amin(0)
        best = best.squeeze(0)
        low, high = (torch.where(end.isfinite(), end, best) for end in (low, high))
        found = _golden_section(function, low, high)
        return torch.where(function(found) > function(best), found, best)


def _golden_section(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    for _ in range(_STEPS.get(low.dtype, 50)):
        step = _GOLDEN * (high - low)
        left, right = high - step, low + step
        rises = function(left) < function(right)
        low, high = torch.where(rises, left, low), torch.where(rises, high, right)
    return (low + high) / 2


def snapped(t: Tensor, intervals: Tensor, reached: Tensor) -> Tensor:
    """Locations moved out of the gaps between intervals.

    Args:
        t: Locations (..., *batch).
        intervals: Ends (*batch, J, 2), NaN where there are fewer.
        reached: Whether the mass below t is at least what was asked for: then the end of the
            interval below t is the quantile, else the beginning of the next.
    """
    lower, upper = intervals.detach().unbind(-1)
    at = t.unsqueeze(-1)
    inside = ((lower <= at) & (at <= upper)).any(-1)
    below = torch.where(upper <= at, upper, -math.inf).amax(-1)
    above = torch.where(lower >= at, lower, math.inf).amin(-1)
    down = (reached & below.isfinite()) | ~above.isfinite()
    return torch.where(inside, t, torch.where(down, below, above))
