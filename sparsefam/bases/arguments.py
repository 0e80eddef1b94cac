"""How bases take their arguments: lists, tensors and parameters, checked and stored alike."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Size, Tensor, nn

Values = Tensor | float | Sequence["Values"]


def common_dtype(*values: Values | None) -> torch.dtype:
    """The widest floating dtype among the tensors; torch's default if there is none."""
    dtypes = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


def floating(values: Values, dtype: torch.dtype) -> Tensor:
    """A tensor of the dtype; a parameter as it is."""
    return values if isinstance(values, nn.Parameter) else torch.as_tensor(values, dtype=dtype)


def store(module: nn.Module, name: str, value: Tensor | None) -> None:
    """A parameter stays a parameter; any other tensor, or None, becomes a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def check_finite(name: str, values: Tensor) -> None:
    """Raises ValueError unless every value is finite."""
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite, got {values.tolist()}")


def check_vector(name: str, values: Tensor) -> None:
    """Raises ValueError unless the tensor is a vector with entries."""
    if values.ndim != 1 or len(values) == 0:
        shape = tuple(values.shape)
        raise ValueError(f"{name} must be one-dimensional and not empty, got shape {shape}")


def check_rows(name: str, values: Tensor) -> None:
    """Raises ValueError unless the tensor holds one number, or one vector, per function."""
    if values.ndim not in (1, 2) or values.numel() == 0:
        shape = tuple(values.shape)
        raise ValueError(f"{name} must have shape (N,) or (N, D), not empty, got shape {shape}")


def check_degree(degree: int) -> None:
    """Raises ValueError if the degree is negative."""
    if degree < 0:
        raise ValueError(f"degree must be at least 0, got {degree}")


def check_locations(t: Tensor, event_shape: Size) -> None:
    """Raises ValueError unless locations end in the event shape; they would broadcast to it."""
    if t.shape[t.ndim - len(event_shape) :] != event_shape:
        raise ValueError(
            f"locations must end in event shape {tuple(event_shape)}, got shape {tuple(t.shape)}"
        )
