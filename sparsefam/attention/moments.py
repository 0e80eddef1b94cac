"""Densities with the moments of discrete attention weights."""

import torch
from torch import Tensor

from ..bases import Basis
from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
    TruncatedParabola,
    TruncatedParaboloid,
)
from .arguments import Box
from .discrete import DiscreteScore
from .placement import LEAST_SIGMA, stretch
from .sight import Sight

__all__ = ["MomentScore", "match"]


class MomentScore(DiscreteScore):
    """One bump for each head, with the moments of its discrete attention weights.

    Args:
        embed_dim: Channels of the queries.
        kdim: Channels of the keys.
        heads: Number of densities for each query.
        box: The domain.
        bias: Whether the projections have biases.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        kdim: int,
        heads: int,
        box: Box,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(embed_dim, kdim, heads, bias, device, dtype)
        self.box = box

    def prepare(self, basis: Basis) -> None:
        """Nothing need be found."""

    def read(
        self,
        scores: Tensor,
        alpha: Tensor | float,
        temperature: float,
        positions: Tensor,
        sight: Sight,
    ) -> tuple[SparseDistribution, Tensor]:
        """Densities (B, heads, Lq) of scores (B, heads, Lq, L), and the discrete weights."""
        weights = self.weights(scores, alpha, temperature, sight)
        event = positions.shape[positions.dim() - (len(self.box) > 1) :]
        # (B, 1, 1, L[, D]), or the like with one B if they are shared.
        per_query = positions.reshape(-1, 1, 1, weights.shape[-1], *event)
        return match(weights, per_query.to(weights.dtype), self.box, alpha), weights


def match(
    weights: Tensor, positions: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    """Densities (...) with the moments of positions (..., L[, D]) under weights (..., L)."""
    if len(box) > 1:
        return _match_covariance(weights, positions, box, alpha)
    mean = (weights * positions).sum(-1)
    variance = (weights * (positions - mean.unsqueeze(-1)).square()).sum(-1)
    ((low, high),) = box
    variance = variance.clamp_min((LEAST_SIGMA * (high - low)) ** 2)
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
    floor = stretch(torch.full_like(mean, LEAST_SIGMA), box).square()
    # Of positions on a line, far outside the domain, the floor is all rounding.
    rounding = 64 * torch.finfo(mean.dtype).eps * covariance.diagonal(dim1=-2, dim2=-1)
    covariance = covariance + torch.diag_embed(torch.maximum(floor, rounding))
    if not isinstance(alpha, Tensor) and alpha == 1:
        return MultivariateNormal.from_moments(mean, covariance)
    if not isinstance(alpha, Tensor) and alpha == 2:
        return TruncatedParaboloid.from_moments(mean, covariance)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha)
