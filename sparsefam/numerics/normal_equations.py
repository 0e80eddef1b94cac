"""What a least-squares fit needs of its observations: sums over them, a block of rows at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from .validation import in_eager

__all__ = ["Design", "blocks", "normal_sums", "over_events"]

Design = Callable[..., Tensor]
Sums = tuple[Tensor, Tensor, Tensor]


def normal_sums(
    design: Design,
    rows: int,
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    parameters: tuple[Tensor, ...],
    square: bool = True,
) -> Sums:
    r"""The sums $F^\top F$, $F^\top H$ and $\lVert H \rVert^2$ over observations, in float64.

    $F_{\ell j} = \psi_j(t_\ell)$ and $H$ are formed `rows` rows at a time, for backward once more,
    half as many at a time, so that neither pass holds more of them. Of more than one block there is
    no forward-mode derivative.

    Args:
        design: Positions (S, l, *event) in float64 and parameters to $\psi$, (S, l, N).
        rows: Rows of a block.
        positions: Shape (S, L, *event), where S is B or 1.
        values: $H$, shape (B, L, E).
        mask: Shape (B, L), True where a row counts; others are never read. None: all count.
        parameters: What the design depends on besides positions; nothing else gets gradients.
        square: Whether $F^\top F$ is wanted; a 0 takes its place if not.

    Returns:
        Shapes (S, N, N), (B, N, E) and (B,); the first (B, N, N) with a mask.
    """
    if values.shape[1] <= rows:
        return _sums(design, square, positions, values, mask, *parameters)
    sums: Sums = _NormalSums.apply(design, rows, square, positions, values, mask, *parameters)
    return sums


def over_events(mask: Tensor, event: Size) -> Tensor:
    """A mask over locations, to broadcast against locations of an event shape."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def blocks(length: int, rows: int) -> list[slice]:
    """Slices of at most so many rows, at least one."""
    if length <= rows:  # and no graph need know how many exactly
        return [slice(None)]
    return [slice(start, start + rows) for start in range(0, length, rows)]


def _sums(
    design: Design,
    square: bool,
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *parameters: Tensor,
) -> Sums:
    """All at once."""
    found, h = _block(design, positions, values, mask, *parameters)
    gram = found.mT @ found if square else found.new_zeros(())
    return gram, _examples(found.mT @ _columns(h, found), h), _energy(h)


