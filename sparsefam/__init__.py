"""Probability densities that can be exactly zero, and continuous attention built on them."""

from . import attention, bases, expectations, inference, losses, plotting, scores, supports
from .dispatch import register_expect
from .distributions import (
    BetaGaussian,
    BetaLaplace,
    EllipticalDistribution,
    KernelDeformedExp,
    KernelExp,
    Laplace,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    SparseDistribution,
    SymmetricDistribution,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    bregman_divergence,
    tsallis_divergence,
)
from .prediction_map import rpm

__version__ = "0.1.0.dev0"

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "EllipticalDistribution",
    "KernelDeformedExp",
    "KernelExp",
    "Laplace",
    "LocationScale",
    "Mixture",
    "MultivariateBetaGaussian",
    "MultivariateNormal",
    "Normal",
    "SparseCategorical",
    "SparseDistribution",
    "SymmetricDistribution",
    "Triangular",
    "TruncatedParabola",
    "TruncatedParaboloid",
    "attention",
    "bases",
    "bregman_divergence",
    "expectations",
    "inference",
    "losses",
    "plotting",
    "register_expect",
    "rpm",
    "scores",
    "supports",
    "tsallis_divergence",
]
