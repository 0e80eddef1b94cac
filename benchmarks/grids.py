"""Classifiers that read an irregular series on a grid, and one that reads it frame by frame."""

import math

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from .classifiers import CHANNELS, Head, neighbors
from .irregular import Part

FINE, COARSE, REFERENCES, HEADS = 512, 128, 64, 8


def middles(size: int) -> Tensor:
    """Return the middles (size,) of equal parts of (0, 1)."""
    return (torch.arange(size) + 0.5) / size


def on_grid(times: Tensor, values: Tensor, padding: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the linear interpolant (B, size, C), and the distance of the nearest observation."""
    grid = middles(size).expand(len(times), size)
    left, right, share = neighbors(times, padding, grid)
    first, second = (
        values.gather(1, x[..., None].expand(-1, -1, values.shape[-1])) for x in (left, right)
    )
    distance = torch.minimum(
        (grid - times.gather(-1, left)).abs(), (grid - times.gather(-1, right)).abs()
    )
    return torch.lerp(first, second, share[..., None]), distance[..., None]


def convolutions(channels: int, kernel: int, layers: int = 3) -> nn.Module:
    """Return convolutions of (B, channels, L), each of which halves the length."""
    sizes = (channels, *[CHANNELS] * layers)
    return nn.Sequential(
        *(
            nn.Sequential(nn.Conv1d(a, b, kernel, 2, kernel // 2), nn.BatchNorm1d(b), nn.ReLU())
            for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
    )


class Convolutions(nn.Module):
    """Convolutions of the interpolated values, and of distances to the nearest observation."""

    def __init__(
        self, channels: int, classes: int, kernel: int, size: int = COARSE, gaps: bool = False
    ) -> None:
        super().__init__()
        self.size, self.gaps = size, gaps
        layers = 3 if size == COARSE else 4
        self.layers, self.head = convolutions(channels + gaps, kernel, layers), Head(classes)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        found, distance = on_grid(times, values, padding, self.size)
        if self.gaps:
            found = torch.cat([found, (20 * distance).clamp(max=3)], -1)
        logits: Tensor = self.head(self.layers(found.mT).mT)
        return logits


class SetConvolutions(nn.Module):
    """Convolutions of Gaussian smooths and of the density of observations, as ConvCNP has them.

    References:
        Gordon et al. (2020), Convolutional Conditional Neural Processes. arXiv:1910.13556
    """

    def __init__(self, channels: int, classes: int, kernel: int) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.tensor(math.log(2 / COARSE)))
        self.layers, self.head = convolutions(channels + 1, kernel), Head(classes)

    def smooth(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        """Return weighted means, and the density over 1 plus itself, (B, COARSE, C + 1)."""
        distance = (middles(COARSE)[:, None] - times[:, None]) / self.length.exp()
        weights = torch.exp(-0.5 * distance.square()) * ~padding[:, None]
        density = weights.sum(-1, keepdim=True)
        return torch.cat([weights @ values / (density + 1e-5), density / (1 + density)], -1)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.smooth(times, values, padding).mT).mT)
        return logits


class TimeAttention(nn.Module):
    """Attention from reference times to those of frames by learned embeddings, and a GRU: mTAND.

    Frequencies start evenly on a logarithmic scale up to `cycles`, and projections of queries and
    keys start equal, so that nearer frames have more weight from the first step on.

    References:
        Shukla and Marlin (2021), Multi-Time Attention Networks. arXiv:2101.10318
    """

    def __init__(self, channels: int, classes: int, cycles: float, size: int = 48) -> None:
        super().__init__()
        d = CHANNELS
        waves = torch.logspace(-1, math.log10(cycles), d - 1)
        self.waves = nn.Parameter(2 * math.pi * waves)
        self.phases = nn.Parameter(2 * math.pi * torch.rand(d - 1))
        self.line = nn.Linear(1, 1)
        self.q_proj, self.k_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.k_proj.load_state_dict(self.q_proj.state_dict())
        self.enter = nn.Linear(HEADS * channels, d)
        self.gru = nn.GRU(d, size, batch_first=True)
        self.head = Head(classes, size)

    def embed(self, times: Tensor) -> Tensor:
        """Return embeddings (..., CHANNELS) of times."""
        times = times[..., None]
        return torch.cat([self.line(times), torch.sin(times * self.waves + self.phases)], -1)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        queries = self.q_proj(self.embed(middles(REFERENCES))).unflatten(-1, (HEADS, -1))
        keys = self.k_proj(self.embed(times)).unflatten(-1, (HEADS, -1))
        scores = torch.einsum("qhe,blhe->bhql", queries, keys) / math.sqrt(keys.shape[-1])
        weights = scores.masked_fill(padding[:, None, None], -torch.inf).softmax(-1)
        read = torch.einsum("bhql,blc->bqhc", weights, values).flatten(2)
        logits: Tensor = self.head(self.gru(self.enter(read))[0])
        return logits


class DecayingGRU(nn.Module):
    """A GRU whose inputs and states decay while nothing is observed: GRU-D.

    References:
        Che et al. (2018), Recurrent Neural Networks for Multivariate Time Series with Missing
        Values. arXiv:1606.01865
    """

    def __init__(self, channels: int, classes: int, dropout: float, size: int = 64) -> None:
        super().__init__()
        self.input_decay = nn.Parameter(torch.zeros(channels))
        self.state_decay = nn.Linear(channels, size)
        self.cell = nn.GRUCell(2 * channels + 1, size)
        self.drop = nn.Dropout(dropout)
        self.head = Head(classes, size, size)

    def forward(
        self, times: Tensor, values: Tensor, padding: Tensor, seen: Tensor | None = None
    ) -> Tensor:
        """Return logits; `seen` (B, L, C) is true where a channel was observed, all if None."""
        seen = torch.ones_like(values, dtype=torch.bool) if seen is None else seen
        inputs, gaps = self.inputs(times, values, seen)
        decays = torch.exp(-functional.relu(self.state_decay(gaps))).unbind(1)
        state = torch.zeros_like(decays[0])
        states = []
        weights = self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh
        for x, decay in zip(inputs.unbind(1), decays, strict=True):
            state = torch.gru_cell(x, decay * state, *weights)
            states.append(state)
        x = self.drop(torch.stack(states, 1))
        end = (~padding).sum(-1) - 1
        logits: Tensor = self.head(x, times, padding, x[torch.arange(len(x)), end])
        return logits

    def inputs(self, times: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the cell, and the times since channels were last observed before."""
        length = times.shape[1]
        number = torch.arange(length)[:, None].expand_as(values)
        last = torch.where(seen, number, -1).cummax(1).values
        before = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], 1)
        found = before >= 0
        start = times[..., None].expand_as(values).gather(1, before.clamp(min=0))
        gaps = 20 * torch.where(found, times[..., None] - start, times[..., None])
        gaps = gaps.clamp(min=0)
        old = torch.where(found, values.gather(1, before.clamp(min=0)), 0.0)
        decayed = torch.exp(-functional.relu(self.input_decay * gaps)) * old
        filled = torch.where(seen, values, decayed)
        return torch.cat([filled, seen.to(values), times[..., None]], -1), gaps


