"""The uniform density on several intervals, a base for kernel families."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Uniform, constraints

from ..supports import IntervalUnion

__all__ = ["UniformOn"]


class UniformOn(Distribution):
    """The uniform density on intervals of a longer one, where inducing points may also be.

    Args:
        intervals: Disjoint, (K, 2).
        whole: The density that is restricted to these.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, intervals: Tensor, whole: Uniform) -> None:
        self.intervals, self.whole = intervals, whole
        super().__init__(validate_args=False)

    @property
    def breaks(self) -> Tensor:
        """Where the density jumps (2 K,)."""
        return self.intervals.flatten()

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The intervals."""
        return IntervalUnion(self.intervals)

    @property
    def lengths(self) -> Tensor:
        """Of the intervals (K,)."""
        return self.intervals.diff(dim=-1).squeeze(-1)

    @property
    def mean(self) -> Tensor:
        """Mean."""
        return self._shares @ self.intervals.mean(-1)

    @property
    def variance(self) -> Tensor:
        """Variance."""
        return self.stddev.square()

    @property
    def stddev(self) -> Tensor:
        """Standard deviation, whose squares neither overflow nor underflow."""
        unit = self.intervals[-1, 1] - self.intervals[0, 0]
        away = (self.intervals.mean(-1) - self.mean) / unit
        squares = away.square() + (self.lengths / unit).square() / 12
        return unit * (self._shares @ squares).sqrt()

    @property
    def _shares(self) -> Tensor:
        """Mass of each interval (K,)."""
        lengths = self.lengths
        return lengths / lengths.sum()

    def log_prob(self, value: Tensor) -> Tensor:
        """The same everywhere on the intervals, -inf off them."""
        inside = IntervalUnion(self.intervals).check(value)
        return torch.where(inside, -self.lengths.sum().log(), -math.inf)
