"""The densities that estimates are compared on, and the errors of estimates."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["DENSITIES", "GRID", "SEPARATED", "Array", "Errors", "Law", "errors"]

Array = NDArray[np.float64]
GRID = np.linspace(-0.5, 1.5, 4001)


class Errors(NamedTuple):
    """Of an estimate, or medians of several."""

    squared: float
    hellinger: float
    outside: float


class Law(NamedTuple):
    """A mixture of beta densities on intervals.

    Attributes:
        parts: (weight, lower end, upper end, a, b) of each.
    """

    parts: Sequence[tuple[float, float, float, float, float]]

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draws (count,)."""
        weights = [part[0] for part in self.parts]
        which = rng.choice(len(self.parts), count, p=weights)
        _, low, high, a, b = np.array(self.parts)[which].T
        return np.asarray(low + (high - low) * rng.beta(a, b))

    def at(self, t: Array) -> Array:
        """Densities."""
        total = np.zeros_like(t)
        for weight, low, high, a, b in self.parts:
            total += weight * stats.beta(a, b, low, high - low).pdf(t)
        return total

    def inside(self, t: Array) -> NDArray[np.bool_]:
        """What the support contains."""
        found = np.zeros(t.shape, bool)
        for _, low, high, _, _ in self.parts:
            found |= (low <= t) & (t <= high)
        return found


# Beta(1, 1) is uniform, (2, 2) a parabola, (3, 3) a biweight, (4, 4) a triweight, (1, 2) a ramp.
DENSITIES = {
    "parabola": Law([(1, 0, 1, 2, 2)]),
    "biweight": Law([(1, 0, 1, 3, 3)]),
    "uniform": Law([(1, 0, 1, 1, 1)]),
    "ramp": Law([(1, 0, 1, 1, 2)]),
    "two parabolas": Law([(0.6, 0.15, 0.41, 2, 2), (0.4, 0.67, 0.83, 2, 2)]),
    "two uniforms": Law([(0.5, 0, 0.3, 1, 1), (0.5, 0.6, 1, 1, 1)]),
    "three parabolas": Law([(0.4, 0, 0.3, 2, 2), (0.4, 0.4, 0.7, 2, 2), (0.2, 0.85, 1, 2, 2)]),
    "uniform and triweight": Law([(0.7, 0, 0.4, 1, 1), (0.3, 0.6, 1, 4, 4)]),
    "skewed pair": Law([(0.5, 0, 0.4, 2, 5), (0.5, 0.55, 1, 5, 2)]),
}
SEPARATED = tuple(name for name, law in DENSITIES.items() if len(law.parts) > 1)


def errors(law: Law, found: Array) -> Errors:
    """Integrated squared error, Hellinger distance, and the mass off the true support."""
    step, true = GRID[1] - GRID[0], law.at(GRID)
    true = np.where(np.isfinite(true), true, 0.0)
    squared = float(((found - true) ** 2).sum() * step)
    hellinger = float(np.sqrt(((np.sqrt(found) - np.sqrt(true)) ** 2).sum() * step / 2))
    return Errors(squared, hellinger, float(found[~law.inside(GRID)].sum() * step))
