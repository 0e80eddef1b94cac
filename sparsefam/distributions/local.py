"""Expectations of functions that live on windows: quadrature where density and function meet."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis
from ..numerics.quadrature import smooth_unit_rule

if TYPE_CHECKING:
    from .symmetric import SymmetricDistribution

__all__ = [
    "covariance_by_windows",
    "expect_by_windows",
    "gaussians_by_windows",
    "window_rule",
]


def window_rule(
    p: "SymmetricDistribution", lower: Tensor, upper: Tensor, order: int = 64
) -> tuple[Tensor, Tensor]:
    r"""Nodes t and weights p(t) dt, both (2 order, *windows, *batch), for integrals over windows.

    Each window is cut to the support, and in two at loc, where a density may have a kink.

    Args:
        p: The density.
        lower: Lower ends (*windows).
        upper: Upper ends (*windows).
        order: Nodes on each side of loc.
    """
    batch = (1,) * p.loc.dim()
    lower, upper = (x.reshape(*x.shape, *batch) for x in (lower, upper))
    share, rule = (x.reshape(order, *(1,) * lower.dim()) for x in smooth_unit_rule(order, p.loc))
    half = p._reach() * p.scale
    low, high = torch.maximum(lower, p.loc - half), torch.minimum(upper, p.loc + half)
    middle = _clip(p.loc, low, high)
    left, right = (middle - low).clamp_min(0), (high - middle).clamp_min(0)
    nodes = torch.cat([low + left * share, middle + right * share])
    return nodes, torch.cat([left * rule, right * rule]) * p.prob(nodes)


def expect_by_windows(p: "SymmetricDistribution", psi: Basis, order: int = 64) -> Tensor:
    r"""$E_p[\psi]$, (*batch, N), each function integrated over its own window."""
    lower, upper = _reach(psi)
    nodes, weights = window_rule(p, lower, upper, order)
    return (weights * _own_values(psi, nodes, 1)).sum(0).movedim(0, -1)


def gaussians_by_windows(p: "SymmetricDistribution", centers: Tensor, widths: Tensor) -> Tensor:
    r"""$E_p[N(t; c_j, w_j^2)]$, (*batch, N), for any standard density.

    Nodes are kept in two coordinates at once, $x = (t - loc)/scale$ for the density and
    $z = (t - c)/w$ for the Gaussian: through t itself the narrower of the two loses its digits.
    """
    batch = (1,) * p.loc.dim()
    c, w = (x.expand(centers.shape).reshape(-1, *batch) for x in (centers, widths))
    h = p.scale / w
    ends = _common_window((p.loc - c) / w, h, p._reach())
    order = 80 if p.loc.dtype == torch.float64 else 64
    share, rule = (x.reshape(-1, *(1,) * h.dim()) for x in smooth_unit_rule(order, p.loc))
    total = torch.zeros_like(h)
    for (x0, z0), (x1, z1) in pairwise(ends):
        # The panel's length, from the coordinate in which its ends are not close together.
        length = torch.where(h > 1, (z1 - z0) / h, x1 - x0)
        density = torch.exp(p._standard_log_prob(x0 + length * share))
        gauss = torch.exp(-0.5 * (z0 + length * h * share).square())
        total = total + length * (rule * density * gauss).sum(0)
    return (total / (w * math.sqrt(2 * math.pi))).movedim(0, -1)


def _common_window(offset: Tensor, h: Tensor, reach: Tensor | float) -> list[tuple[Tensor, Tensor]]:
    """Ends and middle, each as (x, z), of where the density and the Gaussian both are.

    Both coordinates of a point are chosen by one condition: chosen apart, at a tie they would
    hand half a derivative each to different points.
    """
    cut = 9.5 if offset.dtype == torch.float64 else 6.5
    reach = reach * torch.ones_like(h)
    origin = (torch.zeros_like(offset), offset)
    sides = []
    for sign in (-1, 1):
        inner = sign * offset + reach * h > cut
        window = ((sign * cut - offset) / h, torch.full_like(offset, sign * cut))
        sides.append(_choose(inner, window, (sign * reach, offset + sign * reach * h)))
    empty = sides[0][0] >= sides[1][0]
    low, high = (_choose(empty, origin, side) for side in sides)
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, origin))
    return [low, middle, high]


def _choose(
    condition: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    return torch.where(condition, first[0], second[0]), torch.where(condition, first[1], second[1])


def covariance_by_windows(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Covariance of $\phi$ and $\psi$ under p, (*batch, M, N).

    A basis without windows is centred before it is integrated: at $loc = 100$ and $scale = 0.01$
    the difference $E[\phi\psi] - E[\phi]E[\psi]$ of powers would keep no digit of float32.
    """
    if phi.reach is None and psi.reach is None:
        nodes, weights = p.quadrature()
        f, g = (basis(nodes) - p.expect(basis) for basis in (phi, psi))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    if psi.reach is None:
        return covariance_by_windows(p, psi, phi).mT
    lower, upper = _reach(psi)
    if phi.reach is None:
        nodes, weights = window_rule(p, lower, upper)
        f, g = phi(nodes) - p.expect(phi), _own_values(psi, nodes, 1)
        return torch.einsum("qn...,qn...m->...mn", weights * g, f)
    first, last = _reach(phi)
    lower, upper = torch.maximum(first[:, None], lower), torch.minimum(last[:, None], upper)
    nodes, weights = window_rule(p, lower, upper)
    product = (weights * _own_values(phi, nodes, 1) * _own_values(psi, nodes, 2)).sum(0)
    return (
        product.movedim((0, 1), (-2, -1))
        - p.expect(phi)[..., :, None] * (p.expect(psi)[..., None, :])
    )


def _reach(psi: Basis) -> tuple[Tensor, Tensor]:
    if psi.reach is None:
        raise ValueError(f"psi must have a reach to be integrated by windows, got {psi}")
    return psi.reach


def _own_values(psi: Basis, nodes: Tensor, axis: int) -> Tensor:
    """Values of the j-th function at the nodes of index j along `axis`."""
    return psi.own(nodes.movedim(axis, -1)).movedim(-1, axis)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x in [low, high]; high where that is empty."""
    return torch.minimum(torch.maximum(x, low), high)
