"""The truncated densities that the battery is run on."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from battery import Family
from references import Pieces, pieces
from scipy import stats
from torch.distributions import Gamma

from sparsefam import Mixture, Normal, Triangular, Truncated, TruncatedParabola


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

    def density(t: Any) -> Any:
        t = np.asarray(t)
        shape = np.exp(-0.5 * ((t - loc) / scale) ** 2)
        return np.where((low <= t) & (t <= high), height * shape, 0.0)

    inner = [loc + k * scale for k in (-8, -3, -1, 0, 1, 3, 8)]
    return pieces(density, [low, *(t for t in inner if low < t < high), high])


def _triangle(low: float, high: float, loc: float) -> Pieces:
    first, last = max(low, loc - _SCALE), min(high, loc + _SCALE)
    cuts = sorted({first, *([loc] if first < loc < last else []), last})

    def shape(t: Any) -> Any:
        return np.maximum(0.0, 1 - np.abs(t - loc) / _SCALE)

    # By trapezoids, which are exact.
    mass = sum((b - a) * (shape(a) + shape(b)) / 2 for a, b in pairwise(cuts))

    def density(t: Any) -> Any:
        t = np.asarray(t)
        return np.where((low <= t) & (t <= high), shape(t) / mass, 0.0)

    return pieces(density, cuts)


def _gamma(low: float, high: float, rate: float) -> Pieces:
    law = stats.gamma(1.5, scale=1 / rate)
    mass = law.cdf(high) - law.cdf(low)

    def density(t: Any) -> Any:
        return np.where((low <= t) & (t <= high), law.pdf(t) / mass, 0.0)

    return pieces(density, [low, *(t for t in (0.5, 1.0, 4.0) if low < t < high), high])


def _mixed(low: float, high: float, loc: float, logits: Any) -> Pieces:
    first, second = np.exp(logits) / np.exp(logits).sum()
    cut = _normal(loc, _SCALE, low, high).density

    def density(t: Any) -> Any:
        x = (t - loc - 0.25) / 0.5
        return first * cut(t) + second * 1.5 * np.maximum(0.0, 1 - x**2)

    return pieces(density, [low, loc - 0.25, loc, loc + 0.25, loc + 0.75, high])


_SHARED: dict[str, Any] = {
    "escorts": (None, 1.0),
    "no_escorts": (0.5, 2.0, -0.5),
    "constant": ("log_normalizer",),
}
TRUNCATED = [
    Family(
        "Truncated-Normal",
        _cut_normal,
        _normal,
        scalar={"loc": 0.3125, "scale": 0.6875, "low": -0.5, "high": 1.5},
        batch={
            "loc": [[0.3125], [-1.25]],
            "scale": [0.6875, 0.1875, 3.0],
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.0, 2.0],
        },
        ranks=dict.fromkeys(("loc", "scale", "low", "high"), 0),
        compiled=("jit", "expect-GaussianRBF"),
        **_SHARED,
    ),
    Family(
        "Truncated-Triangular",
        _cut_triangle,
        _triangle,
        scalar={"low": -0.125, "high": 0.75, "loc": 0.3125},
        # One has the centre outside, one an end beyond the base's.
        batch={"low": [[-0.25], [0.125]], "high": [0.5, 0.75, 1.25], "loc": [[0.3125], [0.0625]]},
        ranks=dict.fromkeys(("low", "high", "loc"), 0),
        thorough=False,
        **_SHARED,
    ),
    Family(
        "Truncated-Gamma",
        _cut_gamma,
        _gamma,
        scalar={"low": 0.25, "high": 2.5, "rate": 1.25},
        batch={"low": [[0.25], [0.75]], "high": [1.5, 2.5, 6.0], "rate": [[1.25], [0.5]]},
        ranks=dict.fromkeys(("low", "high", "rate"), 0),
        thorough=False,
        **_SHARED,
    ),
    Family(
        "Mixture-Truncated",
        _mixture,
        _mixed,
        scalar={"low": -0.5, "high": 1.5, "loc": 0.3125, "logits": [0.25, -0.5]},
        batch={
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.25, 2.0],
            "loc": [[0.3125], [-0.25]],
            "logits": [0.25, -0.5],
        },
        ranks={"low": 0, "high": 0, "loc": 0, "logits": 1},
        infers_shapes=False,
        **_SHARED,
    ),
]
