r"""Contexts: expectations of value functions under the densities of queries, $E_p[\psi]^\top C$."""

from functools import cache
from typing import Any, cast

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Size, Tensor

from ..bases import Basis, GaussianRBF
from ..distributions import BetaGaussian, Mixture, SparseDistribution
from ..distributions.base import StandardizedDistribution
from ..distributions.kernel_family import KernelDistribution
from ..numerics.compiled import announce_compiling, enough_work, is_available
from ..numerics.least_squares import recomputed
from ..numerics.threads import map_threads
from ..numerics.validation import in_eager, is_plain_cpu_tensor
from .masks import full_precision

__all__ = ["contexts"]

# Pairs of a query and a basis function in a block: large enough for threads, small enough for
# the cache. Fewer than four blocks are not worth their while.
_PAIRS = 2**18
# Value functions are polynomials of degree 5 on cells, a quarter as long as the narrowest Gaussian
# is wide: errors of 2e-8 in values and 1e-6 in slopes. Gaussians end after so many widths.
_CELLS, _NODES, _REACH = 4, 6, 6.0
# Numbers of nodes of the Gauss-Jacobi rules, and the longest half-width in widths that they serve.
_ORDERS = (*range(4, 34, 2), *range(36, 66, 4), *range(72, 129, 8), *range(144, 371, 16))
_LONGEST = 128.0
# Tables pay where a head has half as many queries as a table has points.
_LEAST_QUERIES = 0.5
# The largest exponent m for which the number of nodes was measured.
_LARGEST_EXPONENT = 25.0

_Array = NDArray[Any]


def contexts(density: SparseDistribution, basis: Basis, coefficients: Tensor) -> Tensor:
    r"""Return contexts $E_p[\psi]^\top C$ by head, (B, Lq, heads, E), with C (B, N, heads, E).

    Expectations of N functions for every query and head would be more numbers than the rest of a
    layer. Where they are many, they are computed in blocks of queries, and again in the backward
    pass. Compiled graphs, transforms of `torch.func` and kernel densities take all at once.
    """
    by_head = coefficients.transpose(1, 2)
    if isinstance(density, KernelDistribution):
        return density.combination_means(basis, by_head).to(by_head.dtype).transpose(1, 2)
    context = _by_quadrature(density, basis, by_head)
    return _by_expectations(density, basis, by_head) if context is None else context


