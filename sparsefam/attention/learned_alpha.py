"""An entropic index that is learned and cannot leave its range."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..numerics.validation import is_count
from .precision import check_dtype, single

__all__ = ["LearnedAlpha"]

# Nearer to 1, derivatives in alpha lose their digits in float32.
_LEAST = 1.01


class LearnedAlpha(nn.Module):
    r"""A learned entropic index for each head, to be given to `ContinuousAttention` as `alpha`.

    $$\alpha_h = 1.01 + (\bar\alpha - 1.01)\,\mathrm{sigmoid}(w_h), \qquad
    \alpha_h = 1.01 + \mathrm{softplus}(w_h) \quad \text{if } \bar\alpha = \infty$$

    Its value is in float32 at least, whatever the dtype of the parameters.

    Args:
        num_heads: Number of heads; 1 for an index that they share.
        start: What it is before training, one number or one for each head, between 1.01 and `high`;
            also as a tensor or an array.
        high: The bound $\bar\alpha$; at most 2 for `score="kernel"`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If an argument is out of its range.

    Examples:
        >>> LearnedAlpha(2, start=1.5)()
        tensor([[1.5000],
                [1.5000]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        num_heads: int,
        start: Tensor | Sequence[float] | float = 1.5,
        high: float = 2.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        start = start.tolist() if hasattr(start, "tolist") else start
        _check(num_heads, start, high)
        check_dtype(dtype)
        self.num_heads, self.start, self.high = num_heads, start, high
        self.weight = nn.Parameter(torch.empty(num_heads, 1, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Back to the start."""
        above = torch.tensor(self.start, dtype=torch.float64, device="cpu") - _LEAST
        if self.high == math.inf:
            weight = above + torch.log(-torch.expm1(-above))
        else:
            weight = torch.logit(above / (self.high - _LEAST))
        self.weight.copy_(weight.reshape(-1, 1).expand_as(self.weight))

    def forward(self) -> Tensor:
        """The indices (num_heads, 1), to broadcast against densities (B, num_heads, Lq)."""
        weight = single(self.weight)
        if self.high == math.inf:
            return _LEAST + functional.softplus(weight)
        return _LEAST + (self.high - _LEAST) * torch.sigmoid(weight)

    def extra_repr(self) -> str:
        return f"{self.num_heads}, start={self.start}, high={self.high}"


def _check(num_heads: Any, start: Any, high: Any) -> None:
    if not is_count(num_heads):
        raise ValueError(f"num_heads must be a positive integer, got {num_heads!r}")
    if not isinstance(high, Real) or not float(high) > _LEAST:
        raise ValueError(f"high must be a number above {_LEAST}, got {high!r}")
    each = [start] * num_heads if isinstance(start, Real) else start
    fits = isinstance(each, Sequence) and len(each) == num_heads
    if not fits or not all(isinstance(x, Real) and _LEAST < float(x) < float(high) for x in each):
        raise ValueError(
            f"start must be a number, or {num_heads} of them, between {_LEAST} and {high}, "
            f"got {start!r}"
        )
