"""Classifiers of irregular series, from times, values and padding as in `irregular` to logits.

The two with attention take a function that makes a layer, or None.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from examples.data import interpolate
from sparsefam.attention import ContinuousAttention

Attention = Callable[[], nn.Module]
CHANNELS, QUERIES, GRID = 32, 4, 128


def attend(layer: nn.Module, query: Tensor, x: Tensor, times: Tensor, padding: Tensor) -> Tensor:
    options: dict[str, Any] = {"key_padding_mask": padding, "need_weights": False}
    if isinstance(layer, ContinuousAttention):
        options["positions"] = times
    context: Tensor = layer(query, x, x, **options)[0]
    return context


def with_times(times: Tensor, values: Tensor) -> Tensor:
    return torch.cat([times[..., None], values], -1)


def mean(x: Tensor, padding: Tensor) -> Tensor:
    """Average (B, L, C) over the frames that were observed."""
    weights = (~padding).to(x).unsqueeze(-1)
    return (x * weights).sum(1) / weights.sum(1)


class Encoder(nn.Module):
    """Two blocks, whose attention may be missing, and the mean of the frames."""

    def __init__(self, attention: Attention | None, channels: int, classes: int) -> None:
        super().__init__()
        d = CHANNELS
        self.embed = nn.Linear(channels + 1, d)
        layers = 2 if attention else 0
        self.attention = nn.ModuleList([attention() for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 + layers)])
        self.dense = nn.ModuleList(
            [nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(2)]
        )
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(d, classes)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        x = self.embed(with_times(times, values))
        for i, dense in enumerate(self.dense):
            if len(self.attention):
                y = self.norms[2 + i](x)
                x = x + self.drop(attend(self.attention[i], y, y, times, padding))
            x = x + self.drop(dense(self.norms[i](x)))
        logits: Tensor = self.out(mean(x, padding))
        return logits


class Pooling(nn.Module):
    """Frames are embedded one by one, and pooled by learned queries or by their mean."""

    def __init__(self, attention: Attention | None, channels: int, classes: int) -> None:
        super().__init__()
        d = CHANNELS
        self.embed = nn.Sequential(nn.Linear(channels + 1, d), nn.ReLU(), nn.Linear(d, d))
        self.attention = attention() if attention else None
        self.queries = nn.Parameter(0.5 * torch.randn(1, QUERIES, d))
        self.out = nn.Sequential(
            nn.LayerNorm(QUERIES * d),
            nn.Linear(QUERIES * d, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, classes),
        )

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        x = self.embed(with_times(times, values))
        if self.attention is None:
            pooled = mean(x, padding)[:, None].expand(-1, QUERIES, -1)
        else:
            queries = self.queries.expand(len(x), -1, -1)
            pooled = attend(self.attention, queries, x, times, padding)
        logits: Tensor = self.out(pooled.flatten(1))
        return logits


class Convolutions(nn.Module):
    """Values interpolated on a grid, three convolutions, and means over the grid."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        sizes = (channels, CHANNELS, CHANNELS, CHANNELS)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(a, b, 5, 2, 2), nn.BatchNorm1d(b), nn.ReLU())
                for a, b in zip(sizes[:-1], sizes[1:], strict=True)
            ),
            nn.AdaptiveAvgPool1d(QUERIES),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(QUERIES * CHANNELS, classes),
        )

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        channels = values.mT.flatten(0, 1)  # (B C, L)
        observed = times.masked_fill(padding, torch.inf).repeat_interleave(values.shape[-1], 0)
        grid = interpolate(observed, channels, GRID).unflatten(0, (len(values), -1))
        logits: Tensor = self.layers(grid)
        return logits


class Recurrent(nn.Module):
    """A GRU that reads values, times and the gaps before them; its last and its mean state."""

    def __init__(self, channels: int, classes: int, size: int = 48) -> None:
        super().__init__()
        self.gru = nn.GRU(channels + 2, size, batch_first=True)
        self.out = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * size, classes))

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        gaps = times.diff(dim=-1, prepend=torch.zeros_like(times[:, :1]))
        states = self.gru(with_times(times, with_times(gaps, values)))[0]
        end = (~padding).sum(-1) - 1
        last = states[torch.arange(len(end)), end]
        logits: Tensor = self.out(torch.cat([last, mean(states, padding)], -1))
        return logits
