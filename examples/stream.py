"""Answer questions about a stream: what was the mean blood pressure from a to b?

`python -m examples.stream` trains the methods, prints the table of docs/tutorials/stream.md and
writes its picture to demo/stream.png.

A stream is 512 consecutive samples, 2.8 heartbeats, of which 96 noisy readings at random times are
left. In a block outside the interval asked for, all readings are saturated.

References:
    Wu and Keogh (2021), Current Time Series Anomaly Detection Benchmarks are Flawed and are
    Creating the Illusion of Progress. The recording is number 135 of their archive.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import sparsefam as sf

from .data import Batch, Series, aeon_file, interpolate
from .look import LOOKS, WIDTH
from .training import Run, contest, parameters, positive, show, tabulate, train

SAMPLES, READINGS, NOISE = 512, 96, 0.1
SHORTEST, LONGEST = 0.05, 0.35  # intervals asked for
BLOCK, SATURATED = 0.15, 4.0  # length of the saturated block, and its readings
SAMPLINGS = ("as trained", "half", "gap", "bursts")  # how readings are placed
COLUMNS = {"parameters": ("parameters", ".0f"), "seconds": ("seconds", ".1f")}
COLUMNS |= {name: (name, "±.3f" if name == "as trained" else ".3f") for name in SAMPLINGS}
BASIS = sf.bases.GaussianRBF.grid(64, 1.5 / 64)
WIDEST = 0.3  # standard deviation of a head, at most
FILE = "KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16_TEST.csv"


def load_pressure() -> tuple[Tensor, Tensor, Tensor]:
    """Load the recording, standardised: 60 % to train, 15 % to validate, the rest to test."""
    lines = aeon_file(FILE).read_text(encoding="utf-8").splitlines()[1:]
    pressure = torch.tensor([float(line.split(",")[1]) for line in lines])
    first, second = round(0.6 * len(pressure)), round(0.75 * len(pressure))
    pressure = (pressure - pressure[:first].mean()) / pressure[:first].std()
    return pressure[:first], pressure[first:second], pressure[second:]


@dataclass(frozen=True)
class Streams(Batch):
    """Streams with a question each."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    question: Tensor  # (B, 2), midpoint and width of the interval
    labels: Tensor  # (B,), the mean over the interval
    block: Tensor  # (B, 2), ends of the saturated block
    whole: Tensor  # (B, samples), without noise and saturation
    grid: Tensor  # (B, 128), readings interpolated
    coefficients: Tensor  # (B, N, 1), the value function

    def fitted(self, penalty: float) -> "Streams":
        """Fit value functions to the readings."""
        regression = sf.attention.RidgeRegression(BASIS, penalty)
        value = regression.fit(self.positions, self.values.unsqueeze(-1))
        return replace(self, coefficients=value.coefficients)


def read_streams(
    part: Tensor, count: int, generator: torch.Generator, sampling: str = SAMPLINGS[0]
) -> Streams:
    """Draw streams from a part of the recording, with questions and readings."""
    rand = partial(torch.rand, generator=generator)
    start = torch.randint(0, len(part) - SAMPLES + 1, (count, 1), generator=generator)
    whole = part[start + torch.arange(SAMPLES)]
    times = (torch.arange(SAMPLES) + 0.5) / SAMPLES
    width = SHORTEST + (LONGEST - SHORTEST) * rand(count, 1)
    middle = width / 2 + (1 - width) * rand(count, 1)
    asked = (times - middle).abs() <= width / 2
    answer = (whole * asked).sum(-1) / asked.sum(-1)
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
    seen = Series(positions, values, torch.ones_like(index, dtype=torch.bool), answer)
    question, none = torch.cat([middle, width], -1), values.new_zeros(count, 0, 1)
    grid = interpolate(seen, 128)
    return Streams(positions, values, question, answer, block, whole, grid, none)


