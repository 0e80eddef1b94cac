"""Reference values for the accuracy tables, without code or methods of the package.

* In 1-D: tanh-sinh quadrature in extended precision.
* On ellipsoids: a contour integral along the path of steepest descent, in extended precision.
* Kernel families: Gauss-Legendre rules between the exact edges of each support, in float64.
* Divergences in the plane: a product rule in polar coordinates, in float64.
* Truncated densities: adaptive tanh-sinh quadrature by mpmath with 40 digits.

Inputs are numbers that float32 holds and are taken as exact, so that the tables show errors of the
package's arithmetic and not of rounding its inputs. Extended precision is numpy's longdouble, with
64 bits on x86-64 and 53 where the processor has no more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

import sparsefam as sf

__all__ = [
    "ANY_ALPHA",
    "CLOSED",
    "Extended",
    "Family",
    "Integrals",
    "KernelTruth",
    "LAWS",
    "Law",
    "ball_integrals",
    "cholesky",
    "divergences",
    "extended",
    "kernel_truth",
    "line_integrals",
    "truncated_truth",
]

Array = NDArray[np.float64]
Extended = NDArray[np.longdouble]
Complex = NDArray[np.clongdouble]


def extended(x: mp.mpf) -> np.longdouble:
    """Convert a number with all the digits that fit."""
    return np.longdouble(mp.nstr(x, 25))


# One dimension


@dataclass(frozen=True)
class Family:
    """Densities C (1 - |x|^order)^exponent of x = (t - loc)/scale in [-1, 1].

    Attributes:
        name: Its name in tables.
        order: 2 for beta-Gaussians, 1 for triangular densities.
        exponent: 1/(alpha - 1).
        build: Builds the density from loc and scale.
        from_score: Builds it from loc and sigma (or b), the scale of -|t - loc|^k / (k sigma^k).
    """

    name: str
    order: int
    exponent: float
    build: Callable[[Tensor, Tensor], sf.SymmetricDistribution]
    from_score: Callable[[Tensor, Tensor], sf.SymmetricDistribution]

    @property
    def constant(self) -> np.longdouble:
        """The normalising constant C at scale 1."""
        with mp.workdps(30):
            k, m = mp.mpf(self.order), mp.mpf(self.exponent)
            return extended(k * mp.gammaprod([m + 1 + 1 / k], [1 / k, m + 1]) / 2)

    @property
    def score_power(self) -> float:
        """The power q in scale = factor sigma^q."""
        km = self.order * self.exponent
        return km / (km + 1)

    def sigma(self, scale: float) -> float:
        """Return sigma (or b) at a scale s, from s^(km + 1) = C (km)^m sigma^(km)."""
        km = self.order * self.exponent
        power = np.longdouble(scale) ** (km + 1) / (self.constant * km**self.exponent)
        return float(power ** (1 / np.longdouble(km)))


def _beta_gaussian(name: str, alpha: float) -> Family:
    exponent = 1 / (alpha - 1)
    if abs(exponent - round(exponent)) < 1e-12 * exponent:
        exponent = round(exponent)  # 4/3 - 1 is not 1/3 in floating point
    return Family(
        name,
        2,
        exponent,
        lambda loc, scale: sf.BetaGaussian(loc, scale, alpha),
        lambda loc, sigma: sf.BetaGaussian.from_sigma(loc, sigma, alpha),
    )


CLOSED = (
    _beta_gaussian("α = 4/3", 4 / 3),
    _beta_gaussian("α = 3/2", 1.5),
    Family("α = 2", 2, 1, sf.TruncatedParabola, sf.TruncatedParabola.from_sigma),
    _beta_gaussian("α = ∞", math.inf),
    Family("triangular", 1, 1, sf.Triangular, sf.Triangular.from_b),
)
ANY_ALPHA = tuple(_beta_gaussian(f"α = {alpha}", alpha) for alpha in (1.05, 1.1, 1.7, 3.0))
# Beyond this many widths exp(-y^2/2) is 1e-43.
_CUT = 14.0


def line_integrals(
    family: Family, loc: float, scale: float, centers: Array, width: float
) -> Extended:
    r"""Return $E_p[N(t; c, w^2)]$ and its derivatives in loc and scale, (3, N).

    The variable is $y = (t - c)/w$. The rule is cut at the edges of the support, at its centre and
    at the peak of the Gaussian; distances from the edges are computed without cancellation.
    """
    mu, s, w = (np.longdouble(x) for x in (loc, scale, width))
    middle = (mu - centers.astype(np.longdouble)) / w
    low, high = middle - s / w, middle + s / w
    cuts = np.stack([low, np.clip(0, low, high), middle, high])
    cuts = np.sort(cuts.clip(-_CUT, _CUT), axis=0)
    left, length = cuts[:-1, :, None], np.diff(cuts, axis=0)[:, :, None]
    share, rest, weights = _tanh_sinh()
    y = left + length * share
    # 1 - x and 1 + x.
    below = (high[:, None] - left - length + length * rest) * (w / s)
    above = (left - low[:, None] + length * share) * (w / s)
    base = below * above if family.order == 2 else np.minimum(below, above)
    density = base.clip(0) ** np.longdouble(family.exponent)
    mass = length * weights * density * np.exp(-(y**2) / 2)
    x = (above - below) / 2
    total = np.stack([mass, -mass * y / w, -mass * x * y / w]).sum((1, -1))
    front = family.constant / (s * np.sqrt(2 * extended(mp.pi)))
    return front * total


def _tanh_sinh(step: float = 1 / 32, count: int = 120) -> tuple[Extended, Extended, Extended]:
    """Return nodes x, 1 - x and weights of the tanh-sinh rule on [0, 1]."""
    u = np.arange(-count, count + 1).astype(np.longdouble) * step
    pi = extended(mp.pi)
    share, rest = (1 / (1 + np.exp(sign * pi * np.sinh(u))) for sign in (-1, 1))
    return share, rest, step * pi * np.cosh(u) * share * rest


# Ellipsoids: averages over the unit ball along the path of steepest descent

# The rule's step, and its end, where exp(-tau^2) is 1e-20.
_STEP, _END = 1 / 8, 6.75
_NEWTON, _HALVINGS, _SWEEPS = 3, 80, 12


@dataclass(frozen=True)
class Integrals:
    r"""Expectations r of N Gaussians under each of B densities, and their derivatives.

    Attributes:
        value: r, (B, N).
        by_loc: In loc, (B, N, D).
        by_scale_tril: In the lower triangle of scale_tril, (B, N, D, D).
        by_covariance: In the Gaussians' symmetric covariances, (B, N, D, D).
        by_exponent: In m, (B, N).
    """

    value: Extended
    by_loc: Extended
    by_scale_tril: Extended
    by_covariance: Extended
    by_exponent: Extended


def ball_integrals(
    loc: Extended, scale_tril: Extended, centers: Extended, factors: Extended, exponent: float
) -> Integrals:
    """Integrate N Gaussians under each of B densities C (1 - |x|^2)^m on ellipsoids.

    Args:
        loc: (B, D).
        scale_tril: (B, D, D).
        centers: (B, N, D).
        factors: Lower triangular roots of the covariances, (B, N, D, D), or standard deviations
            (B, N).
        exponent: m >= 0.
    """
    dim, shape = loc.shape[-1], centers.shape[:2]
    inverse = _invert(scale_tril)[:, None]
    full = factors.ndim == 4
    turns, scales = _singular_vectors(inverse @ factors if full else inverse)
    lam = (scales if full else scales * factors[..., None]) ** 2
    axes = _transposed(turns) @ inverse  # to the frame in which all matrices are diagonal
    b = (axes @ (centers - loc[:, None])[..., None])[..., 0]
    value, z, weights = descent(lam.reshape(-1, dim), b.reshape(-1, dim), exponent)
    z, weights = (x.reshape(-1, *shape) for x in (z, weights))

    def average(f: Complex) -> Extended:
        """Average a function of z, (nodes, B, N, ...)."""
        expanded = weights.reshape(*weights.shape, *(1,) * (f.ndim - 3))
        return (expanded * f).imag.sum(0)

    # Derivatives of a Gaussian of b with covariance 1/pull in its mean and its covariance.
    pull = 2 * z[..., None] / (1 + 2 * z[..., None] * lam)
    push = pull * b
    bend = push[..., :, None] * push[..., None, :] - pull[..., None] * np.eye(dim)
    with mp.workdps(30):
        m, half = mp.mpf(exponent), mp.mpf(dim) / 2
        constant = extended(mp.gammaprod([m + 1 + half], [m + 1]) / mp.pi**half)
        rise = extended(mp.digamma(m + 1 + half))
    volume = np.prod(np.diagonal(scale_tril, axis1=-2, axis2=-1), -1)
    value = value.reshape(shape) * constant / volume[:, None]
    size, back = value[..., None, None], _transposed(axes)
    in_ball = average(bend / (4 * z[..., None, None]))
    by_tril = 2 * size * (_transposed(inverse) @ (turns @ in_ball @ _transposed(turns)))
    return Integrals(
        value,
        size[..., 0] * (back @ average(push)[..., None])[..., 0],
        np.tril(by_tril),
        size * (back @ average(bend / 2) @ axes),
        value * (rise - average(np.log(z))),
    )


def descent(lam: Extended, b: Extended, exponent: float) -> tuple[Extended, Complex, Complex]:
    r"""Integrate over $x_k \sim N(b_k, \lambda_k)$, given (P, D), and an exponent m >= 0.

    $$E[(1 - |x|^2)_+^m] = \frac{\Gamma(m+1)}{2\pi i} \int e^{\phi(z)}\,dz, \qquad
    \phi = z - (m+1)\log z - \tfrac12 \sum_k \log(1 + 2 z \lambda_k)
    - \sum_k \frac{z b_k^2}{1 + 2 z \lambda_k}$$
    around the negative axis. Along the path on which $\phi$ is real and falls by $\tau^2$ the
    integrand is $e^{-\tau^2}$ times a smooth function, for which the midpoint rule converges to the
    last bit.

    Returns:
        The expectations (P,), the nodes z, and weights such that the average of a function f of z
        is the imaginary part of sum(weights f); nodes and weights are (n, P).
    """
    top = np.longdouble(exponent) + 1
    z = _saddle(lam, b, top)
    phase = _Phase(lam, b, top, z)
    taus = ((np.arange(int(_END / _STEP)) + np.longdouble(0.5)) * _STEP).reshape(-1, 1)
    # Follow the path in double precision, which is thirty times as fast, then correct all nodes.
    double = _Phase(*(np.float64(x) for x in (lam, b, top, z)))
    path = [1j * _STEP / 2 * np.sqrt(2 / double.curvature)]
    for tau in np.float64(taus[:, 0]):
        if tau > _STEP:
            path.append(double.advanced(path[-1], tau - _STEP))
        for _ in range(_NEWTON):
            path[-1] = double.nearer(path[-1], tau)
    nodes = phase.nearer(np.stack(path).astype(np.clongdouble), taus)
    steps = -2 * _STEP * taus * np.exp(-(taus**2)) / phase.slope(nodes)
    total = steps.imag.sum(0)
    log_gamma = extended(mp.loggamma(mp.mpf(exponent) + 1))
    value = np.exp(log_gamma + phase.start + np.log(z * total / extended(mp.pi)))
    return value, z * (1 + nodes), steps / total


def _saddle(lam: Extended, b: Extended, top: np.longdouble) -> Extended:
    """Return the minimum of phi on the positive axis, by bisection of its logarithm."""

    def below(z: Extended) -> NDArray[np.bool_]:
        grown = 1 + 2 * z[:, None] * lam
        return z < top + z * (lam / grown + (b / grown) ** 2).sum(-1)

    low = np.full(len(b), top)
    high = 2 * low
    while np.any(beyond := below(high)):
        high = np.where(beyond, 16 * high, high)
    low, high = np.log(low), np.log(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = below(np.exp(middle))
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return np.exp(high)


class _Phase:
    r"""$\phi(z_0 (1 + d)) - \phi(z_0)$, written so that its terms are of second order in d."""

    def __init__(self, lam: Extended, b: Extended, top: np.longdouble, z: Extended) -> None:
        grown = 1 + 2 * z[:, None] * lam
        outward = z[:, None] * (b / grown) ** 2
        self.top = top
        self.p = 2 * z[:, None] * lam / grown
        self.g = outward * self.p
        # The derivative at z_0, which is a saddle up to rounding.
        self.rest = z - top - (self.p / 2 + outward).sum(-1)
        self.curvature = top + (self.p**2 / 2 + 2 * self.g).sum(-1)
        self.start = z - top * np.log(z) - np.log(grown).sum(-1) / 2
        self.start = self.start - (z[:, None] * b**2 / grown).sum(-1)

    def __call__(self, d: Complex) -> Complex:
        axes = d[..., None]
        terms = _less_log(self.p * axes) / 2 + self.g * axes**2 / (1 + self.p * axes)
        return self.top * _less_log(d) + terms.sum(-1) + self.rest * d

    def slope(self, d: Complex) -> Complex:
        """Return the derivative."""
        axes = d[..., None]
        grown = 1 + self.p * axes
        terms = (self.p**2 / 2 + self.g * (1 + 1 / grown)) * axes / grown
        return self.top * d / (1 + d) + terms.sum(-1) + self.rest

    def nearer(self, d: Complex, tau: Extended) -> Complex:
        """Take a Newton step towards the point where the value is -tau^2."""
        return d - (self(d) + tau**2) / self.slope(d)

    def advanced(self, d: Complex, tau: float) -> Complex:
        """Take a Runge-Kutta step from the point of tau to the point of tau + _STEP."""
        half = _STEP / 2
        first = -2 * tau / self.slope(d)
        second = -2 * (tau + half) / self.slope(d + half * first)
        third = -2 * (tau + half) / self.slope(d + half * second)
        fourth = -2 * (tau + _STEP) / self.slope(d + _STEP * third)
        return d + _STEP / 6 * (first + 2 * second + 2 * third + fourth)


def _less_log(d: Complex) -> Complex:
    """Return d - log(1 + d)."""
    x, y = d.real, d.imag
    real = x - np.log1p(x * (2 + x) + y * y) / 2
    return real + 1j * (y - np.arctan2(y, 1 + x))


def cholesky(matrices: Extended) -> Extended:
    """Return lower triangular roots (..., D, D)."""
    root = np.zeros_like(matrices)
    for i in range(matrices.shape[-1]):
        for j in range(i + 1):
            left = matrices[..., i, j] - (root[..., i, :j] * root[..., j, :j]).sum(-1)
            root[..., i, j] = np.sqrt(left) if i == j else left / root[..., j, j]
    return root


def _invert(tril: Extended) -> Extended:
    """Invert lower triangular matrices (B, D, D)."""
    inverse = np.zeros_like(tril)
    for i in range(tril.shape[-1]):
        row = -(tril[:, i : i + 1, :i] @ inverse[:, :i])[:, 0]
        row[:, i] += 1
        inverse[:, i] = row / tril[:, i, i, None]
    return inverse


def _transposed(matrices: Extended) -> Extended:
    return np.swapaxes(matrices, -1, -2)


def _singular_vectors(matrices: Extended) -> tuple[Extended, Extended]:
    """Return left singular vectors and singular values of (..., D, D), by one-sided Jacobi."""
    columns = np.array(matrices)
    for i, j in [*combinations(range(columns.shape[-1]), 2)] * _SWEEPS:
        x, y = columns[..., i].copy(), columns[..., j].copy()
        gap, overlap = (y * y - x * x).sum(-1), 2 * (x * y).sum(-1)
        angle = np.arctan2(overlap, np.abs(gap)) / 2 * np.where(gap < 0, -1, 1)
        cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
        columns[..., i], columns[..., j] = cos * x - sin * y, sin * x + cos * y
    scales = np.sqrt((columns**2).sum(-2))
    return columns / scales[..., None, :], scales


# Kernel families on [0, 1]


def _rule(count: int) -> tuple[Array, Array]:
    """Return the nodes and weights of the Gauss-Legendre rule on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (1 + x) / 2, w / 2


