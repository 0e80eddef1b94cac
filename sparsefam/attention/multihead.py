"""What layers that are called like `torch.nn.MultiheadAttention` have in common."""

import torch
from torch import Size, Tensor
from torch.nn import Module

from .arguments import check_flags, check_sizes, check_temperature
from .inputs import Expected
from .prepared import Prepared

__all__ = ["Multihead"]

# Weights of any other are quantised, and their layers take what these do.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Multihead(Prepared):
    """Sizes, the sequences that go with them, and the temperature of scores.

    Args:
        embed_dim: Channels of the queries and of the context.
        num_heads: Number of heads; divides `embed_dim`.
        kdim: Channels of the keys; `embed_dim` if None.
        vdim: Channels of the values; `embed_dim` if None.
        batch_first: Whether sequences are (B, L, channels) rather than (L, B, channels).

    Raises:
        ValueError: If one is no positive integer, or heads do not divide the channels.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, kdim: int | None, vdim: int | None, batch_first: bool
    ) -> None:
        super().__init__()
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        check_sizes(embed_dim, num_heads, self.kdim, self.vdim)
        check_flags(batch_first=batch_first)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first

    @property
    def temperature(self) -> float:
        """What all scores are divided by."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        check_temperature(value)
        self._temperature = value

    def _expected(self, event: Size, sharded: bool, projection: Module) -> Expected:
        """What inputs should be, at positions of an event shape, for a projection of theirs."""
        # Whatever is put in place of a linear layer may have no weight, or one that is no tensor.
        dtype = getattr(getattr(projection, "weight", None), "dtype", None)
        dtype = dtype if dtype in _FLOATS else None
        channels = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        return Expected(channels, self.num_heads, event, self.batch_first, sharded, dtype)

    def _split(self, channels: Tensor) -> Tensor:
        """Channels (..., embed_dim) by head: (..., heads, head_dim)."""
        heads: Tensor = channels.unflatten(-1, (self.num_heads, self.embed_dim // self.num_heads))
        return heads
