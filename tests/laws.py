"""Laws of numbers that tests of mixtures and divergences ask about, with densities in numpy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyro.distributions as pyro_distributions
import torch
from battery import DOUBLE
from cases_kernel import POINTS, kernel_density, rbf
from cases_kernel import WIDTH as KERNEL_WIDTH
from references import Array, Kernel, gaussian, pieces
from scipy import stats
from torch import Tensor
from torch import distributions as td

import sparsefam as sf


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
        return isinstance(self.made(DOUBLE), sf.SparseDistribution)

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


# The laws
def law(
    cls: Callable[..., Any],
    numbers: Sequence[float],
    log_pdf: Callable[[Array], Array],
    marks: Sequence[float],
) -> Law:
    """Of a class and its parameters."""
    return Law(lambda dtype: cls(*(torch.tensor(x, dtype=dtype) for x in numbers)), log_pdf, marks)


def _log(pdf: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def log_pdf(t: Array) -> Array:
        density = pdf(t)
        alive = density > 0
        return np.where(alive, np.log(np.where(alive, density, 1.0)), -np.inf)

    return log_pdf


def bell(loc: float, scale: float, m: float = 1.0) -> Any:
    """The density (1 - x^2)^m."""
    return stats.beta(m + 1, m + 1, loc=loc - scale, scale=2 * scale)


def triangle(loc: float, scale: float) -> Any:
    return stats.triang(0.5, loc=loc - scale, scale=2 * scale)


def _tent(t: Array) -> Array:
    """The density of BetaLaplace(-0.5, 3, 1.25)."""
    return 5 / 6 * (1 - np.abs(t + 0.5) / 3).clip(0) ** 4


def _cubic(dtype: torch.dtype) -> sf.LocationScale:
    # The parabola of half-width 1.5^(1/3) times the scale.
    loc, scale = torch.tensor([0.25, 0.75], dtype=dtype)
    return sf.LocationScale(loc, scale, lambda x: x**3 / 6)


def _half(loc: Tensor, scale: Tensor) -> sf.Truncated:
    return sf.Truncated(sf.Normal(loc, scale), 0.0, 2.0)


CUBIC_WIDTH = 0.75 * 1.5 ** (1 / 3)
SPREAD = [k / 4 for k in (-36, -24, -16, -8, 0, 8, 16, 24, 36)]
LONG = [-38.0, -24.0, -16.0, -8.0, -4.0, 0.0, 4.0, 8.0, 16.0, 24.0, 38.0]


def _kernel(weights: Sequence[float], alpha: float) -> Law:
    """Of the kernel that the battery has."""
    reference = Kernel(
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


def logits(*weights: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.tensor(weights, dtype=dtype).log() + 0.75  # any constant will do


def mixed(
    marks: Sequence[float], *parts: tuple[float, Callable[..., Any], Sequence[float], Any]
) -> Law:
    """A mixture of (weight, class, parameters, law of scipy): of one class, it is one batch."""
    weights, classes, numbers, laws = zip(*parts, strict=True)

    def make(dtype: torch.dtype) -> sf.Mixture:
        if len({*classes}) == 1:
            components = classes[0](*torch.tensor(numbers, dtype=dtype).unbind(-1))
        else:
            rows = [torch.tensor(row, dtype=dtype).unbind() for row in numbers]
            components = [cls(*row) for cls, row in zip(classes, rows, strict=True)]
        return sf.Mixture(logits(*weights, dtype=dtype), components)

    def log_pdf(t: Array) -> Array:
        with np.errstate(divide="ignore"):
            logs = [math.log(w) + p.logpdf(t) for w, p in zip(weights, laws, strict=True)]
        return np.logaddexp.reduce(logs)

    def cdf(t: Array) -> Array:
        return np.asarray(sum(w * p.cdf(t) for w, p in zip(weights, laws, strict=True)))

    return Law(make, log_pdf, marks, cdf)


NORMALS = mixed(
    [-9.5, -4.0, 0.0, 1.5, 9.5],
    (0.5, sf.Normal, (0.0, 1.0), stats.norm(0, 1)),
    (0.2, sf.Normal, (1.5, 0.25), stats.norm(1.5, 0.25)),
    (0.3, sf.Normal, (-4.0, 0.5), stats.norm(-4, 0.5)),
)
DISJOINT = mixed(
    [-1.0, 1.0, 2.5, 3.5, 4.25, 6.75],
    (0.3, sf.TruncatedParabola, (0.0, 1.0), bell(0, 1)),
    (0.6, sf.TruncatedParabola, (3.0, 0.5), bell(3, 0.5)),
    (0.1, sf.TruncatedParabola, (5.5, 1.25), bell(5.5, 1.25)),
)
UNLIKE = mixed(
    [-17.0, 0.0, 0.25, 0.75, 1.0, 1.25, 3.0, 23.0],
    (0.1, td.Uniform, (0.0, 1.0), stats.uniform(0, 1)),
    (0.2, sf.Triangular, (0.75, 0.5), triangle(0.75, 0.5)),
    (0.3, td.HalfNormal, (0.5,), stats.halfnorm(scale=0.5)),
    (0.15, td.Exponential, (2.0,), stats.expon(scale=0.5)),
    (0.25, td.Laplace, (3.0, 0.5), stats.laplace(3, 0.5)),
)
HALF_LINE = mixed(
    [-3.0, -1.0, 0.0, 1.0, 25.0],
    (0.7, td.Gamma, (3.0, 2.0), stats.gamma(3, scale=0.5)),
    (0.3, td.Uniform, (-3.0, -1.0), stats.uniform(-3, 2)),
)
# Between the peaks of this one the logarithm bends sharply.
NARROW = mixed(
    [*np.linspace(-0.3, 1.3, 17).tolist(), *np.linspace(0.49, 0.51, 9).tolist()],
    (0.5, sf.Normal, (0.0, 2**-5), stats.norm(0, 2**-5)),
    (0.5, sf.Normal, (1.0, 2**-5), stats.norm(1, 2**-5)),
)

LAWS = {
    "parabola": law(sf.TruncatedParabola, (0.25, 1.5), bell(0.25, 1.5).logpdf, [-1.25, 1.75]),
    "biweight": law(sf.BetaGaussian, (0.5, 0.5, 1.5), bell(0.5, 0.5, 2.0).logpdf, [0.0, 1.0]),
    "root": law(sf.BetaGaussian, (0.5, 0.5, 3.0), bell(0.5, 0.5, 0.5).logpdf, [0.0, 1.0]),
    "uniform": law(sf.BetaGaussian, (0.5, 0.5, math.inf), stats.uniform.logpdf, [0.0, 1.0]),
    "triangle": law(
        sf.Triangular, (0.375, 0.25), triangle(0.375, 0.25).logpdf, [0.125, 0.375, 0.625]
    ),
    "tent": law(sf.BetaLaplace, (-0.5, 3.0, 1.25), _log(_tent), [-3.5, -0.5, 2.5]),
    "cubic": Law(
        _cubic, bell(0.25, CUBIC_WIDTH).logpdf, [0.25 - CUBIC_WIDTH, 0.25, 0.25 + CUBIC_WIDTH]
    ),
    "normal": law(sf.Normal, (0.0, 1.0), stats.norm.logpdf, SPREAD),
    "laplace": law(sf.Laplace, (0.0, 1.0), stats.laplace.logpdf, LONG),
    "kernel": _kernel([-4.0, 2.5, -3.5, 2.0, 1.0], 1.0),
    "kernel-1.5": _kernel([-4.0, 1.5, 2.5, 1.0, -3.5], 1.5),
    "kernel-2": _kernel([-4.0, 2.5, -3.5, 2.0, 1.0], 2.0),
    "normals": NORMALS,
    "disjoint": DISJOINT,
    "unlike": UNLIKE,
    "torch-normal": law(td.Normal, (0.5, 0.75), stats.norm(0.5, 0.75).logpdf, SPREAD),
    "torch-laplace": law(td.Laplace, (0.0, 0.5), stats.laplace(0, 0.5).logpdf, LONG),
    "torch-uniform": law(td.Uniform, (0.0, 1.0), stats.uniform.logpdf, [0.0, 1.0]),
    "torch-beta": law(td.Beta, (2.0, 4.0), stats.beta(2, 4).logpdf, [0.0, 1.0]),
    "truncated": law(_half, (0.0, 1.0), stats.truncnorm(0, 2).logpdf, [0.0, 2.0]),
    "truncated-2": law(_half, (1.0, 2.0), stats.truncnorm(-0.5, 0.5, 1, 2).logpdf, [0.0, 2.0]),
    "pyro-uniform": law(
        pyro_distributions.Uniform, (-4.0, 5.0), stats.uniform(-4, 9).logpdf, [-4.0, 5.0]
    ),
}
