"""Supports: constraints that know their intervals or axes, and bijections onto them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import LowerCholeskyTransform, Transform, identity_transform

from ._numerics.special import ball_to_space, space_to_ball, space_to_ball_log_det
from ._numerics.validation import (
    as_number,
    broadcast_arguments,
    broadcast_location_scale,
    broadcast_shapes,
    require,
    require_integer,
    require_scale_tril,
    require_tensor,
)

__all__ = [
    "AnyOf",
    "Ellipsoid",
    "Interval",
    "IntervalUnion",
    "RealLine",
    "Region",
    "WithAtoms",
    "finite",
    "finite_scale_tril",
    "finite_vector",
    "positive_finite",
]

# A range of locations: ends for all axes or for each; and the ends of each axis.
Domain = tuple[float, float] | Sequence[tuple[float, float]]
Box = tuple[tuple[float, float], ...]


def box_of(name: str, domain: Domain, ndim: int | None) -> Box:
    """Return the interval of each axis, from one for all axes or one for each.

    Args:
        name: Of the argument, for messages.
        domain: Ends (low, high) for all axes, or such a pair for each.
        ndim: Number of axes. None: of pairs, or 1.

    Raises:
        ValueError: If it is neither, or ends are not finite or do not increase.
    """
    sides: Sequence[object] = [domain] * (ndim or 1) if _interval(domain) else domain
    is_sequence = isinstance(sides, Sequence) and len(sides) > 0
    if ndim is None:
        ndim = len(sides) if is_sequence else 1
    box = [_interval(side) for side in sides] if is_sequence else []
    if len(box) != ndim or None in box:
        pairs = f", or {ndim} such pairs" if ndim > 1 else ""
        raise ValueError(f"{name} must be two finite numbers that increase{pairs}, got {domain}")
    return tuple(side for side in box if side is not None)


def _interval(side: object) -> tuple[float, float] | None:
    """Return a pair of numbers as floats (low, high); None unless they are finite and increase."""
    if not isinstance(side, Sequence) or len(side) != 2:
        return None
    low, high = map(as_number, side)
    return (low, high) if -math.inf < low < high < math.inf else None


# Constraints of parameters. Unlike torch's they exclude infinity.


class _Finite(Constraint):
    """Finite real numbers."""

    def check(self, value: Tensor) -> Tensor:
        return value.abs() < math.inf  # takes half as long as isfinite


class _PositiveFinite(Constraint):
    """Positive finite numbers."""

    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & (value < math.inf)


class _FiniteVector(Constraint):
    """Vectors of finite real numbers; `constraints.independent` refuses empty batches."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return value.abs().amax(-1) < math.inf  # booleans take several times as long


class _FiniteScaleTril(Constraint):
    """Finite lower-triangular matrices with positive diagonals."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        if value.dim() < 2 or value.shape[-2] != value.shape[-1]:
            return value.new_zeros(value.shape[:-2], dtype=torch.bool)
        positive = (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        # The product is 0 where a number on or below the diagonal is finite, and above it where a
        # number is 0. triu would wake threads for the smallest batch.
        index = torch.arange(value.shape[-1], device=value.device)
        upper = index.unsqueeze(-1) < index
        return positive & (value * upper == 0).flatten(-2).all(-1)


class _Unnormalized(Constraint):
    """Vectors of numbers below inf, at least one of them above -inf."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value > -math.inf).any(-1) & (value < math.inf).all(-1)

    def __repr__(self) -> str:
        return "numbers below inf, at least one of them above -inf"


finite = _Finite()
finite_scale_tril = _FiniteScaleTril()
finite_vector = _FiniteVector()
unnormalized = _Unnormalized()
positive_finite = _PositiveFinite()


# Supports of distributions. Given a density they leave out its zeros, so that `check` agrees with
# `log_prob` at the ends: an end is inside if the density is positive there.

