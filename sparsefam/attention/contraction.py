"""Contexts of many queries: expectations of value functions, a block of queries at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn

from ..bases import Basis
from ..distributions import Mixture, SparseDistribution
from ..distributions.standardized import StandardizedDistribution
from ..numerics.arguments import in_eager
from ..numerics.least_squares import blocks, tensors_of
from .antiderivatives import Cells, cells_of
from .tabled import is_parabola, tabled_contexts, tabled_slopes

__all__ = ["contexts"]

# Expectations in a block: a few tensors of so many numbers fit the cache, and two threads are worth
# their while. Fewer than four blocks are not made.
_PAIRS = 40960
# A table takes as long as so many expectations for each of its cells, and to read it as so few.
_TO_MAKE, _TO_READ = 2048, 16
# Gradients in what is no tensor.
_NOTHING = (None, None, None)


def contexts(density: SparseDistribution, basis: Basis, coefficients: Tensor) -> Tensor:
    r"""Contexts $\mathbb E_p[\psi]^\top C$ by head, (B, Lq, heads, E).

    The expectations of N functions for each query and head are more numbers than all others of an
    attention layer. Where they are many they are made, contracted and forgotten block by block, and
    once more in backward: it is the one loop over queries, each step of which is large. Compiled
    graphs, `torch.func`, second derivatives and kernel scores do without.

    Args:
        density: Of batch shape (B, heads, Lq).
        basis: The N functions $\psi$.
        coefficients: Those of the value functions, shape (B, N, heads, E).
    """
    by_head = coefficients.transpose(1, 2)
    if not in_eager() or density.batch_shape.numel() * len(basis) < 4 * _PAIRS:
        return _contract(density, basis, by_head)
    parts = _parts(density)
    if parts is None:
        return _contract(density, basis, by_head)
    state = tensors_of(basis)
    expect = _Expect(basis, tuple(state))
    tensors = (*parts.tensors, *state.values())
    cells = _cells(density, basis, by_head)
    by_head = by_head.contiguous() if cells is None else by_head
    found: Tensor = _Blocks.apply(parts, expect, cells, by_head, *tensors)
    return found


def _cells(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Cells | None:
    """Of tables, one for each head; None where there are none, or too few queries to read them."""
    if by_head.dtype != torch.float32 or not is_parabola(density):
        return None
    cells, saved = cells_of(basis), density.batch_shape[-1] * (len(basis) - _TO_READ)
    return None if cells is None or saved < _TO_MAKE * cells.size else cells


def _contract(density: SparseDistribution, basis: Basis, by_head: Tensor) -> Tensor:
    features = density.expect(basis).to(by_head.dtype)
    return (features @ by_head).transpose(1, 2)


class _Expect(nn.Module):
    """Contexts with a basis whose tensors are given: in backward its own may be others by then."""

    def __init__(self, basis: Basis, names: tuple[str, ...]) -> None:
        super().__init__()
        self.basis, self.names = basis, names

    def forward(self, density: SparseDistribution, by_head: Tensor) -> Tensor:
        return _contract(density, self.basis, by_head)

    def under(
        self, tensors: Sequence[Tensor], density: SparseDistribution, by_head: Tensor
    ) -> Tensor:
        """Contexts, where these are the basis's tensors."""
        now = {f"basis.{name}": x for name, x in zip(self.names, tensors, strict=True)}
        found: Tensor = torch.func.functional_call(self, now, (density, by_head))
        return found


class _Parts(NamedTuple):
    """Tensors (B, heads, Lq, ...) that a density consists of, and how it is made of them."""

    tensors: tuple[Tensor, ...]
    build: Callable[..., SparseDistribution]


def _parts(density: SparseDistribution) -> _Parts | None:
    """None of a density that is not made of its own parameters alone."""
    if isinstance(density, StandardizedDistribution):
        return _own_parts(density)
    inner = density.components if isinstance(density, Mixture) else None
    parts = _parts(inner) if isinstance(inner, SparseDistribution) else None
    if parts is None:
        return None

    def build(logits: Tensor, *rest: Tensor) -> SparseDistribution:
        return Mixture(logits, parts.build(*rest), validate_args=False)

    return _Parts((density.logits, *parts.tensors), build)