def _by_expectations(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Tensor:
    """Return contexts from the expectations of single functions, in blocks of queries."""
    # `numel` would fix the sizes of an exported graph.
    pairs = density.batch_shape.numel() * len(basis) if in_eager() else 0
    inner = density.components if isinstance(density, Mixture) else density
    if pairs < 4 * _PAIRS or not isinstance(inner, StandardizedDistribution):
        return _contract(density.expect(basis), by_head)

    def block(basis: Basis, part: SparseDistribution) -> Tensor:
        return _contract(part.expect(basis), by_head)

    queries = density.batch_shape[2]
    rows = max(1, _PAIRS * queries // pairs)
    parts = [density[:, :, first : first + rows] for first in range(0, queries, rows)]
    run = recomputed(basis, block)
    return torch.cat([run(part) for part in parts], 1)


def _contract(features: Tensor, by_head: Tensor) -> Tensor:
    return (features.to(by_head.dtype) @ by_head).transpose(1, 2)


# Gauss-Jacobi quadrature of tabulated value functions, compiled.


def _by_quadrature(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Tensor | None:
    """Return contexts by quadrature of tabulated value functions, or None if that does not apply.

    It applies to many queries with beta-Gaussians whose alpha is a number and Gaussian functions
    that are not learned, in 1-D and float32 on a CPU, if compiled loops are available.
    """
    if isinstance(density, Mixture):
        return _of_mixture(density, basis, by_head)
    if not (isinstance(density, BetaGaussian) and isinstance(basis, GaussianRBF) and in_eager()):
        return None
    exponent, loc, scale = density._fixed_exponent, density.loc, density.scale
    centers, widths = basis.centers, cast(Tensor, basis.widths)
    tensors = (loc, scale, by_head, centers, widths)
    if exponent is None or exponent > _LARGEST_EXPONENT or centers.dim() > 1:
        return None
    if any(x.dtype != torch.float32 for x in tensors) or not is_plain_cpu_tensor(*tensors):
        return None
    if centers.requires_grad or widths.requires_grad or not loc.numel():
        return None
    start, length, count = _cells(basis)
    if _LEAST_QUERIES * _NODES * count > loc.shape[2]:
        return None
    width = _CELLS * length
    # Beyond the longest half-width, and for infinite ones, functions are expected one by one.
    if bool((scale.detach() > _LONGEST * width).any()):
        return None
    if not is_available():
        return None
    table, cells = _tabulate(basis, start, length, count), (start, length, width)
    # After a functional call the basis has other tensors when the backward pass comes.
    source = density, GaussianRBF(centers, widths)
    context: Tensor = _Quadrature.apply(loc, scale, by_head, table, cells, exponent, source)
    return context


def _of_mixture(density: Mixture, basis: Basis, by_head: Tensor) -> Tensor | None:
    inner = density.components
    if not isinstance(inner, BetaGaussian):
        return None
    shape = Size(inner.loc.flatten(2).shape)
    flat = inner._with_parameters(shape, lambda x, event: x.flatten(2))
    parts = _by_quadrature(flat, basis, by_head)
    if parts is None:
        return None
    weights = density.logits.softmax(-1).transpose(1, 2)  # (B, Lq, heads, K)
    parts = parts.unflatten(1, (-1, weights.shape[-1])).movedim(2, 3)  # (B, Lq, heads, K, E)
    mean: Tensor = (weights.unsqueeze(-2) @ parts).squeeze(-2)
    return mean


def _cells(basis: GaussianRBF) -> tuple[float, float, int]:
    """Return start, length and number of the cells that cover the functions of a basis."""
    centers, widths = basis.centers.double(), cast(Tensor, basis.widths).double()
    length = float(widths.amin()) / _CELLS
    start = float((centers - _REACH * widths).amin())
    end = float((centers + _REACH * widths).amax())
    return start, length, max(1, int(np.ceil((end - start) / length)))


def _tabulate(basis: GaussianRBF, start: float, length: float, count: int) -> Tensor:
    """Return the functions' coefficients in powers of a cell's coordinate in [-1, 1], (G, 6, N)."""
    nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    to_powers = torch.from_numpy(np.linalg.inv(np.vander(nodes, increasing=True)))
    cells = torch.arange(count, dtype=torch.float64).unsqueeze(-1)
    points = start + length * (cells + (torch.from_numpy(nodes) + 1) / 2)
    # In float64, as rounding a point by the precision of float32 moves it by many 1e-7 widths.
    with torch.no_grad():
        table: Tensor = to_powers @ basis(points)
    return table.float()


class _Quadrature(torch.autograd.Function):
    """Contexts (B, Lq, heads, E), differentiable in loc, scale (B, heads, Lq) and by_head.

    Without compiled loops it computes them from expectations, and saves the same tensors: see
    `enough_work`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        scale: Tensor,
        by_head: Tensor,
        table: Tensor,
        cells: tuple[float, float, float],
        exponent: float,
        source: tuple[SparseDistribution, GaussianRBF],
    ) -> Tensor:
        ctx.save_for_backward(loc, scale, by_head, table)
        ctx.cells, ctx.exponent, ctx.source = cells, exponent, source
        ctx.compiled = enough_work(loc.numel() * len(source[1]))
        if not ctx.compiled:
            return _by_expectations(*source, by_head).contiguous()
        out = np.empty((loc.shape[0], loc.shape[2], loc.shape[1], by_head.shape[-1]), np.float32)
        loops, rule = _loops(), _rules(exponent, scale, cells)
        arrays = _numpy(loc), _numpy(scale), _numpy(_values(table, by_head))

        def part(place: tuple[int, ...]) -> None:
            loc, scale, values = (x[place] for x in arrays)
            loops.expect(values, cells, loc, scale, *rule, out[place[0], :, place[1]])

        with announce_compiling(loops.expect):
            map_threads(part, np.ndindex(*loc.shape[:2]))
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        loc, scale, by_head, table = ctx.saved_tensors
        nothing = (None, None, None, None)
        batched = torch._C._functorch.is_legacy_batchedtensor(grad)
        plain = torch.is_grad_enabled() or batched or not (in_eager() and is_plain_cpu_tensor(grad))
        if plain or not ctx.compiled:
            return *_through_expectations(ctx, (loc, scale, by_head), grad), *nothing
        loops, rule = _loops(), _rules(ctx.exponent, scale, ctx.cells)
        arrays = _numpy(loc), _numpy(scale), _numpy(_values(table, by_head))
        upstream, slopes = _numpy(grad), [np.zeros_like(x) for x in arrays]

        def part(place: tuple[int, ...]) -> None:
            loc, scale, values, *own = (x[place] for x in (*arrays, *slopes))
            up = upstream[place[0], :, place[1]]
            loops.pull_back(values, ctx.cells, loc, scale, *rule, up, *own)

        with announce_compiling(loops.pull_back):
            map_threads(part, np.ndindex(*loc.shape[:2]))
        by_loc, by_scale, by_values = map(torch.from_numpy, slopes)
        with full_precision(table):
            by_coefficients = torch.einsum("gkn,bhgke->bhne", table, by_values).contiguous()
        return by_loc, by_scale, by_coefficients, *nothing


def _through_expectations(
    ctx: Any, inputs: tuple[Tensor, ...], grad: Tensor
) -> list[Tensor | None]:
    """Return gradients through the expectations of single functions.

    They serve second derivatives, and first ones without compiled loops.
    """
    density, basis = ctx.source
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        loc, scale, by_head = (
            x.view_as(x) if again else x.detach().requires_grad_() for x in inputs
        )
        parameters = iter((density.alpha, loc, scale))
        own = density._with_parameters(loc.shape, lambda x, event: next(parameters))
        value = _by_expectations(own, basis, by_head)
        leaves = zip((loc, scale, by_head), ctx.needs_input_grad[:3], strict=True)
        needed = [x for x, need in leaves if need]
        slopes = iter(torch.autograd.grad(value, needed, grad, create_graph=again))
    return [next(slopes) if need else None for need in ctx.needs_input_grad[:3]]


def _values(table: Tensor, by_head: Tensor) -> Tensor:
    """Return the value functions' coefficients by cell, (B, heads, G, 6, E)."""
    with full_precision(table):
        return torch.einsum("gkn,bhne->bhgke", table, by_head)


@cache
def _loops() -> Any:
    from ..numerics import gauss_jacobi_numba

    return gauss_jacobi_numba


def _rules(
    exponent: float, scale: Tensor, cells: tuple[float, float, float]
) -> tuple[_Array, _Array]:
    """Return orders (K) and rules (K, 2, order) that serve all half-widths of supports."""
    longest = float(scale.nan_to_num().amax()) / cells[2]
    count = int(np.searchsorted(_ORDERS, 2.85 * longest + 3)) + 1
    rules = np.zeros((count, 2, _ORDERS[count - 1]))
    for rule, order in zip(rules, _ORDERS, strict=False):
        rule[:, :order] = _rule(exponent, order)
    return np.array(_ORDERS[:count]), rules


@cache
def _rule(exponent: float, order: int) -> _Array:
    nodes, weights = scipy.special.roots_jacobi(order, exponent, exponent)
    return np.stack([nodes, weights / weights.sum()])


def _numpy(x: Tensor) -> _Array:
    return x.contiguous().numpy(force=True)
