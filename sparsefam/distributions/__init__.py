"""Densities, each a torch and a Pyro distribution."""

from .base import SparseDistribution
from .beta_gaussian import BetaGaussian, TruncatedParabola
from .dense import Laplace, Normal
from .divergences import bregman_divergence, tsallis_divergence
from .elliptical import EllipticalDistribution
from .finite import SparseCategorical
from .kernel_family import KernelDeformedExp, KernelDistribution, KernelExp
from .location_scale import LocationScale
from .mixture import Mixture
from .multivariate import MultivariateBetaGaussian
from .multivariate_normal import MultivariateNormal
from .paraboloid import TruncatedParaboloid
from .symmetric import SymmetricDistribution
from .triangular import BetaLaplace, Triangular

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "EllipticalDistribution",
    "KernelDeformedExp",
    "KernelDistribution",
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
    "bregman_divergence",
    "tsallis_divergence",
]
