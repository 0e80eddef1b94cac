"""Densities in many dimensions against Gaussians, from much narrower to much wider than these."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparsefam as sf

from .ball_reference import Integrals, cholesky, integrals
from .steepest import Extended

__all__ = ["QUANTITIES", "Case", "Truth", "cases", "errors", "truths"]

QUANTITIES = ("value", "∂ loc", "∂ scale_tril", "∂ width", "∂ α")
# How many centers lie inside the support, at its surface, outside, around loc at the distance of
# some widths, and too far to matter.
_INSIDE, _SURFACE, _OUTSIDE, _AROUND, _FAR = 6, 8, 24, 4, 2
# How far inputs are moved to see what rounding them does: below the rounding of float32.
_NUDGE = 2.0**-30


@dataclass(frozen=True)
class Case:
    """A density and Gaussians around it, all in float32: the same numbers in every dtype.

    Attributes:
        condition: Of scale_tril, whose determinant is about 1.
        ratio: Width of the Gaussians over the support's (its half-axes' geometric mean).
        loc: (D,).
        scale_tril: (D, D).
        centers: (N, D).
        spread: Standard deviations (N,), or covariances (N, D, D).
    """

    condition: float
    ratio: float
    loc: Tensor
    scale_tril: Tensor
    centers: Tensor
    spread: Tensor

    @property
    def full(self) -> bool:
        """Whether the Gaussians have covariance matrices."""
        return self.spread.dim() > 1


@dataclass(frozen=True)
class Truth:
    """What a case's expectation and derivatives are, and how far rounding the inputs moves them.

    Attributes:
        exact: Of each quantity, (N, ...).
        moved: Change per relative change of every input, at random, in the same shapes.
    """

    exact: list[NDArray[np.float64]]
    moved: list[NDArray[np.float64]]


def cases(dim: int, condition: float, ratios: Sequence[float], full: bool) -> list[Case]:
    """One for each width."""
    draw = np.random.default_rng([dim, round(condition), full])
    found = []
    for ratio in ratios:
        axes = condition ** (np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1))
        scale_tril = _root(_rotation(draw, dim) * axes)
        loc = draw.uniform(-1, 1, dim)
        centers = loc + _offsets(draw, scale_tril, ratio)
        spread = np.full(len(centers), ratio)
        if full:
            # Condition 1e3: float32 entries of a matrix cannot hold much more.
            stretch = 10 ** (1.5 * np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1))
            roots = [ratio * _rotation(draw, dim) * stretch for _ in centers]
            spread = np.stack([root @ root.T for root in roots])
        numbers = (torch.from_numpy(x).float() for x in (loc, scale_tril, centers, spread))
        found.append(Case(condition, ratio, *numbers))
    return found


def _rotation(draw: np.random.Generator, dim: int) -> NDArray[np.float64]:
    return np.linalg.qr(draw.normal(size=(dim, dim)))[0]


def _root(axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower triangular L with L L' = axes axes'."""
    upper = np.linalg.qr(axes.T)[1]
    found: NDArray[np.float64] = upper.T * np.sign(np.diagonal(upper))
    return found


