"""Parameters of estimators as tensors and numbers, with errors that name them."""

from numbers import Integral, Real
from typing import TypeGuard

import torch
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = ["alpha_above", "alpha_of", "bandwidth_of", "count", "points_of", "positive"]

# Inducing points by dimension.
_POINTS = {1: 100, 2: 150, 3: 200}


def alpha_of(alpha: object) -> float:
    """Alpha as a number.

    Raises:
        ValueError: No number from 1 to 2.
    """
    if not _is_real(alpha) or not 1 <= float(alpha) <= 2:
        raise ValueError(f"alpha must be a number from 1 to 2, got {alpha!r}")
    return float(alpha)


def alpha_above(alpha: object) -> float:
    """Alpha as a number, of families that have any.

    Raises:
        ValueError: No number, or one below 1.
    """
    if not _is_real(alpha) or not float(alpha) >= 1:
        raise ValueError(f"alpha must be a number, at least 1, got {alpha!r}")
    return float(alpha)


def positive(name: str, value: object) -> float:
    """A positive, finite number.

    Raises:
        ValueError: Anything else.
    """
    if not _is_real(value) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")
    return float(value)


def count(name: str, value: object) -> int:
    """A whole number.

    Raises:
        ValueError: Anything else, or one below 0.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an integer, at least 0, got {value!r}")
    return int(value)


def bandwidth_of(bandwidth: ArrayLike | None, dim: int) -> Tensor | None:
    """A bandwidth for each of D columns, if any is given.

    Raises:
        ValueError: Not positive and finite, or neither one number nor D.
    """
    if bandwidth is None:
        return None
    found = _tensor("bandwidth", bandwidth)
    if found.numel() not in (1, dim) or not (torch.isfinite(found) & (found > 0)).all():
        raise ValueError(f"bandwidth must be one positive number or {dim}, got {bandwidth!r}")
    return found.reshape(-1).expand(dim)


def points_of(given: ArrayLike | None, dim: int) -> Tensor | int:
    """Inducing points (I, D), or how many there are to be.

    Raises:
        ValueError: A number below 1, or locations of another dimension.
    """
    if given is None:
        return _POINTS.get(dim, _POINTS[2])
    if isinstance(given, Integral):
        if isinstance(given, bool) or given < 1:
            raise ValueError(f"inducing_points must be at least 1, got {given}")
        return int(given)
    found = _tensor("inducing_points", given)
    found = found.unsqueeze(-1) if found.dim() == 1 else found
    shaped = found.dim() == 2 and len(found) > 0 and found.shape[1] == dim
    if not shaped or not torch.isfinite(found).all():
        raise ValueError(
            f"inducing_points must be finite, (I, {dim}), got shape {tuple(found.shape)}"
        )
    return found


def _is_real(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _tensor(name: str, value: ArrayLike) -> Tensor:
    try:
        kind = torch.as_tensor(value).dtype
        if kind == torch.bool or kind.is_complex:
            raise TypeError
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be numbers, got {value!r}") from None
