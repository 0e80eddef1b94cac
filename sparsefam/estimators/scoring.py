"""A score that estimates of any kind share, with exact zeros or without."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..distributions import SparseDistribution
from ..distributions.base import StandardizedDistribution
from ..distributions.base_measure import BaseMeasure
from ..numerics.distributed import sum_over_ranks
from .selection import Chosen

__all__ = ["held_out_loss", "quadratic_score"]

# Rows of data whose features are in memory at a time.
_CHUNK = 2**13


def quadratic_score(estimator: Any, X: ArrayLike, y: object = None) -> float:
    r"""$\frac2n \sum_i p(x_i) - \int p^2$: larger is better, also between densities of any alpha.

    Up to a constant it is minus the integrated squared error, and minus twice the Fenchel-Young
    loss at alpha = 2 of the score $f = p$, whose prediction map every density p is. The losses of
    two densities at their own alphas are in different units; this one is the same for both, and,
    unlike a likelihood, finite where an observation is off a support.

    Args:
        estimator: One of this package's, fitted; or any with a `density_` and `score_samples`.
        X: Observations (n, D) that it has not seen.
        y: Not used, so that this is a `scoring` of `GridSearchCV` and `cross_val_score`.

    References:
        Gneiting and Raftery (2007), Strictly Proper Scoring Rules, Prediction, and Estimation.
        JASA 102. Rudemo (1982), Empirical Choice of Histograms and Kernel Density Estimators.
    """
    if not hasattr(estimator, "score_samples"):
        raise ValueError(f"estimator must have score_samples, got {estimator!r}")
    given = estimator.score_samples(X)
    if not hasattr(estimator, "density_"):
        raise ValueError(f"estimator must have a density_, got {estimator!r}")
    mean = float(torch.from_numpy(given).exp().mean())
    return 2 * mean - _square(estimator.density_)


def _square(p: SparseDistribution) -> float:
    """The integral of the squared density."""
    if isinstance(p, StandardizedDistribution):
        return float(torch.exp(p._log_power_integral(2.0) - p._log_det()))
    return float(p.expect(p.prob))


def held_out_loss(
    chosen: Chosen, p: SparseDistribution, x: Tensor, weight: Tensor, group: Any
) -> float:
    """Minus `quadratic_score` of observations (n, D) that are left out one by one, to first order.

    Without one observation the coefficients move along the inverse curvature, and the density there
    with them.
    """
    objective, fit = chosen.objective, chosen.fit
    base = BaseMeasure(p.base, x.shape[1], x.dtype)
    heights, moved = x.new_zeros(()), x.new_zeros(())
    for rows, share in zip(x.split(_CHUNK), weight.split(_CHUNK), strict=True):
        phi = objective.features.at(rows)
        log = p.log_prob(rows if p.event_shape else rows.squeeze(-1))
        # The derivative of p is q0^(alpha - 1) p^(2 - alpha) times that of f - A.
        lowered = (2 - objective.alpha) * torch.where(log.isinf(), 0.0, log)
        lowered = torch.exp(lowered + (objective.alpha - 1) * base.log_density(rows))
        slope = torch.where(log.isinf(), 0.0, lowered).unsqueeze(-1) * (phi - fit.center)
        step = torch.cholesky_solve((phi - objective.data.mean).T, fit.factor).T
        heights = heights + share @ log.exp()
        moved = moved + share @ (slope * step).sum(1)
    sums = torch.stack([heights, moved])
    sums = sums if group is None else sum_over_ranks(sums, group)
    height, shift = sums / objective.data.weight
    return _square(p) + 2 * float(shift / objective.data.size - height)
