"""Kernel functions, evaluated in float64 and checked."""

from collections.abc import Callable

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

from .numerics.validation import require

__all__ = ["Kernel", "kernel_matrix", "require_kernel"]

# (n, D), (m, D) to (n, m)
Kernel = Callable[[Tensor, Tensor], Tensor]


def kernel_matrix(kernel: Kernel, points: Tensor, t: Tensor) -> Tensor:
    """Evaluate k(points, t) for (*batch, I, D) and (q, D): (*batch, I, q), in float64.

    Stationary kernels are often written with |x|^2 - 2 x'z + |z|^2, which in float32 has no digits
    left where points are close.

    Raises:
        ValueError: The kernel returns another shape or dtype, or values that are not finite.
    """
    size = t.shape[-1]
    found = _called(kernel, points.double().reshape(-1, size), t.double())
    shape = (points.shape[:-1].numel(), t.shape[0])
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (shape, torch.float64):
        shapes = f"({shape[0]}, {size}), ({shape[1]}, {size})"
        raise ValueError(f"kernel must map float64 {shapes} to {shape}, got {_kind(found)}")
    require(torch.isfinite(found), "kernel", "finite", "a value that is not")
    return found.reshape(*points.shape[:-1], len(t))


def _kind(value: object) -> str:
    """Describe a tensor by its shape and dtype, other objects by their repr."""
    return f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value)


def require_kernel(kernel: object) -> None:
    """Raise a ValueError for anything but a function or an instance that can be called."""
    if not callable(kernel) or isinstance(kernel, type):
        raise ValueError(f"kernel must be a callable on matrices, got {kernel!r}")


def _called(kernel: Kernel, points: Tensor, t: Tensor) -> Tensor:
    if not isinstance(kernel, PyroModule) or kernel._pyro_context.active:
        return kernel(points, t)
    # Kernels outside a model would share parameters of one name in Pyro's store, and show them to
    # a model that constructs the density.
    with pyro.get_param_store().scope(), pyro.poutine.block():
        found: Tensor = kernel(points, t)
    return found
