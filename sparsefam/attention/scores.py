"""From queries to densities: linear layers whose channels are the parameters of scores."""

import math

import torch
from torch import Tensor, nn

from ..bases import Basis
from ..distributions import SparseDistribution
from ..prediction_map import rpm
from ..scores import MultivariateQuadratic, Quadratic
from .arguments import Box
from .placement import FIRST_GAIN, FIRST_SIGMA, first_width, place, places, stretch, widths
from .precision import full_precision
from .sight import Sight

__all__ = [
    "QuadraticScore",
    "ScoreProjection",
    "by_head",
    "channel_counts",
    "first_channels",
    "quadratics",
]


class ScoreProjection(nn.Linear):
    """Channels read off the queries, and the densities that they stand for.

    Args:
        embed_dim: Channels of the queries.
        channels: How many are read off them.
        heads: Number of densities for each query.
        box: The domain.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        channels: int,
        heads: int,
        box: Box,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(embed_dim, channels, device=device, dtype=dtype)
        self.heads, self.box = heads, box

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        """Channels (B, Lq, channels) of queries; locations would be lost in what autocast keeps."""
        with full_precision(query):
            return super().forward(query.to(self.weight.dtype))

    def spread(self) -> None:
        """Draws small weights anew, and spreads the heads over the domain."""
        raise NotImplementedError

    def prepare(self, basis: Basis) -> None:
        """Finds what the expectations of a basis need, if it is not as it was."""

    def read(
        self,
        channels: Tensor,
        alpha: Tensor | float,
        temperature: float,
        positions: Tensor,
        sight: Sight,
    ) -> tuple[SparseDistribution, None]:
        """Densities (B, heads, Lq) of channels (B, Lq, channels), and no discrete weights."""
        return self.densities(channels.transpose(1, 2), alpha, temperature), None

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float = 1.0
    ) -> SparseDistribution:
        """Densities (B, heads, Lq) of channels (B, channels, Lq)."""
        raise NotImplementedError


class QuadraticScore(ScoreProjection):
    """One bump for each head: location and scale.

    Args:
        embed_dim: Channels of the queries.
        heads: Number of densities for each query.
        box: The domain.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        box: Box,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        counts = channel_counts(heads, len(box))
        super().__init__(embed_dim, sum(counts), heads, box, device, dtype)

    @torch.no_grad()
    def spread(self) -> None:
        """Heads evenly over the domain, sigma a tenth of it, axes as round as it is."""
        nn.init.xavier_uniform_(self.weight, gain=FIRST_GAIN)
        self.weight[self.out_features - channel_counts(self.heads, len(self.box))[-1] :] = 0
        self.bias.copy_(first_channels(places(self.heads, len(self.box)), FIRST_SIGMA))

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float = 1.0
    ) -> SparseDistribution:
        """Densities (B, heads, Lq) of channels (B, channels, Lq)."""
        return rpm(quadratics(channels, (self.heads,), self.box, temperature), alpha)


def channel_counts(count: int, ndim: int) -> list[int]:
    """Channels of the locations, of the diagonals and of what is below them, of some quadratics."""
    return [count * ndim, count * ndim, count * (ndim * (ndim - 1) // 2)]


def first_channels(shares: Tensor, sigma: float) -> Tensor:
    """The channels of quadratics at shares (count, D) of the domain, as round as it is."""
    counts = channel_counts(*shares.shape)
    diagonal = torch.full((counts[1],), first_width(sigma))
    return torch.cat([shares.logit().flatten(), diagonal, torch.zeros(counts[2])])


def quadratics(
    channels: Tensor, counts: tuple[int, ...], box: Box, temperature: float = 1.0
) -> Quadratic | MultivariateQuadratic:
    """Scores (B, heads, Lq[, K]) whose parameters are channels (B, ..., Lq).

    Args:
        channels: Those of all locations, then of all diagonals, then of what is below these.
        counts: Of the heads, and of the quadratics in each if there are several.
        box: The domain.
        temperature: What they are divided by.
    """
    ndim, total = len(box), torch.Size(counts).numel()
    parts = channels.split(channel_counts(total, ndim), 1)
    loc, diagonal, below = (by_head(x, (*counts, x.shape[1] // total)) for x in parts)
    loc, sigma = place(torch.sigmoid(loc), box), stretch(widths(diagonal), box)
    sigma = sigma * math.sqrt(temperature)
    if ndim == 1:
        return Quadratic(loc.squeeze(-1), sigma=sigma.squeeze(-1))
    return MultivariateQuadratic(loc, sigma.unsqueeze(-1) * _unit_tril(below, ndim))


def by_head(channels: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Channels (B, heads * rest, Lq) as (B, heads, Lq, *rest)."""
    # Contiguous: compiled graphs otherwise get the strides of gradients wrong.
    found: Tensor = channels.unflatten(1, counts).movedim(-1, 2).contiguous()
    return found


def _unit_tril(below: Tensor, ndim: int) -> Tensor:
    """Ones on the diagonal (..., D, D), and the entries below it row by row."""
    rows, columns = torch.tril_indices(ndim, ndim, -1, device=below.device)
    unit = torch.diag_embed(below.new_ones(*below.shape[:-1], ndim))
    unit[..., rows, columns] = below
    return unit
