r"""Beta-Gaussians: truncated powers of a parabola, the sparse counterparts of the normal."""

import math
from numbers import Real
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.gaussian_interval import Profile
from ..numerics.roots import attach_root_gradient
from ..numerics.special import betaincc, digamma_difference, log_gamma_ratio
from ..numerics.validation import broadcast_arguments, require, require_power
from ..scores import Quadratic
from ..supports import finite, positive_finite
from .base import StandardizedDistribution
from .univariate import _LOG_TAIL, SymmetricDistribution

__all__ = [
    "BetaGaussian",
    "PowerDistribution",
    "PowerLaw",
    "TruncatedParabola",
    "exponent",
    "exponent_of",
    "log_constant",
    "positive",
]


class PowerLaw(StandardizedDistribution):
    r"""$q = C\,(1 - y)_+^m$ with $m = 1/(\alpha - 1)$ and $y \sim \mathrm{Beta}(a, m + 1)$.

    $$\log C = \log\frac{\Gamma(m + 1 + a)}{\Gamma(m + 1)} + \text{front}$$

    Here $y = |x|^k$ and $a = 1/k$ on the line, $y = |x|^2$ and $a = D/2$ in space. Closed under
    escorts: exponent $m\beta$ on the same support.
    """

    _fixed_exponent: float | None

    @property
    def _shape(self) -> float:
        """a, the first parameter of the beta law."""
        raise NotImplementedError

    @property
    def _front(self) -> float:
        """The part of log C that does not depend on m."""
        raise NotImplementedError

    @property
    def _exponent(self) -> Tensor:
        """m = 1/(alpha - 1), (*batch)."""
        if self._fixed_exponent is None:
            return 1 / (self.alpha - 1)
        return torch.full_like(self.alpha, self._fixed_exponent)

    def _log_constant(self) -> Tensor:
        return log_constant(self._shape, self._front, self._fixed_exponent, self._exponent)

    def _log_of_share(self, y: Tensor) -> Tensor:
        r"""$\log C + m \log(1 - y)$."""
        m = self._fixed_exponent
        if m is None:
            return self._log_constant() + self._exponent * torch.log1p(-y)
        # Of numbers no tensors are made: they would cost as much as the logarithm.
        return m * torch.log1p(-y) + (_log_gamma_ratio(m + 1, self._shape) + self._front)

    def _standard_entropy(self) -> Tensor:
        m = self._exponent
        return m * digamma_difference(m + 1, self._shape) - self._log_constant()

    def _log_power_integral(self, beta: Tensor | float) -> Tensor:
        power = self._exponent * beta
        return beta * self._log_constant() - log_constant(self._shape, self._front, None, power)

    def _log_mean_power(self) -> Tensor:
        # E[(p/p(loc))^(alpha - 1)] = 1 - E[y].
        m = self._exponent
        return self._peak_log_prob() + m * torch.log1p(-1 / (1 + (m + 1) / self._shape))

    def _escort_alpha(self, beta: Tensor | float | None) -> Tensor | float:
        """Entropic index of the member with exponent m beta; a number where both are."""
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


def exponent_of(alpha: Tensor | float) -> float | None:
    """m = 1/(alpha - 1) of a number above 1, an exact integer where rounding hides one."""
    if not isinstance(alpha, Real) or not alpha > 1:
        return None
    m = 1 / (alpha - 1)
    return float(round(m)) if abs(m - round(m)) <= 1e-12 * m else m


def alpha_of(m: float) -> float:
    """The inverse of `exponent_of`."""
    return math.inf if m == 0 else 1 + 1 / m


def exponent(alpha: Tensor | float, broadcast: Tensor) -> Tensor:
    """m as a tensor, from alpha as it was given and as it was broadcast."""
    m = exponent_of(alpha)
    return 1 / (broadcast - 1) if m is None else torch.full_like(broadcast, m)


def positive(m: Tensor) -> Tensor:
    """m kept off zero, where alpha = inf would make 0/0 of what has a limit."""
    return m.clamp_min(1e-30)


def log_constant(shape: float, front: float, fixed: float | None, m: Tensor) -> Tensor:
    """log C: once and in float64 for a number, else differentiable in m."""
    if fixed is not None:
        return torch.full_like(m, _log_gamma_ratio(fixed + 1, shape) + front)
    return log_gamma_ratio(m + 1, shape) + front


