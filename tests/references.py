"""Densities in numpy and their integrals: what the battery compares with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import brentq

Array = NDArray[np.float64]
# A number, or the values at many locations of vectors.
Values = Any
# Of locations (n,) and centers (m,), values (n, m); of locations (n,), values (n, N).
KernelFunction = Callable[[Array, Array], Array]
Functions = Callable[[Array], Array]


def tanh_sinh(step: float, low: Any, high: Any, dtype: Any = np.float64) -> tuple[Array, Array]:
    """Nodes and weights between numbers or columns of numbers.

    They integrate what is smooth but for singularities at the ends, such as powers and logarithms.
    """
    count = round(3.3 / step)
    u, pi = np.arange(-count, count + 1).astype(dtype) * dtype(step), 4 * np.arctan(dtype(1))
    share, rest = (1 / (1 + np.exp(sign * pi * np.sinh(u))) for sign in (-1, 1))
    length = high - low
    # From the nearer end, whose digits the density needs.
    nodes = np.where(share < rest, low + length * share, high - length * rest)
    return nodes, length * (pi * dtype(step) * np.cosh(u) * share * rest)


@dataclass(frozen=True, eq=False)
class Pieces:
    """A density of numbers on any number of intervals, with the rule that integrates it.

    Attributes:
        density: Of locations of any shape.
        cells: Nodes and weights of integrals over the support, cut at further marks.
        intervals: Ends of each of its intervals.
        cuts: Locations between which it is smooth.
    """

    density: Callable[[Values], Values]
    cells: Callable[[Array], tuple[Array, Array]]
    intervals: tuple[tuple[float, float], ...]
    cuts: Sequence[float]

    def densities(self, t: Array) -> Array:
        return np.asarray(self.density(t))

    @cached_property
    def center(self) -> float:
        return self.expect(lambda t: t)

    def integral(
        self, g: Callable[[Array], Array], upper: float = math.inf, lower: float = -math.inf
    ) -> float:
        """Integral of g over the support from `lower` to `upper`."""
        t, weights = self.smooth_rule([end for end in (lower, upper) if math.isfinite(end)])
        return float((weights * g(t))[(lower < t) & (t < upper)].sum())

    def expect(self, g: Callable[[Array], Array]) -> float:
        return self.integral(lambda t: g(t) * self.density(t))

    def rule(self) -> tuple[Array, Array]:
        """Nodes and weights of integrals over the support."""
        return self.smooth_rule()

    def smooth_rule(self, marks: Sequence[float] = ()) -> tuple[Array, Array]:
        """Nodes and weights of integrals of functions that are smooth between the marks."""
        return self.cells(np.array(marks, dtype=float))


def pieces(density: Callable[[Array], Array], *intervals: Sequence[float]) -> Pieces:
    """Of a density that is smooth between the locations that each interval lists."""

    def cells(marks: Array) -> tuple[Array, Array]:
        found = []
        for cuts in intervals:
            inner = [t for t in marks.tolist() if cuts[0] < t < cuts[-1]]
            found += [tanh_sinh(0.01, a, b) for a, b in pairwise(sorted({*cuts, *inner}))]
        nodes, weights = zip(*found, strict=True)
        return np.concatenate(nodes), np.concatenate(weights)

    ends = tuple((cuts[0], cuts[-1]) for cuts in intervals)
    return Pieces(density, cells, ends, [t for cuts in intervals for t in cuts])


def merged(intervals: Sequence[Sequence[float]]) -> list[list[float]]:
    """The intervals that touch no other, ascending."""
    found: list[list[float]] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1]:
            found[-1][1] = max(found[-1][1], high)
        else:
            found.append([low, high])
    return found


# Kernel families
def gaussian(width: float) -> KernelFunction:
    return lambda t, c: np.exp(-0.5 * (np.subtract.outer(t, c) / width) ** 2)


def gaussians(centers: Array, width: float) -> Functions:
    """Normalized Gaussians."""
    return lambda t: gaussian(width)(t, centers) / (width * math.sqrt(2 * math.pi))


def _roots(f: Callable[[Array], Array], t: Array) -> Array:
    """Where f changes its sign between neighbors in t, by bisection."""
    above = f(t) > 0
    (k,) = np.nonzero(above[1:] != above[:-1])
    low, high = t[k], t[k + 1]
    for _ in range(55):
        middle = (low + high) / 2
        beyond = (f(middle) > 0) == above[k + 1]
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return low


@dataclass(frozen=True, eq=False)
class Kernel:
    """The density exp_{2-alpha}(f - A) base or, outside, exp_{2-alpha}(f) base / Z.

    Integrals are cut at the roots of f that end the support, at minima and maxima of f and where
    it is not smooth.

    Attributes:
        weights: Of the score f(t) = sum_i weights_i kernel(t, centers_i).
        centers: Inducing points.
        kernel: Smooth but for kinks.
        width: Its bandwidth, or that of narrower functions whose expectations are asked for.
        law: Base density, frozen by scipy.
        kinks: Where the kernel or the base are not smooth.
        alpha: From 1 to 2.
        inside: Whether A normalizes, else Z does.
    """

    weights: Array
    centers: Array
    kernel: KernelFunction
    width: float
    law: Any = stats.uniform
    kinks: Sequence[float] = ()
    alpha: float = 2.0
    inside: bool = True

    def score(self, t: Array) -> Array:
        return (self.kernel(np.ravel(t), self.centers) @ self.weights).reshape(np.shape(t))

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Of the base, but for a mass that rounding loses."""
        return float(self.law.ppf(1e-40)), float(self.law.isf(1e-40))

    def _inside(self, *locations: Any) -> Array:
        t = np.unique(np.concatenate([np.ravel(x) for x in locations]))
        return t[(t >= self.ends[0]) & (t <= self.ends[1])]

    @cached_property
    def cuts(self) -> Array:
        """Locations between which score and base are smooth and the score is monotone."""
        tails = 10.0 ** -np.arange(1, 41)
        quantiles = [self.law.ppf(np.linspace(0.1, 0.9, 9))]
        for quantile, end in zip((self.law.ppf, self.law.isf), self.law.support(), strict=True):
            quantiles += [quantile(tails)] if math.isinf(end) else []
        low = max(self.centers.min() - 12 * self.width, self.ends[0])
        high = min(self.centers.max() + 12 * self.width, self.ends[1])
        # If the score is large, its exponential is narrower than the kernel.
        size = np.ptp(self.score(np.linspace(low, high, 2000)))
        count = math.ceil((high - low) / self.width * max(1.0, math.sqrt(size) / 4))
        cuts = self._inside(*quantiles, np.linspace(low, high, count + 1), self.kinks, self.ends)
        scan = self._inside(cuts[:-1, None] + np.diff(cuts)[:, None] * np.linspace(0, 1, 17))
        step = 1e-5 * self.width
        turns = _roots(lambda t: self.score(t + step) - self.score(t - step), scan)
        return self._inside(cuts, turns)

    def _level(self, shift: float) -> float:
        """Where the score is at the edges of the support."""
        return shift - 1 / (self.alpha - 1) if self.alpha > 1 else -math.inf

    def _crossings(self, level: float) -> Array:
        return _roots(lambda t: self.score(t) - level, self.cuts)

    def _rule(self, level: float, marks: Any = ()) -> tuple[Array, Array]:
        """Nodes and weights of integrals over {f > level}, cut at marks."""
        cuts = self._inside(self.cuts, self._crossings(level), marks)
        above = self.score((cuts[1:] + cuts[:-1]) / 2) > level
        nodes, weights = tanh_sinh(0.12, cuts[:-1, None][above], cuts[1:, None][above])
        return nodes.ravel(), weights.ravel()

    def rule(self, marks: Any = ()) -> tuple[Array, Array]:
        return self._rule(self._level(self.shift), marks)

    def _log(self, x: Array) -> Array:
        """The logarithm of exp_{2-alpha}(x), or the least of those that are not rounded to zero."""
        eps = self.alpha - 1
        with np.errstate(divide="ignore"):
            return np.maximum(np.log1p(np.maximum(eps * x, -1)) / eps if eps else x, -1e3)

    def _power(self, x: Array, power: float = 1.0) -> Array:
        """exp_{2-alpha}(x)^power where it is positive, else 0."""
        return np.where((self.alpha - 1) * x > -1, np.exp(power * self._log(x)), 0.0)

    @cached_property
    def normalizer(self) -> float:
        """A inside, Z outside."""
        t, weights = self._rule(self._level(0.0) if not self.inside else -math.inf)
        f, weights = self.score(t), weights * self.law.pdf(t)
        if not self.inside:
            return float(weights @ self._power(f))
        if self.alpha == 1:
            return float(special.logsumexp(f, b=weights))

        def log_mass(shift: float) -> float:
            return float(special.logsumexp(self._log(f - shift), b=weights))

        # Newton's method, with rules that know the edges.
        shift, step = brentq(log_mass, f @ weights - 1, f.max() + 1, xtol=1e-3), math.inf
        while abs(step) > 1e-10 * (1 + abs(shift)):
            t, weights = self._rule(self._level(shift))
            x, weights = self.score(t) - shift, weights * self.law.pdf(t)
            mass = weights @ self._power(x)
            step = math.log(mass) * mass / (weights @ self._power(x, 2 - self.alpha))
            shift += step
        return float(shift)

    @property
    def shift(self) -> float:
        return self.normalizer if self.inside else 0.0

    @property
    def mass(self) -> float:
        return 1.0 if self.inside else self.normalizer

    @property
    def log_normalizer(self) -> float:
        """A, or outside the A that Z stands for: exp_{2-alpha}(-A) = 1/Z."""
        log, eps = math.log(self.mass), self.alpha - 1
        return self.shift + (-math.expm1(-eps * log) / eps if eps else log)

    def density(self, t: Any) -> Array:
        t = np.asarray(t, dtype=float)
        return self._power(self.score(t) - self.shift) * self.law.pdf(t) / self.mass

    @cached_property
    def edges(self) -> Array:
        """Ends of the support's intervals, ascending; they may be those of the base."""
        level = self._level(self.shift)
        inner = np.array(self.law.support())[self.score(np.array(self.ends)) > level]
        return np.sort(np.concatenate([inner, self._crossings(level)]))

    def pieces(self) -> Pieces:
        intervals = tuple(map(tuple, self.edges.reshape(-1, 2)))
        return Pieces(self.density, self.rule, intervals, [*self.edges, *self.cuts])

    def weighted(self, marks: Any = ()) -> tuple[Array, Array]:
        """Nodes and weights of expectations of what is smooth between the marks."""
        t, weights = self.rule(marks)
        return t, weights * self.density(t)

    def expect(self, psi: Functions, marks: Any = ()) -> Array:
        t, weights = self.weighted(marks)
        return weights @ psi(t)

    def cdf(self, t: Array) -> Array:
        nodes, weights = self.weighted(t)
        return np.concatenate([[0.0], np.cumsum(weights)])[np.searchsorted(nodes, t)]

    def jacobian(self, psi: Functions) -> Array:
        """The derivatives (N, I) of `expect` in the weights."""
        t, weights = self.rule()
        x, weights = self.score(t) - self.shift, weights * self.law.pdf(t) / self.mass
        p, escort, values = (
            weights * self._power(x),
            weights * self._power(x, 2 - self.alpha),
            psi(t),
        )
        mean = escort @ values / escort.sum() if self.inside else p @ values
        return ((values - mean) * escort[:, None]).T @ self.kernel(t, self.centers)


