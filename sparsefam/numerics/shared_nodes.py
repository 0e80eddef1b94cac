r"""Sums over the nodes of one path for all pairs of ellipsoids and Gaussians, on the CPU.

The contour integral of `ball` has a path for each pair, which no ratio of widths can spoil. Where
supports are at most a few tens of widths long, one path will do. In units of the width w, with
$\sigma_d$ the half-axes of a support and $y_d$ the offset of a center along them,
$$E_p[N(t; c, w^2 I)] = \frac{\Gamma(m+1+D/2)}{(2\pi w^2)^{D/2}}\, \frac{1}{2\pi i}
\int e^z z^{-(m+1)} \prod_d (z + \sigma_d^2/2)^{-1/2}\, e^{-z y_d^2 / (2z + \sigma_d^2)}\, dz.$$
What a node knows of a pair is $y_d^2$. The error is a share of the largest expectation that a
center anywhere could have. Rows in which no center comes near that, and longer supports, have paths
of pairs in two and three dimensions, at exponents of 1 and more; others are not served.

In loops compiled by numba: an operation of torch on small arrays costs more than its work, and on
large ones most of the time goes into memory.
"""

import math
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .patience import while_compiling
from .team import by_threads

__all__ = ["Rows", "integrate", "is_available", "is_fitted", "pull_back"]

# For exponents up to a number, how many nodes serve half-axes of up to so many widths, and the
# hyperbola that they lie on (size, angle, step, stretch), fitted: truncation and float32's rounding
# stay below some 1e-6 of the largest expectation.
_PATHS = {
    1.0: {
        8.0: (11, (9.048, 0.5484, 0.1774, 0.002111)),
        16.0: (14, (7.656, 0.4408, 0.2152, -0.02317)),
        24.0: (18, (6.433, 0.3943, 0.1964, -0.01282)),
        32.0: (22, (6.994, 0.4136, 0.1769, -0.01092)),
        48.0: (27, (7.567, 0.4008, 0.1542, -0.008176)),
        72.0: (31, (6.682, 0.3866, 0.1483, -0.00531)),
    },
    3.0: {
        8.0: (8, (11.25, 0.6065, 0.1908, 0.01781)),
        16.0: (11, (7.967, 0.4011, 0.2384, -0.0224)),
        24.0: (15, (6.467, 0.3386, 0.2077, -0.01324)),
        32.0: (22, (6.217, 0.3229, 0.1412, -3.402e-05)),
        48.0: (27, (5.324, 0.3111, 0.1414, -0.0003007)),
        72.0: (32, (5.648, 0.3, 0.1313, -0.001275)),
    },
    12.5: {
        8.0: (9, (35.18, 0.7869, 0.09768, 0.1742)),
        16.0: (11, (48.56, 0.9335, 0.07248, 0.00397)),
        24.0: (13, (17.59, 0.5149, 0.1169, 0.001098)),
        32.0: (16, (12.78, 0.3536, 0.1254, 0.002378)),
        48.0: (20, (11.81, 0.3555, 0.1304, 8.843e-05)),
        72.0: (25, (10.78, 0.3096, 0.1114, 0.007764)),
    },
    25.0: {
        8.0: (8, (63.8, 0.7194, 0.07707, 0.01075)),
        16.0: (9, (65.46, 0.7606, 0.07066, 0.002999)),
        24.0: (11, (43.78, 0.6043, 0.07511, 0.001899)),
        32.0: (13, (39.78, 0.553, 0.07111, 0.00147)),
        48.0: (16, (32.78, 0.4385, 0.06754, 0.0009351)),
        72.0: (20, (28.01, 0.3332, 0.06205, 0.002449)),
    },
}
_DIMENSIONS = 3
# Rows in which some center has this share of the largest expectation keep their digits.
_SHARE = 0.25
# Fewer pairs are not worth threads: those of a pool take a tenth of a millisecond to begin.
_PAIRS = 100_000

_Array = NDArray[Any]


class Rows(NamedTuple):
    """Expectations under the densities of rows (R), and what their gradient needs.

    Attributes:
        values: (R, N).
        near: How many centers have a share in a support, (R); below zero where the row has not its
            digits, and means nothing.
        axes: From offsets to space, (R, 3, 3).
        places: Which these centers are, (R, N).
        slopes: Derivatives of their values along the axes, (R, D + D(D + 1)/2, N).
    """

    values: _Array
    near: _Array
    axes: _Array
    places: _Array
    slopes: _Array


