"""Meshes of subintervals on which given functions are polynomials, to a tolerance."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .quadrature import gauss_legendre

__all__ = [
    "ChebyshevMesh",
    "Columns",
    "find_mesh",
    "halved_rule",
    "interpolation_errors",
    "product_rule",
]

# The most subintervals: with 8 nodes each, which makes cut subintervals cheap; with 16, which need
# fewer nodes in all; and with 8 between kinks.
_FEW, _SMOOTH_COUNT, _MOST_COUNT = 32, 160, 4096
_FIRST = 4
# Breaks that are not so many units of rounding apart are one.
_APART = 8
# Orders at first, and the fraction of coarse subintervals from which on all are refined together.
_FIRST_ORDERS = (4, 8, 16)
_MANY = 0.3
# The mesh is verified at so many further locations, to _AT_ENDS times the tolerance, and to
# _ROUNDED_OFF at a kink; _NO_GAP replaces a distance of 0.
_VERIFIED, _AT_ENDS, _ROUNDED_OFF, _NO_GAP = 16, 100.0, 1e-3, 1e-300
# Around functions that are zero at all nodes the range is quartered so often.
_NARROWEST = 16
# The fraction of the tolerance allowed for an error times the relative length of its subinterval.
_NEGLIGIBLE = 1e-3
# Polynomials are compared with functions here: their error is largest toward the ends.
_CHECKS = (-0.999, -0.5, 0.1, 0.999)

Columns = Callable[[Tensor], Tensor]


class ChebyshevMesh(NamedTuple):
    """Subintervals of an axis, on which functions are polynomials known at Gauss-Legendre nodes."""

    breaks: Tensor  # Ends of the P subintervals (P + 1,), float64, increasing
    order: int  # Gauss-Legendre nodes in each

    def rule(self) -> tuple[Tensor, Tensor]:
        """Return Gauss-Legendre nodes and weights (P, order) of the subintervals."""
        return _rule(self.breaks[:-1], self.breaks[1:], self.order)

    def cut(self, at: Tensor) -> "ChebyshevMesh":
        """Return the mesh with further breaks, where these lie inside.

        Breaks that differ from another by rounding are left out.
        """
        at = at.to(self.breaks).unique()
        at = at[(at > self.breaks[0]) & (at < self.breaks[-1])]
        cell = torch.searchsorted(self.breaks, at, right=True) - 1
        low, high = self.breaks[cell], self.breaks[cell + 1]
        # Shorter subintervals would be a few units of rounding long.
        least = _APART * torch.finfo(at.dtype).eps * torch.maximum(low.abs(), high.abs())
        at = at[(at - low > least) & (high - at > least)]
        gaps = at.diff(prepend=self.breaks[:1])
        at = at[gaps > _APART * torch.finfo(at.dtype).eps * at.abs()]
        return self._replace(breaks=torch.cat([self.breaks, at]).sort().values)

    def shares(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the subintervals (n,) of locations (n,), and interpolation weights (n, order).

        The sum of nodal values with these weights is their polynomial at the location.
        """
        cell = torch.searchsorted(self.breaks, at, right=True).sub(1).clamp(0, len(self.breaks) - 2)
        low, high = self.breaks[cell], self.breaks[cell + 1]
        return cell, _interpolation(self.order, (2 * at - low - high) / (high - low))

    def halved(self) -> "ChebyshevMesh":
        """Return the mesh with each subinterval in two."""
        middle = (self.breaks[:-1] + self.breaks[1:]) / 2
        pairs = torch.stack([self.breaks[:-1], middle], -1).flatten()
        return self._replace(breaks=torch.cat([pairs, self.breaks[-1:]]))

    @property
    def size(self) -> int:
        """The number of nodes."""
        return (len(self.breaks) - 1) * self.order

    def refined(self, coarse: Tensor) -> "ChebyshevMesh":
        """Return the mesh with more nodes where it is too coarse (P,).

        If many subintervals are coarse, all get more nodes, by quarters up to half as many again,
        or are halved; otherwise the coarse ones are halved. More nodes in a subinterval are better
        than more subintervals, but make it more expensive to cut.
        """
        first = max(order for order in _FIRST_ORDERS if order <= self.order)
        more = self.order + first // 4
        if coarse.double().mean() > _MANY:
            if more <= first * 3 // 2:
                return self._replace(order=more)
            return self._replace(order=first).halved()
        return self.cut(((self.breaks[:-1] + self.breaks[1:]) / 2)[coarse])


