r"""Gaussians of one width under many ellipsoids at once, by one path that serves all pairs.

The contour integral of `ball` has a path for each pair, which no ratio of widths can spoil. Where
supports are at most a few tens of widths long, one path will do. In units of the width w, with
$\sigma_d$ the half-axes of a support and $y_d$ the offset of a center along them,
$$E_p[N(t; c, w^2 I)] = \frac{\Gamma(m+1+D/2)}{(2\pi w^2)^{D/2}}\, \frac{1}{2\pi i}
\int e^z z^{-(m+1)} \prod_d (z + \sigma_d^2/2)^{-1/2}\, e^{-z y_d^2 / (2z + \sigma_d^2)}\, dz.$$
What a node knows of a pair is $y_d^2$: exponents are one matrix product, and the gradient is
another. The error is a share of the largest expectation that a center anywhere could have; rows in
which no center comes near that are left to the paths of pairs.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .arguments import in_eager

__all__ = ["gaussians_on_shared_path", "shares_path"]

# How many nodes serve half-axes of up to so many widths, and the hyperbola that they lie on (size,
# angle, step, stretch), fitted: truncation and float32's rounding stay below 1e-6 of the largest
# expectation, for exponents and dimensions up to these.
_PATHS = {
    8.0: (10, (8.73, 0.5197, 0.191, 0.004207)),
    16.0: (13, (6.52, 0.394, 0.2007, -0.01178)),
    24.0: (18, (7.036, 0.3567, 0.1505, 9.81e-05)),
    32.0: (22, (6.217, 0.3229, 0.1412, -3.402e-05)),
    48.0: (27, (5.324, 0.3111, 0.1414, -0.0003007)),
    72.0: (36, (4.137, 0.277, 0.124, -1.383e-05)),
}
_LONGEST = max(_PATHS)
_EXPONENTS = (1.0, 3.0)
_DIMENSIONS = 3
# Where an integral is below exp of this it counts as zero, as the path would blow up; and real
# points at which that is seen.
_NOTHING = -13.0
_CHECKED = (4.0, 12.0, 36.0, 108.0, 324.0)
# Rows in which some center has this share of the largest expectation keep their digits.
_SHARE = 0.25
# Pairs at a time, so that their nodes fit the cache.
_CHUNK = 8192
_LOG2E = math.log2(math.e)

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def shares_path(inputs: _Inputs, exponent: Tensor | float) -> bool:
    """Whether `gaussians_on_shared_path` is for these inputs.

    They are float32 on the CPU, in neither a compiled graph nor a transform, so that values can be
    looked at for nothing; the Gaussians have one width and no gradient; exponent and dimension are
    what the path was fitted for.
    """
    loc, _, centers, spread = inputs
    if isinstance(exponent, Tensor) or not _EXPONENTS[0] <= exponent <= _EXPONENTS[1]:
        return False
    if spread.dim() > 1 or loc.shape[-1] > _DIMENSIONS or not loc.numel() or not in_eager():
        return False
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in inputs):
        return False
    if centers.requires_grad or spread.requires_grad:
        return False
    return spread.stride() in ((), (0,)) or bool((spread == spread[0]).all())


def gaussians_on_shared_path(
    inputs: _Inputs, exponent: float, by_pairs: Callable[[_Inputs, float], Tensor]
) -> Tensor:
    """Expectations (*batch, N), differentiable in loc and scale_tril.

    Args:
        inputs: loc (*batch, D), scale_tril (*batch, D, D), centers (N, D) and standard deviations.
        exponent: m.
        by_pairs: The same of any inputs, for rows without digits and for second derivatives.
    """
    loc, scale_tril, centers, spread = inputs
    batch, (count, dim) = loc.shape[:-1], centers.shape
    step = max(1, _CHUNK // count)
    rows = loc.reshape(-1, dim).split(step), scale_tril.reshape(-1, dim, dim).split(step)
    # What is kept of one chunk is in the cache in backward; of many, it costs more than it saves.
    kept = len(rows[0]) == 1
    parts = [
        _on_rows((some, factor, centers, spread), exponent, by_pairs, kept)
        for some, factor in zip(*rows, strict=True)
    ]
    found = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found.reshape(*batch, count)


def _on_rows(
    inputs: _Inputs,
    exponent: float,
    by_pairs: Callable[[_Inputs, float], Tensor],
    kept: bool,
) -> Tensor:
    loc, scale_tril, centers, spread = inputs
    values: Tensor
    values, good = _SharedPath.apply(*inputs, exponent, by_pairs, kept)
    if good.all():
        return values
    others = by_pairs((loc[~good], scale_tril[~good], centers, spread), exponent)
    if not good.any():
        return others
    # Again, without rows that may hold no numbers to differentiate.
    own = loc[good], scale_tril[good]
    values, _ = _SharedPath.apply(*own, centers, spread, exponent, by_pairs, kept)
    places = torch.cat([good.nonzero(), (~good).nonzero()]).squeeze(-1)
    return torch.cat([values, others])[places.argsort()]


class _Rows(NamedTuple):
    """What the gradient needs of the rows.

    Attributes:
        rotation: From the axes of the supports to space, (R, D, D), float64.
        y: Offsets of the centers along the axes, in widths, (R, D, N).
        near: Which of them are within reach, (R, 1, N).
        shrink: 2z / (2z + sigma^2) at the nodes z, complex (R, D, n).
        terms: What `_waves` takes, (R, 2 n, D + 1).
        waves: Real and then imaginary parts of the terms, (R, 2 n, N), if they are kept.
    """

    rotation: Tensor
    y: Tensor
    near: Tensor
    shrink: Tensor
    terms: Tensor
    waves: Tensor | None


class _SharedPath(torch.autograd.Function):
    """Values (R, N), and which rows of them have their digits."""

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        scale_tril: Tensor,
        centers: Tensor,
        spread: Tensor,
        exponent: float,
        by_pairs: Callable[[_Inputs, float], Tensor],
        kept: bool,
    ) -> tuple[Tensor, Tensor]:
        width = spread.flatten()[0].item()
        square, rotation, y = _frame(loc, scale_tril, centers, width)
        longest = square.amax().sqrt().item()
        nodes, log_weights = _path(min(longest, _LONGEST), exponent, loc.shape[-1])
        shrink, terms = _terms(square, nodes, log_weights, width)
        near, offsets = _near(square, y)
        waves = _waves(terms, offsets, sines=kept)
        values = waves[:, : len(nodes)].sum(1).mul_(near.squeeze(1))
        good = values.amax(-1) >= _SHARE * _largest(terms)
        if longest > _LONGEST:
            good &= square.amax(-1) <= _LONGEST**2
        ctx.mark_non_differentiable(good)
        rows = (rotation, y, near, shrink, terms, waves if kept else None)
        ctx.save_for_backward(loc, scale_tril, centers, spread, *rows)
        ctx.nodes, ctx.width, ctx.exponent, ctx.by_pairs = nodes, width, exponent, by_pairs
        return values, good

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs, rows = ctx.saved_tensors[:4], _Rows(*ctx.saved_tensors[4:])
        again = torch.is_grad_enabled()
        # `is_grads_batched` has no rules for some of the operations here.
        if again or torch._C._functorch.is_legacy_batchedtensor(grad):
            needed = ctx.needs_input_grad
            with torch.enable_grad():
                wanted = [x for x, need in zip(inputs[:2], needed, strict=False) if need]
                values = ctx.by_pairs(inputs, ctx.exponent)
            found = iter(torch.autograd.grad(values, wanted, grad, create_graph=again))
            slopes = [next(found) if need else None for need in needed[:2]]
        else:
            slopes = [*_pull_back(grad, rows, ctx.nodes, inputs[1], ctx.width)]
        return *slopes, None, None, None, None, None


def _frame(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, width: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared half-axes (R, D) and rotation, float64, and offsets of the centers (R, D, N)."""
    # In float64, as a float32 rotation would move what is far along a thin support.
    factor = scale_tril.double() / width
    square, rotation = torch.linalg.eigh(factor @ factor.mT)
    gaps = centers.double() - loc.double().unsqueeze(1)
    y = (rotation.mT / width) @ gaps.mT
    return square, rotation, y.to(loc.dtype)


