"""Functions less their mean, for covariances: with the digits that a plain difference loses."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..bases import Basis, Fourier, GaussianRBF, Polynomial, Stack
from ..numerics.quadrature import smooth_unit_rule
from ..numerics.validation import require

if TYPE_CHECKING:
    from .univariate import SymmetricDistribution

__all__ = [
    "WAVE_ORDER",
    "centred",
    "covariance_by_windows",
    "expect_by_windows",
    "gaussians_by_windows",
    "require_resolved",
    "units_of",
    "window_rule",
]


def centred(p: "SymmetricDistribution", psi: Basis, t: Tensor, x: Tensor) -> Tensor:
    r"""$\psi(t) - E_p[\psi]$ in the units of `units_of`, (..., *batch, N).

    Args:
        p: The density.
        psi: A basis.
        t: Locations (..., *batch).
        x: The same locations as $(t - loc)/scale$; t may have lost their digits.
    """
    if isinstance(psi, Polynomial):
        return _centred_powers(p, psi, x)
    if isinstance(psi, Fourier):
        return _centred_waves(p, psi, x)
    values: Tensor = psi(t)
    return values - p.expect(psi)


def _unit(p: "SymmetricDistribution") -> Tensor:
    return torch.maximum(p.loc.abs(), p.scale).detach()


def units_of(p: "SymmetricDistribution", psi: Basis, first: Tensor) -> Tensor:
    """Return the units (*batch, N) of `centred` functions, times a constant `first` (*batch).

    A power of t is centred in powers of the larger of loc and scale, as those of t itself may
    overflow where its covariance does not.
    """
    step = _unit(p) if isinstance(psi, Polynomial) else torch.ones_like(first)
    # One factor after the other: what overflows without the first may not overflow with it.
    return torch.stack([first, *[step] * (len(psi) - 1)], -1).cumprod(-1)


def _centred_powers(p: "SymmetricDistribution", psi: Polynomial, x: Tensor) -> Tensor:
    # (loc + scale x)^k is the sum over j of k!/j!(k-j)! loc^(k-j) (scale x)^j.
    degree, unit = len(psi) - 1, _unit(p)
    loc, scale = p.loc / unit, p.scale / unit
    terms = [torch.zeros_like(x)]
    for j in range(1, degree + 1):
        moment = 0.0 if j % 2 else p._standard_moment(j)
        terms.append(scale**j * (x**j - moment))
    values = [
        torch.stack([math.comb(k, j) * loc ** (k - j) * terms[j] for j in range(k + 1)]).sum(0)
        for k in range(degree + 1)
    ]
    return torch.stack(values, -1)


def _centred_waves(p: "SymmetricDistribution", psi: Fourier, x: Tensor) -> Tensor:
    # cos(a + b) - E[cos(a + b)] with a = w loc and b = w scale x, and so for the sine.
    turn, angle = (y.unsqueeze(-1) * psi.frequencies for y in (p.scale, p.loc))
    phase, cos, sin = x.unsqueeze(-1) * turn, angle.cos(), angle.sin()
    dip = _one_less_cosine(phase) - _mean_dip(p, turn, cos, sin, p.expect(psi))
    return torch.cat([-cos * dip - sin * phase.sin(), cos * phase.sin() - sin * dip], -1)


def _one_less_cosine(phase: Tensor) -> Tensor:
    return 2 * (0.5 * phase).sin().square()


def _mean_dip(
    p: "SymmetricDistribution", turn: Tensor, cos: Tensor, sin: Tensor, means: Tensor
) -> Tensor:
    """Return E[1 - cos(turn x)] without cancellation where it is small."""
    nodes, weights = (y.unsqueeze(-1) for y in p._standard_rule(64))
    small = turn.abs() < 1
    direct = (weights * _one_less_cosine(nodes * torch.where(small, turn, 0.0))).sum(0)
    of_cos, of_sin = means.chunk(2, -1)
    return torch.where(small, direct, 1 - cos * of_cos - sin * of_sin)


# Nodes per half of the support for oscillating functions without a closed form, and with about
# one radian between them the largest phase that they resolve to rounding.
WAVE_ORDER = 256


def window_rule(
    p: "SymmetricDistribution",
    lower: Tensor,
    upper: Tensor,
    breaks: Tensor | None = None,
    order: int = 64,
) -> tuple[Tensor, Tensor]:
    r"""Nodes t and weights p(t) dt, both (Q, *windows, *batch), for integrals over windows.

    Each window is cut to the support, in two at loc, where a density may have a kink, and at the
    breaks.

    Args:
        p: The density.
        lower: Lower ends (*windows).
        upper: Upper ends (*windows).
        breaks: Increasing locations where what is integrated is not smooth.
        order: Nodes between one cut and the next.
    """
    t, _, weights = _window_nodes(p, lower, upper, breaks, order)
    return t, weights


def _window_nodes(
    p: "SymmetricDistribution",
    lower: Tensor,
    upper: Tensor,
    breaks: Tensor | None,
    order: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes t, the same nodes as x = (t - loc)/scale, and the weights of `window_rule`.

    Both are needed: t resolves x poorly if the support is narrow, x resolves t if a window is.
    """
    lower, upper = _pieces(lower, upper, breaks, p.loc.dim())
    share, rule = (x.reshape(-1, *(1,) * lower.dim()) for x in smooth_unit_rule(order, p.loc))
    reach = p._reach() * torch.ones_like(p.loc)
    low, high = _end(p, reach, lower), _end(p, reach, upper)
    origin = (torch.zeros_like(p.loc), p.loc, torch.ones_like(p.loc, dtype=torch.bool))
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, origin))
    nodes = []
    for (x0, t0, given0), (x1, t1, given1) in pairwise([low, middle, high]):
        # From the coordinate in which both ends are given.
        given = given0 & given1
        apart = torch.where(given, t1 - t0, 0.0)
        length = torch.where(given, apart / p.scale, x1 - x0).clamp_min(0)
        x = torch.minimum(torch.maximum(x0 + length * share, -reach), reach)
        t = t0 + torch.where(given, apart, p.scale * (x1 - x0)).clamp_min(0) * share
        weights = length * rule * torch.exp(p._standard_log_prob(x))
        nodes.append((_within(t, lower, upper), x, weights))
    t, x, weights = (torch.cat(part).flatten(0, 1) for part in zip(*nodes, strict=True))
    return t, x, weights


