"""Compare attention mechanisms on irregularly observed series: who is speaking?

The recordings of nine speakers have 12 channels of 7 to 29 frames. Laid end to end, the channels
make one series of 84 to 348 points, of which models see a random 30 %. All networks share an
encoder of the interpolated series. With attention, the encoder's features only choose where to
look, and the classifier sees one number for each head: the expectation of the value function,
fitted to the observations, under the head's density. `python -m examples.series` prints a table and
writes a picture to demo/series.png, which examples.gallery draws for docs/gallery.md.

References:
    Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
    App. C, Figure 1 and Table 2: the architecture and the five densities.
    Kudo, Toyama and Shimbo (1999), Multidimensional curve classification using passing-through
    regions. Pattern Recognition Letters 20. (JapaneseVowels)
"""

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from pyro.contrib.gp.kernels import RBF
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, softplus
from torch.nn.utils.rnn import pad_sequence

import sparsefam as sf

from .data import aeon_file, interpolate

CLASSES, SHARE, HEADS, RATE = 9, 0.3, 8, 1e-3
GRID = 128  # points at which the encoder sees a series, interpolated
FEATURES, KEYS, COMPONENTS = 256, 16, 8
SIGMA = 0.1  # a head's width before training
POINTS, LENGTHSCALE = 64, 0.03
BASIS = sf.bases.GaussianRBF.grid(64, 1.5 / 64)
PENALTY = 100.0  # of 0.1, 1, 10, 100 and 1000 the best for a left-out fifth of the points


class Series(NamedTuple):
    """Irregularly observed series, padded behind to the longest, and what is made of them."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    mask: Tensor  # (B, L), True where there is an observation
    labels: Tensor  # (B,)
    grid: Tensor  # (B, GRID), interpolated
    coefficients: Tensor  # (B, N, 1), of the value functions

    def rows(self, index: Tensor) -> "Series":
        """Return some of the series."""
        return Series(*(x[index] for x in self))


def load(part: str, generator: torch.Generator) -> Series:
    """Load the recordings, part TRAIN or TEST, and keep a random share of the points.

    Point i of n lies at position (i + 1/2)/n.
    """
    path = aeon_file(f"JapaneseVowels/JapaneseVowels_{part}.ts")
    positions, values, labels = [], [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#@":
            *channels, label = line.split(":")
            x = torch.tensor([float(x) for channel in channels for x in channel.split(",")])
            kept = torch.randperm(len(x), generator=generator)[: round(SHARE * len(x))]
            index = kept.sort().values
            positions.append((index + 0.5) / len(x))
            values.append(x[index])
            labels.append(int(label) - 1)
    mask = pad_sequence([torch.ones(len(x), dtype=torch.bool) for x in values], True)
    t, x = pad_sequence(positions, True), pad_sequence(values, True)
    function = sf.attention.RidgeRegression(BASIS, PENALTY).fit(t, x.unsqueeze(-1), mask)
    grid = interpolate(t.masked_fill(~mask, torch.inf), x, GRID)
    return Series(t, x, mask, torch.tensor(labels), grid, function.coefficients)


def encoder() -> nn.Sequential:
    """Map a series on the grid (B, 128) to features (B, 256)."""
    return nn.Sequential(
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


class NoAttention(nn.Sequential):
    """Classify the encoder's features: the baseline of every attention mechanism."""

    def __init__(self) -> None:
        super().__init__(encoder(), nn.Linear(FEATURES, CLASSES))

    def forward(self, series: Series) -> Tensor:
        """Return logits (B, classes)."""
        return super().forward(series.grid)


