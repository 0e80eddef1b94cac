"""Quadrature on the support of a symmetric univariate density: expectations and covariances."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis, Fourier, GaussianRBF, Polynomial, Stack
from ..numerics.quadrature import smooth_unit_rule
from ..numerics.validation import require

if TYPE_CHECKING:
    from .univariate import SymmetricDistribution

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
    p: "SymmetricDistribution",
    lower: Tensor,
    upper: Tensor,
    breaks: Tensor | None = None,
    order: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return nodes and weights (Q, *domains, *batch) for integrals over parts of the support.

    Each domain is intersected with the support, and divided at loc, where a density may have a
    kink, and at the breaks.

    Args:
        p: The density.
        lower: Lower ends (*domains).
        upper: Upper ends (*domains).
        breaks: Increasing locations where the integrand is not smooth.
        order: Nodes on each piece.

    Returns:
        Nodes t, the same nodes as x = (t - loc)/scale, and weights p(t) dt. x is inaccurate if
        computed from t on a narrow support, and t if computed from x on a narrow domain.
    """
    lower, upper = _divide(lower, upper, breaks, p.loc.dim())
    share, rule = (x.reshape(-1, *(1,) * lower.dim()) for x in smooth_unit_rule(order, p.loc))
    reach = p._reach() * torch.ones_like(p.loc)
    low, high = _clip(p, reach, lower), _clip(p, reach, upper)
    centre = (torch.zeros_like(p.loc), p.loc, torch.ones_like(p.loc, dtype=torch.bool))
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, centre))
    pieces = []
    for (x0, t0, exact0), (x1, t1, exact1) in pairwise([low, middle, high]):
        # The length, from the coordinate in which both ends are exact.
        exact = exact0 & exact1
        length_t = torch.where(exact, t1 - t0, 0.0)
        length = torch.where(exact, length_t / p.scale, x1 - x0).clamp_min(0)
        x = torch.minimum(torch.maximum(x0 + length * share, -reach), reach)
        t = t0 + torch.where(exact, length_t, p.scale * (x1 - x0)).clamp_min(0) * share
        weights = length * rule * torch.exp(p._standard_log_prob(x))
        pieces.append((_move_inside(t, lower, upper), x, weights))
    t, x, weights = (torch.cat(part).flatten(0, 1) for part in zip(*pieces, strict=True))
    return t, x, weights


def _divide(
    lower: Tensor, upper: Tensor, breaks: Tensor | None, dims: int
) -> tuple[Tensor, Tensor]:
    """Divide domains at breaks: ends (pieces, *domains, *ones), lower above upper if empty."""
    if breaks is None:
        breaks = lower.new_empty(0)
    infinity = breaks.new_tensor([math.inf])
    first, last = torch.cat([-infinity, breaks]), torch.cat([breaks, infinity])
    ones = (1,) * lower.dim()
    lower = torch.maximum(lower, first.reshape(-1, *ones))
    upper = torch.minimum(upper, last.reshape(-1, *ones))
    lower, upper = (x.reshape(*x.shape, *(1,) * dims) for x in (lower, upper))
    return lower, upper


def _clip(p: "SymmetricDistribution", reach: Tensor, end: Tensor) -> _Point:
    """Return an end of domains as x and t, clipped to the support, and whether t is exact."""
    offset = end - p.loc
    inside = offset.abs() < reach * p.scale
    # Replaced before the division, whose derivative overflows far away.
    x = torch.where(inside, offset, 0.0) / p.scale
    edge = torch.where(offset < 0, -reach, reach)
    return _choose(inside, (x, end, inside), (edge, p.loc + edge * p.scale, inside))


