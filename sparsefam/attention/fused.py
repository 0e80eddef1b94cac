r"""Contexts on a GPU in one kernel, which keeps the expectations of N functions on the chip.

The integrals are real ones: for the truncated parabola a closed form where the support is wide
against a Gaussian, and else a short rule on what is seen of it, which is exact for any exponent
m from 1 on. On a GPU that is a quarter of the operations of the contour integral, whose digits in
the far tails a context does not need. Errors are about 1e-6 of the largest expectation.
"""

import math
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts load when they are asked for
import torch
from torch import Tensor

from ..bases import Basis, GaussianRBF
from ..distributions import BetaGaussian, SparseDistribution
from ..numerics.arguments import in_eager
from ..numerics.quadrature import constant

__all__ = ["fused_contexts"]

# Exponents m = 1/(alpha - 1) that the rule was checked for, and the channels of a head that a
# block of the GPU has room for.
_EXPONENTS, _CHANNELS = (1.0, 20.0), 256
_DTYPES = (torch.float32, torch.bfloat16)
# Queries and functions of a tile, and the warps that share it.
_ROWS, _COLUMNS, _WARPS = 32, 32, 4
# Programs that backward is cut into, a few for each multiprocessor.
_PROGRAMS = 1024


def fused_contexts(
    density: SparseDistribution, basis: Basis, coefficients: Tensor
) -> Tensor | None:
    r"""Contexts $\mathbb E_p[\psi]^\top C$ by head, or None where there is no kernel for them.

    There is one on CUDA devices with Triton, for `BetaGaussian`s of a fixed alpha from 1.05 to 2
    and Gaussians on the line that are not learned, in float32 or bfloat16.

    Args:
        density: Of batch shape (B, heads, Lq).
        basis: The N functions.
        coefficients: Shape (B, N, heads, E).

    Returns:
        Shape (B, Lq, heads, E) in the coefficients' dtype, differentiable in the density's loc and
        scale and in the coefficients.
    """
    if not (_has_kernels(coefficients) and in_eager() and isinstance(density, BetaGaussian)):
        return None
    m = density._fixed_exponent
    if m is None or not _EXPONENTS[0] <= m <= _EXPONENTS[1] or not _is_constant(basis):
        return None
    tensors = (density.loc, density.scale, coefficients)
    if any(x.dtype not in _DTYPES for x in tensors) or coefficients.shape[-1] > _CHANNELS:
        return None
    if not density.loc.numel() or not coefficients.numel():
        return None
    found: Tensor = _Contexts.apply(*tensors, basis, m)
    return found


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _is_constant(basis: Basis) -> bool:
    """Whether it is of Gaussians on the line, in float32, without gradients."""
    if not isinstance(basis, GaussianRBF) or basis.event_shape or basis.widths is None:
        return False
    own = basis.centers, basis.widths
    return all(x.dtype in _DTYPES and not x.requires_grad for x in own)


class _Rule(NamedTuple):
    """Nodes on the unit interval, and what else a kernel is told about an exponent.

    Attributes:
        table: Nodes, their distances from 1 and weights, (3, count).
        lowered: m - 1 where products make that power, or -1.
        constant: Of the standard density.
        trim: Share of its half-width at either end where there is as good as nothing.
    """

    table: Tensor
    lowered: int
    constant: float
    trim: float


@cache
def _rule(m: float, device: torch.device) -> _Rule:
    """Gauss-Legendre for polynomials; else after $y^2 (3 - 2y)$, which tames a power at an end."""
    lowered = int(m) - 1 if m in (1.0, 2.0, 3.0) else -1
    x, w = scipy.special.roots_legendre((14, 20, 20, 32)[lowered])
    y, rest, w = (1 + x) / 2, (1 - x) / 2, w / 2
    if lowered < 0:
        w = 6 * w * y * rest
        y, rest = y**2 * (3 - 2 * y), rest**2 * (3 - 2 * rest)
    log_constant = math.lgamma(m + 1.5) - math.lgamma(m + 1) - 0.5 * math.log(math.pi)
    trim = 1 - math.sqrt(1 - math.exp(-18 / m)) if m > 4 else 0.0
    table = constant(np.stack([y, rest, w]), torch.float32, device)
    return _Rule(table, lowered, math.exp(log_constant), trim)


