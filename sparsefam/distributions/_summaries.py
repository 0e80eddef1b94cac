"""Masses in tails and between ends, with their logarithms, and moments, for every density."""

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.types import _size

from .._numerics.validation import LARGEST_POWER, broadcast_arguments, require, require_integer
from ..supports import IntervalUnion
from ._line.highest_density import highest_density, mass_above

__all__ = ["Summaries", "log_positive"]


def log_positive(x: Tensor) -> Tensor:
    """Return the logarithm of x; -inf with zero gradient where x is not positive."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -math.inf)


class Summaries(TorchDistribution):
    """Methods of densities of numbers that torch's distributions lack, by hooks of the families.

    A family overrides a hook if it has a formula. A hook without a body returns None, and the
    method that calls it computes the number from other methods.
    """

    # Hooks. `upper` (..., *batch) is true where the mass above a value is asked for.

    def _known_cdf(self, value: Tensor) -> Tensor | None:
        """Return the distribution function, if it is not found as a tail."""

    def _known_tail(self, value: Tensor, upper: Tensor, log: bool) -> Tensor | None:
        """Return the mass below each value, or above it where `upper`.

        With `log` its logarithm, relatively accurate, of a tail that is not the larger one.
        """

    def _known_mass(self, a: Tensor, b: Tensor, log: bool) -> Tensor | None:
        """Return the mass between a and b, or its logarithm, if it does not follow from tails."""

    def _known_icdf(self, value: Tensor) -> Tensor | None:
        """Return quantiles of probabilities in [0, 1]."""

    def _known_moment(self, n: int, center: Tensor) -> Tensor | None:
        """Return E[(t - center)^n] (*batch)."""

    def _breakpoints(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth, padded with NaN."""
        raise NotImplementedError(f"{type(self).__name__} has no sets of highest density")

    # Masses

    def cdf(self, value: Tensor) -> Tensor:
        """Return the mass below `value`, relatively accurate in the lower tail; atoms there count.

        Raises:
            NotImplementedError: A density of vectors.
        """
        self._require_numbers("cdf")
        self._check_value(value)
        if (mass := self._known_cdf(value)) is not None:
            return mass
        below = self._known_tail(value, torch.zeros_like(value, dtype=torch.bool), False)
        return super().cdf(value) if below is None else below

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return the mass below each value, or above it where `upper`; with `log` its logarithm."""
        if (mass := self._known_tail(value, upper, log)) is not None:
            return mass
        below = self.cdf(value)
        tail = torch.where(upper, 1 - below, below)
        return log_positive(tail) if log else tail

    def _is_larger(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return whether a tail is the larger one."""
        with torch.no_grad():
            return self._tail(value, upper) > 0.5

    def _log_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the logarithm of a tail; the larger one is 1 less the smaller one."""
        larger = self._is_larger(value, upper)
        small = self._tail(value, upper ^ larger, log=True)
        return torch.where(larger, torch.log1p(-small.exp()), small)

    def _from_smaller_tail(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the end next to the mode, the other one, and whether the upper tail is smaller."""
        upper = self._is_larger(a, torch.zeros_like(a, dtype=torch.bool))
        return torch.where(upper, a, b), torch.where(upper, b, a), upper

    def _log_interval(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the logarithm of the mass between a and b."""
        if (log_mass := self._known_mass(a, b, log=True)) is not None:
            return log_mass
        near, far, upper = self._from_smaller_tail(a, b)
        log_near, log_far = (self._log_tail(x, upper) for x in (near, far))
        # log(e^u - e^v) = u + log(1 - e^(v - u)), by expm1 where v is near u, else by log1p.
        positive = log_near > log_far
        fall = torch.where(positive, log_far - log_near, -1.0)
        close = fall > -0.5
        log_fraction = torch.where(
            close,
            (-torch.expm1(torch.where(close, fall, -1.0))).log(),
            torch.log1p(-torch.where(close, -1.0, fall).exp()),
        )
        return torch.where(positive, torch.where(positive, log_near, 0.0) + log_fraction, -math.inf)

    def _interval(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the mass between a and b."""
        if (mass := self._known_mass(a, b, log=False)) is not None:
            return mass
        near, far, upper = self._from_smaller_tail(a, b)
        return (self._tail(near, upper) - self._tail(far, upper)).clamp_min(0)

    def _upper_mask(self, name: str, value: Tensor, upper: bool) -> Tensor:
        """Check the value of the method of this name, and return `upper` in its shape."""
        self._require_numbers(name)
        self._check_value(value)
        return torch.full_like(value, upper, dtype=torch.bool)

    def _check_value(self, value: Tensor) -> None:
        """Raise ValueError for values that are no locations, if arguments are validated."""
        if self._validate_args:
            self._validate_sample(value)

    def _require_numbers(self, name: str) -> None:
        if self.event_shape:
            raise NotImplementedError(f"{name} exists for densities of numbers only")

    def survival(self, value: Tensor) -> Tensor:
        """Return the mass above `value`, 1 - `cdf`, relatively accurate in the upper tail.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._tail(value, self._upper_mask("survival", value, True))

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of the mass below `value`, relatively accurate in both tails.

        It is -inf with zero gradient below the support.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._log_tail(value, self._upper_mask("log_cdf", value, False))

    def log_survival(self, value: Tensor) -> Tensor:
        """Return the logarithm of the mass above `value`, relatively accurate in both tails.

        It is -inf with zero gradient above the support.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._log_tail(value, self._upper_mask("log_survival", value, True))

    def _interval_ends(
        self, name: str, a: Tensor | float, b: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of intervals, after the checks of the method of this name."""
        self._require_numbers(name)
        density: Any = self
        low, high, _ = broadcast_arguments(a=a, b=b, density=self._like)
        if self._validate_args:
            for end, values in zip("ab", (low, high), strict=True):
                density._validate_sample(values, end)
            require(low <= high, "a", "at most b", (low, high))
        return low, high

    def interval_prob(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Return the mass between a and b, from the tails on the side of the smaller one.

        Args:
            a: Lower ends (*sample, *batch).
            b: Upper ends.

        Raises:
            ValueError: `a` above `b`, one that is no number, or shapes that do not broadcast.
            NotImplementedError: A density of vectors.
        """
        return self._interval(*self._interval_ends("interval_prob", a, b))

    def log_interval_prob(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Return the logarithm of `interval_prob`, accurate in far tails: a censored likelihood.

        It is -inf with zero gradient where there is no mass.

        Args:
            a: Lower ends (*sample, *batch).
            b: Upper ends.

        Raises:
            ValueError: `a` above `b`, one that is no number, or shapes that do not broadcast.
            NotImplementedError: A density of vectors.
        """
        return self._log_interval(*self._interval_ends("log_interval_prob", a, b))

    # Quantiles and moments

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities in [0, 1], which lie in the support.

        An atom is the quantile of as many probabilities as it has. Those of kernel families are
        differentiable once, in the probability and the parameters, and the ends of their supports,
        the quantiles of 0 and 1, are not.

        Raises:
            ValueError: A probability outside [0, 1].
            NotImplementedError: A density of vectors.
        """
        self._require_numbers("icdf")
        self._check_value(value)
        if self._validate_args:
            require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
        quantiles = self._known_icdf(value)
        return super().icdf(value) if quantiles is None else quantiles

    @property
    def median(self) -> Tensor:
        """The quantile of one half (*batch)."""
        self._require_numbers("median")
        return self.icdf(torch.full_like(self._like, 0.5))

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        """Return E[(t - center)^n] (*batch)."""
        moment = self._known_moment(n, center)
        return self.expect(lambda t: (t - center) ** n) if moment is None else moment

    def _central_moment(self, n: int, standardized: bool = False) -> Tensor:
        """Return E[(t - mean)^n] (*batch), NaN where there is no mean, or that over stddev^n."""
        mean = self.mean
        exists = mean.isfinite()
        moment = self._moment_about(n, torch.where(exists, mean, 0.0))
        moment = torch.where(exists, moment, math.nan)
        return moment / self.variance ** (n / 2) if standardized else moment

    def moment(self, n: int, central: bool = False) -> Tensor:
        """Return E[t^n], or with `central` E[(t - mean)^n], (*batch).

        A moment that does not exist under heavy tails is infinite, or NaN if its sign or the mean
        is not determined.

        Args:
            n: The order, from 1 to 170.
            central: Whether the moment is that about the mean.

        Raises:
            ValueError: `n` no integer from 1 to 170, `central` no bool; a kernel family without
                that moment.
            NotImplementedError: A density of vectors.
        """
        self._require_numbers("moment")
        require_integer("n", n, 1, LARGEST_POWER)
        if not isinstance(central, bool):
            raise ValueError(f"central must be True or False, got {central!r}")
        if not central:
            return self._moment_about(n, torch.zeros_like(self._like))
        return self._central_moment(n)

    @property
    def skewness(self) -> Tensor:
        """Skewness (*batch): the third central moment over the 3/2 power of the variance."""
        self._require_numbers("skewness")
        return self._central_moment(3, standardized=True)

    @property
    def kurtosis(self) -> Tensor:
        """Excess kurtosis (*batch): the fourth central moment over the squared variance, less 3."""
        self._require_numbers("kurtosis")
        return self._central_moment(4, standardized=True) - 3

    def highest_density(self, mass: Tensor | float) -> IntervalUnion:
        r"""Return the set $\{p \ge c\}$ of a mass, one or several intervals: the smallest of it.

        Where no level has that mass, as of a uniform density, it is the smallest set with more.
        Its ends are differentiable once. Peaks and valleys much narrower than the distances
        between breakpoints may be missed.

        Args:
            mass: In (0, 1), a number or (*batch).

        Raises:
            ValueError: `mass` outside (0, 1), or of another shape.
            NotImplementedError: A density of vectors.
        """
        level = self._checked_mass(mass)
        p = self.to_float64()
        return IntervalUnion(highest_density(p, level, p._breakpoints()).to(self._like.dtype))

    def _checked_mass(self, mass: Tensor | float) -> Tensor:
        """Return the mass of a set of highest density (*batch), or raise as for that method."""
        self._require_numbers("highest_density")
        level, _ = broadcast_arguments(mass=mass, density=self._like)
        require((level > 0) & (level < 1), "mass", "in (0, 1)", mass)
        if level.shape != self.batch_shape:
            shape = tuple(self.batch_shape)
            raise ValueError(f"mass must be a number or of shape {shape}, got {tuple(level.shape)}")
        return level.to(self._like.dtype)

    def highest_density_mass(self, value: Tensor) -> Tensor:
        r"""Return the mass of the set $\{p \ge p(t)\}$ of locations t: inverts `highest_density`.

        It is 0 at the mode and 1 where the density is zero; of draws of the density it is uniform
        if no level has mass. Without gradient. Calibrate sets of highest density by it.

        Args:
            value: Locations t (*sample, *batch).

        Raises:
            NotImplementedError: A density of vectors.
        """
        self._require_numbers("highest_density_mass")
        self._check_value(value)
        with torch.no_grad():
            shape = torch.broadcast_shapes(value.shape, self.batch_shape)
            p = self.to_float64().expand(shape)
            return mass_above(p, value.expand(shape), p._breakpoints()).to(self._like.dtype)

    # Methods for policies of reinforcement learning

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean (*batch, *event), by the name that TorchRL asks for."""
        return self.mean

    def rsample_and_log_prob(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        """Draw samples (*sample, *batch, *event), and return them with their log densities.

        Raises:
            NotImplementedError: A density without `rsample`.
        """
        t = self.rsample(sample_shape)
        return t, self.log_prob(t)
