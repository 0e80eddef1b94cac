"""Supports: constraints that know their intervals and their bijections from space."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyTransform,
    SigmoidTransform,
    Transform,
    identity_transform,
)

from .numerics.special import ball_to_space, space_to_ball, space_to_ball_log_det
from .numerics.validation import (
    broadcast_arguments,
    broadcast_location_scale,
    broadcast_shapes,
    require,
    require_scale_tril,
)

__all__ = [
    "AnyOf",
    "Ellipsoid",
    "Interval",
    "IntervalUnion",
    "RealLine",
    "Region",
    "finite",
    "finite_scale_tril",
    "finite_vector",
    "positive_finite",
]


class _Finite(constraints.Constraint):
    """Finite real numbers; `constraints.real` lets infinities pass."""

    def check(self, value: Tensor) -> Tensor:
        return value.abs() < math.inf  # half as long as isfinite


class _PositiveFinite(constraints.Constraint):
    """Positive finite numbers; `constraints.positive` lets infinity pass."""

    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & (value < math.inf)


class _FiniteScaleTril(constraints.Constraint):
    """Finite lower-triangular matrices with positive diagonals.

    `constraints.lower_cholesky` lets infinity pass.
    """

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        if value.dim() < 2 or value.shape[-2] != value.shape[-1]:
            return value.new_zeros(value.shape[:-2], dtype=torch.bool)
        positive = (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        # Only a number times 0 is 0. Not by triu, which wakes threads for the smallest of batches.
        index = torch.arange(value.shape[-1], device=value.device)
        upper = index.unsqueeze(-1) < index
        valid: Tensor = positive & (value * upper == 0).flatten(-2).all(-1)
        return valid


class _FiniteVector(constraints.Constraint):
    """Vectors of finite real numbers."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        # Both are NaN if anything is; nothing as large as the value is made.
        low, high = value.amin(-1), value.amax(-1)
        return (low > -math.inf) & (high < math.inf)


