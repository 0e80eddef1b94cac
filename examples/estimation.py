"""Estimate densities of measurements that have a gap or a bound.

`python -m examples.estimation` prints the table of docs/tutorials/estimation.md and writes its
picture to demo/estimation.png.

References:
    Fisher (1936), The use of multiple measurements in taxonomic problems. Annals of Eugenics 7.
    Street, Wolberg and Mangasarian (1993), Nuclear feature extraction for breast tumor diagnosis.
    Both as scikit-learn has them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from sklearn.datasets import load_breast_cancer, load_iris
from torch.distributions import Uniform

from sparsefam.estimators import SparseDensity

Floats = NDArray[np.float64]
Density = Callable[[Floats], Floats]
METHODS = ("SparseDensity", "gaussian_kde", "gaussian_kde, tuned")


@dataclass(frozen=True)
class Case:
    """Measurements (n, D) in random order, and an interval of the first one that has none."""

    name: str
    data: Floats
    view: tuple[tuple[float, float], ...]
    empty: tuple[float, float]
    bound: float | None = None  # the least possible value, if it is known
    bandwidth: tuple[float, ...] | None = None


def load() -> list[Case]:
    """Load petals of irises, and the concavity of cell nuclei that have any."""
    shuffled = np.random.default_rng(0).permutation
    petals = shuffled(load_iris().data[:, 2:4])
    concavity = load_breast_cancer().data[:, 6:7]
    concavity = shuffled(concavity[concavity[:, 0] > 0])
    gap = (1.95, 2.95)  # lengths are rounded to 0.1 cm: 1.9 and 3.0 are the nearest ones
    view = ((-0.5, 9.0), (-0.8, 3.6))
    widths = tuple(0.25 * petals.std(0))
    return [
        Case("petal length, cm", petals[:, :1], view[:1], gap),
        Case("concavity", concavity, ((-0.2, 0.7),), (-0.2, 0.0), bound=0.0),
        Case("petal length, width", petals, view, gap, bandwidth=widths),
    ]


def sparse(case: Case, data: Floats) -> SparseDensity:
    """Fit the estimate with zeros, with a base density that ends at the bound if there is one."""
    base = None
    if case.bound is not None:
        base = Uniform(case.bound, data.max() + 0.25 * np.ptp(data), validate_args=False)
    model = SparseDensity(inducing_points=50, bandwidth=case.bandwidth, base=base, random_state=0)
    return model.fit(data)


def fit(case: Case, method: str, data: Floats, width: float | None) -> Density:
    """Fit a method and return the density as a function of locations (n, D)."""
    if method == "SparseDensity":
        model = sparse(case, data)
        return lambda t: np.exp(model.score_samples(t))
    smooth = gaussian_kde(data.T, width)
    return lambda t: smooth(t.T)


def tuned_width(data: Floats) -> float:
    """Choose the bandwidth of gaussian_kde under which held-out data are most likely."""
    folds = np.arange(len(data)) % 5

    def likelihood(width: float) -> float:
        parts = [(gaussian_kde(data[folds != k].T, width), data[folds == k].T) for k in range(5)]
        return sum(np.log(smooth(held) + 1e-300).sum() for smooth, held in parts)

    return float(max(np.geomspace(0.03, 1.0, 12), key=likelihood))


def check(case: Case, method: str, folds: int) -> tuple[float, float, float]:
    """Fit to all folds but one, in turn, and check on that one.

    Returns:
        Mass in the gap; the share of held-out data at which the density is zero; the integral of
        the squared density less twice its mean at held-out data, which is the integrated squared
        error up to a constant.
    """
    width = tuned_width(case.data) if method.endswith("tuned") else None
    which = np.arange(len(case.data)) % folds
    ticks = 2001 if len(case.view) == 1 else 161
    grid = np.meshgrid(*(np.linspace(*side, ticks) for side in case.view))
    t = np.stack(grid, -1).reshape(-1, len(case.view))
    cell = float(np.prod(np.ptp(case.view, axis=1))) / len(t)
    inside = (case.empty[0] < t[:, 0]) & (t[:, 0] < case.empty[1])
    measures = []
    for fold in range(folds):
        density = fit(case, method, case.data[which != fold], width)
        on_grid, held = density(t), density(case.data[which == fold])
        score = (on_grid**2).sum() * cell - 2 * held.mean()
        measures.append((on_grid[inside].sum() * cell, (held == 0).mean(), score))
    empty, missed, score = np.mean(measures, 0).tolist()
    return empty, missed, score


def draw(fitted: list[tuple[Case, SparseDensity]]) -> Figure:
    """Draw the estimates with their supports, and gaussian_kde dashed."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 2.7), layout="constrained")
    for ax, (case, model) in zip(axes, fitted, strict=True):
        x, smooth = case.data, gaussian_kde(case.data.T)
        margin = 0.18 * np.ptp(x, axis=0)
        ends = np.stack([x.min(0) - margin, x.max(0) + margin], -1)
        if len(ends) == 1:
            options = {"label": "SparseDensity", "view": tuple(ends[0])}
            model.density_.plot(ax, color="C0", data=x, **options)
            t = np.linspace(*ends[0], 601)
            ax.plot(t, smooth(t), "--", color="C3", label="gaussian_kde")
            ax.set_xlabel(case.name)
        else:
            model.density_.plot(ax, color="C0", data=x, view=tuple(map(tuple, ends)))
            grid = np.meshgrid(*(np.linspace(*side, 151) for side in ends))
            height = smooth(np.reshape(grid, (2, -1))).reshape(grid[0].shape)
            levels = height.max() * np.array([0.02, 0.25, 0.5])
            ax.contour(*grid, height, levels, colors=["C3"], linestyles="--", linewidths=1.1)
            ax.set(xlabel="petal length, cm", ylabel="petal width, cm")
    axes[0].legend(loc="upper right")
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Density estimates of measurements.")
    parser.add_argument("--folds", type=int, default=5, help="held out in turn (5)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{'measured':<21}{'estimate':<21}{'in the gap':>10}{'missed':>9}{'score':>9}")
    fitted = []
    for case in load():
        model = sparse(case, case.data)
        fitted.append((case, model))
        # Bandwidths are chosen once, on all data, as those of gaussian_kde are.
        known = replace(case, bandwidth=tuple(model.bandwidth_))
        for method in METHODS:
            empty, missed, score = check(known, method, options.folds)
            print(f"{case.name:<21}{method:<21}{empty:>10.2%}{missed:>9.1%}{score:>9.3f}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(fitted).savefig(options.out / "estimation.png", dpi=160)


if __name__ == "__main__":
    main()
