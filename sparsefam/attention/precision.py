"""What autocast may round: projections of sequences, and nothing between values and contexts."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["full_precision", "is_autocasting", "to_single"]


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast is off on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False) if is_autocasting(x) else nullcontext()


def is_autocasting(x: Tensor) -> bool:
    """Whether autocast is on for the device of a tensor."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def to_single(x: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
