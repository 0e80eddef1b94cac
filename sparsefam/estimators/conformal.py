"""Sets that contain a new observation with a given probability: conformal sets."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from .._numerics.validation import as_number
from ..distributions import Mixture, SparseDistribution
from ..supports import IntervalUnion, Region
from ._data import PointTree, Seed, distance_from, intervals_of, log_density
from ._truncation import Neighborhood, uniform

__all__ = ["conformal_mass", "folds_of", "widened"]

# The number of folds, and the least number of observations.
_FOLDS, _LEAST = 5, 25
# Products with 1 - coverage are whole numbers up to this rounding.
_ROUNDING = 1e-9


def conformal_mass(p: SparseDistribution, y: Tensor, coverage: float) -> Tensor:
    r"""Return the mass of the sets of highest density that contain new answers with a probability.

    The mass is the $\lceil (n + 1) c \rceil$-th smallest of `p.highest_density_mass(y)`, where c is
    the coverage, and `new.highest_density(mass)` a split conformal prediction set. If the n answers
    and the new one are exchangeable, and the model of the densities was fitted to others, it
    contains the new answer with a probability of at least c, and of less than c + 1/(n + 1) without
    ties.

    Args:
        p: Densities (n,) of numbers, one for each answer.
        y: Answers (n,).
        coverage: The probability c, in (0, 1).

    Raises:
        ValueError: `coverage` outside (0, 1), or too close to 1 for n answers; `y` of another
            shape, or too many of the answers where their densities are zero.

    References:
        Izbicki, Shimizu and Stern (2022), CD-split and HPD-split: efficient conformal regions in
        high dimensions. JMLR 23.
    """
    if not 0 < as_number(coverage) < 1:
        raise ValueError(f"coverage must be a number between 0 and 1, got {coverage!r}")
    if y.dim() != 1 or p.batch_shape != y.shape:
        shapes = f"{tuple(y.shape)} and {tuple(p.batch_shape)}"
        raise ValueError(f"y and p must have the same shape (n,), got {shapes}")
    # The mass of a new answer is equally likely to have any rank among n + 1.
    rank = math.ceil((len(y) + 1) * coverage - _ROUNDING)
    if rank > len(y):
        least = math.ceil(coverage / (1 - coverage) - _ROUNDING)
        raise ValueError(f"coverage={coverage:g} takes at least {least} answers, got {len(y)}")
    masses = p.highest_density_mass(y)
    mass = masses.sort().values[rank - 1]
    if mass >= 1:
        missed = float((masses >= 1).double().mean())
        raise ValueError(
            f"y must be where p is positive for a share of {coverage:g}, got {missed:.0%} of the "
            "answers where it is zero; use a smaller alpha or a wider density"
        )
    return mass


def folds_of(x: Tensor, coverage: float, random_state: Seed) -> Tensor:
    """Return the number, from 0 to 4, of each observation's fold (n,): five equal ones at random.

    Args:
        x: Observations (n, D).
        coverage: The probability of a set that the folds are to calibrate.
        random_state: Seed.

    Raises:
        ValueError: `coverage` outside (0, 1), or too close to 1 for n observations; a column that
            is constant in four of the folds.
    """
    if not 0 < as_number(coverage) < 1:
        raise ValueError(f"coverage must be a number between 0 and 1, or None, got {coverage!r}")
    # The rank of the radius, floor((n + 1)(1 - coverage)), must be at least 1.
    n, least = len(x), math.ceil(1 / (1 - coverage) - 1 - _ROUNDING)
    if n < max(least, _LEAST):
        raise ValueError(
            f"coverage={coverage:g} takes at least {max(least, _LEAST)} observations, got {n}"
        )
    fold = torch.from_numpy(check_random_state(random_state).permutation(n) % _FOLDS)
    for k in range(_FOLDS):
        training = x[fold != k]
        if (training == training[0]).all(0).any():
            raise ValueError(
                f"X must have no constant column among the {len(training)} observations that "
                f"coverage={coverage:g} leaves for a fit, got {training.amin(0).tolist()} to "
                f"{training.amax(0).tolist()}"
            )
    return fold


def widened(
    p: SparseDistribution,
    inners: Sequence[SparseDistribution],
    held: Sequence[Tensor],
    coverage: float,
    limits: Tensor,
) -> Mixture:
    r"""Widen the support of an estimate until it contains a new observation with a probability.

    The radius is the $\lfloor (n + 1)(1 - coverage) \rfloor$-th largest distance of an observation
    from the support of the fit without its fold. The new support has the places within the radius
    of the support of any of these fits, inside the limits, and the support of p. It contains the
    cross-conformal set: a place is in that set if at least so many observations are as far as it,
    or farther, from the support of the fit without their fold.

    It stays a density as a mixture of the estimate and the uniform density on the new support. The
    uniform one has about the weight of the observations that are missed by the fits without their
    fold, and at least the weight of the uniform component of p.

    Args:
        p: The estimate, fitted to all n observations, or the mixture that `extended` returns.
        inners: Fits to all observations but one fold, for each fold.
        held: The fold (m, D) that each of these fits leaves out.
        coverage: The probability.
        limits: Ends (D, 2) of the columns.

    References:
        Vovk (2015), Cross-conformal predictors. Annals of Mathematics and AI 74.
        Barber, Candes, Ramdas and Tibshirani (2021), Predictive inference with the jackknife+.
        Annals of Statistics 49.
    """
    count, pairs = sum(map(len, held)), list(zip(inners, held, strict=True))
    rank = min(math.floor((count + 1) * (1 - coverage) + _ROUNDING), count)
    distances = np.concatenate([distance_from(inner, x) for inner, x in pairs])
    # The rank of cross-conformal prediction: Vovk (2015); its guarantee is Barber et al.'s.
    radius = float(np.sort(distances)[-rank])
    missed = sum(int(log_density(inner, x).isneginf().sum()) for inner, x in pairs)
    # A mixture comes from `extended`: its second component is uniform already.
    components = getattr(p, "components", [p])
    uniform_weight = 0.0 if len(components) == 1 else float(p.probs[-1])
    # The rule of succession: positive though no observation was missed.
    uniform_weight = max((missed + 1) / (count + 2), uniform_weight)
    region: Region | IntervalUnion
    if len(limits) > 1:
        region, low, high = _region_within(radius, p, inners, limits)
    else:
        region, low, high = _intervals_within(radius, p, inners, torch.cat([*held]), limits)
    logits = limits.new_tensor([1 - uniform_weight, uniform_weight]).log()
    estimate = components[0]
    return Mixture(logits, [estimate, uniform(region, low, high, float(estimate.alpha))])


def _region_within(
    radius: float, p: SparseDistribution, inners: Sequence[SparseDistribution], limits: Tensor
) -> tuple[Region, Tensor, Tensor]:
    """Return the new support of `widened` in several dimensions, and the corners of a box around.

    It is within the radius of the nodes at which a fit is positive.
    """
    supports = [PointTree.in_support(inner) for inner in inners]
    region = Region(Neighborhood(tuple((points, radius) for points in supports), p), 1)
    boxes = [points.box(radius) for points in (*supports, PointTree.in_support(p))]
    lows, highs = (torch.from_numpy(np.array(ends)) for ends in zip(*boxes, strict=True))
    low = lows.amin(0).maximum(limits[:, 0])
    high = highs.amax(0).minimum(limits[:, 1])
    return region, low, high


def _intervals_within(
    radius: float,
    p: SparseDistribution,
    inners: Sequence[SparseDistribution],
    x: Tensor,
    limits: Tensor,
) -> tuple[IntervalUnion, Tensor, Tensor]:
    """Return the new support of `widened` in one dimension, and its ends (1,), (1,).

    Infinite ends are moved to the radius beyond the observations x (n, 1).
    """
    ends = torch.cat([intervals_of(inner) for inner in inners])
    ends = ends + radius * limits.new_tensor([-1.0, 1.0])
    ends = torch.cat([ends, intervals_of(p)]).clamp(*limits[0].tolist())
    # Where a base has tails, the estimate is positive there itself.
    first, last = float(x.amin()) - radius, float(x.amax()) + radius
    # No end is NaN, only infinite.
    ends = ends.nan_to_num(neginf=first, posinf=last)
    region = IntervalUnion.merged(ends[ends[:, 0] < ends[:, 1]])
    low, high = (end.reshape(1) for end in (region.lower_bound, region.upper_bound))
    return region, low, high
