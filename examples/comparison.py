"""Trains every mechanism on a set of irregular series, seed by seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import sparsefam as sf

from .densities import Kernel, ManyBumps, OneBump
from .mechanisms import Attention, Discrete, Examples, NoAttention
from .progress import Reporter, RunBars
from .recordings import Observations, Recordings, load_recordings, observe
from .training import Run, logistic_regression, train

__all__ = [
    "LOGISTIC",
    "NONE",
    "Comparison",
    "Task",
    "builders",
    "choose_penalty",
    "compare",
    "intervals_read",
    "share_read",
    "value_basis",
]

LOGISTIC, NONE = "logistic regression", "no attention"
_BASIS_SIZE = 64
_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Task:
    """A data set, and how it is learned.

    Attributes:
        data: Name of the data set.
        classes: Number of classes.
        share: Share of the points that models see.
        heads: Number of attention heads.
        epochs: Passes over the training examples.
        rate: Learning rate.
        seeds: Repetitions.
    """

    data: str
    classes: int
    share: float
    heads: int
    epochs: int
    rate: float
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """What the comparison leaves behind.

    Attributes:
        task: What was compared on.
        runs: One run for each seed, by method.
        models: Mechanisms trained with the first seed.
        test: Test examples of the first seed.
        recordings: The whole test recordings.
        errors: Root mean squared error at left-out training points, by penalty.
        penalty: The penalty of least error, which is used.
    """

    task: Task
    runs: dict[str, list[Run]]
    models: dict[str, Attention]
    test: Examples
    recordings: Recordings
    errors: dict[float, float]
    penalty: float


def value_basis() -> sf.bases.GaussianRBF:
    """64 Gaussians over the domain, half as wide again as they are far apart."""
    return sf.bases.GaussianRBF.grid(_BASIS_SIZE, 1.5 / _BASIS_SIZE)


def builders(classes: int, heads: int) -> dict[str, Callable[[], nn.Module]]:
    """What makes each network that is compared."""
    sizes = (classes, heads)
    dense = (*sizes, value_basis())
    return {
        NONE: partial(NoAttention, classes),
        "discrete softmax": partial(Discrete, *sizes, 1.0),
        "discrete sparsemax": partial(Discrete, *sizes, 2.0),
        "Gaussian": partial(OneBump, *dense, 1.0),
        "truncated parabola": partial(OneBump, *dense, 2.0),
        "Gaussian mixture": partial(ManyBumps, *dense),
        "kernel softmax": partial(Kernel, *dense, sf.KernelExp),
        "kernel sparsemax": partial(Kernel, *dense, sf.KernelDeformedExp),
    }


def choose_penalty(
    observed: Observations, basis: sf.bases.Basis, generator: torch.Generator
) -> dict[float, float]:
    """Root mean squared error at left-out observations, a fifth of them, for each ridge penalty."""
    left_out = observed.mask & (torch.rand(observed.mask.shape, generator=generator) < 0.2)
    # The first observation always stays: a series needs one.
    left_out[:, 0] = False
    kept = observed.mask & ~left_out
    errors = {}
    for penalty in _PENALTIES:
        ridge = sf.attention.RidgeRegression(basis, penalty)
        value = ridge.fit(observed.positions, observed.values.unsqueeze(-1), kept)
        missed = (value(observed.positions).squeeze(-1) - observed.values)[left_out]
        errors[penalty] = missed.square().mean().sqrt().item()
    return errors


def compare(task: Task, reporter: Reporter) -> Comparison:
    """Trains and tests all methods; seeds change the sampling, the initialisation, the order.

    Args:
        task: Data, seeds, epochs, heads.
        reporter: Told of every epoch.

    Returns:
        The runs, and what pictures need.
    """
    recordings = load_recordings(task.data)
    basis = value_basis()
    generator = torch.Generator().manual_seed(0)
    errors = choose_penalty(observe(recordings[0], task.share, generator), basis, generator)
    penalty = min(errors, key=errors.__getitem__)
    reporter.note(f"ridge penalty {penalty:g}: error {errors[penalty]:.3f} at left-out points")
    methods = builders(task.classes, task.heads)
    runs: dict[str, list[Run]] = {name: [] for name in (LOGISTIC, *methods)}
    models, tests = {}, []
    with reporter.runs(task.seeds * len(methods), task.epochs) as bars:
        for seed in range(task.seeds):
            generator = torch.Generator().manual_seed(seed)
            fit, test = (
                Examples.fit(observe(part, task.share, generator), basis, penalty)
                for part in recordings
            )
            tests.append(test)
            runs[LOGISTIC].append(logistic_regression((fit, test)))
            for name, build in methods.items():
                torch.manual_seed(seed)
                model = build()
                runs[name].append(_train_one(model, name, (fit, test), task, seed, bars))
                if seed == 0 and isinstance(model, Attention):
                    models[name] = model
    return Comparison(task, runs, models, tests[0], recordings[1], errors, penalty)


def _train_one(
    model: nn.Module,
    name: str,
    data: tuple[Examples, Examples],
    task: Task,
    seed: int,
    bars: RunBars,
) -> Run:
    """A run, reported epoch by epoch."""
    name = f"seed {seed + 1}, {name}"
    bars.begin(name)
    generator = torch.Generator().manual_seed(seed)
    run = train(model, data, task.epochs, generator, bars.epoch, rate=task.rate)
    if isinstance(model, Attention):
        with torch.no_grad():
            attention = model.attend(data[1])
        counts = intervals_read(attention)
        mean = None if counts is None else counts.double().mean().item()
        run = replace(run, read=share_read(attention, data[1]), intervals=mean)
    bars.end(name, f"{100 * run.accuracy:.1f} % in {run.seconds:.1f} s")
    return run


def share_read(attention: sf.SparseDistribution, examples: Examples) -> float:
    """Share of the observed points that a head gives any weight or density, on average."""
    if isinstance(attention, sf.SparseCategorical):
        read = attention.probs > 0
    else:
        # (L, B, heads) to (B, heads, L)
        support: Any = attention.support
        read = support.check(examples.positions.T.unsqueeze(-1)).movedim(0, -1)
    shares = (read & examples.mask.unsqueeze(1)).sum(-1) / examples.mask.sum(-1, keepdim=True)
    return shares.mean().item()


def intervals_read(attention: sf.SparseDistribution) -> Tensor | None:
    """Number of intervals in the support of each head (B, heads); None: weights have none."""
    if isinstance(attention, sf.SparseCategorical):
        return None
    support: Any = attention.support
    present: Tensor = ~support.intervals[..., 0].isnan()
    return present.sum(-1)
