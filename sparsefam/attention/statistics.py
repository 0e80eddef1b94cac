"""What a ridge regression needs to know of its observations: sums over their positions."""

import math
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..numerics.collective import sum_over_ranks
from .observations import require

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Statistics", "require_finite", "require_statistics"]


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
            keep: What to multiply these by, from 0 to 1, shape () or (B,): 1 forgets nothing, 0
                all.

        Raises:
            ValueError: If the two are of different sizes, or `keep` is of another shape or range.
        """
        require_statistics("other", other)
        size = tuple(self.cross.shape)
        if other.cross.shape != size:
            rule = f"of {size[0]} examples, {size[1]} functions, {size[2]} channels"
            raise ValueError(f"other must be {rule}, got {tuple(other.cross.shape)}")
        weights = _weights(keep, self.energy)
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


def require_statistics(name: str, found: object) -> None:
    """Raises ValueError unless something is sums of one dtype whose sizes fit each other."""
    if not isinstance(found, Statistics):
        raise ValueError(f"{name} must be a Statistics, got {type(found).__name__}")
    dtype = found.cross.dtype if isinstance(found.cross, Tensor) else None
    for part, x in zip(Statistics._fields, found, strict=True):
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype != dtype:
            got = x.dtype if isinstance(x, Tensor) else repr(x)
            raise ValueError(f"{name}.{part} must be floating, of one dtype with all, got {got}")
    if found.cross.ndim != 3:
        raise ValueError(f"{name}.cross must be (B, N, E), got {tuple(found.cross.shape)}")
    batch, size, _ = found.cross.shape
    dues = {"gram": (batch, size, size), "energy": (batch,), "number": (batch,)}
    for part, due in dues.items():
        shape = tuple(getattr(found, part).shape)
        if shape != due and (part, shape) != ("gram", (1, size, size)):
            raise ValueError(f"{name}.{part} must be {due}, got {shape}")


def require_finite(statistics: Statistics, but: str) -> None:
    """Raises ValueError for sums that are not finite, but for those of one name."""
    named = zip(Statistics._fields, statistics, strict=True)
    parts = {name: x for name, x in named if name != but}
    # Where their sums are finite so are they: one question to the device.
    sums = torch.stack([x.detach().sum() for x in parts.values()])
    if torch.compiler.is_compiling() or not torch._is_all_true(sums.isfinite()):
        for name, x in parts.items():
            require(x.isfinite(), f"statistics.{name} must be finite", x)


def _weights(keep: Tensor | float, like: Tensor) -> Tensor:
    """What to keep, checked, as a tensor () or (B,) like another of these."""
    if isinstance(keep, Real):
        if not 0 <= float(keep) <= 1:
            raise ValueError(f"keep must be from 0 to 1, got {keep!r}")
        # Nothing is copied from the host.
        return like.new_full((), float(keep))
    if not isinstance(keep, Tensor) or keep.is_complex():
        raise ValueError(f"keep must be a number or a tensor, got {keep!r}")
    if keep.shape not in ((), like.shape):
        due = f"() or {tuple(like.shape)}"
        raise ValueError(f"keep must have shape {due}, got {tuple(keep.shape)}")
    require((keep >= 0) & (keep <= 1), "keep must be from 0 to 1", keep)
    return keep.to(like)
