"""Integrals of a density of numbers between cuts: masses, quantiles, moments and expectations."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..._numerics.modes import values_are_readable
from ..._numerics.quadrature import gauss_legendre, sort_cuts
from ..._numerics.roots import attach_root_gradient, increasing_root
from ..._numerics.special import log_positive
from ..._numerics.validation import require
from ...bases import Basis, Stack
from ...supports import entries_of
from .coordinates import Coordinate, Line

__all__ = ["Panels", "argmax", "clamp", "on_line", "or_infinite"]

# Nodes between two cuts for covariances of bases.
_FINE = 48
# Fractions of a range at which a density is evaluated to find where it matters; and of the range
# that remains, in further rounds.
_TINY = tuple(16.0**-k for k in range(9, 0, -1))
_COARSE = (0.0, *_TINY, *(k / 8 for k in range(1, 8)), *(1 - x for x in _TINY[::-1]), 1.0)
_EVEN = tuple(k / 12 for k in range(13))
# Fractions of the range where a density matters at which it is cut: halfway between even ones and
# Chebyshev's points, since tails change faster. Beside the middle, where a kink may be: second
# derivatives need cuts apart from it.
_TENTHS = [(k + 0.07) / 10 for k in range(1, 10)]
_FRACTIONS = (0.0, *((x + math.sin(x * math.pi / 2) ** 2) / 2 for x in _TENTHS), 1.0)
# Logarithm of the ratio of densities below which a density does not matter, even for moments.
_NEGLIGIBLE = -80.0
# The least mass beyond a location that panels, which end where the density is negligible, have
# with enough digits.
_LEAST_MASS = 1e-10
# Error of a probability, relative to the smaller tail, at the end of the search for its quantile.
_NEAR = 1e-8
# How much of the mass a rule may miss.
_LOST = 1e-3
# Rounding errors by which cuts may differ that are the same.
_ROUNDING = 8
# Intervals into which the search for a mode divides the neighborhood of the best location, and how
# often.
_INTERVALS, _ROUNDS = 8, 16


class Chart(Protocol):
    """A variable that stands for locations, such as the log odds of a fraction."""

    def onto(self, t: Tensor) -> Tensor:
        """Return the variable at locations."""
        ...

    def back(self, s: Tensor) -> Tensor:
        """Return the locations that values of the variable stand for."""
        ...


class Panels:
    """A density of numbers on subintervals, in each of which a few nodes integrate it in float64.

    Args:
        log_density: The log density up to a constant, from locations (..., *batch) between the
            ends; not finite where the density is 0.
        line: The coordinate in which it is integrated.
        ends: Ends of the support (2 tensors *batch).
        kinks: Coordinates (J, *batch) of what may be kinks, which become cuts; default none.
        edges: Coordinates (K + 1, *batch) of K intervals, in each of which `search` finds where the
            density matters; default those of the ends, so that K = 1.
        region: A result (*batch, K, 2) of `search`, if there is one.
        fractions: Fractions of its length at which a region is cut.
        log_mass: The logarithm of the integral of exp(log_density) (*batch); default 0.
        name: Of a density whose integral must be 1 up to a thousandth, to raise ValueError.
        chart: The variable of the log density if that is not the location: the coordinate replaces
            this variable, while ends and results are locations.
    """

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        line: Coordinate,
        ends: tuple[Tensor, Tensor],
        *,
        kinks: Tensor | None = None,
        edges: Tensor | None = None,
        region: Tensor | None = None,
        fractions: Sequence[float] = _FRACTIONS,
        log_mass: Tensor | None = None,
        name: str | None = None,
        chart: Chart | None = None,
    ) -> None:
        self.log_density, self.line, self.ends, self.log_mass = log_density, line, ends, log_mass
        self._chart = chart
        self._edges = torch.stack([self._onto(x) for x in ends]) if edges is None else edges
        self._kinks = self._edges[:0] if kinks is None else kinks
        self._region, self._fractions, self._name = region, fractions, name

    def _onto(self, t: Tensor) -> Tensor:
        """Return coordinates of locations (..., *batch)."""
        return self.line.onto(t if self._chart is None else self._chart.onto(t))

    def _back(self, t: Tensor) -> Tensor:
        """Return the locations that values (..., *batch) of the chart's variable stand for."""
        return t if self._chart is None else self._chart.back(t)

    def density(self, t: Tensor) -> Tensor:
        """Return the density between the ends; 0 where rounding to an end makes it infinite."""
        log_p = self._log_p(t)
        return torch.where(log_p.isfinite(), log_p, -math.inf).exp()

    def cuts(self) -> Tensor:
        """Return coordinates (J, *batch) between which a few nodes integrate the density."""
        if self._region is None:
            with torch.no_grad():
                self._region = self.search()
        return _join(_cuts_within(self._edges, self._region, self._fractions), self._kinks)

    def locations(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        cuts, (low, high) = self.cuts(), self.ends
        starts_inside, stops_inside = cuts[0] > self._onto(low), cuts[-1] < self._onto(high)
        t = self._back(self.line.locations(cuts)[0])
        # Cuts at ends of the support are these ends, without the rounding of the coordinate.
        first = torch.where(starts_inside | low.isinf(), t[0], low)
        last = torch.where(stops_inside | high.isinf(), t[-1], high)
        return torch.stack([first, *t[1:-1], last]).movedim(0, -1)

    def search(
        self, negligible: float = _NEGLIGIBLE, *, rounds: int = 1, power: float = 1.0
    ) -> Tensor:
        """Return the coordinates (*batch, K, 2) between which the density matters.

        They have no gradient. The second one is not above the first for an interval between edges
        on which it does not matter. They are the edges of each interval if it matters on none.

        Args:
            negligible: The log of the ratio to the highest density of all intervals below which a
                density does not matter.
            rounds: How often the range that remains is divided evenly.
            power: Power of the slope dt/dy by which densities are multiplied: 1 for the density of
                the coordinate, 0 for that of the location.
        """
        # Callers switch gradients off: compiled graphs do not trace a method decorated to do so.
        edges, kinks, line = self._edges, self._kinks, self.line
        low, high = edges[:-1], edges[1:]
        first, last = low, high
        for fractions in (_COARSE, *(_EVEN,) * rounds):
            fraction = low.new_tensor(fractions).reshape(-1, *(1,) * low.dim())
            # The last point is the upper end itself, not rounded.
            y = torch.where(fraction < 1, first + (last - first) * fraction, last)
            if len(kinks):
                y = torch.cat([y, clamp(kinks.unsqueeze(1), first, last)]).sort(dim=0).values
            t, slope = line.locations(y)
            log_p = self.log_density(t) + power * slope.log()
            # NaN and infinite densities, as at poles, do not count.
            log_p = torch.where(log_p < math.inf, log_p, -math.inf)
            matters = log_p > log_p.amax((0, 1)) + negligible
            # From the point before the first one that matters to the one after the last.
            begun, ahead = matters.cumsum(0) > 0, (matters.flip(0).cumsum(0) > 0).flip(0)
            first, last = (
                torch.where(begun, first, y).amax(0),
                torch.where(ahead, last, y).amin(0),
            )
        # Where no point of an interval matters, `first` is its upper edge and `last` its lower one.
        # Both are moved into the range in which the density matters.
        nonempty = first < last
        start = torch.where(nonempty, first, math.inf).amin(0)
        end = torch.where(nonempty, last, -math.inf).amax(0)
        first, last = (
            torch.where(nonempty.any(0), clamp(x, start, end), edge)
            for x, edge in ((first, low), (last, high))
        )
        return torch.stack([first, last], -1).movedim(0, -2).detach()

    def between(
        self, order: int, cuts: Tensor, rough: Tensor | bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (Q, ...) of integrals over the coordinate between cuts.

        Args:
            order: Number of nodes between two cuts, Q = order (J - 1) in all.
            cuts: Coordinates (J, ...) in ascending order.
            rough: Whether the density is not smooth at a cut of a pair; default by the coordinate.

        Returns:
            Nodes as locations, or values of the chart, and weights that contain the derivatives of
            nodes in the coordinate, but not the density.
        """
        y, rule = (x.reshape(-1, *(1,) * (cuts.dim() - 1)) for x in gauss_legendre(order, cuts))
        low, high = cuts[:-1, None], cuts[1:, None]
        nodes, slope = self.line.locations_between(
            y, low, high, self.line.is_rough(low, high) if rough is None else rough
        )
        return nodes.flatten(0, 1), (rule * slope).flatten(0, 1)

    def integral(self, order: int | None = None) -> Tensor:
        """Return the logarithm of the integral of exp(log_density) (*batch)."""
        nodes, weights = self.between(order or self.line.order, self.cuts())
        log_p = self.log_density(nodes)
        # A density may be infinite at an end to which a node is rounded.
        finite = log_p.isfinite()
        peak = torch.where(finite, log_p, torch.finfo(log_p.dtype).min).detach().amax(0)
        total = (weights * torch.where(finite, log_p - peak, -math.inf).exp()).sum(0)
        return peak + log_positive(total)

    # Masses and quantiles

    def restricted(self, a: Tensor, b: Tensor, region: Tensor | None = None) -> "Panels":
        """Return the panels of this density between locations a < b (..., *batch)."""
        low, high = torch.broadcast_tensors(self._onto(a), self._onto(b))
        low = torch.where(a <= self.ends[0], self._edges[0], low)
        high = torch.where(b >= self.ends[1], self._edges[-1], high)
        first, last = self._edges[0].detach(), self._edges[-1].detach()
        if isinstance(self.line, Line):
            # An infinite end becomes the outermost edge or, farther out, a location as far from
            # the other end as the edges are apart: less than a rounding error of the mass lies
            # beyond the edges, but it matters to an interval that lies there.
            width = last - first
            low = torch.where(a.isinf(), torch.minimum(first, high.detach() - width), low)
            high = torch.where(b.isinf(), torch.maximum(last, low.detach() + width), high)
        extra = (1,) * (low.dim() - first.dim())
        inner, kinks = (
            clamp(x.reshape(len(x), *extra, *x.shape[1:]), low, high)
            for x in (self._edges[1:-1], self._kinks)
        )
        edges = torch.cat([low.unsqueeze(0), inner, high.unsqueeze(0)])
        return Panels(
            self._log_p,
            self.line,
            (a, b),
            kinks=kinks,
            edges=edges,
            region=region,
            fractions=self._fractions,
            chart=self._chart,
        )

    def _log_p(self, t: Tensor) -> Tensor:
        """Return the logarithm of the normalized density."""
        log_p = self.log_density(t)
        return log_p if self.log_mass is None else log_p - self.log_mass

    def log_interval(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the log mass between locations a < b (..., *batch), however small it is.

        It is integrated where the density matters relative to its largest value between them.
        """
        return self.restricted(a, b).integral()

    def tail(self, t: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return the mass below, or above, locations in the support, or its logarithm.

        Args:
            t: Locations (..., *batch).
            upper: Whether the mass above is meant, of the shape of t.
            log: Whether to return the logarithm, relatively accurate.
        """
        mass = self._mass_beyond(t, upper)
        # Panels end where the density is negligible for the whole, but not for such a tail.
        far = mass.detach() < _LEAST_MASS
        if values_are_readable(far) and not far.any():
            return log_positive(mass) if log else mass
        low, high = self.ends
        log_mass = self.log_interval(torch.where(upper, t, low), torch.where(upper, high, t))
        if log:
            return torch.where(far, log_mass, log_positive(mass))
        return torch.where(far, log_mass.exp(), mass)

    def _mass_beyond(self, t: Tensor, upper: Tensor) -> Tensor:
        """Return the mass (..., *batch) below, or above, locations as far as the panels reach.

        It adds the masses of whole panels and of a piece of the panel in which the location lies,
        both on the side of the tail, so that nothing cancels.

        Args:
            t: Locations (..., *batch).
            upper: Whether the mass above is meant (..., *batch).
        """
        line = self.line
        cuts, below, masses = self._pieces()
        # Callers select no results at infinite locations, which would give NaN derivatives.
        y = self._onto(t.nan_to_num(posinf=0.0, neginf=0.0))
        y = clamp(y, cuts[..., 0], cuts[..., -1])
        panel = (cuts[..., 1:-1] <= y.unsqueeze(-1)).sum(-1, keepdim=True)
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        beyond = torch.where(upper, entries_of(_above(masses, line.parts), panel), before)
        piece = self._mass_from(torch.where(upper, end, start), y, line.is_rough(start, end))
        return (beyond + torch.where(upper, -piece, piece)) / below[..., -1]

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return cuts and the masses below them, and masses at nodes.

        A panel between two cuts has `parts` pieces of equal length in the variable of
        `Coordinate.locations_between`, K = parts (J - 1) in all.

        Returns:
            Coordinates of the cuts (*batch, J), the masses below them (*batch, J), and the density
            times the weight at Q Gauss-Legendre nodes of each piece (K, Q, *batch). All masses add
            up to 1 but for rounding.
        """
        line = self.line
        cuts, parts = self.cuts(), line.parts
        x, rule = gauss_legendre(line.degree, cuts)
        part, ones = torch.arange(parts, device=cuts.device), (1,) * (cuts.dim() - 1)
        y = _coordinate(x, part.unsqueeze(-1), parts).reshape(parts, -1, *ones)
        low, high = cuts[:-1, None, None], cuts[1:, None, None]
        nodes, slope = line.locations_between(y, low, high, line.is_rough(low, high))
        density = self.density(nodes.flatten(0, 2)).reshape(nodes.shape)
        masses = (rule.reshape(-1, *ones) / parts * slope * density).flatten(0, 1)
        below = masses.sum(1).cumsum(0)[parts - 1 :: parts]
        below = torch.cat([torch.zeros_like(below[:1]), below])
        return cuts.movedim(0, -1), below.movedim(0, -1), masses

    def _mass_from(self, end: Tensor, y: Tensor, rough: Tensor | bool) -> Tensor:
        """Return the mass (..., *batch) from an end of a panel to a coordinate on it.

        It is negative if the coordinate is below the end.

        Args:
            end: Coordinate of the end (..., *batch).
            y: Coordinates on the panel (..., *batch).
            rough: Whether the density is not smooth at an end of the panel.
        """
        cuts = torch.stack(torch.broadcast_tensors(end, y))
        nodes, weights = self.between(self.line.order, cuts, rough)
        return (weights * self.density(nodes)).sum(0)

    def quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of float64 probabilities (..., *batch) in (0, 1).

        A search finds a root of the polynomial that approximates the distribution function on a
        piece. The mass from a cut to the root, by nodes of its own, then says by how much it misses
        the probability; Newton steps correct it and carry derivatives.
        """
        line, (first, last) = self.line, self.ends
        cuts, below, masses = self._pieces()
        goal = value * below[..., -1]
        # The piece on which the distribution function, a polynomial there, takes the value.
        series, target = _integral_series(masses.detach()), goal.detach()
        # All Legendre polynomials are 1 at the upper end.
        piece = (series.sum(0)[..., :-1] <= target.unsqueeze(-1)).sum(-1, keepdim=True)
        coefficients = [entries_of(x, piece) for x in series]
        # The error of the polynomial is absolute, so that a closer root would be no better.
        close = _NEAR * target * torch.minimum(1 - value, value).detach() / value.detach()

        def missing(x: Tensor) -> Tensor:
            gap = _legendre_sum(coefficients, x) - target
            return torch.where(gap.abs() <= close, 0.0, gap)

        ends = torch.full_like(target, -1), torch.ones_like(target)
        x = increasing_root(missing, *ends, line.steps)
        panel = piece // line.parts
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        y = _coordinate(x, (piece % line.parts).squeeze(-1), line.parts)
        rough = line.is_rough(start, end)
        near = line.locations_between(y, start.detach(), end.detach(), rough)[0].detach()
        # From the end with the smaller tail.
        upper, above = value > 0.5, entries_of(_above(masses, line.parts), panel)
        offset = torch.where(upper, (1 - value) * below[..., -1] - above, before - goal)
        anchor = torch.where(upper, end, start)
        gap = offset + self._mass_from(anchor, line.onto(near).detach(), rough)
        height = self.density(near)

        def excess(t: Tensor) -> Tensor:
            # The mass between `near` and t by the trapezoidal rule: they are close.
            return gap + (t - near) * (height + self.density(t)) / 2

        moved = attach_root_gradient(near, excess, self.density)
        moved = self._back(moved)
        # Only the value is moved between the ends of the support; the derivatives stay.
        t = torch.minimum(torch.maximum(moved.detach(), first), last).detach()
        return t + (moved - moved.detach())

    # Expectations

    def rule(
        self, order: int = 0, psi: Basis | None = None, extra_cuts: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (Q, *batch), which sum to 1, of expectations.

        Args:
            order: The least number of nodes between two cuts.
            psi: A basis, at whose breaks there are cuts, too.
            extra_cuts: Locations (N,) of further cuts, in several tensors.
        """
        cuts = self._cuts_with(psi)
        if extra_cuts:
            cuts = _join(cuts, self._onto(self._aligned(torch.cat(list(extra_cuts)))))
        nodes, weights = self.between(max(self.line.order, order), cuts)
        weights = weights * self.density(nodes)
        mass = weights.sum(0)
        if self._name is not None:
            rule = "a density on the line whose mass at these nodes is 1"
            require((mass - 1).abs() < _LOST, self._name, rule, mass)
        return self._back(nodes), weights / mass

    def expect(self, psi: Basis, order: int) -> Tensor:
        """Return the expectations (*batch, N) of a basis.

        Args:
            psi: The basis.
            order: The least number of nodes between two cuts.
        """
        if psi.effective_support is None:
            nodes, weights = self.rule(order, psi)
            means: Tensor = (weights.unsqueeze(-1) * psi(nodes)).sum(0)
            return means
        # Each function where it is not negligible, with cuts for it alone (J, N, *batch): a narrow
        # function would fall between the nodes of the density.
        low, high = (self._onto(self._aligned(x)) for x in psi.effective_support)
        quarters = self._aligned(low.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0])).unsqueeze(1)
        cuts = _join(self._cuts_with(psi).unsqueeze(1), low + quarters * (high - low))
        nodes, weights = self.between(max(self.line.order, order), clamp(cuts, low, high))
        weights = weights * self.density(nodes)
        return (weights.movedim(1, -1) * psi.own(self._back(nodes).movedim(1, -1))).sum(0)

    def covariance(self, phi: Basis, psi: Basis) -> Tensor:
        """Return the covariance (*batch, M, N) of two bases."""
        bases = [x for basis in (phi, psi) for x in getattr(basis, "bases", [basis])]
        ends = [x.effective_support for x in bases if x.effective_support is not None]
        landmarks = [x for low, high in ends for x in (low, (low + high) / 2, high)]
        nodes, weights = self.rule(_FINE, Stack(phi, psi), landmarks)
        f, g = (basis(nodes) for basis in (phi, psi))
        # Centered first: E[fg] - E[f]E[g] would cancel.
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)

    def _cuts_with(self, psi: Basis | None) -> Tensor:
        """Return the cuts (J, *batch) of the density and a basis."""
        cuts = self.cuts()
        if psi is None or psi.breaks is None:
            return cuts
        return _join(cuts, self._onto(self._aligned(psi.breaks)))

    def _aligned(self, x: Tensor) -> Tensor:
        """Return numbers (N,) as float64 (N, *ones), with an axis for each one of the batch."""
        return x.to(self._edges).reshape(-1, *(1,) * (self._edges.dim() - 1))


