"""Beta-Gaussians: truncated powers of a parabola, the sparse counterparts of the normal."""

from typing import ClassVar

import torch
from torch import Size, Tensor
from typing_extensions import Self

from ..numerics.arguments import broadcast_arguments, require
from ..numerics.roots import attach_root_gradient
from ..numerics.special import betaincc
from ..scores import Quadratic
from .powers import PowerDistribution, SparsemaxMember
from .symmetric import SymmetricDistribution

__all__ = ["BetaGaussian", "TruncatedParabola"]


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
        return cls._from_score_scale("sigma", loc, sigma, alpha, validate_args)

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
        return cls._from_moments(mean, variance, alpha, validate_args)

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
        loc, sigma = _score_of(theta1, theta2)
        return cls._from_score_scale("sigma", loc, sigma, alpha, validate_args)

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


class TruncatedParabola(SparsemaxMember, BetaGaussian):
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

    @classmethod
    def from_sigma(  # type: ignore[override]
        cls, loc: Tensor | float, sigma: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        r"""From the score's own scale, TP(t; mu, sigma^2) of the paper: $s^3 = 3\sigma^2/2$."""
        return cls._from_score_scale("sigma", loc, sigma, 2.0, validate_args)

    @classmethod
    def from_moments(  # type: ignore[override]
        cls, mean: Tensor | float, variance: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        """From mean and variance: $s^2 = 5$ variance."""
        return cls._from_moments(mean, variance, 2.0, validate_args)

    @classmethod
    def from_canonical(  # type: ignore[override]
        cls, theta1: Tensor | float, theta2: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        r"""From $\theta = [\mu/\sigma^2, -1/(2\sigma^2)]$, the coefficients of f on $[t, t^2]$."""
        loc, sigma = _score_of(theta1, theta2)
        return cls._from_score_scale("sigma", loc, sigma, 2.0, validate_args)

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
