"""Bandwidths, penalties and alphas, chosen by estimates of the loss of new data."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch import Tensor

from ..distributions import KernelDistribution
from ._data import as_events, chunks
from ._newton import Fit, Objective

__all__ = ["BIAS_FACTOR", "best_of", "best_penalty", "held_out_loss", "quadratic_score"]

# A search stops after so many candidates in a row that are worse than the best.
_PATIENCE = 2
# When bandwidths are compared, the difference of the criterion's bias corrections is multiplied by
# this factor.
BIAS_FACTOR = 2
# The tolerance of fits that are only compared, and the most Newton steps of these.
_ROUGH, _ROUGH_STEPS = 1e-5, 40
# The greatest error of the mass by sums over nodes.
_UNRESOLVED = 0.03

Candidate = TypeVar("Candidate")


def best_of(
    candidates: Sequence[Candidate], attempt: Callable[[Candidate], Fit], factor: float = 1
) -> Fit:
    """Return the fit with the least criterion; candidates begin with the smoothest.

    The criterion is an estimate, and its errors cost more where they favor a narrow kernel, since
    a smaller penalty makes up for a wide one. For kernels, therefore, the difference between
    the bias corrections of a candidate and of the best one so far is multiplied by a factor.

    Args:
        candidates: The smoothest one first. The search ends after two in a row that are not better.
        attempt: From a candidate to its fit. ValueError of any but the first ends the search.
        factor: 1 compares the criteria as they are.

    References:
        Gu and Wang (2003), Penalized likelihood density estimation: direct cross-validation and
        scalable approximation. Statistica Sinica 13. R's gss multiplies the correction by 1.4.
    """
    first, *others = candidates
    best, num_worse = attempt(first), 0
    for candidate in others:
        try:
            fit = attempt(candidate)
        except ValueError:
            # No nodes resolve the density. Any other error would have come from the first one.
            break
        # The criterion is the loss of the data plus a correction of its bias.
        change = fit.criterion - best.criterion
        correction = change - (fit.loss - best.loss)
        if change + (factor - 1) * max(correction, 0.0) < 0:
            best, num_worse = fit, 0
        else:
            num_worse += 1
        if num_worse == _PATIENCE:
            break
    return best


def best_penalty(
    objective: Objective,
    penalties: Sequence[float],
    tol: float,
    max_iter: int,
    report: Callable[[], object],
) -> Fit:
    """Return the fit of the best penalty; penalties begin with the largest.

    Each fit starts from the last one.

    Args:
        objective: The loss of one kernel and alpha.
        penalties: Factors of the squared norm that are tried in this order.
        tol: As for `minimize`, but not below 1e-5, as fits are only compared.
        max_iter: Greatest number of Newton steps of a fit, at most 40.
        report: Called after each fit, for a progress bar.

    Raises:
        ValueError: The nodes do not resolve the density, even with the largest penalty.
    """
    start = torch.zeros_like(objective.first)

    def attempt(penalty: float) -> Fit:
        """Return the fit of a penalty; raise ValueError unless the nodes resolve its density."""
        nonlocal start
        fit = objective.minimum(start, penalty, max(tol, _ROUGH), min(max_iter, _ROUGH_STEPS))
        start = fit.minimum.x
        report()
        if not fit.error <= _UNRESOLVED:
            raise ValueError(
                "penalty must be larger, or bandwidth or alpha, for nodes to resolve the density, "
                f"got penalty {penalty:g}, alpha {objective.alpha:g}, {objective.kernel}"
            )
        return fit

    return best_of(penalties, attempt)


def held_out_loss(
    fit: Fit,
    p: KernelDistribution,
    x: Tensor,
    weight: Tensor,
) -> float:
    r"""Return $\int p^2 - \frac2n \sum_i p_{-i}(x_i)$, where $p_{-i}$ is fitted without $x_i$.

    This estimates minus the `quadratic_score` of new data. To first order, leaving out $x_i$
    changes the coefficients c by $-H^{-1}(\phi(x_i) - \bar\phi)/n$, with the Hessian H of the
    penalized loss and the mean $\bar\phi$ of the functions at the data: nothing is fitted again.

    Args:
        fit: The fit to all observations.
        p: Its density.
        x: The observations (n, D).
        weight: Their weights (n,). Sums are weighted, and n is the effective number.
    """
    objective = fit.objective
    # Weighted means of p(x_i), and of its derivative along H^-1 (phi(x_i) - mean), by which p(x_i)
    # falls, over n, if x_i is left out.
    height, moved = x.new_zeros(()), x.new_zeros(())
    for rows, w in chunks(x, weight):
        phi = objective.features(rows)
        prob = p.prob(as_events(rows))
        # p is the power 1 / (alpha - 1) of this base, times the base density. Its gradient in c is
        # the escort times phi - center, as the normalizer has the gradient `center`.
        power_base = 1 + (objective.alpha - 1) * (p.score(as_events(rows)) - p.log_normalizer)
        escort = torch.where(prob > 0, prob / power_base, 0.0)
        slope = escort.unsqueeze(-1) * (phi - fit.center)
        step = torch.cholesky_solve((phi - objective.mean).T, fit.minimum.factor).T
        height = height + w @ prob / objective.weight
        moved = moved + w @ (slope * step).sum(1) / objective.weight
    held_out = height - moved / objective.observations  # The mean of p_{-i}(x_i)
    return float(p.expect(p.prob)) - 2 * float(held_out)


def quadratic_score(estimator: Any, X: ArrayLike, y: object = None) -> float:
    r"""Return $\frac2n \sum_i p(x_i) - \int p^2$: larger is better, for densities of any alpha.

    Up to a constant it is minus the integrated squared error, and minus twice the Fenchel-Young
    loss at alpha = 2 of the score $f = p$, whose prediction map is the density p itself. Losses of
    densities at their own alphas have different units and cannot be compared; this score can.
    Unlike a log-likelihood, it is finite where an observation is off a support.

    Args:
        estimator: A fitted estimator of this package, or any other with a `density_` (a
            distribution of this package) and `score_samples`; scikit-learn's `KernelDensity` with a
            Gaussian kernel; scipy's `gaussian_kde`.
        X: Observations (n, D) that the estimator was not fitted to.
        y: Not used, so that this is a `scoring` of `GridSearchCV` and `cross_val_score`.

    Raises:
        ValueError: `estimator` lacks `score_samples` or `density_`, or is a `KernelDensity` with
            another kernel or metric.

    References:
        Gneiting and Raftery (2007), Strictly Proper Scoring Rules, Prediction, and Estimation.
        JASA 102. Rudemo (1982), Empirical Choice of Histograms and Kernel Density Estimators.
    """
    if isinstance(estimator, gaussian_kde):
        heights = estimator(np.asarray(X, dtype=float).T)
        return 2 * float(heights.mean()) - float(estimator.integrate_kde(estimator))
    if not hasattr(estimator, "score_samples"):
        raise ValueError(f"estimator must have score_samples, got {estimator!r}")
    # The mean density of unseen data estimates the integral of p times the true density.
    height = float(np.exp(estimator.score_samples(X)).mean())
    if isinstance(estimator, KernelDensity):
        return 2 * height - _squared_integral(estimator)
    if not hasattr(estimator, "density_"):
        raise ValueError(f"estimator must have a density_, got {estimator!r}")
    p = estimator.density_
    return 2 * height - float(p.expect(p.prob))


def _squared_integral(kde: KernelDensity) -> float:
    """Integrate the square of a kernel density estimate.

    The product of two Gaussians of width h integrates to one Gaussian of width sqrt(2) h, at the
    difference of their centers.
    """
    if (kde.kernel, kde.metric) != ("gaussian", "euclidean"):
        raise ValueError(f"estimator must have a Gaussian kernel of Euclidean distances, got {kde}")
    x, weight = np.asarray(kde.tree_.data), kde.tree_.sample_weight
    wider = KernelDensity(bandwidth=2**0.5 * kde.bandwidth_).fit(x, sample_weight=weight)
    return float(np.average(np.exp(wider.score_samples(x)), weights=weight))
