"""Plots of attention over a series, tokens or an image."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._numerics.validation import require_tensor
from .._types import DensityLike
from ..supports import Box, Domain, box_of
from .densities import (
    axes_of,
    draw_weights,
    is_categorical,
    is_density,
    labels_of,
    plot_density,
    probs_of,
    round_ticks,
    set_limits,
    set_view,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

__all__ = ["plot_attention", "plot_attention_map"]

# Fraction of the height for attention if a series is drawn above it.
_LOWER = 0.55
# Opacity of the largest discrete weight.
_OPAQUE = 0.8


def plot_attention(
    attention: DensityLike | Tensor,
    positions: Tensor | None = None,
    values: Tensor | None = None,
    *,
    example: int | tuple[int | slice, ...] | None = None,
    tokens: Sequence[str] | None = None,
    value_function: Callable[[Tensor], Tensor] | None = None,
    ax: "Axes | None" = None,
    view: tuple[float, float] | None = None,
    limit: int = 10,
) -> "Axes":
    """Plot attention over a series or tokens, one color for each head.

    Continuous attention is drawn by `plot_density`; discrete weights as stems, none where a weight
    is zero. A series is drawn above, on its own vertical axis.

    Args:
        attention: A density of one dimension with batch shape (heads,) or (), or weights (..., L).
        positions: Positions of the observations (L,). A density alone needs none.
        values: The series at the positions (L,).
        example: Index into the batch of `attention`; default all of it. For densities of a layer,
            (B, heads, Lq), 0 is the first example and (0, slice(None), -1) its last query.
        tokens: L words, written at the positions.
        value_function: Callable from locations (Q,) to values (Q,), drawn as a line.
        ax: Axes to draw on; default new ones.
        view: As in `plot_density`.
        limit: Largest number of heads to draw.

    Returns:
        The axes of the attention.

    Raises:
        ValueError: Shapes that do not fit, an `example` out of the batch, or more heads than
            `limit`.
        ImportError: matplotlib is missing.
    """
    shown = _example_of(attention, example)
    if not isinstance(shown, Tensor) and is_categorical(shown):
        shown = probs_of(shown)
    needs_positions = any(x is not None for x in (positions, values, tokens, value_function))
    positions = torch.empty(0) if positions is None else positions
    if needs_positions or isinstance(shown, Tensor):
        _check_lengths(positions, values=values, tokens=tokens)
    if not isinstance(shown, Tensor) and shown.event_shape:
        shape = tuple(shown.event_shape)
        raise ValueError(f"attention must have one dimension, got event shape {shape}")
    batch = shown.shape[:-1] if isinstance(shown, Tensor) else shown.batch_shape
    labels = labels_of("attention", batch.numel(), limit)
    ax = axes_of(ax)
    if isinstance(shown, Tensor):
        if shown.shape[-1:] != positions.shape:
            shape, length = tuple(shown.shape), len(positions)
            raise ValueError(f"attention must have shape (..., {length}), got {shape}")
        draw_weights(ax, positions, shown, labels, None)
        if view is not None:
            set_view(ax, view)
    else:
        plot_density(shown, ax, view=view, limit=limit)
    if values is not None or value_function is not None:
        set_limits(ax, _LOWER)
        _draw_series(ax, positions, values, value_function)
    if tokens is not None:
        ax.set_xticks(positions.tolist(), list(tokens), rotation=60, ha="right")
    ax.set_yticks([])
    return ax


def _example_of(
    attention: DensityLike | Tensor, example: int | tuple[int | slice, ...] | None
) -> DensityLike | Tensor:
    """Return attention at an index of its batch; all of it if the index is None.

    Raises:
        ValueError: Neither a distribution of this package nor a tensor; no index of the batch.
    """
    if not isinstance(attention, Tensor) and not is_density(attention):
        raise ValueError(f"attention must be a distribution or a tensor, got {attention!r}")
    try:
        return attention if example is None else attention[example]
    except IndexError as error:
        raise ValueError(f"example must be an index of the batch, got {example}: {error}") from None


def _check_lengths(positions: Tensor, **others: Tensor | Sequence[str] | None) -> None:
    """Raise ValueError unless positions are (L,), and values and words have length L or are None.

    The names of `others` are for messages.
    """
    if positions.dim() != 1 or len(positions) < 1:
        raise ValueError(f"positions must have shape (L >= 1,), got {tuple(positions.shape)}")
    for name, other in others.items():
        shape = () if other is None else tuple(getattr(other, "shape", (len(other),)))
        if other is not None and shape != positions.shape:
            raise ValueError(f"{name} must have length {len(positions)}, got shape {shape}")


def _draw_series(
    ax: "Axes",
    positions: Tensor,
    values: Tensor | None,
    value_function: Callable[[Tensor], Tensor] | None,
) -> None:
    """Draw observations and the value function on a twin axis above the attention.

    Args:
        ax: The axes of the attention.
        positions: Positions of the observations (L,).
        values: The observations (L,); None for the function alone.
        value_function: From locations (Q,) to values (Q,); None for observations alone.
    """
    twin = ax.twinx()
    color = ax.xaxis.label.get_color()
    heights = []
    if values is not None:
        heights.append(values.detach().cpu())
        at = positions.detach().cpu().numpy()
        (dots,) = twin.plot(at, heights[0].numpy(), "o", color=color, gid="observations")
        dots.set(markersize=3.5, markerfacecolor="none")
    if value_function is not None:
        t = torch.linspace(0, 1, 401).to(positions)
        t = torch.lerp(positions.min(), positions.max(), t)
        heights.append(value_function(t).detach().cpu().reshape(-1))
        twin.plot(t.cpu().numpy(), heights[-1].numpy(), color=color, linewidth=1, gid="value")
    low, high = float(torch.cat(heights).min()), float(torch.cat(heights).max())
    # The series is drawn from _LOWER + 0.02 to 0.97 of the height, above the attention.
    span = (high - low or 1.0) / (0.95 - _LOWER)
    twin.set_ylim(high - 0.97 * span, high + 0.03 * span)
    twin.set_yticks(round_ticks(low, high, 4))


def plot_attention_map(
    attention: DensityLike | Tensor,
    image: Tensor,
    *,
    example: int | tuple[int | slice, ...] | None = None,
    ax: "Axes | None" = None,
    label: str | Sequence[str] | None = None,
    color: "ColorType | None" = None,
    domain: Domain = (0.0, 1.0),
    limit: int = 10,
) -> "Axes":
    """Plot attention over an image, one color for each head.

    The first coordinate of the attention runs over the image from left to right, the second from
    top to bottom. Continuous attention is drawn by `plot_density`, with outlines. Discrete weights
    are cells whose opacity grows with the weight; cells of weight zero are transparent.

    Args:
        attention: A density of two dimensions with batch shape (heads,) or (), or weights
            (..., rows, columns) of cells that divide the image evenly.
        image: Gray levels (H, W), or gray levels or colors, channels first (1, 3 or 4, H, W);
            colors are in [0, 1] or of dtype uint8.
        example: As in `plot_attention`.
        ax: Axes to draw on; default new ones.
        label: As in `plot_density`.
        color: As in `plot_density`.
        domain: The interval that the image covers along both axes, or one for each.
        limit: Largest number of heads to draw.

    Returns:
        The axes.

    Raises:
        ValueError: Shapes that do not fit, more heads than `limit`, or a domain that is not an
            interval.
        ImportError: matplotlib is missing.
    """
    drawn = _example_of(attention, example)
    box = box_of("domain", domain, 2)
    pixels = _pixels(image)
    if not isinstance(drawn, Tensor):
        batch, event = drawn.batch_shape, tuple(drawn.event_shape)
        if event != (2,):
            raise ValueError(f"attention must have two dimensions, got event shape {event}")
    elif drawn.dim() < 2:
        shape = tuple(drawn.shape)
        raise ValueError(f"attention must have shape (..., rows, columns), got {shape}")
    else:
        batch = drawn.shape[:-2]
    labels = labels_of("attention", batch.numel(), limit, label)
    ax = axes_of(ax)
    _show(ax, pixels, box, cmap="gray", gid="image")
    if not isinstance(drawn, Tensor):
        plot_density(drawn, ax, label=label, color=color, view=box, limit=limit)
    else:
        _draw_cells(ax, drawn, box, labels, color)
    # The first row of an image is at its top.
    ax.set_ylim(box[1][::-1])
    return ax


def _pixels(image: Tensor) -> NDArray[np.generic]:
    """Return the image as matplotlib expects it: (H, W), or channels last."""
    require_tensor("image", image)
    pixels = image.detach().cpu()
    if pixels.dim() == 3 and pixels.shape[0] in (1, 3, 4):
        pixels = pixels.squeeze(0) if len(pixels) == 1 else pixels.movedim(0, -1)
    elif pixels.dim() != 2:
        raise ValueError(
            f"image must have shape (H, W) or (1, 3 or 4, H, W), got {tuple(image.shape)}"
        )
    return pixels.numpy()


def _show(ax: "Axes", pixels: NDArray[np.generic], box: Box, **style: Any) -> None:
    """Draw an image, (H, W) or channels last, whose rows run down the second axis of the box."""
    (left, right), (top, bottom) = box
    ax.imshow(pixels, extent=(left, right, bottom, top), interpolation="nearest", **style)


def _draw_cells(
    ax: "Axes", weights: Tensor, box: Box, labels: list[str | None], color: "ColorType | None"
) -> None:
    """Draw cells in the color of their head, the heaviest of each head with the greatest opacity.

    Args:
        ax: The axes.
        weights: Weights (..., rows, columns) of cells that divide the box evenly.
        box: Intervals that the cells cover, from left to right and from top to bottom.
        labels: Names of the heads for the legend.
        color: Color of all heads; None for the next ones of the axes' cycle.
    """
    from matplotlib.colors import to_rgba

    cells = weights.detach().cpu().double().reshape(-1, *weights.shape[-2:]).numpy()
    for head, label in zip(cells, labels, strict=True):
        # No points: a legend entry, and the next color of the axes' cycle.
        (square,) = ax.plot([], [], "s", color=color, label=label)
        # Red, green, blue and opacity of each cell.
        shades = np.empty((*head.shape, 4))
        shades[:] = to_rgba(square.get_color())
        shades[..., 3] = _OPAQUE * head / (head.max() or 1.0)
        _show(ax, shades, box, gid="density")
