r"""Contexts and their gradients in one pass over queries, in Triton; imported where they are run.

Queries and functions are of `dim` coordinates: expectations on the line are those of `fused_line`,
and in the plane of `fused_plane`, whose kernels are given frames for `loc`. Nothing else here
depends on where they live.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from .fused_line import line_expectations, line_function, line_pull_back, line_query
from .fused_plane import (
    plane_expectations,
    plane_frames,
    plane_function,
    plane_pull_back,
    plane_query,
)

__all__ = ["backward", "forward", "plane_frames"]

INTERPRETED = constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _multiply(a: tensor, b: tensor, total: tensor) -> tensor:
    """total + a b; of bfloat16 b by two products of it, which together know 16 bits of a."""
    if b.dtype == tl.bfloat16:
        high = a.to(tl.bfloat16)
        low = (a - high.to(tl.float32)).to(tl.bfloat16)
        if INTERPRETED:
            high, low, b = high.to(tl.float32), low.to(tl.float32), b.to(tl.float32)
        found = tl.dot(low, b, total, input_precision="ieee")
        found = tl.dot(high, b, found, input_precision="ieee")
    else:
        found = tl.dot(a, b, total, input_precision="ieee")
    return found


@triton.jit
def _function(centers: tensor, widths: tensor, j: tensor, functions: tensor, dim: constexpr) -> Any:
    """A row of functions; beyond the last one, that once more."""
    kept = tl.minimum(j, functions - 1)
    if dim == 1:
        found = line_function(centers, widths, kept)
    else:
        found = plane_function(centers, widths, kept)
    return found


@triton.jit
def _query(
    loc: tensor, scale: tensor, head: tensor, row: tensor, queries: tensor, dim: constexpr
) -> Any:
    """A column of queries; beyond the last one, that once more."""
    kept = head * queries + tl.minimum(row, queries - 1)
    if dim == 1:
        found = line_query(loc, scale, kept)
    else:
        found = plane_query(loc, kept)
    return found


@triton.jit
def _expectations(
    query: tensor,
    function: tensor,
    rule: tensor,
    lowered: constexpr,
    slopes: constexpr,
    dim: constexpr,
) -> Any:
    """Expectations of a tile (queries, functions), and their derivatives for `_pull_back`."""
    if dim == 1:
        found = line_expectations(query, function, rule, lowered, slopes)
    else:
        found = plane_expectations(query, function, rule, lowered, slopes)
    return found


@triton.jit
def _pull_back(
    query: tensor,
    weight: tensor,
    slopes: tensor,
    by_loc: tensor,
    by_scale: tensor,
    place: tensor,
    seen: tensor,
    dim: constexpr,
) -> None:
    """Stores gradients in loc and scale, of those in the expectations."""
    if dim == 1:
        line_pull_back(weight, slopes, by_loc, by_scale, place, seen)
    else:
        plane_pull_back(query, weight, slopes, by_loc, by_scale, place, seen)


@triton.jit
def _place(
    head: tensor, row: tensor, rows: tensor, heads: tensor, channels: tensor, width: constexpr
) -> tuple[tensor, ...]:
    """Where channels of some rows of a head are in (B, rows, heads, channels), and which exist."""
    channel = tl.arange(0, width)[None, :]
    start = ((head // heads) * rows + row[:, None]) * heads + head % heads
    return start * channels + channel, (row[:, None] < rows) & (channel < channels)


# fmt: off
@triton.jit
def forward(
    loc: tensor, scale: tensor, centers: tensor, widths: tensor, coefficients: tensor,
    nodes: tensor, out: tensor,
    queries: tensor, functions: tensor, heads: tensor, channels: tensor,
    count: tensor, m: tensor, trim: tensor, constant: tensor,
    lowered: constexpr, rows: constexpr, columns: constexpr, width: constexpr, dim: constexpr,
) -> None:
    # fmt: on
    """Contexts (B, Lq, heads, E) of one head and `rows` queries."""
    rule = nodes, count, m, trim, constant
    tiles = tl.cdiv(queries, rows)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    query = _query(loc, scale, head, row, queries, dim)
    total = tl.zeros((rows, width), tl.float32)
    for start in range(0, functions, columns):
        j = start + tl.arange(0, columns)
        function = _function(centers, widths, j, functions, dim)
        value, _ = _expectations(query, function, rule, lowered, False, dim)
        place, seen = _place(head, j, functions, heads, channels, width)
        total = _multiply(value, tl.load(coefficients + place, seen, 0.0), total)
    place, seen = _place(head, row, queries, heads, channels, width)
    tl.store(out + place, total, seen)


# fmt: off
@triton.jit
def backward(
    loc: tensor, scale: tensor, centers: tensor, widths: tensor, coefficients: tensor,
    nodes: tensor, upstream: tensor, by_loc: tensor, by_scale: tensor, by_coefficients: tensor,
    queries: tensor, functions: tensor, heads: tensor, channels: tensor,
    pairs: tensor, share: tensor,
    count: tensor, m: tensor, trim: tensor, constant: tensor,
    lowered: constexpr, rows: constexpr, columns: constexpr, width: constexpr, dim: constexpr,
) -> None:
    # fmt: on
    """Gradients from one head, `columns` functions and `share` queries, to be summed.

    Slopes in loc and scale are of shape (tiles of functions, B, heads, Lq, ...), those in
    coefficients (shares of queries, B, N, heads, E); `pairs` is B times heads.
    """
    rule = nodes, count, m, trim, constant
    tile, head = tl.program_id(1).to(tl.int64), (tl.program_id(0) % pairs).to(tl.int64)
    part = (tl.program_id(0) // pairs).to(tl.int64)
    j = tile * columns + tl.arange(0, columns)
    function = _function(centers, widths, j, functions, dim)
    place, kept = _place(head, j, functions, heads, channels, width)
    own = tl.load(coefficients + place, kept, 0.0)
    total = tl.zeros((columns, width), tl.float32)
    for start in range(part * share, tl.minimum(queries, (part + 1) * share), rows):
        row = start + tl.arange(0, rows)
        query = _query(loc, scale, head, row, queries, dim)
        value, slopes = _expectations(query, function, rule, lowered, True, dim)
        above, seen = _place(head, row, queries, heads, channels, width)
        g = tl.load(upstream + above, seen, 0.0)
        weight = _multiply_exact(g, tl.trans(own))
        spot = (tile * pairs + head) * queries + row
        _pull_back(query, weight, slopes, by_loc, by_scale, spot, row < queries, dim)
        total = _multiply(tl.trans(value), g, total)
    tl.store(by_coefficients + part * (pairs * functions * channels) + place, total, kept)


@triton.jit
def _multiply_exact(a: tensor, b: tensor) -> tensor:
    """a b for both of one dtype: products of bfloat16 are exact in float32."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
