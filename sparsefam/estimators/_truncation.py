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
    """Return the first and the last observation, in lexicographic order, in each cell of a box.

    The extremes of all of data are extremes of one of its chunks, so nothing else is kept of data
    in chunks.

    Args:
        x: Observations (n, D).
        weight: Their weights (n,).
        box: The ranges of the base, one for each column, which are cut into equal cells.

    Returns:
        The extremes (K, D) without repetition, and the total weights (K,) of the observations that
        are equal to each.
    """

    def extremes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the extremes among the rows of a chunk, and their weights."""
        # One number for the cell of each row, and the rows that are kept.
        cells = _cells_of(_fractions(x, box))
        cell = torch.from_numpy(np.ravel_multi_index(cells, _cell_counts(len(box))))
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
    count: Tensor,
    cells: Cells,
    box: Sequence[Uniform],
) -> KernelDeformedExp:
    """Truncate a density under a uniform base near the extreme observations.

    Components of the support without observations are left out. In one dimension, ends at a bound
    that the user gave stay.

    Args:
        p: The density.
        x: Extreme observations (K, D), as from `extreme_observations`.
        fraction: The weight of each of them (K,), relative to the weight of all observations.
        count: The effective number n of all observations, ().
        cells: Of rounded observations.
        box: The uniform base, one density for each column.
    """
    region: Region | IntervalUnion
    if p.event_shape:
        region = Region(_neighborhood(p, x, box), 1)
        nodes, weights = p.quadrature(1)
        kept = weights[region.check(nodes)].sum()
    else:
        intervals = _intervals(p, x, fraction, count, cells, box)
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
    count: Tensor,
    cells: Cells,
    box: Sequence[Uniform],
) -> Tensor:
    """Return the intervals (J, 2) of a support that have observations, cut near these.

    Takes the arguments of `truncated`, in one dimension: x is (K, 1).

    The mass beyond the outermost of n observations of any density exceeds t with probability
    (1 - t)^n; its mean is about 1/n. An interval of the estimate ends where the mass beyond its
    outermost observation reaches half of that: three of five true ends are further out. With tied
    observations, up to half the mass of the largest tie may lie outside as well, because the
    estimate smooths an atom into a peak. Rounded observations are cells. Observations off the
    support, at most a fortieth of the base's width beyond an interval, count as its outermost.
    """
    # Ends of the cells of observations (K,), which are equal if these are not rounded.
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
    leftmost = torch.where(near, low, torch.inf).amin(-1)
    outermost = torch.stack([leftmost, torch.where(near, high, -torch.inf).amax(-1)], -1)
    largest = torch.where(inside & (cells.unit == 0), fraction, 0.0).amax(-1)
    occupied = inside.any(-1)
    ends, outermost, largest = support[occupied], outermost[occupied], largest[occupied]
    # The mean mass that n observations miss is 1/n; a tie of weight w is an atom of mass w - 1/n.
    beyond = _BEYOND / count + (largest - 1 / count).clamp_min(0) / 2
    signed = beyond.unsqueeze(-1) * torch.tensor([-1.0, 1.0], dtype=beyond.dtype)
    cut = p.icdf((p.cdf(outermost) + signed).clamp(0, 1))
    at_bound = cells.limits.isfinite() & (ends == bounds)
    # A bound is known to be the end.
    cut = torch.where(at_bound, ends, cut)
    first, last = torch.maximum(ends[:, 0], cut[:, 0]), torch.minimum(ends[:, 1], cut[:, 1])
    return torch.stack([first, last], -1)


def extended(
    p: KernelDeformedExp, x: Tensor, fraction: Tensor, box: Sequence[Uniform]
) -> SparseDistribution:
    """Extend the support of a density until it contains all observations.

    The density is mixed with the uniform one on the new support, with the weight of the
    observations off the old one.

    In one dimension each observation off the support adds an interval around it, which reaches to
    the nearest observation or interval. In several, each adds a ball, all with one radius: the
    largest distance of one of them from its nearest neighbor. Lengths are relative to the widths of
    `box` along each axis, and at most a fortieth.

    Args:
        p: The density.
        x: Observations (K, D), as from `extreme_observations`.
        fraction: The weight of each of them (K,), relative to the weight of all observations.
        box: The uniform base, one density for each column.
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
    # The nearest point of each is itself, the second its nearest neighbor.
    radii = cKDTree(points).query(off, 2)[0][:, 1]
    region: Region | IntervalUnion
    if p.event_shape:
        balls = PointTree(scale, cKDTree(off)), min(radii.max(), _FARTHEST)
        region = Region(Neighborhood((balls,), p), 1)
    else:
        radii = np.minimum(radii, distance_from(p, x[missed]) / scale)
        # Never of length 0, and a rounding longer, so that intervals that should touch are merged.
        radii = scale * radii.clip(1 / _CELLS, _FARTHEST) * (1 + _TOUCH)
        added = x[missed] + torch.from_numpy(np.stack([-radii, radii], -1))
        region = IntervalUnion.merged(torch.cat([intervals_of(p), added.clamp(low, high)]))
    logits = torch.stack([1 - weight, weight]).log()
    return Mixture(logits, [p, uniform(region, low, high, float(p.alpha))])


