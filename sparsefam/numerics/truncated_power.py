r"""Truncated powers $[1 + \epsilon x]_+^k$ of functions known at the nodes of a mesh.

On each subinterval of a `ChebyshevMesh`, mapped to $[-1, 1]$ with Gauss-Legendre nodes $t_j$,
$\int [1 + \epsilon x(t)]_+^k\,\psi(t)\,dQ(t)$ is computed as a sum $\sum_j W_j \psi(t_j)$. If
$1 + \epsilon x$ keeps its sign, $W_j$ is the quadrature weight times the power. If it changes sign,
the subinterval is *cut*: the polynomial through the nodes is integrated over each piece on which it
is positive, against the Lagrange polynomials. Weights on cut subintervals may be negative, but
neither $\psi$ nor x is evaluated anywhere but at the nodes, so expectations and their gradients
remain matrix products.

Nodes are the first axis of all arrays and subintervals the last.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads its parts lazily, which keeps the import of this package short
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from .deformed import log1p_ratio
from .quadrature import MAKERS, Numbers, constant, gauss_legendre, smooth_unit_rule, table
from .validation import NO_FORWARD_MODE, NO_SECOND_DERIVATIVE, by_forward_mode, forward_rule

__all__ = [
    "LOG_LARGE",
    "Power",
    "below",
    "integrals",
    "lowered_derivative",
    "pieces_by_column",
    "positive_pieces",
    "power_quantiles",
    "power_slopes",
    "power_weights",
    "rough_masses",
    "sum_nodes",
    "vmap_rows",
]

# Exponents whose power is computed by multiplication.
_SHORT = range(5)
# Exponents that differ from a whole number below _SMALL by less than this are rounded to it.
_ROUNDING, _SMALL = 1e-13, 20
# Replaces log 0, so that its product with 0 is finite; the logarithm of the largest power.
_LOG_ZERO, LOG_LARGE = -1e6, 80.0
# From this exponent on a power meets zero so smoothly that subintervals need not be cut.
_SMOOTH = 12.0
# The largest number of positive pieces in a subinterval on devices whose values are not read.
_MOST_PIECES = 3
# The outermost of m nodes are 3 / m^2 from the ends, and there a polynomial may rise by several
# times its range over the nodes.
_BEYOND = 16
# The same share of the range where the power is not smooth next to a root outside the subinterval.
_NEAR = 0.2
# Steps towards a root; a further one where the last was larger than this, in units of rounding.
_ROOT_STEPS = {torch.float32: 3, torch.float64: 4}
_LITTLE = 0.1
# Subintervals that are integrated together.
_BLOCK = 2**15
# So many rows make a number that float32 holds.
_BITS = 16
# The order of polynomials for which the rule of rough masses is exact.
_FEW_NODES = 4
# Steps of the search for quantiles.
_QUANTILE_STEPS = {torch.float32: 14, torch.float64: 24}


@dataclass(frozen=True, eq=False)  # a graph of torch 2.8 traces no property of a NamedTuple
class Power:
    r"""$[1 + \epsilon x]_+^k$, $k = ratio/\epsilon - order$; $e^{ratio\,x}$ at $\epsilon = 0$."""

    eps: Tensor | float  # alpha - 1 >= 0, a number, or positive numbers that broadcast against x
    ratio: float = 1.0  # 1, or beta for a beta-escort
    order: int = 0  # How many times the power has been differentiated

    @property
    def is_exponential(self) -> bool:
        """Whether eps is the number 0."""
        return not isinstance(self.eps, Tensor) and self.eps == 0

    @property
    def exponent(self) -> Tensor | float:
        """k, a number or a tensor of the shape of eps."""
        if self.is_exponential:
            return math.inf
        k = self.ratio / self.eps - self.order
        if isinstance(k, Tensor) or not abs(k) < _SMALL:
            return k
        # 1 / (4/3 - 1) is 3.000000000000001 in floating point, but 3 has a shorter rule.
        whole = float(round(k))
        return whole if abs(k - whole) < _ROUNDING else k

    @property
    def is_jump(self) -> Tensor | bool:
        """Whether the power is 0 or 1."""
        return self.exponent == 0

    @property
    def is_product(self) -> bool:
        """Whether the power is computed by multiplication, without a logarithm."""
        return not isinstance(self.exponent, Tensor) and self.exponent in (-1, *_SHORT)

    @property
    def factor(self) -> Tensor | float:
        """The derivative in x, divided by the power whose exponent is less by one."""
        factor = self.ratio - self.order * self.eps
        if isinstance(factor, Tensor):
            return torch.where(factor == 0, self.eps, factor)
        return self.eps if self.is_jump else factor

    @property
    def factor_of_log(self) -> Tensor | float:
        r"""$k\epsilon$, which has a limit as eps tends to 0."""
        return self.ratio - self.order * self.eps

    def lowered(self) -> "Power":
        """Return the power with its exponent less by one."""
        return Power(self.eps, self.ratio, self.order + 1)

    def take(self, columns: Tensor) -> "Power":
        """Return the power for some columns, if eps is a tensor with one value for each."""
        if not isinstance(self.eps, Tensor) or self.eps.dim() == 0:
            return self
        return replace(self, eps=self.eps[columns])

    def detach(self) -> "Power":
        """Return the power with a tensor eps detached from the graph."""
        return replace(self, eps=self.eps.detach()) if isinstance(self.eps, Tensor) else self

    def inside(self, x: Tensor) -> Tensor:
        r"""Return $1 + \epsilon x$."""
        if isinstance(self.eps, Tensor):
            return 1 + self.eps * x
        return torch.add(x.new_ones(()), x, alpha=self.eps)

    # torch.where is not vectorised on the CPU; signs and clamping replace it.

    def at(self, x: Tensor) -> Tensor:
        """Return the power at x, accurate for small eps; 0^k is 0 for any k."""
        if self.is_exponential:
            # Where the base has no mass, a score may be arbitrarily large.
            most = math.floor(math.log(torch.finfo(x.dtype).max))
            return torch.exp((self.ratio * x).clamp_max(most))
        if self.is_product:
            return _short_power(self.inside(x).clamp_min_(0), int(self.exponent))
        y = (self.eps * x).clamp_min(-1)
        log = self.exponent * torch.log1p(y).clamp_min(_LOG_ZERO)
        return torch.exp(log.clamp_max(LOG_LARGE)) * (1 + y).sign()

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the power and the power with its exponent less by one."""
        if self.is_exponential:
            power = self.at(x)
            return power, power
        base, exponent = self.inside(x).clamp_min_(0), self.exponent
        if not isinstance(exponent, Tensor) and exponent in _SHORT:
            return _short_power(base, int(exponent)), _short_power(base, int(exponent) - 1)
        lowered = self.lowered().at(x)
        return lowered * base, lowered

    def log_base(self, x: Tensor) -> Tensor:
        r"""Return $\log(1 + \epsilon x)/\epsilon$ where that exists, 0 elsewhere."""
        y = self.eps * x
        inside = y > -1
        x, y = torch.where(inside, x, 0.0), torch.where(inside, y, 0.0)
        return x * log1p_ratio(y)

    def log_at(self, x: Tensor) -> Tensor:
        """Return the logarithm of the power, -inf where it is zero."""
        inside = self.eps * x > -1
        log = self.factor_of_log * self.log_base(torch.where(inside, x, 0.0))
        return torch.where(inside, log, -math.inf)

    def log_slope(self, x: Tensor) -> Tensor:
        r"""Return $\partial_\epsilon$ of `log_base`, accurate as eps tends to 0."""
        y = self.eps * x
        small = y.abs() < (3e-2 if x.dtype == torch.float32 else 1e-3)
        near, far = torch.where(small, y, 0.0), torch.where(small | (y <= -1), 1.0, y)
        tail = -3 / 4 + near * (4 / 5 + near * (-5 / 6 + near * 6 / 7))
        series = x.square() * (-1 / 2 + near * (2 / 3 + near * tail))
        scale = torch.where(small, torch.ones_like(x), self.eps)
        return torch.where(small, series, (far / (1 + far) - torch.log1p(far)) / scale.square())

    def functions(self, names: tuple[str, ...], x: Tensor) -> list[Tensor]:
        """Return the named functions at x.

        | name | function, where v is the power and L its `log_base` |
        |---|---|
        | power | v |
        | lowered | the power with its exponent less by one |
        | slope | derivative of v in eps, at order 0 |
        | log | v L |
        | log_lowered | derivative of v L in x |
        | log_slope | derivative of v L in eps, at order 0 |
        """
        if names == ("power", "lowered"):
            return [*self.pair(x)]
        return [self._function(name, x) for name in names]

    def _function(self, name: str, x: Tensor) -> Tensor:
        if name == "power":
            return self.at(x)
        if name == "lowered":
            return self.lowered().at(x)
        if name == "log":
            return self.at(x) * self.log_base(x)
        if name == "log_lowered":
            return self.lowered().at(x) * (1 + self.factor_of_log * self.log_base(x))
        slope = self.log_slope(x)
        if name == "slope":
            return self.at(x) * self.ratio * slope
        return self.at(x) * slope * (1 + self.ratio * self.log_base(x))


