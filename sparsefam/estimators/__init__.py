"""Density estimates with true zeros, as scikit-learn's estimators."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "sparsefam.estimators needs scikit-learn: pip install 'sparsefam[estimators]'"
    ) from missing

from .score_matching import ScoreMatchingKernelExp
from .sparse_density import SparseDensity

__all__ = ["ScoreMatchingKernelExp", "SparseDensity"]