def relative(place: Tensor, streams: Streams, *more: Tensor) -> Tensor:
    """Describe places (B, L) by distance from the midpoint, the width, and more: (B, L, C)."""
    middle, width = streams.question.unsqueeze(-1).unbind(1)
    return torch.stack([10 * (place - middle), (10 * width - 2).expand_as(place), *more], -1)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Build the small network that turns a question into attention."""
    hidden = [nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(16, outputs))


class Continuous(nn.Module):
    """Read the value function through a unimodal density; alpha = inf is uniform on an interval."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha, self.network = alpha, network(2, 2)
        start = torch.tensor([0.5, 0.1 / WIDEST])  # at the midpoint, 0.1 wide
        self.network[-1].bias.data = start.logit()

    def attend(self, streams: Streams) -> sf.SparseDistribution:
        """Return where to look, batch shape (B, 1)."""
        middle, width = streams.question.split(1, -1)
        asked = torch.cat([2 * middle - 1, 10 * width - 2], -1)
        offset, sigma = self.network(asked).split(1, -1)
        mean, sigma = middle + WIDEST * offset.tanh(), WIDEST * sigma.sigmoid() + 1e-3
        if self.alpha == 1:
            return sf.Normal(mean, sigma)
        return sf.BetaGaussian.from_moments(mean, sigma.square(), self.alpha)

    def forward(self, streams: Streams) -> Tensor:
        """Return answers (B,)."""
        value = sf.attention.ValueFunction(BASIS, streams.coefficients)
        return value.expect(self.attend(streams)).flatten()


class Discrete(nn.Module):
    """Weigh the readings by a network of their distance from the midpoint and their value.

    With `gaps`, the log of the time nearest to each reading is added to the scores, so that the
    weights can become those of a Riemann sum.
    """

    def __init__(self, gaps: bool = False) -> None:
        super().__init__()
        self.gaps, self.network = gaps, network(3, 1)

    def attend(self, streams: Streams) -> Any:
        """Return weights, batch shape (B,)."""
        t = streams.positions
        scores = self.network(relative(t, streams, streams.values)).squeeze(-1)
        if self.gaps:
            ends = nn.functional.pad((t[:, 1:] + t[:, :-1]) / 2, (1, 1))
            ends[:, -1] = 1
            scores = scores + ends.diff().log()
        return sf.rpm(sf.scores.Finite(scores), 1.0)

    def forward(self, streams: Streams) -> Tensor:
        """Return answers (B,)."""
        return (self.attend(streams).probs * streams.values).sum(-1)


class Convolutions(nn.Sequential):
    """Convolve the interpolated stream and the distance from the midpoint."""

    def __init__(self, channels: int = 10) -> None:
        layers: list[nn.Module] = []
        for inputs in (3, channels, channels):
            layers += [nn.Conv1d(inputs, channels, 7, padding="same"), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 1))

    def forward(self, streams: Streams) -> Tensor:
        """Return answers (B,)."""
        size = streams.grid.shape[1]
        place = ((torch.arange(size) + 0.5) / size).expand(len(streams), -1)
        return super().forward(relative(place, streams, streams.grid).mT).squeeze(-1)


OURS = ("softmax", "sparsemax", "α = ∞")
METHODS: dict[str, Callable[[], nn.Module]] = {
    OURS[0]: partial(Continuous, 1.0),
    OURS[1]: partial(Continuous, 2.0),
    OURS[2]: partial(Continuous, math.inf),
    "discrete softmax": Discrete,
    "discrete softmax, gaps": partial(Discrete, gaps=True),
    "CNN": Convolutions,
}


class Comparison(NamedTuple):
    """Runs by method; models and test streams of the first seed; the chosen penalty."""

    runs: dict[str, list[Run]]
    models: dict[str, Any]
    test: Streams
    penalty: float


