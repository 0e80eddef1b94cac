"""Pictures of attention over a series or tokens."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..distributions import SparseCategorical, SparseDistribution
from .canvas import check_count, current_axes, draw_weights, round_ticks, set_limits, set_view
from .densities import plot_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_attention"]

# Share of the height for attention if a series is drawn above it.
_LOWER = 0.55


def plot_attention(
    attention: SparseDistribution | Tensor,
    positions: Tensor,
    values: Tensor | None = None,
    *,
    tokens: Sequence[str] | None = None,
    value_function: Callable[[Tensor], Tensor] | None = None,
    ax: "Axes | None" = None,
    view: tuple[float, float] | None = None,
    limit: int = 10,
) -> "Axes":
    """Draws where attention falls on a series or on tokens, one colour for each head.

    Continuous attention is drawn as `plot_density` does. Discrete weights are stems, and a point
    of weight zero has none. A series is drawn above, on a vertical axis of its own.

    Args:
        attention: A density of one dimension with batch shape (heads,) or (), or weights (..., L).
        positions: Where the observations are (L,).
        values: The series at the positions (L,).
        tokens: L words to write at the positions.
        value_function: Callable from locations (Q,) to values (Q,), drawn as a line.
        ax: Axes to draw on; default the current ones.
        view: As in `plot_density`.
        limit: Largest number of heads to draw.

    Returns:
        The axes of the attention.

    Raises:
        ValueError: Shapes that do not fit, or more heads than `limit`.
        ImportError: matplotlib is missing.
    """
    _check_lengths(positions, values=values, tokens=tokens)
    if isinstance(attention, SparseDistribution) and attention.event_shape:
        shape = tuple(attention.event_shape)
        raise ValueError(f"attention must have one dimension, got event shape {shape}")
    ax = current_axes(ax)
    if isinstance(attention, SparseCategorical):
        _draw_discrete(ax, attention.probs, positions, view, limit)
    elif isinstance(attention, SparseDistribution):
        plot_density(attention, ax, view=view, limit=limit)
    else:
        _draw_discrete(ax, attention, positions, view, limit)
    if values is not None or value_function is not None:
        set_limits(ax, _LOWER)
        _draw_series(ax, positions, values, value_function)
    if tokens is not None:
        ax.set_xticks(positions.tolist(), list(tokens), rotation=60, ha="right")
    ax.set_yticks([])
    return ax


def _draw_discrete(
    ax: "Axes",
    weights: Tensor,
    positions: Tensor,
    view: tuple[float, float] | None,
    limit: int,
) -> None:
    if weights.shape[-1:] != positions.shape:
        shape, length = tuple(weights.shape), len(positions)
        raise ValueError(f"attention must have shape (..., {length}), got {shape}")
    count = check_count("attention", weights.shape[:-1].numel(), limit)
    draw_weights(ax, positions, weights, [None] * count, None)
    if view is not None:
        set_view(ax, view)


def _check_lengths(positions: Tensor, **others: Tensor | Sequence[str] | None) -> None:
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
    """Observations and the function through them, on a twin axis above the attention."""
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
    span = (high - low or 1.0) / (0.95 - _LOWER)
    twin.set_ylim(high - 0.97 * span, high + 0.03 * span)
    twin.set_yticks(round_ticks(low, high, 4))