def _block(
    design: Design, positions: Tensor, values: Tensor, mask: Tensor | None, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    t, h = _counted(mask, positions, values)
    (found,) = _counted(mask, design(t, *parameters))
    return found, h


def _columns(x: Tensor, found: Tensor) -> Tensor:
    """(B, l, E) to (S, l, C E): those of the C examples that share each of S designs."""
    each = len(x) // max(len(found), 1)
    return x.reshape(len(found), each, *x.shape[1:]).transpose(1, 2).flatten(2)


def _examples(x: Tensor, like: Tensor) -> Tensor:
    """The other way, of values like these (B, ..., E)."""
    each = len(like) // max(len(x), 1)
    found: Tensor = x.unflatten(2, (each, like.shape[-1])).transpose(1, 2).flatten(0, 1)
    return found


def _energy(h: Tensor) -> Tensor:
    return h.square().sum((-2, -1))


def _counted(mask: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
    """In float64, and zero where the mask says.

    Before arithmetic, as gradients are zero times what junk becomes.
    """
    if mask is None:
        return tuple(x.double() for x in parts)
    return tuple(torch.where(over_events(mask, x.shape[2:]), x.double(), 0) for x in parts)


class _NormalSums(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        design: Design,
        rows: int,
        square: bool,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None,
        *parameters: Tensor,
    ) -> Sums:
        sums: Any = (None, None, None)
        for block in blocks(values.shape[1], rows):
            found, h = _block(design, *_rows(block, positions, values, mask), *parameters)
            gram = _grown(sums[0], found, found) if square else found.new_zeros(())
            cross = _grown(sums[1], found, _columns(h, found))
            sums = gram, cross, _total(sums[2], _energy(h))
        gram, cross, energy = sums
        return gram, _examples(cross, values), energy

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Sums) -> None:
        ctx.design, ctx.rows, _, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        positions, values, mask, *parameters = ctx.saved_tensors
        _, _, _, *needed = ctx.needs_input_grad
        learned = [i for i, need in enumerate(needed[3:]) if need]

        def design(t: Tensor, *some: Tensor) -> Tensor:
            now = dict(enumerate(parameters)) | dict(zip(learned, some, strict=True))
            found: Tensor = ctx.design(t, *now.values())
            return found

        pull = _Pull(design, [parameters[i] for i in learned], needed[0], needed[1], slopes)
        by_position, by_value = _Rows(positions), _Rows(values)
        by_parameter: list[Tensor | None] = [None] * len(parameters)
        # A row takes twice as much as in forward.
        for block in blocks(values.shape[1], max(1, ctx.rows // 2)):
            of_t, of_h, of_learned = pull(*_rows(block, positions, values, mask))
            by_position.put(block, of_t)
            by_value.put(block, of_h)
            for i, more in zip(learned, of_learned, strict=True):
                by_parameter[i] = _total(by_parameter[i], more)
        return None, None, None, by_position.whole, by_value.whole, None, *by_parameter


def _grown(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """A total, in place where that is possible, and a block's product."""
    if total is None:
        return left.mT @ right
    return total.baddbmm_(left.mT, right) if in_eager() else total + left.mT @ right


def _total(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that there are."""
    total = None
    for term in terms:
        total = term if total is None else total if term is None else total + term
    return total


def _rows(block: slice, *parts: Tensor | None) -> Any:
    return tuple(None if part is None else part[:, block] for part in parts)


class _Rows:
    """A tensor like another, put together from blocks of rows; None without any."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.whole: Tensor | None = None

    def put(self, block: slice, part: Tensor | None) -> None:
        """Sets a block of rows."""
        if part is None:
            return
        if self.whole is None:
            self.whole = part.new_empty(self.like.shape, dtype=self.like.dtype)
        self.whole[:, block] = part


class _Pull(NamedTuple):
    """Gradients in a block's positions, values and learned parameters, from those in the sums.

    Of the design only where one of them needs it.
    """

    design: Design
    learned: list[Tensor]
    at_positions: bool
    at_values: bool
    slopes: tuple[Tensor | None, ...]

    def __call__(
        self, positions: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Sequence[Tensor]]:
        t, h = _counted(mask, positions, values)
        if not (self.at_positions or self.learned):
            (found,) = _counted(mask, self.design(t))
            return None, self._by_value(found, h, mask), []
        raw, back, *_ = torch.func.vjp(self.design, t, *self.learned)
        (found,) = _counted(mask, raw)
        by_position, *by_learned = back(self._by_found(found, h, mask))
        by_value = self._by_value(found, h, mask)
        # With a mask, positions that examples share become each one's own.
        of_t = by_position.sum_to_size(positions.shape) if self.at_positions else None
        return of_t, by_value, by_learned

    def _by_value(self, found: Tensor, h: Tensor, mask: Tensor | None) -> Tensor | None:
        if not self.at_values:
            return None
        _, of_cross, of_energy = self.slopes
        by_cross = None
        if of_cross is not None:
            by_cross = _examples(found @ _columns(of_cross, found), h)
        by_energy = None if of_energy is None else 2 * h * of_energy[:, None, None]
        total = _total(by_cross, by_energy)
        return None if total is None else _counted(mask, total)[0]

    def _by_found(self, found: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
        of_gram, of_cross, _ = self.slopes
        by_gram = None
        if of_gram is not None and of_gram.ndim:
            by_gram = found @ (of_gram + of_gram.mT)
        by_cross = None
        if of_cross is not None:
            by_cross = _columns(h, found) @ _columns(of_cross, found).mT
        total = _total(by_gram, by_cross)
        return torch.zeros_like(found) if total is None else _counted(mask, total)[0]
