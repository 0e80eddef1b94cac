"""Compare attention over an image when asked a question: which digit is top left, top right, ...?

A canvas of 28 x 28 pixels has one of scikit-learn's handwritten digits in each quadrant, at a
random place. Four questions, a color each in the picture, name a quadrant. A mean and a covariance
read an image about as well as a weight for every cell.

The picture has discrete weights as cells; dashed, the ellipse that holds 99.9 % of a normal
density; solid, the support of a truncated paraboloid, outside which nothing is read; dotted, the
digit asked about; and above, the answers. The table has accuracy, mass in the quadrant and on the
digit, and the share of the cells that is read. Two seeds do not tell the mechanisms apart.

`python -m examples.digits` prints the table of docs/gallery.md, with ten seeds, and draws
demo/digits.png.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: attention weights
    over a grid of features, and the density with their mean and covariance. arXiv:2006.07214
    Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits. UCI Machine Learning
    Repository.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from scipy.stats import sem, ttest_rel
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import trange

import sparsefam as sf
from sparsefam.plotting import plot_attention_map

from .common import mean_sd, print_table, run

CANVAS, QUADRANT, DIGIT = 28, 14, 8  # sides in pixels
QUESTIONS = ("top left", "top right", "bottom left", "bottom right")
CORNERS = QUADRANT * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])  # of the quadrants: (x, y)
CELLS, CHANNELS = 14, 32  # features on a side of their grid, and numbers in each
TICKS = (torch.arange(CELLS) + 0.5) / CELLS
CENTERS = torch.cartesian_prod(TICKS, TICKS).flip(-1)  # (x, y) of the cells, row by row, in [0, 1]
RATE, BATCH = 1e-2, 32
COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")  # of the questions, on black canvases


class Canvases(NamedTuple):
    """Images of four handwritten digits each."""

    images: Tensor  # (B, 28, 28), in [0, 1]
    labels: Tensor  # (B, 4), the digits, in the order of the questions
    corners: Tensor  # (B, 4, 2), column and row at which each digit begins, in pixels


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


def convolution(inputs: int, outputs: int, *between: nn.Module) -> list[nn.Module]:
    """Return a convolution, what comes between, normalization and ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)  # faster on a CPU
    return [layer, *between, nn.BatchNorm2d(outputs), nn.ReLU()]


class Reader(nn.Module):
    """Turn an image into 14 x 14 features, read their mean, and answer each question."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((16, CHANNELS), (CHANNELS, CHANNELS), (CHANNELS, CHANNELS))
        inner = [layer for size in sizes for layer in convolution(*size)]
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, CANVAS)),
            *convolution(1, 16, nn.MaxPool2d(2)),
            *inner,
            nn.Flatten(2),
        )
        self.questions = nn.Parameter(0.5 * torch.randn(len(QUESTIONS), CHANNELS))
        self.classifier = nn.Sequential(nn.Linear(2 * CHANNELS, 64), nn.ReLU(), nn.Linear(64, 10))

    def read(self, features: Tensor) -> Tensor:
        """Return what each question reads of the features (B, 196, 32): (B, 4, 32)."""
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

    def attend(self, features: Tensor) -> Any:
        """Return weights on the cells (B, 4, 196)."""
        keys = self.key(features + self.places)
        scores = self.query(self.questions) @ keys.mT / math.sqrt(CHANNELS)
        return sf.rpm(sf.scores.Finite(scores), 1.0).probs

    def read(self, features: Tensor) -> Tensor:
        return self.attend(features) @ features


class Continuous(Discrete):
    """Read the function fitted to the features through the density with the weights' moments."""

    def __init__(self, family: type[sf.MultivariateNormal] | type[sf.TruncatedParaboloid]) -> None:
        super().__init__()
        self.family = family
        basis = sf.bases.GaussianRBF.grid(49, 0.1, ndim=2)
        self.regression = sf.attention.RidgeRegression(basis, 0.01)

    def attend(self, features: Tensor) -> sf.SparseDistribution:
        """Return densities over the image, batch shape (B, 4)."""
        weights = super().attend(features)
        mean = weights @ CENTERS
        offsets = CENTERS - mean.unsqueeze(-2)
        covariance = (weights.unsqueeze(-1) * offsets).mT @ offsets
        # A weight belongs to a cell, not to a point: add the variance of a uniform cell.
        cell = torch.eye(2) / (12 * CELLS**2)
        return self.family.from_moments(mean, covariance + cell)

    def read(self, features: Tensor) -> Tensor:
        return self.regression.fit(CENTERS, features).expect(self.attend(features))


READERS = {
    "mean pooling": Reader,
    "discrete softmax": Discrete,
    "Gaussian (α = 1)": partial(Continuous, sf.MultivariateNormal),
    "truncated paraboloid (α = 2)": partial(Continuous, sf.TruncatedParaboloid),
}


