"""Densities, each a torch and a Pyro distribution."""

from .base import SparseDistribution
from .beta_gaussian import BetaGaussian, TruncatedParabola
from .dense import Laplace, Normal
from .finite import SparseCategorical
from .location_scale import LocationScale
from .symmetric import SymmetricDistribution
from .triangular import BetaLaplace, Triangular

__all__ = [
    "BetaGaussian",
    "BetaLaplace",
    "Laplace",
    "LocationScale",
    "Normal",
    "SparseCategorical",
    "SparseDistribution",
    "SymmetricDistribution",
    "Triangular",
    "TruncatedParabola",
]
