"""Nominal and measured coverage of supports by `SparseDensity`: `python -m benchmarks.coverage`.

Fits samples of the nine densities of `benchmarks.estimation`, and parts of real columns, with and
without `coverage`, and counts the observations held out that fall into the support. `--write` puts
the tables into docs/benchmarks.md.
"""

import statistics
import sys
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from sparsefam.estimators import SparseDensity, quadratic_score

from .estimation import DENSITIES, GRID, estimate_errors
from .harness import Table, in_processes, parser, show_and_write

__all__ = ["COLUMNS", "main", "tables"]

_COMMAND = "python -m benchmarks.coverage --write"
Array = NDArray[np.float64]
NOMINAL = (None, 0.95, 0.99)
# Observations of each sample of a density, the samples, and the new observations.
SIZES, SAMPLES, NEW = (150, 1000), 10, 4000
# The share of a real column that is fitted, and how often it is drawn.
SHARE, SPLITS = 0.8, 20
COLUMNS: dict[str, Callable[[], Array]] = {
    "petal length": lambda: load_iris().data[:, 2:3],
    "flavanoids": lambda: load_wine().data[:, 6:7],
    "concavity": lambda: load_breast_cancer().data[:, 6:7],
    "area": lambda: load_breast_cancer().data[:, 3:4],
    "body mass index": lambda: load_diabetes(scaled=False).data[:, 2:3],
    "petal length, width": lambda: load_iris().data[:, 2:4],
}


class Trial(NamedTuple):
    """A sample of a density or a split of a column, and the nominal coverage."""

    name: str
    size: int  # 0 for a column
    nominal: float | None
    seed: int


def _outcome(trial: Trial) -> tuple[float, ...]:
    """Return the measured coverage, and mass outside and squared error, or minus the score."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(trial.seed)
    if trial.size:
        law = DENSITIES[trial.name]
        x, new = (law.draw(count, rng)[:, None] for count in (trial.size, NEW))
    else:
        data = rng.permutation(COLUMNS[trial.name]())
        x, new = np.split(data, [round(SHARE * len(data))])
    model = SparseDensity(
        coverage=trial.nominal, inducing_points=50, random_state=trial.seed, verbose=False
    ).fit(x)
    covered = float((model.predict(new) > 0).mean())
    if not trial.size:
        return covered, -quadratic_score(model, new)
    errors = estimate_errors(law, np.exp(model.score_samples(GRID[:, None])))
    return covered, errors.outside, errors.squared


def tables(
    sizes: tuple[int, ...] = SIZES, samples: int = SAMPLES, splits: int = SPLITS, jobs: int = 2
) -> list[Table]:
    """Return a table for each number of observations, and one for the columns."""
    cases = [(name, size, samples) for size in sizes for name in DENSITIES]
    cases += [(name, 0, splits) for name in COLUMNS]
    trials = [
        Trial(name, size, nominal, seed)
        for (name, size, count), nominal in product(cases, NOMINAL)
        for seed in range(count)
    ]
    outcomes = dict(zip(trials, in_processes(_outcome, trials, jobs), strict=True))

    def row(name: str, size: int, count: int) -> list[str]:
        cells = []
        for nominal in NOMINAL:
            mine = [outcomes[Trial(name, size, nominal, seed)] for seed in range(count)]
            covered, *rest = map(statistics.mean, zip(*mine, strict=True))
            cells.append(" / ".join([f"{covered:.1%}", *(f"{value:.2g}" for value in rest)]))
        return [name, *cells]

    header = [str(nominal) for nominal in NOMINAL]
    out = []
    for size in sizes:
        title = (
            f"{size} observations, means of {samples} samples: share of {NEW} new observations in "
            "the support / mass off the true support / integrated squared error, by `coverage`."
        )
        out.append(Table(title, ["density", *header], [row(n, size, samples) for n in DENSITIES]))
    title = (
        f"Columns of real data, means of {splits} splits, {SHARE:.0%} of the rows fitted: share of "
        "the other rows in the support / minus `quadratic_score`, by `coverage`."
    )
    return [*out, Table(title, ["column", *header], [row(name, 0, splits) for name in COLUMNS])]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True)
    options.add_argument("--jobs", type=int, default=2, help="processes (2)")
    chosen = options.parse_args(arguments)
    show_and_write("coverage", _COMMAND, tables(jobs=chosen.jobs), chosen.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
