"""Density estimation with true zeros, in scikit-learn's manner."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.distributions import Distribution

from ..distributions import KernelDeformedExp, KernelExp
from ..distributions.base_measure import BaseMeasure
from ..kernels import Kernel
from ..losses.conjugates import conjugate
from ..numerics.distributed import process_group
from .arguments import alpha_of, bandwidth_of, count, points_of, positive
from .design import Gaussian, box, density, objective, spread, width
from .draws import Floats, drawn
from .ends import Outermost, trimmed
from .extent import Extent
from .features import Features, Statistics
from .newton import Objective
from .progress import Told, progress
from .resolved import warn_unseen
from .scoring import held_out_loss
from .selection import Chosen, best_kernel, best_penalty, polished

__all__ = ["SparseDensity"]

# Candidates: bandwidths in standard deviations, alphas, penalties.
_BANDWIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
_ALPHAS = (2.0, 1.5, 1.0)
_PENALTIES = tuple(10.0**-k for k in range(1, 9))


class SparseDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""A density of one, two or three numbers that may be exactly zero, fitted to data.

    The kernel deformed exponential family $p = [1 + (\alpha - 1)(f - A)]_+^{1/(\alpha - 1)}\,q_0$
    whose score f minimises the Fenchel-Young loss of the data, penalized by the norm of f:

    $$\Omega^*_\alpha(f) - \tfrac1n \sum_i f(x_i) + \tfrac{\rho}{2} \|f\|^2$$

    The problem is convex, and solved by Newton's method. At alpha = 1 it is penalized maximum
    likelihood. What is not given is chosen by Takeuchi's criterion, an estimate of the loss of
    observations that were left out.

    Args:
        alpha: Entropic index from 1 (positive everywhere) to 2; None to have it chosen of 1, 1.5
            and 2, by the squared error of densities instead of their losses, whose units differ.
        kernel: (n, D), (m, D) to (n, m), called with float64 tensors; default Gaussian.
        inducing_points: Locations (I, D) or (I,), or how many of them; default 100, evenly spaced,
            of numbers, and 150 or 200 of the data by k-means++ in the plane and in space.
        penalty: $\rho > 0$; chosen from the data by default.
        bandwidth: Of the Gaussian kernel: one number, or one for each column; chosen by default.
        base: Base density, or one for each column. Where bounds are known, uniform on these.
            Default: uniform on the box of the data and a quarter of its range more on either side.
            Of numbers, at alpha above 1, the support is then cut where beyond the outermost
            observations of an interval there is more than $1/(2n)$ of the mass, half of the mean of
            what n observations of any density miss there, and half of the largest tie in it.
        tol: The fit ends when a step promises to take less than this off the loss.
        max_iter: Newton steps at most, for each penalty that is tried.
        verbose: Whether to print each penalty that is tried, and show how far the fit is if rich is
            installed; by default shown on a terminal once a fit has taken five seconds.
        random_state: Of the choice of inducing points among vectors.
        group: If the data are spread over processes, their `torch.distributed` group or mesh: every
            rank fits with its own data, at least one observation, and has the same density, that
            of all data.

    Attributes:
        density_: The density, a `KernelDeformedExp` or `KernelExp`.
        support_: Of numbers: the intervals where it is positive, (J, 2).
        support_mass_: The mass of each (J,).
        alpha_: The alpha that was given or chosen.
        penalty_: The penalty that was given or chosen.
        bandwidth_: The bandwidth (D,) that was given or chosen; None under a kernel that was given.
        loss_: The loss of the data, without the penalty and before the support is cut.
        criterion_: Its estimate for data that were not seen.
        n_iter_: Newton steps of the last fit.
        n_features_in_: Number of columns.

    References:
        Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention.
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.
        Takeuchi (1976), Distribution of informational statistics and a criterion of model fitting.

    Examples:
        >>> x = np.concatenate([np.linspace(0, 1, 50), np.linspace(4, 5, 50)])
        >>> SparseDensity().fit(x[:, None]).support_.shape  # two intervals
        (2, 2)
    """

    def __init__(
        self,
        alpha: float | None = 2.0,
        kernel: Kernel | None = None,
        inducing_points: ArrayLike | None = None,
        penalty: float | None = None,
        *,
        bandwidth: ArrayLike | None = None,
        base: Distribution | Sequence[Distribution] | None = None,
        tol: float = 1e-6,
        max_iter: int = 100,
        verbose: bool | None = None,
        random_state: Any = None,
        group: Any = None,
    ) -> None:
        self.alpha = alpha
        self.kernel = kernel
        self.inducing_points = inducing_points
        self.penalty = penalty
        self.bandwidth = bandwidth
        self.base = base
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state
        self.group = group

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> "SparseDensity":
        """Fit the density to data.

        Args:
            X: Observations (n, D), D at most 3.
            y: Not used.
            sample_weight: Nonnegative weights (n,).

        Raises:
            ValueError: Fewer than two observations, more than three columns, a constant one, NaN;
                weights that are negative or all zero; parameters outside of their range.
        """
        x, weight = self._checked(X, sample_weight, 2 if self.group is None else 1)
        alphas = _ALPHAS if self.alpha is None else (alpha_of(self.alpha),)
        group, dim = self._group(), x.shape[1]
        extent = Extent.of(x, weight, group)
        self.base_ = box(extent) if self.base is None else self.base
        measure = BaseMeasure(self.base_, dim, x.dtype)
        measure.require_inside("X", x)
        points = points_of(self.inducing_points, dim)
        if isinstance(points, int):
            state = check_random_state(self.random_state)
            points = spread(x, weight, extent, measure, points, state, group)
        kernels = self._kernels(extent)
        total = len(alphas) * len(kernels) * len(self._penalties())
        with progress(type(self).__name__, total, self.verbose) as told:

            def tried(alpha: float, kernel: Kernel) -> Chosen:
                data = partial(self._statistics, x=x, weight=weight)
                problem = objective(kernel, points, self.base_, alpha, data)
                return self._best_penalty(problem, told)

            found = [best_kernel(kernels, partial(tried, alpha)) for alpha in alphas]
        cut = self.base is None and dim == 1
        self._outermost = self._seen(x, weight) if cut else None
        return self._keep(self._best_alpha(found, x, weight))

    def partial_fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> "SparseDensity":
        """Fit the density to more data, with all those before.

        The first data decide on alpha, the inducing points, the bandwidth and the base, so that
        these are better given if they are few; a penalty that was not given is chosen anew each
        time. Only sums over the data are kept.

        Args:
            X: More observations (n, D), in the support of the base.
            y: Not used.
            sample_weight: Nonnegative weights (n,).

        Raises:
            ValueError: As `fit`, and data outside of the base's support.
        """
        if not hasattr(self, "density_"):
            return self.fit(X, y, sample_weight)
        x, weight = self._checked(X, sample_weight, 1, reset=False)
        BaseMeasure(self.base_, x.shape[1], x.dtype).require_inside("X", x)
        known = self._objective
        more = self._statistics(known.features, x, weight)
        if self._outermost is not None:
            self._outermost |= self._seen(x, weight)
        problem = replace(known, data=known.data + more)
        with progress(type(self).__name__, len(self._penalties()), self.verbose) as told:
            return self._keep(self._best_penalty(problem, told))

    def _checked(
        self, X: ArrayLike, sample_weight: ArrayLike | None, least: int, reset: bool = True
    ) -> tuple[Tensor, Tensor]:
        kinds: dict[str, Any] = {"dtype": np.float64, "ensure_min_samples": least, "reset": reset}
        data: Floats = validate_data(self, X, **kinds)
        weight: Floats = _check_sample_weight(
            sample_weight, data, dtype=np.float64, ensure_non_negative=True
        )
        if data.shape[1] > 3:
            raise ValueError(f"X must have at most 3 features, got {data.shape[1]}")
        # What has no weight may be anywhere, also outside of the base.
        used = weight > 0
        return torch.from_numpy(data[used]), torch.from_numpy(weight[used])

    def _statistics(self, features: Features, x: Tensor, weight: Tensor) -> Statistics:
        return Statistics.of(features, x, weight).over_ranks(self._group())

    def _seen(self, x: Tensor, weight: Tensor) -> Outermost:
        return Outermost.of(x, weight, self.base_).over_ranks(self._group())

    def _group(self) -> Any:
        return None if self.group is None else process_group(self.group)

    def _kernels(self, extent: Extent) -> list[Kernel]:
        """Those to choose from, the widest first."""
        if self.kernel is not None:
            return [self.kernel]
        bandwidth = bandwidth_of(self.bandwidth, len(extent.mean))
        if bandwidth is not None:
            return [Gaussian(bandwidth)]
        return [Gaussian(share * extent.deviation) for share in _BANDWIDTHS]

    def _penalties(self) -> tuple[float, ...]:
        return _PENALTIES if self.penalty is None else (positive("penalty", self.penalty),)

    def _best_penalty(self, problem: Objective, told: Told) -> Chosen:
        return best_penalty(problem, self._penalties(), *self._limits(), told)

    def _limits(self) -> tuple[float, int]:
        return positive("tol", self.tol), count("max_iter", self.max_iter)

    def _best_alpha(self, found: list[Chosen], x: Tensor, weight: Tensor) -> Chosen:
        if len(found) == 1:
            return found[0]
        group = self._group()
        losses = [held_out_loss(one, self._density(one), x, weight, group) for one in found]
        return found[int(np.argmin(losses))]

    def _density(self, chosen: Chosen) -> KernelExp | KernelDeformedExp:
        features, alpha = chosen.objective.features, chosen.objective.alpha
        weights = features.mixing @ chosen.fit.coefficients
        return density(features.kernel, features.points, weights, self.base_, alpha)

    def _keep(self, rough: Chosen) -> "SparseDensity":
        chosen = polished(rough, *self._limits())
        self._objective, fit = chosen.objective, chosen.fit
        if fit.decrease >= self.tol:
            warnings.warn(
                f"the fit ended before tol={self.tol}: after {fit.steps} steps (max_iter="
                f"{self.max_iter}) the next promises {fit.decrease:.2g}",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._whole = self._density(chosen)
        warn_unseen(self._whole)
        self.density_ = trimmed(self._whole, self._outermost, chosen.objective.data)
        if not self.density_.event_shape:
            intervals = self.density_.support.intervals
            self.support_: Floats = intervals.numpy()
            self.support_mass_: Floats = self.density_.cdf(intervals).diff().squeeze(-1).numpy()
        else:
            for name in ("support_", "support_mass_"):
                self.__dict__.pop(name, None)
        self.alpha_, self.penalty_, self.n_iter_ = chosen.objective.alpha, chosen.penalty, fit.steps
        self.bandwidth_: Floats | None = width(chosen.objective.features.kernel)
        self.loss_, self.criterion_ = fit.loss, fit.criterion
        return self

    def _locations(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        x = torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())
        return x if self.density_.event_shape else x.squeeze(-1)

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log density of each observation (n,); -inf where it is zero."""
        x = self._locations(X)
        found: Floats = self.density_.log_prob(x).numpy()
        return found

    def score(self, X: ArrayLike, y: object = None) -> float:
        r"""Minus the mean Fenchel-Young loss, larger is better; at alpha = 1 relative likelihood.

        It is $\frac1n \sum_i f(x_i) - \Omega^*_\alpha(f)$, finite also where the density is zero,
        of the score f before the support is cut, so that bandwidths and penalties can be compared
        by cross-validation; losses of different alpha or bases cannot.
        """
        x = self._locations(X)
        f = self._whole.score
        return float(f(x).mean() - conjugate(f, self._whole))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Floats:
        """Draws (n_samples, D) from the density; `random_state` is a seed, or numpy's."""
        check_is_fitted(self)
        return drawn(self.density_, n_samples, random_state)
