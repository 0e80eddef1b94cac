"""Errors of `SparseDensity` and of kernel density estimates, and the coverage of its supports.

Draws samples from densities with compact or separated supports, and parts of real columns. Two more
tables count fitted observations with density zero, and compare ranks of anomalies; another one is
of time and memory by the number of rows (`--only "rows of data"`). `--write` puts the tables into
docs/benchmarks.md. `--only neighbors` compares with scipy, scikit-learn and KDEpy (`pip install
--group kde`, else left out), for docs/tutorials/estimation.md.
"""

import pickle
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KernelDensity
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from sparsefam.estimators import SparseDensity, quadratic_score

from .harness import Table, in_processes, parser, run

Array = NDArray[np.float64]
GRID = np.linspace(-0.5, 1.5, 4001)
# Observations, and samples of each density.
SIZES = {100: 10, 1000: 10, 10000: 5}
OURS = "SparseDensity"


# Mixtures of beta densities on intervals: weight, lower end, upper end, a and b of each. (1, 1) is
# uniform, (2, 2) a parabola, (3, 3) a biweight, (4, 4) a triweight, (1, 2) a ramp.
DENSITIES: dict[str, list[tuple[float, ...]]] = {
    "parabola": [(1, 0, 1, 2, 2)],
    "biweight": [(1, 0, 1, 3, 3)],
    "uniform": [(1, 0, 1, 1, 1)],
    "ramp": [(1, 0, 1, 1, 2)],
    "two parabolas": [(0.6, 0.15, 0.41, 2, 2), (0.4, 0.67, 0.83, 2, 2)],
    "two uniforms": [(0.5, 0, 0.3, 1, 1), (0.5, 0.6, 1, 1, 1)],
    "three parabolas": [(0.4, 0, 0.3, 2, 2), (0.4, 0.4, 0.7, 2, 2), (0.2, 0.85, 1, 2, 2)],
    "uniform and triweight": [(0.7, 0, 0.4, 1, 1), (0.3, 0.6, 1, 4, 4)],
    "skewed pair": [(0.5, 0, 0.4, 2, 5), (0.5, 0.55, 1, 5, 2)],
}


def draw(name: str, count: int, rng: np.random.Generator) -> Array:
    """Draw (count,) numbers from a density."""
    parts = DENSITIES[name]
    which = rng.choice(len(parts), count, p=[part[0] for part in parts])
    _, low, high, a, b = np.array(parts)[which].T
    return np.asarray(low + (high - low) * rng.beta(a, b))


def density_errors(name: str, estimate: Array) -> tuple[float, float, float]:
    """Return integrated squared error, Hellinger distance, and mass off the true support."""
    true, inside = np.zeros_like(GRID), np.zeros_like(GRID, dtype=bool)
    for weight, low, high, a, b in DENSITIES[name]:
        true += weight * stats.beta(a, b, low, high - low).pdf(GRID)
        inside |= (low <= GRID) & (high >= GRID)
    step = GRID[1] - GRID[0]
    squared = float(((estimate - true) ** 2).sum() * step)
    hellinger = float(np.sqrt(((np.sqrt(estimate) - np.sqrt(true)) ** 2).sum() * step / 2))
    return squared, hellinger, float(estimate[~inside].sum() * step)


def _epanechnikov(x: Array) -> Array:
    """Choose the bandwidth of 17 by the held-out likelihood in five folds.

    Larger bandwidths, which take longest, are not tried after two that were worse.
    """
    best, chosen, worse = -np.inf, 0.0, 0
    folds = np.arange(len(x)) % 5
    for width in np.geomspace(0.005, 1.0, 17) * x.std():
        model = KernelDensity(kernel="epanechnikov", bandwidth=width)
        likelihood = sum(
            model.fit(x[folds != k, None]).score(x[folds == k, None]) for k in range(5)
        )
        worse = worse + 1 if best > -np.inf and likelihood <= best else 0
        if likelihood > best:
            best, chosen = likelihood, width
        if worse == 2:
            break
    model = KernelDensity(kernel="epanechnikov", bandwidth=chosen).fit(x[:, None])
    return np.asarray(np.exp(model.score_samples(GRID[:, None])))


# From data to the estimated density on the grid.
ESTIMATES: dict[str, Callable[[Array], Array]] = {
    OURS: lambda x: np.exp(SparseDensity().fit(x[:, None]).score_samples(GRID[:, None])),
    "Gaussian, Scott": lambda x: stats.gaussian_kde(x, "scott")(GRID),
    "Gaussian, Silverman": lambda x: stats.gaussian_kde(x, "silverman")(GRID),
    "Epanechnikov, cross-validated": _epanechnikov,
}


