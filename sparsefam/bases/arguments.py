"""How bases take their arguments: lists, tensors and parameters, checked and stored alike."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

Values = Tensor | Sequence[float] | float


def common_dtype(*values: Values) -> torch.dtype:
    """The widest floating dtype among the tensors; torch's default if there is none."""
    dtypes = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


def floating(values: Values, dtype: torch.dtype) -> Tensor:
    """A tensor of the dtype; a parameter as it is."""
    return values if isinstance(values, nn.Parameter) else torch.as_tensor(values, dtype=dtype)


def store(module: nn.Module, name: str, value: Tensor) -> None:
    """A parameter stays a parameter; any other tensor becomes a buffer."""
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


def check_degree(degree: int) -> None:
    """Raises ValueError if the degree is negative."""
    if degree < 0:
        raise ValueError(f"degree must be at least 0, got {degree}")
