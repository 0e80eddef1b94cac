"""Compare attention over an image when asked a question: which digit is top left, top right, ...?

`python -m examples.digits` trains the methods and prints the table of docs/gallery.md.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: attention weights
    over a grid of features, and the density with their mean and covariance. arXiv:2006.07214
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor, nn

import sparsefam as sf
from sparsefam.plotting import plot_attention_map

from .data import CANVAS, DIGIT, QUESTIONS, Canvases, load_canvases
from .look import WIDTH
from .training import Run, accuracy, contest, parameters, positive, show, tabulate, train

CELLS, CHANNELS = 14, 32  # features on a side of their grid, and numbers in each
PEAK = 1e-2  # the highest learning rate
COLUMNS = {"accuracy, %": ("accuracy", "±.1f")}
COLUMNS |= {f"{key}, %": (key, ".1f") for key in ("quadrant", "digit", "read")}
COLUMNS["seconds"] = ("seconds", ".1f")
COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")  # of the questions, on black canvases


def cell_centers(count: int) -> Tensor:
    """Return the centres (x, y) of count² cells, row by row, in [0, 1]: (count², 2)."""
    ticks = (torch.arange(count) + 0.5) / count
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def convolution(inputs: int, outputs: int, *between: nn.Module) -> list[nn.Module]:
    """Return the layers of a convolution block."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)  # faster on a CPU
    return [layer, *between, nn.BatchNorm2d(outputs), nn.ReLU()]


class Reader(nn.Module):
    """Turn an image into 14 x 14 features, read them for each question, and classify."""

    def __init__(self) -> None:
        super().__init__()
        inner = [convolution(inputs, CHANNELS) for inputs in (16, CHANNELS, CHANNELS)]
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, CANVAS)),
            *convolution(1, 16, nn.MaxPool2d(2)),
            *(layer for layers in inner for layer in layers),
            nn.Flatten(2),
        )
        self.questions = nn.Parameter(0.5 * torch.randn(len(QUESTIONS), CHANNELS))
        self.classifier = nn.Sequential(nn.Linear(2 * CHANNELS, 64), nn.ReLU(), nn.Linear(64, 10))

    def features(self, canvases: Canvases) -> Tensor:
        """Return features (B, 196, 32)."""
        features: Tensor = self.encoder(canvases.images)
        return features.mT

    def read(self, features: Tensor) -> Tensor:
        """Return a context for each question (B, 4, 32)."""
        raise NotImplementedError

    def forward(self, canvases: Canvases) -> Tensor:
        """Return logits (B, 10, 4)."""
        context = self.read(self.features(canvases))
        logits: Tensor = self.classifier(
            torch.cat([context, self.questions.expand_as(context)], -1)
        )
        return logits.mT


class MeanPooling(Reader):
    """Read the mean of all features, whatever the question: the baseline."""

    def read(self, features: Tensor) -> Tensor:
        """Return the same for all questions."""
        return features.mean(1, keepdim=True).expand(-1, len(QUESTIONS), -1)


