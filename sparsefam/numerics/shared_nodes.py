r"""Sums over the nodes of one path for all pairs of ellipsoids and Gaussians, on the CPU.

The contour integral of `ball` has a path for each pair, which no ratio of widths can spoil. Where
supports are at most a few tens of widths long, one path will do. In units of the width w, with
$\sigma_d$ the half-axes of a support and $y_d$ the offset of a center along them,
$$E_p[N(t; c, w^2 I)] = \frac{\Gamma(m+1+D/2)}{(2\pi w^2)^{D/2}}\, \frac{1}{2\pi i}
\int e^z z^{-(m+1)} \prod_d (z + \sigma_d^2/2)^{-1/2}\, e^{-z y_d^2 / (2z + \sigma_d^2)}\, dz.$$
What a node knows of a pair is $y_d^2$: exponents are one matrix product, and the gradient is
another. The error is a share of the largest expectation that a center anywhere could have; rows in
which no center comes near that are not served.

In numpy: where arrays are small an operation of torch costs more than its work, and where they are
not, numpy's sine and its products of small matrices are twice as fast.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIMENSIONS", "EXPONENTS", "Rows", "integrate", "pull_back"]

# How many nodes serve half-axes of up to so many widths, and the hyperbola that they lie on (size,
# angle, step, stretch), fitted: truncation and float32's rounding stay below 1e-6 of the largest
# expectation, for exponents up to 3 and dimensions up to that given below.
_PATHS = {
    8.0: (8, (11.25, 0.6065, 0.1908, 0.01781)),
    16.0: (11, (7.967, 0.4011, 0.2384, -0.0224)),
    24.0: (15, (6.467, 0.3386, 0.2077, -0.01324)),
    32.0: (22, (6.217, 0.3229, 0.1412, -3.402e-05)),
    48.0: (27, (5.324, 0.3111, 0.1414, -0.0003007)),
    72.0: (32, (5.648, 0.3, 0.1313, -0.001275)),
}
_LONGEST = max(_PATHS)
# The same for exponents above 3 and up to a number.
_SMOOTHER = {
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
EXPONENTS = (1.0, max(_SMOOTHER))
DIMENSIONS = 3
# Where an integral is below exp of this it counts as zero, as the path would blow up.
_NOTHING = -13.0
# Rows in which some center has this share of the largest expectation keep their digits.
_SHARE = 0.25
_LOG2E = math.log2(math.e)

_Array = NDArray[Any]
_Pair = tuple[_Array, _Array]


class _Path(NamedTuple):
    """Nodes, and what a term has of its own, whatever the half-axes.

    Attributes:
        nodes: z, complex (n).
        half: 1 / (2z), complex (n).
        log_size: log2 of the size of a term, (n).
        angle: And its angle, (n).
    """

    nodes: _Array
    half: _Array
    log_size: _Array
    angle: _Array


class Rows(NamedTuple):
    """Expectations under the densities of rows (R), and what their gradient needs.

    Attributes:
        values: (R, N).
        path: Of all rows.
        axes: From offsets to space, (R, D, D), float64.
        y: Offsets of the centers along the axes, in widths, (D, R, N).
        near: What is made of a sum at the nodes, zero where a center is out of reach, (R, N).
        shrink: 2z / (2z + sigma^2) at the nodes, complex (D, R, n).
        terms: What `_waves` takes.
        waves: What it gives, if that is kept.
    """

    values: _Array
    path: _Path
    axes: _Array
    y: _Array
    near: _Array
    shrink: _Array
    terms: _Pair
    waves: _Pair | None


def integrate(
    loc: _Array, scale_tril: _Array, centers: _Array, width: float, exponent: float, kept: bool
) -> tuple[Rows, _Array]:
    """Expectations, and which rows of them have their digits (R).

    Args:
        loc: (R, D), float32 as all of these.
        scale_tril: (R, D, D).
        centers: (N, D).
        width: Of the Gaussians.
        exponent: m.
        kept: Whether waves are kept for the gradient, which makes them anew otherwise.
    """
    dim = loc.shape[-1]
    square, axes, y = _frame(loc, scale_tril, centers, width)
    longest = math.sqrt(square.max())
    path = _hyperbola(next((x for x in _PATHS if longest <= x), _LONGEST), exponent, dim)
    shrink, terms = _terms(square, path)
    near, offsets = _near(square, y)
    waves = _waves(terms, offsets, sines=kept)
    # The powers of the width come last: in the exponents they would cost digits.
    scale = width**-dim
    near *= scale
    values = (np.ones((1, len(path.nodes)), y.dtype) @ waves[0])[:, 0] * near
    top = values.max(-1)
    good = (top >= _SHARE * scale * _largest(terms)) & (top < math.inf)
    if longest > _LONGEST:
        good &= square.max(0) <= _LONGEST**2
    return Rows(values, path, axes, y, near, shrink, terms, waves if kept else None), good


def _frame(
    loc: _Array, scale_tril: _Array, centers: _Array, width: float
) -> tuple[_Array, _Array, _Array]:
    """Squared half-axes (D, R), axes (R, D, D), float64, and offsets of the centers (D, R, N)."""
    # In float64, as a float32 rotation would move what is far along a thin support.
    factor = scale_tril.astype(np.float64)
    factor /= width
    square, axes = _eigh(_product(factor, factor.swapaxes(1, 2)))
    axes /= width
    gaps = centers.T.astype(np.float64, "C") - loc.astype(np.float64)[..., None]
    y = (axes.swapaxes(1, 2) @ gaps).swapaxes(0, 1)
    return square, axes, y.astype(loc.dtype, "C")


def _eigh(ball: _Array) -> _Pair:
    """Eigenvalues (D, R) and vectors (R, D, D) of matrices."""
    if ball.shape[-1] != 2:
        square, rotation = np.linalg.eigh(ball)
        return np.ascontiguousarray(square.T), rotation
    # In a plane by a turn, in half the time. Rounding is of the size of the larger one.
    first, off, last = ball[:, 0, 0], ball[:, 0, 1], ball[:, 1, 1]
    mean, half = 0.5 * (first + last), 0.5 * (first - last)
    radius, turn = np.hypot(half, off), 0.5 * np.arctan2(off, half)
    square, rotation = np.empty((2, len(ball))), np.empty_like(ball)
    np.add(mean, radius, out=square[0])
    np.subtract(mean, radius, out=square[1])
    rotation[:, 0, 0] = rotation[:, 1, 1] = np.cos(turn)
    rotation[:, 1, 0] = np.sin(turn)
    rotation[:, 0, 1] = -rotation[:, 1, 0]
    return square, rotation


def _product(first: _Array, second: _Array) -> _Array:
    """Products of small matrices (R, D, D): `matmul` takes long over each."""
    found: _Array = first[:, :, :1] * second[:, :1]
    for i in range(1, second.shape[1]):
        found += first[:, :, i : i + 1] * second[:, i : i + 1]
    return found


@cache
def _lower(dim: int) -> _Array:
    return np.tri(dim)


@cache
def _hyperbola(reach: float, exponent: float, dim: int) -> _Path:
    """The path for half-axes of up to so many widths."""
    smoother = (paths for most, paths in _SMOOTHER.items() if exponent <= most)
    paths = _PATHS if exponent <= 3 else next(smoother)
    count, (size, angle, step, stretch) = paths[reach]
    t = (np.arange(count) + 0.5) * step
    turned = -angle + 1j * t * (1 + stretch * t * t)
    nodes = size * (1 + np.sin(turned))
    moves = np.cos(turned) * (1 + 3 * stretch * t * t)
    front = math.lgamma(exponent + 1 + dim / 2) - 0.5 * dim * math.log(2 * math.pi)
    front += math.log(size * step / math.pi)
    logs = np.log(moves) + nodes - (exponent + 1) * np.log(nodes) + front
    # With the quarter turns that `_terms` leaves out.
    return _Path(nodes, 0.5 / nodes, logs.real * _LOG2E, logs.imag - 0.25 * dim * math.pi)


def _terms(square: _Array, path: _Path) -> tuple[_Array, _Pair]:
    """2z / (2z + sigma^2), (D, R, n); and what `_waves` takes, twice (R, n, D + 1) in float32.

    That is log2 of the size of terms, and then their angles, each as a factor of every y_d^2 and a
    constant.
    """
    dim, rows = square.shape
    moved = (0.5 * square)[..., None] + path.nodes
    shrink = path.nodes / moved
    # By real functions, as complex ones are slow.
    along, imag = moved.real, path.nodes.imag
    size = np.multiply.reduce(along * along + imag * imag)
    sizes, turns = np.empty((2, rows, len(path.nodes), dim + 1), np.float32)
    # Powers of two stand for exponentials, which are slower.
    np.multiply(shrink.real, -0.5 * _LOG2E, out=sizes.transpose(2, 0, 1)[:dim], casting="same_kind")
    np.multiply(shrink.imag, -0.5, out=turns.transpose(2, 0, 1)[:dim], casting="same_kind")
    sizes[..., dim] = path.log_size - 0.25 * np.log2(size)
    turns[..., dim] = path.angle + 0.5 * np.add.reduce(np.arctan(along / imag))
    return shrink, (sizes, turns)


def _near(square: _Array, y: _Array) -> _Pair:
    """Which centers have a share in their supports (R, N), and y^2, zero of the others, and one.

    By Chernoff's bound: a term at any real z is more than the integral.
    """
    # One more offset, of 1 for all, takes the constants of `_terms`.
    offsets = np.empty((len(y) + 1, *y.shape[1:]), y.dtype)
    offsets[-1] = 1.0
    some = np.multiply(y, y, out=offsets[:-1])
    z = 2.5 * np.sqrt(np.maximum.reduce(square)) + 4
    rates = 1 / ((square + 2 * z) * (1 - _NOTHING / z))
    bounds = np.add.reduce(rates.astype(y.dtype)[..., None] * some)
    near = (bounds <= 1).astype(y.dtype)
    some *= near
    return near, offsets


def _waves(terms: _Pair, offsets: _Array, sines: bool = True) -> _Pair:
    """Real parts of the terms (R, n, N), and the imaginary ones if asked for."""
    size, turn = (x @ offsets.swapaxes(0, 1) for x in terms)
    np.exp2(size, out=size)
    cosine = np.cos(turn)
    if sines:
        np.sin(turn, out=turn)
        turn *= size
    size *= cosine
    return size, turn


def _largest(terms: _Pair) -> _Array:
    """The expectation of a Gaussian in the middle of a support, (R), but for the width's powers."""
    size, turn = (x[..., -1] for x in terms)
    found: _Array = (np.exp2(size) * np.cos(turn)).sum(1)
    return found


