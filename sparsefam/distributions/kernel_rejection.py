"""Draws of vectors from kernel families, by rejection.

Around each node of the panels there is a cell as long as the node's weights, and in it an envelope:
the density of the greatest score to expect from the nodes around. Proposals take a cell
by its envelope's mass.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Size, Tensor

from ..kernels import kernel_matrix
from ..numerics.panels import Axis, product_rule
from ..numerics.truncated_power import Power

if TYPE_CHECKING:
    from .kernel_family import KernelFamily

__all__ = ["draw_by_rejection"]

# How far an envelope is from its node's score towards the greatest of the neighbours, and of the
# way from the least to it, which is for peaks between nodes; these reach up to 1.
_TOWARDS, _BEYOND, _HIGHEST = 0.75, 0.375, 1.0
# Points in a cell at which the base is looked at.
_LOOKS = 17
# Elements of a round's largest matrix, and proposals for each draw in a round.
_ELEMENTS, _MOST_COPIES = 2**21, 32
# Proposals for each draw, and for all in any case.
_MOST_PROPOSALS, _ANY_PROPOSALS = 200, 10**6
# Units of rounding that a draw keeps from the edge, where sums of another order may be outside.
_ROUNDING = 8


@torch.no_grad()
def draw_by_rejection(p: "KernelFamily", sample_shape: Size) -> Tensor:
    """Independent samples (*sample, *batch, D): their effective sample size is their number.

    The envelope is estimated from the scores at the nodes, not proved to be a bound. Where a
    proposal finds the density above it, it is raised there and all draws of the batch member are
    made anew, so that no proposal of those that are returned was above. What remains wrong is the
    mass above the envelope that no proposal met, of the order of 1 in as many proposals (2 to 10 a
    draw), what the panels cut from the tails of the base (1e-9 in float32, 1e-17 in float64) and
    parts of the support that lie between neighbouring nodes. Draws are inside the support by the
    rounding error of the score.

    The memory is a few times that of the scores at the nodes; proposals are made in parts.

    Args:
        p: Of vectors.
        sample_shape: As in torch.distributions.

    Raises:
        RuntimeError: A density so much narrower than the cells that hardly a proposal is accepted.
    """
    target, envelope = _Target(p), _Envelope(p)
    rows, count = p.batch_shape.numel(), sample_shape.numel() * p.batch_shape.numel()
    device, dim = p.weights.device, p.event_shape[0]
    row_of = torch.arange(count, device=device) % max(rows, 1)
    found = p.weights.new_empty(count, dim)
    waiting, proposals = torch.arange(count, device=device), 0
    while len(waiting):
        if proposals > _MOST_PROPOSALS * count + _ANY_PROPOSALS:
            raise _too_narrow(len(waiting), count, proposals)
        part, rest = waiting.tensor_split([target.room])
        copies = max(1, min(_MOST_COPIES, target.room // len(part)))
        row = row_of[part].repeat_interleave(copies)
        proposals += len(row)
        cell, t = envelope.propose(row)
        excess = target.log_density(t, row) - envelope.log[cell]
        if (excess > 0).any():
            again = envelope.raise_to(cell, excess)[row_of]
            open_ = torch.zeros_like(again).index_fill(0, waiting, True)
            waiting = (again | open_).nonzero().squeeze(-1)
            continue
        accepted = (torch.rand_like(excess).log() < excess).reshape(-1, copies)
        done, first = accepted.any(-1), accepted.byte().argmax(-1)
        found[part[done]] = target.rounded(t).reshape(len(part), copies, dim)[done, first[done]]
        waiting = torch.cat([part[~done], rest])
    return found.reshape(*sample_shape, *p.batch_shape, dim)


def _too_narrow(left: int, count: int, proposals: int) -> RuntimeError:
    return RuntimeError(
        f"sample has {left} of {count} draws left after {proposals} proposals: the density is much "
        "narrower than the nodes are apart; a smaller tolerance brings more nodes"
    )


class _Target:
    """The densities of a batch, flattened to rows, at locations of any of them.

    Attributes:
        room: Locations to be asked for at once.
    """

    def __init__(self, p: "KernelFamily") -> None:
        self._kernel, self._base, self._points = p.kernel, p.panels.base, p._points
        self._weights = p.weights.reshape(-1, p.weights.shape[-1])
        self._level, self._power = p._parts.level, p._power
        sets = p._points.shape[:-2]
        self._set_of = torch.arange(sets.numel(), device=p.weights.device).reshape(sets)
        self._set_of = self._set_of.expand(p.batch_shape).reshape(-1)
        columns = p._points.shape[:-1].numel()
        self.room = max(1, _ELEMENTS // columns)

    def rounded(self, t: Tensor) -> Tensor:
        """Float64 locations as the density's dtype has them."""
        return t.to(self._weights)

    def log_density(self, t: Tensor, row: Tensor) -> Tensor:
        """Log density up to a constant for each row, at float64 (n, D), which are rounded: (n,).

        Next to an end where the base is infinite it is as it was before rounding.
        """
        kept = self.rounded(t)
        base = self._base.log_density(t)
        alive = torch.isfinite(base) & torch.isfinite(self._base.log_density(kept.double()))
        return self._log_relative(kept, row) + torch.where(alive, base, -math.inf)

    def _log_relative(self, t: Tensor, row: Tensor) -> Tensor:
        columns = kernel_matrix(self._kernel, self._points, t)
        columns = columns.reshape(-1, *columns.shape[-2:])
        place = torch.arange(len(t), device=t.device)
        columns = columns[self._set_of[row], :, place] if len(columns) > 1 else columns[0].T
        terms = columns * self._weights[row]
        power = _of_rows(self._power, row)
        x = terms.sum(-1) - self._level[row]
        size = terms.abs().sum(-1) + self._level[row].abs()
        rounding = _ROUNDING * torch.finfo(t.dtype).eps * (1 + power.eps * size)
        inside = 1 + power.eps * x > rounding
        log = power.factor_of_log * power.log_base(torch.where(inside, x, 0.0))
        return torch.where(inside, log, -math.inf)


