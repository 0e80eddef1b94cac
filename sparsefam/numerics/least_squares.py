"""Normal equations of least squares: their sums over chunks of the observations, and solutions."""

from collections.abc import Callable
from functools import partial, reduce

import torch
from torch import Size, Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from .b_splines import nonzero_splines
from .validation import in_eager

__all__ = [
    "add_event_dims",
    "band_sums",
    "blocks",
    "eliminate",
    "normal_sums",
    "solve_band",
    "solve_shared",
    "tensors_of",
]

Sums = tuple[Tensor, Tensor, Tensor]
_Chunk = tuple[Tensor, Tensor, Tensor | None]

# Rows of a block of a band matrix, at least: where small batched products are fast.
_ROWS = 8


def normal_sums(
    design: nn.Module, positions: Tensor, values: Tensor, mask: Tensor | None, rows: int
) -> Sums:
    r"""Compute $F^\top F$, $F^\top H$ and $\lVert H \rVert^2$ in float64.

    $F$ exists for one chunk of rows at a time, and the backward pass evaluates it again. Compiled
    graphs and transforms of `torch.func` keep what their derivatives need of it.

    Args:
        design: Maps locations (S, l, *event) in float64 to rows of $F$, shape (S, l, N).
        positions: Shape (S, L, *event), where S is B, or 1 if all examples share their positions.
        values: $H$, shape (B, L, E).
        mask: Shape (B, L), True where a row counts. Nothing else is read. None: all rows count.
        rows: Number of rows of a chunk.

    Returns:
        Tensors of shape (S, N, N), (B, N, E) and (B,); the first is (B, N, N) if there is a mask.
    """
    state, chunks = tensors_of(design), _chunks(positions, values, mask, rows)
    products: Callable[..., tuple[Tensor, Tensor]] = _products
    if len(chunks) > 1 and in_eager():
        products = partial(checkpoint, _products, use_reentrant=False, preserve_rng_state=False)
    terms = []
    for t, h, taken in chunks:
        squares = torch.linalg.vector_norm(_mask(h, taken), dim=(1, 2), dtype=torch.float64) ** 2
        terms.append((*products(design, tuple(state), t, h, taken, *state.values()), squares))
    return reduce(_add, terms)


def _chunks(positions: Tensor, values: Tensor, mask: Tensor | None, rows: int) -> list[_Chunk]:
    """Divide observations by `split`: the gradient of a slice would be as large as the whole."""
    if len(blocks(values.shape[1], rows)) == 1:
        return [(positions, values, mask)]
    parts = [x.split(rows, 1) for x in (positions, values)]
    masks = [None] * len(parts[0]) if mask is None else mask.split(rows, 1)
    return list(zip(*parts, masks, strict=True))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Collect parameters, buffers, and attributes, which some wrappers make of parameters."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    modules = () if torch.compiler.is_compiling() else module.named_modules()  # for torch 2.11
    for prefix, part in modules:
        for name, x in vars(part).items():
            if isinstance(x, Tensor):
                tensors[f"{prefix}.{name}" if prefix else name] = x
    return tensors


def _prepare(x: Tensor, mask: Tensor | None) -> Tensor:
    """Convert to float64, with zeros where masked, before any arithmetic: 0 times NaN is NaN."""
    return _mask(x, mask).double()


