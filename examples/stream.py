"""Answer questions about a stream: what was the mean blood pressure from a to b?

A stream is 512 consecutive samples, 2.8 heartbeats, of which 96 noisy readings at random times are
left. In a block outside the interval asked for (gray in the picture) all readings are saturated.
Attention learns which interval to read: softmax has tails into the block, sparsemax ends sooner,
and at α = ∞ the density is uniform on an interval. The task is made for attention over intervals.

The table has root mean squared errors where readings are placed as in training or otherwise.

`python -m examples.stream` prints the first table of docs/tutorials/stream.md and draws its
picture, demo/stream.png.
"""

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import sem, ttest_rel
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pad
from tqdm import tqdm

import sparsefam as sf
from sparsefam.plotting import plot_density

from .common import mean_sd, print_table, run
from .data import interpolate, load_pressure

SAMPLES, READINGS, NOISE = 512, 96, 0.1
SHORTEST, LONGEST = 0.05, 0.35  # intervals asked for
BLOCK, SATURATED = 0.15, 4.0  # length of the saturated block, and its readings
SAMPLINGS = ("as trained", "half", "gap", "bursts")  # how readings are placed
BASIS = sf.bases.GaussianRBF.grid(64, 1.5 / 64)
# Of 1, 3, 10, 30 and 100 the one whose functions have the best means over intervals in validation.
PENALTY = 10.0
BATCH = 128


class Streams(NamedTuple):
    """Streams with a question each."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    question: Tensor  # (B, 2), midpoint and width of the interval
    answers: Tensor  # (B,), the mean over the interval
    block: Tensor  # (B, 2), ends of the saturated block
    whole: Tensor  # (B, samples), without noise and saturation
    grid: Tensor  # (B, 128), readings interpolated
    coefficients: Tensor  # (B, N, 1), the value function

    def rows(self, index: Tensor) -> "Streams":
        """Return some of the streams."""
        return Streams(*(x[index] for x in self))

    def value(self) -> sf.attention.ValueFunction:
        """Return the functions that are fitted to the readings."""
        return sf.attention.ValueFunction(BASIS, self.coefficients)


def read_streams(part: Tensor, count: int, sampling: str, generator: torch.Generator) -> Streams:
    """Draw streams from a part of the recording, with questions and readings."""
    rand = partial(torch.rand, generator=generator)
    start = torch.randint(0, len(part) - SAMPLES + 1, (count, 1), generator=generator)
    whole = part[start + torch.arange(SAMPLES)]
    times = (torch.arange(SAMPLES) + 0.5) / SAMPLES
    width = SHORTEST + (LONGEST - SHORTEST) * rand(count, 1)
    middle = width / 2 + (1 - width) * rand(count, 1)
    asked = (times - middle).abs() <= width / 2
    answers = (whole * asked).sum(-1) / asked.sum(-1)
    # A saturated block that does not overlap the interval.
    begin = torch.arange(SAMPLES) / SAMPLES
    apart = (begin + BLOCK <= middle - width / 2) | (begin >= middle + width / 2)
    possible = (apart & (begin + BLOCK <= 1)).float()
    begin = begin[torch.multinomial(possible, 1, generator=generator)]
    block = torch.cat([begin, begin + BLOCK], -1)
    odds = torch.ones_like(whole)
    if sampling == "gap":
        gap = 0.85 * rand(count, 1)
        odds = ((times < gap) | (times > gap + 0.15)).float()
    if sampling == "bursts":
        distance = (times.unsqueeze(-1) - rand(count, 1, 12)) / 0.01
        odds = (-0.5 * distance.square()).exp().sum(-1) + 1e-9
    readings = READINGS // 2 if sampling == "half" else READINGS
    index = torch.multinomial(odds, readings, generator=generator).sort(-1).values
    positions = times[index]
    values = whole.gather(1, index) + NOISE * torch.randn(index.shape, generator=generator)
    values = torch.where((positions - block.mean(-1, True)).abs() < BLOCK / 2, SATURATED, values)
    function = sf.attention.RidgeRegression(BASIS, PENALTY).fit(positions, values.unsqueeze(-1))
    question, grid = torch.cat([middle, width], -1), interpolate(positions, values, 128)
    return Streams(positions, values, question, answers, block, whole, grid, function.coefficients)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Build the small network that turns a question into attention."""
    hidden = [nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(16, outputs))


