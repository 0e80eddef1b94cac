"""What an attention layer is built from, and the rules for it."""

import inspect
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from torch import Size, Tensor, nn

from ..bases import Basis
from ..numerics.validation import is_count
from .learned_alpha import LearnedAlpha

__all__ = [
    "Box",
    "Domain",
    "box_of",
    "check_flags",
    "check_group",
    "check_score",
    "check_sizes",
    "check_temperature",
    "event_of",
]

Domain = tuple[float, float] | Sequence[tuple[float, float]]
Box = tuple[tuple[float, float], ...]

_SCORES = ("quadratic", "moments", "kernel", "mixture")
_LISTED = ", ".join(map(repr, _SCORES[:-1])) + f" or {_SCORES[-1]!r}"


def check_sizes(embed_dim: int, num_heads: int, kdim: int, vdim: int) -> None:
    """Raises ValueError unless numbers of channels are such, and make as many heads."""
    if not (is_count(num_heads) and is_count(embed_dim)) or embed_dim % num_heads:
        raise ValueError(
            f"embed_dim must be a positive multiple of num_heads, got {embed_dim} and {num_heads}"
        )
    for name, size in {"kdim": kdim, "vdim": vdim}.items():
        if not is_count(size):
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def check_score(score: str, alpha: Tensor | nn.Module | float) -> None:
    """Raises ValueError for a score that there is not, or that alpha does not fit."""
    if score not in _SCORES:
        raise ValueError(f"score must be {_LISTED}, got {score!r}")
    if isinstance(alpha, nn.Module):
        _check_callable(alpha)
    elif not isinstance(alpha, Tensor):
        if not isinstance(alpha, Real) or not alpha >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha!r}")
        if score == "kernel" and alpha > 2:
            raise ValueError(f"alpha must be at most 2 for score='kernel', got {alpha}")
    if isinstance(alpha, LearnedAlpha) and score == "kernel" and alpha.high > 2:
        raise ValueError(f"alpha.high must be at most 2 for score='kernel', got {alpha.high}")


def _check_callable(alpha: nn.Module) -> None:
    """Raises ValueError for a module that cannot be called as one that returns alpha."""
    try:
        inspect.signature(alpha.forward).bind()
    except TypeError:
        rule = "alpha must be a module that is called without arguments"
        raise ValueError(f"{rule}, got {alpha!r}") from None


def check_flags(**flags: object) -> None:
    """Raises ValueError for settings that are neither True nor False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, got {flag!r}")


def check_group(score: str, combine: bool, group: object) -> None:
    """Raises ValueError for a group whose ranks would need each other's keys."""
    if (score == "moments" or combine) and group is not None:
        raise ValueError(
            f"group must be None for score='moments' and for combine=True, got {group!r}"
        )


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless scores can be divided by it."""
    if not isinstance(temperature, Real) or not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature!r}")


def box_of(name: str, domain: Domain, ndim: int) -> Box:
    """The interval of each axis, from one for all or one for each.

    Raises:
        ValueError: Neither, or an interval whose ends are not finite or do not increase.
    """
    box: Sequence[Any] = [domain] * ndim if _is_interval(domain) else domain
    listed = isinstance(box, Sequence)
    if not listed or len(box) != ndim or not all(_is_interval(side) for side in box):
        each = f", or {ndim} such pairs" if ndim > 1 else ""
        raise ValueError(f"{name} must be two finite numbers that increase{each}, got {domain}")
    return tuple((float(low), float(high)) for low, high in box)


def _is_interval(side: object) -> bool:
    if not isinstance(side, Sequence) or len(side) != 2:
        return False
    low, high = side
    if not (isinstance(low, Real) and isinstance(high, Real)):
        return False
    return math.isfinite(low) and math.isfinite(high) and low < high


def event_of(ndim: int, basis: Basis) -> Size:
    """The shape of one position: a number in one dimension, else a vector.

    Raises:
        ValueError: `ndim` below 1, or a basis of other positions.
    """
    if not is_count(ndim):
        raise ValueError(f"ndim must be at least 1, got {ndim!r}")
    event = Size() if ndim == 1 else Size([ndim])
    if basis.event_shape != event:
        raise ValueError(
            f"basis must take locations of event shape {tuple(event)} for ndim={ndim}, "
            f"got {tuple(basis.event_shape)}"
        )
    return event
