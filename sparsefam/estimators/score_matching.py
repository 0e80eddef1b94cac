"""Kernel exponential families by score matching: a linear solve, in any dimension."""

import warnings
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.neighbors import radius_neighbors_graph
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..distributions.base_measure import BaseMeasure
from ..kernels import Kernel, kernel_matrix, require_kernel
from .arguments import bandwidth_of, points_of, positive
from .derivatives import Matching, base_gradient
from .design import Gaussian, density, spread
from .draws import Floats
from .extent import Extent
from .features import whitening

__all__ = ["ScoreMatchingKernelExp"]

# Candidates: bandwidths in standard deviations, penalties. Folds to compare them on.
_BANDWIDTHS = (2.0, 1.0, 0.5, 0.25)
_PENALTIES = tuple(10.0**-k for k in range(-1, 9))
_FOLDS = 5
# Of the default base, in standard deviations of the data.
_WIDE = 2.0
# Observations further apart than so many bandwidths do not see each other; of how many this is
# looked at.
_GAP, _LOOKED_AT = 4.0, 2000
# The part of the observations that may lie apart without being a group.
_OUTLIERS = 0.02
# Dimensions in which the density is normalised.
_NORMALIZED = 3


class _Fit(NamedTuple):
    """A fit with the loss of held-out data that chose its penalty."""

    held_out: float
    kernel: Kernel
    weights: Tensor
    penalty: float
    loss: float


