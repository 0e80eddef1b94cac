r"""Integrals of truncated powers against functions known at nodes only.

On panels with Gauss-Legendre nodes $t_j$, $\int [1 + \epsilon x(t)]_+^k\,\psi(t)\,dQ(t)$ is a sum
$\sum_j W_j \psi(t_j)$. Where $1 + \epsilon x$ keeps its sign in a panel, $W_j$ is the weight of the
rule times the power. Where it changes sign, the sum would see the edge only to the nodes' distance;
there the polynomial through the nodes is integrated, piece by positive piece, against the Lagrange
polynomials. The weights are then *effective*: they may be negative, but neither $\psi$ nor f is
evaluated anywhere else, so that expectations remain one matrix product, and so do derivatives.

Nodes come first and panels last, (m, ...): every operation then runs along memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .edges import (
    Panel,
    Pieces,
    has_several,
    near_edge,
    panel_rule,
    positive_pieces,
    several_pieces,
    sign_changes,
    signs,
)
from .moments import chebyshev_polynomials, chebyshev_sum, piece_weights, short_weights
from .quadrature import gauss_legendre, smooth_unit_rule
from .sides import single_piece
from .truncated import Power

__all__ = ["edge_pieces", "power_weights"]

# From this exponent on a power meets zero so smoothly that the rule's own weights serve.
_SMOOTH = 12.0
# Up to this exponent integrals follow from those of Chebyshev polynomials without loss of digits.
_SHORT = 1
# By how much the exponent is less.
_LOWER = ("power", "lowered", "second")
# Roots in a panel, where their number is not looked at.
_MOST_ROOTS = 5


class _Task(NamedTuple):
    """What is asked for of n panels, one in each column."""

    x: Tensor  # (m, n)
    of: Power  # eps a number or (n,)
    names: tuple[str, ...]
    panel: Panel
    upper: Tensor | None  # (n,)

    def take(self, columns: Tensor) -> "_Task":
        of, upper = self.of, self.upper
        if isinstance(of.eps, Tensor):
            of = of._replace(eps=of.eps[columns])
        upper = None if upper is None else upper[columns]
        return self._replace(x=self.x.index_select(1, columns), of=of, upper=upper)


def power_weights(
    x: Tensor,
    measure: Tensor,
    of: Power,
    names: tuple[str, ...],
    upper: Tensor | None = None,
) -> list[Tensor]:
    """Effective weights (m, *columns) of functions of 1 + eps x.

    Args:
        x: Values at the nodes of panels, (m, *columns).
        measure: The rule's own weights, times a base density, which broadcast against x.
        of: The power, its eps a number or broadcasting against the columns.
        names: Functions that `Power.functions` knows.
        upper: Where each panel ends (*columns), from -1 to 1; default 1.
    """
    x = x.contiguous()
    found = [v * measure for v in of.functions(names, x)]
    if not isinstance(of.eps, Tensor) and of.exponent > _SMOOTH and upper is None:
        return found
    task = _task(x, of, names, upper)
    scale = measure.flatten(1) / task.panel.weights.unsqueeze(-1)
    mend = _everywhere if x.is_cuda else _where_needed
    mend(task, [w.reshape(len(x), -1) for w in found], scale)
    return found


def edge_pieces(x: Tensor, of: Power) -> Pieces:
    """Pieces (K, n) of panels on which 1 + eps x is positive, for x (m, *columns)."""
    task = _task(x, of, (), None)
    u, panel = task.of.inside(task.x), task.panel
    if not x.is_cuda:
        return several_pieces(u, panel)
    return positive_pieces(_polynomials(task), panel, *sign_changes(u, panel), _MOST_ROOTS)


def _task(x: Tensor, of: Power, names: tuple[str, ...], upper: Tensor | None) -> _Task:
    if isinstance(of.eps, Tensor):
        of = of._replace(eps=of.eps.expand(x.shape[1:]).reshape(-1))
    end = None if upper is None else upper.reshape(-1)
    return _Task(x.reshape(len(x), -1), of, names, panel_rule(len(x), x), end)


def _where_needed(task: _Task, found: list[Tensor], scale: Tensor) -> None:
    """Mends weights (m, n) where an edge is near, which depends on the data.

    Args:
        task: All panels.
        found: Their weights, which change.
        scale: Factors (m, g), each of n / g panels.
    """
    place, copies = None, task.x.shape[1] // scale.shape[1]
    if task.upper is None:
        place = near_edge(task.x, -1 / task.of.eps, None if _is_exact(task) else 0.2)
        task = task.take(place)
    if not task.x.numel():
        return

    if place is None:
        place = torch.arange(task.x.shape[1], device=task.x.device)
    for mended, target in _by_parts(task):
        at = place if target is None else place[target]
        factor = scale.index_select(1, at // copies)
        for ends, weights in zip(found, mended, strict=True):
            ends.index_copy_(1, at, weights.mul_(factor))


def _by_parts(task: _Task) -> Iterator[tuple[list[Tensor], Tensor | None]]:
    """Raw effective weights (m, k) of the functions in all columns, then in some, and which."""
    u = task.of.inside(task.x)
    seen = signs(u, task.panel)
    yield _mended(task, single_piece(u, seen, task.panel), _polynomials(task)), None
    several = has_several(seen).nonzero().squeeze(-1)
    if len(several):
        part = task.take(several)
        pieces = several_pieces(part.of.inside(part.x), part.panel)
        yield _mended(part, pieces, _polynomials(part)), several


def _everywhere(task: _Task, found: list[Tensor], scale: Tensor) -> None:
    """The same without a look at the data: every panel is integrated piece by piece."""
    points, values, changes = sign_changes(task.of.inside(task.x), task.panel)
    coefficients = _polynomials(task)
    pieces = positive_pieces(coefficients, task.panel, points, values, changes, _MOST_ROOTS)
    edged = changes.any(0) if _is_exact(task) else (values > 0).any(0)
    if task.upper is not None:
        edged = torch.ones_like(edged)
    factor = scale.repeat_interleave(task.x.shape[1] // scale.shape[1], 1)
    mended = _mended(task, pieces, coefficients)
    for ends, weights in zip(found, mended, strict=True):
        ends.copy_(torch.where(edged, weights * factor, ends))


def _is_exact(task: _Task) -> bool:
    """Whether the functions of a polynomial without a root are polynomials."""
    exponent, powers = task.of.exponent, {"power", "lowered", "second"}
    whole = not isinstance(exponent, Tensor) and exponent in range(int(_SMOOTH) + 1)
    return whole and powers.issuperset(task.names)


def _polynomials(task: _Task) -> Tensor:
    """Chebyshev coefficients (m, n) of 1 + eps x."""
    return task.panel.coefficients @ task.of.inside(task.x)


def _mended(task: _Task, pieces: Pieces, coefficients: Tensor) -> list[Tensor]:
    """Raw effective weights (m, n) of the functions."""
    jump, back = task.of.is_jump, task.panel.coefficients.T
    if task.upper is not None:
        pieces = Pieces(*(torch.minimum(end, task.upper) for end in pieces))
    if _is_short(task):
        powers = _powers(task)
        shares = piece_weights(len(coefficients), max(powers), *pieces)
        return short_weights(task.of.inside(task.x), powers, shares)
    found = _quadratures(task, pieces)
    if "lowered" in task.names and (isinstance(jump, Tensor) or jump):
        place = task.names.index("lowered")
        edges = _at_edges(task, pieces, coefficients)
        found[place] = torch.where(torch.as_tensor(jump), edges, found[place])
    return [back @ moments for moments in found]


def _is_short(task: _Task) -> bool:
    """Whether closed moments serve."""
    if not _is_exact(task):
        return False
    least = max(_LOWER.index(name) for name in task.names)
    return task.of.exponent in range(least, _SHORT + 1)


def _powers(task: _Task) -> list[int]:
    """Those of the functions."""
    return [int(task.of.exponent) - _LOWER.index(name) for name in task.names]


def _quadratures(task: _Task, pieces: Pieces) -> list[Tensor]:
    """Moments (m, n) of the functions with the Chebyshev polynomials, by a rule on each piece."""
    order = len(task.x)
    width = pieces.upper - pieces.lower
    nodes, weights = _unit_rule(order, task)
    y = torch.addcmul(pieces.lower, width, nodes.reshape(-1, 1, 1)).flatten(0, 1)
    share = (weights.reshape(-1, 1, 1) * width).flatten(0, 1)
    x = chebyshev_sum(task.panel.coefficients @ task.x, y)
    heights = [share * value for value in task.of.functions(task.names, x)]
    basis = chebyshev_polynomials(y, order)
    return [torch.stack([(height * b).sum(0) for b in basis]) for height in heights]


def _at_edges(task: _Task, pieces: Pieces, coefficients: Tensor) -> Tensor:
    """Chebyshev polynomials at the edges over |u'|: what the derivative of a jump integrates to."""
    slope, count = task.panel.slope @ coefficients, len(coefficients)
    ends = torch.cat([pieces.lower, pieces.upper])
    proper = (pieces.upper > pieces.lower).repeat(2, 1) & (ends.abs() < 1)
    rate = chebyshev_sum(slope, ends).abs()
    share = torch.where(proper, 1 / torch.where(proper, rate, 1.0), 0.0)
    return (chebyshev_polynomials(ends, count) * share).sum(1)


def _unit_rule(order: int, task: _Task) -> tuple[Tensor, Tensor]:
    """Nodes and weights (q,) on [0, 1]: exact for integer powers of polynomials, else graded."""
    if _is_exact(task):
        degree = (int(task.of.exponent) + 1) * (order - 1)
        nodes, weights = gauss_legendre(degree // 2 + 1, task.x)
        return (nodes + 1) / 2, weights / 2
    if task.of.is_exponential:
        nodes, weights = gauss_legendre(2 * order, task.x)
        return (nodes + 1) / 2, weights / 2
    return smooth_unit_rule(3 * order, task.x)
