"""Reference values for the accuracy tables and the tests, without code of the package.

* In 1-D: tanh-sinh quadrature in numpy's longdouble.
* On ellipsoids: a contour integral along the path of steepest descent, derivatives by autograd.
* Kernel families: tanh-sinh quadrature between the exact edges of each support.
* Truncated densities: tanh-sinh quadrature by mpmath with 40 digits.

Inputs are numbers that float32 holds and are taken as exact, so that the tables show errors of the
package's arithmetic and not of rounding its inputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

import sparsefam as sf

Array = NDArray[np.float64]
Extended = NDArray[np.longdouble]
_PI = np.longdouble("3.14159265358979323846264338327950288")


def unit_rule(step: float, reach: float = 3.3, dtype: Any = np.float64) -> tuple[Any, Any, Any]:
    """Return the tanh-sinh rule on [0, 1]: nodes, their distances from 1, and weights.

    It integrates what is smooth but for singularities at the ends, such as powers and logarithms.
    """
    count, pi = round(reach / step), dtype(_PI)
    u = np.arange(-count, count + 1).astype(dtype) * dtype(step)
    share, rest = (1 / (1 + np.exp(sign * pi * np.sinh(u))) for sign in (-1, 1))
    return share, rest, pi * dtype(step) * np.cosh(u) * share * rest


# One dimension


class Family(NamedTuple):
    """Densities C (1 - |x|^order)^exponent of x = (t - loc)/scale in [-1, 1].

    Attributes:
        name: Its name in tables.
        order: 2 for beta-Gaussians, 1 for triangular densities.
        exponent: 1/(alpha - 1).
        build: Builds the density from loc and scale.
    """

    name: str
    order: int
    exponent: float
    build: Callable[[Tensor, Tensor], sf.SymmetricDistribution]

    @property
    def constant(self) -> float:
        """The normalizing constant C at scale 1."""
        return self.order / (2 * float(special.beta(1 / self.order, self.exponent + 1)))


def _beta_gaussian(name: str, alpha: float) -> Family:
    exponent = 1 / (alpha - 1)
    if abs(exponent - round(exponent)) < 1e-12 * exponent:
        exponent = round(exponent)  # 4/3 - 1 is not 1/3 in floating point
    return Family(name, 2, exponent, lambda loc, scale: sf.BetaGaussian(loc, scale, alpha))


CLOSED = (
    _beta_gaussian("α = 4/3", 4 / 3),
    _beta_gaussian("α = 3/2", 1.5),
    Family("α = 2", 2, 1, sf.TruncatedParabola),
    _beta_gaussian("α = ∞", math.inf),
    Family("triangular", 1, 1, sf.Triangular),
)
ANY_ALPHA = tuple(_beta_gaussian(f"α = {alpha}", alpha) for alpha in (1.05, 1.1, 1.7, 3.0))


def line_integrals(
    family: Family, loc: float, scale: float, centers: Array, width: float
) -> Extended:
    r"""Return $E_p[N(t; c, w^2)]$ and its derivatives in loc and scale, (3, N).

    The variable is $y = (t - c)/w$. The rule is cut at the edges of the support, at its center and
    at the peak of the Gaussian; distances from the edges are computed without cancellation.
    """
    mu, s, w = (np.longdouble(x) for x in (loc, scale, width))
    middle = (mu - centers.astype(np.longdouble)) / w
    low, high = middle - s / w, middle + s / w
    cuts = np.stack([low, np.clip(0, low, high), middle, high])
    cuts = np.sort(cuts.clip(-14, 14), axis=0)  # exp(-y^2/2) is 1e-43 at 14
    left, length = cuts[:-1, :, None], np.diff(cuts, axis=0)[:, :, None]
    share, rest, weights = unit_rule(1 / 32, 3.75, np.longdouble)
    y = left + length * share
    below = (high[:, None] - left - length + length * rest) * (w / s)  # 1 - x
    above = (left - low[:, None] + length * share) * (w / s)  # 1 + x
    base = below * above if family.order == 2 else np.minimum(below, above)
    density = base.clip(0) ** np.longdouble(family.exponent)
    mass = length * weights * density * np.exp(-(y**2) / 2)
    x = (above - below) / 2
    total = np.stack([mass, -mass * y / w, -mass * x * y / w]).sum((1, -1))
    return family.constant / (s * np.sqrt(2 * _PI)) * total


# Ellipsoids


def ball_integrals(
    loc: Array, scale_tril: Array, centers: Array, spread: Array, exponent: float
) -> list[Extended]:
    r"""Integrate N Gaussians under each of B densities C (1 - |x|^2)^m on ellipsoids.

    With $x_k \sim N(b_k, \lambda_k)$ in the frame in which all matrices are diagonal,
    $$E[(1 - |x|^2)_+^m] = \frac{\Gamma(m+1)}{2\pi i} \int e^{\phi(z)}\,dz, \qquad
    \phi = z - (m+1)\log z - \tfrac12 \sum_k \log(1 + 2 z \lambda_k)
    - \sum_k \frac{z b_k^2}{1 + 2 z \lambda_k}$$
    around the negative axis.

    Args:
        loc: (B, D).
        scale_tril: (B, D, D).
        centers: (B, N, D).
        spread: Standard deviations (B, N), or covariances (B, N, D, D).
        exponent: m >= 0.

    Returns:
        The expectations (B, N) and their derivatives in loc, scale_tril, spread and m.
    """
    dim, offset = loc.shape[-1], (centers - loc[:, None]).astype(np.longdouble)[..., None]
    full = spread.ndim == 4
    if full:
        inverse = np.linalg.inv(scale_tril)[:, None]
        turns, scales, _ = np.linalg.svd(inverse @ np.linalg.cholesky(spread))
        axes = np.swapaxes(turns, -1, -2) @ inverse
    else:
        left, sizes, right = np.linalg.svd(scale_tril[:, None])
        turns, scales = np.swapaxes(right, -1, -2), spread[..., None] / sizes
        axes = np.swapaxes(left, -1, -2) / sizes[..., None]
    lam, b = scales.astype(np.longdouble) ** 2, (axes @ offset)[..., 0]
    z, steps, top = _descent(lam, b, np.longdouble(exponent))
    total = steps.imag.sum(0)

    def average(f: Any) -> Extended:
        """Average a function of z, (nodes, B, N, ...)."""
        weights = (steps / total).reshape(*steps.shape, *(1,) * (f.ndim - 3))
        return np.asarray((weights * f).imag.sum(0))

    with mp.workdps(30):
        half = mp.mpf(exponent) + 1 + mp.mpf(dim) / 2
        front = mp.gamma(half) / mp.pi ** (1 + mp.mpf(dim) / 2)
        constant, rise = (np.longdouble(mp.nstr(x, 25)) for x in (front, mp.digamma(half)))
    volume = np.prod(np.diagonal(scale_tril, axis1=-2, axis2=-1), -1)
    value = constant / volume[:, None] * total * np.exp(top)
    # Derivatives of a Gaussian of b with covariance 1/pull in its mean and its covariance.
    pull = 2 * z[..., None] / (1 + 2 * z[..., None] * lam)
    push = pull * b
    bend = push[..., :, None] * push[..., None, :] - pull[..., None] * np.eye(dim)
    back, size = np.swapaxes(axes, -1, -2), value[..., None, None]
    in_ball = average(bend / (2 * z[..., None, None])) @ np.swapaxes(turns, -1, -2)
    by_spread = size * (back @ average(bend / 2) @ axes)
    if not full:
        by_spread = 2 * spread * np.trace(by_spread, axis1=-2, axis2=-1)
    return [
        value,
        size[..., 0] * (back @ average(push)[..., None])[..., 0],
        np.tril(size * (back @ in_ball)),
        by_spread,
        value * (rise - average(np.log(z))),
    ]


def _descent(lam: Extended, b: Extended, exponent: np.longdouble) -> tuple[Any, Any, Any]:
    r"""Return nodes (n, B, N), steps dz exp(phi - top), and top, the maximum of phi, (B, N).

    Along the path on which $\phi$ is real and falls by $\tau^2$ the integrand is $e^{-\tau^2}$
    times a smooth function, for which the midpoint rule converges to the last bit.
    """

    def phase(z: Any, lam: Any, b: Any) -> Any:
        grown = 1 + 2 * z[..., None] * lam
        terms = np.log(grown) / 2 + z[..., None] * b**2 / grown
        return z - (exponent + 1) * np.log(z) - terms.sum(-1)

    def slope(z: Any, lam: Any, b: Any) -> Any:
        grown = 1 + 2 * z[..., None] * lam
        return 1 - (exponent + 1) / z - (lam / grown + (b / grown) ** 2).sum(-1)

    # Follow the path in double precision, which is thirty times as fast, then correct all nodes.
    double = np.float64(lam), np.float64(b)
    low, high = np.zeros(lam.shape[:-1]), np.full(lam.shape[:-1], 100.0)
    for _ in range(60):  # the saddle: the minimum on the positive axis
        middle = (low + high) / 2
        rising = slope(np.exp(middle), *double) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    saddle = np.exp(high)
    step, taus = 1 / 8, (np.arange(54) + 0.5) / 8  # exp(-tau^2) is 1e-20 at the end
    change = slope(saddle * 1.001, *double) - slope(saddle, *double)
    path = [saddle + 0j, saddle + 1j * step * np.sqrt(0.001 * saddle / (2 * change))]
    for tau in taus:
        z = path[-1] if tau < step else 2 * path[-1] - path[-2]
        for _ in range(6):
            fall = phase(z, *double) - phase(saddle, *double) + tau**2
            z = z - fall / slope(z, *double)
        path.append(z)
    top, tau = phase(saddle.astype(np.longdouble), lam, b), taus.reshape(-1, 1, 1)
    nodes = np.stack(path[2:]).astype(np.clongdouble)
    nodes = nodes - (phase(nodes, lam, b) - top + tau**2) / slope(nodes, lam, b)
    return nodes, -2 * step * tau * np.exp(-(tau**2)) / slope(nodes, lam, b), top


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
    """Return each quantity, but for the entropy with its derivatives in parameters and both ends.

    Derivatives are central differences, whose errors are squares of steps of 1e-13.

    Args:
        law: The density and where it is cut.
        at: Where the density is asked.
        level: Of the quantile.
        start: A location near the quantile.
    """

    def quantities(numbers: list[mp.mpf]) -> list[mp.mpf]:
        *theta, low, high = numbers
        inner = sorted(mp.mpf(x) for x in law.marks if low < x < high)
        top = max(law.log_density(x, *theta) for x in [mp.mpf(at), *inner])

        def shape(t: mp.mpf) -> mp.mpf:
            return mp.exp(law.log_density(t, *theta) - top)

        def integral(g: Callable[[mp.mpf], mp.mpf], last: mp.mpf = high) -> mp.mpf:
            ends = [x for x in [low, *inner] if x < last]
            return mp.quad(lambda t: g(t) * shape(t), [*ends, last])

        mass = integral(lambda t: 1)
        log_mass, mean = mp.log(mass) + top, integral(lambda t: t) / mass
        variance = integral(lambda t: (t - mean) ** 2) / mass
        quantile = mp.mpf(start)
        for _ in range(3):
            quantile -= (integral(lambda t: 1, quantile) - level * mass) / shape(quantile)
        entropy = log_mass - integral(lambda t: law.log_density(t, *theta)) / mass
        log_at = law.log_density(mp.mpf(at), *theta)
        return [log_mass, log_at - log_mass, variance, quantile, entropy]

    with mp.workdps(40):
        numbers = [mp.mpf(x) for x in (*law.parameters, *law.interval)]
        columns = [quantities(numbers)]
        for i, x in enumerate(numbers):
            step = mp.mpf(10) ** -13 * (abs(x) or 1)
            if mp.isfinite(x):
                sides = [[*numbers[:i], x + side * step, *numbers[i + 1 :]] for side in (1, -1)]
                above, below = map(quantities, sides)
                columns.append([(a - b) / (2 * step) for a, b in zip(above, below, strict=True)])
            else:
                columns.append([mp.mpf(0)] * len(columns[0]))
        *rows, entropies = zip(*columns, strict=True)
        names = ("log mass", "log p", "variance", "quantile")
        found = {name: list(row) for name, row in zip(names, rows, strict=True)}
        return {**found, "entropy": [entropies[0]]}


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
