"""Beta-Gaussians of vectors: truncated powers of a paraboloid, the sparse multivariate normals."""

import math
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.arguments import (
    broadcast_location_scale,
    cholesky_factor,
    require,
    require_scale_tril,
)
from ..numerics.roots import attach_root_gradient
from ..numerics.special import betaincc
from ..numerics.sphere import radial_rule
from ..scores import MultivariateQuadratic
from ..supports import finite_scale_tril, finite_vector
from .elliptical import EllipticalDistribution
from .exponents import PowerLaw, alpha_of, exponent, exponent_of, log_constant, positive
from .factors import canonical_score

__all__ = ["MultivariateBetaGaussian"]


class MultivariateBetaGaussian(PowerLaw, EllipticalDistribution):
    r"""Power of a paraboloid clipped at zero: the alpha-entmax counterpart of the normal.

    $$p(t) = \frac{\Gamma(m + 1 + D/2)}{\pi^{D/2}\,\Gamma(m + 1)\,|L|}\,(1 - u^\top u)_+^m, \qquad
    u = L^{-1}(t - \mu), \quad m = 1/(\alpha - 1)$$

    It is the prediction map of the score $-(t-\mu)^\top \Sigma^{-1} (t-\mu)/2$, whose $\Sigma$
    determines the ellipsoid $L L^\top = R^2 \Sigma$ of the support (`from_sigma`):
    $$R^{2m+D} = (2m)^m\, \frac{\Gamma(m + 1 + D/2)}{\pi^{D/2}\,\Gamma(m + 1)\,|\Sigma|^{1/2}}.$$
    As $\alpha \to 1$ at fixed $\Sigma$ it tends to the normal. $\alpha = 2$ is the truncated
    paraboloid, $\infty$ the uniform law on the ellipsoid. The covariance is
    $L L^\top/(D + 2m + 2)$. In one dimension it is `BetaGaussian`.

    Args:
        loc: Centre $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the support.
        alpha: Entropic index in (1, inf], (*batch); it may require grad.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not a finite vector, `scale_tril` not square, of another dimension than
            `loc`, not finite, not lower triangular, singular or with a negative diagonal, `alpha`
            not above 1, batch shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1 and App. D.
        arXiv:2006.07214

    Examples:
        >>> MultivariateBetaGaussian(torch.zeros(2), torch.eye(2), alpha=1.5).variance
        tensor([0.1250, 0.1250])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite_vector,
        "scale_tril": finite_scale_tril,
        "alpha": constraints.greater_than(1.0),
    }

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._fixed_exponent = exponent_of(alpha)
        EllipticalDistribution.__init__(self, loc, scale_tril, alpha, validate_args=validate_args)

    @classmethod
    def _member(
        cls, loc: Tensor, scale_tril: Tensor, alpha: Tensor | float, validate_args: bool | None
    ) -> Self:
        """An instance; classes of one fixed alpha leave it out of their constructor."""
        return cls(loc, scale_tril, alpha, validate_args=validate_args)

    @classmethod
    def from_sigma(
        cls,
        loc: Tensor,
        sigma: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        r"""From the score's matrix: $f(t) = -(t - \mu)^\top \Sigma^{-1} (t - \mu)/2$.

        Raises:
            ValueError: `sigma` (*batch, D, D) not symmetric and positive definite.
        """
        loc, sigma, _ = broadcast_location_scale(loc=loc, sigma=sigma, alpha=alpha)
        tril = cholesky_factor("sigma", sigma)
        return cls._from_sigma_tril(loc, tril, alpha, validate_args)

    @classmethod
    def from_sigma_tril(
        cls,
        loc: Tensor,
        sigma_tril: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        r"""From the lower factor of the score's matrix, $\Sigma = S S^\top$.

        Raises:
            ValueError: `sigma_tril` (*batch, D, D) not a lower-triangular factor.
        """
        return cls._from_sigma_tril(loc, sigma_tril, alpha, validate_args)

    @classmethod
    def from_moments(
        cls,
        mean: Tensor,
        covariance_matrix: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        """From mean (*batch, D) and covariance matrix (*batch, D, D).

        Raises:
            ValueError: `covariance_matrix` not symmetric and positive definite.
        """
        return cls._from_moments(mean, covariance_matrix, alpha, validate_args)

    @classmethod
    def from_canonical(
        cls,
        theta1: Tensor,
        theta2: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> Self:
        r"""From $\theta = [\Sigma^{-1}\mu, -\Sigma^{-1}/2]$, the score's coefficients.

        Raises:
            ValueError: `theta2` (*batch, D, D) not symmetric and negative definite.
        """
        return cls._from_sigma_tril(*canonical_score(theta1, theta2), alpha, validate_args)

    @classmethod
    def _from_sigma_tril(
        cls, loc: Tensor, tril: Tensor, alpha: Tensor | float, validate_args: bool | None
    ) -> Self:
        loc, tril, alpha_ = broadcast_location_scale(loc=loc, sigma_tril=tril, alpha=alpha)
        require_scale_tril("sigma_tril", tril)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        dim, m = loc.shape[-1], exponent(alpha, alpha_)
        log_c = log_constant(dim / 2, _front(dim), exponent_of(alpha), m)
        log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_radius = (log_c + torch.xlogy(m, positive(2 * m)) - log_det) / (2 * m + dim)
        return cls._member(loc, log_radius.exp()[..., None, None] * tril, alpha, validate_args)

    @classmethod
    def _from_moments(
        cls, mean: Tensor, covariance: Tensor, alpha: Tensor | float, validate_args: bool | None
    ) -> Self:
        mean, covariance, alpha_ = broadcast_location_scale(
            mean=mean, covariance_matrix=covariance, alpha=alpha
        )
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        total = mean.shape[-1] + 2 + 2 * exponent(alpha, alpha_)
        tril = cholesky_factor("covariance_matrix", covariance)
        return cls._member(mean, total.sqrt()[..., None, None] * tril, alpha, validate_args)

    @property
    def sigma_tril(self) -> Tensor:
        r"""Lower factor of $\Sigma$ (*batch, D, D); 0 or inf at alpha = inf, which has no score."""
        m = positive(self._exponent)
        log_radius = (self._log_constant() - self._log_det()) / (2 * m) + (2 * m).log() / 2
        factor = torch.exp(-log_radius)[..., None, None]
        zero = (self.scale_tril == 0) & factor.isinf()
        return torch.where(zero, 0.0, self.scale_tril * factor)

    @property
    def sigma(self) -> Tensor:
        r"""The score's matrix $\Sigma$ (*batch, D, D)."""
        return self.sigma_tril @ self.sigma_tril.mT

    @property
    def score(self) -> MultivariateQuadratic:
        r"""$f(t) = -(t - \mu)^\top \Sigma^{-1} (t - \mu)/2$."""
        return MultivariateQuadratic(self.loc, self.sigma_tril)

    def escort(self, beta: Tensor | float | None = None) -> "MultivariateBetaGaussian":
        r"""The $\beta$-escort: exponent $m\beta$ on the same support; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A negative exponent (the default beta at alpha > 2 gives $m - 1 < 0$).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 5.
        """
        alpha = self._escort_alpha(beta)
        return MultivariateBetaGaussian(
            self.loc, self.scale_tril, alpha, validate_args=self._validation
        )

    @property
    def _shape(self) -> float:
        return self.event_shape[0] / 2

    @property
    def _front(self) -> float:
        return _front(self.event_shape[0])

    def _standard_log_prob(self, size: Tensor) -> Tensor:
        return self._log_of_share(size)

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        total = self.event_shape[0] + 2 + 2 * self._exponent
        fourth = 1 / (total * (total + 2))
        return 1 / total, fourth, -2 * fourth / total

    def _radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        m = self._exponent
        if self._fixed_exponent is not None:
            m = torch.full((), self._fixed_exponent, dtype=m.dtype, device=m.device)
        return radial_rule(count, self.event_shape[0], m)

    def _marginal(self, loc: Tensor, scale_tril: Tensor) -> "MultivariateBetaGaussian":
        lost = (self.event_shape[0] - loc.shape[-1]) / 2
        alpha: Tensor | float = self.alpha
        if self._fixed_exponent is not None:
            alpha = alpha_of(self._fixed_exponent + lost)
        elif lost:
            alpha = 1 + 1 / (self._exponent + lost)
        return MultivariateBetaGaussian(loc, scale_tril, alpha, validate_args=self._validation)

    def _standard_sample(self, shape: Size) -> Tensor:
        with torch.no_grad():
            z = torch.randn(shape + self.event_shape, dtype=self.loc.dtype, device=self.loc.device)
            gamma = 2 * torch._standard_gamma((self._exponent + 1).expand(shape))
            squares = z.square().sum(-1)
            # |u|^2 ~ Beta(D/2, m + 1) as a ratio of gammas, kept off the edge.
            gamma = torch.maximum(gamma, 4 * torch.finfo(z.dtype).eps * squares)
            u = z * torch.rsqrt(squares + gamma).unsqueeze(-1)
        if self.alpha.requires_grad and torch.is_grad_enabled():
            stretch = self._log_stretch(squares / (squares + gamma), gamma / (squares + gamma))
            u = u * torch.exp(stretch / 2).unsqueeze(-1)
        return u

    def _log_stretch(self, squared: Tensor, rest: Tensor) -> Tensor:
        r"""Zero, with the derivatives in alpha of $\log |u|^2$ at a fixed level of its cdf.

        Implicit reparameterisation: Figurnov et al. (2018), Implicit Reparameterization Gradients.
        """
        m, shape = self._exponent, torch.full_like(squared, self._shape)

        def tail(s: Tensor) -> Tensor:
            return betaincc(shape, m + 1, squared * torch.exp(s), rest - squared * torch.expm1(s))

        log_surface = self._shape * math.log(math.pi) - math.lgamma(self._shape)
        level = tail(torch.zeros_like(squared)).detach()

        def slope(s: Tensor) -> Tensor:
            left = rest - squared * torch.expm1(s)
            power = self._shape * (squared.log() + s) + m * left.log()
            return torch.exp(self._log_constant() + log_surface + power)

        return attach_root_gradient(torch.zeros_like(squared), lambda s: level - tail(s), slope)


def _front(dim: int) -> float:
    return -0.5 * dim * math.log(math.pi)
