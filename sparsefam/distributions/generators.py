"""Generators: standard densities of |x| in D dimensions, which families move and scale."""

import math
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from typing_extensions import Self

from ..numerics.special import digamma_difference, log_ball_tail, log_gamma_ratio
from ..numerics.validation import require, require_power
from .base import StandardizedDistribution

__all__ = ["ExponentialPower", "TruncatedPower", "alpha_of", "exponent_of", "positive"]


class TruncatedPower(StandardizedDistribution):
    r"""$q(x) = C\,(1 - |x|^k)_+^m$ in D dimensions, with $m = 1/(\alpha - 1)$.

    $$C = \frac{k\,\Gamma(D/2)}{2 \pi^{D/2}\,\Gamma(a)}\,\frac{\Gamma(m + 1 + a)}{\Gamma(m + 1)},
    \qquad |x|^k \sim \mathrm{Beta}(a, m + 1), \quad a = D/k$$

    It is the prediction map of a score $-|x|^k/k$ and closed under escorts, which have the exponent
    $m\beta$ and the same support.
    """

    # k, and m if alpha is a number.
    _order: ClassVar[int]
    _fixed_exponent: float | None

    @property
    def _dim(self) -> int:
        return self.event_shape.numel()

    @property
    def _exponent(self) -> Tensor:
        """m = 1/(alpha - 1), (*batch)."""
        if self._fixed_exponent is None:
            return 1 / (self.alpha - 1)
        return torch.full_like(self.alpha, self._fixed_exponent)

    def _log_constant(self) -> Tensor:
        """Return log C: in float64 if m is a number, else differentiable in m."""
        a, m = self._dim / self._order, self._fixed_exponent
        if m is None:
            return log_gamma_ratio(self._exponent + 1, a) + self._log_factor()
        return torch.full_like(self.alpha, _log_gamma_ratio(m + 1, a) + self._log_factor())

    def _log_factor(self) -> float:
        """Return the part of log C that does not depend on m."""
        k, dim = self._order, self._dim
        log_gamma = math.lgamma(dim / 2) - math.lgamma(dim / k)
        return math.log(k / 2) + log_gamma - 0.5 * dim * math.log(math.pi)

    def _log_density(self, power: Tensor) -> Tensor:
        r"""$\log C + m \log(1 - |x|^k)$ from $|x|^k$."""
        return self._log_constant() + self._exponent * torch.log1p(-power)

    def _standard_entropy(self) -> Tensor:
        m = self._exponent
        return m * digamma_difference(m + 1, self._dim / self._order) - self._log_constant()

    def _log_power_integral(self, beta: Tensor | float) -> Tensor:
        power = self._exponent * beta
        log_constant = log_gamma_ratio(power + 1, self._dim / self._order) + self._log_factor()
        return beta * self._log_constant() - log_constant

    def _log_mean_power(self) -> Tensor:
        # E[(q/C)^(alpha - 1)] = 1 - E|x|^k.
        m = self._exponent
        return self._log_constant() + m * torch.log1p(-1 / (1 + (m + 1) * self._order / self._dim))

    @classmethod
    def _unvalidated(cls, *args: Any, **options: Any) -> Self:
        """Construct with a check of alpha only."""
        p = cls(*args, **{**options, "validate_args": False})
        require(p.alpha > 1, "alpha", "greater than 1", p.alpha)
        return p

    def _radius(self) -> Tensor:
        """Return the half-width of the prediction map, divided by the score's scale.

        `self` has the scale of the score.
        """
        m, km = self._exponent, self._order * self._exponent
        log_c = self._log_constant() + torch.xlogy(m, positive(km))
        return torch.exp((log_c - self._log_det()) / (km + self._dim))

    def _inverse_radius(self) -> Tensor:
        """Return the scale of the score, divided by the half-width."""
        km = self._order * positive(self._exponent)
        log_radius = (self._log_constant() - self._log_det()) / km + km.log() / self._order
        return torch.exp(-log_radius)

    def _escort_alpha(self, beta: Tensor | float | None) -> Tensor | float:
        """Return the alpha of the member with exponent m beta, a number if both are numbers."""
        require_power(beta)
        rule = "such that the escort's exponent beta/(alpha - 1) is at least 0"
        m = self._fixed_exponent
        if m is not None and not isinstance(beta, Tensor):
            # m (2 - alpha) = m - 1, without the rounding of alpha.
            fixed = m - 1 if beta is None else m * beta
            if fixed < 0:
                raise ValueError(f"beta must be {rule}, got an exponent of {fixed}")
            return alpha_of(fixed)
        power = self._exponent - 1 if beta is None else self._exponent * beta
        require(power >= 0, "beta", rule, 2 - self.alpha if beta is None else beta)
        return torch.where(power > 0, 1 + 1 / positive(power), math.inf)

    def _sample_ball(self, shape: Size) -> Tensor:
        r"""Draw x (*shape, D) for k = 2, differentiable in alpha by implicit reparameterisation.

        References:
            Figurnov et al. (2018), Implicit Reparameterization Gradients. arXiv:1805.08498
        """
        dtype, device = self.alpha.dtype, self.alpha.device
        with torch.no_grad():
            z = torch.randn(*shape, self._dim, dtype=dtype, device=device)
            # |x|^2 ~ Beta(D/2, m + 1) is a ratio of gamma variables, kept off the edge.
            squares = z.square().sum(-1)
            gamma = 2 * torch._standard_gamma((self._exponent + 1).expand(shape))
            gamma = torch.maximum(gamma, 4 * torch.finfo(dtype).eps * squares)
            x = z * torch.rsqrt(squares + gamma).unsqueeze(-1)
        if self.alpha.requires_grad and torch.is_grad_enabled():
            radius = (squares / (squares + gamma)).sqrt().clamp_min(torch.finfo(dtype).tiny)
            moved = self._radius_of_tail(radius)
            x = x * (moved / radius).unsqueeze(-1)
        return x

    def _log_ball_tail(self, radius: Tensor) -> Tensor:
        """Return log P(|x| > radius) for k = 2."""
        m = self._exponent
        if self._fixed_exponent is not None:
            m = torch.full((), self._fixed_exponent, dtype=m.dtype, device=m.device)
        return log_ball_tail(radius, m, self._dim)

    def _radius_of_tail(self, radius: Tensor, log_tail: Tensor | None = None) -> Tensor:
        """Improve a radius at which log P(|x| > radius) is `log_tail`, for k = 2.

        The default is the tail of the radius itself. One step of fourth order, by the derivatives
        of the logarithm; the result has the first two derivatives of the solution in alpha and
        `log_tail`.
        """
        edge = 1 - torch.finfo(radius.dtype).eps / 2
        radius = radius.detach().clamp(max=edge)
        side, m, dim = (1 - radius) * (1 + radius), self._exponent, self._dim
        found = self._log_ball_tail(radius)
        log_surface = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)
        log_density = self._log_density(radius.square()) + log_surface
        if dim > 1:
            log_density = log_density + (dim - 1) * radius.log()
        hazard = torch.exp(log_density - found)
        step = (found - (found.detach() if log_tail is None else log_tail)) / hazard
        # Derivatives of the log density in -radius, and from them the ratios of the second and
        # third derivative of `found` to the first.
        rise, bend = 2 * m * radius / side, -2 * m * (1 + radius.square()) / side.square()
        if dim > 1:
            rise, bend = rise - (dim - 1) / radius, bend - (dim - 1) / radius.square()
        second = rise - hazard
        third = second.square() / 3 - (bend - hazard * second) / 6
        moved = radius + step * (1 + step * (second / 2 + step * third))
        return moved + (moved.detach().clamp(max=edge) - moved.detach())


