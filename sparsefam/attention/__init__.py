"""Continuous attention: value functions fitted to observations, read by densities."""

from .layer import ContinuousAttention
from .memory import ContractingMemory, ForgettingMemory
from .normal_equations import NormalEquations
from .regression import RidgeRegression
from .retrieval import retrieve
from .scores import (
    AttentionScore,
    ContentScore,
    Dimensions,
    KernelScore,
    LearnedAlpha,
    MomentScore,
    Observed,
    QuadraticScore,
)
from .value_function import ValueFunction

__all__ = [
    "AttentionScore",
    "ContentScore",
    "ContinuousAttention",
    "ContractingMemory",
    "Dimensions",
    "ForgettingMemory",
    "KernelScore",
    "LearnedAlpha",
    "MomentScore",
    "Observed",
    "QuadraticScore",
    "RidgeRegression",
    "NormalEquations",
    "ValueFunction",
    "retrieve",
]
