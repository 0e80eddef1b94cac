"""Base class of univariate symmetric location-scale families, in x = (t - loc)/scale."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

from ..bases import Basis
from ..numerics.quadrature import smooth_unit_rule
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import broadcast_arguments, require, require_integer
from ..supports import Interval, IntervalUnion, RealLine, finite, positive_finite
from .base import StandardizedDistribution
from .summaries import log_positive
from .support_quadrature import covariance_on_support, expect_on_support

__all__ = ["SymmetricDistribution"]


# Minus the log of the tail mass that quadrature leaves out, less than a rounding error.
_LOG_TAIL = {torch.float32: 18.0, torch.float64: 40.0}


class SymmetricDistribution(StandardizedDistribution):
    r"""Symmetric density $p(t) = q(|t - loc|/scale)/scale$.

    A subclass must implement `_standard_log_prob`, and `_edge` if the support is not $[-1, 1]$. The
    other hooks default to quadrature and root finding, which are accurate to rounding if the
    density is smooth inside each half of its support.

    Args:
        loc: Centre (*batch).
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
        StandardizedDistribution.__init__(self, self.loc.shape, validate_args=validate_args)

    @classmethod
    def from_bounds(
        cls, low: Tensor | float, high: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        """Construct from the ends of the support.

        Args:
            low: Lower end (*batch).
            high: Upper end (*batch).
            args: What the class takes after `loc` and `scale`, such as `alpha`.
            options: The same by name, and `validate_args`.

        Raises:
            ValueError: `low` not below `high`, one of them not finite, a class whose support does
                not end, or as for the class.
        """
        low, high = broadcast_arguments(low=low, high=high)
        valid = (low < high) & torch.isfinite(high - low)
        require(valid, "low", "below high, and both finite", {"low": low, "high": high})
        p = cls((low + high) / 2, (high - low) / 2, *args, **options)
        edge = p._edge()
        if isinstance(edge, float) and math.isinf(edge):
            raise ValueError(f"from_bounds must be that of a bounded family, got {cls.__name__}")
        return cls(p.loc, p.scale / edge, *args, **options)

    # Hooks of subclasses, in terms of x

    def _edge(self) -> Tensor | float:
        """Half-width of the support of x; infinite if it is the line."""
        return 1.0

    def _reach(self) -> Tensor | float:
        """Half-width of the interval of x on which quadrature integrates."""
        return self._edge() * (1 - torch.finfo(self.loc.dtype).eps)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        """Distribution function inside the support, relatively accurate in the lower tail."""
        share, weights = (y.reshape(-1, *(1,) * x.dim()) for y in smooth_unit_rule(64, x))
        size = torch.where(x < 0, -x, x)  # unlike abs, it has a slope at 0
        width = (self._reach() - size).clamp_min(0)
        density = torch.exp(self._standard_log_prob(size + width * share))
        tail = width * (weights * density).sum(0)
        return torch.where(x < 0, tail, 1 - tail)

    def _standard_log_cdf(self, x: Tensor) -> Tensor:
        """Logarithm of the distribution function at x <= 0 inside the support."""
        return log_positive(self._standard_cdf(x))

    def _standard_icdf(self, value: Tensor) -> Tensor:
        """Inverse of `_standard_cdf`."""
        lower = torch.where(value <= 0.5, value, 1 - value)
        lowest = -self._reach() * torch.ones_like(lower)

        def excess(x: Tensor) -> Tensor:
            return self._standard_cdf(x) - lower

        x = increasing_root(excess, lowest, torch.zeros_like(lower))
        x = torch.where(lower == 0.5, 0.0, x)
        x = attach_root_gradient(x, excess, lambda x: torch.exp(self._standard_log_prob(x)))
        return torch.where(value <= 0.5, x, -x)

    def _standard_moment(self, order: int) -> Tensor | float:
        """E[x^order] for even order."""
        nodes, weights = self._standard_rule(64)
        return (weights * nodes**order).sum(0) if order else 1.0

    def _standard_entropy(self) -> Tensor | float:
        """Shannon entropy of x."""
        nodes, weights = self._standard_rule(64)
        return -(weights * self._standard_log_prob(nodes)).sum(0)

    def _log_power_integral(self, beta: Tensor | float) -> Tensor | float:
        r"""$\log \int q(x)^\beta dx$."""
        nodes, weights = self._standard_rule(64)
        return torch.log((weights * torch.exp((beta - 1) * self._standard_log_prob(nodes))).sum(0))

    def _standard_sample(self, shape: Size) -> Tensor:
        """Draw x, differentiable in the parameters of q."""
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self._standard_icdf(uniform.clamp_min(torch.finfo(self.loc.dtype).eps / 2))

    # Derived from the hooks

    def _standard_rule(self, order: int) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (2 order, *batch) for E[g(x)], one rule on each half."""
        reach = self._reach() * torch.ones_like(self.loc)
        share, rule = (
            x.reshape(order, *(1,) * self.loc.dim()) for x in smooth_unit_rule(order, self.loc)
        )
        right = reach * share
        weights = reach * rule * torch.exp(self._standard_log_prob(right))
        return torch.cat([-right.flip(0), right]), torch.cat([weights.flip(0), weights])

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = (value - loc)/scale, 0 off the support, and which values are inside."""
        inside = ((value - self.loc) / self.scale).abs() < self._edge()
        # Replaced before the division, whose derivative overflows far away.
        return (torch.where(inside, value, self.loc) - self.loc) / self.scale, inside

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval from loc - edge * scale to loc + edge * scale, or the real line."""
        edge = self._edge()
        if isinstance(edge, float) and math.isinf(edge):
            return RealLine(self.loc)
        half = edge * self.scale
        return Interval(self.loc - half, self.loc + half, self.log_prob)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        return self.scale.square() * self._standard_moment(2)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, relatively accurate in the lower tail."""
        if self._validate_args:
            self._validate_sample(value)
        x, inside = self._standardize(value)
        outside = torch.where(value < self.loc, 0.0, 1.0).to(x.dtype)
        return torch.where(inside, self._standard_cdf(x), outside)

    def _tail(self, value: Tensor, upper: Tensor) -> Tensor:
        x, inside = self._standardize(value)
        outside = ((value < self.loc) == upper).to(x.dtype)
        return torch.where(inside, self._standard_cdf(torch.where(upper, -x, x)), outside)

    def _log_small_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        x, inside = self._standardize(value)
        log_tail = self._standard_log_cdf(torch.where(x < 0, x, -x))
        return torch.where(inside, log_tail, -math.inf)

    def _is_larger(self, value: Tensor, upper: Tensor) -> Tensor:
        return (value > self.loc) ^ upper

    @property
    def median(self) -> Tensor:
        """The centre (*batch)."""
        return self.loc

    def _moment_about(self, n: int, centre: Tensor) -> Tensor:
        # All terms have the same sign.
        offset, total = self.loc - centre, torch.zeros_like(self.loc)
        for k in range(0, n + 1, 2):
            own = self.scale**k * self._standard_moment(k)
            total = total + math.comb(n, k) * offset ** (n - k) * own
        return total

    def _highest_density(self, mass: Tensor) -> IntervalUnion:
        half = -self._standard_icdf((1 - mass) / 2)
        return self._around(half)

    def _highest_density_mass(self, value: Tensor) -> Tensor:
        mass = 1 - 2 * self._standard_cdf(-((value - self.loc) / self.scale).abs())
        return torch.where(self.log_prob(value) == -math.inf, 1.0, mass)

    def _around(self, half: Tensor) -> IntervalUnion:
        """Return the interval of a half-width of x around the centre."""
        ends = self.loc - half * self.scale, self.loc + half * self.scale
        return IntervalUnion(torch.stack(ends, -1).unsqueeze(-2))

    def _central_moment(self, n: int) -> Tensor:
        return torch.zeros_like(self.loc) if n % 2 else self.scale**n * self._standard_moment(n)

    @property
    def skewness(self) -> Tensor:
        """Zero (*batch)."""
        return torch.zeros_like(self.loc)

    @property
    def kurtosis(self) -> Tensor:
        """Excess kurtosis (*batch)."""
        second = self._standard_moment(2) * torch.ones_like(self.loc)
        return self._standard_moment(4) / second.square() - 3

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities in [0, 1].

        Raises:
            ValueError: A probability outside [0, 1].
        """
        if self._validate_args:
            self._validate_probability(value)
        value = value * torch.ones_like(self.loc)
        inside = (value > 0) & (value < 1)
        x = self._standard_icdf(torch.where(inside, value, 0.5))
        # NaN outside [0, 1], where values are not validated.
        sign = (value == 1).to(x.dtype) - (value == 0).to(x.dtype)
        edge = torch.where(sign == 0, math.nan, self._edge() * sign)
        return self.loc + self.scale * torch.where(inside, x, edge)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch), differentiable in every parameter."""
        return self.loc + self.scale * self._standard_sample(self._extended_shape(sample_shape))

    def _log_det(self) -> Tensor:
        return self.scale.log()

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights, both (2 order, *batch), with $\sum_q w_q g(t_q) \to E_p[g]$.

        Gauss-Legendre rules on both halves of the support, after a change of variable that resolves
        the edges.
        """
        require_integer("order", order, 1)
        x, weights = self._standard_rule(order)
        return self.loc + self.scale * x, weights

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if isinstance(psi, Basis) and psi.effective_support is not None:
            pieces = 1 if psi.breaks is None else len(psi.breaks) + 1
            count = self._node_count(order) * pieces * len(psi)
            return self._in_float64(lambda p: expect_on_support(p, psi, order), count)
        return super()._quadrature_expect(psi, order)

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        # Besides the ends and the centre, where it may have a kink, two on each side.
        share = self.loc.new_tensor([-1.0, -0.5519, -0.2371, 0.0, 0.2371, 0.5519, 1.0])
        half = self._reach() * self.scale
        return self.loc.unsqueeze(-1) + half.unsqueeze(-1) * share

    def _breakpoints(self) -> Tensor:
        cuts, edge = self._cuts(), self._edge()
        if isinstance(edge, float) and math.isinf(edge):
            return cuts
        # Ends at which a density jumps are exact.
        half = (edge * self.scale).unsqueeze(-1)
        size, loc = torch.maximum(self.scale, self.loc.abs()), self.loc.unsqueeze(-1)
        near = 8 * torch.finfo(size.dtype).eps * size.unsqueeze(-1)
        for end in (loc - half, loc + half):
            cuts = torch.where((cuts - end).abs() <= near, end, cuts)
        return cuts

    def _node_count(self, order: int) -> int:
        return 2 * order

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        count = self._node_count(80) * len(phi) * len(psi)
        if phi.effective_support is not None and psi.effective_support is not None:
            count = self._node_count(48) * 3 * (len(phi) + len(psi)) ** 2
        return self._in_float64(lambda p: covariance_on_support(p, phi, psi), count)

    def _in_float64(self, rule: Callable[[Self], Tensor], count: int) -> Tensor:
        """Apply a rule to blocks of the batch in float64, see `_in_blocks`."""
        exact = self._with_parameters(self.batch_shape, lambda x, event: x.double())
        return exact._in_blocks(rule, count).to(self.loc.dtype)
