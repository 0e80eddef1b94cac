"""Characteristic functions, moments and quadrature rules of elliptical densities."""

import math
from itertools import combinations
from typing import TypeVar

import numpy as np
import scipy  # loads its submodules lazily, which keeps `import sparsefam` quick
import torch
from torch import Tensor

from .quadrature import MAKERS, Numbers, table
from .special import characteristic

__all__ = [
    "REPLICATES",
    "direction_rule",
    "elliptical_moments",
    "orthogonalize",
    "radial_characteristic",
    "radial_count",
    "radial_rule",
]


# Terms of the power series below |rho| = 1.
_TERMS = {torch.float32: 5, torch.float64: 9}


def radial_characteristic(square: Tensor, nu: Tensor) -> Tensor:
    r"""Evaluate `characteristic` as a smooth function of $\rho^2$.

    Args:
        square: $\rho^2 = |L^\top w|^2$; broadcasts with `nu` and gives the dtype.
        nu: $\nu \ge 1/2$.
    """
    # The function vanishes at infinity as it does at the largest number.
    square = square.clamp(max=torch.finfo(square.dtype).max / 4)
    near = square < 1
    x = torch.where(near, square, 0.0) / 4
    # 0F1(; nu + 1; -x) = 1 - x/(nu + 1) (1 - x/(2 (nu + 2)) (1 - ...)).
    series = torch.ones_like(x * nu)
    for k in range(_TERMS[square.dtype], 0, -1):
        series = 1 - series * x / (k * (nu + k))
    return torch.where(near, series, characteristic(torch.where(near, 1.0, square).sqrt(), nu))


def elliptical_moments(
    loc: Tensor, spread: Tensor, factors: Tensor, exponents: Tensor, lowered: Tensor
) -> Tensor:
    r"""Return $E_0[t_1^{k_1} \cdots t_D^{k_D}]$ for all monomials up to a degree d, (*batch, N).

    $$E_s[t_i\,t^k] = \mu_i\,E_s[t^k] + c_s \sum_j A_{ij}\,k_j\,E_{s+1}[t^{k - e_j}]$$

    This is Stein's identity, an integration by parts. $E_s$ is the expectation if the exponent of
    the density is larger by s. Nothing is subtracted, so that derivatives in the spread are
    accurate far from the origin.

    Args:
        loc: $\mu$, (*batch, D).
        spread: $A$, (*batch, D, D).
        factors: $c_0, c_1, \dots$, d // 2 of them, (*batch, d // 2).
        exponents: The k of each monomial, ordered by total degree, (N, D).
        lowered: The row of $k - e_j$, or 0 if $k_j = 0$, (N, D).
    """
    # The first monomial of each total degree, and the number of all: comb(n + D, D) up to degree n.
    ends, (count, ndim) = [0], exponents.shape
    while ends[-1] < count:
        ends.append(math.comb(len(ends) - 1 + ndim, ndim))
    # Moments E_s of the last two degrees, (*batch, levels of s, monomials).
    ones = torch.ones_like(loc[..., :1]).unsqueeze(-1)
    older = current = ones.expand(*loc.shape[:-1], factors.shape[-1] + 1, 1)
    by_degree = [current[..., 0, :]]
    for degree in range(1, len(ends) - 1):
        # Monomials t_i t^k of this degree from t^k and t^(k - e_j), of the two degrees before.
        rows, levels = slice(ends[degree], ends[degree + 1]), (len(ends) - 2 - degree) // 2 + 1
        # E_s serves E_{s-1} two degrees up: of the last two degrees only E_0 is needed.
        # A monomial is t_i t^k, where i is the axis of its largest exponent, and t^k its parent.
        axis = exponents[rows].argmax(-1)
        parent = lowered[rows].gather(-1, axis.unsqueeze(-1)).squeeze(-1)
        moments = _times(loc[..., None, axis], current[..., :levels, parent - ends[degree - 1]])
        if degree > 1:
            slopes = _times(exponents[parent].to(spread), spread[..., axis, :])
            reduced = older[..., 1:, (lowered[parent] - ends[degree - 2]).clamp_min(0)]
            derivatives = _times(slopes.unsqueeze(-3), reduced).sum(-1)
            moments = moments + factors[..., :levels, None] * derivatives
        older, current = current, moments
        by_degree.append(current[..., 0, :])
    return torch.cat(by_degree, -1)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Multiply with the convention that zero times infinity is zero."""
    none = ((x == 0) & y.isinf()) | ((y == 0) & x.isinf())
    return torch.where(none, 0.0, x) * torch.where(none, 0.0, y)


# Beyond this dimension a product of angular rules has too many nodes.
_PRODUCT_DIM = 3
# Independent sets of quasi-random directions there, whose spread estimates the error.
REPLICATES = 8
# Iterations after which eight directions per dimension form a tight frame.
_FRAME_ROUNDS = 80
# Jacobi sweeps after which the columns of a matrix are orthogonal to rounding, by their number.
_SWEEPS = {1: 0, 2: 1, 3: 4}
# Chebyshev polynomials that tabulate the roots: with 32 of them the error is at most 1e-4 of the
# distance between roots, even for 257 roots, and two Newton steps reduce it to rounding.
_TABLE = 32

_Array = TypeVar("_Array", Tensor, Numbers)


def orthogonalize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the right singular vectors V (*batch, D, D) of a matrix and its singular values.

    Gradients do not flow through V: results must not depend on the order of the vectors. Up to
    three dimensions nothing waits for a device.

    Args:
        matrix: (*batch, R, D).
    """
    if matrix.shape[-1] in _SWEEPS:
        return _rotate_columns(matrix)
    _, lengths, rotation = torch.linalg.svd(matrix, full_matrices=False)
    return rotation.mT, lengths


