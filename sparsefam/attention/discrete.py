"""Discrete attention: weights of the positions of observations."""

import math

import torch
from torch import Tensor, nn

from ..prediction_map import rpm
from ..scores import Finite
from .placement import FIRST_GAIN
from .sight import Sight

__all__ = ["DiscreteScore", "reset"]


class DiscreteScore(nn.Module):
    """Products of queries and keys, and the discrete weights that they stand for.

    Args:
        embed_dim: Channels of the queries.
        kdim: Channels of the keys.
        heads: Number of weights for each query and position.
        bias: Whether the projections have biases.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        kdim: int,
        heads: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias, device, dtype)
        self.k_proj = nn.Linear(kdim, embed_dim, bias, device, dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores (B, heads, Lq, L), the products over the root of their number."""
        queries, keys = (
            x.unflatten(-1, (self.heads, x.shape[-1] // self.heads))
            for x in (self.q_proj(query), self.k_proj(key))
        )
        return torch.einsum("bqhe,blhe->bhql", queries, keys) / math.sqrt(queries.shape[-1])

    def spread(self) -> None:
        """Draws the weights anew, those of queries small, so that many positions have a share."""
        reset(self.q_proj, FIRST_GAIN)
        reset(self.k_proj)

    def weights(
        self, scores: Tensor, alpha: Tensor | float, temperature: float, sight: Sight
    ) -> Tensor:
        """Weights (B, heads, Lq, L), exactly zero where positions are not to be read."""
        found: Tensor = rpm(Finite(sight.hide(scores / temperature)), alpha).probs
        return found


def reset(projection: nn.Linear, gain: float = 1.0) -> None:
    """Draws weights anew, like `torch.nn.MultiheadAttention`."""
    nn.init.xavier_uniform_(projection.weight, gain)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)
