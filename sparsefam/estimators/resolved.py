"""Whether the nodes of a density see all of its mass."""

import warnings

import torch

from ..distributions import KernelDeformedExp, KernelExp
from ..numerics.chebyshev_mesh import product_rule

__all__ = ["unseen_mass", "warn_unseen"]

# What mass may be missed before that is said: edges in space, which are located along one axis
# only, leave some thousandths.
_MISSED = 1e-2
# Scores of this range are no steeper than panels were made for, with a margin.
_STEEP = 50.0
# Rows of nodes whose kernels are in memory at a time.
_CHUNK = 2**14


def unseen_mass(p: KernelExp | KernelDeformedExp) -> float:
    """What a sum over nodes half as far apart gives more or less than 1, as a share of 1.

    Of numbers it is not asked for, as panels are refined for their densities; nor where scores are
    no steeper than panels were made for, as then it is rounding.
    """
    if not p.event_shape:
        return 0.0
    scores = p._scores
    if float(scores.amax() - scores.amin()) <= _STEEP:
        return 0.0
    nodes, weights = product_rule([axis.halved() for axis in p.panels.axes])
    parts = zip(nodes.split(_CHUNK), weights.flatten().split(_CHUNK), strict=True)
    return abs(float(torch.stack([share @ p.prob(rows) for rows, share in parts]).sum()) - 1)


def warn_unseen(p: KernelExp | KernelDeformedExp) -> None:
    """Warn of a density in the plane or in space that is too narrow for its nodes."""
    missed = unseen_mass(p)
    if not missed <= _MISSED:
        warnings.warn(
            f"density_ has peaks too narrow for its nodes: its mass is wrong by {missed:.1g}; a "
            "larger penalty or bandwidth, or data with fewer ties, make it wider",
            RuntimeWarning,
            stacklevel=4,
        )
