r"""Expectations of Gaussians under beta-Gaussians, with a contour integral for each pair.

A beta-Gaussian is a complex scale mixture of normals: with $m = 1/(\alpha - 1)$, in D dimensions,
$$p(t) = \frac{\Gamma(m+1+D/2)}{2\pi i} \int e^z z^{-(m+1+D/2)}\, N(t;\, \mu, A/(2z))\, dz,
\qquad A = L L',$$
so that $E_p[N(t; c, C)]$ is the same contour integral of $N(c; \mu, C + A/(2z))$. `whiten` finds
coordinates $x$ in which $A$ is the unit matrix and $C$ is diagonal: there the integral is
$E[(1 - |x|^2)_+^m]$ for independent $x_k \sim N(b_k, \lambda_k)$, and the integrand is
$e^z z^{-(m+1)} \prod_k (1 + 2 z \lambda_k)^{-1/2} e^{-z b_k^2 / (1 + 2 z \lambda_k)}$.

`saddle_contour` places the nodes. Its contour around the negative axis crosses the real axis near
the saddle point $z_0$ and bends so that a midpoint rule of few nodes is accurate for every width
and offset. Nothing cancels: with $z = z_0 (1 + d)$ the exponent is second order in $d$.

First derivatives are averages over the same nodes, without differentiating eigenvectors, which are
not smooth where eigenvalues coincide. Second derivatives and forward mode differentiate the sum
over fixed nodes.

In arrays of nodes axes come first and nodes second, so that sums over nodes are sums of long rows.
Transcendental functions are real, which are much faster than torch's complex ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .ellipsoid import orthogonalize
from .modes import compiled, in_forward_mode
from .operators import Changes, differentiable, operator
from .special import stirling_excess
from .validation import difference

__all__ = ["Four", "gaussians_and_slopes", "gaussians_by_pairs"]

# Pairs in a chunk, whose nodes fit the cache; on other devices than a CPU.
_CHUNK, _DEVICE_CHUNK = 2**14, 2**18
# Larger exponents that are numbers need fewer nodes.
_SMOOTH_EXPONENT = 1.0

# loc, scale_tril, centers and spread.
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def gaussians_by_pairs(inputs: Four, exponent: Tensor | float | None) -> Tensor:
    r"""Compute $E_p[N(t; c_j, C_j)]$ for $p \propto (1 - |u|^2)_+^m$, $u = L^{-1}(t - loc)$.

    It is differentiable twice in all arguments. The norm-wise error is about 1e-6 in float32 and
    1e-13 in float64 for every ratio of the support to the Gaussians, in any dimension. Under thin
    supports rounding of the parameters dominates: 1e-12 and 3e-11 in float64 if the longest
    half-axis is 1e4 and 1e6 times the shortest.

    Args:
        inputs: loc, the centers of the densities (*batch, D); L (*batch, D, D); the centers of the
            Gaussians (N, D); and their standard deviations (N,), or their covariances (N, D, D).
        exponent: m >= 0, a tensor (*batch), or a number, which may be faster. None for its limit at
            alpha = 1: a normal density, whose expectations are N(c_j; loc, C_j + L L').

    Returns:
        Expectations (*batch, N) in the dtype that the other arguments promote to, computed in
        float32 at least.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 3.2, which
        integrates over angles for D = 2, m = 1.
    """
    return _outputs(inputs, exponent, False)[0].to(_dtype_of(inputs))


def gaussians_and_slopes(
    inputs: Four, exponent: Tensor | float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute expectations and their derivatives in loc and A = L L', (*batch, N[, D[, D]]).

    Derivatives are in float64, accurate for Gaussians of any width, and differentiable themselves.
    Arguments are as for `gaussians_by_pairs`.
    """
    outputs = _outputs(inputs, exponent, True)
    values, by_b, by_ball, _, _, rotation, inverse, shrink = outputs
    back = rotation.mT @ inverse.unsqueeze(-3)
    by_loc = -((shrink * by_b).unsqueeze(-2) @ back).squeeze(-2)
    pairs = shrink.unsqueeze(-1) * shrink.unsqueeze(-2)
    return values.to(_dtype_of(inputs)), by_loc, back.mT @ (pairs * by_ball) @ back


def _exponents(exponent: Tensor | float | None, loc: Tensor) -> tuple[Tensor, str]:
    """Return the exponents (*batch), and the kind of contour, see `contour_of_pairs`."""
    batch = loc.shape[:-1]
    if exponent is None:
        return torch.zeros_like(loc[..., 0]), "normal"
    if isinstance(exponent, Tensor):
        return exponent.expand(batch), "any"
    m = torch.full(batch, exponent, dtype=torch.float64, device=loc.device)
    return m, "any" if exponent < _SMOOTH_EXPONENT else "smooth"


def _dtype_of(inputs: Four) -> torch.dtype:
    """Return the dtype that all inputs promote to."""
    return reduce(torch.promote_types, (x.dtype for x in inputs))


def _outputs(inputs: Four, exponent: Tensor | float | None, sloped: bool) -> tuple[Tensor, ...]:
    """Compute `_integrals` for a batch: all its outputs, or only the first if nobody needs more.

    Args:
        inputs: As for `gaussians_by_pairs`.
        exponent: As for `gaussians_by_pairs`.
        sloped: Whether the caller needs more than the first output.
    """
    m, kind = _exponents(exponent, inputs[0])
    dtype = torch.promote_types(_dtype_of(inputs), torch.float32)
    loc, scale_tril, centers, spread, m = (x.to(dtype) for x in (*inputs, m))
    dim, batch = loc.shape[-1], loc.shape[:-1]
    spread = spread.expand(centers.shape[0]) if spread.dim() < 2 else spread
    rows = (loc.reshape(-1, dim), scale_tril.reshape(-1, dim, dim), centers, spread, m.reshape(-1))
    outputs: tuple[Tensor, ...]
    if in_forward_mode():  # ordinary operations have derivatives in forward mode
        fixed = _FixedNodes(kind, rows)
        outputs = (fixed.integrals(*fixed.coordinates(*rows)).to(dtype),)
        if sloped:
            frame = fixed.frame
            outputs += (*fixed.partials(*rows), frame.rotation, frame.inverse, frame.shrink)
    elif sloped or torch.is_grad_enabled() or compiled():
        outputs = _differentiable_integrals(*rows, kind, sloped)
    else:
        outputs = _by_chunks(rows, kind, False)
    return tuple(x.reshape(*batch, *x.shape[1:]) for x in outputs)


def _by_chunks(inputs: Sequence[Tensor], kind: str, sloped: bool) -> tuple[Tensor, ...]:
    """Compute `_integrals`, of the same arguments, in chunks of rows."""
    loc, scale_tril, centers, spread, m = inputs
    most = _CHUNK if loc.is_cpu else _DEVICE_CHUNK
    rows, step = loc.shape[0], max(1, most // centers.shape[0])
    if rows <= step:
        return _integrals(inputs, kind, sloped)
    chunks = zip(loc.split(step), scale_tril.split(step), m.split(step), strict=True)
    outputs = [_integrals((x, y, centers, spread, z), kind, sloped) for x, y, z in chunks]
    return tuple(torch.cat(x) for x in zip(*outputs, strict=True))


def _integrals(inputs: Sequence[Tensor], kind: str, sloped: bool) -> tuple[Tensor, ...]:
    """Return the integrals (R, N) and, if `sloped`, the numbers from which gradients are made.

    These are derivatives in b, A, the spread and m; and rotation, inverse and shrink of the frame.

    Args:
        inputs: loc (R, D), scale_tril (R, D, D), centers (N, D), spread (N,) or (N, D, D), m (R,).
        kind: Of the contour, see `contour_of_pairs`.
        sloped: Whether more than the integrals is needed.
    """
    loc, scale_tril, centers, spread, m = inputs
    frame = whiten(loc, scale_tril, centers, spread)
    contour, lam, b = contour_of_pairs(frame, m, kind, loc.dtype)
    front, drift = log_front(m, loc.shape[-1], kind)
    # In float64: in many dimensions a small logarithm is a difference of large ones.
    size = torch.exp(log_size(contour, frame, scale_tril) + front)
    if not sloped:
        return (size.to(loc.dtype),)
    derivatives = averages(contour, b, lam, spread.dim() > 1, drift if kind == "any" else None)
    scaled = [size.to(loc.dtype), *(size * x.double() for x in derivatives)]
    # From (D, ..., R, N) to (R, N, D, ...).
    ends = [x.movedim(tuple(range(x.dim() - 2)), tuple(range(2 - x.dim(), 0))) for x in scaled]
    return (*ends, frame.rotation, frame.inverse, frame.shrink)


def _pull_partials(
    kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Return gradients in the inputs, given gradients in the derivatives in the frame.

    Args:
        kind: Of the contour, see `contour_of_pairs`.
        inputs: As for `_integrals`.
        cotangents: Gradients in the derivatives in b, A, the spread and m.
    """
    with torch.enable_grad():
        pull = torch.func.vjp(_FixedNodes(kind, inputs).partials, *inputs)[1]
        return [x.clone() for x in pull(tuple(cotangents))]  # an operator's results share no memory


def _pull_integrals_back(
    grad: Tensor, inputs: Sequence[Tensor], partials: Sequence[Tensor], frame: Sequence[Tensor]
) -> list[Tensor]:
    """Return gradients in the inputs, given the gradient in the integrals (R, N).

    Args:
        grad: The gradient (R, N).
        inputs: As for `_integrals`.
        partials: Derivatives of the integrals in b, A, the spread and m, from `_integrals`.
        frame: Rotation, inverse and shrink, from `_integrals`.
    """
    scale_tril, spread, dtype = inputs[1].double(), inputs[3].double(), grad.dtype
    rotation, inverse, shrink = frame
    by_b, by_ball, by_spread, by_exponent = partials
    g = grad.double()
    back = rotate(g.unsqueeze(-1) * by_b * shrink, rotation.mT) @ inverse
    pairs = shrink.unsqueeze(-1) * shrink.unsqueeze(-2)
    weight = g.unsqueeze(-1).unsqueeze(-1) * pairs
    ball = weight * by_ball
    if rotation.shape[1] == 1:  # it serves all Gaussians
        ball = ball.sum(1, keepdim=True)
    ball = (rotation @ ball @ rotation.mT).sum(1)
    # A = L L', so a symmetric gradient G in A is 2 G L in L.
    by_scale_tril = 2 * inverse.mT @ ball @ (inverse @ scale_tril)
    if spread.dim() > 1:
        turned = rotation @ (weight * by_spread) @ rotation.mT
        by_width = (inverse.mT.unsqueeze(1) @ turned @ inverse.unsqueeze(1)).sum(0)
    else:  # from the logarithm of the variance to the standard deviation
        by_width = (g * by_spread).sum(0) * 2 / spread
    gradients = (
        -back.sum(1),
        by_scale_tril.tril(),
        back.sum(0),
        by_width,
        (g * by_exponent).sum(1),
    )
    return [x.to(dtype) for x in gradients]


def _forward(
    loc: Tensor,
    scale_tril: Tensor,
    centers: Tensor,
    spread: Tensor,
    m: Tensor,
    kind: str,
    sloped: bool,
) -> list[Tensor]:
    """Compute all of `_integrals`; `sloped` tells that a graph returns their derivatives, too."""
    return [*_by_chunks((loc, scale_tril, centers, spread, m), kind, True)]


def _like_outputs(*arguments: Any) -> list[Tensor]:
    """Return tensors of the shapes of the outputs of `_forward`, without chunks."""
    *inputs, kind, _ = arguments
    return [x.contiguous() for x in _integrals(inputs, kind, True)]


def _pull_back(kept: Any, grads: Changes, _: Sequence[bool]) -> Changes:
    """Return gradients, by averages over nodes; for second derivatives with the nodes fixed.

    The arguments of `_forward` and its results but the first are kept.
    """
    inputs, (kind, sloped), partials, frame = kept[:5], kept[5:7], kept[7:11], kept[11:]
    total: Sequence[Tensor | None] = [None] * 5
    if grads[0] is not None:
        total = _pull_integrals_back(grads[0], inputs, partials, frame)
    # A compiled graph gives zeros where it has no gradient.
    if any(g is not None for g in grads[1:5]) and (sloped or not compiled()):
        cotangents = [
            torch.zeros_like(x) if g is None else g
            for x, g in zip(partials, grads[1:5], strict=True)
        ]
        above = _pull_operator(kind, inputs, cotangents)
        total = [b if a is None else a + b for a, b in zip(total, above, strict=True)]
    return total


# Compiled graphs could not fuse complex numbers. Derivatives are results so that they can be
# differentiated.
_pull_operator = operator(
    "ball_pull",
    _pull_partials,
    lambda kind, inputs, _: [torch.empty_like(x).contiguous() for x in inputs],
)
_differentiable_integrals = differentiable(
    operator("ball_integrals", _forward, _like_outputs),
    _pull_back,
    lambda inputs, outputs: (*inputs, *outputs[1:]),
    constants=(5, 6, 7),
)


# Coordinates in which the ellipsoid is the unit ball and the Gaussians have independent components

# Neither the density nor the Gaussian counts as narrower than this fraction of the other: the
# square of a smaller fraction would be lost by rounding.
_NARROWEST = 1e-6
# At this distance, in units of the larger of the two, the expectation is zero.
_FARTHEST = 1e7


@dataclass(frozen=True)
class Frame:
    """Coordinates x = shrink (rotation' inverse (t - loc)) of all pairs (R, N), in float64.

    In float32 a rotation would move a center along a thin ellipsoid by many of its widths.
    """

    inverse: Tensor  # Inverse of scale_tril, (R, D, D)
    rotation: Tensor  # Orthogonal, (R, 1, D, D) if it serves all Gaussians, else (R, N, D, D)
    shrink: Tensor  # Below 1 along axes that count as thicker than they are, (R, N, D)
    b: Tensor  # Centers of the Gaussians, (R, N, D)
    lam: Tensor  # Their variances along the axes, (R, N, D)
    inside: Tensor  # 1 - |b|^2, (R, N)


@torch.no_grad()
def whiten(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor) -> Frame:
    """Return the frame of densities (R) and Gaussians (N).

    In u = L^-1 (t - loc) a Gaussian has the covariance L^-1 C L'^-1, and columns of the rotation
    are its eigenvectors: right singular vectors of L if C = w^2 I, as L^-1 L'^-1 = (L' L)^-1, and
    of (L^-1 F)' if C = F F'.
    """
    scale_tril, spread = scale_tril.double(), spread.double()
    unit = torch.eye(loc.shape[-1], dtype=torch.float64, device=loc.device)
    inverse = torch.linalg.solve_triangular(scale_tril, unit.expand_as(scale_tril), upper=False)
    if spread.dim() == 1:
        rotation, scales = orthogonalize(scale_tril)
        rotation, deviations = rotation.unsqueeze(1), spread.unsqueeze(-1) / scales.unsqueeze(1)
    else:
        factor = torch.linalg.cholesky_ex(spread)[0]
        rotation, deviations = orthogonalize((inverse.unsqueeze(1) @ factor).mT)
    gaps, rounding = difference(centers.double(), loc.double().unsqueeze(1))
    b = rotate(gaps @ inverse.mT, rotation)
    shrink = (1 / (_NARROWEST * deviations)).clamp(max=1.0)
    b = (b * shrink).clamp(-_FARTHEST, _FARTHEST)
    # Here, where it locates the edge of the support, the rounding error of the gaps counts.
    inside = 1 - b.square().sum(-1) - 2 * (b * rotate(rounding @ inverse.mT, rotation)).sum(-1)
    lam = (deviations * shrink).clamp_min(_NARROWEST).square()
    return Frame(inverse, rotation, shrink, b, lam, inside)


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Multiply row vectors (R, N, D) by rotations (R, 1 or N, D, D)."""
    if rotation.shape[1] == 1:
        return vectors @ rotation.squeeze(1)
    return (vectors.unsqueeze(-2) @ rotation).squeeze(-2)


# The contour

# Constants of the contour (log step, its slope, bend, its slope, damping, crossing, stretch) by the
# number of nodes on its upper half, fitted over all (m, p_k, B_k) with p_k = 2 z0 lam_k q_k,
# B_k = z0 (b_k q_k)^2 and q_k = 1/(1 + 2 z0 lam_k); the slope of the bend up to _BENDING = 1/k2.
_SHAPES = {
    6: (-0.0941, 0.3076, 1.1108, -1.3239, 0.4188, 2.6912, 0.0158),
    10: (-0.2938, 0.3810, 0.6872, -0.6138, 0.1619, 5.6476, 0.0050),
    24: (-0.7098, 0.0566, 0.5017, -0.5256, 0.1310, 6.9299, 0.0127),
    28: (-0.8119, 0.0706, 0.4796, -0.5191, 0.0201, 7.5521, 0.0120),
}
_BENDING = 0.8
# Terms of arctan(r)/r - 1 for |r| <= _SMALL.
_ARCTAN = {torch.float32: 5, torch.float64: 11}
_SMALL = 0.2
# Keeps quotients finite where a center is at 0.
_TINY = 1e-30


@dataclass(frozen=True)
class Contour:
    """Nodes z0 (1 + d) and weights whose imaginary parts sum to one."""

    saddle: Tensor  # z0, shape (*pairs)
    shrink: Tensor  # q_k = 1/(1 + 2 z0 lam_k), shape (D, *pairs)
    steps: Tensor  # d/(1 + (1 - q_k) d), complex (D, n, *pairs)
    nodes: Tensor  # d, complex (n, *pairs)
    log_nodes: Tensor  # log of z/(m + 1), complex (n, *pairs)
    weights: Tensor  # Complex (n, *pairs)
    log_mean: Tensor  # log E[(1 - |x|^2)_+^m] less stirling_excess(m + 1), float64 (*pairs)


def saddle_contour(lam: Tensor, b: Tensor, exponent: Tensor, inside: Tensor, count: int) -> Contour:
    """Return the contour for variances and means (D, *pairs) and exponents m >= 0 (*pairs).

    28 or 10 nodes have errors of 7e-13 or 6e-8 of the largest value; 24 or 6 nodes serve m >= 1
    only, with 4e-15 or 6e-7.

    Args:
        lam: Variances of the Gaussians along the axes of the ball (D, *pairs).
        b: Their means (D, *pairs).
        exponent: m (*pairs).
        inside: 1 - |b|^2 (*pairs), more accurate than b near the edge.
        count: The number of nodes, a key of `_SHAPES`.
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
    # The sum is 1.2 to 1.3 if z0 is the saddle. For one in 1e4 of the most extreme pairs the saddle
    # has not been reached: their value is an upper bound, which holds for every z0, and their
    # derivatives are zero.
    converged = (total > 0.5) & (total < 2)
    total = torch.where(converged, total, 1.0)
    weights = torch.where(converged, weights / total, 0.0)
    # In float64, as the caller subtracts large terms in many dimensions.
    log_mean = (rate - top * level).double() - 0.5 * torch.log1p(scaled.double()).sum(0)
    log_mean = log_mean + torch.log(z / k2.sqrt() * total / math.pi)
    return Contour(z, q, steps, d, level + log_node, weights, log_mean)


def _at_crossing(
    z: Tensor, b: Tensor, q: Tensor, p: Tensor, top: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the exponent z0 - m - 1 - sum(z0 b_k^2 q_k), its slope in d, and log(z0/(m + 1)).

    The slope is zero at the saddle; with it, z0 may be a few digits off. All three are (*pairs).

    Args:
        z: z0 (*pairs).
        b: Means (D, *pairs).
        q: 1/(1 + 2 z0 lam_k), (D, *pairs).
        p: 2 z0 lam_k q_k, (D, *pairs).
        top: m + 1 (*pairs).
        inside: 1 - |b|^2 (*pairs).
    """
    excess = (z - top) / top
    # Near the edge of a support much wider than the Gaussian, z0 is large and amplifies rounding of
    # b: there 1 - |b|^2 is more accurate.
    outer, inner = (b * b * q).sum(0), (b * b * p).sum(0)
    edge = (outer > 0.5) & (inner < 0.5)
    rate = torch.where(edge, z * (inside + inner) - top, top * excess - z * outer)
    return rate, rate + (z * b * b * p * q - 0.5 * p).sum(0), torch.log1p(excess)


def _phase(
    x: Tensor, y: Tensor, d: Tensor, top: Tensor, p: Tensor, g: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the exponent less its value at d = 0, d/(1 + p d), and log(1 + d).

    Args:
        x: Real parts of d (n, *pairs).
        y: Imaginary parts (n, *pairs).
        d: x + iy.
        top: m + 1 (*pairs).
        p: 2 z0 lam_k q_k, (D, *pairs).
        g: B_k p_k = z0 (b_k q_k)^2 p_k, (D, *pairs).
        slope: The slope of the exponent at d = 0, (*pairs).
    """
    # As 1 + 2 z lam = (1 + 2 z0 lam)(1 + p d), the exponent is slope d + (m + 1)(d - log(1 + d))
    # and, from each axis, (p d - log(1 + p d)) / 2 + g d^2 / (1 + p d).
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
    """Return the accurate real and imaginary parts of d - log(1 + d), and log(1 + d).

    Here d = x + iy, and `radius` is |d|^2.
    """
    growth = 2 * x + radius  # |1 + d|^2 - 1
    log_size, angle = torch.log1p(growth), torch.atan2(y, 1 + x)
    # y - angle = r x + (r - arctan r), by a series where the difference would cancel.
    r = y / (1 + x)
    square = r * r
    series = torch.full_like(square, 1 / (2 * _ARCTAN[square.dtype] + 1))
    for k in range(_ARCTAN[square.dtype] - 1, 0, -1):
        series = 1 / (2 * k + 1) - square * series
    imag = torch.where(square < _SMALL**2, r * (x + square * series), y - angle)
    return 0.5 * (growth - log_size - radius), imag, torch.complex(0.5 * log_size, angle)


def _nodes(top: Tensor, p: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x and y of nodes d = x + iy, their steps (n, *pairs), and k2 (*pairs).

    k2 is the curvature of the exponent at the saddle. Steps are complex, and lack a factor
    k2^(-1/2). Arguments are as for `_phase`; `count` is n.
    """
    log_step, step1, bend0, bend1, damp, cross, stretch = _SHAPES[count]
    # Derivatives at d = 0, up to their signs, of the exponent's terms in `_phase`.
    square = p * p
    k2 = top + (0.5 * square + 2 * g).sum(0)
    k3 = 2 * top + (p * (square + 6 * g)).sum(0)
    k4 = 6 * top + (square * (3 * square + 24 * g)).sum(0)
    k5 = 24 * top + (p * square * (12 * square + 120 * g)).sum(0)
    # The path of steepest descent leaves the saddle as x = -k3 y^2 / (6 k2).
    c = k3 / (6 * k2)
    e = (damp * (k3 * c / 2 - k4 / 6 + k5 / (120 * c)) / k2).clamp_min(0)
    inverse = 1 / k2
    step = torch.exp(log_step + step1 * inverse)
    index = torch.arange(count, dtype=top.dtype, device=top.device) + 0.5
    u = index.reshape(count, *(1,) * k2.dim()) * step
    stretched = stretch * inverse * u * u
    y = u * (1 + stretched) * inverse.sqrt()
    bend, damped = (bend0 + bend1 * inverse.clamp(max=_BENDING)) * c, 1 / (1 + e * y * y)
    fall = bend * y * damped
    x = cross * c * inverse - fall * y
    speed = (1 + 3 * stretched) * step
    return x, y, torch.complex(-2 * fall * damped * speed, speed), k2


def _saddle(lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """Return the saddle z = m + 1 + sum(p_k/2 + B_k) > 0, (*pairs), accurate to a few digits.

    See `_SHAPES` for p_k and B_k. Arguments are lam and b (D, *pairs), and top = m + 1 (*pairs).
    """
    # Start from lower bounds: z0 >= (|b| - 1)/(2 max lam) for every subset of axes. The subsets of
    # axes no wider than one axis suffice.
    narrower = lam.unsqueeze(0) <= lam.unsqueeze(1)
    distance = torch.where(narrower, b.unsqueeze(0), 0.0).square().sum(1).sqrt()
    z = torch.maximum(top, ((distance - 1) / (2 * lam)).amax(0))
    for _ in range(_steps_for(len(lam))):
        z = torch.maximum(_secular_step(z, lam, b, top), top)
    return torch.maximum(z * torch.exp(-_halley_step(z, lam, b, top)), top)


def _steps_for(dim: int) -> int:
    """Return the steps after which one in 1e4 of the hardest pairs is still far from its saddle."""
    return 2 if dim == 1 else 6 if dim <= 8 else 8


def _secular_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """Return the next z by More and Sorensen's step: 1 / |b q| is almost linear in z.

    At the saddle z (1 - |b q|^2) = top + sum(p) / 2, or |b q| = 1 - nu / z with a nu that hardly
    varies. At the current z, where |b q| = rho, the tangent of 1 / |b q| is (a + c z) / rho. The
    next z solves rho / (a + c z) = 1 - nu / z, a quadratic equation.

    See Computing a trust region step (1983), SIAM J. Sci. Stat. Comput. 4.
    """
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
    # The positive root of a quadratic, in the form that does not cancel.
    small = 2 * a * nu / (e + root).clamp_min(_TINY)
    return torch.where(e > 0, small, (root - e) / (2 * c).clamp_min(_TINY))


def _halley_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """Return Halley's step in log z for H = z - m - 1 - sum(p/2 + B).

    Derivatives in log z are p q of p, and B (1 - 2 p) of B, which give h1 and h2, the first and the
    second derivative of H.
    """
    scaled = 2 * z * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    weight = z * (b * q).square()
    h0 = z - top - (0.5 * p + weight).sum(0)
    h1 = z - (0.5 * p * q + weight * (1 - 2 * p)).sum(0)
    curvature = weight * ((1 - 2 * p).square() - 2 * p * q)
    h2 = z - (0.5 * p * q * (1 - 2 * p) + curvature).sum(0)
    newton = h0 / h1
    # Limits keep the step short where the start is far from the saddle.
    return (newton / (1 - 0.5 * newton * h2 / h1).clamp(0.5, 2.0)).clamp(-0.7, 0.7)


# First derivatives, as averages over the nodes


def averages(
    contour: Contour, b: Tensor, lam: Tensor, full: bool, drift: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the derivatives of the integral, relative to itself.

    In this order: in b (D, *pairs); in A, symmetric (D, D, *pairs); in the Gaussians' covariance
    (D, D, *pairs) if `full`, else in the logarithm of a factor of it (*pairs); and in m (*pairs),
    which is zero without `drift`, the derivative of `log_front`.
    """
    # With steps s, z / (1 + 2 z lam) = z0 q (1 + q s) and 1 / (1 + 2 z lam) = q (1 - p s):
    # derivatives of the integrand, but not in m, are polynomials of degree two in s times itself.
    q = contour.shrink
    p = 2 * contour.saddle * lam * q
    weighted = contour.weights * contour.steps
    first = weighted.imag.sum(1)
    second = (weighted.unsqueeze(1) * contour.steps).imag.sum(2)
    # Exactly one, or zero for pairs without derivatives.
    one = contour.weights.imag.sum(0).round()
    rise, fall = q * first, p * first
    rate = 2 * contour.saddle * q * b
    ball = one + rise.unsqueeze(0) - fall.unsqueeze(1) - _outer(p, q) * second
    by_ball = 0.5 * _outer(q * b, rate) * ball
    by_ball = by_ball - _diagonal(0.5 * q * (one - fall))
    if full:
        level = one + rise.unsqueeze(0) + rise.unsqueeze(1) + _outer(q, q) * second
        by_spread = 0.5 * _outer(rate, rate) * level
        by_spread = by_spread - _diagonal(contour.saddle * q * (one + rise))
    else:
        square = second.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        level = rate * b * (one + 2 * rise + q * q * square)
        by_spread = (0.5 * p * (level - (one + rise))).sum(0)
    if drift is None:
        by_exponent = torch.zeros_like(one)
    else:
        change = (drift.to(q.dtype) - contour.log_nodes) * _variation(contour, b)
        by_exponent = (contour.weights * change).imag.sum(0)
    return -rate * (one + rise), by_ball, by_spread, by_exponent


def _variation(contour: Contour, b: Tensor) -> Tensor:
    """Return 1 - F(z0)/F(z), (n, *pairs), if the Gaussian F in the integrand hardly varies, else 1.

    F is the product of sqrt(z / (1 + 2 z lam_k)) exp(-z b_k^2 / (1 + 2 z lam_k)). The integral of a
    constant F does not depend on m. Subtracting it keeps the derivative in m accurate for Gaussians
    much wider than the ball.
    """
    q = contour.shrink.unsqueeze(1)
    ratio = -q * contour.nodes / (1 + contour.nodes)
    x, y = ratio.real, ratio.imag
    bend = contour.saddle * (b.unsqueeze(1) * q).square() * contour.steps
    # u + iv = log(F(z0)/F(z)): along an axis log((1 + p d) / (1 + d)) / 2 + z0 (b q)^2 s.
    u = (0.25 * torch.log1p(x * (2 + x) + y * y) + bend.real).sum(0)
    v = (0.5 * torch.atan2(y, 1 + x) + bend.imag).sum(0)
    near = (u.abs() + v.abs()).amax(0) < 1
    u, v = torch.where(near, u, 0.0), torch.where(near, v, 0.0)
    real = 2 * torch.sin(0.5 * v).square() - torch.expm1(u) * torch.cos(v)
    return torch.complex(torch.where(near, real, 1.0), -torch.exp(u) * torch.sin(v))


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return outer products (D, D, *pairs) of vectors (D, *pairs)."""
    return x.unsqueeze(1) * y.unsqueeze(0)


def _diagonal(entries: Tensor) -> Tensor:
    """Return diagonal matrices (D, D, *pairs) of entries (D, *pairs)."""
    unit = torch.eye(len(entries), dtype=entries.dtype, device=entries.device)
    return unit.reshape(*unit.shape, *(1,) * (entries.dim() - 1)) * entries


# The contours of pairs, and the scale of the integral


def contour_of_pairs(
    frame: Frame, m: Tensor, kind: str, dtype: torch.dtype
) -> tuple[Contour, Tensor, Tensor]:
    """Return the contours of pairs (R, N), and lam and b with axes first, (D, R, N).

    The kind is "smooth" (m >= 1), "any" (m >= 0) or "normal" (one node, exact).
    """
    lam, b = (x.to(dtype).movedim(-1, 0).contiguous() for x in (frame.lam, frame.b))
    if kind == "normal":
        return _normal_contour(lam, b), lam, b
    inside = frame.inside.to(dtype)
    m = m.unsqueeze(-1) + torch.zeros_like(inside)  # (R, N)
    smooth, other = (24, 28) if dtype == torch.float64 else (6, 10)
    count = smooth if kind == "smooth" else other
    return saddle_contour(lam, b, m, inside, count), lam, b


def _normal_contour(lam: Tensor, b: Tensor) -> Contour:
    """Return the one node z = 1/2, where the integrand is the normal density of b."""
    q = 1 / (1 + lam)
    one = torch.ones_like(q[0])
    log_mean = -0.5 * (torch.log1p(lam.double()) + (b * b * q).double()).sum(0)
    none = torch.zeros_like(one, dtype=one.dtype.to_complex()).unsqueeze(0)
    steps = none.expand(len(lam), *none.shape)
    # The weight i has the imaginary part 1.
    return Contour(0.5 * one, q, steps, none, none, none + 1j, log_mean)


def log_front(m: Tensor, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    """Return the log factor in front of the contour integral and its slope in m, float64 (R, 1).

    A normal density has no m, and some slope, which is not used.
    """
    m = m.double().unsqueeze(-1)
    if kind == "normal":
        return torch.full_like(m, -0.5 * dim * math.log(2 * math.pi)), m
    top, half = m + 1, dim / 2
    # log Gamma(top + D/2) - top log top + top, without large terms: see `stirling_excess`.
    front = top * torch.log1p(half / top) + half * torch.log((top + half) / math.pi) - half
    front = front + stirling_excess(top + half)
    return front, torch.digamma(top + half) - top.log()


def log_size(contour: Contour, frame: Frame, scale_tril: Tensor) -> Tensor:
    """Return the logarithm of the contour integral, float64 (R, N)."""
    volume = scale_tril.diagonal(dim1=-2, dim2=-1).double().log().sum(-1, keepdim=True)
    return contour.log_mean.double() - volume + frame.shrink.log().sum(-1)


# Derivatives at fixed nodes


class _FixedNodes:
    """The integrals of pairs as ordinary functions of their inputs, at nodes that do not move.

    Args:
        kind: Of the contour, see `contour_of_pairs`.
        inputs: As for `_integrals`; they fix the nodes, and derivatives are taken there.
    """

    def __init__(self, kind: str, inputs: Sequence[Tensor]) -> None:
        self.kind, self.fixed = kind, [x.detach().double() for x in inputs]
        loc, scale_tril, centers, spread, m = self.fixed
        self.frame = whiten(loc, scale_tril, centers, spread)
        self.contour, lam, _ = contour_of_pairs(self.frame, m, kind, torch.float64)
        # An integral does not depend on its contour, so the nodes need no derivative.
        front, _ = log_front(m, loc.shape[-1], kind)
        size = torch.exp(log_size(self.contour, self.frame, scale_tril) + front)
        self.weights, self.lam = self.contour.weights * size, lam.movedim(0, -1)

    def coordinates(
        self, loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: Tensor
    ) -> tuple[Tensor, ...]:
        """Return b, A, the spread and m of pairs (R, N) in the frame.

        The spread is a covariance, or the logarithm of a variance relative to the fixed one.
        """
        frame = self.frame
        gaps = centers.double() - loc.double().unsqueeze(1)
        b = frame.shrink * rotate(gaps @ frame.inverse.mT, frame.rotation)
        pairs = frame.shrink.unsqueeze(-1) * frame.shrink.unsqueeze(-2)
        sides = frame.rotation.mT @ (frame.inverse @ scale_tril.double()).unsqueeze(1)
        if spread.dim() > 1:
            whole = frame.rotation.mT @ frame.inverse.unsqueeze(1)
            spread = pairs * (whole @ spread.double() @ whole.mT)
        else:
            spread = (2 * torch.log(spread.double() / self.fixed[3])).expand(b.shape[:-1])
        m = m.double().unsqueeze(-1).expand(b.shape[:-1])
        return b, pairs * (sides @ sides.mT), spread, m

    def integrals(self, b: Tensor, ball: Tensor, spread: Tensor, m: Tensor) -> Tensor:
        """Return the integrals (R, N) from the coordinates of pairs."""
        contour = self.contour
        # Derivatives in a symmetric matrix are symmetric, too.
        ball = 0.5 * (ball + ball.mT)
        if spread.dim() < ball.dim():
            unit = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
            spread = spread.exp()[..., None, None] * self.lam.unsqueeze(-1) * unit
        spread = 0.5 * (spread + spread.mT)
        variance = 0.5 / (contour.saddle * (1 + contour.nodes))
        inverse = torch.linalg.inv_ex(spread + ball * variance[..., None, None])[0]
        v = (inverse @ b.unsqueeze(-1).to(inverse.dtype)).squeeze(-1)
        phase = 0.5 * (_log_det(inverse) - (v * b).sum(-1))
        if self.kind == "any":  # Gamma(m + 1 + D/2) z^-(m + 1)
            logs = (self.fixed[4].unsqueeze(-1) + 1).log() + contour.log_nodes
            phase = phase + torch.lgamma(m + (1 + b.shape[-1] / 2)) - (m + 1) * logs
        # The weights hold the integrand at the inputs that were fixed: the factor there is 1, and
        # only has derivatives.
        return (self.weights * torch.exp(phase - phase.detach())).imag.sum(0)

    def partials(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the derivatives in b, A, the spread and m as a function of all inputs."""
        return torch.func.grad(lambda *x: self.integrals(*x).sum(), (0, 1, 2, 3))(
            *self.coordinates(*inputs)
        )


def _log_det(matrix: Tensor) -> Tensor:
    """Return complex logarithms of determinants of complex matrices."""
    sign, size = torch.linalg.slogdet(matrix)
    return sign.log() + size
