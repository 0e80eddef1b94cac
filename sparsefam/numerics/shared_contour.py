r"""Expectations of Gaussians of one width, with one contour for all: float32 on a CPU.

`gaussian_ball` has a contour for each pair, accurate for every ratio of widths. If the half-axes of
a support are at most 72 widths long, one contour serves all centers. Its error is about 1e-6 of
the largest expectation that a center anywhere could have. Longer supports, and densities for which
no center comes near that expectation, are left to the contours of pairs.

The sums are compiled by numba. Torch would spend most of its time on the overhead of small arrays,
and on the memory of large ones.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .compiled import announce_compiling, enough_work, is_available
from .threads import map_threads
from .validation import in_eager, is_plain_cpu_tensor

__all__ = ["gaussians_by_shared_contour", "has_shared_contour"]

# By the largest exponent, then by the longest half-axis in widths: the number of nodes, and their
# hyperbola (size, angle, step, stretch), fitted so that truncation and float32 rounding are below
# about 1e-6 of the largest expectation.
_CONTOURS = {
    1.0: {
        8.0: (11, (9.048, 0.5484, 0.1774, 0.002111)),
        16.0: (14, (7.656, 0.4408, 0.2152, -0.02317)),
        24.0: (18, (6.433, 0.3943, 0.1964, -0.01282)),
        32.0: (22, (6.994, 0.4136, 0.1769, -0.01092)),
        48.0: (27, (7.567, 0.4008, 0.1542, -0.008176)),
        72.0: (31, (6.682, 0.3866, 0.1483, -0.00531)),
    },
    3.0: {
        8.0: (8, (11.25, 0.6065, 0.1908, 0.01781)),
        16.0: (11, (7.967, 0.4011, 0.2384, -0.0224)),
        24.0: (15, (6.467, 0.3386, 0.2077, -0.01324)),
        32.0: (22, (6.217, 0.3229, 0.1412, -3.402e-05)),
        48.0: (27, (5.324, 0.3111, 0.1414, -0.0003007)),
        72.0: (32, (5.648, 0.3, 0.1313, -0.001275)),
    },
    12.5: {
        8.0: (9, (35.18, 0.7869, 0.09768, 0.1742)),
        16.0: (11, (48.56, 0.9335, 0.07248, 0.00397)),
        24.0: (13, (17.59, 0.5149, 0.1169, 0.001098)),
        32.0: (16, (12.78, 0.3536, 0.1254, 0.002378)),
        48.0: (20, (11.81, 0.3555, 0.1304, 8.843e-05)),
        72.0: (25, (10.78, 0.3096, 0.1114, 0.007764)),
    },
    25.0: {
        8.0: (8, (63.8, 0.7194, 0.07707, 0.01075)),
        16.0: (9, (65.46, 0.7606, 0.07066, 0.002999)),
        24.0: (11, (43.78, 0.6043, 0.07511, 0.001899)),
        32.0: (13, (39.78, 0.553, 0.07111, 0.00147)),
        48.0: (16, (32.78, 0.4385, 0.06754, 0.0009351)),
        72.0: (20, (28.01, 0.3332, 0.06205, 0.002449)),
    },
}
# Dimensions with compiled sums.
_DIMENSIONS = 3
# Expectations are accurate if some center has this share of the largest possible expectation.
_LEAST_SHARE = 0.25
# Pairs that are worth a thread, and the cost of a pair of the contour in torch operations, relative
# to one of the closed form.
_PAIRS_PER_THREAD = 2**16
_CONTOUR_COST = 32

_Array = NDArray[Any]
_Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
_PerPair = Callable[[_Inputs, float], Tensor]


class Rows(NamedTuple):
    """Expectations under densities (R), and arrays for their gradients."""

    values: _Array  # Expectations, (R, N)
    active: _Array  # Number of centers near the support, (R); -1 where a row did not converge
    axes: _Array  # The axes of the support, in columns, (R, 3, 3)
    near: _Array  # The indices of the centers near the support, (R, N)
    slopes: _Array  # Derivatives of their values along the axes, (R, D + D(D + 1)/2, N)


def has_shared_contour(inputs: _Inputs, exponent: Tensor | float) -> bool:
    """Return whether `gaussians_by_shared_contour` can be used.

    Inputs must be float32 on the CPU, outside of compiled graphs and transforms. The Gaussians must
    have one width and no gradient, and the exponent and the dimension a contour. numba must be
    installed.
    """
    loc, _, centers, spread = inputs
    if isinstance(exponent, Tensor) or loc.shape[-1] > _DIMENSIONS:
        return False
    least = 0.5 if loc.shape[-1] == 1 else 1.0
    if not least <= exponent <= max(_CONTOURS):
        return False
    if spread.dim() > 1 or not loc.numel() or centers.requires_grad or spread.requires_grad:
        return False
    single = all(x.dtype == torch.float32 for x in inputs)
    if not (single and in_eager() and is_plain_cpu_tensor(*inputs)):
        return False
    if spread.stride() not in ((), (0,)) and not bool((spread == spread[0]).all()):
        return False
    return is_available()


def gaussians_by_shared_contour(inputs: _Inputs, exponent: float, per_pair: _PerPair) -> Tensor:
    """Compute expectations (*batch, N), differentiable in loc and scale_tril.

    Inputs are loc (*batch, D), scale_tril (*batch, D, D), centers (N, D) and standard deviations.
    `per_pair` is another algorithm, for rows that do not converge and for second derivatives.
    """
    loc, scale_tril, centers, spread = inputs
    batch, dim = loc.shape[:-1], loc.shape[-1]
    if len(batch) != 1:
        loc, scale_tril = loc.reshape(-1, dim), scale_tril.reshape(-1, dim, dim)
    inputs = loc, scale_tril, centers, spread
    if torch.is_grad_enabled() and (loc.requires_grad or scale_tril.requires_grad):
        values: Tensor = _Expectations.apply(*inputs, exponent, per_pair)
    else:
        values = _compute(inputs, exponent, per_pair, False)[0]
    return values if len(batch) == 1 else values.reshape(*batch, len(centers))


def _compute(
    inputs: _Inputs, exponent: float, per_pair: _PerPair, needs_slopes: bool
) -> tuple[Tensor, Rows | None]:
    """Return the values (R, N) and arrays for gradients, or None before loops are in use."""
    loc, scale_tril, centers, spread = (x.detach() for x in inputs)
    pairs = len(loc) * len(centers)
    closed = loc.shape[-1] == 1 and exponent in (1.0, 2.0, 3.0)
    with torch.no_grad():
        if not enough_work(pairs if closed else _CONTOUR_COST * pairs):
            return per_pair((loc, scale_tril, centers, spread), exponent), None
        arrays, width = (_array(loc), _array(scale_tril), _array(centers)), spread.numpy().item(0)
        rows = _integrate(*arrays, width, exponent, needs_slopes)
        values, others = torch.from_numpy(rows.values), _not_converged(rows)
        if len(others):
            values[others] = per_pair((loc[others], scale_tril[others], centers, spread), exponent)
        return values, rows


def _integrate(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    exponent: float,
    needs_slopes: bool,
) -> Rows:
    count, dim, size = len(loc), loc.shape[1], len(centers)
    rows = Rows(
        values=np.zeros((count, size), np.float32),
        active=np.full(count, -1, np.int32),
        axes=np.empty((count, 3, 3)),
        near=np.empty((count, size), np.int32),
        slopes=np.empty((count if needs_slopes else 0, dim * (dim + 3) // 2, size), np.float32),
    )
    integrate_rows = _loops().integrate_rows
    middles, points = np.zeros((count, 3)), np.zeros((3, size))
    np.divide(loc, width, out=middles[:, :dim], dtype=np.float64)
    np.divide(centers.T, width, out=points[:dim], dtype=np.float64)
    rest = points, width, _contours(exponent, dim), _LEAST_SHARE

    def part(part: slice) -> None:
        integrate_rows(middles[part], scale_tril[part], *rest, *(x[part] for x in rows))

    with announce_compiling(integrate_rows):
        map_threads(part, _parts(count, size))
    return rows


def _not_converged(rows: Rows) -> Tensor:
    return torch.from_numpy(rows.active < 0).nonzero().squeeze(-1)


class _Expectations(torch.autograd.Function):
    """Values (R, N) with their gradient.

    Only inputs are saved as tensors, with and without compiled loops: see `enough_work`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        scale_tril: Tensor,
        centers: Tensor,
        spread: Tensor,
        exponent: float,
        per_pair: _PerPair,
    ) -> Tensor:
        inputs = loc, scale_tril, centers, spread
        ctx.save_for_backward(*inputs)
        values, ctx.rows = _compute(inputs, exponent, per_pair, True)
        ctx.exponent, ctx.per_pair = exponent, per_pair
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, rows, needed = ctx.saved_tensors, ctx.rows, ctx.needs_input_grad[:2]
        batched = torch._C._functorch.is_legacy_batchedtensor(grad)
        readable = in_eager() and is_plain_cpu_tensor(grad) and not batched
        if rows is None or torch.is_grad_enabled() or not readable:
            return *_gradients(ctx, inputs, grad, needed), None, None, None, None
        gradients, others = _pull_back(grad, inputs[1], inputs[3], rows), _not_converged(rows)
        if len(others):
            with torch.enable_grad():
                left = inputs[0][others], inputs[1][others], *inputs[2:]
            missing = _gradients(ctx, left, grad[others], needed)
            for x, part in zip(gradients, missing, strict=True):
                if part is not None:
                    x[others] = part
        return *gradients, None, None, None, None