def find_mesh(
    columns: Columns,
    density: Columns,
    ends: tuple[float, float],
    tolerance: float,
    kinks: Tensor,
    narrow: Tensor,
) -> ChebyshevMesh | None:
    """Find a mesh on which all columns are polynomials to a tolerance; None if there is none.

    Args:
        columns: Functions of locations (q,), float64, to values (n, q).
        density: The base density, (q,) to (q,), whose mass must be integrated to the tolerance.
        ends: Ends of the interval.
        tolerance: Greatest error of the columns, relative to their greatest value.
        kinks: Possible kinks of the columns, used as breaks if the columns are not smooth.
        narrow: Further breaks at first, around functions that long subintervals would miss.
    """
    start = torch.linspace(*ends, _FIRST + 1, dtype=torch.float64, device=kinks.device)
    start = ChebyshevMesh(start, 0).cut(narrow).breaks
    mesh = _search(columns, density, start, tolerance, kinks)
    if mesh is None or _is_verified(columns, mesh, tolerance, kinks):
        return mesh
    # Columns are so narrow that no node is near them.
    steps = (ends[1] - ends[0]) * 4.0 ** -torch.arange(1, _NARROWEST, device=kinks.device)
    around = torch.stack([kinks - steps.unsqueeze(-1), kinks + steps.unsqueeze(-1)])
    start = ChebyshevMesh(start, 0).cut(around.flatten()).breaks
    mesh = _search(columns, density, start, tolerance, kinks)
    return mesh if mesh and _is_verified(columns, mesh, tolerance, kinks) else None


def _search(
    columns: Columns, density: Columns, start: Tensor, tolerance: float, kinks: Tensor
) -> ChebyshevMesh | None:
    """Return the first of four meshes that is fine enough, from few subintervals to many.

    The first two begin with the breaks `start`, the last two with the kinks. Other arguments are as
    for `find_mesh`.
    """
    kinked = ChebyshevMesh(start[[0, -1]], 0).cut(kinks).breaks

    def search(breaks: Tensor, order: int, most: int) -> ChebyshevMesh | None:
        # Kernels that are rounded off at a kink count as kinked once subintervals are short.
        negligible = _NEGLIGIBLE if breaks is kinked else 0.0
        resolved = _bisected(columns, density, breaks, order, tolerance, most, negligible)
        return None if resolved is None else ChebyshevMesh(resolved, order)

    # Breaks at first, nodes in each subinterval, and the most subintervals.
    attempts = (
        (start, 8, _FEW),
        (start, 16, max(_SMOOTH_COUNT, len(kinks))),
        (kinked, 4, 2 * len(kinked)),
        (kinked, 8, _MOST_COUNT),
    )
    return next((mesh for attempt in attempts if (mesh := search(*attempt)) is not None), None)


