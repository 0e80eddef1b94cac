"""Which parts of a layer autocast may round."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["autocasts", "check_dtype", "full_precision", "single"]


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Where autocast does nothing on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocasts(x: Tensor) -> bool:
    """Whether autocast does something on the device of a tensor."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def single(x: Tensor) -> Tensor:
    """The same numbers, in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_dtype(dtype: object) -> None:
    """Raises ValueError for a dtype that no parameters can have; None is the default one."""
    floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not floating:
        raise ValueError(f"dtype must be floating, got {dtype!r}")