class Attention(nn.Module):
    """Classify the contexts of the heads; subclasses turn queries into densities."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder()
        self.query = nn.Linear(FEATURES, HEADS * outputs)
        self.classifier = nn.Linear(HEADS, CLASSES)

    def attend(self, series: Series) -> Any:
        """Return the attention of the heads, batch shape (B, heads)."""
        queries = self.query(self.encoder(series.grid)).unflatten(-1, (HEADS, -1))
        return self.density(queries, series)

    def density(self, queries: Tensor, series: Series) -> sf.SparseDistribution:
        """Turn queries (B, heads, outputs) into attention of batch shape (B, heads)."""
        raise NotImplementedError

    def context(self, attention: Any, series: Series) -> Tensor:
        """Return the expectation of the value function under each head's density (B, heads)."""
        value = sf.attention.ValueFunction(BASIS, series.coefficients)
        return value.expect(attention).squeeze(-1)

    def forward(self, series: Series) -> Tensor:
        """Return logits (B, classes)."""
        return self.classifier(self.context(self.attend(series), series))


class Discrete(Attention):
    """Weight the observed points by softmax (alpha 1) or sparsemax (alpha 2).

    The key of a point is its value and 16 smooth indicators of its position, which sum to one.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__(KEYS + 1)
        self.alpha = alpha
        self.centers = torch.linspace(0, 1, KEYS)
        score = -0.5 * ((self.centers - spread(HEADS).unsqueeze(-1)) / SIGMA).square()
        self.query.bias.data = pad(score, (0, 1)).reshape(-1)

    def density(self, queries: Tensor, series: Series) -> sf.SparseDistribution:
        """Return weights on the points."""
        distance = (series.positions.unsqueeze(-1) - self.centers) * (KEYS - 1)
        near = torch.softmax(-0.5 * distance.square(), -1)
        keys = torch.cat([near, series.values.unsqueeze(-1)], -1)
        scores = (queries @ keys.mT).masked_fill(~series.mask.unsqueeze(1), -math.inf)
        return sf.rpm(sf.scores.Finite(scores), self.alpha)

    def context(self, attention: Any, series: Series) -> Tensor:
        """Return the weighted means of the observed values."""
        return (attention.probs * series.values.unsqueeze(1)).sum(-1)


class OneBump(Attention):
    """Attend by a Gaussian (alpha 1) or a truncated parabola (alpha 2) for each head.

    The centre is the sigmoid of a linear function of the features, so that no head leaves the
    domain. Heads start spread over it.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__(2)
        self.alpha = alpha
        self.query.bias.data = bump_bias(spread(HEADS), SIGMA).reshape(-1)

    def density(self, queries: Tensor, series: Series) -> sf.SparseDistribution:
        """Return unimodal densities."""
        return sf.rpm(bump_score(queries), self.alpha)


class Mixture(Attention):
    """Attend by a mixture of eight Gaussians for each head, which start spread over the domain."""

    def __init__(self) -> None:
        super().__init__(3 * COMPONENTS)
        loc = spread(HEADS * COMPONENTS).reshape(COMPONENTS, HEADS).T
        self.query.bias.data = pad(bump_bias(loc, SIGMA / 2), (0, 1)).reshape(-1)

    def density(self, queries: Tensor, series: Series) -> sf.SparseDistribution:
        """Return mixtures."""
        queries = queries.unflatten(-1, (COMPONENTS, 3))
        return sf.Mixture(queries[..., 2], sf.rpm(bump_score(queries), 1.0))


class Kernel(Attention):
    """Attend by the softmax or sparsemax of a kernel expansion, whose weights are the queries."""

    def __init__(self, family: type[sf.KernelExp] | type[sf.KernelDeformedExp]) -> None:
        super().__init__(POINTS)
        self.family = family
        self.points = torch.linspace(0, 1, POINTS)
        self.kernel = RBF(1, lengthscale=torch.tensor(LENGTHSCALE)).requires_grad_(False)
        # The quadrature nodes depend on the kernel and the points only: share them.
        self.mesh = family(torch.zeros(POINTS), self.points, self.kernel).mesh
        # With the usual initial weights all heads would start close to the uniform density.
        self.query.weight.data *= 8

    def density(self, queries: Tensor, series: Series) -> sf.SparseDistribution:
        """Return densities of any shape."""
        return self.family(queries, self.points, self.kernel, mesh=self.mesh)


