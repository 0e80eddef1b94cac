"""Plots of densities: lines in one dimension, filled contours in two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ..attention.scores import Box, Domain, box_of
from ..distributions import EllipticalDistribution, SparseCategorical, SparseDistribution
from ..numerics.validation import require_integer
from ..supports import Ellipsoid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = [
    "current_axes",
    "draw_weights",
    "labels_of",
    "plane_view",
    "plot_density",
    "round_ticks",
    "set_limits",
    "set_view",
]

# Mass left out on either side of an unbounded support, in one dimension; in two, altogether.
_TAIL, _TAIL_2D = 5e-4, 1e-3
# Margin of a line plot and of a contour plot, relative to what they show.
_MARGIN, _MARGIN_2D = 0.08, 0.06
# Heights relative to the axes': a row below the zero line for each support, all rows together at
# most, and the space below them.
_ROW, _ROWS, _BELOW = 0.028, 0.35, 0.02
# Number of filled contours, at equal shares of the maximum, and the opacity that each adds.
_LEVELS, _OPACITY = 8, 0.13
# The region searched for a support in standard deviations from the mean, and its grid.
_FAR, _COARSE = 4.0, 101
# Draws that a default view contains, which a coarse grid may miss.
_DRAWS = 1000
# Values below this share of the maximum count as zero where an outline is drawn.
_ZERO = 1e-6
# Locations at which a density is evaluated at a time.
_CHUNK = 2**14


def plot_density(
    p: SparseDistribution,
    ax: "Axes | None" = None,
    *,
    label: str | Sequence[str] | None = None,
    color: Any = None,
    escort: bool = False,
    data: Any = None,
    view: Domain | None = None,
    limit: int = 10,
    points: int = 401,
) -> "Axes":
    r"""Plot a density of one or two dimensions, shaded over its support.

    In one dimension, an edge where the density jumps is drawn as a vertical line. A bar below the
    zero line spans the support; an arrow shows that the support extends beyond the view.

    In two dimensions, contours are filled, at equal shares of each density's maximum. The line
    around them is the edge of the support, and nothing is drawn outside. For a density without an
    edge, a dashed line encloses all but $10^{-3}$ of the mass.

    Repeated calls add to the same axes.

    Args:
        p: A density of one or two dimensions; one line, or one set of contours, for each element
            of its batch. A `SparseCategorical` is drawn as stems.
        ax: Axes to draw on; default the current axes.
        label: Name for the legend, or one for each element of the batch.
        color: Any matplotlib colour; default the next of the axes' cycle for each element.
        escort: Whether to add the escort (`p.escort()`) as a dashed line; for one dimension.
        data: Observations to show with it, such as those that an estimate was fitted to: (n,) or
            (n, 1), drawn as marks below the line; in two dimensions (n, 2), drawn as dots.
        view: Interval to draw. By default, it contains the data and the supports, or all but
            $5 \times 10^{-4}$ of the mass on either side of an unbounded one. In two dimensions, an
            interval for both axes, or one for each; the default shows the support within four
            standard deviations of the mean.
        limit: Largest number of batch elements to draw.
        points: Number of points on each interval of a line, or along each axis in two dimensions;
            at least 2.

    Returns:
        The axes.

    Raises:
        ValueError: `p` is not a distribution of this package, has more than two dimensions, or more
            batch elements than `limit`; `view` is not an interval; `data` are not finite, of
            another shape, or given with categories; `points` is below 2; `label` has another length
            than the batch; or `escort` is set in two dimensions.
        ImportError: matplotlib is missing.
    """
    if not isinstance(p, SparseDistribution):
        raise ValueError(f"p must be a distribution of sparsefam, got {p!r}")
    if tuple(p.event_shape) not in ((), (2,)):
        shape = tuple(p.event_shape)
        raise ValueError(f"p must have one or two dimensions, got event shape {shape}")
    if p.event_shape and escort:
        raise ValueError("escort must be False for a density of two dimensions, got True")
    require_integer("points", points, 2)
    if data is not None and isinstance(p, SparseCategorical):
        raise ValueError("data must be None for categories")
    labels = labels_of("p", p.batch_shape.numel(), limit, label)
    seen = _array_of(data, p.event_shape)
    ax = current_axes(ax)
    if isinstance(p, SparseCategorical):
        draw_weights(ax, torch.arange(p.probs.shape[-1]), p.probs, labels, color)
    elif not p.event_shape:
        shown = _line_view(p, seen) if view is None else set_view(ax, view)
        dashed = _curves(p.escort(), shown, points) if escort else None
        intervals = _intervals(p).cpu().double()
        ends = intervals.reshape(-1, *intervals.shape[-2:])
        for i, curve in enumerate(_curves(p, shown, points)):
            (line,) = ax.plot(*curve, color=color, label=labels[i], gid="density")
            ax.fill_between(*curve, color=line.get_color(), alpha=0.22, linewidth=0)
            if dashed is not None:
                ax.plot(*dashed[i], "--", color=line.get_color(), gid="density")
            _draw_support(ax, ends[i], shown, line.get_color())
        if seen is not None:
            ink = ax.xaxis.label.get_color()
            style: dict[str, Any] = {"alpha": 0.5, "markersize": 7, "markeredgewidth": 0.6}
            ax.plot(seen, 0 * seen, "|", color=ink, linestyle="", **style, **_next_row(ax, "rug"))
        set_limits(ax)
    else:
        if seen is not None:
            ink = ax.xaxis.label.get_color()
            ax.plot(*seen.T, "o", color=ink, alpha=0.6, markersize=2, linewidth=0, gid="data")
        box = plane_view(p, seen) if view is None else box_of("view", view, 2)
        _draw_contours(ax, p, labels, color, box, points)
    return ax


def _intervals(p: SparseDistribution) -> Tensor:
    """Return the support (*batch, K, 2), padded by NaN."""
    support: Any = p.support
    intervals: Tensor = support.intervals
    return intervals.detach()


def _bulk(p: SparseDistribution) -> Tensor:
    """Return the support with quantiles in place of infinite ends."""
    ends = _intervals(p)
    if not ends.isinf().any():
        return ends
    quantiles = [p.icdf(ends.new_full(p.batch_shape, q)).detach() for q in (_TAIL, 1 - _TAIL)]
    return torch.where(ends.isinf(), torch.stack(quantiles, -1).unsqueeze(-2), ends)


def _line_view(p: SparseDistribution, data: Any) -> tuple[float, float]:
    """Return the default view in one dimension."""
    ends = _bulk(p).cpu().double()
    shown = np.concatenate([ends[~ends.isnan()].numpy(), [] if data is None else data])
    margin = _MARGIN * np.ptp(shown)
    return float(shown.min() - margin), float(shown.max() + margin)


def _curves(p: SparseDistribution, view: tuple[float, float], points: int) -> list[tuple[Any, Any]]:
    """Points (t, p(t)) of every batch element: zero between supports, upright at jumps."""
    ends = _intervals(p)
    shown, bulk = ends.clamp(*view), _bulk(p).clamp(*view)
    # Dense near the edges, where a density may be steep, but not at an edge, where rounding would
    # decide on the side of a jump.
    share = 0.5 - 0.5 * torch.cos(torch.linspace(0, torch.pi, points).to(ends))
    share = share.clamp(1e-6, 1 - 1e-6).reshape(-1, *(1,) * (ends.dim() - 1))
    # On an infinite support, the bulk of a narrow density may be a small part of the view.
    spans = (bulk, shown) if ends.isinf().any() else (shown,)
    nodes = [torch.lerp(span[..., 0], span[..., 1], share) for span in spans]
    t = torch.cat([shown[None, ..., 0], *nodes, shown[None, ..., 1]]).sort(0).values
    with torch.no_grad():
        height = torch.stack([p.prob(x) for x in t.nan_to_num().unbind(-1)], -1)
    # Down to zero at the edges, unless the view ends before the support does.
    for side, edge in ((0, height[0]), (1, height[-1])):
        edge *= shown[..., side] != ends[..., side]
    # (points, *batch, K) to (batch, K, points)
    t, height = (x.reshape(len(x), -1, x.shape[-1]).permute(1, 2, 0).cpu() for x in (t, height))
    return [_join(*piece, view) for piece in zip(t, height, strict=True)]


def _join(t: Tensor, height: Tensor, view: tuple[float, float]) -> tuple[Any, Any]:
    """Join the intervals (K, points) of a density to one line from end to end of the view."""
    present = ~t.isnan()
    t, height = t[present], height[present]
    t = torch.cat([t.new_tensor(view[:1]), t, t.new_tensor(view[1:])])
    return t.numpy(), torch.cat([height[:1], height, height[-1:]]).numpy()


def _draw_contours(
    ax: "Axes",
    p: SparseDistribution,
    labels: list[str | None],
    color: Any,
    view: Box,
    points: int,
) -> None:
    """Draw contours of each element of a batch by its values on a grid."""
    for i, label in zip(np.ndindex(*p.batch_shape), labels, strict=True):
        (line,) = ax.plot([], [], color=color, label=label)  # a legend has lines
        shade, grid = line.get_color(), _grid(_contour_box(p[i], view), points)
        heights = _heights(p[i], grid)
        (height,), (closed,) = heights, _closed(p[i], heights)
        if not height.any():
            continue
        top = height.max()
        lowest = _ZERO * top if closed else _quantile(height, _TAIL_2D)
        # Each layer is transparent, so that opacity grows with the density.
        for level in [lowest, *(top * np.arange(1, _LEVELS) / _LEVELS)]:
            filled = ax.contourf(*grid, height, (level, np.inf), colors=[shade], alpha=_OPACITY)
            filled.set_gid("density")
        style: dict[str, Any] = {"linewidths": 1.6, "linestyles": "-" if closed else "--"}
        ax.contour(*grid, height, [lowest], colors=[shade], **style).set_gid("support")
    ax.set(xlim=view[0], ylim=view[1])


def _contour_box(p: SparseDistribution, view: Box) -> Box:
    """Return a box around an ellipse, which may be a small part of the view; else the view."""
    if not isinstance(p, EllipticalDistribution):
        return view
    size = 1 if isinstance(p.support, Ellipsoid) else _FAR
    half = (1 + _MARGIN_2D) * size * p.scale_tril.detach().norm(dim=-1)
    centre = p.loc.detach()
    return tuple(zip((centre - half).tolist(), (centre + half).tolist(), strict=True))


def _grid(view: Box, points: int) -> list[Any]:
    return list(np.meshgrid(*(np.linspace(*side, points) for side in view)))


def _heights(p: SparseDistribution, grid: list[Any]) -> Any:
    """Densities (batch, rows, columns)."""
    mean = p.mean
    t = torch.from_numpy(np.stack(grid, -1).reshape(-1, 2)).to(mean)
    t = t.reshape(-1, *(1,) * len(p.batch_shape), 2)
    with torch.no_grad():
        parts = [
            p.prob(rows.expand(-1, *p.batch_shape, 2))
            for rows in t.split(max(1, _CHUNK // max(1, p.batch_shape.numel())))
        ]
    found = torch.cat(parts).cpu().double()
    return found.reshape(*grid[0].shape, -1).movedim(-1, 0).numpy()


def _closed(p: SparseDistribution, heights: Any) -> list[bool]:
    """Whether each density has an edge: by alpha, or by zeros among its values."""
    if p.support == constraints.real_vector:
        return [False] * len(heights)
    alphas = p.alpha.detach().expand(p.batch_shape).reshape(-1).tolist()
    return [alpha > 1 or bool((h == 0).any()) for alpha, h in zip(alphas, heights, strict=True)]


def plane_view(p: SparseDistribution, data: Any) -> Box:
    """Return the default view in two dimensions: the supports, some draws and the data."""
    # Small components may fall between the points of a grid.
    with torch.random.fork_rng(devices=[p.mean.device] if p.mean.is_cuda else []):
        torch.manual_seed(0)
        draws = p.sample((_DRAWS,)).cpu().double().reshape(-1, 2).numpy()
    data = draws if data is None else np.concatenate([data, draws])
    mean, reach = (x.detach().reshape(-1, 2) for x in (p.mean, _FAR * p.variance.sqrt()))
    low, high = (mean - reach).amin(0).tolist(), (mean + reach).amax(0).tolist()
    grid = _grid(tuple(zip(low, high, strict=True)), _COARSE)
    seen = []
    heights = _heights(p, grid)
    for height, closed in zip(heights, _closed(p, heights), strict=True):
        least = 0.0 if closed else _quantile(height, _TAIL_2D)
        seen += [axis[height > least] for axis in grid]
    sides = []
    for d in range(2):
        found = np.concatenate([*seen[d::2], data[:, d]])
        step = _MARGIN_2D * np.ptp(found)
        sides.append((float(found.min() - step), float(found.max() + step)))
    return tuple(sides)


def _quantile(height: Any, share: float) -> float:
    """Return the level below which a share of the mass on the grid lies."""
    levels = np.sort(height, None)
    return float(levels[np.searchsorted(levels.cumsum(), share * levels.sum())])


def current_axes(ax: "Axes | None") -> "Axes":
    """Return axes, by default matplotlib's current ones."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'sparsefam[examples]'") from error
    return plt.gca()


