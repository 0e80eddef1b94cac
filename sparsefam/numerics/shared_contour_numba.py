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

__all__ = ["compiled", "integrate_rows", "pull_back_rows"]

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
# Number of sums over the nodes by D: the value; for each axis with p half of its square, that with
# the factor 1/(z + p) or z/(z + p), the smaller one for the other to follow without cancellation;
# for each two axes that with z/((z + p)(z + q)).
_SUMS = (1, 3, 6, 10)
# From this p on the factor is z/(z + p).
_LONG = 10.0


@compiled
def _wave(log_size: Any, cycles: Any) -> Any:
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
def _principal_axes(factor: _Array, unit: float, squares: _Array, axes: _Array) -> float:
    """Compute the squared half-axes (3), in units, and axes (3, 3), in columns, of an ellipsoid.

    `factor` (D, D), D <= 3, maps the unit ball onto it. Returns the longest half-axis. Jacobi
    rotations of the axes V make the columns of factor' V orthogonal.
    """
    size, columns = len(factor), np.zeros((3, 3))
    for i in range(3):
        for k in range(3):
            axes[k, i] = i == k
            if max(i, k) < size:
                columns[k, i] = factor[i, k] / unit
    for _ in range(_JACOBI_SWEEPS if size > 1 else 0):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            a, b, c = _inner(columns, i, i), _inner(columns, j, j), _inner(columns, i, j)
            if c * c > 1e-32 * a * b:
                slope = 0.5 * (b - a) / c
                tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(1 + slope * slope))
                cosine = 1 / math.sqrt(1 + tangent * tangent)
                for x in (columns, axes):
                    for k in range(3):
                        u, v = cosine * x[k, i], cosine * x[k, j]
                        x[k, i], x[k, j] = u - tangent * v, v + tangent * u
    for i in range(3):
        squares[i] = _inner(columns, i, i)
    return math.sqrt(max(squares[0], squares[1], squares[2]))


@compiled
def _inner(columns: _Array, i: int, j: int) -> Any:
    return (
        columns[0, i] * columns[0, j]
        + columns[1, i] * columns[1, j]
        + columns[2, i] * columns[2, j]
    )


@compiled
def integrate_rows(
    loc: _Array,
    scale_tril: _Array,
    centers: _Array,
    width: float,
    contours: Any,
    least_share: float,
    values: _Array,
    active: _Array,
    axes: _Array,
    near: _Array,
    slopes: _Array,
) -> None:
    """Fill the arrays of `shared_contour.Rows`.

    Locations (R, 3) and centers (3, N) are in units of the width, zero beyond D. Values must be
    zero before, and `active` -1; slopes are computed if their array has rows. The contours are
    those of `shared_contour`. A row converges if some center has `least_share` of the largest
    expectation that a center anywhere could have.
    """
    dim, size = scale_tril.shape[1], centers.shape[1]
    lengths, counts, nodes, fronts = contours
    scale = width**-dim  # applied last, as it would make the exponents less accurate
    squares, offsets = np.empty(3), np.zeros((3, size), _F32)
    y = np.zeros((3, size + _LANES), _F32)
    sums = np.empty((_SUMS[dim] if len(slopes) else 1, size + _LANES), _F32)
    for r in range(len(loc)):
        longest = _principal_axes(scale_tril[r], width, squares, axes[r])
        if not longest <= lengths[-1]:
            continue
        p = 0
        while lengths[p] < longest:
            p += 1
        count = _near_centers(loc[r], centers, axes[r], squares, longest, dim, offsets, near[r], y)
        n = counts[p]
        factors, rates, largest = _node_terms(dim, squares, nodes[p, :n], fronts[p, :n], len(sums))
        _sum_nodes(factors, rates, dim, y, count, sums)
        top = _F32(0)
        for i in range(count):
            values[r, near[r, i]] = sums[0, i] * scale
            top = max(top, sums[0, i])
        if least_share * largest * scale <= top * scale < math.inf:
            active[r] = count
            if len(slopes):
                _write_slopes(sums, y, squares, dim, count, slopes[r])


@compiled
def _near_centers(
    loc: _Array,
    centers: _Array,
    axes: _Array,
    squares: _Array,
    longest: float,
    dim: int,
    offsets: _Array,
    near: _Array,
    y: _Array,
) -> int:
    """Write indices and offsets of the centers near a support, then zeros; return their number.

    Offsets along the axes are computed in float64, as a float32 rotation would move a distant
    center along a thin support. Far centers are told by Chernoff's bound: at any real z > 0 the
    integrand bounds the integral.
    """
    z, rates, reached = 2.5 * longest + 4, np.zeros(3, _F32), np.empty(len(near), np.bool_)
    a, b, c = loc[0], loc[1], loc[2]
    for d in range(dim):
        rates[d] = 1 / (squares[d] + 2 * z)
        u, v, w = axes[0, d], axes[1, d], axes[2, d]
        for j in range(len(near)):
            offset = u * (centers[0, j] - a) + v * (centers[1, j] - b) + w * (centers[2, j] - c)
            offsets[d, j] = offset
    a, b, c, most = rates[0], rates[1], rates[2], _F32(1 - _LOG_ZERO / z)
    for j in range(len(near)):
        u, v, w = offsets[0, j], offsets[1, j], offsets[2, j]
        reached[j] = a * u * u + b * v * v + c * w * w <= most
    count = 0
    for j in range(len(near)):
        near[count] = j
        count += reached[j]
    for d in range(dim):
        for i in range(count):
            y[d, i] = offsets[d, near[i]]
        for i in range(count, count + _LANES):
            y[d, i] = 0
    return count


