"""Train the networks of the examples and tabulate their runs."""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

import torch
from scipy.stats import ttest_1samp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from .data import Batch

# The measurements of one run by name. A quantity that a method does not have is absent.
Run = dict[str, float]


def train(
    model: nn.Module,
    data: Batch,
    epochs: int,
    seed: int,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    rate: float = 1e-3,
    peak: float | None = None,
    batch: int = 32,
) -> float:
    """Train a model by Adam and return the processor time in seconds.

    The rate is constant unless `peak`, the highest rate of a one-cycle schedule, is given. The seed
    shuffles the examples.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=peak or rate)
    schedule = OneCycleLR(optimizer, peak, epochs * math.ceil(len(data) / batch)) if peak else None
    generator = torch.Generator().manual_seed(seed)
    model.train()
    start = time.process_time()
    for _ in range(epochs):
        for index in torch.randperm(len(data), generator=generator).split(batch):
            examples = data[index]
            optimizer.zero_grad()
            loss(model(examples), examples.labels).backward()
            optimizer.step()
            if schedule:
                schedule.step()
    model.eval()
    return time.process_time() - start


def positive(text: str) -> int:
    """Return a number of a command line, which must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the percentage of correct answers; the classes are the second dimension."""
    return 100 * (logits.argmax(1) == labels).float().mean().item()


def parameters(model: nn.Module) -> int:
    """Count the trained numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def tabulate(
    runs: Mapping[str, Sequence[Run]], columns: Mapping[str, tuple[str, str]]
) -> tuple[list[str], list[list[str]]]:
    """Return a header and a row of mean values for each method.

    Columns are given by title: quantity and format. A format that begins with ± adds the sample
    standard deviation.
    """
    table = []
    for name, some in runs.items():
        row = [name]
        for key, form in columns.values():
            values = [run[key] for run in some if key in run]
            cell = format(fmean(values), form.lstrip("±")) if values else "–"
            if form.startswith("±") and len(values) > 1:
                cell += f" ± {stdev(values):{form[1:]}}"
            row.append(cell)
        table.append(row)
    return ["method", *columns], table


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; its first column names the row."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for first, *rest in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  " + "  ".join([first.ljust(widths[0]), *cells]), flush=True)


def contest(
    runs: Mapping[str, Sequence[Run]], key: str, ours: Sequence[str], form: str, sign: int = 1
) -> str:
    """Compare the best of our methods, by the mean of a quantity, with the best of the others.

    More is better if the sign is 1, less if it is -1. From three seeds on, the mean difference has
    its standard error and the p-value of a paired t test.
    """
    means = {name: sign * fmean(run[key] for run in some) for name, some in runs.items()}
    first = max((name for name in runs if name in ours), key=means.__getitem__)
    other = max((name for name in runs if name not in ours), key=means.__getitem__)
    pairs = zip(runs[first], runs[other], strict=True)
    gains = [sign * (a[key] - b[key]) for a, b in pairs]
    mean, rival = (format(sign * means[name], form) for name in (first, other))
    wins = f"ahead in {sum(gain > 0 for gain in gains)} of {len(gains)} seeds"
    if len(gains) > 2:
        error, p = stdev(gains) / math.sqrt(len(gains)), ttest_1samp(gains, 0).pvalue
        wins += f" by {fmean(gains):{form}} ± {error:{form}} (p = {p:.1g})"
    return f"{first} ({mean}) against {other} ({rival}), {wins}"
