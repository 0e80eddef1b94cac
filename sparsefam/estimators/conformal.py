"""Sets that contain a new observation with a given probability: conformal sets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor
from torch.distributions import Uniform

from .._numerics.validation import as_number
from ..distributions import Mixture, SparseDistribution
from ..distributions._kernel.base_measure import uniform_box
from ..supports import IntervalUnion
from ._data import Floats, Places
from ._truncation import Widened, uniform_on, uniform_within

__all__ = ["conformal_mass", "folds_of", "widened"]

# The number of folds, and the least number of observations.
_FOLDS, _LEAST = 5, 25
# Rounding of products with 1 - coverage, and of ends, relative to the farthest distance.
_ROUNDING, _END = 1e-9, 1e-12


def conformal_mass(p: SparseDistribution, y: Tensor, coverage: float) -> Tensor:
    r"""Return the mass of whose sets of highest density contain new answers with a probability.

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
    rank = math.ceil((len(y) + 1) * coverage - _ROUNDING)
    if rank > len(y):
        least = math.ceil(coverage / (1 - coverage) - _ROUNDING)
        raise ValueError(f"coverage={coverage:g} takes at least {least} answers, got {len(y)}")
    masses = p.highest_density_mass(y)
    found = masses.sort().values[rank - 1]
    if found >= 1:
        share = float((masses >= 1).double().mean())
        raise ValueError(
            f"y must be where p is positive for a share of {coverage:g}, got {share:.0%} of the "
            "answers where it is zero; use a smaller alpha or a wider density"
        )
    return found


def folds_of(x: Tensor, coverage: Any, random_state: Any) -> Tensor:
    """Return the fold (n,) of each observation, at random, of five equal ones."""
    if not 0 < as_number(coverage) < 1:
        raise ValueError(f"coverage must be a number between 0 and 1, or None, got {coverage!r}")
    n, least = len(x), math.ceil(1 / (1 - coverage) - 1 - _ROUNDING)
    if n < max(least, _LEAST):
        raise ValueError(
            f"coverage={coverage:g} takes at least {max(least, _LEAST)} observations, got {n}"
        )
    fold = torch.from_numpy(check_random_state(random_state).permutation(n) % _FOLDS)
    for k in range(_FOLDS):
        rest = x[fold != k]
        if (rest == rest[0]).all(0).any():
            raise ValueError(
                f"X must have no constant column among the {len(rest)} observations that "
                f"coverage={coverage:g} leaves for a fit, got {rest.amin(0).tolist()} to "
                f"{rest.amax(0).tolist()}"
            )
    return fold


def widened(
    outer: Any, inners: Sequence[Any], held: Sequence[Tensor], coverage: float, limits: Tensor
) -> Mixture:
    r"""Widen the support of an estimate until it contains a new observation with a probability.

    The estimator `outer` is fitted to all n observations, each of the `inners` to all but one fold
    `held` (m, D). A place is as far off as an observation i of a fold if it is as far from the
    support of the fit without that fold. The new support has the places that are as far off as
    $\lfloor (n + 1)(1 - coverage) \rfloor$ observations or fewer, within known `limits` (D, 2), and
    the support of `outer`.

    It stays a density as a mixture of the estimate and the uniform density on the new support, with
    the share of the observations that the fits without them miss.

    References:
        Vovk (2015), Cross-conformal predictors. Annals of Mathematics and AI 74.
        Barber, Candes, Ramdas and Tibshirani (2021), Predictive inference with the jackknife+.
        Annals of Statistics 49.
    """
    count = sum(map(len, held))
    rank = math.floor((count + 1) * (1 - coverage) + _ROUNDING)
    if len(limits) > 1:
        places = [fit._places() for fit in inners]
        off = [np.sort(p.distance(x)) for p, x in zip(places, held, strict=True)]
    else:
        off = [np.sort(fit._distance(x)) for fit, x in zip(inners, held, strict=True)]
    farthest = float(np.sort(np.concatenate(off))[-min(rank, count)])
    pairs = zip(inners, held, strict=True)
    missed = sum(int((fit.predict(x.numpy()) < 0).sum()) for fit, x in pairs)
    parts = getattr(outer.density_, "components", [outer.density_])
    own = 0.0 if len(parts) == 1 else float(outer.density_.probs[-1])
    share = max((missed + 1) / (count + 2), own)
    logits = torch.tensor([1 - share, share], dtype=limits.dtype).log()
    if len(limits) > 1:
        flat = _on_region(outer, places, off, rank, farthest, limits)
    else:
        intervals = _intervals([fit.support_ for fit in inners], off, rank)
        ends = torch.cat([intervals, torch.from_numpy(outer.support_)]).clamp(*limits[0].tolist())
        # Where a base has tails, the estimate is positive there itself.
        seen = torch.cat([*held])
        first, last = float(seen.amin()) - farthest, float(seen.amax()) + farthest
        ends = ends.nan_to_num(neginf=first, posinf=last)
        union = IntervalUnion.merged(ends[ends[:, 0] < ends[:, 1]]).intervals
        union = union[~union[:, 0].isnan()]
        flat = uniform_on(parts[0], union, Uniform(union[0, 0], union[-1, 1]))
    return Mixture(logits, [parts[0], flat])


