"""Base densities of kernel families: univariate torch distributions and their products."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Independent, Uniform, constraints

from ..._numerics.validation import in_float64, map_tensors, require
from ...supports import IntervalUnion
from ..base import SparseDistribution, select_batch

__all__ = ["Base", "BaseMeasure", "RestrictedBase", "uniform_box"]

# Log mass cut at either end of an unbounded base; doublings of the scale until there.
_LOG_TAIL = {torch.float32: math.log(1e-9), torch.float64: math.log(1e-17)}
_DOUBLINGS = 70
# Tails are followed until log densities fall below this.
_LEAST_LOG = -1e15
# The difference of logarithms of densities whose parameters differ by rounding.
_SAME = 1e-4
# The first mesh is cut at distances of _RATIO^k scales from the center, k from 1 to _SCALES - 1.
_RATIO, _SCALES = 16.0, 20

Base = Distribution | Sequence[Distribution] | None


def uniform_box(low: Tensor, high: Tensor) -> list[Distribution]:
    """Return uniform densities between ends (D,), one for each axis."""
    return [Uniform(*ends, validate_args=False) for ends in zip(low, high, strict=True)]


class RestrictedBase(NamedTuple):
    """A base density on a region, up to a constant factor."""

    base: Any
    region: constraints.Constraint


class BaseMeasure:
    """A product of univariate densities, which are constants.

    Args:
        base: None (uniform on the unit box), a univariate distribution, an `Independent` of one, or
            a sequence of univariate ones; or one of these restricted to a region.
        dim: The number of factors.
        dtype: The dtype of the kernel family, which decides how much of the tails is cut.

    Raises:
        ValueError: Anything else, a batch, or parameters that require grad.
    """

    def __init__(self, base: Base, dim: int, dtype: torch.dtype) -> None:
        self.dim, self.dtype, self._source = dim, dtype, base
        self._regions = []
        while isinstance(base, RestrictedBase):
            self._regions.append(base.region)
            base = base.base
        self._tail = _LOG_TAIL.get(dtype, _LOG_TAIL[torch.float32])
        self.factors = [
            map_tensors(factor, _constant, _validate_args=False) for factor in _factors(base, dim)
        ]
        # Whether log densities are infinite at the lower and the upper end of each factor.
        self.poles = [
            [math.isfinite(x) and bool(self.log_factor(d, torch.tensor(x)).isinf()) for x in ends]
            for d, ends in enumerate(map(self.bounds, range(dim)))
        ]

    def log_density(self, t: Tensor) -> Tensor:
        """Return the log density at t (..., D), -inf off the support."""
        log = torch.stack([self.log_factor(d, t[..., d]) for d in range(self.dim)]).sum(0)
        for region in self._regions:
            inside = region.check(t if region.event_dim else t.squeeze(-1))
            log = torch.where(inside, log, -math.inf)
        return log

    def require_inside(self, name: str, points: Tensor) -> None:
        """Raise unless points (..., D) are finite and in the closed support of the factors."""
        require(torch.isfinite(points), name, "finite", points)
        for d, t in enumerate(points.unbind(-1)):
            # An end is inside even where the density vanishes there.
            at_end = torch.isin(t, t.new_tensor(self.bounds(d)))
            inside = at_end | torch.isfinite(self.log_factor(d, t))
            require(inside, name, "inside the support of the base", points)

    def log_factor(self, axis: int, t: Tensor) -> Tensor:
        """Return the log density of a factor (...), -inf off its closed support."""
        factor = self.factors[axis]
        if isinstance(factor, Uniform):
            # The support is closed, while torch's is half open.
            inside = (factor.low <= t) & (t <= factor.high)
            return torch.where(inside, -(factor.high - factor.low).log(), -math.inf).to(t.dtype)
        inside = factor.support.check(t) if factor.support is not None else torch.isfinite(t)
        # Elsewhere torch's formula may be NaN, and so would be its gradient.
        safe = torch.where(inside, t, _inner_location(factor).to(t.dtype))
        log = factor.log_prob(safe.double()).to(t.dtype)
        return torch.where(inside, log, -math.inf)

    def is_of(self, base: Base, t: Tensor) -> bool:
        """Return whether a base has the same ends, and the same log density at locations (n, D)."""
        if base is self._source:
            return True
        other = BaseMeasure(base, self.dim, self.dtype)
        ends = [
            torch.tensor([measure.bounds(d) for d in range(self.dim)]) for measure in (self, other)
        ]
        pairs = (ends, [self.log_density(t), other.log_density(t)])
        return all(torch.allclose(x, y, _SAME, _SAME) for x, y in pairs)

    def bounds(self, axis: int) -> tuple[float, float]:
        """Return the lower and the upper end of a factor's support, which may be infinite."""
        support = self.factors[axis].support
        low = getattr(support, "lower_bound", -math.inf)
        high = getattr(support, "upper_bound", math.inf)
        return float(low), float(high)

    def negligible_beyond(
        self, axis: int, growth: Callable[[Tensor], Tensor]
    ) -> tuple[float, float]:
        """Return the ends of the interval outside which a kernel density has negligible mass.

        Args:
            axis: The factor.
            growth: From locations (q,) to upper bounds (q,) of the log density less the base's.

        Raises:
            ValueError: A tail of the base that does not fall faster than densities may grow
                (Moreno et al., 2021, Prop. 1).
        """
        # Distances from the center, four to each doubling of the scale.
        steps = 2.0 ** (torch.arange(-40, 4 * _DOUBLINGS, dtype=torch.float64) / 4)
        steps = steps * self._scale(axis)
        low, high = (
            end if math.isfinite(end) else self._end(axis, side * steps, growth)
            for end, side in zip(self.bounds(axis), (-1.0, 1.0), strict=True)
        )
        return low, high

    def _end(self, axis: int, steps: Tensor, growth: Callable[[Tensor], Tensor]) -> float:
        """Return the location beyond which a tail is negligible.

        Args:
            axis: The factor.
            steps: Distances from its center (n,), of one sign and increasing size.
            growth: As for `negligible_beyond`.
        """
        t = self.center(axis) + steps
        log = self.log_factor(axis, t)
        # Tails are taken to fall: the log densities that are large enough come first.
        count = int((log > _LEAST_LOG).sum())
        log, distance, bound = log[:count], steps[:count].abs(), growth(t[:count])
        # Where a tail falls faster than 1/t, density times distance bounds the order of its mass.
        # A constant factor cancels in a normalized density: growth counts from the center.
        rise = (bound - bound[:1]).clamp_min(0)
        heavy = (log + rise + distance.log() >= self._tail).nonzero()
        last = int(heavy[-1]) + 1 if len(heavy) else 0
        if last == count:
            raise ValueError(
                "base must have tails that outweigh the growth of the kernel, or not every score "
                f"has a density, got {self.factors[axis]}: a bound of the density "
                f"has not fallen to exp({self._tail:.0f}) at {float(t[-1]):.3g}"
            )
        return float(t[last])

    def scales(self, axis: int) -> Tensor:
        """Return locations (n,) around the center of a factor, at geometric distances."""
        steps = self._scale(axis) * _RATIO ** torch.arange(1, _SCALES, dtype=torch.float64)
        return torch.cat([self.center(axis) - steps, self.center(axis) + steps])

    def jumps(self) -> Tensor:
        """Return the ends (n,) of the intervals of numbers to which the base is restricted.

        There are none of regions of vectors.
        """
        unions = [region for region in self._regions if isinstance(region, IntervalUnion)]
        ends = [union.intervals.flatten().double() for union in unions]
        return torch.cat([self.center(0).new_empty(0), *ends])

    def center(self, axis: int) -> Tensor:
        """Return a location inside a factor's support, its mean if that exists."""
        return _inner_location(self.factors[axis])

    def _scale(self, axis: int) -> Tensor:
        """Return a length of the order of a factor's width.

        It is the standard deviation if that is finite and positive, else its `scale`, or 1.
        """
        factor = self.factors[axis]
        try:
            deviation = factor.stddev
        except NotImplementedError:
            deviation = torch.full((), math.nan)
        scale = torch.as_tensor(getattr(factor, "scale", 1.0))
        return torch.where(torch.isfinite(deviation) & (deviation > 0), deviation, scale)


