"""Checks and conversions of arguments, and copies."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, Transform

from .modes import branches_allowed, sizes_are_symbols, values_exist

__all__ = [
    "LARGEST_ORDER",
    "LARGEST_POWER",
    "LARGEST_SIZE",
    "as_number",
    "as_tensors",
    "broadcast_arguments",
    "broadcast_location_scale",
    "broadcast_shapes",
    "broadcasts_to",
    "cholesky_factor",
    "difference",
    "in_float64",
    "is_count",
    "map_tensors",
    "require",
    "require_integer",
    "require_power",
    "require_scale_tril",
    "require_shape",
    "require_tensor",
    "saturated",
]

_FLOATING = torch.float32, torch.float64
_REMEDY = "add a small multiple of the identity, or model the subspace that the data span"
# The largest size of an axis and of all together, and the largest power whose moments float64 holds
# for every family: moments of Laplace's density are factorials.
LARGEST_SIZE, LARGEST_POWER = 2**63 - 1, 170
# Nodes of a Gauss rule, which takes seconds to make.
LARGEST_ORDER = 10_000
# So many entries of an argument are shown in messages.
_SHOWN = 6
_HOLDERS = (Distribution, Transform, nn.Module)


# Conversions


def as_tensors(**arguments: Any) -> dict[str, Tensor]:
    """Convert named numbers, sequences and tensors to tensors of one floating dtype and device.

    Numbers follow the dtype and device of the tensors; integers become floats.

    Raises:
        ValueError: A value that is not a real number or tensor, or a dtype of less than 32 bits.
    """
    tensors = [x for x in arguments.values() if isinstance(x, Tensor)]
    floating = [x.dtype for x in tensors if x.is_floating_point()]
    dtype = (
        reduce(torch.promote_types, dict.fromkeys(floating))
        if floating
        else torch.get_default_dtype()
    )
    if dtype not in _FLOATING:
        names = ", ".join(arguments)
        raise ValueError(f"{names} must be of dtype float32 or float64, got {dtype}")
    device = tensors[0].device if tensors else None
    return {name: _as_tensor(name, x, dtype, device) for name, x in arguments.items()}


def _as_tensor(name: str, value: Any, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Convert a named number, sequence or tensor, or raise the ValueError of `as_tensors`."""
    if isinstance(value, Tensor) and value.is_complex():
        raise ValueError(f"{name} must be real, got {value}")
    if isinstance(value, bool) or isinstance(value, Tensor) and value.dtype == torch.bool:
        raise ValueError(f"{name} must be a number or a tensor of numbers, got {value}")
    if isinstance(value, Tensor) and (value.dtype, value.device) == (dtype, device):
        return value
    try:
        return torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a number or a tensor, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} must be in the range of {dtype}, got {value}") from None


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in another dtype, clamped to its largest finite numbers."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def broadcast_arguments(**arguments: Tensor | float) -> tuple[Tensor, ...]:
    """Broadcast named numbers and tensors to one shape and one floating dtype.

    Raises:
        ValueError: A value that is not a number or tensor, or shapes that do not broadcast.
    """
    return _broadcast(as_tensors(**arguments), [0] * len(arguments))


def broadcast_location_scale(**arguments: Tensor | float | Sequence[float]) -> tuple[Tensor, ...]:
    """Broadcast a location (*batch, D), a matrix (*batch, D, D) and further arguments (*batch).

    The location comes first and the matrix second. Only batches broadcast: a location of one
    component does not go with a matrix of three.

    Raises:
        ValueError: As for `broadcast_arguments`, a location that is not a vector, or a matrix that
            is not square or not of the location's dimension.
    """
    tensors = as_tensors(**arguments)
    (name, loc), (matrix_name, matrix), *_ = tensors.items()
    if loc.dim() < 1 or loc.shape[-1] < 1:
        raise ValueError(f"{name} must have shape (*batch, D), D >= 1, got {tuple(loc.shape)}")
    size = loc.shape[-1]
    if matrix.shape[-2:] != (size, size):
        raise ValueError(
            f"{matrix_name} must be square, (*batch, {size}, {size}) like {name} (*batch, {size}), "
            f"got shape {tuple(matrix.shape)}"
        )
    return _broadcast(tensors, [1, 2, *[0] * (len(tensors) - 2)])