def _pieces(
    lower: Tensor, upper: Tensor, breaks: Tensor | None, dims: int
) -> tuple[Tensor, Tensor]:
    """Cut windows at breaks: ends (pieces, *windows, *ones), lower above upper if empty."""
    if breaks is None:
        breaks = lower.new_empty(0)
    left, right = (
        torch.cat(x).reshape(-1, *(1,) * lower.dim())
        for x in ((breaks.new_tensor([-math.inf]), breaks), (breaks, breaks.new_tensor([math.inf])))
    )
    lower, upper = torch.maximum(lower, left), torch.minimum(upper, right)
    return (
        lower.reshape(*lower.shape, *(1,) * dims),
        upper.reshape(*upper.shape, *(1,) * dims),
    )


def _end(p: "SymmetricDistribution", reach: Tensor, end: Tensor) -> tuple[Tensor, ...]:
    """Return an end of windows as x and t, clipped to the support, and whether it was inside."""
    offset = end - p.loc
    inside = offset.abs() < reach * p.scale
    # Moved before the division, whose derivative overflows far away.
    x = torch.where(inside, offset, 0.0) / p.scale
    edge = torch.where(offset < 0, -reach, reach)
    return _choose(inside, (x, end, inside), (edge, p.loc + edge * p.scale, inside))


