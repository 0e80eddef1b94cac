r"""Expectations of Gaussians of one width under beta-Gaussians: one contour for all pairs of a row.

In units of the width w, with $\sigma_d$ the half-axes of a support and $y_d$ the offset of a center
along them, the expectation is summed over a few nodes z of a contour:
$$E_p[N(t; c, w^2 I)] = \frac{\Gamma(m+1+D/2)}{(2\pi)^{D/2}\, 2\pi i}
\int e^z z^{-(m+1)} \prod_d (z + \sigma_d^2/2)^{-1/2}\, e^{-z y_d^2 / (2z + \sigma_d^2)}\, dz.$$
The exponent is the product of a matrix over densities (rows) and nodes with a matrix of squared
offsets; the sum over nodes, and the sums for first derivatives, are products of matrices again.

The error is below 1e-6 of the largest expectation that a center anywhere could have. Rows of longer
supports, rows for which no center comes near that expectation, and second derivatives are left to
the contours of pairs.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .ellipsoid import orthogonalize
from .gaussian_contour import Four, gaussians_and_slopes, gaussians_by_pairs
from .modes import compiled, values_are_readable
from .operators import Changes, differentiable, operator
from .quadrature import constant

__all__ = [
    "CONTOURS",
    "LEAST_EXPONENT",
    "LOG_ZERO",
    "gaussians_by_shared_contour",
    "hyperbola",
    "integrate_rows",
]

# By the largest exponent, then by the longest half-axis in widths: the number of nodes, and their
# hyperbola (size, angle, step, stretch). Made by `python -m benchmarks.contours --fit`.
CONTOURS: dict[float, dict[float, tuple[int, tuple[float, ...]]]] = {
    3.0: {
        4.0: (6, (14.14, 0.6188, 0.2061, 0.02512)),
        8.0: (8, (15.18, 0.7408, 0.1723, 0.02313)),
        16.0: (9, (15.7, 0.6369, 0.1983, -0.0394)),
        24.0: (13, (9.328, 0.3947, 0.2154, -0.02347)),
        32.0: (16, (10.19, 0.4462, 0.2026, -0.01757)),
        48.0: (22, (10.6, 0.4341, 0.172, -0.01179)),
        72.0: (27, (9.443, 0.3825, 0.1618, -0.009183)),
    },
    12.5: {
        16.0: (8, (64.64, 1.04, 0.06491, 0.8649)),
        24.0: (9, (34.44, 0.7935, 0.09514, 0.1777)),
        32.0: (10, (27.79, 0.6754, 0.1113, 0.06683)),
        48.0: (13, (18, 0.4683, 0.1323, 0.007572)),
        72.0: (14, (16.62, 0.4109, 0.1413, -0.003651)),
    },
    25.0: {
        72.0: (7, (76.13, 0.8425, 0.06498, 0.9792)),
    },
}
LEAST_EXPONENT = 1.0
# Expectations are accurate if some center has this fraction of the largest possible expectation.
_LEAST_FRACTION = 0.25
# The logarithm of the smallest integral that is not zero: outside the support the sum diverges.
LOG_ZERO = -13.0
# Logarithms of waves are clamped to this size.
_LARGE = 60.0
# Centers are left out if rows are near to less than this fraction of them.
_MOST_REACHED = 0.7
# Waves in a block of rows, whose arrays fit the cache; on other devices than a CPU.
_BLOCK, _DEVICE_BLOCK = 2**17, 2**24


class Contours(NamedTuple):
    """The contours of an exponent (P), padded by nodes whose factors are zero."""

    lengths: Tensor  # The longest half-axis that each serves, in widths, (P)
    counts: list[int]  # Their numbers of nodes
    nodes: Tensor  # Complex, (P, n)
    fronts: Tensor  # Factors that do not depend on the half-axes, times -i, complex (P, n)

    def of(self, level: Tensor | slice, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Return nodes and factors (r, count) of the contours with these indices.

        Without a count all n nodes are returned.
        """
        return self.nodes[:, :count][level], self.fronts[:, :count][level]


