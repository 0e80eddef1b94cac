"""How bases take their arguments: lists, tensors and parameters, checked and stored alike."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Size, Tensor, nn

from ..numerics.arguments import require

Values = Tensor | float | Sequence["Values"]


def common_dtype(*values: Values | None) -> torch.dtype:
    """The widest floating dtype among the tensors; torch's default if there is none."""
    dtypes = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


def floating(name: str, values: Values, dtype: torch.dtype) -> Tensor:
    """Return values as a tensor of the dtype; a parameter as it is.

    Raises:
        ValueError: Not numbers, or ragged lists.
    """
    if isinstance(values, nn.Parameter):
        return values
    try:
        return torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be numbers of one shape, got {values!r}") from None


def store(module: nn.Module, name: str, value: Tensor | None) -> None:
    """Register a parameter as a parameter; any other tensor, or None, as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def check_rows(name: str, values: Tensor, most: int = 2) -> None:
    """Raise ValueError unless a tensor is finite, (N,) or (N, D); `most` is its number of axes."""
    require(values.isfinite(), name, "finite", values)
    if not 1 <= values.ndim <= most or values.numel() == 0:
        shapes = "(N,)" if most == 1 else "(N,) or (N, D)"
        shape = tuple(values.shape)
        raise ValueError(f"{name} must have shape {shapes}, not empty, got shape {shape}")


def check_locations(t: Tensor, event_shape: Size) -> None:
    """Raise ValueError unless locations are a tensor that ends in the event shape."""
    if not isinstance(t, Tensor):
        raise ValueError(f"locations must be a tensor, got {t!r}")
    if t.shape[t.ndim - len(event_shape) :] != event_shape:
        raise ValueError(
            f"locations must end in event shape {tuple(event_shape)}, got shape {tuple(t.shape)}"
        )
