"""Turning what users pass into tensors that broadcast, with errors that name the argument."""

import torch
from torch import Tensor

__all__ = ["broadcast_arguments", "difference", "require"]


def broadcast_arguments(**arguments: Tensor | float) -> tuple[Tensor, ...]:
    """Broadcast named numbers and tensors to one shape and one floating dtype.

    Python numbers follow the dtype and device of the tensors; integers become floats.

    Raises:
        ValueError: A value that is not a number or tensor, or shapes that do not broadcast.
    """
    tensors = [x for x in arguments.values() if isinstance(x, Tensor)]
    floating = [x.dtype for x in tensors if x.is_floating_point()]
    dtype = torch.get_default_dtype()
    if floating:
        dtype = floating[0]
        for other in floating[1:]:
            dtype = torch.promote_types(dtype, other)
    device = tensors[0].device if tensors else None
    found = {name: _as_tensor(name, x, dtype, device) for name, x in arguments.items()}
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in found.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in found.items())
        raise ValueError(f"shapes must broadcast against each other, got {shapes}") from None
    return tuple(x.expand(shape) for x in found.values())


def _as_tensor(
    name: str, value: Tensor | float, dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a number or a tensor, got {value!r}") from None


def require(valid: Tensor, name: str, rule: str, value: object) -> None:
    """Raise unless all of `valid` holds.

    As in torch.distributions the check passes through `torch.func.vmap` and is left out of a
    compiled graph, which cannot branch on values.

    Raises:
        ValueError: Naming the argument, the rule and the value.
    """
    if not torch.compiler.is_compiling() and not torch._is_all_true(valid):
        raise ValueError(f"{name} must be {rule}, got {value}")


def difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a - b, and what rounding took from it (Knuth's two-sum).

    At scale / width = 1e4 the rounding of `center - loc` alone would move the edge of a support by
    1e-3 widths in float32.
    """
    total = a - b
    back = total - a
    return total, (a - (total - back)) - (b + back)
