"""Laws that tests of mixtures and divergences ask about: some of the battery's, and others."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyro.distributions as pyro_distributions
import torch
from battery import DOUBLE, Case, Family
from cases import SCALARS
from references import Array, Pieces, pieces
from scipy import stats
from torch import Tensor
from torch import distributions as td

import sparsefam as sf


def bell(loc: float, scale: float) -> Any:
    """The parabola, by scipy."""
    return stats.beta(2, 2, loc=loc - scale, scale=2 * scale)


def logits(*weights: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.tensor(weights, dtype=dtype).log() + 0.75  # any constant will do


def law(
    name: str, cls: Callable[..., Any], numbers: dict[str, float], known: Any, cuts: Sequence[float]
) -> Case:
    """Of a class and its parameters, with scipy's law and all its mass between the cuts."""
    ranks = dict.fromkeys(numbers, 0)
    density = pieces(known.pdf, cuts)
    return Case(Family(name, cls, lambda **_: density, numbers, ranks=ranks), numbers, name)


def mixed(
    name: str,
    cuts: Sequence[float],
    *parts: tuple[float, Callable[..., Any], Sequence[float], Any],
) -> Case:
    """A mixture of (weight, class, parameters, law of scipy): of one class, it is one batch."""
    weights, classes, numbers, laws = zip(*parts, strict=True)

    def make(logits: Tensor) -> sf.Mixture:
        if len({*classes}) == 1:
            return sf.Mixture(logits, classes[0](*logits.new_tensor(numbers).unbind(-1)))
        rows = [logits.new_tensor(row).unbind() for row in numbers]
        return sf.Mixture(logits, [cls(*row) for cls, row in zip(classes, rows, strict=True)])

    def density(t: Array) -> Any:
        return sum(w * p.pdf(t) for w, p in zip(weights, laws, strict=True))

    reference = pieces(density, cuts)
    scalar = {"logits": logits(*weights).tolist()}
    family = Family(name, make, lambda **_: reference, scalar, ranks={"logits": 1})
    return Case(family, scalar, name)


