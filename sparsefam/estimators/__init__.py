"""Density estimates with true zeros, as scikit-learn's estimators."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "sparsefam.estimators needs scikit-learn: pip install 'sparsefam[estimators]'"
    ) from missing

from ._model_selection import quadratic_score
from .beta_gaussian import BetaGaussianDensity
from .conformal import conformal_mass
from .sparse_density import SparseDensity

__all__ = ["BetaGaussianDensity", "SparseDensity", "conformal_mass", "quadratic_score"]