def _intervals(supports: Sequence[Floats], off: Sequence[Floats], rank: int) -> Tensor:
    """Return the intervals (J, 2) of places that are as far off as `rank` observations at most."""
    places, steps = [], []
    for support, distances in zip(supports, off, strict=True):
        for radius, times in zip(*np.unique(distances, return_counts=True), strict=True):
            # An end may be an observation, which rounding must not leave outside.
            finite = support[np.isfinite(support)]
            slack = _END * (np.abs(finite).max(initial=0.0) + radius) if radius else 0.0
            wide = torch.from_numpy(support + (radius + slack) * np.array([-1.0, 1.0]))
            union = IntervalUnion.merged(wide).intervals
            ends = union[~union[:, 0].isnan()].numpy()
            places.append(ends.T.flatten())
            steps.append(np.repeat([times, -times], len(ends)))
    place, step = np.concatenate(places), np.concatenate(steps)
    order = np.lexsort((-step, place))  # intervals are closed
    place, inside = place[order], step[order].cumsum() >= rank
    before = np.concatenate([[False], inside[:-1]])
    found = np.stack([place[inside & ~before], place[before & ~inside]], -1)
    return torch.from_numpy(found)


def _on_region(
    outer: Any,
    places: Sequence[Places],
    off: Sequence[Floats],
    rank: int,
    farthest: float,
    limits: Tensor,
) -> Any:
    """Return the uniform density on places in space."""
    region = Widened(outer.density_, _NotFar(tuple(places), tuple(off), rank))
    ends = [outer._whole.inducing_points.reshape(-1, len(limits)).numpy()]
    for scale, tree in (outer._places(), *places):
        ends += [(tree.data - farthest) * scale, (tree.data + farthest) * scale]
    low = torch.from_numpy(np.min([end.min(0) for end in ends], 0)).maximum(limits[:, 0])
    high = torch.from_numpy(np.max([end.max(0) for end in ends], 0)).minimum(limits[:, 1])
    return uniform_within(outer._whole, uniform_box(low, high), region)


@dataclass(frozen=True)
class _NotFar:
    """Whether places are as far off as `rank` observations at most."""

    places: tuple[Places, ...]
    off: tuple[Floats, ...]  # Of the observations, ascending
    rank: int

    def __call__(self, t: Tensor) -> Tensor:
        x = t.detach().reshape(-1, t.shape[-1])
        x = torch.where(torch.isfinite(x), x, torch.finfo(x.dtype).max ** 0.5)
        as_far = [
            len(distances) - np.searchsorted(distances, places.distance(x))
            for places, distances in zip(self.places, self.off, strict=True)
        ]
        return torch.from_numpy(np.sum(as_far, 0) >= self.rank).reshape(t.shape[:-1])
