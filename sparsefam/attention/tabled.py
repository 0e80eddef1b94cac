r"""Contexts under parabolas, from tabulated antiderivatives of the value functions.

By parts, with $V_k$ the k-fold antiderivative of the value function $V$,

$$\int_a^b p\,V = \bigl[\,p\,V_1 - p'\,V_2 + p''\,V_3\,\bigr]_a^b,$$

each context is a sum of a few rows of the table, and so are its derivatives in the parabola's
location and scale. A support that is narrow against a cell has moments of the polynomial of one
cell instead.
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from ..distributions import BetaGaussian, SparseDistribution, TruncatedParabola
from ..numerics.least_squares import blocks
from ..numerics.quadrature import constant
from .antiderivatives import POWERS, REACH, Cells, tabulate, untabulate

__all__ = ["is_parabola", "tabled_contexts", "tabled_slopes"]

# Queries of a block.
_QUERIES = 1024
_PARABOLAS = (BetaGaussian, TruncatedParabola)
# Half-widths, in halves of a cell, below which a support is narrow.
_NARROW = REACH - 1


def is_parabola(density: SparseDistribution) -> bool:
    """Whether these are parabolas in float32, of batch shape (B, heads, Lq)."""
    # Classes made of these may have expectations of their own.
    if not isinstance(density, BetaGaussian) or type(density) not in _PARABOLAS:
        return False
    plain = density._fixed_exponent == 1 and density.scale.dtype == torch.float32
    return plain and len(density.batch_shape) == 3


def tabled_contexts(cells: Cells, by_head: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Contexts (B, Lq, heads, E) of coefficients (B, heads, N, E) and parabolas (B, heads, Lq)."""
    examples, heads, queries = loc.shape
    out = by_head.new_empty(examples, queries, heads, by_head.shape[-1])
    for one, head in product(range(examples), range(heads)):
        table = tabulate(cells, by_head[one, head])
        for block in blocks(queries, _QUERIES):
            ends = _Ends.of(cells, loc[one, head, block], scale[one, head, block])
            out[one, block, head] = _sums(ends.rows(cells), table, ends.weights(_VALUES))
    return out


