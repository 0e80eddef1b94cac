"""The truncated paraboloid: the multivariate beta-Gaussian at alpha = 2."""

from typing import ClassVar

from torch import Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.arguments import broadcast_location_scale, cholesky_factor
from ..supports import finite_scale_tril, finite_vector
from .factors import canonical_score
from .multivariate import MultivariateBetaGaussian

__all__ = ["TruncatedParaboloid"]


class TruncatedParaboloid(MultivariateBetaGaussian):
    r"""Paraboloid clipped at zero: the sparsemax counterpart of the multivariate normal.

    $$p(t) = \frac{\Gamma(D/2 + 2)}{\pi^{D/2}\,|L|}\,(1 - u^\top u)_+, \qquad u = L^{-1}(t - \mu)$$

    The prediction map of $-(t-\mu)^\top \Sigma^{-1} (t-\mu)/2$ at $\alpha = 2$, with
    $L L^\top = R^2 \Sigma$ and $R^{D+2} = 2\,\Gamma(D/2 + 2)/(\pi^{D/2} |\Sigma|^{1/2})$.

    Args:
        loc: Centre $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the support.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not a finite vector, `scale_tril` not square, of another dimension than
            `loc`, not finite, not lower triangular, singular or with a negative diagonal, batch
            shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 11 and App. D.
        arXiv:2006.07214

    Examples:
        >>> import torch
        >>> TruncatedParaboloid(torch.zeros(2), torch.eye(2)).prob(torch.zeros(2))
        tensor(0.6366)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite_vector,
        "scale_tril": finite_scale_tril,
    }

    def __init__(
        self, loc: Tensor, scale_tril: Tensor, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale_tril, 2.0, validate_args=validate_args)

    @classmethod
    def _member(
        cls, loc: Tensor, scale_tril: Tensor, alpha: Tensor | float, validate_args: bool | None
    ) -> Self:
        return cls(loc, scale_tril, validate_args=validate_args)

    @classmethod
    def from_sigma(  # type: ignore[override]
        cls, loc: Tensor, sigma: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""From the score's matrix $\Sigma$ (*batch, D, D), TP(t; mu, Sigma) of the paper."""
        loc, sigma = broadcast_location_scale(loc=loc, sigma=sigma)
        return cls._from_sigma_tril(loc, cholesky_factor("sigma", sigma), 2.0, validate_args)

    @classmethod
    def from_sigma_tril(  # type: ignore[override]
        cls, loc: Tensor, sigma_tril: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""From the lower factor of the score's matrix, $\Sigma = S S^\top$."""
        return cls._from_sigma_tril(loc, sigma_tril, 2.0, validate_args)

    @classmethod
    def from_moments(  # type: ignore[override]
        cls, mean: Tensor, covariance_matrix: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        """From mean (*batch, D) and covariance matrix: $L L' = (D + 4)$ covariance."""
        return cls._from_moments(mean, covariance_matrix, 2.0, validate_args)

    @classmethod
    def from_canonical(  # type: ignore[override]
        cls, theta1: Tensor, theta2: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""From $\theta = [\Sigma^{-1}\mu, -\Sigma^{-1}/2]$, the score's coefficients."""
        return cls._from_sigma_tril(*canonical_score(theta1, theta2), 2.0, validate_args)
