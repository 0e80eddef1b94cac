"""What answers a question about a stream: attention of several kinds, convolutions, a GRU."""

import math
from collections.abc import Callable
from functools import partial

import torch
from pyro.contrib.gp.kernels import RBF
from torch import Tensor, nn

import sparsefam as sf

from .mechanisms import SIGMA, spread
from .stream_data import GRID, Streams

__all__ = ["Bumps", "Continuous", "Discrete", "Reader", "basis", "methods"]

_UNITS, _HEADS, _POINTS, _LENGTH = 16, 4, 64, 0.03
# Standard deviations of heads, and an index that is learned.
_LEAST_SIGMA, _WIDEST = 1e-3, 0.3
_FIRST_ALPHA = 5.0


def basis() -> sf.bases.GaussianRBF:
    """64 Gaussians over the stream, half as wide again as they are far apart."""
    return sf.bases.GaussianRBF.grid(64, 1.5 / 64)


class Reader(nn.Module):
    """Heads look relative to the question's midpoint; the answer is a weighted sum of their means.

    The weights sum to one, as a mean is asked for. Were they free, a single head that does not yet
    look at the right place would be weighed down to nothing, and learn nothing more.
    """

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(inputs, _UNITS),
            nn.Tanh(),
            nn.Linear(_UNITS, _UNITS),
            nn.Tanh(),
            nn.Linear(_UNITS, heads * outputs),
        )
        # One head has the weight 1.
        self.share = nn.Parameter(torch.zeros(heads)) if heads > 1 else torch.zeros(1)
        self.heads = heads

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Where each head looks, batch shape (B, heads)."""
        raise NotImplementedError

    def context(self, attention: sf.SparseDistribution, streams: Streams) -> Tensor:
        """What each head reads (B, heads)."""
        raise NotImplementedError

    def forward(self, streams: Streams) -> Tensor:
        """Answers (B,)."""
        weights = self.share - self.share.mean() + 1 / self.heads
        return self.context(self.attend(streams), streams) @ weights


class Continuous(Reader):
    """A density for each head, which reads the value function."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__(heads, inputs, outputs)
        self.basis = basis()

    def context(self, attention: sf.SparseDistribution, streams: Streams) -> Tensor:
        """Expected value functions."""
        value = sf.attention.ValueFunction(self.basis, streams.coefficients)
        return value.expect(attention).squeeze(-1)


class Bumps(Continuous):
    """One bump a head: offset from the midpoint, and standard deviation, of midpoint and width.

    Among the densities of bounded support, that of alpha = inf is uniform on an interval. An
    `alpha` of None is learned for each head.
    """

    def __init__(self, heads: int, alpha: float | None) -> None:
        super().__init__(heads, 2, 2)
        self.alpha: sf.attention.LearnedAlpha | float = (
            sf.attention.LearnedAlpha(heads, _FIRST_ALPHA, math.inf) if alpha is None else alpha
        )
        # Heads start side by side, so that they come apart.
        offset = (spread(heads) - 0.5) / 2
        width = torch.full((heads,), SIGMA / _WIDEST).logit()
        self.network[-1].bias.data = torch.stack([offset, width], -1).flatten()

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Densities."""
        middle, width = streams.question.split(1, -1)
        asked = torch.cat([2 * middle - 1, 10 * width - 2], -1)
        offset, sigma = self.network(asked).unflatten(-1, (self.heads, 2)).unbind(-1)
        mean = middle + _WIDEST * offset.tanh()
        sigma = _WIDEST * sigma.sigmoid() + _LEAST_SIGMA
        if self.alpha == 1:
            return sf.Normal(mean, sigma)
        alpha = self.alpha if isinstance(self.alpha, float) else self.alpha().squeeze(-1)
        return sf.BetaGaussian.from_moments(mean, sigma.square(), alpha)


class KernelBumps(Continuous):
    """A score of 64 narrow bumps, weighed by a network of the distance from the midpoint."""

    def __init__(self, family: type[sf.KernelExp] | type[sf.KernelDeformedExp]) -> None:
        super().__init__(1, 2, 1)
        self.family = family
        self.points = torch.linspace(0, 1, _POINTS)
        self.kernel = RBF(1, lengthscale=torch.tensor(_LENGTH)).requires_grad_(False)
        self.panels = family(torch.zeros(_POINTS), self.points, self.kernel).panels

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Densities."""
        place = self.points.expand(len(streams), -1)
        weights = self.network(_relative(place, streams).mT).mT
        return self.family(weights, self.points, self.kernel, panels=self.panels)


