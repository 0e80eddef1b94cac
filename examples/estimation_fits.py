"""Measurements with gaps and bounds, densities fitted to them, and checks on held-out ones.

Petals of 150 irises have a gap in their length, between one species and the other two. The
concavity of an outline cannot be negative; of 569 cell nuclei, the 556 that have any are taken.

References:
    Fisher (1936), The use of multiple measurements in taxonomic problems. Annals of Eugenics 7.
    Street, Wolberg and Mangasarian (1993), Nuclear feature extraction for breast tumor diagnosis.
    Both as scikit-learn has them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from sklearn.datasets import load_breast_cancer, load_iris
from torch.distributions import Uniform

from sparsefam.estimators import SparseDensity

__all__ = ["METHODS", "Case", "Check", "check", "load", "sparse"]

Floats = NDArray[np.float64]
Density = Callable[[Floats], Floats]

# Shares of the data's standard deviation.
_FACTORS = np.geomspace(0.03, 1.0, 12)
_FOLDS = 5


@dataclass(frozen=True)
class Case:
    """Measurements, and where they cannot or do not occur.

    Attributes:
        name: What was measured.
        data: (n, D), in an order without meaning.
        view: Ends of each axis, beyond which there is next to nothing.
        empty: The stretch of the first axis in which there is nothing.
        bound: The least value that is possible, if it is known.
        bandwidth: Of the fit, if it is not to be chosen.
    """

    name: str
    data: Floats
    view: tuple[tuple[float, float], ...]
    empty: tuple[float, float]
    bound: float | None = None
    bandwidth: tuple[float, ...] | None = None

    def grid(self, points: int) -> Floats:
        """Locations (points ** D, D) over the view."""
        axes = np.meshgrid(*(np.linspace(*side, points) for side in self.view))
        return np.stack(axes, -1).reshape(-1, len(self.view))

    @property
    def area(self) -> float:
        """Of the view."""
        return float(np.prod(np.ptp(self.view, axis=1)))


@dataclass(frozen=True)
class Check:
    """Means over folds that were held out.

    Attributes:
        empty: Mass where there is nothing.
        missed: Share of held-out measurements at which the density is zero.
        score: Integral of the squared density less twice its mean at held-out measurements, which
            is the integrated squared error but for a constant.
    """

    empty: float
    missed: float
    score: float


def load() -> list[Case]:
    """The cases."""
    shuffled = np.random.default_rng(0).permutation
    petals = shuffled(load_iris().data[:, 2:4])
    concavity = load_breast_cancer().data[:, 6:7]
    gap = (1.95, 2.95)  # measured in tenths: 1.9 is the last before, 3.0 the first after
    widths = tuple(0.25 * petals.std(0))
    sides = ((-0.5, 9.0), (-0.8, 3.6))
    return [
        Case("petal length, cm", petals[:, :1], sides[:1], gap),
        Case("concavity", shuffled(concavity[concavity[:, 0] > 0]), ((-0.2, 0.7),), (-0.2, 0), 0),
        Case("petal length, width", petals, sides, gap, bandwidth=widths),
    ]


def sparse(case: Case, data: Floats) -> SparseDensity:
    """The estimate with zeros, whose base ends at the bound if there is one."""
    base = None
    if case.bound is not None:
        high = data.max() + 0.25 * np.ptp(data)
        base = Uniform(case.bound, high, validate_args=False)
    model = SparseDensity(inducing_points=50, bandwidth=case.bandwidth, base=base, random_state=0)
    return model.fit(data)


def _sparse(case: Case) -> Callable[[Floats], Density]:
    def fit(data: Floats) -> Density:
        model = sparse(case, data)
        return lambda t: np.asarray(np.exp(model.score_samples(t)))

    return fit


def _scott(case: Case) -> Callable[[Floats], Density]:
    return lambda data: _gaussian(data, "scott")


def _validated(case: Case) -> Callable[[Floats], Density]:
    """With the width under which held-out data are most likely, chosen once."""
    folds = np.arange(len(case.data)) % _FOLDS

    def likelihood(factor: float) -> float:
        logs = [
            np.log(_gaussian(case.data[folds != k], factor)(case.data[folds == k]) + 1e-300).sum()
            for k in range(_FOLDS)
        ]
        return float(sum(logs))

    best = float(max(_FACTORS, key=likelihood))
    return lambda data: _gaussian(data, best)


def _gaussian(data: Floats, width: str | float) -> Density:
    found = gaussian_kde(data.T, width)
    return lambda t: np.asarray(found(t.T))


METHODS: dict[str, Callable[[Case], Callable[[Floats], Density]]] = {
    "SparseDensity": _sparse,
    "gaussian_kde": _scott,
    "gaussian_kde, tuned": _validated,
}


def check(case: Case, method: str, folds: int) -> Check:
    """Fits to all folds but one, and looks at that one.

    Raises:
        ValueError: Fewer than two folds.
    """
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    fit, which = METHODS[method](case), np.arange(len(case.data)) % folds
    t = case.grid(2001 if case.data.shape[1] == 1 else 161)
    cell = case.area / len(t)
    inside = (case.empty[0] < t[:, 0]) & (t[:, 0] < case.empty[1])
    found = []
    for fold in range(folds):
        density = fit(case.data[which != fold])
        on_grid, held = density(t), density(case.data[which == fold])
        score = (on_grid**2).sum() * cell - 2 * held.mean()
        found.append((on_grid[inside].sum() * cell, (held == 0).mean(), score))
    return Check(*np.mean(found, 0).tolist())