def _graded_rule(count: int) -> tuple[Array, Array]:
    """Return a rule on [0, 1] whose nodes crowd towards both ends, for singularities there."""
    y, v = _rule(count)
    return y**3 * (10 - 15 * y + 6 * y**2), v * 30 * (y * (1 - y)) ** 2


# Nodes of a subinterval; more where the density vanishes at its edges with a power that is not
# whole. No subinterval is wider than the kernel, nor than twice the narrowest basis function.
_ORDER, _GRADED_ORDER, _WIDEST = 20, 48, 0.05


@dataclass(frozen=True)
class KernelTruth:
    """Normalisers, expectations and gradients of R densities.

    Attributes:
        normalizer: log_normalizer, (R,).
        value: E_p[psi], (R, N).
        slope: Gradient of sum(upstream value) in the weights, (R, I).
    """

    normalizer: Tensor
    value: Tensor
    slope: Tensor


def kernel_truth(
    weights: Tensor,
    points: Tensor,
    bandwidth: float,
    alpha: float,
    inside: bool,
    psi: Callable[[Array], Array],
    upstream: Tensor,
) -> KernelTruth:
    """Integrate exp_{2-alpha}(f - A) (inside) or exp_{2-alpha}(f)/Z over [0, 1] in float64.

    Args:
        weights: Of R scores f(t) = sum_i weights_i exp(-(t - points_i)^2/(2 bandwidth^2)), (R, I).
        points: (I,).
        bandwidth: Of the kernel.
        alpha: From 1 to 2; at alpha = 1 both normalizations agree.
        inside: Whether A is subtracted inside the deformed exponential.
        psi: Basis functions of nodes (n,), (n, N).
        upstream: d loss / d E_p[psi], (R, N).
    """
    rows = [
        _KernelDensity(w, points.numpy(), bandwidth, alpha).integrals(inside or alpha == 1, psi, u)
        for w, u in zip(weights.numpy(), upstream.numpy(), strict=True)
    ]
    columns = (np.stack(column) for column in zip(*rows, strict=True))
    return KernelTruth(*(torch.from_numpy(column) for column in columns))


