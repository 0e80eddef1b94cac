"""Kernel densities on the line in plain float64: what their implementation is compared with.

The support's edges are roots of the score itself, and every smooth piece between them is
integrated on cells that shrink towards its ends, so that no power of the distance to an edge, nor
a near miss of one, disturbs the rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from references import Array
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import uniform

# Of locations (n,) and centers (m,), values (n, m).
Kernel = Callable[[Array, Array], Array]
# Of locations (Q,), values (Q, N).
Functions = Callable[[Array], Array]

NODES, SHARES = np.polynomial.legendre.leggauss(16)


def total(weights: Array, values: Array) -> Any:
    """Sum of values (Q, ...) with weights (Q,), by no product that takes every core."""
    return np.einsum("q,q...->...", weights, values)


def cross(weights: Array, f: Array, g: Array) -> Array:
    """Sums of all products of columns of f and g."""
    found: Array = np.einsum("qm,qn->mn", weights[:, None] * f, g)
    return found


def _stationary(profile: Callable[[Array], Array]) -> Callable[[float], Kernel]:
    """Kernels of the distance in bandwidths."""
    return lambda width: lambda t, c: profile(np.abs(t[:, None] - c) / width)


gaussian = _stationary(lambda x: np.exp(-0.5 * x**2))
exponential = _stationary(lambda x: np.exp(-x))
matern32 = _stationary(lambda x: (1 + 3**0.5 * x) * np.exp(-(3**0.5) * x))
matern52 = _stationary(lambda x: (1 + 5**0.5 * x + 5 * x**2 / 3) * np.exp(-(5**0.5) * x))


@dataclass(frozen=True, eq=False)
class Expansion:
    """A score sum_i weights_i k(t, centers_i), with a base on which it is integrated.

    Attributes:
        weights: (I,).
        centers: (I,).
        kernel: Smooth on cells of length `width`, but for kinks.
        width: Its bandwidth.
        law: Base density, frozen by scipy.
        kinks: Where the kernel or the base are not smooth.
    """

    weights: Array
    centers: Array
    kernel: Kernel
    width: float
    law: Any = uniform()
    kinks: tuple[float, ...] = ()

    def score(self, t: Array) -> Array:
        return (self.kernel(t, self.centers) * self.weights).sum(-1)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Of the base, but for a mass that rounding loses."""
        return float(self.law.ppf(1e-40)), float(self.law.isf(1e-40))

    def within(self, t: Array) -> Array:
        return t[(t >= self.ends[0]) & (t <= self.ends[1])]

    @cached_property
    def cuts(self) -> Array:
        """Ends of cells on which score and base are smooth."""
        powers, levels = 10.0 ** -np.arange(1, 41), np.linspace(0.1, 0.9, 9)
        tails = [self.law.ppf(powers), self.law.ppf(levels), self.law.isf(powers)]
        low, high = self.centers.min() - 12 * self.width, self.centers.max() + 12 * self.width
        low, high = max(low, self.ends[0]), min(high, self.ends[1])
        # Of a large score the density is narrower than the kernel.
        size = np.ptp(self.score(np.linspace(low, high, 2000)))
        count = (high - low) / self.width * max(1.0, (size / 16) ** 0.5)
        even = np.linspace(low, high, math.ceil(count) + 1)
        return self.within(np.unique(np.concatenate([*tails, even, self.kinks, self.ends])))

    @cached_property
    def turns(self) -> tuple[Array, Array]:
        """Where the score has its minima and its maxima."""
        t = self.scan(40)
        return self._lowest(t, self.score), self._lowest(t, lambda x: -self.score(x))

    def scan(self, count: int) -> Array:
        shares = np.arange(count) / count
        inner = self.cuts[:-1, None] + np.diff(self.cuts)[:, None] * shares
        return np.append(inner.ravel(), self.cuts[-1])

    @staticmethod
    def _lowest(t: Array, g: Callable[[Array], Array]) -> Array:
        """Local minima of g, between neighbours of the locations, by thirds."""
        f = g(t)
        # Not all of where a tail underflows.
        i = 1 + np.flatnonzero((f[1:-1] < f[:-2]) & (f[1:-1] <= f[2:]))
        a, b = t[i - 1], t[i + 1]
        for _ in range(45):
            x, y = a + (b - a) / 3, b - (b - a) / 3
            left = g(x) < g(y)
            a, b = np.where(left, a, x), np.where(left, y, b)
        return 0.5 * (a + b)

    @cached_property
    def monotone(self) -> tuple[Array, Array]:
        """Locations between which the score is monotone, and its values."""
        t = np.unique(np.concatenate([self.cuts, *self.turns]))
        return t, self.score(t)

    def roots(self, level: float) -> Array:
        """Where the score crosses a level."""
        t, f = self.monotone
        crossed = np.flatnonzero((f[1:] > level) != (f[:-1] > level))
        return np.array(
            [
                brentq(lambda x: self.score(np.array([x]))[0] - level, t[i], t[i + 1], xtol=1e-16)
                for i in crossed
            ]
        )

    def cells(self, level: float, marks: Array) -> tuple[Array, Array]:
        """Nodes and weights of integrals over {score > level}, cut at marks.

        Cells shrink towards its edges and towards minima.
        """
        cuts = [self.cuts, marks]
        if level > -math.inf:
            lows = self.turns[0]
            sharp = np.concatenate([self.roots(level), lows[self.score(lows) > level]])
            ladder = self.width * 0.25 ** np.arange(26)
            cuts += [sharp, *(sharp + ladder[:, None]), *(sharp - ladder[:, None])]
        cells = self.within(np.unique(np.concatenate(cuts)))
        half, middle = np.diff(cells) / 2, (cells[1:] + cells[:-1]) / 2
        kept = self.score(middle) > level
        nodes = middle[kept, None] + half[kept, None] * NODES
        return nodes.ravel(), (half[kept, None] * SHARES).ravel()