class Continuous(nn.Module):
    """Read the value function through a unimodal density; alpha = inf is uniform on an interval."""

    widest = 0.3  # standard deviation

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha, self.network = alpha, network(2, 2)
        start = torch.tensor([0.5, 0.1 / self.widest])  # at the midpoint, 0.1 wide
        self.network[-1].bias.data = start.logit()

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Return where to look, batch shape (B, 1)."""
        middle, width = streams.question.split(1, -1)
        asked = torch.cat([2 * middle - 1, 10 * width - 2], -1)
        offset, sigma = self.network(asked).split(1, -1)
        mean, sigma = middle + self.widest * offset.tanh(), self.widest * sigma.sigmoid() + 1e-3
        if self.alpha == 1:
            return sf.Normal(mean, sigma)
        return sf.BetaGaussian.from_moments(mean, sigma.square(), self.alpha)

    def forward(self, streams: Streams) -> Tensor:
        return streams.value().expect(self.attend(streams)).flatten()


def relative(place: Tensor, values: Tensor, question: Tensor) -> Tensor:
    """Describe places (B, L) by distance from the midpoint, the width, and a value: (B, L, 3)."""
    middle, width = question.unsqueeze(-1).unbind(1)
    return torch.stack([10 * (place - middle), (10 * width - 2).expand_as(place), values], -1)


class Discrete(nn.Module):
    """Weigh the readings by a network of their distance from the midpoint and their value.

    With `gaps`, the log of the time nearest to each reading is added to the scores, so that the
    weights can become those of a Riemann sum.
    """

    def __init__(self, gaps: bool = False) -> None:
        super().__init__()
        self.gaps, self.network = gaps, network(3, 1)

    def forward(self, streams: Streams) -> Tensor:
        t = streams.positions
        scores = self.network(relative(t, streams.values, streams.question)).squeeze(-1)
        if self.gaps:
            ends = pad((t[:, 1:] + t[:, :-1]) / 2, (1, 1))
            ends[:, -1] = 1
            scores = scores + ends.diff().log()
        return (sf.rpm(sf.scores.Finite(scores), 1.0).probs * streams.values).sum(-1)


class Convolutions(nn.Sequential):
    """Convolve the interpolated stream and the distance from the midpoint."""

    def __init__(self, channels: int = 10) -> None:
        layers: list[nn.Module] = []
        for inputs in (3, channels, channels):
            layers += [nn.Conv1d(inputs, channels, 7, padding="same"), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 1))

    def forward(self, streams: Streams) -> Tensor:
        place = ((torch.arange(128) + 0.5) / 128).expand_as(streams.grid)
        return super().forward(relative(place, streams.grid, streams.question).mT).squeeze(-1)


OURS = {
    "softmax": partial(Continuous, 1.0),
    "sparsemax": partial(Continuous, 2.0),
    "α = ∞": partial(Continuous, math.inf),
}
RIVALS = {
    "discrete softmax": Discrete,
    "discrete softmax, gaps": partial(Discrete, gaps=True),
    "CNN": Convolutions,
}
METHODS = OURS | RIVALS


def train(model: nn.Module, data: Streams, epochs: int, rate: float, seed: int) -> None:
    """Minimize the squared error by Adam, with the highest rate of a one-cycle schedule."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * math.ceil(len(data.answers) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(len(data.answers), generator=generator).split(BATCH):
            batch = data.rows(index)
            optimizer.zero_grad()
            mse_loss(model(batch), batch.answers).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def error(model: nn.Module, streams: Streams) -> float:
    """Return the root mean squared error of the answers."""
    return mse_loss(model(streams), streams.answers).sqrt().item()


