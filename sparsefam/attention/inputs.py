"""What an attention layer is called with, and the rules for it."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Size, Tensor

from ..numerics.normal_equations import over_events
from ..numerics.validation import broadcasts_to
from .observations import check_real, require
from .precision import autocasts
from .sight import Sight

__all__ = ["Expected", "Inputs", "check_alpha"]

_OTHERS = ("positions", "key_padding_mask", "attn_mask")


class Inputs(NamedTuple):
    """Sequences, batch first, and positions, zero where they are never read."""

    query: Tensor
    key: Tensor
    value: Tensor
    positions: Tensor
    sight: Sight

    def check(self, discrete: bool, sharded: bool) -> None:
        """Raises ValueError for what is not finite, and for masks as `Sight.check` does."""
        self.sight.check(discrete, sharded)
        for name, x in {"query": self.query, "key": self.key, "value": self.value}.items():
            require(x.isfinite(), f"{name} must be finite where it takes part", x)


class Expected(NamedTuple):
    """What a layer expects of its inputs.

    Attributes:
        channels: How many the query, the key and the value have.
        heads: Number of heads.
        event: The shape of one position.
        batch_first: Whether sequences are (B, L, channels).
        sharded: Whether their other parts are on other ranks.
        dtype: Of the layer's weights, if it is known.
    """

    channels: Mapping[str, int]
    heads: int
    event: Size
    batch_first: bool
    sharded: bool
    dtype: torch.dtype | None

    def read(
        self,
        sequences: tuple[Tensor, Tensor, Tensor],
        positions: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
    ) -> Inputs:
        """Raises ValueError unless inputs fit the layer and each other; else makes them uniform.

        Args:
            sequences: Query, key and value.
            positions: Where the values are.
            padding: The key padding mask.
            mask: The attention mask.
        """
        parts = (*sequences, positions, padding, mask)
        for name, part in zip((*self.channels, *_OTHERS), parts, strict=True):
            if not isinstance(part, Tensor) and (part is not None or name not in _OTHERS[1:]):
                raise ValueError(f"{name} must be a tensor, got {part!r}")
        for name, part in zip(self.channels, sequences, strict=True):
            self._check_dtype(name, part)
        check_real("positions", positions)
        if not self.batch_first:
            flipped = [x.transpose(0, 1) if x.ndim == 3 else x for x in sequences]
            sequences = (flipped[0], flipped[1], flipped[2])
        self._check_sequences(sequences, positions)
        query, key, value = sequences
        self._check_masks(padding, mask, (len(query), query.shape[1], value.shape[1]))
        sight = Sight.through(padding, mask, len(query), self.heads)
        if sight.taken is not None:
            # What is never read must be finite even so: gradients are zero times what it becomes.
            key, value = (torch.where(sight.taken.unsqueeze(-1), x, 0) for x in (key, value))
            positions = torch.where(over_events(sight.taken, self.event), positions, 0)
        return Inputs(query, key, value, positions, sight)

    def _check_dtype(self, name: str, x: Tensor) -> None:
        if not x.ndim or not x.is_floating_point():
            got = f"{x.dtype} of shape {tuple(x.shape)}"
            raise ValueError(f"{name} must be floating, (batch, length, channels), got {got}")
        cast = autocasts(x) and torch.float64 not in (x.dtype, self.dtype)
        if self.dtype not in (None, x.dtype) and not cast:
            raise ValueError(f"{name} must be {self.dtype} like the layer, got {x.dtype}")

    def _check_sequences(self, sequences: tuple[Tensor, ...], positions: Tensor) -> None:
        shapes = dict(zip(self.channels, (x.shape for x in sequences), strict=True))
        lengths = {name: shape[1] if len(shape) == 3 else 0 for name, shape in shapes.items()}
        batch, length = shapes["query"][0], lengths["value"]
        for name, shape in shapes.items():
            due = (batch, lengths[name] if name == "query" else length, self.channels[name])
            if shape != due:
                raise ValueError(
                    f"{name} must have (batch, length, channels) {due}, "
                    f"got {tuple(shape)} {self._hint()}"
                )
        if length == 0 and not self.sharded:
            raise ValueError(
                f"value must have at least one position, got shape {tuple(shapes['value'])}"
            )
        each, shared = (batch, length, *self.event), (length, *self.event)
        if positions.shape not in (each, (1, *shared), shared):
            raise ValueError(
                f"positions must have shape {each} or {shared}, always batch first, "
                f"got {tuple(positions.shape)} {self._hint()}"
            )

    def _check_masks(
        self, padding: Tensor | None, mask: Tensor | None, sizes: tuple[int, int, int]
    ) -> None:
        batch, queries, length = sizes
        due = (batch, length)
        if padding is not None and (padding.shape != due or padding.dtype != torch.bool):
            raise ValueError(
                f"key_padding_mask must be boolean of shape {due}, "
                f"got {padding.dtype} of shape {tuple(padding.shape)} {self._hint()}"
            )
        if mask is None:
            return
        if self.sharded:
            raise ValueError("attn_mask must be None with a group: each rank has its own queries")
        dues = ((queries, length), (batch * self.heads, queries, length))
        if mask.shape not in dues or not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(
                f"attn_mask must be boolean or floating of shape {dues[0]} or {dues[1]}, "
                f"got {mask.dtype} of shape {tuple(mask.shape)} {self._hint()}"
            )

    def _hint(self) -> str:
        return f"with batch_first={self.batch_first}; is the other setting meant?"


def check_alpha(alpha: Tensor | float, densities: tuple[int, int, int]) -> None:
    """Raises ValueError unless alpha broadcasts to what there are of densities."""
    if isinstance(alpha, Tensor) and not broadcasts_to(alpha.shape, densities):
        raise ValueError(
            f"alpha must broadcast to (batch, num_heads, Lq) = {densities}, "
            f"got shape {tuple(alpha.shape)}"
        )
