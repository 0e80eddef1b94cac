"""Every distribution that the battery (test_battery_*.py) is run on.

Registering a distribution in FAMILIES is all that it takes to have its shapes, errors, integrals,
gradients and samples tested.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor

from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Normal,
    SparseDistribution,
    Triangular,
    TruncatedParabola,
)

DOUBLE = torch.float64
DTYPES = [torch.float32, DOUBLE]

# Values that no distribution may take for a parameter of this name.
BAD_VALUES = {
    "loc": [math.nan, math.inf, -math.inf],
    "scale": [0.0, -1.0, math.nan, math.inf],
    "alpha": [1.0, 0.5, -2.0, math.nan],
}


@dataclass(frozen=True)
class Family:
    """A distribution, and what is true of it by definition.

    Attributes:
        name: Identifies it among the tests.
        make: Builds the distribution from its parameters, given by name.
        density: Its density in plain Python, up to a constant: (t, **parameters) to a float.
        scalar: Parameters of one density, by name: numbers exact in float32. Each becomes a tensor
            that requires grad.
        batch: Parameters that broadcast to a batch, as nested lists.
        escorts: Values of beta that have an escort (None: the default).
        no_escorts: Values of beta that are refused.
        has_score: Whether the density and alpha determine the score.
    """

    name: str
    make: Callable[..., SparseDistribution]
    density: Callable[..., float]
    scalar: dict[str, Any] = field(default_factory=lambda: {"loc": 0.3125, "scale": 0.6875})
    batch: dict[str, Any] = field(
        default_factory=lambda: {"loc": [[0.3125], [-1.25]], "scale": [0.6875, 0.1875, 3.0]}
    )
    escorts: tuple[float | None, ...] = (None, 0.0, 0.4, 1.0, 1.5)
    no_escorts: tuple[float | None, ...] = (-0.5,)
    has_score: bool = True


@dataclass(frozen=True)
class Reference:
    """One density of a case in plain Python, integrated over its support by scipy.

    Attributes:
        shape: The density up to a constant.
        ends: The support, of which 80 standard deviations if it is the line.
        centre: Where the density may have a kink.
        mass: Integral of `shape`.
    """

    shape: Callable[[float], float]
    ends: tuple[float, float]
    centre: float
    mass: float = 1.0

    def density(self, t: float) -> float:
        return self.shape(t) / self.mass

    def integral(self, g: Callable[[float], float], upper: float = math.inf) -> float:
        """Integral of g over the support, as far as `upper`."""
        upper = min(upper, self.ends[1])
        marks = [self.ends[0], min(self.centre, upper), upper]
        return sum(
            quad(g, a, b, epsabs=0, epsrel=1e-11, limit=200)[0] for a, b in pairwise(marks) if a < b
        )

    def expect(self, g: Callable[[float], float]) -> float:
        return self.integral(lambda t: g(t) * self.density(t))


@dataclass(frozen=True, eq=False)
class Case:
    """A family with parameters of some shape."""

    family: Family
    parameters: dict[str, Any]
    name: str

    def leaves(self, dtype: torch.dtype = DOUBLE) -> dict[str, Tensor]:
        """The parameters as tensors that require grad."""
        return {
            name: torch.tensor(value, dtype=dtype, requires_grad=True)
            for name, value in self.parameters.items()
        }

    def __call__(self, dtype: torch.dtype = DOUBLE) -> SparseDistribution:
        """The distribution, without gradients."""
        return self.family.make(**{k: v.detach() for k, v in self.leaves(dtype).items()})

    @cached_property
    def references(self) -> list[Reference]:
        """Its densities, in the order of the flattened batch."""
        p = self()
        values = torch.broadcast_tensors(*self.leaves().values())
        rows = zip(*(v.flatten().tolist() for v in values), strict=True)
        lower, upper = ends(p)
        lower = torch.maximum(lower, p.mean - 80 * p.stddev).flatten().tolist()
        upper = torch.minimum(upper, p.mean + 80 * p.stddev).flatten().tolist()
        found = []
        for row, a, b, centre in zip(rows, lower, upper, p.mean.flatten().tolist(), strict=True):
            shape = partial(self.family.density, **dict(zip(self.parameters, row, strict=True)))
            bare = Reference(shape, (a, b), centre)
            found.append(replace(bare, mass=bare.integral(shape)))
        return found

    def reference(self, quantity: Callable[[Reference], Any]) -> Tensor:
        """A quantity of every density of the batch, (*batch, *shape of the quantity)."""
        values = torch.tensor([quantity(r) for r in self.references], dtype=DOUBLE)
        return values.reshape(self().batch_shape + values.shape[1:])


def ends(p: SparseDistribution) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the support, each (*batch)."""
    lower, upper = p.support.intervals.squeeze(-2).unbind(-1)
    return lower, upper


