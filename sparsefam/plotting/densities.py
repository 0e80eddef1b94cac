"""Pictures of densities: lines in one dimension, filled contours in two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..attention.scores import Box, Domain, box_of
from ..distributions import SparseCategorical, SparseDistribution
from ..numerics.validation import is_count
from .canvas import (
    check_count,
    current_axes,
    data_of,
    draw_rug,
    draw_support,
    draw_weights,
    names_of,
    set_limits,
    set_view,
)
from .ellipses import draw_ellipses, is_elliptical
from .planes import draw_contours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_density"]

# Mass left out on either side where a support is infinite.
_TAIL = 5e-4


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
    r"""Draws a density of one or two dimensions, shaded over its support.

    In one dimension, an edge where the density jumps is drawn as a vertical line. A bar below the
    zero line spans the support, and ends in an arrow where the support goes on.

    In two dimensions, contours are filled, at equal shares of the density's own maximum. The
    line around them is the edge of the support, outside which nothing is drawn; of a density that
    has no edge, a dashed line leaves out $10^{-3}$ of the mass.

    Drawing on the same axes again adds to them.

    Args:
        p: A density of one or two dimensions; one line, or one set of contours, for each element
            of its batch. The law of finitely many categories is drawn as stems.
        ax: Axes to draw on; default the current ones.
        label: Name for the legend, or one for each element of the batch.
        color: Any matplotlib colour; default the next of the axes' cycle for each element.
        escort: Whether to add the escort (`p.escort()`) as a dashed line; for one dimension.
        data: Observations that are shown with it, such as those an estimate was fitted to: (n,) or
            (n, 1), as marks below the line; in two dimensions (n, 2), as dots.
        view: Stretch of the line to draw; default the supports or, where one is infinite, all but
            $5 \times 10^{-4}$ of the mass on either side, and the data. In two dimensions the
            stretch of both axes, or a pair for each; unless contours are ellipses, the default
            shows what is within four standard deviations of the mean.
        limit: Largest number of batch elements to draw.
        points: Number of points on each piece of a line, or along each axis of the plane; at
            least 2.

    Returns:
        The axes.

    Raises:
        ValueError: `p` has more than two dimensions, or more batch elements than `limit`; `view` is
            no interval; `data` are not finite or of another shape; there are fewer than two
            `points`; `label` has another length than the batch; or an escort is asked for in two
            dimensions, or data for categories.
        ImportError: matplotlib is missing.
    """
    _check(p, escort, data, points)
    labels = names_of(label, check_count("p", p.batch_shape.numel(), limit))
    seen = data_of(data, p.event_shape)
    ax = current_axes(ax)
    if p.event_shape:
        box = None if view is None else box_of("view", view, 2)
        _draw_plane(ax, p, labels, color, seen, box, points)
    elif isinstance(p, SparseCategorical):
        draw_weights(ax, torch.arange(p.probs.shape[-1]), p.probs, labels, color)
    else:
        stretch = _whole_view(p, seen) if view is None else set_view(ax, view)
        _draw_lines(ax, p, labels, color, escort, seen, stretch, points)
    return ax


def _check(p: SparseDistribution, escort: bool, data: object, points: int) -> None:
    if tuple(p.event_shape) not in ((), (2,)):
        shape = tuple(p.event_shape)
        raise ValueError(f"p must have one or two dimensions, got event shape {shape}")
    if p.event_shape and escort:
        raise ValueError("escort must be False for a density of two dimensions, got True")
    if not is_count(points) or points < 2:
        raise ValueError(f"points must be an integer, at least 2, got {points!r}")
    if data is not None and isinstance(p, SparseCategorical):
        raise ValueError("data must be None for categories")


def _draw_plane(
    ax: "Axes",
    p: SparseDistribution,
    labels: list[str | None],
    color: Any,
    data: Any,
    view: Box | None,
    points: int,
) -> None:
    if data is not None:
        ink = ax.xaxis.label.get_color()
        ax.plot(*data.T, "o", color=ink, alpha=0.6, markersize=2, linewidth=0, gid="data")
    if is_elliptical(p):
        draw_ellipses(ax, p, labels, color, view, points)
    else:
        draw_contours(ax, p, labels, color, view, points, data)


def _draw_lines(
    ax: "Axes",
    p: SparseDistribution,
    labels: list[str | None],
    color: Any,
    escort: bool,
    data: Any,
    view: tuple[float, float],
    points: int,
) -> None:
    dashed = _curves(p.escort(), view, points) if escort else None
    for i, (curve, ends) in enumerate(zip(_curves(p, view, points), _ends(p), strict=True)):
        (line,) = ax.plot(*curve, color=color, label=labels[i], gid="density")
        ax.fill_between(*curve, color=line.get_color(), alpha=0.22, linewidth=0)
        if dashed is not None:
            ax.plot(*dashed[i], "--", color=line.get_color(), gid="density")
        draw_support(ax, ends, view, line.get_color())
    if data is not None:
        draw_rug(ax, data)
    set_limits(ax)


def _ends(p: SparseDistribution) -> Tensor:
    """The intervals of every batch element (batch, K, 2), NaN where there are fewer than K."""
    intervals = _intervals(p)
    return intervals.cpu().double().reshape(-1, *intervals.shape[-2:])


def _intervals(p: SparseDistribution) -> Tensor:
    support: Any = p.support
    intervals: Tensor = support.intervals
    return intervals.detach()


def _bulk(p: SparseDistribution) -> Tensor:
    """The intervals, with quantiles in place of infinite ends."""
    ends = _intervals(p)
    if not ends.isinf().any():
        return ends
    quantiles = [p.icdf(ends.new_full(p.batch_shape, q)).detach() for q in (_TAIL, 1 - _TAIL)]
    return torch.where(ends.isinf(), torch.stack(quantiles, -1).unsqueeze(-2), ends)


def _whole_view(p: SparseDistribution, data: Any) -> tuple[float, float]:
    """The stretch that shows every support, or its bulk, and the data, and a margin."""
    bulk = _bulk(p).cpu().double()
    ends = bulk[~bulk.isnan()]
    if data is not None:
        ends = torch.cat([ends, torch.from_numpy(data)])
    low, high = float(ends.min()), float(ends.max())
    return low - 0.08 * (high - low), high + 0.08 * (high - low)


def _curves(p: SparseDistribution, view: tuple[float, float], points: int) -> list[tuple[Any, Any]]:
    """Points (t, p(t)) of every batch element: zero between supports, upright at jumps."""
    ends = _intervals(p)
    shown, bulk = ends.clamp(*view), _bulk(p).clamp(*view)
    # Close together at the edges, where a density may be steep, and next to the edges themselves,
    # where rounding would decide on which side of a jump one is.
    share = 0.5 - 0.5 * torch.cos(torch.linspace(0, torch.pi, points).to(ends))
    share = share.clamp(1e-6, 1 - 1e-6).reshape(-1, *(1,) * (ends.dim() - 1))
    # Where a support is infinite, the bulk of a narrow density may be a small part of the view.
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
    """One line through the pieces (K, points) of a density, from end to end of the view."""
    present = ~t.isnan()
    t, height = t[present], height[present]
    t = torch.cat([t.new_tensor(view[:1]), t, t.new_tensor(view[1:])])
    return t.numpy(), torch.cat([height[:1], height, height[-1:]]).numpy()