def _rotate_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return `orthogonalize` by Jacobi rotations of pairs of columns, accurate for short ones."""
    count, dim = matrix.shape[-2:]
    unit = torch.eye(dim, dtype=matrix.dtype, device=matrix.device)
    both = torch.cat([matrix, unit.expand(*matrix.shape[:-2], dim, dim)], -2)
    # Components come first, so that sums over them are sums of long rows.
    columns = list(both.movedim((-2, -1), (1, 0)).contiguous())
    least = torch.finfo(matrix.dtype).tiny  # keeps 0 / 0 away
    for i, j in _SWEEPS[dim] * tuple(combinations(range(dim), 2)):
        x, y = columns[i], columns[j]
        u, v = x[:count], y[:count]
        overlap = 2 * (u * v).sum(0)
        longer = (v * v).sum(0) - (u * u).sum(0)
        # The smaller root of t^2 + t (|v|^2 - |u|^2) / (u'v) - 1 = 0 makes the pair orthogonal.
        tangent = overlap / torch.copysign(torch.hypot(overlap, longer) + least, longer).add(longer)
        cosine = (1 + tangent * tangent).rsqrt()
        x, y = x * cosine, y * cosine
        columns[i], columns[j] = x - tangent * y, y + tangent * x
    turned = torch.stack(columns, -1).movedim(0, -2)
    return turned[..., count:, :], torch.linalg.vector_norm(turned[..., :count, :], dim=-2)


def radial_count(dim: int, order: int) -> int:
    """Return the number of radii that matches `direction_rule(dim, order)`.

    Up to three dimensions even polynomials of degree `order` are exact; beyond, half as many radii.
    """
    return order // (4 if dim <= _PRODUCT_DIM else 8) + 1


def direction_rule(dim: int, order: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return unit vectors (K, D) in opposite pairs and weights (K,) that sum to one.

    Up to three dimensions the rule is exact for polynomials of degree `order`: equidistant angles,
    times a Gauss rule in the height in three dimensions. Beyond, it consists of `REPLICATES`
    independent quasi-random sets, each adjusted to be a tight frame and so exact to degree 3.

    Args:
        dim: D.
        order: Degree; beyond three dimensions a set has 4 order directions, and at least 16 D.
        like: A tensor of the dtype and device of the result.
    """
    rule = table("directions", (dim, order), like)
    return rule[:, :dim], rule[:, dim]


