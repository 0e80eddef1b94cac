"""Laws of numbers that tests of mixtures and divergences ask about, with densities in numpy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyro.distributions as pyro_distributions
import torch
from cases_kernel import POINTS, kernel_density, rbf
from cases_kernel import WIDTH as KERNEL_WIDTH
from numpy.typing import NDArray
from references import pieces
from scipy import stats
from torch import Tensor
from torch import distributions as td

from benchmarks.reference import KernelReference, gaussian
from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Mixture,
    Normal,
    SparseDistribution,
    Triangular,
    TruncatedParabola,
)

DOUBLE = torch.float64
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Law:
    """A law of numbers.

    Attributes:
        make: Builds it in a type.
        log_pdf: The logarithm of its density.
        marks: Ends and kinks, all mass but a rounding error between the first and the last.
        cdf: Its distribution function, if a test asks for it.
    """

    make: Callable[[torch.dtype], Any]
    log_pdf: Callable[[Array], Array]
    marks: Sequence[float]
    cdf: Callable[[Array], Array] | None = None

    def expect(self, g: Callable[[Array], Array], *marks: float) -> Array:
        """Expectation of a function, of arrays (Q,), smooth between the marks and further ones."""
        inner = [t for t in marks if self.marks[0] < t < self.marks[-1]]
        nodes, weights = integration_rule(sorted({*self.marks, *inner}))
        return (g(nodes) * (weights * np.exp(self.log_pdf(nodes)))).sum(-1)

    @property
    def is_ours(self) -> bool:
        return isinstance(self.made(DOUBLE), SparseDistribution)

    @cache  # noqa: B019
    def made(self, dtype: torch.dtype) -> Any:
        """The distribution, which some take long to make."""
        return self.make(dtype)


def integration_rule(marks: Sequence[float]) -> tuple[Array, Array]:
    """Nodes and weights of integrals from the first mark to the last of what is smooth between."""
    return pieces(np.ones_like, marks).rule()


def integral(function: Callable[[Array, Array], Array], p: Law, q: Law) -> float:
    """Integral of a function of two log densities, by pieces between marks."""
    t, weights = integration_rule(sorted({*p.marks, *q.marks}))
    return float((weights * function(p.log_pdf(t), q.log_pdf(t))).sum())


def divergence(p: Law, q: Law) -> float:
    """The KL divergence."""
    outside = integral(lambda a, b: np.where(np.isfinite(b), 0.0, np.exp(a)), p, q)
    return math.inf if outside > 1e-9 else integral(_excess, p, q)


def _excess(p: Array, q: Array) -> Array:
    alive = np.isfinite(p) & np.isfinite(q)
    return np.exp(p) * (np.where(alive, p, 0.0) - np.where(alive, q, 0.0))


def _log(pdf: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def log_pdf(t: Array) -> Array:
        density = pdf(t)
        alive = density > 0
        return np.where(alive, np.log(np.where(alive, density, 1.0)), -np.inf)

    return log_pdf


def _numbers(cls: Callable[..., Any], *numbers: float) -> Callable[[torch.dtype], Any]:
    return lambda dtype: cls(*(torch.tensor(x, dtype=dtype) for x in numbers))


def _bell(loc: float, scale: float, m: float) -> Callable[[Array], Array]:
    law = stats.beta(m + 1, m + 1, loc=loc - scale, scale=2 * scale)
    log_pdf: Callable[[Array], Array] = law.logpdf
    return log_pdf


def _tent(loc: float, scale: float, m: float) -> Callable[[Array], Array]:
    def pdf(t: Array) -> Array:
        return (m + 1) / (2 * scale) * (1 - np.abs(t - loc) / scale).clip(0) ** m

    return _log(pdf)


def _cubic(dtype: torch.dtype) -> LocationScale:
    # The parabola of half-width 1.5^(1/3) times the scale.
    loc, scale = torch.tensor([0.25, 0.75], dtype=dtype)
    return LocationScale(loc, scale, lambda x: x**3 / 6)


CUBIC_WIDTH = 0.75 * 1.5 ** (1 / 3)
SPREAD = [k / 4 for k in (-36, -24, -16, -8, 0, 8, 16, 24, 36)]
LONG = [-38.0, -24.0, -16.0, -8.0, -4.0, 0.0, 4.0, 8.0, 16.0, 24.0, 38.0]


def _kernel(weights: Sequence[float], alpha: float) -> Law:
    """Of the kernel that the battery has."""
    reference = KernelReference(
        np.array(weights), np.array(POINTS), gaussian(KERNEL_WIDTH), KERNEL_WIDTH, alpha=alpha
    )

    def make(dtype: torch.dtype) -> Any:
        points = torch.tensor(POINTS, dtype=dtype)
        return kernel_density(torch.tensor(weights, dtype=dtype), points, rbf, None, alpha)

    marks = [*reference.edges.ravel().tolist(), *np.linspace(0, 1, 9).tolist()]
    inside = reference.edges.reshape(-1, 2)

    def pdf(t: Array) -> Array:
        alive = ((inside[:, :1] < t) & (t < inside[:, 1:])).any(0)
        return np.where(alive, reference.density(t), 0.0)

    return Law(make, _log(pdf), marks)


# Mixtures, whose components scipy knows too


def locations(known: Law, count: int = 25) -> Tensor:
    """Locations inside the support and outside, none on an end."""
    lower, upper = known.marks[0], known.marks[-1]
    return torch.linspace(max(lower, -9.0) - 0.617, min(upper, 9.0) + 0.531, count, dtype=DOUBLE)


def logits(*weights: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.tensor(weights, dtype=dtype).log() + 0.75  # any constant will do


def parabola(loc: float, scale: float) -> Any:
    return stats.beta(2, 2, loc=loc - scale, scale=2 * scale)


def triangle(loc: float, scale: float) -> Any:
    return stats.triang(0.5, loc=loc - scale, scale=2 * scale)


def _sum(
    make: Callable[[torch.dtype], Mixture], weights: list[float], parts: list[Any], marks: Any
) -> Law:
    def total(name: str) -> Callable[[Array], Array]:
        pairs = list(zip(weights, parts, strict=True))
        return lambda t: np.asarray(sum(w * getattr(p, name)(t) for w, p in pairs))

    return Law(make, _log(total("pdf")), marks, total("cdf"))


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
    "normals": _sum(
        _normals,
        [0.5, 0.2, 0.3],
        [stats.norm(0, 1), stats.norm(1.5, 0.25), stats.norm(-4, 0.5)],
        [-9.5, -4.0, 0.0, 1.5, 9.5],
    ),
    "disjoint": _sum(
        _disjoint,
        [0.3, 0.6, 0.1],
        [parabola(0, 1), parabola(3, 0.5), parabola(5.5, 1.25)],
        [-1.0, 1.0, 2.5, 3.5, 4.25, 6.75],
    ),
    "unlike": _sum(
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
    "half-line": _sum(
        _half_line,
        [0.7, 0.3],
        [stats.gamma(3, scale=0.5), stats.uniform(-3, 2)],
        [-3.0, -1.0, 0.0, 1.0, 25.0],
    ),
}


def _two_normals(dtype: torch.dtype) -> Mixture:
    loc, scale = torch.tensor([[0.0, 1.0], [0.03125, 0.03125]], dtype=dtype)
    return Mixture(torch.zeros(2, dtype=dtype), Normal(loc, scale))


LAWS = {
    "parabola": Law(_numbers(TruncatedParabola, 0.25, 1.5), _bell(0.25, 1.5, 1.0), [-1.25, 1.75]),
    "biweight": Law(_numbers(BetaGaussian, 0.5, 0.5, 1.5), _bell(0.5, 0.5, 2.0), [0.0, 1.0]),
    "root": Law(_numbers(BetaGaussian, 0.5, 0.5, 3.0), _bell(0.5, 0.5, 0.5), [0.0, 1.0]),
    "uniform": Law(_numbers(BetaGaussian, 0.5, 0.5, math.inf), stats.uniform.logpdf, [0.0, 1.0]),
    "triangle": Law(
        _numbers(Triangular, 0.375, 0.25), triangle(0.375, 0.25).logpdf, [0.125, 0.375, 0.625]
    ),
    "tent": Law(_numbers(BetaLaplace, -0.5, 3.0, 1.25), _tent(-0.5, 3.0, 4.0), [-3.5, -0.5, 2.5]),
    "cubic": Law(
        _cubic, _bell(0.25, CUBIC_WIDTH, 1.0), [0.25 - CUBIC_WIDTH, 0.25, 0.25 + CUBIC_WIDTH]
    ),
    "normal": Law(_numbers(Normal, 0.0, 1.0), stats.norm.logpdf, SPREAD),
    "laplace": Law(_numbers(Laplace, 0.0, 1.0), lambda t: -np.abs(t) - math.log(2), LONG),
    "kernel": _kernel([-4.0, 2.5, -3.5, 2.0, 1.0], 1.0),
    "kernel-1.5": _kernel([-4.0, 1.5, 2.5, 1.0, -3.5], 1.5),
    "kernel-2": _kernel([-4.0, 2.5, -3.5, 2.0, 1.0], 2.0),
    **{name: KNOWN[name] for name in ("normals", "disjoint", "unlike")},
    "torch-normal": Law(_numbers(td.Normal, 0.5, 0.75), stats.norm(0.5, 0.75).logpdf, SPREAD),
    "torch-laplace": Law(_numbers(td.Laplace, 0.0, 0.5), stats.laplace(0, 0.5).logpdf, LONG),
    "torch-uniform": Law(_numbers(td.Uniform, 0.0, 1.0), stats.uniform.logpdf, [0.0, 1.0]),
    "pyro-uniform": Law(
        _numbers(pyro_distributions.Uniform, -4.0, 5.0), stats.uniform(-4, 9).logpdf, [-4.0, 5.0]
    ),
}


# Between the peaks of this one the logarithm bends sharply.
NARROW = Law(
    _two_normals,
    lambda t: (
        np.logaddexp(stats.norm.logpdf(t, 0, 2**-5), stats.norm.logpdf(t, 1, 2**-5)) - math.log(2)
    ),
    [*np.linspace(-0.3, 1.3, 17).tolist(), *np.linspace(0.49, 0.51, 9).tolist()],
)
