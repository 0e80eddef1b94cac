"""Trains the methods on streams with questions, and asks them about other samplings."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import sparsefam as sf

from .progress import Reporter, RunBars
from .stream_data import SAMPLINGS, Streams, load_pressure, parts, read_streams
from .stream_models import Reader, basis, methods

__all__ = ["Answers", "Found", "Plan", "cell", "cells", "compare", "error", "summary", "train"]

_BATCH = 128
_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True)
class Plan:
    """How much to train.

    Attributes:
        seeds: Repetitions: readings, questions, initialisation.
        epochs: Passes over the training streams.
        few: Whether to train only some of the methods.
        peaks: Highest learning rates, of which each method takes the best in validation.
        streams: Number of streams to train on; an eighth as many to validate, a quarter to test.
    """

    seeds: int
    epochs: int
    few: bool = False
    peaks: tuple[float, ...] = (3e-2,)
    streams: int = 4000


@dataclass(frozen=True)
class Answers:
    """A method in one seed: error for each sampling, seconds of training, parameters."""

    errors: dict[str, float]
    seconds: float
    parameters: int


@dataclass(frozen=True)
class Found:
    """What is left of a comparison.

    Attributes:
        runs: One for each seed, by method.
        readers: Attention of the first seed, trained.
        tests: Test streams of the first seed, by sampling.
        penalty: The ridge penalty, which did best in validation.
        spread: Standard deviation of the answers.
    """

    runs: dict[str, list[Answers]]
    readers: dict[str, Reader]
    tests: dict[str, Streams]
    penalty: float
    spread: float


@dataclass(frozen=True)
class _Data:
    """The streams of one seed."""

    fit: Streams
    validation: Streams
    tests: dict[str, Streams]


def compare(plan: Plan, reporter: Reporter) -> Found:
    """Trains every method in every seed.

    Args:
        plan: How much.
        reporter: Told of every epoch.
    """
    makers = methods(plan.few)
    runs: dict[str, list[Answers]] = {name: [] for name in makers}
    readers, first = {}, None
    penalty = _choose_penalty(plan)
    reporter.note(f"ridge penalty {penalty:g}")
    with reporter.runs(plan.seeds * len(makers) * len(plan.peaks), plan.epochs) as bars:
        for seed in range(plan.seeds):
            data = _data(plan, seed, penalty)
            first = first or data
            for name, make in makers.items():
                model, answers = _best(name, make, data, plan, seed, bars)
                runs[name].append(answers)
                if seed == 0 and isinstance(model, Reader):
                    readers[name] = model
    if first is None:
        raise ValueError(f"plan must have at least one seed, got {plan.seeds}")
    spread = first.tests[SAMPLINGS[0]].labels.std().item()
    return Found(runs, readers, first.tests, penalty, spread)


def _choose_penalty(plan: Plan) -> float:
    """Of the value function whose mean over the asked interval is nearest to the answer."""
    generator = torch.Generator().manual_seed(0)
    streams = read_streams(parts(load_pressure())[1], plan.streams // 8, generator)
    middle, width = streams.question.split(1, -1)
    inside = middle + width * ((torch.arange(64) + 0.5) / 64 - 0.5)
    errors = {}
    for penalty in _PENALTIES:
        fitted = streams.fitted(sf.attention.RidgeRegression(basis(), penalty))
        value = sf.attention.ValueFunction(basis(), fitted.coefficients)
        means = value(inside).mean((1, 2))
        errors[penalty] = (means - streams.labels).square().mean().item()
    return min(errors, key=errors.__getitem__)


def _data(plan: Plan, seed: int, penalty: float) -> _Data:
    generator = torch.Generator().manual_seed(seed)
    regression = sf.attention.RidgeRegression(basis(), penalty)
    fit, validation, test = parts(load_pressure())
    return _Data(
        read_streams(fit, plan.streams, generator).fitted(regression),
        read_streams(validation, plan.streams // 8, generator).fitted(regression),
        {
            name: read_streams(test, plan.streams // 4, generator, name).fitted(regression)
            for name in SAMPLINGS
        },
    )


def _best(
    name: str,
    make: Callable[[], nn.Module],
    data: _Data,
    plan: Plan,
    seed: int,
    bars: RunBars,
) -> tuple[nn.Module, Answers]:
    """The method at its best peak, and its answers to the test."""
    found: list[tuple[float, float, nn.Module]] = []
    for peak in plan.peaks:
        title = f"seed {seed + 1}, {name}"
        bars.begin(title)
        torch.manual_seed(seed)
        model = make()
        seconds = train(model, data.fit, plan.epochs, peak, seed, bars.epoch)
        validated = error(model, data.validation)
        bars.end(title, f"error {validated:.3f} in validation, {seconds:.1f} s")
        found.append((validated, seconds, model))
    _, seconds, model = min(found, key=lambda one: one[0])
    errors = {sampling: error(model, streams) for sampling, streams in data.tests.items()}
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return model, Answers(errors, seconds, trained)


def train(
    model: nn.Module,
    streams: Streams,
    epochs: int,
    peak: float,
    seed: int,
    on_epoch: Callable[[int, float], None],
) -> float:
    """Adam on the squared error, the rate rising to `peak` and falling; the seconds it took."""
    optimizer = torch.optim.Adam(model.parameters(), lr=peak)
    schedule = OneCycleLR(optimizer, peak, epochs * math.ceil(len(streams) / _BATCH))
    generator = torch.Generator().manual_seed(seed)
    start = time.process_time()
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(streams), generator=generator).split(_BATCH):
            batch = streams[index]
            loss: Tensor = (model(batch) - batch.labels).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        on_epoch(epoch + 1, math.sqrt(total / len(streams)))
    return time.process_time() - start


def error(model: nn.Module, streams: Streams) -> float:
    """Root mean squared error of the answers."""
    with torch.no_grad():
        squares: Tensor = (model(streams) - streams.labels).square()
    return squares.mean().sqrt().item()


def cells(runs: list[Answers]) -> list[str]:
    """A row of the table: parameters, seconds, the mean error for each sampling."""
    first = [str(runs[0].parameters), f"{fmean(run.seconds for run in runs):.1f}"]
    errors = [[run.errors[name] for run in runs] for name in SAMPLINGS]
    return first + [cell(values) for values in errors]


def cell(values: Sequence[float]) -> str:
    sd = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{sd}"


def summary(found: Found) -> dict[str, Any]:
    """The comparison as numbers for a program."""
    return {
        "penalty": found.penalty,
        "spread": found.spread,
        "methods": [
            {
                "name": name,
                "parameters": runs[0].parameters,
                "seconds": [run.seconds for run in runs],
                "rmse": {s: [run.errors[s] for run in runs] for s in SAMPLINGS},
            }
            for name, runs in found.runs.items()
        ],
    }
