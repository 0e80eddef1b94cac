"""More panels where errors ask for them, and fewer where halving has made more than that."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics.panels import Axis, Columns, errors

__all__ = ["refined", "thinned"]

# How often panels are refined, and how often in vain before the rest is taken for rounding.
_MOST_STEPS, _PATIENCE = 24, 4
# Errors over their bounds that are no rounding.
_ROUGH = 1e4
# How many orders are tried; of a bound, what is used up, since another number of panels has its
# worst places elsewhere.
_ORDERS, _MARGIN = 3, 0.5
# Panels are alike up to rounding.
_ALIKE = 1e-9
# Edges of supports in as many panels cost as much as the rest.
_EDGES = 4


def refined(axis: Axis, excess: Callable[[Axis], Tensor]) -> tuple[Axis, float]:
    """Panels for which nothing exceeds its bound, or the least that rounding lets it, and that."""
    best, wasted, worst = _ROUGH, 0, _ROUGH
    for _ in range(_MOST_STEPS):
        found = excess(axis)
        worst = float(found.amax())
        if worst <= 1 or wasted == _PATIENCE:
            break
        if worst <= best / 2:
            best, wasted = worst, 0
        elif best < _ROUGH:
            wasted += 1
        axis = axis.refined(found > 1)
    return axis, worst


def thinned(axis: Axis, columns: Columns, share: float) -> Axis:
    """The cheapest axis of equal panels that resolves columns; itself if its own are unlike.

    Args:
        axis: Panels that resolve them better than they need to.
        columns: Functions of locations (q,), float64, to values (n, q).
        share: What their error is of what it may be, above 0.
    """
    widths, first, last = axis.breaks.diff(), axis.breaks[0], axis.breaks[-1]
    if widths.amax() - widths.amin() > _ALIKE * widths.sum():
        return axis
    bound = _MARGIN * errors(columns, axis).amax() / share
    best, count = axis, len(widths)
    for order in range(axis.order, axis.order + _ORDERS):
        while count > 1:
            fewer = Axis(
                torch.linspace(first, last, count, dtype=widths.dtype, device=widths.device), order
            )
            if errors(columns, fewer).amax() > bound:
                break
            count -= 1
            if _cost(fewer) < _cost(best):
                best = fewer
    return best


def _cost(axis: Axis) -> int:
    return axis.size + _EDGES * axis.order
