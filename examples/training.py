"""Training and testing of a classifier, and the logistic regression it is compared with."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ConstantLR, OneCycleLR

from .batches import Batch
from .mechanisms import Examples

__all__ = ["Run", "accuracy_cell", "logistic_regression", "summary", "train"]

AnyBatch = TypeVar("AnyBatch", bound=Batch)

_BATCH = 32


@dataclass(frozen=True)
class Run:
    """One training: its outcome, what it cost, and what attention reads.

    Attributes:
        accuracy: Share of the test examples that are right.
        seconds: Processor time of training, in seconds.
        parameters: How many numbers are trained.
        read: Share of the observed points that a head attends to; None without attention.
        intervals: Number of intervals in the support of a head; None without a density.
    """

    accuracy: float
    seconds: float
    parameters: int
    read: float | None = None
    intervals: float | None = None


def train(
    model: nn.Module,
    data: tuple[AnyBatch, AnyBatch],
    epochs: int,
    generator: torch.Generator,
    on_epoch: Callable[[int, float], None],
    peak: float | None = None,
    rate: float = 1e-3,
) -> Run:
    """Trains by Adam and tests after the last epoch.

    Args:
        model: Maps examples to logits, classes along the first dimension after the batch.
        data: Training and test examples.
        epochs: Passes over the training examples.
        generator: Shuffles them.
        on_epoch: Called with the number of the epoch that ended and its mean loss.
        peak: The learning rate rises to this and falls again; None: it stays.
        rate: The learning rate that stays.

    Returns:
        Test accuracy, seconds, parameters.
    """
    fit, test = data
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * math.ceil(len(fit) / _BATCH)
    schedule = OneCycleLR(optimizer, peak, steps) if peak else ConstantLR(optimizer, 1.0)
    model.train()
    start = time.process_time()
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(fit), generator=generator).split(_BATCH):
            batch = fit[index]
            loss = cross_entropy(model(batch), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        on_epoch(epoch + 1, total / len(fit))
    seconds = time.process_time() - start
    model.eval()
    with torch.no_grad():
        return Run(_share_right(model(test), test), seconds, _parameters(model))


def logistic_regression(data: tuple[Examples, Examples]) -> Run:
    """Multinomial logistic regression on the standardised interpolated series.

    Half the squared norm of the weights is added to the summed loss: the usual default strength.
    """
    fit, test = data
    start = time.process_time()
    center, spread = fit.grid.mean(0), fit.grid.std(0)
    model = nn.Linear(fit.grid.shape[-1], int(fit.labels.max()) + 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    x = (fit.grid - center) / spread
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = model.weight.square().sum() / 2
        loss: Tensor = cross_entropy(model(x), fit.labels, reduction="sum") + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    seconds = time.process_time() - start
    with torch.no_grad():
        right = _share_right(model((test.grid - center) / spread), test)
    return Run(right, seconds, _parameters(model))


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _share_right(logits: Tensor, examples: Batch) -> float:
    return (logits.argmax(1) == examples.labels).float().mean().item()


def summary(runs: list[Run]) -> dict[str, Any]:
    """The runs of a method, one for each seed, as numbers for a program."""
    accuracy = [run.accuracy for run in runs]
    return {
        "accuracy": accuracy,
        "mean": fmean(accuracy),
        "sd": stdev(accuracy) if len(accuracy) > 1 else None,
        "parameters": runs[0].parameters,
        "seconds": [run.seconds for run in runs],
        "mean_seconds": fmean(run.seconds for run in runs),
    }


def accuracy_cell(found: dict[str, Any]) -> str:
    """Mean and sample standard deviation of a summary, in percent."""
    sd = "" if found["sd"] is None else f" ± {100 * found['sd']:.1f}"
    return f"{100 * found['mean']:.1f}{sd}"