def on_line(
    log_density: Callable[[Tensor], Tensor], cuts: Tensor, ends: tuple[Tensor, Tensor]
) -> Panels:
    """Return panels with the location as the coordinate.

    They are cut at given locations and at fractions of the range where the density matters.

    Args:
        log_density: The log density, from locations (..., *batch).
        cuts: Locations (*batch, J), padded with NaN, between which it is smooth and outside of
            which no mass matters.
        ends: Ends of the support (2 tensors *batch).
    """
    kinks = sort_cuts(cuts)
    # The distribution function is smooth enough between cuts for one polynomial.
    line = Line(order=32, parts=1, degree=32, rough=kinks)
    return Panels(log_density, line, ends, kinks=kinks, edges=kinks[[0, -1]])


def or_infinite(moment: Tensor, n: int, heavy: Sequence[Tensor]) -> Tensor:
    """Return a moment (*batch), infinite or NaN where tails are too heavy for it.

    Args:
        moment: The moment (*batch), as far as both tails have one.
        n: Its order.
        heavy: Whether the tail below is too heavy (*batch), and whether the tail above is.
    """
    below, above = heavy
    if n % 2 == 0:
        return torch.where(below | above, math.inf, moment)
    infinite = torch.where(below, torch.where(above, math.nan, -math.inf), math.inf)
    return torch.where(below | above, infinite, moment)


