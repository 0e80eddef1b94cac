"""Errors of `SparseDensity` and of kernel density estimates: `python -m benchmarks.estimation`.

Draws samples from densities with compact or separated supports. `--write` puts the tables into
docs/benchmarks.md.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from .harness import Table, in_processes, parser, show_and_write
from .rivals import DENSITY_ESTIMATES

_COMMAND = "python -m benchmarks.estimation --write"
Array = NDArray[np.float64]
GRID = np.linspace(-0.5, 1.5, 4001)
# Observations, and samples of each density.
SIZES = {100: 10, 1000: 10, 10000: 5}
OURS = "SparseDensity"


class Errors(NamedTuple):
    """Integrated squared error, Hellinger distance, and mass off the true support."""

    squared: float
    hellinger: float
    outside: float


class MixtureOfBetas(NamedTuple):
    """A mixture of beta densities on intervals.

    Attributes:
        parts: (weight, lower end, upper end, a, b) of each.
    """

    parts: Sequence[tuple[float, float, float, float, float]]

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw (count,) numbers."""
        which = rng.choice(len(self.parts), count, p=[part[0] for part in self.parts])
        _, low, high, a, b = np.array(self.parts)[which].T
        return np.asarray(low + (high - low) * rng.beta(a, b))

    def density(self, t: Array) -> Array:
        """Return the density at t."""
        total = np.zeros_like(t)
        for weight, low, high, a, b in self.parts:
            total += weight * stats.beta(a, b, low, high - low).pdf(t)
        return np.where(np.isfinite(total), total, 0.0)

    def inside(self, t: Array) -> NDArray[np.bool_]:
        """Return whether t lies in the support."""
        return np.any([(low <= t) & (t <= high) for _, low, high, _, _ in self.parts], axis=0)


# Beta(1, 1) is uniform, (2, 2) a parabola, (3, 3) a biweight, (4, 4) a triweight, (1, 2) a ramp.
DENSITIES = {
    "parabola": MixtureOfBetas([(1, 0, 1, 2, 2)]),
    "biweight": MixtureOfBetas([(1, 0, 1, 3, 3)]),
    "uniform": MixtureOfBetas([(1, 0, 1, 1, 1)]),
    "ramp": MixtureOfBetas([(1, 0, 1, 1, 2)]),
    "two parabolas": MixtureOfBetas([(0.6, 0.15, 0.41, 2, 2), (0.4, 0.67, 0.83, 2, 2)]),
    "two uniforms": MixtureOfBetas([(0.5, 0, 0.3, 1, 1), (0.5, 0.6, 1, 1, 1)]),
    "three parabolas": MixtureOfBetas(
        [(0.4, 0, 0.3, 2, 2), (0.4, 0.4, 0.7, 2, 2), (0.2, 0.85, 1, 2, 2)]
    ),
    "uniform and triweight": MixtureOfBetas([(0.7, 0, 0.4, 1, 1), (0.3, 0.6, 1, 4, 4)]),
    "skewed pair": MixtureOfBetas([(0.5, 0, 0.4, 2, 5), (0.5, 0.55, 1, 5, 2)]),
}


def estimate_errors(law: MixtureOfBetas, estimate: Array) -> Errors:
    """Return the errors of an estimate on the grid."""
    step, true = GRID[1] - GRID[0], law.density(GRID)
    squared = float(((estimate - true) ** 2).sum() * step)
    hellinger = float(np.sqrt(((np.sqrt(estimate) - np.sqrt(true)) ** 2).sum() * step / 2))
    return Errors(squared, hellinger, float(estimate[~law.inside(GRID)].sum() * step))


def _trial(trial: tuple[int, str, int]) -> tuple[dict[str, Errors], float]:
    """Return the errors by method, and the processor seconds of ours, by size, density and seed."""
    torch.set_num_threads(1)
    size, density, seed = trial
    law, errors, seconds = DENSITIES[density], {}, 0.0
    x = law.draw(size, np.random.default_rng(seed))
    for name, fit in DENSITY_ESTIMATES.items():
        start = time.thread_time()
        estimate = fit(x)
        if name == OURS:
            seconds = time.thread_time() - start
        errors[name] = estimate_errors(law, estimate(GRID))
    return errors, seconds


def tables(sizes: dict[int, int], jobs: int = 2) -> list[Table]:
    """Return the medians of the errors for each number of observations, and the aims."""
    trials = [
        (size, density, seed)
        for size, rounds in sorted(sizes.items(), reverse=True)  # the longest first
        for density, seed in product(DENSITIES, range(rounds))
    ]
    outcomes = dict(zip(trials, in_processes(_trial, trials, jobs), strict=True))
    out = []
    for size, rounds in sizes.items():
        rows, slowest = [], 0.0
        for density in DENSITIES:
            mine = [outcomes[size, density, seed] for seed in range(rounds)]
            row = {
                name: Errors(*map(statistics.median, zip(*(e[name] for e, _ in mine), strict=True)))
                for name in DENSITY_ESTIMATES
            }
            cells = [f"{e.squared:.2g} / {e.hellinger:.2g} / {e.outside:.1g}" for e in row.values()]
            rows.append([density, *cells])
            slowest = max(slowest, statistics.median(seconds for _, seconds in mine))
        title = (
            f"{size} observations, medians of {rounds} samples: integrated squared error / "
            "Hellinger distance / mass off the true support. SparseDensity takes at most "
            f"{slowest:.1f} s on one core."
        )
        out.append(Table(title, ["density", *DENSITY_ESTIMATES], rows))
    return out


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True)
    options.add_argument("--jobs", type=int, default=2, help="processes (2)")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    out = tables(SIZES, chosen.jobs)
    show_and_write("density estimation", _COMMAND, out, chosen.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
