"""What is compared on reviews: one network, and seven ways to read the states of its words.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, table 1: discrete attention,
    the density that has its mean and variance, and both together. arXiv:2006.07214
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import sparsefam as sf

from .reviews_data import Reviews

__all__ = ["MEAN", "READERS", "Attentive", "MeanPooling", "Reader"]

_EMBEDDING, _STATES = 64, 96
_BASIS_SIZE, _WIDTHS, _PENALTY = 32, (0.1, 0.5), 0.1
_AT_ONCE = 256


class Reader(nn.Module):
    """Words to states, from both sides; those that are read, classified.

    Args:
        words: Size of the vocabulary.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, _EMBEDDING, padding_idx=0)
        self.ahead, self.back = (
            nn.LSTM(_EMBEDDING, _STATES // 2, batch_first=True) for _ in range(2)
        )
        self.classifier = nn.Linear(_STATES, 2)

    def states(self, reviews: Reviews) -> Tensor:
        """(B, L, 96), whatever in padding."""
        # Backwards from the last word of each; packed sequences do the same and take four times
        # as long on a CPU.
        lengths, steps = reviews.lengths.unsqueeze(-1), torch.arange(reviews.tokens.shape[1])
        turned = (lengths - 1 - steps).abs().unsqueeze(-1)
        embedded = self.embedding(reviews.tokens)
        back = self.back(embedded.take_along_dim(turned, 1))[0].take_along_dim(turned, 1)
        return torch.cat([self.ahead(embedded)[0], back], -1)

    def read(self, states: Tensor, reviews: Reviews) -> Tensor:
        """What is read (B, 96)."""
        raise NotImplementedError

    def forward(self, reviews: Reviews) -> Tensor:
        """Logits (B, 2), a few hundred reviews at a time."""
        parts = torch.arange(len(reviews)).split(_AT_ONCE)
        return torch.cat([self._logits(reviews[part]) for part in parts])

    def _logits(self, reviews: Reviews) -> Tensor:
        logits: Tensor = self.classifier(self.read(self.states(reviews), reviews))
        return logits


class MeanPooling(Reader):
    """The mean of all states: what attention must be worth more than."""

    def read(self, states: Tensor, reviews: Reviews) -> Tensor:
        """Means (B, 96)."""
        weights = reviews.mask / reviews.lengths.unsqueeze(-1)
        return torch.einsum("bl,ble->be", weights, states)


class Attentive(Reader):
    """Attention from one learned query, discrete, continuous or both.

    All three have the same parameters: those of the layer.

    Args:
        words: Size of the vocabulary.
        alpha: 1 softmax, 2 sparsemax.
        discrete: Whether words are read by their weights.
        continuous: Whether the states' function is read by the density that has the mean and
            variance of the weights.
    """

    def __init__(self, words: int, alpha: float, discrete: bool, continuous: bool) -> None:
        super().__init__(words)
        self.alpha, self.discrete, self.continuous = alpha, discrete, continuous
        # All words count alike at first: the mean of the states.
        self.query = nn.Parameter(torch.zeros(_STATES))
        self.layer = sf.attention.ContinuousAttention(
            _STATES,
            1,
            sf.bases.GaussianRBF.grid(_BASIS_SIZE, _WIDTHS),
            alpha,
            score="moments",
            combine=discrete,
            penalty=_PENALTY,
            batch_first=True,
        )

    def read(self, states: Tensor, reviews: Reviews) -> Tensor:
        """Contexts (B, 96)."""
        if self.continuous:
            return self._attend(states, reviews)[0].squeeze(1)
        values = self.layer.v_proj(states)
        weights = self.weigh(states, reviews)
        context: Tensor = self.layer.out_proj(torch.einsum("bl,ble->be", weights, values))
        return context

    def _attend(self, states: Tensor, reviews: Reviews) -> tuple[Tensor, sf.SparseDistribution]:
        query = self.query.expand(len(states), 1, -1)
        found: tuple[Tensor, sf.SparseDistribution] = self.layer(
            query, states, states, reviews.positions, key_padding_mask=~reviews.mask
        )
        return found

    def density(self, states: Tensor, reviews: Reviews) -> sf.SparseDistribution:
        """Densities over the reviews, as long as 1 each: batch shape (B, 1, 1)."""
        return self._attend(states, reviews)[1]

    def weigh(self, states: Tensor, reviews: Reviews) -> Tensor:
        """Discrete weights (B, L)."""
        query = self.query.expand(len(states), 1, -1)
        scores = self.layer.score_proj(query, states)[:, 0, 0]
        scores = scores.masked_fill(~reviews.mask, -torch.inf)
        weights: Tensor = sf.rpm(sf.scores.Finite(scores), self.alpha).probs
        return weights

    def share_read(self, reviews: Reviews) -> float:
        """Share of all words that have any weight or density."""
        with torch.no_grad():
            parts = [reviews[part] for part in torch.arange(len(reviews)).split(_AT_ONCE)]
            found = sum(self.touched(part).sum().item() for part in parts)
        return found / reviews.mask.sum().item()

    def shares(self, reviews: Reviews) -> Tensor:
        """What share each word's value has in the context (B, L); some may be below zero.

        The fitted function is linear in the values, so that of an example it is enough to fit the
        words' indicators.
        """
        states, total = self.states(reviews), torch.zeros(reviews.tokens.shape)
        if self.discrete:
            total = total + self.weigh(states, reviews)
        if self.continuous:
            indicators = torch.eye(reviews.tokens.shape[1]).expand(len(reviews), -1, -1)
            positions = reviews.positions
            function = self.layer.regression.fit(positions, indicators, reviews.mask)
            total = total + function.expect(self.density(states, reviews)).squeeze((1, 2))
        return total

    def touched(self, reviews: Reviews) -> Tensor:
        """True at words (B, L) with any weight or density."""
        states, found = self.states(reviews), torch.zeros(reviews.tokens.shape, dtype=torch.bool)
        if self.discrete:
            found = found | (self.weigh(states, reviews) > 0)
        if self.continuous:
            support: Any = self.density(states, reviews).support
            inside = support.check(reviews.positions.T[:, :, None, None])
            found = found | (inside.squeeze((2, 3)).T & reviews.mask)
        return found


MEAN = "mean pooling"
READERS: dict[str, Callable[[int], Reader]] = {
    MEAN: MeanPooling,
    "discrete softmax": partial(Attentive, alpha=1.0, discrete=True, continuous=False),
    "discrete sparsemax": partial(Attentive, alpha=2.0, discrete=True, continuous=False),
    "continuous softmax": partial(Attentive, alpha=1.0, discrete=False, continuous=True),
    "continuous sparsemax": partial(Attentive, alpha=2.0, discrete=False, continuous=True),
    "combined softmax": partial(Attentive, alpha=1.0, discrete=True, continuous=True),
    "combined sparsemax": partial(Attentive, alpha=2.0, discrete=True, continuous=True),
}
