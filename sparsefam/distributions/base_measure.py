"""The base densities of kernel families: any univariate torch density, and products of them."""

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from ..numerics.validation import attributes, copied, require
from .uniform_on import UniformOn

__all__ = ["Base", "BaseMeasure"]

# Mass that may be lost at either end of an unbounded base, and how far it is looked for.
_LOG_TAIL = {torch.float32: math.log(1e-9), torch.float64: math.log(1e-17)}
_DOUBLINGS = 70
# Log densities below -_FAR are not looked at; growth below _SMALL is none; orders of growth that
# differ by _CLOSE are the same, and are measured over so many steps.
_FAR, _SMALL, _CLOSE, _WINDOW = 1e15, 1e-6, 0.02, 9
# By how much a log density that is linear in the score grows when the score doubles, at least.
_LINEAR = 1.9
# By how much logarithms of densities that are one may differ, whose parameters were rounded.
_SAME = 1e-4
# Where panels end at first: at such powers of this number times the scale.
_FAR_APART, _SCALES = 16, 20

Base = Distribution | Sequence[Distribution] | None
Growth = Callable[[Tensor], Tensor]


class BaseMeasure:
    """A product of univariate densities, which are constants: they are not differentiated.

    Args:
        base: None (uniform on the unit box), a univariate distribution, an `Independent` of one, or
            a sequence of univariate ones.
        dim: The number of factors.
        dtype: Of the densities that it becomes part of: how much of the tails is cut.

    Raises:
        ValueError: Anything else, a batch, or parameters that require grad.
    """

    def __init__(self, base: Base, dim: int, dtype: torch.dtype) -> None:
        self.dim, self.dtype, self._source = dim, dtype, base
        self._tail = _LOG_TAIL.get(dtype, _LOG_TAIL[torch.float32])
        self.factors = [_doubled(factor) for factor in _factors(base, dim)]

    @property
    def is_flat(self) -> bool:
        """Whether it adds nothing to what panels must resolve."""
        return all(isinstance(factor, Uniform) for factor in self.factors)

    def log_density(self, t: Tensor) -> Tensor:
        """Log density of the product at t (..., D); -inf off its support."""
        return torch.stack([self.log_factor(d, t[..., d]) for d in range(self.dim)]).sum(0)

    def require_inside(self, name: str, points: Tensor) -> None:
        """Raise unless points (..., D) are finite and in the closed support, gaps and all."""
        require(torch.isfinite(points), name, "finite", points)
        whole = [f.whole if isinstance(f, UniformOn) else f for f in self.factors]
        inside = torch.isfinite(BaseMeasure(whole, self.dim, self.dtype).log_density(points))
        require(inside, name, "inside the support of the base", points)

    def log_factor(self, axis: int, t: Tensor) -> Tensor:
        """Log density of one factor (...); -inf off its closed support, in the dtype of t."""
        factor = self.factors[axis]
        if isinstance(factor, Uniform):
            # Closed, where torch's is half open.
            inside = (factor.low <= t) & (t <= factor.high)
            return torch.where(inside, -(factor.high - factor.low).log(), -math.inf).to(t.dtype)
        inside = factor.support.check(t) if factor.support is not None else torch.isfinite(t)
        safe = torch.where(inside, t, self._inner(factor).to(t.dtype))
        log = factor.log_prob(safe.double()).to(t.dtype)
        return torch.where(inside, log, -math.inf)

    @staticmethod
    def _inner(factor: Distribution) -> Tensor:
        """Some location inside the support."""
        try:
            mean = factor.mean
        except NotImplementedError:
            try:
                return factor.icdf(torch.tensor(0.5, dtype=torch.float64))
            except NotImplementedError:
                rule = "a distribution with a mean or quantiles"
                raise ValueError(f"base must be {rule}, got {factor}") from None
        return mean if torch.isfinite(mean).all() else factor.mode

    def is_of(self, base: Base, t: Tensor) -> bool:
        """Whether this is a base's measure, which is looked at in locations (n, D)."""
        if base is self._source:
            return True
        other = BaseMeasure(base, self.dim, self.dtype)
        ends = (torch.tensor([m.bounds(d) for d in range(self.dim)]) for m in (self, other))
        pairs = (tuple(ends), (self.log_density(t), other.log_density(t)))
        return all(torch.allclose(x, y, _SAME, _SAME) for x, y in pairs)

    def bounds(self, axis: int) -> tuple[float, float]:
        """The ends of the support of a factor, maybe infinite."""
        support = self.factors[axis].support
        low = getattr(support, "lower_bound", -math.inf)
        high = getattr(support, "upper_bound", math.inf)
        return float(low), float(high)

    def reach(self, axis: int, deviation: Growth, growth: Growth) -> tuple[float, float]:
        """The ends of the interval outside of which density times growth has no mass to speak of.

        Args:
            axis: Which factor.
            deviation: sqrt(k(t, t)) at locations, (q,) to (q,).
            growth: Logarithm of what the density may be multiplied with there, of deviations.

        Raises:
            ValueError: A tail that does not outweigh the growth (Prop. 1).
        """
        low, high = (
            end
            if math.isfinite(end)
            else self._end(axis, side * self._steps(axis), deviation, growth)
            for end, side in zip(self.bounds(axis), (-1.0, 1.0), strict=True)
        )
        return low, high

    def scales(self, axis: int) -> Tensor:
        """Locations around the centre of a factor, further and further apart."""
        steps = self._unit(axis) * float(_FAR_APART) ** torch.arange(
            1, _SCALES, dtype=torch.float64
        )
        return torch.cat([self.centre(axis) - steps, self.centre(axis) + steps])

    def breaks(self, axis: int) -> Tensor:
        """Where a factor jumps."""
        factor = self.factors[axis]
        if isinstance(factor, UniformOn):
            return factor.breaks
        return self.centre(axis).new_empty(0)

    def centre(self, axis: int) -> Tensor:
        """Some location inside a factor's support, its mean if it has one."""
        return self._inner(self.factors[axis]).detach()

    def _unit(self, axis: int) -> Tensor:
        """The scale of a factor."""
        factor = self.factors[axis]
        try:
            found = factor.stddev
        except NotImplementedError:
            found = torch.full((), math.nan)
        other = torch.as_tensor(getattr(factor, "scale", 1.0))
        return torch.where(torch.isfinite(found) & (found > 0), found, other).detach()

    def _steps(self, axis: int) -> Tensor:
        """Distances from the centre, by quarters of powers of two."""
        powers = torch.arange(-40, 4 * _DOUBLINGS, dtype=torch.float64) / 4
        return self._unit(axis) * 2.0**powers

    def _end(self, axis: int, steps: Tensor, deviation: Growth, growth: Growth) -> float:
        """The first location from where on outwards the tail is light."""
        t = self.centre(axis) + steps
        log = self.log_factor(axis, t)
        seen = int((log > -_FAR).sum())
        log, size, away = log[:seen], deviation(t[:seen]), steps[:seen].abs()
        power = growth(size)
        heavy = (log + (power - power[:1]) + away.log() >= self._tail).nonzero()
        last = int(heavy[-1]) + 1 if len(heavy) else 0
        place = min(last, seen - 1)
        # Whether the density grows as the exponential of the score, or as a mere power of it.
        exponential = growth(2 * size[place]) > _LINEAR * power[place] > _SMALL
        self._compare(axis, log, size, away, bool(exponential), last < seen)
        return float(t[last])

    def _compare(
        self, axis: int, log: Tensor, size: Tensor, away: Tensor, exponential: bool, light: bool
    ) -> None:
        """Refuse growth of the order of the tail, of which a large enough score wins."""
        eta, order = (_order(x[-_WINDOW:], away[-_WINDOW:]) for x in (-log, size))
        if exponential and order > _CLOSE and order >= eta - _CLOSE:
            self._refuse(
                axis,
                f"k(t, t) grows as |t|^{2 * order:.2g}, an exponent that must be less than twice "
                f"that of the tail, exp(-c |t|^{eta:.2g})",
            )
        if not light:
            self._refuse(axis, "the power of k(t, t) that bounds the density has no mean under it")

    def _refuse(self, axis: int, reason: str) -> NoReturn:
        raise ValueError(
            "base must have tails that outweigh the growth of the kernel, or not every score has a "
            f"density (Prop. 1), got {self.factors[axis]}: {reason}"
        )


