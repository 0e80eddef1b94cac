"""What the kernels of contexts are told about an exponent: nodes, or a path, and constants."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy  # whose parts load when they are asked for
import torch
from torch import Tensor

from ..numerics.contour import _PATH
from ..numerics.quadrature import constant

__all__ = ["LARGEST_EXPONENT", "Rule", "rule_of"]

# Exponents m = 1/(alpha - 1) from 1 that the rules were checked for; of larger ones float32 powers
# lose digits.
LARGEST_EXPONENT = 20.0
# Below this the edge of a density that is wide against a Gaussian asks for more nodes on the path.
_SMOOTH = 1.5


class Rule(NamedTuple):
    """What a kernel is told about an exponent.

    Attributes:
        table: On the line nodes of the unit interval, their distances from 1 and weights,
            (3, count); in the plane the constants of the contour's path.
        nodes: How many.
        m: The exponent.
        trim: Share of a support's half-width at either end where there is as good as nothing.
        constant: Of the standard density; in the plane with what the contour leaves to it.
        lowered: m - 1 where products make powers, or -1.
    """

    table: Tensor
    nodes: int
    m: float
    trim: float
    constant: float
    lowered: int


@cache
def rule_of(m: float, dim: int, device: torch.device) -> Rule:
    """For densities on the line or in the plane."""
    lowered = int(m) - 1 if m in (1.0, 2.0, 3.0) else -1
    return (_on_line if dim == 1 else _in_plane)(m, lowered, device)


def _on_line(m: float, lowered: int, device: torch.device) -> Rule:
    """Gauss-Legendre for polynomials; else after $y^2 (3 - 2y)$, which tames a power at an end."""
    x, w = scipy.special.roots_legendre((14, 20, 20, 32)[lowered])
    y, rest, w = (1 + x) / 2, (1 - x) / 2, w / 2
    if lowered < 0:
        w = 6 * w * y * rest
        y, rest = y**2 * (3 - 2 * y), rest**2 * (3 - 2 * rest)
    log_constant = math.lgamma(m + 1.5) - math.lgamma(m + 1) - 0.5 * math.log(math.pi)
    trim = 1 - math.sqrt(1 - math.exp(-18 / m)) if m > 4 else 0.0
    table = constant(np.stack([y, rest, w]), torch.float32, device)
    return Rule(table, len(x), m, trim, math.exp(log_constant), lowered)


def _in_plane(m: float, lowered: int, device: torch.device) -> Rule:
    count, top = 8 if m < _SMOOTH else 6, m + 1
    table = constant(np.asarray(_PATH[count]), torch.float32, device)
    log_constant = math.lgamma(top + 1) - top * math.log(top) + top - math.log(math.pi)
    return Rule(table, count, m, 0.0, math.exp(log_constant), lowered)
