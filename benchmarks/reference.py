"""References for the accuracy tables; none shares code or method with the package.

* 1-D: mpmath, as a sum of truncated moments of a Gaussian or by tanh-sinh quadrature.
* Any dimension: an integral along the path of steepest descent in numpy's longdouble.
* Kernel families: Gauss-Legendre rules between the exact edges of the supports, in float64.

Every argument is a number that a float32 tensor holds, taken exactly, so that only the arithmetic
of the package is judged and not the rounding of its inputs.
"""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparsefam as sf

__all__ = [
    "ANY_ALPHA",
    "CLOSED",
    "Descent",
    "Extended",
    "Family",
    "GaussianScore",
    "Integrals",
    "Truth",
    "ball_integrals",
    "bumps",
    "cholesky",
    "descent",
    "half_width",
    "line_integrals",
    "score_scale",
    "truth",
]

_Build = Callable[[Tensor, Tensor], sf.SymmetricDistribution]


@dataclass(frozen=True)
class Family:
    """Densities C (1 - |x|^order)^exponent of x = (t - loc)/scale in [-1, 1].

    Attributes:
        name: What tables call it.
        order: 2 for beta-Gaussians, 1 for the triangular.
        exponent: 1/(alpha - 1).
        build: From loc and scale.
        from_score: From loc and sigma (or b), the scale of the score -|t - loc|^k / (k sigma^k).
    """

    name: str
    order: int
    exponent: float
    build: _Build
    from_score: _Build


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


# 1-D, by mpmath.

# Beyond this many widths exp(-y^2/2) is 1e-32.
_CUT = 12
# The tanh-sinh rule: what it leaves out at an end is exp(-pi sinh(_LINE_COUNT _LINE_STEP)), 1e-27.
_LINE_STEP, _LINE_COUNT = 1 / 16, 59