def uniform(
    region: Region | IntervalUnion, low: Tensor, high: Tensor, alpha: float
) -> KernelDeformedExp:
    """Return the uniform density on a region of the box between the corners low and high (D,).

    It is a kernel density with a score of zero, the same for every alpha.
    """
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
        x = x.nan_to_num()  # trees refuse NaN
        for centers, radius in self.balls:
            inside |= torch.from_numpy(centers.distance(x) <= radius)
        return inside


def _neighborhood(p: KernelDeformedExp, x: Tensor, box: Sequence[Uniform]) -> Neighborhood:
    """Return the neighborhood of the observations x (K, D) in each component of the support of p.

    Components are found on a grid of cells of the box, the ranges of the base. The neighborhood
    extends to a distance r from the n observations in the component, the largest distance of one
    of them from its nearest neighbor. A new observation is exchangeable with these, and therefore
    farther away with a probability of at most 1/(n + 1).

    References:
        Devroye and Wise (1980), Detection of Abnormal Behavior via Nonparametric Estimation of the
        Support. SIAM J. Applied Mathematics 38.
    """
    x, shape = x[p.log_prob(x) > -torch.inf], _cell_counts(len(box))
    # Cells of the box belong to the support if p is positive at their centers or they have data.
    cells = _cells_of(_fractions(x, box))
    middles = (torch.arange(shape[0], dtype=x.dtype) + 0.5) / shape[0]
    centers = torch.cartesian_prod(*[torch.lerp(side.low, side.high, middles) for side in box])
    positive = (p.log_prob(centers) > -torch.inf).numpy().reshape(shape)
    positive[cells] = True
    # Cells that touch along an axis are one component.
    component = label(positive)[0][cells]
    scale = torch.stack([side.high - side.low for side in box]).numpy()
    points = x.numpy() / scale
    # From the nearest neighbor, the second nearest point; infinite of a single observation.
    distance = cKDTree(points).query(points, 2)[0][:, 1]
    return Neighborhood(
        tuple(
            (PointTree(scale, cKDTree(points[component == k])), distance[component == k].max())
            for k in np.unique(component)
        )
    )


def _fractions(x: Tensor, box: Sequence[Uniform]) -> Floats:
    """Return observations x (n, D) as fractions (n, D), from 0 to 1, of the sides of a box.

    Observations outside are moved to the nearest point of the box.
    """
    columns = zip(x.T, box, strict=True)
    fractions = [(column - side.low) / (side.high - side.low) for column, side in columns]
    # NaN, where the length of a side overflows, becomes 0.
    return torch.stack(fractions, -1).nan_to_num().clamp(0, 1).numpy()


def _cell_counts(dim: int) -> tuple[int, ...]:
    """Return the number of cells along each axis, about `_CELLS` in all."""
    return (round(_CELLS ** (1 / dim)),) * dim


def _cells_of(fractions: Floats) -> tuple[NDArray[np.int_], ...]:
    """Return the indices (n,) along each axis of the cells at fractions (n, D) of the sides."""
    counts = np.array(_cell_counts(fractions.shape[1]))
    # The upper end of a side, at fraction 1, belongs to the last cell.
    return tuple(np.minimum(fractions * counts, counts - 1).astype(int).T)