def _trial(trial: tuple[int, str, int]) -> tuple[Array, float]:
    """Return the errors (methods, 3), and the processor seconds of ours, by size, law and seed."""
    torch.set_num_threads(1)
    size, density, seed = trial
    errors, seconds = [], 0.0
    x = draw(density, size, np.random.default_rng(seed))
    for name, estimate in ESTIMATES.items():
        start = time.thread_time()
        found = estimate(x)
        if name == OURS:
            seconds = time.thread_time() - start
        errors.append(density_errors(density, found))
    return np.array(errors), seconds


def error_tables(sizes: dict[int, int], jobs: int = 2) -> list[Table]:
    """Return the medians of the errors for each number of observations."""
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
            medians = np.median([errors for errors, _ in mine], 0)
            rows.append([density, *(f"{a:.2g} / {b:.2g} / {c:.1g}" for a, b, c in medians)])
            slowest = max(slowest, float(np.median([seconds for _, seconds in mine])))
        title = (
            f"{size} observations, medians of {rounds} samples: integrated squared error / "
            "Hellinger distance / mass off the true support. SparseDensity takes at most "
            f"{slowest:.1f} s on one core."
        )
        out.append(Table(title, ["density", *ESTIMATES], rows))
    return out


# Neighbors: known bounded densities with their bounds, and draws of each

LAWS: dict[str, tuple[Any, Callable[[np.random.Generator, int], Array], tuple[float, Any]]] = {
    "beta(2, 3)": (stats.beta(2, 3).pdf, lambda rng, n: rng.beta(2, 3, n), (0, 1)),
    "ramp, beta(1, 2)": (stats.beta(1, 2).pdf, lambda rng, n: rng.beta(1, 2, n), (0, 1)),
    "uniform": (stats.uniform.pdf, lambda rng, n: rng.random(n), (0, 1)),
    "truncated normal": (
        stats.truncnorm(-1, 2, 1 / 3, 1 / 3).pdf,
        lambda rng, n: stats.truncnorm(-1, 2, 1 / 3, 1 / 3).rvs(n, random_state=rng),
        (0, 1),
    ),
    "exponential": (stats.expon.pdf, lambda rng, n: rng.exponential(size=n), (0, None)),
    "two parabolas, a gap": (
        lambda t: 0.6 * stats.beta(2, 2, 0, 0.4).pdf(t) + 0.4 * stats.beta(2, 2, 0.7, 0.3).pdf(t),
        lambda rng, n: np.where(
            rng.random(n) < 0.6, 0.4 * rng.beta(2, 2, n), 0.7 + 0.3 * rng.beta(2, 2, n)
        ),
        (0, 1),
    ),
}
# Draws, and samples of each.
DRAWN = {1000: 5, 100_000: 2}


def neighbors() -> dict[str, Callable[[Array, Array, tuple[float, Any]], Array]]:
    """Return estimates on a grid from data and their bounds."""

    def ours(x: Array, grid: Array, bounds: Any = None) -> Array:
        model = SparseDensity(bounds=bounds, verbose=False).fit(x[:, None])
        return np.exp(model.score_samples(grid[:, None]))

    def epanechnikov(x: Array, grid: Array) -> Array:
        """Choose the width by the held-out likelihood of the first 1,000 observations."""
        part = x[:1000]
        folds = np.arange(len(part)) % 5
        widths = np.geomspace(0.02, 0.5, 12) * x.std()
        scores = [
            sum(
                KernelDensity(kernel="epanechnikov", bandwidth=width)
                .fit(part[folds != k, None])
                .score(part[folds == k, None])
                for k in range(5)
            )
            for width in widths
        ]
        width = widths[int(np.argmax(scores))] * (len(part) / len(x)) ** 0.2
        model = KernelDensity(kernel="epanechnikov", bandwidth=width).fit(x[:, None])
        return np.exp(model.score_samples(grid[:, None]))

    found: dict[str, Callable[[Array, Array, tuple[float, Any]], Array]] = {
        OURS: lambda x, grid, bounds: ours(x, grid),
        "with bounds": ours,
        "gaussian_kde": lambda x, grid, bounds: stats.gaussian_kde(x)(grid),
        "KernelDensity": lambda x, grid, bounds: epanechnikov(x, grid),
    }
    try:
        from KDEpy import FFTKDE
    except ImportError:
        return found

    def mirrored(x: Array, grid: Array, bounds: tuple[float, Any]) -> Array:
        """Add the data mirrored at each bound, with Silverman's bandwidth of the data."""
        ends = [end for end in bounds if end is not None]
        low, high = ends[0], ends[-1] if len(ends) > 1 else np.inf
        width = FFTKDE(bw="silverman").fit(x)
        width.evaluate(8)
        seen = np.concatenate([x, *(2 * end - x for end in ends)])
        at = np.linspace(seen.min() - 1, seen.max() + 1, 1 << 14)
        heights = FFTKDE(bw=width.bw).fit(seen).evaluate(at) * (1 + len(ends))
        inside = (low <= grid) & (grid <= high)
        return np.where(inside, np.interp(grid, at, heights), 0.0)

    return found | {"KDEpy, mirrored": mirrored}


