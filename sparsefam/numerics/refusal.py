"""Derivatives that do not exist are refused: left out of a graph they would be taken for zero."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["REFUSAL", "differentiable_once", "without_derivative"]

REFUSAL = (
    "only first derivatives exist in alpha, and of entropies, cdf, icdf, samples and "
    "cross-validated penalties"
)


def without_derivative(x: Tensor) -> Tensor:
    """The same numbers, of which a derivative raises a RuntimeError."""
    found: Tensor = _Refused.apply(x)
    return found


def differentiable_once(x: Tensor) -> Tensor:
    """The same numbers, of whose first derivatives a derivative raises a RuntimeError."""
    found: Tensor = _Once.apply(x)
    return found


class _Refused(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(REFUSAL)


class _Once(_Refused):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return without_derivative(grad)