def _move_inside(t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Move t strictly inside its domain, as functions may jump at the ends."""
    lower, upper = lower.detach(), upper.detach()
    first, last = torch.nextafter(lower, upper), torch.nextafter(upper, lower)
    moved = torch.minimum(torch.maximum(t.detach(), first), last)
    return t + (moved - t.detach())


def _choose(condition: Tensor, first: _Point, second: _Point) -> _Point:
    return tuple(torch.where(condition, a, b) for a, b in zip(first, second, strict=True))


def expect_on_support(p: "SymmetricDistribution", psi: Basis, order: int = 64) -> Tensor:
    r"""Return $E_p[\psi]$, (*batch, N), integrating each function where it is not negligible."""
    t, _, weights = support_rule(p, *_bounds(psi), psi.breaks, order)
    return (weights * _own_values(psi, t, 1)).sum(0).movedim(0, -1)


def _bounds(psi: Basis) -> tuple[Tensor, Tensor]:
    if psi.effective_support is None:
        raise ValueError(f"psi must have an effective_support to be integrated on it, got {psi}")
    return psi.effective_support


def _own_values(psi: Basis, nodes: Tensor, axis: int) -> Tensor:
    """Evaluate the j-th function at the nodes with index j along `axis`."""
    return psi.own(nodes.movedim(axis, -1)).movedim(-1, axis)


def gaussians_on_support(p: "SymmetricDistribution", centers: Tensor, widths: Tensor) -> Tensor:
    r"""Return $E_p[N(t; c_j, w_j^2)]$, (*batch, N), for any standard density.

    Nodes are kept both as $x = (t - loc)/scale$ for the density and as $z = (t - c)/w$ for the
    Gaussian. Computed from t, the coordinate of the narrower one would be inaccurate.
    """
    return p._in_blocks(lambda p: _gaussians(p, centers, widths), p._node_count(40) * len(centers))


def _gaussians(p: "SymmetricDistribution", centers: Tensor, widths: Tensor) -> Tensor:
    batch = (1,) * p.loc.dim()
    c, w = (x.expand(centers.shape).reshape(-1, *batch) for x in (centers, widths))
    h = p.scale / w
    ends = _overlap((p.loc - c) / w, h, p._reach())
    order = 80 if p.loc.dtype == torch.float64 else 64
    share, rule = (x.reshape(-1, *(1,) * h.dim()) for x in smooth_unit_rule(order, p.loc))
    total = torch.zeros_like(h)
    for (x0, z0, cut0), (x1, z1, cut1) in pairwise(ends):
        # The length in z only where the Gaussian ends: between edges of a density that is narrow
        # because alpha is near 1, z hardly changes.
        length = torch.where((h > 1) & (cut0 | cut1), (z1 - z0) / h.clamp_min(1), x1 - x0)
        density = torch.exp(p._standard_log_prob(x0 + length * share))
        gauss = torch.exp(-0.5 * (z0 + length * h * share).square())
        total = total + length * (rule * density * gauss).sum(0)
    return (total / (w * math.sqrt(2 * math.pi))).movedim(0, -1)


def _overlap(offset: Tensor, h: Tensor, reach: Tensor | float) -> list[_Point]:
    """Return ends and middle, as (x, z), of where both the density and the Gaussian matter.

    The third entry tells whether the Gaussian ends there. Both coordinates of a point are chosen by
    one condition: otherwise two points would share the derivative at a tie.
    """
    cut = 9.5 if offset.dtype == torch.float64 else 6.5
    half = reach * h
    reach = reach * torch.ones_like(h)
    empty = (offset + half <= -cut) | (offset - half >= cut)
    centre = (torch.zeros_like(offset), offset, torch.zeros_like(empty))
    ends = []
    for sign in (-1, 1):
        inner = (sign * offset + half > cut) & ~empty
        # Replaced before the division, whose derivative overflows.
        x = torch.where(inner, sign * cut - offset, 0.0) / torch.where(inner, h, 1.0)
        x = torch.minimum(torch.maximum(x, -reach), reach)
        gaussian = (x, torch.full_like(offset, sign * cut), inner)
        end = _choose(inner, gaussian, (sign * reach, offset + sign * half, inner))
        ends.append(_choose(empty, centre, end))
    low, high = ends
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, centre))
    return [low, middle, high]


def covariance_on_support(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Return the covariance of $\phi$ and $\psi$ under a float64 density, (*batch, M, N).

    Means are subtracted before products are integrated: at $loc = 100$ and $scale = 10^{-5}$ the
    difference $E[\phi\psi] - E[\phi]E[\psi]$ of powers would be inaccurate even in float64.
    """
    if isinstance(phi, Stack):
        return torch.cat([covariance_on_support(p, basis, psi) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([covariance_on_support(p, phi, basis) for basis in psi.bases], -1)
    if phi.effective_support is not None and psi.effective_support is not None:
        return _covariance_of_local(p, phi, psi)
    if psi.effective_support is not None:
        return _covariance_with_local(p, phi, psi)
    if phi.effective_support is not None:
        return _covariance_with_local(p, psi, phi).mT
    infinity = p.loc.new_tensor(math.inf)
    t, x, weights = support_rule(p, -infinity, infinity, Stack(phi, psi).breaks, WAVE_ORDER)
    f, g = (_subtract_mean(p, basis, t, x, WAVE_ORDER) for basis in (phi, psi))
    return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)


def _covariance_of_local(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    """Return the covariance of two bases that are negligible outside bounded domains."""
    (first, last), (lower, upper) = _bounds(phi), _bounds(psi)
    lower, upper = torch.maximum(first[:, None], lower), torch.minimum(last[:, None], upper)
    if isinstance(phi, GaussianRBF) and isinstance(psi, GaussianRBF):
        lower, upper = _product_domain(phi, psi)
    t, _, weights = support_rule(p, lower, upper, Stack(phi, psi).breaks, 80)
    f, g = _own_values(phi, t, 1), _own_values(psi, t, 2)
    # On the whole support means are subtracted first: wide functions are almost constant there.
    whole = _covers(p, lower, upper)
    f, g = (x - torch.where(whole, (weights * x).sum(0), 0.0) for x in (f, g))
    product = (weights * f * g).sum(0).movedim((0, 1), (-2, -1))
    means = p.expect(phi)[..., :, None] * p.expect(psi)[..., None, :]
    return product - torch.where(whole.movedim((0, 1), (-2, -1)), 0.0, means)


def _covariance_with_local(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    """Return the covariance of any basis and one that is negligible outside bounded domains."""
    lower, upper = _bounds(psi)
    t, x, weights = support_rule(p, lower, upper, Stack(phi, psi).breaks, 80)
    f, g = _subtract_mean(p, phi, t, x, 64), _own_values(psi, t, 1)
    g = g - torch.where(_covers(p, lower, upper), (weights * g).sum(0), 0.0)
    return torch.einsum("qn...,qn...m->...mn", weights * g, f)


def _covers(p: "SymmetricDistribution", lower: Tensor, upper: Tensor) -> Tensor:
    """Return whether each domain (*domains) covers the support, (*domains, *batch)."""
    first, last = (y.reshape(*y.shape, *(1,) * p.loc.dim()) for y in (lower, upper))
    half = p._reach() * p.scale
    return (first <= p.loc - half) & (p.loc + half <= last)


def _product_domain(phi: GaussianRBF, psi: GaussianRBF) -> tuple[Tensor, Tensor]:
    """Return the domains (M, N) of products of Gaussians, narrower than those of the factors."""
    first, last = (x.unsqueeze(-1) for x in _bounds(phi))
    a, b = torch.as_tensor(phi.widths).expand_as(phi.centers), torch.as_tensor(psi.widths)
    total = torch.hypot(a.unsqueeze(-1), b)
    shift = (a.unsqueeze(-1) / total).square() * (psi.centers - phi.centers.unsqueeze(-1))
    middle, half = phi.centers.unsqueeze(-1) + shift, 0.5 * (last - first) * b / total
    return middle - half, middle + half


def _subtract_mean(
    p: "SymmetricDistribution", psi: Basis, t: Tensor, x: Tensor, order: int
) -> Tensor:
    r"""Return $\psi(t) - E_p[\psi]$, (..., *batch, N), at nodes that resolve `order` radians."""
    if isinstance(psi, Polynomial):
        # (loc + s)^k is the sum over j of k!/j!(k-j)! loc^(k-j) s^j, and E[s^j] = 0 for odd j.
        centred = [torch.zeros_like(x)]
        for j in range(1, len(psi)):
            moment = 0.0 if j % 2 else p._standard_moment(j)
            centred.append(p.scale**j * (x**j - moment))
        powers = [
            torch.stack([math.comb(k, j) * p.loc ** (k - j) * centred[j] for j in range(k + 1)])
            for k in range(len(psi))
        ]
        return torch.stack([terms.sum(0) for terms in powers], -1)
    require_resolved(psi, t, order)
    nodes, weights = p._standard_rule(WAVE_ORDER)
    means = weights.unsqueeze(-1) * _differences(p, psi, p.loc + p.scale * nodes, nodes)
    mean = means.sum(0)
    if isinstance(psi, Fourier):
        # On the whole support a wave may vary too fast for the rule, but not for its closed form.
        half = (p.scale * nodes.amax(0)).unsqueeze(-1) * psi.frequencies.abs()
        fast = torch.cat([half, half], -1) > WAVE_ORDER / 4
        mean = torch.where(fast, p.expect(psi) - psi(p.loc), mean)
    return _differences(p, psi, t, x) - mean


def _differences(p: "SymmetricDistribution", psi: Basis, t: Tensor, x: Tensor) -> Tensor:
    r"""Return $\psi(t) - \psi(loc)$, (..., *batch, N), accurately for waves on narrow supports."""
    if isinstance(psi, Fourier):
        angle, step = (y.unsqueeze(-1) * psi.frequencies for y in (p.loc, p.scale * x))
        return wave_differences(angle, step)
    values: Tensor = psi(t) - psi(p.loc)
    return values


def wave_differences(angle: Tensor, step: Tensor) -> Tensor:
    """Return cos(angle + step) - cos(angle), then the same of sines, (..., 2 K)."""
    chord, middle = 2 * (0.5 * step).sin(), angle + 0.5 * step
    return torch.cat([-chord * middle.sin(), chord * middle.cos()], -1)


def require_resolved(psi: Basis, nodes: Tensor, order: int) -> None:
    """Raise if a wave has more than `order` radians on half of the range of nodes (Q, ...)."""
    half = (nodes.detach().amax(0) - nodes.detach().amin(0)).amax() / 2
    for basis in psi.bases if isinstance(psi, Stack) else [psi]:
        if isinstance(basis, Fourier):
            fits = basis.frequencies.abs() * half < order
            rule = f"below {order} radians on half of the domain of integration"
            require(fits, "frequencies", rule, basis.frequencies)