def _path(longest: float, exponent: float, dim: int) -> tuple[Tensor, Tensor]:
    """The path for half-axes of up to so many widths."""
    return _hyperbola(next(x for x in _PATHS if longest <= x), exponent, dim)


@cache
def _hyperbola(reach: float, exponent: float, dim: int) -> tuple[Tensor, Tensor]:
    """Nodes z (n), and logarithms of all that multiplies a term but for the half-axes and width."""
    count, (size, angle, step, stretch) = _PATHS[reach]
    t = (torch.arange(count, dtype=torch.float64) + 0.5) * step
    turned = torch.complex(torch.full_like(t, -angle), t * (1 + stretch * t * t))
    nodes = size * (1 + turned.sin())
    moves = turned.cos() * (1 + 3 * stretch * t * t)
    front = math.lgamma(exponent + 1 + dim / 2) - 0.5 * dim * math.log(2 * math.pi)
    front += math.log(size * step / math.pi)
    return nodes, moves.log() + nodes - (exponent + 1) * nodes.log() + front


def _terms(
    square: Tensor, nodes: Tensor, log_weights: Tensor, width: float
) -> tuple[Tensor, Tensor]:
    """2z / (2z + sigma^2), (R, D, n); and what `_waves` takes, (R, 2 n, D + 1) in float32.

    That is log2 of the size of terms, and then their angles, each as a factor of every y_d^2 and a
    constant.
    """
    # By real functions, as torch's complex ones are slow.
    real, imag, half = nodes.real, nodes.imag, 0.5 * square.unsqueeze(-1)
    along = real + half
    size = torch.addcmul(imag * imag, along, along)
    shrink = torch.complex(torch.addcmul(imag * imag, real, along), imag * half) / size
    log_size = log_weights.real - square.shape[-1] * math.log(width) - 0.25 * size.prod(1).log()
    angle = log_weights.imag - 0.5 * torch.atan2(imag, along).sum(1)
    # Powers of two stand for exponentials: torch's exp is much slower where it underflows.
    sizes = torch.cat([-0.5 * shrink.real, log_size.unsqueeze(1)], 1) * _LOG2E
    angles = torch.cat([-0.5 * shrink.imag, angle.unsqueeze(1)], 1)
    return shrink, torch.cat([sizes, angles], -1).mT.float()


