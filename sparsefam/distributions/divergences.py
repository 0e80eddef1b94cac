"""KL divergences of vectors, registered with `torch.distributions.kl_divergence`."""

import math
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from ..numerics.nesting import lies_in_ball
from ..numerics.quadrature import smooth_unit_rule
from ..numerics.sphere import direction_rule
from .multivariate import MultivariateBetaGaussian

__all__: list[str] = []

_TorchNormal = torch.distributions.MultivariateNormal
_D = TypeVar("_D", bound=Distribution)

# Nodes in radius, and order of the directions by dimension.
_RADII = 48
_ORDERS = {1: 1, 2: 96, 3: 48}


@register_kl(MultivariateBetaGaussian, _TorchNormal)
def _kl_beta_gaussian_normal(p: MultivariateBetaGaussian, q: _TorchNormal) -> Tensor:
    r"""$E_p[-\log q] - H(p)$, from the first two moments of p."""
    dim = _dimension(p, q)
    factor = q._unbroadcasted_scale_tril
    second = p._moments()[0]
    offset, matrix = _relative(p.loc, p.scale_tril, q.loc, factor)
    spread = offset.square().sum(-1) + second * matrix.square().sum((-2, -1))
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (spread + dim * math.log(2 * math.pi)) + log_det - p.entropy()


@register_kl(_TorchNormal, MultivariateBetaGaussian)
def _kl_normal_beta_gaussian(p: _TorchNormal, q: MultivariateBetaGaussian) -> Tensor:
    """Infinite: the normal has mass off every bounded support."""
    _dimension(p, q)
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    return torch.full(shape, math.inf, dtype=q.loc.dtype, device=q.loc.device)


@register_kl(MultivariateBetaGaussian, MultivariateBetaGaussian)
def _kl_beta_gaussians(p: MultivariateBetaGaussian, q: MultivariateBetaGaussian) -> Tensor:
    r"""$-H(p) - E_p[\log q]$, the latter by quadrature; infinite unless p lives inside q's support.

    Nesting is decided to rounding of the parameters as they are given. The rule resolves the
    logarithm's singularity where p's whole edge is q's, to 1e-9 (1e-7 for a uniform p); where the
    two touch in a point the error is about 1e-8 (3e-6) in up to three dimensions and 1e-4 beyond.
    """
    _dimension(p, q)
    p, q = _expanded(p, q)
    offset, matrix = _relative(*(x.double() for x in (p.loc, p.scale_tril, q.loc, q.scale_tril)))
    nested = lies_in_ball(matrix, offset, _slack(q.scale_tril.double(), matrix, offset))
    u, weights = _ball_rule(p)
    mapped = offset + (u.movedim(0, -2) @ matrix.mT).movedim(-2, 0)
    # Rounding may put the outermost nodes on the edge of q.
    gap = (1 - mapped.square().sum(-1)).clamp_min(torch.finfo(torch.float64).eps)
    mean_log = (weights * gap.log()).sum(0).to(p.loc.dtype)
    value = -p.entropy() - q._peak_log_prob() - q._exponent * mean_log
    return torch.where(nested, value, math.inf)


def _ball_rule(p: MultivariateBetaGaussian) -> tuple[Tensor, Tensor]:
    """Nodes u (Q, *batch, D) in the unit ball and weights (Q, *batch) of p, in float64."""
    m, dim = p._exponent.double(), p.event_shape[0]
    # Beyond, the mass is less than rounding; the nodes of a sharp density must not spread wider.
    tail = 40 + dim
    reach = (-torch.expm1(-tail / m.detach().clamp_min(1e-30))).sqrt()
    share, rule = (x.reshape(-1, *(1,) * m.dim()) for x in smooth_unit_rule(_RADII, m))
    directions, shares = direction_rule(dim, _ORDERS.get(dim, 64), m)
    radii = reach * share
    log_density = m * torch.log1p(-radii.square()) + (dim - 1) * radii.log()
    weights = rule * torch.exp(log_density - log_density.detach().amax(0))
    weights = weights / weights.sum(0)
    u = radii[:, None, ..., None] * directions.reshape(-1, *(1,) * m.dim(), dim)
    weights = weights[:, None] * shares.reshape(-1, *(1,) * m.dim())
    return u.flatten(0, 1), weights.flatten(0, 1)


def _relative(
    loc: Tensor, scale_tril: Tensor, other_loc: Tensor, other_scale_tril: Tensor
) -> tuple[Tensor, Tensor]:
    """Centre (*batch, D) and factor (*batch, D, D) of one density in the coordinates of another."""
    offset = torch.linalg.solve_triangular(
        other_scale_tril, (loc - other_loc).unsqueeze(-1), upper=False
    )
    matrix = torch.linalg.solve_triangular(other_scale_tril, scale_tril, upper=False)
    return offset.squeeze(-1), matrix


def _slack(factor: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """What rounding of `matrix` and `offset`, solutions of triangular equations, may amount to."""
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False).abs()
    sizes = torch.cat([matrix.abs(), offset.abs().unsqueeze(-1)], -1)
    moved: Tensor = (inverse @ factor.abs() @ sizes).sum((-2, -1))
    return 8 * torch.finfo(factor.dtype).eps * moved


def _expanded(p: _D, q: _D) -> tuple[_D, _D]:
    """Both with the batch shape that theirs broadcast to."""
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    return p.expand(shape), q.expand(shape)


def _dimension(p: Distribution, q: Distribution) -> int:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"p and q must have one event shape, got {tuple(p.event_shape)} and "
            f"{tuple(q.event_shape)}"
        )
    return p.event_shape[0]
