"""Closed forms of divergences of normals, and the laws of coordinates of elliptical densities."""

import math

import torch
from torch import Tensor

from ..numerics.deformed import expm1_ratio
from .beta_gaussian import BetaGaussian
from .divergence_ellipsoids import relative
from .divergence_integrands import LARGEST_LOG
from .elliptical import EllipticalDistribution, MultivariateNormal
from .normal import Normal
from .univariate import SymmetricDistribution

__all__ = ["coordinates", "tsallis_of_normals"]


def coordinates(p: EllipticalDistribution) -> SymmetricDistribution:
    """The laws of the coordinates of an elliptical density (*batch, D)."""
    scale = p.scale_tril.square().sum(-1).sqrt()
    if isinstance(p, MultivariateNormal):
        return Normal(p.loc, scale, validate_args=False)
    alpha = p.marginal(0).alpha.unsqueeze(-1)
    return BetaGaussian(p.loc, scale, alpha, validate_args=False)


def tsallis_of_normals(
    p: Normal | MultivariateNormal, q: Normal | MultivariateNormal, alpha: float
) -> Tensor:
    r"""$(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$, to all digits as alpha tends to 1.

    In the coordinates of q, with $M = L_q^{-1} L_p$ and the offset d,
    $$\int p^\alpha q^{1 - \alpha} = e^{(1 - \alpha) s}, \quad
    s = \log|M| - \frac{\log|A|}{2 (1 - \alpha)} - \frac{\alpha}{2} d^\top A^{-1} d, \quad
    A = \alpha I + (1 - \alpha) M M^\top$$
    if A is positive definite: infinite otherwise.
    """
    offset, matrix = relative(*_placed(p), *_placed(q))
    rate, unit = 1 - alpha, torch.eye(matrix.shape[-1]).to(matrix)
    excess = matrix @ matrix.mT - unit
    spreads = torch.linalg.eigvalsh(excess)
    finite = (rate * spreads > -1).all(-1, keepdim=True)
    spreads = torch.where(finite, spreads, 0.0)
    mixed = torch.where(finite.unsqueeze(-1), unit + rate * excess, unit)
    distance = (offset * torch.linalg.solve(mixed, offset)).sum(-1)
    volumes = matrix.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    widened = torch.log1p(rate * spreads).sum(-1) / rate
    s = volumes - 0.5 * widened - 0.5 * alpha * distance
    fits = finite.squeeze(-1) & (rate * s <= LARGEST_LOG)
    s = torch.where(fits, s, 0.0)
    return torch.where(fits, -s * expm1_ratio(rate * s), math.inf)


def _placed(p: Normal | MultivariateNormal) -> tuple[Tensor, Tensor]:
    if isinstance(p, Normal):
        return p.loc.unsqueeze(-1), p.scale[..., None, None]
    return p.loc, p.scale_tril
