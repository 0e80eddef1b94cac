"""Which parts of a layer autocast may round."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["full_precision", "single"]


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Where autocast does nothing on the device of a tensor."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def single(x: Tensor) -> Tensor:
    """The same numbers, in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
