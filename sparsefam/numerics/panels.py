"""Panels on which the members of a function space are polynomials, to a tolerance."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .quadrature import gauss_legendre

__all__ = ["Axis", "Columns", "errors", "find_panels", "product_rule"]

# Nodes in a panel. Few make edges cheap, many need fewer nodes in all: the former are taken as long
# as no more than this many are needed.
_ORDERS = (8, 16)
_FEW_NODES = 256
# Where functions have kinks, panels are short.
_KINKED_ORDERS = (4, 8)
_SMOOTH_PANELS, _MOST_PANELS = 160, 4096
_FIRST = 4
# Orders that panels begin with, and the part of them from which on all are refined together.
_FIRST_ORDERS = (4, 8, 16)
_MANY = 0.3
# At how many locations more it is made sure that nothing was missed between nodes, to how many
# times the tolerance, and to what error at a kink; what takes the place of no distance; how often
# the range is quartered around what was missed.
_LOOKED_AT, _AT_ENDS, _ROUNDED_OFF, _NO_GAP, _NARROWEST = 16, 100.0, 1e-3, 1e-300, 16
# Of the tolerance, what an error may be that is integrated over its panel.
_NEGLIGIBLE = 1e-3
# Where a polynomial is compared with its function: its error is largest towards the ends.
_CHECKS = (-0.999, -0.5, 0.1, 0.999)

Columns = Callable[[Tensor], Tensor]


class Axis(NamedTuple):
    """Panels along one axis.

    Attributes:
        breaks: Their ends (P + 1,), float64, increasing.
        order: Gauss-Legendre nodes in each.
    """

    breaks: Tensor
    order: int

    def rule(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights, (P, order)."""
        return _rule(self.breaks[:-1], self.breaks[1:], self.order)

    def cut(self, at: Tensor) -> "Axis":
        """With further ends of panels, where these lie inside."""
        first, last = self.breaks[0], self.breaks[-1]
        inside = at[(at > first) & (at < last)].to(self.breaks)
        return self._replace(breaks=torch.cat([self.breaks, inside]).unique())

    def halved(self) -> "Axis":
        """Each panel in two."""
        return self.cut((self.breaks[:-1] + self.breaks[1:]) / 2)

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return (len(self.breaks) - 1) * self.order

    def refined(self, coarse: Tensor) -> "Axis":
        """With more nodes in panels that are too coarse (P,): all if many are, else these halved.

        More nodes in a panel serve better than more panels, but make its edges dearer: by quarters,
        up to half as many again.
        """
        first = max(order for order in _FIRST_ORDERS if order <= self.order)
        more = self.order + first // 4
        if coarse.double().mean() > _MANY:
            if more <= first * 3 // 2:
                return self._replace(order=more)
            return self._replace(order=first).halved()
        return self.cut(((self.breaks[:-1] + self.breaks[1:]) / 2)[coarse])


def find_panels(
    columns: Columns,
    density: Columns,
    ends: tuple[float, float],
    tolerance: float,
    kinks: Tensor,
    narrow: Tensor,
) -> Axis | None:
    """Panels on which all columns are polynomials to a tolerance; None if there are none.

    Args:
        columns: Functions of locations (q,), float64, to values (n, q).
        density: The base density, (q,) to (q,); of account is its mass.
        ends: Of the interval.
        tolerance: Greatest error of the columns, relative to the greatest value; of the mass.
        kinks: Where columns may have kinks, which is tried when they turn out not to be smooth.
        narrow: Further ends of the first panels, around what long ones would not see.
    """
    start = torch.linspace(*ends, _FIRST + 1, dtype=torch.float64, device=kinks.device)
    start = Axis(start, 0).cut(narrow).breaks
    found = _searched(columns, density, start, tolerance, kinks)
    if found is None or _is_seen(columns, found, tolerance, kinks):
        return found
    # Columns are so narrow that no node came near.
    steps = (ends[1] - ends[0]) * 4.0 ** -torch.arange(1, _NARROWEST, device=kinks.device)
    around = torch.stack([kinks - steps.unsqueeze(-1), kinks + steps.unsqueeze(-1)])
    start = Axis(start, 0).cut(around.flatten()).breaks
    found = _searched(columns, density, start, tolerance, kinks)
    return found if found and _is_seen(columns, found, tolerance, kinks) else None