def _own_parts(density: SparseDistribution) -> _Parts:
    names = ["alpha", *(name for name in density.arg_constraints if name != "alpha")]
    tensors = tuple(getattr(density, name) for name in names)
    rank = len(density.batch_shape)

    def build(*tensors: Tensor) -> SparseDistribution:
        new = density.expand(density.batch_shape)
        new.__dict__.update(zip(names, tensors, strict=True))
        new._batch_shape = Size(tensors[0].shape[:rank])
        return new

    return _Parts(tensors, build)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        parts: _Parts,
        expect: _Expect,
        cells: Cells | None,
        by_head: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.parts, ctx.expect, ctx.cells = parts, expect, cells
        ctx.save_for_backward(by_head, *tensors)
        own = tensors[: len(parts.tensors)]
        if cells is not None:
            return tabled_contexts(cells, by_head, *own[1:])
        examples, heads, queries = own[0].shape[:3]
        out = by_head.new_empty(examples, queries, heads, by_head.shape[-1])
        for some, block in _pieces(own[0], len(expect.basis)):
            density = parts.build(*(x[some, :, block] for x in own))
            out[some, block] = expect(density, by_head[some])
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        parts, expect, saved = ctx.parts, ctx.expect, ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            # For second derivatives, at once; of views, as one of these may depend on another.
            leaves, count = [x.view_as(x) for x in saved], 1 + len(parts.tensors)
            out = expect.under(leaves[count:], parts.build(*leaves[1:count]), leaves[0])
            wanted = [x for x, need in zip(leaves, needed, strict=True) if need]
            slopes = iter(
                torch.autograd.grad(out, wanted, upstream, create_graph=True, allow_unused=True)
            )
            return *_NOTHING, *(next(slopes) if need else None for need in needed)
        if ctx.cells is None or _is_mapped(upstream):
            return *_NOTHING, *_slopes(parts, expect, saved, needed, upstream)
        by_head, _, loc, scale = saved[:4]
        each = needed[0], needed[2], needed[3]
        found = tabled_slopes(ctx.cells, by_head, loc, scale, upstream, each)
        return *_NOTHING, found[0], None, *found[1:], *[None] * len(saved[4:])


def _is_mapped(x: Tensor) -> bool:
    """Whether this is one of many at once: of `torch.func.vmap`, or of `is_grads_batched`."""
    kinds = torch._C._functorch
    return kinds.is_batchedtensor(x) or kinds.is_legacy_batchedtensor(x)


def _slopes(
    parts: _Parts,
    expect: _Expect,
    saved: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    upstream: Tensor,
) -> list[Tensor | None]:
    """Gradients in what was saved: coefficients, the density's tensors, the basis's parameters."""
    count = len(parts.tensors)
    # New ones of what may be batched.
    totals = [
        upstream.new_zeros(x.shape, dtype=x.dtype) if need else None
        for x, need in zip(saved, needed, strict=True)
    ]
    for some, block in _pieces(saved[1], len(expect.basis)):
        rows: list[Any] = [some, *[(some, slice(None), block)] * count]
        places = rows + [None] * (len(saved) - len(rows))
        leaves = _leaves(saved, rows, needed)
        with torch.enable_grad():
            density = parts.build(*leaves[1 : 1 + count])
            out = expect.under(leaves[1 + count :], density, leaves[0])
        wanted = [x for x, need in zip(leaves, needed, strict=True) if need]
        slopes = iter(torch.autograd.grad(out, wanted, upstream[some, block], allow_unused=True))
        for total, place in zip(totals, places, strict=True):
            slope = None if total is None else next(slopes)
            if total is not None and slope is not None:
                (total if place is None else total[place]).add_(slope)
    return totals


def _leaves(saved: tuple[Tensor, ...], rows: list[Any], needed: tuple[bool, ...]) -> list[Tensor]:
    """A block's part of what has rows; the others, the basis's own, as they are and no copies."""
    parts = zip(saved, rows, needed, strict=False)
    own = [x[place].detach().requires_grad_(need) for x, place, need in parts]
    return [*own, *saved[len(rows) :]]


def _pieces(like: Tensor, functions: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of examples and queries of (B, heads, Lq, ...): of many examples, or of queries."""
    examples, heads, queries = like.shape[:3]
    width = heads * functions * like.shape[3:].numel()
    rows = max(1, _PAIRS // width)
    for some in blocks(examples, max(1, rows // queries)):
        for block in blocks(queries, rows):
            yield some, block