def tabled_slopes(
    cells: Cells,
    by_head: Tensor,
    loc: Tensor,
    scale: Tensor,
    upstream: Tensor,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients in coefficients, locations and scales, those that are needed."""
    pairs = zip((by_head, loc, scale), needed, strict=True)
    found = [torch.empty_like(x) if need else None for x, need in pairs]
    for at in product(*map(range, loc.shape[:2])):
        parts = loc[at], scale[at], upstream[at[0], :, at[1]]
        if found[0] is not None:
            found[0][at] = untabulate(cells, _of_table(cells, *parts))
        if needed[1] or needed[2]:
            slopes = _of_densities(cells, by_head[at], *parts)
            for total, slope in zip(found[1:], slopes, strict=True):
                if total is not None:
                    total[at] = slope
    return found


def _of_densities(
    cells: Cells, coefficients: Tensor, loc: Tensor, scale: Tensor, upstream: Tensor
) -> Tensor:
    """Gradients in locations and scales (Q,), stacked."""
    table, found = tabulate(cells, coefficients), loc.new_empty(2, len(loc))
    for block in blocks(len(loc), _QUERIES):
        ends = _Ends.of(cells, loc[block], scale[block])
        rows = ends.rows(cells)
        for kind, part in zip((_BY_LOC, _BY_SCALE), found, strict=True):
            slopes = _sums(rows, table, ends.weights(kind)).mul_(upstream[block])
            torch.sum(slopes, -1, out=part[block])
    return found.div_(cells.half)


def _sums(rows: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """Rows (Q, R) of a table times weights (2, R / 2, Q), summed: (Q, E)."""
    weights = weights.flatten(0, 1).mT.contiguous()
    return embedding_bag(rows, table, per_sample_weights=weights, mode="sum")


def _of_table(cells: Cells, loc: Tensor, scale: Tensor, upstream: Tensor) -> Tensor:
    """Gradients in the table: for each row, what (Q, E) weighs with it, summed over queries."""
    total: Tensor | None = None
    for block in blocks(len(loc), _QUERIES):
        ends, above = _Ends.of(cells, loc[block], scale[block]), upstream[block].contiguous()
        key = (ends.cell * cells.levels + ends.level).flatten()
        order = key.argsort()
        counts = torch.bincount(key, minlength=cells.size * cells.levels)
        by_cell = counts.unflatten(0, (-1, cells.levels)).sum(-1)
        firsts = [by_cell.cumsum(0) - by_cell] * POWERS + [counts.cumsum(0) - counts] * 3
        starts = torch.cat([first + i * len(key) for i, first in enumerate(firsts)]).int()
        weights = ends.weights(_VALUES).transpose(0, 1).flatten(1)
        weights = weights.index_select(1, order).flatten()
        who = (order % len(above)).int().repeat(len(firsts))
        more = embedding_bag(who, above, starts, per_sample_weights=weights, mode="sum")
        total = more if total is None else total.add_(more)
    return cast(Tensor, total)


class _Ends(NamedTuple):
    """The lower and the upper ends of Q supports, and where they are in the table.

    Attributes:
        cell: In which each end is, (2, Q) as int32.
        level: At which an edge lies between the two if they are not in one cell, (Q,).
        u: Where in that cell, in -1..1, (2, Q).
        x: The ends in coordinates of the parabola; not -1 and 1 where it reaches beyond all cells.
        inverse: A cell's half h over the half-widths, minus that at lower ends, (2, Q).
        narrow: Which are narrow, (Q,), both of their ends where their middle is; None if none is.
    """

    cell: Tensor
    level: Tensor
    u: Tensor
    x: Tensor
    inverse: Tensor
    narrow: Tensor | None

    @classmethod
    def of(cls, cells: Cells, loc: Tensor, scale: Tensor) -> "_Ends":
        """Those of parabolas (Q,), in float64 where digits of a location count."""
        loc, scale = loc.double(), scale.double()
        below = scale < _NARROW * cells.half
        narrow = below if bool(below.any()) else None
        reach = torch.stack([-scale, scale])
        ends = loc + reach
        if narrow is not None:
            ends = torch.where(narrow, loc, ends)
        ends = ends.clamp_(cells.low, cells.high)
        x, inverse = (ends - loc).div_(scale), cells.half / reach
        place = ends.sub_(cells.low).mul_(1 / cells.half)
        cell = (place / 2).int().clamp_(0, cells.size - 1)
        level = torch.frexp((cell[0] ^ cell[1]).float()).exponent.sub_(1).clamp_(min=0)
        u = place.sub_(2 * cell + 1)
        return cls(cell, level, u.float(), x.float(), inverse.float(), narrow)

    def rows(self, cells: Cells) -> Tensor:
        """Of the table, (Q, 2 (n + 3))."""
        cell, steps = self.cell.mT.unsqueeze(-1), torch.arange(POWERS, dtype=torch.int32)
        found = cell.new_empty(len(cell), 2, POWERS + 3)
        torch.add(cell * POWERS, steps, out=found[..., :POWERS])
        key = cell * cells.levels + (self.level + cells.size * POWERS).reshape(-1, 1, 1)
        torch.add(key, cells.size * cells.levels * steps[:3], out=found[..., POWERS:])
        return found.flatten(1)

    def weights(self, kind: "_Kind") -> Tensor:
        """Of the rows, (2, n + 3, Q)."""
        u, (zero, one, two) = self.u, kind.slopes(self.x, self.inverse)
        found = u.new_empty(2, POWERS + 3, u.shape[-1])
        found[:, -1] = two
        torch.addcmul(one, u, two, out=found[:, -2])
        torch.addcmul(zero, u, one + found[:, -2], value=0.5, out=found[:, -3])
        found[:, 0], done = u, 1
        while done < POWERS:
            more = min(done, POWERS - done)
            last = found[:, done - 1 : done]
            torch.mul(found[:, :more], last, out=found[:, done : done + more])
            done += more
        first, second, third = _factors()
        parts = (x.unsqueeze(1) for x in (zero, u * one, u * u * two))
        zero, one, two = parts
        found[:, :POWERS] *= (first * zero).addcmul_(second, one).addcmul_(third, two)
        if self.narrow is not None:
            found.masked_fill_(self.narrow, 0)
            moments = kind.moments(u[0], 1 / self.inverse[1])
            found[0, :POWERS] = torch.where(self.narrow, moments, found[0, :POWERS])
        return found


class _Kind(NamedTuple):
    r"""What is summed: contexts, or h times a derivative of theirs.

    Attributes:
        slopes: $\pm(h\,p, -h^2 p', h^3 p'')$ at ends x, of $\pm h$ over the half-width.
        moments: Of the powers, at places u and of half-widths over h, both (Q,): (n, Q).
    """

    slopes: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    moments: Callable[[Tensor, Tensor], Tensor]


def _slopes(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one = 1.5 * r * r.abs()
    return 0.75 * r * (1 - x * x), one * x, -one * r.abs()


def _slopes_by_loc(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, one, two = _slopes(x, r)
    return one, two, torch.zeros_like(two)


def _slopes_by_scale(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    zero, one, two = _slopes(x, r)
    r = r.abs()
    return x * one - r * zero, x * two - 2 * r * one, -3 * r * two


def _moments(u: Tensor, ratio: Tensor, exponent: int = 1) -> Tensor:
    r"""$\mathbb E (u + \text{ratio}\,x)^k$ under $(1 - x^2)^{exponent}$, (n, Q) of (Q,)."""
    spread, found = u * u - ratio * ratio, [torch.ones_like(u), u]
    for k in range(2, POWERS):
        whole = k + 2 * exponent + 1
        last = spread * found[-2] * ((1 - k) / whole)
        found.append(last.addcmul_(u, found[-1], value=2 * (k + exponent) / whole))
    return torch.stack(found)


def _moments_by_loc(u: Tensor, ratio: Tensor) -> Tensor:
    k = torch.arange(1.0, POWERS).unsqueeze(-1)
    return pad(k * _moments(u, ratio)[:-1], (0, 0, 1, 0))


def _moments_by_scale(u: Tensor, ratio: Tensor) -> Tensor:
    # By parts, under the square of the parabola.
    k = torch.arange(2.0, POWERS).unsqueeze(-1)
    return pad(k * (k - 1) / 5 * ratio * _moments(u, ratio, 2)[:-2], (0, 0, 2, 0))


_VALUES = _Kind(_slopes, _moments)
_BY_LOC = _Kind(_slopes_by_loc, _moments_by_loc)
_BY_SCALE = _Kind(_slopes_by_scale, _moments_by_scale)


@cache
def _factors() -> Tensor:
    """What k powers are divided by in the antiderivatives of one power, (3, n, 1)."""
    k = np.arange(POWERS)
    first = 1 / (k + 1)
    second = first / (k + 2)
    rows = np.stack([first, second, second / (k + 3)])[..., None]
    return constant(rows, torch.float32, torch.device("cpu"))
