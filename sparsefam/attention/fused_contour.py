r"""The contour integral of `numerics.contour` in a plane, in real numbers, for the kernels.

$E[(1 - |x|^2)_+^m]$ for $x_k \sim N(b_k, \lambda_k)$, $k = 1, 2$: the same saddle point, path and
nodes, whose number and constants are read from a table. A context needs digits relative to the
largest expectation, so that a step less towards the saddle and plain powers will do.

Complex numbers are pairs of real ones, and those of two axes come one after the other.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

__all__ = ["contour", "saddle"]

# Steps towards the saddle before the last one, of another kind.
STEPS = constexpr(4)
TINY = constexpr(1e-30)
LOG2E = constexpr(1.4426950408889634)
PI = constexpr(3.141592653589793)


@triton.jit
def _shares(z: tensor, lam: tensor) -> tuple[tensor, tensor]:
    """p = 1 - q and q = 1/(1 + 2 z lam)."""
    scaled = 2 * z * lam
    q = 1 / (1 + scaled)
    return scaled * q, q


@triton.jit
def saddle(lam: tensor, b: tensor, top: tensor) -> tensor:
    """The real z > 0 with z = m + 1 + sum(p_k/2 + z (b_k q_k)^2), top = m + 1.

    The first axis is the longer one: its variance is the smaller one.
    """
    b1, b2 = b
    reach = tl.sqrt(b1 * b1 + b2 * b2)
    z = tl.maximum((tl.abs(b1) - 1) / (2 * lam[0]), (reach - 1) / (2 * lam[1]))
    z = tl.maximum(z, top)
    for _ in range(STEPS):
        z = tl.maximum(_secular_step(z, lam, b, top), top)
    return tl.maximum(z * tl.exp2(_halley_step(z, lam, b, top) * -LOG2E), top)


@triton.jit
def _secular_step(z: tensor, lam: tensor, b: tensor, top: tensor) -> tensor:
    """More and Sorensen's step: the reciprocal of |b q| is almost linear in z."""
    p1, q1 = _shares(z, lam[0])
    p2, q2 = _shares(z, lam[1])
    w1, w2 = b[0] * q1, b[1] * q2
    w1, w2 = w1 * w1, w2 * w2
    total = w1 + w2
    inverse = 1 / (total + TINY)
    a = (w1 * q1 + w2 * q2 + TINY) * inverse
    c = (w1 * p1 + w2 * p2) * inverse / z
    rho = tl.sqrt(total)
    nu = (top + 0.5 * (p1 + p2)) / (1 + tl.minimum(rho, 1.0))
    e = a - c * nu - rho
    root = tl.sqrt(e * e + 4 * a * c * nu)
    # The stable one of the two ways to write the positive root of a quadratic.
    above = tl.where(e > 0, 2 * a * nu, root - e)
    return above / tl.maximum(tl.where(e > 0, e + root, 2 * c), TINY)


@triton.jit
def _halley_step(z: tensor, lam: tensor, b: tensor, top: tensor) -> tensor:
    """Step in log z on H = z - m - 1 - sum(p/2 + B), whose derivatives are exact."""
    p1, q1 = _shares(z, lam[0])
    p2, q2 = _shares(z, lam[1])
    w1, w2 = b[0] * q1, b[1] * q2
    w1, w2 = z * w1 * w1, z * w2 * w2
    less1, less2 = 1 - 2 * p1, 1 - 2 * p2
    h0 = z - top - (0.5 * (p1 + p2) + w1 + w2)
    h1 = z - (0.5 * (p1 * q1 + p2 * q2) + w1 * less1 + w2 * less2)
    bent = w1 * (less1 * less1 - 2 * p1 * q1) + w2 * (less2 * less2 - 2 * p2 * q2)
    h2 = z - (0.5 * (p1 * q1 * less1 + p2 * q2 * less2) + bent)
    newton = h0 / h1
    bend = tl.minimum(tl.maximum(1 - 0.5 * newton * h2 / h1, 0.5), 2.0)
    return tl.minimum(tl.maximum(newton / bend, -0.7), 0.7)