def exponent_of(alpha: Tensor | float) -> float | None:
    """Return m = 1/(alpha - 1) of a number above 1, an integer if it is one up to rounding."""
    if not isinstance(alpha, Real) or not alpha > 1:
        return None
    m = 1 / (alpha - 1)
    return float(round(m)) if abs(m - round(m)) <= 1e-12 * m else m


def alpha_of(m: float) -> float:
    """Return the alpha of an exponent, the inverse of `exponent_of`."""
    return math.inf if m == 0 else 1 + 1 / m


def positive(m: Tensor) -> Tensor:
    """Keep an exponent off zero, where alpha = inf would make 0/0 of a quantity with a limit."""
    return m.clamp_min(1e-30)


def _log_gamma_ratio(x: float, delta: float) -> float:
    """Return lgamma(x + delta) - lgamma(x) of numbers, by Stirling's series for large x."""
    if x < 1e4:
        return math.lgamma(x + delta) - math.lgamma(x)
    stirling = delta * math.log(x) + (x + delta - 0.5) * math.log1p(delta / x) - delta
    return stirling + (1 / (x + delta) - 1 / x) / 12


class ExponentialPower(StandardizedDistribution):
    r"""$q \propto e^{-|x|^k/k}$ in D dimensions, the prediction maps at $\alpha = 1$.

    The escort multiplies the scale by $\beta^{-1/k}$.
    """

    _order: ClassVar[int]

    def _log_power_integral(self, beta: Tensor | float) -> Tensor:
        power = beta * torch.ones_like(self.alpha)
        peak = self._standard_log_prob(torch.zeros_like(self.alpha))
        return (power - 1) * peak - power.log() * self.event_shape.numel() / self._order

    def _log_mean_power(self) -> Tensor | float:
        return -self._standard_entropy()

    def _escort_factor(self, beta: Tensor | float | None) -> Tensor:
        """Return what the escort multiplies the scale by, or raise if `beta` is not positive."""
        require_power(beta)
        power = torch.as_tensor(
            1.0 if beta is None else beta, dtype=self.alpha.dtype, device=self.alpha.device
        )
        require(power > 0, "beta", "positive for a density of unbounded support", power)
        return power ** (-1 / self._order)