def _broadcast(tensors: Mapping[str, Tensor], event_dims: list[int]) -> tuple[Tensor, ...]:
    """Broadcast named tensors to one batch shape.

    Args:
        tensors: Tensors by name, (*batch, *event), whose batches broadcast.
        event_dims: For each the number of its last dimensions that belong to one event and stay.
    """
    pairs = list(zip(tensors.values(), event_dims, strict=True))
    try:
        batch = broadcast_shapes(*(x.shape[: x.dim() - dim] for x, dim in pairs))
    except RuntimeError:
        named = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
        raise ValueError(f"shapes must broadcast against each other, got {named}") from None
    shapes = [batch + x.shape[x.dim() - dim :] for x, dim in pairs]
    return tuple(
        x if x.dim() == len(shape) and x.shape == shape else x.expand(shape)
        for (x, _), shape in zip(pairs, shapes, strict=True)
    )


def broadcast_shapes(*shapes: Sequence[int]) -> Size:
    """Broadcast shapes by numpy, as torch's first call imports sympy, which takes long.

    Raises:
        RuntimeError: Shapes that do not broadcast against each other.
    """
    if sizes_are_symbols():
        return torch.broadcast_shapes(*map(Size, shapes))
    if all(shape == shapes[0] for shape in shapes[1:]):
        return Size(shapes[0])
    try:
        return Size(np.broadcast_shapes(*shapes))
    except ValueError:
        raise RuntimeError(f"shapes must broadcast, got {', '.join(map(str, shapes))}") from None


def difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a - b and its rounding error (Knuth's two-sum).

    At scale / width = 1e4 the rounding of `center - loc` alone would move the edge of a support by
    1e-3 widths in float32.
    """
    total = a - b
    back = total - a
    return total, (a - (total - back)) - (b + back)


# Checks


def require(valid: Tensor, name: str, rule: str, value: object) -> None:
    """Raise ValueError, "`name` must be `rule`, got `value`", unless all of `valid` holds.

    As in torch.distributions the check passes through `torch.func.vmap` and is left out of a
    compiled graph, which cannot branch on values, and for tensors on the meta device.
    """
    if values_exist(valid) and not torch._is_all_true(valid):
        raise ValueError(f"{name} must be {rule}, got {_first_invalid(value, valid)}")


def _first_invalid(value: object, valid: Tensor) -> object:
    """Return the value to show in a message: of a large tensor its first invalid entries.

    `valid` is a mask of the entries, or of the first dimensions of the value.
    """
    if isinstance(value, tuple):
        return tuple(_first_invalid(entry, valid) for entry in value)
    if isinstance(value, dict):
        return {name: _first_invalid(entry, valid) for name, entry in value.items()}
    if not isinstance(value, Tensor) or value.numel() <= _SHOWN or not branches_allowed():
        return value
    return value[~valid][:_SHOWN] if value.shape[: valid.dim()] == valid.shape else value


def require_scale_tril(name: str, value: Tensor) -> None:
    """Raise ValueError unless matrices (*batch, D, D) are finite Cholesky factors."""
    diagonal = value.diagonal(dim1=-2, dim2=-1)
    require(torch.isfinite(value), name, "finite", value)
    require(value.triu(1) == 0, name, "lower triangular", value)
    require(diagonal != 0, name, f"nonsingular, with a positive diagonal: {_REMEDY}", value)
    require(diagonal > 0, name, "a Cholesky factor, with a positive diagonal", value)


def cholesky_factor(name: str, matrix: Tensor) -> Tensor:
    """Return the lower-triangular L (*batch, D, D) with a positive diagonal and L L' = matrix.

    Raises:
        ValueError: A matrix that is not finite, not symmetric, or singular to rounding.
    """
    require(torch.isfinite(matrix), name, "finite", matrix)
    size = matrix.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    eps = torch.finfo(matrix.dtype).eps
    # Relative to the diagonal; zeros on it are refused as singular below.
    asymmetry = (matrix - matrix.mT).abs() / size.unsqueeze(-1) / size.unsqueeze(-2)
    require(~(asymmetry > math.sqrt(eps)), name, "symmetric", matrix)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex((matrix + matrix.mT) / 2)
    # Rounding each entry changes a pivot by up to eps times the square of these row sums: by all
    # of the pivot, if the matrix is singular.
    inverse = torch.linalg.solve_triangular(
        factor.detach(), size.detach().diag_embed(), upper=False
    )
    definite = (eps * inverse.abs().sum(-1).amax(-1).square() < 1) & (failed == 0)
    rule = f"positive definite, and is singular or indefinite: {_REMEDY}"
    require(definite, name, rule, matrix)
    return factor


def require_covariance(covariance: Tensor, centers: Tensor) -> None:
    """Raise ValueError unless matrices are covariances (D, D) or (N, D, D) for centers (N, D)."""
    if centers.dim() != 2:
        shape = tuple(centers.shape)
        raise ValueError(f"centers must have shape (N, D) with a covariance, got shape {shape}")
    n, d = centers.shape
    if covariance.shape not in ((d, d), (n, d, d)):
        shape = tuple(covariance.shape)
        raise ValueError(f"covariance must have shape {(d, d)} or {(n, d, d)}, got shape {shape}")
    cholesky_factor("covariance", covariance.detach())


def broadcasts_to(shape: Size, batch: Size | tuple[int, ...]) -> bool:
    """Return whether a tensor of some shape can be expanded to a batch."""
    axes = range(-len(shape), 0)
    return len(shape) <= len(batch) and all(shape[i] in (1, batch[i]) for i in axes)


def is_count(x: object) -> bool:
    """Return whether x is an integer from 1 to `LARGEST_SIZE`, of any integer type but bool."""
    return isinstance(x, Integral) and not isinstance(x, bool) and 1 <= int(x) <= LARGEST_SIZE


def as_number(x: object) -> float:
    """Return a real number as a float, and NaN for all else, such as 10**400."""
    if not isinstance(x, Real) or isinstance(x, bool):
        return math.nan
    try:
        return float(x)
    except OverflowError:
        return math.nan


def require_integer(name: str, value: object, least: int, most: int = LARGEST_SIZE) -> None:
    """Raise ValueError unless a value is an integer from `least` to `most`."""
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    if not integral or not least <= int(value) <= most:  # type: ignore[call-overload]
        small = most == LARGEST_SIZE and not (integral and int(value) > most)  # type: ignore[call-overload]
        rule = f"at least {least}" if small else f"from {least} to {most}"
        raise ValueError(f"{name} must be {'' if integral else 'an integer '}{rule}, got {value!r}")


def require_tensor(name: str, value: object) -> None:
    """Raise ValueError unless a value is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")


def require_shape(name: str, value: Any, of: Size | None = None) -> Size:
    """Return a value as a Size, or raise ValueError unless it is a sequence of sizes from 0.

    If a shape `of` is given, tensors of this shape must expand to the value.
    """
    if sizes_are_symbols():
        return Size(value)  # sizes may be symbols
    integral = isinstance(value, Sequence) and all(isinstance(x, Integral) for x in value)
    if not integral or any(x < 0 for x in value):
        raise ValueError(f"{name} must be a sequence of sizes, integers from 0, got {value!r}")
    if math.prod(value) > LARGEST_SIZE:
        raise ValueError(f"{name} must have a product up to {LARGEST_SIZE}, got {value!r}")
    if of is not None and not broadcasts_to(of, tuple(value)):
        raise ValueError(f"{name} must be what {tuple(of)} expands to, got {value!r}")
    return Size(value)


def require_power(beta: object, batch_shape: Size) -> None:
    """Raise ValueError unless the power of an escort is None, a finite number or finite tensor."""
    if isinstance(beta, Tensor):
        require(torch.isfinite(beta), "beta", "finite", beta)
        try:
            broadcast_shapes(beta.shape, batch_shape)
        except RuntimeError:
            rule = f"broadcast with batch shape {tuple(batch_shape)}"
            raise ValueError(f"beta must {rule}, got shape {tuple(beta.shape)}") from None
    elif beta is not None and not math.isfinite(as_number(beta)):
        raise ValueError(f"beta must be a finite number or a tensor, got {beta!r}")


def in_float64(x: Tensor) -> Tensor:
    """Return floating-point numbers as float64, and others, such as integers, as they are."""
    return x.double() if x.is_floating_point() else x


def map_tensors(x: Any, change: Callable[[Tensor], Tensor], **fixed: Any) -> Any:
    """Return a copy of a distribution, or of objects that it holds, with all tensors changed.

    Args:
        x: A distribution, transform or module; a tensor; or a list, tuple or dict of these. Other
            objects are not copied.
        change: From a tensor to the tensor that replaces it.
        fixed: Attributes that all copied distributions get besides.
    """
    copies: list[tuple[Any, Any]] = []

    def of(x: Any) -> Any:
        """Return the copy of an object."""
        if isinstance(x, Tensor):
            return change(x)
        if type(x) in (list, tuple):
            return type(x)([of(value) for value in x])
        if isinstance(x, dict):
            return type(x)({name: of(value) for name, value in x.items()})
        if not isinstance(x, _HOLDERS):
            return x
        for old, new in copies:  # a transform and its inverse hold each other
            if old is x:
                return new
        new = copy.copy(x)
        copies.append((x, new))
        for name, value in vars(x).items():
            new.__dict__[name] = of(value)
        for name in fixed if isinstance(x, Distribution) else ():
            new.__dict__[name] = fixed[name]
        return new

    return of(x)