NORMALS = mixed(
    "normals",
    [-9.5, -4.0, 0.0, 1.5, 9.5],
    (0.5, sf.Normal, (0.0, 1.0), stats.norm(0, 1)),
    (0.2, sf.Normal, (1.5, 0.25), stats.norm(1.5, 0.25)),
    (0.3, sf.Normal, (-4.0, 0.5), stats.norm(-4, 0.5)),
)
DISJOINT = mixed(
    "disjoint",
    [-1.0, 1.0, 2.5, 3.5, 4.25, 6.75],
    (0.3, sf.TruncatedParabola, (0.0, 1.0), bell(0, 1)),
    (0.6, sf.TruncatedParabola, (3.0, 0.5), bell(3, 0.5)),
    (0.1, sf.TruncatedParabola, (5.5, 1.25), bell(5.5, 1.25)),
)
UNLIKE = mixed(
    "unlike",
    [-17.0, 0.0, 0.25, 0.75, 1.0, 1.25, 3.0, 23.0],
    (0.1, td.Uniform, (0.0, 1.0), stats.uniform(0, 1)),
    (0.2, sf.Triangular, (0.75, 0.5), stats.triang(0.5, 0.25, 1.0)),
    (0.3, td.HalfNormal, (0.5,), stats.halfnorm(scale=0.5)),
    (0.15, td.Exponential, (2.0,), stats.expon(scale=0.5)),
    (0.25, td.Laplace, (3.0, 0.5), stats.laplace(3, 0.5)),
)
HALF_LINE = mixed(
    "half-line",
    [-3.0, -1.0, 0.0, 1.0, 25.0],
    (0.7, td.Gamma, (3.0, 2.0), stats.gamma(3, scale=0.5)),
    (0.3, td.Uniform, (-3.0, -1.0), stats.uniform(-3, 2)),
)
# Between the peaks of this one the logarithm bends sharply.
NARROW = mixed(
    "narrow",
    [*np.linspace(-0.3, 1.3, 17).tolist(), *np.linspace(0.49, 0.51, 9).tolist()],
    (0.5, sf.Normal, (0.0, 2**-5), stats.norm(0, 2**-5)),
    (0.5, sf.Normal, (1.0, 2**-5), stats.norm(1, 2**-5)),
)
SPREAD = [k / 4 for k in (-36, -24, -16, -8, 0, 8, 16, 24, 36)]
THEIRS = [
    law("torch-normal", td.Normal, {"loc": 0.5, "scale": 0.75}, stats.norm(0.5, 0.75), SPREAD),
    law(
        "torch-laplace",
        td.Laplace,
        {"loc": 0.0, "scale": 0.5},
        stats.laplace(0, 0.5),
        [-19.0, -8.0, -4.0, -2.0, 0.0, 2.0, 4.0, 8.0, 19.0],
    ),
    law("torch-uniform", td.Uniform, {"low": 0.0, "high": 1.0}, stats.uniform, [0.0, 1.0]),
    law(
        "torch-beta",
        td.Beta,
        {"concentration1": 2.0, "concentration0": 4.0},
        stats.beta(2, 4),
        [0.0, 1.0],
    ),
    law(
        "pyro-uniform",
        pyro_distributions.Uniform,
        {"low": -3.0, "high": 3.5},
        stats.uniform(-3, 6.5),
        [-3.0, 3.5],
    ),
]
OURS = (
    *("TruncatedParabola", "BetaGaussian-1.5", "BetaGaussian-3", "BetaGaussian-inf", "Triangular"),
    *("BetaLaplace-1.5", "LocationScale-quartic", "Normal", "Laplace", "KernelExp"),
    *("KernelDeformedExp-1.5-inside", "KernelDeformedExp-2.0-inside", "Mixture-Normal"),
    *("Mixture-TruncatedParabola", "Truncated-Normal", "Truncated-Triangular", "ScaledBeta"),
    "Density-steep",
)
LAWS = {
    case.name: case
    for case in [*(x for x in SCALARS if x.name in OURS), NORMALS, DISJOINT, UNLIKE, *THEIRS]
}


# Divergences
def _logs(p: Pieces, q: Pieces) -> tuple[Array, Array, Array]:
    """Weights of integrals over p's support, and both logarithms, of which q's may be -inf."""
    t, weights = p.smooth_rule(q.cuts)
    with np.errstate(divide="ignore"):
        return weights, *(np.log(r.densities(t)) for r in (p, q))


def _mean(p: Case, q: Case, function: Callable[[Array, Array], Array]) -> float:
    """Integral over both supports of a function of two log densities; infinite p outside of q."""
    weights, a, b = _logs(p.references[0], q.references[0])
    alive = np.isfinite(a) & np.isfinite(b)
    a, b = (np.where(alive, x, 0.0) for x in (a, b))
    return float(weights @ np.where(alive, function(a, b), 0.0))


def is_outside(p: Case, q: Case) -> bool:
    """Whether p has mass where q has none."""
    weights, a, b = _logs(p.references[0], q.references[0])
    return float(weights @ np.where(np.isfinite(b), 0.0, np.exp(a))) > 1e-9


def divergence(p: Case, q: Case) -> float:
    """The KL divergence."""
    return math.inf if is_outside(p, q) else _mean(p, q, lambda a, b: np.exp(a) * (a - b))


def tsallis(p: Case, q: Case, alpha: float) -> float:
    if alpha > 1 and is_outside(p, q):
        return math.inf
    return (_mean(p, q, lambda a, b: np.exp(alpha * a + (1 - alpha) * b)) - 1) / (alpha - 1)


def bregman(p: Case, q: Case, alpha: float) -> float:
    one, two = (_mean(x, x, lambda a, _: np.exp(alpha * a)) for x in (p, q))
    both = _mean(p, q, lambda a, b: np.exp(a + (alpha - 1) * b))
    return one / (alpha * (alpha - 1)) + two / alpha - both / (alpha - 1)