_LogProb = Callable[[Tensor], Tensor]


def _is_positive(log_prob: _LogProb | None, value: Tensor, inside: Tensor, end: Tensor) -> Tensor:
    """Return whether each location is inside and has a positive density, (*sample, *batch).

    Args:
        log_prob: The log density; None if all locations inside count.
        value: Locations (*sample, *batch).
        inside: Whether each lies between the ends.
        end: A location (*batch) in the domain of `log_prob`, which replaces locations outside.
    """
    if log_prob is None:
        return inside
    return inside & (log_prob(torch.where(inside, value, end)) > -math.inf)


class Interval(Constraint):
    """Bounded intervals [lower, upper], which may depend on parameters.

    Args:
        lower: Lower ends (*batch).
        upper: Upper ends (*batch).
        log_prob: The logarithm of a density, whose zeros are left out; default none.

    Raises:
        ValueError: `lower` above `upper`, or shapes that do not broadcast.
    """

    def __init__(
        self, lower: Tensor | float, upper: Tensor | float, log_prob: _LogProb | None = None
    ) -> None:
        self._log_prob = log_prob
        self.lower_bound, self.upper_bound = broadcast_arguments(lower=lower, upper=upper)
        ordered = self.lower_bound <= self.upper_bound
        require(ordered, "lower", "at most upper", (self.lower_bound, self.upper_bound))

    def check(self, value: Tensor) -> Tensor:
        """Return whether each value lies in the interval."""
        require_tensor("value", value)
        inside = (self.lower_bound <= value) & (value <= self.upper_bound)
        return _is_positive(self._log_prob, value, inside, self.lower_bound)

    @property
    def intervals(self) -> Tensor:
        """The interval as a union of one, (*batch, 1, 2)."""
        return torch.stack([self.lower_bound, self.upper_bound], -1).unsqueeze(-2)

    def __repr__(self) -> str:
        return f"Interval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class RealLine(Constraint):
    """The whole line, with the batch shape, dtype and device of a parameter.

    Args:
        like: Any parameter of the distribution, (*batch).
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like.detach()

    def check(self, value: Tensor) -> Tensor:
        """Return whether each value is a number."""
        require_tensor("value", value)
        return ~torch.isnan(value)

    @property
    def intervals(self) -> Tensor:
        """(-inf, inf), (*batch, 1, 2)."""
        ends = self._like.new_tensor([-math.inf, math.inf])
        return ends.expand(*self._like.shape, 1, 2)

    def __repr__(self) -> str:
        return "RealLine()"


class Ellipsoid(Constraint):
    r"""Closed ellipsoids $|L^{-1}(t - \mu)| \le 1$, which may depend on parameters.

    Args:
        loc: Center $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the ellipsoid.

    Raises:
        ValueError: `loc` not finite, or `scale_tril` not a finite Cholesky factor of the same
            dimension.
    """

    event_dim = 1

    def __init__(self, loc: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.scale_tril = broadcast_location_scale(loc=loc, scale_tril=scale_tril)
        require(torch.isfinite(self.loc), "loc", "finite", self.loc)
        require_scale_tril("scale_tril", self.scale_tril)

    def check(self, value: Tensor) -> Tensor:
        """Return whether each location (..., D) lies in the ellipsoid, up to its own rounding."""
        require_tensor("value", value)
        u = self._standardize(value)
        norm = torch.linalg.vector_norm(u, dim=-1)
        # Rounding t and loc, or L u, moves u by at most eps |L^-1| (|L| |u| + 2 |loc|), which is
        # much if L is ill-conditioned. In this bound u is moved to the nearest location of the unit
        # ball, so that the slack does not grow with the distance from the ball.
        u_on_ball = (u / norm.clamp_min(1).unsqueeze(-1)).abs().unsqueeze(-1)
        rounding = self.scale_tril.abs() @ u_on_ball + 2 * self.loc.abs().unsqueeze(-1)
        eye = torch.eye(value.shape[-1], dtype=u.dtype, device=u.device)
        inverse = torch.linalg.solve_triangular(self.scale_tril, eye, upper=False)
        slack = torch.linalg.vector_norm(inverse.abs() @ rounding, dim=(-2, -1))
        return norm <= 1 + torch.finfo(u.dtype).eps * slack

    def _standardize(self, value: Tensor) -> Tensor:
        """Return u = L^-1 (t - loc) at locations t, both (..., D)."""
        offset = (value - self.loc).unsqueeze(-1)
        u: Tensor = torch.linalg.solve_triangular(self.scale_tril, offset, upper=False)
        return u.squeeze(-1)

    def __repr__(self) -> str:
        return f"Ellipsoid(loc={self.loc}, scale_tril={self.scale_tril})"


class IntervalUnion(Constraint):
    """Unions of closed intervals, which may depend on parameters.

    Args:
        intervals: Lower and upper ends (*batch, K, 2), ascending; two intervals share at most an
            end. Elements of the batch with fewer than K intervals end with rows of NaN.
        log_prob: The logarithm of a density, whose zeros are left out; default none.

    Raises:
        ValueError: `intervals` of another shape, an element without an interval, ends that
            descend, or NaN before a number.

    Examples:
        >>> union = IntervalUnion(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        >>> union.check(torch.tensor([1.0, 1.5, 2.5]))
        tensor([ True, False,  True])
    """

    def __init__(self, intervals: Tensor, log_prob: _LogProb | None = None) -> None:
        (intervals,) = broadcast_arguments(intervals=intervals)
        shape = tuple(intervals.shape)
        if len(shape) < 2 or shape[-1] != 2 or shape[-2] < 1:
            raise ValueError(f"intervals must have shape (*batch, K >= 1, 2), got {shape}")
        ends = intervals.detach().flatten(-2)
        present = ~ends.isnan()
        # Comparisons with NaN are false: padding needs an exception.
        ascending = (ends[..., 1:] >= ends[..., :-1]) | ~present[..., 1:]
        valid = ascending.all(-1) & present[..., 0] & (present.sum(-1) % 2 == 0)
        rule = "one or more pairs of ends that ascend, padded with NaN"
        require(valid, "intervals", rule, intervals)
        self._intervals, self._log_prob = intervals, log_prob

    @classmethod
    def merged(cls, intervals: Tensor, log_prob: _LogProb | None = None) -> "IntervalUnion":
        """Merge intervals (*batch, K, 2) in any order, which may overlap or be NaN.

        The union has K rows, too; rows without an interval are NaN.
        """
        lower, upper = intervals.unbind(-1)
        present = ~lower.isnan()
        # Padding is sorted behind all intervals.
        lower, order = torch.where(present, lower, math.inf).sort(dim=-1, stable=True)
        upper = torch.where(present, upper, -math.inf).gather(-1, order)
        present, highest = present.gather(-1, order), upper.cummax(-1).values
        # Where an interval begins above all ends before it, one interval of the union ends and the
        # next one starts.
        gap = present[..., 1:] & (lower[..., 1:] > highest[..., :-1])
        always = torch.ones_like(present[..., :1])
        is_first = torch.cat([always, gap], -1) & present
        is_last = torch.cat([gap | ~present[..., 1:], always], -1) & present
        # Sorting moves the ends of the union to the front: `lower` and `highest` do not decrease.
        row = torch.arange(lower.shape[-1], device=lower.device)
        filled = row < is_first.sum(-1, keepdim=True)
        ends = [
            torch.where(filled, torch.where(chosen, end, math.inf).sort(-1).values, math.nan)
            for chosen, end in ((is_first, lower), (is_last, highest))
        ]
        return cls(torch.stack(ends, -1), log_prob)

    def check(self, value: Tensor) -> Tensor:
        """Return whether each value lies in one of the intervals."""
        require_tensor("value", value)
        lower, upper = self._intervals.unbind(-1)
        inside = ((lower <= value.unsqueeze(-1)) & (value.unsqueeze(-1) <= upper)).any(-1)
        return _is_positive(self._log_prob, value, inside, self.lower_bound)

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


class WithAtoms(IntervalUnion):
    """Unions of closed intervals in which single locations have mass.

    Args:
        intervals: As of `IntervalUnion`; an atom outside of the others is an interval, too.
        atoms: Their locations (*batch, K), NaN where there are fewer.
        log_prob: The logarithm of masses and of the density, whose zeros are left out.
    """

    def __init__(self, intervals: Tensor, atoms: Tensor, log_prob: _LogProb | None = None) -> None:
        super().__init__(IntervalUnion.merged(intervals).intervals, log_prob)
        self.atoms = atoms

    def __repr__(self) -> str:
        return f"WithAtoms(intervals={self.intervals}, atoms={self.atoms})"


class AnyOf(Constraint):
    """The union of several supports, such as ellipsoids.

    Args:
        supports: Constraints of one event dimension, whose batches broadcast.
        batched: Whether the last batch dimension of each support counts members of the union.
        present: Which members count (*batch, K), over all supports in order; default all.

    Raises:
        ValueError: No support, or supports whose event dimensions differ.
    """

    def __init__(
        self,
        supports: Sequence[Constraint],
        *,
        batched: bool = False,
        present: Tensor | None = None,
    ) -> None:
        dims = sorted({support.event_dim for support in supports})
        if len(dims) != 1:
            raise ValueError(f"supports must be one or more of one event dimension, got {dims}")
        self.supports, self.event_dim = tuple(supports), dims[0]
        self._batched, self._present = batched, present

    def check(self, value: Tensor) -> Tensor:
        """Return whether each location lies in at least one of the supports."""
        require_tensor("value", value)
        # The last batch dimension counts members, which a location does not have.
        if self._batched:
            value = value.unsqueeze(-1 - self.event_dim)
        members = torch.broadcast_tensors(*(support.check(value) for support in self.supports))
        inside = torch.cat(members, -1) if self._batched else torch.stack(members, -1)
        return (inside if self._present is None else inside & self._present).any(-1)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.supports))})"


class Region(Constraint):
    """A set that is given by its indicator function alone.

    Args:
        contains: From locations to booleans, one for each event.
        event_dim: Number of dimensions of an event.

    Raises:
        ValueError: `contains` not a function, or `event_dim` not an integer from 0.
    """

    def __init__(self, contains: Callable[[Tensor], Tensor], event_dim: int) -> None:
        if not callable(contains):
            raise ValueError(f"contains must be a function of locations, got {contains!r}")
        require_integer("event_dim", event_dim, 0)
        self._contains, self.event_dim = contains, event_dim

    def check(self, value: Tensor) -> Tensor:
        """Return whether each location lies in the region."""
        require_tensor("value", value)
        return self._contains(value)

    def __repr__(self) -> str:
        return "Region()"


# Maps of real numbers and vectors onto supports


class EllipsoidTransform(Transform):
    r"""Smooth bijection from $\mathbb R^D$ onto the interior of an ellipsoid.

    $$t = \mu + L \frac{y}{|y|} \tanh\frac{|y|}{2}$$

    In one dimension it is the bijection onto an `Interval`.

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
        """Return the same transform with another cache."""
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
        """Return the logarithm of the volume factor (...) at x and its image y, both (..., D)."""
        # t = mu + L u with |L| the product of its diagonal, and u the image of x in the ball.
        diagonal = self.codomain.scale_tril.diagonal(dim1=-2, dim2=-1)
        return space_to_ball_log_det(x) + diagonal.log().sum(-1)

    def forward_shape(self, shape: Size) -> Size:
        """Return the shape of locations t in the support for vectors y of a shape."""
        return broadcast_shapes(shape, self.codomain.loc.shape)

    def inverse_shape(self, shape: Size) -> Size:
        """Return the shape of vectors y for locations t of a shape."""
        return self.forward_shape(shape)


class OntoIntervals(Transform):
    """Increasing map of the line onto a union of intervals, with a jump between each two.

    For `torch.distributions.transform_to` and `pyro.infer.autoguide.init_to_uniform`, which need
    values in the union. It has no Jacobian, as it is not continuous.

    The line is shrunk to (-1, 1), where unbounded intervals are finite, too. The logistic function
    of x is the fraction of the total length of all shrunk intervals that lies below t.

    Args:
        union: A constraint with `intervals` (*batch, K, 2), ascending and padded with NaN.
        cache_size: As in torch.distributions.
    """

    domain = constraints.real

    def __init__(self, union: Constraint, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = union
        self._ends: Tensor = union.intervals.detach()  # type: ignore[attr-defined]
        ends = self._ends.flatten(-2)
        ends = torch.where(ends.isfinite(), ends, torch.nan)
        self._center = ends.nanmean(-1).nan_to_num(0.0)
        size = (ends - self._center.unsqueeze(-1)).abs().nan_to_num(0.0).amax(-1)
        self._size = torch.where(size > 0, size, 1.0)
        # Lower ends of the shrunk intervals (*batch, K), their lengths, and the lengths up to the
        # end of each. Intervals come first while they are shrunk, to broadcast against the center.
        self._lower, upper = (
            self._shrink(x).movedim(0, -1) for x in self._ends.movedim(-2, 0).unbind(-1)
        )
        self._length = (upper - self._lower).nan_to_num(0.0)
        self._total = self._length.cumsum(-1)

    def with_cache(self, cache_size: int = 1) -> "OntoIntervals":
        """Return the same transform with another cache."""
        return OntoIntervals(self.codomain, cache_size)

    def _shrink(self, x: Tensor) -> Tensor:
        """Return u/(1 + |u|), in [-1, 1], of u = (x - center)/size for locations (..., *batch)."""
        u = (x - self._center) / self._size
        return torch.where(u.isinf(), u.sign(), u / (1 + u.abs()))

    def _call(self, x: Tensor) -> Tensor:
        # Lengths from the first end: of the intervals only, without the gaps between them.
        length = torch.sigmoid(x) * self._total[..., -1]
        order = torch.arange(self._length.shape[-1], device=x.device)
        # The index of the interval in which this length is reached. A length rounded up to the
        # total belongs to the last interval of positive length.
        last = (order * (self._length > 0)).amax(-1)
        index = torch.minimum((length.unsqueeze(-1) >= self._total).sum(-1), last).unsqueeze(-1)
        # In an unbounded interval t stays finite: within a million sizes of the center.
        z = (length - self._length_minus_z(index)).clamp(-1 + 1e-6, 1 - 1e-6)
        # The inverse of u / (1 + |u|) is z / (1 - |z|).
        t = self._center + self._size * z / (1 - z.abs())
        # Rounding may move t beyond the ends.
        low, high = (entries_of(self._ends[..., k], index) for k in (0, 1))
        return torch.minimum(torch.maximum(t, low), high)

    def _inverse(self, y: Tensor) -> Tensor:
        # The index of the last interval that begins at or before y; NaN begins nowhere.
        index = (self._ends[..., 0] <= y.unsqueeze(-1)).sum(-1, keepdim=True).sub(1).clamp_min(0)
        return torch.logit((self._shrink(y) + self._length_minus_z(index)) / self._total[..., -1])

    def _length_minus_z(self, index: Tensor) -> Tensor:
        """Return the difference of the length below a shrunk location z and z, (*sample, *batch).

        It is constant on an interval of given index (*sample, *batch, 1): the length of all
        intervals before it, minus its lower end.
        """
        return entries_of(self._total - self._length - self._lower, index)


def entries_of(values: Tensor, index: Tensor) -> Tensor:
    """Return values (*batch, K) at an index (*sample, *batch, 1), as (*sample, *batch)."""
    return values.expand(*index.shape[:-1], -1).gather(-1, index).squeeze(-1)


def _bijection_onto_union(constraint: IntervalUnion) -> Transform:
    """Return torch's bijection of the line onto a union that is one interval in all of the batch.

    Raises:
        ValueError: Several intervals, or intervals bounded on different sides.
    """
    count = constraint.count
    if (count > 1).any():
        raise ValueError(
            f"support must be one interval to have a bijection, got {count.tolist()} "
            "intervals: sample u from Uniform(0, 1) and use pyro.deterministic(name, p.icdf(u)) "
            "for the site, as sparsefam.inference.SupportReparam does; or, for a mixture, make the "
            "component a site of its own and enumerate it"
        )
    lower, upper = constraint.lower_bound, constraint.upper_bound
    if not _ends_alike(constraint):
        raise ValueError(
            "support must be bounded on the same sides in all of the batch to have one bijection, "
            f"got {constraint}"
        )
    below, above = bool(lower.isfinite().all()), bool(upper.isfinite().all())
    # torch has bijections onto bounded intervals, half-lines and the line.
    line: Constraint = constraints.real
    if below and above:
        line = constraints.interval(lower, upper)
    elif below or above:
        line = constraints.greater_than(lower) if below else constraints.less_than(upper)
    return biject_to(line)


def _map_onto_union(constraint: IntervalUnion) -> Transform:
    """Return the bijection onto a union if there is one, otherwise the map with jumps."""
    if bool((constraint.count == 1).all()) and _ends_alike(constraint):
        return _bijection_onto_union(constraint)
    return OntoIntervals(constraint)


def _ends_alike(constraint: IntervalUnion) -> bool:
    """Return whether the whole batch is bounded, or unbounded, on each side."""
    ends = (constraint.lower_bound.isfinite(), constraint.upper_bound.isfinite())
    return all(bool(end.all() == end.any()) for end in ends)


_REFUSALS: dict[type[Constraint], str] = {
    AnyOf: "be one piece to have a bijection, got a union: make the component of the mixture a "
    "site of its own and enumerate it",
    WithAtoms: "be without atoms to have a bijection: sample u from Uniform(0, 1) and use "
    "pyro.deterministic(name, p.icdf(u)) for the site, as sparsefam.inference.SupportReparam does",
    Region: "have a known shape to have a bijection, got a region: sample the site from a "
    "distribution over a box and add log_prob by pyro.factor",
}


def _refuse(constraint: Constraint) -> Transform:
    """Raise ValueError for a support that has no bijection, with advice on what to do."""
    raise ValueError(f"support must {_REFUSALS[type(constraint)]}")


_MAPS: dict[type[Constraint], Callable[..., Transform]] = {
    _Finite: lambda _: identity_transform,
    _FiniteVector: lambda _: identity_transform,
    _Unnormalized: lambda _: identity_transform,
    _PositiveFinite: lambda _: biject_to(constraints.positive),
    _FiniteScaleTril: lambda _: LowerCholeskyTransform(),
    Interval: lambda x: biject_to(constraints.interval(x.lower_bound, x.upper_bound)),
    RealLine: lambda _: identity_transform,
    Ellipsoid: EllipsoidTransform,
    AnyOf: _refuse,
    Region: _refuse,
}
for _kind, _map in _MAPS.items():
    biject_to.register(_kind, _map)
    transform_to.register(_kind, _map)
biject_to.register(IntervalUnion, _bijection_onto_union)
biject_to.register(WithAtoms, _refuse)
transform_to.register(IntervalUnion, _map_onto_union)
transform_to.register(WithAtoms, _map_onto_union)