def interior(p: SparseDistribution, count: int = 7) -> Tensor:
    """Locations (count, *batch) inside the support, or within three deviations of the mean."""
    lower, upper = ends(p)
    lower = torch.maximum(lower, p.mean - 3 * p.stddev)
    upper = torch.minimum(upper, p.mean + 3 * p.stddev)
    share = torch.linspace(0.03, 0.98, count, dtype=lower.dtype)
    return lower + (upper - lower) * share.reshape(count, *(1,) * lower.dim())


def _power(order: int, alpha: float = math.nan) -> Callable[..., float]:
    """(1 - |x|^order)_+^m, of a fixed alpha unless alpha is a parameter."""

    def density(t: float, loc: float, scale: float, alpha: float = alpha) -> float:
        x = abs(t - loc) / scale
        return (1 - x**order) ** (1 / (alpha - 1)) if x < 1 else 0.0

    return density


def quartic(x: Tensor) -> Tensor:
    return x**4 / 4 + x**2 / 3 + x / 2 + 1  # the line moves the score, not the density


def cubic(x: Tensor) -> Tensor:
    return x**3 / 6


def _quartic_density(t: float, loc: float, scale: float) -> float:
    # a g'(a) - g(a) = 3 a^4/4 + a^2/3.
    a = brentq(lambda a: 3 * a**4 / 4 + a**2 / 3 - 0.5, 0, 2, xtol=1e-15)
    x = abs(t - loc) / scale
    return max(0.0, a**3 + 2 * a / 3 - x**3 - 2 * x / 3)


def _cubic_density(t: float, loc: float, scale: float) -> float:
    return max(0.0, 1.5 ** (2 / 3) - ((t - loc) / scale) ** 2)


def _powers(name: str, cls: Callable[..., SparseDistribution], order: int, alpha: float) -> Family:
    """A member of fixed alpha. Default escorts exist up to alpha = 2."""
    return Family(
        f"{name}-{alpha:.3g}",
        partial(cls, alpha=alpha),
        _power(order, alpha),
        escorts=(0.0, 0.4, 1.0, 1.5) if alpha > 2 else (None, 0.0, 0.4, 1.0, 1.5),
        no_escorts=(-0.5,) if alpha < 2 else (None, -0.5) if math.isfinite(alpha) else (None,),
        has_score=math.isfinite(alpha),
    )


def _learned(name: str, cls: Callable[..., SparseDistribution], order: int) -> Family:
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
    )


FAMILIES = [
    Family("TruncatedParabola", TruncatedParabola, _power(2, 2.0)),
    *[
        _powers("BetaGaussian", BetaGaussian, 2, alpha)
        for alpha in (1.05, 4 / 3, 1.5, 1.7, 3.0, math.inf)
    ],
    _learned("BetaGaussian", BetaGaussian, 2),
    Family("Triangular", Triangular, _power(1, 2.0)),
    *[_powers("BetaLaplace", BetaLaplace, 1, alpha) for alpha in (1.2, 1.5, math.inf)],
    _learned("BetaLaplace", BetaLaplace, 1),
    *[
        Family(
            f"LocationScale-{g.__name__}",
            partial(LocationScale, g=g),
            density,
            escorts=(None, 0.0, 1.0),
            no_escorts=(0.5, 2.0),
        )
        for g, density in ((quartic, _quartic_density), (cubic, _cubic_density))
    ],
    Family(
        "Normal",
        Normal,
        lambda t, loc, scale: math.exp(-0.5 * ((t - loc) / scale) ** 2),
        escorts=(None, 0.4, 1.0, 1.5),
        no_escorts=(0.0, -0.5),
    ),
    Family(
        "Laplace",
        Laplace,
        lambda t, loc, scale: math.exp(-abs(t - loc) / scale),
        escorts=(None, 0.4, 1.0, 1.5),
        no_escorts=(0.0, -0.5),
    ),
]

SCALARS = [Case(family, family.scalar, family.name) for family in FAMILIES]
BATCHES = [Case(family, family.batch, f"{family.name}-batch") for family in FAMILIES]


def _every(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every_case = _every(SCALARS + BATCHES)
every_scalar = _every(SCALARS)
every_batch = _every(BATCHES)
every_scored_case = _every([case for case in SCALARS + BATCHES if case.family.has_score])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