class Discrete(Reader):
    """Weights on the readings: a network of the distance from the midpoint, and of the value.

    With `gaps`, the logarithm of the part of the stream that is nearest to a reading is added, so
    that the weights may become those of a Riemann sum.
    """

    def __init__(self, alpha: float, gaps: bool = False) -> None:
        super().__init__(1, 3, 1)
        self.alpha, self.gaps = alpha, gaps

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Weights."""
        scores = self.network(_relative(streams.positions, streams, streams.values).mT).mT
        if self.gaps:
            scores = scores + _gaps(streams.positions).log().unsqueeze(1)
        return sf.rpm(sf.scores.Finite(scores), self.alpha)

    def context(self, attention: sf.SparseDistribution, streams: Streams) -> Tensor:
        """Weighted means of the readings."""
        mean: Tensor = (attention.probs * streams.values.unsqueeze(1)).sum(-1)
        return mean


def _gaps(positions: Tensor) -> Tensor:
    """The part of the stream that is nearest to each reading (B, L)."""
    middles = (positions[:, 1:] + positions[:, :-1]) / 2
    ends = nn.functional.pad(middles, (1, 1))
    ends[:, -1] = 1
    return ends.diff(dim=-1)


class Convolutions(nn.Module):
    """The interpolated stream, and how far each place of it is from the question's midpoint."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, channels, size, padding="same"),
            nn.ReLU(),
            nn.Conv1d(channels, channels, size, padding="same"),
            nn.ReLU(),
            nn.Conv1d(channels, channels, size, padding="same"),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(channels, 1),
        )

    def forward(self, streams: Streams) -> Tensor:
        """Answers (B,)."""
        place = ((torch.arange(GRID) + 0.5) / GRID).expand(len(streams), -1)
        answer: Tensor = self.layers(_relative(place, streams, streams.grid))
        return answer.squeeze(-1)


class Recurrent(nn.Module):
    """Reading after reading, each with how far it is from the question's midpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cells = nn.GRU(3, size, batch_first=True)
        self.answer = nn.Linear(size, 1)

    def forward(self, streams: Streams) -> Tensor:
        """Answers (B,)."""
        _, last = self.cells(_relative(streams.positions, streams, streams.values).mT)
        answer: Tensor = self.answer(last[0])
        return answer.squeeze(-1)


def _relative(place: Tensor, streams: Streams, *more: Tensor) -> Tensor:
    """How far places (B, L) are from the midpoint, the width, and what else: (B, 2 or more, L)."""
    middle, width = streams.question.unsqueeze(-1).unbind(1)
    return torch.stack([10 * (place - middle), (10 * width - 2).expand_as(place), *more], 1)


def methods(few: bool = False) -> dict[str, Callable[[], nn.Module]]:
    """What makes each method, or the few that the tour has time for."""
    some: dict[str, Callable[[], nn.Module]] = {
        "one head, softmax": partial(Bumps, 1, 1.0),
        "one head, sparsemax": partial(Bumps, 1, 2.0),
        "one head, α = ∞": partial(Bumps, 1, math.inf),
        "4 heads, sparsemax": partial(Bumps, _HEADS, 2.0),
        "discrete softmax": partial(Discrete, 1.0),
        "discrete softmax, gaps": partial(Discrete, 1.0, gaps=True),
        "CNN": partial(Convolutions, 10, 7),
    }
    others: dict[str, Callable[[], nn.Module]] = {
        "one head, learned α": partial(Bumps, 1, None),
        "4 heads, softmax": partial(Bumps, _HEADS, 1.0),
        "kernel softmax": partial(KernelBumps, sf.KernelExp),
        "kernel sparsemax": partial(KernelBumps, sf.KernelDeformedExp),
        "discrete sparsemax": partial(Discrete, 2.0),
        "discrete 1.5-entmax": partial(Discrete, 1.5),
        "larger CNN": partial(Convolutions, 23, 7),
        "GRU": partial(Recurrent, 15),
    }
    return some if few else some | others
