"""What is compared on the canvases: four ways to read an image's features when asked a question.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: an attention map
    over a grid of features, and the density with its mean and covariance. arXiv:2006.07214
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparsefam as sf

from .canvases import CANVAS, QUESTIONS, Canvases

__all__ = ["CELLS", "Aim", "Continuous", "Discrete", "MeanPooling", "Reader", "aim_of"]

# Cells on a side of the grid of features.
CELLS = 14
_CHANNELS = 32
_BASIS_SIZE, _WIDTH, _PENALTY = 49, 0.1, 0.01
_SAMPLES = 200


def _centers(count: int) -> Tensor:
    """Centres (x, y) of count² cells, row by row, in shares of the image: (count², 2)."""
    ticks = (torch.arange(count) + 0.5) / count
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def _convolution(inputs: int, outputs: int, *between: nn.Module) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    # Channels innermost in memory, a quarter faster on a CPU.
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    return [layer, *between, nn.BatchNorm2d(outputs), nn.ReLU()]


class Reader(nn.Module):
    """Convolutions to 14 x 14 features; those read for a question, and the question, classified."""

    def __init__(self) -> None:
        super().__init__()
        inner = [_convolution(inputs, _CHANNELS) for inputs in (16, _CHANNELS, _CHANNELS)]
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, CANVAS)),
            *_convolution(1, 16, nn.MaxPool2d(2)),
            *(layer for layers in inner for layer in layers),
            nn.Flatten(2),
        )
        self.questions = nn.Parameter(0.5 * torch.randn(len(QUESTIONS), _CHANNELS))
        self.classifier = nn.Sequential(nn.Linear(2 * _CHANNELS, 64), nn.ReLU(), nn.Linear(64, 10))

    def features(self, canvases: Canvases) -> Tensor:
        """(B, 196, 32)."""
        features: Tensor = self.encoder(canvases.images)
        return features.mT

    def read(self, features: Tensor) -> Tensor:
        """What is read for each question: (B, 4, 32)."""
        raise NotImplementedError

    def forward(self, canvases: Canvases) -> Tensor:
        """Logits (B, 10, 4)."""
        context = self.read(self.features(canvases))
        logits: Tensor = self.classifier(
            torch.cat([context, self.questions.expand_as(context)], -1)
        )
        return logits.mT


class MeanPooling(Reader):
    """The mean of all features, whatever is asked: what attention must be worth more than."""

    def read(self, features: Tensor) -> Tensor:
        """The same for all questions (B, 4, 32)."""
        return features.mean(1, keepdim=True).expand(-1, len(QUESTIONS), -1)


class Discrete(Reader):
    """Softmax weights on the cells: the question against features and places."""

    cells: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_CHANNELS, _CHANNELS)
        self.key = nn.Linear(_CHANNELS, _CHANNELS)
        self.places = nn.Parameter(0.5 * torch.randn(CELLS**2, _CHANNELS))
        self.register_buffer("cells", _centers(CELLS))

    def weigh(self, features: Tensor) -> sf.SparseCategorical:
        """Weights on the cells, batch shape (B, 4)."""
        keys = self.key(features + self.places)
        scores = self.query(self.questions) @ keys.mT / math.sqrt(_CHANNELS)
        return sf.rpm(sf.scores.Finite(scores), 1.0)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Where each question looks, batch shape (B, 4)."""
        return self.weigh(features)

    def read(self, features: Tensor) -> Tensor:
        """Weighted means (B, 4, 32)."""
        return self.weigh(features).probs @ features


class Continuous(Discrete):
    """The density with the mean and covariance of the softmax weights, and the features' function.

    Args:
        family: A class with `from_moments`.
    """

    def __init__(self, family: type[sf.MultivariateNormal] | type[sf.TruncatedParaboloid]) -> None:
        super().__init__()
        self.family = family
        basis = sf.bases.GaussianRBF.grid(_BASIS_SIZE, _WIDTH, ndim=2)
        self.regression = sf.attention.RidgeRegression(basis, _PENALTY)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Densities over the image, batch shape (B, 4)."""
        weights = self.weigh(features).probs
        mean = weights @ self.cells
        offsets = self.cells - mean.unsqueeze(-2)
        covariance = (weights.unsqueeze(-1) * offsets).mT @ offsets
        # A weight belongs to a cell, not to a point: the variance of a uniform law on it is added.
        own = torch.eye(2).to(mean) / (12 * CELLS**2)
        return self.family.from_moments(mean, covariance + own)

    def read(self, features: Tensor) -> Tensor:
        """Expected value functions (B, 4, 32)."""
        return self.regression.fit(self.cells, features).expect(self.attend(features))


@dataclass(frozen=True)
class Aim:
    """Where attention lies, on average over canvases and questions.

    Attributes:
        quadrant: Mass in the quadrant that was asked about.
        digit: Mass in the 8 x 8 pixels of the digit there.
        read: Share of the image that has any weight or density.
    """

    quadrant: float
    digit: float
    read: float


def aim_of(attention: sf.SparseDistribution, canvases: Canvases) -> Aim:
    """Measures attention of batch shape (B, 4).

    Weights count where the centre of their cell lies. The mass of a density is the share of 200
    samples; what lies outside the image is in no quadrant. Its support is looked up at the centres
    of the cells.
    """
    cells = _centers(CELLS)[:, None, None]
    if isinstance(attention, sf.SparseCategorical):
        # (196, B, 4)
        points, mass = cells, attention.probs.movedim(-1, 0)
        read = mass > 0
    else:
        points = attention.sample((_SAMPLES,))
        mass = torch.full(points.shape[:-1], 1 / _SAMPLES)
        support: Any = attention.support
        read = support.check(cells)
    inside = [
        ((low <= points) & (points < high)).all(-1)
        for low, high in (canvases.quadrants(), canvases.boxes())
    ]
    quadrant, digit = ((mass * part).sum(0).mean().item() for part in inside)
    return Aim(quadrant, digit, read.float().mean().item())