def pull_back(grad: _Array, scale_tril: _Array, rows: Rows) -> tuple[_Array, _Array]:
    """Gradients in loc and scale_tril, from that in the expectations (R, N)."""
    dim, count = rows.y.shape[:2]
    waves = rows.waves
    if waves is None:
        waves = _waves(rows.terms, _near_offsets(rows))
    sums = _sums(grad * rows.near, rows.y, waves)
    none, ones, pairs = sums[0], sums[1 : 1 + dim], sums[1 + dim :].reshape(dim, dim, count, -1)
    by_y = (rows.shrink * ones).sum(-1).real
    pairs = rows.shrink * pairs
    for i in range(dim):
        pairs[i, i] -= none
    # Twice the gradient in A = L L'.
    by_ball = ((rows.shrink * rows.path.half)[:, None] * pairs).sum(-1).real
    turned = _product(rows.axes.swapaxes(1, 2), scale_tril.astype(np.float64))
    by_scale_tril = _product(rows.axes, _product(by_ball.transpose(2, 0, 1), turned))
    by_scale_tril *= _lower(dim)
    by_loc = _product(rows.axes, by_y.T[..., None]).squeeze(-1)
    return by_loc.astype(grad.dtype), by_scale_tril.astype(grad.dtype)


def _near_offsets(rows: Rows) -> _Array:
    """What `_near` gave."""
    y, near = rows.y, rows.near != 0
    return np.concatenate([y * y * near, np.ones_like(y[:1])])


def _sums(weight: _Array, y: _Array, waves: _Pair) -> _Array:
    """Sums over centers of weighted terms times 1, y_d and y_d y_e: complex (1 + D + D^2, R, n)."""
    dim, rows, count = y.shape
    features = np.empty((1 + dim + dim * dim, rows, count), y.dtype)
    features[0] = weight
    first = np.multiply(weight, y, out=features[1 : 1 + dim])
    np.multiply(first[:, None], y, out=features[1 + dim :].reshape(dim, dim, rows, count))
    sums = np.empty((len(features), rows, waves[0].shape[1]), np.complex64)
    by_row = features.swapaxes(0, 1)
    sums.real, sums.imag = ((by_row @ x.swapaxes(1, 2)).swapaxes(0, 1) for x in waves)
    return sums
