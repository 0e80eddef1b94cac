"""Attention of several bumps for each head."""

import torch
from torch import Tensor, nn

from ..distributions import Mixture, SparseDistribution
from ..numerics.validation import is_count
from ..prediction_map import rpm
from .arguments import Box
from .placement import FIRST_GAIN, FIRST_SIGMA, affinity, places
from .scores import ScoreProjection, by_head, channel_counts, first_channels, quadratics

__all__ = ["MixtureScore"]

# Times the distance between neighbours: with it their sum has no gaps.
_OVERLAP = 0.4


class MixtureScore(ScoreProjection):
    r"""K bumps for each head: a log weight, a location and a scale for each.

    Args:
        embed_dim: Channels of the queries.
        heads: Number of densities for each query.
        box: The domain.
        components: K.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: A number of components that is no positive integer.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        box: Box,
        components: int = 8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not is_count(components):
            raise ValueError(f"components must be a positive integer, got {components!r}")
        total = heads * components
        channels = total + sum(channel_counts(total, len(box)))
        super().__init__(embed_dim, channels, heads, box, device, dtype)
        self.components = components

    @torch.no_grad()
    def spread(self) -> None:
        """Bumps evenly over the domain in every head, heavier next to the head's own place."""
        ndim = len(self.box)
        below = channel_counts(self.heads * self.components, ndim)[-1]
        nn.init.xavier_uniform_(self.weight, gain=FIRST_GAIN)
        self.weight[self.out_features - below :] = 0
        own, bumps = places(self.heads, ndim), places(self.components, ndim)
        logits = affinity(own, bumps)
        sigma = min(FIRST_SIGMA, _OVERLAP * self.components ** (-1 / ndim))
        rest = first_channels(bumps.repeat(self.heads, 1), sigma)
        self.bias.copy_(torch.cat([logits.flatten(), rest]))

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float = 1.0
    ) -> SparseDistribution:
        """Densities (B, heads, Lq) of channels (B, channels, Lq)."""
        counts = (self.heads, self.components)
        total = self.heads * self.components
        logits, rest = channels.split([total, channels.shape[1] - total], 1)
        each = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha
        bumps = rpm(quadratics(rest, counts, self.box, temperature), each)
        return Mixture(by_head(logits / temperature, counts), bumps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, components={self.components}"