# Vectors
@dataclass(frozen=True, eq=False)
class Ball:
    """A density of vectors on the image of the unit ball, integrated in spherical coordinates.

    Attributes:
        shape: The density up to a constant, of locations (..., D).
        center: Image of the center (D,).
        factor: Image of the ball (D, D); the support, or all of a density that rounding leaves.
        mass: Integral of `shape`.
    """

    shape: Callable[[Array], Array]
    center: Array
    factor: Array
    mass: float = 1.0

    def density(self, t: Values) -> Values:
        return self.shape(np.asarray(t)) / self.mass

    densities = density

    def integral(self, g: Callable[[Array], Values]) -> Values:
        """Integral over the support of g, which maps locations (Q, D) to (Q, *shape).

        In the direction g must be a polynomial of degree 7; of the radius any smooth function.
        """
        t, weights = self.rule()
        return np.tensordot(weights, g(t), 1)

    def expect(self, g: Callable[[Array], Values]) -> Values:
        return self.integral(lambda t: (self.density(t) * g(t).T).T)

    def rule(self) -> tuple[Array, Array]:
        """Nodes (Q, D) and weights of `integral`."""
        return self._image(*polynomial_rule(len(self.center)))

    def smooth_rule(self, marks: Sequence[float] = ()) -> tuple[Array, Array]:
        """Nodes (Q, D) and weights of integrals of smooth functions, in up to three dimensions."""
        dim = len(self.center)
        return self._image(*(smooth_rule(dim) if dim <= 3 else polynomial_rule(dim)))

    def _image(self, u: Array, weights: Array) -> tuple[Array, Array]:
        return self.center + u @ self.factor.T, weights * np.linalg.det(self.factor)


