"""Classifiers of irregular series, from times, values and padding as in `irregular` to logits.

All have 32 channels, and end in the same way: means of the channels over equal parts of the time,
and a linear layer. Encoders differ by what mixes their frames, as given by `encoder`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefam.attention import (
    ContinuousAttention,
    Dimensions,
    LocalScore,
    Observed,
    Readout,
    RidgeRegression,
)
from sparsefam.bases import Basis, GaussianRBF

CHANNELS, PARTS, DROPOUT = 32, 4, 0.2
# Heads around the query and their channels; heads at places, which have as many channels.
HEADS, HEAD_DIM, PLACES = 16, 4, 8
FUNCTIONS, ALPHA, LEAST = 64, 2.0, 1e-3
# Of each of the two sizes: how far local heads read, as a share of the time, and how wide the
# Gaussian functions are that heads at places read.
REACHES, WIDTHS = (0.06, 0.12), (0.02, 0.04)
CYCLES = 1.0, 2.0, 4.0, 8.0  # of the biases of the transformer

# A module that takes x (B, L, CHANNELS), times and padding, and returns what is added to x.
Mixer = Callable[[], nn.Module]


class Head(nn.Module):
    """Means over equal parts of the time, and a linear layer: the end of every network."""

    def __init__(self, classes: int, channels: int = CHANNELS, extra: int = 0) -> None:
        super().__init__()
        self.readout = Readout(PARTS)
        self.out = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(PARTS * channels + extra, classes))

    def forward(
        self, x: Tensor, times: Tensor | None = None, padding: Tensor | None = None, *extra: Tensor
    ) -> Tensor:
        """Return logits of frames (B, L, C) at their times; without times, of a grid."""
        if times is None:
            means = functional.adaptive_avg_pool1d(x.mT, PARTS).flatten(1)
        else:
            means = self.readout(times, x, padding)
        logits: Tensor = self.out(torch.cat([means, *extra], -1))
        return logits


class Encoder(nn.Module):
    """Two blocks of a layer that mixes frames, which may be missing, and a dense one."""

    def __init__(self, mixer: Mixer | None, channels: int, classes: int, hidden: int = 2) -> None:
        super().__init__()
        d, layers = CHANNELS, 2 if mixer else 0
        self.embed = nn.Linear(channels + 1, d)
        self.mixers = nn.ModuleList([mixer() for _ in range(layers)] if mixer else [])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 + layers)])
        self.dense = nn.ModuleList([dense(d, hidden * d) for _ in range(2)])
        self.drop, self.head = nn.Dropout(0.1), Head(classes)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        x = self.embed(torch.cat([times[..., None], values], -1))
        for i, layer in enumerate(self.dense):
            if len(self.mixers):
                x = x + self.drop(self.mixers[i](self.norms[2 + i](x), times, padding))
            x = x + self.drop(layer(self.norms[i](x)))
        logits: Tensor = self.head(functional.gelu(x), times, padding)
        return logits


def dense(channels: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels))


class Continuous(nn.Module):
    """Continuous self-attention, by default to the functions that the layer has by default."""

    def __init__(self, score: Any, basis: Basis | None = None, heads: int = HEADS) -> None:
        super().__init__()
        options: dict[str, Any] = {"head_dim": HEAD_DIM, "layer_scale": 1.0, "batch_first": True}
        self.layer = ContinuousAttention(
            CHANNELS, heads, RidgeRegression(basis), ALPHA, score, **options
        )

    def forward(self, x: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        context: Tensor = self.layer(
            x, x, x, positions=times, key_padding_mask=padding, need_weights=False
        )[0]
        return context


def local_and_places(reach: float) -> Any:
    """Return a score half of whose heads are around the query, and half at places."""
    return [(LocalScore(reach=reach), HEADS - PLACES), ("quadratic", PLACES)]


class DeformableScore(LocalScore):
    """Local heads whose offsets and widths depend on the query, too."""

    def prepare(self, dimensions: Dimensions) -> None:
        super().prepare(dimensions)
        self.weight = nn.Parameter(torch.zeros(len(self.bias), dimensions.embed_dim))

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        return super().forward(query) + functional.linear(query, self.weight)

    def _mode(self, observed: Observed) -> Any:
        # Not those of one query, moved.
        return super()._mode(observed)._replace(shifts=None)


def gaussians(size: int) -> GaussianRBF:
    """Return the functions of one of two widths that heads at places read."""
    return GaussianRBF.grid(FUNCTIONS, WIDTHS[size])


class Discrete(nn.Module):
    """The self-attention of torch."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(CHANNELS, heads, batch_first=True)

    def forward(self, x: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        mask = padding if padding.any() else None  # without one it is faster
        context: Tensor = self.layer(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return context


class Taps(nn.Module):
    """Offsets and widths of static local heads, as `LocalScore` has them, and projected values."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        self.most = 2 * reach  # of offsets and widths
        shares = (torch.arange(HEADS) + 0.5) / HEADS
        self.offsets = nn.Parameter(torch.atanh(shares - 0.5))
        share = (reach / HEADS - LEAST) / (self.most - LEAST)
        self.widths = nn.Parameter(torch.full((HEADS,), math.log(share / (1 - share))))
        inner = HEADS * HEAD_DIM
        self.v_proj, self.out_proj = nn.Linear(CHANNELS, inner), nn.Linear(inner, CHANNELS)
        self.scale = nn.Parameter(torch.ones(CHANNELS))

    def taps(self) -> tuple[Tensor, Tensor]:
        """Return offsets and standard deviations (heads,)."""
        widths = LEAST + (self.most - LEAST) * self.widths.sigmoid()
        return self.most * self.offsets.tanh(), widths

    def forward(self, x: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        values = self.v_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (B, heads, L, E)
        contexts = self.contexts(x, values, times, padding)
        return self.scale * self.out_proj(contexts.transpose(1, 2).flatten(2))


class DiscreteTwin(Taps):
    """Softmax of -(t_q + offset - t)^2/(2 width^2) over the observations at t."""

    def contexts(self, x: Tensor, values: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        queries, keys = gaussian_products(times, *self.taps())
        return attend(queries, keys, values, padding)


def gaussian_products(times: Tensor, offsets: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys (B, heads, L, 4) with inner products -(t_q + offset - t)^2/2 width^2.

    They lack what is the same for all keys. Two of the four numbers are 0.
    """
    t = (times - 0.5)[:, None]  # from the middle of the domain, for the sake of rounding
    center, precision = t + offsets[:, None], widths[:, None].square().reciprocal()
    queries = torch.stack([precision * center, (-0.5 * precision).expand_as(center)], -1)
    keys = torch.stack([t, t * t], -1).expand(-1, len(offsets), -1, -1)
    return functional.pad(queries, (0, 2)), functional.pad(keys, (0, 2))


class LinearTwin(Taps):
    """The linear interpolant of the observations at t_q + offset."""

    def contexts(self, x: Tensor, values: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        center = (times[:, None] + self.taps()[0][:, None]).flatten(1)  # (B, heads * L)
        left, right, share = neighbors(times, padding, center)
        left, right, share = (x.reshape(len(x), HEADS, -1, 1) for x in (left, right, share))
        first, second = (values.gather(2, x.expand_as(values)) for x in (left, right))
        return torch.lerp(first, second, share)


def neighbors(times: Tensor, padding: Tensor, where: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers of the observations left and right of places (B, Q), and the share.

    The share of the right one is 0 before the first observation, and 1 after the last.
    """
    observed = times.masked_fill(padding, torch.inf).contiguous()
    last = (~padding).sum(-1, keepdim=True) - 1
    right = torch.minimum(torch.searchsorted(observed, where.detach().contiguous()), last)
    left = (right - 1).clamp(min=0)
    start, end = times.gather(-1, left), times.gather(-1, right)
    share = ((where - start) / (end - start).clamp(min=1e-6)).clamp(0, 1)
    return left, right, torch.where(end > start, share, 0.0)


def attend(queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor) -> Tensor:
    """Return softmax attention with scores that are inner products, without a factor."""
    bias = None
    if padding.any():  # without one it is faster
        bias = torch.zeros_like(padding, dtype=queries.dtype).masked_fill(padding, -torch.inf)
        bias = bias[:, None, None]
    return functional.scaled_dot_product_attention(queries, keys, values, bias, scale=1.0)


class Relative(Taps):
    """Softmax attention by content, with a learned bias of relative time for each head.

    The bias is that of the discrete twin and a Fourier series, which starts at 0. Both are inner
    products of functions of either time, as cos w (t - s) = cos wt cos ws + sin wt sin ws.
    """

    waves: Tensor

    def __init__(self, reach: float) -> None:
        super().__init__(reach)
        self.projections = nn.Linear(CHANNELS, 2 * CHANNELS)
        self.register_buffer("waves", 2 * math.pi * torch.tensor(CYCLES))
        self.cosines = nn.Parameter(torch.zeros(HEADS, 1, len(CYCLES)))
        self.sines = nn.Parameter(torch.zeros(HEADS, 1, len(CYCLES)))

    def contexts(self, x: Tensor, values: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        split = self.projections(x).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        content = split[0] / math.sqrt(split.shape[-1]), split[1]
        near = gaussian_products(times, *self.taps())
        phase = times[:, None, :, None] * self.waves
        cos, sin = phase.cos(), phase.sin()
        waves = self.cosines * cos + self.sines * sin, self.cosines * sin - self.sines * cos
        far = torch.cat(waves, -1), torch.cat([cos, sin], -1).expand(-1, HEADS, -1, -1)
        queries, keys = (torch.cat(x, -1) for x in zip(content, near, far, strict=True))
        size = values.shape[-1]
        # Of one size, as fast kernels want them.
        values = functional.pad(values, (0, keys.shape[-1] - size))
        return attend(queries, keys, values, padding)[..., :size]


class LinearRecurrence(torch.autograd.Function):
    """States h_l = a_l h_(l-1) + x_l of complex numbers (L, ...), from h_0 = x_0."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        states = x.clone()
        rows, factors = states.unbind(), a.unbind()
        for i in range(1, len(rows)):
            rows[i].addcmul_(factors[i], rows[i - 1])
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, states = ctx.saved_tensors
        total = grad.clone()
        rows, factors = total.unbind(), a.conj().resolve_conj().unbind()
        for i in range(len(rows) - 1, 0, -1):
            rows[i - 1].addcmul_(factors[i], rows[i])
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        return total * before.conj(), total


class LinearRecurrentUnit(nn.Module):
    """Diagonal linear recurrences in both directions, whose steps are the gaps between frames.

    As the linear recurrent unit of Orvieto et al. (2023), h' = exp(-(decay + i frequency) gap) h
    + (1 - exp(-2 decay gap))^(1/2) B x, with the gaps as steps as in S5 of Smith et al. (2023).
    """

    def __init__(self, cycles: float, size: int = 16) -> None:
        super().__init__()
        d = CHANNELS
        spread = torch.rand(2, size)
        self.decay = nn.Parameter(math.log(2.0) + spread * math.log(100.0))  # logarithms
        self.frequency = nn.Parameter(2 * math.pi * cycles * torch.rand(2, size))
        self.enter, self.leave = nn.Linear(d, 4 * size), nn.Linear(4 * size, d)
        self.skip = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor, times: Tensor, padding: Tensor) -> Tensor:
        real, imaginary = self.enter(x).unflatten(-1, (2, 2, -1)).unbind(2)
        inputs = torch.complex(real, imaginary).masked_fill(padding[..., None, None], 0)
        gaps = times.diff(dim=1).masked_fill(padding[:, 1:], 0).clamp(min=0)
        zero = torch.zeros_like(gaps[:, :1])
        # (B, L, 2, size), and the second direction from the end.
        steps = torch.stack([torch.cat([zero, gaps], 1), torch.cat([zero, gaps.flip(1)], 1)], -1)
        decay = self.decay.exp()
        steps = steps[..., None]
        factors = torch.exp(torch.complex(-decay * steps, -self.frequency * steps))
        norms = (1 - torch.exp(-2 * decay * steps.clamp(min=1e-4))).sqrt()
        inputs = torch.stack([inputs[:, :, 0], inputs[:, :, 1].flip(1)], 2) * norms
        states = LinearRecurrence.apply(factors.transpose(0, 1), inputs.transpose(0, 1))
        states = states.transpose(0, 1)
        states = torch.stack([states[:, :, 0], states[:, :, 1].flip(1)], 2)
        return self.leave(torch.view_as_real(states).flatten(2)) + self.skip * x