def _cuts_within(edges: Tensor, region: Tensor, fractions: Sequence[float]) -> Tensor:
    """Return the coordinates (J, *batch) that divide regions at given fractions of their lengths.

    A region that reaches an edge moves with it.

    Args:
        edges: Coordinates (K + 1, *batch) in ascending order.
        region: Where the density matters between two edges (*batch, K, 2), without gradient.
        fractions: Increasing fractions from 0 to 1 at which each region is cut.
    """
    first, last = region.movedim(-2, 0).unbind(-1)
    nonempty = first < last
    first, last = (
        torch.where(nonempty & (first <= edges[:-1]), edges[:-1], first),
        torch.where(nonempty & (last >= edges[1:]), edges[1:], last),
    )
    # All cuts of an empty region are at the start of the first region that is not, with which they
    # move.
    start = torch.where(nonempty, first, math.inf).amin(0)
    first, last = (torch.where(nonempty, end, start).unsqueeze(1) for end in (first, last))
    fraction = first.new_tensor(fractions).reshape(-1, *(1,) * start.dim())
    cuts = torch.where(fraction < 1, first + (last - first) * fraction, last)
    return cuts.flatten(0, 1).sort(dim=0).values


def argmax(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Return where a function is highest (*batch).

    The best of the cuts and of locations between them is improved on finer and finer grids between
    its neighbors: accurate to the square root of a rounding error at a smooth peak.

    Args:
        function: From locations (Q, *batch) to values of that shape.
        cuts: Locations (*batch, J) between which it is smooth, padded with NaN.
    """
    ordered = sort_cuts(cuts)
    # (I + 1, *ones), with an axis for the pieces between cuts and one for each of the batch.
    fraction = torch.linspace(0, 1, _INTERVALS + 1, dtype=cuts.dtype, device=cuts.device)
    fraction = fraction.reshape(-1, *(1,) * ordered.dim())
    widths = ordered.diff(dim=0)
    grid = (ordered[:-1] + fraction * widths).flatten(0, 1)
    best = grid.gather(0, function(grid).argmax(0, keepdim=True))
    # The grid is finer on some pieces: the step is the wider of those on both sides of the best
    # location. That may be on the grid twice, up to rounding, if it is a cut.
    at_best = (grid - best).abs() <= _ROUNDING * torch.finfo(best.dtype).eps * best.abs()
    steps = (widths / _INTERVALS).expand(len(fraction), *widths.shape).flatten(0, 1)
    step = torch.where(at_best, steps, 0.0).amax(0, keepdim=True)
    offsets = 2 * fraction[:, 0] - 1  # from -1 to 1, without the axis of pieces
    for _ in range(_ROUNDS):
        grid = clamp(best + step * offsets, ordered[0], ordered[-1])
        best, step = grid.gather(0, function(grid).argmax(0, keepdim=True)), 2 * step / _INTERVALS
    return best.squeeze(0)


def _coordinate(x: Tensor, part: Tensor, parts: int) -> Tensor:
    """Return the variable of `Coordinate.locations_between` on a panel, from -1 to 1.

    Args:
        x: The variable on one of its pieces, from -1 to 1.
        part: Index of the piece.
        parts: Number of pieces of the panel.
    """
    return (x + 1 + 2 * part) / parts - 1


def _above(masses: Tensor, parts: int) -> Tensor:
    """Return the masses (*batch, J - 1) above panels, from the masses at nodes of `_pieces`."""
    above = masses.sum(1).flip(0).cumsum(0).flip(0)[parts::parts]
    return torch.cat([above, torch.zeros_like(above[:1])]).movedim(0, -1)


def _integral_series(masses: Tensor) -> Tensor:
    """Return Legendre coefficients (Q + 1, *batch, K) of a distribution function on pieces.

    Args:
        masses: Densities times weights (K, Q, *batch) at the Gauss-Legendre nodes of the pieces.
    """
    x, _ = gauss_legendre(masses.shape[1], masses)
    polynomials = torch.stack([torch.special.legendre_polynomial_p(x, k) for k in range(len(x))])
    moments = torch.einsum("kq,jq...->k...j", polynomials, masses)
    # The density on a piece is the sum of (k + 1/2) moment_k P_k, and the integral of (2 k + 1) P_k
    # is P_(k+1) - P_(k-1): coefficient k is half of moment_(k-1) - moment_(k+1).
    upper = torch.cat([moments[1:], torch.zeros_like(moments[:2])])
    first, *others = (torch.cat([moments[:1], moments]) - upper) / 2
    return torch.stack([first + moments[0].cumsum(-1) - moments[0], *others])


def _legendre_sum(coefficients: list[Tensor], x: Tensor) -> Tensor:
    """Return the sum of Legendre polynomials at x (...) by Clenshaw's recurrence.

    It rests on (k + 1) P_(k+1) = (2 k + 1) x P_k - k P_(k-1). Coefficients (...) are those of P_0,
    P_1 and so on.
    """
    above, current = torch.zeros_like(x), coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        term = torch.sub(coefficients[k], above, alpha=(k + 1) / (k + 2))
        above, current = current, torch.addcmul(term, x, current, value=(2 * k + 1) / (k + 1))
    return current


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return x, moved to an end if it lies beyond that; all three broadcast, and NaN stays NaN.

    Exactly one of the three receives the derivative, also where the ends coincide, unlike with
    torch's `clamp`.
    """
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


def _join(cuts: Tensor, more: Tensor) -> Tensor:
    """Return cuts (J, ...) and more cuts (K, ...), moved between these, as (J + K, ...) in order.

    The first and the last one stay where they are. A new cut that coincides with one of these is
    not used in its place, as it may have another derivative.
    """
    more = clamp(more, cuts[0], cuts[-1])
    shape = torch.broadcast_shapes(cuts.shape[1:], more.shape[1:])
    first, inner, last, more = (
        x.expand(len(x), *shape) for x in (cuts[:1], cuts[1:-1], cuts[-1:], more)
    )
    return torch.cat([first, torch.cat([inner, more]).sort(dim=0).values, last])
