"""A value function for each query, fitted to the observations that it may read."""

from functools import reduce

import torch
from torch import Tensor

from ..bases import Basis
from ..distributions import SparseDistribution
from ..numerics.normal_equations import blocks
from .regression import RidgeRegression
from .sight import Sight
from .statistics import Statistics

__all__ = ["separate_contexts"]

# Positions of a block: so many products of functions with each other and with values, but not too
# few to be fast.
_NUMBERS, _FEWEST = 2**21, 16


def separate_contexts(
    density: SparseDistribution,
    regression: RidgeRegression,
    positions: Tensor,
    values: Tensor,
    sight: Sight,
) -> Tensor:
    r"""Contexts $\mathbb E_p[V]$ by head (B, Lq, heads, E), where every p has a V of its own.

    Memory: N (N + E) float64 numbers for each example and query, by head where heads differ in what
    they may read; positions and values add a block's products to that, some 16 MB, or those of
    `chunk_size` positions if the regression has one.

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
    each = positions.reshape(-1, *positions.shape[positions.dim() - 1 - event :])
    # Shape (B, groups, L, rest).
    h = values.unflatten(2, (groups, values.shape[2] // groups)).flatten(3).movedim(2, 1)
    parts = (
        _sums(regression.basis, each[:, block], h[:, :, block], weights[..., block])
        for block in blocks(h.shape[2], _rows(regression, len(each), h))
    )
    gram, cross, energy = reduce(lambda a, b: [x + y for x, y in zip(a, b, strict=True)], parts)
    size = len(regression.basis)
    gram, cross = gram.unflatten(-1, (size, size)), cross.unflatten(-1, (size, h.shape[-1]))
    return Statistics(gram, cross, energy.squeeze(-1), weights.sum(-1).flatten()), groups


def _rows(regression: RidgeRegression, grids: int, h: Tensor) -> int:
    """Positions of a block, for as many sets of them and values (B, groups, L, rest)."""
    if regression.chunk_size is not None:
        return regression.chunk_size
    size = len(regression.basis)
    return max(_FEWEST, _NUMBERS // max(1, grids * size**2 + size * h[:, :, 0].numel()))


def _sums(basis: Basis, positions: Tensor, h: Tensor, weights: Tensor) -> list[Tensor]:
    """Weighted sums of one block, over what is flat: examples, groups, queries; functions."""
    design, h = basis(positions.double()).double(), h.double()
    squares = (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(2)
    # Whatever has the same positions makes further rows of one product.
    rows = weights.shape[:3].numel() // max(len(design), 1)
    by_grid = weights.reshape(len(design), rows, weights.shape[-1])
    products = (design[:, None, :, :, None] * h.unsqueeze(-2)).flatten(3)
    found = weights @ products, weights @ h.square().sum(-1, keepdim=True)
    return [(by_grid @ squares).flatten(0, 1), *(x.flatten(0, 2) for x in found)]
