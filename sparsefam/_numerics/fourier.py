r"""Expectations of Gaussian functions on the line as Fourier features times a matrix.

A Gaussian function is band-limited up to rounding, so that a sum of K waves of a period T is equal
to it wherever a density can be. With the characteristic function $\varphi$ of the density of
$x = (t - \mu)/s$ and $\omega_k = 2\pi k/T$,
$$E_p[N(t; c, w^2)] = \frac{1}{T} \sum_{|k| < K} e^{-w^2 \omega_k^2/2}\,
    \cos(\omega_k (\mu - c))\,\varphi(s\,\omega_k),$$
the product of a row of features, which depends on the density, and a column, which depends on the
function. The family enters by $\varphi$ alone, which is tabulated as polynomials on cells.

By Poisson's summation formula the sum repeats each function with the period, and is wrong where a
support reaches the next copy. A density whose support holds all functions, however wide, is smooth
there, and is integrated by the trapezoidal rule: another row of features. Neither serves centers
far outside of the functions with supports that end between them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from .interpolation import matrix
from .modes import (
    branches_allowed,
    compiled,
    is_batched_by_autograd,
    may_have_tangent,
    outside_modes,
)
from .operators import Changes, differentiable
from .quadrature import MAKERS, Numbers, table

__all__ = [
    "LOG_DENSITIES",
    "Waves",
    "characteristic",
    "expect_shifted",
    "expect_waves",
    "law_table",
    "learned_table",
    "shifted_waves",
    "waves_of",
    "without_values",
]

# exp(-x^2/2) is negligible beside its peak from here on: for the frequencies of a function, and
# for the margin around the centers, relative to a sum of many functions.
_BANDS = {torch.float32: 5.3, torch.float64: 8.7}
_MARGINS = {torch.float32: 5.3, torch.float64: 9.0}
# Of tables of polynomials in the half-width of a density, or in its center: the cells in the width
# of the narrowest function, and the coefficients on each.
_CELLS = {torch.float32: (2.5, 6), torch.float64: (3.5, 11)}
# Of polynomials in v, frequency times half-width: the cells in a unit, and coefficients on each.
_UNITS = {torch.float32: (4, 6), torch.float64: (2, 11)}
# These are interpolated from wide cells: their length, and the nodes on each.
_LENGTH, _NODES = 4, 20
# Nodes of the rule that integrates a density, besides one for each unit of frequency.
_FURTHER_NODES = 32
# Waves of densities in a block, whose features fit the cache; on other devices than a CPU.
_BLOCK, _DEVICE_BLOCK = 2**17, 2**24
# The period is longer than it need be by this fraction, as centers and ends are rounded.
_SLACK = 1e-4


class Waves(NamedTuple):
    """The waves that add up to Gaussian functions, and where the functions are not negligible."""

    low: float  # The functions are negligible below this location
    high: float  # And above this one
    period: float  # T: copies of the functions are between low + T and high + T, and so on
    number: int  # K
    width: float  # Standard deviation of the narrowest function
    dtype: torch.dtype

    @property
    def start(self) -> float:
        """The location from which phases are counted, left of all centers.

        The sum of waves repeats the functions in every period. Supports of densities, and thus
        centers, lie between the copy on the left, which ends here, and the one on the right.
        """
        return self.high - self.period

    @property
    def loc_cells(self) -> tuple[float, int]:
        """The length and the number of cells of `_phase_table`.

        Its locations reach from `start`, which is high - T, to low + T, and a cell further.
        """
        length = self.width / _CELLS[self.dtype][0]
        return length, math.ceil((2 * self.period - self.high + self.low) / length) + 1

    @property
    def longest(self) -> float:
        """The largest half-width of a support between two copies, from high - T to low + T."""
        return self.period - 0.5 * (self.high - self.low)

    @property
    def step(self) -> float:
        """The difference of two frequencies."""
        return 2 * math.pi / self.period

    @property
    def cells(self) -> tuple[float, int]:
        """The length and the number of cells of tables of half-widths, from 0 to `longest`."""
        length = self.width / _CELLS[self.dtype][0]
        return length, math.ceil(self.longest / length)

    def frequencies(self, like: Tensor) -> Tensor:
        """Return the frequencies (K,) in float64."""
        none = torch.empty(0, dtype=torch.float64, device=like.device)
        return table("wave frequencies", (self.number,), none, (self.step,))

    def amplitudes(self, centers: Tensor, widths: Tensor) -> Tensor:
        """Return amplitudes (2 K, N) of cosines and sines that add up to N Gaussian functions.

        They are differentiable in the centers (N,) and the widths (N,).
        """
        omega = self.frequencies(centers).unsqueeze(-1)
        # Frequencies of both signs are summed, hence the factor 2 except at frequency 0.
        sizes = torch.exp(-0.5 * (omega * widths.double()).square()) * (2 / self.period)
        sizes = torch.cat([0.5 * sizes[:1], sizes[1:]])
        phases = omega * (centers.double() - self.start)
        return torch.cat([sizes * phases.cos(), sizes * phases.sin()])

    def nodes(self, like: Tensor) -> tuple[Tensor, float]:
        """Return nodes (Q,) and their distance, for densities whose support holds all functions.

        The product of a function with such a density is at least .68 times as wide as the function.
        """
        spacing = 0.68 * self.width * 2 * math.pi / _BANDS[self.dtype]
        count = math.ceil((self.high - self.low) / spacing)
        spacing = (self.high - self.low) / count
        none = torch.empty(0, dtype=torch.float64, device=like.device)
        return table("middles", (count,), none, (self.low, spacing)), spacing


def waves_of(extent: tuple[float, ...], dtype: torch.dtype, fraction: float = 1.0) -> Waves:
    """Return the waves of functions, whose period serves all densities centered between them.

    Args:
        extent: First and last center, least and largest width of the functions.
        dtype: Of the features.
        fraction: Of the period that serves all supports, which suffices for short ones.
    """
    first, last, width, widest = extent
    margin = _MARGINS[dtype] * widest
    # A support that does not hold all functions ends between low and high, so that its half-width
    # is below last - first + margin: it ends before low + period, where the next copy begins.
    period = 2 * fraction * (1 + _SLACK) * (last - first + margin)
    count = math.ceil(_BANDS[dtype] / width * period / (2 * math.pi)) + 1
    return Waves(first - margin, last + margin, period, count, width, dtype)


def shifted_waves(
    extent: tuple[float, ...], dtype: torch.dtype, centers: tuple[float, float], half: float
) -> Waves:
    """Return the waves of functions for densities of bounded half-widths, centered in an interval.

    Their period is the least with which no density reaches the next functions.

    Args:
        extent: First and last center, least and largest width of the functions.
        dtype: Of the features.
        centers: Ends of the interval.
        half: The largest half-width.
    """
    first, last, width, widest = extent
    margin = _MARGINS[dtype] * widest
    low, high = min(first, centers[0]) - margin, max(last, centers[1]) + margin
    period = (1 + _SLACK) * max(centers[1] + half - low, high - centers[0] + half)
    count = math.ceil(_BANDS[dtype] / width * period / (2 * math.pi)) + 1
    return Waves(low, high, period, count, width, dtype)


# Tables of characteristic functions phi: polynomials in the half-width s for each frequency, on
# cells, of (1 - phi(w s)) / s^2, which keeps the digits of narrow densities.


def _chebyshev(count: int) -> Numbers:
    """Return Chebyshev nodes on [-1, 1], where interpolation is well conditioned."""
    return np.cos(np.pi * (np.arange(count) + 0.5) / count)


def _to_powers(size: int) -> Numbers:
    """Return the matrix from values at nodes of a cell to powers of the distance from its middle.

    The distance is in cells.
    """
    powers: Numbers = np.vander(_chebyshev(size) / 2, increasing=True)
    return np.linalg.solve(powers, np.eye(size, dtype=np.float64)).astype(np.float64)


def _to_units(per_unit: int, size: int) -> Numbers:
    """Return the matrix from values at the nodes of a wide cell to coefficients on its fine cells.

    Its shape is (size, per_unit * _LENGTH, _NODES).

    Args:
        per_unit: Fine cells in a unit; a wide cell has _LENGTH units.
        size: Coefficients on each fine cell.
    """
    fine = np.arange(per_unit * _LENGTH)[:, None] + (_chebyshev(size) + 1) / 2
    at = 2 * fine / (per_unit * _LENGTH) - 1
    return np.tensordot(_to_powers(size), matrix(_chebyshev(_NODES), at), (1, 1))


def _kernel(top: int) -> Numbers:
    """Return 2 sin^2(v y / 2) / v^2 at the nodes v of wide cells and y of a rule on (0, 1).

    The wide cells reach up to v = top; rows are nodes v, and columns nodes y.
    """
    starts = _LENGTH * np.arange(top // _LENGTH)[:, None]
    v = (starts + _LENGTH * (_chebyshev(_NODES) + 1) / 2).reshape(-1, 1)
    y = MAKERS["smooth"](top + _FURTHER_NODES, 52)[0]
    return 2 * (np.sin(v * y / 2) / v) ** 2


# The logarithm of a density with exponent m, up to a constant, at a distance x from its middle.
LOG_DENSITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ball": lambda x, m: m * torch.log1p(-x * x),
    "cone": lambda x, m: m * torch.log1p(-x),
    "laplace": lambda x, m: -x,
}
_NAMES = (*LOG_DENSITIES,)


def learned_table(law: str, exponent: Tensor, end: Tensor, waves: Waves) -> Tensor:
    """Return tables (U C, J, K) of densities (U), differentiable in their exponents.

    On each of C cells of half-widths s they are the J coefficients of (1 - phi(w_k s)) / s^2, in
    powers of the distance from the middle of the cell.

    Args:
        law: Name of the family in `LOG_DENSITIES`.
        exponent: The exponents m (U,).
        end: Where the support of each ends, in units of the x of `LOG_DENSITIES` (U,).
        waves: The frequencies (K,).
    """
    exact, end = exponent.double(), end.double()
    (length, cells), size = waves.cells, _CELLS[waves.dtype][1]
    top = math.ceil(cells * length * waves.step * waves.number / _LENGTH) * _LENGTH
    y, weights = table("smooth", (top + _FURTHER_NODES, 52), exact).unsqueeze(-1).unbind()
    # 1 - phi(v) is the mean of 2 sin^2(v y / 2), which cancels nothing at small v.
    weights = weights * torch.exp(LOG_DENSITIES[law](end * y, exact))
    values = table("wave kernel", (top,), exact) @ (weights / weights.sum(0))
    # h = (1 - phi(v)) / v^2 by polynomials in v.
    per_unit, terms = _UNITS[waves.dtype]
    to_units = table("wave units", (per_unit, terms), exact)
    units = torch.einsum("icn,wnu->uiwc", to_units, values.unflatten(0, (-1, _NODES)))
    units = units.flatten(2)
    # At the nodes of the cells, in float64: slopes are differences of neighbors.
    nodes, to_powers = (table(x, (size,), units) for x in ("wave nodes", "wave powers"))
    index = torch.arange(cells, dtype=units.dtype, device=units.device)
    s = length * (index.unsqueeze(-1) + (nodes + 1) / 2)
    # (1 - phi(w s)) / s^2 = w^2 h(w s).
    omega = waves.frequencies(units)
    u = s.unsqueeze(-1) * (omega * per_unit)
    cell = u.to(torch.int32).clamp(max=units.shape[-1] - 1)
    u = u - (cell + 0.5)
    # Horner's scheme with the coefficients of the cell, in powers of the distance from its middle.
    h = units[:, -1, cell]
    for i in range(terms - 2, -1, -1):
        h = torch.addcmul(units[:, i, cell], h, u)
    return (to_powers @ (h * omega.square())).flatten(0, 1).to(waves.dtype)


def law_table(law: str, exponent: float, end: float, waves: Waves, like: Tensor) -> Tensor:
    """Return the table (C, J, K) of one density, which is made once and cached."""
    bits = 64 if waves.dtype == torch.float64 else 32
    numbers = (exponent, end, waves.low, waves.high, waves.period, waves.width)
    return table("waves", (_NAMES.index(law), waves.number, bits), like, numbers)


def _law_table(law: int, count: int, bits: int, *numbers: float) -> Numbers:
    """Return the table of `law_table`, of numbers only, as they are the key of a cache.

    Args:
        law: Index of the family in `_NAMES`.
        count: The number of waves.
        bits: 64 or 32, of the dtype of the features.
        numbers: Exponent and end of the density; low, high, period and width of the waves.
    """
    exponent, end, low, high, period, width = numbers
    dtype = torch.float64 if bits == 64 else torch.float32
    waves = Waves(low, high, period, count, width, dtype)
    with outside_modes():
        exponents, ends = torch.tensor([[exponent], [end]], dtype=torch.float64)
        tables: Numbers = learned_table(_NAMES[law], exponents, ends, waves).double().numpy()
    return tables


MAKERS["wave frequencies"] = lambda count, step: step * np.arange(count, dtype=np.float64)
MAKERS["middles"] = lambda count, low, step: low + step * (np.arange(count) + 0.5)
MAKERS["waves"], MAKERS["wave kernel"], MAKERS["wave units"] = _law_table, _kernel, _to_units
MAKERS["wave nodes"], MAKERS["wave powers"] = _chebyshev, _to_powers


class _Cells(NamedTuple):
    """Where numbers (..., g, l) are in tables."""

    number: Tensor  # The cell
    distance: Tensor  # The distance from its middle, in cells

    @classmethod
    def of(cls, half: Tensor, index: Tensor | None, waves: Waves) -> "_Cells":
        """Return the cells of half-widths in the tables with these indices, or in the only one."""
        length, cells = waves.cells
        at = cls._at(half / length)
        return at if index is None else at._replace(number=at.number + cells * index)

    @classmethod
    def of_both(cls, loc: Tensor, half: Tensor, index: Tensor | None, waves: Waves) -> "_Cells":
        """Return the cells (2, g, l) of locations in the table of phases, and of half-widths.

        Cells of both have one length, so that the same operations find them.
        """
        length, cells = waves.cells
        both = cls._at(torch.stack([loc.double() - waves.start, half.double()]) / length)
        if index is not None:
            both.number[1].add_(cells * index)
        return both._replace(distance=both.distance.to(waves.dtype))

    def unbind(self) -> Iterator["_Cells"]:
        """Yield the cells of locations, and of half-widths, from those of both."""
        return map(_Cells, self.number.unbind(), self.distance.unbind())

    @classmethod
    def _at(cls, position: Tensor) -> "_Cells":
        """Return the cells of positions, which are counted in cells from the first one."""
        number = position.detach().to(torch.int32)
        return cls(number, position - (number + 0.5))

    def differentiable_sums(self, tables: Tensor) -> Tensor:
        """Return the polynomials (..., g, l, K) of tables (C, J, K), with derivatives of any order.

        They are computed by Horner's scheme; `_sums` of `terms` are the same numbers.
        """
        rows = tables.flatten(1).index_select(0, self.number.flatten())
        rows = rows.view(*self.number.shape, *tables.shape[1:])
        total, u = rows[..., -1, :], self.distance.unsqueeze(-1)
        for j in range(tables.shape[1] - 2, -1, -1):
            total = torch.addcmul(rows[..., j, :], total, u)
        return total

    def terms(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the coefficients of cells are, and by which powers they are multiplied.

        Rows (..., g, l, J) of the tables (C, J, K), flattened to (C J, K); and powers u^j
        (..., g, l, J) of the distance u from the middle of the cell.
        """
        size = tables.shape[1]
        order = torch.arange(size, dtype=torch.int32, device=tables.device)
        rows = torch.add(order, self.number.unsqueeze(-1), alpha=size)
        return rows, torch.linalg.vander(self.distance, N=size)


