"""A value function for each query, fitted to the observations that it may read."""

import torch
from torch import Tensor

from ..distributions import SparseDistribution
from .regression import RidgeRegression
from .sight import Sight
from .statistics import Statistics

__all__ = ["separate_contexts"]


def separate_contexts(
    density: SparseDistribution,
    regression: RidgeRegression,
    positions: Tensor,
    values: Tensor,
    sight: Sight,
) -> Tensor:
    r"""Contexts $\mathbb E_p[V]$ by head (B, Lq, heads, E), where every p has a V of its own.

    Args:
        density: Of batch shape (B, heads, Lq).
        regression: What fits functions to observations.
        positions: Where these are, shape (B, L, *event), (1, L, *event) or (L, *event).
        values: What they are, by head, shape (B, L, heads, E).
        sight: Which of them each query may read.
    """
    batch, _, heads, channels = values.shape
    if regression.validate_args:
        # To hear of what is wrong with the observations.
        regression.statistics(positions, values.flatten(2), sight.taken)
    sums, groups = _statistics(regression, positions, values, sight)
    found = regression.solve(sums, values.dtype).coefficients
    queries, size = density.batch_shape[2], found.shape[1]
    found = found.reshape(batch, groups, queries, size, heads // groups, channels)
    by_query = found.movedim(1, 3).flatten(3, 4)
    features = density.expect(regression.basis).to(values.dtype)
    return torch.einsum("bhqn,bqnhe->bqhe", features, by_query)


def _statistics(
    regression: RidgeRegression, positions: Tensor, values: Tensor, sight: Sight
) -> tuple[Statistics, int]:
    """Sums for each example, group of heads that read the same, and query; and the groups."""
    if sight.seen is None:
        raise ValueError("sight must tell the queries apart, got None")
    weights, groups = sight.seen.double(), sight.seen.shape[1]
    event = len(regression.basis.event_shape)
    each = positions.reshape(-1, *positions.shape[positions.dim() - 1 - event :]).double()
    design = regression.basis(each).double().unsqueeze(1)
    # Shape (B, groups, L, rest), as the design has (B or 1, 1, L, N).
    by_group = values.double().unflatten(2, (groups, values.shape[2] // groups))
    h = by_group.flatten(3).movedim(2, 1)
    sums = (
        weights @ (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(3),
        weights @ (design.unsqueeze(-1) * h.unsqueeze(-2)).flatten(3),
        weights @ h.square().sum(-1, keepdim=True),
    )
    gram, cross, energy = (x.flatten(0, 2) for x in sums)
    size = design.shape[-1]
    gram, cross = gram.unflatten(-1, (size, size)), cross.unflatten(-1, (size, h.shape[-1]))
    return Statistics(gram, cross, energy.squeeze(-1), weights.sum(-1).flatten()), groups
