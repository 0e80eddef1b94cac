"""What the tails of an unbounded base may spoil in a kernel family, and how it is noticed."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..numerics.validation import require

if TYPE_CHECKING:
    from .kernel import KernelDistribution

__all__ = ["require_moment", "require_resolved"]

# The part of a mass that may be where panels do not resolve the base.
_FAR_OUT = 1e-3
# Of a moment, what its integrand times the distance may still be at the end of the panels. For an
# integrand that falls as |t|^(-1 - a) it is a/2 of what is missing, which then is 1e-3 at a = 0.2.
_LEFT = 1e-4


def require_moment(p: "KernelDistribution", order: int) -> None:
    """Raise unless panels hold nearly all of the absolute moment of an order, which then exists.

    Raises:
        ValueError: A base whose tails are too heavy for it.
    """
    if torch.compiler.is_compiling():
        return
    base = p.panels.base
    for axis in range(base.dim):
        low, high = base.bounds(axis)
        open_ends = [place for place, end in ((0, low), (-1, high)) if math.isinf(end)]
        if open_ends:
            left, total = _moments(p, axis, order, open_ends)
            rule = f"so light in its tails that the moment of order {order} exists, within reach"
            require(left <= _LEFT * total, "base", rule, base.factors[axis])


def _moments(
    p: "KernelDistribution", axis: int, order: int, ends: list[int]
) -> tuple[Tensor, Tensor]:
    """The integrand (R,) of an absolute moment at ends, times the distance, and the moment (R,)."""
    weights = p._weights_on(p.panels).detach().double().flatten(0, 1)
    places, centre = p.panels.nodes[:, axis], p.panels.base.centre(axis)
    total = ((places - centre).abs() ** order) @ weights
    t, lengths = (x.flatten()[ends] for x in p.panels.axes[axis].rule())
    last = torch.stack([weights[places == end].sum(0).abs() for end in t], -1) / lengths
    return last @ ((t - centre).abs() ** (order + 1)), total


@torch.no_grad()
def require_resolved(p: "KernelDistribution") -> None:
    """Raise where large scores move a density of numbers so far into a tail that panels miss it.

    Panels resolve the mass of the base, and far out in its tail nothing of that is left.

    Raises:
        ValueError: Masses by these panels and by halved ones that differ.
    """
    panels = p.panels
    far = panels.measure.sum(0) < panels.tolerance
    if p.event_shape or not p.batch_shape.numel() or not far.any():
        return
    logs = p._scores_on(panels) + panels.measure.log().unsqueeze(-1)
    shares = torch.softmax(logs.flatten(0, 1), 0).reshape(logs.shape).sum(0)
    # The exponential is moved the farthest of all members.
    if bool((shares[far].sum(0) <= _FAR_OUT).all()):
        return
    mass = p._weights_on(panels.with_order(2 * panels.axes[0].size)).sum((0, 1))
    rule = "so small that the density is not in the far tails of the base"
    require((mass - 1).abs() <= math.sqrt(panels.tolerance), "weights", rule, p.weights)
