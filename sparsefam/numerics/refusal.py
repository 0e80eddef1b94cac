"""Derivatives that do not exist are refused: left out of a graph they would be taken for zero."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["REFUSAL", "without_derivative"]

REFUSAL = "only first derivatives exist in alpha, and of entropies, cdf, icdf and samples"


def without_derivative(x: Tensor) -> Tensor:
    """The same numbers, of which a derivative raises a RuntimeError."""
    found: Tensor = _Refused.apply(x)
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
