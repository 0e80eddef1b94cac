"""`ScoreMatchingKernelExp`: kernel exponential families by score matching, in any dimension."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components
from sklearn.neighbors import radius_neighbors_graph
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..distributions.base_measure import BaseMeasure
from ..kernels import Kernel, kernel_matrix
from ..numerics.threads import one_thread
from .data import (
    Columns,
    DensityEstimator,
    Floats,
    check_positive,
    inducing_points,
)
from .newton import whitening
from .sparse_density import Gaussian, candidate_kernels, kernel_density

__all__ = ["ScoreMatchingKernelExp"]

# Candidates: bandwidths in standard deviations, and penalties; the number of folds.
_BANDWIDTHS = (2.0, 1.0, 0.5, 0.25)
_PENALTIES = tuple(10.0**-k for k in range(-1, 9))
_FOLDS = 5
# The standard deviation of the default base, relative to that of the data.
_WIDE = 2.0
# Groups of observations are further apart than so many bandwidths. At most so many observations
# are searched for groups, and groups with less than a share of them are outliers.
_GAP, _SEARCHED, _OUTLIERS = 4.0, 2000, 0.02
# The greatest dimension in which the density is normalised.
_NORMALIZED = 3
# Rows of data whose derivatives are in memory at a time.
_CHUNK = 2**11


class _Fit(NamedTuple):
    """Weights of a score, their penalty, and the losses of held-out data and of all data."""

    held_out: float
    kernel: Kernel
    weights: Tensor
    penalty: float
    loss: float


class ScoreMatchingKernelExp(DensityEstimator):
    r"""Fit the density $p \propto e^f q_0$ by matching the gradient of its logarithm to the data.

    The score f is a kernel expansion at inducing points (Nystrom) that minimises

    $$\frac1n \sum_i \sum_d \left[\tfrac12 (\partial_d f)^2 + \partial_d^2 f + \partial_d f\,
      \partial_d \log q_0\right](x_i) + \tfrac{\lambda}{2} \|f\|^2$$

    by one linear solve in any dimension, without an integral. The density is normalised for up to
    three columns.

    Score matching cannot determine how groups that are far apart share the mass, because the
    gradient of a log density does not depend on it. `fit` warns if the data consist of such groups;
    use `SparseDensity(alpha=1.0)` for them.

    Args:
        kernel: Function of (n, D), (m, D) to (n, m), called with float64 tensors; twice
            differentiable in its first argument by forward mode, and once by reverse mode for
            `gradient`. Default Gaussian.
        inducing_points: Locations (I, D), or the number of observations to choose; default up to
            150.
        penalty: $\lambda > 0$, in squares of a derivative. The default has the least held-out loss
            in five folds.
        bandwidth: Bandwidth of the Gaussian kernel: one number, or one for each column; chosen like
            the penalty. Not with `kernel`.
        base: Base density of each column, with a derivative; default normal with twice the standard
            deviation of the data.
        random_state: Seed for the choice of inducing points and folds.

    Attributes:
        density_: The normalised density, a `KernelExp`; for up to three columns.
        offset_: The mean log density of the observations, for `decision_function`.
        penalty_: The penalty that was given or chosen.
        bandwidth_: The bandwidth (D,) that was given or chosen; None if `kernel` is given.
        loss_: The score matching loss of the data, without the penalty.
        n_features_in_: Number of columns.

    References:
        Sriperumbudur et al. (2017), Density Estimation in Infinite Dimensional Exponential
        Families. JMLR 18. Sutherland et al. (2018), Efficient and principled score estimation with
        Nystrom kernel exponential families. AISTATS.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(300, 5))
        >>> model = ScoreMatchingKernelExp(random_state=0).fit(x)
        >>> model.gradient(x).shape  # of the log density, in five dimensions
        (300, 5)
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        inducing_points: ArrayLike | None = None,
        penalty: float | None = None,
        *,
        bandwidth: ArrayLike | None = None,
        base: Distribution | Sequence[Distribution] | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.inducing_points = inducing_points
        self.penalty = penalty
        self.bandwidth = bandwidth
        self.base = base
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: object = None) -> "ScoreMatchingKernelExp":
        """Fit the score to data.

        Args:
            X: Observations (n, D).
            y: Not used.

        Raises:
            ValueError: Fewer than two observations, a constant column, NaN; parameters outside of
                their range.
        """
        data: Floats = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        x = torch.from_numpy(data.copy())
        dim, state = x.shape[1], check_random_state(self.random_state)
        columns = Columns.of(x, torch.ones(len(x), dtype=x.dtype))
        self.base_: Any = self.base
        if self.base is None:
            pairs = zip(columns.mean, _WIDE * columns.deviation, strict=True)
            self.base_ = [Normal(loc, scale, validate_args=False) for loc, scale in pairs]
        self._measure = BaseMeasure(self.base_, dim, x.dtype)
        ends = self._measure.bounds(0)
        points = inducing_points(self.inducing_points, x, columns, ends, state)
        # Distances grow with the root of the number of columns.
        widths = [share * dim**0.5 * columns.deviation for share in _BANDWIDTHS]
        kernels = candidate_kernels(self.kernel, self.bandwidth, widths)
        folds = torch.from_numpy(state.permutation(len(x)) % min(_FOLDS, len(x)))
        fits = [self._best_penalty(kernel, points, x, folds) for kernel in kernels]
        fit = min(fits, key=lambda fit: fit.held_out)
        self.kernel_, self.weights_, self.points_ = fit.kernel, fit.weights, points
        self.penalty_, self.loss_ = fit.penalty, fit.loss
        self.bandwidth_: Floats | None = (
            fit.kernel.bandwidth.numpy() if isinstance(fit.kernel, Gaussian) else None
        )
        if dim <= _NORMALIZED:
            self.density_ = kernel_density(fit.kernel, points, fit.weights, self.base_, 1.0)
        else:
            self.__dict__.pop("density_", None)
        self._set_offset(x)
        self._warn_of_groups(data)
        return self

    def _best_penalty(self, kernel: Kernel, points: Tensor, x: Tensor, folds: Tensor) -> _Fit:
        mixing = whitening(kernel, points)
        parts = [
            _Loss.of(kernel, points, mixing, self._measure, x[folds == k])
            for k in range(int(folds.max()) + 1)
        ]
        whole = _Loss(*(sum(terms) for terms in zip(*parts, strict=True)))
        if self.penalty is None:
            # The loss is measured in squares of derivatives.
            unit = float(x.var(0, correction=0).reciprocal().mean())
            penalties = [unit * share for share in _PENALTIES]
        else:
            penalties = [check_positive("penalty", self.penalty)]

        def held_out(penalty: float) -> float:
            pairs = ((part, whole.without(part).minimum(penalty)) for part in parts)
            return sum(part.size * part.at(c) for part, c in pairs) / whole.size

        losses = [held_out(penalty) for penalty in penalties]
        best = int(np.argmin(losses))
        c = whole.minimum(penalties[best])
        return _Fit(losses[best], kernel, mixing @ c, penalties[best], whole.at(c))

    def _warn_of_groups(self, data: Floats) -> None:
        """Warn if observations fall into groups that no kernel joins."""
        if self.bandwidth_ is None:
            return
        scaled = data[:: -(-len(data) // _SEARCHED)] / self.bandwidth_
        graph = radius_neighbors_graph(scaled, _GAP)
        count, groups = connected_components(graph, directed=False)
        sizes = np.bincount(groups)
        # A few outliers are no group.
        if count > 1 and np.sort(sizes)[-2] > _OUTLIERS * len(scaled):
            warnings.warn(
                f"the data fall into {count} groups more than {_GAP:g} bandwidths apart: score "
                "matching cannot tell how they share the mass; SparseDensity(alpha=1.0) can",
                UserWarning,
                stacklevel=4,
            )

    def gradient(self, X: ArrayLike) -> Floats:
        """Return the gradient of the log density at each location, (n, D)."""
        x = self._observations(X)
        with torch.enable_grad():
            t = x.clone().requires_grad_()
            score = self.weights_ @ kernel_matrix(self.kernel_, self.points_, t)
            (slope,) = torch.autograd.grad(score.sum(), t)
        gradient: Floats = (slope + _base_gradient(self._measure, x)).numpy()
        return gradient

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log density of each observation (n,).

        For more than three columns it lacks a constant.
        """
        return super().score_samples(X)

    def _log_density(self, x: Tensor) -> Tensor:
        if hasattr(self, "density_"):
            return super()._log_density(x)
        score = kernel_matrix(self.kernel_, self.points_, x).T @ self.weights_
        return self._measure.log_density(x) + score

    @one_thread()
    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the mean score matching loss: larger is better."""
        x = self._observations(X)
        features = torch.eye(len(self.points_), dtype=x.dtype)
        loss = _Loss.of(self.kernel_, self.points_, features, self._measure, x)
        return -loss.at(self.weights_)


def _kernel_derivatives(kernel: Kernel, points: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return first and second derivatives (D, n, I) of k(x, points) along each axis of x (n, D)."""

    def along(direction: Tensor) -> tuple[Tensor, Tensor]:
        def slope(t: Tensor) -> Any:
            return torch.func.jvp(
                lambda s: kernel_matrix(kernel, points, s).T, (t,), (direction.expand_as(t),)
            )[1]

        first, second = torch.func.jvp(slope, (x,), (direction.expand_as(x),))[:2]
        return first, second

    first, second = zip(*map(along, torch.eye(x.shape[1], dtype=x.dtype)), strict=True)
    return torch.stack(first), torch.stack(second)


def _base_gradient(base: BaseMeasure, x: Tensor) -> Tensor:
    """Return the gradient (n, D) of the log density of a base at locations (n, D)."""
    with torch.enable_grad():
        t = x.detach().requires_grad_()
        log = base.log_density(t)
        if not torch.isfinite(log).all():
            raise ValueError("X must be inside the support of the base, got values outside")
        if not log.requires_grad:
            rule = "base must have log densities with a derivative"
            raise ValueError(f"{rule}, got {base.factors}")
        (slope,) = torch.autograd.grad(log.sum(), t)
    return slope


class _Loss(NamedTuple):
    r"""Score matching loss of `size` observations: $(\tfrac12 c^\top G c + b^\top c)$ / size."""

    size: int
    quadratic: Tensor
    linear: Tensor

    @classmethod
    def of(
        cls, kernel: Kernel, points: Tensor, mixing: Tensor, base: BaseMeasure, x: Tensor
    ) -> "_Loss":
        """Sum over data (n, D), for features with a mixing matrix (I, R)."""
        rank = mixing.shape[1]
        quadratic, linear = x.new_zeros(rank, rank), x.new_zeros(rank)
        for rows in x.split(_CHUNK):
            first, second = (d @ mixing for d in _kernel_derivatives(kernel, points, rows))
            drift = _base_gradient(base, rows).T.unsqueeze(-1)
            quadratic = quadratic + torch.einsum("dnr,dns->rs", first, first)
            linear = linear + (second + first * drift).sum((0, 1))
        return cls(len(x), quadratic, linear)

    def without(self, part: "_Loss") -> "_Loss":
        """Return the sum over the other observations."""
        quadratic, linear = self.quadratic - part.quadratic, self.linear - part.linear
        return _Loss(self.size - part.size, quadratic, linear)

    def minimum(self, penalty: float) -> Tensor:
        """Return the coefficients (R,) that minimise the penalized mean loss."""
        ridge = penalty * torch.eye(len(self.linear), dtype=self.linear.dtype)
        c: Tensor = torch.linalg.solve(self.quadratic / self.size + ridge, self.linear)
        return -c / self.size

    def at(self, c: Tensor) -> float:
        """Return the mean loss of coefficients (R,)."""
        return float(0.5 * c @ self.quadratic @ c + self.linear @ c) / self.size
