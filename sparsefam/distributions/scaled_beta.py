"""Beta densities on fixed intervals, by their mean."""

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint
from torch.nn.functional import logsigmoid

from .._numerics.special import digamma_excess, stirling_excess
from .._numerics.validation import broadcast_arguments, require
from ..supports import finite, positive_finite
from ._line.coordinates import DoubleExponential
from ._line.panels import Panels, clamp
from .base import SparseDistribution
from .univariate import Geometry, Univariate

__all__ = ["ScaledBeta"]

# Nodes between two cuts.
_ORDER = 24


class ScaledBeta(Univariate):
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
        SparseDistribution.__init__(self, self.mean.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
            inside = (self.low < self.mean) & (self.mean < self.high)
            rule = "strictly between low and high"
            require(inside, "mean", rule, (self.mean, self.low, self.high))

    def geometry(self) -> Geometry:
        """Return the ends, without breakpoints."""
        return Geometry(self.low, self.high)

    @property
    def _odds(self) -> "_LogOdds":
        """The density of log(x/(1 - x))."""
        (low, high), mean = self._ends(), self.mean.double()
        rate = self.concentration.double() / (high - low)
        return _LogOdds(rate * (mean - low), rate * (high - mean))

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
        fraction = torch.where(inner, a, 1.0) / torch.where(inner, a + b, 2.0)
        mode = torch.where(a > b, high, low)
        mode = torch.where((a == 0) & (b == 0), self.mean, mode)
        return torch.where(inner, low + (high - low) * fraction, mode).to(self._like.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        self._check_value(value)
        odds, (low, high) = self._odds, self._ends()
        width = high - low
        inside = (low < value) & (value < high)
        t = torch.where(inside, value.double(), self.mean.double())
        log_x, log_y = ((t - low) / width).log(), ((high - t) / width).log()
        log_p = odds.log_density(log_x, log_y) - log_x - log_y - width.log()
        # At an end the log density is infinite, unless the exponent there, a - 1 or b - 1, is 0.
        for end, a, b in ((low, odds.a, odds.b), (high, odds.b, odds.a)):
            log_end = torch.where(a > 1, -math.inf, math.inf)
            log_end = torch.where(a == 1, b.detach().log() - width.log(), log_end)
            log_p = torch.where(value == end, log_end, log_p)
        log_p = torch.where((low <= value) & (value <= high), log_p, -math.inf)
        return log_p.to(torch.promote_types(self._like.dtype, value.dtype))

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        odds, (low, high) = self._odds, self._ends()
        a, b = odds.a, odds.b
        # log B(a, b) - (a - 1) psi(a) - (b - 1) psi(b) + (a + b - 2) psi(a + b) + log(high - low).
        # At high concentrations its terms are large and cancel; excesses over log do not.
        entropy = odds.excess + (a / (a + b)).log() + (b / (a + b)).log() + (high - low).log()
        terms = (a - 1) * digamma_excess(a) + (b - 1) * digamma_excess(b)
        entropy = entropy - terms + (a + b - 2) * digamma_excess(a + b)
        return entropy.to(self._like.dtype)

    def _kl_on_same_interval(self, q: "ScaledBeta") -> Tensor:
        """Return the divergence KL(self || q) (*batch) from a density between the same ends.

        It is log B(q) - log B(self) plus the sum over both exponents of (a - a')(psi(a) - psi(c)),
        where q has the exponent a' in place of a, and c is the sum of both exponents a.
        """
        odds, odds_q = self._odds, q._odds
        c, c_q = odds.a + odds.b, odds_q.a + odds_q.b
        # By excesses over log, as in `entropy`.
        excess_c = digamma_excess(c)
        total = odds_q.excess - odds.excess
        for a, a_q in ((odds.a, odds_q.a), (odds.b, odds_q.b)):
            ratio = a_q / c_q / (a / c)
            total = total + a_q * ratio.log() + (a - a_q) * (digamma_excess(a) - excess_c)
        return total.to(self._like.dtype)

    @property
    def _panels(self) -> Panels:
        """The density on subintervals in terms of log odds, on the line."""
        odds, ends = self._odds, self._ends()
        # The log odds have about the variance 1/a + 1/b if a and b are large. For small ones the
        # log density is curved on a width of about 1.
        a, b = (x.detach().clamp_min(1) for x in (odds.a, odds.b))
        spread = (1 / a + 1 / b).sqrt()
        line = DoubleExponential(None, None, (a / b).log(), spread, _ORDER)
        edges = torch.stack([-line.limit, line.limit])
        return Panels(odds.log_prob, line, ends, edges=edges, chart=_Chart(*ends))

    def _rounded(self, t: Tensor) -> Tensor:
        """Return locations in the type of the parameters, strictly between the ends."""
        t, low, high = t.to(self._like.dtype), self.low.detach(), self.high.detach()
        inner = clamp(t.detach(), low.nextafter(high), high.nextafter(low))
        return inner + (t - t.detach())


class _LogOdds:
    """The density of s = log(x/(1 - x)) for x of a Beta(a, b): smooth, with exponential tails.

    Args:
        a: First parameter of the beta density (*batch), in float64.
        b: Second parameter (*batch), in float64.

    Attributes:
        excess: log B(a, b), less the largest value of a log x + b log(1 - x), (*batch).
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        # From lgamma less its large terms, which would cancel.
        self.excess = stirling_excess(a) + stirling_excess(b) - stirling_excess(a + b)

    def log_density(self, log_x: Tensor, log_y: Tensor) -> Tensor:
        """Return the log density of s from log_x = log x and log_y = log(1 - x)."""
        a, b = self.a, self.b
        c = a + b
        return a * (log_x - (a / c).log()) + b * (log_y - (b / c).log()) - self.excess

    def log_prob(self, s: Tensor) -> Tensor:
        """Return the log density at s."""
        return self.log_density(logsigmoid(s), logsigmoid(-s))


class _Chart(NamedTuple):
    """Locations between two ends by their log odds: those near an end do not round to it."""

    low: Tensor
    high: Tensor

    def onto(self, t: Tensor) -> Tensor:
        """Return log(x/(1 - x)) at locations, large numbers at the ends and beyond."""
        least = torch.finfo(t.dtype).tiny
        return (t - self.low).clamp_min(least).log() - (self.high - t).clamp_min(least).log()

    def back(self, s: Tensor) -> Tensor:
        """Return the location from the nearer end."""
        # -|s|, but with a slope at 0.
        size = (self.high - self.low) * torch.sigmoid(torch.where(s < 0, s, -s))
        return torch.where(s < 0, self.low + size, self.high - size)
