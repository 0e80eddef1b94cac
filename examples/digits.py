"""Compare attention over an image when asked a question: which digit is top left, top right, ...?

A canvas of 28 x 28 pixels has one of scikit-learn's handwritten digits in each quadrant, at a
random place. `python -m examples.digits` trains the methods, prints the table of docs/gallery.md,
and writes its picture to demo/digits.png.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: attention weights
    over a grid of features, and the density with their mean and covariance. arXiv:2006.07214
    Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits. UCI Machine Learning
    Repository.
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
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from scipy.stats import ttest_rel
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparsefam as sf
from sparsefam.plotting import plot_attention_map

CANVAS, QUADRANT, DIGIT = 28, 14, 8  # sides in pixels
QUESTIONS = ("top left", "top right", "bottom left", "bottom right")
CORNERS = QUADRANT * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])  # of the quadrants: (x, y)
CELLS, CHANNELS = 14, 32  # features on a side of their grid, and numbers in each
RATE, BATCH = 1e-2, 32
COLUMNS = ("accuracy", "quadrant", "digit", "read")
COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")  # of the questions, on black canvases


class Canvases(NamedTuple):
    """Images of four handwritten digits each."""

    images: Tensor  # (B, 28, 28), in [0, 1]
    labels: Tensor  # (B, 4), the digits, in the order of the questions
    corners: Tensor  # (B, 4, 2), column and row at which each digit begins, in pixels

    def rows(self, index: Tensor) -> "Canvases":
        """Return some of the canvases."""
        return Canvases(*(x[index] for x in self))


def load_canvases(count: int, seed: int) -> tuple[Canvases, Canvases]:
    """Compose `count` canvases to train and 3/8 as many to test, from different digits.

    scikit-learn has 1797 digits of 8 x 8 pixels by 43 writers; the seed decides which 1200 are for
    training, which digits share a canvas, and where in its quadrant each digit lies.
    """
    generator = torch.Generator().manual_seed(seed)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    classes = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(classes), generator=generator)

    def compose(some: Tensor, count: int) -> Canvases:
        chosen = some[torch.randint(len(some), (count, 4), generator=generator)]
        offsets = torch.randint(QUADRANT - DIGIT + 1, (count, 4, 2), generator=generator)
        corners = CORNERS + offsets
        columns, rows = (corners.unsqueeze(-1) + torch.arange(DIGIT)).unbind(-2)  # (count, 4, 8)
        canvases = torch.zeros(count, CANVAS, CANVAS)
        which = torch.arange(count)[:, None, None, None]
        canvases[which, rows.unsqueeze(-1), columns.unsqueeze(-2)] = images[chosen]
        return Canvases(canvases, classes[chosen], corners)

    return compose(order[:1200], count), compose(order[1200:], 3 * count // 8)


def cell_centers() -> Tensor:
    """Return the centres (x, y) of the cells, row by row, in [0, 1]: (196, 2)."""
    ticks = (torch.arange(CELLS) + 0.5) / CELLS
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def convolution(inputs: int, outputs: int, *between: nn.Module) -> list[nn.Module]:
    """Return a convolution, what comes between, normalisation and ReLU."""
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

    def read(self, features: Tensor) -> Tensor:
        """Return the mean of the features (B, 196, 32), whatever the question: (B, 4, 32)."""
        return features.mean(1, keepdim=True).expand(-1, len(QUESTIONS), -1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, 10, 4)."""
        context = self.read(self.encoder(images).mT)
        questions = self.questions.expand_as(context)
        return self.classifier(torch.cat([context, questions], -1)).mT


class Discrete(Reader):
    """Read the features by softmax weights: the question against each feature and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(CHANNELS, CHANNELS)
        self.key = nn.Linear(CHANNELS, CHANNELS)
        self.places = nn.Parameter(0.5 * torch.randn(CELLS**2, CHANNELS))

    def weigh(self, features: Tensor) -> Tensor:
        """Return weights on the cells (B, 4, 196)."""
        keys = self.key(features + self.places)
        scores = self.query(self.questions) @ keys.mT / math.sqrt(CHANNELS)
        return sf.rpm(sf.scores.Finite(scores), 1.0).probs

    def attend(self, features: Tensor) -> Any:
        """Return where each question looks: weights (B, 4, 196), or densities of (B, 4)."""
        return self.weigh(features)

    def read(self, features: Tensor) -> Tensor:
        """Return weighted means (B, 4, 32)."""
        return self.weigh(features) @ features


class Continuous(Discrete):
    """Read the function fitted to the features through the density with the weights' moments."""

    def __init__(self, family: type[sf.MultivariateNormal] | type[sf.TruncatedParaboloid]) -> None:
        super().__init__()
        self.family, self.cells = family, cell_centers()
        basis = sf.bases.GaussianRBF.grid(49, 0.1, ndim=2)
        self.regression = sf.attention.RidgeRegression(basis, 0.01)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Return densities over the image, batch shape (B, 4)."""
        weights = self.weigh(features)
        mean = weights @ self.cells
        offsets = self.cells - mean.unsqueeze(-2)
        covariance = (weights.unsqueeze(-1) * offsets).mT @ offsets
        # A weight belongs to a cell, not to a point: add the variance of a uniform cell.
        cell = torch.eye(2) / (12 * CELLS**2)
        return self.family.from_moments(mean, covariance + cell)

    def read(self, features: Tensor) -> Tensor:
        """Return expectations of the fitted functions (B, 4, 32)."""
        return self.regression.fit(self.cells, features).expect(self.attend(features))


READERS: dict[str, Callable[[], Reader]] = {
    "mean pooling": Reader,
    "discrete softmax": Discrete,
    "Gaussian (α = 1)": partial(Continuous, sf.MultivariateNormal),
    "truncated paraboloid (α = 2)": partial(Continuous, sf.TruncatedParaboloid),
}


def train(model: nn.Module, data: Canvases, epochs: int, seed: int) -> None:
    """Minimise the cross-entropy by Adam, with the highest rate of a one-cycle schedule."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    steps = epochs * math.ceil(len(data.labels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(len(data.labels), generator=generator).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(data.images[index]), data.labels[index]).backward()
            optimizer.step()
            schedule.step()


