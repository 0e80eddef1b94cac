"""Densities of numbers: everything that one may ask of them, from ends and a log density."""

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from .._numerics.validation import (
    LARGEST_ORDER,
    LARGEST_POWER,
    broadcast_arguments,
    require,
    require_integer,
    saturated,
)
from ..bases import Basis
from ..supports import Interval, IntervalUnion, RealLine
from ._line.coordinates import Coordinate, DoubleExponential, Line
from ._line.highest_density import highest_density, mass_above
from ._line.panels import Panels, argmax, clamp, or_infinite
from .base import SparseDistribution

__all__ = ["Geometry", "Univariate", "interval_by_tails"]

# Logarithm of the ratio of densities below which a location is not near the peak that a coordinate
# on the whole line is placed by.
_NEAR = -2.0
# Powers of 16 among which the scale of a density on an infinite interval is searched for, as far as
# a coordinate reaches in float64.
_SCALES = tuple(16.0**k for k in range(-215, 216))
# Fractions of the range where a density matters at which it is cut, closer at its ends.
_FRACTIONS = tuple(math.sin(math.pi * k / 24) ** 2 for k in range(13))
# Rounds of the search for this range. Each can divide it by six.
_ROUNDS = 8
# Steps of the search for a quantile, which may be next to a power.
_STEPS = 16
# Nodes on each subinterval, and of the rule that must agree with it, and how closely.
_ORDER, _LOWER_ORDER, _CLOSE = 32, 24, 1e-9
# By how much the logarithm of the mass of a density may differ from 0.
_NORMALIZED = 1e-6


class Geometry(NamedTuple):
    """Where a density of numbers lies, and where it is not smooth.

    Attributes:
        low: Lower end of the support (*batch); None if there is none.
        high: Upper end (*batch); None if there is none.
        breakpoints: Kinks, jumps and narrow peaks (*batch, J), in any order; None for none. Those
            outside of the support have no effect.
    """

    low: Tensor | None
    high: Tensor | None
    breakpoints: Tensor | None = None