def _distances(trial: tuple[int, str, int]) -> list[tuple[float, float]]:
    """Return the L1 distance from the true density, and the seconds, of each estimate."""
    torch.set_num_threads(1)
    size, name, seed = trial
    density, sample, bounds = LAWS[name]
    x = sample(np.random.default_rng(seed), size)
    grid = GRID if bounds[1] else np.linspace(-1, 15, 4001)
    found = []
    for estimate in neighbors().values():
        start = time.thread_time()
        error = np.abs(estimate(x, grid, bounds) - density(grid)).sum() * (grid[1] - grid[0])
        found.append((float(error), time.thread_time() - start))
    return found


def neighbor_tables(drawn: dict[int, int] = DRAWN, jobs: int = 2) -> list[Table]:
    """Return errors and seconds of all estimates, and of how many cases ours has the lowest."""
    trials = [(n, name, k) for n, count in drawn.items() for name in LAWS for k in range(count)]
    outcomes = dict(zip(trials, in_processes(_distances, trials, jobs), strict=True))
    rows, best, columns = [], 0, list(neighbors())
    for name, (n, count) in product(LAWS, drawn.items()):
        means = np.mean([outcomes[n, name, k] for k in range(count)], 0)
        best += int(means[:, 0].argmin() < 2)
        cells = [f"{error:.3f} / {seconds:.2g}" for error, seconds in means]
        rows.append([f"{name}, {n:,}", *cells])
    title = (
        "L1 distance from the true density / seconds of processor time to fit and evaluate at "
        f"4,001 points. SparseDensity, without or with bounds, is closest in {best} of {len(rows)}."
    )
    return [Table(title, ["density, draws", *columns], rows)]


# Rows

# Columns and rows of normal draws, and the most seconds and megabytes of a first fit to them.
ROWS: dict[tuple[int, int], tuple[float, float]] = {
    (1, 150): (2, 300),
    (1, 10_000): (2, 300),
    (1, 100_000): (3, 300),
    (1, 1_000_000): (5, 300),
    (1, 10_000_000): (60, 300),
    (2, 150): (2, 500),
    (2, 20_000): (3, 500),
    (2, 1_000_000): (60, 500),
    (3, 150): (5, 500),
    (3, 20_000): (5, 500),
}


def _cost(size: tuple[int, int]) -> tuple[float, float, float]:
    """Return the seconds of processor time and the megabytes of a fit, and those of its pickle."""
    torch.set_num_threads(1)
    columns, rows = size
    x = np.random.default_rng(0).normal(size=(rows, columns))
    before, start = getrusage(RUSAGE_SELF).ru_maxrss, time.process_time()
    model = SparseDensity(random_state=0, verbose=False).fit(x)
    seconds, after = time.process_time() - start, getrusage(RUSAGE_SELF).ru_maxrss
    return seconds, (after - before) / 1024, len(pickle.dumps(model)) / 1e6


def row_table(sizes: dict[tuple[int, int], tuple[float, float]] = ROWS) -> Table:
    """Return what fits cost by the number of rows, each of them the first of its process."""
    rows, failures = [], []
    for (columns, count), most in tqdm(sizes.items(), disable=None):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            cost = pool.submit(_cost, (columns, count)).result()
        rows.append([f"{columns}", f"{count:,}", *(f"{value:.3g}" for value in cost)])
        if any(value > limit for value, limit in zip(cost, most, strict=False)):
            failures.append(f"{count:,} rows of {columns} columns: {cost}, at most {most}")
    title = (
        "Normal draws, one thread: seconds of processor time and megabytes, besides those of the "
        "data, of the first fit of a process, with default settings, and megabytes of its pickle."
    )
    return Table(title, ["columns", "rows", "seconds", "MB", "pickled"], rows, failures)


# Coverage

NOMINAL = (None, 0.95, 0.99)
# Observations of each sample of a density, the samples, and the new observations.
COVERED_SIZES, SAMPLES, NEW = (150, 1000), 10, 4000
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