def compare(
    seed: int, epochs: int, rates: tuple[float, ...], count: int
) -> tuple[dict[str, nn.Module], Streams, dict[str, list[float]]]:
    """Train every method at the learning rate that validates best.

    The seed changes readings, questions and initial weights. `count` is the number of training
    streams; an eighth as many are drawn to validate, a quarter to test.

    Returns:
        The networks; test streams; the errors of each network in all samplings.
    """
    parts, generator = load_pressure(), torch.Generator().manual_seed(seed)
    validation = read_streams(parts[1], count // 8, SAMPLINGS[0], generator)
    data = read_streams(parts[0], count, SAMPLINGS[0], generator)
    tests = [read_streams(parts[2], count // 4, name, generator) for name in SAMPLINGS]
    models, errors = {}, {}
    for name, build in tqdm(METHODS.items(), f"seed {seed + 1}", disable=None):
        tried = []
        for rate in rates:
            torch.manual_seed(seed)
            tried.append(build())
            train(tried[-1], data, epochs, rate, seed)
        models[name] = min(tried, key=lambda model: error(model, validation))
        errors[name] = [error(models[name], test) for test in tests]
    return models, tests[0], errors


@torch.no_grad()
def draw(models: dict[str, nn.Module], test: Streams) -> Figure:
    """Draw the streams whose saturated block is nearest to the interval, and where heads look."""
    middle, width = test.question[:50].unbind(-1)
    distance = (test.block[:50] - middle.unsqueeze(-1)).abs().amin(-1) / width
    figure, axes = plt.subplots(2, 3, figsize=(9.4, 4.4), sharex=True, layout="constrained")
    grid = torch.linspace(0, 1, 800)
    for (above, below), k in zip(axes.T, distance.argsort()[:3], strict=True):
        one = test.rows(k[None])
        above.plot((np.arange(SAMPLES) + 0.5) / SAMPLES, one.whole[0], "k", lw=0.8)
        above.plot(one.positions[0], one.values[0], "C3o", ms=2.5)
        above.plot(grid, one.value()(grid[None]).flatten(), "C2")
        for name, color in zip(OURS, ("C1", "C0", "C4"), strict=True):
            plot_density(models[name].attend(one), below, label=name, color=color, view=(0, 1))
        for ax in (above, below):
            ax.axvspan(*one.block[0].tolist(), color="k", alpha=0.12, lw=0)
            for side in (-0.5, 0.5):
                ax.axvline((middle[k] + side * width[k]).item(), color="k", ls=":", lw=1)
        below.set_xlabel("position")
    axes[0, 0].set_ylabel("blood pressure")
    axes[1, 0].set_ylabel("density")
    series = dict(zip(("recording", "readings", "value function"), axes[0, 0].lines, strict=False))
    heads = dict(zip(*reversed(axes[1, 0].get_legend_handles_labels()), strict=True))
    lines = series | heads
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=6)
    return figure


def main(
    seeds: int = 10,
    epochs: int = 20,
    rates: tuple[float, ...] = (1e-2, 3e-2),
    streams: int = 4000,
    out: Path = Path("demo"),
) -> None:
    """Compare all methods for several seeds, at least two."""
    results = [compare(seed, epochs, rates, streams) for seed in range(seeds)]
    models, test, _ = results[0]
    runs = {name: np.array([errors[name] for *_, errors in results]) for name in METHODS}
    rows = []
    for name, model in models.items():
        size = sum(x.numel() for x in model.parameters())
        rows.append([name, f"{size}", *(mean_sd(errors, 3) for errors in runs[name].T)])
    print_table(["method", "parameters", *SAMPLINGS], rows)
    for k, sampling in enumerate(SAMPLINGS):
        ours, rival = (
            min(names, key=lambda name: runs[name][:, k].mean()) for names in (OURS, RIVALS)
        )
        a, b = runs[rival][:, k], runs[ours][:, k]
        gain, p = f"{(a - b).mean():.3f} ± {sem(a - b):.3f}", ttest_rel(a, b).pvalue
        print(f"{sampling}: {ours} before {rival} by {gain} (p = {p:.1g})")
    print(f"standard deviation of the answers: {test.answers.std().item():.2f}")
    draw(models, test).savefig(out / "stream.png", dpi=160)


if __name__ == "__main__":
    run(main)
