"""What pictures of densities and of attention share: axes, limits, the strip of supports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..attention.scores import Domain, box_of
from ..numerics.validation import is_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = [
    "check_count",
    "current_axes",
    "data_of",
    "draw_rug",
    "draw_support",
    "draw_weights",
    "names_of",
    "round_ticks",
    "set_limits",
    "set_view",
]

# Shares of the axes' height: a row of the strip below the zero line for each support, all rows
# together at most, and the margin below them.
_ROW, _ROWS, _MARGIN = 0.028, 0.35, 0.02


def current_axes(ax: "Axes | None") -> "Axes":
    """The axes given, or matplotlib's current ones.

    Raises:
        ImportError: matplotlib is missing.
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'sparsefam[examples]'") from error
    return plt.gca()


def check_count(name: str, count: int, limit: int) -> int:
    """The number of lines to draw, at most `limit`."""
    if not is_count(limit):
        raise ValueError(f"limit must be a positive integer, got {limit!r}")
    if count > limit:
        raise ValueError(f"{name} must have at most limit={limit} batch elements, got {count}")
    return count


def names_of(label: str | Sequence[str] | None, count: int) -> list[str | None]:
    """The label of each line, given as one for the first or as one for each."""
    if label is None or isinstance(label, str):
        return [label, *[None] * (count - 1)]
    named = isinstance(label, Sequence) and all(x is None or isinstance(x, str) for x in label)
    if not named or len(label) != count:
        raise ValueError(f"label must be one name or {count} of them, got {label!r}")
    return list(label)


def set_view(ax: "Axes", view: Domain) -> tuple[float, float]:
    """Shows a stretch of the line: finite ends, increasing."""
    ((low, high),) = box_of("view", view, 1)
    ax.set_xlim(low, high)
    return low, high


def data_of(data: Any, event_shape: Sequence[int]) -> Any:
    """Observations as an array (n,) or (n, 2), None if there are none.

    Raises:
        ValueError: Another shape, or not finite.
    """
    if data is None:
        return None
    plain = data.detach().cpu() if isinstance(data, Tensor) else data
    try:
        if np.iscomplexobj(plain) or (isinstance(plain, Tensor) and plain.is_complex()):
            raise TypeError
        plain = plain.double() if isinstance(plain, Tensor) else plain
        found = np.asarray(plain, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"data must be numbers, got {data!r}") from None
    wide = (*found.shape[:1], *event_shape)
    allowed = (wide,) if event_shape else (wide, (*wide, 1))
    if not found.ndim or found.shape not in allowed or not np.isfinite(found).all():
        named = "(n, 2)" if event_shape else "(n,) or (n, 1)"
        raise ValueError(f"data must be finite, of shape {named}, got shape {found.shape}")
    return found.reshape(wide)


def draw_rug(ax: "Axes", data: Any) -> None:
    """A mark for each observation, in a row of the strip."""
    ink = ax.xaxis.label.get_color()
    style: dict[str, Any] = {"color": ink, "alpha": 0.5, "markersize": 7, "markeredgewidth": 0.6}
    ax.plot(data, 0 * data, "|", linestyle="", **style, **_next_row(ax, "rug"))


def _next_row(ax: "Axes", name: str = "support") -> dict[str, Any]:
    """How to draw in the next row of the strip; `set_limits` says where that is."""
    gid = f"{name} {len(_rows(ax))}"
    return {"transform": ax.get_xaxis_transform(), "gid": gid}


def _rows(ax: "Axes") -> dict[str, list["Line2D"]]:
    """What is in each row of the strip, from above."""
    rows: dict[str, list[Line2D]] = {}
    for line in ax.lines:
        if (gid := line.get_gid() or "").startswith(("support", "rug")):
            rows.setdefault(gid, []).append(line)
    return rows


def draw_support(ax: "Axes", ends: Tensor, view: tuple[float, float], color: Any) -> None:
    """A bar over each interval, in a row of its own."""
    style = _next_row(ax)
    seen = (ends[:, 0] < view[1]) & (ends[:, 1] > view[0])
    for first, last in ends[seen].tolist():
        shown = (max(first, view[0]), min(last, view[1]))
        ax.plot(shown, (0, 0), color=color, linewidth=3.2, solid_capstyle="butt", **style)
        for end, at, marker in zip((first, last), shown, "<>", strict=True):
            if end != at:
                ax.plot([at], [0], marker, color=color, markersize=5, clip_on=False, **style)


def draw_weights(
    ax: "Axes", positions: Tensor, weights: Tensor, labels: list[str | None], color: Any
) -> None:
    """Stems at the positions of nonzero weight, which are also marked in a row of the strip."""
    t = positions.detach().cpu()
    rows = weights.detach().cpu().reshape(-1, weights.shape[-1])
    for row, label in zip(rows, labels, strict=True):
        alive = row > 0
        at, height = t[alive].numpy(), row[alive].numpy()
        (dots,) = ax.plot(at, height, "o", color=color, markersize=3, label=label, gid="density")
        ax.vlines(at, 0, height, color=dots.get_color(), linewidth=1.4, alpha=0.75)
        ax.plot(at, 0 * height, "|", color=dots.get_color(), markersize=4, **_next_row(ax))
    set_limits(ax)


def set_limits(ax: "Axes", share: float = 1.0) -> None:
    """Puts zero just above the strip and the highest density at a share of the height above."""
    heights = [np.max(line.get_ydata()) for line in ax.lines if line.get_gid() == "density"]
    top = 1.06 * float(max(heights)) or 1.0
    rows = _rows(ax)
    height = min(_ROW, _ROWS / max(len(rows), 1))
    strip = _MARGIN + height * len(rows)
    for rank, lines in enumerate(rows.values()):
        for line in lines:
            line.set_ydata(np.full(np.size(line.get_xdata()), strip - height * (rank + 0.5)))
    ax.set_ylim(-top / share * strip / (1 - strip), top / share)
    ax.set_yticks(round_ticks(0.0, top, 5))


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """About so many round numbers between the two."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]
