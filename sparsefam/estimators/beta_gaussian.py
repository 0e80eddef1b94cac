"""`BetaGaussianDensity`: beta-Gaussians fitted to data by moments or by likelihood."""

import math
import warnings
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data
from torch import Tensor

from .._numerics.threads import one_thread
from .._numerics.validation import require_integer
from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
)
from ._data import Columns, DensityEstimator, Floats, check_alpha, check_positive, sample_weights
from ._newton import Evaluation, Minimum, minimize

__all__ = ["BetaGaussianDensity"]

# The range of 1 / alpha that is searched: below alpha = 1.001 the density is taken for normal.
_SEARCHED = (0.5, 0.999)
# Above this alpha, rounding of the exponent m makes the Hessian of the likelihood singular.
_STEEPEST = 1 / np.finfo(np.float64).eps
# Eigenvalues of a correlation matrix below this are taken for rounding.
_SINGULAR = 1e-13
# Exponents below 1 are approached by fits whose exponents decrease by this factor.
_STAGE = 4.0
# The gain of log-likelihood, relative to it, that alpha above 1 must bring.
_BETTER = 1e-9
# The distance of the outermost observation from the first ball's center, relative to its radius.
_INSIDE = 0.9


class _Moments(NamedTuple):
    """Mean (D,), lower factor of the covariance (D, D), whitened data (n, D), their weights."""

    mean: Tensor
    factor: Tensor
    whitened: Tensor
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> "_Moments":
        """Whiten data x (n, D) with weights (n,), which are then relative to their sum.

        Whitened data w with x = mean + factor w have mean 0 and the identity for a covariance.
        """
        x, weight = x[weight > 0], weight[weight > 0] / weight.sum()
        columns = Columns.of(x, weight)
        mean, scale = columns.mean, columns.deviation
        x = (x - mean) / scale
        # Columns of unit variance, so that rounding does not depend on their units.
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


class BetaGaussianDensity(DensityEstimator):
    r"""Fit a beta-Gaussian to data: location, ellipsoidal support and alpha.

    $$p(x) \propto (1 - |L^{-1}(x - \mu)|^2)_+^m, \qquad m = 1/(\alpha - 1)$$

    The likelihood is 0, without a gradient, wherever the support misses an observation, so that
    general optimizers fail. Two methods do not:

    * "likelihood": at a given alpha, minus the log-likelihood is convex in $L^{-1}$ and
      $L^{-1}\mu$ together, and a barrier that keeps all observations inside. Newton's method starts
      from an ellipsoid around them. If alpha is not given, it is the most likely one from 1 to 2.
      Above 2 the density falls so steeply at its edge that the Fisher information is infinite, and
      the smallest ellipsoid around the data may be likelier than the true one.
    * "moments": the density with the mean and the covariance of the data, which at a given alpha
      has the least Fenchel-Young loss. If alpha is not given, it follows from the kurtosis:
      $\kappa = E|\Sigma^{-1/2}(x - \mu)|^4/(D(D + 2))$ is $N/(N + 2)$ with $N = D + 2m + 2$. It is
      1 where $\kappa \ge 1$, and inf, the uniform density, where $\kappa \le (D + 2)/(D + 4)$. The
      support need not contain all observations.

    Estimating alpha takes hundreds of observations; with fewer, and with many columns, the most
    likely alpha is often 2, and the method of moments is better.

    Args:
        alpha: Entropic index, from 1 (normal) to inf (uniform, by moments only); chosen by default.
        method: "likelihood" or "moments".
        tol: The fit ends when a step promises a smaller decrease of minus the mean log-likelihood.
        max_iter: Greatest number of Newton steps.

    Attributes:
        density_: The density: `BetaGaussian` or `Normal` of one column, `MultivariateBetaGaussian`
            or `MultivariateNormal` of more.
        alpha_: The alpha that was given or chosen.
        offset_: The mean log density of the observations on the support, for `decision_function`.
        support_: For one column, the ends of the support (1, 2).
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

    @one_thread()
    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> "BetaGaussianDensity":
        """Fit the density to data.

        Args:
            X: Observations (n, D), which span the space: D + 1 of them or more.
            y: Not used.
            sample_weight: Nonnegative weights (n,).

        Raises:
            ValueError: Observations that do not span the space, NaN; weights that are negative or
                all zero; parameters outside of their range.
        """
        data = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        weight = sample_weights(sample_weight, data)
        if not isinstance(self.method, str) or self.method not in ("likelihood", "moments"):
            raise ValueError(f"method must be 'likelihood' or 'moments', got {self.method!r}")
        alpha = None if self.alpha is None else check_alpha(self.alpha, np.inf)
        tol = check_positive("tol", self.tol)
        require_integer("max_iter", self.max_iter, 1)
        moments = _Moments.of(torch.from_numpy(data.copy()), torch.from_numpy(weight))
        self.n_iter_ = 0
        if self.method == "moments":
            self.alpha_ = _by_kurtosis(moments) if alpha is None else alpha
            affine = _by_moments(data.shape[1], self.alpha_)
        else:
            self.alpha_, affine = self._by_likelihood(moments, alpha, tol, self.max_iter)
        self.density_ = _density(moments, affine, self.alpha_)
        self._set_offset(torch.from_numpy(data[weight > 0]))
        if alpha is None and self.alpha_ == 1:
            warnings.warn(
                "alpha_ is 1: no beta-Gaussian with bounded support fits better than the normal "
                "density, which is positive everywhere; give alpha for zeros, or use SparseDensity",
                UserWarning,
                stacklevel=3,
            )
        return self

    def _by_likelihood(
        self, moments: _Moments, alpha: float | None, tol: float, max_iter: int
    ) -> tuple[float, Tensor]:
        """Return alpha, and the map (A, b), (D, D + 1), from whitened data to z = A w - b.

        It takes the support onto the unit ball. The alpha is chosen if it is None.
        """
        if alpha is not None and alpha > _STEEPEST:
            raise ValueError(
                f"alpha must be at most {_STEEPEST:.2g} for method='likelihood', got {alpha}"
            )
        alpha = _likeliest_alpha(moments, tol, max_iter) if alpha is None else alpha
        if alpha == 1:
            return alpha, _by_moments(moments.mean.numel(), alpha)  # the normal density
        fit = _most_likely(moments, alpha, tol, max_iter)
        self.n_iter_ = fit.steps
        if fit.decrease >= self.tol:
            warnings.warn(
                f"max_iter={self.max_iter} steps ended before tol={self.tol}: the next step "
                f"promises {fit.decrease:.2g}",
                ConvergenceWarning,
                stacklevel=4,
            )
        return alpha, _affine_map(fit.x, moments.mean.numel())

    def _distance(self, x: Tensor) -> Floats:
        """Return distances (n,) of observations (n, D) from the support.

        In several dimensions the unit is the ellipsoid's radius in the observation's direction.
        """
        p = self.density_
        if not p.event_shape:
            return super()._distance(x)
        u = torch.linalg.solve_triangular(p.scale_tril, (x - p.loc).T, upper=False)
        return (u.norm(dim=0) - 1).clamp_min(0).numpy()

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the mean log density, -inf if one observation is off the support.

        `quadratic_score` stays finite.
        """
        return float(self.score_samples(X).mean())


