r"""Gaussians under a beta-Gaussian of any dimension and exponent, by one short contour integral.

A beta-Gaussian is a complex scale mixture of normals: with $m = 1/(\alpha - 1)$, in D dimensions,
$$p(t) = \frac{\Gamma(m+1+D/2)}{2\pi i} \int e^z z^{-(m+1+D/2)}\, N(t;\, \mu, A/(2z))\, dz,
\qquad A = L L',$$
so that $E_p[N(t; c, C)]$ is the same integral of $N(c; \mu, C + A/(2z))$. In a frame where $A$ is
the unit matrix and $C$ is diagonal, `contour` gives the nodes. Derivatives are averages over the
same nodes: of the frame itself, whose eigenvectors may coincide, none is ever taken.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .averages import averages, lowered_averages, lowered_value
from .frame import turn, whiten
from .replay import differentiable_partials, draw_path, log_front, log_size
from .shared_path import gaussians_on_shared_path, shares_path

__all__ = [
    "gaussian_slopes_under_ball",
    "gaussian_slopes_under_normal",
    "gaussians_under_ball",
    "gaussians_under_normal",
]

# Pairs at a time, so that their nodes fit the cache.
_CHUNK = 16384
# Exponents from here on have a good path of their own.
_OWN_PATH = 1.0

# loc, scale_tril, centers and spread.
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def gaussians_under_ball(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, exponent: Tensor | float
) -> Tensor:
    r"""$E_p[N(t; c_j, C_j)]$ for $p \propto (1 - |u|^2)_+^m$, $u = L^{-1}(t - loc)$, (*batch, N).

    Differentiable twice in all arguments. Norm-wise error about 1e-6 in float32 and 1e-13 in
    float64 for every ratio of the support to the Gaussians, in any dimension. Long thin supports
    lose in float64 what rounding their inputs does, too: 1e-12 and 3e-11 are left where the
    longest half-axis is 1e4 and 1e6 times the shortest.

    Args:
        loc: Centres of the densities, (*batch, D).
        scale_tril: L, (*batch, D, D).
        centers: Centers of the Gaussians, (N, D).
        spread: Their standard deviations (N,), or their covariances (N, D, D).
        exponent: m >= 0, (*batch); a number, which has no derivative, may have a shorter path.

    Returns:
        In the dtype that the other four promote to, computed in float32 at least.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 3.2, does D = 2,
        m = 1 by quadrature over angles.
    """
    inputs = (loc, scale_tril, centers, spread)
    if shares_path(inputs, exponent):
        return gaussians_on_shared_path(inputs, float(exponent), _by_pairs)
    return _by_pairs(inputs, exponent)


def gaussians_under_normal(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor
) -> Tensor:
    """The limit alpha = 1, N(c_j; loc, C_j + L L'), with the same care for digits, (*batch, N).

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
    """Derivatives of `gaussians_under_ball` in loc and in A = L L', float64 (*batch, N, D[, D]).

    They keep their digits however wide the Gaussians are, and are differentiable themselves.
    """
    return _slopes((loc, scale_tril, centers, spread), *_path_of(exponent, loc))


def gaussian_slopes_under_normal(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of `gaussians_under_normal`."""
    return _slopes((loc, scale_tril, centers, spread), torch.zeros_like(loc[..., 0]), "normal")


def _by_pairs(inputs: _Four, exponent: Tensor | float) -> Tensor:
    return _integrate(inputs, *_path_of(exponent, inputs[0]))


def _path_of(exponent: Tensor | float, loc: Tensor) -> tuple[Tensor, str]:
    """The exponents (*batch), and the kind of path that they have."""
    batch = loc.shape[:-1]
    if isinstance(exponent, Tensor):
        return exponent.expand(batch), "lowered"
    m = torch.full(batch, exponent, dtype=torch.float64, device=loc.device)
    return m, "lowered" if exponent < _OWN_PATH else "ball"


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
    """All that `_Integral` finds, with the batch in place of its rows; or the integrals alone."""
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
            found: tuple[Tensor, ...] = _opaque(inputs, kind)
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
            above = (_opaque_pull if compiling else _pull_partials)(ctx.kind, inputs, cotangents)
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
    path, lam, b = draw_path(frame, m, kind, loc.dtype)
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


# The schemas are given: torch before 2.7 cannot infer them from collections.abc.Sequence and list.
@torch.library.custom_op(
    "sparsefam::ball_integrals",
    mutates_args=(),
    schema=f"(Tensor[] inputs, str kind) -> ({', '.join(['Tensor'] * 8)})",
)
def _opaque(inputs: Sequence[Tensor], kind: str) -> _Eight:
    """`_by_chunks` as one call in a compiled graph, which could not fuse its complex numbers."""
    a, b, c, d, e, f, g, h = (x.contiguous() for x in _by_chunks(inputs, kind, True))
    return a, b, c, d, e, f, g, h


@_opaque.register_fake
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
        pull = torch.func.vjp(differentiable_partials(kind, tuple(inputs)), *inputs)[1]
        found: tuple[Tensor, ...] = pull(tuple(cotangents))
    return found


@torch.library.custom_op(
    "sparsefam::ball_pull",
    mutates_args=(),
    schema="(str kind, Tensor[] inputs, Tensor[] cotangents) -> Tensor[]",
)
def _opaque_pull(kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """`_pull_partials` as one call in a compiled graph."""
    return [x.clone() for x in _pull_partials(kind, inputs, cotangents)]


@_opaque_pull.register_fake
def _(kind: str, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _pull_back(grad: Tensor, inputs: tuple[Tensor, ...], partials: Any, frame: Any) -> list[Tensor]:
    """Gradients in the inputs, from those of the rows (R, N) and the partials in the frame."""
    scale_tril, spread, dtype = inputs[1].double(), inputs[3].double(), grad.dtype
    rotation, inverse, shrink = frame
    by_b, by_ball, by_spread, by_exponent = partials
    g = grad.double()
    back = turn(g.unsqueeze(-1) * by_b * shrink, rotation.mT) @ inverse
    pairs = shrink.unsqueeze(-1) * shrink.unsqueeze(-2)
    weight = g.unsqueeze(-1).unsqueeze(-1) * pairs
    ball = _turn_matrices(weight * by_ball, rotation)
    by_scale_tril = 2 * inverse.mT @ ball @ (inverse @ scale_tril)
    if spread.dim() > 1:
        turned = rotation @ (weight * by_spread) @ rotation.mT
        by_width = (inverse.mT.unsqueeze(1) @ turned @ inverse.unsqueeze(1)).sum(0)
    else:
        by_width = (g * by_spread).sum(0) * 2 / spread
    found = (-back.sum(1), by_scale_tril.tril(), back.sum(0), by_width, (g * by_exponent).sum(1))
    return [x.to(dtype) for x in found]


def _turn_matrices(matrices: Tensor, rotation: Tensor) -> Tensor:
    """Sum over Gaussians (R, N, D, D) of matrices taken out of their frames, (R, D, D)."""
    if rotation.shape[1] == 1:
        return rotation.squeeze(1) @ matrices.sum(1) @ rotation.squeeze(1).mT
    return (rotation @ matrices @ rotation.mT).sum(1)
