r"""One contour for all Gaussians of width w under an ellipsoidal density, compiled by numba.

In units of w, with $\sigma_d$ the half-axes of a support and $y_d$ the offset of a center along
them, the expectation is summed over a few nodes z of a contour:
$$E_p[N(t; c, w^2 I)] = \frac{\Gamma(m+1+D/2)}{(2\pi)^{D/2}\, 2\pi i}
\int e^z z^{-(m+1)} \prod_d (z + \sigma_d^2/2)^{-1/2}\, e^{-z y_d^2 / (2z + \sigma_d^2)}\, dz.$$

Densities (rows) are computed one by one, so that their intermediate results stay in the cache.
Every row has three axes: the half-axes and offsets beyond D are zero. Centers too far from the
support are left out.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["compiled", "integrate_rows", "principal_axes", "pull_back_rows", "wave"]

_Array = NDArray[Any]
_F32, _HALF = np.float32, np.float32(0.5)
# Sums may be reordered; NaN and infinity keep their meaning.
compiled = njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)

# Chebyshev fits on [-1/2, 1/2], highest powers first: 2^t in t; sqrt(2) cos(pi t) and
# sqrt(2) sin(pi t)/t in t^2.
_LEAST_POWER = _F32(-126)
_POWER = tuple(
    _F32(x)
    for x in (1.5469732e-4, 1.3400432e-3, 9.6180256e-3, 5.5503272e-2, 0.24022651, 0.69314721, 1)
)
_COSINE = tuple(
    _F32(math.sqrt(2) * x) for x in (0.21968961, -1.33187657, 4.05841135, -4.93479283, 1)
)
_SINE = tuple(
    _F32(math.sqrt(2) * x) for x in (0.07765766, -0.59829129, 2.55007752, -5.16771009, 3.14159264)
)
_JACOBI_SWEEPS = 6
# The logarithm of the smallest integral that is not zero: outside the support the sum diverges.
_LOG_ZERO = -13.0
# Centers in a block, whose waves fit the cache, and the vector length that blocks are multiples of.
_BLOCK, _LANES = 256, 16
# Number of sums over the nodes by D: the value; for each axis, see `_is_long`; for each two axes,
# with z/((z + p)(z + q)), where p and q are half of their squared half-axes.
_SUMS = (1, 3, 6, 10)


@compiled
def wave(log_size: Any, cycles: Any) -> Any:
    """Return 2^log_size times cosine and sine of a phase in cycles, float32, without branches."""
    size = max(log_size, _LEAST_POWER)
    whole = np.rint(size)
    rest = size - whole
    power = _POWER[0]
    for factor in _POWER[1:]:
        power = power * rest + factor
    power *= np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    # Cosine and sine of half the angle give those of the whole angle in every quadrant.
    rest = cycles - np.rint(cycles)
    square = rest * rest
    cosine, sine = _COSINE[0], _SINE[0]
    for factor in _COSINE[1:]:
        cosine = cosine * square + factor
    for factor in _SINE[1:]:
        sine = sine * square + factor
    sine *= rest
    large = power * sine
    return power - large * sine, large * cosine


@compiled
def principal_axes(factor: _Array, unit: float, squares: _Array, axes: _Array) -> float:
    """Compute the squared half-axes (3), in units, and axes (3, 3), in columns, of an ellipsoid.

    `factor` (D, D), D <= 3, maps the unit ball onto it. Returns the longest half-axis.
    """
    matrix, size = np.zeros((3, 3)), len(factor)
    for i in range(3):
        for j in range(3):
            axes[i, j] = i == j
    for i in range(size):
        for j in range(size):
            for k in range(size):
                matrix[i, j] += (factor[i, k] / unit) * (factor[j, k] / unit)
    for _ in range(_JACOBI_SWEEPS if size > 1 else 0):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            if matrix[i, j] != 0:
                _jacobi_rotation(matrix, axes, i, j)
    for i in range(3):
        squares[i] = max(matrix[i, i], 0.0)
    return math.sqrt(max(squares[0], squares[1], squares[2]))


@compiled
def _jacobi_rotation(matrix: _Array, axes: _Array, i: int, j: int) -> None:
    slope = 0.5 * (matrix[j, j] - matrix[i, i]) / matrix[i, j]
    tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1 + slope * slope))
    cosine = 1 / math.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    for k in range(3):
        x, y = matrix[k, i], matrix[k, j]
        matrix[k, i], matrix[k, j] = cosine * x - sine * y, sine * x + cosine * y
        x, y = axes[k, i], axes[k, j]
        axes[k, i], axes[k, j] = cosine * x - sine * y, sine * x + cosine * y
    for k in range(3):
        x, y = matrix[i, k], matrix[j, k]
        matrix[i, k], matrix[j, k] = cosine * x - sine * y, sine * x + cosine * y
    matrix[i, j] = matrix[j, i] = 0.0


@compiled
def integrate_rows(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    contours: _Array,
    least_share: float,
    values: _Array,
    active: _Array,
    axes: _Array,
    indices: _Array,
    slopes: _Array,
) -> int:
    """Fill the arrays of `shared_contour.Rows`, and return how many rows converged.

    Values must be zero before; slopes are computed if their array has rows. The contours are those
    of `shared_contour`. A row converges if some center has `least_share` of the largest expectation
    that a center anywhere could have.
    """
    dim, size, converged = loc.shape[1], len(centers), 0
    scale = width**-dim  # applied last, as it would make the exponents less accurate
    squares, offsets = np.empty(3), np.zeros((3, size))
    points, middles = _in_widths(centers, width), _in_widths(loc, width)
    y = np.zeros((3, size + _LANES), _F32)
    sums = np.empty((_SUMS[dim] if len(slopes) else 1, size + _LANES), _F32)
    for r in range(len(loc)):
        longest = principal_axes(scale_tril[r], width, squares, axes[r])
        p = _first_contour(contours, longest)
        if p < 0:
            continue
        _project(middles[:, r], points, dim, axes[r], offsets)
        offsets32 = offsets.astype(_F32)
        count = _gather(dim, squares, longest, offsets32, indices[r], y)
        nodes = int(contours[p, 0, 1])
        factors, rates, largest = _node_terms(dim, squares, contours[p, 1:], nodes, len(sums))
        _sum_nodes(factors, rates, dim, y, count, sums)
        top = _F32(0)
        for i in range(count):
            values[r, indices[r, i]] = sums[0, i] * scale
            top = max(top, sums[0, i])
        if least_share * largest * scale <= top * scale < math.inf:
            active[r] = count
            converged += 1
            if len(slopes):
                _write_slopes(sums, y, squares, count, dim, slopes[r])
    return converged


@compiled
def _first_contour(contours: _Array, longest: float) -> int:
    """Return the index of the first contour that serves half-axes of this length, or -1."""
    for p in range(len(contours)):
        if longest <= contours[p, 0, 0]:
            return p
    return -1


@compiled
def _in_widths(points: _Array, width: float) -> _Array:
    """Return points (N, D) as (3, N), float64, in units of the width."""
    result = np.zeros((3, len(points)))
    for d in range(points.shape[1]):
        for j in range(len(points)):
            result[d, j] = np.float64(points[j, d]) / width
    return result


@compiled
def _project(loc: _Array, centers: _Array, dim: int, axes: _Array, offsets: _Array) -> None:
    """Compute the offsets of the centers along the axes of a support.

    In float64, as a float32 rotation would move a distant center along a thin support.
    """
    a, b, c = loc[0], loc[1], loc[2]
    for d in range(dim):
        u, v, w = axes[0, d], axes[1, d], axes[2, d]
        for j in range(centers.shape[1]):
            offset = u * (centers[0, j] - a) + v * (centers[1, j] - b) + w * (centers[2, j] - c)
            offsets[d, j] = offset


@compiled
def _gather(
    dim: int, squares: _Array, longest: float, offsets: _Array, indices: _Array, y: _Array
) -> int:
    """Write indices and offsets of the centers near a support, then zeros; return their number.

    By Chernoff's bound: at any real z > 0 the integrand bounds the integral.
    """
    z, rates, near = 2.5 * longest + 4, np.zeros(3, _F32), np.empty(len(indices), np.bool_)
    for d in range(dim):
        rates[d] = 1 / (squares[d] + 2 * z)
    a, b, c, most = rates[0], rates[1], rates[2], _F32(1 - _LOG_ZERO / z)
    for j in range(len(near)):
        u, v, w = offsets[0, j], offsets[1, j], offsets[2, j]
        near[j] = a * u * u + b * v * v + c * w * w <= most
    count = 0
    for j in range(len(near)):
        indices[count] = j
        count += near[j]
    for d in range(dim):
        for i in range(count):
            y[d, i] = offsets[d, indices[i]]
        for i in range(count, count + _LANES):
            y[d, i] = 0
    return count


@compiled
def _is_long(p: float) -> bool:
    r"""Return whether the factor z/(z + p) is summed for an axis, and not 1/(z + p).

    As z/(z + p) = 1 - p/(z + p), one sum follows from the other and the value. To avoid
    cancellation, the smaller one of z/(z + p) and p/(z + p) is summed.
    """
    return p > 10.0


@compiled
def _node_terms(dim: int, squares: _Array, contour: _Array, count: int, n_sums: int) -> Any:
    """Return factors (S, 2 n), rates (2, 3, n), and the largest expectation of all centers.

    A node's wave has binary logarithm and phase in cycles `rates @ y**2`. Its real and imaginary
    parts are multiplied by the two halves of `factors`.
    """
    front, inverse, ratio = np.empty((2, count)), np.empty((3, 2, count)), np.empty((3, 2, count))
    product = np.empty((2, count))
    rates, factors = np.zeros((2, 3, count), _F32), np.empty((n_sums, 2 * count), _F32)
    for k in range(count):
        front[0, k], front[1, k] = contour[2, k], contour[3, k]
    for d in range(dim):
        _axis_terms(0.5 * squares[d], contour, front, inverse[d], ratio[d])
        for k in range(count):
            rates[0, d, k] = -0.5 * math.log2(math.e) * ratio[d, 0, k]
            rates[1, d, k] = -0.25 / math.pi * ratio[d, 1, k]
    largest = 0.0
    for k in range(count):
        largest += front[0, k]
        factors[0, k], factors[0, count + k] = front[0, k], -front[1, k]
    n = 1
    for d in range(dim if n_sums > 1 else 0):
        own = ratio[d] if _is_long(0.5 * squares[d]) else inverse[d]
        _write_product(front, own, factors[n])
        for k in range(count):
            f, g, u, v = front[0, k], front[1, k], inverse[d, 0, k], inverse[d, 1, k]
            product[0, k], product[1, k] = f * u - g * v, f * v + g * u
        for e in range(d + 1):
            _write_product(product, ratio[e], factors[n + e + 1])
        n += d + 2
    return factors, rates, largest


@compiled
def _axis_terms(p: float, contour: _Array, front: _Array, inverse: _Array, ratio: _Array) -> None:
    """Compute 1/(z + p) and z/(z + p), and divide the factors by the root of z + p."""
    for k in range(front.shape[1]):
        x, y = contour[0, k], contour[1, k]
        moved = x + p
        size = math.sqrt(moved * moved + y * y)
        shrink = 1 / size
        u, v = moved * shrink * shrink, -y * shrink * shrink
        inverse[0, k], inverse[1, k] = u, v
        ratio[0, k], ratio[1, k] = x * u - y * v, y * u + x * v
        large = math.sqrt(0.5 * (size + abs(moved)))
        small = 0.5 * y / large
        real, imag = (large, small) if moved >= 0 else (small, large)
        f, g = front[0, k] * shrink, front[1, k] * shrink
        front[0, k], front[1, k] = f * real + g * imag, g * real - f * imag


@compiled
def _write_product(first: _Array, second: _Array, factors: _Array) -> None:
    count = first.shape[1]
    for k in range(count):
        f, g, u, v = first[0, k], first[1, k], second[0, k], second[1, k]
        factors[k], factors[count + k] = f * u - g * v, -f * v - g * u


@compiled
def _sum_nodes(
    factors: _Array, rates: _Array, dim: int, y: _Array, count: int, sums: _Array
) -> None:
    """Sum the waves of all nodes, times their factors, for the first `count` centers."""
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, -(-(count - start) // _LANES) * _LANES)
        total = np.dot(factors, _waves(rates, dim, y, start, size))
        for n in range(len(sums)):
            for i in range(size):
                sums[n, start + i] = total[n, i]


@compiled
def _waves(rates: _Array, dim: int, y: _Array, start: int, size: int) -> Any:
    """Return cosines, then sines (2 n, N), of a block of centers."""
    nodes = rates.shape[2]
    waves = np.empty((2, nodes * size), _F32)
    real, imag = waves[0].reshape((nodes, size)), waves[1].reshape((nodes, size))
    squares = np.zeros((3, size), _F32)
    for d in range(dim):
        for i in range(size):
            squares[d, i] = y[d, start + i] * y[d, start + i]
    for k in range(nodes):
        a, b, c = rates[0, 0, k], rates[0, 1, k], rates[0, 2, k]
        d, e, f = rates[1, 0, k], rates[1, 1, k], rates[1, 2, k]
        for i in range(size):
            real[k, i] = a * squares[0, i] + b * squares[1, i] + c * squares[2, i]
            imag[k, i] = d * squares[0, i] + e * squares[1, i] + f * squares[2, i]
    for i in range(nodes * size):
        waves[0, i], waves[1, i] = wave(waves[0, i], waves[1, i])
    return waves.reshape((2 * nodes, size))


@compiled
def _write_slopes(
    sums: _Array, y: _Array, squares: _Array, count: int, dim: int, slopes: _Array
) -> None:
    """Write the derivatives in y_d and, twice, in the entries A_de of the ellipsoid's matrix."""
    n, to = 1, 0
    for d in range(dim):
        p = _F32(0.5 * squares[d])
        long = _is_long(0.5 * squares[d])
        for i in range(count):
            ratio, half_inverse = sums[n, i], _HALF * sums[n, i]
            if long:
                half_inverse = _HALF * (sums[0, i] - ratio) / p
            else:
                ratio = sums[0, i] - p * ratio
            slopes[to, i] = y[d, i] * ratio
            slopes[to + d + 1, i] = _HALF * y[d, i] * y[d, i] * sums[n + d + 1, i] - half_inverse
        for e in range(d):
            for i in range(count):
                slopes[to + e + 1, i] = _HALF * y[d, i] * y[e, i] * sums[n + e + 1, i]
        n, to = n + d + 2, to + d + 2