def _likeliest_alpha(moments: _Moments, tol: float, max_iter: int) -> float:
    """Return the alpha of greatest likelihood from 1 to 2; `tol`, `max_iter` are for each fit."""
    dim = moments.mean.numel()

    def loss(alpha: float) -> float:
        """Return minus the mean log-likelihood of whitened data."""
        m = 1 / (alpha - 1)
        # The logarithm of the normalizing constant of (1 - |z|^2)^m on the unit ball.
        constant = math.lgamma(m + 1 + dim / 2) - math.lgamma(m + 1) - dim / 2 * math.log(math.pi)
        return _most_likely(moments, alpha, tol, max_iter).value - constant

    # The loss of the normal density is its entropy, since whitened data have its moments.
    normal = dim / 2 * (1 + np.log(2 * np.pi))
    # In 1/alpha the search is bounded, with room near the normal density.
    best = minimize_scalar(
        lambda inverse: loss(1 / inverse),
        bounds=_SEARCHED,
        method="bounded",
        options={"xatol": 1e-6},
    )
    if best.fun >= normal - _BETTER * normal:
        return 1.0
    return 2.0 if loss(2.0) <= best.fun else float(1 / best.x)


def _affine_map(free: Tensor, dim: int) -> Tensor:
    """Return (A, b), (D, D + 1), with A lower triangular, from its free entries row by row.

    These are, in each row, the entries of A up to the diagonal, and the entry of b.
    """
    mask = torch.ones(dim, dim + 1, dtype=torch.bool).tril()
    mask[:, -1] = True
    return free.new_zeros(dim, dim + 1).masked_scatter(mask, free)


