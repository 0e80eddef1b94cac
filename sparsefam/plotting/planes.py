"""Pictures of densities in the plane that have contours of any form, by their values on a grid."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ..attention.scores import Box
from ..distributions import SparseDistribution
from .ellipses import LEVELS, OPACITY, TAIL, next_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_contours"]

# Standard deviations on either side that are searched for the support, and on how fine a grid.
_FAR, _COARSE = 4.0, 101
# Share of what is shown that stays blank on either side.
_MARGIN = 0.06
# Of the largest density, what counts as zero where outlines are drawn.
_ZERO = 1e-6
# Locations at which a density is evaluated at a time.
_CHUNK = 2**14
# Places that a view shows whatever its grid misses.
_DRAWS = 1000


def draw_contours(
    ax: "Axes",
    p: SparseDistribution,
    labels: list[str | None],
    color: Any,
    view: Box | None,
    points: int,
    data: Any,
) -> None:
    """Filled contours of each element of a batch, inside the outline of its support."""
    view = _whole_view(p, data) if view is None else view
    grid = _grid(view, points)
    heights = _heights(p, grid)
    for height, closed, label in zip(heights, _closed(p, heights), labels, strict=True):
        shade = next_color(ax, color)
        ax.plot([], [], color=shade, label=label)  # a legend has lines
        if height.any():
            _draw_one(ax, grid, height, closed, shade)
    ax.set(xlim=view[0], ylim=view[1])


def _draw_one(ax: "Axes", grid: list[Any], height: Any, closed: bool, color: Any) -> None:
    top = height.max()
    lowest = _ZERO * top if closed else _quantile(height, TAIL)
    # As many layers as the density is high, each of which takes some of the light.
    for level in [lowest, *(top * np.arange(1, LEVELS) / LEVELS)]:
        filled = ax.contourf(*grid, height, (level, np.inf), colors=[color], alpha=OPACITY)
        filled.set_gid("density")
    style: dict[str, Any] = {"linewidths": 1.6, "linestyles": "-" if closed else "--"}
    ax.contour(*grid, height, [lowest], colors=[color], **style).set_gid("support")


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
    """Whether each density ends somewhere: alpha says so, or zeros among the values."""
    if p.support == constraints.real_vector:
        return [False] * len(heights)
    alphas = p.alpha.detach().expand(p.batch_shape).reshape(-1).tolist()
    return [alpha > 1 or bool((h == 0).any()) for alpha, h in zip(alphas, heights, strict=True)]


def _whole_view(p: SparseDistribution, data: Any) -> Box:
    """Where any of the densities is positive, as far as is looked, its draws and the data."""
    # Small islands fall between the points of a grid.
    with torch.random.fork_rng(devices=[p.mean.device] if p.mean.is_cuda else []):
        torch.manual_seed(0)
        draws = p.sample((_DRAWS,)).cpu().double().reshape(-1, 2).numpy()
    data = draws if data is None else np.concatenate([data, draws])
    low, high = (_ends(p.mean, p.variance, sign) for sign in (-1, 1))
    grid = _grid(tuple(zip(low, high, strict=True)), _COARSE)
    seen = []
    heights = _heights(p, grid)
    for height, closed in zip(heights, _closed(p, heights), strict=True):
        least = 0.0 if closed else _quantile(height, TAIL)
        seen += [axis[height > least] for axis in grid]
    sides = []
    for d in range(2):
        found = np.concatenate([*seen[d::2], data[:, d]])
        step = _MARGIN * np.ptp(found)
        sides.append((float(found.min() - step), float(found.max() + step)))
    return tuple(sides)


def _ends(mean: Tensor, variance: Tensor, sign: int) -> list[float]:
    ends = (sign * mean + _FAR * variance.sqrt()).detach().reshape(-1, 2)
    return [sign * x for x in ends.amax(0).tolist()]


def _quantile(height: Any, share: float) -> float:
    """The level below which that share of the mass on the grid is."""
    levels = np.sort(height, None)
    return float(levels[np.searchsorted(levels.cumsum(), share * levels.sum())])