def _sums(tables: Tensor, rows: Tensor, factors: Tensor) -> Tensor:
    """Return sums (g, l, K) of rows of tables (C, J, K) times factors (g, l, J).

    Rows (g, l, J) are indices into the tables, flattened to (C J, K), as `_Cells.terms` returns.
    """
    # Bags of rows, with weights, are summed in one pass: no array of all rows is made.
    coefficients, weights = tables.flatten(0, 1), factors.flatten(0, 1)
    total: Tensor = embedding_bag(
        rows.flatten(0, 1), coefficients, mode="sum", per_sample_weights=weights
    )
    return total.view(*rows.shape[:2], -1)


def _characteristic(half: Tensor, sums: Tensor) -> Tensor:
    """Return phi (g, l, K) from half-widths s (g, l) and sums (1 - phi) / s^2 (g, l, K)."""
    squares = (half * half).unsqueeze(-1)
    return torch.addcmul(torch.ones_like(squares[:1, :1]), sums, squares, value=-1)


def characteristic(half: Tensor, tables: Tensor, index: Tensor | None, waves: Waves) -> Tensor:
    """Return characteristic functions (H, K) of densities of half-widths (H,) around 0."""
    index = None if index is None else index.unsqueeze(0)
    sums = _Cells.of(half.unsqueeze(0), index, waves).differentiable_sums(tables)
    return _characteristic(half.unsqueeze(0), sums).squeeze(0)


