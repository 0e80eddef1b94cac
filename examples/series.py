"""Compare attention mechanisms on irregularly observed series: spoken vowels and leaf outlines.

All networks share an encoder. With attention, the encoder's features only choose where to look,
and the classifier sees one number for each head: the expectation of the value function, fitted to
the observations, under the head's density.

References:
    Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
    App. C and Table 2: the architecture and the five densities.
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 4.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from pyro.contrib.gp.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import sparsefam as sf
from sparsefam.plotting import plot_attention

from .data import Series, interpolate, load_series, observe
from .look import WIDTH
from .training import Run, accuracy, parameters, train

LOGISTIC, NONE = "logistic regression", "no attention"
GRID = 128  # points at which the encoder sees a series, interpolated
FEATURES, KEYS, COMPONENTS = 256, 16, 8
SIGMA, LEAST_SIGMA = 0.1, 1e-3  # a head's width before training, and its least width
POINTS, LENGTHSCALE = 64, 0.03
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
BASIS = sf.bases.GaussianRBF.grid(64, 1.5 / 64)


@dataclass(frozen=True)
class Examples(Series):
    """Series with their value functions and their interpolation."""

    coefficients: Tensor  # (B, N, 1)
    grid: Tensor  # (B, GRID)

    @classmethod
    def fit(cls, seen: Series, penalty: float) -> "Examples":
        """Fit the value functions."""
        regression = sf.attention.RidgeRegression(BASIS, penalty)
        value = regression.fit(seen.positions, seen.values.unsqueeze(-1), seen.mask)
        return cls(**vars(seen), coefficients=value.coefficients, grid=interpolate(seen, GRID))


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

    def __init__(self, classes: int) -> None:
        super().__init__(encoder(), nn.Linear(FEATURES, classes))

    def forward(self, examples: Examples) -> Tensor:
        """Return logits (B, classes)."""
        return super().forward(examples.grid)


class Attention(nn.Module):
    """Classify the contexts of the heads; subclasses turn queries into densities."""

    def __init__(self, classes: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.heads = heads
        self.encoder = encoder()
        self.query = nn.Linear(FEATURES, heads * outputs)
        self.classifier = nn.Linear(heads, classes)

    def attend(self, examples: Examples, every: int = 1) -> sf.SparseDistribution:
        """Return the attention of one head in `every`, batch shape (B, heads)."""
        queries = self.query(self.encoder(examples.grid)).unflatten(-1, (self.heads, -1))
        return self.density(queries[:, ::every], examples)

    def density(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Turn queries (B, heads, outputs) into attention of batch shape (B, heads)."""
        raise NotImplementedError

    def context(self, attention: Any, examples: Examples) -> Tensor:
        """Return the expectation of the value function under each head's density (B, heads)."""
        value = sf.attention.ValueFunction(BASIS, examples.coefficients)
        return value.expect(attention).squeeze(-1)

    def forward(self, examples: Examples) -> Tensor:
        """Return logits (B, classes)."""
        return self.classifier(self.context(self.attend(examples), examples))