def _short_power(u: Tensor, exponent: int) -> Tensor:
    """Return u^k for u >= 0, 0 at u = 0; exponent -1 is the derivative of a jump off the jump."""
    if exponent < 0:
        return torch.zeros_like(u)
    if exponent == 0:
        return u.sign()
    if exponent > 2:
        return _short_power(u, 2) * _short_power(u, exponent - 2)
    return u if exponent == 1 else u.square()


# Chebyshev polynomials on the reference element [-1, 1]


class _Element(NamedTuple):
    """Constants of the reference element with m Gauss-Legendre nodes."""

    weights: Tensor  # Gauss-Legendre weights (m,)
    coefficients: Tensor  # From nodal values to Chebyshev coefficients (m, m)
    points: Tensor  # Check points (C,), Chebyshev extrema with both ends
    checks: Tensor  # From nodal values to values at the check points (C, m)
    series: Tensor  # To coefficients of the polynomial and two derivatives in turn (3 m, m)


def _coefficients(order: int) -> Numbers:
    """Return the matrix from values at Gauss-Legendre nodes to Chebyshev coefficients."""
    nodes, _ = scipy.special.roots_legendre(order)
    return np.linalg.inv(chebyshev.chebvander(nodes, order - 1))


MAKERS["chebyshev"] = _coefficients