class _Envelope:
    """What densities are supposed not to exceed, constant on cells.

    Attributes:
        log: For all rows and cells, flattened; up to the same constants as the target.
    """

    def __init__(self, p: "KernelFamily") -> None:
        axes = p.panels.axes
        self._ends = [_cell_ends(axis) for axis in axes]
        counts = [len(ends) - 1 for ends in self._ends]
        grid = p._offsets_on(p.panels).permute(2, 1, 0).reshape(-1, *counts)
        level = _highest(grid).flatten(1)
        power = _of_rows(p._power, torch.arange(len(level), device=level.device).unsqueeze(-1))
        inside = power.eps * level > -1
        log = power.factor_of_log * power.log_base(torch.where(inside, level, 0.0))
        factors = [_highest_of_base(p, axis, ends) for axis, ends in enumerate(self._ends)]
        base = torch.cartesian_prod(*factors).sum(-1)
        self.log = (torch.where(inside, log, -math.inf).double() + base).flatten()
        self._log_volume = product_rule(axes)[1].log()
        self._cells, self._counts = level.shape[1], counts
        self._add_up()

    def _add_up(self) -> None:
        """Row r's distribution function, plus r: increasing over all rows."""
        mass = self.log.reshape(-1, self._cells) + self._log_volume
        above = torch.softmax(mass, -1).cumsum(-1)
        above = above / above[:, -1:]
        self._above = (
            above + torch.arange(len(above), device=above.device).unsqueeze(-1)
        ).flatten()

    def propose(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Cells, among those of all rows, and locations (n, D), float64."""
        level = row + torch.rand(row.shape, dtype=torch.float64, device=row.device)
        cell = torch.searchsorted(self._above, level, right=True)
        cell = torch.minimum(cell, (row + 1) * self._cells - 1)
        places = torch.unravel_index(cell % self._cells, self._counts)
        share = torch.rand(len(row), len(places), dtype=torch.float64, device=row.device)
        t = [
            ends[place] + (ends[place + 1] - ends[place]) * share[:, axis]
            for axis, (ends, place) in enumerate(zip(self._ends, places, strict=True))
        ]
        return cell, torch.stack(t, -1)

    def raise_to(self, cell: Tensor, excess: Tensor) -> Tensor:
        """Raise cells by twice what was found above; which rows they belong to (R,)."""
        over = excess > 0
        cell, excess = cell[over], excess[over]
        due = self.log[cell] + 2 * excess
        self.log.scatter_reduce_(0, cell, due, "amax")
        self._add_up()
        raised = torch.zeros(len(self.log) // self._cells, dtype=torch.bool, device=cell.device)
        return raised.index_fill(0, cell // self._cells, True)


def _of_rows(power: Power, row: Tensor) -> Power:
    return power._replace(eps=power.eps[row]) if isinstance(power.eps, Tensor) else power


def _cell_ends(axis: Axis) -> Tensor:
    """Ends (n + 1,) of cells as long as Gauss-Legendre weights, each with its node inside."""
    lengths = axis.rule()[1]
    ends = axis.breaks[:-1].unsqueeze(-1) + lengths.cumsum(-1)
    return torch.cat([axis.breaks[:1], ends[:, :-1].flatten(), axis.breaks[1:]]).sort().values


def _highest(x: Tensor) -> Tensor:
    """What the values between nodes (R, *counts) may reach around each."""
    high = low = x
    for axis in range(1, x.dim()):
        high, low = _widened(high, axis), -_widened(-low, axis)
    beyond = _BEYOND * (x - low) + 4 * torch.finfo(x.dtype).eps * (1 + x.abs())
    return x + _TOWARDS * (high - x) + beyond.clamp_max(_HIGHEST)


def _widened(x: Tensor, axis: int) -> Tensor:
    """The greatest of each entry and its neighbours along an axis."""
    before, after = x.narrow(axis, 0, x.shape[axis] - 1), x.narrow(axis, 1, x.shape[axis] - 1)
    pair = torch.maximum(before, after)
    first, last = pair.narrow(axis, 0, 1), pair.narrow(axis, pair.shape[axis] - 1, 1)
    return torch.maximum(torch.cat([first, pair], axis), torch.cat([pair, last], axis))


def _highest_of_base(p: "KernelFamily", axis: int, ends: Tensor) -> Tensor:
    """The greatest logarithm (n,) of a factor of the base in cells, seen at points of each."""
    share = torch.linspace(0, 1, _LOOKS + 2, dtype=ends.dtype, device=ends.device)[1:-1]
    t = ends[:-1].unsqueeze(-1) + ends.diff().unsqueeze(-1) * share
    log = p.panels.base.log_factor(axis, t)
    high = log.amax(-1)
    rise = (high - log.amin(-1)).clamp_max(1.0).nan_to_num(0.0)
    return high + 2 * rise / _LOOKS
