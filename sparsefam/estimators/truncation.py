"""Where estimated supports end: near the observations of each of their parts."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label
from scipy.spatial import cKDTree
from torch import Tensor
from torch.distributions import Uniform

from ..distributions import KernelDeformedExp
from ..distributions.base_measure import Base, BaseMeasure, UniformOn, UniformWithin
from ..distributions.kernel_mesh import KernelMesh
from .data import Floats

__all__ = ["extreme_observations", "restricted", "truncated"]

# Number of equal cells of a box, whose extreme observations are kept.
_CELLS = 2**14
# The mass beyond the extreme observations of an interval, relative to the mean of the mass that as
# many observations of any density miss there.
_BEYOND = 0.5
# Warn if the support that is cut holds less of the mass of the fit.
_LEAST_KEPT = 0.5


def extreme_observations(
    x: Tensor, weight: Tensor, box: Sequence[Uniform]
) -> tuple[Tensor, Tensor]:
    """Return the first and last observation (K, D), in lexicographic order, in each cell of a box.

    With each comes the total weight of the observations that are equal to it. The extremes of a
    union are among those of its parts, so these are all that is kept of data in parts.
    """
    values, index = x.unique(dim=0, return_inverse=True)
    weight = weight.new_zeros(len(values)).index_add(0, index, weight)
    cells = np.ravel_multi_index(_cells(_relative(values, box)), _shape(len(box)))
    kept = [np.unique(c, return_index=True)[1] for c in (cells, cells[::-1])]
    extreme = torch.from_numpy(np.union1d(kept[0], len(cells) - 1 - kept[1]))
    return values[extreme], weight[extreme]


def truncated(
    p: KernelDeformedExp, x: Tensor, share: Tensor, observations: Tensor, known: Tensor
) -> KernelDeformedExp:
    """Truncate a density under a uniform base near the extreme observations (K, D) of each part.

    These have shares (K,) of the weight of all. Parts of the support without observations are left
    out. In one dimension, ends that are `known` (2,) to be those of the base stay.
    """
    if p.event_shape:
        box: Any = p.base
        region = _Near.of(p, box, x)
        at_nodes = region(p.mesh.nodes).reshape(p.mesh.measure.shape)
        kept = (p._weights_on(p.mesh).squeeze(-1) * at_nodes).sum()
        base = UniformWithin(box, region)
        measure = BaseMeasure(base, x.shape[1], x.dtype)
        mesh = replace(p.mesh, base=measure, measure=p.mesh.measure * at_nodes)
        cut = _rebased(p, base, 1 / kept, mesh)
    else:
        intervals = _intervals(p, x.squeeze(-1), share, observations, known)
        kept, cut = p.cdf(intervals).diff().sum(), restricted(p, intervals)
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
    p: KernelDeformedExp, x: Tensor, share: Tensor, observations: Tensor, known: Tensor
) -> Tensor:
    """Return the intervals (J, 2) of a support that have observations (K,), cut near these.

    The mass beyond the outermost of n observations of any density exceeds t with probability
    (1 - t)^n; its mean is 1/n. An interval of the estimate ends where the mass beyond its outermost
    observation reaches half of that: three of five true ends are further out. With tied
    observations, up to half the mass of the largest tie may lie outside as well, because the
    estimate smooths an atom into a peak.
    """
    support = p.support.intervals
    lower, upper = support.T.unsqueeze(-1)
    inside = (lower <= x) & (x <= upper)
    first = torch.where(inside, x, torch.inf).amin(-1)
    outermost = torch.stack([first, torch.where(inside, x, -torch.inf).amax(-1)], -1)
    largest = torch.where(inside, share, 0.0).amax(-1)
    some = inside.any(-1)
    ends, outermost, largest = support[some], outermost[some], largest[some]
    beyond = _BEYOND / observations + (largest - 1 / observations).clamp_min(0) / 2
    signed = beyond.unsqueeze(-1) * torch.tensor([-1.0, 1.0], dtype=beyond.dtype)
    cut = p.icdf((p.cdf(outermost) + signed).clamp(0, 1))
    at_bound = known & (ends == torch.tensor(p.mesh.base.bounds(0), dtype=ends.dtype))
    cut = torch.where(at_bound, ends, cut)
    lower, upper = torch.maximum(ends[:, 0], cut[:, 0]), torch.minimum(ends[:, 1], cut[:, 1])
    return torch.stack([lower, upper], -1)


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
    relative: Floats = torch.stack(sides, -1).nan_to_num().clamp(0, 1).numpy()
    return relative


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