def area(dim: int) -> float:
    """Surface of the unit sphere in `dim` dimensions; two points in one."""
    return 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)


@cache
def polynomial_rule(dim: int) -> tuple[Array, Array]:
    """Nodes (Q, dim) and weights of integrals over the unit ball: few directions."""
    if dim == 8:
        roots = e8_roots()
        return ball_rule(roots, np.full(len(roots), area(8) / len(roots)), 0.04)
    return ball_rule(*sphere_rule(dim, 4), 0.04)


@cache
def smooth_rule(dim: int) -> tuple[Array, Array]:
    """Nodes (Q, dim) and weights of integrals over the unit ball: many directions."""
    return ball_rule(*sphere_rule(dim, 36 if dim == 3 else 48), 0.035)


def ball_rule(directions: Array, shares: Array, step: float) -> tuple[Array, Array]:
    radii, rule = tanh_sinh(step, 0.0, 1.0)
    dim = directions.shape[-1]
    nodes = radii[:, None, None] * directions
    weights = (rule * radii ** (dim - 1))[:, None] * shares
    return nodes.reshape(-1, dim), weights.reshape(-1)


def sphere_rule(dim: int, half: int) -> tuple[Array, Array]:
    """Directions (K, dim) and weights, exact for polynomials of degree 2 half - 1."""
    if dim == 1:
        return np.array([[1.0], [-1.0]]), np.ones(2)
    angles = math.pi * (np.arange(2 * half) + 0.5) / half
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    if dim == 2:
        return circle, np.full(2 * half, math.pi / half)
    height, weights = np.polynomial.legendre.leggauss(half)
    planar = np.sqrt(1 - height**2)[:, None, None] * circle
    heights = np.broadcast_to(height[:, None, None], (half, 2 * half, 1))
    sphere = np.concatenate([planar, heights], -1).reshape(-1, 3)
    return sphere, np.repeat(weights * math.pi / half, 2 * half)


def e8_roots() -> Array:
    """The 240 shortest vectors of the lattice E8, normalized: a spherical 7-design."""
    units = [
        [sign[pair.index(i)] if i in pair else 0 for i in range(8)]
        for pair in combinations(range(8), 2)
        for sign in product((1, -1), repeat=2)
    ]
    halves = [s for s in product((0.5, -0.5), repeat=8) if math.prod(s) > 0]
    return np.array([*units, *halves]) / math.sqrt(2)
