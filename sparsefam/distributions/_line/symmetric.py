"""Quadrature on the support of a symmetric univariate density: expectations and covariances."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..._numerics.quadrature import smooth_unit_rule
from ..._numerics.validation import require
from ...bases import Basis, Fourier, Polynomial, Product, Stack

__all__ = [
    "WAVE_ORDER",
    "covariance_on_support",
    "expect_on_support",
    "gaussians_on_support",
    "require_resolved",
    "support_rule",
    "wave_differences",
]

# Nodes on half of the support for waves without a closed form. They resolve about as many radians.
WAVE_ORDER = 256
_Point = tuple[Tensor, ...]


def support_rule(
    p: Any,
    lower: Tensor,
    upper: Tensor,
    breaks: Tensor | None = None,
    order: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return nodes and weights (Q, *domains, *batch) for integrals over parts of the support.

    Each domain is intersected with the support, and divided at loc, where a density may have a
    kink, and at the breaks.

    Args:
        p: A symmetric density in float64: nodes in float32 would be inaccurate on narrow supports.
        lower: Lower ends (*domains), which may be infinite.
        upper: Upper ends (*domains), which may be infinite.
        breaks: Increasing locations (J,) where the integrand is not smooth; default none.
        order: Number of nodes of each of two rules for a piece between breaks, on the left and on
            the right of loc.

    Returns:
        Nodes t, the same nodes as x = (t - loc)/scale, and weights p(t) dt. Where the intersection
        is empty, weights are 0.
    """
    if breaks is None:
        breaks = lower.new_empty(0)
    infinity = breaks.new_tensor([math.inf])
    first, last = torch.cat([-infinity, breaks]), torch.cat([breaks, infinity])
    # Ends (pieces, *domains, *ones). Where a piece is empty, the lower end is above the upper one.
    lower = torch.maximum(lower, first.reshape(-1, *(1,) * lower.dim()))
    upper = torch.minimum(upper, last.reshape(-1, *(1,) * upper.dim()))
    lower, upper = (x.reshape(*x.shape, *(1,) * p.loc.dim()).to(p.loc) for x in (lower, upper))
    fraction, unit_weights = (
        x.reshape(-1, *(1,) * lower.dim()) for x in smooth_unit_rule(order, p.loc)
    )
    # Two rules on each piece, which meet at the center if that is inside.
    low, high = _clip(p, lower), _clip(p, upper)
    # By `where`: releases of torch differ in the derivative of `clamp` at a bound.
    middle = torch.where(low > 0, low, torch.where(high < 0, high, 0.0))
    x = torch.cat([low + (middle - low) * fraction, middle + (high - middle) * fraction])
    lengths = torch.cat([(middle - low) * unit_weights, (high - middle) * unit_weights])
    lengths = torch.where(lengths < 0, 0.0, lengths)
    weights = lengths * torch.exp(p.generator.log_density(x))
    t = _move_inside(p.loc + p.scale * x, lower, upper)
    return t.flatten(0, 1), x.flatten(0, 1), weights.flatten(0, 1)


def _clip(p: Any, end: Tensor) -> Tensor:
    """Return ends of domains (..., *batch), clipped to the support, as x = (t - loc)/scale."""
    half_width, offset = p.generator.reach(), end - p.loc
    inside = offset.abs() < half_width * p.scale
    # Replaced before the division, whose derivative overflows far away.
    x = torch.where(inside, offset, 0.0) / p.scale
    return torch.where(inside, x, offset.sign() * half_width)


