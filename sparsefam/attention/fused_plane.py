r"""Expectations in the plane, for the kernels of contexts.

In the axes of a query's ellipse, U S V' its factor L, and in units of their half-lengths, a
Gaussian's center is at $b = S^{-1} U^\top (c - loc)$ and its variances are $\lambda_k = w^2/s_k^2$.
The axes, and centers along them, are found in float64, since a float32 rotation would move what is
far along a thin ellipse by many of its widths; all else is float32. Axes are found once, before the
kernels that need them for each tile.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from .fused_contour import contour, saddle

__all__ = ["plane_expectations", "plane_frames", "plane_function", "plane_pull_back", "plane_query"]

# As in `numerics.frame`: the thinnest that a half-axis and a Gaussian are against each other, and
# the farthest that a center is.
NARROWEST = constexpr(1e-6)
FARTHEST = constexpr(1e7)
TINY = constexpr(1e-300)


@triton.jit
def plane_function(centers: tensor, widths: tensor, place: tensor) -> tuple[tensor, ...]:
    """Centers and widths of a row of functions."""
    x, y = tl.load(centers + 2 * place), tl.load(centers + 2 * place + 1)
    x, y = x.to(tl.float64)[None, :], y.to(tl.float64)[None, :]
    return x, y, tl.load(widths + place).to(tl.float32)[None, :]


@triton.jit
def plane_query(frames: tensor, place: tensor) -> tuple[tensor, ...]:
    """What `plane_frames` found for a column of queries; the last four are for slopes alone."""
    own = frames + 8 * place[:, None]
    location = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    first, second = tl.load(own + 4), tl.load(own + 5)
    along, across = tl.load(own + 6).to(tl.float32), tl.load(own + 7).to(tl.float32)
    return location, (first, second), (first.to(tl.float32), second.to(tl.float32)), (along, across)


@triton.jit
def plane_frames(
    loc: tensor, factor: tensor, frames: tensor, total: tensor, size: constexpr
) -> None:
    """Locations, axes, inverse half-lengths and the first row of V' of queries, float64 (total, 8).

    The longer axis comes first: it is (cosine, sine), and the other one (-sine, cosine).
    """
    place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    seen = place < total
    x = tl.load(loc + 2 * place, seen, 0.0).to(tl.float64)
    y = tl.load(loc + 2 * place + 1, seen, 0.0).to(tl.float64)
    a = tl.load(factor + 4 * place, seen, 1.0).to(tl.float64)
    b = tl.load(factor + 4 * place + 2, seen, 0.0).to(tl.float64)
    d = tl.load(factor + 4 * place + 3, seen, 1.0).to(tl.float64)
    gap, off = a * a - (b * b + d * d), 2 * a * b
    size = tl.sqrt(gap * gap + off * off)
    # Cosine and sine of twice the angle; of a circle any will do.
    gap = tl.where(size > TINY, gap / tl.maximum(size, TINY), 1.0)
    off = off / tl.maximum(size, TINY)
    large = tl.sqrt(0.5 * (1 + tl.abs(gap)))
    small = 0.5 * off / large
    cosine = tl.where(gap < 0, tl.abs(small), large)
    sine = tl.where(gap < 0, tl.where(off < 0, -large, large), small)
    first = tl.sqrt(0.5 * (a * a + b * b + d * d + size))
    inverse = 1 / first
    own = frames + 8 * place
    tl.store(own, x, seen)
    tl.store(own + 1, y, seen)
    tl.store(own + 2, cosine, seen)
    tl.store(own + 3, sine, seen)
    tl.store(own + 4, inverse, seen)
    tl.store(own + 5, first / (a * d), seen)
    tl.store(own + 6, (cosine * a + sine * b) * inverse, seen)
    tl.store(own + 7, sine * d * inverse, seen)


@triton.jit
def plane_expectations(
    query: tensor, function: tensor, rule: tensor, lowered: constexpr, slopes: constexpr
) -> tuple[tensor, ...]:
    """Expectations of a tile (queries, functions), and their derivatives in b and A = L L'.

    `rule` is where the path's constants are, how many nodes, m, nothing, and the density's
    constant. Derivatives are those of the frame, where A is the unit matrix: by b_1, b_2, A_11,
    A_12 and A_22.
    """
    b, lam, shrink, inside = _frame(query, function)
    z = saddle(lam, b, rule[2] + 1)
    size, one, averages = contour(z, lam, b, inside, rule, lowered, slopes)
    volume = (shrink[0] * query[2][0]) * (shrink[1] * query[2][1])
    value = rule[4] * size * volume
    found = value, value, value, value, value
    if slopes:
        found = _slopes(z, lam, b, shrink, one, averages, value)
    return value, found


@triton.jit
def _frame(query: tensor, function: tensor) -> tuple[tensor, ...]:
    """Means b, variances, what b was shrunk by where the Gaussian is far wider; and 1 - |b|^2."""
    location, inverses, rounded, _ = query
    x, y, cosine, sine = location
    center_x, center_y, width = function
    gap_x, gap_y = center_x - x, center_y - y
    deviation1, deviation2 = width * rounded[0], width * rounded[1]
    shrink1 = tl.minimum(1 / (deviation1 * NARROWEST), 1.0)
    shrink2 = tl.minimum(1 / (deviation2 * NARROWEST), 1.0)
    b1 = _bounded((gap_x * cosine + gap_y * sine) * inverses[0] * shrink1)
    b2 = _bounded((gap_y * cosine - gap_x * sine) * inverses[1] * shrink2)
    inside = (1 - b1 * b1 - b2 * b2).to(tl.float32)
    deviation1 = tl.maximum(deviation1 * shrink1, NARROWEST)
    deviation2 = tl.maximum(deviation2 * shrink2, NARROWEST)
    lam = deviation1 * deviation1, deviation2 * deviation2
    return (b1.to(tl.float32), b2.to(tl.float32)), lam, (shrink1, shrink2), inside


@triton.jit
def _bounded(b: tensor) -> tensor:
    return tl.minimum(tl.maximum(b, -FARTHEST), FARTHEST)


@triton.jit
def _slopes(
    z: tensor, lam: tensor, b: tensor, shrink: tensor, one: tensor, averages: tensor, value: tensor
) -> tuple[tensor, ...]:
    """As in `numerics.averages`."""
    e1, e2, e11, e12, e22 = averages
    q1, q2 = 1 / (1 + 2 * z * lam[0]), 1 / (1 + 2 * z * lam[1])
    p1, p2 = 2 * z * lam[0] * q1, 2 * z * lam[1] * q2
    reach1, reach2 = z * q1 * b[0], z * q2 * b[1]
    rise1, rise2, fall1, fall2 = q1 * e1, q2 * e2, p1 * e1, p2 * e2
    by11 = q1 * (b[0] * reach1 * (one + rise1 - fall1 - p1 * q1 * e11) - 0.5 * (one - fall1))
    by12 = q1 * b[0] * reach2 * (one + rise2 - fall1 - p1 * q2 * e12)
    by22 = q2 * (b[1] * reach2 * (one + rise2 - fall2 - p2 * q2 * e22) - 0.5 * (one - fall2))
    first, second = value * shrink[0], value * shrink[1]
    by1, by2 = -2 * first * reach1 * (one + rise1), -2 * second * reach2 * (one + rise2)
    return by1, by2, first * shrink[0] * by11, first * shrink[1] * by12, second * shrink[1] * by22


@triton.jit
def plane_pull_back(
    query: tensor,
    weight: tensor,
    slopes: tensor,
    by_loc: tensor,
    by_factor: tensor,
    place: tensor,
    seen: tensor,
) -> None:
    """Stores gradients of a column of queries, of those of the expectations.

    With P those in A in the frame, the ones in the factor are 2 U S^-1 P V' below the diagonal.
    """
    location, _, inverses, row = query
    cosine, sine = location[2].to(tl.float32), location[3].to(tl.float32)
    inverse1, inverse2 = inverses
    by1, by2, by11, by12, by22 = slopes
    first, second = _total(weight * by1) * inverse1, _total(weight * by2) * inverse2
    place, seen = place[:, None], seen[:, None]
    tl.store(by_loc + 2 * place, sine * second - cosine * first, seen)
    tl.store(by_loc + 2 * place + 1, -(sine * first + cosine * second), seen)
    p11, p12, p22 = _total(weight * by11), _total(weight * by12), _total(weight * by22)
    # The first row of V' is (x, y), and the second one (-y, x).
    x, y = row
    inverse1, inverse2 = 2 * inverse1, 2 * inverse2
    m1, m2 = inverse1 * (p11 * x - p12 * y), inverse2 * (p12 * x - p22 * y)
    n1, n2 = inverse1 * (p11 * y + p12 * x), inverse2 * (p12 * y + p22 * x)
    tl.store(by_factor + 4 * place, cosine * m1 - sine * m2, seen)
    tl.store(by_factor + 4 * place + 1, tl.zeros(m1.shape, tl.float32), seen)
    tl.store(by_factor + 4 * place + 2, sine * m1 + cosine * m2, seen)
    tl.store(by_factor + 4 * place + 3, sine * n1 + cosine * n2, seen)


@triton.jit
def _total(terms: tensor) -> tensor:
    return tl.sum(terms, 1, keep_dims=True)