def expect_shifted(
    shifts: Tensor, loc: Tensor, values: Tensor, spectrum: Tensor, waves: Waves
) -> Tensor:
    """Return expectations (g, l, H, E) under densities that every shift moves alike.

    Args:
        shifts: Where the densities are moved from 0 (g or 1, l).
        loc: Their centers (H,), before the shift.
        values: Their characteristic functions (H, K).
        spectrum: Amplitudes of a function for each of them, (g, H, 2 K, E).
        waves: The waves of the amplitudes.
    """
    dtype = spectrum.dtype
    turn = loc.double().unsqueeze(-1) * waves.frequencies(loc)
    cos, sin = ((values * x.to(dtype)).unsqueeze(-1) for x in (turn.cos(), turn.sin()))
    even, odd = spectrum.chunk(2, -2)
    # cos(a + b) and sin(a + b): a rotation of amplitudes moves a density to its center.
    turned = torch.cat([cos * even + sin * odd, cos * odd - sin * even], -2)
    # Whole periods are subtracted in float64, before rounding to the dtype.
    order = torch.arange(waves.number, dtype=torch.float64, device=loc.device)
    periods = ((shifts.double() - waves.start) / waves.period).unsqueeze(-1) * order
    phases = 2 * math.pi * (periods - periods.detach().round()).to(dtype)
    features = torch.cat([phases.cos(), phases.sin()], -1)
    sums: Tensor = features @ turned.movedim(1, 2).flatten(2)
    return sums.unflatten(-1, turned.shape[1::2])


