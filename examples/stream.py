"""A stage, and a command: questions to a stream of readings, some of them saturated.

`python -m examples.stream` trains all methods, prints the table of docs/tutorials/stream.md and
writes its picture to `demo/stream.png`.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from .look import Look
from .page import Picture, Prose, Section, Table
from .progress import Reporter
from .settings import Settings
from .stream_data import SAMPLINGS, Streams
from .stream_pictures import draw_stream
from .stream_training import Answers, Found, Plan, cells, compare, summary

__all__ = ["main", "stream", "verdict"]

_HEADER = ("method", "parameters", "seconds", *SAMPLINGS)
# Of the terminal, where lines are short.
_SHORT = ("method", "size", "as trained", "half", "gap", "low", "bursts")
_DENSE, _SPARSE, _BOX = "one head, softmax", "one head, sparsemax", "one head, α = ∞"
_RIVALS = ("discrete", "CNN", "larger CNN", "GRU")
# Of so many test streams, as many are drawn.
_FIRST, _SHOWN = 50, 3


def stream(settings: Settings, reporter: Reporter) -> Section:
    """Trains, tabulates and draws."""
    plan = Plan(settings.stream_seeds, settings.stream_epochs, True, streams=settings.streams)
    found = compare(plan, reporter)
    reporter.table(_SHORT, _short_rows(found))
    table, picture = _table(settings, found), _picture(found)
    parts: list[Prose | Table | Picture] = [*_task(), table, picture, *_caveats(found)]
    return Section("stream", "Questions to a stream", parts, summary(found))


def _short_rows(found: Found) -> list[list[str]]:
    """The spread over seeds is that of the first error."""
    rows = [[name, *cells(runs)] for name, runs in found.runs.items()]
    return [
        [name, size, first, *(x.split(" ")[0] for x in errors)]
        for name, size, _, first, *errors in rows
    ]


def _task() -> list[Prose]:
    return [
        Prose(
            "What was the mean from <i>a</i> to <i>b</i>? The stream is arterial blood pressure, "
            "2.8 heartbeats of a real recording (KDD-TSAD 135, from aeon), of which 96 noisy "
            "readings at random times are left; in a block outside the interval all of them are "
            "saturated, as when the line is flushed. The question is a midpoint and a width, and a "
            "small network makes heads of them. Continuous attention reads a value function "
            "fitted to the readings, 64 Gaussians by ridge regression; discrete attention weighs "
            "the readings, by how far they are from the midpoint and by what they say. The first "
            "60 % of the recording are for training, the last quarter for the test, where the "
            "readings may also be placed otherwise than in training."
        )
    ]


def _table(settings: Settings, found: Found) -> Table:
    return Table(
        f"Root mean squared error of the answers, whose standard deviation is {found.spread:.2f}, "
        f"after {settings.stream_epochs} epochs: mean and sample standard deviation over the seeds "
        f"({settings.stream_seeds}); parameters that are trained, processor seconds of a run.",
        _HEADER,
        [[name, *cells(runs)] for name, runs in found.runs.items()],
    )


def _picture(found: Found) -> Picture:
    readers = {name: found.readers[name] for name in (_DENSE, _SPARSE, _BOX)}
    streams = _nearest(found.tests[SAMPLINGS[0]][torch.arange(_FIRST)])
    return Picture(
        "stream",
        lambda look: draw_stream(look, readers, streams, found.penalty),
        "Three streams with a block of saturated readings; below them densities over the interval "
        "that is asked for, the dense one with tails into the block.",
        f"Of the first {_FIRST} test streams of the first seed, the {_SHOWN} whose saturated block "
        "(grey) is nearest to the interval asked for (between the dotted lines): readings, the "
        "value function, and the recording behind it (thin). Below, where the one head looks, "
        "shaded over the support: a softmax has tails into the block, a sparsemax ends sooner, and "
        "at α = ∞ the density is uniform on an interval.",
    )


def _nearest(streams: Streams) -> Streams:
    """Those whose block is nearest to the interval, in units of its width."""
    middle, width = streams.question.unbind(-1)
    distance = (streams.block - middle.unsqueeze(-1)).abs().amin(-1) / width
    return streams[distance.argsort()[:_SHOWN]]


def _caveats(found: Found) -> list[Prose]:
    return [
        Prose(verdict(found.runs)),
        Prose(
            "The answer is an expectation under a density over an interval, which is what "
            "continuous attention computes: a task made for it. Whoever knows at which value "
            "readings saturate would leave them out before any attention. All methods have the "
            "same highest learning rate here; <code>python -m examples.stream</code> trains "
            "more of them, for longer, at the best of two rates."
        ),
    ]


def verdict(runs: Mapping[str, Sequence[Answers]]) -> str:
    """What the numbers say, as they are."""
    same = SAMPLINGS[0]
    means = _means(runs, same)
    rest = []
    for sampling in SAMPLINGS[1:]:
        errors = _means(runs, sampling)
        least = min(errors, key=errors.__getitem__)
        rest.append(f"{least} ({sampling}, {errors[least]:.3f})")
    wins = sum(
        one.errors[same] < other.errors[same]
        for one, other in zip(runs[_SPARSE], runs[_DENSE], strict=True)
    )
    rivals = {name: x for name, x in means.items() if name.startswith(_RIVALS)}
    rival = min(rivals, key=rivals.__getitem__)
    best = min(means.keys() - rivals.keys(), key=means.__getitem__)
    return (
        f"With one head, sparsemax errs less than softmax in {wins} of {len(runs[_SPARSE])} seeds "
        f"({means[_SPARSE]:.3f} and {means[_DENSE]:.3f} on average): a dense tail reads the "
        f"saturated block. At α = ∞, where the density is uniform on an interval, the error is "
        f"{means[_BOX]:.3f}. The best continuous attention, picked after the fact, is {best} "
        f"({means[best]:.3f}), the best rival {rival} ({rivals[rival]:.3f}). With other samplings "
        f"than in training the least errors are those of {', '.join(rest)}."
    )


def _means(runs: Mapping[str, Sequence[Answers]], sampling: str) -> dict[str, float]:
    return {name: fmean(run.errors[sampling] for run in some) for name, some in runs.items()}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Questions to a stream of readings.")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of a run (20)")
    parser.add_argument("--few", action="store_true", help="the methods of the tour only")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, reporter = time.perf_counter(), Reporter()
    reporter.stage("Questions to a stream")
    found = compare(Plan(options.seeds, options.epochs, options.few, (1e-2, 3e-2)), reporter)
    reporter.table(_SHORT, _short_rows(found))
    reporter.note(f"{verdict(found.runs)} Standard deviation of the answers: {found.spread:.3f}.")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "stream.png"
    _picture(found).save(path, Look())
    reporter.note(f"{path}  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