def radial_rule(count: int, dim: int, exponent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return radii and weights (count, *batch) for $|u|$ under $(1 - |u|^2)_+^m$.

    The Gauss-Jacobi rule for $y = |u|^2 \sim \mathrm{Beta}(D/2, m + 1)$, exact for even polynomials
    of degree $4\,\text{count} - 2$ in $|u|$ and twice differentiable in the exponent. At
    $m = 10^{16}$ it is the Gauss-Laguerre rule for $m |u|^2$ to rounding.

    Args:
        count: Number of radii.
        dim: D.
        exponent: $m \ge 0$ (*batch).

    References:
        Golub and Welsch (1969), Calculation of Gauss quadrature rules. Math. Comp. 23.
    """
    m = exponent.double()
    k = torch.arange(1, count + 1, dtype=m.dtype, device=m.device).reshape(-1, *(1,) * m.dim())
    first, middles, spreads = _recurrence(k, dim / 2, m)
    steps = torch.cat([first.expand(1, *m.shape), middles[:-1]]), spreads.sqrt()
    # Chebyshev series in m give approximate roots.
    middle, at = 2 * count + dim / 2, m.detach()
    degrees = torch.arange(_TABLE, dtype=m.dtype, device=m.device)
    angles = torch.arccos(((at - middle) / (at + middle)).clamp(-1, 1)).unsqueeze(-1)
    scaled = torch.cos(degrees * angles) @ table("roots", (dim, count), at)
    y = (scaled.square() / (at + middle).unsqueeze(-1)).movedim(-1, 0)
    # Two Newton steps carry first and second derivatives of the roots, see `attach_root_gradient`.
    for _ in range(2):
        value, slope, _ = _orthonormal(y, *steps)
        y = y - value / slope
    # Gauss weights are reciprocal sums of squared orthonormal polynomials (Christoffel numbers).
    _, _, squares = _orthonormal(y, *steps)
    return y.sqrt().to(exponent.dtype), squares.reciprocal().to(exponent.dtype)


def _recurrence(k: _Array, shape: float, m: _Array) -> tuple[_Array, _Array, _Array]:
    r"""Return $a_0$, $a_k$ and $b_k$ of the orthogonal polynomials of $\mathrm{Beta}(a, m + 1)$.

    $\sqrt{b_{k+1}}\,p_{k+1} = (y - a_k) p_k - \sqrt{b_k}\,p_{k-1}$, without the cancellation of
    the textbook form at large $m$.

    Args:
        k: 1, 2, ..., which broadcasts against m.
        shape: The a of the beta density.
        m: Its exponent.
    """
    total = m + (shape - 1)
    s = 2 * k + total
    middles = (2 * k * (k + total + 1) + total * shape) / (s * (s + 2))
    spreads = (k / s) * ((k + m) / s) * ((k + (shape - 1)) / (s + 1)) * ((k + total) / (s - 1))
    return shape / (total + 2), middles, spreads


def _orthonormal(y: Tensor, centers: Tensor, spreads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Evaluate the last orthonormal polynomial $p_n$, its derivative, and $\sum_{k < n} p_k^2$.

    The recurrence is $\sqrt{b_{k+1}}\,p_{k+1} = (y - a_k) p_k - \sqrt{b_k}\,p_{k-1}$, $p_0 = 1$.

    Args:
        y: Locations (count, *batch).
        centers: $a_0, \dots, a_{n-1}$, (n, *batch).
        spreads: $\sqrt{b_1}, \dots, \sqrt{b_n}$, (n, *batch).
    """
    value, slope = torch.ones_like(y), torch.zeros_like(y)
    last = last_slope = squares = torch.zeros_like(y)
    below = torch.zeros_like(spreads[0])
    for a, b in zip(centers, spreads, strict=True):
        squares = squares + value.square()
        following = ((y - a) * value - below * last) / b
        following_slope = (value + (y - a) * slope - below * last_slope) / b
        last, last_slope, value, slope, below = value, slope, following, following_slope, b
    return value, slope, squares


def _roots(dim: int, count: int) -> Numbers:
    r"""Expand $\sqrt{(m + c) y_i(m)}$ in polynomials of $(m - c)/(m + c)$, (_TABLE, count).

    The roots are eigenvalues of the Jacobi matrix. Scaled like this they are smooth functions up to
    $m = \infty$, where they are roots of Laguerre polynomials.
    """
    middle = 2 * count + dim / 2
    angles = (np.arange(_TABLE) + 0.5) * np.pi / _TABLE
    m = middle * (1 + np.cos(angles)) / (1 - np.cos(angles))
    first, middles, spreads = _recurrence(np.arange(1, count + 1), dim / 2, m[:, None])
    matrix = np.zeros((_TABLE, count, count))
    i = np.arange(count)
    matrix[:, i, i] = np.concatenate([first, middles[:, :-1]], 1)
    matrix[:, i[1:], i[:-1]] = np.sqrt(spreads[:, :-1])  # eigvalsh reads the lower triangle
    roots = np.linalg.eigvalsh(matrix * (m + middle)[:, None, None]).clip(0)
    # Cosines of Chebyshev angles are orthogonal in sums, too, which gives the coefficients.
    waves = np.cos(np.arange(_TABLE)[:, None] * angles) * 2 / _TABLE
    waves[0] /= 2
    return waves @ np.sqrt(roots)


def _directions(dim: int, order: int) -> Numbers:
    """Return directions and weights side by side, (K, D + 1)."""
    if dim == 1:
        return np.array([[1.0, 0.5], [-1.0, 0.5]])
    if dim == 2:
        circle = _circle(order)
        return np.column_stack([circle, np.full(len(circle), 1 / len(circle))])
    if dim == _PRODUCT_DIM:
        circle = _circle(order)
        z, weights = scipy.special.roots_legendre(order // 2 + 1)
        z, masses = np.repeat(z, len(circle)), np.repeat(weights / 2 / len(circle), len(circle))
        across = np.sqrt(1 - z**2)[:, None] * np.tile(circle, (order // 2 + 1, 1))
        return np.column_stack([across, z, masses])
    frames = np.concatenate([_tight_frame(dim, order, seed) for seed in range(REPLICATES)])
    return np.column_stack([frames, np.full(len(frames), 1 / len(frames))])


def _circle(order: int) -> Numbers:
    """Return equidistant points on a half-circle and their opposites, (2 (order // 2 + 1), 2)."""
    half = np.arange(order // 2 + 1) * np.pi / (order // 2 + 1)
    upper = np.stack([np.cos(half), np.sin(half)], -1)
    return np.concatenate([upper, -upper])


def _tight_frame(dim: int, order: int, seed: int) -> Numbers:
    """Return a shifted Kronecker sequence on the sphere with its opposites, exact to degree 3.

    Alternating between unit length and exact second moments divides the error for Gaussians by 10
    to 1000. Scrambled Sobol points have errors 1.1 to 1.5 times as large.
    """
    count = 2 ** math.ceil(math.log2(max(2 * order, 8 * dim)))
    # The root of ratio^(D + 1) = 1 + ratio, the generalized golden ratio (Roberts, 2018), by
    # iteration until it stays.
    ratio = 2.0
    for _ in range(60):
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = np.arange(count)[:, None] * ratio ** -np.arange(1.0, dim + 1)
    uniform = (steps + np.random.default_rng(seed).random(dim)) % 1
    x = scipy.special.ndtri(uniform.clip(1e-12, 1 - 1e-12))
    for _ in range(_FRAME_ROUNDS):
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        x = np.linalg.solve(np.linalg.cholesky(x.T @ x * (dim / count)), x.T).T
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return np.concatenate([x, -x])


MAKERS.update(directions=_directions, roots=_roots)
