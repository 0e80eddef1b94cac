"""Products that overflow to infinity, not to NaN."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["in_units"]


def in_units(value: Tensor, first: Tensor, second: Tensor | None = None) -> Tensor:
    """`value` times constant units, positive and perhaps infinite, which broadcast to its shape.

    A zero stays zero in any unit. A gradient that overflows is zero.
    """
    product: Tensor = _Product.apply(
        value, first, torch.ones_like(first) if second is None else second
    )
    return product


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.where(value == 0, 0.0, value * first * second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        slope = in_units(grad, *ctx.saved_tensors)
        # Room for what the chain rule adds up.
        info = torch.finfo(slope.dtype)
        return torch.where(slope.abs() < info.max * info.eps, slope, 0.0), None, None
