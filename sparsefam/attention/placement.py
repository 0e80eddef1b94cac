"""Where heads start, and lengths and locations as shares of the domain."""

import math

import torch
from torch import Tensor
from torch.nn import functional
from torch.quasirandom import SobolEngine

from .arguments import Box

__all__ = [
    "FIRST_GAIN",
    "FIRST_SIGMA",
    "LEAST_SIGMA",
    "affinity",
    "first_width",
    "place",
    "places",
    "stretch",
    "widths",
]

# Shares of the domain: sigma when training starts, and the least that sigma, or the standard
# deviation of matched moments, can become.
FIRST_SIGMA = 0.1
LEAST_SIGMA = 1e-3
# Of weights that are read off queries when training starts: queries then differ little.
FIRST_GAIN = 0.1


def places(count: int, ndim: int) -> Tensor:
    """Shares (count, D) of the domain, spread evenly over it."""
    # In equal steps along the first axis, and in the order of a Sobol sequence along each other
    # one: of 2^k there is then one in each of 2^k equal boxes, however these are cut.
    shares = (torch.arange(count) + 0.5).unsqueeze(-1) / count
    if ndim == 1:
        return shares
    others = SobolEngine(ndim - 1).draw(count).to(shares)
    return torch.cat([shares, others + 0.5 / count], -1)


def affinity(own: Tensor, shares: Tensor) -> Tensor:
    """How near shares (n, D) are to the heads' own (heads, D), from 0 to 1: (heads, n)."""
    distance = (own.unsqueeze(1) - shares) / FIRST_SIGMA
    return torch.exp(-0.5 * distance.square().sum(-1))


def stretch(shares: Tensor, box: Box) -> Tensor:
    """Lengths (..., D) from shares of the box."""
    sides = [(high - low) * x for (low, high), x in zip(box, shares.unbind(-1), strict=True)]
    return torch.stack(sides, -1)


def place(shares: Tensor, box: Box) -> Tensor:
    """Locations (..., D) from shares of the box."""
    sides = zip(box, shares.unbind(-1), strict=True)
    return torch.stack([low + (high - low) * x for (low, high), x in sides], -1)


def widths(channels: Tensor) -> Tensor:
    """Scales, as shares of the domain, from channels."""
    return LEAST_SIGMA + functional.softplus(channels)


def first_width(sigma: float) -> float:
    """The channel whose scale is sigma."""
    return math.log(math.expm1(sigma - LEAST_SIGMA))