def _near(square: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Which centers have a share in their supports (R, 1, N), and y^2, zero of the others.

    By Chernoff's bound: a term at any real z is more than the integral.
    """
    offsets = y * y
    z = square.new_tensor(_CHECKED)
    rates = (-z / (2 * z + square.unsqueeze(-1))).mT.to(y.dtype)
    bounds = (rates @ offsets).add_(z.to(y.dtype).unsqueeze(-1))
    near = bounds.amin(1, keepdim=True) >= _NOTHING
    return near, offsets.mul_(near)


def _waves(terms: Tensor, offsets: Tensor, sines: bool = True) -> Tensor:
    """Real parts of the terms, and then the imaginary ones if asked for, (R, n or 2 n, N)."""
    # One more offset, of 1 for all, takes the constants: torch would write those out first.
    waves = terms @ nn.functional.pad(offsets, (0, 0, 0, 1), value=1.0)
    size, turn = waves.chunk(2, 1)
    size.exp2_()
    if not sines:
        return size.mul_(turn.cos_())
    cosine = turn.cos()
    turn.sin_().mul_(size)
    size.mul_(cosine)
    return waves


def _largest(terms: Tensor) -> Tensor:
    """The expectation of a Gaussian in the middle of a support, (R)."""
    size, turn = terms[..., -1].chunk(2, 1)
    return (size.exp2() * turn.cos()).sum(1)


def _pull_back(
    grad: Tensor, rows: _Rows, nodes: Tensor, scale_tril: Tensor, width: float
) -> tuple[Tensor, Tensor]:
    """Gradients in loc and scale_tril."""
    dim = scale_tril.shape[-1]
    waves = rows.waves
    if waves is None:
        waves = _waves(rows.terms, rows.y.square() * rows.near)
    sums = _sums(grad.unsqueeze(1) * rows.near, rows.y, waves)
    half = rows.shrink / (2 * nodes)
    by_y = (rows.shrink * sums[:, 1 : 1 + dim]).real.sum(-1, keepdim=True)
    pairs = (
        rows.shrink.unsqueeze(1) * half.unsqueeze(2) * sums[:, 1 + dim :].unflatten(1, (dim, dim))
    )
    # Twice the gradient in A = L L'.
    by_ball = pairs.real.sum(-1) - (half * sums[:, :1]).real.sum(-1).diag_embed()
    turned = rows.rotation / width
    by_scale_tril = turned @ by_ball @ (turned.mT @ scale_tril.double())
    return (turned @ by_y).squeeze(-1).to(grad.dtype), by_scale_tril.tril().to(grad.dtype)


def _sums(weight: Tensor, y: Tensor, waves: Tensor) -> Tensor:
    """Sums over centers of weighted terms times 1, y_d and y_d y_e: complex (R, 1 + D + D^2, n)."""
    first = weight * y
    second = (first.unsqueeze(1) * y.unsqueeze(2)).flatten(1, 2)
    real, imag = (torch.cat([weight, first, second], 1) @ waves.mT).double().chunk(2, -1)
    return torch.complex(real, imag)
