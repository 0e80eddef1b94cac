"""Where estimated supports end: near the observations of each of their parts."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label
from scipy.spatial import cKDTree
from torch import Tensor
from torch.distributions import Uniform

from ..distributions import KernelDeformedExp, Mixture, SparseDistribution
from ..distributions._kernel.base_measure import Base, BaseMeasure, UniformOn, UniformWithin
from ..distributions._kernel.mesh import KernelMesh
from ..distributions._kernel.solution import find_mesh
from ..supports import IntervalUnion
from ._data import Floats, as_events, chunks, distance_to_intervals, merged, reduced
from ._newton import Cells

__all__ = [
    "Widened",
    "extended",
    "extreme_observations",
    "restricted",
    "truncated",
    "uniform_on",
    "uniform_within",
]

# Number of equal cells of a box, whose extreme observations are kept.
_CELLS = 2**14
# The mass beyond the extreme observations of an interval, relative to the mean of the mass that as
# many observations of any density miss there.
_BEYOND = 0.5
# Warn if the support that is cut holds less of the mass of the fit.
_LEAST_KEPT = 0.5
# The farthest that an observation off the support extends it, relative to the base's width.
_REACH = 1 / 40
# The share of a distance by which rounding must not keep two intervals apart.
_TOUCH = 1e-9
# Balls that are compared with a location.
_BALLS = 8


def extreme_observations(
    x: Tensor, weight: Tensor, box: Sequence[Uniform]
) -> tuple[Tensor, Tensor]:
    """Return the first and last observation (K, D), in lexicographic order, in each cell of a box.

    With each comes the total weight of the observations that are equal to it. The extremes of a
    union are among those of its parts, so these are all that is kept of data in parts.
    """

    def extremes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        cell = torch.from_numpy(np.ravel_multi_index(_cells(_relative(x, box)), _shape(len(box))))
        kept = torch.zeros(len(x), dtype=torch.bool)
        for signed in (x, -x):
            least = torch.ones_like(kept)
            for column in signed.T:
                found = x.new_full((_CELLS,), torch.inf)
                rest = torch.where(least, column, torch.inf)
                least &= column == found.scatter_reduce(0, cell, rest, "amin")[cell]
            kept |= least
        return merged(x[kept], weight[kept])

    return reduced(extremes, x, weight)


def truncated(
    p: KernelDeformedExp, x: Tensor, share: Tensor, observations: Tensor, cells: Cells
) -> KernelDeformedExp:
    """Truncate a density under a uniform base near the extreme observations (K, D) of each part.

    These have shares (K,) of the weight of all. Parts of the support without observations are left
    out. In one dimension, ends that are known to be those of the base stay.
    """
    if p.event_shape:
        box: Any = p.base
        region = _Near.of(p, box, x)
        at_nodes = region(p.mesh.nodes).reshape(p.mesh.measure.shape)
        kept = (p._solution.weights_on(p.mesh).squeeze(-1) * at_nodes).sum()
        cut = _rebased(p, UniformWithin(box, region), 1 / kept, _within(p.mesh, box, region))
    else:
        intervals = _intervals(p, x, share, observations, cells)
        kept = p.cdf(intervals).diff().sum()
        if not kept > 0:
            raise ValueError(
                "penalty must be larger, or bandwidth: the support of the fit has no observation"
            )
        cut = restricted(p, intervals)
    if kept < _LEAST_KEPT:
        warnings.warn(
            f"support_ holds only {float(kept):.2g} of the mass of the fit, whose kernels are "
            "wider than groups of the data, so that masses of its parts are wrong; leave out far "
            "observations",
            RuntimeWarning,
            stacklevel=5,
        )
    return cut


def _intervals(
    p: KernelDeformedExp, x: Tensor, share: Tensor, observations: Tensor, cells: Cells
) -> Tensor:
    """Return the intervals (J, 2) of a support that have observations (K,), cut near these.

    The mass beyond the outermost of n observations of any density exceeds t with probability
    (1 - t)^n; its mean is 1/n. An interval of the estimate ends where the mass beyond its outermost
    observation reaches half of that: three of five true ends are further out. With tied
    observations, up to half the mass of the largest tie may lie outside as well, because the
    estimate smooths an atom into a peak. Rounded observations are cells. Observations off the
    support, at most a fortieth of the base's width beyond an interval, count as its outermost.
    """
    support, low, high = p.support.intervals, *(end.squeeze(-1) for end in cells.ends(x))
    lower, upper = support.T.unsqueeze(-1)
    inside = (lower <= x.squeeze(-1)) & (x.squeeze(-1) <= upper)
    bounds = support.new_tensor(p.mesh.base.bounds(0))
    reach = _REACH * bounds.diff()
    near = (lower - reach <= x.squeeze(-1)) & (x.squeeze(-1) <= upper + reach)
    near = inside | (near & ~inside.any(0))
    first = torch.where(near, low, torch.inf).amin(-1)
    outermost = torch.stack([first, torch.where(near, high, -torch.inf).amax(-1)], -1)
    largest = torch.where(inside & (cells.unit == 0), share, 0.0).amax(-1)
    some = inside.any(-1)
    ends, outermost, largest = support[some], outermost[some], largest[some]
    beyond = _BEYOND / observations + (largest - 1 / observations).clamp_min(0) / 2
    signed = beyond.unsqueeze(-1) * torch.tensor([-1.0, 1.0], dtype=beyond.dtype)
    cut = p.icdf((p.cdf(outermost) + signed).clamp(0, 1))
    at_bound = cells.limits.isfinite() & (ends == bounds)
    cut = torch.where(at_bound, ends, cut)
    lower, upper = torch.maximum(ends[:, 0], cut[:, 0]), torch.minimum(ends[:, 1], cut[:, 1])
    return torch.stack([lower, upper], -1)


def extended(p: KernelDeformedExp, x: Tensor, share: Tensor) -> SparseDistribution:
    """Extend the support of a density until it contains all observations (K, D).

    The density is mixed with the uniform one on the new support, with the weight of the
    observations off the old one, which are `share` (K,) of all. Each of them adds what is nearer to
    it than the nearest observation or interval, at most a fortieth of the base's width.
    """
    missed = torch.isneginf(p.log_prob(as_events(x)))
    if not missed.any():
        return p
    weight = share[missed].sum()
    logits = torch.stack([1 - weight, weight]).log()
    if not p.event_shape:
        whole = p.mesh.base.factors[0]
        whole = whole.whole if isinstance(whole, UniformOn) else whole
        gap = torch.cat(
            [x.new_full((1, 1), torch.inf), x.diff(dim=0), x.new_full((1, 1), torch.inf)]
        )
        distance = distance_to_intervals(x[missed], p.support.intervals)
        reach = torch.minimum(gap[1:], gap[:-1]).squeeze(-1)[missed]
        width = float(whole.high - whole.low)
        reach = torch.minimum(reach, distance).clamp(width / _CELLS, _REACH * width) * (1 + _TOUCH)
        more = x[missed] + reach.unsqueeze(-1) * x.new_tensor([-1.0, 1.0])
        intervals = torch.cat([p.support.intervals, more.clamp(whole.low, whole.high)])
        union = IntervalUnion.merged(intervals).intervals
        return Mixture(logits, [p, uniform_on(p, union[~union[:, 0].isnan()], whole)])
    box: Any = p.mesh.base.factors
    places = _relative(x, box)
    reach = cKDTree(places).query(places[missed.numpy()], 2)[0][:, 1]
    balls = _Balls(box, cKDTree(places[missed.numpy()]), np.minimum(reach, _REACH))
    return Mixture(logits, [p, uniform_within(p, box, Widened(p, balls))])


@dataclass(frozen=True)
class Widened:
    """Whether places are in the support of a density, or in a region around it."""

    p: SparseDistribution
    region: Callable[[Tensor], Tensor]

    def __call__(self, t: Tensor) -> Tensor:
        """Return whether locations (*S, D) are in either (*S)."""
        return (self.p.log_prob(t.detach()) > -torch.inf) | self.region(t)


@dataclass(frozen=True)
class _Balls:
    """Whether places are in balls of radii (B,), relative to a box."""

    box: Sequence[Uniform]
    tree: cKDTree
    radii: Floats

    def __call__(self, t: Tensor) -> Tensor:
        places = _relative(t.detach().reshape(-1, len(self.box)), self.box)
        count = min(_BALLS, len(self.radii))
        farthest = self.radii.max() * (1 + _TOUCH)
        distance, index = self.tree.query(places, range(1, count + 1), 0, 2, farthest)
        radii = np.append(self.radii, -np.inf)[index]
        return torch.from_numpy((distance <= radii).any(1)).reshape(t.shape[:-1])


def uniform_on(p: KernelDeformedExp, intervals: Tensor, whole: Uniform) -> KernelDeformedExp:
    """Return the uniform density on intervals (J, 2) as a member of the family of p."""
    base, zero = UniformOn(intervals, whole), p.weights.new_zeros(1)
    points = base.mean.reshape(1)
    return KernelDeformedExp(
        zero, points, torch.inner, base, float(p.alpha), tolerance=p.mesh.tolerance
    )


def uniform_within(
    p: KernelDeformedExp, box: Any, region: Callable[[Tensor], Tensor]
) -> KernelDeformedExp:
    """Return the uniform density on a region of a box, on a mesh for the kernels of p."""
    alpha, zero = float(p.alpha), p.weights.new_zeros(1)
    mesh = find_mesh(p.weights, p.features, box, alpha, p.mesh.tolerance)
    return KernelDeformedExp(
        zero,
        p.inducing_points[:1],
        p.kernel,
        UniformWithin(box, region),
        alpha,
        mesh=_within(mesh, box, region),
    )


def _within(
    mesh: KernelMesh, box: Sequence[Uniform], region: Callable[[Tensor], Tensor]
) -> KernelMesh:
    """Return a mesh whose measure is zero off a region of its box."""
    base = BaseMeasure(UniformWithin(box, region), len(box), mesh.nodes.dtype)
    at_nodes = torch.cat([region(t) for (t,) in chunks(mesh.nodes)]).reshape(mesh.measure.shape)
    return replace(mesh, base=base, measure=mesh.measure * at_nodes)


@dataclass(frozen=True)
class _Near:
    """Whether places are near the observations of their part of a support.

    A place is near within r of an observation: r is the largest distance of the n observations in
    its part from their nearest neighbours. A new observation is exchangeable with these, and
    farther away with a probability of at most 1/(n + 1).

    References:
        Devroye and Wise (1980), Detection of Abnormal Behavior via Nonparametric Estimation of the
        Support. SIAM J. Applied Mathematics 38.
    """

    box: Sequence[Uniform]
    tree: cKDTree  # The observations in the support, relative to the box
    reach: Floats  # The greatest distance, by cell of the box, for the nearest part of the support

    @classmethod
    def of(cls, p: KernelDeformedExp, box: Sequence[Uniform], x: Tensor) -> "_Near":
        """Divide a support into parts, and measure the distances of observations (K, D) there."""
        seen, shape = _relative(x[p.log_prob(x) > -torch.inf], box), _shape(len(box))
        share = (torch.arange(shape[0], dtype=x.dtype) + 0.5) / shape[0]
        centres = torch.cartesian_prod(*[torch.lerp(side.low, side.high, share) for side in box])
        positive = (p.log_prob(centres) > -torch.inf).numpy().reshape(shape)
        positive[_cells(seen)] = True
        parts, count = label(positive)
        tree, farthest = cKDTree(seen), np.full(count + 1, -np.inf)
        # The distance of a single observation is infinite.
        np.maximum.at(farthest, parts[_cells(seen)], tree.query(seen, 2)[0][:, 1])
        nearest = distance_transform_edt(parts == 0, return_distances=False, return_indices=True)
        return cls(box, tree, farthest[parts[tuple(nearest)]])

    def __call__(self, t: Tensor) -> Tensor:
        """Return whether locations (*S, D) are near (*S)."""
        places = _relative(t.detach().reshape(-1, len(self.box)), self.box)
        near = self.tree.query(places)[0] <= self.reach[_cells(places)]
        return torch.from_numpy(near).reshape(t.shape[:-1])


def _relative(x: Tensor, box: Sequence[Uniform]) -> Floats:
    """Return the nearest places (n, D) in a box, relative to it, with ends at 0 and 1."""
    sides = [(t - side.low) / (side.high - side.low) for t, side in zip(x.T, box, strict=True)]
    return torch.stack(sides, -1).nan_to_num().clamp(0, 1).numpy()


def _shape(dim: int) -> tuple[int, ...]:
    """Return the numbers of cells along the axes."""
    return (round(_CELLS ** (1 / dim)),) * dim


def _cells(relative: Floats) -> tuple[NDArray[np.int_], ...]:
    """Return the indices of the cells that contain locations (n, D) relative to the box."""
    counts = np.array(_shape(relative.shape[1]))
    return tuple(np.minimum(relative * counts, counts - 1).astype(int).T)


def restricted(p: KernelDeformedExp, intervals: Tensor) -> KernelDeformedExp:
    """Cut a density under a uniform base to intervals (J, 2) inside the support of the base."""
    whole: Any = p.mesh.base.factors[0]
    base = UniformOn(intervals, whole)
    share = base.lengths.sum() / (whole.high - whole.low)
    return _rebased(p, base, share / p.cdf(intervals).diff().sum())


def _rebased(
    p: KernelDeformedExp, base: Base, factor: Tensor, mesh: KernelMesh | None = None
) -> KernelDeformedExp:
    """Return the density that is a multiple of another one relative to its own base."""
    # p^(alpha - 1) is linear in the score, relative to the base.
    eps, options = float(p.alpha) - 1, {"tolerance": p.mesh.tolerance, "mesh": mesh}
    score = p._with_weights(factor**eps * p.weights)
    return KernelDeformedExp.from_score(score, base, 1 + eps, **options)
