"""Regressions for each query on the observations that it may read, as `attn_mask` asks for."""

from functools import reduce

import torch
from torch import Tensor

from .._numerics.least_squares import add_sums, split_rows
from ._masks import require_finite
from .normal_equations import NormalEquations
from .regression import RidgeRegression

__all__ = ["fit_per_query", "weights_per_query"]

# Numbers in the products of functions of a chunk, and the least number of positions with which
# matrix products are fast.
_PRODUCTS, _LEAST_POSITIONS = 2**21, 16


def fit_per_query(
    regression: RidgeRegression, positions: Tensor, values: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Fit one value function for each query and head.

    Args:
        regression: How functions are fitted.
        positions: Shape (B or 1, L, *event).
        values: By head (B, L, heads, E).
        visible: True where queries may read, (B, G, Lq, L), where G is heads or 1.

    Returns:
        Coefficients (B, Lq, N, heads, E), and constants (B, Lq, heads, E) or None.
    """
    batch, _, heads, channels = values.shape
    groups, queries = visible.shape[1:3]
    statistics = _statistics(regression, positions, values, visible)
    function = regression._solve(statistics, values.dtype)

    def by_query(x: Tensor) -> Tensor:
        # (B * G * Lq, n, heads / G * E) -> (B, Lq, n, heads, E)
        x = x.reshape(batch, groups, queries, x.shape[1], heads // groups, channels)
        return x.permute(0, 2, 3, 1, 4, 5).flatten(3, 4)

    if function.constant is None:
        return by_query(function.coefficients), None
    return by_query(function.coefficients), by_query(function.constant.unsqueeze(1)).squeeze(2)


def weights_per_query(
    regression: RidgeRegression,
    features: Tensor,
    positions: Tensor,
    values: Tensor,
    visible: Tensor,
) -> Tensor:
    """Return weights of observations in contexts (B, heads, Lq, L).

    Args:
        regression: As for `fit_per_query`, like the last three.
        features: Expectations of the functions of the basis (B, heads, Lq, N).
        positions: See `regression`.
        values: See `regression`.
        visible: See `regression`.
    """
    # Heads of a group read the same positions, and share a Gram matrix.
    groups, heads = visible.shape[1], features.shape[1]
    statistics = _statistics(regression, positions, values, visible)
    # (B, heads, Lq, N) -> (B, G, Lq, N, heads / G)
    right = features.double().unflatten(1, (groups, heads // groups)).movedim(2, 4)
    # w_l = psi(t_l)' K^{-1} E_p[psi], plus an equal weight for each observation if there is a
    # constant: the formula of `RidgeRegression.observation_weights`.
    solved, offset = regression._weigh(statistics, right.flatten(0, 2))
    f = regression.basis(positions.double()).double()
    weights = torch.einsum("bgqni,bln->bgiql", solved.reshape(right.shape), f)
    offset = offset.reshape(*right.shape[:3], -1).movedim(-1, 2).unsqueeze(-1)
    weights = (weights + offset).flatten(1, 2)
    return torch.where(visible, weights, 0).to(values.dtype)


def _statistics(
    regression: RidgeRegression, positions: Tensor, values: Tensor, visible: Tensor
) -> NormalEquations:
    """Return the sums over the observations that each query may read.

    Takes the arguments of `fit_per_query`. Each query of a group of heads is an example of its own:
    there are B * G * Lq of them, with heads / G * E channels.
    """
    batch, _, heads, channels = values.shape
    groups, queries = visible.shape[1:3]
    basis, size = regression.basis, len(regression.basis)
    if regression.validate_args:
        observed = visible.flatten(1, 2).any(1) if queries else None
        require_finite("positions", positions, values.shape, observed)
        require_finite("values", values, values.shape, observed)

    def sums(t: Tensor, h: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Sum over a chunk of positions t (B or 1, l, *event), with values h (B, l, heads, E).

        The weights (B, l, G, Lq) are 1 where a query may read, else 0. With M = heads / G * E the
        sums are F'F (B G Lq, N N), F'H (B G Lq, N M), |H|^2 (B G Lq,), F'1 (B, G Lq, N) and H'1
        (B G Lq, M).
        """
        f, h = basis(t.double()).double(), h.double()
        weights = weights.movedim(1, -1).double()
        # (B, l, heads, E) -> (B, G, l, M)
        h = h.unflatten(2, (groups, heads // groups)).flatten(3).transpose(1, 2)
        # Products of functions and values are formed once, and summed by a matrix of zeros and ones
        # for all queries: F'F and F'H of each query are rows of one matrix product.
        gram = weights.flatten(1, 2) @ (f.unsqueeze(-1) * f.unsqueeze(-2)).flatten(2)
        cross = weights @ (f[:, None, :, :, None] * h.unsqueeze(-2)).flatten(3)
        squares = weights @ h.square().sum(-1, keepdim=True)
        totals = weights.flatten(1, 2) @ f, (weights @ h).flatten(0, 2)
        return gram.flatten(0, 1), cross.flatten(0, 2), squares.flatten(), *totals

    # Numbers in the products of functions at one position: with each other, and with values.
    products = positions.shape[0] * size**2 + size * batch * heads * channels
    rows = regression.chunk_size or max(_LEAST_POSITIONS, _PRODUCTS // max(products, 1))
    chunks = split_rows(rows, positions, values, visible.movedim(-1, 1))
    gram, cross, squares, functions, totals = reduce(add_sums, (sums(*x) for x in chunks))
    gram, cross = gram.unflatten(-1, (size, size)), cross.unflatten(-1, (size, -1))
    count = visible.sum(-1).flatten().to(squares)
    return NormalEquations(gram, cross, squares, count, functions.flatten(0, 1), totals)
