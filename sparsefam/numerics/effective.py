r"""Integrals of truncated powers against functions known at nodes only.

On panels with Gauss-Legendre nodes $t_j$, $\int [1 + \epsilon x(t)]_+^k\,\psi(t)\,dQ(t)$ is a sum
$\sum_j W_j \psi(t_j)$. Where $1 + \epsilon x$ keeps its sign in a panel, $W_j$ is the weight of the
rule times the power. Where it changes sign, the sum would see the edge only to the nodes' distance;
there the polynomial through the nodes is integrated, piece by positive piece, against the Lagrange
polynomials. The weights are then *effective*: they may be negative, but neither $\psi$ nor f is
evaluated anywhere else, so that expectations remain one matrix product, and so do derivatives.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .edges import Panel, Pieces, chebyshev_sum, panel_rule, positive_pieces, sign_changes
from .quadrature import gauss_legendre, smooth_unit_rule
from .truncated import Power

__all__ = ["edge_pieces", "power_weights"]

# From this exponent on a power meets zero so smoothly that the rule's own weights serve.
_SMOOTH = 12.0
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
        return self._replace(
            x=self.x[:, columns],
            of=_take(self.of, columns),
            upper=None if self.upper is None else self.upper[columns],
        )


def power_weights(
    x: Tensor,
    measure: Tensor,
    of: Power,
    names: tuple[str, ...],
    upper: Tensor | None = None,
) -> list[Tensor]:
    """Effective weights (R, G, m) of functions of 1 + eps x.

    Args:
        x: Values of rows at the nodes of panels, (R, G, m).
        measure: The rule's own weights, times a base density, (G, m) or (R, G, m).
        of: The power, its eps a number or (R,).
        names: Functions that `Power.function` knows.
        upper: Where each panel ends (R, G), from -1 to 1; default 1.
    """
    order, eps = x.shape[-1], of.eps
    rows = of._replace(eps=eps.reshape(-1, 1, 1)) if isinstance(eps, Tensor) else of
    found = [measure * rows.function(name, x) for name in names]
    if not isinstance(eps, Tensor) and of.exponent > _SMOOTH and upper is None:
        return found
    flat = of
    if isinstance(eps, Tensor):
        flat = of._replace(eps=eps.repeat_interleave(x.shape[1]))
    panel = panel_rule(order, x)
    scale = (measure / panel.weights).expand_as(x).reshape(-1, order)
    ends = [w.reshape(-1, order) for w in found]
    end = None if upper is None else upper.reshape(-1)
    task = _Task(x.reshape(-1, order).T, flat, names, panel, end)
    (_everywhere if x.is_cuda else _where_needed)(task, ends, scale)
    return found


def edge_pieces(x: Tensor, of: Power) -> Pieces:
    """Pieces (K, R * G) of panels on which 1 + eps x is positive, for x (R, G, m)."""
    order = x.shape[-1]
    eps = of.eps.repeat_interleave(x.shape[1]) if isinstance(of.eps, Tensor) else of.eps
    panel = panel_rule(order, x)
    task = _Task(x.reshape(-1, order).T, of._replace(eps=eps), (), panel, None)
    points, values, changes = sign_changes(1 + eps * task.x, panel)
    most = _MOST_ROOTS if x.is_cuda else int(changes.sum(0).amax()) | 1
    return _pieces(task, points, values, changes, most)[0]


def _where_needed(task: _Task, found: list[Tensor], scale: Tensor) -> None:
    """Mends weights (n, m) where an edge is near, which depends on the data."""
    if task.upper is None:
        near = _candidates(task).nonzero().squeeze(-1)
    else:
        near = torch.arange(task.x.shape[1])
    task = task.take(near)
    points, values, changes = sign_changes(1 + task.of.eps * task.x, task.panel)
    count = changes.sum(0)
    # A power that is no polynomial is not one near an edge outside the panel either.
    whole = task.upper is None and _is_exact(task.of)
    few = count == 1 if whole else (count <= 1) & (values > 0).any(0)
    if task.upper is not None:
        few = count <= 1
    for chosen, most in ((few, 1), (count > 1, None)):
        place = chosen.nonzero().squeeze(-1)
        if len(place):
            roots = most or int(count.max()) | 1
            p, v, c = (part[:, place] for part in (points, values, changes))
            weights = _mended(task.take(place), p, v, c, roots)
            target = near[place]
            for ends, mended in zip(found, weights, strict=True):
                ends[target] = mended * scale[target]


def _everywhere(task: _Task, found: list[Tensor], scale: Tensor) -> None:
    """The same without a look at the data: every panel is integrated piece by piece."""
    points, values, changes = sign_changes(1 + task.of.eps * task.x, task.panel)
    weights = _mended(task, points, values, changes, _MOST_ROOTS)
    edged = changes.any(0) if _is_exact(task.of) else (values > 0).any(0)
    if task.upper is not None:
        edged = torch.ones_like(edged)
    for ends, mended in zip(found, weights, strict=True):
        ends.copy_(torch.where(edged.unsqueeze(-1), mended * scale, ends))


def _take(of: Power, columns: Tensor) -> Power:
    return of._replace(eps=of.eps[columns]) if isinstance(of.eps, Tensor) else of


def _is_exact(of: Power) -> bool:
    """Whether the power of a polynomial without a root is a polynomial."""
    exponent = of.exponent
    return not isinstance(exponent, Tensor) and exponent in range(int(_SMOOTH) + 1)


def _candidates(task: _Task) -> Tensor:
    """Which panels may hold an edge: their nodes come near one, or are on both sides."""
    low, high = task.x.amin(0), task.x.amax(0)
    slack = (high - low) * (6 / len(task.x) ** 2 if _is_exact(task.of) else 0.2)
    edge = -1 / task.of.eps
    return (low < edge + slack) & (high > edge - slack)


def _pieces(
    task: _Task, points: Tensor, values: Tensor, changes: Tensor, most: int
) -> tuple[Pieces, Tensor, Tensor]:
    """Positive pieces, the coefficients of x, and those of the slope of 1 + eps x."""
    coefficients = task.panel.coefficients @ task.x
    base = task.of.eps * coefficients
    base[0] += 1
    slope = task.panel.slope @ base
    pieces = positive_pieces(base, slope, points, values, changes, most)
    if task.upper is not None:
        pieces = Pieces(*(torch.minimum(end, task.upper) for end in pieces))
    return pieces, coefficients, slope


def _mended(
    task: _Task, points: Tensor, values: Tensor, changes: Tensor, most: int
) -> list[Tensor]:
    """Raw effective weights (n, m) of the functions."""
    pieces, coefficients, slope = _pieces(task, points, values, changes, most)
    order, of = len(coefficients), task.of
    width = pieces.upper - pieces.lower
    nodes, weights = _unit_rule(order, task)
    y = torch.addcmul(pieces.lower, width, nodes.reshape(-1, 1, 1)).flatten(0, 1)
    share = (weights.reshape(-1, 1, 1) * width).flatten(0, 1)
    basis = _chebyshev(y, order)
    x = (coefficients.unsqueeze(1) * basis).sum(0)
    found = []
    for name in task.names:
        heights = share * of.function(name, x)
        moments = torch.stack([(heights * b).sum(0) for b in basis])
        jump = of.is_jump
        if name == "lowered" and (isinstance(jump, Tensor) or jump):
            moments = torch.where(torch.as_tensor(jump), _at_edges(slope, pieces, order), moments)
        found.append(moments.T @ task.panel.coefficients)
    return found


def _chebyshev(y: Tensor, count: int) -> Tensor:
    """Chebyshev polynomials (count, ...) at y."""
    basis = y.new_empty(count, *y.shape)
    basis[0], basis[1] = 1, y
    twice = 2 * y
    for k in range(2, count):
        torch.mul(twice, basis[k - 1], out=basis[k])
        basis[k] -= basis[k - 2]
    return basis


def _at_edges(slope: Tensor, pieces: Pieces, count: int) -> Tensor:
    """Chebyshev polynomials at the edges over |u'|: what the derivative of a jump integrates to."""
    ends = torch.cat([pieces.lower, pieces.upper])
    proper = (pieces.upper > pieces.lower).repeat(2, 1) & (ends.abs() < 1)
    rate = chebyshev_sum(slope, ends).abs()
    share = torch.where(proper, 1 / torch.where(proper, rate, 1.0), 0.0)
    return (_chebyshev(ends, count) * share).sum(1)


def _unit_rule(order: int, task: _Task) -> tuple[Tensor, Tensor]:
    """Nodes and weights (q,) on [0, 1]: exact for integer powers of polynomials, else graded."""
    polynomial = all(name in ("power", "lowered") for name in task.names)
    if _is_exact(task.of) and polynomial:
        degree = (int(task.of.exponent) + 1) * (order - 1)
        nodes, weights = gauss_legendre(degree // 2 + 1, task.x)
        return (nodes + 1) / 2, weights / 2
    if not isinstance(task.of.eps, Tensor) and task.of.eps == 0:
        nodes, weights = gauss_legendre(2 * order, task.x)
        return (nodes + 1) / 2, weights / 2
    return smooth_unit_rule(2 * order, task.x)