def _coverage(trial: tuple[str, int, float | None, int]) -> tuple[float, ...]:
    """Return the measured coverage, and mass outside and squared error, or minus the score.

    A trial is a density and a size, or a column and 0, the nominal coverage and a seed.
    """
    torch.set_num_threads(1)
    name, size, nominal, seed = trial
    rng = np.random.default_rng(seed)
    if size:
        x, new = (draw(name, count, rng)[:, None] for count in (size, NEW))
    else:
        data = rng.permutation(COLUMNS[name]())
        x, new = np.split(data, [round(SHARE * len(data))])
    model = SparseDensity(
        coverage=nominal, inducing_points=50, random_state=seed, verbose=False
    ).fit(x)
    covered = float((model.predict(new) > 0).mean())
    if not size:
        return covered, -quadratic_score(model, new)
    squared, _, outside = density_errors(name, np.exp(model.score_samples(GRID[:, None])))
    return covered, outside, squared


def coverage_tables(
    sizes: tuple[int, ...] = COVERED_SIZES,
    samples: int = SAMPLES,
    splits: int = SPLITS,
    jobs: int = 2,
) -> list[Table]:
    """Return a table for each number of observations, and one for the columns."""
    cases = [(name, size, samples) for size in sizes for name in DENSITIES]
    cases += [(name, 0, splits) for name in COLUMNS]
    trials = [
        (name, size, nominal, seed)
        for (name, size, count), nominal in product(cases, NOMINAL)
        for seed in range(count)
    ]
    outcomes = dict(zip(trials, in_processes(_coverage, trials, jobs), strict=True))

    def row(name: str, size: int, count: int) -> list[str]:
        cells = []
        for nominal in NOMINAL:
            mine = [outcomes[name, size, nominal, seed] for seed in range(count)]
            covered, *rest = np.mean(mine, 0)
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


# Fitted observations


def own_data() -> dict[str, Array]:
    """Return 46 columns, real and drawn: continuous, rounded, counts and heavy tails."""
    iris, wine, tumors, digits = load_iris(), load_wine(), load_breast_cancer(), load_digits().data
    diabetes, rng = load_diabetes(scaled=False), np.random.default_rng(0)
    found = {name: iris.data[:, i] for i, name in enumerate(iris.feature_names)}
    for name in ("flavanoids", "proline", "malic_acid", "color_intensity", "hue"):
        found[name] = wine.data[:, wine.feature_names.index(name)]
    names = list(tumors.feature_names)
    for name in (
        *("mean concavity", "mean area", "worst perimeter", "area error"),
        *("fractal dimension error", "concave points error"),
    ):
        found[name] = tumors.data[:, names.index(name)]
    for name in ("age", "bmi", "bp", "s1", "s4", "s6"):
        found[f"diabetes {name}"] = diabetes.data[:, diabetes.feature_names.index(name)]
    found |= {"jumps": load_linnerud().data[:, 2], "pulse": load_linnerud().target[:, 2]}
    found |= {"ink of digits": digits.sum(1), "a pixel of digits": digits[:, 28]}
    visits = 0.5 / 3.4  # a mean of 2.9 and many zeros, as of visits to a doctor
    return found | {
        "normal, 1000": rng.normal(size=1000),
        "normal, 10000": rng.normal(size=10000),
        "uniform": rng.random(300),
        "exponential": rng.exponential(size=1000),
        "Student's t(3), 1000": rng.standard_t(3, 1000),
        "Student's t(3), 10000": rng.standard_t(3, 10000),
        "Cauchy, 500": rng.standard_cauchy(500),
        "Cauchy, 10000": rng.standard_cauchy(10000),
        "lognormal(0, 1)": rng.lognormal(size=1000),
        "lognormal(0, 2)": rng.lognormal(0, 2, 3000),
        "Pareto(1.5)": rng.pareto(1.5, 2000),
        "negative binomial, 2250": rng.negative_binomial(0.5, visits, 2250).astype(float),
        "negative binomial, 10000": rng.negative_binomial(0.5, visits, 10000).astype(float),
        "Poisson(0.7)": rng.poisson(0.7, 500).astype(float),
        "Poisson(30)": rng.poisson(30, 1000).astype(float),
        "normal, rounded to 0.1": rng.normal(size=1000).round(1),
        "190 zeros, 10 normal": np.concatenate([np.zeros(190), rng.normal(size=10)]),
        "two normal": np.concatenate([rng.normal(size=400), 10 + rng.normal(size=600)]),
        "normal and one 1000": np.append(rng.normal(size=500), 1000.0),
        "0 and 1": (rng.random(400) < 0.3).astype(float),
        "a die": rng.integers(1, 7, 600).astype(float),
        "beta(0.5, 0.5)": rng.beta(0.5, 0.5, 1000),
    }


