"""Where data lie, also those that are spread over processes."""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..numerics.distributed import sum_over_ranks

if TYPE_CHECKING:  # not every build of torch has them
    from torch.distributed import ProcessGroup

__all__ = ["Extent", "gathered"]

# The least range of data, as a share of their size: nodes that are made for less would be the same
# number, and halving panels would never end.
_DIGITS = 2.0**-40


class Extent(NamedTuple):
    """Range, mean and standard deviation of each column (D,)."""

    low: Tensor
    high: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, group: "ProcessGroup | None" = None) -> "Extent":
        """Of data (n, D) with weights (n,), of all processes of a group if there is one.

        Raises:
            ValueError: A column that is constant, or nearly so for its size.
        """
        used = x[weight > 0]
        # The least of the negative is the largest.
        ends = torch.stack([used.amin(0), -used.amax(0)])
        if group is not None:
            dist.all_reduce(ends, dist.ReduceOp.MIN, group)
        low, high = ends[0], -ends[1]
        if (low == high).any():
            raise ValueError(f"X must have no constant column, got {low.tolist()} everywhere")
        if (high - low <= _DIGITS * torch.maximum(low.abs(), high.abs())).any():
            raise ValueError(
                "X must have columns whose range is more than some roundings of their numbers; "
                f"subtract a constant from each: got {low.tolist()} to {high.tolist()}"
            )
        total = _sum(weight.sum(), group)
        mean = _sum(weight @ x, group) / total
        # In shares of the range, whose squares neither overflow nor vanish.
        shares = _sum(weight @ ((x - mean) / (high - low)).square(), group) / total
        return cls(low, high, mean, (high - low) * shares.sqrt())


def _sum(x: Tensor, group: "ProcessGroup | None") -> Tensor:
    return x if group is None else sum_over_ranks(x, group)


def gathered(rows: Tensor, group: "ProcessGroup | None") -> Tensor:
    """The rows of every process, the same number each, one after the other."""
    if group is None:
        return rows
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, rows.contiguous(), group)
    return torch.cat(parts)