def _offsets(
    draw: np.random.Generator, scale_tril: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    dim = len(scale_tril)

    def directions(count: int) -> NDArray[np.float64]:
        found = draw.normal(size=(count, dim))
        return found / np.linalg.norm(found, axis=-1, keepdims=True)

    inside = np.linspace(0, 0.95, _INSIDE)[:, None] * directions(_INSIDE)
    surface = directions(_SURFACE) @ scale_tril.T
    surface = surface + width * np.linspace(-2, 2, _SURFACE)[:, None] * directions(_SURFACE)
    around = width * np.linspace(0.3, 3, _AROUND)[:, None] * directions(_AROUND)
    far = 40 * width * directions(_FAR)
    outside = np.linspace(1.02, 1.6, _OUTSIDE)[:, None] * directions(_OUTSIDE)
    return np.concatenate([inside @ scale_tril.T, surface, outside @ scale_tril.T, around, far])


def truths(found: Sequence[Case], alpha: float) -> list[Truth]:
    """By extended precision; cases of one dimension, all with or all without covariances."""
    draw = np.random.default_rng(0)
    inputs = [
        np.stack([getattr(case, name).numpy() for case in found]).astype(np.longdouble)
        for name in ("loc", "scale_tril", "centers", "spread")
    ]
    nudged = [x * (1 + _NUDGE * _signs(draw, x)) for x in inputs]
    exact, beside = (_by_reference(x, alpha) for x in (inputs, nudged))
    moved = [(y - x) / _NUDGE for x, y in zip(exact, beside, strict=True)]
    rows = range(len(found))
    return [Truth(*([np.float64(x[i]) for x in xs] for xs in (exact, moved))) for i in rows]


def _signs(draw: np.random.Generator, x: Extended) -> NDArray[np.float64]:
    """At random, and the same for entries that are the same."""
    signs = draw.choice([-1.0, 1.0], size=x.shape)
    if x.ndim == 4:  # covariances stay symmetric
        signs = np.tril(signs) + np.swapaxes(np.tril(signs, -1), -1, -2)
    return signs


def _by_reference(inputs: Sequence[Extended], alpha: float) -> list[Extended]:
    loc, scale_tril, centers, spread = inputs
    exponent = 0.0 if alpha == math.inf else float(1 / (np.longdouble(alpha) - 1))
    full = spread.ndim == 4
    found: Integrals = integrals(
        loc, scale_tril, centers, cholesky(spread) if full else spread, exponent
    )
    by_spread = found.by_covariance
    if not full:
        by_spread = 2 * spread * np.trace(by_spread, axis1=-2, axis2=-1)
    columns = [found.value, found.by_loc, found.by_scale_tril, by_spread]
    if alpha < math.inf:
        columns.append(-found.by_exponent / (np.longdouble(alpha) - 1) ** 2)
    return columns


def errors(case: Case, truth: Truth, alpha: float, dtype: torch.dtype) -> list[tuple[float, float]]:
    """Of each quantity, relative to its norm and to the greater of that and what rounding does."""
    out = []
    for found, exact, moved in zip(
        _by_sparsefam(case, alpha, dtype), truth.exact, truth.moved, strict=True
    ):
        gap = np.nan_to_num(found.numpy() - exact, nan=np.inf)
        with np.errstate(over="ignore"):
            error = np.linalg.norm(gap)
        norm = np.linalg.norm(exact)
        out.append((float(error / norm), float(error / max(norm, np.linalg.norm(moved)))))
    return out


def _by_sparsefam(case: Case, alpha: float, dtype: torch.dtype) -> list[Tensor]:
    loc, scale_tril = (x.to(dtype, copy=True).requires_grad_() for x in (case.loc, case.scale_tril))
    spread = torch.nn.Parameter(case.spread.to(dtype, copy=True))
    p = sf.MultivariateBetaGaussian(loc, scale_tril, alpha)
    # A basis that is learned takes another way, and so do gradients of a batch.
    value = p.expect(_basis(case, spread.detach()))
    each = [torch.autograd.grad(x, (loc, scale_tril), retain_graph=True) for x in value]
    slopes = [torch.stack(x) for x in zip(*each, strict=True)]
    psi = _basis(case, spread)
    (by_spread,) = torch.autograd.grad(p.expect(psi).sum(), spread)
    if case.full:
        by_spread = (by_spread + by_spread.mT) / 2
    found = [value, *slopes, by_spread]
    if alpha < math.inf:
        power = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        learned = sf.MultivariateBetaGaussian(loc.detach(), scale_tril.detach(), power).expect(psi)
        whole = torch.eye(len(value), dtype=dtype)
        found += torch.autograd.grad(learned, power, whole, is_grads_batched=True)
    return [x.detach().double() for x in found]


def _basis(case: Case, spread: Tensor) -> sf.bases.GaussianRBF:
    name = "covariance" if case.full else "widths"
    return sf.bases.GaussianRBF(case.centers.to(spread.dtype), **{name: spread})