def labels_of(
    name: str, count: int, limit: int, label: str | Sequence[str] | None = None
) -> list[str | None]:
    """Return the label of each line, at most `limit`, from one for the first or one for each."""
    require_integer("limit", limit, 1)
    if count > limit:
        raise ValueError(f"{name} must have at most limit={limit} batch elements, got {count}")
    if label is None or isinstance(label, str):
        return [label, *[None] * (count - 1)]
    named = isinstance(label, Sequence) and all(x is None or isinstance(x, str) for x in label)
    if not named or len(label) != count:
        raise ValueError(f"label must be one name or {count} of them, got {label!r}")
    return list(label)


def set_view(ax: "Axes", view: Domain) -> tuple[float, float]:
    """Set the limits of the horizontal axis: finite and increasing."""
    ((low, high),) = box_of("view", view, 1)
    ax.set_xlim(low, high)
    return low, high


def _array_of(data: Any, event_shape: Sequence[int]) -> Any:
    """Return observations as an array (n,) or (n, 2), or None."""
    if data is None:
        return None
    try:
        found = np.asarray(data.tolist() if isinstance(data, Tensor) else data)
        found = found.astype(float, casting="same_kind")
    except (TypeError, ValueError):
        raise ValueError(f"data must be numbers, got {data!r}") from None
    wide = (*found.shape[:1], *event_shape)
    allowed = (wide,) if event_shape else (wide, (*wide, 1))
    if not found.ndim or found.shape not in allowed or not np.isfinite(found).all():
        named = "(n, 2)" if event_shape else "(n,) or (n, 1)"
        raise ValueError(f"data must be finite, of shape {named}, got shape {found.shape}")
    return found.reshape(wide)


