"""Draws of densities of vectors on a mesh: rejection in cells around the nodes."""

import math

import torch
from torch import Size, Tensor

from ..._numerics.chebyshev_mesh import ChebyshevMesh
from .solution import Solution

__all__ = ["draw_vectors"]

# Units of rounding of scores and levels.
_ROUNDING = 8
# A cell's bound is the score at its node, plus a fraction of the rise to the greatest neighbor and,
# for peaks between nodes, a fraction of the fall to the least one, up to a limit.
_TOWARDS, _BEYOND, _HIGHEST = 0.75, 0.375, 1.0
# Numbers in the matrix of functions at the proposals of a round. The search for draws ends after
# _MOST_PROPOSALS proposals for each, and _ANY_PROPOSALS besides.
_ELEMENTS, _MOST_PROPOSALS, _ANY_PROPOSALS = 2**21, 200, 10**6


def draw_vectors(s: Solution, sample_shape: Size) -> Tensor:
    """Draw vectors (*sample, *batch, D) by rejection in cells around the nodes.

    They are proposed uniformly in cells, and accepted under a bound that is estimated from the
    nodes. Where a proposal is above it, the bound is raised and the vectors of that density are
    drawn anew.

    Raises:
        RuntimeError: A density that is much narrower than the nodes are apart.
    """
    ends = [_cell_ends(axis) for axis in s.mesh.axes]
    log_bound, log_volume = _bounds(s, ends)
    rows, dim = len(log_bound), len(ends)
    count = sample_shape.numel() * rows
    # The density of each draw: the draws of all densities alternate.
    row = torch.arange(count, device=log_bound.device) % max(rows, 1)
    cdf = _distribution(log_bound + log_volume)
    draws = s.weights.new_empty(count, dim)
    waiting, proposals = torch.arange(count, device=row.device), 0
    most = max(1, _ELEMENTS // s.features.points.shape[:-1].numel())
    while len(waiting):
        if proposals > _MOST_PROPOSALS * count + _ANY_PROPOSALS:
            raise RuntimeError(
                f"sample has {len(waiting)} of {count} draws left after {proposals} proposals: the "
                "density is much narrower than the nodes are apart; a smaller tolerance brings "
                "more nodes"
            )
        tried, postponed = waiting[:most], waiting[most:]
        proposals += len(tried)
        tried_row = row[tried]
        cell, t = _propose(cdf, ends, tried_row)
        t = t.to(s.weights)
        excess = _log_density(s, t, tried_row) - log_bound[tried_row, cell]
        over = excess > 0
        if over.any():
            # Under a bound that is too low, too few vectors of its cell were accepted: raise the
            # bound, and draw all vectors of the density anew.
            exceeded = (tried_row[over], cell[over])
            bound = log_bound[exceeded]
            log_bound[exceeded] = torch.maximum(bound + 2 * excess[over], bound)
            cdf = _distribution(log_bound + log_volume)
            again = torch.isin(row, tried_row[over]).index_fill(0, waiting, True)
            waiting = again.nonzero().squeeze(-1)
            continue
        # A location is accepted with a probability of its density over the bound.
        accepted = torch.rand_like(excess).log() < excess
        draws[tried[accepted]] = t[accepted]
        waiting = torch.cat([tried[~accepted], postponed])
    return draws.reshape(*sample_shape, *s.batch, dim)


def _propose(cdf: Tensor, ends: list[Tensor], row: Tensor) -> tuple[Tensor, Tensor]:
    """Draw cells by their masses under the bound, and uniform locations in them.

    Args:
        cdf: The result of `_distribution` (R Q,).
        ends: Ends of the cells along each axis.
        row: The densities (n,) to propose for.

    Returns:
        The cells (n,), from 0 to Q - 1, and locations (n, D).
    """
    counts = [len(end) - 1 for end in ends]
    cells = math.prod(counts)
    level = row + torch.rand(row.shape, dtype=torch.float64, device=row.device)
    cell = torch.searchsorted(cdf, level, right=True)
    # A level that is rounded up to the next row belongs to the last cell of its own row.
    cell = torch.minimum(cell, (row + 1) * cells - 1) % cells
    indices = torch.unravel_index(cell, counts)
    fraction = torch.rand(len(row), len(ends), dtype=torch.float64, device=row.device)
    axes = zip(ends, indices, fraction.T, strict=True)
    return cell, torch.stack([torch.lerp(e[i], e[i + 1], x) for e, i, x in axes], -1)


def _distribution(log_mass: Tensor) -> Tensor:
    """Return the distribution functions of rows over cells, (R, Q), as one of R Q cells.

    Row r increases from r to r + 1, so that one search finds the cells of draws from all rows.
    """
    cdf = torch.softmax(log_mass, -1).cumsum(-1)
    cdf = cdf / cdf[:, -1:]
    return (cdf + torch.arange(len(cdf), device=cdf.device).unsqueeze(-1)).flatten()


def _log_density(s: Solution, t: Tensor, row: Tensor) -> Tensor:
    """Return a little less than log(p Z) of the density of each row, at one location each, (n,).

    Args:
        s: The densities.
        t: Locations (n, D).
        row: Indices (n,) of densities in the flattened batch.
    """
    columns, weights = s.features.at(t).to(s.Z), s.weights.to(s.Z)
    columns = columns.reshape(-1, *columns.shape[-2:])
    # All functions are at all locations: take the set of a row's density at the row's location.
    sets = torch.arange(len(columns), device=row.device).reshape(s.features.batch)
    function_set = sets.expand(s.batch).reshape(-1)[row]
    columns = columns[function_set, :, torch.arange(len(t), device=row.device)]
    terms, level = columns * weights.reshape(-1, columns.shape[-1])[row], s.A[row]
    # `log_prob` sums the terms in another order: draws keep its rounding error away from edges.
    rounding = _ROUNDING * torch.finfo(terms.dtype).eps * (terms.abs().sum(-1) + level.abs())
    base = s.mesh.base.log_density(t.double())
    return s.power.take(row).log_at(terms.sum(-1) - level - rounding).double() + base


def _bounds(s: Solution, ends: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return estimated upper bounds of log(p Z) in cells (R, Q), and the logs of volumes (Q,).

    Scores are bounded as `_TOWARDS` says, and the density of the base by the largest one at the
    node and its neighbors.
    """
    counts = [len(end) - 1 for end in ends]
    # f - A on the grid of nodes, (R, n_1, ..., n_D).
    score = s.offsets_on(s.mesh).permute(2, 1, 0).reshape(-1, *counts)
    log_base = s.mesh.base.log_density(s.mesh.nodes).reshape(s.mesh.measure.shape).T
    high, low, log_base = score, score, log_base.reshape(1, *counts)
    for axis in range(1, score.dim()):
        high, low = _neighbors_max(high, axis), -_neighbors_max(-low, axis)
        log_base = _neighbors_max(log_base, axis)
    beyond = _BEYOND * (score - low) + 4 * torch.finfo(score.dtype).eps * (1 + score.abs())
    bound = (score + _TOWARDS * (high - score) + beyond.clamp_max(_HIGHEST)).flatten(1)
    rows = torch.arange(len(bound), device=bound.device).unsqueeze(-1)
    log_volume = torch.cartesian_prod(*(end.diff().log() for end in ends)).sum(-1)
    return s.power.take(rows).log_at(bound).double() + log_base.flatten(1), log_volume


def _cell_ends(axis: ChebyshevMesh) -> Tensor:
    """Return ends (n + 1,) of cells as long as Gauss-Legendre weights, each around its node.

    By the separation theorem of Chebyshev, Markov and Stieltjes (Szego, Orthogonal Polynomials,
    3.41), sums of weights lie between nodes, so that cell k contains node k.
    """
    lengths = axis.rule()[1]
    ends = axis.breaks[:-1].unsqueeze(-1) + lengths.cumsum(-1)
    return torch.cat([axis.breaks[:1], ends[:, :-1].flatten(), axis.breaks[1:]]).sort().values


def _neighbors_max(x: Tensor, axis: int) -> Tensor:
    """Return the greatest of each entry and its neighbors along an axis."""
    first, last = x.narrow(axis, 0, 1), x.narrow(axis, x.shape[axis] - 1, 1)
    return torch.cat([first, x, last], axis).unfold(axis, 3, 1).amax(-1)
