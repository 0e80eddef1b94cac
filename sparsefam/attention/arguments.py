"""What an attention layer is built from and called with, and the rules for it."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Size, Tensor, nn

from ..bases import Basis
from ..numerics.arguments import is_count

__all__ = [
    "Box",
    "Domain",
    "box_of",
    "check_alpha",
    "check_inputs",
    "check_score",
    "check_sizes",
    "event_of",
]

Domain = tuple[float, float] | Sequence[tuple[float, float]]
Box = tuple[tuple[float, float], ...]

_SCORES = ("quadratic", "moments", "kernel", "mixture")
_LISTED = ", ".join(map(repr, _SCORES[:-1])) + f" or {_SCORES[-1]!r}"


def check_sizes(embed_dim: int, num_heads: int) -> None:
    """Raises ValueError unless the channels make as many heads."""
    if not (is_count(num_heads) and is_count(embed_dim)) or embed_dim % num_heads:
        raise ValueError(
            f"embed_dim must be a positive multiple of num_heads, got {embed_dim} and {num_heads}"
        )


def check_score(score: str, alpha: Tensor | nn.Module | float, combine: bool) -> None:
    """Raises ValueError for a score that there is not, or that alpha or combine do not fit."""
    if score not in _SCORES:
        raise ValueError(f"score must be {_LISTED}, got {score!r}")
    if not isinstance(alpha, Tensor | nn.Module):
        if not isinstance(alpha, Real) or not alpha >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha!r}")
        if score == "kernel" and alpha > 2:
            raise ValueError(f"alpha must be at most 2 for score='kernel', got {alpha}")
    if combine and score != "moments":
        raise ValueError(f"combine must be False unless score='moments', got score={score!r}")


def check_alpha(alpha: Tensor | float, densities: tuple[int, int, int]) -> None:
    """Raises ValueError unless alpha broadcasts to what there are of densities."""
    if isinstance(alpha, Tensor):
        sizes = zip(reversed(alpha.shape), reversed(densities), strict=False)
        if alpha.dim() > 3 or any(size not in (1, due) for size, due in sizes):
            raise ValueError(
                f"alpha must broadcast to (batch, num_heads, Lq) = {densities}, "
                f"got shape {tuple(alpha.shape)}"
            )


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


def check_inputs(
    channels: Mapping[str, int],
    shapes: Mapping[str, Size],
    positions: Tensor,
    mask: Tensor | None,
    event: Size,
    batch_first: bool,
) -> None:
    """Raises ValueError unless inputs, by now batch first, fit the layer and each other.

    Args:
        channels: How many the query, the key and the value should have.
        shapes: Those of query, key and value.
        positions: Where the values are.
        mask: The key padding mask.
        event: The shape of one position.
        batch_first: What the layer was told, for the message.
    """
    layout = f"with batch_first={batch_first}; is the other setting meant?"
    lengths = {name: shape[1] if len(shape) == 3 else 0 for name, shape in shapes.items()}
    batch, length = shapes["query"][0], lengths["value"]
    for name, shape in shapes.items():
        due = (batch, lengths[name] if name == "query" else length, channels[name])
        if shape != due:
            raise ValueError(
                f"{name} must have (batch, length, channels) {due}, got {tuple(shape)} {layout}"
            )
    each, shared = (batch, length, *event), (length, *event)
    if positions.shape not in (each, (1, *shared), shared):
        raise ValueError(
            f"positions must have shape {each} or {shared}, always batch first, "
            f"got {tuple(positions.shape)} {layout}"
        )
    if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
        raise ValueError(
            f"key_padding_mask must be boolean of shape {(batch, length)}, "
            f"got {mask.dtype} of shape {tuple(mask.shape)} {layout}"
        )
