"""The density families that the benchmarks measure, named and built in one way."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

import sparsefam as sf

__all__ = ["ANY_ALPHA", "CLOSED", "Family"]

_Build = Callable[[Tensor, Tensor], sf.SymmetricDistribution]


@dataclass(frozen=True)
class Family:
    """Densities C (1 - |x|^order)^exponent of x = (t - loc)/scale in [-1, 1].

    Attributes:
        name: What tables call it.
        order: 2 for beta-Gaussians, 1 for the triangular.
        exponent: 1/(alpha - 1).
        build: From loc and scale.
        from_score: From loc and sigma (or b), the scale of the score -|t - loc|^k / (k sigma^k).
    """

    name: str
    order: int
    exponent: float
    build: _Build
    from_score: _Build


def _beta_gaussian(name: str, alpha: float) -> Family:
    exponent = 1 / (alpha - 1)
    if abs(exponent - round(exponent)) < 1e-12 * exponent:
        exponent = round(exponent)  # 4/3 - 1 is not 1/3 in floating point
    return Family(
        name,
        2,
        exponent,
        lambda loc, scale: sf.BetaGaussian(loc, scale, alpha),
        lambda loc, sigma: sf.BetaGaussian.from_sigma(loc, sigma, alpha),
    )


CLOSED = (
    _beta_gaussian("α = 4/3", 4 / 3),
    _beta_gaussian("α = 3/2", 1.5),
    Family("α = 2", 2, 1, sf.TruncatedParabola, sf.TruncatedParabola.from_sigma),
    _beta_gaussian("α = ∞", math.inf),
    Family("triangular", 1, 1, sf.Triangular, sf.Triangular.from_b),
)
ANY_ALPHA = tuple(_beta_gaussian(f"α = {alpha}", alpha) for alpha in (1.05, 1.1, 1.7, 3.0))