class _Unnormalised(constraints.Constraint):
    """Vectors of numbers below inf, at least one of them above -inf."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        alive: Tensor = (value > -math.inf).any(-1) & (value < math.inf).all(-1)
        return alive

    def __repr__(self) -> str:
        return "numbers below inf, at least one of them above -inf"


finite = _Finite()
finite_scale_tril = _FiniteScaleTril()
finite_vector = _FiniteVector()
unnormalised = _Unnormalised()
positive_finite = _PositiveFinite()


@biject_to.register(_FiniteScaleTril)
@transform_to.register(_FiniteScaleTril)
def _to_scale_tril(constraint: constraints.Constraint) -> Transform:
    return LowerCholeskyTransform()


@biject_to.register(_Finite)
@transform_to.register(_Finite)
@biject_to.register(_FiniteVector)
@transform_to.register(_FiniteVector)
@biject_to.register(_Unnormalised)
@transform_to.register(_Unnormalised)
def _to_finite(constraint: constraints.Constraint) -> Transform:
    return identity_transform


@biject_to.register(_PositiveFinite)
@transform_to.register(_PositiveFinite)
def _to_positive(constraint: constraints.Constraint) -> Transform:
    return ExpTransform()


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


class OntoIntervals(Transform):
    """The line onto several intervals, which follow one another; it jumps from each to the next.

    What `torch.distributions.transform_to` asks for, and `pyro.infer.autoguide.init_to_uniform`: a
    map whose values lie in the union, half-lines included. No Jacobian makes it fit for a walk.

    Args:
        union: A constraint with `intervals` (*batch, K, 2), ascending and padded with NaN.
        cache_size: As in torch.distributions.
    """

    domain = constraints.real

    def __init__(self, union: constraints.Constraint, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = union
        self._ends: Tensor = union.intervals.detach()  # type: ignore[attr-defined]
        ends = self._ends.flatten(-2)
        finite = torch.where(ends.isfinite(), ends, torch.nan)
        self._centre = finite.nanmean(-1).nan_to_num(0.0)
        size = (finite - self._centre.unsqueeze(-1)).abs().nan_to_num(0.0).amax(-1)
        self._size = torch.where(size > 0, size, 1.0)
        # The line shrunk to (-1, 1), where all intervals have a length.
        shrunk = self._shrunk(self._ends.movedim((-2, -1), (0, 1))).movedim((0, 1), (-2, -1))
        self._lower = shrunk[..., 0]
        self._length = (shrunk[..., 1] - shrunk[..., 0]).nan_to_num(0.0)
        self._reach = self._length.cumsum(-1)

    def with_cache(self, cache_size: int = 1) -> "OntoIntervals":
        """The same transform with another cache."""
        return OntoIntervals(self.codomain, cache_size)

    def _shrunk(self, x: Tensor) -> Tensor:
        u = (x - self._centre) / self._size
        return torch.where(u.isinf(), u.sign(), u / (1 + u.abs()))

    def _call(self, x: Tensor) -> Tensor:
        place = torch.sigmoid(x) * self._reach[..., -1]
        order = torch.arange(self._length.shape[-1], device=x.device)
        last = (order * (self._length > 0)).amax(-1)
        index = torch.minimum((place.unsqueeze(-1) >= self._reach).sum(-1), last).unsqueeze(-1)
        before, lower = _taken(self._reach - self._length, index), _taken(self._lower, index)
        z = (lower + place - before).clamp(-1 + 1e-6, 1 - 1e-6)
        t = self._centre + self._size * z / (1 - z.abs())
        # Rounding may put it beyond the ends.
        low, high = (_taken(self._ends[..., k], index) for k in (0, 1))
        return torch.minimum(torch.maximum(t, low), high)

    def _inverse(self, y: Tensor) -> Tensor:
        index = (self._ends[..., 0] <= y.unsqueeze(-1)).sum(-1, keepdim=True).sub(1).clamp_min(0)
        before, lower = _taken(self._reach - self._length, index), _taken(self._lower, index)
        return torch.logit((before + self._shrunk(y) - lower) / self._reach[..., -1])

    def forward_shape(self, shape: Size) -> Size:
        """The shape of t for y of a shape."""
        broadcast: Size = broadcast_shapes(shape, self._centre.shape)
        return broadcast

    def inverse_shape(self, shape: Size) -> Size:
        """The shape of y for t of a shape."""
        return self.forward_shape(shape)


def _taken(values: Tensor, index: Tensor) -> Tensor:
    """Entries (*sample, *batch) of (*batch, K)."""
    return values.expand(*index.shape[:-1], -1).gather(-1, index).squeeze(-1)


class Ellipsoid(constraints.Constraint):
    r"""Closed ellipsoid $|L^{-1}(t - \mu)| \le 1$, batched; it may depend on parameters.

    Args:
        loc: Centre $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the ellipsoid.

    Raises:
        ValueError: `loc` not finite, `scale_tril` not square, of another dimension than `loc`, not
            finite, not lower triangular or with a diagonal that is not positive.
    """

    is_discrete = False
    event_dim = 1

    def __init__(self, loc: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.scale_tril = broadcast_location_scale(loc=loc, scale_tril=scale_tril)
        require(torch.isfinite(self.loc), "loc", "finite", self.loc)
        require_scale_tril("scale_tril", self.scale_tril)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each location (..., D) lies in the ellipsoid, as far as its rounding tells."""
        u = self._standardize(value)
        size = torch.linalg.vector_norm(u, dim=-1)
        # Rounding t and loc, or L u, moves u by at most this: much, if L is ill-conditioned.
        nearest = (u / size.clamp_min(1).unsqueeze(-1)).abs()
        moved = self.scale_tril.abs() @ nearest.unsqueeze(-1) + 2 * self.loc.abs().unsqueeze(-1)
        eye = torch.eye(value.shape[-1], dtype=u.dtype, device=u.device)
        inverse = torch.linalg.solve_triangular(self.scale_tril, eye, upper=False)
        slack = torch.linalg.vector_norm(inverse.abs() @ moved, dim=(-2, -1))
        inside: Tensor = size <= 1 + torch.finfo(u.dtype).eps * slack
        return inside

    def _standardize(self, value: Tensor) -> Tensor:
        """u = L^-1 (t - loc)."""
        offset = (value - self.loc).unsqueeze(-1)
        u: Tensor = torch.linalg.solve_triangular(self.scale_tril, offset, upper=False)
        return u.squeeze(-1)

    def __repr__(self) -> str:
        return f"Ellipsoid(loc={self.loc}, scale_tril={self.scale_tril})"


class EllipsoidTransform(Transform):
    r"""Smooth bijection from $\mathbb R^D$ onto the inside of an ellipsoid.

    $$t = \mu + L \frac{y}{|y|} \tanh\frac{|y|}{2}$$

    On the line it is the one of `Interval`.

    Args:
        support: The ellipsoid.
        cache_size: As in torch.distributions.
    """

    domain = constraints.real_vector
    codomain: Ellipsoid
    bijective = True

    def __init__(self, support: Ellipsoid, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = support

    def with_cache(self, cache_size: int = 1) -> "EllipsoidTransform":
        """The same transform with another cache."""
        return EllipsoidTransform(self.codomain, cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EllipsoidTransform):
            return False
        a, b = self.codomain, other.codomain
        return torch.equal(a.loc, b.loc) and torch.equal(a.scale_tril, b.scale_tril)

    def _call(self, x: Tensor) -> Tensor:
        u = space_to_ball(x).unsqueeze(-1)
        return self.codomain.loc + (self.codomain.scale_tril @ u).squeeze(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return ball_to_space(self.codomain._standardize(y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Exact logarithm of the volume factor (*batch)."""
        diagonal = self.codomain.scale_tril.diagonal(dim1=-2, dim2=-1)
        return space_to_ball_log_det(x) + diagonal.log().sum(-1)

    def forward_shape(self, shape: Size) -> Size:
        """The shape of t for y of a shape."""
        broadcast: Size = broadcast_shapes(shape, self.codomain.loc.shape)
        return broadcast

    def inverse_shape(self, shape: Size) -> Size:
        """The shape of y for t of a shape."""
        return self.forward_shape(shape)


@biject_to.register(Ellipsoid)
@transform_to.register(Ellipsoid)
def _to_ellipsoid(constraint: Ellipsoid) -> Transform:
    return EllipsoidTransform(constraint)


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
