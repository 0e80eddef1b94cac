"""Where the support of an estimate ends: no further from data than those allow."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..distributions import KernelDeformedExp, KernelExp
from ..distributions.base_measure import UniformOn
from ..numerics.distributed import sum_over_ranks
from .features import Statistics

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
        at: The least, and minus the greatest, (2, G), inf where there is none.
        weight: The weight of all observations there, (2, G).
    """

    at: Tensor
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, base: Any) -> "Outermost":
        """Of observations (n, 1) with weights (n,), under a uniform base."""
        x, weight, box = x[weight > 0, 0], weight[weight > 0], base[0]
        share = (x - box.low) / (box.high - box.low)
        stretch = (share * _STRETCHES).long().clamp(0, _STRETCHES - 1).expand(2, -1)
        both, empty = torch.stack([x, -x]), x.new_zeros(2, _STRETCHES)
        at = (empty + torch.inf).scatter_reduce(1, stretch, both, "amin")
        there = torch.where(both == at.gather(1, stretch), weight, 0.0)
        return cls(at, empty.scatter_add(1, stretch, there.to(x)))

    def _of_those_at(self, at: Tensor) -> Tensor:
        """The weight of what is no further in than others, (2, G)."""
        return torch.where(self.at == at, self.weight, 0.0)

    def __or__(self, other: "Outermost") -> "Outermost":
        """Of both together."""
        at = torch.minimum(self.at, other.at)
        return Outermost(at, self._of_those_at(at) + other._of_those_at(at))

    def over_ranks(self, group: "ProcessGroup | None") -> "Outermost":
        """Of the observations of all processes of a group; itself without one."""
        if group is None:
            return self
        at = self.at.clone()
        dist.all_reduce(at, dist.ReduceOp.MIN, group)
        return Outermost(at, sum_over_ranks(self._of_those_at(at), group))

    def within(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The outermost in intervals from (K,) to (K,), inf and -inf if there is none.

        Returns:
            Where they are (K, 2), and the largest weight at one place in each interval (K,).
        """
        both = torch.cat([self.at[0], -self.at[1]])
        inside = (lower.unsqueeze(-1) <= both) & (both <= upper.unsqueeze(-1))
        first = torch.where(inside, both, torch.inf).amin(-1)
        last = torch.where(inside, both, -torch.inf).amax(-1)
        largest = torch.where(inside, self.weight.flatten(), 0.0).amax(-1)
        return torch.stack([first, last], -1), largest


def trimmed(
    p: KernelExp | KernelDeformedExp, seen: Outermost | None, data: Statistics
) -> KernelExp | KernelDeformedExp:
    """A density of numbers under a uniform base, on the intervals of its support with observations.

    The mass beyond the outermost of n observations is more than t with a probability of (1 - t)^n,
    whatever the density, 1/n in the mean. Where the estimate has more than half of that beyond them
    an interval ends: three of five true ends are further out. Where there are ties, half of the
    largest may be beyond, too, as the hill around it may be. Nothing is cut of densities that are
    positive everywhere, or if observations are not given.
    """
    if seen is None or isinstance(p, KernelExp):
        return p
    support: Any = p.support
    outermost, largest = seen.within(*support.intervals.unbind(-1))
    some = outermost[:, 0] <= outermost[:, 1]
    ends, outermost, tie = support.intervals[some], outermost[some], largest[some] / data.weight
    beyond = _SHARE / data.size + (tie - 1 / data.size).clamp_min(0) / 2
    due = beyond.unsqueeze(-1) * torch.tensor([-1.0, 1.0], dtype=beyond.dtype)
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
