"""Beta-Gaussians fitted to data, by moments or by likelihood."""

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
)
from .arguments import alpha_above, count, positive
from .draws import Floats, drawn
from .extent import Extent
from .likelihood import Ball, log_constant, most_likely

__all__ = ["BetaGaussianDensity"]

# The least 1 / alpha that is looked at and the largest: below alpha = 1.001 it is a normal density.
_SEARCHED = (0.5, 0.999)
# Beyond this alpha the exponent m is rounding, and the curvature of the likelihood singular.
_STEEPEST = 1 / np.finfo(np.float64).eps
# Eigenvalues of a correlation matrix that are rounding.
_SINGULAR = 1e-13
# By what factor the exponent falls at a time, below 1: the fits follow each other inwards.
_STAGE = 4.0
# What part of the log-likelihood an alpha above 1 has to bring.
_BETTER = 1e-9


class _Moments(NamedTuple):
    """Mean (D,), the covariance's lower factor (D, D), and the data with neither (n, D)."""

    mean: Tensor
    factor: Tensor
    whitened: Tensor
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> "_Moments":
        extent = Extent.of(x, weight)
        mean, scale = extent.mean, extent.deviation
        x, weight = (x[weight > 0] - mean) / scale, weight[weight > 0] / weight.sum()
        correlation = (weight.unsqueeze(-1) * x).T @ x
        least = float(torch.linalg.eigvalsh(correlation)[0])
        if least < _SINGULAR:
            raise ValueError(
                f"X must span its {len(mean)} columns, got {len(x)} observations whose correlation "
                f"matrix has the eigenvalue {least:.2g}"
            )
        factor = torch.linalg.cholesky(correlation)
        whitened = torch.linalg.solve_triangular(factor, x.T, upper=False).T
        return cls(mean, scale.unsqueeze(-1) * factor, whitened, weight)


class BetaGaussianDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""The beta-Gaussian of data: a centre, an ellipsoid beyond which nothing is, and alpha.

    $$p(x) \propto (1 - |L^{-1}(x - \mu)|^2)_+^m, \qquad m = 1/(\alpha - 1)$$

    The likelihood is 0, without a gradient, wherever the support misses an observation, so that
    general optimisers get lost. Two ways that do not:

    * "likelihood": at a given alpha, minus the log-likelihood is convex in $L^{-1}$ and
      $L^{-1}\mu$ together, a barrier that keeps all observations inside, and bounded. Newton's
      method starts from an ellipsoid around them. If alpha is not given, it is the most likely one
      from 1 to 2. Above 2 the density falls off so steeply at its edge that Fisher's information
      is infinite, and a support that just holds the data may be likelier than the true one.
    * "moments": the density with the mean and the covariance of the data, which at a given alpha
      has the least Fenchel-Young loss. If alpha is not given, the kurtosis tells it:
      $\kappa = E|\Sigma^{-1/2}(x - \mu)|^4/(D(D + 2)) = N/(N + 2)$ with $N = D + 2m + 2$. It is 1
      where $\kappa \ge 1$, and inf, the uniform density, where $\kappa \le (D + 2)/(D + 4)$. The
      support need not contain all observations.

    Alpha takes hundreds of observations to be told; with fewer, and with many columns, the
    likelihood tends to 2, and moments are the better guess.

    Args:
        alpha: Entropic index, from 1 (normal) to inf (uniform, by moments only); chosen by default.
        method: "likelihood" or "moments".
        tol: The fit ends when a step promises to take less than this off minus the mean
            log-likelihood.
        max_iter: Newton steps at most.

    Attributes:
        density_: The density: `BetaGaussian` or `Normal` of one column, `MultivariateBetaGaussian`
            or `MultivariateNormal` of more.
        alpha_: The alpha that was given or chosen.
        support_: Of one column: the ends of the support, (1, 2).
        n_iter_: Newton steps of the last fit.
        n_features_in_: Number of columns.

    References:
        Smith (1985), Maximum likelihood estimation in a class of nonregular cases. Biometrika 72.
        Mardia (1970), Measures of multivariate skewness and kurtosis. Biometrika 57.

    Examples:
        >>> x = np.random.default_rng(0).beta(3, 3, (1000, 1))  # alpha = 1.5 on [0, 1]
        >>> BetaGaussianDensity(alpha=1.5).fit(x).support_.round(1)
        array([[0., 1.]])
    """

    def __init__(
        self,
        alpha: float | None = None,
        method: Literal["likelihood", "moments"] = "likelihood",
        *,
        tol: float = 1e-12,
        max_iter: int = 100,
    ) -> None:
        self.alpha = alpha
        self.method = method
        self.tol = tol
        self.max_iter = max_iter

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> "BetaGaussianDensity":
        """Fit the density to data.

        Args:
            X: Observations (n, D), of which D + 1 or more span the space.
            y: Not used.
            sample_weight: Nonnegative weights (n,).

        Raises:
            ValueError: Observations that do not span the space, NaN; weights that are negative or
                all zero; parameters outside of their range.
        """
        data = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        given = _check_sample_weight(
            sample_weight, data, dtype=np.float64, ensure_non_negative=True
        )
        if not isinstance(self.method, str) or self.method not in ("likelihood", "moments"):
            raise ValueError(f"method must be 'likelihood' or 'moments', got {self.method!r}")
        alpha = None if self.alpha is None else alpha_above(self.alpha)
        limits = positive("tol", self.tol), count("max_iter", self.max_iter)
        moments = _Moments.of(torch.from_numpy(data.copy()), torch.from_numpy(given))
        self.n_iter_ = 0
        if self.method == "moments":
            self.alpha_ = _by_kurtosis(moments) if alpha is None else alpha
            matrix = _by_moments(data.shape[1], self.alpha_)
        else:
            self.alpha_, matrix = self._by_likelihood(moments, alpha, *limits)
        self.density_ = _density(moments, matrix, self.alpha_)
        if not self.density_.event_shape:
            support: Any = self.density_.support
            self.support_: Floats = support.intervals.numpy()
        else:
            self.__dict__.pop("support_", None)
        return self

    def _by_likelihood(
        self, moments: _Moments, alpha: float | None, *limits: Any
    ) -> tuple[float, Tensor]:
        """Alpha, and the map of its support onto the unit ball."""
        if alpha is not None and alpha > _STEEPEST:
            raise ValueError(
                f"alpha must be at most {_STEEPEST:.2g} for method='likelihood', got {alpha}"
            )
        alpha = _likeliest_alpha(moments, *limits) if alpha is None else alpha
        if alpha == 1:
            return alpha, _by_moments(moments.mean.numel(), alpha)
        ball, _ = _most_likely(moments, alpha, *limits)
        self.n_iter_ = ball.steps
        if ball.decrease >= self.tol:
            warnings.warn(
                f"max_iter={self.max_iter} steps ended before tol={self.tol}: the next step "
                f"promises {ball.decrease:.2g}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return alpha, ball.matrix

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log density of each observation (n,); -inf where it is zero."""
        check_is_fitted(self)
        x = torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())
        found: Floats = self.density_.log_prob(
            x if self.density_.event_shape else x.squeeze(-1)
        ).numpy()
        return found

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log density, -inf if one observation is off the support; see `quadratic_score`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Floats:
        """Draws (n_samples, D) from the density.

        Args:
            n_samples: How many.
            random_state: Seed, or numpy's random state.
        """
        check_is_fitted(self)
        return drawn(self.density_, n_samples, random_state)


