"""Closed forms of E_p[psi], registered by the types of p and psi when this package is imported."""

from . import multivariate, shared, univariate

__all__ = ["multivariate", "shared", "univariate"]
