"""Densities, each a torch and a Pyro distribution."""

from . import divergences
from .base import SparseDistribution
from .beta_gaussian import BetaGaussian, TruncatedParabola
from .dense import Laplace, Normal
from .elliptical import EllipticalDistribution
from .finite import SparseCategorical
from .location_scale import LocationScale
from .multivariate import MultivariateBetaGaussian
from .multivariate_normal import MultivariateNormal
from .paraboloid import TruncatedParaboloid
from .symmetric import SymmetricDistribution
from .triangular import BetaLaplace, Triangular

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "EllipticalDistribution",
    "Laplace",
    "LocationScale",
    "MultivariateBetaGaussian",
    "MultivariateNormal",
    "Normal",
    "SparseCategorical",
    "SparseDistribution",
    "SymmetricDistribution",
    "Triangular",
    "TruncatedParabola",
    "TruncatedParaboloid",
    "divergences",
]
