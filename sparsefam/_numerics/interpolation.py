"""Matrices that act on the values of polynomials at given nodes."""

import numpy as np
from numpy.polynomial import chebyshev

from .quadrature import Numbers

__all__ = ["coefficients", "matrix"]


def coefficients(nodes: Numbers, derivative: int = 0) -> Numbers:
    """Return the matrix from values at m nodes to Chebyshev coefficients of a derivative (m, m)."""
    inverse = np.linalg.inv(chebyshev.chebvander(nodes, len(nodes) - 1))
    slope: Numbers = chebyshev.chebder(inverse, derivative)
    return np.pad(slope, ((0, len(nodes) - len(slope)), (0, 0)))


def matrix(nodes: Numbers, at: Numbers, derivative: int = 0) -> Numbers:
    """Return the matrix from values at nodes to values of a derivative at locations `at`."""
    return chebyshev.chebvander(at, len(nodes) - 1) @ coefficients(nodes, derivative)
