r"""The path of a contour integral over a ball, for any dimension and any exponent.

$E[(1 - |x|^2)_+^m]$ for $x_k \sim N(b_k, \lambda_k)$ is the integral of
$e^z z^{-(m+1)} \prod_k (1 + 2 z \lambda_k)^{-1/2} e^{-z b_k^2 / (1 + 2 z \lambda_k)}$ along a path
around the negative axis. The path crosses the real axis near the saddle point $z_0$ and bends so
that a midpoint rule with a few nodes reaches rounding for every width and offset. Nothing cancels:
with $z = z_0 (1 + d)$ all terms of the exponent are second order in $d$.

Axes come first and nodes second, so that sums over them are sums of long rows. Transcendental
functions are those of real numbers, which are much faster than torch's complex ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Contour", "contour"]

# The path's constants (log step, its slope, bend, its slope, damping, crossing, stretch) by the
# number of nodes on its upper half, fitted over the whole space of (m, p_k, B_k).
_PATH = {
    6: (-0.0941, 0.3076, 1.1108, -1.3239, 0.4188, 2.6912, 0.0158),
    8: (-0.2022, 0.2554, 0.8460, -0.7663, 0.5824, 4.0043, 0.0099),
    24: (-0.7098, 0.0566, 0.5017, -0.5256, 0.1310, 6.9299, 0.0127),
}
# Terms of artan(r)/r - 1 for |r| <= _NEAR.
_ARTAN = {torch.float32: 5, torch.float64: 11}
_NEAR = 0.2
_TINY = 1e-30


@dataclass(frozen=True)
class Contour:
    """Nodes z0 (1 + d) and weights whose imaginary parts sum to one.

    Attributes:
        saddle: z0, shape (*pairs).
        shrink: q_k = 1/(1 + 2 z0 lam_k), shape (D, *pairs).
        steps: d/(1 + (1 - q_k) d), complex (D, n, *pairs).
        nodes: d, complex (n, *pairs).
        turns: log of z/(m + 1), complex (n, *pairs).
        weights: Complex (n, *pairs).
        log_mean: log E[(1 - |x|^2)_+^m] less stirling_excess(m + 1), float64 (*pairs).
    """

    saddle: Tensor
    shrink: Tensor
    steps: Tensor
    nodes: Tensor
    turns: Tensor
    weights: Tensor
    log_mean: Tensor


def contour(lam: Tensor, b: Tensor, exponent: Tensor, inside: Tensor, count: int = 24) -> Contour:
    """The path for x_k ~ N(b_k, lam_k) and exponents m >= 1.

    Args:
        lam: Variances, (D, *pairs).
        b: Means, (D, *pairs).
        exponent: m, (*pairs).
        inside: 1 - |b|^2, of which the caller knows more digits than b keeps near the edge.
        count: Nodes: 24 reach 1e-12, 8 reach 1e-7 and 6 reach 6e-7.
    """
    top = exponent + 1
    z = _saddle(lam, b, top)
    scaled = 2 * z * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    g = z * (b * q).square() * p
    x, y, moves, k2 = _nodes(top, p, g, count)
    d = torch.complex(x, y)
    rate, slope, level = _at_crossing(z, b, q, p, top, inside)
    phase, steps, log_node = _phase(x, y, d, top, p, g, slope)
    weights = torch.polar(torch.exp(phase.real), phase.imag) * moves
    total = weights.imag.sum(0)
    # From 1.2 to 1.3 at every saddle. A pair whose z0 is still far below its own, one in 1e4 of the
    # most extreme, keeps the bound on its integral that every z0 gives, without derivatives.
    found = (total > 0.5) & (total < 2)
    total = torch.where(found, total, 1.0)
    weights = torch.where(found, weights / total, 0.0)
    # In many dimensions a sum of large terms, of which the caller takes others away.
    log_mean = (rate - top * level).double() - 0.5 * torch.log1p(scaled.double()).sum(0)
    log_mean = log_mean + torch.log(z / k2.sqrt() * total / math.pi)
    return Contour(z, q, steps, d, level + log_node, weights, log_mean)


def _at_crossing(
    z: Tensor, b: Tensor, q: Tensor, p: Tensor, top: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The exponent z0 - m - 1 - sum(z0 b_k^2 q_k), its slope in d, and log(z0/(m + 1)).

    The slope is zero at the saddle. z0 need not be quite there if the exponent knows how far it is.
    """
    excess = (z - top) / top
    # Near the edge of a support that is wide against the Gaussian z0 is large, and what b lost to
    # rounding shows: there 1 - |b|^2 is the better datum.
    outer, inner = (b * b * q).sum(0), (b * b * p).sum(0)
    edge = (outer > 0.5) & (inner < 0.5)
    rate = torch.where(edge, z * (inside + inner) - top, top * excess - z * outer)
    return rate, rate + (z * b * b * p * q - 0.5 * p).sum(0), torch.log1p(excess)


