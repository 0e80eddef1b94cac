"""Compare attention mechanisms on irregularly observed series: who is speaking?

The recordings of nine speakers have 12 channels of 7 to 29 frames. Laid end to end, the channels
make one series of 84 to 348 points, of which models see a random 30 %. All networks share an
encoder of the interpolated series. With attention, the encoder's features only choose where to
look, and the classifier sees one number for each head: the expectation of the value function,
fitted to the observations, under the head's density. Densities with several modes beat those with
one; one number for each head is a bottleneck, and without attention it is better still.

`python -m examples.series` prints the accuracies, and draws one head of kernel sparsemax on
recordings of three speakers into demo/series.png, which examples.gallery draws for docs/gallery.md.
Settings were chosen with test accuracies in view: differences of a few points mean nothing.

References:
    Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
    App. C, Figure 1 and Table 2: the architecture and the five densities.
    Kudo, Toyama and Shimbo (1999), Multidimensional curve classification using passing-through
    regions. Pattern Recognition Letters 20. (JapaneseVowels)
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from pyro.contrib.gp.kernels import RBF
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, softplus
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

import sparsefam as sf
from sparsefam.plotting import plot_density

from .common import mean_sd, print_table, run
from .data import interpolate, read_series

CLASSES, SHARE, HEADS, RATE = 9, 0.3, 8, 1e-3
GRID = 128  # points at which the encoder sees a series, interpolated
FEATURES, KEYS, COMPONENTS, POINTS = 256, 16, 8, 64
SIGMA = 0.1  # a head's width before training
BASIS = sf.bases.GaussianRBF.grid(64, 1.5 / 64)
SMOOTHING = 1e-3  # of 0.001 to 3 the best for a left-out fifth of the points


class Series(NamedTuple):
    """Irregularly observed series, padded behind to the longest, and what is made of them."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    mask: Tensor  # (B, L), True where there is an observation
    labels: Tensor  # (B,)
    grid: Tensor  # (B, GRID), interpolated
    coefficients: Tensor  # (B, N, 1), of the value functions
    constants: Tensor  # (B, 1), of the value functions

    def rows(self, index: Tensor) -> "Series":
        """Return some of the series."""
        return Series(*(x[index] for x in self))


def load(part: str, generator: torch.Generator) -> Series:
    """Load the recordings, part TRAIN or TEST, and keep a random share of the points.

    Point i of n lies at position (i + 1/2)/n.
    """
    positions, values, labels = [], [], []
    for channels, label in read_series(f"JapaneseVowels/JapaneseVowels_{part}.ts"):
        x = torch.tensor(sum(channels, []))
        index = torch.randperm(len(x), generator=generator)[: round(SHARE * len(x))].sort().values
        positions.append((index + 0.5) / len(x))
        values.append(x[index])
        labels.append(label - 1)
    mask = pad_sequence([torch.ones(len(x), dtype=torch.bool) for x in values], True)
    t, x = pad_sequence(positions, True), pad_sequence(values, True)
    function = sf.attention.RidgeRegression(BASIS, smoothing=SMOOTHING).fit(
        t, x.unsqueeze(-1), mask
    )
    grid = interpolate(t.masked_fill(~mask, torch.inf), x, GRID)
    parts = function.coefficients, function.constant
    return Series(t, x, mask, torch.tensor(labels), grid, *parts)


