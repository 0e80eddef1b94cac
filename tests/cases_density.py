"""The densities from functions that the battery is run on: with a kink, and on the whole line."""

import math
from typing import Any

import numpy as np
from battery import Family
from references import Pieces, pieces
from scipy import special
from torch import Tensor
from torch.nn.functional import softplus

from sparsefam import Density

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

    def density(t: Any) -> Any:
        t = np.asarray(t)
        height = np.exp(-slope * np.abs(t - _KINK) ** 3) / mass
        return np.where((low <= t) & (t <= high), height, 0.0)

    return pieces(density, [low, *([_KINK] if low < _KINK < high else []), high])


_SHARED: dict[str, Any] = {
    "escorts": (None, 1.0),
    "no_escorts": (0.5, 2.0, -0.5),
    "constant": ("log_normalizer",),
}
DENSITIES = [
    Family(
        "Density-steep",
        _make_steep,
        _steep_density,
        scalar={"low": -0.5, "high": 1.5, "slope": 1.25},
        # One has the kink outside.
        batch={"low": [[-0.5], [0.375]], "high": [1.5, 1.0, 2.0], "slope": [[1.25], [4.0]]},
        ranks=dict.fromkeys(("low", "high", "slope"), 0),
        compiled=(),
        **_SHARED,
    ),
    Family(
        "Density-logistic",
        _make_logistic,
        scalar={"loc": 0.3125, "slope": 1.25},
        batch={"loc": [[0.3125], [-1.25]], "slope": [1.25, 4.0, 0.25]},
        density=lambda t, loc, slope: np.cosh(slope * (t - loc) / 2) ** -2.0,
        thorough=False,
        **_SHARED,
    ),
]
