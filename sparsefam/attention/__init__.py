"""Continuous attention: value functions fitted to observations, read by densities."""

from .layers import ContinuousAttention
from .learned_alpha import LearnedAlpha
from .memory import ContractingMemory, ForgettingMemory
from .regression import RidgeRegression
from .statistics import Statistics
from .value_function import ValueFunction

__all__ = [
    "ContinuousAttention",
    "ContractingMemory",
    "ForgettingMemory",
    "LearnedAlpha",
    "RidgeRegression",
    "Statistics",
    "ValueFunction",
]