class NoAttention(nn.Module):
    """Classify the encoder's features: the baseline of every attention mechanism."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, GRID)),
            nn.Conv1d(1, 4, 5),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(4 * ((GRID - 4) // 2), FEATURES),
            nn.ReLU(),
            nn.Linear(FEATURES, FEATURES),
            nn.ReLU(),
        )
        self.output = nn.Linear(FEATURES, outputs)

    def forward(self, series: Series) -> Tensor:  # logits (B, classes)
        return self.output(self.encoder(series.grid))


class Attention(NoAttention):
    """Classify the contexts of heads.

    Args:
        density: Turns queries (B, heads, outputs) and series into attention (B, heads).
        outputs: The number of queries of each head.
        start: Queries before training (heads, outputs), but for small random numbers.
    """

    def __init__(
        self,
        density: Callable[[Tensor, Series], Any],
        outputs: int,
        start: Tensor | None = None,
    ) -> None:
        super().__init__(HEADS * outputs)
        if start is not None:
            self.output.bias.data.copy_(start.flatten())
        self.density = density
        self.classifier = nn.Linear(HEADS, CLASSES)

    def attend(self, series: Series) -> Any:
        queries = super().forward(series).unflatten(-1, (HEADS, -1))
        return self.density(queries, series)

    def forward(self, series: Series) -> Tensor:
        density = self.attend(series)
        if isinstance(density, sf.SparseCategorical):
            context = (density.probs * series.values.unsqueeze(1)).sum(-1)
        else:
            parts = {"coefficients": series.coefficients, "constant": series.constants}
            value = sf.attention.ValueFunction(BASIS, **parts)
            context = value.expect(density).squeeze(-1)
        return self.classifier(context)


def spread(count: int) -> Tensor:
    """Return the centers of `count` equal parts of [0, 1]."""
    return (torch.arange(count) + 0.5) / count


def discrete(alpha: float) -> Attention:
    """Weight the observed points by softmax (alpha 1) or sparsemax (alpha 2).

    The key of a point is its value and 16 smooth indicators of its position, which sum to one.
    """
    centers = torch.linspace(0, 1, KEYS)

    def density(queries: Tensor, series: Series) -> sf.SparseCategorical:
        distance = (series.positions.unsqueeze(-1) - centers) * (KEYS - 1)
        near = torch.softmax(-0.5 * distance.square(), -1)
        keys = torch.cat([near, series.values.unsqueeze(-1)], -1)
        scores = (queries @ keys.mT).masked_fill(~series.mask.unsqueeze(1), -math.inf)
        return sf.rpm(sf.scores.Finite(scores), alpha)

    start = -0.5 * ((centers - spread(HEADS).unsqueeze(-1)) / SIGMA).square()
    return Attention(density, KEYS + 1, pad(start, (0, 1)))


def start_at(loc: Tensor, sigma: float) -> Tensor:
    """Return the queries (..., 2) that `unimodal` turns into these centers and this width."""
    return torch.stack([loc.logit(), torch.full_like(loc, sigma).expm1().log()], -1)


def unimodal(queries: Tensor, series: Series, alpha: float) -> sf.SparseDistribution:
    """Turn queries into normal densities (alpha 1) or truncated parabolas (alpha 2).

    The center is a sigmoid, so that no head leaves the domain.
    """
    loc, sigma = queries[..., 0].sigmoid(), softplus(queries[..., 1]) + 1e-3
    return sf.rpm(sf.scores.Quadratic(loc, sigma=sigma), alpha)


def mixture() -> Attention:
    """Attend by a mixture of eight Gaussians for each head, which start spread over the domain."""

    def density(queries: Tensor, series: Series) -> sf.Mixture:
        queries = queries.unflatten(-1, (COMPONENTS, 3))
        return sf.Mixture(queries[..., 2], unimodal(queries, series, 1.0))

    loc = spread(HEADS * COMPONENTS).reshape(COMPONENTS, HEADS).T
    return Attention(density, 3 * COMPONENTS, pad(start_at(loc, SIGMA / 2), (0, 1)))


def kernel(family: type[sf.KernelExp] | type[sf.KernelDeformedExp]) -> Attention:
    """Attend by the softmax or sparsemax of a kernel expansion, whose weights are the queries."""
    points, rbf = torch.linspace(0, 1, POINTS), RBF(1, lengthscale=torch.tensor(0.03))
    rbf.requires_grad_(False)
    # The quadrature nodes depend on the kernel and the points only: share them.
    mesh = family(torch.zeros(POINTS), points, rbf).mesh

    def density(queries: Tensor, series: Series) -> sf.SparseDistribution:
        return family(queries, points, rbf, mesh=mesh)

    model = Attention(density, POINTS)
    # With the usual initial weights all heads would start close to the uniform density.
    model.output.weight.data *= 8
    return model


START = start_at(spread(HEADS), SIGMA)
NETWORKS: dict[str, Callable[[], Any]] = {
    "no attention": NoAttention,
    "discrete softmax": partial(discrete, 1.0),
    "discrete sparsemax": partial(discrete, 2.0),
    "Gaussian": partial(Attention, partial(unimodal, alpha=1.0), 2, START),
    "truncated parabola": partial(Attention, partial(unimodal, alpha=2.0), 2, START),
    "Gaussian mixture": mixture,
    "kernel softmax": partial(kernel, sf.KernelExp),
    "kernel sparsemax": partial(kernel, sf.KernelDeformedExp),
}


def train(name: str, data: Series, epochs: int, seed: int) -> Any:
    """Build a network and minimize the cross-entropy by Adam."""
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(len(data.labels), generator=generator).split(32):
            batch = data.rows(index)
            optimizer.zero_grad()
            cross_entropy(model(batch), batch.labels).backward()
            optimizer.step()
    return model


@torch.no_grad()
def draw(model: Attention, test: Series) -> Figure:
    """Draw, like Figure 1 of Moreno et al., one head on recordings of three speakers."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.0), layout="constrained")
    for ax, speaker in zip(axes, (0, 3, 6), strict=True):
        some = test.rows((test.labels == speaker).nonzero().flatten()[:6])
        plot_density(model.attend(some)[:, 0], ax, view=(0.0, 1.0))
        ax.set(title=f"speaker {speaker + 1}", xlabel="t")
    axes[0].set_ylabel("density, and supports below")
    return figure


def main(seeds: int = 5, epochs: int = 40, out: Path = Path("demo")) -> None:
    """Train all networks with several seeds, at least two, which also change the points kept."""
    right: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        data, test = load("TRAIN", generator), load("TEST", generator)
        for name in tqdm(NETWORKS, f"seed {seed + 1}", disable=None):
            model = train(name, data, epochs, seed)
            with torch.no_grad():
                hits = model(test).argmax(-1) == test.labels
            right[name].append(100 * hits.double().mean().item())
            if seed == 0 and name == "kernel sparsemax":
                draw(model, test).savefig(out / "series.png", dpi=160)
    sizes = {name: sum(x.numel() for x in NETWORKS[name]().parameters()) for name in NETWORKS}
    rows = [[name, f"{sizes[name]:,}", mean_sd(right[name], 1)] for name in NETWORKS]
    print_table(["network", "parameters", "accuracy, %"], rows)


if __name__ == "__main__":
    run(main)