def _slope_factors(half: Tensor, powers: Tensor, length: float) -> Tensor:
    """Return factors (..., J) with which coefficients h_j add up to the slope of phi in s.

    On a cell phi = 1 - s^2 sum_j h_j u^j, where du/ds = 1/length. Hence the factor of h_j is
    -2 s u^j - s^2 j u^(j - 1)/length.

    Args:
        half: Half-widths s (...).
        powers: Powers u^j (..., J).
        length: Of a cell.
    """
    half, order = half.unsqueeze(-1), torch.arange(1, powers.shape[-1], device=half.device)
    factors = powers * (-2 * half)
    factors[..., 1:].addcmul_(powers[..., :-1], half.square() * order, value=-1 / length)
    return factors


def _phase_table(count: int, bits: int, span: float, period: float, width: float) -> Numbers:
    """Return the coefficients (C, J, 2 K) of polynomials of cosines, then sines, on C cells.

    A phase is the product of one of K frequencies and the distance from `Waves.start`.

    Args:
        count: The number of waves K.
        bits: 64 or 32, of the dtype of the features.
        span: high - low of the waves; phases do not depend on where they are.
        period: Of the waves.
        width: Of the narrowest function.
    """
    dtype = torch.float64 if bits == 64 else torch.float32
    waves = Waves(0.0, span, period, count, width, dtype)
    (length, cells), size = waves.loc_cells, _CELLS[dtype][1]
    positions = np.arange(cells)[:, None] + (_chebyshev(size) + 1) / 2
    angles = (length * positions)[..., None] * (waves.step * np.arange(count))
    return _to_powers(size) @ np.concatenate([np.cos(angles), np.sin(angles)], -1)


