"""Where a truncated power on a panel has collected a given part of its mass."""

import torch
from torch import Tensor

from .edges import chebyshev_sum, panel_rule, positive_pieces, sign_changes
from .quadrature import gauss_legendre, smooth_unit_rule
from .truncated import Power

__all__ = ["panel_quantiles"]


def panel_quantiles(x: Tensor, density: Tensor, of: Power, mass: Tensor) -> Tensor:
    """Locations in [-1, 1] on n panels, inside the pieces where the power is positive.

    Args:
        x: Values at the nodes, (m, n).
        density: Base density at the nodes, (m, n).
        of: The power, its eps a number or (n,).
        mass: What the power times the base density, integrated from -1, shall be, (n,).
    """
    panel = panel_rule(len(x), x)
    values = of.inside(x)
    x, density = panel.coefficients @ x, panel.coefficients @ density
    base = panel.coefficients @ values
    points, values, changes = sign_changes(values, panel)
    most = 5 if x.is_cuda else int(changes.sum(0).amax()) | 1
    pieces = positive_pieces(base, panel, points, values, changes, most)
    nodes, weights = (part.reshape(-1, 1, 1) for part in _rule(of, x))

    def height(y: Tensor) -> Tensor:
        return of.at(chebyshev_sum(x, y)) * chebyshev_sum(density, y)

    def area(lower: Tensor, upper: Tensor) -> Tensor:
        width = upper - lower
        return (weights * height(lower + width * nodes)).sum(0) * width

    below = area(pieces.lower, pieces.upper).clamp_min(0).cumsum(0)
    piece = (below < mass).sum(0, keepdim=True).clamp_max(len(below) - 1)
    before = torch.cat([torch.zeros_like(below[:1]), below]).gather(0, piece)
    first, last = (end.gather(0, piece) for end in pieces)
    total = below.gather(0, piece) - before
    share = ((mass - before) / total.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    low, high, y = first, last, first + (last - first) * share
    least = 8 * torch.finfo(x.dtype).eps
    for _ in range(14 if x.dtype == torch.float32 else 24):
        excess = before + area(first, y) - mass
        low, high = torch.where(excess <= 0, y, low), torch.where(excess >= 0, y, high)
        step = y - excess / height(y)
        # Rounding may put a quantile that is found outside its bracket.
        inside = ((step >= low) & (step <= high)) | ((step - y).abs() <= least)
        y = torch.where(inside, step, (low + high) / 2)
    return y.squeeze(0)


def _rule(of: Power, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    exponent = of.exponent
    if isinstance(exponent, Tensor) or exponent not in (0, 1, 2, 3, 4) and of.eps != 0:
        return smooth_unit_rule(2 * len(like), like)
    nodes, weights = gauss_legendre(2 * len(like), like)
    return (nodes + 1) / 2, weights / 2