class Discrete(Attention):
    """Weight the observed points by softmax (alpha 1) or sparsemax (alpha 2).

    The key of a point is its value and 16 smooth indicators of its position, which sum to one.
    """

    def __init__(self, classes: int, heads: int, alpha: float) -> None:
        super().__init__(classes, heads, KEYS + 1)
        self.alpha = alpha
        self.centers = torch.linspace(0, 1, KEYS)
        score = -0.5 * ((self.centers - spread(heads).unsqueeze(-1)) / SIGMA).square()
        self.query.bias.data = nn.functional.pad(score, (0, 1)).reshape(-1)

    def density(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Return weights on the points."""
        distance = (examples.positions.unsqueeze(-1) - self.centers) * (KEYS - 1)
        near = torch.softmax(-0.5 * distance.square(), -1)
        keys = torch.cat([near, examples.values.unsqueeze(-1)], -1)
        scores = (queries @ keys.mT).masked_fill(~examples.mask.unsqueeze(1), -math.inf)
        return sf.rpm(sf.scores.Finite(scores), self.alpha)

    def context(self, attention: Any, examples: Examples) -> Tensor:
        """Return the weighted means of the observed values."""
        return (attention.probs * examples.values.unsqueeze(1)).sum(-1)


class OneBump(Attention):
    """Attend by a Gaussian (alpha 1) or a truncated parabola (alpha 2) for each head.

    The centre is the sigmoid of a linear function of the features, so that no head leaves the
    domain. Heads start spread over it.
    """

    def __init__(self, classes: int, heads: int, alpha: float) -> None:
        super().__init__(classes, heads, 2)
        self.alpha = alpha
        self.query.bias.data = bump_bias(spread(heads), SIGMA).reshape(-1)

    def density(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Return unimodal densities."""
        return sf.rpm(bump_score(queries), self.alpha)


class Mixture(Attention):
    """Attend by a mixture of eight Gaussians for each head, which start spread over the domain."""

    def __init__(self, classes: int, heads: int) -> None:
        super().__init__(classes, heads, 3 * COMPONENTS)
        loc = spread(heads * COMPONENTS).reshape(COMPONENTS, heads).T
        bias = nn.functional.pad(bump_bias(loc, SIGMA / 2), (0, 1))
        self.query.bias.data = bias.reshape(-1)

    def density(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Return mixtures."""
        queries = queries.unflatten(-1, (COMPONENTS, 3))
        return sf.Mixture(queries[..., 2], sf.rpm(bump_score(queries), 1.0))


class Kernel(Attention):
    """Attend by the softmax or sparsemax of a kernel expansion, whose weights are the queries."""

    def __init__(
        self, classes: int, heads: int, family: type[sf.KernelExp] | type[sf.KernelDeformedExp]
    ) -> None:
        super().__init__(classes, heads, POINTS)
        self.family = family
        self.points = torch.linspace(0, 1, POINTS)
        self.kernel = RBF(1, lengthscale=torch.tensor(LENGTHSCALE)).requires_grad_(False)
        # The quadrature nodes depend on the kernel and the points only: share them.
        self.mesh = family(torch.zeros(POINTS), self.points, self.kernel).mesh
        # With the usual initial weights all heads would start close to the uniform density.
        self.query.weight.data *= 8

    def density(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
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
    sigma = nn.functional.softplus(queries[..., 1]) + LEAST_SIGMA
    return sf.scores.Quadratic(queries[..., 0].sigmoid(), sigma=sigma)


def builders(classes: int, heads: int) -> dict[str, Callable[[], nn.Module]]:
    """Return the constructors of the networks by name."""
    sizes = (classes, heads)
    return {
        NONE: partial(NoAttention, classes),
        "discrete softmax": partial(Discrete, *sizes, 1.0),
        "discrete sparsemax": partial(Discrete, *sizes, 2.0),
        "Gaussian": partial(OneBump, *sizes, 1.0),
        "truncated parabola": partial(OneBump, *sizes, 2.0),
        "Gaussian mixture": partial(Mixture, *sizes),
        "kernel softmax": partial(Kernel, *sizes, sf.KernelExp),
        "kernel sparsemax": partial(Kernel, *sizes, sf.KernelDeformedExp),
    }


class Task(NamedTuple):
    """A data set, the share of its points that models see, and how models are trained on it."""

    data: str
    classes: int
    share: float
    heads: int
    epochs: int
    rate: float
    seeds: int


class Comparison(NamedTuple):
    """Runs by method, one for each seed; the mechanisms and the test examples of the first seed."""

    task: Task
    runs: dict[str, list[Run]]
    models: dict[str, Attention]
    test: Examples
    penalty: float  # of the regression
    errors: dict[float, float]  # at left-out training points, by penalty


def choose_penalty(seen: Series, generator: torch.Generator) -> dict[float, float]:
    """Return the error at a left-out fifth of the observations for each ridge penalty."""
    left_out = seen.mask & (torch.rand(seen.mask.shape, generator=generator) < 0.2)
    left_out[:, 0] = False  # a series needs an observation
    errors = {}
    for penalty in PENALTIES:
        regression = sf.attention.RidgeRegression(BASIS, penalty)
        kept = seen.mask & ~left_out
        value = regression.fit(seen.positions, seen.values.unsqueeze(-1), kept)
        missed = (value(seen.positions).squeeze(-1) - seen.values)[left_out]
        errors[penalty] = missed.square().mean().sqrt().item()
    return errors


def compare(task: Task) -> Comparison:
    """Train and test all methods; the seeds change the sampling, initial weights and order."""
    fit_part, test_part = (load_series(task.data, part) for part in ("TRAIN", "TEST"))
    generator = torch.Generator().manual_seed(0)
    errors = choose_penalty(observe(fit_part, task.share, generator), generator)
    penalty = min(errors, key=errors.__getitem__)
    methods = builders(task.classes, task.heads)
    runs: dict[str, list[Run]] = {name: [] for name in (LOGISTIC, *methods)}
    models, tests = {}, []
    for seed in range(task.seeds):
        generator = torch.Generator().manual_seed(seed)
        fit, test = (
            Examples.fit(observe(part, task.share, generator), penalty)
            for part in (fit_part, test_part)
        )
        tests.append(test)
        linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        linear.fit(fit.grid.numpy(), fit.labels.numpy())
        run = {"accuracy": 100 * linear.score(test.grid.numpy(), test.labels)}
        runs[LOGISTIC].append({**run, "parameters": linear[-1].coef_.size + task.classes})
        for name, build in methods.items():
            torch.manual_seed(seed)
            model = build()
            seconds = train(model, fit, task.epochs, seed, rate=task.rate)
            run = {"seconds": seconds, "parameters": parameters(model)}
            with torch.no_grad():
                run["accuracy"] = accuracy(model(test), test.labels)
                if isinstance(model, Attention):
                    run |= measure(model.attend(test), test)
                    models.setdefault(name, model)
            runs[name].append(run)
            print(f"  seed {seed + 1}, {name}: {run['accuracy']:.1f} %", flush=True)
    return Comparison(task, runs, models, tests[0], penalty, errors)


def measure(attention: Any, examples: Examples) -> Run:
    """Return the percentage of points with any weight or density, and a density's intervals."""
    if isinstance(attention, sf.SparseCategorical):
        result, read = {}, attention.probs > 0
    else:
        result = {"intervals": intervals(attention).double().mean().item()}
        read = attention.support.check(examples.positions.T.unsqueeze(-1)).movedim(0, -1)
    shares = (read & examples.mask.unsqueeze(1)).sum(-1) / examples.mask.sum(-1, keepdim=True)
    return {"read": 100 * shares.mean().item(), **result}


def intervals(attention: Any) -> Tensor:
    """Count the intervals of each support (B, heads)."""
    return (~attention.support.intervals[..., 0].isnan()).sum(-1)


def draw_attention(
    result: Comparison, names: Sequence[str], shown: Sequence[int], label: str
) -> Figure:
    """Draw where up to eight heads of the named mechanisms (rows) look in examples (columns)."""
    examples = result.test[torch.tensor(shown)]
    size = (WIDTH, 2.0 * len(names))
    figure, axes = plt.subplots(len(names), len(shown), figsize=size, sharex=True)
    every = max(1, result.task.heads // 8)
    for k, ax in enumerate(axes.flat):
        row, column = divmod(k, len(shown))
        one = examples[torch.tensor([column])]
        with torch.no_grad():
            attention: Any = result.models[names[row]].attend(one, every)
        if isinstance(attention, sf.SparseCategorical):
            attention = attention.probs[0, :, one.mask[0]]
        value = sf.attention.ValueFunction(BASIS, one.coefficients)
        plot_attention(
            attention,
            one.positions[one.mask],
            one.values[one.mask],
            value_function=lambda t, value=value: value(t[None]).reshape(-1),
            ax=ax,
            view=(-0.04, 1.04),
        )
        if row == 0:
            ax.set_title(f"{label} {int(one.labels) + 1}", loc="left")
        if row == len(names) - 1:
            ax.set_xlabel("position")
        if column == 0:
            ax.set_ylabel(names[row])
    return figure