def _is_verified(columns: Columns, mesh: ChebyshevMesh, tolerance: float, kinks: Tensor) -> bool:
    """Return whether polynomials equal the columns at some kinks and at another location, too.

    Arguments are as for `find_mesh`.
    """
    at = kinks[(kinks > mesh.breaks[0]) & (kinks < mesh.breaks[-1])]
    at = torch.cat([at[:: 1 + len(at) // _VERIFIED], mesh.breaks[:2].mean(0, keepdim=True)])
    cell, weights = mesh.shares(at)
    values = columns(mesh.rule()[0][cell].flatten()).unflatten(-1, weights.shape)
    error = (values * weights).sum(-1) - columns(at)
    largest = torch.maximum(values.abs().amax(), columns(at).abs().amax())
    # Next to a break interpolation is worse than at the check points. At a break that is a kink,
    # kernels are often rounded off, which does not matter.
    at_break = torch.isin(at, mesh.breaks)
    allowed = torch.where(at_break, max(_ROUNDED_OFF, tolerance), _AT_ENDS * tolerance)
    return bool((error.abs() <= allowed * largest).all())


def interpolation_errors(columns: Columns, mesh: ChebyshevMesh) -> Tensor:
    """Return the greatest difference of columns from polynomials on subintervals (n, P)."""
    nodes, _ = mesh.rule()
    return _error(columns, nodes, _checks(mesh.breaks[:-1], mesh.breaks[1:])).amax(-1)


def _bisected(
    columns: Columns,
    density: Columns,
    breaks: Tensor,
    order: int,
    tolerance: float,
    most: int,
    negligible: float,
) -> Tensor | None:
    """Halve subintervals until polynomials resolve the columns; return their breaks (P + 1,).

    Args:
        columns: Functions of locations (q,) to values (n, q).
        density: The base density, (q,) to (q,).
        breaks: The breaks to begin with.
        order: Nodes in each subinterval.
        tolerance: As for `find_mesh`.
        most: The largest number of subintervals; None is returned if they do not suffice.
        negligible: Fraction of the tolerance to which an error, times the relative length of its
            subinterval, may come instead; 0 if none is negligible.
    """
    # Lower ends suffice to keep a subinterval that is fine: the next break is its upper end.
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
        fraction = width / (breaks[-1] - breaks[0])
        seen = (error <= tolerance) | (error * fraction <= negligible * tolerance)
        fine = (seen & (mass <= tolerance)).all(-1)
        done = torch.cat([done, low[fine]])
        start, end = low[~fine], high[~fine]
        middle = (start + end) / 2
        if ((middle <= start) | (middle >= end)).any():
            return None  # too short to be halved in float64
        low, high = torch.cat([start, middle]), torch.cat([middle, end])
    return torch.cat([done, breaks[-1:]]).sort().values


def _checks(low: Tensor, high: Tensor) -> Tensor:
    """Return the locations at which polynomials are compared with functions (P, C)."""
    at = torch.tensor(_CHECKS, dtype=low.dtype, device=low.device)
    return ((high + low).unsqueeze(-1) + (high - low).unsqueeze(-1) * at) / 2


def _error(columns: Columns, nodes: Tensor, checks: Tensor) -> Tensor:
    """Return errors (n, P, C) of the polynomials through the nodes (P, m) at checks (P, C).

    Columns are functions of locations (q,) to values (n, q).
    """
    values = columns(nodes.flatten()).unflatten(-1, nodes.shape)
    truth = columns(checks.flatten()).unflatten(-1, checks.shape)
    weights = _interpolation(nodes.shape[-1], nodes.new_tensor(_CHECKS))
    error: Tensor = (values @ weights.mT - truth).abs()
    return error.nan_to_num(math.inf)  # NaN exceeds every tolerance


def _interpolation(order: int, at: Tensor) -> Tensor:
    """Return weights (C, order) of nodal values, for the polynomial through them at locations (C,).

    By the barycentric formula (Berrut and Trefethen, 2004, SIAM Rev. 46): the weight of node j is
    w_j / (t - t_j) over the sum of these, with w_j the reciprocal product of all t_j - t_k.
    """
    nodes, _ = gauss_legendre(order, at)
    # At a node, its weight 1 / _NO_GAP outgrows all others, and the quotient is 1 there.
    apart, gaps = nodes.unsqueeze(-1) - nodes, at.unsqueeze(-1) - nodes
    weights = 1 / (torch.where(gaps == 0, _NO_GAP, gaps) * apart.fill_diagonal_(1).prod(-1))
    return weights / weights.sum(-1, keepdim=True)


def halved_rule(order: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return a rule with twice the nodes of a subinterval of length 1.

    The matrix (2 order, order) takes values at the nodes of the subinterval to values of their
    polynomial at the nodes of its halves; the weights are (2 order,).
    """
    nodes, weights = gauss_legendre(order, like)
    halves = torch.cat([(nodes - 1) / 2, (nodes + 1) / 2])
    # On [-1, 1] weights sum to 2, on each half of a length of 1 to 1/2.
    return _interpolation(order, halves), weights.repeat(2) / 4


def _rule(low: Tensor, high: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights (P, order) on subintervals with ends (P,)."""
    x, w = gauss_legendre(order, low)
    half = (high - low).unsqueeze(-1) / 2
    return (low.unsqueeze(-1) + half * (1 + x)), half * w


def product_rule(axes: Sequence[ChebyshevMesh]) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, D) and weights (Q,) of a tensor product, the last axis fastest."""
    rules = [tuple(x.flatten() for x in axis.rule()) for axis in axes]
    nodes = torch.cartesian_prod(*(t for t, _ in rules)).reshape(-1, len(axes))
    weights = torch.cartesian_prod(*(w for _, w in rules)).reshape(-1, len(axes)).prod(-1)
    return nodes, weights
