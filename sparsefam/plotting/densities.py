"""Plots of densities: lines in one dimension, filled contours in two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints

from .._numerics.validation import require_integer
from .._types import DensityLike
from ..supports import Box, Domain, Ellipsoid, IntervalUnion, box_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.typing import ColorType

__all__ = [
    "axes_of",
    "draw_weights",
    "is_categorical",
    "is_density",
    "labels_of",
    "plot_density",
    "probs_of",
    "round_ticks",
    "set_limits",
    "set_view",
]

Array = NDArray[np.float64]

# Mass left out on either side of an unbounded support, in one dimension; in two, altogether.
_TAIL, _TAIL_2D = 5e-4, 1e-3
# Margin of a line plot and of a contour plot, relative to the range of the densities.
_MARGIN, _MARGIN_2D = 0.08, 0.06
# Heights relative to the axes': a row below the zero line for each support, all rows together at
# most, and the space below them.
_ROW, _ROWS, _BELOW = 0.028, 0.35, 0.02
# Number of filled contours, at equal fractions of the maximum, and the opacity that each adds.
_LEVELS, _OPACITY = 8, 0.13
# The region searched for a support in standard deviations from the mean, and its grid.
_FAR, _COARSE = 4.0, 101
# Draws that a default view contains, which a coarse grid may miss.
_DRAWS = 1000
# Values below this fraction of the maximum count as zero where an outline is drawn.
_ZERO = 1e-6
# Locations at which a density is evaluated at a time.
_CHUNK = 2**14


def plot_density(
    p: DensityLike,
    ax: "Axes | None" = None,
    *,
    label: str | Sequence[str] | None = None,
    color: "ColorType | None" = None,
    escort: bool = False,
    data: ArrayLike | Tensor | None = None,
    view: Domain | None = None,
    limit: int = 10,
    points: int = 401,
) -> "Axes":
    r"""Plot a density of one or two dimensions, shaded over its support.

    In one dimension, an edge where the density jumps is drawn as a vertical line. A bar below the
    zero line spans the support; an arrow shows that the support extends beyond the view.

    In two dimensions, contours are filled, at equal fractions of each density's maximum. The line
    around them is the edge of the support, and nothing is drawn outside. For a density without an
    edge, a dashed line encloses all but $10^{-3}$ of the mass.

    Calls with the same axes add to them.

    Args:
        p: A density of one or two dimensions; one line, or one set of contours, for each element
            of its batch. A `SparseCategorical` is drawn as stems.
        ax: Axes to draw on; default new ones.
        label: Name for the legend, or one for each element of the batch.
        color: Any matplotlib color; default the next of the axes' cycle for each element.
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
    if not is_density(p):
        raise ValueError(f"p must be a distribution of sparsefam, got {p!r}")
    if tuple(p.event_shape) not in ((), (2,)):
        shape = tuple(p.event_shape)
        raise ValueError(f"p must have one or two dimensions, got event shape {shape}")
    if p.event_shape and escort:
        raise ValueError("escort must be False for a density of two dimensions, got True")
    require_integer("points", points, 2)
    if data is not None and is_categorical(p):
        raise ValueError("data must be None for categories")
    labels = labels_of("p", p.batch_shape.numel(), limit, label)
    seen = _array_of(data, p.event_shape)
    ax = axes_of(ax)
    if is_categorical(p):
        probs = probs_of(p)
        draw_weights(ax, torch.arange(probs.shape[-1]), probs, labels, color)
        return ax
    elements = [p[i] for i in np.ndindex(*p.batch_shape)]
    ink = ax.xaxis.label.get_color()
    if p.event_shape:
        if seen is not None:
            ax.plot(*seen.T, "o", color=ink, alpha=0.6, markersize=2, linewidth=0, gid="data")
        box = _plane_view(p, seen) if view is None else box_of("view", view, 2)
        for element, name in zip(elements, labels, strict=True):
            (line,) = ax.plot([], [], color=color, label=name)  # a legend has lines
            _draw_contours(ax, element, line.get_color(), box, points)
        ax.set(xlim=box[0], ylim=box[1])
        return ax
    shown = _line_view(elements, seen) if view is None else set_view(ax, view)
    for element, name in zip(elements, labels, strict=True):
        curve = _curve(element, shown, points)
        (line,) = ax.plot(*curve, color=color, label=name, gid="density")
        ax.fill_between(*curve, color=line.get_color(), alpha=0.22, linewidth=0)
        if escort:
            dashed = _curve(element.escort(), shown, points)
            ax.plot(*dashed, "--", color=line.get_color(), gid="density")
        _draw_support(ax, _intervals(element), shown, line.get_color())
    if seen is not None:
        (marks,) = ax.plot(seen, 0 * seen, "|", color=ink, linestyle="", **_next_row(ax, "rug"))
        marks.set(alpha=0.5, markersize=7, markeredgewidth=0.6)
    set_limits(ax)
    return ax