def _mask(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(add_event_dims(mask, x.shape[2:]), x, 0)


def _products(
    design: nn.Module,
    names: tuple[str, ...],
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *parameters: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the products with the rows of the design for some parameters."""
    state = dict(zip(names, parameters, strict=True))
    f = _prepare(functional_call(design, state, (_prepare(positions, mask),)), mask)
    h = _prepare(values, mask)
    cross = _as_examples(f.mT @ _as_columns(h, f.shape[0]), h)
    # Last, as a checkpoint repeats nothing after the last product with a derivative.
    return f.mT @ f, cross


def _add(a: Sums, b: Sums) -> Sums:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def band_sums(
    knots: Tensor, degree: int, positions: Tensor, values: Tensor, mask: Tensor | None, rows: int
) -> Sums:
    """Compute the sums of `normal_sums` for B-splines; of the first, the bands for `solve_band`."""
    chunks = _chunks(positions, values, mask, rows)
    return reduce(_add, (_band_sums(knots, degree, *chunk) for chunk in chunks))


def _band_sums(
    knots: Tensor, degree: int, positions: Tensor, values: Tensor, mask: Tensor | None
) -> Sums:
    h = _prepare(values, mask)
    index, f = nonzero_splines(knots, degree, _prepare(positions, mask))
    f = _prepare(f, mask)
    columns, (examples, size) = _as_columns(h, len(f)), (len(f), len(knots) - degree - 1)
    gram = f.new_zeros(examples * size, degree + 1)
    cross = f.new_zeros(examples * size, columns.shape[-1])
    index = index + size * torch.arange(examples, device=f.device)[:, None, None]
    for k in range(degree + 1):
        to, each = index[..., k].flatten(), f[..., k : k + 1]
        gram = gram.index_put((to,), pad(each * f[..., k:], (0, k)).flatten(0, 1), accumulate=True)
        cross = cross.index_put((to,), (each * columns).flatten(0, 1), accumulate=True)
    gram, cross = (x.reshape(examples, size, x.shape[-1]) for x in (gram, cross))
    return gram, _as_examples(cross, h), h.square().sum((1, 2))


def solve_shared(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A X = Y$ for positive definite A, which examples may share.

    Args:
        matrix: A, shape (S, N, N), or its bands (S, N, p + 1) as in `solve_band`.
        right: Y, shape (B, N, E), where S is B or 1.

    Returns:
        X, and the least squared pivot of each matrix (S,), 0 or NaN if one is not positive.
    """
    columns = _as_columns(right, matrix.shape[0])
    if matrix.shape[-1] != matrix.shape[-2]:
        solution, pivots = solve_band(matrix, columns)
    else:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        solution, pivots = torch.cholesky_solve(columns, factor), _least_pivot(factor, failed)
    return _as_examples(solution, right), pivots


def solve_band(band: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve $A X = Y$ for positive definite A with p bands on either side of the diagonal.

    In blocks of at least p rows the matrix is block tridiagonal. Every other block is eliminated at
    once, which leaves such a matrix of half as many blocks: $O(\log N)$ steps, $O(N p (p + E))$
    work, and the errors of a Cholesky factorisation, as it is one in another order.

    References:
        Heller (1976), Some aspects of the cyclic reduction algorithm for block tridiagonal linear
        systems. SIAM J. Numerical Analysis 13.

    Args:
        band: The diagonal and the bands on its right, shape (S, N, p + 1): entry (j, m) is
            $A_{j, j + m}$, and zero where there is none.
        right: Y, shape (S, N, E).

    Returns:
        X, and the smallest squared pivot of each matrix (S,), 0 or NaN if one is not positive.
    """
    size, width = band.shape[1:]
    count = 1
    while 2 * count * max(_ROWS, width - 1) <= size:
        count *= 2
    rows = -(-size // count)
    diagonal, upper = _blocks(band, count, rows)
    right = pad(right, (0, 0, 0, count * rows - size)).unflatten(1, (count, rows))
    levels, pivots = [], []
    while True:
        # Blocks with an even index are eliminated, with an odd one they stay.
        factor, failed = torch.linalg.cholesky_ex(diagonal[:, ::2])
        pivots.append(_least_pivot(factor, failed).amin(1))
        if diagonal.shape[1] == 1:
            break
        before = pad(upper[:, 1:-1:2].mT, (0, 0, 0, 0, 1, 0))
        columns = torch.cat([before, upper[:, ::2], right[:, ::2]], -1)
        solved = torch.linalg.solve_triangular(factor, columns, upper=False)
        levels.append((factor, solved))
        # Each block that stays has one on its left, and, but for the last, one on its right.
        later = pad(solved[:, 1:], (0, 0, 0, 0, 0, 1))
        by_left = solved[..., rows : 2 * rows].mT @ solved[..., rows:]
        by_right = later[..., :rows].mT @ later
        diagonal = diagonal[:, 1::2] - by_left[..., :rows] - by_right[..., :rows]
        upper = -by_right[..., rows : 2 * rows]
        right = right[:, 1::2] - by_left[..., rows:] - by_right[..., 2 * rows :]
    x = torch.cholesky_solve(right, factor)
    for factor, solved in reversed(levels):
        before, after, y = solved.tensor_split((rows, 2 * rows), -1)
        rest = y - before @ pad(x[:, :-1], (0, 0, 0, 0, 1, 0)) - after @ x
        even = torch.linalg.solve_triangular(factor.mT, rest, upper=True)
        x = torch.stack([even, x], 2).flatten(1, 2)
    return x.flatten(1, 2)[:, :size], torch.stack(pivots).amin(0)


def _least_pivot(factor: Tensor, failed: Tensor) -> Tensor:
    """Return the least squared pivot of Cholesky factors (..., N, N), 0 where they failed."""
    pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    return torch.where(failed == 0, pivots, 0)


def _blocks(band: Tensor, count: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the blocks on the diagonal and on its right, each (S, count, rows, rows)."""
    size, width = band.shape[1:]
    # Further equations, of a size with the others: A_11 x = 0.
    more = pad(band[:, :1, :1], (0, width - 1)).expand(-1, count * rows - size, -1)
    band = torch.cat([band, more], 1).unflatten(1, (count, rows))
    each = torch.arange(2 * rows, device=band.device)
    offset = each - each[:rows].unsqueeze(-1)
    index = offset.clamp(0, width - 1).expand(*band.shape[:2], -1, -1)
    within = (offset >= 0) & (offset < width)
    half, upper = torch.where(within, band.gather(-1, index), 0).split(rows, -1)
    return half + half.triu(1).mT, upper


def eliminate(matrix: Tensor, right: Tensor) -> Tensor:
    r"""Solve $A X = Y$ for positive definite A (S, N, N) by Gauss-Jordan elimination."""
    size = matrix.shape[-1]
    rows = torch.cat([matrix, _as_columns(right, matrix.shape[0])], -1)
    for k, unit in enumerate(torch.eye(size, dtype=rows.dtype, device=rows.device)):
        column = rows[..., k : k + 1]
        rows = rows - (column - unit.unsqueeze(-1)) * rows[:, k : k + 1] / column[:, k : k + 1]
    return _as_examples(rows[..., size:], right)


def _as_columns(x: Tensor, count: int) -> Tensor:
    """Reshape (B, l, E) to (S, l, B/S * E): examples that share a matrix are further columns."""
    x = x.reshape(count, x.shape[0] // max(count, 1), *x.shape[1:])
    return x.transpose(1, 2).flatten(2)


def _as_examples(x: Tensor, like: Tensor) -> Tensor:
    """Undo `_as_columns` for examples like (B, ..., E)."""
    each = like.shape[0] // max(x.shape[0], 1)
    examples: Tensor = x.unflatten(2, (each, like.shape[-1])).transpose(1, 2).flatten(0, 1)
    return examples


def add_event_dims(mask: Tensor, event: Size) -> Tensor:
    """Reshape a mask over locations to broadcast against locations of an event shape."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def blocks(length: int, rows: int) -> list[slice]:
    """Return slices of at most `rows` rows that cover `length`, at least one slice."""
    # A graph of dynamic length need not know how many there are, and an exported one cannot.
    if torch.compiler.is_exporting() or length <= rows:
        return [slice(None)]
    return [slice(start, start + rows) for start in range(0, length, rows)]
