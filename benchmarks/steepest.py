r"""Averages over the unit ball by the path of steepest descent, in extended precision.

$$E[(1 - |x|^2)_+^m] = \frac{\Gamma(m+1)}{2\pi i} \int e^{\phi(z)}\,dz, \qquad
\phi = z - (m+1)\log z - \tfrac12 \sum_k \log(1 + 2 z \lambda_k)
- \sum_k \frac{z b_k^2}{1 + 2 z \lambda_k}$$
for $x_k \sim N(b_k, \lambda_k)$, around the negative axis. Along the path on which $\phi$ falls by
$\tau^2$ and stays real the integrand is $e^{-\tau^2}$ times a smooth function, for which the
midpoint rule is as good as exact. Nothing here is shared with sparsefam, whose path is another.

Numbers are numpy's longdouble: 64 bits of mantissa where the machine has them (x86), else 53.
"""

from copy import copy
from dataclasses import dataclass

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

__all__ = ["Descent", "Extended", "descent", "extended"]

Extended = NDArray[np.longdouble]
_Complex = NDArray[np.clongdouble]

# The rule's step, and the end, where exp(-tau^2) is 1e-20.
_STEP, _END = 1 / 8, 6.75
_NEWTON = 3
_HALVINGS = 80


@dataclass(frozen=True)
class Descent:
    """The nodes of many integrals, and what averages over them need.

    Attributes:
        value: E[(1 - |x|^2)_+^m], shape (P,).
        nodes: z, shape (n, P).
        weights: Complex; the average of a function f of z is the imaginary part of sum(weights f).
    """

    value: Extended
    nodes: _Complex
    weights: _Complex

    def average(self, f: _Complex) -> Extended:
        """Of values (n, *pairs, ...), where the pairs may be several axes."""
        lines = f.reshape(*self.weights.shape, -1)
        total: Extended = (self.weights[..., None] * lines).imag.sum(0)
        return total.reshape(f.shape[1:])


def extended(x: mp.mpf) -> np.longdouble:
    """A number with all the digits that fit."""
    return np.longdouble(mp.nstr(x, 25))


def descent(lam: Extended, b: Extended, exponent: float) -> Descent:
    """Nodes for variances and means (P, D) and an exponent m >= 0."""
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
    """The path in double precision, which is thirty times as fast, node by node."""
    double = phase.double()
    nodes = [1j * _STEP / 2 * np.sqrt(2 / double.curvature)]
    for i, tau in enumerate(np.float64(taus[:, 0])):
        if i:
            nodes.append(double.ahead(nodes[-1], tau - _STEP))
        for _ in range(_NEWTON):
            nodes[-1] = double.nearer(nodes[-1], tau)
    return np.stack(nodes).astype(np.clongdouble)


def _saddle(lam: Extended, b: Extended, top: np.longdouble) -> Extended:
    """The minimum of phi on the positive axis, by bisection of its logarithm."""

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
        """The same in double precision."""
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
        """Its derivative."""
        axes = d[..., None]
        grown = 1 + self.p * axes
        terms = (self.p**2 / 2 + self.g * (1 + 1 / grown)) * axes / grown
        found: _Complex = self.top * d / (1 + d) + terms.sum(-1) + self.rest
        return found

    def nearer(self, d: _Complex, tau: Extended) -> _Complex:
        """Closer to the point where it is -tau^2, by a Newton step."""
        return d - (self(d) + tau**2) / self.slope(d)

    def ahead(self, d: _Complex, tau: float) -> _Complex:
        """From the point of tau to that of tau + _STEP, by a Runge-Kutta step."""
        half = _STEP / 2
        first = -2 * tau / self.slope(d)
        second = -2 * (tau + half) / self.slope(d + half * first)
        third = -2 * (tau + half) / self.slope(d + half * second)
        fourth = -2 * (tau + _STEP) / self.slope(d + _STEP * third)
        return d + _STEP / 6 * (first + 2 * second + 2 * third + fourth)


def _less_log(d: _Complex) -> _Complex:
    """d - log(1 + d)."""
    x, y = d.real, d.imag
    real = x - np.log1p(x * (2 + x) + y * y) / 2
    return real + 1j * (y - np.arctan2(y, 1 + x))