def spread(count: int) -> Tensor:
    """Return the centres of `count` equal parts of [0, 1]."""
    return (torch.arange(count) + 0.5) / count


def bump_bias(loc: Tensor, sigma: float) -> Tensor:
    """Return the queries (..., 2) that `bump_score` turns into this centre and width."""
    return torch.stack([loc.logit(), torch.full_like(loc, sigma).expm1().log()], -1)


def bump_score(queries: Tensor) -> sf.scores.Quadratic:
    """Turn queries (..., 2) into quadratic scores."""
    return sf.scores.Quadratic(queries[..., 0].sigmoid(), sigma=softplus(queries[..., 1]) + 1e-3)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "no attention": NoAttention,
    "discrete softmax": partial(Discrete, 1.0),
    "discrete sparsemax": partial(Discrete, 2.0),
    "Gaussian": partial(OneBump, 1.0),
    "truncated parabola": partial(OneBump, 2.0),
    "Gaussian mixture": Mixture,
    "kernel softmax": partial(Kernel, sf.KernelExp),
    "kernel sparsemax": partial(Kernel, sf.KernelDeformedExp),
}


def train(name: str, data: Series, epochs: int, seed: int) -> nn.Module:
    """Build a network and minimise the cross-entropy by Adam."""
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


def compare(seed: int, epochs: int) -> tuple[dict[str, Any], Series, dict[str, float]]:
    """Train and test all networks; the seed changes the points kept, initial weights and order.

    Returns:
        The networks, the test series, and the accuracy of each network in percent.
    """
    generator = torch.Generator().manual_seed(seed)
    data, test = load("TRAIN", generator), load("TEST", generator)
    models, right = {}, {}
    for name in NETWORKS:
        model = models[name] = train(name, data, epochs, seed)
        with torch.no_grad():
            hits = model(test).argmax(-1) == test.labels
        right[name] = 100 * hits.double().mean().item()
        print(f"seed {seed + 1}, {name}: {right[name]:.1f} %", file=sys.stderr)
    return models, test, right


@torch.no_grad()
def draw(model: Attention, test: Series) -> Figure:
    """Draw, like Figure 1 of Moreno et al., one head on recordings of three speakers."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.0), sharey=True, layout="constrained")
    grid = torch.linspace(0, 1, 801)
    for ax, speaker in zip(axes, (0, 3, 6), strict=True):
        some = test.rows((test.labels == speaker).nonzero().flatten()[:6])
        p = model.attend(some)[:, 0]
        ax.plot(grid, p.prob(grid.unsqueeze(-1)), linewidth=1.1)
        for i, intervals in enumerate(p.support.intervals):
            for low, high in intervals[~intervals[:, 0].isnan()].tolist():
                ax.hlines(-1.4 * (i + 1), low, high, f"C{i}", lw=2.4)
        ax.axhline(0, color="C7", linewidth=0.6)
        ax.set(title=f"speaker {speaker + 1}", xlabel="t")
    top = axes[0].get_ylim()[1]
    heights = [y for y in axes[0].get_yticks() if 0 <= y <= top]  # a density is not negative
    axes[0].set(ylabel="density, and supports below", yticks=heights)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Attention to irregularly observed series.")
    parser.add_argument("--seeds", type=int, default=5, help="repetitions, at least 2 (5)")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of a run (40)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = [compare(seed, options.epochs) for seed in range(options.seeds)]
    print(f"{'network':<20}{'parameters':>12}{'accuracy, %':>14}")
    for name, model in results[0][0].items():
        right = np.array([right[name] for *_, right in results])
        size = sum(x.numel() for x in model.parameters() if x.requires_grad)
        print(f"{name:<20}{size:>12,}{f'{right.mean():.1f} ± {right.std(ddof=1):.1f}':>14}")
    models, test, _ = results[0]
    options.out.mkdir(parents=True, exist_ok=True)
    draw(models["kernel sparsemax"], test).savefig(options.out / "series.png", dpi=160)


if __name__ == "__main__":
    main()