def _within(t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Move t strictly inside its window, as functions may jump at the ends."""
    lower, upper = lower.detach(), upper.detach()
    first, last = torch.nextafter(lower, upper), torch.nextafter(upper, lower)
    moved = torch.minimum(torch.maximum(t.detach(), first), last)
    return t + (moved - t.detach())


def expect_by_windows(p: "SymmetricDistribution", psi: Basis, order: int = 64) -> Tensor:
    r"""$E_p[\psi]$, (*batch, N), each function integrated over its own window."""
    lower, upper = _reach(psi)
    nodes, weights = window_rule(p, lower, upper, psi.breaks, order)
    return (weights * _own_values(psi, nodes, 1)).sum(0).movedim(0, -1)


def gaussians_by_windows(p: "SymmetricDistribution", centers: Tensor, widths: Tensor) -> Tensor:
    r"""$E_p[N(t; c_j, w_j^2)]$, (*batch, N), for any standard density.

    Nodes are kept in two coordinates at once, $x = (t - loc)/scale$ for the density and
    $z = (t - c)/w$ for the Gaussian: through t itself the narrower of the two loses its digits.
    """
    return p._in_blocks(lambda p: _gaussians(p, centers, widths), p._node_count(40) * len(centers))


def _gaussians(p: "SymmetricDistribution", centers: Tensor, widths: Tensor) -> Tensor:
    batch = (1,) * p.loc.dim()
    c, w = (x.expand(centers.shape).reshape(-1, *batch) for x in (centers, widths))
    h = p.scale / w
    ends = _common_window((p.loc - c) / w, h, p._reach())
    order = 80 if p.loc.dtype == torch.float64 else 64
    share, rule = (x.reshape(-1, *(1,) * h.dim()) for x in smooth_unit_rule(order, p.loc))
    total = torch.zeros_like(h)
    for (x0, z0), (x1, z1) in pairwise(ends):
        # The panel's length, from the coordinate in which its ends are not close together.
        length = torch.where(h > 1, (z1 - z0) / h.clamp_min(1), x1 - x0)
        density = torch.exp(p._standard_log_prob(x0 + length * share))
        gauss = torch.exp(-0.5 * (z0 + length * h * share).square())
        total = total + length * (rule * density * gauss).sum(0)
    return (total / (w * math.sqrt(2 * math.pi))).movedim(0, -1)


def _common_window(offset: Tensor, h: Tensor, reach: Tensor | float) -> list[tuple[Tensor, ...]]:
    """Return ends and middle, each as (x, z), of the overlap of the density and the Gaussian.

    Both coordinates of a point are chosen by one condition: chosen apart, at a tie they would
    hand half a derivative each to different points.
    """
    cut = 9.5 if offset.dtype == torch.float64 else 6.5
    half = reach * h
    reach = reach * torch.ones_like(h)
    empty = (offset + half <= -cut) | (offset - half >= cut)
    origin = (torch.zeros_like(offset), offset)
    sides = []
    for sign in (-1, 1):
        inner = (sign * offset + half > cut) & ~empty
        # No division where it is not used: its derivative overflows.
        x = torch.where(inner, sign * cut - offset, 0.0) / torch.where(inner, h, 1.0)
        x = torch.minimum(torch.maximum(x, -reach), reach)
        window = (x, torch.full_like(offset, sign * cut))
        sides.append(_choose(inner, window, (sign * reach, offset + sign * half)))
    low, high = (_choose(empty, origin, side) for side in sides)
    middle = _choose(low[0] > 0, low, _choose(high[0] < 0, high, origin))
    return [low, middle, high]


def _choose(
    condition: Tensor, first: tuple[Tensor, ...], second: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    return tuple(torch.where(condition, a, b) for a, b in zip(first, second, strict=True))


def covariance_by_windows(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Covariance of $\phi$ and $\psi$ under p, (*batch, M, N).

    A basis without windows is centred before it is integrated: at $loc = 100$ and $scale = 0.01$
    the difference $E[\phi\psi] - E[\phi]E[\psi]$ of powers would keep no digit of float32.
    """
    if isinstance(phi, Stack):
        return torch.cat([covariance_by_windows(p, basis, psi) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([covariance_by_windows(p, phi, basis) for basis in psi.bases], -1)
    if psi.effective_support is None:
        both = phi.effective_support is None
        return _everywhere(p, phi, psi) if both else _on_windows(p, psi, phi).mT
    if phi.effective_support is None:
        return _on_windows(p, phi, psi)
    (first, last), (lower, upper) = _reach(phi), _reach(psi)
    lower, upper = torch.maximum(first[:, None], lower), torch.minimum(last[:, None], upper)
    if isinstance(phi, GaussianRBF) and isinstance(psi, GaussianRBF):
        lower, upper = _product_window(phi, psi)
    t, weights = window_rule(p, lower, upper, Stack(phi, psi).breaks, 80)
    f, g = _own_values(phi, t, 1), _own_values(psi, t, 2)
    # Over the whole support the means come off first: of wide functions little else is left.
    whole = _covers(p, lower, upper)
    f, g = (x - torch.where(whole, (weights * x).sum(0), 0.0) for x in (f, g))
    product = (weights * f * g).sum(0).movedim((0, 1), (-2, -1))
    means = p.expect(phi)[..., :, None] * p.expect(psi)[..., None, :]
    return product - torch.where(whole.movedim((0, 1), (-2, -1)), 0.0, means)


def _covers(p: "SymmetricDistribution", lower: Tensor, upper: Tensor) -> Tensor:
    """Return whether each window (*windows) covers the support, (*windows, *batch)."""
    first, last = (y.reshape(*y.shape, *(1,) * p.loc.dim()) for y in (lower, upper))
    half = p._reach() * p.scale
    return (first <= p.loc - half) & (p.loc + half <= last)


def _product_window(phi: GaussianRBF, psi: GaussianRBF) -> tuple[Tensor, Tensor]:
    """Return the windows (M, N) of products of Gaussians, narrower than those of the factors."""
    first, last = (x.unsqueeze(-1) for x in _reach(phi))
    a, b = torch.as_tensor(phi.widths).expand_as(phi.centers), torch.as_tensor(psi.widths)
    total = torch.hypot(a.unsqueeze(-1), b)
    moved = (a.unsqueeze(-1) / total).square() * (psi.centers - phi.centers.unsqueeze(-1))
    middle, half = phi.centers.unsqueeze(-1) + moved, 0.5 * (last - first) * b / total
    return middle - half, middle + half


def _everywhere(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    """Return the covariance of two bases without windows."""
    everywhere = p.loc.new_tensor(math.inf)
    breaks = Stack(phi, psi).breaks
    t, x, weights = _window_nodes(p, -everywhere, everywhere, breaks, WAVE_ORDER)
    require_resolved(phi, t, WAVE_ORDER)
    require_resolved(psi, t, WAVE_ORDER)
    f, g = (centred(p, basis, t, x) for basis in (phi, psi))
    found = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    rows, columns = (units_of(p, basis, torch.ones_like(p.loc)) for basis in (phi, psi))
    return in_units(found, rows.unsqueeze(-1), columns.unsqueeze(-2))


def _on_windows(p: "SymmetricDistribution", phi: Basis, psi: Basis) -> Tensor:
    """Return the covariance of a basis without windows and one with windows."""
    lower, upper = _reach(psi)
    t, x, weights = _window_nodes(p, lower, upper, Stack(phi, psi).breaks, 80)
    require_resolved(phi, t, 64)
    # In units too: on a window much smaller than the support, weights and f are tiny.
    most = weights.detach().flatten(0, 1).amax(0).clamp_min(torch.finfo(weights.dtype).tiny)
    f, g = centred(p, phi, t, x), _own_values(psi, t, 1)
    # f averages to zero over the support: a level of g there adds nothing but its rounding.
    g = g - torch.where(_covers(p, lower, upper), (weights * g).sum(0), 0.0)
    found = torch.einsum("qn...,qn...m->...mn", in_units(weights, 1 / most) * g, f)
    return in_units(found, units_of(p, phi, most).unsqueeze(-1))


def require_resolved(psi: Basis, nodes: Tensor, order: int) -> None:
    """Raise if a wave turns too fast for the nodes (Q, ...) that are to integrate it.

    Raises:
        ValueError: More than `order` radians on half of the nodes' range.
    """
    half = (nodes.detach().amax(0) - nodes.detach().amin(0)).amax() / 2
    for basis in psi.bases if isinstance(psi, Stack) else [psi]:
        if isinstance(basis, Fourier):
            fits = basis.frequencies.abs() * half < order
            rule = f"below {order} radians on half of what is integrated"
            require(fits, "frequencies", rule, basis.frequencies)


def _reach(psi: Basis) -> tuple[Tensor, Tensor]:
    if psi.effective_support is None:
        raise ValueError(f"psi must have a reach to be integrated by windows, got {psi}")
    return psi.effective_support


def _own_values(psi: Basis, nodes: Tensor, axis: int) -> Tensor:
    """Evaluate the j-th function at the nodes with index j along `axis`."""
    return psi.own(nodes.movedim(axis, -1)).movedim(-1, axis)


# Products that overflow to infinity, not to NaN


def in_units(value: Tensor, first: Tensor, second: Tensor | None = None) -> Tensor:
    """`value` times constant units, positive and perhaps infinite, which broadcast to its shape.

    A zero stays zero in any unit. A gradient that overflows is zero.
    """
    product: Tensor = _Product.apply(
        value, first, torch.ones_like(first) if second is None else second
    )
    return product


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.where(value == 0, 0.0, value * first * second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        slope = in_units(grad, *ctx.saved_tensors)
        # Room for what the chain rule adds up.
        info = torch.finfo(slope.dtype)
        return torch.where(slope.abs() < info.max * info.eps, slope, 0.0), None, None
