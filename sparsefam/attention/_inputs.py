"""Checks of the inputs of a layer: shapes, dtypes, masks and positions."""

from typing import NamedTuple

import torch
from torch import Size, Tensor

from .._numerics.least_squares import zero_masked
from .._numerics.validation import require_tensor
from ..supports import Box
from ._masks import (
    AttentionMask,
    allowed_by,
    check_finite,
    check_mask,
    check_real,
    check_shape,
    is_autocasting,
    require_all,
)
from .scores import ends

__all__ = ["InputShapes", "Sequences", "check_sequence"]

# Fraction of the domain by which positions of queries may be outside of it, as by rounding.
_SLACK = 1e-2


class Sequences(NamedTuple):
    """Inputs of a layer that fit each other, batch first, with zeros where no query may read."""

    query: Tensor  # (B, Lq, embed_dim)
    key: Tensor  # (B, L, kdim)
    value: Tensor  # (B, L, vdim)
    positions: Tensor  # Where values were observed (B or 1, L, *event)
    mask: AttentionMask  # Positions that queries may read

    def check_values(self, reads_keys: bool, is_discrete: bool) -> None:
        """Raise ValueError if queries may read nothing, or numbers that are read are not finite.

        Args:
            reads_keys: Whether the layer reads keys, else they are not checked.
            is_discrete: Whether it has discrete scores, to which masks may add numbers.
        """
        self.mask.check(is_discrete)
        check_finite("query", self.query)
        check_finite("value", self.value)
        if reads_keys:
            check_finite("key", self.key)


class InputShapes(NamedTuple):
    """Sizes and domain that the inputs of a layer must fit."""

    embed_dim: int
    kdim: int
    vdim: int
    num_heads: int
    box: Box

    @property
    def event(self) -> Size:
        """The shape of a position."""
        return Size() if len(self.box) == 1 else Size([len(self.box)])

    def sequences(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        positions: Tensor | None,
        padding: Tensor | None,
        mask: Tensor | None,
        batch_first: bool,
        dtype: torch.dtype | None,
    ) -> Sequences:
        """Return the inputs of a layer, or raise ValueError unless they fit it and each other.

        Args:
            query: As for `ContinuousAttention.forward`, like the next five.
            key: See `query`.
            value: See `query`.
            positions: See `query`; None for the centers of cells of the domain.
            padding: The `key_padding_mask`.
            mask: The `attn_mask`.
            batch_first: Whether query, key and value are (B, L, channels).
            dtype: Dtype of the layer's parameters, None if unknown.
        """
        if key is None or value is None:
            rule = "key and value must be tensors, unless a function is given"
            raise ValueError(f"{rule}, got {type(key).__name__} and {type(value).__name__}")
        named = {"query": query, "key": key, "value": value}
        for name, x in named.items():
            check_sequence(name, x, dtype)
        hint = f" with batch_first={batch_first} (is the other setting meant?)"
        first = 0 if batch_first else 1
        batch, queries, length = query.shape[first], query.shape[1 - first], value.shape[1 - first]
        sizes = (queries, self.embed_dim), (length, self.kdim), (length, self.vdim)
        for (name, x), (size, channels) in zip(named.items(), sizes, strict=True):
            leading = (batch, size) if batch_first else (size, batch)
            check_shape(name, x, (*leading, channels), hint=hint)
        # Masks are batch first, whatever `batch_first` says.
        hint = f", always batch first,{hint}"
        if padding is not None:
            check_mask("key_padding_mask", padding, (batch, length), hint=hint, or_floating=True)
        if mask is not None:
            shapes = ((queries, length), (batch * self.num_heads, queries, length))
            check_mask("attn_mask", mask, *shapes, hint=hint, or_floating=True)
        if not batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        positions = self._positions(positions, value, padding)
        readable = AttentionMask.from_masks(padding, mask, batch, self.num_heads)
        # Masked numbers must be finite: zero gradients times infinite slopes are NaN.
        key, value, positions = (zero_masked(x, readable.observed) for x in (key, value, positions))
        return Sequences(query, key, value, positions, readable)

    def _positions(self, positions: Tensor | None, value: Tensor, padding: Tensor | None) -> Tensor:
        """Return positions (B or 1, L, *event), by default the centers of cells of the domain.

        The values (B, L, vdim), without padding, have one cell each.
        """
        batch, length = value.shape[:2]
        if positions is None:
            if self.event:
                raise ValueError(f"positions must be given in {len(self.box)} dimensions, got None")
            dtype = torch.promote_types(value.dtype, torch.float32)
            observed = value.new_ones(length) if padding is None else allowed_by(padding)
            # The center of cell k of n: (k - 1/2) / n, counting values that are observed.
            order = observed.to(dtype).cumsum(-1)
            ((low, high),) = self.box
            positions = low + (high - low) * (order - 0.5) / order[..., -1:]
        return self.checked_positions("positions", positions, batch, length)

    def checked_positions(self, name: str, x: Tensor, batch: int, length: int) -> Tensor:
        """Return positions (B or 1, length, *event), or raise ValueError.

        Args:
            name: Of the positions in messages.
            x: Shape (B, length, *event), (1, length, *event) or (length, *event).
            batch: B, the number of examples.
            length: The number of positions of an example.
        """
        check_real(name, x)
        shared = (length, *self.event)
        check_shape(name, x, (batch, *shared), (1, *shared), shared)
        return x.unsqueeze(0) if x.ndim == len(shared) else x

    def require_inside(self, name: str, positions: Tensor, mask: Tensor | None) -> None:
        """Raise ValueError unless positions (B or 1, Lq, *event) of queries are in the domain.

        They may be outside by a hundredth of it, and anywhere where the mask (B, Lq) is False. The
        name is that of the positions in the message.
        """
        low, high = ends(self.box, positions.double())
        slack = _SLACK * (high - low)
        t = positions.reshape(*positions.shape[:2], len(self.box))
        valid = (t >= low - slack) & (t <= high + slack)
        valid = valid if mask is None else valid | ~mask.unsqueeze(-1)
        rule = f"{name} must be in the domain {self.box} with scores that read them"
        require_all(valid, rule, t.expand(valid.shape))


def check_sequence(name: str, x: Tensor, dtype: torch.dtype | None) -> None:
    """Raise ValueError unless x is floating with three dimensions, and of the layer's dtype.

    Under autocast it may have another dtype, unless one of the two is float64.
    """
    require_tensor(name, x)
    if not x.is_floating_point() or x.ndim != 3:
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        raise ValueError(f"{name} must be floating with three dimensions, got {got}")
    if dtype is None or dtype == x.dtype or not dtype.is_floating_point:
        return
    if not is_autocasting(x) or torch.float64 in (x.dtype, dtype):
        raise ValueError(f"{name} must be {dtype} like the layer, got {x.dtype}")
