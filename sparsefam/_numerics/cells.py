r"""Cut subintervals: quadrature of truncated powers of polynomials that change sign between nodes.

On each subinterval of a `ChebyshevMesh`, mapped to $[-1, 1]$ with Gauss-Legendre nodes $t_j$,
$\int [1 + \epsilon x(t)]_+^k\,\psi(t)\,dQ(t)$ is computed as a sum $\sum_j W_j \psi(t_j)$. If
$1 + \epsilon x$ keeps its sign, $W_j$ is the quadrature weight times the power. If it changes sign,
the subinterval is *cut*: the polynomial through the nodes is integrated over each piece on which it
is positive, against the Lagrange polynomials. Weights on cut subintervals may be negative, but
neither $\psi$ nor x is evaluated anywhere but at the nodes, so expectations and their gradients
remain matrix products.

Nodes are the first axis of all arrays and subintervals the last. Where sizes may follow from values
without waiting for a device, on a CPU, work that changes nothing is left out.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .deformed import Power, functions
from .interpolation import coefficients, matrix
from .modes import values_are_readable
from .quadrature import MAKERS, Numbers, gauss_legendre, smooth_unit_rule, table

__all__ = [
    "below",
    "pieces_by_column",
    "positive_pieces",
    "power_quantiles",
    "power_weights",
    "rough_masses",
]

# From this exponent on a power meets zero so smoothly that subintervals need not be cut.
_SMOOTH = 12.0
# The outermost of m nodes are 3 / m^2 from the ends of [-1, 1]. The range over the nodes is widened
# at both ends by _BEYOND / m^2 of itself, ten times what a straight line rises there.
_BEYOND = 16
# The same fraction for powers that are no polynomials: a root just outside of a subinterval makes
# Gauss's rule on it inaccurate, too.
_NEAR = 0.2
# Steps toward a root.
_ROOT_STEPS = {torch.float32: 3, torch.float64: 4}
# A float32 number holds so many signs exactly, each as one bit.
_BITS = 24
# Subintervals that are integrated together.
_BLOCK = 2**15
# The order of polynomials for which the rule of rough masses is exact.
_FEW_NODES = 4
# Steps of the search for quantiles.
_QUANTILE_STEPS = {torch.float32: 14, torch.float64: 24}


# Chebyshev polynomials on the reference element [-1, 1]


def _chebyshev(order: int) -> Numbers:
    """Return matrices from values at m Gauss-Legendre nodes to Chebyshev coefficients (4, m, m).

    One matrix for the polynomial, and one for each of its first three derivatives.
    """
    nodes, _ = MAKERS["gauss"](order)
    return np.stack([coefficients(nodes, k) for k in range(4)])


def _checks(order: int) -> Numbers:
    """Return check points and the matrix from m nodal values to values there, (C, 1 + m).

    The check points, Chebyshev extrema with both ends, are the first column.
    """
    count = 1 + max(2 * min(order, 8), math.ceil(1.5 * order))
    points = -np.cos(np.pi * np.arange(count) / (count - 1))
    return np.column_stack([points, matrix(MAKERS["gauss"](order)[0], points)])


def _legendre(count: int) -> Numbers:
    """Return Gauss's nodes on [0, 1], and the matrix from moments to weights, (n, 1 + n).

    The nodes are the first column. Moments are integrals over [0, 1] of some factor times each
    Legendre polynomial. With the weights a rule integrates polynomials times this factor.
    """
    nodes, weights = MAKERS["gauss"](count)
    polynomials = np.polynomial.legendre.legvander(nodes, count - 1)
    matrix = polynomials * (2 * np.arange(count) + 1) * weights[:, None] / 2
    return np.column_stack([(nodes + 1) / 2, matrix])


MAKERS.update(chebyshev=_chebyshev, checks=_checks, legendre=_legendre)


def _coefficients(u: Tensor) -> Tensor:
    """Return Chebyshev coefficients of polynomials with nodal values (m, n)."""
    return table("chebyshev", (len(u),), u)[0] @ u


def _chebyshev_sum(coefficients: Tensor, x: Tensor) -> Tensor:
    """Evaluate Chebyshev series with coefficients (m, n) at x (..., n) by Clenshaw's recurrence."""
    twice = 2 * x
    # From the highest degree down b_k = c_k + 2 x b_{k+1} - b_{k+2}; the sum is c_0 + x b_1 - b_2.
    above, current = torch.zeros_like(x), coefficients[-1].expand_as(x)
    for c in reversed(coefficients[1:-1].unbind()):
        above, current = current, torch.addcmul(c - above, twice, current)
    if len(coefficients) == 1:
        return current
    return torch.addcmul(coefficients[0] - above, x, current)


