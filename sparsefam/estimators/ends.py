"""Where the support of an estimate ends: no further from data than those allow."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..distributions import KernelDeformedExp, KernelExp
from ..distributions.uniform_on import UniformOn

if TYPE_CHECKING:  # not every build of torch has them
    from torch.distributed import ProcessGroup

__all__ = ["Outermost", "trimmed"]

# Stretches of the box whose outermost observations are kept: groups may be as close together.
_STRETCHES = 2**14
# Of the mean of the mass that observations miss beyond the outermost, what an estimate may have.
_SHARE = 0.5


class Outermost(NamedTuple):
    """The least and the greatest observation on each stretch of a box; those of parts add up.

    Attributes:
        low: (G,), inf where there is none.
        high: (G,), -inf where there is none.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, base: Any) -> "Outermost":
        """Of observations (n, 1) with weights (n,), under a uniform base."""
        x, box = x[weight > 0, 0], base[0]
        share = (x - box.low) / (box.high - box.low)
        stretch = (share * _STRETCHES).long().clamp(0, _STRETCHES - 1)
        empty = x.new_full((_STRETCHES,), torch.inf)
        return cls(
            empty.scatter_reduce(0, stretch, x, "amin"),
            (-empty).scatter_reduce(0, stretch, x, "amax"),
        )

    def __or__(self, other: "Outermost") -> "Outermost":
        """Of both together."""
        return Outermost(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    def over_ranks(self, group: "ProcessGroup | None") -> "Outermost":
        """Of the observations of all processes of a group; itself without one."""
        if group is None:
            return self
        # The least of the negative is the largest.
        found = torch.stack([self.low, -self.high])
        dist.all_reduce(found, dist.ReduceOp.MIN, group)
        return Outermost(found[0], -found[1])

    def within(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The outermost in intervals from (K,) to (K,): (K, 2), inf and -inf if there is none."""
        both = torch.cat([self.low, self.high])
        inside = (lower.unsqueeze(-1) <= both) & (both <= upper.unsqueeze(-1))
        first = torch.where(inside, both, torch.inf).amin(-1)
        return torch.stack([first, torch.where(inside, both, -torch.inf).amax(-1)], -1)


def trimmed(
    p: KernelExp | KernelDeformedExp, seen: Outermost | None, size: Tensor
) -> KernelExp | KernelDeformedExp:
    """A density of numbers under a uniform base, on the intervals of its support with observations.

    The mass beyond the outermost of n observations (`size`) is more than t with a probability of
    (1 - t)^n, whatever the density, 1/n in the mean. Where the estimate has more than half of that
    beyond them an interval ends: three of five true ends are further out. Nothing is cut of
    densities that are positive everywhere, or if observations are not given.
    """
    if seen is None or isinstance(p, KernelExp):
        return p
    support: Any = p.support
    outermost = seen.within(*support.intervals.unbind(-1))
    some = outermost[:, 0] <= outermost[:, 1]
    ends, outermost = support.intervals[some], outermost[some]
    due = torch.tensor([-1.0, 1.0], dtype=outermost.dtype) * _SHARE / size
    cut = p.icdf((p.cdf(outermost) + due).clamp(0, 1))
    lower, upper = torch.maximum(ends[:, 0], cut[:, 0]), torch.minimum(ends[:, 1], cut[:, 1])
    return _restricted(p, torch.stack([lower, upper], -1))


def _restricted(p: KernelDeformedExp, intervals: Tensor) -> KernelDeformedExp:
    """Conditioned on intervals (K, 2) of its support."""
    whole: Any = p.panels.base.factors[0]
    base = UniformOn(intervals, whole)
    # p^(alpha - 1) is linear in the score, relative to the base.
    mass, share = p.cdf(intervals).diff().sum(), base.lengths.sum() / (whole.high - whole.low)
    eps = float(p.alpha) - 1
    weights = (share / mass) ** eps * p.weights
    return KernelDeformedExp(
        weights, p.inducing_points, p.kernel, base, 1 + eps, tolerance=p.panels.tolerance
    )