def _gradients(
    ctx: Any, inputs: tuple[Tensor, ...], grad: Tensor, needed: tuple[bool, ...]
) -> list[Any]:
    """Return the gradients in loc and scale_tril by the other algorithm."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [x.view_as(x) for x in inputs[:2]]
        values = ctx.per_pair((*leaves, *inputs[2:]), ctx.exponent)
        variables = [x for x, need in zip(leaves, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(values, variables, grad, create_graph=create_graph))
    return [next(gradients) if need else None for need in needed]


def _pull_back(grad: Tensor, scale_tril: Tensor, spread: Tensor, rows: Rows) -> list[Tensor]:
    """Return the gradients in loc and scale_tril, zero for rows that did not converge."""
    above, factors, width = _array(grad), _array(scale_tril), spread.numpy().item(0)
    by_loc, by_scale_tril = np.zeros(factors.shape[:2]), np.zeros(factors.shape)
    pull_back_rows = _loops().pull_back_rows

    def part(part: slice) -> None:
        own = (x[part] for x in (*rows[1:], by_loc, by_scale_tril))
        pull_back_rows(above[part], factors[part], width, *own)

    with announce_compiling(pull_back_rows):
        map_threads(part, _parts(*grad.shape))
    return [torch.from_numpy(x).float() for x in (by_loc, by_scale_tril)]


def _parts(rows: int, size: int) -> list[slice]:
    """Divide rows among threads, of which each has enough work."""
    count = max(1, min(torch.get_num_threads(), rows, rows * size // _PAIRS_PER_THREAD))
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:], strict=False)]


@cache
def _loops() -> Any:
    from . import shared_contour_numba

    return shared_contour_numba


@cache
def _contours(exponent: float, dim: int) -> tuple[_Array, ...]:
    """Return the contours of an exponent.

    These are the longest half-axis, in widths, that each serves (P); the numbers of nodes (P); the
    nodes z, and the factors that do not depend on the half-axes, both complex (P, n).
    """
    # An exponent of 1 has the shorter contours of smoother densities.
    fitted = next(x for most, x in _CONTOURS.items() if exponent < most or exponent == most > 1)
    counts = np.array([count for count, _ in fitted.values()])
    nodes, fronts = np.zeros((2, len(fitted), max(counts)), np.complex128)
    for p, (count, shape) in enumerate(fitted.values()):
        nodes[p, :count], fronts[p, :count] = _hyperbola(count, shape, exponent, dim)
    return np.array([*fitted]), counts, nodes, fronts


def _hyperbola(
    count: int, shape: tuple[float, ...], exponent: float, dim: int
) -> tuple[_Array, _Array]:
    """Return the nodes of a hyperbola and their factors, both complex (n)."""
    size, angle, step, stretch = shape
    t = (np.arange(count) + 0.5) * step
    argument = -angle + 1j * t * (1 + stretch * t * t)
    nodes = size * (1 + np.sin(argument))
    moves = np.cos(argument) * (1 + 3 * stretch * t * t)
    front = math.lgamma(exponent + 1 + dim / 2) - 0.5 * dim * math.log(2 * math.pi)
    front += math.log(size * step / math.pi)
    return nodes, np.exp(np.log(moves) + nodes - (exponent + 1) * np.log(nodes) + front)


def _array(x: Tensor) -> _Array:
    return (x if x.is_contiguous() else x.contiguous()).numpy(force=True)