def _order(x: Tensor, t: Tensor) -> float:
    """The exponent of the power of t that x > 0 grows as."""
    logs = x.clamp_min(_SMALL).log()
    return float((logs[-1] - logs[0]) / (t[-1] / t[0]).log())


def _factors(base: Base, dim: int) -> list[Distribution]:
    if base is None:
        base = Uniform(0.0, 1.0, validate_args=False)
        return [base] * dim
    if isinstance(base, Independent) and base.reinterpreted_batch_ndims == 1:
        return _split(base.base_dist, dim)
    factors = list(base) if isinstance(base, Sequence) else [base]
    fits = len(factors) == dim and all(isinstance(factor, Distribution) for factor in factors)
    if not fits or any(factor.batch_shape or factor.event_shape for factor in factors):
        raise ValueError(
            "base must be a univariate distribution with an empty batch"
            + (f", or {dim} of them" if dim > 1 else "")
            + f", got {base}"
        )
    return factors


def _split(base: Distribution, dim: int) -> list[Distribution]:
    """The members of a batch of univariate distributions."""
    if base.batch_shape != (dim,) or base.event_shape:
        raise ValueError(f"base must have {dim} univariate factors, got {base}")
    factors = []
    for index in range(dim):
        factor = copied(base)
        for name in base.arg_constraints:
            if isinstance(base.__dict__.get(name), Tensor):
                factor.__dict__[name] = base.__dict__[name][index]
        torch.distributions.Distribution.__init__(factor, validate_args=False)
        factors.append(factor)
    return factors


def _doubled(factor: Distribution) -> Distribution:
    """The distribution without validation, its parameters constants in float64."""
    factor = copied(factor)
    for name, value in attributes(factor).items():
        if isinstance(value, Distribution):
            factor.__dict__[name] = _doubled(value)
        elif isinstance(value, Tensor):
            if value.requires_grad:
                raise ValueError(
                    f"base must be constant, got a {name} that requires grad: {factor}"
                )
            if value.is_floating_point():
                factor.__dict__[name] = value.double()
    factor._validate_args = False
    return factor
