"""How good density estimates with true zeros are: `python -m benchmarks.density_estimation`.

Samples from densities with compact or separated supports; the errors of `SparseDensity` against
those of kernel density estimates. `--write` puts the tables into docs/benchmarks.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.neighbors import KernelDensity

from sparsefam.estimators import SparseDensity

from .report import Table, following, write_section

__all__ = ["DENSITIES", "Law", "METHODS", "errors", "main"]

Array = NDArray[np.float64]
_COMMAND = "python -m benchmarks.density_estimation --write"
SIZES = (100, 1000, 10000)
GRID = np.linspace(-1, 2, 6001)
# Bandwidths of the cross-validated rival, in standard deviations of the data.
_SHARES = np.geomspace(0.02, 1.0, 12)


class Law(NamedTuple):
    """A mixture of beta densities on intervals.

    Attributes:
        parts: (weight, lower end, upper end, a, b) of each.
    """

    parts: Sequence[tuple[float, float, float, float, float]]

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draws (count,)."""
        weights = [part[0] for part in self.parts]
        which = rng.choice(len(self.parts), count, p=weights)
        _, low, high, a, b = np.array(self.parts)[which].T
        return np.asarray(low + (high - low) * rng.beta(a, b))

    def at(self, t: Array) -> Array:
        """Densities."""
        total = np.zeros_like(t)
        for weight, low, high, a, b in self.parts:
            total += weight * stats.beta(a, b, low, high - low).pdf(t)
        return total

    def inside(self, t: Array) -> NDArray[np.bool_]:
        """What the support contains."""
        found = np.zeros(t.shape, bool)
        for _, low, high, _, _ in self.parts:
            found |= (low <= t) & (t <= high)
        return found


DENSITIES = {
    "parabola": Law([(1, 0, 1, 2, 2)]),
    "biweight": Law([(1, 0, 1, 3, 3)]),
    "uniform": Law([(1, 0, 1, 1, 1)]),
    "ramp": Law([(1, 0, 1, 1, 2)]),
    "two parabolas": Law([(0.6, 0.15, 0.41, 2, 2), (0.4, 0.67, 0.83, 2, 2)]),
    "two uniforms": Law([(0.5, 0, 0.3, 1, 1), (0.5, 0.6, 1, 1, 1)]),
    "three parabolas": Law([(0.4, 0, 0.3, 2, 2), (0.4, 0.4, 0.7, 2, 2), (0.2, 0.85, 1, 2, 2)]),
    "uniform and triweight": Law([(0.7, 0, 0.4, 1, 1), (0.3, 0.6, 1, 4, 4)]),
    "skewed pair": Law([(0.5, 0, 0.4, 2, 5), (0.5, 0.55, 1, 5, 2)]),
}


def _ours(x: Array) -> Callable[[Array], Array]:
    model = SparseDensity().fit(x[:, None])
    return lambda t: np.asarray(np.exp(model.score_samples(t[:, None])))


def _scott(x: Array) -> Callable[[Array], Array]:
    return stats.gaussian_kde(x, "scott")  # type: ignore[no-any-return]


def _silverman(x: Array) -> Callable[[Array], Array]:
    return stats.gaussian_kde(x, "silverman")  # type: ignore[no-any-return]


def _epanechnikov(x: Array) -> Callable[[Array], Array]:
    """With the bandwidth under which held-out observations are most likely."""
    folds = np.arange(len(x)) % 5
    scores = []
    for width in _SHARES * x.std():
        total = 0.0
        for fold in range(5):
            model = KernelDensity(kernel="epanechnikov", bandwidth=width)
            total += model.fit(x[folds != fold, None]).score(x[folds == fold, None])
        scores.append(total)
    width = float((_SHARES * x.std())[int(np.argmax(scores))])
    model = KernelDensity(kernel="epanechnikov", bandwidth=width).fit(x[:, None])
    return lambda t: np.asarray(np.exp(model.score_samples(t[:, None])))


METHODS: dict[str, Callable[[Array], Callable[[Array], Array]]] = {
    "SparseDensity": _ours,
    "Gaussian, Scott": _scott,
    "Gaussian, Silverman": _silverman,
    "Epanechnikov, cross-validated": _epanechnikov,
}


def errors(law: Law, found: Array) -> tuple[float, float, float]:
    """Integrated squared error, Hellinger distance, and the mass off the true support."""
    step, true = GRID[1] - GRID[0], law.at(GRID)
    true = np.where(np.isfinite(true), true, 0.0)
    squared = float(((found - true) ** 2).sum() * step)
    hellinger = float(np.sqrt(((np.sqrt(found) - np.sqrt(true)) ** 2).sum() * step / 2))
    return squared, hellinger, float(found[~law.inside(GRID)].sum() * step)


def _table(size: int, rounds: int) -> tuple[Table, float]:
    """Medians over rounds, each method on the same samples; and the slowest median fit of ours."""
    rows, slowest = [], 0.0
    for name, law in following(list(DENSITIES.items()), f"{size} observations"):
        cells = [name]
        samples = [law.draw(size, np.random.default_rng(seed)) for seed in range(rounds)]
        for fit in METHODS.values():
            results, seconds = [], []
            for x in samples:
                start = time.thread_time()
                estimate = fit(x)
                seconds.append(time.thread_time() - start)
                results.append(errors(law, estimate(GRID)))
            middle = [statistics.median(column) for column in zip(*results, strict=True)]
            cells.append(f"{middle[0]:.2g} / {middle[1]:.2g} / {middle[2]:.1g}")
            if fit is _ours:
                slowest = max(slowest, statistics.median(seconds))
        rows.append(cells)
    title = (
        f"{size} observations, medians of {rounds} samples: integrated squared error / Hellinger "
        "distance / mass off the true support."
    )
    return Table(title, ["density", *METHODS], rows), slowest


def _times() -> Table:
    """Of single fits to 10000 observations with 100 inducing points."""
    rng = np.random.default_rng(0)
    law = DENSITIES["two parabolas"]
    rows = []
    for dim in (1, 2):
        x = np.stack([law.draw(10000, rng) for _ in range(dim)], 1)
        cells = [f"{dim}"]
        for given in ({"bandwidth": 0.12, "penalty": 1e-5}, {"bandwidth": 0.12}, {}):
            start = time.thread_time()
            SparseDensity(inducing_points=100, random_state=0, **given).fit(x)
            cells.append(f"{time.thread_time() - start:.1f}")
        rows.append(cells)
    title = "Seconds of one core for 10000 observations and 100 inducing points, by what is given."
    return Table(title, ["columns", "bandwidth and penalty", "bandwidth", "nothing"], rows)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    parts = []
    for size in options.sizes:
        table, slowest = _table(size, options.rounds)
        table.show()
        line = f"SparseDensity takes at most {slowest:.1f} s on one core, settings chosen."
        print(line)
        parts += [table.markdown(), line]
    times = _times()
    times.show()
    parts.append(times.markdown())
    if options.write:
        write_section("density estimation", _COMMAND, parts)


if __name__ == "__main__":
    main()
