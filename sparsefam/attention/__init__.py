"""Continuous attention: value functions fitted to observations, read by densities."""

from .layer import ContinuousAttention
from .memory import ContractingMemory, ForgettingMemory
from .regression import RidgeRegression, Statistics, ValueFunction
from .retrieval import retrieval_energy, retrieve
from .scores import LearnedAlpha

__all__ = [
    "ContinuousAttention",
    "ContractingMemory",
    "ForgettingMemory",
    "LearnedAlpha",
    "RidgeRegression",
    "Statistics",
    "ValueFunction",
    "retrieval_energy",
    "retrieve",
]