def _log_gamma_ratio(x: float, delta: float) -> float:
    """lgamma(x + delta) - lgamma(x) of a number, where the difference would lose digits too."""
    if x < 1e4:
        return math.lgamma(x + delta) - math.lgamma(x)
    stirling = delta * math.log(x) + (x + delta - 0.5) * math.log1p(delta / x) - delta
    return stirling + (1 / (x + delta) - 1 / x) / 12


# The largest integer exponent whose closed form keeps float32's digits (numerics.interval).
_LARGEST_CLOSED = 3


class PowerDistribution(PowerLaw, SymmetricDistribution):
    r"""Prediction map of the score $-|t-\mu|^k/(k\sigma^k)$ at any alpha, $m = 1/(\alpha - 1)$.

    $$q(x) = C\,(1 - |x|^k)_+^m, \qquad
    C = \frac{k\,\Gamma(m + 1 + 1/k)}{2\,\Gamma(1/k)\,\Gamma(m + 1)}, \qquad
    s^{km+1} = C\,(km)^m\,\sigma^{km}, \qquad |x|^k \sim \mathrm{Beta}(1/k,\, m + 1)$$

    Subclasses set `_order`, which is k.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
        "alpha": constraints.greater_than(1.0),
    }
    _order: ClassVar[int]

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._fixed_exponent = exponent_of(alpha)
        super().__init__(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def _scale_of_score(
        cls, name: str, loc: Tensor | float, width: Tensor | float, alpha: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        r"""Return loc and s for the score's own scale $\sigma$ or b, called `name` in errors."""
        loc, width, alpha_ = broadcast_arguments(**{"loc": loc, name: width, "alpha": alpha})
        require(torch.isfinite(width) & (width > 0), name, "positive and finite", width)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        m = exponent(alpha, alpha_)
        km = cls._order * m
        log_c = log_constant(1 / cls._order, _front(cls._order), exponent_of(alpha), m)
        log_scale = (log_c + torch.xlogy(m, positive(km)) + km * width.log()) / (km + 1)
        return loc, log_scale.exp()

    @classmethod
    def _scale_of_variance(
        cls, mean: Tensor | float, variance: Tensor | float, alpha: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """Return loc and the half-width for a mean and a variance."""
        mean, variance, alpha_ = broadcast_arguments(mean=mean, variance=variance, alpha=alpha)
        valid = torch.isfinite(variance) & (variance > 0)
        require(valid, "variance", "positive and finite", variance)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        return mean, (variance / _moment(cls._order, exponent(alpha, alpha_), 2)).sqrt()

    def _score_scale(self) -> Tensor:
        """Return the score's own scale: the inverse of `_scale_of_score`."""
        m = positive(self._exponent)
        km = self._order * m
        log_scale = (km + 1) * self.scale.log() - self._log_constant()
        return torch.exp(log_scale / km - km.log() / self._order)

    @property
    def _shape(self) -> float:
        return 1 / self._order

    @property
    def _front(self) -> float:
        return _front(self._order)

    def _reach(self) -> Tensor:
        tail = _LOG_TAIL.get(self.loc.dtype, 40.0)
        share = -torch.expm1(-tail / positive(self._exponent.detach()))
        return (share ** (1 / self._order)).clamp(max=1 - torch.finfo(share.dtype).eps)

    def _standard_log_prob(self, x: Tensor) -> Tensor:
        return self._log_of_share(x.square() if self._order == 2 else x.abs())

    def _standard_moment(self, order: int) -> Tensor:
        return _moment(self._order, self._exponent, order)

    def profile(self) -> Profile | None:
        """Return the standard density as a piecewise polynomial, None if it is none of degree <= 6.

        Higher degrees lose digits of float32 in `numerics.gaussian_interval`.
        """
        m, k = self._fixed_exponent, self._order
        if m is None or m > _LARGEST_CLOSED or m != int(m):
            return None
        constant = math.exp(_log_gamma_ratio(m + 1, 1 / k) + _front(k))
        coefficients = [0.0] * (k * int(m) + 1)
        for j in range(int(m) + 1):
            coefficients[k * j] = constant * math.comb(int(m), j) * (-1) ** j
        return Profile(tuple(coefficients))


def _front(order: int) -> float:
    return math.log(order / 2) - math.lgamma(1 / order)


def _moment(order: int, m: Tensor, power: int) -> Tensor:
    """E|x|^power for even power: E (|x|^k)^(power/k), a ratio of rising factorials."""
    total = torch.ones_like(m)
    for j in range(power // order):
        total = total * (1 / order + j) / (1 / order + m + 1 + j)
    return total


class BetaGaussian(PowerDistribution):
    r"""Power of a parabola clipped at zero: the alpha-entmax counterpart of the normal.

    $$p(t) = \frac{\Gamma(m + 3/2)}{\sqrt\pi\,\Gamma(m + 1)\,s}\,(1 - x^2)_+^m, \qquad
    x = (t - \mu)/s, \quad m = 1/(\alpha - 1)$$

    It is the prediction map of the score $-(t-\mu)^2/(2\sigma^2)$, whose $\sigma$ determines the
    half-width $s$ (`from_sigma`); as $\alpha \to 1$ at fixed $\sigma$ it tends to the normal.
    $\alpha = 2$ is the truncated parabola, 3/2 the biweight, 4/3 the triweight, $\infty$ the
    uniform law on the support.

    Args:
        loc: Centre $\mu$ (*batch).
        scale: Half-width $s > 0$ of the support (*batch).
        alpha: Entropic index in (1, inf], (*batch); it may require grad. A Python number selects
            closed forms where the exponent is an integer up to 3.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, `alpha` not above 1, shapes
            that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1 and eq. 10.
        arXiv:2006.07214

    Examples:
        >>> BetaGaussian(0.0, 1.0, alpha=1.5).variance
        tensor(0.1429)
    """

    _order: ClassVar[int] = 2

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def from_sigma(
        cls,
        loc: Tensor | float,
        sigma: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        r"""From the score's own scale: $f(t) = -(t - \mu)^2/(2\sigma^2)$."""
        scales = cls._scale_of_score("sigma", loc, sigma, alpha)
        return cls(*scales, alpha, validate_args=validate_args)

    @classmethod
    def from_moments(
        cls,
        mean: Tensor | float,
        variance: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        """From mean and variance."""
        scales = cls._scale_of_variance(mean, variance, alpha)
        return cls(*scales, alpha, validate_args=validate_args)

    @classmethod
    def from_canonical(
        cls,
        theta1: Tensor | float,
        theta2: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        r"""From $\theta = [\mu/\sigma^2, -1/(2\sigma^2)]$, the coefficients of f on $[t, t^2]$.

        Raises:
            ValueError: `theta2` not negative.
        """
        return cls.from_sigma(*_score_of(theta1, theta2), alpha, validate_args=validate_args)

    @property
    def sigma(self) -> Tensor:
        r"""The score's $\sigma$ (*batch); at alpha = inf, where it is not determined, inf or 0."""
        return self._score_scale()

    @property
    def score(self) -> Quadratic:
        r"""$f(t) = -(t - \mu)^2/(2\sigma^2)$."""
        return Quadratic(self.loc, self.sigma)

    def escort(self, beta: Tensor | float | None = None) -> "BetaGaussian":
        r"""The $\beta$-escort: exponent $m\beta$ on the same support; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A negative exponent (the default beta at alpha > 2 gives $m - 1 < 0$).
        """
        alpha = self._escort_alpha(beta)
        return BetaGaussian(self.loc, self.scale, alpha, validate_args=self._validation)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        # From x^2, exact however small: with m = 1e6 all of the mass is at |x| < 1e-2.
        m, squared = self._exponent, x.square()
        near = squared * (m + 1) < 1e-3
        safe = torch.where(near, torch.full_like(squared, 0.5), squared)
        size = x.abs()
        rest = torch.where(near, 1 - safe, (1 - size) * (1 + size))
        tail = 0.5 * betaincc(torch.full_like(safe, 0.5), m + 1, safe, rest)
        body = torch.where(x < 0, tail, 1 - tail)
        return torch.where(near, self._central_cdf(x), body)

    def _standard_icdf(self, value: Tensor) -> Tensor:
        # The search ends at the edge, where the log density of the uniform member is 0 * inf.
        if self._fixed_exponent == 0:
            return 2 * value - 1
        if self._fixed_exponent is not None:
            return super()._standard_icdf(value)
        uniform = self._exponent == 0
        inner = super()._standard_icdf(torch.where(uniform, 0.5, value))
        return torch.where(uniform, 2 * value - 1, inner)

    def _central_cdf(self, x: Tensor) -> Tensor:
        """Its Taylor series at loc, where the square root in x^2 has no derivative."""
        m, squared = self._exponent, x.square()
        terms, coefficient = torch.ones_like(squared), torch.ones_like(squared)
        for j in range(1, 6):
            coefficient = coefficient * (j - 1 - m) / j * squared
            terms = terms + coefficient / (2 * j + 1)
        near = squared * (m + 1) < 1e-3
        return 0.5 + torch.exp(self._log_constant()) * x * torch.where(near, terms, 1.0)

    def _standard_sample(self, shape: Size) -> Tensor:
        with torch.no_grad():
            z = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
            gamma = torch._standard_gamma((self._exponent + 1).expand(shape))
            # x^2 ~ Beta(1/2, m + 1) as a ratio of gammas; the sign comes with z.
            x = z * torch.rsqrt(z.square() + 2 * gamma)
            x = x.clamp(-1 + torch.finfo(x.dtype).eps, 1 - torch.finfo(x.dtype).eps)
        if self.alpha.requires_grad and torch.is_grad_enabled():
            # Implicit reparameterisation (Figurnov et al. 2018): the cdf of a draw stays put.
            level = self._standard_cdf(x).detach()
            x = attach_root_gradient(
                x,
                lambda x: self._standard_cdf(x) - level,
                lambda x: torch.exp(self._standard_log_prob(x)),
            )
        return x


class TruncatedParabola(BetaGaussian):
    r"""Parabola clipped at zero: the sparsemax counterpart of the normal.

    $$p(t) = \frac{3}{4s}\,(1 - x^2)_+, \qquad x = (t - \mu)/s$$

    The prediction map of $-(t-\mu)^2/(2\sigma^2)$ at $\alpha = 2$, with $s^3 = 3\sigma^2/2$.

    Args:
        loc: Centre $\mu$ (*batch).
        scale: Half-width $s > 0$ of the support (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 10.
        arXiv:2006.07214

    Examples:
        >>> TruncatedParabola(0.0, 1.0).variance
        tensor(0.2000)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
    }

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)

    @classmethod
    def from_sigma(  # type: ignore[override]
        cls, loc: Tensor | float, sigma: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        r"""From the score's own scale, TP(t; mu, sigma^2) of the paper: $s^3 = 3\sigma^2/2$."""
        return cls(*cls._scale_of_score("sigma", loc, sigma, 2.0), validate_args=validate_args)

    @classmethod
    def from_moments(  # type: ignore[override]
        cls, mean: Tensor | float, variance: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        """From mean and variance: $s^2 = 5$ variance."""
        return cls(*cls._scale_of_variance(mean, variance, 2.0), validate_args=validate_args)

    @classmethod
    def from_canonical(  # type: ignore[override]
        cls, theta1: Tensor | float, theta2: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        r"""From $\theta = [\mu/\sigma^2, -1/(2\sigma^2)]$, the coefficients of f on $[t, t^2]$."""
        return cls.from_sigma(*_score_of(theta1, theta2), validate_args=validate_args)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        side = torch.where(x < 0, 1 + x, 1 - x)
        tail = side.square() * (3 - side) / 4
        return torch.where(x < 0, tail, 1 - tail)

    def _standard_icdf(self, value: Tensor) -> Tensor:
        # The trigonometric root of the cubic, as a distance from the nearer edge.
        tail = torch.where(value < 0.5, value, 1 - value)
        angle = 2 * torch.asin(tail.sqrt())
        side = 4 * torch.sin(angle / 6) * torch.cos((torch.pi - angle) / 6)
        return torch.where(value < 0.5, side - 1, 1 - side)

    def _standard_sample(self, shape: Size) -> Tensor:
        return SymmetricDistribution._standard_sample(self, shape)


def _score_of(theta1: Tensor | float, theta2: Tensor | float) -> tuple[Tensor, Tensor]:
    """Centre and sigma of the score theta1 t + theta2 t^2."""
    theta1, theta2 = broadcast_arguments(theta1=theta1, theta2=theta2)
    require(torch.isfinite(theta2) & (theta2 < 0), "theta2", "negative and finite", theta2)
    return -theta1 / (2 * theta2), (-0.5 / theta2).sqrt()
