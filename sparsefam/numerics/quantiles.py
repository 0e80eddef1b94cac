"""Where a truncated power on a panel has collected a given part of its mass."""

from typing import NamedTuple

import torch
from torch import Tensor

from .edges import panel_rule, positive_pieces, sign_changes
from .moments import chebyshev_sum
from .quadrature import gauss_legendre, smooth_unit_rule
from .truncated import Power

__all__ = ["panel_quantiles"]

# After so many steps those that are not at their quantile are few, mostly next to an edge.
_FIRST_STEPS = 5


class _Search(NamedTuple):
    """Quantiles on n pieces of panels, and the brackets they are known to be in."""

    x: Tensor  # coefficients (m, n)
    density: Tensor  # (m, n)
    of: Power
    first: Tensor  # where the piece begins, (n,)
    due: Tensor  # mass from there on, (n,)
    low: Tensor  # (n,)
    high: Tensor  # (n,)
    y: Tensor  # (n,)

    def take(self, columns: Tensor) -> "_Search":
        of = self.of
        if isinstance(of.eps, Tensor):
            of = of._replace(eps=of.eps[columns])
        x, density, _, *ends = self
        parts = (value.index_select(-1, columns) for value in (x, density, *ends))
        return _Search(next(parts), next(parts), of, *parts)


def panel_quantiles(x: Tensor, density: Tensor, of: Power, mass: Tensor) -> Tensor:
    """Locations in [-1, 1] on n panels, inside the pieces where the power is positive.

    Args:
        x: Values at the nodes, (m, n).
        density: Base density at the nodes, (m, n).
        of: The power, its eps a number or (n,).
        mass: What the power times the base density, integrated from -1, shall be, (n,).
    """
    search = _begun(x, density, of, mass)
    steps = 14 if x.dtype == torch.float32 else 24
    if x.is_cuda:
        return _moved(search, steps).y
    search = _moved(search, _FIRST_STEPS)
    y = search.y
    left = (_step(search).sub(y).abs() > _least(y)).nonzero().squeeze(-1)
    return y.index_copy(0, left, _moved(search.take(left), steps - _FIRST_STEPS).y)


def _begun(x: Tensor, density: Tensor, of: Power, mass: Tensor) -> _Search:
    """The pieces that the quantiles are in, and where they would be if the density were even."""
    panel = panel_rule(len(x), x)
    values = of.inside(x)
    points, checks, changes = sign_changes(values, panel)
    most = 5 if x.is_cuda else int(changes.sum(0).amax()) | 1
    pieces = positive_pieces(panel.coefficients @ values, panel, points, checks, changes, most)
    x, density = panel.coefficients @ x, panel.coefficients @ density
    below = _area(x, density, of, pieces.lower, pieces.upper).clamp_min(0).cumsum(0)
    piece = (below < mass).sum(0, keepdim=True).clamp_max(len(below) - 1)
    before = torch.cat([torch.zeros_like(below[:1]), below]).gather(0, piece)
    first, last = (end.gather(0, piece).squeeze(0) for end in pieces)
    due, total = (part.squeeze(0) for part in (mass - before, below.gather(0, piece) - before))
    share = (due / total.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    return _Search(x, density, of, first, due, first, last, first + (last - first) * share)


def _moved(search: _Search, steps: int) -> _Search:
    """After steps of Newton's method, which never leave the brackets."""
    for _ in range(steps):
        y, step = search.y, _step(search)
        low = torch.where(step >= y, y, search.low)
        high = torch.where(step <= y, y, search.high)
        # Rounding may put a quantile that is found outside its bracket.
        inside = ((step >= low) & (step <= high)) | ((step - y).abs() <= _least(y))
        search = search._replace(low=low, high=high, y=torch.where(inside, step, (low + high) / 2))
    return search


def _step(search: _Search) -> Tensor:
    """Where Newton's method goes: upwards where mass is missing."""
    y, first = search.y, search.first
    area = _area(search.x, search.density, search.of, first, y.unsqueeze(0)).squeeze(0)
    return y + (search.due - area) / _height(search.x, search.density, search.of, y)


def _least(y: Tensor) -> float:
    return 8 * torch.finfo(y.dtype).eps


def _height(x: Tensor, density: Tensor, of: Power, y: Tensor) -> Tensor:
    return of.at(chebyshev_sum(x, y)) * chebyshev_sum(density, y)


def _area(x: Tensor, density: Tensor, of: Power, lower: Tensor, upper: Tensor) -> Tensor:
    """Integrals from lower to upper (K, n)."""
    nodes, weights = (part.reshape(-1, 1, 1) for part in _rule(of, x))
    width = upper - lower
    return (weights * _height(x, density, of, lower + width * nodes)).sum(0) * width


def _rule(of: Power, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    exponent = of.exponent
    if isinstance(exponent, Tensor) or exponent not in (0, 1, 2, 3, 4) and of.eps != 0:
        return smooth_unit_rule(2 * len(like), like)
    nodes, weights = gauss_legendre(2 * len(like), like)
    return (nodes + 1) / 2, weights / 2
