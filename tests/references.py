"""Densities in numpy and their integrals: what the battery compares with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from scipy.special import roots_gegenbauer

from benchmarks.reference import Array, tanh_sinh

# A number, or the values at many locations of vectors.
Values = Any


@dataclass(frozen=True, eq=False)
class Pieces:
    """A density of numbers on any number of intervals, with the rule that integrates it.

    Attributes:
        density: Of locations of any shape.
        cells: Nodes and weights of integrals over the support, cut at further marks.
        intervals: Ends of each of its intervals.
    """

    density: Callable[[Values], Values]
    cells: Callable[[Array], tuple[Array, Array]]
    intervals: tuple[tuple[float, float], ...]

    def densities(self, t: Array) -> Array:
        return np.asarray(self.density(t))

    @cached_property
    def centre(self) -> float:
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

    return Pieces(density, cells, tuple((cuts[0], cuts[-1]) for cuts in intervals))


@dataclass(frozen=True, eq=False)
class Ball:
    """A density of vectors on the image of the unit ball, integrated in spherical coordinates.

    Attributes:
        shape: The density up to a constant, of locations (..., D).
        centre: Image of the centre (D,).
        factor: Image of the ball (D, D); the support, or all of a density that rounding leaves.
        mass: Integral of `shape`.
    """

    shape: Callable[[Array], Array]
    centre: Array
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
        return self._image(*polynomial_rule(len(self.centre)))

    def smooth_rule(self, marks: Sequence[float] = ()) -> tuple[Array, Array]:
        """Nodes (Q, D) and weights of integrals of smooth functions, in up to three dimensions."""
        dim = len(self.centre)
        return self._image(*(smooth_rule(dim) if dim <= 3 else polynomial_rule(dim)))

    def _image(self, u: Array, weights: Array) -> tuple[Array, Array]:
        return self.centre + u @ self.factor.T, weights * np.linalg.det(self.factor)

    def projected(self, x: Array) -> tuple[Array, Array]:
        """Density and level at x of any coordinate of the ball's preimage, to about four digits.

        Here and below, for a density of the radius.
        """
        return _interpolated(x, *self._projection)

    @cached_property
    def _projection(self) -> tuple[Array, Array]:
        dim = len(self.centre)
        grid = np.sin(0.5 * math.pi * np.linspace(-1, 1, 4001))
        if dim == 1:
            return grid, self._at_radius(np.abs(grid))
        s, weights = tanh_sinh(0.05, 0.0, 1.0)
        rest = np.sqrt((1 - grid) * (1 + grid))
        density = self._at_radius(np.hypot(grid[:, None], rest[:, None] * s))
        inner = density @ (weights * s ** (dim - 2) * area(dim - 1))
        return grid, inner * rest ** (dim - 1)

    def radius(self, r: Array) -> tuple[Array, Array]:
        """Density and level at r of the distance from the centre in the ball's preimage."""
        grid = np.sin(0.5 * math.pi * np.linspace(0, 1, 4001))
        return _interpolated(r, grid, self._radial(grid))

    def _radial(self, r: Array) -> Array:
        dim = len(self.centre)
        return area(dim) * r ** (dim - 1) * self._at_radius(r)

    def axial(self, g: Callable[[Array, Array], Values]) -> Values:
        """Mean of g(r, c): of the radius, and the cosine of the direction with any one axis.

        In the ball's preimage, in three dimensions or more.
        """
        r, weights = tanh_sinh(0.01, 0.0, 1.0)
        c, shares = roots_gegenbauer(120, len(self.centre) / 2 - 1)
        each = (weights * self._radial(r))[:, None] * (shares / shares.sum())
        return np.tensordot(each, g(*np.broadcast_arrays(r[:, None], c)), 2)

    def _at_radius(self, r: Array) -> Array:
        """Density at distance r from the centre of the unit ball."""
        along = self.centre + r[..., None] * self.factor[:, 0]
        return self.density(along) * np.linalg.det(self.factor)


def _interpolated(x: Array, grid: Array, density: Array) -> tuple[Array, Array]:
    steps = 0.5 * (density[1:] + density[:-1]) * np.diff(grid)
    levels = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    return np.interp(x, grid, density), np.interp(x, grid, levels)


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
    """The 240 shortest vectors of the lattice E8, normalised: a spherical 7-design."""
    units = [
        [sign[pair.index(i)] if i in pair else 0 for i in range(8)]
        for pair in combinations(range(8), 2)
        for sign in product((1, -1), repeat=2)
    ]
    halves = [s for s in product((0.5, -0.5), repeat=8) if math.prod(s) > 0]
    return np.array([*units, *halves]) / math.sqrt(2)
