"""The interval and the line: constraints that know their ends."""

import math

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    SigmoidTransform,
    Transform,
    identity_transform,
)

from ..numerics.arguments import broadcast_arguments, require

__all__ = ["Interval", "RealLine"]


class Interval(constraints.Constraint):
    """Bounded interval [lower, upper], batched; its bounds may depend on parameters.

    Args:
        lower: Lower ends (*batch).
        upper: Upper ends (*batch).

    Raises:
        ValueError: `lower` above `upper`, or shapes that do not broadcast.
    """

    is_discrete = False
    event_dim = 0

    def __init__(self, lower: Tensor | float, upper: Tensor | float) -> None:
        self.lower_bound, self.upper_bound = broadcast_arguments(lower=lower, upper=upper)
        ordered = self.lower_bound <= self.upper_bound
        require(ordered, "lower", "at most upper", (self.lower_bound, self.upper_bound))
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each value lies in the interval."""
        return (self.lower_bound <= value) & (value <= self.upper_bound)

    @property
    def intervals(self) -> Tensor:
        """The one interval, (*batch, 1, 2)."""
        return torch.stack([self.lower_bound, self.upper_bound], -1).unsqueeze(-2)

    def __repr__(self) -> str:
        return f"Interval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class RealLine(constraints.Constraint):
    """The whole line, with the batch shape, dtype and device of a parameter.

    Args:
        like: Any parameter of the distribution, (*batch).
    """

    is_discrete = False
    event_dim = 0

    def __init__(self, like: Tensor) -> None:
        self._like = like.detach()
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is a number."""
        return ~torch.isnan(value)

    @property
    def intervals(self) -> Tensor:
        """(-inf, inf), (*batch, 1, 2)."""
        ends = self._like.new_tensor([-math.inf, math.inf])
        return ends.expand(*self._like.shape, 1, 2)

    def __repr__(self) -> str:
        return "RealLine()"


@biject_to.register(Interval)
@transform_to.register(Interval)
def _to_interval(constraint: Interval) -> Transform:
    width = constraint.upper_bound - constraint.lower_bound
    return ComposeTransform([SigmoidTransform(), AffineTransform(constraint.lower_bound, width)])


@biject_to.register(RealLine)
@transform_to.register(RealLine)
def _to_line(constraint: RealLine) -> Transform:
    return identity_transform
