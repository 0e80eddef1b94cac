"""Where a density lives: constraints that know their intervals and their bijections."""

from .constraints import finite, finite_scale_tril, finite_vector, positive_finite
from .ellipsoid import Ellipsoid
from .interval import Interval, RealLine
from .union import AnyOf, IntervalUnion, Region

__all__ = [
    "AnyOf",
    "Ellipsoid",
    "Interval",
    "IntervalUnion",
    "RealLine",
    "Region",
    "finite",
    "finite_scale_tril",
    "finite_vector",
    "positive_finite",
]
