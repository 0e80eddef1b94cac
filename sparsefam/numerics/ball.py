r"""Gaussians under a beta-Gaussian of any exponent, by one short contour integral.

A beta-Gaussian is a complex scale mixture of normals: with $m = 1/(\alpha - 1)$, in D dimensions,
$$p(t) = \frac{\Gamma(m+1+D/2)}{2\pi i} \int e^z z^{-(m+1+D/2)}\, N(t;\, \mu, A/(2z))\, dz,$$
so that $E_p[N(t; c, S)]$ is the same integral of $N(c; \mu, S + A/(2z))$, and in whitened
coordinates $E[(1 - |x|^2)_+^m]$ for $x_k \sim N(b_k, \lambda_k)$. The path crosses the real axis
near the saddle point $z_0$ and bends so that a midpoint rule with a few nodes reaches rounding for
every width and offset. Nothing cancels: all terms of the exponent are second order at the saddle.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import difference
from .special import log_gamma_ratio, stirling_excess

__all__ = ["gaussian_under_power"]

# Half-contour nodes and the path's constants (log step, its slope, bend, its slope, damping,
# crossing, stretch), fitted over the whole space of (m, p_k, B_k).
_PATH = {
    torch.float32: (10, (-0.2397, 0.0415, 0.7013, -0.6178, 0.7691, 3.8518, 0.0131)),
    torch.float64: (24, (-0.7098, 0.0566, 0.5017, -0.5256, 0.1310, 6.9299, 0.0127)),
}
# Neither the density nor the Gaussian is taken as narrower than this share of the other: its
# square is below the rounding of what it adds to.
_NARROWEST = 1e-6
# Distances, in units of the larger of the two, from which on everything is zero.
_FARTHEST = 1e7
# Pairs at a time, so that their nodes fit the cache.
_CHUNK = 16384
_TINY = 1e-30


@dataclass(frozen=True)
class _Contour:
    """A saddle, and nodes z0 (1 + d) around it with weights whose imaginary parts sum to one."""

    saddle: Tensor  # z0 (...)
    excess: Tensor  # z0/(m + 1) - 1 (...)
    nodes: Tensor  # d, complex (n, ...)
    weights: Tensor  # complex (n, ...)
    log_mean: Tensor  # log E[(1 - |x|^2)_+^m] less stirling_excess(m + 1) (...)


def gaussian_under_power(
    loc: Tensor, scale: Tensor, centers: Tensor, widths: Tensor, exponent: Tensor
) -> Tensor:
    r"""$E_p[N(t; c, w^2)]$ for $p \propto (1 - ((t - loc)/scale)^2)_+^m$, elementwise.

    Differentiable to any order in all arguments, which broadcast together. The path is drawn for
    the exponent $m + 1$, where it is best, and $r_m = r_{m+1} + s\,\partial_s r_{m+1}/(2m + 3)$ is
    taken under the integral, so that every $m \ge 0$ has the same accuracy: norm-wise 2e-6 in
    float32 and 1e-14 in float64 for every ratio of scale to width.

    Args:
        loc: Centres of the densities.
        scale: Half-widths of their supports.
        centers: Centres c of the Gaussians.
        widths: Standard deviations w.
        exponent: $m \ge 0$.
    """
    # The part of the constant that varies with m is left to autograd, which knows it better.
    constant = stirling_excess(exponent + 2) + log_gamma_ratio(exponent + 2, 0.5)
    scale = torch.maximum(scale, _NARROWEST * widths)
    widths = torch.maximum(widths, _NARROWEST * scale)
    integral: Tensor = _Integral.apply(loc, scale, centers, widths, exponent)[0]
    return torch.exp(constant - 0.5 * math.log(math.pi)) * integral


class _Integral(torch.autograd.Function):
    """The integral and its derivatives in center - loc, log scale, log width and exponent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, center: Tensor, width: Tensor, exponent: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = torch.broadcast_tensors(*difference(center, loc), scale, width, exponent)
        count = inputs[0].numel()
        if torch.compiler.is_compiling() or count <= _CHUNK:
            return _integrals(*inputs)
        # All nodes of a chunk at once fit the cache; those of a large batch do not.
        flat = [x.reshape(-1) for x in inputs]
        parts = [_integrals(*(x[i : i + _CHUNK] for x in flat)) for i in range(0, count, _CHUNK)]
        return tuple(torch.cat(x).reshape(inputs[0].shape) for x in zip(*parts, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, partials = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        total: list[Any] = [None] * 5
        if grads[0] is not None:
            total = _pull_back(grads[0], inputs, partials)
        # A compiled graph has no double backward.
        if not torch.compiler.is_compiling() and any(g is not None for g in grads[1:]):
            cotangents = [torch.zeros_like(partials[0]) if g is None else g for g in grads[1:]]
            with torch.enable_grad():
                pull = torch.func.vjp(_differentiable_partials, *inputs)[1]
                above = pull(tuple(cotangents))
            total = [b if a is None else a + b for a, b in zip(total, above, strict=True)]
        return tuple(total)


def _pull_back(grad: Tensor, inputs: tuple[Tensor, ...], partials: Any) -> list[Any]:
    loc, scale, center, width, exponent = inputs
    by_offset, by_scale, by_width, by_exponent = (grad * x for x in partials)
    return [
        -by_offset.sum_to_size(loc.shape),
        (by_scale / scale).sum_to_size(scale.shape),
        by_offset.sum_to_size(center.shape),
        (by_width / width).sum_to_size(width.shape),
        by_exponent.sum_to_size(exponent.shape),
    ]


def _differentiable_partials(
    loc: Tensor, scale: Tensor, center: Tensor, width: Tensor, exponent: Tensor
) -> tuple[Tensor, ...]:
    return _integrals(*difference(center, loc), scale, width, exponent)[1:]


def _integrals(
    offset: Tensor, lost: Tensor, scale: Tensor, width: Tensor, exponent: Tensor
) -> tuple[Tensor, ...]:
    """The integral and its four derivatives, over nodes that are constants of it."""
    unit = torch.maximum(scale, width).detach()
    path = _path_for(*(x.detach() for x in (offset, lost, scale, width, exponent)))
    mixing = (scale / unit).square() / (2 * path.saddle * (1 + path.nodes))
    spread = 1 / ((width / unit).square() + mixing)
    y = (offset / unit).clamp(-_FARTHEST, _FARTHEST)
    reduced = y * y * spread
    # log z against log(m + 2): the constant that goes with the integral takes the rest.
    drift = torch.log((exponent + 2) / (exponent.detach() + 2))
    turn = torch.log1p(path.excess) + _log1p(path.nodes) - drift
    weights = path.weights
    if torch.is_grad_enabled():
        # Equal to the weights, with the derivatives of the integrand.
        moved = exponent - exponent.detach()
        phase = 0.5 * (torch.log(spread) - reduced) - moved * turn.detach()
        phase = phase + (exponent + 2) * drift - moved
        weights = weights * torch.exp(phase - phase.detach())
    share = 1 / (2 * exponent + 3)
    rate = (reduced - 1) * spread
    level = 1 + share * mixing * rate
    by_spread = 0.5 * rate * level + share * mixing * (1 - 2 * reduced) * spread * spread
    terms = (
        level,
        y * spread * (2 * share * mixing * spread - level) / unit,
        2 * mixing * (by_spread + share * rate),
        2 * (width / unit).square() * by_spread,
        -turn * level - 2 * share * share * mixing * rate,
    )
    amplitude = torch.exp(path.log_mean) / scale.detach()
    return tuple(amplitude * (weights * term).imag.sum(0) for term in terms)


@torch.no_grad()
def _path_for(
    offset: Tensor, lost: Tensor, scale: Tensor, width: Tensor, exponent: Tensor
) -> _Contour:
    b = (offset / scale).clamp(-_FARTHEST, _FARTHEST)
    gap = (scale - offset.abs() - torch.where(offset < 0, -lost, lost)) / scale
    inside = gap.clamp(-_FARTHEST, _FARTHEST) * (1 + b.abs())
    lam = (width / scale).square() + 0 * b
    return _contour(lam.unsqueeze(-1), b.unsqueeze(-1), exponent + 1, inside)


def _contour(lam: Tensor, b: Tensor, m: Tensor, inside: Tensor) -> _Contour:
    """The path for x_k ~ N(b_k, lam_k), both (..., D), and exponents m (...).

    `inside` is 1 - |b|^2, of which the caller knows more digits than b keeps near the edge.
    """
    top = m + 1
    z = _saddle(lam, b, top)
    scaled = 2 * z.unsqueeze(-1) * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    g = z.unsqueeze(-1) * (b * q).square() * p
    d, steps, k2 = _nodes(top, p, g)
    # Near the edge of a support that is wide against the Gaussian z0 is large, and what b lost to
    # rounding shows: there 1 - |b|^2 is the better datum, and the saddle's own residual enters.
    outer, inner = (b * b * q).sum(-1), (b * b * p).sum(-1)
    edge = (outer > 0.5) & (inner < 0.5)
    residual = z * (inside + (b * b * p * (1 + q)).sum(-1)) - top - 0.5 * p.sum(-1)
    exponent = top * _minus_log1p(d) + torch.where(edge, residual, 0.0) * d
    axes = d.unsqueeze(-1)
    exponent = exponent + (0.5 * _minus_log1p(p * axes) + g * axes**2 / (1 + p * axes)).sum(-1)
    weights = torch.exp(exponent) * steps
    total = weights.imag.sum(0)
    excess = (z - top) / top
    rate = torch.where(edge, z * (inside + inner) - top, top * excess - z * outer)
    log_mean = rate - top * torch.log1p(excess) - 0.5 * torch.log1p(scaled).sum(-1)
    log_mean = log_mean + torch.log(z / k2.sqrt() * total.clamp_min(_TINY) / math.pi)
    return _Contour(z, excess, d, weights / total, log_mean)


def _nodes(top: Tensor, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes d and complex steps (n, ...) from the curvatures at the saddle; and the second one."""
    count, (log_step, step1, bend0, bend1, damp, cross, stretch) = _PATH.get(
        top.dtype, _PATH[torch.float64]
    )
    k2 = top + (0.5 * p * p + 2 * g).sum(-1)
    k3 = 2 * top + (p * (p * p + 6 * g)).sum(-1)
    k4 = 6 * top + (p * p * (3 * p * p + 24 * g)).sum(-1)
    k5 = 24 * top + (p**3 * (12 * p * p + 120 * g)).sum(-1)
    c = k3 / (6 * k2)
    e = (damp * (k3 * c / 2 - k4 / 6 + k5 / (120 * c)) / k2).clamp_min(0)
    step = torch.exp(log_step + step1 / k2)
    index = torch.arange(count, dtype=top.dtype, device=top.device) + 0.5
    u = index.reshape(count, *(1,) * k2.dim()) * step
    y = u * (1 + stretch * u * u / k2) / k2.sqrt()
    bend, damped = (bend0 + bend1 / k2) * c, 1 + e * y * y
    d = torch.complex(cross * c / k2 - bend * y * y / damped, y)
    slope = torch.complex(-2 * bend * y / damped.square(), torch.ones_like(y))
    return d, slope * (1 + 3 * stretch * u * u / k2) * step, k2


def _saddle(lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """The real z > 0 with z = m + 1 + sum(p_k/2 + B_k), in a fixed number of steps."""
    single, double = lam.shape[-1] == 1, lam.dtype == torch.float64
    z = torch.maximum(top + 0 * b.sum(-1), ((b.abs() - 1) / (2 * lam)).amax(-1))
    for _ in range((2 if single else 5) + (double and not single)):
        z = torch.maximum(_secular_step(z, lam, b, top), top)
    for _ in range(1 + double):
        z = torch.maximum(z * torch.exp(-_halley_step(z, lam, b, top)), top)
    return z


def _secular_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """More and Sorensen's step: the reciprocal of |b q| is almost linear in z."""
    scaled = 2 * z.unsqueeze(-1) * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    weight = (b * q).square()
    total = weight.sum(-1)
    inverse = 1 / (total + _TINY)
    a = ((weight * q).sum(-1) + _TINY) * inverse
    c = (weight * p).sum(-1) * inverse / z
    rho, count = total.sqrt(), top + 0.5 * p.sum(-1)
    x = rho.clamp(max=1.0)
    found = z
    for repeat in range(2):
        if repeat:
            x = (rho / (a + c * found)).clamp(max=1.0)
        nu = count / (1 + x)
        e = a - c * nu - rho
        root = torch.sqrt(e * e + 4 * a * c * nu)
        # The stable one of the two ways to write the positive root of a quadratic.
        small = 2 * a * nu / (e + root).clamp_min(_TINY)
        found = torch.where(e > 0, small, (root - e) / (2 * c).clamp_min(_TINY))
    return found


def _halley_step(z: Tensor, lam: Tensor, b: Tensor, top: Tensor) -> Tensor:
    """Step in log z on H = z - m - 1 - sum(p/2 + B), whose derivatives are exact."""
    scaled = 2 * z.unsqueeze(-1) * lam
    q = 1 / (1 + scaled)
    p = scaled * q
    weight = z.unsqueeze(-1) * (b * q).square()
    h0 = z - top - (0.5 * p + weight).sum(-1)
    h1 = z - (0.5 * p * q + weight * (1 - 2 * p)).sum(-1)
    bent = weight * ((1 - 2 * p).square() - 2 * p * q)
    h2 = z - (0.5 * p * q * (1 - 2 * p) + bent).sum(-1)
    newton = h0 / h1
    return (newton / (1 - 0.5 * newton * h2 / h1).clamp(0.5, 2.0)).clamp(-0.7, 0.7)


def _log1p(d: Tensor) -> Tensor:
    """Complex log(1 + d) without rounding 1 + d."""
    x, y = d.real, d.imag
    return torch.complex(0.5 * torch.log1p(x * (2 + x) + y * y), torch.atan2(y, 1 + x))


def _minus_log1p(d: Tensor) -> Tensor:
    """Complex d - log(1 + d), by its series where the difference would cancel."""
    small = d.abs() < 0.1
    near = torch.where(small, d, 0.0)
    series = torch.zeros_like(d)
    for k in range(17, 1, -1):
        series = series * -near + 1 / k
    return torch.where(small, near * near * series, d - _log1p(d))