def _phase(
    x: Tensor, y: Tensor, d: Tensor, top: Tensor, p: Tensor, g: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The exponent less its value at d = x + iy = 0; the steps d/(1 + p d); and log(1 + d)."""
    radius = x * x + y * y
    real, imag, log_node = _minus_log1p(x, y, radius)
    half = 0.5 * p.sum(0)
    p, g = p.unsqueeze(1), g.unsqueeze(1)
    along = p * x
    growth = torch.addcmul(2 * along, p * p, radius)
    real = top * real + half * x - 0.25 * torch.log1p(growth).sum(0)
    imag = top * imag + half * y - 0.5 * torch.atan2(p * y, 1 + along).sum(0)
    size = 1 / (1 + growth)
    steps = torch.complex(torch.addcmul(x, p, radius) * size, y * size)
    return torch.complex(real, imag) + d * (slope + (g * steps).sum(0)), steps, log_node


def _minus_log1p(x: Tensor, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d - log(1 + d), real and imaginary part, to be multiplied by a large m; and log(1 + d)."""
    growth = 2 * x + radius
    log_size, angle = torch.log1p(growth), torch.atan2(y, 1 + x)
    # y - angle = r x + (r - artan r): a series where the difference would cancel.
    r = y / (1 + x)
    square = r * r
    series = torch.full_like(square, 1 / (2 * _ARTAN[square.dtype] + 1))
    for k in range(_ARTAN[square.dtype] - 1, 0, -1):
        series = 1 / (2 * k + 1) - square * series
    near = r * (x + square * series)
    turned = torch.where(square < _NEAR**2, near, y - angle)
    return 0.5 * (growth - log_size - radius), turned, torch.complex(0.5 * log_size, angle)


def _nodes(top: Tensor, p: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes x + iy and complex moves (n, ...); and the curvature at the saddle."""
    log_step, step1, bend0, bend1, damp, cross, stretch = _PATH[count]
    square = p * p
    k2 = top + (0.5 * square + 2 * g).sum(0)
    k3 = 2 * top + (p * (square + 6 * g)).sum(0)
    k4 = 6 * top + (square * (3 * square + 24 * g)).sum(0)
    k5 = 24 * top + (p * square * (12 * square + 120 * g)).sum(0)
    c = k3 / (6 * k2)
    e = (damp * (k3 * c / 2 - k4 / 6 + k5 / (120 * c)) / k2).clamp_min(0)
    inverse = 1 / k2
    step = torch.exp(log_step + step1 * inverse)
    index = torch.arange(count, dtype=top.dtype, device=top.device) + 0.5
    u = index.reshape(count, *(1,) * k2.dim()) * step
    stretched = stretch * inverse * u * u
    y = u * (1 + stretched) * inverse.sqrt()
    bend, damped = (bend0 + bend1 * inverse) * c, 1 / (1 + e * y * y)
    fall = bend * y * damped
    x = cross * c * inverse - fall * y
    speed = (1 + 3 * stretched) * step
    return x, y, torch.complex(-2 * fall * damped * speed, speed), k2


def _saddle(lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """The real z > 0 with z = m + 1 + sum(p_k/2 + B_k), to a few digits in a few steps."""
    # For any set of axes z0 >= (|b| - 1)/(2 max lam) in them; those up to each axis suffice.
    narrower = lam.unsqueeze(0) <= lam.unsqueeze(1)
    reach = torch.where(narrower, b.unsqueeze(0), 0.0).square().sum(1).sqrt()
    z = torch.maximum(top, ((reach - 1) / (2 * lam)).amax(0))
    for _ in range(_steps_for(len(lam))):
        z = torch.maximum(_secular_step(z, lam, b, top), top)
    return torch.maximum(z * torch.exp(-_halley_step(z, lam, b, top)), top)


def _steps_for(dim: int) -> int:
    """Steps after which about one in 1e4 of the hardest pairs is still far from its saddle."""
    return 2 if dim == 1 else 6 if dim <= 8 else 8


def _secular_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """More and Sorensen's step: the reciprocal of |b q| is almost linear in z."""
    scaled = 2 * z * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    weight = (b * q).square()
    total = weight.sum(0)
    inverse = 1 / (total + _TINY)
    a = ((weight * q).sum(0) + _TINY) * inverse
    c = (weight * p).sum(0) * inverse / z
    rho = total.sqrt()
    nu = (top + 0.5 * p.sum(0)) / (1 + rho.clamp(max=1.0))
    e = a - c * nu - rho
    root = torch.sqrt(e * e + 4 * a * c * nu)
    # The stable one of the two ways to write the positive root of a quadratic.
    small = 2 * a * nu / (e + root).clamp_min(_TINY)
    return torch.where(e > 0, small, (root - e) / (2 * c).clamp_min(_TINY))


def _halley_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """Step in log z on H = z - m - 1 - sum(p/2 + B), whose derivatives are exact."""
    scaled = 2 * z * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    weight = z * (b * q).square()
    h0 = z - top - (0.5 * p + weight).sum(0)
    h1 = z - (0.5 * p * q + weight * (1 - 2 * p)).sum(0)
    bent = weight * ((1 - 2 * p).square() - 2 * p * q)
    h2 = z - (0.5 * p * q * (1 - 2 * p) + bent).sum(0)
    newton = h0 / h1
    return (newton / (1 - 0.5 * newton * h2 / h1).clamp(0.5, 2.0)).clamp(-0.7, 0.7)
