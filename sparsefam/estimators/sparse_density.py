"""`SparseDensity`: density estimation with exact zeros."""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, Uniform
from tqdm import tqdm

from .._feature_maps import Gaussian, Kernel, require_kernel
from .._numerics.threads import one_thread
from .._numerics.validation import require_integer
from ..distributions import KernelDeformedExp, KernelExp, SparseDistribution, Truncated
from ..losses import conjugate
from ._data import (
    MARGIN,
    Base,
    Bounds,
    Columns,
    DensityEstimator,
    Floats,
    Seed,
    as_events,
    as_tensor,
    bandwidth_of,
    bounds_of,
    check_alpha,
    check_positive,
    chunks,
    inducing_points,
    log_density,
    rounding_of,
    sample_weights,
    support_of,
    uniform_box,
)
from ._model_selection import BIAS_FACTOR, best_of, best_penalty, held_out_loss
from ._newton import Cells, Fit, Objective
from ._truncation import extended, extreme_observations, truncated
from .conformal import folds_of, widened

__all__ = ["SparseDensity", "kernel_density"]

# Candidates: bandwidths in standard deviations, alphas, penalties.
_BANDWIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
_ALPHAS = (2.0, 1.5, 1.0)
_PENALTIES = tuple(10.0**-k for k in range(1, 9))
# The least bandwidth that is tried, relative to the distance of evenly spaced inducing points:
# sums of narrower kernels fall to zero between them.
_NARROWEST = 0.5
# The weight of the only kernel in the score for which a mesh is made, before weights are fitted.
# The mesh resolves one kernel, and so all of them.
_SCORE = 10.0
# The standard deviation of the default base at alpha = 1, relative to the data's.
_WIDE = 2.0
# The accuracy of a mesh, by dimension. In several, edges are located along the last axis only.
_TOLERANCE = {1: 1e-11, 2: 1e-6, 3: 1e-3}
# Warn if a fit under a given base is zero at a larger fraction of the observations.
_MOST_MISSED = 0.01
# Warn if the distance between the quartiles is below so many times the narrowest bandwidth.
_TAILS = 2.0
# Warn of columns with fewer distinct whole numbers.
_FEW = 10
# A progress bar appears after so many seconds.
_DELAY = 5.0


