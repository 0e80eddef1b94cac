"""Ends of estimated supports: near the observations of each of their components."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import label
from scipy.spatial import cKDTree
from torch import Tensor
from torch.distributions import Uniform

from .._feature_maps import Gaussian
from ..distributions import KernelDeformedExp, Mixture, SparseDistribution
from ..supports import IntervalUnion, Region
from ._data import (
    Floats,
    PointTree,
    as_events,
    chunks,
    distance_from,
    intervals_of,
    merged,
    reduced,
    uniform_box,
)
from ._newton import Cells

__all__ = ["Neighborhood", "extended", "extreme_observations", "truncated", "uniform"]

# Number of equal cells of a box, whose extreme observations are kept.
_CELLS = 2**14
# The mass beyond the extreme observations of an interval, relative to the mean of the mass that as
# many observations of any density miss there.
_BEYOND = 0.5
# Warn if the support that is cut holds less of the mass of the fit.
_LEAST_KEPT = 0.5
# The farthest that an observation off the support extends it, relative to the base's width.
_FARTHEST = 1 / 40
# Rounding must not keep two intervals apart by this fraction of a distance.
_TOUCH = 1e-9


def extreme_observations(
    x: Tensor, weight: Tensor, box: Sequence[Uniform]
) -> tuple[Tensor, Tensor]:
    """Return the first and last observation (K, D), in lexicographic order, in each cell of a box.

    With each comes the total weight of the observations that are equal to it. The extremes of all
    of data are extremes of one of its chunks, so nothing else is kept of data in chunks.
    """

    def extremes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        cell = torch.from_numpy(np.ravel_multi_index(_cells(_relative(x, box)), _shape(len(box))))
        kept = torch.zeros(len(x), dtype=torch.bool)
        # The least rows of each cell, of x and then of -x: each column leaves the rows that are
        # least in it, among the rows that all columns before it left.
        for signed in (x, -x):
            is_least = torch.ones_like(kept)
            for column in signed.T:
                least = x.new_full((_CELLS,), torch.inf)
                candidates = torch.where(is_least, column, torch.inf)
                is_least &= column == least.scatter_reduce(0, cell, candidates, "amin")[cell]
            kept |= is_least
        return merged(x[kept], weight[kept])

    return reduced(extremes, x, weight)


def truncated(
    p: KernelDeformedExp,
    x: Tensor,
    fraction: Tensor,
    observations: Tensor,
    cells: Cells,
    box: Sequence[Uniform],
) -> KernelDeformedExp:
    """Truncate a density under a uniform base near the extreme observations (K, D).

    These have fractions (K,) of the weight of all. Components of the support without observations
    are left out. In one dimension, ends at a bound that the user gave stay.
    """
    region: Region | IntervalUnion
    if p.event_shape:
        region = Region(_neighborhood(p, x, box), 1)
        nodes, weights = p.quadrature(1)
        kept = weights[region.check(nodes)].sum()
    else:
        intervals = _intervals(p, x, fraction, observations, cells, box)
        kept = p.cdf(intervals).diff().sum()
        if not kept > 0:
            raise ValueError(
                "penalty must be larger, or bandwidth: the support of the fit has no observation"
            )
        region = IntervalUnion(intervals)
    if kept < _LEAST_KEPT:
        warnings.warn(
            f"support_ holds only {float(kept):.2g} of the mass of the fit, whose kernels are "
            "wider than groups of the data, so that masses of its parts are wrong; leave out far "
            "observations",
            RuntimeWarning,
            stacklevel=5,
        )
    return p.restrict(region)


def _intervals(
    p: KernelDeformedExp,
    x: Tensor,
    fraction: Tensor,
    observations: Tensor,
    cells: Cells,
    box: Sequence[Uniform],
) -> Tensor:
    """Return the intervals (J, 2) of a support that have observations (K,), cut near these.

    The mass beyond the outermost of n observations of any density exceeds t with probability
    (1 - t)^n; its mean is about 1/n. An interval of the estimate ends where the mass beyond its
    outermost observation reaches half of that: three of five true ends are further out. With tied
    observations, up to half the mass of the largest tie may lie outside as well, because the
    estimate smooths an atom into a peak. Rounded observations are cells. Observations off the
    support, at most a fortieth of the base's width beyond an interval, count as its outermost.
    """
    support, low, high = p.support.intervals, *(end.squeeze(-1) for end in cells.ends(x))
    # Ends of intervals (J, 1), beside observations (K,): comparisons are (J, K).
    lower, upper = support.T.unsqueeze(-1)
    inside = (lower <= x.squeeze(-1)) & (x.squeeze(-1) <= upper)
    bounds = torch.stack([box[0].low, box[0].high])
    margin = _FARTHEST * bounds.diff()
    near = (lower - margin <= x.squeeze(-1)) & (x.squeeze(-1) <= upper + margin)
    # An observation in an interval belongs to that one only.
    near = inside | (near & ~inside.any(0))
    # For each interval the outer ends of its observations' cells (J, 2), and its largest tie (J,).
    first = torch.where(near, low, torch.inf).amin(-1)
    outermost = torch.stack([first, torch.where(near, high, -torch.inf).amax(-1)], -1)
    largest = torch.where(inside & (cells.unit == 0), fraction, 0.0).amax(-1)
    occupied = inside.any(-1)
    ends, outermost, largest = support[occupied], outermost[occupied], largest[occupied]
    # The mean mass that n observations miss is 1/n; a tie of weight w is an atom of mass w - 1/n.
    beyond = _BEYOND / observations + (largest - 1 / observations).clamp_min(0) / 2
    signed = beyond.unsqueeze(-1) * torch.tensor([-1.0, 1.0], dtype=beyond.dtype)
    cut = p.icdf((p.cdf(outermost) + signed).clamp(0, 1))
    at_bound = cells.limits.isfinite() & (ends == bounds)
    # A bound is known to be the end.
    cut = torch.where(at_bound, ends, cut)
    lower, upper = torch.maximum(ends[:, 0], cut[:, 0]), torch.minimum(ends[:, 1], cut[:, 1])
    return torch.stack([lower, upper], -1)


def extended(
    p: KernelDeformedExp, x: Tensor, fraction: Tensor, box: Sequence[Uniform]
) -> SparseDistribution:
    """Extend the support of a density until it contains all observations (K, D).

    The density is mixed with the uniform one on the new support, with the weight of the
    observations off the old one; `fraction` (K,) is the weight of each relative to all.

    In one dimension each of them adds an interval around it, which reaches to the nearest
    observation or interval. In several, each adds a ball; all have the radius at which the ball
    around the loneliest one reaches an observation. Lengths are relative to the widths of the base
    along each axis, those of the sides of `box`, and at most a fortieth of them.
    """
    missed = torch.isneginf(p.log_prob(as_events(x)))
    if not missed.any():
        return p
    # As much mass as the fit misses.
    weight = fraction[missed].sum()
    low, high = (torch.stack([getattr(side, end) for side in box]) for end in ("low", "high"))
    scale = (high - low).numpy()
    points = x.numpy() / scale
    off = points[missed.numpy()]
    # The nearest point of each is itself.
    radii = cKDTree(points).query(off, 2)[0][:, 1]
    region: Region | IntervalUnion
    if p.event_shape:
        balls = PointTree(scale, cKDTree(off)), min(radii.max(), _FARTHEST)
        region = Region(Neighborhood((balls,), p), 1)
    else:
        radii = np.minimum(radii, distance_from(p, x[missed]) / scale)
        radii = scale * radii.clip(1 / _CELLS, _FARTHEST) * (1 + _TOUCH)
        added = x[missed] + torch.from_numpy(np.stack([-radii, radii], -1))
        region = IntervalUnion.merged(torch.cat([intervals_of(p), added.clamp(low, high)]))
    logits = torch.stack([1 - weight, weight]).log()
    return Mixture(logits, [p, uniform(region, low, high, float(p.alpha))])


def uniform(
    region: Region | IntervalUnion, low: Tensor, high: Tensor, alpha: float
) -> KernelDeformedExp:
    """Return the uniform density on a region of the box between corners (D,), with an alpha."""
    center = as_events(torch.lerp(low, high, 0.5).unsqueeze(0))
    # The density of a score of zero is its base.
    whole = KernelDeformedExp(
        low.new_zeros(1), center, Gaussian(high - low), uniform_box(low, high), alpha
    )
    return whole.restrict(region)


@dataclass(frozen=True)
class Neighborhood:
    """Indicator function of balls around points, and of the support of a density."""

    balls: tuple[tuple[PointTree, float], ...]  # Centers and a radius
    p: SparseDistribution | None = None

    def __call__(self, t: Tensor) -> Tensor:
        """Return whether locations (*S, D) are near (*S)."""
        x = t.detach().reshape(-1, t.shape[-1])
        return torch.cat([self._check(rows) for (rows,) in chunks(x)]).reshape(t.shape[:-1])

    def _check(self, x: Tensor) -> Tensor:
        """Return whether locations (n, D) of one chunk are near (n,)."""
        inside = torch.zeros(len(x), dtype=torch.bool)
        if self.p is not None:
            inside = self.p.log_prob(x) > -torch.inf
        x = x.nan_to_num()
        for centers, radius in self.balls:
            inside |= torch.from_numpy(centers.distance(x) <= radius)
        return inside


def _neighborhood(p: KernelDeformedExp, x: Tensor, box: Sequence[Uniform]) -> Neighborhood:
    """Return the neighborhood of the observations (K, D) in each component of a support.

    It extends to a distance r from the n observations in the component, the largest distance of one
    of them from its nearest neighbor. A new observation is exchangeable with these, and therefore
    farther away with a probability of at most 1/(n + 1).

    References:
        Devroye and Wise (1980), Detection of Abnormal Behavior via Nonparametric Estimation of the
        Support. SIAM J. Applied Mathematics 38.
    """
    x, shape = x[p.log_prob(x) > -torch.inf], _shape(len(box))
    # Cells of the box belong to the support if p is positive at their centers or they have data.
    cells = _cells(_relative(x, box))
    middles = (torch.arange(shape[0], dtype=x.dtype) + 0.5) / shape[0]
    centers = torch.cartesian_prod(*[torch.lerp(side.low, side.high, middles) for side in box])
    positive = (p.log_prob(centers) > -torch.inf).numpy().reshape(shape)
    positive[cells] = True
    # Cells that touch along an axis are one component.
    component = label(positive)[0][cells]
    scale = torch.stack([side.high - side.low for side in box]).numpy()
    points = x.numpy() / scale
    distance = cKDTree(points).query(points, 2)[0][:, 1]  # Infinite of a single observation
    return Neighborhood(
        tuple(
            (PointTree(scale, cKDTree(points[component == k])), distance[component == k].max())
            for k in np.unique(component)
        )
    )


def _relative(x: Tensor, box: Sequence[Uniform]) -> Floats:
    """Return the nearest points (n, D) of a box, relative to it, with ends at 0 and 1."""
    sides = [(t - side.low) / (side.high - side.low) for t, side in zip(x.T, box, strict=True)]
    return torch.stack(sides, -1).nan_to_num().clamp(0, 1).numpy()


def _shape(dim: int) -> tuple[int, ...]:
    """Return the numbers of cells along the axes."""
    return (round(_CELLS ** (1 / dim)),) * dim


def _cells(relative: Floats) -> tuple[NDArray[np.int_], ...]:
    """Return the indices of the cells that contain locations (n, D) relative to the box."""
    counts = np.array(_shape(relative.shape[1]))
    return tuple(np.minimum(relative * counts, counts - 1).astype(int).T)
