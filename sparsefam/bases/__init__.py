"""Bases: the fixed or learned functions that value functions are combinations of."""

from .base import Basis, Stack
from .entire import Fourier, Polynomial
from .gaussian import GaussianRBF
from .products import Product
from .splines import BSpline, Indicator

__all__ = [
    "BSpline",
    "Basis",
    "Fourier",
    "GaussianRBF",
    "Indicator",
    "Polynomial",
    "Product",
    "Stack",
]