MAKERS["wave phases"] = _phase_table


def _phases(waves: Waves, like: Tensor) -> Tensor:
    """Return `_phase_table` (C, J, 2 K) for waves, cached, in the dtype and device of `like`."""
    bits = 64 if waves.dtype == torch.float64 else 32
    numbers = (waves.high - waves.low, waves.period, waves.width)
    return table("wave phases", (waves.number, bits), like, numbers)


def expect_waves(
    loc: Tensor,
    half: Tensor,
    tables: Tensor,
    index: Tensor | None,
    right: Tensor,
    waves: Waves,
    weights: Tensor | None = None,
) -> Tensor:
    """Return features times matrices, (g, l, E), differentiable in all floating tensors.

    Args:
        loc: Centers (g, l), with weights (g, l C).
        half: Half-widths, of the shape of the centers.
        tables: The tables of U densities, see `learned_table`, (U C, J, K).
        index: Which of U tables each density has, (g, l) as the centers, or None if U is 1.
        right: Amplitudes of the functions, (g or 1, 2 K, E).
        waves: The waves of tables and amplitudes.
        weights: Of mixtures of C neighboring densities, (g, l, C).
    """
    tensors = [x for x in (loc, half, tables, right, weights) if x is not None]
    inputs = loc, half, tables, right, weights, index, waves
    in_blocks = compiled() or branches_allowed() and not may_have_tangent(*tensors)
    product: Tensor = (_product_in_blocks if in_blocks else _product)(*inputs)
    return product


