"""1-D densities from log densities and breakpoints, by one quadrature rule."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor
from torch.types import _size

from ..._numerics.quadrature import gauss_legendre, graded, sort_cuts
from ..._numerics.roots import attach_root_gradient, increasing_root
from ..._numerics.validation import LARGEST_ORDER, require_integer, saturated
from ...bases import Basis, Stack
from ...supports import entries_of
from .._summaries import log_positive
from ..base import SoftmaxDistribution
from .laws import Law, LawBetween

__all__ = [
    "MASSES",
    "MOMENTS",
    "Coordinate",
    "DoubleExponential",
    "IntegratedDistribution",
    "Line",
    "LineDistribution",
    "argmax",
    "clamp",
    "cuts_within",
    "or_infinite",
]

# Nodes for covariances of bases.
_FINE = 48
# Shares of a range at which a density is asked for where it matters, and of what is left of it.
_TINY = tuple(16.0**-k for k in range(9, 0, -1))
_COARSE = (0.0, *_TINY, *(k / 8 for k in range(1, 8)), *(1 - x for x in _TINY[::-1]), 1.0)
_EVEN = tuple(k / 12 for k in range(13))
# Logarithm of the ratio of densities below which a density does not matter: for distribution
# functions and for moments.
MASSES, MOMENTS = -45.0, -80.0
# The largest number whose exponential leaves room for the size of the distribution.
_REACH = {torch.float32: 66.0, torch.float64: 600.0}
# Intervals into which the search for a mode divides the neighborhood of the best location, and how
# often.
_INTERVALS, _ROUNDS = 8, 16


class Coordinate:
    """The coordinate of a rule between cuts, by `onto` and `locations`.

    The rule is graded towards kinks and powers of the density.

    Args:
        order: Nodes between two cuts.
        parts: Pieces between two cuts on which a distribution function is one polynomial.
        degree: The number of nodes on each piece.
        rough: Those cuts (K, *batch) at which the density is not smooth; default all.
        steps: Of the search for a quantile; two Newton steps follow.
    """

    def __init__(
        self,
        order: int = 32,
        parts: int = 3,
        degree: int = 24,
        rough: Tensor | None = None,
        steps: int = 8,
    ) -> None:
        self.order, self.parts, self.degree = order, parts, degree
        self.rough, self.steps = rough, steps

    def onto(self, t: Tensor) -> Tensor:
        """Return coordinates of locations (..., *batch)."""
        raise NotImplementedError

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives, at coordinates y (..., *batch)."""
        raise NotImplementedError

    def is_rough(self, low: Tensor, high: Tensor) -> Tensor | bool:
        """Return whether the density is not smooth at one of the cuts (..., *batch) of a pair."""
        if self.rough is None or not len(self.rough):
            return self.rough is None
        batch = self.rough.shape[1:]
        rough = self.rough.reshape(len(self.rough), *(1,) * (low.dim() - len(batch)), *batch)
        return ((low == rough) | (high == rough)).any(0)

    def place(
        self, y: Tensor, low: Tensor, high: Tensor, rough: Tensor | bool
    ) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives, at y in [-1, 1] of the way between cuts."""
        if isinstance(rough, Tensor):
            pairs = [self.place(y, low, high, choice) for choice in (True, False)]
            t, slope = (torch.where(rough, a, b) for a, b in zip(*pairs, strict=True))
            return t, slope
        if rough:
            x, rate = graded(y, low, high)
        else:
            rate = (high - low) / 2
            x = low + rate * (1 + y)
        t, slope = self.locations(x)
        return t, slope * rate


class Line(Coordinate):
    """The line of the locations itself."""

    def onto(self, t: Tensor) -> Tensor:
        return t

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, y.new_ones(())


class DoubleExponential(Coordinate):
    r"""The coordinate y of double-exponential quadrature, $t = T(a + b \sinh y)$.

    T maps the line onto an interval with the given ends: it is a logistic function, an exponential
    or a hyperbolic sine. Whatever the tails of a density and its powers at the ends, it decays
    double exponentially in y, so that a few nodes suffice. `center` is near most of the mass, and
    `spread` about the standard deviation.

    References:
        Takahasi and Mori (1974), Double exponential formulas for numerical integration. Publ. Res.
        Inst. Math. Sci. 9.
    """

    def __init__(
        self,
        lower: Tensor | None,
        upper: Tensor | None,
        center: Tensor,
        spread: Tensor,
        order: int = 20,
    ) -> None:
        super().__init__(order, 1, order, center.new_empty(0, *center.shape))
        # Detached, as a replayed trace of torch.jit ignores no_grad.
        center, spread = center.detach(), spread.detach()
        self._lower, self._upper, self._center, self._spread = lower, upper, center, spread
        self._a = self.onto_line(center).detach()
        self._b = (spread / self.from_line(self._a)[1]).clamp(max=2.0).detach()
        # As far as the exponentials of T, and their products with the spread, do not overflow.
        reach, whole = _REACH[center.dtype], lower is None and upper is None
        least = spread.log().clamp_min(0) if whole else self._a.abs()
        self.limit = torch.asinh((reach - least).clamp_min(reach / 10) / self._b)

    def onto(self, t: Tensor) -> Tensor:
        # Clamped to the range.
        y = torch.asinh((self.onto_line(t) - self._a) / self._b)
        return y.clamp(-self.limit, self.limit)

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        rise = y.exp()  # a quarter of the time of sinh and cosh
        fall = 1 / rise
        half = self._b / 2
        t, slope = self.from_line(self._a + half * (rise - fall))
        return t, slope * (half * (rise + fall))

    def from_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return T and its derivative."""
        if self._lower is not None and self._upper is not None:
            width, share = self._upper - self._lower, torch.sigmoid(x)
            return self._lower + width * share, width * share * torch.sigmoid(-x)
        if self._lower is not None:
            slope = x.exp()
            return self._lower + slope, slope
        if self._upper is not None:
            slope = (-x).exp()
            return self._upper - slope, slope
        return self._center + self._spread * x.sinh(), self._spread * x.cosh()

    def onto_line(self, t: Tensor) -> Tensor:
        """Return the inverse of T, also where rounding puts t on an end."""
        info = torch.finfo(t.dtype)
        if self._lower is not None and self._upper is not None:
            share = (t - self._lower) / (self._upper - self._lower)
            return torch.logit(share.clamp(info.tiny, 1 - info.eps / 2))
        if self._lower is not None:
            return (t - self._lower).clamp_min(info.tiny).log()
        if self._upper is not None:
            return -(self._upper - t).clamp_min(info.tiny).log()
        return torch.asinh((t - self._center) / self._spread)