class SparseDensity(DensityEstimator):
    r"""Estimate a density on one, two or three columns of numbers that may be exactly zero.

    The kernel deformed exponential family $p = [1 + (\alpha - 1)(f - A)]_+^{1/(\alpha - 1)}\,q_0$
    whose score f minimizes the Fenchel-Young loss of the data, penalized by the norm of f:

    $$\Omega^*_\alpha(f) - \tfrac1n \sum_i f(x_i) + \tfrac{\rho}{2} \|f\|^2$$

    The problem is convex, and solved by Newton's method. At alpha = 1 it is penalized maximum
    likelihood. Takeuchi's criterion, an estimate of the loss of left-out observations, chooses the
    bandwidth and the penalty unless they are given.

    Columns whose values occur three times or more on average are taken for rounded, as counts
    are: an observation then stands for all numbers that are nearer to it than to the next value.
    Columns of categories are not estimated: fit a density to the rows of each category.

    Args:
        alpha: Entropic index from 1 (positive everywhere) to 2. None chooses 1, 1.5 or 2 by the
            squared error of the densities, since losses at different alphas have different units.
        kernel: Function of (n, D), (m, D) to (n, m), called with float64 tensors; default Gaussian.
            The parameters of a module are kept as they are.
        inducing_points: Locations (I, D) or (I,), or their number. Default: 100 evenly spaced
            points in one dimension, 150 or 200 observations chosen by k-means++ in two or three.
        penalty: $\rho > 0$; chosen from the data by default.
        bandwidth: Bandwidth of the Gaussian kernel: one number, or one for each column; chosen by
            default. Not with `kernel`.
        base: Base density, or one for each column: univariate distributions of torch. Default at
            alpha = 1: normal with twice the standard deviation of the data, so that the density is
            positive everywhere, or at least within the bounds. At alpha above 1: uniform on the
            range of the data and a quarter of it more on either side, and then cut: components of
            the support without observations are left out. In one dimension an interval ends where
            the mass beyond its outermost observations reaches $1/(2n)$, half of the mean mass that
            n observations of any density miss there, plus half of its largest tie. In two and three
            a component keeps the points within r of an observation; r is the largest distance of
            its observations from their nearest neighbors, with columns divided by the widths of
            the base. Observations that are off this support extend it, and the density is mixed
            with the uniform one on the new support, whose weight is their fraction of all.
        bounds: Bounds (low, high) of all columns, or a pair for each: None where there is no
            bound, as in (0, None). The default base ends there, and is not cut there. Not with
            `base`.
        coverage: The probability with which a new observation falls into the support, on average
            over data. The support is widened by a distance that five fits without a fifth of the
            observations calibrate; for every distribution it has at least the probability
            $2\,coverage - 1 - \sqrt{2/n}$, and in practice about `coverage` or more.
            Supports grow with `coverage`, and contain the one of coverage=None.
            At least $coverage / (1 - coverage)$ observations are needed. Not with alpha=1 or
            unequal weights.
        tol: The fit ends when a step promises a smaller decrease of the loss, relative to it where
            it is above 1.
        max_iter: Greatest number of Newton steps for each penalty that is tried.
        verbose: Whether to show a progress bar once a fit has taken five seconds; default on
            terminals only.
        random_state: Seed for the choice of inducing points in two and three dimensions, and of the
            folds that calibrate the support.

    Attributes:
        density_: The density, a `KernelDeformedExp` or `KernelExp`; with `coverage`, or where a fit
            is zero at some observations, a `Mixture` of it and the uniform one on the support.
        support_: For one column, the intervals of the support (J, 2).
        support_mass_: The mass of each interval (J,).
        offset_: The mean log density of the observations on the support, for `decision_function`.
        alpha_: The alpha that was given or chosen.
        penalty_: The penalty that was given or chosen.
        bandwidth_: The bandwidth (D,) that was given or chosen; None if `kernel` is given.
        loss_: The loss of the data, without the penalty and before the support is cut.
        criterion_: Takeuchi's estimate of the loss of new data.
        n_iter_: Newton steps of the last fit.
        n_features_in_: Number of columns.

    References:
        Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention.
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.
        Takeuchi (1976), Distribution of informational statistics and a criterion of model fitting.
        Barber, Candes, Ramdas and Tibshirani (2021), Predictive inference with the jackknife+.

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
        base: Base | None = None,
        bounds: Bounds = None,
        coverage: float | None = None,
        tol: float = 1e-6,
        max_iter: int = 100,
        verbose: bool | None = None,
        random_state: Seed = None,
    ) -> None:
        self.alpha = alpha
        self.kernel = kernel
        self.inducing_points = inducing_points
        self.penalty = penalty
        self.bandwidth = bandwidth
        self.base = base
        self.bounds = bounds
        self.coverage = coverage
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state

    @one_thread()
    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> "SparseDensity":
        """Fit the density to data.

        Args:
            X: Observations (n, D), D at most 3.
            y: Not used.
            sample_weight: Nonnegative weights (n,).

        Raises:
            ValueError: Fewer than two observations, more than three columns, a constant column,
                NaN; weights that are negative or all zero; parameters outside of their range;
                `coverage` with too few observations (the message says the least number); a
                density with peaks too narrow to integrate.

        Warns:
            RuntimeWarning: Tails too heavy for kernels of one width; a density under a given base
                that is zero at more than 1 % of the observations; columns of fewer than ten
                distinct whole numbers; whole numbers at a bound.
        """
        if self.bounds is not None and self.base is not None:
            raise ValueError(f"bounds must be None if base is given, got {self.bounds!r}")
        alphas: Sequence[float] = _ALPHAS if self.alpha is None else (check_alpha(self.alpha),)
        x, weight = self._checked(X, sample_weight)
        limits, dim = bounds_of(self.bounds, x), x.shape[1]
        if self.coverage is not None:
            fold = folds_of(x, self.coverage, self.random_state)
            if self.alpha == 1 or (weight != weight[0]).any():
                rule = "None with alpha=1 and with unequal weights"
                raise ValueError(f"coverage must be {rule}, got {self.coverage!r}")
            alphas = [alpha for alpha in alphas if alpha > 1]
        columns = Columns.of(x, weight)
        unit, num_whole = rounding_of(x)
        self._bases = {
            alpha: _default_base(alpha, columns, limits, unit) if self.base is None else self.base
            for alpha in alphas
        }
        if self.base is not None:
            limits = support_of(self.base, x)
        self._warn_of_whole_numbers(num_whole, unit, limits, columns)
        cells = Cells(unit, limits)
        given = self.inducing_points
        points = inducing_points(given, x, columns, limits[0], self.random_state)
        evenly_spaced = dim == 1 and (given is None or np.ndim(given) == 0)
        # The least bandwidth, from the distance of the first two points.
        least = _NARROWEST * float(points[:2].diff(dim=0).sum()) if evenly_spaced else 0.0
        widths = _bandwidths(columns.deviation, least, unit)
        kernels = _candidate_kernels(self.kernel, self.bandwidth, widths)
        if least > 0 and self.kernel is None and self.bandwidth is None:
            _warn_of_tails(x, float(columns.high - columns.low), least)

        def objective(alpha: float, kernel: Kernel) -> Objective:
            """Return the loss, on a mesh that resolves the density with one kernel as its score."""
            weights = torch.zeros(len(points), dtype=points.dtype)
            weights[0] = _SCORE
            p = kernel_density(kernel, points, weights, self._bases[alpha], alpha)
            return Objective.of(alpha, kernel, points, p, cells, x, weight)

        fit = self._best_fit(alphas, kernels, objective, x, weight)
        self._set_attributes(fit, x, weight)
        if self.coverage is not None:
            self._widen(x, fold, self.coverage, limits)
        return self

    def _widen(self, x: Tensor, fold: Tensor, coverage: float, limits: Tensor) -> None:
        """Widen the support to a coverage, as fits without a fold each say.

        Args:
            x: Observations (n, D).
            fold: The number of the fold of each (n,).
            coverage: Probability with which the support is to have a new observation.
            limits: Ends (2, D) that the support may not pass.
        """
        # A fit must not depend on the fold that it leaves out: an alpha chosen from all data does,
        # so the largest takes its place.
        inner = clone(self).set_params(coverage=None, alpha=self.alpha or max(_ALPHAS))
        held = [x[fold == k] for k in fold.unique()]
        inners = [clone(inner).fit(x[fold != k].numpy()).density_ for k in fold.unique()]
        self._set_density(widened(self.density_, inners, held, coverage, limits), x)

    def _checked(self, X: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Tensor, Tensor]:
        """Return observations (n, D) of positive weight, and weights (n,)."""
        data: Floats = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        x = as_tensor(data)
        weight = x.new_ones(()).expand(len(x))
        if sample_weight is not None:
            weight = torch.from_numpy(sample_weights(sample_weight, data))
            x, weight = x[weight > 0], weight[weight > 0]
        if data.shape[1] > 3:
            raise ValueError(
                f"X must have at most 3 features, got {data.shape[1]}: choose up to three columns, "
                "or fit one ellipsoid to all of them by BetaGaussianDensity"
            )
        return x, weight

    def _warn_of_whole_numbers(
        self, num_whole: Tensor, unit: Tensor, limits: Tensor, columns: Columns
    ) -> None:
        """Warn of columns with few distinct whole numbers, and of whole numbers at bounds.

        Args:
            num_whole: Numbers of distinct whole numbers (D,), as from `rounding_of`.
            unit: Units to which columns are rounded (D,).
            limits: Bounds of the columns (D, 2).
            columns: Their ranges.
        """
        # Names of a data frame, else the numbers of columns.
        names = getattr(self, "feature_names_in_", range(len(num_whole)))
        few = [f"{names[d]!r} has {int(n)}" for d, n in enumerate(num_whole) if 0 < n < _FEW]
        if few:
            warnings.warn(
                f"X has columns of few distinct whole numbers ({', '.join(few)}), to which a curve "
                "is fitted as to counts: where they are codes of categories, fit a density to the "
                "rows of each category",
                RuntimeWarning,
                stacklevel=4,
            )
        ends = torch.stack([columns.low, columns.high], -1)
        at_bound = (ends == limits).any(1) & (num_whole > 0) & (unit == 1)
        if at_bound.any():
            listed = ", ".join(f"{names[d]!r}" for d in at_bound.nonzero().flatten().tolist())
            warnings.warn(
                f"X has whole numbers at the ends of bounds, in columns {listed}, which are taken "
                "for rounded: 0 in bounds=(0, None) stands for 0 to 0.5, where the density is "
                "twice its share; for counts leave bounds out",
                RuntimeWarning,
                stacklevel=4,
            )

    def _best_fit(
        self,
        alphas: Sequence[float],
        kernels: Sequence[Kernel],
        objective: Callable[[float, Kernel], Objective],
        x: Tensor,
        weight: Tensor,
    ) -> Fit:
        """Return the best of the fits with each alpha, kernel and penalty.

        Args:
            alphas: Candidates, of which the score of held-out data chooses.
            kernels: Candidates, the widest first, of which Takeuchi's criterion chooses.
            objective: From an alpha and a kernel to the loss.
            x: Observations (n, D).
            weight: Their weights (n,).
        """
        require_integer("max_iter", self.max_iter, 1)
        tol, penalties = check_positive("tol", self.tol), _PENALTIES
        if self.penalty is not None:
            penalties = (check_positive("penalty", self.penalty),)
        # None: tqdm hides the bar unless there is a terminal.
        hidden = None if self.verbose is None else not self.verbose
        title, total = type(self).__name__, len(alphas) * len(kernels) * len(penalties)
        with tqdm(total=total, desc=title, delay=_DELAY, disable=hidden, leave=False) as bar:

            def attempt(alpha: float, kernel: Kernel) -> Fit:
                problem = objective(alpha, kernel)
                return best_penalty(problem, penalties, tol, self.max_iter, bar.update)

            fits = [best_of(kernels, partial(attempt, alpha), BIAS_FACTOR) for alpha in alphas]
        best = fits[0]
        if len(fits) > 1:
            losses = [held_out_loss(fit, self._density(fit), x, weight) for fit in fits]
            best = fits[int(np.argmin(losses))]
        # Fits that were only compared had a larger tolerance.
        return best.objective.minimum(best.minimum.x, best.penalty, tol, self.max_iter)

    def _density(self, fit: Fit) -> KernelExp | KernelDeformedExp:
        """Return the density of a fit, before its support is cut."""
        objective = fit.objective
        # Of the kernels (I,), from coefficients of orthonormal functions.
        weights, alpha = objective.mixing @ fit.minimum.x, objective.alpha
        return kernel_density(
            objective.kernel, objective.points, weights, self._bases[alpha], alpha
        )

    def _set_attributes(self, fit: Fit, x: Tensor, weight: Tensor) -> None:
        """Set the attributes of a fit, and its density.

        Under the default uniform base the support is cut near the data x (n, D) with weights (n,);
        else a warning says if the density is zero at many of them.
        """
        objective, minimum = fit.objective, fit.minimum
        if minimum.decrease >= self.tol:
            warnings.warn(
                f"the fit ended before tol={self.tol}: after {minimum.steps} steps (max_iter="
                f"{self.max_iter}) the next promises {minimum.decrease:.2g}",
                ConvergenceWarning,
                stacklevel=4,
            )
        kernel = objective.kernel
        self.bandwidth_ = kernel.bandwidth.numpy() if isinstance(kernel, Gaussian) else None
        self.alpha_, self.penalty_, self.n_iter_ = objective.alpha, fit.penalty, minimum.steps
        self.base_ = self._bases[objective.alpha]
        density, mean = self._density(fit), float(objective.mean @ minimum.x)
        # By exact integrals in place of sums over nodes; the correction for optimism stays.
        self.loss_ = float(conjugate(density.score, density)) - mean
        self.criterion_ = self.loss_ + fit.criterion - fit.loss
        self._objective, self._uncut = objective, density
        if self.base is None and isinstance(density, KernelDeformedExp):
            box = cast(list[Uniform], self.base_)
            extremes, weights = extreme_observations(x, weight, box)
            fraction, count = weights / objective.weight, objective.observations
            density = truncated(density, extremes, fraction, count, objective.cells, box)
            self._set_density(extended(density, extremes, fraction, box), x)
            return
        self._set_density(density, x)
        off = [w[log_density(density, rows).isneginf()].sum() for rows, w in chunks(x, weight)]
        missed = float(sum(off) / weight.sum())
        if missed > _MOST_MISSED:
            warnings.warn(
                f"the density is zero at {missed:.1%} of the observations; a smaller "
                "penalty or bandwidth, or the default base, has them in the support",
                RuntimeWarning,
                stacklevel=4,
            )

    def _set_density(self, density: SparseDistribution, x: Tensor) -> None:
        """Set the density, its masses, and its offset from observations (n, D)."""
        self.density_ = density
        self._set_offset(x)
        # An earlier fit to one column may have left it.
        self.__dict__.pop("support_mass_", None)
        if not density.event_shape:
            masses = density.cdf(torch.from_numpy(self.support_)).diff().squeeze(-1)
            self.support_mass_: Floats = masses.numpy()

    @one_thread()
    def score(self, X: ArrayLike, y: object = None) -> float:
        r"""Return minus the mean Fenchel-Young loss: larger is better.

        It is $\frac1n \sum_i f(x_i) - \Omega^*_\alpha(f)$ with the score f before the support is
        cut, finite also where the density is zero; at alpha = 1 the log-likelihood relative to the
        base. Use it to compare bandwidths and penalties by cross-validation, but not different
        alphas or bases.
        """
        x, f = self._observations(X), self._uncut.score
        cells = self._objective.cells
        values = [cells.mean(lambda t: f(as_events(t)), rows) for (rows,) in chunks(x)]
        return float(torch.cat(values).mean() - conjugate(f, self._uncut))


def _bandwidths(deviation: Tensor, least: float, unit: Tensor) -> list[Tensor]:
    """Return the bandwidths (D,) to choose from, the widest first.

    Args:
        deviation: Standard deviation of each column (D,).
        least: The least bandwidth that the distance of inducing points allows.
        unit: To which columns are rounded (D,): narrower kernels would show the gaps between.
    """
    widest, *narrower = (factor * deviation for factor in _BANDWIDTHS)
    resolved = [w for w in narrower if float(w.amin()) >= least and (w >= unit).all()]
    return [torch.maximum(widest, unit), *resolved]


def _candidate_kernels(
    kernel: Kernel | None, bandwidth: ArrayLike | None, widths: Sequence[Tensor]
) -> list[Kernel]:
    """Return the kernel that is given, or Gaussian ones with a given bandwidth or with widths (D,).

    Raises:
        ValueError: `bandwidth` not positive, or given with a kernel; `kernel` not callable.
    """
    if kernel is None:
        given = bandwidth_of(bandwidth, len(widths[0]))
        return [Gaussian(width) for width in (widths if given is None else [given])]
    if bandwidth is not None:
        raise ValueError(f"bandwidth must be None if kernel is given, got {bandwidth!r}")
    require_kernel(kernel)
    if isinstance(kernel, nn.Module):  # of Pyro, say: its parameters are not learned
        return [copy.deepcopy(kernel).requires_grad_(False)]
    return [kernel]


def _default_base(
    alpha: float, columns: Columns, limits: Tensor, unit: Tensor
) -> list[Distribution]:
    """Return a base density for each column.

    At alpha = 1, where the density has its tails, it is normal with twice the standard deviation,
    within the limits. Otherwise, and between two limits, it is uniform, on the range of the data
    and a margin or up to the limits.

    Args:
        alpha: Entropic index.
        columns: Ranges and moments of the columns.
        limits: Bounds (D, 2), infinite where there are none.
        unit: Units to which columns are rounded (D,), the least margins.
    """
    bounded = torch.isfinite(limits)
    margin = torch.maximum(MARGIN * (columns.high - columns.low), unit)
    low = torch.where(bounded[:, 0], limits[:, 0], columns.low - margin)
    high = torch.where(bounded[:, 1], limits[:, 1], columns.high + margin)
    base: list[Distribution] = [*uniform_box(low, high)]
    if alpha > 1:
        return base
    for d, (loc, scale) in enumerate(zip(columns.mean, _WIDE * columns.deviation, strict=True)):
        if not bounded[d].all():
            base[d] = Normal(loc, scale, validate_args=False)
        # With one limit, the normal density is cut there.
        if bounded[d].sum() == 1:
            base[d] = Truncated(base[d], *limits[d])
    return base


def _warn_of_tails(x: Tensor, span: float, least: float) -> None:
    """Warn if half of the numbers (n, 1) are in an interval that the narrowest kernel hides.

    Args:
        x: The observations.
        span: Their range.
        least: The least bandwidth.
    """
    low, high = np.quantile(x.numpy(), (0.25, 0.75))
    if 0 < high - low < _TAILS * least:
        warnings.warn(
            f"X has heavy tails or far observations: its range is {span / (high - low):.3g} times "
            f"the distance {high - low:.3g} between its quartiles, of which no kernel here shows "
            "details; transform the column, by numpy.log or numpy.arcsinh, or leave them out",
            RuntimeWarning,
            stacklevel=5,
        )


def kernel_density(
    kernel: Kernel, points: Tensor, weights: Tensor, base: Base | None, alpha: float
) -> KernelExp | KernelDeformedExp:
    """Return the density of a score with weights (I,) at inducing points (I, D)."""
    located, tolerance = as_events(points), _TOLERANCE[points.shape[-1]]
    if alpha == 1:
        return KernelExp(weights, located, kernel, base, tolerance=tolerance)
    return KernelDeformedExp(weights, located, kernel, base, alpha, tolerance=tolerance)
