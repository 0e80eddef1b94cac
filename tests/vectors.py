"""Multivariate densities of any dimension for tests, with mixed scales and no symmetry."""

import torch
from battery import DOUBLE
from torch import Tensor

from sparsefam import EllipticalDistribution, MultivariateBetaGaussian, MultivariateNormal


def factor(dim: int, dtype: torch.dtype = DOUBLE, seed: float = 0.0) -> Tensor:
    """Return a lower triangle with a positive diagonal and entries of both signs."""
    entries = torch.cos(1.7 * torch.arange(1.0, dim * dim + 1, dtype=dtype) + seed)
    entries = entries.reshape(dim, dim)
    return 0.4 * entries.tril(-1) + torch.diag(0.6 + 0.3 * entries.diagonal())


def center(dim: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.sin(2.1 * torch.arange(1.0, dim + 1, dtype=dtype))


def elliptical(
    loc: Tensor, scale_tril: Tensor, alpha: Tensor | float, **options: bool
) -> EllipticalDistribution:
    """Return the member of any alpha; the normal at alpha = 1."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return MultivariateNormal(loc, scale_tril=scale_tril, **options)
    return MultivariateBetaGaussian(loc, scale_tril, alpha, **options)


def member(dim: int, alpha: Tensor | float = 2.0) -> EllipticalDistribution:
    """Return a density of some dimension."""
    return elliptical(center(dim), factor(dim), alpha)
