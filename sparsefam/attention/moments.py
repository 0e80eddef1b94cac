"""Densities with the moments of discrete attention weights."""

import math

import torch
from torch import Tensor, nn

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
from ..prediction_map import rpm
from ..scores import Finite
from .arguments import Box
from .placement import LEAST_SIGMA, stretch

__all__ = ["MomentScore", "discrete", "match", "reset"]


class MomentScore(nn.Module):
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
        super().__init__()
        self.heads, self.box = heads, box
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias, device, dtype)
        self.k_proj = nn.Linear(kdim, embed_dim, bias, device, dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Discrete scores (B, heads, Lq, L), the products over the root of their number."""
        queries, keys = (
            x.unflatten(-1, (self.heads, x.shape[-1] // self.heads))
            for x in (self.q_proj(query), self.k_proj(key))
        )
        return torch.einsum("bqhe,blhe->bhql", queries, keys) / math.sqrt(queries.shape[-1])

    def spread(self) -> None:
        """Draws the weights anew."""
        for projection in (self.q_proj, self.k_proj):
            reset(projection)

    def prepare(self, basis: Basis) -> None:
        """Nothing need be found."""

    def read(
        self, scores: Tensor, alpha: Tensor | float, positions: Tensor, mask: Tensor | None
    ) -> tuple[SparseDistribution, Tensor]:
        """Densities (B, heads, Lq) of scores (B, heads, Lq, L), and the discrete weights."""
        weights = discrete(scores, alpha, mask)
        event = positions.shape[positions.dim() - (len(self.box) > 1) :]
        # (B, 1, 1, L[, D]), or the like with one B if they are shared.
        per_query = positions.reshape(-1, 1, 1, weights.shape[-1], *event)
        return match(weights, per_query.to(weights.dtype), self.box, alpha), weights


def discrete(scores: Tensor, alpha: Tensor | float, mask: Tensor | None) -> Tensor:
    """Weights (B, heads, Lq, L), exactly zero where the mask (B, L) is not True."""
    if mask is not None:
        scores = torch.where(mask[:, None, None], scores, -math.inf)
    weights: Tensor = rpm(Finite(scores), alpha).probs
    return weights


def reset(projection: nn.Linear) -> None:
    """Draws weights anew, as `torch.nn.MultiheadAttention` does."""
    nn.init.xavier_uniform_(projection.weight)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)


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