@cache
def _loops() -> Any:
    """Looked for when first used, as numba takes long to import.

    It may not fit what else is installed, or find no place for what it compiles.
    """
    try:
        names = ".shared_loops", ".shared_gradient"
        return tuple(import_module(name, __package__) for name in names)
    except (ImportError, RuntimeError):
        return None


def is_available() -> bool:
    """Whether there is numba."""
    return _loops() is not None


def is_fitted(exponent: float, dim: int) -> bool:
    """Whether there is a path for such densities."""
    least = 0.5 if dim == 1 else 1.0
    return dim <= _DIMENSIONS and least <= exponent <= max(_PATHS)


def integrate(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    exponent: float,
    sloped: bool,
    threads: int = 1,
) -> tuple[Rows, bool]:
    """Expectations, and whether all rows of them have their digits.

    Args:
        loc: (R, D), contiguous float32 as all of these.
        scale_tril: (R, D, D).
        centers: (N, D).
        width: Of the Gaussians.
        exponent: m.
        sloped: Whether the gradient is asked for.
        threads: Among how many the rows are divided, at most.
    """
    # No named tuples go in: numba would keep their classes in its cache, for versions with others.
    rows = _new_rows(len(loc), loc.shape[1], len(centers), sloped)
    rest = centers, width, _paths(exponent, loc.shape[1]), float(exponent), _SHARE
    some = _loops()[0].integrate_rows
    count = min(threads, len(loc), len(loc) * len(centers) // _PAIRS)

    def part(part: slice) -> int:
        found: int = some(loc[part], scale_tril[part], *rest, tuple(x[part] for x in rows))
        return found

    with while_compiling(some, loc.dtype):
        if count < 2:
            return rows, some(loc, scale_tril, *rest, tuple(rows)) == len(loc)
        return rows, sum(by_threads(part, _slices(len(loc), count), count)) == len(loc)


def _new_rows(count: int, dim: int, size: int, sloped: bool) -> Rows:
    """Made here, as numba takes longer to hand arrays over."""
    slopes = np.empty((count if sloped else 0, dim * (dim + 3) // 2, size), np.float32)
    near, places = np.full(count, -1, np.int32), np.empty((count, size), np.int32)
    return Rows(np.zeros((count, size), np.float32), near, np.empty((count, 3, 3)), places, slopes)


def _slices(rows: int, count: int) -> list[slice]:
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def pull_back(grad: _Array, scale_tril: _Array, width: float, rows: Rows) -> tuple[_Array, _Array]:
    """Gradients in loc and scale_tril, from that in the expectations (R, N)."""
    found = np.zeros(scale_tril.shape[:2], np.float32), np.zeros(scale_tril.shape, np.float32)
    _loops()[1].pull_back_rows(grad, scale_tril, width, *rows[1:], *found)
    return found


@cache
def _paths(exponent: float, dim: int) -> _Array:
    """The paths of one exponent, (P, 5, n), by the longest half-axis that they serve.

    That half-axis, in widths, rising, and the number of nodes; real and imaginary parts of the
    nodes z, and of what a term has of its own, whatever the half-axes.
    """
    # At 1 itself the path of smoother densities is shorter.
    fitted = next(x for most, x in _PATHS.items() if exponent < most or exponent == most > 1)
    found = np.zeros((len(fitted), 5, max(count for count, _ in fitted.values())))
    for path, (reach, (count, shape)) in zip(found, fitted.items(), strict=True):
        nodes, front = _hyperbola(count, shape, exponent, dim)
        path[0, :2] = reach, count
        path[1:, :count] = nodes.real, nodes.imag, front.real, front.imag
    return found


def _hyperbola(
    count: int, shape: tuple[float, ...], exponent: float, dim: int
) -> tuple[_Array, _Array]:
    size, angle, step, stretch = shape
    t = (np.arange(count) + 0.5) * step
    turned = -angle + 1j * t * (1 + stretch * t * t)
    nodes = size * (1 + np.sin(turned))
    moves = np.cos(turned) * (1 + 3 * stretch * t * t)
    front = math.lgamma(exponent + 1 + dim / 2) - 0.5 * dim * math.log(2 * math.pi)
    front += math.log(size * step / math.pi)
    return nodes, np.exp(np.log(moves) + nodes - (exponent + 1) * np.log(nodes) + front)
