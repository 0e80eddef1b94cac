"""Estimate densities with a gap or a bound, with true zeros.

Petal lengths have a gap between species, and the concavity of a cell nucleus cannot be negative.
`SparseDensity` (shaded, with its support as a bar) is zero beyond the bound and in most of the gap;
`gaussian_kde` (dashed) has mass in both.

In the gap: mass between 1.95 and 2.95 cm, or below zero. Missed: held-out measurements at which the
density is zero. Score: `quadratic_score`, minus the integrated squared error up to a constant;
larger is better.

`python -m examples.estimation` prints the table of docs/tutorials/estimation.md and draws its
picture, demo/estimation.png.

References:
    Fisher (1936), The use of multiple measurements in taxonomic problems. Annals of Eugenics 7.
    Street, Wolberg and Mangasarian (1993), Nuclear feature extraction for breast tumor diagnosis.
    Both as scikit-learn has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from sklearn.datasets import load_breast_cancer, load_iris
from torch.distributions import Uniform
from tqdm import tqdm

from sparsefam.estimators import SparseDensity, quadratic_score

from .common import print_table, run, save

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Measurements (n, D) in random order."""

    name: str
    data: Floats
    gap: tuple[tuple[float, float], ...]  # a box without measurements
    bound: float | None = None  # the least possible value, if it is known
    bandwidth: Any = None  # None: chosen by SparseDensity


def load() -> list[Case]:
    """Load petals of irises, and the concavity of cell nuclei that have any."""
    shuffled = np.random.default_rng(0).permutation
    petals = shuffled(load_iris().data[:, 2:4])
    concavity = load_breast_cancer().data[:, 6:7]
    concavity = shuffled(concavity[concavity[:, 0] > 0])
    gap = (1.95, 2.95)  # lengths are rounded to 0.1 cm: 1.9 and 3.0 are the nearest ones
    pairs = Case("petal length, width", petals, (gap, (-1.0, 4.0)), None, 0.25 * petals.std(0))
    return [
        Case("petal length, cm", petals[:, :1], (gap,)),
        Case("concavity", concavity, ((-0.2, 0.0),), bound=0.0),
        pairs,
    ]


def sparse(case: Case, data: Floats, bandwidth: Any) -> SparseDensity:
    """Fit the estimate with zeros, with a base density that ends at the bound if there is one."""
    base = None
    if case.bound is not None:
        base = Uniform(case.bound, data.max() + 0.25 * np.ptp(data), validate_args=False)
    model = SparseDensity(inducing_points=50, bandwidth=bandwidth, base=base, random_state=0)
    return model.fit(data)


def tuned_width(data: Floats) -> float:
    """Choose the bandwidth of gaussian_kde under which held-out data are most likely."""
    folds = np.arange(len(data)) % 5

    def likelihood(width: float) -> float:
        parts = [(gaussian_kde(data[folds != k].T, width), data[folds == k].T) for k in range(5)]
        return sum(np.log(smooth(held) + 1e-300).sum() for smooth, held in parts)

    return max(np.geomspace(0.03, 1.0, 12), key=likelihood)


def methods(case: Case) -> dict[str, Callable[[Floats], Any]]:
    """Return functions that fit estimates, with bandwidths that are chosen once, on all data."""
    bandwidth = sparse(case, case.data, case.bandwidth).bandwidth_
    width = tuned_width(case.data)
    return {
        "SparseDensity": lambda data: sparse(case, data, bandwidth),
        "gaussian_kde": lambda data: gaussian_kde(data.T),
        "gaussian_kde, tuned": lambda data: gaussian_kde(data.T, width),
    }


def check(case: Case, estimate: Any, held: Floats) -> list[float]:
    """Return the mass in the gap, the share of held-out data that is missed, and the score."""
    ticks = [low + (high - low) * (np.arange(200) + 0.5) / 200 for low, high in case.gap]
    inside = np.stack(np.meshgrid(*ticks), -1).reshape(-1, len(ticks))
    in_gap, at_held = (
        estimate(t.T) if isinstance(estimate, gaussian_kde) else np.exp(estimate.score_samples(t))
        for t in (inside, held)
    )
    volume = np.prod(np.ptp(case.gap, axis=1))
    return [volume * in_gap.mean(), (at_held == 0).mean(), quadratic_score(estimate, held)]


def cross_validate(case: Case, fit: Callable[[Floats], Any], folds: int) -> Floats:
    """Check on each fold in turn the estimate that is fitted to the others, and take the mean."""
    x, fold = case.data, np.arange(len(case.data)) % folds
    return np.mean([check(case, fit(x[fold != k]), x[fold == k]) for k in range(folds)], axis=0)


def draw(ax: Axes, case: Case) -> None:
    """Draw the estimate with its support, and gaussian_kde dashed."""
    x, smooth = case.data, gaussian_kde(case.data.T)
    margin = 0.18 * np.ptp(x, axis=0)
    view = np.stack([x.min(0) - margin, x.max(0) + margin], -1)
    model = sparse(case, x, case.bandwidth)
    model.plot(ax, color="C0", data=x, label="SparseDensity", view=tuple(map(tuple, view)))
    grid = np.meshgrid(*(np.linspace(*side, 301) for side in view))
    height = smooth(np.reshape(grid, (len(grid), -1))).reshape(grid[0].shape)
    if len(grid) == 1:
        ax.plot(*grid, height, "--", color="C3", label="gaussian_kde")
        ax.set_xlabel(case.name)
    else:
        levels = height.max() * np.array([0.02, 0.25, 0.5])
        ax.contour(*grid, height, levels, colors=["C3"], linestyles="--", linewidths=1.1)
        ax.set(xlabel="petal length, cm", ylabel="petal width, cm")


def draw_all() -> Figure:
    """Draw the estimates of all cases."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 2.7), layout="constrained")
    for ax, case in zip(axes, load(), strict=True):
        draw(ax, case)
    axes[0].legend(loc="upper right")
    return figure


def main(folds: int = 5, out: Path = Path("demo")) -> None:
    """Check all methods on each fold, fitted to the others; then draw them."""
    rows = []
    for case in tqdm(load(), disable=None):
        for name, fit in methods(case).items():
            empty, missed, score = cross_validate(case, fit, folds)
            rows.append([case.name, name, f"{empty:.2%}", f"{missed:.1%}", f"{score:.3f}"])
    print_table(["measured", "estimate", "in the gap", "missed", "score"], rows)
    save(draw_all(), out / "estimation.png")


if __name__ == "__main__":
    run(main)
