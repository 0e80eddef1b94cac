"""Pictures of attention over an image."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Size, Tensor

from ..attention.scores import Box, Domain, box_of
from ..distributions import SparseDistribution
from .canvas import check_count, current_axes, names_of
from .densities import plot_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_attention_map"]

# Opacity of the largest discrete weight.
_OPAQUE = 0.8


def plot_attention_map(
    attention: SparseDistribution | Tensor,
    image: Tensor,
    *,
    ax: "Axes | None" = None,
    label: str | Sequence[str] | None = None,
    color: Any = None,
    domain: Domain = (0.0, 1.0),
    limit: int = 10,
) -> "Axes":
    r"""Draws where attention falls on an image, one colour for each head.

    The first coordinate of the attention runs over the image from left to right, the second from
    top to bottom. Continuous attention is drawn as `plot_density` does, outline included. Discrete
    weights are cells, the more opaque the larger, and a cell of weight zero is left clear.

    Args:
        attention: A density of two dimensions with batch shape (heads,) or (), or weights
            (..., rows, columns) of cells that divide the image evenly.
        image: Grey levels (H, W), or grey levels or colours, channels first (1, 3 or 4, H, W);
            colours are in [0, 1] or of dtype uint8.
        ax: Axes to draw on; default the current ones.
        label: As in `plot_density`.
        color: As in `plot_density`.
        domain: What the image covers: the ends of both axes, or a pair for each.
        limit: Largest number of heads to draw.

    Returns:
        The axes.

    Raises:
        ValueError: Shapes that do not fit, colours out of their range, more heads than `limit`, or
            a domain that is none.
        ImportError: matplotlib is missing.
    """
    box = box_of("domain", domain, 2)
    pixels = _pixels(image)
    labels = names_of(label, check_count("attention", _heads(attention), limit))
    ax = current_axes(ax)
    _show(ax, pixels, box, cmap="gray", gid="image")
    if isinstance(attention, SparseDistribution):
        plot_density(attention, ax, label=label, color=color, view=box, limit=limit)
    else:
        _draw_cells(ax, attention, box, labels, color)
    ax.set_ylim(box[1][::-1])
    return ax


def _heads(attention: SparseDistribution | Tensor) -> int:
    """The number of heads, of attention that has two dimensions."""
    if isinstance(attention, SparseDistribution):
        event = tuple(attention.event_shape)
        if event != (2,):
            raise ValueError(f"attention must have two dimensions, got event shape {event}")
        return Size(attention.batch_shape).numel()
    weights: Tensor = attention
    if weights.dim() < 2:
        shape = tuple(weights.shape)
        raise ValueError(f"attention must have shape (..., rows, columns), got {shape}")
    return weights.shape[:-2].numel()


def _pixels(image: Tensor) -> Any:
    """The image as matplotlib takes it: (H, W), or channels last."""
    pixels = image.detach().cpu()
    if pixels.dim() == 3 and pixels.shape[0] in (1, 3, 4):
        pixels = pixels.squeeze(0) if len(pixels) == 1 else pixels.movedim(0, -1)
    elif pixels.dim() != 2:
        raise ValueError(
            f"image must have shape (H, W) or (1, 3 or 4, H, W), got {tuple(image.shape)}"
        )
    low, high = (float(end) for end in pixels.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"image must be finite, got values from {low} to {high}")
    if pixels.dim() == 3 and pixels.dtype != torch.uint8 and not 0 <= low <= high <= 1:
        raise ValueError(f"image must have colours in [0, 1], got values from {low} to {high}")
    return pixels.numpy()


def _show(ax: "Axes", pixels: Any, box: Box, **style: Any) -> None:
    """An image whose rows run down the second axis of the box."""
    (left, right), (top, bottom) = box
    ax.imshow(pixels, extent=(left, right, bottom, top), interpolation="nearest", **style)


def _draw_cells(
    ax: "Axes", weights: Tensor, box: Box, labels: list[str | None], color: Any
) -> None:
    """Cells of each head in its colour, the largest of them the most opaque."""
    from matplotlib.colors import to_rgba

    cells = weights.detach().cpu().double().reshape(-1, *weights.shape[-2:]).numpy()
    for head, label in zip(cells, labels, strict=True):
        # No points: what the legend shows, and the next of the axes' colours.
        (square,) = ax.plot([], [], "s", color=color, label=label)
        shades = np.empty((*head.shape, 4))
        shades[:] = to_rgba(square.get_color())
        shades[..., 3] = _OPAQUE * head / (head.max() or 1.0)
        _show(ax, shades, box, gid="density")