@dataclass(frozen=True, eq=False)
class KernelReference(Expansion):
    """The density [1 + eps (f - A)]_+^(1/eps) base / Z, eps = alpha - 1; exp(f - A) base at 0.

    Attributes:
        alpha: From 1 to 2.
        inside: Whether A normalises, else Z does.
    """

    alpha: float = 2.0
    inside: bool = True

    @property
    def eps(self) -> float:
        return self.alpha - 1

    def relative(self, f: Array, shift: float, power: float = 1.0) -> Array:
        """exp_{1-eps}(f - shift)^power."""
        x = self._logarithm(f, shift)
        return np.where(x > -math.inf, np.exp(power * np.maximum(x, -1e3)), 0.0)

    def _logarithm(self, f: Array, shift: float) -> Array:
        if not self.eps:
            return f - shift
        with np.errstate(divide="ignore"):
            return np.log1p(np.maximum(self.eps * (f - shift), -1)) / self.eps

    # Normalisation

    @cached_property
    def normalizer(self) -> float:
        """A inside, Z outside."""
        if not self.inside:
            t, weights = self.nodes(0.0)
            return float(total(weights, self.relative(self.score(t), 0.0)))
        shift = self._rough()
        for _ in range(20):
            t, weights = self.nodes(shift)
            f = self.score(t)
            mass = total(weights, self.relative(f, shift))
            step = (mass - 1) / total(weights, self.relative(f, shift, 1 - self.eps))
            shift += step
            if abs(step) < 1e-15 * (1 + abs(shift)):
                break
        return float(shift)

    def _rough(self) -> float:
        """A by a rule that knows of no edges."""
        half, middle = np.diff(self.cuts) / 2, (self.cuts[1:] + self.cuts[:-1]) / 2
        t = (middle[:, None] + half[:, None] * NODES).ravel()
        shares = (half[:, None] * SHARES).ravel() * self.law.pdf(t)
        f = self.score(t)
        if not self.eps:
            return float(logsumexp(f, b=shares))
        return float(
            brentq(
                lambda a: logsumexp(self._logarithm(f, a), b=shares), f @ shares - 1, f.max() + 1
            )
        )

    @property
    def shift(self) -> float:
        return self.normalizer if self.inside else 0.0

    @property
    def mass(self) -> float:
        return 1.0 if self.inside else self.normalizer

    def level(self, shift: float) -> float:
        return shift - 1 / self.eps if self.eps else -math.inf

    def nodes(self, shift: float, marks: Array | None = None) -> tuple[Array, Array]:
        """Nodes and weights of integrals against the base over the support."""
        t, weights = self.cells(self.level(shift), np.array([]) if marks is None else marks)
        return t, weights * self.law.pdf(t)

    def weighted(self, power: float = 1.0, marks: Array | None = None) -> tuple[Array, Array]:
        """Nodes and weights of integrals of (dP/dbase)^power."""
        t, weights = self.nodes(self.shift, marks)
        values = self.relative(self.score(t), self.shift, power) / self.mass**power
        return t, weights * values

    # What follows from it

    def density(self, t: Array) -> Array:
        t = np.asarray(t, dtype=float)
        f = self.score(t.ravel()).reshape(t.shape)
        return self.relative(f, self.shift) * self.law.pdf(t) / self.mass

    @cached_property
    def edges(self) -> Array:
        """Ends of the support's intervals, ascending: of a bounded base also its ends."""
        roots = self.roots(self.level(self.shift)) if self.eps else np.array([])
        low, high = self.law.support()
        inner = self.score(np.array(self.ends)) > self.level(self.shift)
        return np.concatenate([[low] if inner[0] else [], roots, [high] if inner[1] else []])

    def expect(self, psi: Functions, marks: Array | None = None) -> Array:
        t, weights = self.weighted(marks=marks)
        return total(weights, psi(t))

    def jacobian(self, psi: Functions, marks: Array | None = None) -> Array:
        """Derivatives (N, I) of `expect` in the weights."""
        t, shares = self.nodes(self.shift, marks)
        shares = shares * self.relative(self.score(t), self.shift, 1 - self.eps) / self.mass
        values = psi(t)
        middle = total(shares, values) / shares.sum() if self.inside else self.expect(psi, marks)
        return cross(shares, values - middle, self.kernel(t, self.centers))

    def slope(self, psi: Functions, marks: Array | None = None) -> Array:
        """Derivatives (N,) of `expect` in alpha."""
        t, shares = self.nodes(self.shift, marks)
        x, values = self.score(t) - self.shift, psi(t)
        p, escort = (self.relative(x, 0.0, k) * shares / self.mass for k in (1.0, 1 - self.eps))
        middle = total(escort, values) / escort.sum() if self.inside else total(p, values)
        if not self.eps:
            return total(-0.5 * x**2 * p, values - middle)
        log = np.maximum(self._logarithm(x, 0.0), -1e3)
        return total((escort * x - p * log) / self.eps, values - middle)

    def covariance(self, phi: Functions, psi: Functions, beta: float) -> Array:
        """Eq. 17 with respect to the base: of sums of 1, phi, psi and their products."""
        t, w = self.weighted(beta)
        f, g = phi(t), psi(t)
        return cross(w, f, g) - np.outer(total(w, f), total(w, g)) / w.sum()

    def cdf(self, t: Array) -> Array:
        nodes, weights = self.weighted(marks=np.asarray(t))
        levels = np.concatenate([[0.0], np.cumsum(weights)])
        return levels[np.searchsorted(nodes, t)]

    def masses(self) -> Array:
        """Of every interval of the support."""
        nodes, weights = self.weighted()
        return np.array(
            [weights[(nodes > a) & (nodes < b)].sum() for a, b in self.edges.reshape(-1, 2)]
        )
