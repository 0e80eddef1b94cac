r"""Expectations on the line, for the kernels of contexts.

Everything is measured from the center c of a Gaussian, in its widths and towards the density: with
D = |c - loc|, the nearer edge of the support is at (scale - D)/w and the other one at
-(scale + D)/w. In these coordinates v the density's base $1 - x^2$ is
$(near - v)(far + v)/h^2$ with h = scale/w, a product of two numbers that cancel nowhere.

What is wider than `SWITCH` Gaussians takes derivatives of the density, $f'$, and what is narrower
those of the Gaussian: each alone loses digits at the other end.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

__all__ = ["line_expectations", "line_function", "line_pull_back", "line_query"]

# scale / width where one way of writing an integral takes over from the other.
SWITCH = constexpr(2.0)
# A Gaussian is not seen from here on, in widths.
FAR = constexpr(5.7)
ROOT_HALF = constexpr(0.7071067811865476)
INVERSE_ROOT_TWO_PI = constexpr(0.3989422804014327)
LOG2_GAUSS = constexpr(-0.7213475204444817)


@triton.jit
def line_query(loc: tensor, scale: tensor, place: tensor) -> tuple[tensor, ...]:
    """Locations and scales of a column of queries."""
    mu = tl.load(loc + place).to(tl.float32)[:, None]
    return mu, tl.load(scale + place).to(tl.float32)[:, None]


@triton.jit
def line_function(centers: tensor, widths: tensor, place: tensor) -> tuple[tensor, ...]:
    """Centers and inverse widths of a row of functions."""
    center = tl.load(centers + place).to(tl.float32)[None, :]
    return center, 1 / tl.load(widths + place).to(tl.float32)[None, :]


@triton.jit
def _geometry(loc: tensor, scale: tensor, center: tensor, inverse: tensor) -> tuple[tensor, ...]:
    """Distance, nearer and farther edge in widths, and the side on which the center is."""
    offset = center - loc
    back = offset - center
    # What the subtraction lost: at the edge of a wide support it is all there is.
    lost = (center - (offset - back)) - (loc + back)
    side = tl.where(offset > 0, 1.0, tl.where(offset < 0, -1.0, 0.0))
    distance, lost = tl.abs(offset), lost * side
    near = ((scale - distance) - lost) * inverse
    far = ((scale + distance) + lost) * inverse
    return distance * inverse, near, far, side


@triton.jit
def _closed(pairs: tensor, slopes: constexpr) -> tuple[tensor, ...]:
    """Integrals at m = 1 over v, and those that its slopes in D and scale are made of."""
    z, near, far, h = pairs
    peak_near = INVERSE_ROOT_TWO_PI * tl.exp(-0.5 * near * near)
    peak_far = INVERSE_ROOT_TWO_PI * tl.exp(-0.5 * far * far)
    mass = 0.5 * (tl.erf(near * ROOT_HALF) + tl.erf(far * ROOT_HALF))
    # In half-widths, no power of which leaves the range of float32, however wide the support is.
    inverse = 1 / h
    x, before, behind = z * inverse, near * inverse, far * inverse
    edges = behind * peak_near + before * peak_far
    value = inverse * ((before * behind - inverse * inverse) * mass + inverse * edges)
    along, across = value, value
    if slopes:
        square, first = inverse * inverse, inverse * (peak_far - peak_near)
        second = square * mass - inverse * (before * peak_near + behind * peak_far)
        along = -2 * square * (x * mass + first)
        across = square * (3 * (second + 2 * x * first + x * x * mass) - mass)
    return value, along, across


@triton.jit
def _window(near: tensor, far: tensor, h: tensor, wide: tensor, trim: tensor) -> tuple[tensor, ...]:
    """Where the integrand is seen: its start and length, and how far the edges are from its ends.

    The whole support where it is narrow; less `trim` of it, where a large power is almost 0.
    """
    room = trim * h
    first = tl.where(wide, tl.maximum(room - far, -FAR), room - far)
    last = tl.where(wide, tl.minimum(near - room, FAR), near - room)
    length = tl.where(wide, tl.maximum(last - first, 0.0), 2 * (h - room))
    return first, length, tl.where(wide, near - last, room), tl.where(wide, far + first, room)


@triton.jit
def _quadrature(
    pairs: tensor, rule: tensor, lowered: constexpr, slopes: constexpr
) -> tuple[tensor, ...]:
    """The same integrals, of any m >= 1, by a rule of nodes, their distances from 1 and weights.

    `rule` is where these are, how many, m, and what to trim; `lowered` is m - 1 where products make
    that power, or -1.
    """
    z, near, far, h = pairs
    nodes, count, m, trim, _ = rule
    inverse, wide = 1 / h, h > SWITCH
    first, length, before, behind = _window(near, far, h, wide, trim)
    value = tl.zeros(near.shape, tl.float32)
    along, across = value, value
    for k in range(count):
        node, rest = tl.load(nodes + k), tl.load(nodes + count + k)
        v = first + length * node
        base = ((before + length * rest) * inverse) * ((behind + length * node) * inverse)
        log = LOG2_GAUSS * (v * v)
        if lowered < 0:
            log += (m - 1) * tl.log2(tl.maximum(base, 1e-30))
        less = tl.load(nodes + 2 * count + k) * tl.exp2(log)
        for _ in tl.static_range(lowered):
            less *= base
        full = less * base
        value += full
        if slopes:
            x = (v + z) * inverse
            along += tl.where(wide, -2 * m * inverse * x * less, v * full)
            bent = full * base * (v * v - 1) * (h / (2 * m + 2))
            across += tl.where(wide, (2 * m * x * x - base) * inverse * less, bent)
    size = INVERSE_ROOT_TWO_PI * length * inverse
    return value * size, along * size, across * size


@triton.jit
def line_expectations(
    query: tensor, function: tensor, rule: tensor, lowered: constexpr, slopes: constexpr
) -> tuple[tensor, ...]:
    """Expectations of a tile (queries, functions), and their derivatives in loc and scale.

    `rule` is where nodes are, how many, m, what to trim and the density's constant.
    """
    loc, scale = query
    center, inverse = function
    z, near, far, side = _geometry(loc, scale, center, inverse)
    h = scale * inverse
    pairs, wide = (z, near, far, h), h > SWITCH
    value = tl.zeros(near.shape, tl.float32)
    along, across = value, value
    if lowered == 0:
        # A tile of one kind, as most are, does not wait for the other kind's formula. Loops of one
        # turn at most: what a branch finds the compiler makes again wherever it needs it.
        for _ in range(tl.max(wide.to(tl.int32))):
            value, along, across = _closed(pairs, slopes)
        for _ in range(1 - tl.min(wide.to(tl.int32))):
            a, b, c = _quadrature(pairs, rule, lowered, slopes)
            value = tl.where(wide, value, a)
            along, across = tl.where(wide, along, b), tl.where(wide, across, c)
    else:
        value, along, across = _quadrature(pairs, rule, lowered, slopes)
    outside = near < -FAR
    size = rule[4] * inverse
    value = tl.where(outside, 0.0, size * value)
    along = tl.where(outside, 0.0, -side * (size * inverse) * along)
    return value, (along, tl.where(outside, 0.0, size * inverse * across))


@triton.jit
def line_pull_back(
    weight: tensor, slopes: tensor, by_loc: tensor, by_scale: tensor, place: tensor, seen: tensor
) -> None:
    """Stores gradients of a column of queries, of those of the expectations."""
    along, across = slopes
    tl.store(by_loc + place, tl.sum(weight * along, 1), seen)
    tl.store(by_scale + place, tl.sum(weight * across, 1), seen)
