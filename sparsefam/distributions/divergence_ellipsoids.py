"""The KL divergence between densities with ellipsoids as supports."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.edge_rule import edge_rule
from ..numerics.ellipsoid import direction_rule
from ..numerics.nesting import lies_in_ball
from .elliptical import MultivariateBetaGaussian

__all__ = ["Ellipsoids", "cross_entropy_of_ellipsoids", "ellipsoid_in", "reach", "relative"]

# Nodes in radius, and order of the directions by dimension.
_RADII = 48
_ORDERS = {1: 1, 2: 96, 3: 48}


def cross_entropy_of_ellipsoids(
    p: MultivariateBetaGaussian, q: MultivariateBetaGaussian, eps: float
) -> Tensor:
    r"""$-E_p[\log q]$ by quadrature; infinite unless p lives inside q's support (*batch).

    Nesting is decided to rounding of the parameters as they are given. The rule resolves the
    logarithm's singularity where p's whole edge is q's; where the two touch in a point the error is
    less than 1e-7 (1e-5 for a uniform p) in up to three dimensions and 1e-4 beyond.

    Args:
        p: The density of the expectation, in float64.
        q: The other, in float64.
        eps: Rounding error of their parameters.
    """
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(shape), q.expand(shape)
    nested = ellipsoid_in(p, q, eps)
    offset, matrix = relative(p.loc, p.scale_tril, q.loc, q.scale_tril)
    u, weights = _ball_rule(p)
    mapped = offset + (u.movedim(0, -2) @ matrix.mT).movedim(-2, 0)
    # Rounding may put the outermost nodes on the edge of q.
    gap = (1 - mapped.square().sum(-1)).clamp_min(torch.finfo(torch.float64).eps)
    mean_log = (weights * gap.log()).sum(0)
    value = -q._peak_log_prob() - q._exponent * mean_log
    return torch.where(nested, value, math.inf)


class Ellipsoids(NamedTuple):
    """Ellipsoids |L^-1 (t - loc)| <= 1, centres (*batch, D) and factors L (*batch, D, D)."""

    loc: Tensor
    scale_tril: Tensor


def ellipsoid_in(
    p: Ellipsoids | MultivariateBetaGaussian,
    q: Ellipsoids | MultivariateBetaGaussian,
    eps: float,
    size: float = 1.0,
) -> Tensor:
    """Whether p's support lies in q's (*batch), or in that of so much of its size."""
    tril = size * q.scale_tril
    offset, matrix = relative(p.loc, p.scale_tril, q.loc, tril)
    return lies_in_ball(matrix, offset, eps * _slack(tril, matrix, offset))


def _ball_rule(p: MultivariateBetaGaussian) -> tuple[Tensor, Tensor]:
    """Nodes u (Q, *batch, D) in the unit ball and weights (Q, *batch) of p, in float64."""
    m, dim = p._exponent.double(), p.event_shape[0]
    radial = edge_rule(_RADII, m)
    share, rule = (x.reshape(-1, *(1,) * m.dim()) for x in (radial.nodes, radial.weights))
    directions, shares = direction_rule(dim, _ORDERS.get(dim, 64), m)
    radii = (reach(m, dim) * share).clamp(max=1 - torch.finfo(m.dtype).eps)
    log_density = m * torch.log1p(-radii.square()) + (dim - 1) * radii.log()
    weights = rule * torch.exp(log_density - log_density.detach().amax(0))
    weights = weights / weights.sum(0)
    u = radii[:, None, ..., None] * directions.reshape(-1, *(1,) * m.dim(), dim)
    weights = weights[:, None] * shares.reshape(-1, *(1,) * m.dim())
    return u.flatten(0, 1), weights.flatten(0, 1)


def reach(m: Tensor, dim: int) -> Tensor:
    """Radius in the unit ball that holds all mass but a rounding error of an exponent's density.

    The nodes of a sharp density must not spread wider.
    """
    tail = 40 + dim
    return (-torch.expm1(-tail / m.detach().clamp_min(1e-30))).sqrt()


def relative(
    loc: Tensor, scale_tril: Tensor, other_loc: Tensor, other_scale_tril: Tensor
) -> tuple[Tensor, Tensor]:
    """Centre (*batch, D) and factor (*batch, D, D) of one density in the coordinates of another."""
    offset = torch.linalg.solve_triangular(
        other_scale_tril, (loc - other_loc).unsqueeze(-1), upper=False
    )
    matrix = torch.linalg.solve_triangular(other_scale_tril, scale_tril, upper=False)
    return offset.squeeze(-1), matrix


def _slack(factor: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """Rounding errors that `matrix` and `offset`, solutions of triangular equations, are off by."""
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False).abs()
    sizes = torch.cat([matrix.abs(), offset.abs().unsqueeze(-1)], -1)
    moved: Tensor = (inverse @ factor.abs() @ sizes).sum((-2, -1))
    return 8 * moved
