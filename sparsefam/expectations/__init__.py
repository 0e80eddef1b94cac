"""Closed forms of E_p[psi], registered by the types of p and psi when this package is imported."""

from . import kernels, multivariate, shared, univariate

__all__ = ["kernels", "multivariate", "shared", "univariate"]
