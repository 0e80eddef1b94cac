r"""Contexts and their gradients in one pass over queries, in Triton; imported where they are run.

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

__all__ = ["backward", "forward"]

# scale / width where one way of writing an integral takes over from the other.
SWITCH = constexpr(2.0)
# A Gaussian is not seen from here on, in widths.
FAR = constexpr(5.7)
ROOT_HALF = constexpr(0.7071067811865476)
INVERSE_ROOT_TWO_PI = constexpr(0.3989422804014327)
LOG2_GAUSS = constexpr(-0.7213475204444817)
INTERPRETED = constexpr(bool(triton.knobs.runtime.interpret))


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
    cube = 1 / (h * h * h)
    value = cube * ((near * far - 1) * mass + far * peak_near + near * peak_far)
    along, across = value, value
    if slopes:
        first = peak_far - peak_near
        second = mass - near * peak_near - far * peak_far
        along = -2 * cube * (z * mass + first)
        across = cube / h * (3 * (second + 2 * z * first + z * z * mass) - h * h * mass)
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
def _expectations(
    loc: tensor,
    scale: tensor,
    center: tensor,
    inverse: tensor,
    rule: tensor,
    lowered: constexpr,
    slopes: constexpr,
) -> tuple[tensor, ...]:
    """Expectations of a tile (queries, functions), and their derivatives in loc and scale."""
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
    return value, along, tl.where(outside, 0.0, size * inverse * across)


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
def _functions(centers: tensor, widths: tensor, j: tensor, functions: tensor) -> tuple[tensor, ...]:
    """Centers and inverse widths of a row of functions; beyond the last one, that once more."""
    kept = tl.minimum(j, functions - 1)
    center = tl.load(centers + kept).to(tl.float32)[None, :]
    return center, 1 / tl.load(widths + kept).to(tl.float32)[None, :]


@triton.jit
def _queries(
    loc: tensor, scale: tensor, head: tensor, row: tensor, queries: tensor
) -> tuple[tensor, ...]:
    """Locations and scales of a column of queries; beyond the last one, that once more."""
    kept = head * queries + tl.minimum(row, queries - 1)
    mu = tl.load(loc + kept).to(tl.float32)[:, None]
    return mu, tl.load(scale + kept).to(tl.float32)[:, None]


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
    lowered: constexpr, rows: constexpr, columns: constexpr, width: constexpr,
) -> None:
    # fmt: on
    """Contexts (B, Lq, heads, E) of one head and `rows` queries."""
    rule = nodes, count, m, trim, constant
    tiles = tl.cdiv(queries, rows)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    mu, s = _queries(loc, scale, head, row, queries)
    total = tl.zeros((rows, width), tl.float32)
    for start in range(0, functions, columns):
        j = start + tl.arange(0, columns)
        center, inverse = _functions(centers, widths, j, functions)
        value, _, _ = _expectations(mu, s, center, inverse, rule, lowered, False)
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
    lowered: constexpr, rows: constexpr, columns: constexpr, width: constexpr,
) -> None:
    # fmt: on
    """Gradients from one head, `columns` functions and `share` queries, to be summed.

    Slopes in loc and scale are of shape (tiles of functions, B, heads, Lq), those in coefficients
    (shares of queries, B, N, heads, E); `pairs` is B times heads.
    """
    rule = nodes, count, m, trim, constant
    tile, head = tl.program_id(1).to(tl.int64), (tl.program_id(0) % pairs).to(tl.int64)
    part = (tl.program_id(0) // pairs).to(tl.int64)
    j = tile * columns + tl.arange(0, columns)
    center, inverse = _functions(centers, widths, j, functions)
    place, kept = _place(head, j, functions, heads, channels, width)
    own = tl.load(coefficients + place, kept, 0.0)
    total = tl.zeros((columns, width), tl.float32)
    for start in range(part * share, tl.minimum(queries, (part + 1) * share), rows):
        row = start + tl.arange(0, rows)
        mu, s = _queries(loc, scale, head, row, queries)
        value, along, across = _expectations(mu, s, center, inverse, rule, lowered, True)
        above, seen = _place(head, row, queries, heads, channels, width)
        g = tl.load(upstream + above, seen, 0.0)
        weight = _multiply_exact(g, tl.trans(own))
        spot = (tile * pairs + head) * queries + row
        tl.store(by_loc + spot, tl.sum(weight * along, 1), row < queries)
        tl.store(by_scale + spot, tl.sum(weight * across, 1), row < queries)
        total = _multiply(tl.trans(value), g, total)
    tl.store(by_coefficients + part * (pairs * functions * channels) + place, total, kept)


@triton.jit
def _multiply_exact(a: tensor, b: tensor) -> tensor:
    """a b for both of one dtype: products of bfloat16 are exact in float32."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
