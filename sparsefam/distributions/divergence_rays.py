"""Integrals of products of powers of two elliptical densities, along rays cut at both edges."""

import math
from typing import Any

import torch
from torch import Tensor

from ..numerics.edge_rule import edge_rule
from ..numerics.sphere import direction_rule
from .divergence_ellipsoids import ellipsoid_in, relative
from .elliptical import EllipticalDistribution
from .multivariate_normal import MultivariateNormal

__all__ = ["bregman_of_ellipsoids", "tsallis_of_ellipsoids"]

# Order of the directions by dimension, and nodes on each piece of a ray, also for normals.
_ORDERS = {1: 1, 2: 1024, 3: 96}
_RADII, _LONG = 32, 64
# Logarithm of the mass that the tails of normals may lose.
_LOG_TAIL = 40.0
_SHARP = 1e-9


def tsallis_of_ellipsoids(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""$(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$ of float64 elliptical densities."""
    p, q = _expanded(p, q)
    normals = isinstance(p, MultivariateNormal), isinstance(q, MultivariateNormal)
    if all(normals):
        return _tsallis_of_normals(p, q, alpha)
    if alpha < 1:
        return (_integral(p, q, alpha, 1 - alpha) - 1) / (alpha - 1)
    if normals[0]:
        nowhere: Tensor = p.loc.new_full(p.batch_shape, math.inf)
        return nowhere
    finite = torch.ones_like(p.alpha, dtype=torch.bool)
    if not normals[1]:
        light = alpha * p._exponent + (1 - alpha) * q._exponent > -1
        apart = ellipsoid_in(p, q, eps) & ellipsoid_in(p, q, eps, 1 - _SHARP)
        finite = ellipsoid_in(p, q, eps) & (light | apart)
    value = (_integral(p, q, alpha, 1 - alpha) - 1) / (alpha - 1)
    return torch.where(finite, value, math.inf)


def bregman_of_ellipsoids(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    r"""Bregman divergence of $\Omega_\alpha$ for float64 elliptical densities, alpha above 1.

    Finite whatever rounding makes of the supports: eps is there for the others' sake.
    """
    p, q = _expanded(p, q)
    own = [torch.exp(x._log_power_integral(alpha) + (1 - alpha) * x._log_det()) for x in (p, q)]
    slope = alpha - 1
    found: Tensor = own[0] / (alpha * slope) + own[1] / alpha
    return found - _integral(p, q, 1.0, slope) / slope


def _expanded(p: Any, q: Any) -> tuple[Any, Any]:
    for x in (p, q):
        if not isinstance(x, EllipticalDistribution) or x.event_shape[0] not in _ORDERS:
            raise NotImplementedError(
                f"this divergence is known for numbers, categories and elliptical densities of up "
                f"to {max(_ORDERS)} dimensions, got {type(x).__name__} of event shape "
                f"{tuple(x.event_shape)}"
            )
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    return p.expand(shape), q.expand(shape)


def _tsallis_of_normals(p: MultivariateNormal, q: MultivariateNormal, alpha: float) -> Tensor:
    r"""By $\Sigma = \alpha \Sigma_q + (1 - \alpha) \Sigma_p$; infinite if that is indefinite."""
    mixed = alpha * q.covariance_matrix + (1 - alpha) * p.covariance_matrix
    factor, info = torch.linalg.cholesky_ex(mixed)
    finite = info == 0
    unit = torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
    factor = torch.where(finite[..., None, None], factor, unit)
    offset = torch.linalg.solve_triangular(factor, (p.loc - q.loc).unsqueeze(-1), upper=False)
    power = alpha * q._log_det() + (1 - alpha) * p._log_det()
    power = power - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    power = power - 0.5 * alpha * (1 - alpha) * offset.square().sum((-2, -1))
    return torch.where(finite, torch.expm1(power) / (alpha - 1), math.inf)


def _integral(p: Any, q: Any, one: float, two: float) -> Tensor:
    r"""$\int p^{one} q^{two}$, where the latter is negative only if p's support lies in q's."""
    t, weights = _rays(p, q, one, two)
    logs = p.log_prob(t), q.log_prob(t)
    both = logs[0].isfinite() & logs[1].isfinite()
    log_p, log_q = (torch.where(both, x, 0.0) for x in logs)
    values = torch.where(both, torch.exp(one * log_p + two * log_q), 0.0)
    found: Tensor = (weights * values).flatten(0, 1).sum(0)
    return found


def _rays(p: Any, q: Any, one: float, two: float) -> tuple[Tensor, Tensor]:
    """Nodes (Q, K, *batch, D) and weights: from the centre of the smaller, cut at the other's edge.

    Where `two` is negative, from the centre of p.
    """
    dim = p.event_shape[0]
    radii = [_radius(p, one), _radius(q, two)]
    volumes = [x._log_det() + dim * math.log(r) for x, r in zip((p, q), radii, strict=True)]
    first = (volumes[0] <= volumes[1]) | (two < 0)
    loc, other_loc = _chosen(first[..., None], p.loc, q.loc)
    tril, other_tril = _chosen(first[..., None, None], p.scale_tril, q.scale_tril)
    reach, other_reach = _chosen(first, *(torch.full_like(p.alpha, r) for r in radii))
    directions, shares = direction_rule(dim, _ORDERS[dim], loc)
    offset, matrix = relative(loc, tril, other_loc, other_tril)
    steps = (directions @ matrix.mT).movedim(-2, 0)
    count = _LONG if any(isinstance(x, MultivariateNormal) for x in (p, q)) else _RADII
    r, weights = _radial_rule(count, _crossings(offset, steps, other_reach), reach)
    t = loc + r.unsqueeze(-1) * (directions @ tril.mT).movedim(-2, 0)
    log_surface = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim)
    log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    shares = shares.reshape(-1, *(1,) * log_det.dim()) * torch.exp(log_surface + log_det)
    return t, weights * r ** (dim - 1) * shares


def _radius(p: Any, power: float) -> float:
    """Of the ball |u| <= R that holds a power of p."""
    if not isinstance(p, MultivariateNormal):
        return 1.0
    return math.sqrt(2 * _LOG_TAIL / min(power, 1.0)) if power > 0 else 1e6


def _chosen(first: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(first, one, two), torch.where(first, two, one)


def _crossings(offset: Tensor, steps: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Where |offset + r steps| = reach (K, *batch), 0 where rays miss."""
    square, along = steps.square().sum(-1), (steps * offset).sum(-1)
    gap = along.square() - square * (offset.square().sum(-1) - reach.square())
    hit = gap > 0
    half = torch.where(hit, gap, 1.0).sqrt()
    near, far = ((sign * half - along) / square for sign in (-1.0, 1.0))
    return torch.where(hit, near, 0.0), torch.where(hit, far, 0.0)


def _radial_rule(count: int, cuts: tuple[Tensor, Tensor], reach: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (3 count, K, *batch) on the parts of [0, reach] between cuts."""
    zero = torch.zeros_like(cuts[0])
    ends = [zero, *(torch.minimum(cut.clamp_min(0), reach) for cut in cuts), zero + reach]
    low, high = torch.stack(ends[:-1]).unsqueeze(1), torch.stack(ends[1:]).unsqueeze(1)
    rule = edge_rule(count, zero)
    distance, left, weights = (x.reshape(-1, *(1,) * zero.dim()) for x in rule)
    width = high - low
    r = torch.where(left, low + width * distance, high - width * distance)
    return r.flatten(0, 1), (width * weights).flatten(0, 1)
