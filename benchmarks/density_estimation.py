"""How good density estimates with true zeros are: `python -m benchmarks.density_estimation`.

Samples from densities with compact or separated supports; the errors of `SparseDensity` against
those of kernel density estimates, and which of the aims stated below they meet. `--write` puts the
tables into docs/benchmarks.md.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import track

from sparsefam.estimators import SparseDensity

from .estimation_aims import AIMS, verdicts
from .estimation_laws import DENSITIES, GRID, Errors, errors
from .estimation_methods import METHODS, MISSING, OURS
from .report import Table, console, write_section

__all__ = ["Trial", "main", "medians", "trial"]

_COMMAND = "python -m benchmarks.density_estimation --write"
SIZES = (100, 1000, 10000)
# Threads of the libraries below numpy, in processes of their own.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Trial(NamedTuple):
    """One sample, which all methods are fitted to."""

    size: int
    density: str
    seed: int


class Outcome(NamedTuple):
    """Errors by method, and the seconds of one core that our fit took."""

    errors: dict[str, Errors]
    seconds: float


def trial(which: Trial) -> Outcome:
    """Fits every method to a sample."""
    torch.set_num_threads(1)
    law, found, seconds = DENSITIES[which.density], {}, 0.0
    x = law.draw(which.size, np.random.default_rng(which.seed))
    for name, fit in METHODS.items():
        start = time.thread_time()
        estimate = fit(x)
        if name == OURS:
            seconds = time.thread_time() - start
        found[name] = errors(law, estimate(GRID))
    return Outcome(found, seconds)


def _outcomes(trials: Sequence[Trial], jobs: int) -> Iterator[Outcome]:
    """In the order of the trials, by several processes if jobs are more than one."""
    if jobs == 1:
        yield from map(trial, trials)
        return
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    # Forked processes would share what torch's threads hold.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(trial, trials)


def medians(outcomes: Sequence[Outcome]) -> dict[str, Errors]:
    """Of each method's errors."""
    return {
        name: Errors(*map(statistics.median, zip(*(o.errors[name] for o in outcomes), strict=True)))
        for name in METHODS
    }


def _table(size: int, found: dict[str, dict[str, Errors]], rounds: int) -> Table:
    rows = [
        [name, *(f"{e.squared:.2g} / {e.hellinger:.2g} / {e.outside:.1g}" for e in row.values())]
        for name, row in found.items()
    ]
    title = (
        f"{size} observations, medians of {rounds} samples: integrated squared error / Hellinger "
        "distance / mass off the true support."
    )
    return Table(title, ["density", *METHODS], rows)


def _compared(sizes: Sequence[int], rounds: int, jobs: int) -> list[Table | str]:
    """Tables of errors, how long our fits took, and the verdicts."""
    # The longest first, so that no process is alone with one of them at the end.
    trials = [Trial(*t) for t in product(sorted(sizes, reverse=True), DENSITIES, range(rounds))]
    silent = not console.is_terminal
    done = track(
        _outcomes(trials, jobs),
        "fits",
        len(trials),
        console=console,
        transient=True,
        disable=silent,
    )
    outcomes = dict(zip(trials, done, strict=True))
    parts: list[Table | str] = []
    every = {}
    for size in sizes:
        mine = {
            name: [outcomes[Trial(size, name, seed)] for seed in range(rounds)]
            for name in DENSITIES
        }
        every[size] = {name: medians(row) for name, row in mine.items()}
        parts.append(_table(size, every[size], rounds))
        slowest = max(statistics.median(o.seconds for o in row) for row in mine.values())
        parts.append(f"SparseDensity takes at most {slowest:.1f} s on one core, settings chosen.")
    rows = [[aim.text, *verdicts(aim, every).values()] for aim in AIMS]
    title = "Of how many medians an aim holds, and the worst of those for which it does not."
    return [*parts, Table(title, ["aim", *(f"{size} observations" for size in sizes)], rows)]


def _times() -> Table:
    """Of single fits to 10000 observations with 100 inducing points."""
    rng, rows = np.random.default_rng(0), []
    SparseDensity(inducing_points=10).fit(rng.random((50, 1)))  # what only a first fit takes
    for name, dim in (("two parabolas", 1), ("two uniforms", 1), ("two parabolas", 2)):
        x = np.stack([DENSITIES[name].draw(10000, rng) for _ in range(dim)], 1)
        cells = [f"{name}, {dim}"]
        for given in ({"bandwidth": 0.12, "penalty": 1e-5}, {"bandwidth": 0.12}, {}):
            start = time.thread_time()
            SparseDensity(inducing_points=100, random_state=0, **given).fit(x)
            cells.append(f"{time.thread_time() - start:.1f}")
        rows.append(cells)
    title = (
        "Seconds of one core for 10000 observations and 100 inducing points, by what is given, in "
        "a process that has made a fit."
    )
    return Table(title, ["density, columns", "bandwidth and penalty", "bandwidth", "nothing"], rows)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="samples of each density (20)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    parts = _compared(options.sizes, options.rounds, options.jobs)
    parts += [_times(), *([MISSING] if MISSING else [])]
    for part in parts:
        if isinstance(part, Table):
            part.show()
        else:
            print(part)
    if options.write:
        texts = [part.markdown() if isinstance(part, Table) else part for part in parts]
        write_section("density estimation", _COMMAND, texts)


if __name__ == "__main__":
    main()
