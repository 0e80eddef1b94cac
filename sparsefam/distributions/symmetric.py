"""Base class of univariate symmetric location-scale families, in x = (t - loc)/scale."""

import math
from typing import Any, cast

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

from .._numerics.validation import (
    LARGEST_ORDER,
    broadcast_arguments,
    require,
    require_integer,
)
from ..bases import Basis
from ..supports import Interval, IntervalUnion, RealLine, finite, positive_finite
from ._line.panels import Panels, on_line
from ._line.symmetric import covariance_on_support
from .base import SparseDistribution, StandardizedDistribution
from .univariate import Geometry, Univariate, interval_by_tails

__all__ = ["SymmetricDistribution"]


class SymmetricDistribution(StandardizedDistribution, Univariate):
    r"""Symmetric density $p(t) = q(|t - loc|/scale)/scale$.

    A subclass must implement `generator`, which returns q: a `QuadratureGenerator` needs only its
    logarithm.

    Args:
        loc: Center (*batch).
        scale: Scale (*batch), positive and finite.
        alpha: Entropic index (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.
    """

    arg_constraints = {"loc": finite, "scale": positive_finite}
    scale: Tensor

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.alpha = broadcast_arguments(loc=loc, scale=scale, alpha=alpha)
        SparseDistribution.__init__(self, self.loc.shape, validate_args=validate_args)

    @classmethod
    def from_bounds(
        cls, low: Tensor | float, high: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        """Construct from the ends of the support.

        Args:
            low: Lower end (*batch).
            high: Upper end (*batch).
            args: Arguments of the class after `loc` and `scale`, such as `alpha`.
            options: The same by name, and `validate_args`.

        Raises:
            ValueError: `low` not below `high`, one of them not finite, a class whose support does
                not end, or as for the class.
        """
        low, high = broadcast_arguments(low=low, high=high)
        valid = (low < high) & torch.isfinite(high - low)
        require(valid, "low", "below high, and both finite", {"low": low, "high": high})
        # The edge of the support, in units of the scale, may depend on the other arguments.
        p = cls((low + high) / 2, (high - low) / 2, *args, **options)
        edge = p.generator.edge
        if isinstance(edge, float) and math.isinf(edge):
            raise ValueError(f"from_bounds must be that of a bounded family, got {cls.__name__}")
        return cls(p.loc, p.scale / edge, *args, **options)

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = (value - loc)/scale, 0 off the support, and which values are inside."""
        inside = ((value - self.loc) / self.scale).abs() < self.generator.edge
        # Replaced before the division, whose derivative overflows far away.
        return (torch.where(inside, value, self.loc) - self.loc) / self.scale, inside

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval from loc - edge * scale to loc + edge * scale, or the real line."""
        edge = self.generator.edge
        if isinstance(edge, float) and math.isinf(edge):
            return RealLine(self.loc)
        half = edge * self.scale
        return Interval(self.loc - half, self.loc + half, self.log_prob)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        return self.scale.square() * self.generator.moment(2)

    def geometry(self) -> Geometry:
        """Return the ends of the support, and the center and the ends as breakpoints."""
        cuts, edge = self._cuts(), self.generator.edge
        if isinstance(edge, float) and math.isinf(edge):
            return Geometry(None, None, cuts)
        # Cuts may lie a few rounding errors inside; ends at which a density jumps must be exact, so
        # that cuts near an end are replaced by it.
        low, high = self.loc - edge * self.scale, self.loc + edge * self.scale
        size = torch.maximum(self.scale, self.loc.abs())
        near = 8 * torch.finfo(size.dtype).eps * size.unsqueeze(-1)
        for end in (low.unsqueeze(-1), high.unsqueeze(-1)):
            cuts = torch.where((cuts - end).abs() <= near, end, cuts)
        return Geometry(low, high, cuts)

    @property
    def _panels(self) -> Panels:
        return on_line(self.log_prob, self._cuts(), self._ends())

    def cdf(self, value: Tensor) -> Tensor:
        """Return the mass below `value`, relatively accurate in the lower tail."""
        # In fewer operations than `_tail`, which selects a side.
        self._check_value(value)
        x, inside = self._standardize(value)
        outside = torch.where(value < self.loc, 0.0, 1.0).to(x.dtype)
        return torch.where(inside, self.generator.cdf(x), outside)

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return tails by the distribution function of q, at -x for the upper ones."""
        x, inside = self._standardize(value)
        x = torch.where(upper, -x, x)
        if log:
            return torch.where(inside, self.generator.log_cdf(x), -math.inf)
        outside = ((value < self.loc) == upper).to(x.dtype)
        return torch.where(inside, self.generator.cdf(x), outside)

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        return interval_by_tails(self, a, b, log)

    def _is_larger(self, value: Tensor, upper: Tensor) -> Tensor:
        return (value > self.loc) ^ upper

    @property
    def median(self) -> Tensor:
        """The center (*batch)."""
        return self.loc

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        """Return E[(t - center)^n] (*batch)."""
        # By the binomial theorem for t - center = (loc - center) + scale x. Odd moments of x
        # are 0: all terms have the same sign, and none cancel.
        offset, total = self.loc - center, torch.zeros_like(self.loc)
        for k in range(0, n + 1, 2):
            even_moment = self.scale**k * self.generator.moment(k)
            total = total + math.comb(n, k) * offset ** (n - k) * even_moment
        return total

    def _central_moment(self, n: int, standardized: bool = False) -> Tensor:
        if n % 2:
            return torch.zeros_like(self.loc)
        moment = self.generator.moment(n)
        if not standardized:
            return self.scale**n * moment
        second = self.generator.moment(2) * torch.ones_like(self.loc)
        return moment / second ** (n / 2)

    # A uniform density, the map at alpha = inf, has one level, whose set is the support.

    def highest_density(self, mass: Tensor | float) -> IntervalUnion:
        q, mass = self.generator, self._checked_mass(mass)
        half = torch.where(self.alpha.isinf(), q.edge, -q.icdf((1 - mass) / 2))
        ends = self.loc - half * self.scale, self.loc + half * self.scale
        return IntervalUnion(torch.stack(ends, -1).unsqueeze(-2))

    @torch.no_grad()
    def highest_density_mass(self, value: Tensor) -> Tensor:
        outside = self.log_prob(value) == -math.inf
        mass = 1 - 2 * self.generator.cdf(-((value - self.loc) / self.scale).abs())
        return torch.where(outside | self.alpha.isinf(), 1.0, mass).to(self.loc.dtype)

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities (..., *batch), NaN for numbers outside [0, 1]."""
        value = value * torch.ones_like(self.loc)
        inside = (value > 0) & (value < 1)
        x = self.generator.icdf(torch.where(inside, value, 0.5))
        # The ends are the quantiles of 0 and 1.
        sign = (value == 1).to(x.dtype) - (value == 0).to(x.dtype)
        edge = torch.where(sign == 0, math.nan, self.generator.edge * sign)
        return self.loc + self.scale * torch.where(inside, x, edge)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch), differentiable in every parameter."""
        return self.loc + self.scale * self.generator.sample(self._extended_shape(sample_shape))

    def _log_det(self) -> Tensor:
        return self.scale.log()

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights, both (2 order, *batch), with $\sum_q w_q g(t_q) \to E_p[g]$.

        Gauss-Legendre rules on both halves of the support, after a change of variable that resolves
        the edges.
        """
        require_integer("order", order, 1, LARGEST_ORDER)
        x, weights = self.generator.rule(order)
        return self.loc + self.scale * x, weights

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        q = self.generator
        half = (q.reach() * self.scale).unsqueeze(-1)
        return self.loc.unsqueeze(-1) + half * self.loc.new_tensor(q.cuts)

    def _breakpoints(self) -> Tensor:
        return cast(Tensor, self.geometry().breakpoints)

    def _node_count(self, order: int) -> int:
        return 2 * order

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        # Numbers in memory for each density, roughly: pairs of functions at 80 nodes on each half;
        # or, if all functions are local, functions at two rules of 48 nodes on every piece, of
        # which each function makes three.
        count = self._node_count(80) * len(phi) * len(psi)
        if phi.effective_support is not None and psi.effective_support is not None:
            count = self._node_count(48) * 3 * (len(phi) + len(psi)) ** 2
        return self._in_float64(lambda p: covariance_on_support(p, phi, psi), count)