class Discrete(Reader):
    """Read the features by softmax weights: the question against each feature and its place."""

    cells: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(CHANNELS, CHANNELS)
        self.key = nn.Linear(CHANNELS, CHANNELS)
        self.places = nn.Parameter(0.5 * torch.randn(CELLS**2, CHANNELS))
        self.register_buffer("cells", cell_centers(CELLS))

    def weigh(self, features: Tensor) -> Any:
        """Return weights on the cells, batch shape (B, 4)."""
        keys = self.key(features + self.places)
        scores = self.query(self.questions) @ keys.mT / math.sqrt(CHANNELS)
        return sf.rpm(sf.scores.Finite(scores), 1.0)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Return where each question looks, batch shape (B, 4)."""
        return self.weigh(features)

    def read(self, features: Tensor) -> Tensor:
        """Return weighted means."""
        return self.weigh(features).probs @ features


class Continuous(Discrete):
    """Read the function fitted to the features through the density with the weights' moments."""

    def __init__(self, family: type[sf.MultivariateNormal] | type[sf.TruncatedParaboloid]) -> None:
        super().__init__()
        self.family = family
        basis = sf.bases.GaussianRBF.grid(49, 0.1, ndim=2)
        self.regression = sf.attention.RidgeRegression(basis, 0.01)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Return densities over the image."""
        weights = self.weigh(features).probs
        mean = weights @ self.cells
        offsets = self.cells - mean.unsqueeze(-2)
        covariance = (weights.unsqueeze(-1) * offsets).mT @ offsets
        # A weight belongs to a cell, not to a point: add the variance of a uniform cell.
        cell = torch.eye(2) / (12 * CELLS**2)
        return self.family.from_moments(mean, covariance + cell)

    def read(self, features: Tensor) -> Tensor:
        """Return expectations of the fitted functions."""
        return self.regression.fit(self.cells, features).expect(self.attend(features))


MEAN = "mean pooling"
READERS: dict[str, Callable[[], Reader]] = {
    MEAN: MeanPooling,
    "discrete softmax": Discrete,
    "Gaussian (α = 1)": partial(Continuous, sf.MultivariateNormal),
    "truncated paraboloid (α = 2)": partial(Continuous, sf.TruncatedParaboloid),
}


class Answers(NamedTuple):
    """Runs by method, one for each seed; the attention and the test canvases of the first seed."""

    runs: dict[str, list[Run]]
    models: dict[str, Discrete]
    test: Canvases


def answer(canvases: int, epochs: int, seeds: int) -> Answers:
    """Train and test all methods; seeds change digits, canvases, initial weights and order."""
    runs: dict[str, list[Run]] = {name: [] for name in READERS}
    models, tests = {}, []
    for seed in range(seeds):
        fit, test = load_canvases(canvases, seed)
        tests.append(test)
        for name, build in READERS.items():
            torch.manual_seed(seed)
            model = build()
            run = {"seconds": train(model, fit, epochs, seed, peak=PEAK)}
            run["parameters"] = parameters(model)
            with torch.no_grad():
                run["accuracy"] = accuracy(model(test), test.labels)
                if isinstance(model, Discrete):
                    run |= aim(model.attend(model.features(test)), test)
                    models.setdefault(name, model)
            runs[name].append(run)
            print(f"  seed {seed + 1}, {name}: {run['accuracy']:.1f} %", flush=True)
    return Answers(runs, models, tests[0])


def aim(attention: sf.SparseDistribution, canvases: Canvases, samples: int = 200) -> Run:
    """Measure attention of batch shape (B, 4), in percent, on average over canvases and questions.

    Returns:
        quadrant: Mass in the quadrant asked about. Weights lie at the centre of their cell; the
            mass of a density is a share of samples.
        digit: Mass in the 8 x 8 pixels of the digit there.
        read: Share of the cells with any weight or, at their centre, any density.
    """
    cells = cell_centers(CELLS)[:, None, None]
    if isinstance(attention, sf.SparseCategorical):
        points, mass = cells, attention.probs.movedim(-1, 0)  # (196, B, 4)
        read = mass > 0
    else:
        points = attention.sample((samples,))
        mass = torch.full(points.shape[:-1], 1 / samples)
        support: Any = attention.support
        read = support.check(cells)
    result = {"read": 100 * read.float().mean().item()}
    for name, (low, high) in {"quadrant": canvases.quadrants(), "digit": canvases.boxes()}.items():
        inside = ((low <= points) & (points < high)).all(-1)
        result[name] = 100 * (mass * inside).sum(0).mean().item()
    return result


def blind_limit(labels: Tensor) -> float:
    """Return the accuracy of always answering the commonest digit of the canvas, in percent."""
    same = labels.unsqueeze(-1) == labels.unsqueeze(-2)
    return 100 * same.float().mean(-1).amax(-1).mean().item()


def draw_aims(result: Answers, count: int = 4) -> Figure:
    """Draw the attention of each mechanism (rows) to the first test canvases (columns)."""
    rows = len(result.models)
    figure, axes = plt.subplots(rows, count, figsize=(WIDTH, 2.3 * rows))
    for row, (name, model) in enumerate(result.models.items()):
        for column in range(count):
            ax, one = axes[row, column], result.test[torch.tensor([column])]
            with torch.no_grad():
                attention: Any = model.attend(model.features(one))
                answers = model(one).argmax(1)[0].tolist()
            if isinstance(attention, sf.SparseCategorical):
                attention = attention.probs.unflatten(-1, (CELLS, CELLS))
            ax.set_prop_cycle(color=COLORS)
            plot_attention_map(attention, one.images[0], ax=ax)
            side = DIGIT / CANVAS
            for corner, color in zip(one.boxes()[0][0].tolist(), COLORS, strict=True):
                frame = {"fill": False, "linestyle": ":", "linewidth": 1.2, "edgecolor": color}
                ax.add_patch(Rectangle(corner, side, side, **frame))
            pairs = zip(answers, one.labels[0].tolist(), strict=True)
            title = "  ".join(f"{a}" if a == right else f"{a} ({right})" for a, right in pairs)
            ax.set(title=title, xticks=[], yticks=[])
            if column == 0:
                ax.set_ylabel(name.replace(" (", "\n("))
    lines = [Line2D([], [], color=color) for color in COLORS]
    figure.legend(lines, QUESTIONS, loc="outside lower center", ncols=4)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Questions about images of digits.")
    parser.add_argument("--seeds", type=positive, default=10, help="repetitions (10)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run (3)")
    parser.add_argument("--canvases", type=int, default=4000, help="training images (4000)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{len(READERS)} methods, {options.seeds} seeds")
    runs = answer(options.canvases, options.epochs, options.seeds).runs
    show(*tabulate(runs, COLUMNS))
    names = list(READERS)
    some = {name: runs[name] for name in names[1:]}
    print("continuous against discrete:", contest(some, "accuracy", names[2:], ".1f"))
    print("attention against none:", contest(runs, "accuracy", names[1:], ".1f"))


if __name__ == "__main__":
    main()