@cache
def _element(order: int, dtype: torch.dtype, device: torch.device) -> _Element:
    _, weights = scipy.special.roots_legendre(order)
    count = 1 + max(2 * min(order, 8), math.ceil(1.5 * order))
    points = -np.cos(np.pi * np.arange(count) / (count - 1))
    coefficients = _coefficients(order)
    checks = chebyshev.chebvander(points, order - 1) @ coefficients
    derivative = np.zeros((order, order))
    for k in range(1, order):
        slope = chebyshev.chebder(np.eye(order)[k])
        derivative[: len(slope), k] = slope
    first = derivative @ coefficients
    series = np.stack([coefficients, first, derivative @ first], 1).reshape(-1, order)
    parts = (weights, coefficients, points, checks, series)
    return _Element(*(constant(x, dtype, device) for x in parts))


def _element_like(x: Tensor) -> _Element:
    return _element(len(x), x.dtype, x.device)


def _chebyshev_sum(coefficients: Tensor, x: Tensor) -> Tensor:
    """Evaluate Chebyshev series with coefficients (m, n) at x (..., n) by Clenshaw's recurrence."""
    twice = 2 * x
    above, current = torch.zeros_like(x), coefficients[-1].expand_as(x)
    for c in reversed(coefficients[1:-1].unbind()):
        above, current = current, torch.addcmul(c - above, twice, current)
    if len(coefficients) == 1:
        return current
    return torch.addcmul(coefficients[0] - above, x, current)


def _chebyshev_polynomials(y: Tensor, count: int) -> list[Tensor]:
    """Return the first Chebyshev polynomials at y."""
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
    upper: Tensor  # Upper ends (K,)


def positive_pieces(u: Tensor, rough: bool = False) -> Pieces:
    """Find where the polynomials with nodal values u (m, n) are positive.

    A root is bracketed by two check points with values of unlike sign, or by a check point and the
    vertex of a dip across zero next to it. On devices whose values are not read, every polynomial
    has three pieces, of which some are empty, and further ones are missed. If `rough`, dips are
    missed, too, and roots have the error of one step.
    """
    element = _element_like(u)
    values = element.checks @ u
    points = element.points.unsqueeze(-1).expand_as(values)
    if not rough:
        points, values = _with_dips(u, points, values, element)
    column, rank, rows = _sign_changes(values)
    ends = torch.where(rows == 0, -1.0, 1.0).to(values).flatten()
    place = ((rows > 0) & (rows < len(points))).flatten()
    row, columns = rows.flatten(), column.repeat(2)
    steps = 1 if rough else _ROOT_STEPS.get(u.dtype, 4)
    if _is_read(u):
        place = place.nonzero().squeeze(-1)
        found = _roots(row[place], columns[place], points, values, u, steps)
        ends.index_copy_(0, place, found)
    else:
        row = row.clamp(1, len(points) - 1)
        ends = torch.where(place, _roots(row, columns, points, values, u, steps), ends)
    lower, upper = ends.reshape(2, -1)
    return Pieces(column, rank, lower, torch.maximum(lower, upper))


def _is_read(x: Tensor) -> bool:
    """Return whether sizes may follow from values, which other devices than the CPU make wait."""
    return x.is_cpu


