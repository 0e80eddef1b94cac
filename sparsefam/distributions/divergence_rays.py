"""Integrals of products of powers of two elliptical densities, along rays cut at both edges."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..numerics.edge_rule import edge_rule
from ..numerics.ellipsoid import direction_rule
from .divergence_ellipsoids import ellipsoid_in, reach, relative
from .divergence_integrands import Logs, bregman_gain, tsallis_excess
from .divergence_line import bregman_on_line, tsallis_on_line
from .divergence_normals import coordinates, tsallis_of_normals
from .elliptical import EllipticalDistribution, MultivariateNormal
from .line_integral import can_look, weighted_sum

__all__ = ["bregman_of_ellipsoids", "tsallis_of_ellipsoids"]

# Order of the directions by dimension.
_ORDERS = {2: 1024, 3: 96}
# Nodes on each piece of a ray where exponents are small, and where tails are long.
_RADII, _LONG, _SMALL = 32, 64, 5.0
# Logarithm of the mass that the tails of normals may lose.
_LOG_TAIL = 40.0
_SHARP = 1e-9


def tsallis_of_ellipsoids(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""$(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$ of float64 elliptical densities."""
    p, q = _expanded(p, q)
    normals = isinstance(p, MultivariateNormal), isinstance(q, MultivariateNormal)
    if all(normals):
        return tsallis_of_normals(p, q, alpha)
    if p.event_shape[0] == 1:
        return tsallis_on_line(coordinates(p), coordinates(q), alpha, eps).squeeze(-1)
    if alpha > 1 and normals[0]:
        nowhere: Tensor = p.loc.new_full(p.batch_shape, math.inf)
        return nowhere
    first, held, mass = _integrals(p, q, partial(tsallis_excess, alpha=alpha), (alpha, 1 - alpha))
    if alpha < 1:
        return held + torch.where(first, 0.0, (1 - mass(1.0)) / (1 - alpha))
    if normals[1]:
        return held
    # On one edge a power has an integral above -1; it need not where edges do not meet.
    light = alpha * p._exponent + (1 - alpha) * q._exponent > -1
    finite = ellipsoid_in(p, q, eps, 1 - _SHARP) | (light & ellipsoid_in(p, q, eps))
    return torch.where(finite, held, math.inf)