@compiled
def _node_terms(dim: int, squares: _Array, nodes: _Array, fronts: _Array, n_sums: int) -> Any:
    """Return factors (S, 2 n), rates (2, 3, n), and the largest expectation of all centers.

    A node's wave has binary logarithm and phase in cycles `rates @ y**2`. Its real and imaginary
    parts are multiplied by the two halves of `factors`.
    """
    count, largest = len(nodes), 0.0
    rates, factors = np.zeros((2, 3, count), _F32), np.empty((n_sums, 2 * count), _F32)
    terms, inverse = np.empty(n_sums, np.complex128), np.empty(3, np.complex128)
    for k in range(count):
        z, front = nodes[k], fronts[k]
        for d in range(dim):
            moved = z + 0.5 * squares[d]
            size = math.sqrt(moved.real**2 + moved.imag**2)
            root = complex(
                math.sqrt(0.5 * (size + moved.real)), math.sqrt(0.5 * (size - moved.real))
            )
            front *= root.conjugate() / size
            inverse[d] = moved.conjugate() / (size * size)
            ratio = z * inverse[d]
            rates[0, d, k] = -0.5 * math.log2(math.e) * ratio.real
            rates[1, d, k] = -0.25 / math.pi * ratio.imag
        largest += front.real
        terms[0], n = front, 1
        for d in range(dim if n_sums > 1 else 0):
            ratio = front * z * inverse[d]
            terms[n] = ratio if 0.5 * squares[d] > _LONG else front * inverse[d]
            for e in range(d + 1):
                terms[n + 1 + e] = ratio * inverse[e]
            n += d + 2
        for n in range(n_sums):
            factors[n, k], factors[n, count + k] = terms[n].real, -terms[n].imag
    return factors, rates, largest


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
        waves[0, i], waves[1, i] = _wave(waves[0, i], waves[1, i])
    return waves.reshape((2 * nodes, size))


@compiled
def _write_slopes(
    sums: _Array, y: _Array, squares: _Array, dim: int, count: int, slopes: _Array
) -> None:
    """Write the derivatives in y_d and, twice, in the entries A_de, d >= e, of A = L L'."""
    n, to = 1, dim
    for d in range(dim):
        p, is_long = _F32(0.5 * squares[d]), 0.5 * squares[d] > _LONG
        for i in range(count):
            ratio = sums[n, i] if is_long else sums[0, i] - p * sums[n, i]
            inverse = (sums[0, i] - ratio) / p if is_long else sums[n, i]
            slopes[d, i] = y[d, i] * ratio
            slopes[to + d, i] = _HALF * (y[d, i] * y[d, i] * sums[n + d + 1, i] - inverse)
        for e in range(d):
            for i in range(count):
                slopes[to + e, i] = _HALF * y[d, i] * y[e, i] * sums[n + e + 1, i]
        n, to = n + d + 2, to + d + 1


@compiled
def pull_back_rows(
    grad: _Array,
    scale_tril: _Array,
    width: float,
    active: _Array,
    axes: _Array,
    near: _Array,
    slopes: _Array,
    by_loc: _Array,
    by_scale_tril: _Array,
) -> None:
    """Fill gradients in loc and scale_tril, zero before, from that in the values (R, N)."""
    dim, upstream = scale_tril.shape[1], np.empty(grad.shape[1], _F32)
    totals, by_matrix = np.empty(slopes.shape[1]), np.empty((dim, dim))
    for r in range(len(grad)):
        for i in range(active[r]):
            upstream[i] = grad[r, near[r, i]]
        for k in range(len(totals)):
            total = _F32(0)
            for i in range(active[r]):
                total += upstream[i] * slopes[r, k, i]
            totals[k] = total * width ** -(dim + 1)
        # From the axes of the support to coordinates, and from A = L L' to L.
        by_matrix[:] = 0
        for d in range(dim):
            for i in range(dim):
                by_loc[r, i] += axes[r, i, d] * totals[d]
                for e in range(dim):
                    slope = totals[dim + max(d, e) * (max(d, e) + 1) // 2 + min(d, e)]
                    for j in range(dim):
                        by_matrix[i, j] += axes[r, i, d] * slope * axes[r, j, e]
        for i in range(dim):
            for j in range(i + 1):
                for k in range(dim):
                    by_scale_tril[r, i, j] += by_matrix[i, k] * (scale_tril[r, k, j] / width)