def _chebyshev_polynomials(y: Tensor, count: int) -> list[Tensor]:
    """Return T_0, ..., T_{count - 1} at y, each of its shape, by T_{k+1} = 2 y T_k - T_{k-1}."""
    twice, basis = 2 * y, [torch.ones_like(y), y]
    while len(basis) < count:
        basis.append(torch.addcmul(-basis[-2], twice, basis[-1]))
    return basis[:count]


# Roots, and the pieces between them


class Pieces(NamedTuple):
    """Pieces of subintervals on which polynomials are positive."""

    column: Tensor  # The polynomial (K,)
    rank: Tensor  # The number of pieces of the same polynomial before this one (K,), increasing
    lower: Tensor  # Lower ends (K,), from -1 to 1
    upper: Tensor  # Upper ends (K,), not below
    first: int  # The number of pieces of rank 0, which come first


def positive_pieces(u: Tensor, rough: bool = False) -> Pieces:
    """Find where the polynomials with nodal values u (m, n) are positive on [-1, 1].

    A root is bracketed by two check points with values of unlike sign, or by a check point and the
    vertex of a dip across zero next to it. Where values are not read, all polynomials have the same
    number of pieces, some of them empty. If `rough`, dips are missed, and roots have the error of
    one step.
    """
    checks = table("checks", (len(u),), u)
    values = checks[:, 1:] @ u
    points = checks[:, :1].expand_as(values)
    if not rough:
        points, values = _with_dips(u, points, values)
    # A wave has one positive piece and needs pi nodes: m nodes resolve at most m / 3 waves.
    column, rank, rows = _sign_changes(values, 1 + len(u) // 3)
    # An end before row 0 is the lower end of the subinterval, one after the last row the upper end.
    # Others, called inner, are roots between the check points `after - 1` and `after`.
    ends = torch.where(rows == 0, -1.0, 1.0).to(values)
    inner, columns, after = (rows > 0) & (rows < len(values)), column.repeat(2), rows
    readable = values_are_readable(u)
    if readable:
        index = inner.nonzero().squeeze(-1)
        after, columns = after[index], columns[index]
    # Where values are not read, ends that are not inner have some row, too: their root is not used.
    after = after.clamp(1, len(values) - 1)
    low, high, at_low, at_high = (x[after - k, columns] for x in (points, values) for k in (1, 0))
    steps = 1 if rough else _ROOT_STEPS.get(u.dtype, 4)
    series = table("chebyshev", (len(u),), u)[:3] @ u.index_select(1, columns)
    roots = _roots(series, low, high, at_low, at_high, steps)
    ends = ends.index_copy_(0, index, roots) if readable else torch.where(inner, roots, ends)
    lower, upper = ends.reshape(2, -1)
    count = int((rank == 0).sum()) if readable else u.shape[1]
    return Pieces(column, rank, lower, torch.maximum(lower, upper), count)


def _sign_changes(values: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return columns and ranks (K,) of pieces, and the rows (2 K,) before which they begin and end.

    The first K rows belong to lower ends. Where values are not read, every column has the greatest
    number of pieces: both ends of an empty piece are after the last row.

    Args:
        values: Values at check points (C, n).
        most: The greatest number of pieces of a column.
    """
    count, n = values.shape
    # Signs are the bits of a number, held exactly by floating point, because comparisons into
    # numbers are several times as fast as into booleans.
    exact = torch.float32 if count <= _BITS else torch.float64
    positive = torch.gt(values, 0, out=torch.empty_like(values, dtype=exact))
    signs = (2.0 ** torch.arange(count, device=values.device).to(exact) @ positive).long()
    # Bit j of `changes` is set where points j - 1 and j differ in sign. Outside the function counts
    # as negative, so that set bits come in pairs: where a piece begins, and where it ends.
    column, changes, pieces = torch.arange(n, device=values.device), signs ^ (signs << 1), []
    for rank in range(most):
        # Columns without a further piece are left out.
        if values_are_readable(changes):
            active = changes.nonzero().squeeze(-1)
            if len(active) < len(changes):
                changes, column = changes[active], column[active]
        ends = []
        for _ in range(2):
            lowest = changes & -changes  # the lowest bit alone
            changes = changes ^ lowest
            # frexp(2^j) is 1/2 and j + 1.
            row = torch.frexp(lowest.to(torch.float64)).exponent - 1
            ends.append(torch.where(lowest == 0, count, row))
        pieces.append((column, torch.full_like(column, rank), *ends))
    columns, ranks, first, last = (torch.cat(x) for x in zip(*pieces, strict=True))
    return columns, ranks, torch.cat([first, last]).long()


def _with_dips(u: Tensor, points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return check points and values (C, n), some moved to the vertex of a dip across zero.

    If three values a, b, c have one sign, the parabola through them may cross zero twice only where
    a (1 - s)^2 + c s^2 has a larger size than b, which is at the fraction s of the way: where its
    product with b is larger than b^2.

    Args:
        u: Nodal values (m, n) of polynomials.
        points: Check points (C, n).
        values: Values there (C, n), which are changed in place.
    """
    products = values[1:] * values[:-1]
    previous, following, inner = products[:-1], products[1:], values[1:-1]
    steps = points[:, :1].diff(dim=0)
    fraction = steps[:-1] / (steps[:-1] + steps[1:])
    excess = (previous * (1 - fraction).square()).addcmul_(following, fraction.square())
    excess = excess.addcmul_(inner, inner, value=-1)
    dips = torch.minimum(torch.minimum(previous, following), excess)
    if values_are_readable(u):
        column = (dips.amax(0) > 0).nonzero().squeeze(-1)
        row, candidate = (dips.index_select(1, column) > 0).nonzero(as_tuple=True)
        column = column[candidate]
        if not len(row):
            return points, values
    else:
        axes = (torch.arange(size, device=u.device) for size in dips.shape)
        row, column = torch.cartesian_prod(*axes).unbind(-1)
    # Chebyshev coefficients of the polynomials and of three derivatives (4, m, K).
    middle, series = (row + 1, column), table("chebyshev", (len(u),), u) @ u.index_select(1, column)
    mid = values[middle]
    # A vertex is a root of the slope.
    left, right = (points[row + k, column] for k in (0, 2))
    at_left, at_right = (_chebyshev_sum(series[1], end) for end in (left, right))
    x = _roots(series[1:], left, right, at_left, at_right, _ROOT_STEPS.get(u.dtype, 4))
    height = _chebyshev_sum(series[0], x)
    crosses = (dips[row, column] > 0) & ((height > 0) != (mid > 0))
    points = points.clone()  # columns share their memory
    points[middle] = torch.where(crosses, x, points[middle])
    values[middle] = torch.where(crosses, height, mid)
    return points, values


def _roots(
    series: Tensor, low: Tensor, high: Tensor, at_low: Tensor, at_high: Tensor, steps: int
) -> Tensor:
    """Return roots (K,) of polynomials, each between two ends where their signs differ.

    The first guess is a secant's; each step goes to the root of a parabola, which also serves where
    two roots nearly coincide.

    Args:
        series: Chebyshev coefficients of polynomials and their first two derivatives (3, m, K).
        low: Lower ends (K,).
        high: Upper ends (K,).
        at_low: Values at the lower ends (K,), of which only the guess needs more than the sign.
        at_high: Values at the upper ends (K,).
        steps: The number of steps.
    """
    apart = at_low != at_high
    fraction = torch.where(apart, at_low / torch.where(apart, at_low - at_high, 1.0), 0.5)
    x = torch.addcmul(low, high - low, fraction.clamp(0.02, 0.98))
    # Moves of a few roundings may leave the bracket.
    rising, least = at_low <= 0, 8 * torch.finfo(x.dtype).eps
    series = series.transpose(0, 1)
    for _ in range(steps):
        value, rate, curve = _chebyshev_sum(series, x.expand(3, -1))
        # The root is above x if the value has the sign that it has at the lower end.
        above = (value <= 0) == rising
        low, high = torch.where(above, x, low), torch.where(above, high, x)
        radical = (rate.square() - 2 * value * curve).clamp_min_(0).sqrt_()
        # The root of value + rate h + curve h^2 / 2 that is nearer to 0, without cancellation.
        move = -2 * value / (rate + torch.copysign(radical, rate))
        step = x + move
        # Rounding may put a root just outside its bracket, and bisecting from there would lose it.
        valid = ((step >= low) & (step <= high)) | (move.abs() <= least)
        x = torch.where(valid, step, (low + high) / 2)
    return x.clamp(-1, 1)


# Integrals over cut subintervals


def power_weights(x: Tensor, measure: Tensor, power: Power, names: tuple[str, ...]) -> list[Tensor]:
    """Compute weights (m, *columns) that integrate functions of 1 + eps x, as the module says.

    They have no derivatives; `truncated_power.integrals` adds these.

    Args:
        x: Values at the nodes of subintervals (m, *columns).
        measure: Quadrature weights times a base density, (m, *columns), or with sizes of 1 that
            broadcast at the end.
        power: The power, its eps a number or a tensor that broadcasts against the columns.
        names: Names of `deformed.FUNCTIONS`, one for each of the results.
    """
    x = x.contiguous()
    weights = [v * measure for v in functions(power, names, x)]
    if not _needs_cuts(power):
        return weights
    power = replace(power, eps=_by_column(power.eps, x))
    columns = x.reshape(len(x), -1)
    # With a density q and functions v of x, int v psi q dt = sum_j psi(t_j) q(t_j) int v l_j dt
    # over a piece, as the product of psi and q is interpolated by Lagrange polynomials l_j.
    density = measure.flatten(1) / gauss_legendre(len(x), x)[1].unsqueeze(-1)
    # Neighboring columns of x, one for each row of a batch, share a column of the measure.
    copies = columns.shape[1] // density.shape[1]
    # Writing to these views changes the weights.
    flat = [whole.view_as(columns) for whole in weights]
    for block, values in _candidates(columns, power, names):
        pieces, cut = _cut_pieces(values, power.take(block), names)
        nodal, column = values.index_select(1, pieces.column), block[pieces.column]
        terms = _piece_weights(nodal, pieces, power.take(column), names)
        factor = density.index_select(1, column // copies)
        for whole, term in zip(flat, terms, strict=True):
            _replace_by_pieces(whole, column.expand(len(x), -1), term.mul_(factor), pieces, cut)
    return weights


def _replace_by_pieces(
    whole: Tensor, index: Tensor, terms: Tensor, pieces: Pieces, cut: Tensor | None
) -> None:
    """Replace numbers of columns, in place, by sums of terms over the pieces of each column.

    Args:
        whole: Numbers (..., n) of columns.
        index: The column of each piece (..., K).
        terms: Numbers (..., K) of pieces.
        pieces: The K pieces, the first one of each column before all second ones.
        cut: Whether the column of a piece changes (K,); None if all columns with a piece do.
    """
    # A column that does not change gets its own number from its first piece, 0 from later ones.
    if cut is not None:
        terms = torch.where(cut, terms, torch.where(pieces.rank == 0, whole.gather(-1, index), 0.0))
    # The first piece of a column overwrites the number of the whole subinterval, later ones add.
    whole.scatter_(-1, index[..., : pieces.first], terms[..., : pieces.first])
    whole.scatter_add_(-1, index[..., pieces.first :], terms[..., pieces.first :])


def _by_column(eps: Tensor | float, x: Tensor) -> Tensor | float:
    """Return eps of each column of values (m, *columns), flat; a number stays a number."""
    return eps.expand(x.shape[1:]).reshape(-1) if isinstance(eps, Tensor) else eps


def _needs_cuts(power: Power) -> bool:
    """Return whether a power meets zero so sharply that subintervals are cut at its roots."""
    return isinstance(power.eps, Tensor) or float(power.exponent) <= _SMOOTH


def _candidates(
    columns: Tensor, power: Power, names: tuple[str, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices (k,) and nodal values (m, k) of columns (m, n) that may be cut, in blocks.

    Where values are not read, there is one block of all columns.

    Args:
        columns: Nodal values of x (m, n).
        power: The power, its eps a number or (n,).
        names: Names of `deformed.FUNCTIONS`.
    """
    if not values_are_readable(columns):
        yield torch.arange(columns.shape[1], device=columns.device), columns
        return
    near = _near_root(columns, power, names).nonzero().squeeze(-1)
    for block in near.split(_BLOCK) if len(near) else ():
        yield block, columns.index_select(1, block)


def _near_root(x: Tensor, power: Power, names: tuple[str, ...]) -> Tensor:
    """Return which columns of x (m, n) may reach the root -1/eps of 1 + eps x: a mask (n,).

    The range over the nodes is widened at both ends, see `_BEYOND` and `_NEAR`.
    """
    slack = _BEYOND / len(x) ** 2 if _is_polynomial(power, names) else _NEAR
    root, low, high = -1 / power.eps, x.amin(0), x.amax(0)
    margin = (high - low) * slack
    return (low < root + margin) & (high > root - margin)


def _cut_pieces(
    x: Tensor, power: Power, names: tuple[str, ...], rough: bool = False
) -> tuple[Pieces, Tensor | None]:
    """Return the positive pieces of columns x (m, n) over which functions must be integrated.

    If the functions are polynomials, a whole subinterval is none of these, as the quadrature rule
    is exact there. Where values are read, return no other pieces, and None; elsewhere all pieces,
    and a mask (K,) of the pieces in columns that must be integrated.

    Args:
        x: Nodal values (m, n).
        power: The power, its eps a number or (n,).
        names: Names of `deformed.FUNCTIONS`.
        rough: Whether pieces may be found roughly, see `positive_pieces`.
    """
    pieces = positive_pieces(power.inside(x), rough)
    cut = (pieces.lower > -1) | (pieces.upper < 1)
    if not _is_polynomial(power, names):
        cut = torch.ones_like(cut)
    if values_are_readable(x):
        index = cut.nonzero().squeeze(-1)
        column, rank, lower, upper = (field.index_select(0, index) for field in pieces[:4])
        return Pieces(column, rank, lower, upper, int((rank == 0).sum())), None
    # The first n pieces are those of rank 0. A column whose piece of rank 0 is empty has none.
    has_piece = (cut & (pieces.upper > pieces.lower))[: x.shape[1]] & _near_root(x, power, names)
    return pieces, has_piece[pieces.column]


def _is_polynomial(power: Power, names: tuple[str, ...]) -> bool:
    """Return whether the named functions of a polynomial are polynomials where it is positive."""
    k = power.exponent
    whole = not isinstance(k, Tensor) and k in range(int(_SMOOTH) + 1)
    return whole and {"power", "lowered"}.issuperset(names)


def rough_masses(x: Tensor, measure: Tensor, power: Power) -> tuple[Tensor, Tensor]:
    """Return integrals (R,) of the power and the lowered power of values (m, G, R).

    They agree with sums of `power_weights` to about 1e-5, at half of the cost: dips are missed, and
    pieces are integrated with fewer nodes. Rows without a cut subinterval, where the rule that led
    to x was accurate, may get 1 and 1, for which Newton's step is 0.

    Args:
        x: Values at the nodes of a mesh (m, G, R).
        measure: Quadrature weights times a base density (m, G, 1).
        power: The power, its eps a number or (R,).
    """
    names, rows = ("power", "lowered"), x.shape[-1]
    power_of_columns = replace(power, eps=_by_column(power.eps, x))
    candidates = [*_candidates(x.flatten(1), power_of_columns, names)] if _needs_cuts(power) else []
    blocks = [x.new_empty(0).long(), *(block for block, _ in candidates)]
    if values_are_readable(x):
        # Subinterval g of row r is column g R + r.
        affected = x.new_zeros(rows).index_fill_(0, torch.cat(blocks) % rows, 1.0)
        # If fewer than half of the rows have a candidate, only these are computed.
        if 2 * int(affected.sum()) < rows:
            index = affected.nonzero().squeeze(-1)
            masses = torch.stack(rough_masses(x[..., index], measure, power.take(index)))
            mass, rate = x.new_ones(2, rows).index_copy_(1, index, masses)
            return mass, rate
    flat_measure = measure.reshape(len(x), -1, 1)
    by_cell = [(v * flat_measure).sum(0).flatten() for v in power.pair(x)]
    # The base density is a polynomial on a subinterval, too, with these coefficients (m, G).
    density = _coefficients(flat_measure.squeeze(-1) / gauss_legendre(len(x), x)[1].unsqueeze(-1))
    nodes, weights = _unit_rule(_FEW_NODES, x, power_of_columns, names)
    for block, values in candidates:
        pieces, cut = _cut_pieces(values, power_of_columns.take(block), names, rough=True)
        series = _coefficients(values.index_select(1, pieces.column))
        column, width = block[pieces.column], pieces.upper - pieces.lower
        y = torch.addcmul(pieces.lower, width, nodes.unsqueeze(-1))
        base = density.index_select(1, column // rows).unsqueeze(1)
        height = _chebyshev_sum(base, y).mul_(width).mul_(weights.unsqueeze(-1))
        pair = power_of_columns.take(column).pair(_chebyshev_sum(series.unsqueeze(1), y))
        for whole, v in zip(by_cell, pair, strict=True):
            _replace_by_pieces(whole, column, (v * height).sum(0), pieces, cut)
    mass, rate = (v.reshape(x.shape[1:]).sum(0) for v in by_cell)
    return mass, rate


def _piece_weights(x: Tensor, pieces: Pieces, power: Power, names: tuple[str, ...]) -> list[Tensor]:
    """Integrate functions of polynomials times the Lagrange polynomials, over K pieces.

    The functions are integrated against Chebyshev polynomials by a rule on each piece. The result
    has for each name the integrals with the m Lagrange polynomials, (m, K).

    Args:
        x: Nodal values (m, K) of the polynomial of each piece.
        pieces: The pieces.
        power: The power, its eps a number or (K,).
        names: Names of `deformed.FUNCTIONS`.
    """
    order, lower, upper = len(x), pieces.lower, pieces.upper
    width = upper - lower
    if (pole := _pole(power, names)) is None:
        nodes, weights = (v.unsqueeze(-1) for v in _unit_rule(order, x, power, names))
    else:
        # Derivatives in eps have logarithms, too.
        count, grade = (4 * order, 2) if "slope" in names else (2 * order, 1)
        nodes, weights = _pole_rule(count, pieces, pole, grade)
    y = torch.addcmul(lower, width, nodes)
    basis = _chebyshev_polynomials(y, order)
    # The polynomials at the nodes of the rule (q, K).
    coefficients = _coefficients(x)
    values = coefficients[0] * basis[0]
    for c, b in zip(coefficients[1:], basis[1:], strict=True):
        values.addcmul_(c, b)
    scale = weights * width
    moments = [
        torch.stack([(height * b).sum(0) for b in basis])
        for height in (scale * v for v in functions(power, names, values))
    ]
    if "lowered" in names and (isinstance(power.is_jump, Tensor) or power.is_jump):
        # The lowered power of a jump is Dirac's delta.
        index = names.index("lowered")
        jumps = _at_edges(x, lower, upper)
        moments[index] = torch.where(torch.as_tensor(power.is_jump), jumps, moments[index])
    # A Lagrange polynomial is l_j = sum_k C_kj T_k, so its integral is that sum of moments.
    back = table("chebyshev", (order,), x)[0].T
    return [back @ moment for moment in moments]


def _at_edges(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return integrals (m, K) of Chebyshev polynomials times Dirac's delta at the roots of pieces.

    The derivative of a jump in x is a delta: of x - r, if the jump is at x = r. The integral of
    delta(x(t) - r) T(t) is T / |x'| at the root. Ends at -1 and 1 are no roots.

    Args:
        x: Nodal values (m, K).
        lower: Lower ends of the pieces (K,).
        upper: Upper ends of the pieces (K,).
    """
    order = len(x)
    slope = table("chebyshev", (order,), x)[1] @ x
    total = torch.zeros_like(x)
    for end in (lower, upper):
        proper = (upper > lower) & (end.abs() < 1)
        rate = _chebyshev_sum(slope, end).abs()
        inverse = torch.where(proper, 1 / torch.where(proper, rate, 1.0), 0.0)
        total += torch.stack(_chebyshev_polynomials(end, order)) * inverse
    return total


def _pole(power: Power, names: tuple[str, ...]) -> Tensor | float | None:
    """Return the exponent, between -1 and 0, of poles that functions have at roots; None if none.

    Near a root a function with a pole is like a power of the distance. Entries of a tensor that are
    not between -1 and 0 mean that there is no pole.
    """
    if power.order == 0 and power.ratio == 1:
        return None  # The exponent is at least 1, as alpha is at most 2.
    # A lowered power with the exponent -1 is a delta, see `_at_edges`, and has no pole.
    k = power.exponent
    lowered = k - 1 if {"lowered", "slope"}.intersection(names) else k
    if not isinstance(lowered, Tensor):
        least = lowered if lowered > -1 else k
        return least if -1 < least < 0 else None
    least = torch.where(lowered > -1, lowered, k)
    return None if values_are_readable(least) and not bool((least < 0).any()) else least


def _pole_rule(
    count: int, pieces: Pieces, pole: Tensor | float, grade: int
) -> tuple[Tensor, Tensor]:
    r"""Return nodes and weights (2 count, K) on [0, 1] for functions with poles at roots.

    A piece has two halves. In one with a root at its end, functions are interpolated by Legendre
    polynomials $P_j(z)$ after division by $s^\kappa$, with the distance $s = z^g$ from the root.
    Then $s^\kappa ds$ is $g z^a dz$ with $a = g(\kappa + 1) - 1$. The integral $\int z^a P_j dz$ on
    [0, 1] is $1/(a + 1)$ for j = 0, and for other j that of j - 1 times $(a - j + 1)/(a + j + 1)$.
    Other halves have the rule of `smooth_unit_rule`.

    Args:
        count: Nodes of a half.
        pieces: K pieces.
        pole: $\kappa$, a number or (K,); there is no pole unless it is between -1 and 0.
        grade: g, 1 for powers; more if there are logarithms of s, too.
    """
    like = pieces.lower
    kappa = torch.as_tensor(pole, dtype=like.dtype, device=like.device).expand_as(like)
    has_pole = (kappa > -1) & (kappa < 0)
    kappa = torch.where(has_pole, kappa, -0.5)  # any number between serves where there is no pole
    legendre, smooth = table("legendre", (count,), like), smooth_unit_rule(count, like)
    z, matrix = legendre[:, :1], legendre[:, 1:]
    j = torch.arange(1, count, dtype=like.dtype, device=like.device).unsqueeze(-1)
    exponent = grade * (kappa + 1) - 1
    moments = torch.cat([1 / (exponent + 1).unsqueeze(0), (exponent - j + 1) / (exponent + j + 1)])
    weights = (matrix @ moments.cumprod(0)) * grade * z ** (grade - 1 - exponent)
    # Distances from the lower end and from the upper end (count, K), and weights.
    halves = []
    for end in (pieces.lower, pieces.upper):
        at_root = has_pole & (end.abs() < 1)
        pairs = zip((z**grade, weights), smooth, strict=True)
        halves.append([torch.where(at_root, a, b.unsqueeze(-1)) / 2 for a, b in pairs])
    (nodes, lower_weights), (distances, upper_weights) = halves
    return torch.cat([nodes, 1 - distances]), torch.cat([lower_weights, upper_weights])


def _unit_rule(
    order: int, like: Tensor, power: Power, names: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    """Return nodes and weights (q,) on [0, 1] for a power of one polynomial times another.

    Both have the degree order - 1. Gauss's rule is exact for powers that are polynomials, and has
    twice the nodes for exponentials; other powers have a graded rule.
    """
    if power.is_exponential:
        count = 2 * order
    elif _is_polynomial(power, names):
        # The degree is (k + 1) (order - 1), and q nodes are exact up to the degree 2 q - 1.
        count = (int(power.exponent) + 1) * (order - 1) // 2 + 1
    else:
        return smooth_unit_rule(3 * order, like)
    nodes, weights = gauss_legendre(count, like)
    return (nodes + 1) / 2, weights / 2


# Quantiles


def pieces_by_column(pieces: Pieces, n: int) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends (P, n) of the pieces of n columns, both 1 where there is none."""
    # Where values are not read, all columns have the same number of pieces.
    most = len(pieces.rank) // max(n, 1)
    if values_are_readable(pieces.rank):
        most = int(pieces.rank[-1]) + 1 if len(pieces.rank) else 1
    index = pieces.rank, pieces.column
    lower, upper = (
        end.new_ones(most, n).index_put(index, end) for end in (pieces.lower, pieces.upper)
    )
    return lower, upper


def power_quantiles(x: Tensor, density: Tensor, power: Power, mass: Tensor) -> Tensor:
    """Find where a power times a base density, integrated from -1, reaches a mass.

    Args:
        x: Nodal values (m, n).
        density: Base density at the nodes (m, n).
        power: The power, its eps a number or (n,).
        mass: The masses (n,).

    Returns:
        Locations (n,) in the positive pieces.
    """
    low, high = pieces_by_column(positive_pieces(power.inside(x)), x.shape[1])
    series, base = _coefficients(x), _coefficients(density)
    # The mass up to the end of each piece (P, n), and the first piece (1, n) that suffices.
    below = _areas(series, base, power, low, high).clamp_min(0).cumsum(0)
    piece = (below < mass).sum(0, keepdim=True).clamp_max(len(below) - 1)
    before = torch.cat([torch.zeros_like(below[:1]), below]).gather(0, piece)
    first, last = (end.gather(0, piece).squeeze(0) for end in (low, high))
    target, total = (
        amount.squeeze(0) for amount in (mass - before, below.gather(0, piece) - before)
    )
    # Within its piece, a quantile is guessed as if the mass were spread evenly.
    fraction = (target / total.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    y, low, high = first + (last - first) * fraction, first, last
    least, quantiles = 8 * torch.finfo(y.dtype).eps, torch.empty_like(y)
    rows = torch.arange(len(y), device=y.device)
    for _ in range(_QUANTILE_STEPS.get(y.dtype, 24)):
        area = _areas(series, base, power, first, y.unsqueeze(0)).squeeze(0)
        rate = power.at(_chebyshev_sum(series, y)) * _chebyshev_sum(base, y)
        # Newton's method on the mass, safeguarded by a bracket.
        step = y + torch.where(target == area, 0.0, (target - area) / rate)
        low, high = torch.where(step >= y, y, low), torch.where(step <= y, y, high)
        moved = (step - y).abs() > least
        # Rounding may put a quantile just outside its bracket.
        y = torch.where(((step >= low) & (step <= high)) | ~moved, step, (low + high) / 2)
        quantiles.index_copy_(0, rows, y)
        if values_are_readable(y):
            active = moved.nonzero().squeeze(-1)
            if not len(active):
                break
            # Go on with the quantiles that still move.
            series, base = series.index_select(1, active), base.index_select(1, active)
            rows, first, target, low, high, y = (
                v[active] for v in (rows, first, target, low, high, y)
            )
            power = power.take(active)
    return quantiles


def _areas(series: Tensor, base: Tensor, power: Power, lower: Tensor, upper: Tensor) -> Tensor:
    """Integrate a power times a base density from lower to upper ends (P, n).

    The power is of polynomials with Chebyshev coefficients `series` (m, n), and the base density is
    polynomials with coefficients `base` (m, n).
    """
    rule = _unit_rule(len(series), series, power, ("power",))
    nodes, weights = (v.reshape(-1, 1, 1) for v in rule)
    width = upper - lower
    y = lower + width * nodes
    height = power.at(_chebyshev_sum(series, y)) * _chebyshev_sum(base, y)
    return (weights * height).sum(0) * width


def below(x: Tensor, measure: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and the measure, (m, n) each, at the Gauss nodes of [-1, y] in each subinterval.

    Both are polynomials on a subinterval, once the measure is divided by the weights of its nodes.
    The weights of [-1, y] are shorter by the factor (1 + y) / 2.

    Args:
        x: Nodal values of n subintervals (m, n).
        measure: Base density at the nodes times the Gauss weights (m, n).
        y: Upper ends (n,), in [-1, 1].
    """
    length = (1 + y) / 2
    nodes, weights = (v.unsqueeze(-1) for v in gauss_legendre(len(x), x))
    at = (1 + nodes) * length - 1
    x, density = (_chebyshev_sum(_coefficients(v), at) for v in (x, measure / weights))
    return x, density * weights * length