def _inner_location(factor: Distribution) -> Tensor:
    """Return a location inside the support: the mean, or the median or mode if there is none."""
    try:
        mean = factor.mean
    except NotImplementedError:
        try:
            return factor.icdf(torch.tensor(0.5, dtype=torch.float64))
        except NotImplementedError:
            rule = "a distribution with a mean or quantiles"
            raise ValueError(f"base must be {rule}, got {factor}") from None
    return mean if torch.isfinite(mean).all() else factor.mode


def _factors(base: Base, dim: int) -> list[Distribution]:
    """Return the univariate distributions whose product a base is, one for each axis.

    Raises:
        ValueError: A base of another kind, with a batch, or with another number of factors.
    """
    if base is None:
        base = Uniform(0.0, 1.0, validate_args=False)
        return [base] * dim
    if isinstance(base, Independent) and base.reinterpreted_batch_ndims == 1:
        return _split(base.base_dist, dim)
    factors: list[Any] = list(base) if isinstance(base, Sequence) else [base]
    fits = len(factors) == dim and all(isinstance(factor, Distribution) for factor in factors)
    if not fits or any(factor.batch_shape or factor.event_shape for factor in factors):
        raise ValueError(
            "base must be a univariate distribution of torch with an empty batch"
            + (f", or {dim} of them" if dim > 1 else "")
            + f", got {base}"
        )
    return factors


def _split(base: Distribution, dim: int) -> list[Distribution]:
    """Return the members of a batch (dim,) of univariate distributions."""
    if base.batch_shape != (dim,) or base.event_shape:
        raise ValueError(f"base must have {dim} univariate factors, got {base}")

    def member(i: int) -> Any:
        """Return the i-th member, which has no batch."""
        if isinstance(base, SparseDistribution):
            return base[i]
        return select_batch(base, Size(), lambda x, event: x[i])

    members = [member(i) for i in range(dim)]
    t = _inner_location(base).detach().expand(dim)
    log_densities = torch.stack([factor.log_prob(t[d]) for d, factor in enumerate(members)])
    # `select_batch` takes a tensor whose length is `dim` for one with an entry for each member. If
    # it has this length by chance, members have other densities than the batch.
    if not torch.allclose(log_densities, base.log_prob(t), equal_nan=True):
        raise ValueError(f"base must be a sequence of {dim} univariate distributions, got {base}")
    return members


def _constant(x: Tensor) -> Tensor:
    """Return a parameter of a base in float64, or raise ValueError if it requires grad."""
    if x.requires_grad:
        raise ValueError(f"base must be constant, got a parameter that requires grad: {x}")
    return in_float64(x)
