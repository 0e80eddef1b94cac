"""Continuous attention: value functions fitted to observations, read by densities."""

from .layers import ContinuousAttention
from .regression import RidgeRegression, ValueFunction

__all__ = ["ContinuousAttention", "RidgeRegression", "ValueFunction"]
