"""Distributions of torch's as densities of this package, and what a mixture asks of either."""

import math
from typing import Any

import torch
from torch import Tensor

from ..supports import RealLine
from .base import SparseDistribution
from .elliptical import MultivariateNormal
from .foreign import ForeignDistribution, class_name, is_discrete
from .foreign_line import ForeignOnLine
from .normal import Laplace, Normal
from .univariate import SymmetricDistribution

__all__ = ["adopted", "cuts_of", "intervals_of", "tail_of", "whole_line"]

# Equal parts of the coordinate of a density of torch's.
_PIECES = 16
# Laws of torch's that are densities on a line; of others the mass is asked for.
_USUAL = (
    *("Beta", "Cauchy", "Chi2", "Exponential", "FisherSnedecor", "Gamma", "Gumbel", "HalfCauchy"),
    *("HalfNormal", "InverseGamma", "LogNormal", "Pareto", "StudentT", "Uniform", "Weibull"),
)


def adopted(p: Any) -> SparseDistribution:
    """The same law as a density of this package, of its own class where there is one.

    Raises:
        ValueError: A discrete law, one on a circle, or any other of numbers whose mass is not one,
            or is not found, with peaks far apart; unless the original does not validate.
    """
    if isinstance(p, SparseDistribution):
        return p
    if is_discrete(p):
        raise ValueError(f"a law must be continuous to have a density, got {p}")
    law = class_name(p)
    if law == "Normal":
        return Normal(p.loc, p.scale, validate_args=False)
    if law == "Laplace":
        return Laplace(p.loc, p.scale, validate_args=False)
    if law == "MultivariateNormal":
        return MultivariateNormal(p.loc, scale_tril=p.scale_tril, validate_args=False)
    if law == "Independent" and len(p.event_shape) == 1 and class_name(p.base_dist) == "Normal":
        tril = p.base_dist.scale.diag_embed()
        return MultivariateNormal(p.base_dist.loc, scale_tril=tril, validate_args=False)
    if law == "Independent":
        adopted(p.base_dist)  # for its errors
    if law == "SineBivariateVonMises" and p._validate_args:
        raise ValueError(f"a law must be a density in the plane, of mass one, got {law} on a torus")
    if p.event_shape:
        return ForeignDistribution(p)
    found = ForeignOnLine(p)
    if p._validate_args and law not in _USUAL:
        with torch.no_grad():
            found.quadrature()
    return found


def whole_line(p: SparseDistribution) -> bool:
    """Whether every density of the batch is positive on the whole line."""
    if isinstance(p, ForeignOnLine):
        return p.ends == (None, None)
    return isinstance(p.support, RealLine)


def intervals_of(p: Any) -> Tensor:
    """The support of a density of numbers as intervals (*batch, J, 2)."""
    found: Tensor = p.intervals if isinstance(p, ForeignOnLine) else p.support.intervals
    return found


def tail_of(p: SparseDistribution, value: Tensor, upper: Tensor) -> Tensor:
    """Mass below each value, or above where `upper`, with the digits of a small one.

    Where all that is known is a `cdf` of torch's, with those that it keeps.
    """
    if isinstance(p, SymmetricDistribution):
        x, inside = p._standardize(value)
        outside = ((value < p.loc) == upper).to(x.dtype)
        return torch.where(inside, p._standard_cdf(torch.where(upper, -x, x)), outside)
    if isinstance(p, ForeignOnLine):
        return p.tail(value, upper)
    below = p.cdf(value)
    return torch.where(upper, 1 - below, below)


def cuts_of(p: SparseDistribution) -> Tensor:
    """Locations (*batch, J) in any order, between which a density of numbers is smooth and simple.

    The first and last of them leave out no more than a rounding error of the mass.
    """
    if isinstance(p, SymmetricDistribution):
        # Odd numbers: the second derivative of an integral is lost where a cut is another's edge.
        share = p.loc.new_tensor([-1.0, -0.2371, 0.0, 0.2371, 1.0])
        half = p._reach() * p.scale
        return p.loc.unsqueeze(-1) + half.unsqueeze(-1) * share
    if isinstance(p, ForeignOnLine):
        first, last = p.bulk
        share = torch.linspace(0, 1, _PIECES + 1).to(p.alpha)
        y = first + (last - first) * share.reshape(-1, *(1,) * p.alpha.dim())
        return p.coordinate.locations(y)[0].movedim(0, -1)
    ends = intervals_of(p).flatten(-2)
    nodes = p.quadrature(8)[0]
    inner = nodes[:: max(1, len(nodes) // 32)].movedim(0, -1)
    return torch.cat([torch.where(ends.abs() < math.inf, ends, math.nan), inner], -1)
