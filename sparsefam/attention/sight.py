"""Which positions queries may read."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .observations import require

__all__ = ["Sight"]


class Sight(NamedTuple):
    """Which positions queries may read.

    Attributes:
        taken: Shape (B, L), True where a query may read the position; None: all are read.
        seen: Shape (B, heads or 1, Lq, L), the same for each query; None: as `taken` has it.
        bias: Added to discrete scores, of a shape like that of `seen`; None: nothing is.
    """

    taken: Tensor | None = None
    seen: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def through(
        cls, padding: Tensor | None, mask: Tensor | None, batch: int, heads: int
    ) -> "Sight":
        """Of masks as `torch.nn.MultiheadAttention` has them, of shapes that fit.

        Args:
            padding: Shape (B, L), True where a position is padding.
            mask: Shape (Lq, L) or (B * heads, Lq, L), True where a query may not read, or numbers
                to be added to discrete scores.
            batch: B.
            heads: Number of heads.
        """
        taken = None if padding is None else ~padding
        if mask is None:
            return cls(taken)
        by_head = mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask[None, None]
        free = ~by_head if mask.dtype == torch.bool else by_head != -math.inf
        bias = None if mask.dtype == torch.bool else torch.where(free, by_head, 0)
        seen = free.expand(batch, *free.shape[1:])
        if taken is not None:
            seen = seen & taken[:, None, None]
        # With no queries there is nothing to say of the positions.
        return cls(seen.any(2).any(1) if mask.shape[-2] else taken, seen, bias)

    def check(self, discrete: bool, sharded: bool) -> None:
        """Raises ValueError where a query may read nothing, or a bias has no meaning.

        Args:
            discrete: Whether there are discrete scores for the bias to be added to.
            sharded: Whether more may be read on other ranks.
        """
        if self.seen is not None:
            rule = "attn_mask and key_padding_mask must leave every query a position to read"
            count = self.seen.sum(-1)
            require(count > 0, rule, count)
        elif self.taken is not None and not sharded:
            rule = "key_padding_mask must leave every example a position to read"
            count = self.taken.sum(-1)
            require(count > 0, rule, count)
        if self.bias is not None:
            rule = "attn_mask must be numbers below inf"
            require(self.bias < math.inf, rule, self.bias)
            rule = "attn_mask must be boolean, or 0 and -inf, where no weights are discrete"
            require((self.bias == 0) | discrete, rule, self.bias)

    def hide(self, scores: Tensor) -> Tensor:
        """Scores (B, heads, Lq, L) with the bias, and -inf where they are not to be read."""
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        seen = self.seen
        if seen is None and self.taken is not None:
            seen = self.taken[:, None, None]
        return scores if seen is None else torch.where(seen, scores, -math.inf)
