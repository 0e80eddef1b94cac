"""Train the networks of the examples, tabulate their runs, and report progress."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, stdev

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from .data import Batch

# The measurements of one run by name. A quantity that a method does not have is absent.
Run = dict[str, float]
# Called without an argument after each epoch, with a line to print after each run.
Step = Callable[..., None]


def silent(*_: str) -> None:
    """Report nothing."""


def train(
    model: nn.Module,
    data: Batch,
    epochs: int,
    seed: int,
    step: Step = silent,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    rate: float = 1e-3,
    peak: float | None = None,
    batch: int = 32,
) -> float:
    """Train a model by Adam and return the processor time in seconds.

    Args:
        model: Maps a batch to predictions.
        data: Training examples.
        epochs: Passes over the training examples.
        seed: Shuffles them.
        step: Called after each epoch.
        loss: Loss of predictions and labels.
        rate: Learning rate, constant unless `peak` is given.
        peak: Highest learning rate of a one-cycle schedule, which rises and falls.
        batch: Number of examples in a batch.
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
        step()
    model.eval()
    return time.process_time() - start


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

    Args:
        runs: The runs of each method.
        columns: Quantity and format by title; a format that begins with ± adds the sample standard
            deviation.
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


def contest(
    runs: Mapping[str, Sequence[Run]], key: str, ours: Sequence[str], form: str, sign: int = 1
) -> str:
    """Compare the best of some methods, by their mean, with the best of the others.

    Args:
        runs: The runs of each method, one for each seed.
        key: The quantity that is compared.
        ours: Names of the first group.
        form: Format of the quantity.
        sign: 1 if more is better, -1 if less is.
    """
    means = {name: sign * fmean(run[key] for run in some) for name, some in runs.items()}
    first = max((name for name in runs if name in ours), key=means.__getitem__)
    other = max((name for name in runs if name not in ours), key=means.__getitem__)
    pairs = zip(runs[first], runs[other], strict=True)
    wins = sum(sign * a[key] > sign * b[key] for a, b in pairs)
    mean, rival = (format(sign * means[name], form) for name in (first, other))
    return (
        f"{first} ({mean}) against {other} ({rival}), ahead in {wins} of {len(runs[first])} seeds"
    )


class Reporter:
    """Print titles, lines and tables, and show a bar with the time left during long stages.

    Args:
        console: Where to write; default the terminal. Without a screen there is no bar.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def stage(self, title: str) -> None:
        """Print the title of a stage."""
        self.console.print(title, style="bold")

    def note(self, line: str) -> None:
        """Print a line."""
        self.console.print(f"  {line}", soft_wrap=True, markup=False)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; its first column names the row."""
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for first, *rest in (header, *rows):
            cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            self.note("  ".join([first.ljust(widths[0]), *cells]))

    @contextmanager
    def steps(self, count: int) -> Iterator[Step]:
        """Show a bar of `count` steps; yield the function that advances it.

        Called with a line, the function prints the line and the time since the last one.
        """
        live = self.console.is_terminal
        with Progress(console=self.console, transient=True, disable=not live) as bar:
            task, last = bar.add_task("  time left", total=count), time.perf_counter()

            def step(line: str | None = None) -> None:
                nonlocal last
                if line is None:
                    bar.advance(task)
                else:
                    now = time.perf_counter()
                    self.note(f"{line} ({now - last:.1f} s)")
                    last = now

            yield step
