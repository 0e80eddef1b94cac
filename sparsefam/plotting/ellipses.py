"""Pictures of elliptical densities in the plane, whose every contour is an ellipse."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..attention.scores import Box
from ..distributions import MultivariateNormal, SparseDistribution
from ..supports import Ellipsoid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Ellipse

__all__ = ["LEVELS", "OPACITY", "TAIL", "draw_ellipses", "is_elliptical", "next_color"]

# Mass left out where a density is positive everywhere.
TAIL = 1e-3
# Contours at equal shares of the height, and the opacity that the area in each adds.
LEVELS, OPACITY = 8, 0.13


def draw_ellipses(
    ax: "Axes",
    p: SparseDistribution,
    labels: list[str | None],
    color: Any,
    view: Box | None,
    points: int,
) -> None:
    """Filled contours of each element of a batch, inside the outline of its support."""
    loc, scale_tril, closed = _outlines(p)
    style = {"fill": False, "linewidth": 1.6, "linestyle": "-" if closed else "--"}
    sizes = _contours(p, scale_tril, points)
    for i, label in enumerate(labels):
        edge = next_color(ax, color)
        shade = {"color": edge, "alpha": OPACITY, "linewidth": 0, "gid": "density"}
        for size in sizes[:, i]:
            ax.add_patch(_ellipse(loc[i], size * scale_tril[i], **shade))
        outline = _ellipse(loc[i], scale_tril[i], gid="support", label=label, **style)
        outline.set_edgecolor(edge)
        ax.add_patch(outline)
    ax.autoscale_view()
    if view is not None:
        ax.set(xlim=view[0], ylim=view[1])


def next_color(ax: "Axes", color: Any) -> Any:
    """The colour given, or the next of the axes' cycle."""
    # Drawing nothing takes it.
    (line,) = ax.plot([], [], color=color)
    line.remove()
    return line.get_color()


def is_elliptical(p: SparseDistribution) -> bool:
    """Whether every contour is an ellipse."""
    return isinstance(p.support, Ellipsoid) or isinstance(p, MultivariateNormal)


def _outlines(p: Any) -> tuple[Any, Any, bool]:
    """Centres (batch, 2) and scales (batch, 2, 2) of the outlines; whether density ends there."""
    support: Any = p.support
    closed = isinstance(support, Ellipsoid)
    if closed:
        loc, scale_tril = support.loc, support.scale_tril
    else:
        loc, scale_tril = p.loc, math.sqrt(-2 * math.log(TAIL)) * p.scale_tril
    return _array(loc).reshape(-1, 2), _array(scale_tril).reshape(-1, 2, 2), closed


def _array(x: Tensor) -> Any:
    return x.detach().cpu().double().numpy()


def _contours(p: Any, scale_tril: Any, points: int) -> Any:
    """Sizes of the contours (levels, batch), as shares of the outline."""
    share = torch.linspace(0, 1, points, dtype=torch.float64)
    ray = torch.from_numpy(scale_tril[..., 0]).reshape(*p.batch_shape, 2)
    # Inside the edge, where rounding would decide on which side of a jump one is.
    steps = (1 - 1e-4) * share.reshape(-1, *(1,) * ray.dim())
    with torch.no_grad():
        height = _array(p.prob(p.loc + (steps * ray).to(p.loc))).reshape(points, -1)
    levels = np.arange(LEVELS).reshape(-1, 1, 1) / LEVELS
    above = height >= levels * height[0]
    return share.numpy()[points - 1 - above[:, ::-1].argmax(1)]


def _ellipse(loc: Any, scale_tril: Any, **style: Any) -> "Ellipse":
    """The image of the unit disc."""
    from matplotlib.patches import Ellipse

    axes, lengths, _ = np.linalg.svd(scale_tril)
    tilt = math.degrees(math.atan2(axes[1, 0], axes[0, 0]))
    return Ellipse(loc, 2 * lengths[0], 2 * lengths[1], angle=tilt, **style)