class _Contexts(torch.autograd.Function):
    """Nothing of the size of pairs is kept: backward makes it again, tile by tile."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, scale: Tensor, coefficients: Tensor, basis: GaussianRBF, m: float
    ) -> Tensor:
        widths = _widths(basis)
        inputs = [x.contiguous() for x in (loc, scale, basis.centers, widths, coefficients)]
        ctx.save_for_backward(loc, scale, coefficients, *inputs)
        ctx.basis, ctx.m = basis, m
        return _forward(inputs, m)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        loc, scale, coefficients, *inputs = ctx.saved_tensors
        further = torch.is_grad_enabled()
        if not further and not _is_batched(upstream):
            return *_backward(inputs, upstream.contiguous(), ctx.m), None, None
        needed = ctx.needs_input_grad
        with torch.enable_grad():
            # Of views, as one of these may depend on another.
            leaves = [x.view_as(x) for x in (loc, scale, coefficients)]
            out = _eager(leaves, ctx.basis, ctx.m)
        wanted = [x for x, need in zip(leaves, needed, strict=False) if need]
        slopes = iter(torch.autograd.grad(out, wanted, upstream, create_graph=further))
        return *(next(slopes) if need else None for need in needed[:3]), None, None


def _is_batched(x: Tensor) -> bool:
    """Whether vmap is at work: that of torch.func, or the one that `is_grads_batched` asks for."""
    functions = torch._C._functorch
    return functions.is_batchedtensor(x) or functions.is_legacy_batchedtensor(x)


def _widths(basis: GaussianRBF) -> Tensor:
    widths = basis.widths
    return basis.centers if widths is None else widths.expand(len(basis))


def _eager(leaves: list[Tensor], basis: GaussianRBF, m: float) -> Tensor:
    """The same contexts by differentiable operations, for second derivatives and for vmap."""
    loc, scale, coefficients = leaves
    density = BetaGaussian(loc, scale, alpha=1 + 1 / m, validate_args=False)
    features = density.expect(basis).to(coefficients.dtype)
    return (features @ coefficients.transpose(1, 2)).transpose(1, 2)


def _forward(inputs: list[Tensor], m: float) -> Tensor:
    from . import fused_kernels

    loc, coefficients = inputs[0], inputs[4]
    examples, heads, queries = loc.shape
    functions, channels = coefficients.shape[1], coefficients.shape[3]
    rule = _rule(m, loc.device)
    out = coefficients.new_empty(examples, queries, heads, channels)
    with torch.cuda.device_of(loc):
        fused_kernels.forward[(examples * heads * -(-queries // _ROWS),)](
            *inputs,
            rule.table,
            out,
            *(queries, functions, heads, channels),
            *_numbers(rule, m),
            **_constants(rule, channels),
        )
    return out


def _backward(inputs: list[Tensor], upstream: Tensor, m: float) -> list[Tensor]:
    from . import fused_kernels

    loc, scale, *_, coefficients = inputs
    examples, heads, queries = loc.shape
    functions, channels = coefficients.shape[1], coefficients.shape[3]
    rule, tiles = _rule(m, loc.device), -(-functions // _COLUMNS)
    share = _share(queries, examples * heads * tiles)
    parts = -(-queries // share)
    sums = [
        loc.new_empty(n, *x.shape, dtype=torch.float32)
        for n, x in ((tiles, loc), (tiles, scale), (parts, coefficients))
    ]
    with torch.cuda.device_of(loc):
        fused_kernels.backward[(parts * examples * heads, tiles)](
            *inputs,
            rule.table,
            upstream,
            *sums,
            *(queries, functions, heads, channels, examples * heads, share),
            *_numbers(rule, m),
            **_constants(rule, channels),
        )
    return [x.sum(0).to(of.dtype) for x, of in zip(sums, (loc, scale, coefficients), strict=True)]


def _share(queries: int, programs: int) -> int:
    """Queries of a program of backward: whole tiles, and enough programs for a GPU."""
    tiles = -(-queries // _ROWS)
    parts = min(tiles, max(1, _PROGRAMS // programs))
    return -(-tiles // parts) * _ROWS


def _numbers(rule: _Rule, m: float) -> tuple[int, float, float, float]:
    return rule.table.shape[1], m, rule.trim, rule.constant


def _constants(rule: _Rule, channels: int) -> dict[str, int]:
    return {
        "lowered": rule.lowered,
        "rows": _ROWS,
        "columns": _COLUMNS,
        "width": max(16, 1 << (channels - 1).bit_length()),
        "num_warps": _WARPS,
    }
