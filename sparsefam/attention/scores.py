"""From queries to densities: scores read off channels, moments of discrete weights."""

import math

import torch
from torch import Tensor
from torch.nn import functional
from torch.quasirandom import SobolEngine

from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
    TruncatedParabola,
    TruncatedParaboloid,
)
from ..prediction_map import rpm
from ..scores import MultivariateQuadratic, Quadratic
from .arguments import Box

__all__ = ["channel_counts", "first_channels", "match", "quadratic"]

# Shares of the domain: sigma when training starts, and the least that sigma, or the standard
# deviation of matched moments, can become.
_FIRST_SIGMA = 0.1
_LEAST_SIGMA = 1e-3


def _stretch(shares: Tensor, box: Box) -> Tensor:
    """Lengths (..., D) from shares of the box."""
    sides = [(high - low) * x for (low, high), x in zip(box, shares.unbind(-1), strict=True)]
    return torch.stack(sides, -1)


def _place(shares: Tensor, box: Box) -> Tensor:
    """Locations (..., D) from shares of the box."""
    sides = zip(box, shares.unbind(-1), strict=True)
    return torch.stack([low + (high - low) * x for (low, high), x in sides], -1)


# Scores read off channels


def channel_counts(heads: int, ndim: int) -> list[int]:
    """Channels of the locations, of the diagonals and of what is below them."""
    return [heads * ndim, heads * ndim, heads * (ndim * (ndim - 1) // 2)]


def first_channels(heads: int, ndim: int) -> Tensor:
    """The channels that spread the heads over the domain, along axes as round as it is."""
    # The heads in equal steps along the first axis, and in the order of a Sobol sequence along
    # each other one: 2^k heads then have one in each of 2^k equal boxes, however these are cut.
    shares = (torch.arange(heads) + 0.5).unsqueeze(-1) / heads
    if ndim > 1:
        others = SobolEngine(ndim - 1).draw(heads).to(shares)
        shares = torch.cat([shares, others + 0.5 / heads], -1)
    counts = channel_counts(heads, ndim)
    first = math.log(math.expm1(_FIRST_SIGMA - _LEAST_SIGMA))
    return torch.cat(
        [shares.logit().flatten(), torch.full((counts[1],), first), torch.zeros(counts[2])]
    )


def quadratic(channels: Tensor, heads: int, box: Box, alpha: Tensor | float) -> SparseDistribution:
    """Densities (B, heads, Lq) whose locations and scales are channels (B, Lq, ...)."""
    ndim = len(box)
    parts = channels.transpose(1, 2).split(channel_counts(heads, ndim), 1)
    loc, diagonal, below = (
        x.unflatten(1, (heads, x.shape[1] // heads)).movedim(2, -1) for x in parts
    )
    loc = _place(torch.sigmoid(loc), box)
    sigma = _stretch(_LEAST_SIGMA + functional.softplus(diagonal), box)
    if ndim == 1:
        return rpm(Quadratic(loc.squeeze(-1), sigma=sigma.squeeze(-1)), alpha)
    return rpm(MultivariateQuadratic(loc, sigma.unsqueeze(-1) * _unit_tril(below, ndim)), alpha)


def _unit_tril(below: Tensor, ndim: int) -> Tensor:
    """Ones on the diagonal (..., D, D), and the entries below it row by row."""
    rows, columns = torch.tril_indices(ndim, ndim, -1, device=below.device)
    unit = torch.diag_embed(below.new_ones(*below.shape[:-1], ndim))
    unit[..., rows, columns] = below
    return unit


# Moments of discrete weights


def match(
    weights: Tensor, positions: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    """Densities (...) with the moments of positions (..., L[, D]) under weights (..., L)."""
    if len(box) > 1:
        return _match_covariance(weights, positions, box, alpha)
    mean = (weights * positions).sum(-1)
    variance = (weights * (positions - mean.unsqueeze(-1)).square()).sum(-1)
    ((low, high),) = box
    variance = variance.clamp_min((_LEAST_SIGMA * (high - low)) ** 2)
    if not isinstance(alpha, Tensor) and alpha == 1:
        return Normal(mean, variance.sqrt())
    if not isinstance(alpha, Tensor) and alpha == 2:
        return TruncatedParabola.from_moments(mean, variance)
    return BetaGaussian.from_moments(mean, variance, alpha)


def _match_covariance(
    weights: Tensor, positions: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    weights = weights.unsqueeze(-1)
    mean = (weights * positions).sum(-2)
    offsets = positions - mean.unsqueeze(-2)
    covariance = (weights * offsets).mT @ offsets
    covariance = 0.5 * (covariance + covariance.mT)
    floor = _stretch(torch.full_like(mean, _LEAST_SIGMA), box).square()
    # Of positions on a line, far outside the domain, the floor is all rounding.
    rounding = 64 * torch.finfo(mean.dtype).eps * covariance.diagonal(dim1=-2, dim2=-1)
    covariance = covariance + torch.diag_embed(torch.maximum(floor, rounding))
    if not isinstance(alpha, Tensor) and alpha == 1:
        return MultivariateNormal.from_moments(mean, covariance)
    if not isinstance(alpha, Tensor) and alpha == 2:
        return TruncatedParaboloid.from_moments(mean, covariance)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha)
