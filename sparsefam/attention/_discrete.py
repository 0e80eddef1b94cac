"""Expectations under the entmax of inner products, in blocks of queries, without their weights.

Of a block only A is kept, the number by which scores are shifted before the power is taken. The
backward pass computes the scores again, and from A the weights without a search, as FlashAttention
does for softmax: Dao et al. (2022), arXiv:2205.14135.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, overload

import torch
from torch import Tensor

from .._numerics.entmax import Jacobian, entmax_of, epsilon, solve
from .._numerics.modes import (
    branches_allowed,
    compiled,
    is_batched_by_autograd,
    may_have_tangent,
)
from .._numerics.operators import Changes, differentiable, operator
from ._masks import full_precision

__all__ = ["attend"]

# Scores in a block, on a CPU and on other devices: few enough for the cache, and so many that the
# overhead of an operation does not matter.
_BLOCK, _DEVICE_BLOCK = 2**18, 2**24


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor | float,
    bias: Tensor | None = None,
) -> Tensor:
    r"""Return $E_p[v]$ (B, H, Q, F), where p is the entmax of $q^\top k$ plus a bias over keys.

    Transforms of `torch.func` and second derivatives take the weights of all blocks at once.

    Args:
        queries: Shape (B, H, Q, E).
        keys: Shape (B, H, K, E).
        values: Shape (B, H, K, F), with 1 in place of B and H where shared. Expectations are
            summed in their dtype.
        alpha: Entropic index, at least 1 and finite; a tensor broadcasts to (B, H, Q).
        bias: Broadcasts to (B, H, Q, K); -inf excludes a key.
    """
    eps, number = epsilon(alpha, queries)
    if number is None:
        # Four dimensions, which `_slice` indexes by blocks.
        eps = eps.reshape((1,) * (4 - eps.dim()) + eps.shape)
    inputs = queries, keys, values, eps, bias
    tensors = [x for x in inputs if x is not None]
    # Transforms cannot write blocks in place, and `_attend_in_blocks` has no rule of forward mode.
    whole = not branches_allowed() or may_have_tangent(*tensors)
    if whole and not compiled():
        p = entmax_of(_scores(queries, keys, bias), eps, number)
        return p.to(values.dtype) @ values
    return _attend_in_blocks(*inputs, number)[0]


def _scores(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Return inner products (B, H, Q, K) of queries (B, H, Q, E) and keys (B, H, K, E), plus bias.

    The bias, if there is one, broadcasts to them.
    """
    scores = queries @ keys.mT
    return scores if bias is None else scores + bias


def _blocks(queries: Tensor, keys: Tensor) -> Iterator[tuple[slice, ...]]:
    """Yield slices of examples, heads and queries that cut scores (B, H, Q, K) into blocks.

    A block has about `_BLOCK` scores: of whole examples if they fit, else of whole heads of one
    example, else of some queries of one head.
    """
    shape = queries.shape[:3]
    rows = max(1, (_BLOCK if keys.is_cpu else _DEVICE_BLOCK) // max(1, keys.shape[2]))
    # The examples, heads and queries that fit; where 0 fit, one is taken and the next axis is cut.
    sizes = rows // max(1, shape[1] * shape[2]), rows // max(1, shape[2]), rows
    starts = (range(0, n, max(1, size)) for n, size in zip(shape, sizes, strict=True))
    for firsts in product(*starts):
        yield tuple(slice(i, i + max(1, n)) for i, n in zip(firsts, sizes, strict=True))


@overload
def _slice(x: Tensor, block: tuple[slice, ...]) -> Tensor: ...
@overload
def _slice(x: None, block: tuple[slice, ...]) -> None: ...
def _slice(x: Tensor | None, block: tuple[slice, ...]) -> Tensor | None:
    """Return the block of a tensor of four dimensions; axes of length 1 stay whole.

    None is returned as it is, and a number (0-dim) or columns (K, F), which all blocks share.
    """
    if x is None or x.dim() < 4:
        return x
    return x[tuple(s if n > 1 else slice(None) for s, n in zip(block, x.shape, strict=False))]


def _with_ones(values: Tensor) -> Tensor:
    """Return values (B, H, K, F) with a column of ones, (B, H, K, F + 1), in column-major order.

    Values that all examples and heads share, (1, 1, K, F), become one matrix (K, F + 1).
    """
    columns = torch.cat([values, torch.ones_like(values[..., :1])], -1)
    # Products with columns that lie in one piece take a quarter of the time.
    columns = columns.mT.contiguous().mT
    return columns[0, 0] if columns.shape[:2] == (1, 1) else columns


def _forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    eps: Tensor,
    bias: Tensor | None,
    number: float | None,
) -> tuple[Tensor, Tensor]:
    """Return expectations (B, H, Q, F), and the A (B, H, Q, 1) of `solve` for `_backward`.

    Takes the arguments of `attend`, with eps = alpha - 1 as a tensor, 0-dim or of four dimensions
    that broadcast to (B, H, Q, 1), and as a `number` if it is one.
    """
    shape, columns = queries.shape[:3], _with_ones(values)
    means, A = values.new_empty(*shape, values.shape[-1]), queries.new_empty(*shape, 1)
    for block in _blocks(queries, keys):
        scores = _scores(queries[block], keys[block[:2]], _slice(bias, block))
        p, _, A[block] = solve(scores, _slice(eps, block), number)
        # The column of ones sums p, which is normalized only to the accuracy of A.
        sums = p.to(columns.dtype) @ _slice(columns, block[:2])
        means[block] = sums[..., :-1] / sums[..., -1:]
    return means, A