def _move_inside(t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return t, moved strictly inside its domain, as functions may jump at the ends."""
    lower, upper = lower.detach(), upper.detach()
    first, last = torch.nextafter(lower, upper), torch.nextafter(upper, lower)
    moved = torch.minimum(torch.maximum(t.detach(), first), last)
    # Only the value moves; the derivatives stay.
    return t + (moved - t.detach())


def expect_on_support(p: Any, psi: Basis, order: int = 64) -> Tensor:
    r"""Return $E_p[\psi]$, (*batch, N), integrating each function where it is not negligible.

    Args:
        p: A symmetric density in float64.
        psi: A basis with an `effective_support`.
        order: Number of nodes as for `support_rule`.
    """
    t, _, weights = support_rule(p, *_bounds(psi), psi.breaks, order)
    return (weights * _values_by_function(psi, t, 1)).sum(0).movedim(0, -1)


def _bounds(psi: Basis) -> tuple[Tensor, Tensor]:
    """Return the ends (N,) between which each function of a basis is not negligible."""
    if psi.effective_support is None:
        raise ValueError(f"psi must have an effective_support to be integrated on it, got {psi}")
    return psi.effective_support


def _values_by_function(psi: Basis, nodes: Tensor, axis: int) -> Tensor:
    """Return values of the j-th function of N at the nodes with index j along `axis`, of length N.

    They have the shape of the nodes.
    """
    return psi.own(nodes.movedim(axis, -1)).movedim(-1, axis)


def gaussians_on_support(p: Any, centers: Tensor, widths: Tensor) -> Tensor:
    r"""Return $E_p[N(t; c_j, w_j^2)]$, (*batch, N), for any standard density.

    Nodes are kept both as $x = (t - loc)/scale$ for the density and as $z = (t - c)/w$ for the
    Gaussian. Computed from t, the coordinate of the narrower one would be inaccurate.

    Args:
        p: The density.
        centers: Centers c (N,).
        widths: Standard deviations w (N,), or one for all.
    """
    # Each function has values at up to 80 nodes at a time, as many as `quadrature(40)` has.
    return p._in_blocks(lambda p: _gaussians(p, centers, widths), p._node_count(40) * len(centers))


def _gaussians(p: Any, centers: Tensor, widths: Tensor) -> Tensor:
    """Return `gaussians_on_support` for a density whose batch is one block.

    With h = scale/w and z = (loc - c)/w + h x the expectation is the integral of
    q(x) exp(-z^2/2) dx over w sqrt(2 pi); points are pairs (x, z).
    """
    batch = (1,) * p.loc.dim()
    c, w = (x.expand(centers.shape).reshape(-1, *batch) for x in (centers, widths))
    h = p.scale / w
    ends = _overlap((p.loc - c) / w, h, p.generator.reach())
    order = 80 if p.loc.dtype == torch.float64 else 64
    fraction, unit_weights = (
        x.reshape(-1, *(1,) * h.dim()) for x in smooth_unit_rule(order, p.loc)
    )
    total = torch.zeros_like(h)
    for (x0, z0, cut0), (x1, z1, cut1) in pairwise(ends):
        # Each coordinate between its own ends: one by the length of the other may pass the edge.
        density = torch.exp(p.generator.log_density(x0 + (x1 - x0) * fraction))
        gauss = torch.exp(-0.5 * (z0 + (z1 - z0) * fraction).square())
        # The length in z only where the Gaussian ends: between edges of a density that is narrow
        # because alpha is near 1, z hardly changes.
        length = torch.where((h > 1) & (cut0 | cut1), (z1 - z0) / h.clamp_min(1), x1 - x0)
        total = total + length * (unit_weights * density * gauss).sum(0)
    return (total / (w * math.sqrt(2 * math.pi))).movedim(0, -1)


def _overlap(offset: Tensor, h: Tensor, half_width: Tensor | float) -> list[_Point]:
    """Return ends and middle, as (x, z), of the interval where density and Gaussian both matter.

    The third entry tells whether the Gaussian ends there. Both coordinates of a point are chosen by
    one condition: otherwise two points would share the derivative at a tie. The middle is the
    center of the density, or the end next to it.

    Args:
        offset: z at the center of the density (N, *batch).
        h: Change of z with x, scale/w (N, *batch).
        half_width: x at the end of the density (*batch).
    """
    # Where the Gaussian, relative to its peak, is 2.5e-20 or 6.7e-10.
    cut = 9.5 if offset.dtype == torch.float64 else 6.5
    half = half_width * h
    half_width = half_width * torch.ones_like(h)
    first, last = ((end - offset.detach()) / h.detach() for end in (-cut, cut))
    empty = (last <= -half_width) | (first >= half_width)
    center = (torch.zeros_like(offset), offset, torch.zeros_like(empty))
    ends = []
    # The conditions compare x itself: an end chosen by neither would have no derivative.
    for sign, inner in ((-1, first > -half_width), (1, last < half_width)):
        inner = inner & ~empty
        # Replaced before the division, whose derivative overflows.
        x = torch.where(inner, sign * cut - offset, 0.0) / torch.where(inner, h, 1.0)
        gaussian = (x, torch.full_like(offset, sign * cut), inner)
        end = _choose(inner, gaussian, (sign * half_width, offset + sign * half, inner))
        ends.append(_choose(empty, center, end))
    low, high = ends
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, center))
    return [low, middle, high]


def _choose(condition: Tensor, first: _Point, second: _Point) -> _Point:
    """Return the first point where a condition holds, else the second one, entry by entry."""
    return tuple(torch.where(condition, a, b) for a, b in zip(first, second, strict=True))


def covariance_on_support(p: Any, phi: Basis, psi: Basis) -> Tensor:
    r"""Return the covariance of $\phi$ and $\psi$ under a float64 density, (*batch, M, N).

    Means are subtracted before products are integrated, between all locations at which a function
    begins, ends or is not smooth.
    """
    if isinstance(phi, Stack):
        return torch.cat([covariance_on_support(p, basis, psi) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([covariance_on_support(p, phi, basis) for basis in psi.bases], -1)
    if phi.effective_support is not None and psi.effective_support is None:
        return _covariance_with_local(p, psi, phi).mT
    if phi.effective_support is None and psi.effective_support is not None:
        return _covariance_with_local(p, phi, psi)
    # Both bases are local, or none is.
    bases = [phi] if phi is psi else [phi, psi]
    ends = [basis.effective_support for basis in bases if basis.effective_support is not None]
    breaks = [basis.breaks for basis in bases if basis.breaks is not None]
    landmarks = [x for lower, upper in ends for x in (lower, (lower + upper) / 2, upper)]
    cuts = torch.cat([p.loc.new_empty(0), *landmarks, *breaks]).sort().values
    infinity = cuts.new_tensor([math.inf])
    order = 48 if ends else WAVE_ORDER
    rule = support_rule(p, torch.cat([-infinity, cuts]), torch.cat([cuts, infinity]), order=order)
    t, x, weights = (y.flatten(0, 1) for y in rule)
    require_resolved(Stack(phi, psi), t, order)
    f, g = (_differences(p, basis, t, x) for basis in (phi, psi))
    f, g = (y - (weights.unsqueeze(-1) * y).sum(0) for y in (f, g))
    return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)


def _covariance_with_local(p: Any, phi: Basis, psi: Basis) -> Tensor:
    """Return the covariance (*batch, M, N) of a basis phi and a basis psi of local functions.

    Local functions are negligible outside bounded domains.

    Args:
        p: A symmetric density in float64.
        phi: A basis of M functions without an `effective_support`.
        psi: A basis of N functions with one.
    """
    # Cov[phi, psi] = E[(phi - E phi) psi], integrated where psi is not negligible.
    half = p.generator.reach() * p.scale
    t, x, weights = support_rule(p, *_bounds(psi), Stack(phi, psi).breaks, order=80)
    require_resolved(phi, t, 64)  # radians, which 80 nodes resolve
    nodes, rule_weights = p.generator.rule(WAVE_ORDER)
    differences = _differences(p, phi, p.loc + p.scale * nodes, nodes)
    mean = (rule_weights.unsqueeze(-1) * differences).sum(0)
    if isinstance(phi, Fourier):
        # On the whole support a wave may vary too fast for the rule, but not for its closed form.
        fast = half.unsqueeze(-1) * phi.frequencies.abs() > WAVE_ORDER / 4
        # Cosines come first, then sines of the same frequencies.
        mean = torch.where(torch.cat([fast, fast], -1), p.expect(phi) - phi(p.loc), mean)
    # Functions that cover the support may be almost constant there.
    lower, upper = (y.reshape(*y.shape, *(1,) * p.loc.dim()) for y in _bounds(psi))
    whole = (lower <= p.loc - half) & (p.loc + half <= upper)
    g = _values_by_function(psi, t, 1)
    g = g - torch.where(whole, (weights * g).sum(0), 0.0)
    return torch.einsum("qn...,qn...m->...mn", weights * g, _differences(p, phi, t, x) - mean)


def _differences(p: Any, psi: Basis, t: Tensor, x: Tensor) -> Tensor:
    r"""Return values of a basis (..., *batch, N) up to constants, which covariances ignore.

    Waves and powers are returned as $\psi(t) - \psi(loc)$, with the accuracy of the difference
    where supports are narrow, other functions as $\psi(t)$.

    Args:
        p: The density.
        psi: The basis.
        t: Locations (..., *batch).
        x: The same as (t - loc)/scale.
    """
    loc, step = p.loc.unsqueeze(-1), (p.scale * x).unsqueeze(-1)
    if isinstance(psi, Fourier):
        return wave_differences(loc * psi.frequencies, step * psi.frequencies)
    if isinstance(psi, Polynomial):
        # d_k = (loc + s)^k - loc^k, with the step s, is d_(k-1) (loc + s) + loc^(k-1) s.
        powers = [torch.zeros_like(step)]
        for k in range(1, len(psi)):
            powers.append(powers[-1] * (loc + step) + loc ** (k - 1) * step)
        return torch.cat(powers, -1)
    return psi(t)


def wave_differences(angle: Tensor, step: Tensor) -> Tensor:
    """Return cos(angle + step) - cos(angle), then the same of sines, (..., 2 K).

    Args:
        angle: Angles (..., K).
        step: Changes of the angles (..., K).
    """
    # By the sum-to-product identities, which do not cancel for small steps.
    chord, middle = 2 * (0.5 * step).sin(), angle + 0.5 * step
    return torch.cat([-chord * middle.sin(), chord * middle.cos()], -1)


def require_resolved(psi: Basis, nodes: Tensor, order: int) -> None:
    """Raise ValueError if a wave has `order` or more radians on half of the range of nodes.

    Waves of vectors are not checked: they have closed forms.

    Args:
        psi: The basis, of which waves may be a part.
        nodes: Nodes (Q, ...) at which it is integrated.
        order: The limit.
    """
    if not nodes.numel():
        return
    if isinstance(psi, Stack | Product):
        # The bases of a product take one coordinate each.
        arguments = nodes.unbind(-1) if isinstance(psi, Product) else [nodes] * len(psi.bases)
        for basis, t in zip(psi.bases, arguments, strict=True):
            require_resolved(basis, t, order)
    elif isinstance(psi, Fourier) and not psi.event_shape:
        half = (nodes.detach().amax(0) - nodes.detach().amin(0)).amax() / 2
        rule = f"below {order} radians on half of the domain of integration"
        require(psi.frequencies.abs() * half < order, "frequencies", rule, psi.frequencies)
