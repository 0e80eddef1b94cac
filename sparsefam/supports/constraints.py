"""What parameters must satisfy: torch's constraints let infinity pass."""

import math

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    ExpTransform,
    LowerCholeskyTransform,
    Transform,
    identity_transform,
)

__all__ = ["finite", "finite_scale_tril", "finite_vector", "positive_finite", "unnormalised"]


class _Finite(constraints.Constraint):
    """Finite real numbers; `constraints.real` lets infinities pass."""

    def check(self, value: Tensor) -> Tensor:
        return value.abs() < math.inf  # half as long as isfinite


class _PositiveFinite(constraints.Constraint):
    """Positive finite numbers; `constraints.positive` lets infinity pass."""

    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & (value < math.inf)


class _FiniteScaleTril(constraints.Constraint):
    """Finite lower-triangular matrices with positive diagonals.

    `constraints.lower_cholesky` lets infinity pass.
    """

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        if value.dim() < 2 or value.shape[-2] != value.shape[-1]:
            return value.new_zeros(value.shape[:-2], dtype=torch.bool)
        positive = (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        # Only a number times 0 is 0. Not by triu, which wakes threads for the smallest of batches.
        index = torch.arange(value.shape[-1], device=value.device)
        upper = index.unsqueeze(-1) < index
        valid: Tensor = positive & (value * upper == 0).flatten(-2).all(-1)
        return valid


class _FiniteVector(constraints.Constraint):
    """Vectors of finite real numbers."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        # Both are NaN if anything is; nothing as large as the value is made.
        low, high = value.amin(-1), value.amax(-1)
        return (low > -math.inf) & (high < math.inf)


class _Unnormalised(constraints.Constraint):
    """Vectors of numbers below inf, at least one of them above -inf."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        alive: Tensor = (value > -math.inf).any(-1) & (value < math.inf).all(-1)
        return alive

    def __repr__(self) -> str:
        return "numbers below inf, at least one of them above -inf"


finite = _Finite()
finite_scale_tril = _FiniteScaleTril()
finite_vector = _FiniteVector()
unnormalised = _Unnormalised()
positive_finite = _PositiveFinite()


@biject_to.register(_FiniteScaleTril)
@transform_to.register(_FiniteScaleTril)
def _to_scale_tril(constraint: constraints.Constraint) -> Transform:
    return LowerCholeskyTransform()


@biject_to.register(_Finite)
@transform_to.register(_Finite)
@biject_to.register(_FiniteVector)
@transform_to.register(_FiniteVector)
@biject_to.register(_Unnormalised)
@transform_to.register(_Unnormalised)
def _to_finite(constraint: constraints.Constraint) -> Transform:
    return identity_transform


@biject_to.register(_PositiveFinite)
@transform_to.register(_PositiveFinite)
def _to_positive(constraint: constraints.Constraint) -> Transform:
    return ExpTransform()
