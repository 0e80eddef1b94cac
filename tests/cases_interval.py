"""The densities that the battery is run on whose ends move: Beta, from functions, truncated."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from battery import Family
from references import Pieces, pieces
from scipy import special, stats
from torch import Tensor
from torch.distributions import Gamma
from torch.nn.functional import softplus

from sparsefam import Density, Mixture, Normal, ScaledBeta, Triangular, Truncated, TruncatedParabola


def _family(
    name: str,
    make: Callable[..., Any],
    density: Callable[..., Pieces],
    scalar: dict[str, Any],
    batch: dict[str, Any],
    **options: Any,
) -> Family:
    options = {"ranks": dict.fromkeys(scalar, 0)} | options
    powers = {"escorts": (None, 1.0), "no_escorts": (0.5, 2.0, -0.5)}
    return Family(
        name, make, density, scalar, batch, constant=("log_normalizer",), **powers, **options
    )


# Beta densities
def _beta(low: float, high: float, mean: float, concentration: float) -> Pieces:
    width = high - low
    a, b = (concentration * (x / width) for x in (mean - low, high - mean))
    law = stats.beta(a, b, low, width)
    inner = sorted({*law.ppf([1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6]).tolist()})
    return pieces(law.pdf, [low, *(t for t in inner if low < t < high), high])


# Densities from functions: with a kink, and on the whole line
_KINK = 0.25


def _steep(t: Tensor, slope: Tensor) -> Tensor:
    return -slope * (t - _KINK).abs() ** 3


def _make_steep(low: Any, high: Any, slope: Any, validate_args: bool | None = None) -> Density:
    return Density(_steep, low, high, [_KINK], slope=slope, validate_args=validate_args)


def _logistic(t: Tensor, loc: Tensor, slope: Tensor) -> Tensor:
    x = (slope * (t - loc)).abs()
    return 1 - x - 2 * softplus(-x)


def _make_logistic(loc: Any, slope: Any, validate_args: bool | None = None) -> Density:
    ends = -math.inf, math.inf
    return Density(_logistic, *ends, loc=loc, slope=slope, validate_args=validate_args)


def _steep_density(low: float, high: float, slope: float) -> Pieces:
    def below(t: float) -> float:
        share = special.gammainc(1 / 3, slope * abs(t - _KINK) ** 3)
        return math.copysign(math.gamma(4 / 3) * slope ** (-1 / 3) * share, t - _KINK)

    mass = below(high) - below(low)
    cuts = [low, *([_KINK] if low < _KINK < high else []), high]
    return _cut(lambda t: np.exp(-slope * np.abs(t - _KINK) ** 3) / mass, cuts)


# Truncated densities
def _cut(density: Callable[[Any], Any], cuts: list[float]) -> Pieces:
    """A density that is zero outside of the first and the last cut."""

    def inside(t: Any) -> Any:
        t = np.asarray(t)
        return np.where((cuts[0] <= t) & (t <= cuts[-1]), density(t), 0.0)

    return pieces(inside, cuts)


def _cut_normal(
    loc: Any, scale: Any, low: Any, high: Any, validate_args: bool | None = None
) -> Truncated:
    base = Normal(loc, scale, validate_args=validate_args)
    return Truncated(base, low, high, validate_args=validate_args)


# Without validation another one would have no support.
_SCALE = 0.6875


def _cut_triangle(low: Any, high: Any, loc: Any, validate_args: bool | None = None) -> Truncated:
    base = Triangular(loc, _SCALE, validate_args=validate_args)
    return Truncated(base, low, high, validate_args=validate_args)


def _cut_gamma(low: Any, high: Any, rate: Any, validate_args: bool | None = None) -> Truncated:
    rate = torch.as_tensor(rate)
    checks = False if rate.is_meta else validate_args  # torch's own read values
    base = Gamma(torch.full_like(rate, 1.5), rate, validate_args=checks)
    return Truncated(base, low, high, validate_args=validate_args)


def _mixture(
    low: Any, high: Any, loc: Any, logits: Any, validate_args: bool | None = None
) -> Mixture:
    """Of a normal density between ends that move, and a parabola inside."""
    cut = Truncated(Normal(loc, _SCALE, validate_args=validate_args), low, high)
    return Mixture(logits, [cut, TruncatedParabola(loc + 0.25, 0.5)], validate_args=validate_args)


def _normal(loc: float, scale: float, low: float, high: float) -> Pieces:
    a, b = (math.erf((x - loc) / scale / math.sqrt(2)) for x in (low, high))
    height = 2 / (b - a) / scale / math.sqrt(2 * math.pi)
    inner = [loc + k * scale for k in (-8, -3, -1, 0, 1, 3, 8)]
    cuts = [low, *(t for t in inner if low < t < high), high]
    return _cut(lambda t: height * np.exp(-0.5 * ((t - loc) / scale) ** 2), cuts)


def _triangle(low: float, high: float, loc: float) -> Pieces:
    first, last = max(low, loc - _SCALE), min(high, loc + _SCALE)
    cuts = sorted({first, *([loc] if first < loc < last else []), last})

    def shape(t: Any) -> Any:
        return np.maximum(0.0, 1 - np.abs(t - loc) / _SCALE)

    # By trapezoids, which are exact.
    mass = sum((b - a) * (shape(a) + shape(b)) / 2 for a, b in pairwise(cuts))
    return _cut(lambda t: shape(t) / mass, cuts)


def _gamma(low: float, high: float, rate: float) -> Pieces:
    law = stats.gamma(1.5, scale=1 / rate)
    mass = law.cdf(high) - law.cdf(low)
    cuts = [low, *(t for t in (0.5, 1.0, 4.0) if low < t < high), high]
    return _cut(lambda t: law.pdf(t) / mass, cuts)


def _mixed(low: float, high: float, loc: float, logits: Any) -> Pieces:
    first, second = np.exp(logits) / np.exp(logits).sum()
    cut = _normal(loc, _SCALE, low, high).density

    def density(t: Any) -> Any:
        x = (t - loc - 0.25) / 0.5
        return first * cut(t) + second * 1.5 * np.maximum(0.0, 1 - x**2)

    return pieces(density, [low, loc - 0.25, loc, loc + 0.25, loc + 0.75, high])


INTERVALS = [
    _family(
        "Density-steep",
        _make_steep,
        _steep_density,
        {"low": -0.5, "high": 1.5, "slope": 1.25},
        # One has the kink outside.
        {"low": [[-0.5], [0.375]], "high": [1.5, 1.0, 2.0], "slope": [[1.25], [4.0]]},
    ),
    _family(
        "Density-logistic",
        _make_logistic,
        lambda t, loc, slope: np.cosh(slope * (t - loc) / 2) ** -2.0,
        {"loc": 0.3125, "slope": 1.25},
        {"loc": [[0.3125], [-1.25]], "slope": [1.25, 4.0, 0.25]},
        ranks=None,
        thorough=False,
    ),
    _family(
        "ScaledBeta",
        ScaledBeta,
        _beta,
        {"low": -0.5, "high": 1.5, "mean": 0.75, "concentration": 6.5},
        {
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.0, 2.0],
            "mean": [[0.3125], [0.0625]],
            "concentration": [5.0, 12.0, 64.0],
        },
    ),
    _family(
        "Truncated-Normal",
        _cut_normal,
        _normal,
        {"loc": 0.3125, "scale": 0.6875, "low": -0.5, "high": 1.5},
        {
            "loc": [[0.3125], [-1.25]],
            "scale": [0.6875, 0.1875, 3.0],
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.0, 2.0],
        },
        compiled=("jit", "expect-GaussianRBF"),
    ),
    _family(
        "Truncated-Triangular",
        _cut_triangle,
        _triangle,
        {"low": -0.125, "high": 0.75, "loc": 0.3125},
        # One has the center outside, one an end beyond the base's.
        {"low": [[-0.25], [0.125]], "high": [0.5, 0.75, 1.25], "loc": [[0.3125], [0.0625]]},
        thorough=False,
    ),
    _family(
        "Truncated-Gamma",
        _cut_gamma,
        _gamma,
        {"low": 0.25, "high": 2.5, "rate": 1.25},
        {"low": [[0.25], [0.75]], "high": [1.5, 2.5, 6.0], "rate": [[1.25], [0.5]]},
        thorough=False,
    ),
    _family(
        "Mixture-Truncated",
        _mixture,
        _mixed,
        {"low": -0.5, "high": 1.5, "loc": 0.3125, "logits": [0.25, -0.5]},
        {
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.25, 2.0],
            "loc": [[0.3125], [-0.25]],
            "logits": [0.25, -0.5],
        },
        ranks={"low": 0, "high": 0, "loc": 0, "logits": 1},
        infers_shapes=False,
    ),
]
