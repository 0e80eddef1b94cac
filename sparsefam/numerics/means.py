"""Means of functions that are known at nodes."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["weighted_means"]


def weighted_means(weights: Tensor, values: Tensor) -> Tensor:
    """Sums of values (Q, N) with weights (Q, R) over those of the weights, (R, N)."""
    sums = weights.T @ torch.cat([values, values.new_ones(len(values), 1)], -1)
    means: Tensor = _Ratio.apply(sums)
    return means


class _Ratio(torch.autograd.Function):
    """All columns but the last over the last: half the passes of a quotient of slices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sums: Tensor) -> Tensor:
        return sums[:, :-1] / sums[:, -1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        sums, means = ctx.saved_tensors
        share = grad / sums[:, -1:]
        return torch.cat([share, -(share * means).sum(-1, keepdim=True)], -1)