def _likeliest_alpha(moments: _Moments, tol: float, max_iter: int) -> float:
    """The most likely alpha from 1 to 2."""
    dim = moments.mean.numel()
    normal = -dim / 2 * (1 + np.log(2 * np.pi))
    found = minimize_scalar(
        lambda share: -_most_likely(moments, 1 / share, tol, max_iter)[1],
        bounds=_SEARCHED,
        method="bounded",
        options={"xatol": 1e-6},
    )
    if -found.fun <= normal + _BETTER * abs(normal):
        return 1.0
    if _most_likely(moments, 2.0, tol, max_iter)[1] >= -found.fun:
        return 2.0
    return float(1 / found.x)


def _most_likely(moments: _Moments, alpha: float, tol: float, max_iter: int) -> tuple[Ball, float]:
    """The support of an alpha, and the mean log density of whitened data."""
    due = 1 / (alpha - 1)
    m, ball = max(due, 1.0), Ball.around(moments.whitened)
    while True:
        ball, mean = most_likely(moments.whitened, moments.weight, m, ball, tol, max_iter)
        if m == due:
            return ball, mean + log_constant(moments.mean.numel(), m)
        m = max(due, m / _STAGE)


def _by_kurtosis(moments: _Moments) -> float:
    """The alpha of a density with the kurtosis of the data."""
    dim = moments.mean.numel()
    fourth = moments.weight @ moments.whitened.square().sum(1).square()
    kurtosis = float(fourth) / (dim * (dim + 2))
    if kurtosis >= 1:
        return 1.0
    m = kurtosis / (1 - kurtosis) - 1 - dim / 2
    return 1 + 1 / m if m > 0 else np.inf


def _by_moments(dim: int, alpha: float) -> Tensor:
    """The map of whitened data's support onto the unit ball; at alpha = 1 that to themselves."""
    factor = 1.0 if alpha == 1 else (dim + 2 + 2 / (alpha - 1)) ** -0.5
    eye = torch.eye(dim, dtype=torch.float64)
    return torch.cat([factor * eye, torch.zeros_like(eye[:, :1])], 1)


def _density(moments: _Moments, matrix: Tensor, alpha: float) -> SparseDistribution:
    matrix, shift = matrix[:, :-1], matrix[:, -1:]
    tril = moments.factor @ torch.linalg.inv(matrix).tril()
    loc = moments.mean + (tril @ shift).squeeze(-1)
    if alpha == 1 and len(loc) == 1:
        return Normal(loc.squeeze(), tril.squeeze())
    if alpha == 1:
        return MultivariateNormal(loc, scale_tril=tril)
    if len(loc) == 1:
        return BetaGaussian(loc.squeeze(), tril.squeeze(), alpha)
    return MultivariateBetaGaussian(loc, tril, alpha)