def aim(attention: Any, canvases: Canvases, samples: int = 200) -> list[float]:
    """Measure attention (B, 4), in percent, on average over canvases and questions.

    Returns:
        The mass in the quadrant asked about and in the 8 x 8 pixels of the digit there, where
        weights lie at the centre of their cell and the mass of a density is a share of samples;
        the share of the cells with any weight or, at their centre, any density.
    """
    cells = cell_centers()[:, None, None]
    if isinstance(attention, Tensor):
        points, mass = cells, attention.movedim(-1, 0)  # (196, B, 4)
        read = mass > 0
    else:
        points = attention.sample((samples,))
        mass = torch.full(points.shape[:-1], 1 / samples)
        read = attention.support.check(cells)
    shares = []
    for corner, side in ((CORNERS, QUADRANT), (canvases.corners, DIGIT)):
        low, high = corner / CANVAS, (corner + side) / CANVAS
        inside = ((low <= points) & (points < high)).all(-1)
        shares.append(100 * (mass * inside).sum(0).mean().item())
    return [*shares, 100 * read.float().mean().item()]


def compare(
    seed: int, epochs: int, count: int
) -> tuple[dict[str, Reader], Canvases, dict[str, list[float]]]:
    """Train and test all methods; the seed changes digits, canvases, initial weights and order.

    Returns:
        The networks, the test canvases, and for each network what COLUMNS names, in percent;
        without attention the accuracy alone.
    """
    data, test = load_canvases(count, seed)
    models, found = {}, {}
    for name, build in READERS.items():
        torch.manual_seed(seed)
        model = models[name] = build()
        train(model.train(), data, epochs, seed)
        model.eval()
        with torch.no_grad():
            right = (model(test.images).argmax(1) == test.labels).float().mean().item()
            found[name] = [100 * right]
            if isinstance(model, Discrete):
                found[name] += aim(model.attend(model.encoder(test.images).mT), test)
        print(f"seed {seed + 1}, {name}: {100 * right:.1f} %", file=sys.stderr)
    return models, test, found


def draw(models: dict[str, Any], test: Canvases, count: int = 4) -> Figure:
    """Draw the attention of each mechanism (rows) to the first test canvases (columns)."""
    names = list(models)[1:]
    size = (9.4, 2.3 * len(names))
    figure, axes = plt.subplots(len(names), count, figsize=size, layout="constrained")
    for row, name in zip(axes, names, strict=True):
        for column, ax in enumerate(row):
            image = test.images[column]
            with torch.no_grad():
                attention = models[name].attend(models[name].encoder(image[None]).mT)
                answers = models[name](image[None]).argmax(1)[0].tolist()
            if isinstance(attention, Tensor):
                attention = attention.unflatten(-1, (CELLS, CELLS))
            ax.set_prop_cycle(color=COLORS)
            plot_attention_map(attention, image, ax=ax)
            for corner, color in zip(test.corners[column] / CANVAS, COLORS, strict=True):
                frame = {"fill": False, "linestyle": ":", "linewidth": 1.2, "edgecolor": color}
                ax.add_patch(Rectangle(corner.tolist(), DIGIT / CANVAS, DIGIT / CANVAS, **frame))
            pairs = zip(answers, test.labels[column].tolist(), strict=True)
            title = "  ".join(f"{a}" if a == right else f"{a} ({right})" for a, right in pairs)
            ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
            ax.set_title(title, fontsize=9)
        row[0].set_ylabel(name.replace(" (", "\n("))
    lines = [Line2D([], [], color=color) for color in COLORS]
    figure.legend(lines, QUESTIONS, loc="outside lower center", ncols=4)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Questions about images of digits.")
    parser.add_argument("--seeds", type=int, default=10, help="repetitions, at least 2 (10)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run (3)")
    parser.add_argument("--canvases", type=int, default=4000, help="training images (4000)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = [compare(seed, options.epochs, options.canvases) for seed in range(options.seeds)]
    runs = {name: np.array([found[name] for *_, found in results]) for name in READERS}
    print(f"{'percent':<30}{COLUMNS[0]:>12}" + "".join(f"{name:>10}" for name in COLUMNS[1:]))
    for name, found in runs.items():
        right = f"{found[:, 0].mean():.1f} ± {found[:, 0].std(ddof=1):.1f}"
        print(f"{name:<30}{right:>12}" + "".join(f"{x:>10.1f}" for x in found.mean(0)[1:]))
    _, discrete, *densities = (found[:, 0] for found in runs.values())
    best = max(densities, key=np.mean)
    gain, p = discrete - best, ttest_rel(discrete, best).pvalue
    spread = gain.std(ddof=1) / math.sqrt(len(gain))
    print(f"discrete before the best density by {gain.mean():.1f} ± {spread:.1f} (p = {p:.1g})")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(*results[0][:2]).savefig(options.out / "digits.png", dpi=160)


if __name__ == "__main__":
    main()
