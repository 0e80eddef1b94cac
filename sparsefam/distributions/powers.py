r"""Powers of a clipped $1 - |x|^k$: beta-Gaussians (k = 2) and beta-Laplacians (k = 1)."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.arguments import broadcast_arguments, require
from ..numerics.interval import Profile
from ..numerics.special import digamma_difference, log_gamma_ratio
from ..supports import finite, positive_finite
from .symmetric import _LOG_TAIL, SymmetricDistribution

__all__ = ["PowerDistribution", "SparsemaxMember"]

# The largest integer exponent whose closed form keeps float32's digits (numerics.interval).
_LARGEST_CLOSED = 3


class PowerDistribution(SymmetricDistribution):
    r"""Prediction map of the score $-|t-\mu|^k/(k\sigma^k)$ at any alpha, $m = 1/(\alpha - 1)$.

    $$q(x) = C\,(1 - |x|^k)_+^m, \qquad
    C = \frac{k\,\Gamma(m + 1 + 1/k)}{2\,\Gamma(1/k)\,\Gamma(m + 1)}, \qquad
    s^{km+1} = C\,(km)^m\,\sigma^{km}, \qquad |x|^k \sim \mathrm{Beta}(1/k,\, m + 1)$$

    Closed under escorts: exponent $m\beta$ on the same support.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
        "alpha": constraints.greater_than(1.0),
    }
    _order: ClassVar[int]
    _fixed_exponent: float | None

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._fixed_exponent = _exponent_of(alpha)
        super().__init__(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def _member(
        cls,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        """An instance; classes of one fixed alpha leave it out of their constructor."""
        return cls(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def _from_score_scale(
        cls,
        name: str,
        loc: Tensor | float,
        width: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        loc, width, alpha_ = broadcast_arguments(**{"loc": loc, name: width, "alpha": alpha})
        require(torch.isfinite(width) & (width > 0), name, "positive and finite", width)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        m, km = _exponent(alpha, alpha_), cls._order * _exponent(alpha, alpha_)
        log_c = _log_constant(cls._order, _exponent_of(alpha), m)
        log_scale = (log_c + torch.xlogy(m, _positive(km)) + km * width.log()) / (km + 1)
        return cls._member(loc, log_scale.exp(), alpha, validate_args)

    @classmethod
    def _from_moments(
        cls,
        mean: Tensor | float,
        variance: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        mean, variance, alpha_ = broadcast_arguments(mean=mean, variance=variance, alpha=alpha)
        valid = torch.isfinite(variance) & (variance > 0)
        require(valid, "variance", "positive and finite", variance)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        unit = _moment(cls._order, _exponent(alpha, alpha_), 2)
        return cls._member(mean, (variance / unit).sqrt(), alpha, validate_args)

    def _score_scale(self) -> Tensor:
        """The inverse of `_from_score_scale`."""
        m = _positive(self._exponent)
        km = self._order * m
        log_width = (
            (km + 1) * self.scale.log() - self._log_constant()
        ) / km - km.log() / self._order
        return log_width.exp()

    @property
    def _exponent(self) -> Tensor:
        """m = 1/(alpha - 1), (*batch)."""
        if self._fixed_exponent is None:
            return 1 / (self.alpha - 1)
        return torch.full_like(self.loc, self._fixed_exponent)

    def _log_constant(self) -> Tensor:
        return _log_constant(self._order, self._fixed_exponent, self._exponent)

    def _reach(self) -> Tensor:
        tail = _LOG_TAIL.get(self.loc.dtype, 40.0)
        share = -torch.expm1(-tail / _positive(self._exponent.detach()))
        return (share ** (1 / self._order)).clamp(max=1 - torch.finfo(share.dtype).eps)

    def _standard_log_prob(self, x: Tensor) -> Tensor:
        return self._log_constant() + self._exponent * torch.log1p(-(x.abs() ** self._order))

    def _standard_moment(self, order: int) -> Tensor:
        return _moment(self._order, self._exponent, order)

    def _standard_entropy(self) -> Tensor:
        m = self._exponent
        return m * digamma_difference(m + 1, 1 / self._order) - self._log_constant()

    def _log_power_integral(self, beta: Tensor | float) -> Tensor:
        power = self._exponent * beta
        return beta * self._log_constant() - _log_constant(self._order, None, power)

    def _log_mean_power(self) -> Tensor:
        # E[(p/p(loc))^(alpha - 1)] = 1 - E|x|^k.
        m, k = self._exponent, self._order
        peak = self._log_constant() - self.scale.log()
        return peak + m * torch.log1p(-1 / (1 + k * (m + 1)))

    def _escort_alpha(self, beta: Tensor | float | None) -> Tensor | float:
        """Entropic index of the member with exponent m beta; a number where both are."""
        rule = "such that the escort's exponent beta/(alpha - 1) is at least 0"
        m = self._fixed_exponent
        if m is not None and not isinstance(beta, Tensor):
            # m (2 - alpha) = m - 1, without the rounding of alpha.
            fixed = m - 1 if beta is None else m * beta
            if fixed < 0:
                raise ValueError(f"beta must be {rule}, got an exponent of {fixed}")
            return math.inf if fixed == 0 else 1 + 1 / fixed
        power = self._exponent - 1 if beta is None else self._exponent * beta
        require(power >= 0, "beta", rule, 2 - self.alpha if beta is None else beta)
        return torch.where(power > 0, 1 + 1 / _positive(power), math.inf)

    def profile(self) -> Profile | None:
        """The standard density as a piecewise polynomial, if it is one of low degree."""
        m = self._fixed_exponent
        if m is None or m > _LARGEST_CLOSED or m != int(m):
            return None
        return _profile(self._order, int(m))


class SparsemaxMember(PowerDistribution):
    """The member at alpha = 2, which its constructor then does not ask for."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
    }

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)

    @classmethod
    def _member(
        cls,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        return cls(loc, scale, validate_args=validate_args)


def _exponent_of(alpha: Tensor | float) -> float | None:
    """m = 1/(alpha - 1) of a number above 1, an exact integer where rounding hides one."""
    if isinstance(alpha, Tensor) or not alpha > 1:
        return None
    m = 1 / (alpha - 1)
    return float(round(m)) if abs(m - round(m)) <= 1e-12 * m else m


def _exponent(alpha: Tensor | float, broadcast: Tensor) -> Tensor:
    m = _exponent_of(alpha)
    return 1 / (broadcast - 1) if m is None else torch.full_like(broadcast, m)


def _positive(m: Tensor) -> Tensor:
    """m kept off zero, where alpha = inf would make 0/0 of what has a limit."""
    return m.clamp_min(1e-30)


def _log_constant(order: int, fixed: float | None, m: Tensor) -> Tensor:
    """log C: once and in float64 for a number, else differentiable in m."""
    inverse = 1 / order
    front = math.log(order / 2) - math.lgamma(inverse)
    if fixed is not None:
        return torch.full_like(m, _log_gamma_ratio(fixed + 1, inverse) + front)
    return log_gamma_ratio(m + 1, inverse) + front


def _log_gamma_ratio(x: float, delta: float) -> float:
    """lgamma(x + delta) - lgamma(x) of a number, where the difference would lose digits too."""
    if x < 1e4:
        return math.lgamma(x + delta) - math.lgamma(x)
    slope = delta * (delta - 1) / (2 * x)
    return delta * math.log(x) + slope * (1 - (2 * delta - 1) / (6 * x))


def _moment(order: int, m: Tensor, power: int) -> Tensor:
    """E|x|^power for even power: E (|x|^k)^(power/k), a ratio of rising factorials."""
    total = torch.ones_like(m)
    for j in range(power // order):
        total = total * (1 / order + j) / (1 / order + m + 1 + j)
    return total


def _profile(order: int, m: int) -> Profile:
    inverse = 1 / order
    constant = order * math.gamma(m + 1 + inverse) / (2 * math.gamma(inverse) * math.gamma(m + 1))
    coefficients = [0.0] * (order * m + 1)
    for j in range(m + 1):
        coefficients[order * j] = constant * math.comb(m, j) * (-1) ** j
    return Profile(tuple(coefficients))