@compiled
def pull_back_rows(
    grad: _Array,
    scale_tril: _Array,
    width: float,
    active: _Array,
    axes: _Array,
    indices: _Array,
    slopes: _Array,
    by_loc: _Array,
    by_scale_tril: _Array,
) -> None:
    """Fill gradients in loc and scale_tril, zero before, from that in the values (R, N)."""
    dim, upstream = scale_tril.shape[1], np.empty(grad.shape[1], _F32)
    by_y, by_matrix, scale = np.zeros(3), np.zeros((3, 3)), width ** -(dim + 1)
    for r in range(len(grad)):
        for i in range(active[r]):
            upstream[i] = grad[r, indices[r, i]]
        n = 0
        for d in range(dim):
            by_y[d] = _dot(upstream, slopes[r, n], active[r])
            n += 1
            for e in range(d + 1):
                by_matrix[d, e] = by_matrix[e, d] = _dot(upstream, slopes[r, n], active[r])
                n += 1
        if active[r] > 0:
            _rotate_back(
                axes[r], by_y, by_matrix, width, scale, scale_tril[r], by_loc[r], by_scale_tril[r]
            )


@compiled
def _dot(x: _Array, y: _Array, count: int) -> Any:
    total = _F32(0)
    for i in range(count):
        total += x[i] * y[i]
    return total


@compiled
def _rotate_back(
    axes: _Array,
    by_y: _Array,
    by_matrix: _Array,
    unit: float,
    scale: float,
    factor: _Array,
    by_loc: _Array,
    by_factor: _Array,
) -> None:
    """Rotate gradients in y, and twice in A = L L', from the axes of a support to loc and L."""
    dim = len(factor)
    rotated = np.zeros((3, 3))
    for i in range(dim):
        total = 0.0
        for d in range(dim):
            total += axes[i, d] * by_y[d]
            for e in range(dim):
                for j in range(dim):
                    rotated[i, j] += axes[i, d] * by_matrix[d, e] * axes[j, e]
        by_loc[i] = total * scale
    for i in range(dim):
        for j in range(i + 1):
            total = 0.0
            for k in range(dim):
                total += rotated[i, k] * factor[k, j]
            by_factor[i, j] = total * (scale / unit)
