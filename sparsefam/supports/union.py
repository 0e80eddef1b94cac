"""Unions of supports: of intervals on the line, of anything elsewhere."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    Transform,
    identity_transform,
)

from ..numerics.arguments import require
from .interval import Interval
from .onto import OntoIntervals

__all__ = ["AnyOf", "IntervalUnion", "Region"]


class IntervalUnion(constraints.Constraint):
    """Union of closed intervals, batched; the ends may depend on parameters.

    Args:
        intervals: Lower and upper ends (*batch, K, 2), ascending, no two intervals with more in
            common than an end; the last rows of an element with fewer than K intervals are NaN.

    Raises:
        ValueError: `intervals` of another shape, an element without an interval, a lower end above
            its upper end, intervals that overlap or descend, NaN before a number.

    Examples:
        >>> union = IntervalUnion(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        >>> union.check(torch.tensor([1.0, 1.5, 2.5]))
        tensor([ True, False,  True])
    """

    is_discrete = False
    event_dim = 0

    def __init__(self, intervals: Tensor) -> None:
        shape = tuple(intervals.shape) if isinstance(intervals, Tensor) else repr(intervals)
        if isinstance(shape, str) or len(shape) < 2 or shape[-1] != 2 or shape[-2] < 1:
            raise ValueError(
                f"intervals must be a tensor of shape (*batch, K >= 1, 2), got {shape}"
            )
        ends = intervals.detach().flatten(-2)
        ascending = (ends[..., 1:] >= ends[..., :-1]) | ends[..., 1:].isnan()
        paired = intervals.isnan().all(-1) | ~intervals.isnan().any(-1)
        require(ascending, "intervals", "ascending, disjoint and padded with NaN", intervals)
        require(paired, "intervals", "pairs of ends, neither or both NaN", intervals)
        require(~ends[..., 0].isnan(), "intervals", "one or more for every element", intervals)
        self._intervals = intervals
        super().__init__()

    @classmethod
    def merged(cls, intervals: Tensor) -> "IntervalUnion":
        """The union of intervals (*batch, K, 2) in any order, merged where they meet.

        Rows of NaN count as absent.
        """
        lower, upper = intervals.unbind(-1)
        present = ~lower.isnan()
        lower, order = torch.where(present, lower, math.inf).sort(dim=-1, stable=True)
        upper = torch.where(present, upper, -math.inf).gather(-1, order)
        present, reach = present.gather(-1, order), upper.cummax(-1).values
        # A gap before an interval ends one piece and starts the next.
        gap = present[..., 1:] & (lower[..., 1:] > reach[..., :-1])
        edge = torch.ones_like(present[..., :1])
        first = torch.cat([edge, gap], -1) & present
        last = torch.cat([gap | ~present[..., 1:], edge], -1) & present
        kept = torch.arange(lower.shape[-1], device=lower.device) < first.sum(-1, keepdim=True)
        ends = [
            torch.where(kept, torch.where(chosen, end, math.inf).sort(-1).values, math.nan)
            for chosen, end in ((first, lower), (last, reach))
        ]
        return cls(torch.stack(ends, -1))

    def check(self, value: Tensor) -> Tensor:
        """Whether each value lies in one of the intervals, their ends included."""
        lower, upper = self._intervals.unbind(-1)
        value = value.unsqueeze(-1)
        return ((lower <= value) & (value <= upper)).any(-1)

    @property
    def intervals(self) -> Tensor:
        """The intervals (*batch, K, 2), ascending and padded with NaN."""
        return self._intervals

    @property
    def count(self) -> Tensor:
        """The number of intervals (*batch)."""
        return (~self._intervals[..., 0].isnan()).sum(-1)

    @property
    def lower_bound(self) -> Tensor:
        """The lowest end (*batch)."""
        return self._intervals[..., 0, 0]

    @property
    def upper_bound(self) -> Tensor:
        """The highest end (*batch)."""
        return self._intervals[..., 1].gather(-1, self.count.unsqueeze(-1) - 1).squeeze(-1)

    def __repr__(self) -> str:
        return f"IntervalUnion(intervals={self._intervals})"


class AnyOf(constraints.Constraint):
    """What lies in at least one of several supports, such as ellipsoids.

    Args:
        supports: Constraints of one event dimension, whose batches broadcast.
        batched: Whether the last batch dimension of a support counts members of the union.
        present: Which members count (*batch, K), over all supports in their order; default all.

    Raises:
        ValueError: No support, something else, or supports of unlike event dimensions.
    """

    is_discrete = False

    def __init__(
        self,
        supports: Sequence[constraints.Constraint],
        *,
        batched: bool = False,
        present: Tensor | None = None,
    ) -> None:
        if not isinstance(supports, Sequence) or not all(
            isinstance(support, constraints.Constraint) for support in supports
        ):
            raise ValueError(f"supports must be a sequence of constraints, got {supports!r}")
        dims = sorted({support.event_dim for support in supports})
        if len(dims) != 1:
            raise ValueError(f"supports must be one or more of one event dimension, got {dims}")
        self.supports = tuple(supports)
        self._batched, self._present, self._event_dim = batched, present, dims[0]
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Number of dimensions of an event."""
        return self._event_dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each location lies in at least one of the supports."""
        if self._batched:
            value = value.unsqueeze(-1 - self._event_dim)
            inside = torch.cat([support.check(value) for support in self.supports], -1)
        else:
            found = [support.check(value) for support in self.supports]
            inside = torch.stack(torch.broadcast_tensors(*found), -1)
        return (inside if self._present is None else inside & self._present).any(-1)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.supports))})"


class Region(constraints.Constraint):
    """Whatever a function says is inside: a support without a shape that has a name.

    Args:
        contains: From locations to booleans, one for each event.
        event_dim: Number of dimensions of an event.
    """

    is_discrete = False

    def __init__(self, contains: Callable[[Tensor], Tensor], event_dim: int) -> None:
        self._contains, self._event_dim = contains, event_dim
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Number of dimensions of an event."""
        return self._event_dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each location lies in the region."""
        return self._contains(value)

    def __repr__(self) -> str:
        return "Region()"


@transform_to.register(IntervalUnion)
def _onto_union(constraint: IntervalUnion) -> Transform:
    ends = (constraint.lower_bound, constraint.upper_bound)
    one = bool((constraint.count == 1).all())
    if one and all(end.isfinite().all() == end.isfinite().any() for end in ends):
        return biject_to(constraint)  # type: ignore[no-any-return]
    return OntoIntervals(constraint)


@biject_to.register(IntervalUnion)
def _to_union(constraint: IntervalUnion) -> Transform:
    count = constraint.count
    if (count > 1).any():
        raise ValueError(
            f"support must be one interval to be the image of the line, got {count.tolist()} "
            "intervals: sample u from Uniform(0, 1) and use pyro.deterministic(name, p.icdf(u)) "
            "for the site, as sparsefam.inference.SupportReparam does; or, for a mixture, make the "
            "component a site of its own and enumerate it"
        )
    lower, upper = constraint.lower_bound, constraint.upper_bound
    bounded = [_uniform(end.isfinite(), constraint) for end in (lower, upper)]
    if all(bounded):
        transform: Transform = biject_to(Interval(lower, upper))
    elif any(bounded):
        end = AffineTransform(lower, 1) if bounded[0] else AffineTransform(upper, -1)
        transform = ComposeTransform([ExpTransform(), end])
    else:
        transform = identity_transform
    return transform


def _uniform(finite: Tensor, constraint: IntervalUnion) -> bool:
    if not finite.all() and finite.any():
        raise ValueError(
            f"support must end on the same sides in all of the batch to have one bijection, got "
            f"{constraint}"
        )
    return bool(finite.all())


@biject_to.register(AnyOf)
@transform_to.register(AnyOf)
def _to_any(constraint: AnyOf) -> Transform:
    raise ValueError(
        f"support must be one piece to be the image of space, got a union of "
        f"{len(constraint.supports)}: make the component of the mixture a site of its own and "
        "enumerate it"
    )


@biject_to.register(Region)
@transform_to.register(Region)
def _to_region(constraint: Region) -> Transform:
    raise ValueError(
        "support must have a known shape to be the image of space, got a region: sample the site "
        "from a distribution over a box and add log_prob by pyro.factor"
    )
