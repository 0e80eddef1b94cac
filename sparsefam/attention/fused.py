r"""Contexts on a GPU in one kernel, which keeps the expectations of N functions on the chip.

On the line the integrals are real ones: for the truncated parabola a closed form where the support
is wide against a Gaussian, and else a short rule on what is seen of it, which is exact for any
exponent m from 1 on. On a GPU that is a quarter of the operations of the contour integral, whose
digits in the far tails a context does not need. In the plane it is that contour integral, as a real
one would be over two dimensions. Errors are about 1e-6 of the largest expectation.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Size, Tensor

from ..bases import Basis, GaussianRBF
from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    SparseDistribution,
    TruncatedParabola,
    TruncatedParaboloid,
)
from ..numerics.arguments import in_eager
from .fused_rules import LARGEST_EXPONENT, Rule, rule_of

__all__ = ["fused_contexts"]

_DTYPES = (torch.float32, torch.bfloat16)
# Classes made of these, and of `GaussianRBF`, may have expectations of their own.
_DENSITIES = (BetaGaussian, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid)
# Channels of a head that a block of the GPU has room for.
_CHANNELS = 256
# By dimension: queries of a tile and the warps that share it, as a pair takes more registers in the
# plane. Functions of a tile.
_ROWS, _WARPS, _COLUMNS = {1: 32, 2: 16}, {1: 4, 2: 8}, 32
# Queries whose frames a program finds.
_FRAMES = 128
# Programs that backward is cut into, a few for each multiprocessor.
_PROGRAMS = 1024


def fused_contexts(
    density: SparseDistribution, basis: Basis, coefficients: Tensor
) -> Tensor | None:
    r"""Contexts $\mathbb E_p[\psi]^\top C$ by head, or None where there is no kernel for them.

    There is one on CUDA devices with Triton, for `BetaGaussian`s, on the line or multivariate ones
    in the plane, of a fixed alpha from 1.05 to 2, and Gaussians, each of one width, that are not
    learned, in float32 or bfloat16.

    Args:
        density: Of batch shape (B, heads, Lq).
        basis: The N functions.
        coefficients: Shape (B, N, heads, E).

    Returns:
        Shape (B, Lq, heads, E) in the coefficients' dtype, differentiable in the density's loc and
        scale or scale_tril and in the coefficients.
    """
    if type(density) not in _DENSITIES or not (_has_kernels(coefficients) and in_eager()):
        return None
    if isinstance(density, BetaGaussian):
        scale = density.scale
    elif isinstance(density, MultivariateBetaGaussian) and density.event_shape == (2,):
        scale = density.scale_tril
    else:
        return None
    m = density._fixed_exponent
    if m is None or not 1 <= m <= LARGEST_EXPONENT:
        return None
    if not _is_constant(basis, density.event_shape):
        return None
    tensors = (density.loc, scale, coefficients)
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


def _is_constant(basis: Basis, event: Size) -> bool:
    """Whether it is of Gaussians of such locations, in float32, without gradients."""
    if type(basis) is not GaussianRBF or basis.event_shape != event or basis.widths is None:
        return False
    own = basis.centers, basis.widths
    return all(x.dtype in _DTYPES and not x.requires_grad for x in own)


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
    family: Any = MultivariateBetaGaussian if basis.event_shape else BetaGaussian
    density: SparseDistribution = family(loc, scale, alpha=1 + 1 / m, validate_args=False)
    features = density.expect(basis).to(coefficients.dtype)
    return (features @ coefficients.transpose(1, 2)).transpose(1, 2)


def _forward(inputs: list[Tensor], m: float) -> Tensor:
    from . import fused_kernels

    loc, _, centers, _, coefficients = inputs
    (examples, heads, queries), dim = loc.shape[:3], centers.dim()
    functions, channels = coefficients.shape[1], coefficients.shape[3]
    rule = rule_of(m, dim, loc.device)
    out = coefficients.new_empty(examples, queries, heads, channels)
    with torch.cuda.device_of(loc):
        fused_kernels.forward[(examples * heads * -(-queries // _ROWS[dim]),)](
            *_prepared(inputs),
            rule.table,
            out,
            *(queries, functions, heads, channels),
            *rule[1:5],
            **_constants(rule, dim, channels),
        )
    return out


def _backward(inputs: list[Tensor], upstream: Tensor, m: float) -> list[Tensor]:
    from . import fused_kernels

    loc, scale, centers, _, coefficients = inputs
    (examples, heads, queries), dim = loc.shape[:3], centers.dim()
    functions, channels = coefficients.shape[1], coefficients.shape[3]
    rule, tiles = rule_of(m, dim, loc.device), -(-functions // _COLUMNS)
    share = _share(queries, _ROWS[dim], examples * heads * tiles)
    parts = -(-queries // share)
    sums = [
        loc.new_empty(n, *x.shape, dtype=torch.float32)
        for n, x in ((tiles, loc), (tiles, scale), (parts, coefficients))
    ]
    with torch.cuda.device_of(loc):
        fused_kernels.backward[(parts * examples * heads, tiles)](
            *_prepared(inputs),
            rule.table,
            upstream,
            *sums,
            *(queries, functions, heads, channels, examples * heads, share),
            *rule[1:5],
            **_constants(rule, dim, channels),
        )
    return [x.sum(0).to(of.dtype) for x, of in zip(sums, (loc, scale, coefficients), strict=True)]


def _prepared(inputs: list[Tensor]) -> list[Tensor]:
    """In the plane with the frames of the queries in the place of their locations."""
    from . import fused_kernels

    loc, scale, centers, *rest = inputs
    if centers.dim() == 1:
        return inputs
    total = loc[..., 0].numel()
    frames = loc.new_empty(total, 8, dtype=torch.float64)
    fused_kernels.plane_frames[(-(-total // _FRAMES),)](loc, scale, frames, total, _FRAMES)
    return [frames, scale, centers, *rest]


def _share(queries: int, rows: int, programs: int) -> int:
    """Queries of a program of backward: whole tiles, and enough programs for a GPU."""
    tiles = -(-queries // rows)
    parts = min(tiles, max(1, _PROGRAMS // programs))
    return -(-tiles // parts) * rows


def _constants(rule: Rule, dim: int, channels: int) -> dict[str, int]:
    return {
        "lowered": rule.lowered,
        "rows": _ROWS[dim],
        "columns": _COLUMNS,
        "width": max(16, 1 << (channels - 1).bit_length()),
        "dim": dim,
        "num_warps": _WARPS[dim],
    }
