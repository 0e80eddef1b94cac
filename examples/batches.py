"""Examples side by side, as training takes them."""

from dataclasses import fields
from typing import Any

from torch import Tensor
from typing_extensions import Self

__all__ = ["Batch"]


class Batch:
    """Base of frozen dataclasses whose fields are tensors, one row of each for every example."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Self:
        own: Any = self
        return type(self)(*(getattr(self, field.name)[index] for field in fields(own)))