def _sign_changes(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return columns and ranks (K,) of pieces, and the rows (2, K) before which they begin and end.

    Row 0 stands for the lower end, and one row more than there are check points for the upper.
    """
    count, n = len(values), values.shape[1]
    # Comparisons into numbers are several times as fast as into booleans.
    inside = values.new_zeros(count + 2, n)
    torch.gt(values, 0, out=inside[1:-1])
    # Signs change at the lower and the upper end of each piece in turn: the rows are the bits of a
    # number.
    row = torch.arange(count + 1, device=values.device)
    groups = torch.arange(count // _BITS + 1, device=values.device).unsqueeze(-1)
    bits = torch.where(row // _BITS == groups, 1 << row % _BITS, 0).to(values)
    numbers = (bits @ inside.diff(dim=0).abs_()).long()
    left = (numbers << _BITS * groups).sum(0)
    column = torch.arange(n, device=values.device)
    columns, rows = [], []
    for _ in range(count if _is_read(values) else _MOST_PIECES):
        if _is_read(values):
            some = left.nonzero().squeeze(-1)
            if not len(some):
                break
            if len(some) < len(left):
                left, column = left[some], column[some]
        pair = []
        for _ in range(2):
            lowest = left & -left
            left = left - lowest
            # Without another piece, one that is empty at the upper end.
            exponent = torch.frexp(lowest.double()).exponent.long() - 1
            pair.append(torch.where(lowest == 0, count, exponent))
        columns.append(column)
        rows.append(torch.stack(pair))
    if not columns:
        return column[:0], column[:0], column.new_empty(2, 0)
    rank = torch.cat([torch.full_like(c, k) for k, c in enumerate(columns)])
    return torch.cat(columns), rank, torch.cat(rows, 1)


def _with_dips(
    u: Tensor, points: Tensor, values: Tensor, element: _Element
) -> tuple[Tensor, Tensor]:
    """Return check points and values (C, n), some moved to the vertex of a dip across zero.

    If three values have one sign, the parabola through them may cross zero twice only where the
    middle one is at most half the mean of the others.
    """
    products = values[1:] * values[:-1]
    left, right, inner = products[:-1], products[1:], values[1:-1]
    excess = (left + right).addcmul_(inner, inner, value=-4)
    dips = torch.minimum(torch.minimum(left, right), excess)
    if _is_read(u):
        column = (dips.amax(0) > 0).nonzero().squeeze(-1)
        row, place = (dips.index_select(1, column) > 0).nonzero(as_tuple=True)
        column = column[place]
        if not len(row):
            return points, values
    else:
        row, column = dips.argmax(0), torch.arange(u.shape[1], device=u.device)
    x, height = _vertex(values, u.index_select(1, column), row, column, element)
    crosses = (x > element.points[row]) & (x < element.points[row + 2])
    crosses &= (dips[row, column] > 0) & ((height > 0) != (values[row + 1, column] > 0))
    points, middle = points.clone(), (row + 1, column)
    points[middle] = torch.where(crosses, x, points[middle])
    values[middle] = torch.where(crosses, height, values[middle])
    return points, values


def _vertex(
    values: Tensor, u: Tensor, row: Tensor, column: Tensor, element: _Element
) -> tuple[Tensor, Tensor]:
    """Find vertices of polynomials, and values there, by Newton's method from a parabola's."""
    left, mid, right = (values[row + k, column] for k in range(3))
    turn = (1 + row + (left - right) / (2 * (left + right - 2 * mid))).nan_to_num(0.0)
    x = -torch.cos(math.pi / (len(values) - 1) * turn)
    parts = (element.series @ u).unflatten(0, (-1, 3))
    for _ in range(3):
        value, rate, curve = _chebyshev_sum(parts, x.expand(3, -1))
        step = (x - (rate / curve).nan_to_num(0.0)).clamp(-1, 1) - x
        x, value = x + step, value + step * (rate + step * curve / 2)
    return x, value


def _roots(
    row: Tensor, column: Tensor, points: Tensor, values: Tensor, u: Tensor, steps: int
) -> Tensor:
    """Find roots (K,) between the check points of some rows and columns and those before.

    The first guess is a secant's; each step goes to the root of a parabola, which also serves where
    two roots nearly coincide. Roots that have moved little have no further step.
    """
    after = row * values.shape[1] + column
    before = after - values.shape[1]
    points, values = points.reshape(-1), values.reshape(-1)
    low, high = points.index_select(0, before), points.index_select(0, after)
    first, last = values.index_select(0, before), values.index_select(0, after)
    apart = first != last
    share = torch.where(apart, first / torch.where(apart, first - last, 1.0), 0.5)
    x = torch.addcmul(low, high - low, share.clamp(0.02, 0.98))
    rising, least = first <= 0, 8 * torch.finfo(x.dtype).eps
    parts = (_element_like(u).series @ u.index_select(1, column)).unflatten(0, (-1, 3))
    found, left = x, None
    for k in range(steps):
        value, rate, curve = _chebyshev_sum(parts, x.expand(3, -1))
        beyond = (value <= 0) == rising
        low, high = torch.where(beyond, x, low), torch.where(beyond, high, x)
        rest = (rate.square() - 2 * value * curve).clamp_min_(0).sqrt_()
        move = -2 * value / (rate + torch.copysign(rest, rate))
        step = x + move
        # Rounding may put a root just outside its bracket, and bisecting from there would lose it.
        valid = ((step >= low) & (step <= high)) | (move.abs() <= least)
        x = torch.where(valid, step, (low + high) / 2)
        found = x if left is None else found.index_copy_(0, left, x)
        if k + 1 < steps and _is_read(x):
            # The error of a step is the cube of that before.
            some = (~valid | (move.abs() > _LITTLE * least ** (1 / 3))).nonzero().squeeze(-1)
            if not len(some):
                break
            if 2 * len(some) < len(x):
                found = found.clone() if left is None else found
                left = some if left is None else left[some]
                x, low, high, rising = x[some], low[some], high[some], rising[some]
                parts = parts.flatten(0, 1).index_select(1, some).unflatten(0, (-1, 3))
    return found.clamp(-1, 1)


# Integrals over cut subintervals


def power_weights(
    x: Tensor,
    measure: Tensor,
    power: Power,
    names: tuple[str, ...] = ("power", "lowered"),
) -> list[Tensor]:
    """Compute weights (m, *columns) that integrate functions of 1 + eps x, as the module says.

    Arguments are those of `integrals`, which is differentiable.
    """
    x = x.contiguous()
    found = [v * measure for v in power.functions(names, x)]
    if not _is_cut(power):
        return found
    power = replace(power, eps=_by_column(power.eps, x))
    columns, scale = x.reshape(len(x), -1), measure.flatten(1)
    scale = scale / _element_like(x).weights.unsqueeze(-1)
    copies = columns.shape[1] // scale.shape[1]
    flat = [whole.view_as(columns) for whole in found]
    for block, values in _candidates(columns, power, names):
        column, rank, lower, end = _cut_pieces(values, power.take(block), names)
        weights = _piece_weights(
            values.index_select(1, column), lower, end, power.take(block[column]), names
        )
        column = block[column]
        factor, first = scale.index_select(1, column // copies), _count_first(rank, len(block))
        for whole, part in zip(flat, weights, strict=True):
            part.mul_(factor)
            whole.scatter_(1, column[:first].expand(len(x), -1), part[:, :first])
            whole.index_add_(1, column[first:], part[:, first:])
    return found


def _by_column(eps: Tensor | float, x: Tensor) -> Tensor | float:
    """Return eps of each column of values (m, *columns), flat, or the number that it is."""
    return eps.expand(x.shape[1:]).reshape(-1) if isinstance(eps, Tensor) else eps


def _is_cut(power: Power) -> bool:
    """Return whether edges of a power are sharp enough for subintervals to be cut."""
    return isinstance(power.eps, Tensor) or float(power.exponent) <= _SMOOTH


def _candidates(
    columns: Tensor, power: Power, names: tuple[str, ...] = ("power",)
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices (k,) and nodal values (m, k) of columns (m, n) that may be cut, in blocks."""
    if not _is_read(columns):
        yield torch.arange(columns.shape[1], device=columns.device), columns
        return
    polynomial = _is_polynomial(power, names)
    near = _near_root(columns, power, _BEYOND / len(columns) ** 2 if polynomial else _NEAR)
    for block in near.split(_BLOCK) if len(near) else ():
        yield block, columns.index_select(1, block)


def _cut_pieces(
    x: Tensor, power: Power, names: tuple[str, ...] = ("power",), rough: bool = False
) -> Pieces:
    """Return the pieces of subintervals with nodal values (m, n) that have weights of their own."""
    pieces = positive_pieces(power.inside(x), rough)
    if not _is_polynomial(power, names) or not _is_read(x):
        return pieces
    # The quadrature rule is exact for whole subintervals.
    cut = ((pieces.lower > -1) | (pieces.upper < 1)).nonzero().squeeze(-1)
    return Pieces(*(part[cut] for part in pieces))


def rough_masses(x: Tensor, measure: Tensor, power: Power) -> tuple[Tensor, Tensor]:
    """Return integrals (R,) of the power and the lowered power of values (m, G, R).

    They are those of `power_weights` up to about 1e-5, at half of the cost: dips are missed, and
    pieces are integrated with fewer nodes. Where no subinterval is cut, both are 1.
    """
    rows = x.shape[-1]
    columns = replace(power, eps=_by_column(power.eps, x))
    candidates = [*_candidates(x.flatten(1), columns)] if _is_cut(power) else []
    some = torch.zeros(rows, dtype=torch.bool, device=x.device)
    for block, _ in candidates:
        some[block % rows] = True
    if _is_read(x) and 2 * int(some.sum()) < rows:
        mass, rate = x.new_ones(2, rows)
        if candidates:
            some = some.nonzero().squeeze(-1)
            found = rough_masses(x.index_select(-1, some), measure, power.take(some))
            mass, rate = (
                v.index_copy(0, some, part) for v, part in zip((mass, rate), found, strict=True)
            )
        return mass, rate
    share = measure.reshape(len(x), -1, 1)
    by_cell = [(v * share).sum(0).flatten() for v in power.pair(x)]
    element = _element_like(x)
    density = element.coefficients @ (share.squeeze(-1) / element.weights.unsqueeze(-1))
    nodes, weights = _unit_rule(_FEW_NODES, x, power, ("power", "lowered"))
    for block, values in candidates:
        column, rank, lower, upper = _cut_pieces(values, columns.take(block), rough=True)
        own = element.coefficients @ values.index_select(1, column)
        column, width = block[column], upper - lower
        y = torch.addcmul(lower, width, nodes.unsqueeze(-1))
        base = density.index_select(1, column // rows).unsqueeze(1)
        height = _chebyshev_sum(base, y).mul_(width).mul_(weights.unsqueeze(-1))
        pair = columns.take(column).pair(_chebyshev_sum(own.unsqueeze(1), y))
        first = _count_first(rank, len(block))
        for whole, v in zip(by_cell, pair, strict=True):
            part = (v * height).sum(0)
            whole.index_copy_(0, column[:first], part[:first])
            whole.index_add_(0, column[first:], part[first:])
    mass, rate = (v.reshape(-1, rows).sum(0) for v in by_cell)
    return mass, rate


def _count_first(rank: Tensor, columns: int) -> int:
    """Return how many pieces are the first ones of their columns."""
    return int((rank == 0).sum()) if _is_read(rank) else columns


def _near_root(x: Tensor, power: Power, slack: float) -> Tensor:
    """Return the columns (k,) of x (m, n) whose range, widened by a share of it, has the root."""
    root, low, high = -1 / power.eps, x.amin(0), x.amax(0)
    away = (high - low) * slack
    return ((low < root + away) & (high > root - away)).nonzero().squeeze(-1)


def _is_polynomial(power: Power, names: tuple[str, ...]) -> bool:
    """Return whether functions of a positive polynomial are polynomials."""
    k = power.exponent
    whole = not isinstance(k, Tensor) and k in range(int(_SMOOTH) + 1)
    return whole and {"power", "lowered"}.issuperset(names)


def _piece_weights(
    x: Tensor, lower: Tensor, upper: Tensor, power: Power, names: tuple[str, ...]
) -> list[Tensor]:
    """Integrate functions of polynomials x (m, K) times the Lagrange polynomials over pieces (K,).

    The functions are integrated against Chebyshev polynomials by a rule on each piece.
    """
    element, order, width = _element_like(x), len(x), upper - lower
    nodes, weights = _unit_rule(order, x, power, names)
    y = torch.addcmul(lower, width, nodes.unsqueeze(-1))
    basis = _chebyshev_polynomials(y, order)
    coefficients = element.coefficients @ x
    values = coefficients[0] * basis[0]
    for c, b in zip(coefficients[1:], basis[1:], strict=True):
        values.addcmul_(c, b)
    share = weights.unsqueeze(-1) * width
    moments = [
        torch.stack([(height * b).sum(0) for b in basis])
        for height in (share * v for v in power.functions(names, values))
    ]
    if "lowered" in names and (isinstance(power.is_jump, Tensor) or power.is_jump):
        place = names.index("lowered")
        jumps = _at_edges(x, element, lower, upper)
        moments[place] = torch.where(torch.as_tensor(power.is_jump), jumps, moments[place])
    return [element.coefficients.T @ part for part in moments]


def _at_edges(x: Tensor, element: _Element, lower: Tensor, upper: Tensor) -> Tensor:
    """Return Chebyshev polynomials at roots over |u'|, the integral of the derivative of a jump."""
    order = len(x)
    slope = (element.series @ x)[1::3]
    total = torch.zeros_like(x)
    for end in (lower, upper):
        proper = (upper > lower) & (end.abs() < 1)
        rate = _chebyshev_sum(slope, end).abs()
        share = torch.where(proper, 1 / torch.where(proper, rate, 1.0), 0.0)
        total += torch.stack(_chebyshev_polynomials(end, order)) * share
    return total


def _unit_rule(
    order: int, like: Tensor, power: Power, names: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    """Return nodes and weights (q,) on [0, 1] for functions of m coefficients times another such.

    Gauss's rule is exact for powers that are polynomials; others have a graded rule.
    """
    if power.is_exponential:
        count = 2 * order
    elif _is_polynomial(power, names):
        count = (int(power.exponent) + 1) * (order - 1) // 2 + 1
    else:
        return smooth_unit_rule(3 * order, like)
    nodes, weights = gauss_legendre(count, like)
    return (nodes + 1) / 2, weights / 2


# Quantiles


def pieces_by_column(pieces: Pieces, n: int) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends (P, n) of the pieces of n columns, both 1 where there is none."""
    most = int(pieces.rank[-1]) + 1 if len(pieces.rank) and _is_read(pieces.rank) else 1
    most = most if _is_read(pieces.rank) else _MOST_PIECES
    place = pieces.rank, pieces.column
    lower, upper = (
        end.new_ones(most, n).index_put(place, end) for end in (pieces.lower, pieces.upper)
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
    coefficients = _element_like(x).coefficients
    low, high = pieces_by_column(positive_pieces(power.inside(x)), x.shape[1])
    x, density = coefficients @ x, coefficients @ density
    below = _areas(x, density, power, low, high).clamp_min(0).cumsum(0)
    piece = (below < mass).sum(0, keepdim=True).clamp_max(len(below) - 1)
    before = torch.cat([torch.zeros_like(below[:1]), below]).gather(0, piece)
    first, last = (end.gather(0, piece).squeeze(0) for end in (low, high))
    due, total = (part.squeeze(0) for part in (mass - before, below.gather(0, piece) - before))
    share = (due / total.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    y, low, high = first + (last - first) * share, first, last
    least, found = 8 * torch.finfo(y.dtype).eps, torch.empty_like(y)
    rows = torch.arange(len(y), device=y.device)
    for _ in range(_QUANTILE_STEPS.get(y.dtype, 24)):
        area = _areas(x, density, power, first, y.unsqueeze(0)).squeeze(0)
        rate = power.at(_chebyshev_sum(x, y)) * _chebyshev_sum(density, y)
        step = y + torch.where(due == area, 0.0, (due - area) / rate)
        low, high = torch.where(step >= y, y, low), torch.where(step <= y, y, high)
        moved = (step - y).abs() > least
        # Rounding may put a quantile just outside its bracket.
        y = torch.where(((step >= low) & (step <= high)) | ~moved, step, (low + high) / 2)
        found.index_copy_(0, rows, y)
        if not y.is_cuda:
            left = moved.nonzero().squeeze(-1)
            if not len(left):
                break
            x, density = x.index_select(1, left), density.index_select(1, left)
            rows, first, due, low, high, y = (v[left] for v in (rows, first, due, low, high, y))
            power = power.take(left)
    return found


def _areas(x: Tensor, density: Tensor, power: Power, lower: Tensor, upper: Tensor) -> Tensor:
    """Integrate a power times a base density, given by coefficients, from lower to upper (P, n)."""
    nodes, weights = (v.reshape(-1, 1, 1) for v in _unit_rule(len(x), x, power, ("power",)))
    width = upper - lower
    y = lower + width * nodes
    height = power.at(_chebyshev_sum(x, y)) * _chebyshev_sum(density, y)
    return (weights * height).sum(0) * width


# Differentiable weights

# The function whose weights are the derivative in x, up to the power's factor, and that whose
# weights are the derivative in eps.
_BY_X = {"power": "lowered", "log": "log_lowered"}
_BY_EPS = {"power": "slope", "log": "log_slope"}


def integrals(
    x: Tensor,
    measure: Tensor,
    power: Power,
    names: tuple[str, ...] = ("power", "lowered"),
) -> tuple[Tensor, ...]:
    """Compute differentiable weights (m, *columns) of functions of 1 + eps x.

    Weights of "power" are differentiable in x as often as that makes sense if eps is a number, and
    once in x and a tensor eps; those of "log" once. At order 0 only is there a derivative in eps.

    Args:
        x: Values at the nodes of subintervals (m, *columns), the last axis for the rows of a batch.
        measure: Quadrature weights times a base density, which broadcast against x.
        power: The power, its eps a number or (R,), which broadcasts against the columns.
        names: Functions that `Power.functions` knows.
    """
    function = by_forward_mode(_Weights, _WeightsForward)
    found: tuple[Tensor, ...] = function.apply(
        x, measure, power.eps, power.ratio, power.order, names
    )
    return found


def below(x: Tensor, measure: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and the measure (m, n) at the nodes of the parts [-1, y] (n) of subintervals."""
    series, share = table("chebyshev", (len(x),), x), (1 + y) / 2
    nodes, weights = (v.unsqueeze(-1) for v in gauss_legendre(len(x), x))
    at = (1 + nodes) * share - 1
    x, density = (_chebyshev_sum(series @ v, at) for v in (x, measure / weights))
    return x, density * weights * share


def sum_nodes(w: Tensor) -> Tensor:
    """Sum weights (m, G, R) over all nodes (R,)."""
    return w.flatten(0, -2).sum(0)


def _weights(
    x: Tensor,
    measure: Tensor,
    eps: Tensor | None,
    number: float,
    ratio: float,
    order: int,
    names: list[str],
) -> list[Tensor]:
    """Compute `power_weights` from the arguments of an operator."""
    power = Power(number if eps is None else eps, ratio, order)
    return [w.contiguous() for w in power_weights(x, measure, power, tuple(names))]


# One operation in a compiled graph, since which subintervals are cut depends on the data; its first
# call imports the compiler. The schema is given because torch infers none from `list`.
_weights_op = torch.library.custom_op(
    "sparsefam::power_weights",
    _weights,
    mutates_args=(),
    schema="(Tensor x, Tensor measure, Tensor? eps, float number, float ratio, "
    "int order, str[] names) -> Tensor[]",
)


@_weights_op.register_fake
def _(x: Tensor, *arguments: Any) -> list[Tensor]:
    return [torch.empty_like(x).contiguous() for _ in arguments[-1]]


class _Weights(torch.autograd.Function):
    """Weights of functions of 1 + eps x."""

    @staticmethod
    def forward(
        x: Tensor,
        measure: Tensor,
        eps: Tensor | float,
        ratio: float,
        order: int,
        names: tuple[str, ...],
    ) -> tuple[Tensor, ...]:
        number = 0.0 if isinstance(eps, Tensor) else float(eps)
        tensor = eps if isinstance(eps, Tensor) else None
        function = _weights_op if torch.compiler.is_compiling() else _weights
        return tuple(function(x, measure, tensor, number, ratio, order, list(names)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, measure, eps, ctx.ratio, ctx.order, ctx.names = inputs
        ctx.set_materialize_grads(False)
        ctx.number = None if isinstance(eps, Tensor) else eps
        lowered = output[1] if ctx.names == ("power", "lowered") else None
        saved = (x, measure, lowered, eps if isinstance(eps, Tensor) else None)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        return vmap_rows(_WeightsForward.apply, info.batch_size, dims, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        x, measure, lowered, eps = ctx.saved_tensors
        power = Power(ctx.number if eps is None else eps, ctx.ratio, ctx.order)
        by_x, by_eps = None, None
        for name, grad in zip(ctx.names, grads, strict=True):
            if grad is None:
                continue
            rate = _rate(name, x, measure, power, lowered)
            by_x = rate * grad if by_x is None else torch.addcmul(by_x, rate, grad)
            if ctx.needs_input_grad[2]:
                slope = power_slopes(x, measure, power, name, grad)
                by_eps = slope if by_eps is None else by_eps + slope
        return by_x, None, by_eps, None, None, None


class _WeightsForward(_Weights):
    @staticmethod
    @forward_rule
    def jvp(ctx: Any, by_x: Tensor, *_: Any) -> tuple[Tensor, ...]:
        x, measure, lowered, eps = ctx.saved_tensors
        power = Power(ctx.number if eps is None else eps, ctx.ratio, ctx.order)
        if eps is not None:
            raise NotImplementedError(NO_FORWARD_MODE)
        return tuple(_rate(name, x, measure, power, lowered) * by_x for name in ctx.names)


def _rate(name: str, x: Tensor, measure: Tensor, power: Power, lowered: Tensor | None) -> Tensor:
    """Return the derivative in x of the weights of a function, from those of `lowered` if given."""
    if name == "lowered":
        return lowered_derivative(x, measure, power)
    if name not in _BY_X:
        raise RuntimeError(NO_SECOND_DERIVATIVE)
    if name == "power" and lowered is not None:
        return _scaled(lowered, power)
    (rate,) = integrals(x, measure, power, (_BY_X[name],))
    return _scaled(rate, power) if name == "power" else rate


def _scaled(lowered: Tensor, power: Power) -> Tensor:
    return power.factor * lowered if power.order or power.ratio != 1 else lowered


def lowered_derivative(x: Tensor, measure: Tensor, power: Power) -> Tensor:
    """Return the derivative in x of the weights of the power with its exponent less by one."""
    if isinstance(power.eps, Tensor):
        raise RuntimeError("second derivatives need alpha to be a number, not a tensor")
    lowered = power.lowered()
    return lowered.factor * integrals(x, measure, lowered)[1]


def power_slopes(x: Tensor, measure: Tensor, power: Power, name: str, grad: Tensor) -> Tensor:
    """Return the gradient in eps (R,) from that of the weights of a function."""
    if name not in _BY_EPS or power.order:
        raise RuntimeError("only first derivatives of a density, not of its escort, exist in alpha")
    (slopes,) = integrals(x, measure, power, (_BY_EPS[name],))
    return sum_nodes(grad * slopes)


def vmap_rows(
    function: Callable[..., tuple[Tensor, ...]],
    count: int,
    dims: tuple[Any, ...],
    x: Tensor,
    measure: Tensor,
    *rest: Any,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Apply a function with the axis that vmap adds among the rows, the last axis."""

    def fold(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        if dim is None:
            value = value.unsqueeze(-2).expand(*value.shape[:-1], count, -1)
        else:
            value = value.movedim(dim, -2)
        return value.flatten(-2)

    # A measure with one column is shared by all rows.
    if measure.shape[-1] > 1 or dims[1] is not None:
        measure = fold(measure, dims[1])
    others = [fold(value, dim) for value, dim in zip(rest, dims[2:], strict=True)]
    parts = [w.unflatten(-1, (count, -1)) for w in function(fold(x, dims[0]), measure, *others)]
    return tuple(parts), tuple(w.dim() - 2 for w in parts)