class LineDistribution(SoftmaxDistribution):
    """A 1-D density, integrated in float64 by one rule between breakpoints.

    A subclass implements the methods that raise NotImplementedError here; masses and quantiles may
    be those of the rule.
    """

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support (*batch) in float64."""
        raise NotImplementedError

    @property
    def _line(self) -> Coordinate:
        """The coordinate in which the density is integrated."""
        raise NotImplementedError

    def _find_cuts(self, line: Coordinate, fine: bool = True) -> Tensor:
        """Return coordinates (J, *batch) between which a few nodes integrate the density.

        Without `fine` masses are accurate, but not moments.
        """
        raise NotImplementedError

    def _log_q(self, t: Tensor) -> Tensor:
        """Return the log density up to a constant, inside the support; not finite where it is 0."""
        raise NotImplementedError

    @property
    def _log_mass(self) -> Tensor:
        """Logarithm of the mass of `_log_q` (*batch) in float64."""
        raise NotImplementedError

    def _log_share(self, t: Tensor, upper: Tensor) -> Tensor | None:
        """Return the log mass below, or above, locations in the support; None: by the rule."""
        raise NotImplementedError

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of float64 probabilities in (0, 1)."""
        raise NotImplementedError

    def _rounded(self, t: Tensor) -> Tensor:
        """Return draws in the type of the parameters."""
        raise NotImplementedError

    def _moment(self, name: str, n: int, terms: Tensor) -> Tensor:
        """Return the sum of terms (Q, *batch) of the `mean`, the `variance` or a `moment`.

        It is not finite where there is no moment of order n.
        """
        raise NotImplementedError

    def _check_rule(self, mass: Tensor) -> None:
        """Raise ValueError if a rule finds too little of the mass."""

    def _between(
        self, line: Coordinate, order: int, cuts: Tensor, rough: Tensor | bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (Q, ...) of integrals, `order` between two cuts (J, ...)."""
        y, rule = (x.reshape(-1, *(1,) * (cuts.dim() - 1)) for x in gauss_legendre(order, cuts))
        low, high = cuts[:-1, None], cuts[1:, None]
        nodes, slope = line.place(
            y, low, high, line.is_rough(low, high) if rough is None else rough
        )
        return nodes.flatten(0, 1), (rule * slope).flatten(0, 1)

    def _mass_by_quadrature(self, line: Coordinate, order: int) -> Tensor:
        """Return the logarithm of the mass between the ends (*batch)."""
        nodes, weights = self._between(line, order, self._find_cuts(line, False))
        log_p = self._log_q(nodes)
        # A density may be infinite at an end to which a node is rounded.
        finite = log_p.isfinite()
        peak = torch.where(finite, log_p, torch.finfo(log_p.dtype).min).detach().amax(0)
        total = (weights * torch.where(finite, log_p - peak, -math.inf).exp()).sum(0)
        return peak + total.log()

    def _density(self, t: Tensor) -> Tensor:
        """Return the density between the ends; 0 where rounding to an end makes it infinite."""
        log_p = self._log_q(t)
        return torch.where(log_p.isfinite(), log_p - self._log_mass, -math.inf).exp()

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        line = self._line
        cuts, (low, high) = self._find_cuts(line), self._ends()
        first, last = cuts[0] > line.onto(low), cuts[-1] < line.onto(high)
        t = line.locations(cuts)[0]
        # Ends that matter are not rounded.
        first = torch.where(first | low.isinf(), t[0], low)
        last = torch.where(last | high.isinf(), t[-1], high)
        return torch.stack([first, *t[1:-1], last]).movedim(0, -1)

    def _region_of(
        self,
        line: Coordinate,
        edges: Tensor,
        negligible: float,
        *,
        rounds: int = 1,
        places: Tensor | None = None,
        power: float = 1.0,
    ) -> Tensor:
        """Return the coordinates (*batch, K, 2) between which the density matters.

        An interval on which it does not has two equal ones, unless it matters on none.

        Args:
            line: The coordinate.
            edges: Ends (K + 1, *batch) of K intervals, of which the highest point of all counts.
            negligible: The log of the ratio of densities below which a density does not matter.
            rounds: How often what is left is divided evenly.
            places: Further coordinates (S, *batch) at which the density is asked for.
            power: Of the slope that the density is multiplied by: 1 for that of the coordinate.
        """
        # Callers switch gradients off: compiled graphs do not trace a method decorated to do so.
        low, high = edges[:-1], edges[1:]
        first, last = low, high
        for shares in (_COARSE, *(_EVEN,) * rounds):
            share = low.new_tensor(shares).reshape(-1, *(1,) * low.dim())
            # Ends that matter stay as they are.
            y = torch.where(share < 1, first + (last - first) * share, last)
            if places is not None:
                y = torch.cat([y, clamp(places.unsqueeze(1), first, last)]).sort(dim=0).values
            t, slope = line.locations(y)
            log_p = self._log_q(t) + power * slope.log()
            log_p = torch.where(log_p < math.inf, log_p, -math.inf)
            above = log_p > log_p.amax((0, 1)) + negligible
            # From the point before the first one that matters to the one after the last.
            reached, left = (x.cumsum(0) > 0 for x in (above, above.flip(0)))
            first, last = (
                torch.where(reached, first, y).amax(0),
                torch.where(left.flip(0), last, y).amin(0),
            )
        some = first < last
        start = torch.where(some, first, math.inf).amin(0)
        end = torch.where(some, last, -math.inf).amax(0)
        first, last = (
            torch.where(some.any(0), clamp(x, start, end), edge)
            for x, edge in ((first, low), (last, high))
        )
        return torch.stack([first, last], -1).movedim(0, -2).detach()

    def _cuts_at(
        self,
        line: Coordinate,
        places: Tensor,
        edges: Tensor,
        fine: bool,
        region: Tensor | None = None,
    ) -> Tensor:
        """Return coordinates (J, *batch) that divide where the density matters between two ends.

        Among them are the places (K, *batch) between the ends (2, *batch), in coordinates.
        """
        negligible, count = (MOMENTS, 8) if fine else (MASSES, 6)
        if region is None:
            with torch.no_grad():
                region = self._region_of(line, edges, negligible, places=places)
        # Beside the middle, where a kink may be: second derivatives need cuts apart from it.
        inner = [(k + 0.07) / count for k in range(1, count)]
        return _join(cuts_within(edges, region, [0.0, *inner, 1.0]), places)

    def _breakpoints(self) -> Tensor:
        return self._cuts()

    def _known_moment(self, n: int, center: Tensor) -> Tensor:
        nodes, weights = self._rule(0)
        return self._moment("moment", n, weights * (nodes - center) ** n).to(self._like.dtype)

    # Distribution function and quantiles

    def _known_tail(self, value: Tensor, upper: Tensor, log: bool) -> Tensor:
        low, high = self._ends()
        inside = (low < value) & (value < high)
        # Others are moved to where all is in the tail.
        t = torch.where(inside, value, torch.where(upper, low, high))
        known = self._log_share(t, upper)
        if log:
            tail = log_positive(self._share_by_rule(t, upper)) if known is None else known
            tail = torch.where(inside, tail, -math.inf)
        else:
            tail = self._share_by_rule(t, upper) if known is None else known.exp()
            outside = torch.where(upper, value <= low, value >= high).to(tail)
            tail = torch.where(inside, tail.clamp(max=1), outside)
        return tail.to(torch.promote_types(self._like.dtype, value.dtype))

    def _share_by_rule(self, t: Tensor, upper: Tensor) -> Tensor:
        """Return the mass below, or above, locations in the support, in float64."""
        line = self._line
        cuts, below, masses = self._panels(line)
        y = line.onto(t.nan_to_num(posinf=0.0, neginf=0.0))
        y = clamp(y, cuts[..., 0], cuts[..., -1])
        panel = (cuts[..., 1:-1] <= y.unsqueeze(-1)).sum(-1, keepdim=True)
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        beyond = torch.where(upper, entries_of(_above(masses, line.parts), panel), before)
        part = self._mass_from(line, torch.where(upper, end, start), y, line.is_rough(start, end))
        return (beyond + torch.where(upper, -part, part)) / below[..., -1]

    def _panels(self, line: Coordinate) -> tuple[Tensor, Tensor, Tensor]:
        """Return cuts and the masses below them, both (*batch, J), and the density on pieces.

        All masses are 1 up to rounding. A panel between two cuts has pieces of equal length in the
        variable of `Coordinate.place`, on which the density is known by masses (K, Q, *batch) at
        Gauss-Legendre nodes.
        """
        cuts, parts = self._find_cuts(line, False), line.parts
        x, rule = gauss_legendre(line.degree, cuts)
        part, ones = torch.arange(parts, device=cuts.device), (1,) * self._like.dim()
        y = _coordinate(x, part.unsqueeze(-1), parts).reshape(parts, -1, *ones)
        low, high = cuts[:-1, None, None], cuts[1:, None, None]
        nodes, slope = line.place(y, low, high, line.is_rough(low, high))
        density = self._density(nodes.flatten(0, 2)).reshape(nodes.shape)
        masses = (rule.reshape(-1, *ones) / parts * slope * density).flatten(0, 1)
        below = masses.sum(1).cumsum(0)[parts - 1 :: parts]
        below = torch.cat([torch.zeros_like(below[:1]), below])
        return cuts.movedim(0, -1), below.movedim(0, -1), masses

    def _mass_from(self, line: Coordinate, end: Tensor, y: Tensor, rough: Tensor | bool) -> Tensor:
        """Return the mass from an end of a panel to coordinates on it, negative if they are below.

        `rough` tells whether the density is not smooth at an end of the panel.
        """
        cuts = torch.stack(torch.broadcast_tensors(end, y))
        nodes, weights = self._between(line, line.order, cuts, rough)
        return (weights * self._density(nodes)).sum(0)

    def _known_icdf(self, value: Tensor) -> Tensor:
        first, last = self._ends()
        inside = (value > 0) & (value < 1)
        t = self._quantile(torch.where(inside, value, 0.5).double())
        t = torch.where(value >= 1, last, torch.where(value <= 0, first, t))
        return t.to(torch.promote_types(self._like.dtype, value.dtype))

    def _quantile_by_rule(self, value: Tensor) -> Tensor:
        """Return quantiles of float64 probabilities in (0, 1)."""
        line, (first, last) = self._line, self._ends()
        cuts, below, masses = self._panels(line)
        goal = value * below[..., -1]
        series, known = _integral_series(masses.detach()), goal.detach()
        # All Legendre polynomials are 1 at the upper end.
        piece = (series.sum(0)[..., :-1] <= known.unsqueeze(-1)).sum(-1, keepdim=True)
        coefficients = [entries_of(x, piece) for x in series]
        x = increasing_root(
            lambda x: _legendre_sum(coefficients, x) - known,
            torch.full_like(known, -1),
            torch.ones_like(known),
            line.steps,
        )
        panel = piece // line.parts
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        y = _coordinate(x, (piece % line.parts).squeeze(-1), line.parts)
        rough = line.is_rough(start, end)
        near = line.place(y, start.detach(), end.detach(), rough)[0].detach()
        # From the end with the smaller tail.
        upper, above = value > 0.5, entries_of(_above(masses, line.parts), panel)
        offset = torch.where(upper, (1 - value) * below[..., -1] - above, before - goal)
        place = torch.where(upper, end, start)
        gap = offset + self._mass_from(line, place, line.onto(near).detach(), rough)
        height = self._density(near)

        def excess(t: Tensor) -> Tensor:
            return gap + (t - near) * (height + self._density(t)) / 2

        moved = attach_root_gradient(near, excess, self._density)
        t = torch.minimum(torch.maximum(moved.detach(), first), last).detach()
        return t + (moved - moved.detach())

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch), differentiable in all parameters and ends.

        Raises:
            NotImplementedError: The support has a gap, which samples cannot cross.
        """
        if torch.is_grad_enabled() and not self.has_rsample:
            raise NotImplementedError("rsample needs a support of one interval: use sample")
        shape = self._extended_shape(sample_shape)
        uniform = torch.rand(shape, dtype=torch.float64, device=self._like.device)
        return self._rounded(self._quantile(uniform.clamp_min(2.0**-54)))

    # Expectations

    def _rule(
        self, order: int, psi: Basis | None = None, places: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return float64 nodes and weights (Q, *batch) that sum to 1, `order` between two cuts.

        The density and a basis have cuts, and other places (N,) are cuts, too.
        """
        line = self._line
        cuts = self._cuts_with(line, psi)
        if places:
            cuts = _join(cuts, line.onto(self._aligned(torch.cat(list(places)))))
        nodes, weights = self._between(line, max(line.order, order), cuts)
        weights = weights * self._density(nodes)
        mass = weights.sum(0)
        self._check_rule(mass)
        return nodes, weights / mass

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$."""
        require_integer("order", order, 1, LARGEST_ORDER)
        nodes, weights = self._rule(order // 2)
        return saturated(nodes, self._like.dtype), weights.to(self._like.dtype)

    def _known_expect(self, psi: Basis, order: int) -> Tensor:
        if psi.effective_support is None:
            nodes, weights = self._rule(order // 2, psi)
            means: Tensor = (weights.unsqueeze(-1) * psi(nodes)).sum(0)
            return means.to(self._like.dtype)
        # Each function where it is not negligible, with cuts of its own.
        line = self._line
        low, high = (line.onto(self._aligned(x)) for x in psi.effective_support)
        shares = self._aligned(self._like.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0])).unsqueeze(1)
        cuts = _join(self._cuts_with(line, psi).unsqueeze(1), low + shares * (high - low))
        cuts = clamp(cuts, low, high)
        nodes, weights = self._between(line, max(line.order, order // 2), cuts)
        weights = weights * self._density(nodes)
        values = psi.own(nodes.movedim(1, -1))
        return (weights.movedim(1, -1) * values).sum(0).to(self._like.dtype)

    def _cuts_with(self, line: Coordinate, psi: Basis | None) -> Tensor:
        """Return the cuts (J, *batch) of the density and a basis."""
        cuts = self._find_cuts(line)
        if psi is None or psi.breaks is None:
            return cuts
        return _join(cuts, line.onto(self._aligned(psi.breaks)))

    def _aligned(self, x: Tensor) -> Tensor:
        """Return numbers (N,) as float64 (N, *ones), with an axis for each one of the batch."""
        return x.to(self._like.device, torch.float64).reshape(-1, *(1,) * self._like.dim())

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        self.escort(beta)  # refuses all but 1
        bases = [x for basis in (phi, psi) for x in getattr(basis, "bases", [basis])]
        ends = [x.effective_support for x in bases if x.effective_support is not None]
        places = [x for low, high in ends for x in (low, (low + high) / 2, high)]
        nodes, weights = self._rule(_FINE, Stack(phi, psi), places)
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        covariance = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
        return covariance.to(self._like.dtype)


class IntegratedDistribution(LineDistribution):
    """A 1-D density that integrates moments, masses and quantiles it knows no closed form of."""

    @property
    def _law(self) -> Law | None:
        """Closed forms of masses and quantiles."""

    @property
    def _law_between(self) -> LawBetween | None:
        """The law between the ends of the support."""
        return None if (law := self._law) is None else LawBetween(law, *self._ends())

    def _log_part(self, start: Tensor, end: Tensor) -> Tensor:
        """Return the logarithm of the mass between places in the support, by the law."""
        raise NotImplementedError

    def _closed_form(self, name: str) -> Tensor | None:
        """Return `mean`, `variance`, `mode` or `entropy` (*batch)."""

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if there is none."""
        if (known := self._closed_form("mean")) is not None:
            return known
        nodes, weights = self._rule(0)
        return self._moment("mean", 1, weights * nodes).to(self._like.dtype)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if there is none."""
        if (known := self._closed_form("variance")) is not None:
            return known
        nodes, weights = self._rule(0)
        offset = nodes - (weights * nodes).sum(0)
        return self._moment("variance", 2, weights * offset.square()).to(self._like.dtype)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch); without gradient if it is searched."""
        if (known := self._closed_form("mode")) is not None:
            return known
        with torch.no_grad():
            return self._moved_inside(argmax(self.prob, self._cuts()))

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        if (known := self._closed_form("entropy")) is not None:
            return known
        nodes, weights = self._rule(0)
        log_p = self.log_prob(nodes)
        # The derivative of 0 log 0 would be infinite.
        return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0).to(self._like.dtype)

    def _log_share(self, t: Tensor, upper: Tensor) -> Tensor | None:
        if self._law is None:
            return None
        (low, high), t = self._ends(), t.double()
        return self._log_part(torch.where(upper, t, low), torch.where(upper, high, t))

    def _known_mass(self, a: Tensor, b: Tensor, log: bool) -> Tensor | None:
        if self._law is None:
            return None
        low, high = self._ends()
        start, end = (clamp(x.double(), low, high) for x in (a, b))
        some = start < end
        start, end = torch.where(some, start, low), torch.where(some, end, high)
        found = torch.where(some, self._log_part(start, end), -math.inf)
        found = found.to(torch.promote_types(self._like.dtype, a.dtype))
        return found if log else found.exp()

    def _quantile(self, value: Tensor) -> Tensor:
        between = self._law_between
        return self._quantile_by_rule(value) if between is None else between.icdf(value)

    def _rounded(self, t: Tensor) -> Tensor:
        return self._moved_inside(t) if self._law is None else t.to(self._like.dtype)

    def _moved_inside(self, t: Tensor) -> Tensor:
        """Return locations in the type of the parameters, not rounded to an end without density."""
        with torch.no_grad():
            low, high = (end.to(self._like.dtype) for end in self._ends())
            last = torch.where(self.prob(high) > 0, high, high.nextafter(low))
        return torch.minimum(t.to(self._like.dtype), last)


def or_infinite(moment: Tensor, n: int, indices: Sequence[Tensor]) -> Tensor:
    """Return a moment of order n (*batch), infinite or NaN where tails are too heavy for it.

    The tails below and above have moments of orders less than their indices (*batch).
    """
    below, above = (n >= index for index in indices)
    if n % 2 == 0:
        return torch.where(below | above, math.inf, moment)
    infinite = torch.where(below, torch.where(above, math.nan, -math.inf), math.inf)
    return torch.where(below | above, infinite, moment)


def cuts_within(edges: Tensor, region: Tensor, shares: Sequence[float]) -> Tensor:
    """Return coordinates (J, *batch) at shares of each region (*batch, K, 2) between two edges.

    A region that reaches an edge (K + 1, *batch) moves with it.
    """
    first, last = region.movedim(-2, 0).unbind(-1)
    matter = first < last
    first, last = (
        torch.where(matter & (first <= edges[:-1]), edges[:-1], first),
        torch.where(matter & (last >= edges[1:]), edges[1:], last),
    )
    # A region where the density does not matter is empty, at the first end to move with that.
    start = torch.where(matter, first, math.inf).amin(0)
    first, last = (torch.where(matter, end, start).unsqueeze(1) for end in (first, last))
    share = first.new_tensor(shares).reshape(-1, *(1,) * start.dim())
    cuts = torch.where(share < 1, first + (last - first) * share, last)
    return cuts.flatten(0, 1).sort(dim=0).values


def argmax(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Return where a function is highest (*batch).

    The best of the cuts (*batch, J) and of locations between them, improved on finer and finer
    grids between its neighbors: accurate to the square root of a rounding error at a smooth peak.
    """
    ordered = sort_cuts(cuts)
    share = torch.linspace(0, 1, _INTERVALS + 1, dtype=cuts.dtype, device=cuts.device)
    share = share.reshape(-1, *(1,) * ordered.dim())
    grid = (ordered[:-1] + share * ordered.diff(dim=0)).flatten(0, 1)
    best = grid.gather(0, function(grid).argmax(0, keepdim=True))
    # The farther of the two neighbors, as the nearer one may be the same up to rounding.
    low = torch.where(grid < best, grid, -math.inf).amax(0, keepdim=True)
    high = torch.where(grid > best, grid, math.inf).amin(0, keepdim=True)
    steps = torch.cat([best - low, high - best])
    step = torch.where(steps.isfinite(), steps, 0.0).amax(0, keepdim=True)
    for _ in range(_ROUNDS):
        grid = clamp(best + step * (2 * share[:, 0] - 1), ordered[0], ordered[-1])
        best, step = grid.gather(0, function(grid).argmax(0, keepdim=True)), 2 * step / _INTERVALS
    return best.squeeze(0)


def _coordinate(x: Tensor, part: Tensor, parts: int) -> Tensor:
    """Return the variable of `Coordinate.place` on a panel at x in [-1, 1] on one of its parts."""
    return (x + 1 + 2 * part) / parts - 1


def _above(masses: Tensor, parts: int) -> Tensor:
    """Return the masses (*batch, J) above panels, from those on their pieces (K, Q, *batch)."""
    above = masses.sum(1).flip(0).cumsum(0).flip(0)[parts::parts]
    return torch.cat([above, torch.zeros_like(above[:1])]).movedim(0, -1)


def _integral_series(masses: Tensor) -> Tensor:
    """Return Legendre coefficients (Q + 1, *batch, K) of a distribution function on pieces."""
    x, _ = gauss_legendre(masses.shape[1], masses)
    polynomials = torch.stack([torch.special.legendre_polynomial_p(x, k) for k in range(len(x))])
    moments = torch.einsum("kq,jq...->k...j", polynomials, masses)
    # The integral of (2 k + 1) P_k is the difference of its neighbors.
    upper = torch.cat([moments[1:], torch.zeros_like(moments[:2])])
    first, *others = (torch.cat([moments[:1], moments]) - upper) / 2
    return torch.stack([first + moments[0].cumsum(-1) - moments[0], *others])


def _legendre_sum(coefficients: list[Tensor], x: Tensor) -> Tensor:
    """Evaluate Legendre series (N, ...) at x (...) by Clenshaw's recurrence."""
    above, current = torch.zeros_like(x), coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        rest = torch.sub(coefficients[k], above, alpha=(k + 1) / (k + 2))
        above, current = current, torch.addcmul(rest, x, current, value=(2 * k + 1) / (k + 1))
    return current


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Move x, which may be NaN, between ends; unlike `clamp` with derivatives of one of them."""
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


def _join(cuts: Tensor, more: Tensor) -> Tensor:
    """Return cuts (J, ...) and other cuts, moved between them, in ascending order.

    The first and the last stay so: one that only coincides with an end does not move with it.
    """
    more = clamp(more, cuts[0], cuts[-1])
    shape = torch.broadcast_shapes(cuts.shape[1:], more.shape[1:])
    first, inner, last, more = (
        x.expand(len(x), *shape) for x in (cuts[:1], cuts[1:-1], cuts[-1:], more)
    )
    return torch.cat([first, torch.cat([inner, more]).sort(dim=0).values, last])
