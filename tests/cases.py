"""Every distribution that the battery (test_battery_*.py) is run on.

Registering a distribution in FAMILIES is all that it takes to have its shapes, errors, integrals,
gradients and samples tested.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from battery import DOUBLE, SINGLE, Case, Family, scale_of
from cases_interval import INTERVALS
from cases_kernel import KERNELS
from cases_mixture import MIXTURES
from cases_multivariate import MULTIVARIATE
from references import Array
from scipy.optimize import brentq
from torch import Tensor

import sparsefam as sf


def _power(order: int, alpha: float = math.nan) -> Callable[..., Array]:
    """(1 - |x|^order)_+^m, of a fixed alpha unless alpha is a parameter."""

    def density(t: Array, loc: float, scale: float, alpha: float = alpha) -> Array:
        x = np.minimum(np.abs(t - loc) / scale, 1.0)
        return np.where(x < 1, (1 - x**order) ** (1 / (alpha - 1)), 0.0)

    return density


def quartic(x: Tensor) -> Tensor:
    return x**4 / 4 + x**2 / 3 + x / 2 + 1  # the line moves the score, not the density


# a g'(a) - g(a) = 3 a^4/4 + a^2/3.
_EDGE = brentq(lambda a: 3 * a**4 / 4 + a**2 / 3 - 0.5, 0, 2, xtol=1e-15)


def _quartic_density(t: Array, loc: float, scale: float) -> Array:
    x = np.abs(t - loc) / scale
    return np.maximum(0.0, _EDGE**3 + 2 * _EDGE / 3 - x**3 - 2 * x / 3)


def _powers(
    name: str, cls: Callable[..., sf.SparseDistribution], order: int, alpha: float
) -> Family:
    """A member of fixed alpha. Default escorts exist up to alpha = 2."""
    return Family(
        f"{name}-{alpha:.3g}",
        partial(cls, alpha=alpha),
        _power(order, alpha),
        escorts=(0.0, 0.4, 1.0, 1.5) if alpha > 2 else (None, 0.0, 0.4, 1.0, 1.5),
        no_escorts=(-0.5,) if alpha < 2 else (None, -0.5) if math.isfinite(alpha) else (None,),
        has_score=math.isfinite(alpha),
        thorough=alpha in (1.5, 3.0, math.inf),
    )


def _learned(
    name: str, cls: Callable[..., sf.SparseDistribution], order: int, compiled: str
) -> Family:
    return Family(
        f"{name}-learned",
        cls,
        _power(order),
        scalar={"loc": 0.3125, "scale": 0.6875, "alpha": 1.6875},
        batch={
            "loc": [[0.3125], [-1.25]],
            "scale": [0.6875, 0.1875, 3.0],
            "alpha": [1.125, 1.5, 2.0],
        },
        compiled=(compiled,),
    )


FAMILIES = [
    Family(
        "TruncatedParabola",
        sf.TruncatedParabola,
        _power(2, 2.0),
        compiled=("jit", "expect-GaussianRBF"),
    ),
    *[
        _powers("BetaGaussian", sf.BetaGaussian, 2, alpha)
        for alpha in (1.05, 1.5, 1.7, 3.0, math.inf)
    ],
    _learned("BetaGaussian", sf.BetaGaussian, 2, "expect-GaussianRBF"),
    Family("Triangular", sf.Triangular, _power(1, 2.0), compiled=("jit", "icdf")),
    *[_powers("BetaLaplace", sf.BetaLaplace, 1, alpha) for alpha in (1.5, 3.0, math.inf)],
    _learned("BetaLaplace", sf.BetaLaplace, 1, "expect-BSpline"),
    Family(
        "LocationScale-quartic",
        partial(sf.LocationScale, g=quartic),
        _quartic_density,
        escorts=(None, 0.0, 1.0),
        no_escorts=(0.5, 2.0),
    ),
    Family(
        "Normal",
        sf.Normal,
        lambda t, loc, scale: np.exp(-0.5 * ((t - loc) / scale) ** 2),
        escorts=(None, 0.4, 1.0, 1.5),
        no_escorts=(0.0, -0.5),
        compiled=("jit", "entropy"),
    ),
    Family(
        "Laplace",
        sf.Laplace,
        lambda t, loc, scale: np.exp(-np.abs(t - loc) / scale),
        escorts=(None, 0.4, 1.0, 1.5),
        no_escorts=(0.0, -0.5),
    ),
    *KERNELS,
    *MIXTURES,
    *INTERVALS,
    *MULTIVARIATE,
]

SCALARS = [Case(family, family.scalar, family.name) for family in FAMILIES]
BATCHES = [Case(family, family.batch, f"{family.name}-batch") for family in FAMILIES]
CASES = SCALARS + BATCHES


def _every(cases: Iterable[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", list(cases), ids=str)


def weighed(case: Case, *others: str, slow: bool = False) -> Any:
    """Arguments of a test, slow if it or the family is."""
    marks = [pytest.mark.slow] * (slow or not case.family.thorough)
    return pytest.param(case, *others, id="-".join([case.name, *others]), marks=marks)


def in_part(rows: Iterable[Any], part: int, of: int) -> list[Any]:
    """Mark all but one part of so many of the rows slow.

    The checksum of its name says which part a row is in: a new family moves no other.
    """
    return [
        row
        if crc32(row.id.encode()) % of == part
        else pytest.param(*row.values, id=row.id, marks=[*row.marks, pytest.mark.slow])
        for row in rows
    ]


def half_of_the_cases(part: int) -> pytest.MarkDecorator:
    """Each family once, half of them as a batch; the others slowly."""
    rows = [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (row % 2 != part))
        for pair in zip(SCALARS, BATCHES, strict=True)
        for row, case in enumerate(pair, crc32(pair[0].name.encode()))
    ]
    return pytest.mark.parametrize("case", rows)


def compiled(case: Case, name: str) -> Any:
    """Arguments of a test that compiles or traces, slow unless the family asks for it each time."""
    marks = [] if name in case.family.compiled else [pytest.mark.slow]
    return pytest.param(case, name, id=f"{case.name}-{name}", marks=marks)


def _univariate(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if not case.event_shape]


def _multivariate(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.event_shape]


every_case = _every(CASES)
every_scalar = _every(SCALARS)
every_batch = _every(BATCHES)
every_pair = _every(case for case in SCALARS if len(case.parameters) > 1)
# Only numbers and vectors in one piece have a bijection from space, and paths of draws.
every_connected_case = _every(case for case in CASES if case.family.connected)
every_connected_scalar = _every(case for case in SCALARS if case.family.connected)
every_connected_line = _every(case for case in _univariate(CASES) if case.family.connected)
every_scattered_case = _every(case for case in CASES if not case.family.connected)
every_scored_case = _every(case for case in CASES if case.family.has_score)
# Distribution functions and quantiles are asked of numbers only, factors of vectors only.
every_univariate_case = _every(_univariate(CASES))
every_univariate_scalar = _every(_univariate(SCALARS))
# One interval or the line, with a location and a scale.
every_placed_scalar = _every(
    case for case in _univariate(SCALARS) if scale_of(case) and not case.family.ranks
)
every_multivariate_case = _every(_multivariate(CASES))
every_multivariate_scalar = _every(_multivariate(SCALARS))
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=lambda dtype: str(dtype)[6:])