def gaussians_by_shared_contour(inputs: Four, exponent: float) -> Tensor:
    """Compute expectations (*batch, N), differentiable twice in loc and scale_tril.

    Inputs are loc (*batch, D), scale_tril (*batch, D, D), centers (N, D) and standard deviations,
    in float32, for D of 2 or 3. Centers and deviations have no gradient, and nothing a derivative
    in forward mode. If deviations are unlike, the contours of pairs give all expectations.
    """
    loc, scale_tril, centers, spread = inputs
    batch, dim = loc.shape[:-1], loc.shape[-1]
    spread = spread.expand(len(centers))
    rows = loc.reshape(-1, dim), scale_tril.reshape(-1, dim, dim), centers, spread
    if torch.is_grad_enabled() and (loc.requires_grad or scale_tril.requires_grad):
        values: Tensor = _expectations(*rows, exponent)[0]
    else:
        values = _row_operator(*rows, exponent, False)[0]
    return values.reshape(*batch, len(centers))


def _is_shared(spread: Tensor) -> Tensor:
    """Return whether all Gaussians have one width."""
    return (spread == spread[:1]).all()


def _pull_values_back(
    grad: Tensor, inputs: Sequence[Tensor], slopes: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients in loc and scale_tril, given the gradient in the values.

    Args:
        grad: The gradient (R, N).
        inputs: loc (R, D), scale_tril (R, D, D), centers (N, D) and standard deviations (N,).
        slopes: Second result of `integrate_rows`, (R, S, N).
        axes: Its third result, (R, D, D).
    """
    loc, scale_tril, _, spread = inputs
    width, dim = spread[0].double(), loc.shape[-1]
    # Row by matrix is several times as fast as matrix by column.
    totals = (grad.unsqueeze(1) @ slopes.mT).squeeze(1).double() * width ** (-dim - 1)
    by_loc = (axes @ totals[:, :dim].unsqueeze(-1)).squeeze(-1)
    by_matrix = axes @ _symmetric(totals[:, dim:], dim) @ axes.mT
    # Slopes are twice the derivatives in A = L L', so that this times L is the gradient in L.
    by_scale_tril = (by_matrix @ (scale_tril.double() / width)).tril()
    return by_loc.to(loc.dtype), by_scale_tril.to(loc.dtype)


def _slopes_of_pairs(inputs: Four, axes: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """Return values (R, N) and slopes (R, S, N), as `integrate_rows` does, by contours of pairs.

    Args:
        inputs: loc (R, D), scale_tril (R, D, D), centers (N, D) and standard deviations (N,).
        axes: Axes along which slopes are taken, (R, D, D).
        exponent: m.
    """
    values, by_loc, by_matrix = gaussians_and_slopes(inputs, exponent)
    dim, width = inputs[0].shape[-1], inputs[3][0].double()
    turned = axes.mT.unsqueeze(1) @ by_matrix @ axes.unsqueeze(1)
    # One diagonal after the other, from the main one down.
    diagonals = torch.cat([turned.diagonal(-gap, -2, -1) for gap in range(dim)], -1)
    slopes = torch.cat([by_loc @ axes, 2 * width * diagonals], -1)
    return values, (slopes * width ** (dim + 1)).mT.to(values.dtype)


def _symmetric(entries: Tensor, dim: int) -> Tensor:
    """Return symmetric matrices (..., D, D) from their diagonals (..., S), one after the other."""
    # Diagonal g has D - g entries, and begins after g D - g (g - 1) / 2 others. The entry of row i
    # and column j is at min(i, j) in it.
    entry, k = entries.unbind(-1), range(dim)
    gaps = [[abs(i - j) for j in k] for i in k]
    index = [
        g * dim - g * (g - 1) // 2 + min(i, j) for i in k for j, g in zip(k, gaps[i], strict=True)
    ]
    return torch.stack([entry[i] for i in index], -1).reshape(*entries.shape[:-1], dim, dim)


def _compute(
    loc: Tensor,
    scale_tril: Tensor,
    centers: Tensor,
    spread: Tensor,
    exponent: float,
    sloped: bool,
) -> list[Tensor]:
    """Return values (R, N), slopes (R, S, N), with S = 0 if not `sloped`, and axes (R, D, D).

    Rows that one contour does not serve, and all if widths are unlike, have the contours of pairs.
    Tensors are as for `integrate_rows`.
    """
    inputs = loc, scale_tril, centers, spread
    reads = values_are_readable(*inputs)
    with torch.no_grad():
        if reads and spread.stride() != (0,) and not bool(_is_shared(spread)):
            return [*_by_pairs(inputs, exponent, sloped)]
        *outputs, converged = integrate_rows(inputs, exponent, sloped)
        if not reads:
            by_pairs = _by_pairs(inputs, exponent, sloped)
            kept = (converged & _is_shared(spread)).reshape(-1, 1, 1)
            kinds = zip((kept.squeeze(-1), kept, kept), outputs, by_pairs, strict=True)
            return [torch.where(*x) for x in kinds]
        failed = (~converged).nonzero().squeeze(-1)
        if len(failed):
            supports = loc.index_select(0, failed), scale_tril.index_select(0, failed)
            by_pairs = _by_pairs((*supports, centers, spread), exponent, sloped)
            for x, y in zip(outputs, by_pairs, strict=True):
                x.index_copy_(0, failed, y)
        return outputs


def _by_pairs(inputs: Four, exponent: float, sloped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `_compute` by the contours of pairs, with the coordinates' axes."""
    loc, _, centers, _ = inputs
    rows, dim = loc.shape
    axes = torch.eye(dim, dtype=torch.float64, device=loc.device).expand(rows, -1, -1)
    if sloped:
        return *_slopes_of_pairs(inputs, axes, exponent), axes
    return gaussians_by_pairs(inputs, exponent), loc.new_empty(rows, 0, len(centers)), axes


def _forward(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, exponent: float
) -> list[Tensor]:
    """Return values (R, N), and their slopes and axes, see `integrate_rows`."""
    outputs: list[Tensor] = _row_operator(loc, scale_tril, centers, spread, exponent, True)
    return outputs


def _like_rows(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, _: Tensor, exponent: float, sloped: bool
) -> list[Tensor]:
    """Return empty tensors of the shapes of the outputs of `_compute`."""
    rows, dim = loc.shape
    slopes = loc.new_empty(rows, sloped * dim * (dim + 3) // 2, len(centers))
    axes = scale_tril.new_empty(rows, dim, dim, dtype=torch.float64)
    return [loc.new_empty(rows, len(centers)), slopes, axes]


def _pull_back(kept: Any, grads: Changes, _: Sequence[bool]) -> Changes:
    """Return gradients in loc and scale_tril; second derivatives by the contours of pairs.

    The arguments of `_forward`, the slopes and the axes are kept.
    """
    loc, scale_tril, centers, spread, exponent, slopes, axes = kept
    grad, by_slopes = grads[:2]
    gradients: list[Tensor | None] = [None, None]
    if grad is not None:
        gradients = [*_pull_values_back(grad, kept[:4], slopes, axes)]
    if by_slopes is not None and not compiled():

        def of_pairs(loc: Tensor, scale_tril: Tensor) -> Tensor:
            return _slopes_of_pairs((loc, scale_tril, centers, spread), axes, exponent)[1]

        with torch.enable_grad():
            above = torch.func.vjp(of_pairs, loc, scale_tril)[1](by_slopes)
        gradients = [b if a is None else a + b for a, b in zip(gradients, above, strict=True)]
    return gradients


# Compiled graphs could not fuse its products of matrices. Slopes are results so that they can be
# differentiated.
_row_operator = operator("ball_rows", _compute, _like_rows)
_expectations = differentiable(
    _forward, _pull_back, lambda inputs, outputs: (*inputs, *outputs[1:]), constants=(2,)
)


# The sum over nodes


def integrate_rows(
    inputs: Four, exponent: float, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return expectations (R, N), slopes (R, S, N), axes (R, D, D) and which rows converged (R).

    Columns of `axes` are the axes of the supports. Slopes are relative to the width: derivatives
    along the axes in loc and, twice, in A = L L', one diagonal of it after the other.

    Args:
        inputs: loc (R, D), scale_tril (R, D, D), centers (N, D) and standard deviations (N,), of
            which only the first is used.
        exponent: m.
        sloped: Whether slopes are wanted; else S is 0.
    """
    loc, scale_tril, centers, spread = inputs
    width, dim = spread[0].double(), loc.shape[-1]
    axes, lengths = orthogonalize(scale_tril.double().mT / width)
    contours, longest = _contours(exponent, dim, loc.device), lengths.amax(-1)
    level = torch.bucketize(longest, contours.lengths)
    served, level = level < len(contours.counts), level.clamp(max=len(contours.counts) - 1)
    turns, squares, z = axes.mT.contiguous(), lengths.square(), (2.5 * longest + 4).unsqueeze(-1)
    # Chernoff's bound: at any real z > 0 the integrand bounds the integral. Beyond the cutoffs its
    # exponent z - sum_d z y_d^2 / (2 z + sigma_d^2) is below LOG_ZERO. Along one axis this
    # begins nearest to the support for z = sigma sqrt(-LOG_ZERO / 2) = 2.55 sigma.
    cutoffs = 1 / ((squares + 2 * z) * (1 - LOG_ZERO / z))
    rows = _Rows(turns, turns @ (loc.double() / width).unsqueeze(-1), squares, cutoffs, level)
    points = centers.double().mT / width
    if values_are_readable(*inputs):
        sums, largest = _sum_in_order(rows, points, contours, sloped, loc.dtype)
    else:
        sums, largest = _sum_blocks(rows, points, contours, None, sloped, loc.dtype)
    scale = width**-dim
    values = sums[:, 0] * scale
    top = values.amax(-1)
    # False where a sum overflows, too.
    near = (top / scale - _LEAST_FRACTION * largest >= 0) & (top < math.inf)
    return values, sums[:, 1:], axes, near & served


class _Rows(NamedTuple):
    """Supports, in units of the width and float64."""

    turns: Tensor  # Their axes, in rows, (r, D, D)
    middles: Tensor  # Their centers along these, (r, D, 1)
    squares: Tensor  # Of the half-axes, (r, D)
    cutoffs: Tensor  # Values are zero where squared offsets times these sum to above 1, (r, D)
    level: Tensor  # The indices of their contours, (r)

    def block(self, start: int, end: int) -> "_Rows":
        """Return the rows of a range."""
        return _Rows(*(x[start:end] for x in self))


def _sum_blocks(
    rows: _Rows,
    points: Tensor,
    contours: Contours,
    count: int | None,
    sloped: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute `_sum_nodes` of the first `count` nodes, or of all, in blocks of rows.

    Args:
        rows: R supports.
        points: Centers of the Gaussians in widths (D, N).
        contours: The contours of the exponent.
        count: The number of nodes; None for all.
        sloped: As for `integrate_rows`.
        dtype: Of the results.
    """
    total, size = len(rows.level), points.shape[1]
    waves = (count or max(contours.counts)) * size
    most = _BLOCK if points.is_cpu else _DEVICE_BLOCK
    step = total if total * waves <= 2 * most else max(1, most // waves)
    blocks = [rows.block(start, start + step) for start in range(0, max(total, 1), max(step, 1))]
    sums = [_sum_nodes(x, points, contours.of(x.level, count), sloped, dtype) for x in blocks]
    if len(sums) == 1:
        return sums[0]
    values, largest = zip(*sums, strict=True)
    return torch.cat(values), torch.cat(largest)


def _sum_in_order(
    rows: _Rows, points: Tensor, contours: Contours, sloped: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute `_sum_nodes` in blocks of rows that have one contour and reach as many centers.

    Each block sums over the centers near to its rows only, where values are not zero. Arguments are
    as for `_sum_blocks`.
    """
    (dim, size), total = points.shape, len(rows.level)
    count = contours.counts[int(rows.level.amax())] if total else 1
    if total * size * count <= 2 * _BLOCK:
        return _sum_blocks(rows, points, contours, count, sloped, dtype)
    near = _near(rows, points)
    reached = near.sum(-1)
    if int(reached.sum()) > _MOST_REACHED * total * size:
        return _sum_blocks(rows, points, contours, count, sloped, dtype)
    # By contour, and then from many centers to few: the first row of a block reaches the most.
    order = (rows.level * (size + 1) - reached).argsort(stable=True)
    rows = _Rows(*(x.index_select(0, order) for x in rows))
    near, reached = near.index_select(0, order), reached.index_select(0, order)
    levels, counts = rows.level.tolist(), reached.tolist()
    outputs = torch.zeros(len(levels), 1 + sloped * dim * (dim + 3) // 2, size, dtype=dtype)
    largest, start = rows.squares.new_empty(len(levels)), 0
    # One column more, for rows that reach fewer centers than others of their block.
    wider = torch.nn.functional.pad(points, (0, 1))
    while start < len(levels):
        level, most = levels[start], max(1, counts[start])
        n = contours.counts[level]
        most = size if most > _MOST_REACHED * size else most
        # Rows from `start` on that fit the cache, up to the last one with the same contour.
        end = start + max(1, _BLOCK // (n * most))
        end = min(end, start + levels[start:end].count(level))
        block, nodes = rows.block(start, end), contours.of(slice(level, level + 1), n)
        if most == size:
            sums, top = _sum_nodes(block, points, nodes, sloped, dtype)
        else:
            index = _columns(near[start:end], reached[start:end], most)
            nearest = wider.index_select(1, index.flatten()).reshape(dim, end - start, most)
            near_sums, top = _sum_nodes(block, nearest.movedim(0, 1), nodes, sloped, dtype)
            # Each sum goes to the column of its center, and padding to the further column.
            sums = near_sums.new_zeros(*near_sums.shape[:2], size + 1)
            sums = sums.scatter_(-1, index.unsqueeze(1).expand_as(near_sums), near_sums)[..., :size]
        outputs.index_copy_(0, order[start:end], sums)
        largest.index_copy_(0, order[start:end], top)
        start = end
    return outputs, largest


def _near(rows: _Rows, points: Tensor) -> Tensor:
    """Return a mask (R, N) of the centers near to each support, up to rounding in float32."""
    dim, size = points.shape
    scales = rows.cutoffs.sqrt().unsqueeze(-1)
    turns, middles = (scales * rows.turns).float(), (scales * rows.middles).float()
    step, masks = max(1, _BLOCK // size), []
    for block in zip(turns.split(step), middles.split(step), strict=True):
        turn, middle = (x.reshape(-1, x.shape[-1]) for x in block)
        offsets = torch.addmm(middle, turn, points.float(), beta=-1).square_()
        masks.append(offsets.reshape(-1, dim, size).sum(1) <= 1)
    return torch.cat(masks)


def _columns(near: Tensor, reached: Tensor, most: int) -> Tensor:
    """Return the indices (r, most) of centers near to each row, padded with N, their number.

    Args:
        near: Mask of the centers near to each row (r, N).
        reached: How many these are (r,).
        most: The greatest of these numbers.
    """
    count, size = near.shape
    flat, row_numbers = near.flatten().nonzero().squeeze(-1), torch.arange(count)
    row = row_numbers.repeat_interleave(reached)
    # The k-th center of a row goes to slot row * most + k of the flat result.
    slots = torch.arange(len(flat)) + (row_numbers * most - reached.cumsum(0) + reached)[row]
    index = torch.full((count * most,), size)
    return index.index_copy_(0, slots, flat - row * size).reshape(count, most)


def _sum_nodes(
    rows: _Rows,
    points: Tensor,
    contour: tuple[Tensor, Tensor],
    sloped: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return values and slopes (r, 1 + S, N), w = 1, and the largest value of any center (r).

    Args:
        rows: r supports.
        points: Centers of the Gaussians in widths, (D, N) or (r, D, N).
        contour: Nodes and their factors, (r or 1, n) each.
        sloped: Whether slopes are wanted; else S is 0.
        dtype: Of waves; factors of their exponents are computed in float64.
    """
    nodes, front = contour
    dim, n = points.shape[-2], nodes.shape[-1]
    nodes = nodes.unsqueeze(1)
    inverse = (nodes + 0.5 * rows.squares.unsqueeze(-1)).reciprocal()
    ratio, half = nodes * inverse, 0.5 * inverse
    # Arguments of inverses are between -pi and 0. A product of two may be below -pi, on another
    # branch of `sqrt`: its root is -i sqrt(-product), and `front` has the factor -i.
    front = front * (-inverse[:, 0] * inverse[:, 1]).sqrt()
    if dim == 3:
        front = front * inverse[:, 2].sqrt()
    # At the middle of a support, where the largest value is, all waves are 1.
    largest, front = front.real.sum(-1), front.unsqueeze(1)
    # The logarithms of sizes of waves, their phases, and a sum that is below 1 near the support.
    # With ratio = 2 z / (2 z + sigma^2), the exponent is -ratio y^2 / 2 along each axis.
    logs = torch.cat([ratio.real, ratio.imag, -2 * rows.cutoffs.unsqueeze(-1)], -1).to(dtype).mT
    if sloped:
        along = front * ratio
        second = [along[:, gap:] * half[:, : dim - gap] for gap in range(dim)]
        front = torch.cat([front, along, *second, front * half], 1)
    # Offsets in float64: a float32 rotation would move a distant center along a thin support.
    centers = points.expand(len(rows.turns), -1, -1)
    offsets = torch.baddbmm(rows.middles, rows.turns, centers, beta=-1).to(dtype)
    waves = logs @ (-0.5 * offsets * offsets)
    near = (waves[:, 2 * n :] <= 1).to(dtype)
    # Elsewhere waves vanish or overflow, which takes long: they are clamped, and not used.
    sizes, phases = waves[:, :n].clamp(-_LARGE, _LARGE).exp_(), waves[:, n : 2 * n]
    sums = front.real.to(dtype) @ phases.cos().mul_(sizes)
    sums = torch.baddbmm(sums, front.imag.to(dtype), phases.sin_().mul_(sizes), alpha=-1)
    if not sloped:
        return sums * near, largest
    # Values, derivatives along the axes, and one diagonal of second derivatives after the other.
    terms, start = [sums[:, :1], offsets * sums[:, 1 : 1 + dim]], 1 + dim
    for gap in range(dim):
        end = start + dim - gap
        terms.append(offsets[:, gap:] * offsets[:, : dim - gap] * sums[:, start:end])
        start = end
    # Twice the derivative in A of a Gaussian: offsets squared, less a term on the main diagonal.
    terms[2] = terms[2] - sums[:, start:]
    return torch.cat(terms, 1).mul_(near), largest


@cache
def _contours(exponent: float, dim: int, device: torch.device) -> Contours:
    """Return the contours of an exponent (P), cached, with their factors for D dimensions.

    Padding nodes are at i, where the integrand is finite.
    """
    fitted = next(x for most, x in CONTOURS.items() if exponent <= most)
    counts = [count for count, _ in fitted.values()]
    nodes, fronts = np.zeros((2, len(fitted), max(counts)), np.complex128)
    nodes += 1j
    for p, (count, shape) in enumerate(fitted.values()):
        nodes[p, :count], fronts[p, :count] = hyperbola(count, shape, exponent, dim)
    lengths = constant(np.array([*fitted]), torch.float64, device)
    tables = (constant(x, torch.complex128, device) for x in (nodes, -1j * fronts))
    return Contours(lengths, counts, *tables)


def hyperbola(
    count: int, shape: Sequence[float], exponent: float, dim: int
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return the nodes of a hyperbola and their factors, both complex (n).

    The midpoint rule on z(t) = size (1 + sin(i t - angle)), with t stretched toward its end; see
    Weideman and Trefethen (2007), Parabolic and hyperbolic contours. Math. Comp. 76.
    """
    size, angle, step, stretch = shape
    t = (np.arange(count) + 0.5) * step
    argument = -angle + 1j * t * (1 + stretch * t * t)
    nodes = size * (1 + np.sin(argument))
    moves = np.cos(argument) * (1 + 3 * stretch * t * t)
    front = math.lgamma(exponent + 1 + dim / 2) - 0.5 * dim * math.log(2 * math.pi)
    front += math.log(size * step / math.pi)
    return nodes, np.exp(np.log(moves) + nodes - (exponent + 1) * np.log(nodes) + front)