def _product(
    loc: Tensor,
    half: Tensor,
    tables: Tensor,
    right: Tensor,
    weights: Tensor | None,
    index: Tensor | None,
    waves: Waves,
) -> Tensor:
    """Compute `expect_waves`, of the same arguments, by operations differentiable to any order."""
    at_loc, at_half = _Cells.of_both(loc, half, index, waves).unbind()
    phases = at_loc.differentiable_sums(_phases(waves, loc.detach()))
    sums = at_half.differentiable_sums(tables)
    return _mix(_features(phases, _characteristic(half, sums)), weights) @ right


def _features(phases: Tensor, value: Tensor) -> Tensor:
    """Return cosines and sines (g, l, 2 K) times the characteristic function (g, l, K)."""
    features: Tensor = phases.unflatten(-1, (2, -1)) * value.unsqueeze(-2)
    return features.flatten(-2)


def _mix(features: Tensor, weights: Tensor | None) -> Tensor:
    """Return features (g, l, 2 K) of mixtures, given features of components (g, l C, 2 K)."""
    if weights is None:
        return features
    mixed: Tensor = weights.unsqueeze(-2) @ features.unflatten(1, weights.shape[1:])
    return mixed.squeeze(-2)


def _damp(phases: Tensor, loss: Tensor) -> Tensor:
    """Multiply cosines and sines (g, l, 2 K) by phi = 1 - loss (g, l, K), in place."""
    pairs = phases.unflatten(-1, (2, -1))
    pairs.addcmul_(pairs, loss.unsqueeze(-2), value=-1)
    return phases