def is_density(p: object) -> TypeGuard[DensityLike]:
    """Return whether something is a distribution of this package: its escorts show it."""
    return isinstance(p, Distribution) and hasattr(p, "escort")


def is_categorical(p: DensityLike) -> bool:
    """Return whether a distribution is one of categories."""
    return p.has_enumerate_support


def probs_of(p: DensityLike) -> Tensor:
    """Return the probabilities (*batch, K) of a distribution of categories."""
    return cast(Categorical, p).probs


def _intervals(p: DensityLike) -> Tensor:
    """Return the intervals (K, 2) of the support of a density of numbers."""
    ends = cast(IntervalUnion, p.support).intervals.detach()
    return ends[~ends[:, 0].isnan()]


def _bulk(p: DensityLike) -> Tensor:
    """Return the intervals (K, 2) of the support, with quantiles in place of infinite ends."""
    ends = _intervals(p)
    if not ends.isinf().any():
        return ends
    quantiles = p.icdf(ends.new_tensor([_TAIL, 1 - _TAIL])).detach()
    return torch.where(ends.isinf(), quantiles, ends)


def _line_view(elements: Sequence[DensityLike], data: Array | None) -> tuple[float, float]:
    """Return the default view in one dimension: the supports and the data (n,), with a margin."""
    ends = [_bulk(p).cpu().double().flatten().numpy() for p in elements]
    shown = np.concatenate([*ends, [] if data is None else data])
    margin = _MARGIN * np.ptp(shown)
    return float(shown.min() - margin), float(shown.max() + margin)


@torch.no_grad()
def _curve(p: DensityLike, view: tuple[float, float], points: int) -> tuple[Array, Array]:
    """Return locations t and heights p(t) (n,), (n,) of a line from end to end of the view.

    It is zero off the support and upright at jumps.

    Args:
        p: A density of numbers, without a batch.
        view: Ends of the view.
        points: Number of points in each interval of the support, twice if it is infinite.
    """
    ends = _intervals(p)
    shown, bulk = ends.clamp(*view), _bulk(p).clamp(*view)
    # Dense near the edges, where a density may be steep, but not at an edge, where rounding would
    # decide on the side of a jump.
    fraction = 0.5 - 0.5 * torch.cos(torch.linspace(0, torch.pi, points).to(ends))
    fraction = fraction.clamp(1e-6, 1 - 1e-6).unsqueeze(-1)
    # On an infinite support, the bulk of a narrow density may be a small fraction of the view.
    spans = (bulk, shown) if ends.isinf().any() else (shown,)
    t = torch.cat([torch.lerp(span[:, 0], span[:, 1], fraction) for span in spans]).sort(0).values
    # Locations (Q, K) in each interval of the support, with its ends.
    t = torch.cat([shown[None, :, 0], t, shown[None, :, 1]])
    height = p.prob(t)
    # Down to zero at the edges, unless the view ends before the support does.
    height[0] *= shown[:, 0] != ends[:, 0]
    height[-1] *= shown[:, 1] != ends[:, 1]
    # One interval after the other, and then to the ends of the view.
    t, height = t.T.flatten(), height.T.flatten()
    t = torch.cat([t.new_tensor(view[:1]), t, t.new_tensor(view[1:])])
    return t.cpu().numpy(), torch.cat([height[:1], height, height[-1:]]).cpu().numpy()


