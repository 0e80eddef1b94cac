"""Densities from functions: everything that a density has, from a log density and its ends."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from .._numerics.validation import as_number, broadcast_arguments, require
from ..supports import Interval, IntervalUnion, RealLine, finite
from ._line.engine import (
    MOMENTS,
    Coordinate,
    DoubleExponential,
    IntegratedDistribution,
    Line,
    cuts_within,
)

__all__ = ["Density"]

# Logarithm of the ratio of densities below which a location is not near the peak that a coordinate
# on the whole line is placed by.
_NEAR = -2.0
# Powers of 16 among which the scale of a density on an infinite interval is searched for, as far as
# a coordinate reaches in float64.
_SCALES = tuple(16.0**k for k in range(-215, 216))
# Shares of the range where a density matters at which it is cut, closer at its ends.
_SHARES = tuple(math.sin(math.pi * k / 24) ** 2 for k in range(13))
# Rounds of the search for this range. Each can divide it by six.
_ROUNDS = 8
# Steps of the search for a quantile, which may be next to a power.
_STEPS = 16
# Nodes on each subinterval, and of the rule that must agree with it, and how closely.
_ORDER, _LOWER_ORDER, _CLOSE = 32, 24, 1e-9


class Density(IntegratedDistribution):
    r"""The density on an interval that is proportional to the exponential of a function.

    $$p(t) = \frac{e^{f(t)}}{\int_a^b e^f}\,[a \le t \le b]$$

    For people who have a formula and no class: what `scipy.stats.make_distribution`, or a subclass
    of `scipy.stats.rv_continuous`, is for one density, batched and with gradients. Values are
    computed in float64 by quadrature between the breakpoints, on the part of each subinterval where
    the density matters. f must be smooth there; powers of the density above -1/2 at breakpoints and
    finite ends are accurate. A narrow peak needs a breakpoint on it, unless it is the only one.

    The constructor computes the mass and keeps its graph: more than one backward pass through one
    density needs `retain_graph=True`.

    Args:
        log_prob: f, from float64 locations (*sample, *batch), and the parameters by name, to values
            of that shape; -inf where the density is zero. It need not be normalized.
        low: Lower end a (*batch), learnable; the number -inf if there is none.
        high: Upper end b (*batch), learnable; the number inf if there is none.
        breakpoints: Numbers or tensors (*batch), in any order, where f has kinks, jumps or narrow
            peaks. Those outside of the interval have no effect.
        validate_args: As in torch.distributions.
        parameters: Further tensors (*batch), which `log_prob` receives by name in float64 and the
            density has as attributes, so that no name may be one of its own, such as `mean`.
            Gradients reach them, and `expand` and indices apply to them, unlike to tensors that the
            function contains.

    Raises:
        ValueError: `log_prob` not callable, or its values NaN or of another shape; a parameter not
            finite, or named like a member of densities; `low` not below `high`, or an infinite
            tensor; no mass, or one that is infinite, for which two rules differ, or of which 1e-9
            lies too far out for float64; shapes that do not broadcast.

    Examples:
        >>> rate = torch.tensor([1.0, 4.0], requires_grad=True)
        >>> p = Density(lambda t, rate: -rate * t**1.5, 0.0, 2.0, rate=rate)
        >>> p.mean.detach()
        tensor([0.6088, 0.2617])
        >>> p.rsample((1000,)).requires_grad
        True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.real,
        "high": constraints.real,
    }

    _tensors = {"_places": 1, "_own_mass": 0, "_frame": 1, "_region": 2, "_peak": 0}

    def __init__(
        self,
        log_prob: Callable[..., Tensor],
        low: Tensor | float,
        high: Tensor | float,
        breakpoints: Sequence[Tensor | float] = (),
        *,
        validate_args: bool | None = None,
        **parameters: Tensor | float,
    ) -> None:
        if not callable(log_prob):
            raise ValueError(f"log_prob must be a function of locations, got {log_prob!r}")
        for name in parameters:
            if name.startswith("_") or name == "alpha" or hasattr(type(self), name):
                rule = "have names that are none of a density's own"
                raise ValueError(f"parameters must {rule}, got {name!r}")
        self._function = log_prob
        self._is_open = tuple(math.isinf(as_number(x)) for x in (low, high))
        try:
            places = {f"breakpoints[{i}]": x for i, x in enumerate(breakpoints)}
        except TypeError:
            raise ValueError(f"breakpoints must be a sequence, got {breakpoints!r}") from None
        given = {"low": low, "high": high, **parameters, **places}
        tensors = dict(zip(given, broadcast_arguments(**given), strict=True))
        self.low, self.high = tensors["low"], tensors["high"]
        own: Any = self
        own.arg_constraints = {**type(self).arg_constraints}
        for name in parameters:
            own.arg_constraints[name] = finite
            setattr(self, name, tensors[name])
        # An axis of no breakpoints if there are none.
        columns = torch.stack([self.low.detach(), *(tensors[name] for name in places)], -1)
        self._places = columns[..., 1:].double()
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args:
            require(~self._places.isnan(), "breakpoints", "numbers", self._places)
            ends = {"low": self.low, "high": self.high}
            require(self.low < self.high, "low", "below high", ends)
            for end, is_open in zip(ends.items(), self._is_open, strict=True):
                require(end[1].isfinite() | is_open, end[0], "a finite tensor", end[1])
        with torch.no_grad():
            self._place_coordinate()
        line = self._line
        self._own_mass = self._mass_by_quadrature(line, _ORDER)
        if self._validate_args:
            self._require_mass(line)

    def _require_mass(self, line: Coordinate) -> None:
        with torch.no_grad():
            mass = self._own_mass
            cuts: Any = self._find_cuts(line)
            nodes, weights = self._between(line, _ORDER, cuts)
            number = ~self._values(nodes).isnan()
            require(number, "log_prob", "a number, or -inf, between low and high", "NaN")
            rule = "positive between low and high, with a finite integral"
            require(mass.isfinite(), "the exponential of log_prob", rule, mass)
            gap = (self._mass_by_quadrature(line, _LOWER_ORDER) - mass).abs()
            rule = f"smooth between breakpoints, with two rules for the mass closer than {_CLOSE}"
            require(gap <= _CLOSE, "log_prob", rule, gap)
            # A density may matter where the coordinate ends, but not in the last subinterval.
            rough: Any = line.rough
            low, high = cuts[:-1] <= rough[0], cuts[1:] >= rough[-1]
            last = (low & self._is_open[0]) | (high & self._is_open[1])
            terms = (weights * self._density(nodes)).unflatten(0, (-1, _ORDER)).sum(1)
            rule = f"integrable, with less than {_CLOSE} of the mass where float64 ends"
            fades = torch.where(last, terms, 0.0).sum(0) <= _CLOSE
            require(fades, "the exponential of log_prob", rule, mass.exp())

    def _place_coordinate(self) -> None:
        """Find out where the density matters, which the coordinate is placed by."""
        self._frame = torch.stack(self._ends(), -1)  # not asked for if both are finite
        if any(self._is_open):
            self._frame = self._first_frame()
        if all(self._is_open):  # around the peak
            line = self._line
            edges = self._edges(line)
            middle = self._region_of(line, edges, _NEAR, rounds=_ROUNDS, power=0.0)
            first, last = (line.locations(y.movedim(-1, 0))[0] for y in middle.unbind(-1))
            first, last = first.amin(0), last.amax(0)
            spread = ((last - first) / 4).clamp_min(torch.finfo(first.dtype).tiny)
            self._frame = torch.stack([(first + last) / 2, spread], -1)
        line = self._line
        self._region = self._region_of(line, self._edges(line), MOMENTS, rounds=_ROUNDS)
        nodes, _ = self._between(line, _ORDER, self._find_cuts(line))
        heights = self._log_q(nodes)
        best = torch.where(heights < math.inf, heights, -math.inf).argmax(0, keepdim=True)
        self._peak = nodes.gather(0, best).squeeze(0)

    def _first_frame(self) -> Tensor:
        """Return a location inside and a scale (*batch, 2), of distances from the finite end or 0.

        The scale is the power of 16 around which the distance has most mass.
        """
        (opens_low, opens_high), (low, high) = self._is_open, self._ends()
        end = torch.zeros_like(low) if opens_low and opens_high else high if opens_low else low
        scales = end.new_tensor(_SCALES).reshape(-1, *(1,) * end.dim())
        sides = [side for side, is_open in ((-1, opens_low), (1, opens_high)) if is_open]
        heights = torch.stack([self._log_q(end + side * scales) + scales.log() for side in sides])
        heights = torch.where(heights < math.inf, heights, -math.inf).amax(0)
        best = heights.argmax(0, keepdim=True)
        scale = scales.expand_as(heights).gather(0, best)
        # The first if there is no mass at these, and the last if the mass is infinite.
        inner = (best > 0) & (best < len(scales) - 1)
        scale = torch.where(inner, scale, 1.0).squeeze(0)
        return torch.stack([end + scale * sum(sides), scale], -1)

    @property
    def _line(self) -> Coordinate:
        """The coordinate, which is the location itself if both ends are finite."""
        line: Coordinate
        if not any(self._is_open):
            line = Line(_ORDER, 1, _ORDER)
        else:
            (is_open, opens), (low, high) = self._is_open, self._ends()
            ends = None if is_open else low, None if opens else high
            line = DoubleExponential(*ends, self._frame[..., 0], self._frame[..., 1], _ORDER)
        # The ends, and the breakpoints between them.
        low, high = (line.onto(end) for end in self._ends())
        places = self._places.movedim(-1, 0)
        if len(places):  # one that coincides with an end moves with it
            places = line.onto(places)
            places = torch.where(places < high, torch.where(places > low, places, low), high)
        edges = [low.unsqueeze(0), places.sort(dim=0).values, high.unsqueeze(0)]
        line.rough, line.steps = torch.cat(edges), _STEPS
        return line

    @staticmethod
    def _edges(line: Coordinate) -> Tensor:
        """Return ends and breakpoints in coordinates, and what lies halfway between two of these.

        Between two peaks at breakpoints the density may not matter.
        """
        edges: Any = line.rough
        if len(edges) == 2:
            return edges
        middles = (edges[:-1] + edges[1:]) / 2
        return torch.cat([torch.stack([edges[:-1], middles], 1).flatten(0, 1), edges[-1:]])

    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.low.double(), self.high.double()

    def _find_cuts(self, line: Coordinate, fine: bool = True) -> Tensor:
        edges = self._edges(line)
        return cuts_within(edges, self._region, _SHARES if len(edges) == 2 else _SHARES[::2])

    @property
    def _log_mass(self) -> Tensor:
        return self._own_mass

    def _log_q(self, t: Tensor) -> Tensor:
        with torch.no_grad():
            log_q = self._values(t)
        if not torch.is_grad_enabled():
            return log_q
        # Where the density is zero the function may have no derivative.
        finite = log_q.isfinite()
        return torch.where(finite, self._values(torch.where(finite, t, self._peak)), log_q)

    def _values(self, t: Tensor) -> Tensor:
        """Return the values of the function at float64 locations (..., *batch)."""
        names = self.arg_constraints.keys() - type(self).arg_constraints.keys()
        values = self._function(t, **{name: getattr(self, name).double() for name in names})
        shape = torch.broadcast_shapes(t.shape, self.batch_shape)
        if not isinstance(values, Tensor) or values.shape not in (shape, t.shape):
            found = tuple(values.shape) if isinstance(values, Tensor) else repr(values)
            raise ValueError(
                f"log_prob must map locations {tuple(t.shape)} to a tensor of that shape, got "
                f"{found}"
            )
        return values.double().expand(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        self._check_value(value)
        inside = (self.low <= value) & (value <= self.high)
        log_q = self._log_q(torch.where(inside, value.double(), self._peak))
        log_p = torch.where(inside & (log_q > -math.inf), log_q - self._log_mass, -math.inf)
        return log_p.to(torch.promote_types(self._like.dtype, value.dtype))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval between the ends."""
        if all(self._is_open):
            return RealLine(self._like)
        if any(self._is_open):
            ends = torch.stack([self.low, self.high], -1).unsqueeze(-2)
            return IntervalUnion.merged(ends, self.log_prob)
        return Interval(self.low, self.high, self.log_prob)

    def _moment(self, name: str, n: int, terms: Tensor) -> Tensor:
        """Return a moment, infinite where the last terms towards an infinite end matter."""
        value, sizes = terms.sum(0), terms.detach().abs()
        # Subintervals may be empty.
        ends = [
            x for x, is_open in zip((sizes, sizes.flip(0)), self._is_open, strict=True) if is_open
        ]
        outer = [x.gather(0, (x > 0).int().argmax(0, keepdim=True)) for x in ends]
        if not outer:
            return value
        exists = torch.cat(outer).amax(0) < _CLOSE * sizes.sum(0)
        return torch.where(exists, value, math.inf)