class Univariate(SparseDistribution):
    r"""A density of numbers, from where it lies and its logarithm.

    A subclass names its parameters in `arg_constraints`, stores them as attributes that are
    broadcast to the batch shape, calls this constructor, and implements `geometry` and `log_prob`.
    All other methods are computed in float64 by quadrature between the breakpoints, on the part of
    each subinterval where the density matters; a subclass with a formula overrides the method.

    The density must be smooth between breakpoints; its powers above -1/2 at breakpoints and finite
    ends are accurate. A narrow peak needs a breakpoint on it, unless it is the only one.

    Args:
        batch_shape: Shape of the parameters.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: A parameter off its constraint; ends that are not finite tensors, or not in
            order; `log_prob` NaN between the ends, or one with another mass than 1, for which two
            rules differ, or of whose mass 1e-9 lies too far out for float64.
    """

    # Center and spread of the coordinate (*batch, 2), the result of `Panels.search`, and the node
    # at which the density is highest (*batch): constants that `_locate` computes.
    _tensors = {"_frame": 1, "_region": 2, "_peak": 0}
    # The logarithm of the mass of `_unnormalized` (*batch); None for 0.
    _log_mass: Any = None
    # The `Law` that has closed forms of masses and quantiles, if there is one.
    _law: Any = None

    def __init__(self, batch_shape: Size, *, validate_args: bool | None = None) -> None:
        SparseDistribution.__init__(self, batch_shape, validate_args=validate_args)
        if self._validate_args:
            low, high, breakpoints = self.geometry()
            if low is not None and high is not None:
                require(low < high, "low", "below high", {"low": low, "high": high})
            for name, end in (("low", low), ("high", high)):
                if end is not None:
                    require(end.isfinite(), name, "a finite tensor", end)
            if breakpoints is not None:
                require(~breakpoints.isnan(), "breakpoints", "numbers", breakpoints)
        with torch.no_grad():
            self._locate()
        mass = self._panels.integral(_ORDER)
        if self._validate_args:
            self._require_mass(mass)
        self._normalize(mass)

    def geometry(self) -> Geometry:
        """Return the ends of the support and the breakpoints."""
        raise NotImplementedError

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval between the ends of `geometry`."""
        low, high, _ = self.geometry()
        if low is None and high is None:
            return RealLine(self._like)
        if low is not None and high is not None:
            return Interval(low, high, self.log_prob)
        infinite = torch.full_like(self._like, math.inf)
        ends = -infinite if low is None else low, infinite if high is None else high
        return IntervalUnion.merged(torch.stack(ends, -1).unsqueeze(-2), self.log_prob)

    # What the panels need

    def _log_q(self, t: Tensor) -> Tensor:
        """Return the logarithm of the density, up to a constant, at float64 locations in it."""
        with torch.no_grad():
            log_q = self._unnormalized(t)
        if not torch.is_grad_enabled():
            return log_q
        # Where the density is zero the function may have no derivative. So it is evaluated again,
        # there at a location inside.
        finite = log_q.isfinite()
        return torch.where(finite, self._unnormalized(torch.where(finite, t, self._peak)), log_q)

    def _unnormalized(self, t: Tensor) -> Tensor:
        """Return the function whose exponential is integrated, at locations (..., *batch)."""
        return self.log_prob(t).double()

    def _normalize(self, mass: Tensor) -> None:
        """Store the logarithm of the mass of `_unnormalized` (*batch), or check that it is 0."""
        if self._validate_args:
            require(mass.abs() <= _NORMALIZED, "log_prob", "of mass 1", mass.exp())

    @property
    def _is_unbounded(self) -> bool:
        """Whether every density of the batch is positive on the whole line."""
        return isinstance(self.support, RealLine)

    def _intervals(self) -> Tensor:
        """Return the support as intervals (*batch, J, 2)."""
        support: Any = self.support
        return support.intervals

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support (*batch) in float64."""
        low, high, _ = self.geometry()
        infinite = torch.full_like(self._like, math.inf, dtype=torch.float64)
        return (
            -infinite if low is None else low.double(),
            infinite if high is None else high.double(),
        )

    @property
    def _panels(self) -> Panels:
        """The density on subintervals, which integrate what has no formula."""
        line = self._coordinate
        edges = cast(Tensor, line.rough)
        if len(edges) > 2:
            # Between two peaks at breakpoints the density may not matter: its range is searched for
            # on both halves of each interval, which have fewer cuts.
            middles = (edges[:-1] + edges[1:]) / 2
            edges = torch.cat([torch.stack([edges[:-1], middles], 1).flatten(0, 1), edges[-1:]])
        return Panels(
            self._log_q,
            line,
            self._ends(),
            edges=edges,
            region=self.__dict__.get("_region"),
            fractions=_FRACTIONS if len(edges) == 2 else _FRACTIONS[::2],
            log_mass=self._log_mass,
        )

    @property
    def _coordinate(self) -> Coordinate:
        """The coordinate, which is the location itself if both ends are finite."""
        low, high, breakpoints = self.geometry()
        line: Coordinate
        if low is not None and high is not None:
            line = Line(_ORDER, 1, _ORDER)
        else:
            lower, upper = (x if x is None else x.double() for x in (low, high))
            center, spread = self._frame.unbind(-1)
            line = DoubleExponential(lower, upper, center, spread, _ORDER)
        # The ends, and the breakpoints between them.
        first, last = (line.onto(end) for end in self._ends())
        edges = [first.unsqueeze(0), last.unsqueeze(0)]
        if breakpoints is not None and breakpoints.shape[-1]:
            # One that coincides with an end moves with it.
            y = line.onto(breakpoints.double().movedim(-1, 0))
            y = torch.where(y < last, torch.where(y > first, y, first), last)
            edges.insert(1, y.sort(dim=0).values)
        line.rough, line.steps = torch.cat(edges), _STEPS
        return line

    # Where the density matters

    def _locate(self) -> None:
        """Find where the density matters, from its values: set `_frame`, `_region` and `_peak`."""
        low, high, _ = self.geometry()
        zeros = torch.zeros_like(self._like, dtype=torch.float64)
        # A location inside, where gradients are taken of values that are not selected.
        self._peak = zeros
        self._frame = torch.stack([zeros, zeros + 1], -1)
        # First the order of magnitude of the scale, then the range where the density is above e^-80
        # of its largest value.
        if low is None or high is None:
            self._frame = self._first_frame(low, high)
        if low is None and high is None:  # around the peak
            panels = self._panels
            middle = panels.search(_NEAR, rounds=_ROUNDS, power=0.0)
            first, last = (panels.line.locations(y.movedim(-1, 0))[0] for y in middle.unbind(-1))
            first, last = first.amin(0), last.amax(0)
            spread = ((last - first) / 4).clamp_min(torch.finfo(first.dtype).tiny)
            self._frame = torch.stack([(first + last) / 2, spread], -1)
        self._region = self._panels.search(rounds=_ROUNDS)
        panels = self._panels
        nodes, _ = panels.between(_ORDER, panels.cuts())
        heights = self._log_q(nodes)
        best = torch.where(heights < math.inf, heights, -math.inf).argmax(0, keepdim=True)
        self._peak = nodes.gather(0, best).squeeze(0)

    def _first_frame(self, low: Tensor | None, high: Tensor | None) -> Tensor:
        """Return a location inside and a scale, (*batch, 2), of a density with an infinite end.

        The scale is the power of 16 with the most mass around it among distances from the finite
        end, or from 0 if both ends are infinite. The location is at this distance, or 0.

        Args:
            low: Lower end (*batch); None if there is none.
            high: Upper end (*batch); None if there is none.
        """
        end = next((x.double() for x in (low, high) if x is not None), self._peak)
        scales = end.new_tensor(_SCALES).reshape(-1, *(1,) * end.dim())
        sides = [side for side, x in ((-1, low), (1, high)) if x is None]
        # In the logarithm of the distance the density is multiplied by the distance.
        heights = torch.stack([self._log_q(end + side * scales) + scales.log() for side in sides])
        heights = torch.where(heights < math.inf, heights, -math.inf).amax(0)
        best = heights.argmax(0, keepdim=True)
        scale = scales.expand_as(heights).gather(0, best)
        # The first if there is no mass at these, and the last if the mass is infinite.
        inner = (best > 0) & (best < len(scales) - 1)
        scale = torch.where(inner, scale, 1.0).squeeze(0)
        return torch.stack([end + scale * sum(sides), scale], -1)

    @torch.no_grad()
    def _require_mass(self, mass: Tensor) -> None:
        """Raise ValueError unless the exponential of a function of this log mass is integrable."""
        panels = self._panels
        cuts = panels.cuts()
        nodes, weights = panels.between(_ORDER, cuts)
        values = self._unnormalized(nodes)
        require(~values.isnan(), "log_prob", "a number, or -inf, between low and high", "NaN")
        rule = "positive between low and high, with a finite integral"
        require(mass.isfinite(), "the exponential of log_prob", rule, mass)
        gap = (panels.integral(_LOWER_ORDER) - mass).abs()
        rule = f"smooth between breakpoints, with two rules for the mass closer than {_CLOSE}"
        require(gap <= _CLOSE, "log_prob", rule, gap)
        # A density may matter where the coordinate ends, but not in the last subinterval.
        (low, high, _), rough = self.geometry(), cast(Tensor, panels.line.rough)
        last = torch.zeros_like(cuts[1:], dtype=torch.bool)
        if low is None:
            last = last | (cuts[:-1] <= rough[0])
        if high is None:
            last = last | (cuts[1:] >= rough[-1])
        density = torch.where(values < math.inf, values - mass, -math.inf).exp()
        terms = (weights * density).unflatten(0, (-1, _ORDER)).sum(1)
        rule = f"integrable, with less than {_CLOSE} of the mass where float64 ends"
        fades = torch.where(last, terms, 0.0).sum(0) <= _CLOSE
        require(fades, "the exponential of log_prob", rule, mass.exp())

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth.

        Less than a rounding error of the mass lies outside.
        """
        return self._panels.locations()

    def _breakpoints(self) -> Tensor:
        """Return `_cuts` with all locations at which the density jumps (*batch, J), NaN-padded."""
        return self._cuts()

    # Masses

    def cdf(self, value: Tensor) -> Tensor:
        """Return the mass below `value`, relatively accurate in the lower tail; atoms there count.

        Raises:
            NotImplementedError: A density of vectors.
        """
        self._require_numbers("cdf")
        self._check_value(value)
        return self._tail(value, torch.zeros_like(value, dtype=torch.bool))

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return the mass (..., *batch) below each value, or above it, or its logarithm.

        Args:
            value: Locations (..., *batch).
            upper: Whether the mass above is meant (..., *batch).
            log: Whether to return the logarithm, relatively accurate; the logarithm of the larger
                tail need not be right.
        """
        low, high = self._ends()
        inside = (low < value) & (value < high)
        # Values outside are moved to the end where all of the mass is in the tail.
        t = torch.where(inside, value, torch.where(upper, low, high)).double()
        if self._has_masses:
            tail = self._log_mass_between(torch.where(upper, t, low), torch.where(upper, high, t))
            tail = tail if log else tail.exp()
        else:
            tail = self._panels.tail(t, upper, log)
        tail = tail.clamp(max=0.0 if log else 1.0)
        outside = torch.where(upper, value <= low, value >= high).to(tail)
        tail = torch.where(inside, tail, outside.log() if log else outside)
        return tail.to(torch.promote_types(self._like.dtype, value.dtype))

    def _is_larger(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return whether the tail below a value, or above it where `upper`, is above one half."""
        with torch.no_grad():
            return self._tail(value, upper) > 0.5

    def _log_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the logarithm of the tail below values, or above them where `upper`.

        The logarithm of the larger tail is computed from the smaller one.
        """
        larger = self._is_larger(value, upper)
        small = self._tail(value, upper ^ larger, log=True)
        return torch.where(larger, torch.log1p(-small.exp()), small)

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        """Return the mass between a and b (..., *batch), or its logarithm, relatively accurate."""
        low, high = self._ends()
        start, end = (clamp(x.double(), low, high) for x in (a, b))
        positive = start < end
        # Elsewhere the mass of the whole support is computed, and not selected.
        start, end = torch.where(positive, start, low), torch.where(positive, end, high)
        mass = torch.where(positive, self._log_mass_between(start, end), -math.inf)
        mass = mass.to(torch.promote_types(self._like.dtype, a.dtype))
        return mass if log else mass.exp()

    @property
    def _has_masses(self) -> bool:
        """Whether `_log_mass_between` is a formula, so that tails need no panels."""
        return False

    def _log_mass_between(self, start: Tensor, end: Tensor) -> Tensor:
        """Return the logarithm of the mass between locations in the support, in float64."""
        return self._panels.log_interval(start, end)

    def _upper_mask(self, name: str, value: Tensor, upper: bool) -> Tensor:
        """Return `upper` in the shape of a value, after the checks of the method of this name."""
        self._require_numbers(name)
        self._check_value(value)
        return torch.full_like(value, upper, dtype=torch.bool)

    def _require_numbers(self, name: str) -> None:
        """Raise NotImplementedError, with the name of the method, for a density of vectors."""
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
        return self._interval(*self._interval_ends("log_interval_prob", a, b), log=True)

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
        return self._quantile(value)

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities (..., *batch) in [0, 1]."""
        first, last = self._ends()
        inside = (value > 0) & (value < 1)
        t = self._inverse(torch.where(inside, value, 0.5).double())
        t = torch.where(value >= 1, last, torch.where(value <= 0, first, t))
        return t.to(torch.promote_types(self._like.dtype, value.dtype))

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch), differentiable in all parameters and ends.

        Raises:
            NotImplementedError: The support has a gap, which samples cannot cross.
        """
        if torch.is_grad_enabled() and not self.has_rsample:
            raise NotImplementedError("rsample needs a support of one interval: use sample")
        shape = self._extended_shape(sample_shape)
        # In float64, as one in 2^24 draws of float32 would be 0; never 0, which has no quantile
        # where there is no end.
        uniform = torch.rand(shape, dtype=torch.float64, device=self._like.device)
        return self._rounded(self._inverse(uniform.clamp_min(2.0**-54)))

    def _inverse(self, q: Tensor) -> Tensor:
        """Return quantiles of float64 probabilities (..., *batch) in (0, 1)."""
        return self._panels.quantile(q)

    def _rounded(self, t: Tensor) -> Tensor:
        """Return locations in the type of the parameters, below an upper end without density."""
        with torch.no_grad():
            low, high = (end.to(self._like.dtype) for end in self._ends())
            last = torch.where(self.prob(high) > 0, high, high.nextafter(low))
        return torch.minimum(t.to(self._like.dtype), last)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if there is none."""
        nodes, weights = self._panels.rule()
        return self._moment(1, weights * nodes).to(self._like.dtype)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if there is none."""
        nodes, weights = self._panels.rule()
        # Around the mean by the same nodes, as E[t^2] - E[t]^2 would cancel.
        offset = nodes - (weights * nodes).sum(0)
        return self._moment(2, weights * offset.square()).to(self._like.dtype)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch); without gradient if it is searched."""
        with torch.no_grad():
            return self._rounded(argmax(self.prob, self._cuts()))

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch)."""
        nodes, weights = self._panels.rule()
        log_p = self.log_prob(nodes)
        # The derivative of 0 log 0 would be infinite.
        return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0).to(self._like.dtype)

    def _moment(self, n: int, terms: Tensor) -> Tensor:
        """Return a moment (*batch), the sum of its terms; infinite or NaN if it does not exist.

        It does not if at an infinite end the outermost term that is not 0 matters in the sum.

        Args:
            n: Order of the moment.
            terms: Powers of nodes times weights (Q, *batch), in the order of the nodes.
        """
        sizes = terms.detach().abs()
        sides = sizes, sizes.flip(0)
        outermost = (x.gather(0, (x > 0).int().argmax(0, keepdim=True))[0] for x in sides)
        least = _CLOSE * sizes.sum(0)
        ends = zip(self._ends(), outermost, strict=True)
        return or_infinite(terms.sum(0), n, [end.isinf() & (x > least) for end, x in ends])

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$."""
        require_integer("order", order, 1, LARGEST_ORDER)
        nodes, weights = self._panels.rule(order // 2)
        return saturated(nodes, self._like.dtype), weights.to(self._like.dtype)

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        return self._panels.expect(psi, order // 2).to(self._like.dtype)

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        self.escort(beta)  # refuses all but 1
        return self._panels.covariance(phi, psi).to(self._like.dtype)

    @property
    def median(self) -> Tensor:
        """The quantile of one half (*batch)."""
        self._require_numbers("median")
        return self.icdf(torch.full_like(self._like, 0.5))

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        """Return E[(t - center)^n] (*batch)."""
        nodes, weights = self._panels.rule()
        return self._moment(n, weights * (nodes - center) ** n).to(self._like.dtype)

    def _central_moment(self, n: int, standardized: bool = False) -> Tensor:
        """Return E[(t - mean)^n] (*batch), NaN where there is no mean.

        Args:
            n: The order.
            standardized: Whether to divide it by stddev^n.
        """
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
        """Return a mass in the shape (*batch), after the checks of `highest_density`."""
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


def interval_by_tails(p: Univariate, a: Tensor, b: Tensor, log: bool) -> Tensor:
    """Return the mass between a and b, or its logarithm, from the tails on the smaller side.

    Args:
        p: The density, whose tails are relatively accurate.
        a: Lower ends (*sample, *batch).
        b: Upper ends (*sample, *batch).
        log: Whether to return the logarithm.
    """
    upper = p._is_larger(a, torch.zeros_like(a, dtype=torch.bool))
    near, far = torch.where(upper, a, b), torch.where(upper, b, a)
    if not log:
        return (p._tail(near, upper) - p._tail(far, upper)).clamp_min(0)
    log_near, log_far = (p._log_tail(x, upper) for x in (near, far))
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