def compare(
    seeds: int, epochs: int, peaks: Sequence[float] = (1e-2, 3e-2), count: int = 4000
) -> Comparison:
    """Train every method at the highest learning rate that validates best; test all samplings.

    Seeds change readings, questions and initial weights. `count` is the number of training streams;
    an eighth as many are drawn to validate, a quarter to test.
    """
    parts, penalty = load_pressure(), 0.0
    runs: dict[str, list[Run]] = {name: [] for name in METHODS}
    models, tests = {}, []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        validation = read_streams(parts[1], count // 8, generator)
        penalty = penalty or choose_penalty(validation)
        validation = validation.fitted(penalty)
        fit = read_streams(parts[0], count, generator).fitted(penalty)
        test = {
            name: read_streams(parts[2], count // 4, generator, name).fitted(penalty)
            for name in SAMPLINGS
        }
        tests.append(test[SAMPLINGS[0]])
        for name, build in METHODS.items():
            tried = []
            for peak in peaks:
                torch.manual_seed(seed)
                model = build()
                options = {"loss": mse_loss, "peak": peak, "batch": 128}
                seconds = train(model, fit, epochs, seed, **options)
                tried.append((error(model, validation), seconds, model))
            _, seconds, model = min(tried, key=lambda one: one[0])
            run = {"seconds": seconds, "parameters": parameters(model)}
            run |= {sampling: error(model, streams) for sampling, streams in test.items()}
            runs[name].append(run)
            models.setdefault(name, model)
            print(f"  seed {seed + 1}, {name}: error {run[SAMPLINGS[0]]:.3f}", flush=True)
    return Comparison(runs, models, tests[0], penalty)


def choose_penalty(streams: Streams) -> float:
    """Choose the ridge penalty whose value functions have the right means over the intervals."""
    middle, width = streams.question.split(1, -1)
    inside = middle + width * ((torch.arange(64) + 0.5) / 64 - 0.5)
    errors = {}
    for penalty in (1.0, 3.0, 10.0, 30.0, 100.0):
        value = sf.attention.ValueFunction(BASIS, streams.fitted(penalty).coefficients)
        errors[penalty] = (value(inside).mean((1, 2)) - streams.labels).square().mean().item()
    return min(errors, key=errors.__getitem__)


def error(model: nn.Module, streams: Streams) -> float:
    """Return the root mean squared error of the answers."""
    with torch.no_grad():
        return mse_loss(model(streams), streams.labels).sqrt().item()


def draw(result: Comparison, shown: int = 3) -> Figure:
    """Draw the streams whose saturated block is nearest to the interval, and where heads look."""
    streams = result.test[torch.arange(min(50, len(result.test)))]
    middle, width = streams.question.unbind(-1)
    distance = (streams.block - middle.unsqueeze(-1)).abs().amin(-1) / width
    figure, axes = plt.subplots(2, shown, figsize=(WIDTH, 4.0), sharex=True)
    grid = torch.linspace(0, 1, 800)
    colors = {"softmax": "C1", "sparsemax": "C0", "α = ∞": "C5"}
    for column, k in enumerate(distance.argsort()[:shown]):
        one, (above, below) = streams[k[None]], axes[:, column]
        value = sf.attention.ValueFunction(BASIS, one.coefficients)(grid[None])[0, :, 0]
        samples = (torch.arange(SAMPLES) + 0.5) / SAMPLES
        above.plot(samples, one.whole[0], color="C7", lw=0.8, label="recording")
        style = {"color": "C3", "markersize": 2.5, "label": "readings"}
        above.plot(one.positions[0], one.values[0], "o", **style)
        above.plot(grid, value, color="C2", label="value function")
        for name, color in colors.items():
            with torch.no_grad():
                density = result.models[name].attend(one).prob(grid[:, None, None])
            height = density.flatten()
            curve = torch.where(height > 0, height, torch.nan)
            below.plot(grid, curve, color=color, label=name)
            below.fill_between(grid, height, color=color, alpha=0.2, lw=0)
        for ax in (above, below):
            ax.axvspan(*one.block[0].tolist(), color="C7", alpha=0.12, lw=0)
            for side in (-0.5, 0.5):
                ax.axvline((middle[k] + side * width[k]).item(), color="C7", ls=":", lw=1)
        below.set(xlabel="position", ylim=(0, None))
    axes[0, 0].set_ylabel("blood pressure")
    axes[1, 0].set_ylabel("density")
    lines = [*axes[0, 0].get_lines()[:3], *axes[1, 0].get_lines()[:3]]
    figure.legend(handles=lines, loc="outside lower center", ncols=3)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Questions to a stream of readings.")
    parser.add_argument("--seeds", type=positive, default=10, help="repetitions (10)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of a run (20)")
    parser.add_argument("--streams", type=int, default=4000, help="training streams (4000)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{len(METHODS)} methods, 2 learning rates, {options.seeds} seeds")
    result = compare(options.seeds, options.epochs, count=options.streams)
    show(*tabulate(result.runs, COLUMNS))
    for sampling in SAMPLINGS:
        print(f"{sampling}: {contest(result.runs, sampling, OURS, '.3f', sign=-1)}")
    print(f"standard deviation of the answers: {result.test.labels.std().item():.2f}")
    options.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(LOOKS["light"]):
        draw(result).savefig(options.out / "stream.png")


if __name__ == "__main__":
    main()
