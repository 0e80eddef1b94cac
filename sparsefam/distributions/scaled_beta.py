"""Beta densities on fixed intervals, by their mean."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.nn.functional import logsigmoid

from .._numerics.modes import values_are_readable
from .._numerics.quadrature import gauss_legendre
from .._numerics.special import digamma_excess, stirling_excess
from .._numerics.validation import broadcast_arguments, require
from ..supports import Interval, finite, positive_finite
from ._line.engine import Coordinate, DoubleExponential, IntegratedDistribution, clamp
from ._summaries import log_positive

__all__ = ["ScaledBeta"]

# Nodes between two cuts.
_ORDER = 24
# Drop of the log density from which on tails are integrated by themselves, until it has dropped
# by so much more, with so many nodes.
_DEEP, _TAIL, _TAIL_ORDER = 20.0, 40.0, 32


class ScaledBeta(IntegratedDistribution):
    r"""Beta density on a fixed interval whose mean is free.

    $$p(t) = \frac{x^{a-1}(1-x)^{b-1}}{B(a, b)\,(h - l)},\quad x = \frac{t - l}{h - l},\quad
    a = c\,\frac{\mu - l}{h - l},\; b = c\,\frac{h - \mu}{h - l}$$

    The support does not move with the mean, unlike that of the symmetric families. Kumaraswamy's
    density has simpler quantiles, but its mean is no parameter, and mean, entropy and divergence
    have no such simple forms. Here they are closed; the distribution function is integrated in
    terms of log odds, and `rsample` inverts it, with exact gradients. Samples are never at an end.

    Equivalent to `scipy.stats.beta(a, b, low, high - low)`.

    Args:
        low: Lower end l (*batch), finite.
        high: Upper end h (*batch), finite.
        mean: Mean between the ends (*batch).
        concentration: c = a + b > 0 (*batch). The variance is
            (mean - low)(high - mean)/(concentration + 1).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: An argument that is not finite, `low` not below `high`, `mean` not strictly
            between them, `concentration` not positive, or shapes that do not broadcast.

    Examples:
        >>> p = ScaledBeta(-2.0, 2.0, mean=1.5, concentration=8.0)
        >>> p.variance, p.mode
        (tensor(0.1944), tensor(2.))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": finite,
        "high": finite,
        "mean": finite,
        "concentration": positive_finite,
    }
    mean: Any = None  # an attribute, and not the property of other densities

    def __init__(
        self,
        low: Tensor | float,
        high: Tensor | float,
        mean: Tensor | float,
        concentration: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.low, self.high, self.mean, self.concentration = broadcast_arguments(
            low=low, high=high, mean=mean, concentration=concentration
        )
        super().__init__(self.mean.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
            inside = (self.low < self.mean) & (self.mean < self.high)
            rule = "strictly between low and high"
            require(inside, "mean", rule, (self.mean, self.low, self.high))

    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.low.double(), self.high.double()

    @property
    def _odds(self) -> "_LogOdds":
        """The density of log(x/(1 - x))."""
        (low, high), mean = self._ends(), self.mean.double()
        rate = self.concentration.double() / (high - low)
        return _LogOdds(rate * (mean - low), rate * (high - mean))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval from `low` to `high`."""
        return Interval(self.low, self.high, self.log_prob)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        return (self.mean - self.low) * (self.high - self.mean) / (self.concentration + 1)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch): the mean if it is uniform, `low` if at both."""
        odds, (low, high) = self._odds, self._ends()
        a, b = odds.a - 1, odds.b - 1
        inner = (a > 0) & (b > 0)
        share = torch.where(inner, a, 1.0) / torch.where(inner, a + b, 2.0)
        mode = torch.where(a > b, high, low)
        mode = torch.where((a == 0) & (b == 0), self.mean, mode)
        return torch.where(inner, low + (high - low) * share, mode).to(self._like.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        self._check_value(value)
        odds, (low, high) = self._odds, self._ends()
        width = high - low
        inside = (low < value) & (value < high)
        t = torch.where(inside, value.double(), self.mean.double())
        log_x, log_y = ((t - low) / width).log(), ((high - t) / width).log()
        log_p = odds.log_density(log_x, log_y) - log_x - log_y - width.log()
        # At an end it is infinite, unless the exponent there is 0.
        for end, a, b in ((low, odds.a, odds.b), (high, odds.b, odds.a)):
            height = torch.where(a > 1, -math.inf, math.inf)
            height = torch.where(a == 1, b.detach().log() - width.log(), height)
            log_p = torch.where(value == end, height, log_p)
        log_p = torch.where((low <= value) & (value <= high), log_p, -math.inf)
        return log_p.to(torch.promote_types(self._like.dtype, value.dtype))

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        odds, (low, high) = self._odds, self._ends()
        a, b = odds.a, odds.b
        # Differences of lgamma and of digamma would cancel at high concentrations.
        entropy = odds.excess + (a / (a + b)).log() + (b / (a + b)).log() + (high - low).log()
        terms = (a - 1) * digamma_excess(a) + (b - 1) * digamma_excess(b)
        entropy = entropy - terms + (a + b - 2) * digamma_excess(a + b)
        return entropy.to(self._like.dtype)

    def _kl_on_same_interval(self, q: "ScaledBeta") -> Tensor:
        """Return the divergence from a density between the same ends (*batch)."""
        here, there = self._odds, q._odds
        c, d = here.a + here.b, there.a + there.b
        common = digamma_excess(c)
        total = there.excess - here.excess
        for a, b in ((here.a, there.a), (here.b, there.b)):
            ratio = b / d / (a / c)
            total = total + b * ratio.log() + (a - b) * (digamma_excess(a) - common)
        return total.to(self._like.dtype)

    # By the engine

    @property
    def _line(self) -> Coordinate:
        return _Odds(self._odds, *self._ends())

    def _find_cuts(self, line: Coordinate, fine: bool = True) -> Tensor:
        odds = self._odds
        return odds._find_cuts(odds._line)

    def _log_q(self, t: Tensor) -> Tensor:
        return torch.zeros_like(t)  # the coordinate's measure is the density's

    @property
    def _log_mass(self) -> Tensor:
        return torch.zeros_like(self._like, dtype=torch.float64)

    def _moment(self, name: str, n: int, terms: Tensor) -> Tensor:
        return terms.sum(0)

    def _log_share(self, t: Tensor, upper: Tensor) -> Tensor:
        return self._odds.log_share(_log_odds(t.double(), *self._ends()), upper)

    def _quantile(self, value: Tensor) -> Tensor:
        return _from_odds(self._odds._quantile_by_rule(value), *self._ends())

    def _rounded(self, t: Tensor) -> Tensor:
        """Return locations in the type of the parameters, strictly between the ends."""
        t, low, high = t.to(self._like.dtype), self.low.detach(), self.high.detach()
        inner = clamp(t.detach(), low.nextafter(high), high.nextafter(low))
        return inner + (t - t.detach())


class _LogOdds(IntegratedDistribution):
    """The density of s = log(x/(1 - x)) for x of a Beta(a, b): smooth, with exponential tails."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {"a": positive_finite, "b": positive_finite}

    _tensors = {"excess": 0}

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        # log B(a, b), less the largest value of a log x + b log(1 - x).
        self.excess = stirling_excess(a) + stirling_excess(b) - stirling_excess(a + b)
        super().__init__(a.shape, validate_args=False)

    def log_density(self, log_x: Tensor, log_y: Tensor) -> Tensor:
        """Return the log density of s at the logarithms of x and 1 - x."""
        a, b = self.a, self.b
        c = a + b
        return a * (log_x - (a / c).log()) + b * (log_y - (b / c).log()) - self.excess

    def _ends(self) -> tuple[Tensor, Tensor]:
        end = torch.full_like(self.a, math.inf)
        return -end, end

    @property
    def _line(self) -> Coordinate:
        # Around where the density is curved, whose width is that of the peak or about 1.
        a, b = (x.detach().clamp_min(1) for x in (self.a, self.b))
        spread = (1 / a + 1 / b).sqrt()
        return DoubleExponential(None, None, (a / b).log(), spread, _ORDER)

    def _find_cuts(self, line: Coordinate, fine: bool = True) -> Tensor:
        edges = torch.stack([line.onto(end) for end in self._ends()])
        return self._cuts_at(line, edges[:0], edges, True)

    def _log_q(self, t: Tensor) -> Tensor:
        return self.log_density(logsigmoid(t), logsigmoid(-t))

    def log_share(self, t: Tensor, upper: Tensor) -> Tensor:
        """Return the logarithm of the mass below, or above, locations, also in far tails."""
        log_share = log_positive(self._share_by_rule(t, upper))
        slope = self.a * torch.sigmoid(-t) - self.b * torch.sigmoid(t)
        outwards = torch.where(upper, slope < 0, slope > 0)
        deep = outwards & (self._log_q(t) < -self.excess - _DEEP)
        if values_are_readable(deep) and not deep.any():
            return log_share
        # The log density falls at least as fast as here.
        length = torch.where(deep, (_TAIL / slope).detach(), 1.0)
        y, rule = (x.reshape(-1, *(1,) * t.dim()) for x in gauss_legendre(_TAIL_ORDER, t))
        t = torch.where(deep, t, 0.0)
        top = self._log_q(t)
        heights = (self._log_q(t - length * (1 + y) / 2) - top).exp()
        tail = top + (length.abs() / 2 * (rule * heights).sum(0)).log()
        return torch.where(deep, tail, log_share)

    @property
    def _log_mass(self) -> Tensor:
        return torch.zeros_like(self.a)


class _Odds(Coordinate):
    """The coordinate of the density of log odds, with that density as its measure.

    Locations that round to an end lose no mass so.
    """

    def __init__(self, odds: _LogOdds, low: Tensor, high: Tensor) -> None:
        self._inner = odds._line
        super().__init__(_ORDER, 1, _ORDER, self._inner.rough)
        self._density, self._low, self._high = odds, low, high

    def onto(self, t: Tensor) -> Tensor:
        return self._inner.onto(_log_odds(t, self._low, self._high))

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        s, slope = self._inner.locations(y)
        return _from_odds(s, self._low, self._high), slope * self._density._log_q(s).exp()


def _log_odds(t: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return log(x/(1 - x)) at locations, large numbers at the ends and beyond."""
    least = torch.finfo(t.dtype).tiny
    return (t - low).clamp_min(least).log() - (high - t).clamp_min(least).log()


def _from_odds(s: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the location from the nearer end."""
    size = (high - low) * torch.sigmoid(torch.where(s < 0, s, -s))  # unlike abs, with a slope at 0
    return torch.where(s < 0, low + size, high - size)