class RandomKernels:
    """Random convolutions of interpolated values, and a ridge classifier: no training by steps.

    References:
        Dempster et al. (2020), ROCKET. arXiv:1910.13051
    """

    def __init__(self, kernels: int, size: int, seed: int) -> None:
        self.size = size
        generator = np.random.default_rng(seed)
        counts = generator.multinomial(kernels, [1 / 3] * 3)
        self.groups = []
        for length, count in zip((7, 9, 11), counts, strict=True):
            most = math.log2((size - 1) / (length - 1))
            dilations = (2 ** generator.uniform(0, most, count)).astype(int)
            for dilation in np.unique(dilations):
                self.groups.append((length, int(dilation), int((dilations == dilation).sum())))
        self._generator = torch.Generator().manual_seed(seed)
        self._kernels: list[tuple[Tensor, Tensor]] = []
        self.kernels = kernels

    def fit(self, part: Part) -> "RandomKernels":
        """Choose the ridge penalty by cross-validation."""
        channels = part[1].shape[-1]
        for length, _, count in self.groups:
            weights = torch.randn(count, channels, length, generator=self._generator)
            used = torch.rand(count, channels, 1, generator=self._generator).argsort(1)
            most = torch.rand(count, 1, 1, generator=self._generator) * math.log2(channels + 1)
            weights = weights - weights.mean(-1, keepdim=True)
            biases = 2 * torch.rand(count, generator=self._generator) - 1
            self._kernels.append((weights * (used < 2**most), biases))
        ridge = RidgeClassifierCV(np.logspace(-3, 3, 10))
        self._model = make_pipeline(StandardScaler(), ridge)
        self._model.fit(self.features(part), part[3].numpy())
        return self

    def features(self, part: Part) -> np.ndarray:
        """Return the shares of positive numbers, and the maxima, of all convolutions."""
        pieces = zip(*(x.split(100) for x in part[:3]), strict=True)
        x = torch.cat([on_grid(*piece, self.size)[0] for piece in pieces])
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)
        found = []
        for (length, dilation, _), (weights, biases) in zip(
            self.groups, self._kernels, strict=True
        ):
            padding = (length - 1) * dilation // 2
            y = functional.conv1d(x.mT, weights, biases, padding=padding, dilation=dilation)
            found += [(y > 0).float().mean(-1), y.amax(-1)]
        return torch.cat(found, -1).numpy()

    def predict(self, part: Part) -> Tensor:
        """Return the classes of series."""
        return torch.as_tensor(self._model.predict(self.features(part)))
