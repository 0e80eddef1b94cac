r"""Integrals of truncated powers against functions known at nodes only.

On panels with Gauss-Legendre nodes $t_j$, $\int [1 + \epsilon x(t)]_+^k\,\psi(t)\,dQ(t)$ is a sum
$\sum_j W_j \psi(t_j)$. Where $1 + \epsilon x$ keeps its sign in a panel, $W_j$ is the weight of the
rule times the power. Where it changes sign, the sum would see the edge only to the nodes' distance;
there the polynomial through the nodes is integrated, piece by positive piece, against the Lagrange
polynomials. The weights are then *effective*: they may be negative, but neither $\psi$ nor f is
evaluated anywhere else, so that expectations remain one matrix product, and so do derivatives.

Nodes come first and panels last, (m, ...): every operation then runs along memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .edges import (
    Panel,
    Pieces,
    chebyshev_sum,
    has_several,
    panel_rule,
    positive_pieces,
    sign_changes,
    signs,
    single_piece,
)
from .moments import chebyshev_polynomials, piece_weights, short_weights
from .quadrature import gauss_legendre, smooth_unit_rule
from .truncated import Power

__all__ = ["edge_pieces", "power_weights"]

# From this exponent on a power meets zero so smoothly that the rule's own weights serve.
_SMOOTH = 12.0
# Up to this exponent integrals follow from those of Chebyshev polynomials without loss of digits.
_SHORT = 2
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
    points, values, changes = sign_changes(task.of.inside(task.x), task.panel)
    most = _MOST_ROOTS if x.is_cuda else int(changes.sum(0).amax()) | 1
    return positive_pieces(_polynomials(task), task.panel, points, values, changes, most)


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
    near, copies = None, task.x.shape[1] // scale.shape[1]
    if task.upper is None:
        near = _candidates(task).nonzero().squeeze(-1)
        task = task.take(near)
    seen = signs(task.of.inside(task.x), task.panel)
    several = has_several(seen)
    few = ~several
    if task.upper is None:
        # A power that is no polynomial is not one near an edge outside the panel either.
        few &= seen.changes == 1 if _is_exact(task) else seen.positive > 0
    for chosen, is_single in ((few, True), (several, False)):
        place = chosen.nonzero().squeeze(-1)
        if len(place):
            part = task.take(place)
            coefficients = _polynomials(part)
            if is_single:
                pieces = single_piece(coefficients, seen.take(place), part.panel)
            else:
                points, values, changes = sign_changes(part.of.inside(part.x), part.panel)
                roots = int(changes.sum(0).amax()) | 1
                pieces = positive_pieces(coefficients, part.panel, points, values, changes, roots)
            target = place if near is None else near[place]
            factor = scale.index_select(1, target // copies)
            mended = _mended(part, pieces, coefficients, is_single)
            for ends, weights in zip(found, mended, strict=True):
                ends.index_copy_(1, target, weights.mul_(factor))


def _everywhere(task: _Task, found: list[Tensor], scale: Tensor) -> None:
    """The same without a look at the data: every panel is integrated piece by piece."""
    points, values, changes = sign_changes(task.of.inside(task.x), task.panel)
    coefficients = _polynomials(task)
    pieces = positive_pieces(coefficients, task.panel, points, values, changes, _MOST_ROOTS)
    edged = changes.any(0) if _is_exact(task) else (values > 0).any(0)
    if task.upper is not None:
        edged = torch.ones_like(edged)
    factor = scale.repeat_interleave(task.x.shape[1] // scale.shape[1], 1)
    mended = _mended(task, pieces, coefficients, False)
    for ends, weights in zip(found, mended, strict=True):
        ends.copy_(torch.where(edged, weights * factor, ends))


def _is_exact(task: _Task) -> bool:
    """Whether the functions of a polynomial without a root are polynomials."""
    exponent, powers = task.of.exponent, {"power", "lowered", "second"}
    whole = not isinstance(exponent, Tensor) and exponent in range(int(_SMOOTH) + 1)
    return whole and powers.issuperset(task.names)


def _candidates(task: _Task) -> Tensor:
    """Which panels may hold an edge: their nodes come near one, or are on both sides."""
    low, high = task.x.amin(0), task.x.amax(0)
    slack = (high - low) * (6 / len(task.x) ** 2 if _is_exact(task) else 0.2)
    edge = -1 / task.of.eps
    return (low < edge + slack) & (high > edge - slack)


def _polynomials(task: _Task) -> Tensor:
    """Chebyshev coefficients (m, n) of 1 + eps x."""
    return task.panel.coefficients @ task.of.inside(task.x)


def _mended(task: _Task, pieces: Pieces, coefficients: Tensor, is_single: bool) -> list[Tensor]:
    """Raw effective weights (m, n) of the functions."""
    if task.upper is not None:
        pieces, is_single = Pieces(*(torch.minimum(end, task.upper) for end in pieces)), False
    # In float64 a panel and its parts are treated alike, to the last digit: quantiles divide by
    # densities that vanish towards an edge.
    is_single = is_single and task.x.dtype == torch.float32
    jump, back = task.of.is_jump, task.panel.coefficients.T
    if _is_short(task):
        power = int(task.of.exponent)
        powers = [power - _LOWER.index(name) for name in task.names]
        shares = piece_weights(len(coefficients), max(powers), *pieces, is_single)
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
