"""Continuous attention: value functions fitted to observations, read by densities."""

from .layer import ContinuousAttention
from .local import LocalScore, SplitScore
from .memory import ContractingMemory, ForgettingMemory
from .normal_equations import NormalEquations
from .readout import Readout
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
    "LocalScore",
    "MomentScore",
    "Observed",
    "QuadraticScore",
    "Readout",
    "RidgeRegression",
    "NormalEquations",
    "SplitScore",
    "ValueFunction",
    "retrieve",
]