def _most_likely(moments: _Moments, alpha: float, tol: float, max_iter: int) -> Minimum:
    r"""Maximize the likelihood over supports by Newton's method; `tol`, `max_iter` as `minimize`.

    In $z = A x - b$, A lower triangular, the support is the unit ball. Minus the log-likelihood,

    $$-\log|A| - m \sum_i w_i \log(1 - |A x_i - b|^2),\qquad \sum_i w_i = 1,$$

    up to a constant, is convex in A and b together: the logarithmic barrier of the ellipsoids that
    contain the whitened data x (n, D). Its minimum is reached from any ellipsoid around them.

    Returns:
        The minimum in the free entries of (A, b), as `_affine_map` takes them.
    """
    x, weight, m = moments.whitened, moments.weight, 1 / (alpha - 1)
    dim = x.shape[1]
    rows = torch.cat([x, -torch.ones_like(x[:, :1])], 1)
    # Indices in (A, b) of the D (D + 3) / 2 free entries.
    i, j = _affine_map(torch.ones(dim * (dim + 3) // 2), dim).nonzero(as_tuple=True)

    def evaluate(free: Tensor) -> Evaluation:
        """Return the function above and its derivatives in the free entries."""
        matrix = _affine_map(free, dim)
        z, axes = rows @ matrix.T, matrix.diagonal()
        room = 1 - z.square().sum(1)
        if (room <= 0).any() or (axes <= 0).any():
            # An observation is outside, or log |A| does not exist. No derivatives are read there.
            return Evaluation(math.inf, free, lambda: torch.diag(free))
        # The derivative of log |A|.
        inverse = torch.zeros_like(matrix)
        inverse.diagonal().copy_(1 / axes)
        # With rows r_i = (x_i, -1) and M = (A, b), z_i = M r_i: d(-m w log room) / dM = pull z r^T.
        pull = 2 * m * weight / room
        slope = (pull.unsqueeze(-1) * z).T @ rows - inverse

        def hessian() -> Tensor:
            """Return the second derivatives in the free entries M_ij and M_kl.

            They are sum 2 (pull / room) z_i r_j z_k r_l + [i = k] pull r_j r_l over the data, and
            1 / A_ii^2 on the diagonal of A.
            """
            outer = z[:, i] * rows[:, j]
            matrix = (2 * (pull / room).unsqueeze(-1) * outer).T @ outer
            matrix += (i.unsqueeze(-1) == i) * ((pull.unsqueeze(-1) * rows).T @ rows)[j][:, j]
            return matrix + inverse[i, j].square().diag()

        value = -axes.log().sum() - m * (weight @ room.log())
        return Evaluation(float(value), slope[i, j], hessian)

    # A ball around all observations, which the barrier needs. With a small exponent the barrier is
    # felt next to the edge only, and from far away Newton's method may stall or fail.
    start = _INSIDE / x.norm(dim=1).amax() * torch.eye(dim, dim + 1, dtype=x.dtype)[i, j]
    exponent, m = m, max(m, 1.0)
    minimum = minimize(evaluate, start, tol, max_iter)
    # `evaluate` reads m: the barrier is weakened in stages, each started from the last minimum.
    while m > exponent:
        m = max(exponent, m / _STAGE)
        minimum = minimize(evaluate, minimum.x, tol, max_iter)
    return minimum


def _by_kurtosis(moments: _Moments) -> float:
    """Return the alpha at which the density has the kurtosis of the data."""
    dim = moments.mean.numel()
    # Mardia (1970): the mean fourth power of the distance, D(D + 2) for normal data.
    fourth = moments.weight @ moments.whitened.square().sum(1).square()
    # Relative to the normal density's.
    kurtosis = float(fourth) / (dim * (dim + 2))
    if kurtosis >= 1:
        return 1.0
    # A beta-Gaussian has N / (N + 2) with the abbreviation N = D + 2 m + 2, solved for m.
    m = kurtosis / (1 - kurtosis) - 1 - dim / 2
    return 1 + 1 / m if m > 0 else np.inf


def _by_moments(dim: int, alpha: float) -> Tensor:
    """Return the map (A, b), (D, D + 1), that takes a support onto the unit ball of z = A w - b.

    The beta-Gaussian on the support has the moments of whitened data w, as on the unit ball it has
    the covariance I/(D + 2 + 2/(alpha - 1)). At alpha = 1 A is the identity: z has these moments.
    """
    factor = 1.0 if alpha == 1 else (dim + 2 + 2 / (alpha - 1)) ** -0.5
    return factor * torch.eye(dim, dim + 1, dtype=torch.float64)


def _density(moments: _Moments, affine: Tensor, alpha: float) -> SparseDistribution:
    """Return the density of the data, from the map (A, b) of whitened data, (D, D + 1).

    The map takes the support of whitened data onto the unit ball, or at alpha = 1 the normal
    density onto the standard normal one.
    """
    matrix, shift = affine[:, :-1], affine[:, -1:]
    # Whitened data w = F^-1 (x - mean) have z = A w - b in the ball: x = mean + F A^-1 (z + b).
    tril = moments.factor @ torch.linalg.inv(matrix).tril()
    loc = moments.mean + (tril @ shift).squeeze(-1)
    if alpha == 1 and len(loc) == 1:
        return Normal(loc.squeeze(), tril.squeeze())
    if alpha == 1:
        return MultivariateNormal(loc, scale_tril=tril)
    if len(loc) == 1:
        return BetaGaussian(loc.squeeze(), tril.squeeze(), alpha)
    return MultivariateBetaGaussian(loc, tril, alpha)
