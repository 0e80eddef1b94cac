"""Integrals on the line, cut finer until they are exact."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics.edge_rule import edge_rule
from .pieces import in_order

__all__ = ["can_look", "line_integral", "weighted_sum"]

# Nodes on each piece, and those of the rule that is compared with it.
_ORDER, _FEWER = 48, 32
# What the two may differ by, of the integral of the size; their own errors are much less apart.
_TOLERANCE = 1e-10
# How often pieces are halved, and how many there may be.
_ROUNDS, _MOST = 40, 2000


def line_integral(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Integral (*batch) of a function that is smooth between cuts, or nearly.

    It may have logarithms and powers above -1/2 at the cuts. Kinks elsewhere are found by halving,
    but where values are not there to look at: in compiled and traced graphs, and under vmap.

    Args:
        function: From float64 locations (Q, *batch) to values of that shape.
        cuts: Locations (*batch, J) in any order, float64, NaN where there are fewer.
    """
    if can_look():
        with torch.no_grad():
            found = _refined(function, cuts.detach())
        cuts = torch.cat([cuts, found], -1)
    values, weights = _applied(function, in_order(cuts), _ORDER)
    return weighted_sum(weights.flatten(0, 1), values.flatten(0, 1))


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum over the first axis; infinite, with zero gradients, where a value with a weight is."""
    over = values.isinf()
    total = (weights * torch.where(over, 0.0, values)).sum(0)
    return torch.where((over & (weights > 0)).any(0), math.inf, total)


def can_look() -> bool:
    """Whether values are there to branch on."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    return all(level.key() != torch._C._functorch.TransformType.Vmap for level in stack)


def _applied(
    function: Callable[[Tensor], Tensor], ordered: Tensor, order: int
) -> tuple[Tensor, Tensor]:
    """Values and weights (J, order, *batch) on the pieces between cuts (J + 1, *batch)."""
    t, weights = edge_rule(order, ordered).on(ordered[:-1], ordered[1:])
    return function(t.flatten(0, 1)).reshape(t.shape), weights


def _refined(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Further cuts (*batch, J'), NaN where an element of the batch needs none."""
    found = cuts[..., :0]
    ordered = in_order(cuts)
    for _ in range(_ROUNDS):
        (values, weights), rough = (_applied(function, ordered, n) for n in (_ORDER, _FEWER))
        error = ((weights * values).sum(1) - (rough[0] * rough[1]).sum(1)).abs()
        size = (weights * values.abs()).flatten(0, 1).sum(0)
        low, high = ordered[:-1], ordered[1:]
        middle = (low + high) / 2
        coarse = (error > _TOLERANCE * size) & (middle > low) & (middle < high)
        columns = coarse.reshape(len(coarse), -1).any(-1)
        if not columns.any() or len(ordered) > _MOST:
            break
        middle = torch.where(coarse, middle, torch.nan)[columns].movedim(0, -1)
        found = torch.cat([found, middle], -1)
        ordered = in_order(torch.cat([cuts, found], -1))
    return found