# Whether only derivatives are wanted.
_without_values: ContextVar[bool] = ContextVar("without values", default=False)


@contextmanager
def without_values() -> Iterator[None]:
    """Let `expect_waves` return zeros, where only its derivatives are wanted."""
    token = _without_values.set(True)
    try:
        yield
    finally:
        _without_values.reset(token)


def _forward(
    loc: Tensor,
    half: Tensor,
    tables: Tensor,
    right: Tensor,
    weights: Tensor | None,
    index: Tensor | None,
    waves: Waves,
) -> Tensor:
    """Compute `expect_waves`, of the same arguments, in blocks.

    Features of a block are not kept, but made again in the backward pass.
    """
    rows = loc if weights is None else weights
    out = right.new_empty(*rows.shape[:2], right.shape[-1])
    if not compiled() and _without_values.get():
        return out.zero_()
    turns = _phases(waves, loc)
    for block, components in _blocks(loc, weights, waves.number):
        widths = half[components]
        cells = _Cells.of_both(loc[components], widths, _take(index, components), waves)
        rows, powers = cells.terms(turns)
        loss = _sums(tables, rows[1], powers[1] * widths.square().unsqueeze(-1))
        features = _mix(_damp(_sums(turns, rows[0], powers[0]), loss), _take(weights, block))
        torch.matmul(features, _amplitudes(right, components), out=out[block])
    return out


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return gradients of `_forward` in blocks, and differentiable ones by `_product`.

    The arguments of `_forward` are kept; gradients are in the first five.
    """
    *leaves, index, waves = kept
    (grad,), needs = grads, needed[:5]
    loc, half, tables, right, weights = leaves
    twice = torch.is_grad_enabled() and not compiled()
    if twice or not compiled() and is_batched_by_autograd(grad):
        product = partial(_product, index=index, waves=waves)
        return _pull_product_back(product, leaves, grad, needs, twice)
    count = waves.number
    omega = waves.frequencies(loc).to(loc.dtype)
    # Blocks add to the gradients of tables and matrices, and divide the others among them.
    makers = (torch.empty_like, torch.empty_like, torch.zeros_like, torch.zeros_like)
    paired = zip((*makers, torch.empty_like), leaves, needs, strict=True)
    total = [make(x) if need else None for make, x, need in paired]
    by_loc, by_half, by_tables, by_right, by_weights = total
    turns = _phases(waves, loc)
    for block, components in _blocks(loc, weights, count):
        widths, upstream, mix = half[components], grad[block], _take(weights, block)
        cells = _Cells.of_both(loc[components], widths, _take(index, components), waves)
        rows, powers = cells.terms(turns)
        # phi = 1 - loss, and loss = s^2 sum_j h_j u^j.
        factors = powers[1] * widths.square().unsqueeze(-1)
        loss = _sums(tables, rows[1], factors)
        slope = _sums(tables, rows[1], _slope_factors(widths, powers[1], waves.cells[0]))
        phases = _sums(turns, rows[0], powers[0])
        cos, sin = phases.chunk(2, -1)
        # The gradient in the features of components.
        pulled = upstream @ _amplitudes(right, components).mT
        if weights is not None:
            pulled = pulled.repeat_interleave(weights.shape[-1], 1)
        by_cos, by_sin = pulled[..., :count], pulled[..., count:]
        # Features are phi (cos, sin), and d (cos, sin) / d loc = omega (-sin, cos).
        by_phi = torch.addcmul(cos * by_cos, sin, by_sin)
        by_angle = torch.addcmul(cos * by_sin, sin, by_cos, value=-1)
        by_angle.addcmul_(by_angle, loss, value=-1)
        at_loc, at_half = by_angle @ omega, (slope * by_phi).sum(-1)
        if mix is not None:
            at_loc, at_half = at_loc * mix.flatten(1), at_half * mix.flatten(1)
            if by_weights is not None:
                damped = torch.addcmul(by_phi, by_phi, loss, value=-1)
                by_weights[block] = damped.sum(-1).view_as(mix)
            by_phi = by_phi * mix.flatten(1).unsqueeze(-1)
        if by_loc is not None:
            by_loc[components] = at_loc
        if by_half is not None:
            by_half[components] = at_half
        if by_tables is not None:
            terms = (-by_phi).unsqueeze(-2) * factors.unsqueeze(-1)
            by_tables.index_add_(0, cells.number[1].flatten(), terms.flatten(0, 1))
        if by_right is not None:
            features = _mix(_damp(phases, loss), mix)
            if right.shape[0] == 1:
                by_right[0].addmm_(features.flatten(0, 1).mT, upstream.flatten(0, 1))
            else:
                by_right[components[0]].baddbmm_(features.mT, upstream)
    return total


def _pull_product_back(
    product: Callable[..., Tensor],
    leaves: Sequence[Tensor | None],
    grad: Tensor,
    needs: Sequence[bool],
    twice: bool,
) -> Changes:
    """Return the gradients of `_pull_back` by autograd.

    Args:
        product: `_product` of the tensors.
        leaves: The five tensors, of which weights may be None.
        grad: The gradient in the product.
        needs: Which of the tensors need a gradient.
        twice: Whether the gradients are differentiable.
    """
    with torch.enable_grad():
        # Views, as one of the tensors may depend on another: only direct effects are wanted.
        views = [x if x is None else x.view_as(x) for x in leaves]
        value = product(*views)
    wanted = [x for x, need in zip(views, needs, strict=True) if x is not None and need]
    gradients = iter(torch.autograd.grad(value, wanted, grad, create_graph=twice))
    return [next(gradients) if need else None for need in needs]


_product_in_blocks = differentiable(_forward, _pull_back, lambda inputs, outputs: inputs)


_Block = tuple[slice, slice]


def _blocks(loc: Tensor, weights: Tensor | None, count: int) -> Iterator[tuple[_Block, _Block]]:
    """Divide rows (g, l) into blocks: yield the index of rows, and of their components (g, l C).

    Args:
        loc: Centers of components (g, l C).
        weights: Of mixtures (g, l, C), or None if C is 1.
        count: The number of waves.
    """
    components = 1 if weights is None else weights.shape[-1]
    groups, rows = loc.shape[0], loc.shape[1] // components
    if compiled():
        whole = slice(None), slice(None)
        yield whole, whole
        return
    most = _BLOCK if loc.is_cpu else _DEVICE_BLOCK
    step = max(1, min(rows, most // (count * components)))
    groups_together = max(1, most // (count * components * step))
    for first in range(0, groups, groups_together):
        for start in range(0, rows, step):
            group, end = slice(first, first + groups_together), start + step
            yield (group, slice(start, end)), (group, slice(start * components, end * components))


def _take(x: Tensor | None, block: _Block) -> Tensor | None:
    """Return a block of an optional tensor."""
    return None if x is None else x[block]


def _amplitudes(right: Tensor, block: _Block) -> Tensor:
    """Return the amplitudes of a block: one matrix serves all groups, or each has its own."""
    return right if right.shape[0] == 1 else right[block[0]]