@triton.jit
def contour(
    z: tensor,
    lam: tensor,
    b: tensor,
    inside: tensor,
    rule: tensor,
    lowered: constexpr,
    slopes: constexpr,
) -> tuple[tensor, ...]:
    r"""The integral less what m alone contributes, and sums over nodes.

    Args:
        z: The saddle point.
        lam: Variances of both axes.
        b: Means of both axes.
        inside: $1 - |b|^2$, of which the caller knows more digits than b keeps near the edge.
        rule: Where the path's constants are, how many nodes, m, and what is not read here.
        lowered: m - 1 where products make that power, or -1.
        slopes: Whether sums besides the first are asked for.

    Returns:
        The integral, 1 where there is a path, and averages of $\eta_1, \eta_2, \eta_1^2,
        \eta_1 \eta_2, \eta_2^2$ with $\eta_k = d/(1 + p_k d)$ at the nodes z (1 + d).
    """
    table, count, m = rule[0], rule[1], rule[2]
    top = m + 1
    p1, q1 = _shares(z, lam[0])
    p2, q2 = _shares(z, lam[1])
    w1, w2 = b[0] * q1, b[1] * q2
    pairs = p1, p2, z * w1 * w1 * p1, z * w2 * w2 * p2
    rate, slope, level = _at_saddle(z, b, (p1, q1, p2, q2), top, inside)
    path = _path(pairs, top, table)
    total, sums = _along(path, pairs, count, top, slope, lowered, slopes)
    # A pair whose z is still far from its saddle has the bound that every z gives, and no slopes.
    found = (total > 0.5) & (total < 2)
    size = z * path[0] * tl.sqrt(q1 * q2) * tl.exp2(rate * LOG2E - top * level)
    inverse = tl.where(found, 1 / total, 0.0)
    s1, s2, s11, s12, s22 = sums
    averages = s1 * inverse, s2 * inverse, s11 * inverse, s12 * inverse, s22 * inverse
    return size * tl.where(found, total, 1.0) / PI, found.to(tl.float32), averages


@triton.jit
def _at_saddle(
    z: tensor, b: tensor, shares: tensor, top: tensor, inside: tensor
) -> tuple[tensor, tensor, tensor]:
    """The exponent z - m - 1 - sum(z b_k^2 q_k), its slope in d, and log2(z/(m + 1))."""
    p1, q1, p2, q2 = shares
    w1, w2 = b[0] * b[0], b[1] * b[1]
    outer, inner = w1 * q1 + w2 * q2, w1 * p1 + w2 * p2
    # Near the edge of a support that is wide against the Gaussian z is large: 1 - |b|^2 has digits.
    edge = (outer > 0.5) & (inner < 0.5)
    rate = tl.where(edge, z * (inside + inner), z - z * outer) - top
    slope = rate + (z * (w1 * p1 * q1 + w2 * p2 * q2) - 0.5 * (p1 + p2))
    return rate, slope, tl.log2(z / top)


@triton.jit
def _path(pairs: tensor, top: tensor, table: tensor) -> tuple[tensor, ...]:
    """What the nodes have in common: one over the root of the curvature first."""
    p1, p2, g1, g2 = pairs
    s1, s2 = p1 * p1, p2 * p2
    k2 = top + 0.5 * (s1 + s2) + 2 * (g1 + g2)
    k3 = 2 * top + p1 * (s1 + 6 * g1) + p2 * (s2 + 6 * g2)
    k4 = 6 * top + s1 * (3 * s1 + 24 * g1) + s2 * (3 * s2 + 24 * g2)
    k5 = 24 * top + p1 * s1 * (12 * s1 + 120 * g1) + p2 * s2 * (12 * s2 + 120 * g2)
    inverse = 1 / k2
    c = k3 * inverse / 6
    damp = tl.load(table + 4) * inverse * (0.5 * k3 * c - k4 / 6 + k5 / (120 * c))
    step = tl.exp2((tl.load(table) + tl.load(table + 1) * inverse) * LOG2E)
    bend = (tl.load(table + 2) + tl.load(table + 3) * inverse) * c
    cross = tl.load(table + 5) * c * inverse
    stretch = tl.load(table + 6) * inverse
    return tl.sqrt(inverse), step, tl.maximum(damp, 0.0), bend, cross, stretch


@triton.jit
def _times(a: tensor, b: tensor, c: tensor, d: tensor) -> tuple[tensor, tensor]:
    """(a + ib)(c + id)."""
    return a * c - b * d, a * d + b * c


@triton.jit
def _along(
    path: tensor,
    pairs: tensor,
    count: tensor,
    top: tensor,
    slope: tensor,
    lowered: constexpr,
    slopes: constexpr,
) -> tuple[tensor, tuple[tensor, ...]]:
    """Sums over the nodes of a path: of their weights, and, for slopes, of what `_add` adds."""
    total = tl.zeros(pairs[0].shape, tl.float32)
    sums = total, total, total, total, total
    for k in range(count):
        node = _node(k, path, pairs, top, slope, lowered)
        total += node[1]
        if slopes:
            sums = _add(sums, node)
    return total, sums