def _searched(
    columns: Columns, density: Columns, start: Tensor, tolerance: float, kinks: Tensor
) -> Axis | None:
    kinked = Axis(start[[0, -1]], 0).cut(kinks).breaks

    def search(breaks: Tensor, order: int, most: int) -> Axis | None:
        # Kernels that are rounded off at a kink are as good as kinked once panels are short.
        negligible = _NEGLIGIBLE if breaks is kinked else 0.0
        found = _bisected(columns, density, breaks, order, tolerance, most, negligible)
        return None if found is None else Axis(found, order)

    attempts = (
        (start, _ORDERS[0], _FEW_NODES // _ORDERS[0]),
        (start, _ORDERS[1], _SMOOTH_PANELS),
        (kinked, _KINKED_ORDERS[0], 2 * len(kinked)),
        (kinked, _KINKED_ORDERS[1], _MOST_PANELS),
        (start, _ORDERS[1], _MOST_PANELS),
    )
    return next((axis for attempt in attempts if (axis := search(*attempt)) is not None), None)


def _is_seen(columns: Columns, axis: Axis, tolerance: float, at: Tensor) -> bool:
    """Whether columns are polynomials on panels at some of the locations, too."""
    at = at[(at > axis.breaks[0]) & (at < axis.breaks[-1])]
    at = torch.cat([at[:: 1 + len(at) // _LOOKED_AT], axis.breaks[:2].mean(0, keepdim=True)])
    panel = torch.searchsorted(axis.breaks, at, right=True) - 1
    low, high = axis.breaks[panel], axis.breaks[panel + 1]
    x, _ = gauss_legendre(axis.order, axis.breaks)
    gaps = ((2 * at - low - high) / (high - low)).unsqueeze(-1) - x
    apart = x.unsqueeze(-1) - x
    share = 1 / (torch.where(gaps == 0, _NO_GAP, gaps) * apart.fill_diagonal_(1).prod(-1))
    values = columns(axis.rule()[0][panel].flatten()).unflatten(-1, gaps.shape)
    error = (values * share).sum(-1) / share.sum(-1) - columns(at)
    largest = torch.maximum(values.abs().amax(), columns(at).abs().amax())
    # Interpolation next to an end is worse than at the checks, which were enough there; and just at
    # one, where a kink is, kernels are often rounded off, as no node needs to know.
    ended = torch.isin(at, axis.breaks)
    allowed = torch.where(ended, max(_ROUNDED_OFF, tolerance), _AT_ENDS * tolerance)
    return bool((error.abs() <= allowed * largest).all())


def errors(columns: Columns, axis: Axis) -> Tensor:
    """How far columns are from polynomials on panels, at most: (n, P)."""
    nodes, _ = axis.rule()
    return _error(columns, nodes, _checks(axis.breaks[:-1], axis.breaks[1:])).amax(-1)


def _bisected(
    columns: Columns,
    density: Columns,
    breaks: Tensor,
    order: int,
    tolerance: float,
    most: int,
    negligible: float,
) -> Tensor | None:
    """Breaks (P + 1,), each panel halved until it is resolved, or its error negligible."""
    low, high, done = breaks[:-1], breaks[1:], breaks[:0]
    largest = columns(torch.cat([low, high])).abs().amax()
    while len(low):
        if len(done) + len(low) > most:
            return None
        nodes, _ = _rule(low, high, order)
        checks = _checks(low, high)
        largest = torch.maximum(largest, columns(nodes.flatten()).abs().amax())
        error = _error(columns, nodes, checks).amax(0) / largest
        width = (high - low).unsqueeze(-1)
        mass = _error(lambda t: density(t).unsqueeze(0), nodes, checks).amax(0) * width
        share = width / (breaks[-1] - breaks[0])
        seen = (error <= tolerance) | (error * share <= negligible * tolerance)
        fine = (seen & (mass <= tolerance)).all(-1)
        done = torch.cat([done, low[fine]])
        left, right = low[~fine], high[~fine]
        middle = (left + right) / 2
        if ((middle <= left) | (middle >= right)).any():
            return None
        low, high = torch.cat([left, middle]), torch.cat([middle, right])
    return torch.cat([done, breaks[-1:]]).sort().values


def _checks(low: Tensor, high: Tensor) -> Tensor:
    """Where polynomials on panels are compared with functions, (P, C)."""
    share = torch.tensor(_CHECKS, dtype=low.dtype, device=low.device)
    return ((high + low).unsqueeze(-1) + (high - low).unsqueeze(-1) * share) / 2


def _error(columns: Columns, nodes: Tensor, checks: Tensor) -> Tensor:
    """Errors (n, P, C) of the polynomials through the nodes (P, m) at checks (P, C)."""
    values = columns(nodes.flatten()).unflatten(-1, nodes.shape)
    truth = columns(checks.flatten()).unflatten(-1, checks.shape)
    found: Tensor = (values @ _interpolation(nodes.shape[-1], values) - truth).abs()
    return found.nan_to_num(math.inf)


def _interpolation(order: int, like: Tensor) -> Tensor:
    """From values at Gauss-Legendre nodes to the polynomial's at the checks, (order, C)."""
    nodes, _ = gauss_legendre(order, like)
    checks = torch.tensor(_CHECKS, dtype=like.dtype, device=like.device)
    apart = nodes.unsqueeze(-1) - nodes
    apart.fill_diagonal_(1)
    gaps = (checks - nodes.unsqueeze(-1)).unsqueeze(0).repeat(order, 1, 1)
    index = torch.arange(order, device=like.device)
    gaps[index, index] = 1
    return gaps.prod(1) / apart.prod(1).unsqueeze(-1)


def _rule(low: Tensor, high: Tensor, order: int) -> tuple[Tensor, Tensor]:
    x, w = gauss_legendre(order, low)
    half = (high - low).unsqueeze(-1) / 2
    return (low.unsqueeze(-1) + half * (1 + x)), half * w


def product_rule(axes: Sequence[Axis]) -> tuple[Tensor, Tensor]:
    """Tensor product of the rules of axes: nodes (Q, D) and weights (Q,), the last axis fastest."""
    rules = [tuple(x.flatten() for x in axis.rule()) for axis in axes]
    nodes = torch.cartesian_prod(*(t for t, _ in rules)).reshape(-1, len(axes))
    weights = torch.cartesian_prod(*(w for _, w in rules)).reshape(-1, len(axes)).prod(-1)
    return nodes, weights
