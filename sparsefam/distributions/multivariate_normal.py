"""The multivariate normal: torch's, with everything that the sparse densities have."""

import math

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.arguments import broadcast_location_scale, cholesky_factor
from ..numerics.sphere import radial_rule
from ..scores import MultivariateQuadratic
from .dense import DenseLaw
from .elliptical import EllipticalDistribution
from .factors import canonical_score, inverse_factor

__all__ = ["MultivariateNormal"]

# The exponent from which on the radii of a beta-Gaussian are those of a normal to rounding.
_LIMIT = 1e16


class MultivariateNormal(DenseLaw, EllipticalDistribution, torch.distributions.MultivariateNormal):
    r"""`torch.distributions.MultivariateNormal` with `expect`, `escort` and the rest.

    $$p(t) = \frac{1}{(2\pi)^{D/2}\,|L|}\, e^{-u^\top u/2}, \qquad u = L^{-1}(t - \mu)$$

    As torch's it takes one of three matrices, each (*batch, D, D).

    Args:
        loc: Mean $\mu$ (*batch, D).
        covariance_matrix: $L L^\top$, symmetric and positive definite.
        precision_matrix: Its inverse.
        scale_tril: $L$, lower triangular with a positive diagonal.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: Not exactly one matrix; `loc` not a finite vector; a matrix that is not square,
            of another dimension than `loc`, not finite, singular, or not as above; batch shapes
            that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, App. D, whose alpha = 1
        case it is. arXiv:2006.07214

    Examples:
        >>> MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)).log_normalizer
        tensor(1.8379)
    """

    support = constraints.real_vector
    _order = 2

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        matrices = (covariance_matrix, precision_matrix, scale_tril)
        names = ("covariance_matrix", "precision_matrix", "scale_tril")
        given = {k: x for k, x in zip(names, matrices, strict=True) if x is not None}
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(names)} must be given, got {list(given)}")
        if scale_tril is None:
            (name,) = given
            loc, matrix = broadcast_location_scale(loc=loc, **given)
            scale_tril = cholesky_factor(name, matrix)
            if precision_matrix is not None:
                scale_tril = inverse_factor(scale_tril)
        EllipticalDistribution.__init__(self, loc, scale_tril, 1.0, validate_args=validate_args)

    @classmethod
    def from_sigma(cls, loc: Tensor, sigma: Tensor, *, validate_args: bool | None = None) -> Self:
        r"""From the score's matrix $\Sigma$ (*batch, D, D), which is the covariance.

        Raises:
            ValueError: `sigma` not symmetric and positive definite.
        """
        loc, sigma = broadcast_location_scale(loc=loc, sigma=sigma)
        factor = cholesky_factor("sigma", sigma)
        return cls(loc, scale_tril=factor, validate_args=validate_args)

    @classmethod
    def from_sigma_tril(
        cls, loc: Tensor, sigma_tril: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""From the lower factor of the score's matrix, which is `scale_tril`."""
        return cls(loc, scale_tril=sigma_tril, validate_args=validate_args)

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance_matrix: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        """From mean (*batch, D) and covariance matrix (*batch, D, D).

        Raises:
            ValueError: `covariance_matrix` not symmetric and positive definite.
        """
        mean, covariance = broadcast_location_scale(mean=mean, covariance_matrix=covariance_matrix)
        factor = cholesky_factor("covariance_matrix", covariance)
        return cls(mean, scale_tril=factor, validate_args=validate_args)

    @classmethod
    def from_canonical(
        cls, theta1: Tensor, theta2: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""From $\theta = [\Sigma^{-1}\mu, -\Sigma^{-1}/2]$, the score's coefficients.

        Raises:
            ValueError: `theta2` (*batch, D, D) not symmetric and negative definite.
        """
        loc, sigma_tril = canonical_score(theta1, theta2)
        return cls(loc, scale_tril=sigma_tril, validate_args=validate_args)

    @property
    def sigma_tril(self) -> Tensor:
        r"""Lower factor of the score's $\Sigma$, which is `scale_tril`."""
        return self.scale_tril

    @property
    def sigma(self) -> Tensor:
        r"""The score's matrix $\Sigma$, which is the covariance (*batch, D, D)."""
        return self.covariance_matrix

    @property
    def score(self) -> MultivariateQuadratic:
        r"""$f(t) = -(t - \mu)^\top \Sigma^{-1} (t - \mu)/2$."""
        return MultivariateQuadratic(self.loc, self.scale_tril)

    def escort(self, beta: Tensor | float | None = None) -> "MultivariateNormal":
        r"""The $\beta$-escort: `scale_tril` times $\beta^{-1/2}$; default $\beta = 1$.

        Raises:
            ValueError: `beta` not positive: $p^0$ has no finite mass in space.
        """
        scale_tril = self._escort_factor(beta)[..., None, None] * self.scale_tril
        return MultivariateNormal(self.loc, scale_tril=scale_tril, validate_args=self._validation)

    @property
    def _unbroadcasted_scale_tril(self) -> Tensor:  # type: ignore[override]
        """What torch's KL divergences read."""
        return self.scale_tril

    def _edge(self) -> float:
        return math.inf

    def _standard_log_prob(self, size: Tensor) -> Tensor:
        return -0.5 * size - 0.5 * self.event_shape[0] * math.log(2 * math.pi)

    def _standard_entropy(self) -> float:
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi))

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(self.alpha)
        return one, one, torch.zeros_like(one)

    def _radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        limit = torch.full((), _LIMIT, dtype=self.loc.dtype, device=self.loc.device)
        radii, weights = radial_rule(count, self.event_shape[0], limit)
        return radii * math.sqrt(2 * _LIMIT), weights

    def _marginal(self, loc: Tensor, scale_tril: Tensor) -> "MultivariateNormal":
        return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=self._validation)

    def _standard_sample(self, shape: Size) -> Tensor:
        size = shape + self.event_shape
        return torch.randn(size, dtype=self.loc.dtype, device=self.loc.device)
