"""What a ridge regression needs to know of its observations: sums over their positions."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..numerics.collective import sum_over_ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Statistics"]


class Statistics(NamedTuple):
    r"""Sums over positions, in float64: all that a `RidgeRegression` knows of its observations.

    Those of two parts of a sequence add up to those of the whole, for which there is `plus`.

    Attributes:
        gram: $F^\top F$, shape (B, N, N), or (1, N, N) if all examples share their positions.
        cross: $F^\top H$, shape (B, N, E).
        energy: $\lVert H \rVert^2$, shape (B,).
        number: How many observations there are, shape (B,).
    """

    gram: Tensor
    cross: Tensor
    energy: Tensor
    number: Tensor

    def plus(self, other: "Statistics", keep: Tensor | float = 1.0) -> "Statistics":
        """The statistics of both, after forgetting some of these.

        Args:
            other: Of other positions of the same examples.
            keep: What to multiply these by, shape () or (B,): 1 forgets nothing, 0 all.

        Raises:
            ValueError: If the two are of different sizes, or `keep` is of another shape.
        """
        size, batch = tuple(self.cross.shape), tuple(self.energy.shape)
        if not isinstance(other, Statistics):
            raise ValueError(f"other must be a Statistics, got {type(other).__name__}")
        if other.cross.shape != size:
            rule = f"of {size[0]} examples, {size[1]} functions, {size[2]} channels"
            raise ValueError(f"other must be {rule}, got {tuple(other.cross.shape)}")
        if other.gram.shape[1:] != self.gram.shape[1:]:
            due, got = self.gram.shape[-1], tuple(other.gram.shape)
            raise ValueError(f"other.gram must be (B, {due}, {due}), got {got}")
        try:
            # Nothing is copied from the host.
            like = self.cross
            weights = keep.to(like) if isinstance(keep, Tensor) else like.new_full((), keep)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"keep must be a number or a tensor, got {keep!r}") from None
        if weights.shape not in ((), batch):
            raise ValueError(f"keep must have shape () or {batch}, got {tuple(weights.shape)}")
        parts = []
        for mine, new in zip(self, other, strict=True):
            weight = weights.reshape([*weights.shape, *[1] * (mine.ndim - 1)])
            # What is forgotten may be NaN.
            parts.append(weight * torch.where(weight == 0, 0, mine) + new)
        return Statistics(*parts)

    def detach(self) -> "Statistics":
        """The same without a past, at which gradients stop."""
        return Statistics(*(part.detach() for part in self))

    def over_ranks(self, group: "ProcessGroup", *more: Tensor) -> tuple["Statistics", list[Tensor]]:
        """The sums over a group of processes, by one reduction, and with them sums of `more`."""
        parts = [*self, *more]
        flat = torch.cat([part.to(self.gram.dtype).reshape(-1) for part in parts])
        sizes = [math.prod(part.shape) for part in parts]
        pieces = sum_over_ranks(flat, group).split(sizes)
        whole = [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)]
        return Statistics(*whole[:4]), whole[4:]