def own_table() -> Table:
    """Return the share of each column's own observations at which the fit to it is zero."""
    rows, missed, slowest = [], [], 0.0
    for name, x in own_data().items():
        start = time.thread_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = SparseDensity(verbose=False).fit(x[:, None])
        slowest = max(slowest, time.thread_time() - start)
        own = np.isneginf(model.score_samples(x[:, None])).mean()
        parts = getattr(model.density_, "probs", torch.ones(1))
        uniform = float(parts[-1]) if len(parts) > 1 else 0.0
        told = ", ".join(sorted({w.category.__name__ for w in caught}))
        rows.append(
            [name, f"{len(x)}", f"{own:.2%}", f"{uniform:.1%}", f"{len(model.support_)}", told]
        )
        missed.append(own)
    title = (
        f"{len(rows)} columns: share of the fitted observations at which `SparseDensity()` is zero "
        f"(at most {max(missed):.2%}), weight of the uniform density on the support, intervals of "
        f"the support, warnings. The slowest fit took {slowest:.1f} s on one core."
    )
    header = ["column", "observations", "density zero", "uniform", "intervals", "warnings"]
    return Table(title, header, rows)


# Anomalies

ANOMALIES = (
    ("mean concavity",),
    ("worst perimeter",),
    ("mean area",),
    ("mean concavity", "worst perimeter"),
    ("worst perimeter", "worst concave points"),
    ("mean concavity", "mean texture", "worst perimeter"),
)


def anomaly_table(columns: tuple[tuple[str, ...], ...] = ANOMALIES, splits: int = 5) -> Table:
    """Return areas under the curve of malignant tumors against benign ones that are held out."""
    data, rows = load_breast_cancer(), []
    for names in columns:
        x = data.data[:, [list(data.feature_names).index(name) for name in names]]
        benign, malignant = x[data.target == 1], x[data.target == 0]
        found = []
        for seed in range(splits):
            train, test = train_test_split(benign, test_size=0.4, random_state=seed)
            seen = np.concatenate([test, malignant])
            labels = np.arange(len(seen)) >= len(test)
            scaler = StandardScaler().fit(train)
            widths = (len(train) ** (-1 / (len(names) + 4)), 1.0)
            model = SparseDensity(random_state=0, verbose=False).fit(train)
            ranks = [model.decision_function(seen)]
            for width in widths:
                kde = KernelDensity(bandwidth=width).fit(scaler.transform(train))
                ranks.append(kde.score_samples(scaler.transform(seen)))
            forest = IsolationForest(random_state=0).fit(train)
            ranks.append(forest.decision_function(seen))
            alarms = [
                float((fitted.predict(t) < 0).mean())
                for fitted in (model, forest)
                for t in (test, malignant)
            ]
            found.append([*(roc_auc_score(labels, -rank) for rank in ranks), *alarms])
        *areas, false, true, forest_false, forest_true = np.mean(found, 0)
        flagged = f"{false:.1%}, {true:.1%}", f"{forest_false:.1%}, {forest_true:.1%}"
        rows.append([", ".join(names), *(f"{area:.4f}" for area in areas), *flagged])
    title = (
        f"Breast cancer, means of {splits} splits, 60% of the benign tumors fitted: area under "
        "the curve of `decision_function`, of `KernelDensity` on standardized columns, and of "
        "`IsolationForest`; benign tumors and cancers that `predict` flags."
    )
    header = ["columns", OURS, "Scott's bandwidth", "bandwidth 1", "IsolationForest"]
    header += ["flagged", "by IsolationForest"]
    return Table(title, header, rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True)
    options.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options.add_argument("--only", nargs="+", help="sections, such as anomalies; default all")
    chosen = options.parse_args(arguments)
    sections: dict[str, Callable[[], list[Table]]] = {
        "density estimation": lambda: error_tables(SIZES, chosen.jobs),
        "rows of data": lambda: [row_table()],
        "coverage": lambda: coverage_tables(jobs=chosen.jobs),
        "fitted observations": lambda: [own_table()],
        "anomalies": lambda: [anomaly_table()],
    }
    pages = {"neighbors": "tutorials/estimation.md"}
    sections["neighbors"] = lambda: neighbor_tables(DRAWN, chosen.jobs)
    return max(
        run("estimation", {name: sections[name]}, chosen.write, pages.get(name, "benchmarks.md"))
        for name in chosen.only or sections
    )


if __name__ == "__main__":
    sys.exit(main())
