r"""Gaussians under beta-Gaussians of any dimension and exponent, by one contour integral.

A beta-Gaussian is a complex scale mixture of normals: with $m = 1/(\alpha - 1)$, in D dimensions,
$$p(t) = \frac{\Gamma(m+1+D/2)}{2\pi i} \int e^z z^{-(m+1+D/2)}\, N(t;\, \mu, A/(2z))\, dz,
\qquad A = L L',$$
so that $E_p[N(t; c, C)]$ is the same integral of $N(c; \mu, C + A/(2z))$. In coordinates in which
$A$ is the unit matrix and $C$ is diagonal (`whiten`), `contour` gives the nodes. First derivatives
are averages over the same nodes (`averages`): eigenvectors, which are not smooth where eigenvalues
coincide, are never differentiated. Second derivatives are those of the sum over fixed nodes
(`_partials_at_fixed_nodes`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contour import Contour, contour
from .ellipsoid import orthogonalize
from .shared_contour import gaussians_by_shared_contour, has_shared_contour
from .special import stirling_excess
from .validation import difference

__all__ = [
    "gaussian_slopes_under_ball",
    "gaussian_slopes_under_normal",
    "gaussians_under_ball",
    "gaussians_under_normal",
]

# Pairs at a time, so that their nodes fit the cache.
_CHUNK = 16384
# Smaller exponents use the contour of m + 1, see `lowered_averages`.
_OWN_CONTOUR = 1.0

# loc, scale_tril, centers and spread.
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def gaussians_under_ball(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, exponent: Tensor | float
) -> Tensor:
    r"""$E_p[N(t; c_j, C_j)]$ for $p \propto (1 - |u|^2)_+^m$, $u = L^{-1}(t - loc)$, (*batch, N).

    Differentiable twice in all arguments. Norm-wise error about 1e-6 in float32 and 1e-13 in
    float64 for every ratio of the support to the Gaussians, in any dimension. Thin supports are no
    more accurate than their rounded parameters: 1e-12 and 3e-11 in float64 where the longest
    half-axis is 1e4 and 1e6 times the shortest.

    Args:
        loc: Centres of the densities, (*batch, D).
        scale_tril: L, (*batch, D, D).
        centers: Centers of the Gaussians, (N, D).
        spread: Their standard deviations (N,), or their covariances (N, D, D).
        exponent: m >= 0, (*batch); a number has no derivative and may be faster.

    Returns:
        In the dtype that the other four promote to, computed in float32 at least.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 3.2, does D = 2,
        m = 1 by quadrature over angles.
    """
    inputs = (loc, scale_tril, centers, spread)
    if has_shared_contour(inputs, exponent):
        return gaussians_by_shared_contour(inputs, float(exponent), _per_pair)
    return _per_pair(inputs, exponent)


def gaussians_under_normal(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor
) -> Tensor:
    """Compute the limit alpha = 1, N(c_j; loc, C_j + L L'), as accurately, (*batch, N).

    Args:
        loc: Means, (*batch, D).
        scale_tril: L, (*batch, D, D).
        centers: Centers of the Gaussians, (N, D).
        spread: Their standard deviations (N,), or their covariances (N, D, D).
    """
    return _integrate((loc, scale_tril, centers, spread), torch.zeros_like(loc[..., 0]), "normal")


def gaussian_slopes_under_ball(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, exponent: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Compute derivatives of `gaussians_under_ball` in loc and A = L L', (*batch, N, D[, D]).

    They are float64, accurate however wide the Gaussians are, and differentiable themselves.
    """
    return _slopes((loc, scale_tril, centers, spread), *_exponents(exponent, loc))


def gaussian_slopes_under_normal(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the same derivatives of `gaussians_under_normal`."""
    return _slopes((loc, scale_tril, centers, spread), torch.zeros_like(loc[..., 0]), "normal")


def _per_pair(inputs: _Four, exponent: Tensor | float) -> Tensor:
    return _integrate(inputs, *_exponents(exponent, inputs[0]))


def _exponents(exponent: Tensor | float, loc: Tensor) -> tuple[Tensor, str]:
    """Return the exponents (*batch), and the kind of contour that they have."""
    batch = loc.shape[:-1]
    if isinstance(exponent, Tensor):
        return exponent.expand(batch), "lowered"
    m = torch.full(batch, exponent, dtype=torch.float64, device=loc.device)
    return m, "lowered" if exponent < _OWN_CONTOUR else "ball"


def _integrate(inputs: _Four, m: Tensor, kind: str) -> Tensor:
    return _outputs(inputs, m, kind, False)[0].to(_dtype_of(inputs))


def _slopes(inputs: _Four, m: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Derivatives in loc and A from those in the frame."""
    _, by_b, by_ball, _, _, rotation, inverse, shrink = _outputs(inputs, m, kind, True)
    back = rotation.mT @ inverse.unsqueeze(-3)
    by_loc = -((shrink * by_b).unsqueeze(-2) @ back).squeeze(-2)
    pairs = shrink.unsqueeze(-1) * shrink.unsqueeze(-2)
    return by_loc, back.mT @ (pairs * by_ball) @ back


def _dtype_of(inputs: _Four) -> torch.dtype:
    return reduce(torch.promote_types, (x.dtype for x in inputs))


def _outputs(inputs: _Four, m: Tensor, kind: str, sloped: bool) -> tuple[Tensor, ...]:
    """Return all that `_Integral` does, with the batch in place of rows; or the integrals alone."""
    dtype = torch.promote_types(_dtype_of(inputs), torch.float32)
    loc, scale_tril, centers, spread, m = (x.to(dtype) for x in (*inputs, m))
    dim, batch = loc.shape[-1], loc.shape[:-1]
    spread = spread.expand(centers.shape[0]) if spread.dim() < 2 else spread
    rows = (loc.reshape(-1, dim), scale_tril.reshape(-1, dim, dim), centers, spread, m.reshape(-1))
    if sloped or torch.is_grad_enabled() or torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = _Integral.apply(*rows, kind, sloped)
    else:
        found = _by_chunks(rows, kind, False)
    return tuple(x.reshape(*batch, *x.shape[1:]) for x in found)


class _Integral(torch.autograd.Function):
    """The integrals of rows (R) against Gaussians (N), and their derivatives in a fixed frame.

    `sloped` says that the latter are asked for, too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor,
        scale_tril: Tensor,
        centers: Tensor,
        spread: Tensor,
        m: Tensor,
        kind: str,
        sloped: bool,
    ) -> tuple[Tensor, ...]:
        inputs = [loc, scale_tril, centers, spread, m]
        if torch.compiler.is_compiling():
            found: tuple[Tensor, ...] = _integral_operator(inputs, kind)
            return found
        return _by_chunks(inputs, kind, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[5:])
        ctx.save_for_backward(*inputs[:5], *output[1:])
        ctx.kind, ctx.sloped = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, as checkpoints ask
        inputs, partials = saved[:5], saved[5:9]
        total: list[Any] = [None] * 5
        if grads[0] is not None:
            total = _pull_back(grads[0], inputs, partials, saved[9:])
        compiling = torch.compiler.is_compiling()
        # A compiled graph gives zeros where it has no gradient.
        if any(g is not None for g in grads[1:5]) and (ctx.sloped or not compiling):
            cotangents = [
                torch.zeros_like(x) if g is None else g
                for x, g in zip(partials, grads[1:5], strict=True)
            ]
            above = (_pull_operator if compiling else _pull_partials)(ctx.kind, inputs, cotangents)
            total = [b if a is None else a + b for a, b in zip(total, above, strict=True)]
        return (*total, None, None)


def _by_chunks(inputs: Sequence[Tensor], kind: str, sloped: bool) -> tuple[Tensor, ...]:
    """`_integrals` of some rows at a time."""
    loc, scale_tril, centers, spread, m = inputs
    rows, step = loc.shape[0], max(1, _CHUNK // centers.shape[0])
    if rows <= step:
        return _integrals(inputs, kind, sloped)
    some = zip(loc.split(step), scale_tril.split(step), m.split(step), strict=True)
    parts = [_integrals((x, y, centers, spread, z), kind, sloped) for x, y, z in some]
    return tuple(torch.cat(x) for x in zip(*parts, strict=True))


def _integrals(inputs: Sequence[Tensor], kind: str, sloped: bool) -> tuple[Tensor, ...]:
    """Integrals (R, N); derivatives in b, A, the spread and m; the frame: rotation and all.

    The integrals alone if it is not `sloped`.
    """
    loc, scale_tril, centers, spread, m = inputs
    frame = whiten(loc, scale_tril, centers, spread)
    path, lam, b = contour_of_pairs(frame, m, kind, loc.dtype)
    front, drift = log_front(m, loc.shape[-1], kind)
    # In float64: what is small against 1 in many dimensions may be large against its inputs.
    size = torch.exp(log_size(path, frame, scale_tril) + front)
    share = 1 / (2 * m + 2 + loc.shape[-1]).unsqueeze(-1)
    if not sloped:
        value = size * lowered_value(path, b, lam, share) if kind == "lowered" else size
        return (value.to(loc.dtype),)
    full = spread.dim() > 1
    if kind == "lowered":
        found = lowered_averages(path, b, lam, full, share, drift.to(loc.dtype))
    else:
        found = averages(path, b, lam, full)
    scaled = [(size * found.value).to(loc.dtype), *(size * x.double() for x in found[1:])]
    ends = [x.movedim(tuple(range(x.dim() - 2)), tuple(range(2 - x.dim(), 0))) for x in scaled]
    return (*ends, frame.rotation, frame.inverse, frame.shrink)


_Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# Schemas are given for torch 2.6, which cannot infer them.
@torch.library.custom_op(
    "sparsefam::ball_integrals",
    mutates_args=(),
    schema=f"(Tensor[] inputs, str kind) -> ({', '.join(['Tensor'] * 8)})",
)
def _integral_operator(inputs: Sequence[Tensor], kind: str) -> _Eight:
    """`_by_chunks` as one call in a compiled graph, which could not fuse its complex numbers."""
    a, b, c, d, e, f, g, h = (x.contiguous() for x in _by_chunks(inputs, kind, True))
    return a, b, c, d, e, f, g, h


@_integral_operator.register_fake
def _(inputs: Sequence[Tensor], kind: str) -> _Eight:
    loc, _, centers, spread, _ = inputs
    pairs, matrix = (loc.shape[0], centers.shape[0]), (loc.shape[1], loc.shape[1])
    whole = spread.dim() > 1
    value = loc.new_empty(pairs)
    double = loc.new_empty(0, dtype=torch.float64)
    by_b, by_ball = double.new_empty(*pairs, *matrix[1:]), double.new_empty(*pairs, *matrix)
    rows = pairs if whole else (pairs[0], 1)
    by_spread = torch.empty_like(by_ball) if whole else double.new_empty(pairs)
    frame = (double.new_empty(*rows, *matrix), double.new_empty(pairs[0], *matrix))
    ends = (double.new_empty(pairs), *frame, torch.empty_like(by_b))
    return value, by_b, by_ball, by_spread, *ends


def _pull_partials(
    kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients in the inputs, from those of the partials in the frame."""
    with torch.enable_grad():
        pull = torch.func.vjp(_partials_at_fixed_nodes(kind, tuple(inputs)), *inputs)[1]
        found: tuple[Tensor, ...] = pull(tuple(cotangents))
    return found


@torch.library.custom_op(
    "sparsefam::ball_pull",
    mutates_args=(),
    schema="(str kind, Tensor[] inputs, Tensor[] cotangents) -> Tensor[]",
)
def _pull_operator(
    kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """`_pull_partials` as one call in a compiled graph."""
    return [x.clone() for x in _pull_partials(kind, inputs, cotangents)]


@_pull_operator.register_fake
def _(kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _pull_back(grad: Tensor, inputs: tuple[Tensor, ...], partials: Any, frame: Any) -> list[Tensor]:
    """Gradients in the inputs, from those of the rows (R, N) and the partials in the frame."""
    scale_tril, spread, dtype = inputs[1].double(), inputs[3].double(), grad.dtype
    rotation, inverse, shrink = frame
    by_b, by_ball, by_spread, by_exponent = partials
    g = grad.double()
    back = rotate(g.unsqueeze(-1) * by_b * shrink, rotation.mT) @ inverse
    pairs = shrink.unsqueeze(-1) * shrink.unsqueeze(-2)
    weight = g.unsqueeze(-1).unsqueeze(-1) * pairs
    ball = _rotate_matrices(weight * by_ball, rotation)
    by_scale_tril = 2 * inverse.mT @ ball @ (inverse @ scale_tril)
    if spread.dim() > 1:
        turned = rotation @ (weight * by_spread) @ rotation.mT
        by_width = (inverse.mT.unsqueeze(1) @ turned @ inverse.unsqueeze(1)).sum(0)
    else:
        by_width = (g * by_spread).sum(0) * 2 / spread
    found = (-back.sum(1), by_scale_tril.tril(), back.sum(0), by_width, (g * by_exponent).sum(1))
    return [x.to(dtype) for x in found]


def _rotate_matrices(matrices: Tensor, rotation: Tensor) -> Tensor:
    """Sum over Gaussians (R, N, D, D) of matrices taken out of their frames, (R, D, D)."""
    if rotation.shape[1] == 1:
        return rotation.squeeze(1) @ matrices.sum(1) @ rotation.squeeze(1).mT
    return (rotation @ matrices @ rotation.mT).sum(1)


# Coordinates: the ellipsoid becomes the unit ball, and the Gaussians have independent components.

# Neither the density nor the Gaussian is taken as narrower than this share of the other: its
# square is below the rounding of what it adds to.
_NARROWEST = 1e-6
# Distances, in units of the larger of the two, from which on everything is zero.
_FARTHEST = 1e7


@dataclass(frozen=True)
class Frame:
    """x = shrink (rotation' inverse (t - loc)): the ball in its own axes, (R, N) pairs at once.

    It is made in float64: where an ellipsoid is thin, a float32 rotation would move a center by
    many of its widths.

    Attributes:
        inverse: Inverse of scale_tril, (R, D, D).
        rotation: Orthogonal, (R, 1, D, D) if it serves all Gaussians, else (R, N, D, D).
        shrink: Below 1 along axes that are taken as thicker than they are, (R, N, D).
        b: Centers of the Gaussians, (R, N, D).
        lam: Their variances along the axes, (R, N, D).
        inside: 1 - |b|^2, (R, N).
    """

    inverse: Tensor
    rotation: Tensor
    shrink: Tensor
    b: Tensor
    lam: Tensor
    inside: Tensor


@torch.no_grad()
def whiten(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor) -> Frame:
    """The frame of densities (R) against Gaussians (N).

    Args:
        loc: (R, D).
        scale_tril: (R, D, D).
        centers: (N, D).
        spread: Standard deviations (N,), or covariances (N, D, D).
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
    gaps, lost = difference(centers.double(), loc.double().unsqueeze(1))
    b = rotate(gaps @ inverse.mT, rotation)
    shrink = (1 / (_NARROWEST * deviations)).clamp(max=1.0)
    b = (b * shrink).clamp(-_FARTHEST, _FARTHEST)
    # What rounding took from the gaps counts only here, where the edge is located.
    inside = 1 - b.square().sum(-1) - 2 * (b * rotate(lost @ inverse.mT, rotation)).sum(-1)
    lam = (deviations * shrink).clamp_min(_NARROWEST).square()
    return Frame(inverse, rotation, shrink, b, lam, inside)


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Row vectors (R, N, D) times rotations (R, 1 | N, D, D)."""
    if rotation.shape[1] == 1:
        return vectors @ rotation.squeeze(1)
    return (vectors.unsqueeze(-2) @ rotation).squeeze(-2)


# Derivatives as averages over the nodes of the contour.


class Averages(NamedTuple):
    """The integral and its derivatives, in units of the integral that the weights belong to.

    Attributes:
        value: (*pairs).
        by_b: (D, *pairs).
        by_ball: In A, symmetric, (D, D, *pairs).
        by_spread: In log kappa for kappa Lambda, (*pairs); or in Lambda, (D, D, *pairs).
        by_exponent: In m, (*pairs); zero where it is not asked for.
    """

    value: Tensor
    by_b: Tensor
    by_ball: Tensor
    by_spread: Tensor
    by_exponent: Tensor


def averages(path: Contour, b: Tensor, lam: Tensor, full: bool) -> Averages:
    """For the exponent that the path was drawn for, which is not differentiated.

    Args:
        path: Nodes and weights.
        b: (D, *pairs).
        lam: (D, *pairs).
        full: Whether `by_spread` is the whole matrix.
    """
    q = path.shrink
    p = 2 * path.saddle * lam * q
    weighted = path.weights * path.steps
    first = weighted.imag.sum(1)
    second = (weighted.unsqueeze(1) * path.steps).imag.sum(2)
    # Exactly one, or zero where there is no path: then there are no derivatives.
    one = path.weights.imag.sum(0).round()
    rise, fall = q * first, p * first
    reach = 2 * path.saddle * q * b
    ball = one + rise.unsqueeze(0) - fall.unsqueeze(1) - _outer(p, q) * second
    by_ball = 0.5 * _outer(q * b, reach) * ball
    by_ball = by_ball - _diagonal(0.5 * q * (one - fall))
    if full:
        level = one + rise.unsqueeze(0) + rise.unsqueeze(1) + _outer(q, q) * second
        by_spread = 0.5 * _outer(reach, reach) * level
        by_spread = by_spread - _diagonal(path.saddle * q * (one + rise))
    else:
        square = second.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        level = reach * b * (one + 2 * rise + q * q * square)
        by_spread = (0.5 * p * (level - (one + rise))).sum(0)
    value, none = torch.ones_like(one), torch.zeros_like(one)
    return Averages(value, -reach * (one + rise), by_ball, by_spread, none)


def lowered_value(path: Contour, b: Tensor, lam: Tensor, share: Tensor) -> Tensor:
    """What `lowered_averages` finds first."""
    excess = _lowering(path, b, lam, share)[2]
    total: Tensor = (path.weights * (1 + excess)).imag.sum(0)
    return total


def lowered_averages(
    path: Contour, b: Tensor, lam: Tensor, full: bool, share: Tensor, drift: Tensor
) -> Averages:
    r"""For an exponent one lower: $r_m = r_{m+1} + s\,\partial_s r_{m+1}/(2m + 2 + D)$.

    The derivative in a factor s of the ball's size is taken under the integral, so that exponents
    near zero, which have no good path of their own, are as exact as the rest.

    Args:
        path: Nodes and weights for the exponent m + 1.
        b: (D, *pairs).
        lam: (D, *pairs).
        full: Whether `by_spread` is the whole matrix.
        share: 1/(2m + 2 + D), (*pairs).
        drift: Derivative in m of the logarithm of what multiplies the path's integral, (*pairs).
    """
    inverse, tau, excess = _lowering(path, b, lam, share)
    weights, shared = path.weights * (1 + excess), share * path.weights
    by_b = b * (2 * shared * tau * inverse - weights * inverse).imag.sum(1)
    mixed = 0.5 * weights - shared * (tau.unsqueeze(0) + tau.unsqueeze(1))
    own = shared * tau - 0.5 * weights
    by_ball = _outer(b, b) * _average(mixed + shared, tau, inverse)
    by_ball = by_ball + _diagonal(((own - shared) * tau).imag.sum(1))
    own_spread = (own * inverse).imag.sum(1)
    if full:
        by_spread = _outer(b, b) * _average(mixed, inverse, inverse) + _diagonal(own_spread)
    else:
        mixed = mixed.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        square = (mixed * inverse * inverse).imag.sum(1)
        by_spread = (lam * (b * b * square + own_spread)).sum(0)
    rate = (drift - path.turns) * (excess + _variation(path, b)) - 2 * share * excess
    by_exponent = (path.weights * rate).imag.sum(0)
    return Averages(weights.imag.sum(0), by_b, by_ball, by_spread, by_exponent)


def _lowering(
    path: Contour, b: Tensor, lam: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """S and tau (D, n, *pairs), and what the derivative in s adds to 1, (n, *pairs)."""
    q = path.shrink.unsqueeze(1)
    p = 2 * path.saddle * lam.unsqueeze(1) * q
    inverse = 2 * path.saddle * q * (1 + q * path.steps)
    tau = q * (1 - p * path.steps)
    return inverse, tau, share * (tau * (b.square().unsqueeze(1) * inverse - 1)).sum(0)


def _variation(path: Contour, b: Tensor) -> Tensor:
    """1 - F(z0)/F(z) for the Gaussian F in the integrand, where it hardly varies; 1 elsewhere.

    A constant F has an integral that does not depend on m. Taken away it leaves the digits of the
    derivative in m where Gaussians are wide against the ball.
    """
    q = path.shrink.unsqueeze(1)
    ratio = -q * path.nodes / (1 + path.nodes)
    x, y = ratio.real, ratio.imag
    bend = path.saddle * (b.unsqueeze(1) * q).square() * path.steps
    u = (0.25 * torch.log1p(x * (2 + x) + y * y) + bend.real).sum(0)
    v = (0.5 * torch.atan2(y, 1 + x) + bend.imag).sum(0)
    even = (u.abs() + v.abs()).amax(0) < 1
    u, v = torch.where(even, u, 0.0), torch.where(even, v, 0.0)
    real = 2 * torch.sin(0.5 * v).square() - torch.expm1(u) * torch.cos(v)
    return torch.complex(torch.where(even, real, 1.0), -torch.exp(u) * torch.sin(v))


def _average(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Sum over nodes of weights (D, D, n, *pairs) times left (D, 1, ...) and right (1, D, ...)."""
    total: Tensor = (weights * left.unsqueeze(1) * right.unsqueeze(0)).imag.sum(2)
    return total


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(1) * right.unsqueeze(0)


def _diagonal(entries: Tensor) -> Tensor:
    """Diagonal matrices (D, D, *pairs) of entries (D, *pairs)."""
    unit = torch.eye(len(entries), dtype=entries.dtype, device=entries.device)
    return unit.reshape(*unit.shape, *(1,) * (entries.dim() - 1)) * entries


# The contour of pairs, and the integral as a function of everything at fixed nodes.


def contour_of_pairs(
    frame: Frame, m: Tensor, kind: str, dtype: torch.dtype
) -> tuple[Contour, Tensor, Tensor]:
    """Nodes for pairs (R, N), and lam and b with axes first, (D, R, N).

    Args:
        frame: The coordinates.
        m: Exponents (R).
        kind: "ball", "lowered" (the path is that of m + 1), or "normal" (one node, exactly).
        dtype: Of the nodes.
    """
    lam, b = (x.to(dtype).movedim(-1, 0).contiguous() for x in (frame.lam, frame.b))
    if kind == "normal":
        return _normal_path(lam, b), lam, b
    inside = frame.inside.to(dtype)
    m = m.unsqueeze(-1) + torch.zeros_like(inside)
    lowered = kind == "lowered"
    # A derivative of the integral, which lowering takes, asks for more nodes.
    count = 24 if dtype == torch.float64 else 8 if lowered else 6
    return contour(lam, b, m + 1 if lowered else m, inside, count), lam, b


def _normal_path(lam: Tensor, b: Tensor) -> Contour:
    q = 1 / (1 + lam)
    one = torch.ones_like(q[0])
    log_mean = -0.5 * (torch.log1p(lam.double()) + (b * b * q).double()).sum(0)
    none = torch.zeros_like(one, dtype=one.dtype.to_complex()).unsqueeze(0)
    steps = none.expand(len(lam), *none.shape)
    return Contour(0.5 * one, q, steps, none, none, none + 1j, log_mean)


def log_front(m: Tensor, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    """Logarithm of what multiplies the path's integral, and its derivative in m, float64 (R, 1)."""
    m = m.double().unsqueeze(-1)
    if kind == "normal":
        return torch.full_like(m, -0.5 * dim * math.log(2 * math.pi)), m
    top = m + (2 if kind == "lowered" else 1)
    half = dim / 2
    # log Gamma(top + D/2) - top log top + top, without large terms.
    front = top * torch.log1p(half / top) + half * torch.log((top + half) / math.pi) - half
    front = front + stirling_excess(top + half)
    return front, torch.digamma(top + half) - top.log()


def log_size(path: Contour, frame: Frame, scale_tril: Tensor) -> Tensor:
    """Logarithm of the path's integral, whose weights have a sum of one, float64 (R, N)."""
    volume = scale_tril.diagonal(dim1=-2, dim2=-1).double().log().sum(-1, keepdim=True)
    return path.log_mean.double() - volume + frame.shrink.log().sum(-1)


def _partials_at_fixed_nodes(
    kind: str, inputs: tuple[Tensor, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """The derivatives in b, A, the spread and m as a function of the inputs near where they are.

    Args:
        kind: As for `contour_of_pairs`.
        inputs: loc, scale_tril, centers, spread and m.
    """
    fixed = [x.detach().double() for x in inputs]
    frame = whiten(*fixed[:4])
    path, lam, _ = contour_of_pairs(frame, fixed[4], kind, torch.float64)
    front, _ = log_front(fixed[4], fixed[0].shape[-1], kind)
    weights = path.weights * torch.exp(log_size(path, frame, fixed[1]) + front)
    integral = _FixedNodes(kind, path, lam.movedim(0, -1), weights, fixed[4].unsqueeze(-1))

    def partials(
        loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: Tensor
    ) -> tuple[Tensor, ...]:
        gaps = centers.double() - loc.double().unsqueeze(1)
        b = frame.shrink * rotate(gaps @ frame.inverse.mT, frame.rotation)
        pairs = frame.shrink.unsqueeze(-1) * frame.shrink.unsqueeze(-2)
        sides = frame.rotation.mT @ (frame.inverse @ scale_tril.double()).unsqueeze(1)
        ball = pairs * (sides @ sides.mT)
        if spread.dim() > 1:
            whole = frame.rotation.mT @ frame.inverse.unsqueeze(1)
            spread = pairs * (whole @ spread.double() @ whole.mT)
        else:
            spread = (2 * torch.log(spread.double() / fixed[3])).expand(b.shape[:-1])
        m = m.double().unsqueeze(-1).expand(b.shape[:-1])
        slopes: tuple[Tensor, ...] = torch.func.grad(integral.total, (0, 1, 2, 3))(
            b, ball, spread, m
        )
        return slopes

    return partials


class _FixedNodes(NamedTuple):
    """The sum over nodes as it depends on b, A, the spread and m; all else is constant."""

    kind: str
    path: Contour
    lam: Tensor
    weights: Tensor
    exponent: Tensor

    def total(self, b: Tensor, ball: Tensor, spread: Tensor, m: Tensor) -> Tensor:
        """Sum of the integrals of all pairs."""
        ball = 0.5 * (ball + ball.mT)
        variance = 0.5 / (self.path.saddle * (1 + self.path.nodes))
        unit = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
        if spread.dim() < ball.dim():
            spread = spread.exp()[..., None, None] * self.lam.unsqueeze(-1) * unit
        spread = 0.5 * (spread + spread.mT)
        inverse = torch.linalg.inv_ex(spread + ball * variance[..., None, None])[0]
        v = (inverse @ b.unsqueeze(-1).to(inverse.dtype)).squeeze(-1)
        phase = 0.5 * (_log_det(inverse) - (v * b).sum(-1))
        if self.kind == "lowered":
            phase = phase + self._change_of_exponent(m)
        level = torch.exp(phase - phase.detach())
        if self.kind == "lowered":
            through = ball.to(v.dtype) @ v.unsqueeze(-1)
            rate = (v * through.squeeze(-1)).sum(-1) - (inverse * ball.mT).sum((-2, -1))
            level = level * (1 + variance * rate / (2 * m + 2 + b.shape[-1]))
        return (self.weights * level).imag.sum()

    def _change_of_exponent(self, m: Tensor) -> Tensor:
        """Gamma(m + 2 + D/2) z^-(m + 2) against what it is where the path was drawn."""
        top = self.exponent + 2
        whole = torch.lgamma(m + (2 + self.lam.shape[-1] / 2))
        return whole - whole.detach() - (m - self.exponent) * (top.log() + self.path.turns)


def _log_det(matrix: Tensor) -> Tensor:
    sign, size = torch.linalg.slogdet(matrix)
    found: Tensor = sign.log() + size
    return found
