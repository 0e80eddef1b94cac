r"""Antiderivatives of value functions, tabulated: what a query reads of them does not depend on N.

The line is cut into cells on which a combination $V$ of Gaussians is a polynomial to rounding. The
table holds its coefficients there, and three constants for each of the antiderivatives
$V_1, V_2, V_3$ that start at one of several edges. Started at one end of the line, a support would
cost $(\text{line}/\text{support})^3$ roundings. For each $l$ the line is in blocks of $2^{l+1}$
cells, and there are antiderivatives that start in the middle of each block: the first bit in which
the numbers of two cells differ tells at which $l$ such an edge lies between them.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..bases import Basis, GaussianRBF
from ..numerics.least_squares import blocks
from ..numerics.quadrature import constant

__all__ = ["POWERS", "REACH", "Cells", "cells_of", "tabulate", "untabulate"]

# Powers in a polynomial of a cell's own coordinate, which is -1..1 in the cell, and how far from
# its middle it is as good: beyond the cell.
POWERS, REACH = 20, 2.25
# Widths beyond its center at which a Gaussian is left out.
_FAR = 6.0
# Cells of a block, in which few of the Gaussians are not zero.
_CELLS = 16


class Cells(NamedTuple):
    """Where a Gaussian basis is cut.

    Attributes:
        centers: Of the basis, (N,) in float64.
        widths: Likewise, (N,).
        low: Where the first cell starts.
        half: Half of a cell's length.
        size: How many there are.
    """

    centers: Tensor
    widths: Tensor
    low: float
    half: float
    size: int

    @property
    def high(self) -> float:
        """Where the last one ends."""
        return self.low + 2 * self.half * self.size

    @property
    def levels(self) -> int:
        """Kinds of blocks."""
        return max(1, (self.size - 1).bit_length())


def cells_of(basis: Basis) -> Cells | None:
    """Cells of two of the smallest widths, unless they are many more than functions.

    Gaussians of one coordinate alone have them, in float32 and where values can be looked at.
    """
    if type(basis) is not GaussianRBF or basis.event_shape or basis.widths is None:
        return None
    given = basis.centers, basis.widths
    if any(x.requires_grad or x.dtype != torch.float32 or x.device.type != "cpu" for x in given):
        return None
    centers, widths = (x.double().expand(len(basis)) for x in given)
    low, high = float((centers - _FAR * widths).min()), float((centers + _FAR * widths).max())
    share = (high - low) / (2 * float(widths.min()))
    if not share < len(basis) + 4 * _FAR:
        return None
    count = math.ceil(share)
    return Cells(centers, widths, low, (high - low) / (2 * count), count)


def tabulate(cells: Cells, coefficients: Tensor) -> Tensor:
    """The table (rows, E) of coefficients (N, E).

    First the rows of each cell, power by power, so that a query reads neighbours; then those of the
    three constants: antiderivatives in the middle of a cell, cell by cell and level by level.
    Lengths are in units of half a cell.
    """
    _, to_powers, to_integrals = _matrices()
    rows, channels = cells.size * (POWERS + 3 * cells.levels), coefficients.shape[-1]
    table = coefficients.new_empty(rows, channels)
    powers, constants = _split(cells, table, (cells.size, POWERS))
    powers = powers.transpose(0, 1)
    integrals = to_powers.new_empty(6, cells.size, channels)
    for block, near, gauss in _gaussians(cells):
        values = (gauss @ coefficients[near].double()).unflatten(0, (POWERS, -1)).flatten(1)
        powers[:, block] = (to_powers @ values).unflatten(1, (-1, channels))
        integrals[:, block] = (to_integrals @ values).unflatten(1, (-1, channels))
    edges, middles = _from_first(integrals)
    for level, start, x in _starts(cells):
        one, two, three = edges[:, start]
        before = torch.stack([one, two + x * one, three + x * (two + x / 2 * one)])
        constants[:, :, level] = middles - before
    return table


def untabulate(cells: Cells, slopes: Tensor) -> Tensor:
    """Gradients in coefficients, (N, E) in float64, of those in the table, its powers outermost."""
    _, to_powers, to_integrals = _matrices()
    powers, constants = _split(cells, slopes, (POWERS, cells.size))
    # All is linear, and no matter where.
    integrals = to_powers.new_zeros(6, cells.size, slopes.shape[-1], requires_grad=True)
    with torch.enable_grad():
        both = _from_first(integrals)
    of_edges, of_middles = (torch.zeros_like(x) for x in both)
    for level, start, x in _starts(cells):
        one, two, three = above = constants[:, :, level].double()
        back = torch.stack([one + x * (two + x / 2 * three), two + x * three, three])
        of_edges.index_add_(1, start, back, alpha=-1)
        of_middles += above
    (slopes_of,) = torch.autograd.grad(both, integrals, (of_edges, of_middles))
    found = to_powers.new_zeros(len(cells.centers), slopes.shape[-1])
    for block, near, gauss in _gaussians(cells):
        values = to_powers.mT @ powers[:, block].flatten(1).double()
        values += to_integrals.mT @ slopes_of[:, block].flatten(1)
        found[near] += gauss.mT @ values.view(len(gauss), -1)
    return found


def _split(cells: Cells, table: Tensor, order: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Its rows of powers (*order, E) and those of constants (3, cells, levels, E)."""
    first = cells.size * POWERS
    constants = table[first:].view(3, cells.size, cells.levels, -1)
    return table[:first].view(*order, -1), constants


