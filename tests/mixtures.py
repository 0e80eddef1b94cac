"""Mixtures that tests ask about, and their densities as scipy has them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from references import tanh_sinh
from scipy import stats
from torch import Tensor
from torch import distributions as td

from sparsefam import Mixture, Normal, Triangular, TruncatedParabola

DOUBLE = torch.float64
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """A mixture of numbers whose components scipy knows too.

    Attributes:
        make: Builds it in a type.
        weights: Of the components.
        parts: The components in scipy.
        marks: Ends and kinks, all mass but a rounding error between the first and the last.
    """

    make: Callable[[torch.dtype], Mixture]
    weights: list[float]
    parts: list[Any]
    marks: list[float]

    def pdf(self, t: Any) -> Any:
        return sum(w * p.pdf(t) for w, p in zip(self.weights, self.parts, strict=True))

    def cdf(self, t: Any) -> Any:
        return sum(w * p.cdf(t) for w, p in zip(self.weights, self.parts, strict=True))

    def expect(self, g: Callable[[Array], Array], *marks: float) -> Array:
        """Expectation of a function, of arrays (Q,), smooth between the marks and further ones."""
        inner = [t for t in marks if self.marks[0] < t < self.marks[-1]]
        nodes, weights = integration_rule(sorted({*self.marks, *inner}))
        return (g(nodes) * (weights * self.pdf(nodes))).sum(-1)


def integration_rule(marks: Sequence[float]) -> tuple[Array, Array]:
    """Nodes and weights of integrals from the first mark to the last of what is smooth between."""
    nodes, weights = zip(*(tanh_sinh(0.01, a, b) for a, b in pairwise(marks)), strict=True)
    return np.concatenate(nodes), np.concatenate(weights)


def locations(known: Known, count: int = 25) -> Tensor:
    """Locations inside the support and outside, none on an end."""
    lower, upper = known.marks[0], known.marks[-1]
    return torch.linspace(max(lower, -9.0) - 0.617, min(upper, 9.0) + 0.531, count, dtype=DOUBLE)


def logits(*weights: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.tensor(weights, dtype=dtype).log() + 0.75  # any constant will do


def parabola(loc: float, scale: float) -> Any:
    return stats.beta(2, 2, loc=loc - scale, scale=2 * scale)


def triangle(loc: float, scale: float) -> Any:
    return stats.triang(0.5, loc=loc - scale, scale=2 * scale)


def _normals(dtype: torch.dtype) -> Mixture:
    loc, scale = torch.tensor([[0.0, 1.5, -4.0], [1.0, 0.25, 0.5]], dtype=dtype)
    return Mixture(logits(0.5, 0.2, 0.3, dtype=dtype), Normal(loc, scale))


def _disjoint(dtype: torch.dtype) -> Mixture:
    loc, scale = torch.tensor([[0.0, 3.0, 5.5], [1.0, 0.5, 1.25]], dtype=dtype)
    return Mixture(logits(0.3, 0.6, 0.1, dtype=dtype), TruncatedParabola(loc, scale))


def _unlike(dtype: torch.dtype) -> Mixture:
    def number(x: float) -> Tensor:
        return torch.tensor(x, dtype=dtype)

    parts = [
        td.Uniform(number(0.0), number(1.0)),
        Triangular(number(0.75), number(0.5)),
        td.HalfNormal(number(0.5)),
        td.Exponential(number(2.0)),
        td.Laplace(number(3.0), number(0.5)),
    ]
    return Mixture(logits(0.1, 0.2, 0.3, 0.15, 0.25, dtype=dtype), parts)


def _half_line(dtype: torch.dtype) -> Mixture:
    def number(x: float) -> Tensor:
        return torch.tensor(x, dtype=dtype)

    parts = [td.Gamma(number(3.0), number(2.0)), td.Uniform(number(-3.0), number(-1.0))]
    return Mixture(logits(0.7, 0.3, dtype=dtype), parts)


KNOWN = {
    "normals": Known(
        _normals,
        [0.5, 0.2, 0.3],
        [stats.norm(0, 1), stats.norm(1.5, 0.25), stats.norm(-4, 0.5)],
        [-9.5, -4.0, 0.0, 1.5, 9.5],
    ),
    "disjoint": Known(
        _disjoint,
        [0.3, 0.6, 0.1],
        [parabola(0, 1), parabola(3, 0.5), parabola(5.5, 1.25)],
        [-1.0, 1.0, 2.5, 3.5, 4.25, 6.75],
    ),
    "unlike": Known(
        _unlike,
        [0.1, 0.2, 0.3, 0.15, 0.25],
        [
            stats.uniform(0, 1),
            triangle(0.75, 0.5),
            stats.halfnorm(scale=0.5),
            stats.expon(scale=0.5),
            stats.laplace(3, 0.5),
        ],
        [-17.0, 0.0, 0.25, 0.75, 1.0, 1.25, 3.0, 23.0],
    ),
    "half-line": Known(
        _half_line,
        [0.7, 0.3],
        [stats.gamma(3, scale=0.5), stats.uniform(-3, 2)],
        [-3.0, -1.0, 0.0, 1.0, 25.0],
    ),
}