@cache
def line_integrals(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[float, float, float]:
    r"""$E[N(loc + scale\,x; center, width^2)]$ and its derivatives in loc and scale."""
    if float(family.exponent).is_integer():
        found = _by_moments(family, loc, scale, center, width)
    else:
        found = _by_quadrature(family, loc, scale, center, width)
    value, first, second = (float(x) for x in found)
    return value, first, second


def half_width(family: Family, sigma: float) -> tuple[float, float]:
    r"""The half-width s of the density whose score has that sigma (or b), and ds/dsigma.

    $s^{km+1} = C\,(km)^m\,\sigma^{km}$: then $C (1 - |x|^k)^m/s$ has the score's curvature.
    """
    with mp.workdps(40):
        power, unit = _power_law(family)
        scale = unit * mp.mpf(sigma) ** power
        return float(scale), float(power * scale / mp.mpf(sigma))


def score_scale(family: Family, scale: float) -> float:
    """Return sigma (or b) of the density with this half-width."""
    with mp.workdps(40):
        power, unit = _power_law(family)
        return float((mp.mpf(scale) / unit) ** (1 / power))


def _power_law(family: Family) -> tuple[mp.mpf, mp.mpf]:
    """Return power and factor in half-width = factor sigma^power."""
    m, km = mp.mpf(family.exponent), family.order * mp.mpf(family.exponent)
    return km / (km + 1), (_line_constant(family) * km**m) ** (1 / (km + 1))


def _line_constant(family: Family) -> mp.mpf:
    k, m = mp.mpf(family.order), mp.mpf(family.exponent)
    return k * mp.gamma(m + 1 + 1 / k) / (2 * mp.gamma(1 / k) * mp.gamma(m + 1))


def _by_moments(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """Sum truncated moments of a Gaussian, in many more digits than cancel."""
    m, k = int(family.exponent), family.order
    degree = max(7, k * m + 1)
    # Powers of (loc - center)/scale, up to 4e5, multiply the rounding of the error function.
    with mp.workdps(40 + 6 * degree):
        halves = _moments(loc, scale, center, width, degree)
        total = [mp.mpf(0)] * 3
        for side, (plain, slope) in zip((-1, 1), halves, strict=True):
            for j in range(m + 1):
                a = (-1) ** j * math.comb(m, j) * side ** (k * j)
                terms = (plain[k * j], -slope[k * j], -slope[k * j + 1])
                total = [old + a * new for old, new in zip(total, terms, strict=True)]
        c, s, w = _line_constant(family), mp.mpf(scale), mp.mpf(width)
        return c * total[0] / s, c * total[1] / (s * w), c * total[2] / (s * w)


@cache
def _moments(
    loc: float, scale: float, center: float, width: float, degree: int
) -> list[tuple[list[mp.mpf], list[mp.mpf]]]:
    r"""$\int x^k \varphi(y)\,dy$ and $\int x^k y \varphi(y)\,dy$ on $x \in [-1, 0]$ and $[0, 1]$.

    Here $y = (loc + scale\,x - center)/width$; by parts, since $y \varphi = -\varphi'$.
    """
    offset, s, w = mp.mpf(loc) - mp.mpf(center), mp.mpf(scale), mp.mpf(width)
    ends = [(offset + x * s) / w for x in (-1, 0, 1)]
    cdf = [mp.ncdf(y) for y in ends]
    pdf = [mp.npdf(y) for y in ends]
    halves = []
    for i in range(2):
        plain, slope = [cdf[i + 1] - cdf[i]], []
        for k in range(degree + 1):
            # x^k at the ends of the half: 0 or (-1)^k below, 0 or 1 above.
            below, above = ((-1) ** k, 0**k) if i == 0 else (0**k, 1)
            before = k * (w / s) * plain[k - 1] if k else 0
            slope.append(below * pdf[i] - above * pdf[i + 1] + before)
            plain.append((w / s) * slope[k] - (offset / s) * plain[k])
        halves.append((plain, slope))
    return halves


def _by_quadrature(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """Apply the tanh-sinh rule where support and Gaussian meet, cut at the peaks of both."""
    with mp.workdps(25):
        offset, s, w = mp.mpf(loc) - mp.mpf(center), mp.mpf(scale), mp.mpf(width)
        low, peak, high = (min(max((y * w - offset) / s, -1), 1) for y in (-_CUT, 0, _CUT))
        kink = [mp.mpf(0)] if family.order == 1 and low < 0 < high else []
        cuts = sorted({low, peak, high, *kink})
        total = [mp.mpf(0)] * 3
        for left, right in zip(cuts, cuts[1:], strict=False):
            for share, weight in _tanh_sinh():
                x = left + (right - left) * share
                y = (offset + s * x) / w
                density = (1 - abs(x) ** family.order) ** mp.mpf(family.exponent)
                mass = (right - left) * weight * density * mp.exp(-y * y / 2)
                terms = (mass, -mass * y, -mass * x * y)
                total = [old + new for old, new in zip(total, terms, strict=True)]
        front = _line_constant(family) / (w * mp.sqrt(2 * mp.pi))
        return front * total[0], front * total[1] / w, front * total[2] / w


@cache
def _tanh_sinh() -> list[tuple[mp.mpf, mp.mpf]]:
    """Return nodes and weights of the tanh-sinh rule on [0, 1]."""
    found = []
    for j in range(-_LINE_COUNT, _LINE_COUNT + 1):
        u = mp.mpf(j) * _LINE_STEP
        share = 1 / (1 + mp.exp(-mp.pi * mp.sinh(u)))
        rest = 1 / (1 + mp.exp(mp.pi * mp.sinh(u)))
        found.append((share, _LINE_STEP * mp.pi * mp.cosh(u) * share * rest))
    return found


# Any dimension: averages over the unit ball along the path of steepest descent.

Extended = NDArray[np.longdouble]
_Complex = NDArray[np.clongdouble]

# The rule's step, and the end, where exp(-tau^2) is 1e-20.
_STEP, _END = 1 / 8, 6.75
_NEWTON = 3
_HALVINGS = 80


@dataclass(frozen=True)
class Descent:
    """The nodes and weights of P integrals.

    Attributes:
        value: E[(1 - |x|^2)_+^m], shape (P,).
        nodes: z, shape (n, P).
        weights: Complex; the average of a function f of z is the imaginary part of sum(weights f).
    """

    value: Extended
    nodes: _Complex
    weights: _Complex

    def average(self, f: _Complex) -> Extended:
        """Return the averages of values (n, *pairs, ...), where the pairs may be several axes."""
        lines = f.reshape(*self.weights.shape, -1)
        total: Extended = (self.weights[..., None] * lines).imag.sum(0)
        return total.reshape(f.shape[1:])


def extended(x: mp.mpf) -> np.longdouble:
    """Convert a number with all the digits that fit."""
    return np.longdouble(mp.nstr(x, 25))


def descent(lam: Extended, b: Extended, exponent: float) -> Descent:
    r"""Return the nodes for $x_k \sim N(b_k, \lambda_k)$, given (P, D), and an exponent m >= 0.

    $$E[(1 - |x|^2)_+^m] = \frac{\Gamma(m+1)}{2\pi i} \int e^{\phi(z)}\,dz, \qquad
    \phi = z - (m+1)\log z - \tfrac12 \sum_k \log(1 + 2 z \lambda_k)
    - \sum_k \frac{z b_k^2}{1 + 2 z \lambda_k}$$
    around the negative axis. Along the path on which $\phi$ is real and falls by $\tau^2$ the
    integrand is $e^{-\tau^2}$ times a smooth function, for which the midpoint rule converges to the
    last bit: 64 bits of mantissa where numpy's longdouble has them (x86), else 53.
    """
    top = np.longdouble(exponent) + 1
    z = _saddle(lam, b, top)
    phase = _Phase(lam, b, top, z)
    taus = ((np.arange(int(_END / _STEP)) + np.longdouble(0.5)) * _STEP).reshape(-1, 1)
    path = phase.nearer(_rough(phase, taus), taus)
    moves = -2 * _STEP * taus * np.exp(-(taus**2)) / phase.slope(path)
    total = moves.imag.sum(0)
    log_gamma = extended(mp.loggamma(mp.mpf(exponent) + 1))
    value = np.exp(log_gamma + phase.start + np.log(z * total / extended(mp.pi)))
    return Descent(value, z * (1 + path), moves / total)


def _rough(phase: "_Phase", taus: Extended) -> _Complex:
    """Follow the path in double precision, which is thirty times as fast."""
    double = phase.double()
    nodes = [1j * _STEP / 2 * np.sqrt(2 / double.curvature)]
    for i, tau in enumerate(np.float64(taus[:, 0])):
        if i:
            nodes.append(double.ahead(nodes[-1], tau - _STEP))
        for _ in range(_NEWTON):
            nodes[-1] = double.nearer(nodes[-1], tau)
    return np.stack(nodes).astype(np.clongdouble)


def _saddle(lam: Extended, b: Extended, top: np.longdouble) -> Extended:
    """Return the minimum of phi on the positive axis, by bisection of its logarithm."""

    def below(z: Extended) -> NDArray[np.bool_]:
        grown = 1 + 2 * z[:, None] * lam
        found: NDArray[np.bool_] = z < top + z * (lam / grown + (b / grown) ** 2).sum(-1)
        return found

    low = np.full(len(b), top)
    high = 2 * low
    while np.any(beyond := below(high)):
        high = np.where(beyond, 16 * high, high)
    low, high = np.log(low), np.log(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = below(np.exp(middle))
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    found: Extended = np.exp(high)
    return found


class _Phase:
    r"""$\phi(z_0 (1 + d)) - \phi(z_0)$, written so that its terms are of second order in d."""

    def __init__(self, lam: Extended, b: Extended, top: np.longdouble, z: Extended) -> None:
        grown = 1 + 2 * z[:, None] * lam
        outward = z[:, None] * (b / grown) ** 2
        self.top = top
        self.p = 2 * z[:, None] * lam / grown
        self.g = outward * self.p
        # What is left of the derivative at a saddle that is one to rounding.
        self.rest = z - top - (self.p / 2 + outward).sum(-1)
        self.curvature = top + (self.p**2 / 2 + 2 * self.g).sum(-1)
        self.start = z - top * np.log(z) - np.log(grown).sum(-1) / 2
        self.start = self.start - (z[:, None] * b**2 / grown).sum(-1)

    def double(self) -> "_Phase":
        """Return the same function in double precision."""
        twin = copy(self)
        for name, numbers in vars(self).items():
            setattr(twin, name, np.float64(numbers))
        return twin

    def __call__(self, d: _Complex) -> _Complex:
        axes = d[..., None]
        terms = _less_log(self.p * axes) / 2 + self.g * axes**2 / (1 + self.p * axes)
        found: _Complex = self.top * _less_log(d) + terms.sum(-1) + self.rest * d
        return found

    def slope(self, d: _Complex) -> _Complex:
        """Return the derivative."""
        axes = d[..., None]
        grown = 1 + self.p * axes
        terms = (self.p**2 / 2 + self.g * (1 + 1 / grown)) * axes / grown
        found: _Complex = self.top * d / (1 + d) + terms.sum(-1) + self.rest
        return found

    def nearer(self, d: _Complex, tau: Extended) -> _Complex:
        """Take a Newton step towards the point where the value is -tau^2."""
        return d - (self(d) + tau**2) / self.slope(d)

    def ahead(self, d: _Complex, tau: float) -> _Complex:
        """Take a Runge-Kutta step from the point of tau to the point of tau + _STEP."""
        half = _STEP / 2
        first = -2 * tau / self.slope(d)
        second = -2 * (tau + half) / self.slope(d + half * first)
        third = -2 * (tau + half) / self.slope(d + half * second)
        fourth = -2 * (tau + _STEP) / self.slope(d + _STEP * third)
        return d + _STEP / 6 * (first + 2 * second + 2 * third + fourth)


def _less_log(d: _Complex) -> _Complex:
    """Return d - log(1 + d)."""
    x, y = d.real, d.imag
    real = x - np.log1p(x * (2 + x) + y * y) / 2
    return real + 1j * (y - np.arctan2(y, 1 + x))


_SWEEPS = 12


@dataclass(frozen=True)
class Integrals:
    r"""$r_j = E_p[N(t; c_j, S_j)]$ of N Gaussians under each of B densities, and derivatives.

    Attributes:
        value: r, shape (B, N).
        by_loc: dr/dloc, (B, N, D).
        by_scale_tril: In the lower triangle of scale_tril, (B, N, D, D).
        by_covariance: In the symmetric matrix S_j, (B, N, D, D).
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
    """Return the expectations under B densities of N Gaussians each.

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
    turns, scales = _rotate(inverse if factors.ndim == 2 else inverse @ factors)
    lam = (scales if factors.ndim > 2 else scales * factors[..., None]) ** 2
    axes = _transposed(turns) @ inverse  # to the frame, (B, 1 | N, D, D)
    b = (axes @ (centers - loc[:, None])[..., None])[..., 0]
    path = descent(lam.reshape(-1, dim), b.reshape(-1, dim), exponent)
    first, second, in_ball = _slopes(path, lam, b)
    volume = np.prod(np.diagonal(scale_tril, axis1=-2, axis2=-1), -1)
    value = path.value.reshape(shape) * _ball_constant(exponent, dim) / volume[:, None]
    size, back = value[..., None, None], _transposed(axes)
    by_tril = 2 * size * (_transposed(inverse) @ (turns @ in_ball @ _transposed(turns)))
    rise = extended(mp.digamma(mp.mpf(exponent) + 1 + mp.mpf(dim) / 2))
    return Integrals(
        value,
        size[..., 0] * (back @ first[..., None])[..., 0],
        np.tril(by_tril),
        size * (back @ second @ axes),
        value * (rise - path.average(np.log(path.nodes)).reshape(shape)),
    )


def _slopes(path: Descent, lam: Extended, b: Extended) -> list[Extended]:
    """Return relative derivatives in b, in diag(lam) and in the ball's matrix."""
    z = path.nodes.reshape(-1, *b.shape[:2], 1)
    # Those of the Gaussian of b with covariance 1/pull, in its mean and its covariance.
    pull = 2 * z / (1 + 2 * z * lam)
    push = pull * b
    bend = push[..., :, None] * push[..., None, :] - pull[..., None] * np.eye(b.shape[-1])
    return [path.average(f) for f in (push, bend / 2, bend / (4 * z[..., None]))]


def cholesky(matrices: Extended) -> Extended:
    """Return lower triangular roots (..., D, D)."""
    root = np.zeros_like(matrices)
    for i in range(matrices.shape[-1]):
        for j in range(i + 1):
            left = matrices[..., i, j] - (root[..., i, :j] * root[..., j, :j]).sum(-1)
            root[..., i, j] = np.sqrt(left) if i == j else left / root[..., j, j]
    return root


def _ball_constant(exponent: float, dim: int) -> np.longdouble:
    """Return the normalising constant of the density on the unit ball."""
    with mp.workdps(30):
        m, half = mp.mpf(exponent), mp.mpf(dim) / 2
        return extended(mp.gammaprod([m + 1 + half], [m + 1]) / mp.pi**half)


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


def _rotate(matrices: Extended) -> tuple[Extended, Extended]:
    """Return left singular vectors and singular values of (..., D, D).

    One-sided Jacobi, accurate for small values too: columns are rotated in pairs until all are
    orthogonal.
    """
    columns = np.array(matrices)
    dim = columns.shape[-1]
    for i, j in [*combinations(range(dim), 2)] * _SWEEPS:
        x, y = columns[..., i].copy(), columns[..., j].copy()
        gap, overlap = (y * y - x * x).sum(-1), 2 * (x * y).sum(-1)
        angle = np.arctan2(overlap, np.abs(gap)) / 2 * np.where(gap < 0, -1, 1)
        cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
        columns[..., i], columns[..., j] = cos * x - sin * y, sin * x + cos * y
    scales = np.sqrt((columns**2).sum(-2))
    return columns / scales[..., None, :], scales


# Kernel families, between the exact edges of their supports.

# Roots: enough for bisection alone to reach the last bit; Newton's steps need ten.
_HALVINGS = 60
# Kernel values at a time.
_CHUNK = 10_000_000
# Nodes of a panel; more where the density meets its edges with an exponent that is not whole.
_ORDER, _GRADED_ORDER = 20, 48
# No panel is wider than the kernel, nor than twice the narrowest basis function.
_WIDEST = 0.05


@dataclass(frozen=True)
class GaussianScore:
    """Scores sum_i weights_i exp(-(t - points_i)^2 / (2 bandwidth^2)), all in float64.

    Attributes:
        weights: Shape (R, I).
        points: Inducing points in [0, 1], shape (I,).
        bandwidth: Of the kernel.
    """

    weights: Tensor
    points: Tensor
    bandwidth: float

    def kernel(self, t: Tensor) -> Tensor:
        """Return the kernel (*t, I) between t and the inducing points."""
        z = (t.unsqueeze(-1) - self.points).div_(self.bandwidth)
        return z.square_().mul_(-0.5).exp_()  # in place: most of the time goes to new memory

    def derivatives(self, rows: Tensor, t: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return the derivatives of order `first` (0 or 1) and the next, at t (n,), one a row."""
        z = (self.points - t.unsqueeze(-1)) / self.bandwidth
        terms = self.weights[rows] * torch.exp(-z.square() / 2)
        factors = (torch.ones_like(z), z / self.bandwidth, (z.square() - 1) / self.bandwidth**2)
        low, high = ((terms * factors[order]).sum(-1) for order in (first, first + 1))
        return low, high

    def rows(self, rows: slice) -> "GaussianScore":
        """Return some of the scores."""
        if rows.indices(len(self.weights)) == (0, len(self.weights), 1):
            return self
        return GaussianScore(self.weights[rows], self.points, self.bandwidth)

    @cached_property
    def pieces(self) -> Tensor:
        """0, the roots of f', and 1 repeated to the length of the longest row, (R, K)."""
        scan = torch.linspace(0, 1, 32 * math.ceil(1 / self.bandwidth) + 1, dtype=torch.float64)
        moved = (self.points - scan.unsqueeze(-1)) * self.kernel(scan)
        inner = _roots(self, scan.expand(len(self.weights), -1), self.weights @ moved.T, 1, 0.0)
        ends = inner.new_tensor([0.0, 1.0]).expand(len(inner), 2)
        return torch.cat([ends[:, :1], inner, ends[:, 1:]], -1)

    @cached_property
    def highest(self) -> float:
        """The largest |f|."""
        return float(self.at(self.pieces).abs().amax())

    def at(self, t: Tensor) -> Tensor:
        """Return the scores (R, n) at t (R, n)."""
        return torch.einsum("rni,ri->rn", self.kernel(t), self.weights)

    def edges(self, level: Tensor) -> Tensor:
        """Return where f meets a level (R,), in order, then 1 repeated."""
        values = self.at(self.pieces)
        return _roots(self, self.pieces, values - level.unsqueeze(-1), 0, level)


def _roots(
    score: GaussianScore, t: Tensor, values: Tensor, order: int, level: Tensor | float
) -> Tensor:
    """Return the roots of a derivative of f less a level, between t (R, n) of unlike sign."""
    positive = values > 0
    rows, k = (positive[:, 1:] != positive[:, :-1]).nonzero(as_tuple=True)
    low, high, rising = t[rows, k], t[rows, k + 1], positive[rows, k + 1]
    goal = level[rows] if isinstance(level, Tensor) else level
    x = (low + high) / 2
    for _ in range(_HALVINGS):
        value, slope = score.derivatives(rows, x, order)
        below = ((value - goal) > 0) != rising
        low, high = torch.where(below, x, low), torch.where(below, high, x)
        step = x - (value - goal) / slope
        inside = (step >= low) & (step <= high)
        moved = torch.where(inside, step, (low + high) / 2)
        done = (moved - x).abs().max() < 1e-16 if len(x) else True
        x = moved
        if done:
            break
    count = torch.bincount(rows, minlength=len(t))
    place = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
    packed = torch.ones(len(t), int(count.max()), dtype=torch.float64)
    packed[rows, place] = x
    return packed


def bumps(centers: Tensor, widths: Tensor) -> Callable[[Tensor], Tensor]:
    """Return Gaussian densities (N,) as a function of t, in float64: (*t,) to (*t, N)."""
    centers, widths = centers.double(), widths.double()

    def psi(t: Tensor) -> Tensor:
        z = (t.unsqueeze(-1) - centers) / widths
        return torch.exp(-z.square() / 2) / (widths * math.sqrt(2 * math.pi))

    return psi


@dataclass(frozen=True)
class Truth:
    """The normaliser, expectations and gradients of R densities.

    Attributes:
        normalizer: log_normalizer, shape (R,).
        value: E_p[psi], shape (R, N).
        slope: Gradient of sum(upstream value) in the weights, shape (R, I).
    """

    normalizer: Tensor
    value: Tensor
    slope: Tensor


def truth(
    score: GaussianScore,
    alpha: float,
    inside: bool,
    psi: Callable[[Tensor], Tensor],
    upstream: Tensor,
) -> Truth:
    """Integrate the densities exp_{2-alpha}(f - A), or exp_{2-alpha}(f)/Z, over [0, 1].

    Args:
        score: Of R densities.
        alpha: From 1 to 2.
        inside: Whether the first; at alpha = 1 they agree.
        psi: Basis functions.
        upstream: The gradient (R, N) that comes from above.
    """
    nodes = (_subintervals(score, alpha) + score.pieces.shape[-1]) * _ORDER
    chunk = max(1, _CHUNK // (nodes * len(score.points)))
    parts = []
    for first in range(0, len(score.weights), chunk):
        rows = slice(first, first + chunk)
        part = _Density(score.rows(rows), alpha)
        parts.append(part.truth(inside or alpha == 1, psi, upstream[rows]))
    columns = zip(*((x.normalizer, x.value, x.slope) for x in parts), strict=True)
    return Truth(*(torch.cat(column) for column in columns))


def _subintervals(score: GaussianScore, alpha: float) -> int:
    """Return how many; exponentials of large scores are narrower than the kernel."""
    width = min(score.bandwidth, _WIDEST)
    if alpha == 1:
        width /= max(1.0, math.sqrt(score.highest) / 4)
    return math.ceil(1 / width)


class _Density:
    """exp_{2-alpha}(f - A) and its (2 - alpha)-th power, integrated between its edges."""

    def __init__(self, score: GaussianScore, alpha: float) -> None:
        self.score = score
        self.eps = alpha - 1
        self.power = 1 / self.eps if self.eps else 0.0
        # Where edges are met with a power that is not whole, nodes crowd towards all ends.
        whole = abs(self.power - round(self.power)) < 1e-12
        x, w = np.polynomial.legendre.leggauss(_ORDER if whole else _GRADED_ORDER)
        y, v = (torch.from_numpy(a) for a in ((1 + x) / 2, w / 2))
        if not whole:
            y, v = y**3 * (10 - 15 * y + 6 * y**2), v * 30 * (y * (1 - y)) ** 2
        self.y, self.v = y, v

    def truth(self, inside: bool, psi: Callable[[Tensor], Tensor], upstream: Tensor) -> Truth:
        a = self._normalizer() if inside else torch.zeros(len(upstream), dtype=torch.float64)
        t, w = self._rule(a)
        kernel = self.score.kernel(t)
        p, q = (w * x for x in self._powers(kernel, a))
        z = p.sum(-1)
        values = psi(t)
        value = torch.einsum("rq,rqn->rn", p, values) / z.unsqueeze(-1)
        above = torch.einsum("rn,rqn->rq", upstream, values)
        if inside:
            pull = q * (above - ((q * above).sum(-1) / q.sum(-1)).unsqueeze(-1))
        else:
            pull = q * (above - (upstream * value).sum(-1, keepdim=True)) / z.unsqueeze(-1)
            a = -torch.expm1(-self.eps * z.log()) / self.eps
        return Truth(a, value, torch.einsum("rq,rqi->ri", pull, kernel))

    def _rule(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (R, Q) on equal subintervals, cut at the edges."""
        count = _subintervals(self.score, 1 + self.eps) + 1
        cuts = torch.linspace(0, 1, count, dtype=torch.float64).expand(len(a), -1)
        if self.eps:
            cuts = torch.cat([cuts, self.score.edges(a - self.power)], -1).sort(-1).values
        low, size = cuts[:, :-1, None], cuts.diff(dim=-1).unsqueeze(-1)
        return (low + size * self.y).flatten(1), (size * self.v).flatten(1)

    def _powers(self, kernel: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the density and its (2 - alpha)-th power, (R, Q)."""
        x = torch.einsum("rqi,ri->rq", kernel, self.score.weights) - a.unsqueeze(-1)
        if not self.eps:
            return x.exp(), x.exp()
        on = self.eps * x > -1
        log = torch.log1p(self.eps * torch.where(on, x, 0.0))
        return on * torch.exp(log * self.power), on * torch.exp(log * (self.power - 1))

    def _normalizer(self) -> Tensor:
        """Return A, at which the mass is one, by bisection on a grid and Newton's method."""
        grid = torch.linspace(0, 1, 64 * math.ceil(1 / self.score.bandwidth), dtype=torch.float64)
        f = self.score.weights @ self.score.kernel(grid).T
        if not self.eps:
            top = f.amax(-1)
            t, w = self._rule(top)
            return top + (w * self._powers(self.score.kernel(t), top)[0]).sum(-1).log()
        low, high = f.mean(-1), f.amax(-1)
        for _ in range(40):
            a = (low + high) / 2
            bracket = (1 + self.eps * (f - a.unsqueeze(-1))).clamp_min(0)
            heavy = bracket.pow(self.power).mean(-1) > 1
            low, high = torch.where(heavy, a, low), torch.where(heavy, high, a)
        for _ in range(20):
            t, w = self._rule(a)
            mass, slope = ((w * x).sum(-1) for x in self._powers(self.score.kernel(t), a))
            step = torch.expm1(self.eps * mass.log()) / self.eps * mass ** (1 - self.eps) / slope
            a = a + step
            if step.abs().max() < 1e-11 * (1 + a.abs().max()):  # the next one is its square
                break
        return a