def train(model: nn.Module, data: Canvases, epochs: int, seed: int, title: str) -> None:
    """Minimize the cross-entropy by Adam, with the highest rate of a one-cycle schedule."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    steps = epochs * math.ceil(len(data.labels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in trange(epochs, desc=title, disable=None):
        for index in torch.randperm(len(data.labels), generator=generator).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(data.images[index]), data.labels[index]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def evaluate(model: Reader, canvases: Canvases) -> list[float]:
    """Return the accuracy in percent; with attention also three means over all questions.

    They are the mass in the quadrant asked about and in the 8 x 8 pixels of the digit there, where
    weights lie at the center of their cell and the mass of a density is a share of draws; and the
    share of the cells with any weight or, at their center, any density.
    """
    hits = model(canvases.images).argmax(1) == canvases.labels
    found = [100 * hits.float().mean().item()]
    if not isinstance(model, Discrete):
        return found
    attention, cells = model.attend(model.encoder(canvases.images).mT), CENTERS[:, None, None]
    if isinstance(attention, Tensor):
        points, mass = cells, attention.movedim(-1, 0)  # (196, B, 4)
        read = mass > 0
    else:
        points = attention.sample((200,))
        mass = torch.full(points.shape[:-1], 1 / 200)
        read = attention.support.check(cells)
    for corner, side in ((CORNERS, QUADRANT), (canvases.corners, DIGIT)):
        low, high = corner / CANVAS, (corner + side) / CANVAS
        inside = ((low <= points) & (points < high)).all(-1)
        found.append(100 * (mass * inside).sum(0).mean().item())
    return [*found, 100 * read.float().mean().item()]


@torch.no_grad()
def draw(models: dict[str, Any], canvases: Canvases) -> Figure:
    """Draw the attention of each mechanism (rows) to the first canvases (columns)."""
    figure, axes = plt.subplots(len(models), 4, figsize=(9.4, 6.9), layout="constrained")
    for row, (name, model) in zip(axes, models.items(), strict=True):
        for column, ax in enumerate(row):
            image, labels, corners = (x[column] for x in canvases)
            attention = model.attend(model.encoder(image[None]).mT)
            if isinstance(attention, Tensor):
                attention = attention.unflatten(-1, (CELLS, CELLS))
            ax.set_prop_cycle(color=COLORS)
            plot_attention_map(attention, image, ax=ax)
            for corner, color in zip(corners / CANVAS, COLORS, strict=True):
                frame = {"fill": False, "linestyle": ":", "linewidth": 1.2, "edgecolor": color}
                ax.add_patch(Rectangle(corner.tolist(), DIGIT / CANVAS, DIGIT / CANVAS, **frame))
            answers = model(image[None]).argmax(1)[0].tolist()
            pairs = zip(answers, labels.tolist(), strict=True)
            title = "  ".join(f"{a}" if a == right else f"{a} ({right})" for a, right in pairs)
            ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
            ax.set_title(title, fontsize=9)
        row[0].set_ylabel(name.replace(" (", "\n("))
    lines = [Line2D([], [], color=color) for color in COLORS]
    figure.legend(lines, QUESTIONS, loc="outside lower center", ncols=4)
    return figure


def main(seeds: int = 10, epochs: int = 3, canvases: int = 4000, out: Path = Path("demo")) -> None:
    """Compare all methods; at least two seeds change digits, canvases, initial weights, order."""
    found: dict[str, list[list[float]]] = {name: [] for name in READERS}
    for seed in range(seeds):
        data, held = load_canvases(canvases, seed)
        models = {}
        for name, build in READERS.items():
            torch.manual_seed(seed)
            models[name] = build()
            train(models[name].train(), data, epochs, seed, f"seed {seed + 1}, {name}")
            found[name].append(evaluate(models[name].eval(), held))
        if seed == 0:
            del models["mean pooling"]
            draw(models, held).savefig(out / "digits.png", dpi=160)
    runs = {name: np.array(values).T for name, values in found.items()}
    rows = []
    for name, (right, *shares) in runs.items():
        cells = [f"{x.mean():.1f}" for x in shares] or 3 * ["–"]
        rows.append([name, mean_sd(right, 1), *cells])
    print_table(["percent", "accuracy", "quadrant", "digit", "read"], rows)
    _, discrete, *densities = (right for right, *_ in runs.values())
    best = max(densities, key=np.mean)
    gain, p = discrete - best, ttest_rel(discrete, best).pvalue
    print(f"discrete before the best density by {gain.mean():.1f} ± {sem(gain):.1f} (p = {p:.1g})")


if __name__ == "__main__":
    run(main)
