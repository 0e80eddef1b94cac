"""Probability densities that can be exactly zero, and continuous attention built on them."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import _expectations as _expectations  # fills the table of rules
from . import attention, bases, inference, losses, plotting, scores, supports
from ._choice import explain, register_expect
from ._prediction_map import rpm
from .distributions import (
    BetaGaussian,
    BetaLaplace,
    Censored,
    Density,
    EllipticalDistribution,
    Geometry,
    Hurdle,
    KernelDeformedExp,
    KernelExp,
    Laplace,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    ScaledBeta,
    SparseCategorical,
    SparseDistribution,
    SymmetricDistribution,
    Triangular,
    Truncated,
    TruncatedParabola,
    TruncatedParaboloid,
    Univariate,
    bregman_divergence,
    tsallis_divergence,
)

if TYPE_CHECKING:
    from . import estimators as estimators


def __getattr__(name: str) -> ModuleType:
    """The estimators, which need scikit-learn, when they are first asked for."""
    if name == "estimators":
        return import_module(".estimators", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "Censored",
    "Density",
    "EllipticalDistribution",
    "Geometry",
    "Hurdle",
    "KernelDeformedExp",
    "KernelExp",
    "Laplace",
    "LocationScale",
    "Mixture",
    "MultivariateBetaGaussian",
    "MultivariateNormal",
    "Normal",
    "ScaledBeta",
    "SparseCategorical",
    "SparseDistribution",
    "SymmetricDistribution",
    "Triangular",
    "Truncated",
    "TruncatedParabola",
    "TruncatedParaboloid",
    "Univariate",
    "attention",
    "bases",
    "bregman_divergence",
    "explain",
    "inference",
    "losses",
    "plotting",
    "register_expect",
    "rpm",
    "scores",
    "supports",
    "tsallis_divergence",
]