def _draw_contours(ax: "Axes", p: DensityLike, color: "ColorType", view: Box, points: int) -> None:
    """Draw contours of a density of two numbers by its values on a grid.

    Args:
        ax: The axes.
        p: The density, without a batch.
        color: Of the contours.
        view: The intervals that the grid covers; an ellipse gets a closer one.
        points: Points of the grid along each axis.
    """
    if hasattr(p, "scale_tril") and hasattr(p, "loc"):  # an ellipse may be smaller than the view
        size = 1 if isinstance(p.support, Ellipsoid) else _FAR
        half = (1 + _MARGIN_2D) * size * p.scale_tril.detach().norm(dim=-1)
        center = p.loc.detach()
        view = tuple(zip((center - half).tolist(), (center + half).tolist(), strict=True))
    grid = _grid(view, points)
    height = _heights(p, grid)
    if not height.any():
        return
    top, closed = height.max(), _is_closed(p, height)
    # A curve at height zero itself would follow rounding beyond the edge.
    lowest = _ZERO * top if closed else _quantile(height, _TAIL_2D)
    # Each layer is transparent, so that opacity grows with the density.
    for level in [lowest, *(top * np.arange(1, _LEVELS) / _LEVELS)]:
        filled = ax.contourf(*grid, height, (level, np.inf), colors=[color], alpha=_OPACITY)
        filled.set_gid("density")
    edge = ax.contour(*grid, height, [lowest], colors=[color], linewidths=1.6)
    edge.set(linestyle="-" if closed else "--", gid="support")


def _grid(view: Box, points: int) -> list[Array]:
    """Return coordinates along each axis of the points of a grid, (points, points) each."""
    return list(np.meshgrid(*(np.linspace(*side, points) for side in view)))


@torch.no_grad()
def _heights(p: DensityLike, grid: list[Array]) -> Array:
    """Return the values (rows, columns) of a density at the points of a `_grid`."""
    t = torch.from_numpy(np.stack(grid, -1).reshape(-1, 2)).to(p.mean)
    height = torch.cat([p.prob(rows) for rows in t.split(_CHUNK)])
    return height.cpu().double().reshape(grid[0].shape).numpy()


def _is_closed(p: DensityLike, height: Array) -> bool:
    """Return whether a density has an edge: by alpha, or by zeros among its values."""
    if p.support == constraints.real_vector:
        return False
    return float(p.alpha) > 1 or bool((height == 0).any())


def _plane_view(p: DensityLike, data: Array | None) -> Box:
    """Return the default view in two dimensions: the supports, some draws and the data (n, 2)."""
    # Small components may fall between the points of a grid.
    with torch.random.fork_rng(devices=[p.mean.device] if p.mean.is_cuda else []):
        torch.manual_seed(0)
        seen = [p.sample((_DRAWS,)).cpu().double().reshape(-1, 2).numpy()]
    seen += [] if data is None else [data]
    # A support may be unbounded: four deviations hold nearly all of the mass.
    mean, half = p.mean.detach().reshape(-1, 2), _FAR * p.variance.detach().sqrt().reshape(-1, 2)
    low, high = (mean - half).amin(0).tolist(), (mean + half).amax(0).tolist()
    grid = _grid(tuple(zip(low, high, strict=True)), _COARSE)
    for i in np.ndindex(*p.batch_shape):
        height = _heights(p[i], grid)
        least = 0.0 if _is_closed(p[i], height) else _quantile(height, _TAIL_2D)
        seen.append(np.stack([axis[height > least] for axis in grid], -1))
    points = np.concatenate(seen)
    margin = _MARGIN_2D * np.ptp(points, 0)
    return tuple(zip(points.min(0) - margin, points.max(0) + margin, strict=True))


def _quantile(height: Array, fraction: float) -> float:
    """Return the height below which points of a grid have a fraction of the mass."""
    # Cells of a grid are equal, so heights are masses up to a factor.
    levels = np.sort(height, None)
    return float(levels[np.searchsorted(levels.cumsum(), fraction * levels.sum())])