@triton.jit
def _node(
    k: tensor, path: tensor, pairs: tensor, top: tensor, slope: tensor, lowered: constexpr
) -> tuple[tensor, ...]:
    """The weight of a node d = x + iy, and its eta_k = d/(1 + p_k d)."""
    root, step, damp, bend, cross, stretch = path
    p1, p2, g1, g2 = pairs
    u = (k + 0.5) * step
    stretched = stretch * u * u
    y = u * (1 + stretched) * root
    damped = 1 / (1 + damp * y * y)
    fall = bend * y * damped
    x = cross - fall * y
    square = x * x + y * y
    real1, real2 = 1 + p1 * x, 1 + p2 * x
    size1 = real1 * real1 + (p1 * y) * (p1 * y)
    size2 = real2 * real2 + (p2 * y) * (p2 * y)
    inverse = tl.rsqrt(size1 * size2)
    n1, n2 = size2 * (inverse * inverse), size1 * (inverse * inverse)
    eta = (x + p1 * square) * n1, y * n1, (x + p2 * square) * n2, y * n2
    rest = slope + top + 0.5 * (p1 + p2)
    grow, turn = _times(x, y, rest + g1 * eta[0] + g2 * eta[2], g1 * eta[1] + g2 * eta[3])
    real, imag = _power(x, y, grow, turn, top, lowered)
    along, across = _times(real1, p1 * y, real2, p2 * y)
    along, across = _inverse_root(along, across, inverse)
    real, imag = _times(real, imag, along, across)
    speed = (1 + 3 * stretched) * step
    real, imag = _times(real, imag, -2 * fall * damped * speed, speed)
    return real, imag, eta


@triton.jit
def _power(
    x: tensor, y: tensor, grow: tensor, turn: tensor, top: tensor, lowered: constexpr
) -> tuple[tensor, tensor]:
    """exp(grow + i turn) (1 + x + iy)^-top, for y > 0."""
    along = 1 + x
    square = along * along + y * y
    log = grow * LOG2E
    if lowered < 0:
        log -= 0.5 * top * tl.log2(square)
        turn -= top * _angle(along, y, tl.sqrt(square))
    cosine, sine = _unit(turn)
    size = tl.exp2(log)
    real, imag = size * cosine, size * sine
    if lowered >= 0:
        inverse = 1 / square
        for _ in tl.static_range(lowered + 2):
            real, imag = _times(real, imag, along * inverse, -y * inverse)
    return real, imag


@triton.jit
def _angle(x: tensor, y: tensor, size: tensor) -> tensor:
    """Of x + iy for y > 0, by the tangent of its half; the polynomial's error is 1.2e-8."""
    t = y / (size + tl.abs(x))
    s = t * t
    found = 0.0028340643 * s - 0.0160050305
    found = (found * s + 0.0425876075) * s - 0.0749544544
    found = (found * s + 0.106367541) * s - 0.142025705
    found = (found * s + 0.199924836) * s - 0.333330668
    found = 2 * t * (found * s + 0.999999984)
    return tl.where(x < 0, PI - found, found)


@triton.jit
def _unit(turn: tensor) -> tuple[tensor, tensor]:
    """Cosine and sine, by those of half the angle: polynomials with errors below 1e-8."""
    half = turn * (0.5 / PI)
    half = (half - tl.floor(half + 0.5)) * PI
    s = half * half
    sine = ((2.60516628e-06 * s - 0.000198090464) * s + 0.00833305062) * s - 0.16666658
    sine = half * (sine * s + 0.999999996)
    cosine = (-2.60510763e-07 * s + 2.47601355e-05) * s - 0.00138883608
    cosine = ((cosine * s + 0.0416666362) * s - 0.499999994) * s + 1
    return 1 - 2 * sine * sine, 2 * sine * cosine


@triton.jit
def _inverse_root(real: tensor, imag: tensor, inverse: tensor) -> tuple[tensor, tensor]:
    """(real + i imag)^-1/2 for angles up to 2 pi, of which half is up to pi; 1/size is given."""
    flat = tl.abs(real) * inverse
    scale = tl.rsqrt(0.5 * (1 + flat))
    large, small = 0.5 * (1 + flat) * scale, 0.5 * tl.abs(imag) * inverse * scale
    root = tl.sqrt(inverse)
    side = tl.where(imag < 0, -root, root)
    return side * tl.where(real < 0, small, large), -root * tl.where(real < 0, large, small)


@triton.jit
def _add(sums: tensor, node: tensor) -> tuple[tensor, ...]:
    """Weighted eta_k and their products, imaginary parts."""
    s1, s2, s11, s12, s22 = sums
    real, imag, eta = node
    x1, y1, x2, y2 = eta
    real1, imag1 = _times(real, imag, x1, y1)
    real2, imag2 = _times(real, imag, x2, y2)
    s11, s22 = s11 + (real1 * y1 + imag1 * x1), s22 + (real2 * y2 + imag2 * x2)
    return s1 + imag1, s2 + imag2, s11, s12 + (real1 * y2 + imag1 * x2), s22
