"""Expectations of functions that live on windows: quadrature where density and function meet."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis, Fourier, Stack
from ..numerics.arguments import require
from ..numerics.quadrature import smooth_unit_rule

if TYPE_CHECKING:
    from .symmetric import SymmetricDistribution

__all__ = [
    "WAVE_ORDER",
    "covariance_by_windows",
    "expect_by_windows",
    "gaussians_by_windows",
    "require_resolved",
    "window_rule",
]

# Nodes per half of the support for oscillating functions without a closed form, and with about
# one radian between them the largest phase that they resolve to rounding.
WAVE_ORDER = 256


def window_rule(
    p: "SymmetricDistribution",
    lower: Tensor,
    upper: Tensor,
    breaks: Tensor | None = None,
    order: int = 64,
) -> tuple[Tensor, Tensor]:
    r"""Nodes t and weights p(t) dt, both (Q, *windows, *batch), for integrals over windows.

    Each window is cut to the support, in two at loc, where a density may have a kink, and at the
    breaks.

    Args:
        p: The density.
        lower: Lower ends (*windows).
        upper: Upper ends (*windows).
        breaks: Increasing locations where what is integrated is not smooth.
        order: Nodes between one cut and the next.
    """
    ends = p.loc.new_tensor([-math.inf, math.inf])
    if breaks is not None:
        ends = torch.cat([ends[:1], breaks, ends[1:]])
    left, right = (x.reshape(-1, *(1,) * lower.dim()) for x in (ends[:-1], ends[1:]))
    lower, upper = torch.maximum(lower, left), torch.minimum(upper, right)
    batch = (1,) * p.loc.dim()
    lower, upper = (x.reshape(*x.shape, *batch) for x in (lower, upper))
    share, rule = (x.reshape(-1, *(1,) * lower.dim()) for x in smooth_unit_rule(order, p.loc))
    half = p._reach() * p.scale
    low, high = torch.maximum(lower, p.loc - half), torch.minimum(upper, p.loc + half)
    middle = torch.minimum(torch.maximum(p.loc, low), high)
    first, second = (middle - low).clamp_min(0), (high - middle).clamp_min(0)
    nodes = torch.cat([low + first * share, middle + second * share])
    weights = torch.cat([first * rule, second * rule]) * p.prob(nodes)
    return nodes.flatten(0, 1), weights.flatten(0, 1)


def expect_by_windows(p: "SymmetricDistribution", psi: Basis, order: int = 64) -> Tensor:
    r"""$E_p[\psi]$, (*batch, N), each function integrated over its own window."""
    lower, upper = _reach(psi)
    nodes, weights = window_rule(p, lower, upper, psi.breaks, order)
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
    if psi.reach is None and phi.reach is not None:
        return covariance_by_windows(p, psi, phi).mT
    breaks = Stack(phi, psi).breaks
    if psi.reach is None:
        everywhere = p.loc.new_tensor(math.inf)
        nodes, weights = window_rule(p, -everywhere, everywhere, breaks, WAVE_ORDER)
        require_resolved(phi, nodes, WAVE_ORDER)
        require_resolved(psi, nodes, WAVE_ORDER)
        f, g = (basis(nodes) - p.expect(basis) for basis in (phi, psi))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    lower, upper = _reach(psi)
    if phi.reach is None:
        nodes, weights = window_rule(p, lower, upper, breaks)
        require_resolved(phi, nodes, 64)
        f, g = phi(nodes) - p.expect(phi), _own_values(psi, nodes, 1)
        return torch.einsum("qn...,qn...m->...mn", weights * g, f)
    first, last = _reach(phi)
    lower, upper = torch.maximum(first[:, None], lower), torch.minimum(last[:, None], upper)
    nodes, weights = window_rule(p, lower, upper, breaks)
    product = (weights * _own_values(phi, nodes, 1) * _own_values(psi, nodes, 2)).sum(0)
    means = p.expect(phi)[..., :, None] * p.expect(psi)[..., None, :]
    return product.movedim((0, 1), (-2, -1)) - means


def require_resolved(psi: Basis, nodes: Tensor, order: int) -> None:
    """Raise if a wave turns too fast for the nodes (Q, ...) that are to integrate it.

    Raises:
        ValueError: More than `order` radians on half of the nodes' range.
    """
    half = (nodes.detach().amax(0) - nodes.detach().amin(0)).amax() / 2
    for basis in psi.bases if isinstance(psi, Stack) else [psi]:
        if isinstance(basis, Fourier):
            fits = basis.frequencies.abs() * half < order
            rule = f"below {order} radians on half of what is integrated"
            require(fits, "frequencies", rule, basis.frequencies)


def _reach(psi: Basis) -> tuple[Tensor, Tensor]:
    if psi.reach is None:
        raise ValueError(f"psi must have a reach to be integrated by windows, got {psi}")
    return psi.reach


def _own_values(psi: Basis, nodes: Tensor, axis: int) -> Tensor:
    """Values of the j-th function at the nodes of index j along `axis`."""
    return psi.own(nodes.movedim(axis, -1)).movedim(-1, axis)
