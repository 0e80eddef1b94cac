"""Densities, each a torch and a Pyro distribution."""

from ._generators import Generator, QuadratureGenerator
from .base import SparseDistribution
from .beta_gaussian import BetaGaussian, TruncatedParabola
from .beta_laplace import BetaLaplace, Triangular
from .categorical import SparseCategorical
from .censored import Censored
from .density import Density
from .divergences import bregman_divergence, tsallis_divergence
from .elliptical import (
    EllipticalDistribution,
    MultivariateBetaGaussian,
    MultivariateNormal,
    TruncatedParaboloid,
)
from .hurdle import Hurdle
from .kernel_family import KernelDeformedExp, KernelDistribution, KernelExp
from .location_scale import LocationScale
from .mixture import Mixture
from .normal import Laplace, Normal
from .scaled_beta import ScaledBeta
from .symmetric import SymmetricDistribution
from .truncated import Truncated
from .univariate import Geometry, Univariate

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "Censored",
    "Density",
    "EllipticalDistribution",
    "Generator",
    "Geometry",
    "Hurdle",
    "KernelDeformedExp",
    "KernelDistribution",
    "KernelExp",
    "Laplace",
    "LocationScale",
    "Mixture",
    "MultivariateBetaGaussian",
    "MultivariateNormal",
    "Normal",
    "QuadratureGenerator",
    "ScaledBeta",
    "SparseCategorical",
    "SparseDistribution",
    "SymmetricDistribution",
    "Triangular",
    "Truncated",
    "TruncatedParabola",
    "TruncatedParaboloid",
    "Univariate",
    "bregman_divergence",
    "tsallis_divergence",
]