def _from_first(integrals: Tensor) -> tuple[Tensor, Tensor]:
    """The antiderivatives that start with the first cell, at each cell's edge and middle."""
    middle, end = integrals.split(3)
    one = pad(end[0].cumsum(0), (0, 0, 1, 0))
    two = pad((2 * one[:-1] + end[1]).cumsum(0), (0, 0, 1, 0))
    three = pad((2 * one[:-1] + 2 * two[:-1] + end[2]).cumsum(0), (0, 0, 1, 0))
    edges = torch.stack([one, two, three])
    one, two, three = edges[:, :-1]
    return edges, middle + torch.stack([one, two + one, three + two + one / 2])


def _starts(cells: Cells) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each level, the edges at which antiderivatives start there, and how far behind they are."""
    cell = torch.arange(cells.size)
    for level in range(cells.levels):
        start = ((cell >> level + 1) << level + 1) + (1 << level)
        start = start.clamp(max=cells.size)
        yield level, start, (2 * (cell - start) + 1).unsqueeze(-1)


@cache
def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """Nodes (n,) of a cell; from values there to powers (n, n), and to integrals (6, n).

    The latter are those once, twice, thrice from the cell's start to its middle, and to its end.
    """
    n = POWERS
    nodes = REACH * np.cos(np.pi * (np.arange(n) + 0.5) / n)
    powers = np.linalg.inv(np.vander(nodes, increasing=True)).astype(np.float64)
    x, w = np.polynomial.legendre.leggauss(n)
    integrals = []
    for length in (1.0, 2.0):
        t, share = (x + 1) * length / 2 - 1, w * length / 2
        values = np.vander(t, n, increasing=True) @ powers
        left = length - 1 - t
        integrals += [share * left**j / math.factorial(j) @ values for j in range(3)]
    parts = nodes, powers, np.stack(integrals)
    first, second, third = (constant(x, torch.float64, torch.device("cpu")) for x in parts)
    return first, second, third


def _gaussians(cells: Cells) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of cells, which Gaussians are not zero there, and these at nodes, (n cells, near)."""
    nodes, far = _matrices()[0].unsqueeze(-1), _FAR * cells.widths
    for block in blocks(cells.size, _CELLS):
        cell = torch.arange(cells.size, dtype=nodes.dtype)[block]
        t = cells.low + cells.half * (2 * cell + 1 + nodes)
        near = (cells.centers + far > t.min()) & (cells.centers - far < t.max())
        (near,) = torch.nonzero(near, as_tuple=True)
        width = cells.widths[near]
        z = (t.reshape(-1, 1) - cells.centers[near]) / width
        yield block, near, torch.exp(-0.5 * z * z) / (width * math.sqrt(2 * math.pi))