def bregman_of_ellipsoids(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""Bregman divergence of $\Omega_\alpha$ for float64 elliptical densities, alpha above 1.

    Finite whatever rounding makes of the supports: eps is there for the others' sake.
    """
    p, q = _expanded(p, q)
    if p.event_shape[0] == 1:
        return bregman_on_line(coordinates(p), coordinates(q), alpha, eps).squeeze(-1)
    own = [torch.exp(x._log_power_integral(alpha) + (1 - alpha) * x._log_det()) for x in (p, q)]
    slope = alpha - 1
    first, held, mass = _integrals(p, q, partial(bregman_gain, alpha=alpha), (1.0, slope))
    beyond = torch.where(first, 0.0, (own[0] - mass(alpha)) / slope)
    found: Tensor = held + beyond + (own[1] - own[0]) / alpha
    return found


def _expanded(p: Any, q: Any) -> tuple[Any, Any]:
    for x in (p, q):
        if not isinstance(x, EllipticalDistribution) or x.event_shape[0] > max(_ORDERS):
            raise NotImplementedError(
                f"this divergence is known for numbers, categories and elliptical densities of up "
                f"to {max(_ORDERS)} dimensions, got {type(x).__name__} of event shape "
                f"{tuple(x.event_shape)}"
            )
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(shape), q.expand(shape)
    # Around the smaller one's centre locations have all digits.
    smaller = (p._log_det() <= q._log_det()).unsqueeze(-1)
    centre = torch.where(smaller, p.loc, q.loc).detach()
    p.loc, q.loc = p.loc - centre, q.loc - centre
    return p, q


def _integrals(
    p: Any, q: Any, excess: Callable[[Logs], Tensor], powers: tuple[float, float]
) -> tuple[Tensor, Tensor, Callable[[float], Tensor]]:
    """Integrals over the smaller of two densities, which is p where p's support lies in q's.

    Args:
        p: The first density.
        q: The second.
        excess: What to integrate.
        powers: Those of p and q with which it decays; of q only negative above alpha = 1.

    Returns:
        Whether the smaller is p, the integral, and a function that has that of a power of p.
    """
    first, t, weights = _rays(p, q, *powers)
    at = Logs.of(p.log_prob(t), q.log_prob(t))

    def mass(power: float) -> Tensor:
        return weighted_sum(weights, torch.where(at.in_p, torch.exp(power * at.p), 0.0))

    return first, weighted_sum(weights, excess(at)), mass


def _rays(p: Any, q: Any, one: float, two: float) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes (Q, *batch, D) and weights: from the centre of the smaller, cut at the other's edge.

    Where `two` is negative, from the centre of p: and there q is positive, but the product of their
    powers may be wider than p.
    """
    dim = p.event_shape[0]
    radii = [_radius(p, one), _radius(q, two)]
    volumes = [x._log_det() + dim * r.log() for x, r in zip((p, q), radii, strict=True)]
    first = (volumes[0] <= volumes[1]) | (two < 0)
    loc, other_loc = _chosen(first[..., None], p.loc, q.loc)
    tril, other_tril = _chosen(first[..., None, None], p.scale_tril, q.scale_tril)
    edge, other_edge = _chosen(first, *radii)
    directions, shares = direction_rule(dim, _ORDERS[dim], loc)
    if two < 0:
        near, far = (x.expand(len(directions), *edge.shape) for x in (edge, edge.sqrt()))
        edge = torch.ones_like(edge)
    else:
        offset, matrix = relative(loc, tril, other_loc, other_tril)
        near, far = _crossings(offset, (directions @ matrix.mT).movedim(-2, 0), other_edge)
    count = _RADII if all(_is_flat(x) for x in (p, q)) else _LONG
    r, weights = _radial_rule(count, near, far, edge)
    t = loc + r.unsqueeze(-1) * (directions @ tril.mT).movedim(-2, 0)
    log_surface = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim)
    log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    shares = shares.reshape(-1, *(1,) * log_det.dim()) * torch.exp(log_surface + log_det)
    return first, t.flatten(0, 1), (weights * r ** (dim - 1) * shares).flatten(0, 1)


def _radius(p: Any, power: float) -> Tensor:
    """Of the ball |u| <= R (*batch) that holds a power of p and p itself."""
    power = min(power, 1.0)
    if isinstance(p, MultivariateNormal):
        radius = math.sqrt(2 * _LOG_TAIL / power) if power > 0 else 1e6
        return torch.full_like(p.alpha, radius)
    return reach(max(power, 0.0) * p._exponent, p.event_shape[0])


def _is_flat(p: Any) -> bool:
    if isinstance(p, MultivariateNormal) or not can_look():
        return False
    return bool((p._exponent <= _SMALL).all())


def _chosen(first: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(first, one, two), torch.where(first, two, one)


def _crossings(offset: Tensor, steps: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
    """Where |offset + r steps| = edge (K, *batch), 0 where rays miss."""
    square, along = steps.square().sum(-1), (steps * offset).sum(-1)
    gap = along.square() - square * (offset.square().sum(-1) - edge.square())
    hit = gap > 0
    half = torch.where(hit, gap, 1.0).sqrt()
    near, far = ((sign * half - along) / square for sign in (-1.0, 1.0))
    return torch.where(hit, near, 0.0), torch.where(hit, far, 0.0)


def _radial_rule(count: int, near: Tensor, far: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (3 count, K, *batch) on the parts of [0, edge] between cuts."""
    zero = torch.zeros_like(near)
    ends = torch.stack([zero, *(torch.minimum(x.clamp_min(0), edge) for x in (near, far))])
    ends = torch.cat([ends, (zero + edge).unsqueeze(0)])
    r, weights = edge_rule(count, zero).on(ends[:-1], ends[1:])
    return r.flatten(0, 1), weights.flatten(0, 1)
