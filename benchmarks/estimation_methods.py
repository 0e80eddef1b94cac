"""The estimates that are compared: a function of data that gives a function of locations."""

from collections.abc import Callable

import numpy as np
from scipy import stats
from sklearn.neighbors import KernelDensity

from sparsefam.estimators import SparseDensity

from .estimation_laws import GRID, Array

try:
    import KDEpy
except ImportError:
    KDEpy = None

__all__ = ["METHODS", "MISSING", "OURS"]

Fit = Callable[[Array], Callable[[Array], Array]]
OURS = "SparseDensity"
# Said where KDEpy is missing; it is left out then.
MISSING = "" if KDEpy else "KDEpy is not compared: pip install KDEpy==1.1.12"
# Bandwidths of the cross-validated rival, in standard deviations of the data; and how often in a
# row a larger one may be worse before the rest, which take longest, is not tried.
_SHARES = np.geomspace(0.005, 1.0, 17)
_PATIENCE = 2
_FOLDS = 5
# KDEpy pads by at least 6, so that its bandwidths are too small for data of a small range (its
# issue 201); for others they are half of what they should be (issue 199). It is compared without.
_LARGE, _HALF = 1e3, 0.5


def _ours(x: Array) -> Callable[[Array], Array]:
    model = SparseDensity().fit(x[:, None])
    return lambda t: np.asarray(np.exp(model.score_samples(t[:, None])))


def _scott(x: Array) -> Callable[[Array], Array]:
    return stats.gaussian_kde(x, "scott")  # type: ignore[no-any-return]


def _silverman(x: Array) -> Callable[[Array], Array]:
    return stats.gaussian_kde(x, "silverman")  # type: ignore[no-any-return]


def _epanechnikov(x: Array) -> Callable[[Array], Array]:
    """With the bandwidth under which held-out observations are most likely."""
    best, chosen, worse = -np.inf, 0.0, 0
    for width in _SHARES * x.std():
        likelihood = _likelihood(x, width)
        worse = worse + 1 if best > -np.inf and likelihood <= best else 0
        if likelihood > best:
            best, chosen = likelihood, width
        if worse == _PATIENCE:
            break
    model = KernelDensity(kernel="epanechnikov", bandwidth=chosen).fit(x[:, None])
    return lambda t: np.asarray(np.exp(model.score_samples(t[:, None])))


def _likelihood(x: Array, width: float) -> float:
    """Log likelihood of each fold under the rest."""
    folds, total = np.arange(len(x)) % _FOLDS, 0.0
    for fold in range(_FOLDS):
        model = KernelDensity(kernel="epanechnikov", bandwidth=width)
        total += model.fit(x[folds != fold, None]).score(x[folds == fold, None])
    return total


def _sheather(x: Array) -> Callable[[Array], Array]:
    """Gaussian kernels with the bandwidth of the improved Sheather-Jones rule."""
    width = KDEpy.bw_selection.improved_sheather_jones(_LARGE * x[:, None]) / (_LARGE * _HALF)
    found = KDEpy.FFTKDE(kernel="gaussian", bw=width).fit(x).evaluate(GRID)
    found = found.clip(0)  # rounding in the Fourier transform
    return lambda t: np.asarray(np.interp(t, GRID, found))


METHODS: dict[str, Fit] = {
    OURS: _ours,
    "Gaussian, Scott": _scott,
    "Gaussian, Silverman": _silverman,
    "Epanechnikov, cross-validated": _epanechnikov,
}
if KDEpy is not None:
    METHODS["KDEpy, Sheather-Jones"] = _sheather
