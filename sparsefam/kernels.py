"""Kernel functions, and sums of them at inducing points."""

from collections.abc import Callable

import pyro
import torch
from pyro.nn import PyroModule
from torch import Size, Tensor

from .numerics.validation import broadcast_arguments, broadcast_shapes, require

__all__ = [
    "Kernel",
    "expansion",
    "expansion_alpha",
    "expansion_points",
    "gram_matrix",
    "kernel_matrix",
    "require_kernel",
]

# (n, D), (m, D) to (n, m)
Kernel = Callable[[Tensor, Tensor], Tensor]

# What rounding may take from symmetry and eigenvalues, relative to the largest entry, for each row.
_INDEFINITE = 1e-8


def expansion_points(weights: Tensor, inducing_points: Tensor) -> Tensor:
    """Return inducing points (I,), (I, D) or (*batch, I, D) as (*batch, I, D).

    Raises:
        ValueError: Not floating tensors, or shapes that do not fit weights (*batch, I).
    """
    for name, value in (("weights", weights), ("inducing_points", inducing_points)):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 1:
            raise ValueError(
                f"{name} must be a floating tensor with one dimension or more, got {_kind(value)}"
            )
    points = inducing_points if inducing_points.dim() > 1 else inducing_points.unsqueeze(-1)
    if points.shape[-2] != weights.shape[-1] or not points.numel():
        raise ValueError(
            f"weights must have one number for each inducing point, got {tuple(weights.shape)} for "
            f"inducing_points {tuple(inducing_points.shape)}"
        )
    try:
        broadcast_shapes(weights.shape[:-1], points.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"weights and inducing_points must have batches that broadcast, got "
            f"{tuple(weights.shape)} and {tuple(inducing_points.shape)}"
        ) from None
    return points


def expansion_alpha(weights: Tensor, points: Tensor, alpha: Tensor | float) -> Tensor:
    """Return alpha in the dtype of the weights (*batch, I), with the batch of all arguments.

    Raises:
        ValueError: Not a number or tensor, or one that does not broadcast against the others.
    """
    _, found, _ = broadcast_arguments(
        weights=weights[..., 0], alpha=alpha, inducing_points=points[..., 0, 0]
    )
    return found.to(weights.dtype)


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


def gram_matrix(kernel: Kernel, points: Tensor) -> Tensor:
    """Evaluate the kernel at inducing points (*batch, I, D), without gradients: (*batch, I, I).

    Raises:
        ValueError: A kernel that is not positive semi-definite there.
    """
    rows = points.reshape(-1, *points.shape[-2:])
    with torch.no_grad():
        gram = torch.stack([kernel_matrix(kernel, row, row) for row in rows])
    slack = _INDEFINITE * gram.abs().amax((-2, -1)) * rows.shape[1]
    symmetric = (gram - gram.mT).abs().amax((-2, -1)) <= slack
    require(symmetric, "kernel", "symmetric on the inducing points", gram)
    least = torch.linalg.eigvalsh(gram)[..., 0]
    rule = "positive semi-definite on the inducing points"
    require(least >= -slack, "kernel", rule, f"an eigenvalue of {least.amin():.3g}")
    return gram.reshape(*points.shape[:-2], *gram.shape[1:])


def _called(kernel: Kernel, points: Tensor, t: Tensor) -> Tensor:
    if not isinstance(kernel, PyroModule) or kernel._pyro_context.active:
        return kernel(points, t)
    # Kernels outside a model would share parameters of one name in Pyro's store, and show them to
    # a model that constructs the density.
    with pyro.get_param_store().scope(), pyro.poutine.block():
        found: Tensor = kernel(points, t)
    return found


def expansion(kernel: Kernel, points: Tensor, weights: Tensor, t: Tensor, batch: Size) -> Tensor:
    """Sum weights times kernels at locations.

    Args:
        kernel: The kernel.
        points: Inducing points (*batch, I, D), or (I, D) if they are shared.
        weights: (*batch, I).
        t: Locations (*S, *batch, D), which broadcast against the batch.
        batch: The batch.

    Returns:
        Shape (*S, *batch).
    """
    lead = t.shape[:-1]
    columns = kernel_matrix(kernel, points, t.reshape(-1, t.shape[-1])).to(weights)
    if points.dim() > 2:
        return _with_own_points(columns, weights, lead, batch)
    if lead[max(0, len(lead) - len(batch)) :].numel() == 1:
        # Locations that the batch shares: one matrix product.
        found = columns.T @ weights.expand(*batch, -1).reshape(-1, weights.shape[-1]).T
        return found.reshape(lead[: max(0, len(lead) - len(batch))] + batch)
    return (columns.T.reshape(*lead, len(columns)) * weights).sum(-1)


def _with_own_points(columns: Tensor, weights: Tensor, lead: Size, batch: Size) -> Tensor:
    """Sum columns (*batch, I, q), each location with the inducing points of its own density."""
    sums = (weights.unsqueeze(-2) @ columns).squeeze(-2)
    sums = sums.expand(*batch, -1).movedim(-1, 0)  # (q, *batch)
    full = broadcast_shapes(lead, batch)
    place = torch.arange(lead.numel(), device=columns.device).reshape(lead).expand(full)
    rows = sums.reshape(len(sums), *(1,) * (len(full) - len(batch)), *batch)
    return rows.expand(len(sums), *full).gather(0, place.unsqueeze(0)).squeeze(0)
