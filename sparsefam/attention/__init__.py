"""Continuous attention: value functions fitted to observations, read by densities."""

from .layer import ContinuousAttention
from .memory import ContractingMemory, ForgettingMemory
from .regression import RidgeRegression, Statistics, ValueFunction
from .retrieval import retrieval_energy, retrieve
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
    "Statistics",
    "ValueFunction",
    "retrieval_energy",
    "retrieve",
]
