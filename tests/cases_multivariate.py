"""The distributions of vectors that the battery is run on, in one to eight dimensions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from battery import Family
from references import Array

import sparsefam as sf

LOC = [0.3125, -0.5, 0.125, 0.25, -0.1875, 0.0, 0.375, -0.25]
DIAGONAL = [0.875, 0.5, 0.6875, 0.4375]


def tril(dim: int, diagonal: list[float], below: float) -> list[list[float]]:
    """A lower triangle: the diagonal, repeated, and entries of both signs below it."""
    signs = (1.0, -0.5, 0.75)
    return [
        [
            below * signs[(i + 2 * j) % 3] if j < i else diagonal[i % len(diagonal)] * (i == j)
            for j in range(dim)
        ]
        for i in range(dim)
    ]


def scalar(dim: int) -> dict[str, Any]:
    return {"loc": LOC[:dim], "scale_tril": tril(dim, DIAGONAL, 0.25)}


def batch(dim: int) -> dict[str, Any]:
    """The second factor is isotropic, where eigenvectors are not determined."""
    factors = [tril(dim, DIAGONAL, 0.25), tril(dim, [0.375], 0.0), tril(dim, [1.5, 0.75], -0.375)]
    return {"loc": [[LOC[:dim]], [[x - 1.25 for x in LOC[:dim]]]], "scale_tril": factors}


def squared(t: Array, loc: Array, scale_tril: Array) -> Array:
    """Squared distance from loc in the coordinates of the factor."""
    return (np.einsum("ij,...j->...i", np.linalg.inv(scale_tril), t - loc) ** 2).sum(-1)


def _power(
    t: Array, loc: Array, scale_tril: Array, alpha: float = math.nan, fixed: float | None = None
) -> Array:
    """(1 - |u|^2)_+^m, of a fixed alpha unless alpha is a parameter."""
    inside = np.maximum(0.0, 1 - squared(t, loc, scale_tril))
    m = 1 / ((alpha if fixed is None else fixed) - 1)
    return np.where(inside > 0, inside**m, 0.0)


def _normal(t: Array, loc: Array, scale_tril: Array) -> Array:
    return np.exp(-0.5 * squared(t, loc, scale_tril))


def _name(cls: Callable[..., sf.SparseDistribution], dim: int) -> str:
    return f"{cls.__name__}-{dim}d"


def fixed(dim: int, alpha: float, thorough: bool = False) -> Family:
    """A member of fixed alpha. Default escorts exist up to alpha = 2."""
    return Family(
        f"{_name(sf.MultivariateBetaGaussian, dim)}-{alpha:.3g}",
        partial(sf.MultivariateBetaGaussian, alpha=alpha),
        partial(_power, fixed=alpha),
        scalar(dim),
        batch(dim),
        escorts=(0.0, 0.4, 1.0, 1.5) if alpha > 2 else (None, 0.0, 0.4, 1.0, 1.5),
        no_escorts=(-0.5,) if alpha < 2 else (None, -0.5) if math.isfinite(alpha) else (None,),
        has_score=math.isfinite(alpha),
        dim=dim,
        thorough=thorough,
    )


def _learned(dim: int, compiled: str = "", thorough: bool = False) -> Family:
    return Family(
        f"{_name(sf.MultivariateBetaGaussian, dim)}-learned",
        sf.MultivariateBetaGaussian,
        _power,
        scalar(dim) | {"alpha": 1.6875},
        batch(dim) | {"alpha": [1.125, 1.5, 2.0]},
        dim=dim,
        thorough=thorough,
        compiled=(compiled,) if compiled else (),
    )


def _paraboloid(dim: int, thorough: bool = False) -> Family:
    return Family(
        _name(sf.TruncatedParaboloid, dim),
        sf.TruncatedParaboloid,
        partial(_power, fixed=2.0),
        scalar(dim),
        batch(dim),
        dim=dim,
        thorough=thorough,
        compiled=("jit", "log_prob") if thorough else (),
    )


def _dense(dim: int, thorough: bool = False) -> Family:
    return Family(
        _name(sf.MultivariateNormal, dim),
        sf.MultivariateNormal,
        _normal,
        scalar(dim),
        batch(dim),
        escorts=(None, 0.4, 1.0, 1.5),
        no_escorts=(0.0, -0.5),
        dim=dim,
        thorough=thorough,
        compiled=("jit",) if dim == 3 else (),
    )


MULTIVARIATE = [
    fixed(1, 4 / 3),
    _paraboloid(2, thorough=True),
    *[fixed(2, alpha) for alpha in (1.05, 1.5, 3.0, math.inf)],
    _learned(2, "expect-GaussianRBF", thorough=True),
    _dense(2, thorough=True),
    _paraboloid(3),
    _learned(3),
    _dense(3),
    fixed(8, 1.5),
    _learned(8),
    _dense(8),
]
