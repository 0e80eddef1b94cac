"""Bandwidths, penalties and alphas, chosen by estimates of the loss of new data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch import Tensor
from tqdm import tqdm

from ..distributions import SparseDistribution
from ..distributions.base_measure import BaseMeasure
from .data import as_events, sum_over
from .newton import PEAKED, Fit, Objective

if TYPE_CHECKING:  # some builds of torch lack process groups
    from torch.distributed import ProcessGroup

__all__ = [
    "BIAS_FACTOR",
    "Choice",
    "Report",
    "best_of",
    "best_penalty",
    "held_out_loss",
    "progress",
    "quadratic_score",
    "refit",
]

# A search stops after so many candidates in a row that are worse than the best.
_PATIENCE = 2
# When bandwidths are compared, the difference of the criterion's bias corrections is multiplied by
# this factor.
BIAS_FACTOR = 2
# The tolerance of fits that are only compared.
_ROUGH = 1e-5
# Fits with small penalties start from fits with these.
_LARGER_PENALTIES = (1e-2, 1e-4, 1e-6)
# Rows of data whose features are in memory at a time.
_CHUNK = 2**13
# A progress bar appears after so many seconds.
_DELAY = 5.0

Candidate = TypeVar("Candidate")
Report = Callable[[str], None]


class Choice(NamedTuple):
    """A fit, with its objective and penalty."""

    objective: Objective
    fit: Fit
    penalty: float


def best_of(
    candidates: Sequence[Candidate], attempt: Callable[[Candidate], Choice], factor: float = 1
) -> Choice:
    """Return the fit with the least criterion; candidates begin with the smoothest.

    The criterion is an estimate, and its errors cost more where they favour a narrow kernel, since
    a smaller penalty makes up for a wide one. For kernels, therefore, what a candidate adds to the
    bias correction of the best one so far is multiplied by a factor.

    References:
        Gu and Wang (2003), Penalized likelihood density estimation: direct cross-validation and
        scalable approximation. Statistica Sinica 13. R's gss multiplies the correction by 1.4.
    """
    first, *others = candidates
    best, worse = attempt(first), 0
    for candidate in others:
        try:
            choice = attempt(candidate)
        except ValueError:
            # No mesh resolves the density. Any other error would have come from the first one.
            break
        worse = 0 if _is_better(choice.fit, best.fit, factor) else worse + 1
        best = best if worse else choice
        if worse == _PATIENCE:
            break
    return best


def _is_better(fit: Fit, best: Fit, factor: float) -> bool:
    """Compare criteria, with additional bias correction multiplied by a factor."""
    change = fit.criterion - best.criterion
    correction = change - (fit.loss - best.loss)
    return change + (factor - 1) * max(correction, 0.0) < 0


def best_penalty(
    objective: Objective, penalties: Sequence[float], tol: float, max_iter: int, report: Report
) -> Choice:
    """Return the fit of the best penalty; penalties begin with the largest.

    Each fit starts from the last one, on its mesh. Only the best one locates the edges of the
    support, which takes most of the time.
    """
    problem, tol = objective.ignoring_edges(), max(tol, _ROUGH)
    start = objective.data.first.new_zeros(objective.features.mixing.shape[1])

    def attempt(penalty: float) -> Choice:
        nonlocal problem, start
        problem, fit = problem.resolved_minimum(start, penalty, tol, max_iter)
        start = fit.coefficients
        report(f"{objective}, penalty {penalty:g}: criterion {fit.criterion:.6g}")
        return Choice(problem, fit, penalty)

    for larger in _LARGER_PENALTIES:
        if larger > penalties[0]:
            start = problem.minimum(start, larger, tol, max_iter).coefficients
    best = best_of(penalties, attempt)
    peaked = objective.alpha < PEAKED
    exact = replace(best.objective, ignores_edges=False) if peaked else objective
    return refit(best._replace(objective=exact), tol, max_iter)


def refit(choice: Choice, tol: float, max_iter: int) -> Choice:
    """Continue a fit to a tolerance."""
    start, penalty = choice.fit.coefficients, choice.penalty
    return Choice(*choice.objective.resolved_minimum(start, penalty, tol, max_iter), penalty)


def held_out_loss(
    choice: Choice,
    p: SparseDistribution,
    x: Tensor,
    weight: Tensor,
    group: "ProcessGroup | None",
) -> float:
    """Estimate minus the `quadratic_score` of observations (n, D) that are left out one by one.

    To first order, leaving out one observation moves the coefficients along the inverse curvature.
    """
    objective, fit = choice.objective, choice.fit
    base = BaseMeasure(p.base, x.shape[1], x.dtype)
    heights, moved = x.new_zeros(()), x.new_zeros(())
    for rows, share in zip(x.split(_CHUNK), weight.split(_CHUNK), strict=True):
        phi = objective.features.at(rows)
        log = p.log_prob(as_events(rows))
        # The derivative of p is q0^(alpha - 1) p^(2 - alpha) times that of f - A.
        log_escort = (2 - objective.alpha) * torch.where(log.isinf(), 0.0, log)
        escort = torch.exp(log_escort + (objective.alpha - 1) * base.log_density(rows))
        slope = torch.where(log.isinf(), 0.0, escort).unsqueeze(-1) * (phi - fit.center)
        step = torch.cholesky_solve((phi - objective.data.mean).T, fit.factor).T
        heights = heights + share @ log.exp()
        moved = moved + share @ (slope * step).sum(1)
    height, shift = sum_over(torch.stack([heights, moved]), group) / objective.data.weight
    return float(p.expect(p.prob)) + 2 * float(shift / objective.data.size - height)


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
    height = float(np.exp(estimator.score_samples(X)).mean())
    if isinstance(estimator, KernelDensity):
        return 2 * height - _squared_integral(estimator)
    if not hasattr(estimator, "density_"):
        raise ValueError(f"estimator must have a density_, got {estimator!r}")
    p = estimator.density_
    return 2 * height - float(p.expect(p.prob))


def _squared_integral(kde: KernelDensity) -> float:
    """Integrate the square of a kernel density estimate: pairs of Gaussians are a wider one."""
    if (kde.kernel, kde.metric) != ("gaussian", "euclidean"):
        raise ValueError(f"estimator must have a Gaussian kernel of Euclidean distances, got {kde}")
    x, weight = np.asarray(kde.tree_.data), kde.tree_.sample_weight
    wider = KernelDensity(bandwidth=2**0.5 * kde.bandwidth_).fit(x, sample_weight=weight)
    return float(np.average(np.exp(wider.score_samples(x)), weights=weight))


@contextmanager
def progress(title: str, total: int, verbose: bool | None) -> Iterator[Report]:
    """Yield a function that reports one of up to `total` steps with a line of text.

    It prints the line if `verbose`. Unless `verbose` is False, a bar appears on a terminal (stderr)
    once the work has taken five seconds.
    """
    hidden = None if verbose or verbose is None else True
    with tqdm(total=total, desc=title, delay=_DELAY, disable=hidden, leave=False) as bar:

        def report(line: str) -> None:
            bar.update()
            if verbose:
                bar.write(f"[{title}] {line}")

        yield report
