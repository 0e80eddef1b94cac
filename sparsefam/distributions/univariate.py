"""Base class of symmetric location-scale families on the line, in x = (t - loc)/scale."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis
from ..numerics.quadrature import smooth_unit_rule
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import broadcast_arguments, require, require_integer
from ..supports import Interval, RealLine, finite, positive_finite
from .base import StandardizedDistribution
from .support_quadrature import covariance_by_windows, expect_by_windows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SymmetricDistribution"]


# Minus the log of the mass that quadrature leaves out in infinite or negligible tails: e^-18 and
# e^-40 are below one rounding error.
_LOG_TAIL = {torch.float32: 18.0, torch.float64: 40.0}


class SymmetricDistribution(StandardizedDistribution):
    r"""$p(t) = q(|t - loc|/scale)/scale$: subclasses give $\log q$ and what is closed about it.

    A subclass must implement `_standard_log_prob` (and `_edge` if the support is not $[-1, 1]$);
    the other hooks have defaults by quadrature and root finding, exact to rounding for densities
    smooth inside each half of their support.

    Args:
        loc: Centre (*batch).
        scale: Scale (*batch), positive and finite.
        alpha: Entropic index (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.
    """

    arg_constraints = {"loc": finite, "scale": positive_finite}
    loc: Tensor
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
        torch.distributions.Distribution.__init__(self, self.loc.shape, validate_args=validate_args)

    # Hooks of subclasses, in terms of x.

    def _edge(self) -> Tensor | float:
        """Half-width of the support of x; infinite if it is the line."""
        return 1.0

    def _reach(self) -> Tensor | float:
        """Half-width of the truncated domain of quadrature, which leaves out one rounding error."""
        return self._edge() * (1 - torch.finfo(self.loc.dtype).eps)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        """Return the cdf of x inside the support, relatively accurate in the lower tail."""
        share, weights = (y.reshape(-1, *(1,) * x.dim()) for y in smooth_unit_rule(64, x))
        size = torch.where(x < 0, -x, x)  # unlike abs, it has a slope at 0
        width = (self._reach() - size).clamp_min(0)
        density = torch.exp(self._standard_log_prob(size + width * share))
        tail = width * (weights * density).sum(0)
        return torch.where(x < 0, tail, 1 - tail)

    def _standard_icdf(self, value: Tensor) -> Tensor:
        """Inverse of `_standard_cdf`."""
        lower = torch.where(value <= 0.5, value, 1 - value)
        lowest = -self._reach() * torch.ones_like(lower)
        x = increasing_root(
            lambda x: self._standard_cdf(x) - lower, lowest, torch.zeros_like(lower)
        )
        x = attach_root_gradient(
            torch.where(lower == 0.5, 0.0, x),
            lambda x: self._standard_cdf(x) - lower,
            lambda x: torch.exp(self._standard_log_prob(x)),
        )
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
        """Draws of x, reparameterised in the parameters of its law."""
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self._standard_icdf(uniform.clamp_min(torch.finfo(self.loc.dtype).eps / 2))

    # Derived from the hooks.

    def _standard_rule(self, order: int) -> tuple[Tensor, Tensor]:
        """Quadrature nodes and weights (2 order, *batch) for E[g(x)], one rule on each half."""
        reach = self._reach() * torch.ones_like(self.loc)
        share, rule = (
            x.reshape(order, *(1,) * self.loc.dim()) for x in smooth_unit_rule(order, self.loc)
        )
        right = reach * share
        weights = reach * rule * torch.exp(self._standard_log_prob(right))
        return torch.cat([-right.flip(0), right]), torch.cat([weights.flip(0), weights])

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = (value - loc)/scale, 0 off the support, and whether it is in the support."""
        inside = ((value - self.loc) / self.scale).abs() < self._edge()
        # Replaced before the division, whose derivative overflows far away.
        return (torch.where(inside, value, self.loc) - self.loc) / self.scale, inside

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval loc -+ half-width, or the line."""
        edge = self._edge()
        if isinstance(edge, float) and math.isinf(edge):
            return RealLine(self.loc)
        half = edge * self.scale
        return Interval(self.loc - half, self.loc + half)

    @property
    def mean(self) -> Tensor:
        """The centre."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The centre."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        return self.scale.square() * self._standard_moment(2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; -inf with zero gradient off the support."""
        if self._validate_args:
            self._validate_sample(value)
        x, inside = self._standardize(value)
        density = self._standard_log_prob(x) - self.scale.log()
        return torch.where(inside, density, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function; the lower tail keeps its relative accuracy."""
        if self._validate_args:
            self._validate_sample(value)
        x, inside = self._standardize(value)
        outside = torch.where(value < self.loc, 0.0, 1.0).to(x.dtype)
        return torch.where(inside, self._standard_cdf(x), outside)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function of probabilities in [0, 1].

        Raises:
            ValueError: A probability outside [0, 1].
        """
        if self._validate_args:
            self._validate_sample(value)
            require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
        value = value * torch.ones_like(self.loc)
        inside = (value > 0) & (value < 1)
        x = self._standard_icdf(torch.where(inside, value, 0.5))
        # Not NaN where it is not used: the gradient of the edge would be NaN, too.
        sign = (value == 1).to(x.dtype) - (value == 0).to(x.dtype)
        edge = torch.where(sign == 0, math.nan, self._edge() * sign)
        return self.loc + self.scale * torch.where(inside, x, edge)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch), differentiable in every parameter."""
        return self.loc + self.scale * self._standard_sample(self._extended_shape(sample_shape))

    def _log_det(self) -> Tensor:
        return self.scale.log()

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights, both (2 order, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        Gauss-Legendre on each half of the support after a change of variable that absorbs what
        the density does at its edges.
        """
        require_integer("order", order, 1)
        x, weights = self._standard_rule(order)
        return self.loc + self.scale * x, weights

    def _quadrature_expect(self, psi: "Basis | Callable[[Tensor], Tensor]", order: int) -> Tensor:
        if isinstance(psi, Basis) and psi.effective_support is not None:
            pieces = 1 if psi.breaks is None else len(psi.breaks) + 1
            count = self._node_count(order) * pieces * len(psi)
            return self._in_blocks(lambda p: expect_by_windows(p, psi, order), count)
        return super()._quadrature_expect(psi, order)

    def _node_count(self, order: int) -> int:
        return 2 * order

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        count = self._node_count(80) * len(phi) * len(psi)
        return self._in_blocks(lambda p: covariance_by_windows(p, phi, psi), count)