def _next_row(ax: "Axes", name: str = "support") -> dict[str, Any]:
    """Return the style of lines in the next row; `set_limits` sets its height."""
    gid = f"{name} {len(_rows(ax))}"
    return {"transform": ax.get_xaxis_transform(), "gid": gid}


def _rows(ax: "Axes") -> dict[str, list["Line2D"]]:
    """Return the lines in each row below the zero line, from above."""
    rows: dict[str, list[Line2D]] = {}
    for line in ax.lines:
        if (gid := line.get_gid() or "").startswith(("support", "rug")):
            rows.setdefault(gid, []).append(line)
    return rows


def _draw_support(ax: "Axes", ends: Tensor, view: tuple[float, float], color: Any) -> None:
    """Draw a bar over each interval, in a new row."""
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
    """Draw stems at positions of nonzero weight, and mark these positions in a new row."""
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
    """Put zero above the rows, and the highest density at a share of the height above zero."""
    heights = [np.max(line.get_ydata()) for line in ax.lines if line.get_gid() == "density"]
    top = 1.06 * float(max(heights)) or 1.0
    rows = _rows(ax)
    height = min(_ROW, _ROWS / max(len(rows), 1))
    strip = _BELOW + height * len(rows)
    for rank, lines in enumerate(rows.values()):
        for line in lines:
            line.set_ydata(np.full(np.size(line.get_xdata()), strip - height * (rank + 0.5)))
    ax.set_ylim(-top / share * strip / (1 - strip), top / share)
    ax.set_yticks(round_ticks(0.0, top, 5))


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers between two."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]