class _KernelDensity:
    """One density on subintervals that end at the exact edges of its support."""

    def __init__(self, weights: Array, points: Array, bandwidth: float, alpha: float) -> None:
        self.weights, self.points, self.bandwidth = weights, points, bandwidth
        self.eps = alpha - 1
        self.power = 1 / self.eps if self.eps else 0.0
        # Between neighbours of these the score is monotone.
        scan = np.linspace(0, 1, 32 * math.ceil(1 / bandwidth) + 1)
        self.pieces = np.concatenate([[0.0], self._roots(scan, 1, 0.0), [1.0]])
        width = min(bandwidth, _WIDEST)
        if not self.eps:  # exponentials of large scores are narrower than the kernel
            width /= max(1.0, math.sqrt(np.abs(self.score(self.pieces)).max()) / 4)
        self.grid = np.linspace(0, 1, math.ceil(1 / width) + 1)
        whole = abs(self.power - round(self.power)) < 1e-12
        self.y, self.v = _rule(_ORDER) if whole else _graded_rule(_GRADED_ORDER)

    def kernel(self, t: Array) -> Array:
        """Return the kernel (n, I) between t (n,) and the inducing points."""
        z = np.subtract.outer(t, self.points) / self.bandwidth
        return np.exp(np.square(z, out=z) * -0.5)

    def score(self, t: Array, order: int = 0) -> Array:
        """Return the score at t (n,), or its first or second derivative."""
        z = np.subtract.outer(t, self.points) / -self.bandwidth
        factor = (1.0, z / self.bandwidth, (z**2 - 1) / self.bandwidth**2)[order]
        return (np.exp(-(z**2) / 2) * factor) @ self.weights

    def _roots(self, t: Array, order: int, level: float) -> Array:
        """Return where a derivative equals a level, by Newton's method between brackets in t."""
        positive = self.score(t, order) > level
        (k,) = np.nonzero(positive[1:] != positive[:-1])
        low, high, rising = t[k], t[k + 1], positive[k + 1]
        x = (low + high) / 2
        for _ in range(60):
            gap, slope = self.score(x, order) - level, self.score(x, order + 1)
            beyond = (gap > 0) == rising
            low, high = np.where(beyond, low, x), np.where(beyond, x, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = x - gap / slope
            moved = np.where((step >= low) & (step <= high), step, (low + high) / 2)
            if np.abs(moved - x).max(initial=0.0) < 1e-16:
                break
            x = moved
        return x

    def rule(self, a: float) -> tuple[Array, Array]:
        """Return nodes and weights of subintervals that are cut at the edges of f - a."""
        edges = self._roots(self.pieces, 0, a - self.power) if self.eps else []
        cuts = np.sort(np.concatenate([self.grid, edges]))
        size = np.diff(cuts)[:, None]
        return (cuts[:-1, None] + size * self.y).ravel(), (size * self.v).ravel()

    def powers(self, kernel: Array, a: float) -> tuple[Array, Array]:
        """Return the unnormalised density and its (2 - alpha)-th power at the nodes."""
        x = kernel @ self.weights - a
        if not self.eps:
            return np.exp(x), np.exp(x)
        on = self.eps * x > -1
        log = np.log1p(self.eps * np.where(on, x, 0.0))
        return on * np.exp(log * self.power), on * np.exp(log * (self.power - 1))

    def normalizer(self) -> float:
        """Return A, at which the mass is one, by Newton's method from a root on a grid."""
        f = self.score(np.linspace(0, 1, 64 * math.ceil(1 / self.bandwidth)))
        if not self.eps:
            t, w = self.rule(0.0)
            top = f.max()
            return float(top + np.log(w @ self.powers(self.kernel(t), top)[0]))

        def excess(a: float) -> float:
            bracket = (1 + self.eps * (f - a)).clip(0)
            return float((bracket**self.power).mean() - 1)

        a = brentq(excess, f.mean() - 1e-9, f.max())
        for _ in range(20):
            t, w = self.rule(a)
            mass, slope = (w @ x for x in self.powers(self.kernel(t), a))
            step = np.expm1(self.eps * np.log(mass)) / self.eps * mass ** (1 - self.eps) / slope
            a += step
            if abs(step) < 1e-11 * (1 + abs(a)):  # the next one is its square
                break
        return float(a)

    def integrals(
        self, inside: bool, psi: Callable[[Array], Array], upstream: Array
    ) -> tuple[float, Array, Array]:
        """Return log_normalizer, E_p[psi], and the gradient in the weights."""
        a = self.normalizer() if inside else 0.0
        t, w = self.rule(a)
        kernel = self.kernel(t)
        p, q = (w * x for x in self.powers(kernel, a))
        z, values = p.sum(), psi(t)
        value = p @ values / z
        above = values @ upstream
        if inside:
            pull = q * (above - q @ above / q.sum())
        else:
            pull = q * (above - upstream @ value) / z
            a = -np.expm1(-self.eps * np.log(z)) / self.eps
        return a, value, pull @ kernel


# Divergences


def divergences(loc: Array, tril: Array, exponents: tuple[float, float]) -> tuple[float, float]:
    """Return the KL and the Tsallis divergence at 3/2 of p from q, given (2, 2) and (2, 2, 2).

    Both are C (1 - |x|^2)^m on ellipses, that of p inside that of q. The mean under p is a
    Gauss-Legendre rule in the radius, whose nodes crowd towards both ends, times equal angles.
    """
    radius, w = _graded_rule(80)
    angles = 2 * np.pi * np.arange(200) / 200
    unit = np.stack([np.cos(angles), np.sin(angles)], -1)
    square = radius[:, None] ** 2
    weights = (w * radius)[:, None] * (1 - square) ** exponents[0]
    points = loc[0] + np.multiply.outer(radius, unit) @ tril[0].T
    there = ((points - loc[1]) @ np.linalg.inv(tril[1]).T) ** 2
    logs = [
        math.log((m + 1) / (math.pi * np.linalg.det(a))) + m * np.log(1 - distance)
        for m, a, distance in zip(exponents, tril, (square, there.sum(-1)), strict=True)
    ]
    ratio = logs[0] - logs[1]
    shares = weights / (weights.sum() * len(angles))
    return float((shares * ratio).sum()), float((shares * 2 * np.expm1(ratio / 2)).sum())


# Truncated densities


@dataclass(frozen=True)
class Law:
    """A density to be cut.

    Attributes:
        name: Its name in tables.
        build: From parameters to the distribution.
        parameters: Numbers that float32 holds.
        log_density: Function of a location and the parameters, in mpmath.
        interval: Between which ends it is cut.
        marks: Locations between which mpmath integrates.
    """

    name: str
    build: Callable[..., torch.distributions.Distribution]
    parameters: tuple[float, ...]
    log_density: Callable[..., mp.mpf]
    interval: tuple[float, float]
    marks: tuple[float, ...] = ()


def truncated_truth(law: Law, at: float, level: float, start: float) -> dict[str, list[mp.mpf]]:
    """Return each quantity, with its derivatives in the parameters, the lower and the upper end.

    Args:
        law: The density and where it is cut.
        at: Where the density is asked.
        level: Of the quantile.
        start: A location near the quantile.
    """
    with mp.workdps(40):
        low, high = (mp.mpf(x) for x in law.interval)
        theta = [mp.mpf(x) for x in law.parameters]
        inner = sorted(mp.mpf(x) for x in law.marks if low < x < high)
        ends = [low, *inner, high]
        top = max(law.log_density(x, *theta) for x in [mp.mpf(at), *inner])

        def shape(t: mp.mpf) -> mp.mpf:
            return mp.exp(law.log_density(t, *theta) - top)

        def scores(t: mp.mpf) -> list[mp.mpf]:
            found = []
            for i, x in enumerate(theta):
                step = mp.mpf(10) ** -13 * max(abs(x), mp.mpf(1))
                sides = [[*theta[:i], x + side * step, *theta[i + 1 :]] for side in (1, -1)]
                above, below = (law.log_density(t, *side) for side in sides)
                found.append((above - below) / (2 * step))
            return found

        def integral(g: Callable[[mp.mpf], mp.mpf], last: mp.mpf = high) -> mp.mpf:
            return mp.quad(lambda t: g(t) * shape(t), [x for x in ends if x < last] + [last])

        count = range(len(theta))
        mass = integral(lambda t: 1)
        slopes = [integral(lambda t, i=i: scores(t)[i]) / mass for i in count]
        edge = [shape(x) / mass if mp.isfinite(x) else mp.mpf(0) for x in (low, high)]
        log_mass, log_at = mp.log(mass) + top, law.log_density(mp.mpf(at), *theta)
        mean = integral(lambda t: t) / mass
        variance = integral(lambda t: (t - mean) ** 2) / mass
        spread = [integral(lambda t, i=i: (t - mean) ** 2 * scores(t)[i]) / mass for i in count]
        sides = [(x - mean) ** 2 - variance if mp.isfinite(x) else mp.mpf(0) for x in (low, high)]
        quantile = mp.mpf(start)
        for _ in range(3):
            quantile -= (integral(lambda t: 1, quantile) - level * mass) / shape(quantile)
        moved = [integral(lambda t, i=i: scores(t)[i], quantile) / mass for i in count]
        density, by_level = shape(quantile) / mass, mp.mpf(level)
        return {
            "log mass": [log_mass, *slopes, -edge[0], edge[1]],
            "log p": [
                log_at - log_mass,
                *(s - m for s, m in zip(scores(mp.mpf(at)), slopes, strict=True)),
                edge[0],
                -edge[1],
            ],
            "variance": [
                variance,
                *(s - variance * m for s, m in zip(spread, slopes, strict=True)),
                -sides[0] * edge[0],
                sides[1] * edge[1],
            ],
            "quantile": [
                quantile,
                *((by_level * m - s) / density for s, m in zip(moved, slopes, strict=True)),
                (1 - by_level) * edge[0] / density,
                by_level * edge[1] / density,
            ],
            "entropy": [
                log_mass - integral(lambda t: law.log_density(t, *theta)) / mass,
            ],
        }


def _normal(t: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
    return -(((t - loc) / scale) ** 2) / 2 - mp.log(2 * mp.pi) / 2 - mp.log(scale)


def _laplace(t: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
    return -abs(t - loc) / scale - mp.log(2 * scale)


def _student(t: mp.mpf, df: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
    x, half = (t - loc) / scale, (df + 1) / 2
    norm = mp.loggamma(half) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2 - mp.log(scale)
    return norm - half * mp.log1p(x * x / df)


def _gamma(t: mp.mpf, concentration: mp.mpf, rate: mp.mpf) -> mp.mpf:
    norm = concentration * mp.log(rate) - mp.loggamma(concentration)
    return norm + (concentration - 1) * mp.log(t) - rate * t


def _beta(t: mp.mpf, a: mp.mpf, b: mp.mpf) -> mp.mpf:
    norm = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    return norm + (a - 1) * mp.log(t) + (b - 1) * mp.log1p(-t)


def _biweight(t: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
    return mp.log(mp.mpf(15) / 16) + 2 * mp.log1p(-(((t - loc) / scale) ** 2)) - mp.log(scale)


_TD = torch.distributions
LAWS = [
    *(
        Law("Normal(0, 1)", _TD.Normal, (0.0, 1.0), _normal, interval, marks)
        for interval, marks in (
            ((-1.0, 2.0), (0.0,)),
            ((0.5, 0.5 + 2.0**-10), ()),
            ((-40.0, 40.0), (-8.0, -3.0, 0.0, 3.0, 8.0)),
            ((30.0, 31.0), (30.0625, 30.25)),
            ((-40.25, -40.0), (-40.0625,)),
            ((40.0, math.inf), (40.0625, 40.25, 41.0)),
        )
    ),
    Law("Laplace(0, 1)", _TD.Laplace, (0.0, 1.0), _laplace, (-3.0, 2.0), (0.0,)),
    Law("Laplace(0, 1)", _TD.Laplace, (0.0, 1.0), _laplace, (40.0, math.inf), (41.0, 45.0, 60.0)),
    Law("StudentT(3)", _TD.StudentT, (3.0, 0.0, 1.0), _student, (5.0, math.inf), (10.0, 100.0)),
    Law("Cauchy", _TD.Cauchy, (0.0, 1.0), lambda t, *x: _student(t, mp.mpf(1), *x), (-1.0, 40.0)),
    Law("Gamma(1/2, 1)", _TD.Gamma, (0.5, 1.0), _gamma, (2.0**-30, 1.0), (2.0**-20, 2.0**-10)),
    Law("Gamma(3, 1)", _TD.Gamma, (3.0, 1.0), _gamma, (40.0, 50.0), (41.0, 45.0)),
    Law("Beta(1/2, 1/2)", _TD.Beta, (0.5, 0.5), _beta, (0.25, 0.75)),
    Law(
        "BetaGaussian, α = 3/2",
        lambda loc, scale: sf.BetaGaussian(loc, scale, 1.5),
        (0.0, 1.0),
        _biweight,
        (-0.25, 0.75),
    ),
]