class ScoreMatchingKernelExp(DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""The density $p \propto e^f q_0$ whose log has the gradient of the data's, in any dimension.

    The score f is a kernel expansion at inducing points (Nystrom) that minimises

    $$\frac1n \sum_i \sum_d \left[\tfrac12 (\partial_d f)^2 + \partial_d^2 f + \partial_d f\,
      \partial_d \log q_0\right](x_i) + \tfrac{\lambda}{2} \|f\|^2$$

    by one linear solve: no integral is needed. Up to three columns the density is normalised.

    Score matching cannot see how the mass is shared between groups with nothing in between, as the
    gradient of a log density does not tell. Where the data consist of such groups, `fit` warns;
    `SparseDensity(alpha=1.0)` is the estimator for them.

    Args:
        kernel: (n, D), (m, D) to (n, m), called with float64 tensors, twice differentiable in the
            first by forward mode, and once by reverse mode for `gradient`; default Gaussian.
        inducing_points: Locations (I, D), or how many of the data; default up to 150.
        penalty: $\lambda > 0$, in squares of a derivative; by default that with the least loss of
            held-out data in five folds.
        bandwidth: Of the Gaussian kernel: one number, or one for each column; chosen likewise.
        base: Base density of each column with a derivative; default normal, twice as wide as the
            data.
        random_state: Of the choice of inducing points.

    Attributes:
        density_: The normalised density, a `KernelExp`, of up to three columns.
        penalty_, bandwidth_: What was given or chosen.
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
        ones = torch.ones(len(x), dtype=x.dtype)
        extent, state = Extent.of(x, ones), check_random_state(self.random_state)
        self.base_ = self._base_of(extent)
        points = points_of(self.inducing_points, x.shape[1])
        if isinstance(points, int):
            measure = BaseMeasure(self.base_, x.shape[1], x.dtype)
            points = spread(x, ones, extent, measure, points, state)
        folds = torch.from_numpy(state.permutation(len(x)) % min(_FOLDS, len(x)))
        fits = [self._best_penalty(kernel, points, x, folds) for kernel in self._kernels(extent)]
        self._keep(min(fits, key=lambda fit: fit.held_out), points)
        self._warn_of_gaps(data)
        return self

    def _base_of(self, extent: Extent) -> list[Distribution]:
        if self.base is None:
            pairs = zip(extent.mean, _WIDE * extent.deviation, strict=True)
            return [Normal(loc, scale, validate_args=False) for loc, scale in pairs]
        base = [self.base] if isinstance(self.base, Distribution) else self.base
        if not isinstance(base, Sequence) or len(base) != len(extent.mean):
            rule = f"a density for each of {len(extent.mean)} columns"
            raise ValueError(f"base must be {rule}, got {self.base!r}")
        return list(base)

    def _kernels(self, extent: Extent) -> list[Kernel]:
        bandwidth = bandwidth_of(self.bandwidth, len(extent.mean))
        if self.kernel is not None:
            require_kernel(self.kernel)
            return [self.kernel]
        if bandwidth is not None:
            return [Gaussian(bandwidth)]
        # Distances grow with the root of the number of columns.
        scale = extent.deviation * len(extent.mean) ** 0.5
        return [Gaussian(share * scale) for share in _BANDWIDTHS]

    def _best_penalty(self, kernel: Kernel, points: Tensor, x: Tensor, folds: Tensor) -> _Fit:
        mixing = whitening(kernel, points)
        parts = [
            Matching.of(kernel, points, mixing, self.base_, x[folds == k])
            for k in range(int(folds.max()) + 1)
        ]
        whole = reduce(add, parts)
        # The loss is measured in squares of derivatives.
        unit = float(x.var(0, correction=0).reciprocal().mean())
        penalties = (
            tuple(unit * share for share in _PENALTIES)
            if self.penalty is None
            else (positive("penalty", self.penalty),)
        )

        def held_out(penalty: float) -> float:
            losses = []
            for k, part in enumerate(parts):
                others = reduce(add, parts[:k] + parts[k + 1 :])
                losses.append(part.count * part.loss(others.minimum(penalty)))
            return sum(losses) / whole.count

        losses = {penalty: held_out(penalty) for penalty in penalties}
        best = min(losses, key=lambda penalty: losses[penalty])
        c = whole.minimum(best)
        return _Fit(losses[best], kernel, mixing @ c, best, whole.loss(c))

    def _keep(self, fit: _Fit, points: Tensor) -> None:
        self.kernel_, self.weights_, self.points_ = fit.kernel, fit.weights, points
        self.penalty_, self.loss_ = fit.penalty, fit.loss
        self.bandwidth_: Floats | None = (
            fit.kernel.bandwidth.numpy() if isinstance(fit.kernel, Gaussian) else None
        )
        if points.shape[1] <= _NORMALIZED:
            self.density_ = density(fit.kernel, points, fit.weights, self.base_, 1.0)
        else:
            self.__dict__.pop("density_", None)

    def _warn_of_gaps(self, data: Floats) -> None:
        """Where observations fall into groups that no kernel joins."""
        if self.bandwidth_ is None:
            return
        scaled = data[:: -(-len(data) // _LOOKED_AT)] / self.bandwidth_
        graph = radius_neighbors_graph(scaled, _GAP)
        count, groups = connected_components(graph, directed=False)
        sizes = np.bincount(groups)
        # A few outliers are no group.
        if count > 1 and np.sort(sizes)[-2] > _OUTLIERS * len(scaled):
            warnings.warn(
                f"the data fall into {count} groups more than {_GAP:g} bandwidths apart: score "
                "matching cannot tell how they share the mass; SparseDensity(alpha=1.0) can",
                UserWarning,
                stacklevel=3,
            )

    def _locations(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())

    def gradient(self, X: ArrayLike) -> Floats:
        """Gradient of the log density at each location, (n, D), as samplers need it."""
        x = self._locations(X)
        with torch.enable_grad():
            t = x.clone().requires_grad_()
            score = self.weights_ @ kernel_matrix(self.kernel_, self.points_, t)
            (slope,) = torch.autograd.grad(score.sum(), t)
        found: Floats = (slope + base_gradient(self.base_, x)).numpy()
        return found

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log density of each observation (n,); beyond three columns but for a constant."""
        x = self._locations(X)
        if x.shape[1] <= _NORMALIZED:
            log = self.density_.log_prob(x if self.density_.event_shape else x.squeeze(-1))
        else:
            log = kernel_matrix(self.kernel_, self.points_, x).T @ self.weights_
            pairs = zip(self.base_, x.T, strict=True)
            log = log + torch.stack([law.log_prob(t) for law, t in pairs]).sum(0)
        found: Floats = log.numpy()
        return found

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Minus the mean score matching loss, larger is better."""
        x = self._locations(X)
        weights = torch.eye(len(self.points_), dtype=x.dtype)
        matching = Matching.of(self.kernel_, self.points_, weights, self.base_, x)
        return -matching.loss(self.weights_)