def axes_of(ax: "Axes | None") -> "Axes":
    """Return axes, by default new ones."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'sparsefam[plot]'") from error
    _, new = plt.subplots()
    return new


def labels_of(
    name: str, count: int, limit: int, label: str | Sequence[str] | None = None
) -> list[str | None]:
    """Return the label of each line.

    Args:
        name: Of the distribution in a message.
        count: Number of lines.
        limit: The greatest number of lines.
        label: One label, for the first line, or one for each.

    Raises:
        ValueError: Too many lines, or another number of labels.
    """
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
    """Set the limits of the horizontal axis, and return them: finite and increasing."""
    ((low, high),) = box_of("view", view, 1)
    ax.set_xlim(low, high)
    return low, high


def _array_of(data: ArrayLike | Tensor | None, event_shape: Sequence[int]) -> Array | None:
    """Return observations as an array (n,) or (n, 2), or None if there are none.

    Raises:
        ValueError: Not finite numbers, or of another shape than events of `event_shape`.
    """
    if data is None:
        return None
    try:
        array = np.asarray(data.tolist() if isinstance(data, Tensor) else data)
        # Neither complex numbers nor texts.
        array = array.astype(float, casting="same_kind")
    except (TypeError, ValueError):
        raise ValueError(f"data must be numbers, got {data!r}") from None
    shape = (*array.shape[:1], *event_shape)
    allowed = (shape,) if event_shape else (shape, (*shape, 1))
    if not array.ndim or array.shape not in allowed or not np.isfinite(array).all():
        named = "(n, 2)" if event_shape else "(n,) or (n, 1)"
        raise ValueError(f"data must be finite, of shape {named}, got shape {array.shape}")
    return array.reshape(shape)


def _next_row(ax: "Axes", name: str = "support") -> dict[str, Any]:
    """Return the style of lines in a new row below the zero line; `set_limits` sets its height.

    The name, "support" or "rug", begins the id by which `_rows` finds the lines.
    """
    gid = f"{name} {len(_rows(ax))}"
    return {"transform": ax.get_xaxis_transform(), "gid": gid}


def _rows(ax: "Axes") -> dict[str, list["Line2D"]]:
    """Return the lines in each row below the zero line, from above."""
    rows: dict[str, list[Line2D]] = {}
    for line in ax.lines:
        if (gid := line.get_gid() or "").startswith(("support", "rug")):
            rows.setdefault(gid, []).append(line)
    return rows


def _draw_support(ax: "Axes", ends: Tensor, view: tuple[float, float], color: "ColorType") -> None:
    """Draw a bar over each interval (J, 2) of a support, as far as it is in the view, in a new row.

    All heights are 0 until `set_limits` sets them.
    """
    style = _next_row(ax)
    seen = (ends[:, 0] < view[1]) & (ends[:, 1] > view[0])
    for first, last in ends[seen].tolist():
        shown = (max(first, view[0]), min(last, view[1]))
        ax.plot(shown, (0, 0), color=color, linewidth=3.2, solid_capstyle="butt", **style)
        # An arrow where the support goes on beyond the view.
        for end, drawn_end, marker in zip((first, last), shown, "<>", strict=True):
            if end != drawn_end:
                ax.plot([drawn_end], [0], marker, color=color, markersize=5, clip_on=False, **style)


def draw_weights(
    ax: "Axes",
    positions: Tensor,
    weights: Tensor,
    labels: list[str | None],
    color: "ColorType | None",
) -> None:
    """Draw stems at positions of nonzero weight, and mark these positions in a new row.

    Args:
        ax: The axes.
        positions: Positions (L,).
        weights: Weights (..., L); each row has a color.
        labels: Names of the rows for the legend.
        color: Color of all rows; None for the next ones of the axes' cycle.
    """
    t = positions.detach().cpu()
    rows = weights.detach().cpu().reshape(-1, weights.shape[-1])
    for row, label in zip(rows, labels, strict=True):
        alive = row > 0
        at, height = t[alive].numpy(), row[alive].numpy()
        # `set_limits` looks for the highest of the lines with this id.
        (dots,) = ax.plot(at, height, "o", color=color, markersize=3, label=label, gid="density")
        ax.vlines(at, 0, height, color=dots.get_color(), linewidth=1.4, alpha=0.75)
        ax.plot(at, 0 * height, "|", color=dots.get_color(), markersize=4, **_next_row(ax))
    set_limits(ax)


def set_limits(ax: "Axes", fraction: float = 1.0) -> None:
    """Put zero above the rows, and the highest density at a fraction of the height above zero."""
    heights = [np.max(line.get_ydata()) for line in ax.lines if line.get_gid() == "density"]
    # Some room above the peak; 1 if all heights are zero.
    top = 1.06 * float(max(heights)) or 1.0
    rows = _rows(ax)
    height = min(_ROW, _ROWS / max(len(rows), 1))
    strip = _BELOW + height * len(rows)
    for rank, lines in enumerate(rows.values()):
        for line in lines:
            line.set_ydata(np.full(np.size(line.get_xdata()), strip - height * (rank + 0.5)))
    # Zero lies above the rows, at the fraction `strip` of the height: below zero there are
    # strip / (1 - strip) times the units above it.
    ax.set_ylim(-top / fraction * strip / (1 - strip), top / fraction)
    ax.set_yticks(round_ticks(0.0, top, 5))


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`, about `most` of them."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]
