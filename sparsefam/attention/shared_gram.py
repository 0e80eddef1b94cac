"""What examples that share their positions need to work out only once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..numerics.validation import in_eager

__all__ = ["SharedGram"]


class SharedGram(nn.Module):
    """Keeps the Gram matrix of the last grid, in buffers that are no part of the state."""

    grid: Tensor | None
    gram: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        # In a tuple, as it is no part of this module.
        self.owner: tuple[nn.Module | None] = (None,)
        self.register_buffer("grid", None, persistent=False)
        self.register_buffer("gram", None, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.grid = self.gram = None  # another dtype would cost it digits
        super()._apply(fn, recurse)
        return self

    def find(self, basis: nn.Module, tensors: Sequence[Tensor]) -> Tensor | None:
        """The matrix kept for this basis and tensors of these values, if it is.

        Asked by value, as whoever changes a tensor in place would be given the wrong matrix.
        """
        if self.grid is None or self.owner[0] is not basis or not _constant(tensors):
            return None
        asked = _joined(tensors)
        if asked.shape != self.grid.shape or asked.device != self.grid.device:
            return None
        return self.gram if torch._is_all_true(asked == self.grid) else None

    def keep(self, basis: nn.Module, tensors: Sequence[Tensor], gram: Tensor) -> None:
        """Keeps a matrix that depends on these tensors, unless they are learned."""
        if _constant(tensors):
            self.owner = (basis,)
            # What is made in inference mode would be of no use outside it.
            with torch.inference_mode(False), torch.no_grad():
                self.grid, self.gram = _joined(tensors).clone(), gram.clone()


def _constant(tensors: Sequence[Tensor]) -> bool:
    return in_eager() and not any(x.requires_grad for x in tensors)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.detach().reshape(-1).double() for x in tensors])