def _backward(
    slope: Tensor,
    means: Tensor,
    A: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    eps: Tensor,
    bias: Tensor | None,
    number: float | None,
    needed: list[bool],
) -> list[Tensor]:
    """Return the gradients in queries, keys, values, eps and bias, zero if not needed.

    Args:
        slope: Gradient in the expectations (B, H, Q, F).
        means: The expectations.
        A: From `_forward`: with it `solve` returns the weights without a search.
        queries: As for `attend`, like `keys`, `values` and `bias`.
        keys: See `queries`.
        values: See `queries`.
        eps: alpha - 1, which broadcasts to (B, H, Q, 1).
        bias: See `queries`; for None an empty tensor is returned.
        number: eps if it is a number.
        needed: Whether each of the five gradients is needed.
    """
    inputs, columns = (queries, keys, values, eps, bias), _with_ones(values)
    totals = [slope.new_zeros(0) if x is None else torch.zeros_like(x) for x in inputs]
    for block in _blocks(queries, keys):
        pair = block[:2]
        q, k, block_eps = queries[block], keys[pair], _slice(eps, block)
        p, powers, _ = solve(_scores(q, k, _slice(bias, block)), block_eps, number, A[block])
        tensors = slope[block], means[block], q, k, block_eps, _slice(columns, pair)
        slopes = _pull_block_back(*tensors, number, p, powers, needed)
        blocks = block, pair, pair, block, block
        for total, indices, new in zip(totals, blocks, slopes, strict=True):
            if new is not None:
                # A view, so that the sum is taken in place: shared inputs add over blocks.
                view = _slice(total, indices)
                view += new.sum_to_size(view.shape)
    return totals


def _pull_block_back(
    slope: Tensor,
    means: Tensor,
    queries: Tensor,
    keys: Tensor,
    eps: Tensor,
    columns: Tensor,
    number: float | None,
    p: Tensor,
    powers: Tensor | None,
    needed: list[bool],
) -> list[Tensor | None]:
    """Return the gradients in queries, keys, values, eps and bias of a block.

    They have the shapes of the whole block, also where inputs are shared; the last three are None
    if they are not needed.

    Args:
        slope: As for `_backward`, like the other arguments that are not named here.
        means: See `slope`.
        queries: See `slope`.
        keys: See `slope`.
        eps: See `slope`.
        columns: The values, as `_with_ones` returns them.
        number: See `slope`.
        p: The weights (B, H, Q, K), up to a factor, as from `solve`.
        powers: Their powers p^(2 - alpha), as from `solve`; None if they are to be computed.
        needed: Whether each of the five gradients is needed.
    """
    jacobian = Jacobian(p, eps, number, powers)
    # E_p[v] changes by sum_k dp_k (v_k - E), as the dp_k sum to zero: values less their expectation
    # E keep the digits that a large mean would take.
    shifted = torch.cat([slope, -(slope * means).sum(-1, keepdim=True)], -1)
    # The gradient in the weights (B, H, Q, K).
    change = (shifted @ columns.mT).to(p.dtype)
    by_scores = jacobian.in_scores(change)
    by_values = by_eps = None
    if needed[2]:
        by_values = p.mT.to(slope.dtype) @ (slope / p.sum(-1, keepdim=True).to(slope.dtype))
    if needed[3]:
        by_eps = change * jacobian.in_alpha()
    by_bias = by_scores if needed[4] else None
    # The scores are q k': with the gradient G in them, q has the gradient G k, and k has G' q.
    return [by_scores @ keys, (queries.mT @ by_scores).mT, by_values, by_eps, by_bias]


def _like_expectations(
    queries: Tensor, keys: Tensor, values: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    """Return uninitialized tensors like the results of `_forward`, for compiled graphs."""
    shape = queries.shape[:3]
    return values.new_empty(*shape, values.shape[-1]), queries.new_empty(*shape, 1)


def _like_gradients(
    slope: Tensor, means: Tensor, A: Tensor, *inputs: Tensor | None
) -> list[Tensor]:
    """Return uninitialized tensors like the results of `_backward`, for compiled graphs.

    Without a bias its gradient has no elements.
    """
    none = slope.new_empty(0)
    # Queries, keys, values, eps and bias, without `number` and `needed`. Contiguous, since
    # `operator` makes results so.
    return [none if x is None else torch.empty_like(x).contiguous() for x in inputs[:5]]


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return gradients in the inputs of `_forward`, from gradients in its results.

    Args:
        kept: The inputs and the results of `_forward`.
        grads: Gradients in the expectations, and in A, which has none.
        needed: Whether each input needs a gradient.
    """
    *inputs, number, means, A = kept
    (slope, _), (queries, keys, values, eps, bias), needs = grads, inputs, list(needed[:5])
    slopes: list[Tensor | None]
    with full_precision(queries):
        if not compiled() and (torch.is_grad_enabled() or is_batched_by_autograd(slope)):
            p = entmax_of(_scores(queries, keys, bias), eps, number)
            # By differentiable operations on whole weights, for second derivatives.
            # The means only shift numbers that are multiplied by changes of sum zero.
            arguments = slope, means.detach(), queries, keys, eps, _with_ones(values)
            slopes = _pull_block_back(*arguments, number, p, None, needs)
        else:
            slopes = _backward_operator(slope, means, A, *inputs, number, needs)
    return [
        x.sum_to_size(y.shape) if need and x is not None else None
        for x, y, need in zip(slopes, inputs, needs, strict=True)
    ]


# Compiled graphs would take long to compile the steps of each block.
_backward_operator = operator("entmax_attention_backward", _backward, _like_gradients)
_attend_in_blocks = differentiable(
    operator("entmax_attention", _forward, _like_expectations),
    _pull_back,
    lambda inputs, outputs: (*inputs, *outputs),
    constants=(1,),  # A, the second result
)
