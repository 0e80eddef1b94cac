"""What is compared on irregular series: an encoder alone, and with attention to the points.

References:
    Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
    App. C: the encoder, one value function for all heads, a scalar context for each head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import sparsefam as sf

from .batches import Batch
from .recordings import Observations, interpolate

__all__ = ["GRID", "SIGMA", "Attention", "Discrete", "Examples", "NoAttention", "spread"]

GRID = 128
# The width of a head's attention before training.
SIGMA = 0.1
_FEATURES = 256
_KEYS = 16


@dataclass(frozen=True)
class Examples(Batch):
    """Observations with the value function fitted to them, and their interpolation on a grid."""

    positions: Tensor  # (B, L)
    values: Tensor  # (B, L)
    mask: Tensor  # (B, L)
    labels: Tensor  # (B,)
    coefficients: Tensor  # (B, N, 1)
    grid: Tensor  # (B, GRID)

    @classmethod
    def fit(cls, observed: Observations, basis: sf.bases.Basis, penalty: float) -> "Examples":
        """Fits the value functions, once for each example."""
        value = sf.attention.RidgeRegression(basis, penalty).fit(
            observed.positions, observed.values.unsqueeze(-1), observed.mask
        )
        parts = (observed.positions, observed.values, observed.mask, observed.labels)
        return cls(*parts, value.coefficients, interpolate(observed, GRID))


class Encoder(nn.Sequential):
    """A series on the grid (B, GRID) to features v (B, 256)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, GRID)),
            nn.Conv1d(1, 4, 5),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(4 * ((GRID - 4) // 2), _FEATURES),
            nn.ReLU(),
            nn.Linear(_FEATURES, _FEATURES),
            nn.ReLU(),
        )


class NoAttention(nn.Module):
    """The encoder with a linear classifier: what attention must be worth more than."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Linear(_FEATURES, classes)

    def forward(self, examples: Examples) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.classifier(self.encoder(examples.grid))
        return logits


class Attention(nn.Module):
    """Encoder, attention (heads) and a linear classifier that sees one number for each head."""

    def __init__(self, classes: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.heads = heads
        self.encoder = Encoder()
        self.query = nn.Linear(_FEATURES, heads * outputs)
        self.classifier = nn.Linear(heads, classes)

    def attend(
        self, examples: Examples, heads: slice | list[int] = slice(None)
    ) -> sf.SparseDistribution:
        """Where each head looks, or each of some, batch shape (B, heads)."""
        queries = self.query(self.encoder(examples.grid)).unflatten(-1, (self.heads, -1))
        return self.weigh(queries[:, heads], examples)

    def weigh(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Queries (B, heads, outputs) to attention, batch shape (B, heads)."""
        raise NotImplementedError

    def context(self, attention: sf.SparseDistribution, examples: Examples) -> Tensor:
        """What each head reads (B, heads)."""
        raise NotImplementedError

    def forward(self, examples: Examples) -> Tensor:
        """Logits (B, classes)."""
        context = self.context(self.attend(examples), examples)
        logits: Tensor = self.classifier(context)
        return logits


class Discrete(Attention):
    """Weights on the observed points: a query from the features, keys from position and value.

    The key of a point is its value and 16 bumps of its position that sum to one, so a head starts
    where a continuous one does, and may then score every stretch of the domain freely.
    """

    def __init__(self, classes: int, heads: int, alpha: float) -> None:
        super().__init__(classes, heads, _KEYS + 1)
        self.alpha = alpha
        loc = spread(heads).unsqueeze(-1)
        score = -0.5 * ((self._centers() - loc) / SIGMA).square()
        self.query.bias.data = nn.functional.pad(score, (0, 1)).reshape(-1)

    @staticmethod
    def _centers() -> Tensor:
        return torch.linspace(0, 1, _KEYS)

    def keys(self, examples: Examples) -> Tensor:
        """(B, L, 17)."""
        distance = (examples.positions.unsqueeze(-1) - self._centers()) * (_KEYS - 1)
        bumps = torch.softmax(-0.5 * distance.square(), -1)
        return torch.cat([bumps, examples.values.unsqueeze(-1)], -1)

    def weigh(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Weights on the points, batch shape (B, heads)."""
        scores = queries @ self.keys(examples).mT
        scores = scores.masked_fill(~examples.mask.unsqueeze(1), -math.inf)
        return sf.rpm(sf.scores.Finite(scores), self.alpha)

    def context(self, attention: sf.SparseDistribution, examples: Examples) -> Tensor:
        """Weighted mean of the observed values (B, heads)."""
        mean: Tensor = (attention.probs * examples.values.unsqueeze(1)).sum(-1)
        return mean


def spread(count: int) -> Tensor:
    """Points in the middle of `count` equal parts of the domain."""
    return (torch.arange(count) + 0.5) / count
