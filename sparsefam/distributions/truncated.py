"""Densities cut to intervals, whatever their classes."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis, Stack
from ..numerics.quadrature import gauss_legendre, graded, sort_cuts
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import broadcast_arguments, in_eager, require, require_integer
from ..supports import Interval, IntervalUnion, entries_of
from .base import SoftmaxDistribution, SparseDistribution
from .interval_laws import Law, law_of
from .mixture import argmax
from .torch_adapter import (
    TorchUnivariate,
    cuts_of,
    dtype_of,
    intervals_of,
    is_discrete,
    to_float64,
    wrap,
)

__all__ = ["Truncated"]

# Nodes for covariances of bases.
_FINE = 128
# Distances of cuts from an end, in lengths over which the density there changes by a factor of e.
_LAYERS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0)
# Steps of the difference that finds these lengths: in distances to the next cut, and at least.
_STEP, _LEAST_STEP = 2.0**-13, 2.0**-44
# Shares of a range at which a density is asked for where it matters, and of what is left of it.
_TINY = tuple(16.0**-k for k in range(9, 0, -1))
_COARSE = (0.0, *_TINY, *(k / 8 for k in range(1, 8)))
_EVEN = tuple(k / 12 for k in range(13))
# Logarithm of the ratio of densities below which a density does not matter, and subintervals of the
# range where it does: for distribution functions and for moments.
_MASSES, _MOMENTS = (-45.0, 6), (-80.0, 8)
# Steps of the search for a quantile; two Newton steps follow.
_STEPS = 8
# Share of the mass that may lie within a rounding error of an end where the density is steep.
_LOST = 1e-8


class _Line:
    """The line of the locations, on which panels between two cuts are graded.

    Attributes:
        order: Nodes of a panel.
        parts: Pieces of a panel on which a distribution function is one polynomial, and
        degree: the number of nodes on each.
    """

    order, parts, degree = 32, 3, 24

    def onto(self, t: Tensor) -> Tensor:
        """Return coordinates of locations."""
        return t

    def place(self, y: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives, at y in [-1, 1] of the way between cuts."""
        return graded(y, low, high)


class _DoubleExponential(_Line):
    """The coordinate of a distribution of torch, on which it decays double exponentially."""

    order, parts, degree = 20, 1, 20

    def __init__(self, base: TorchUnivariate) -> None:
        self.coordinate = base._coordinate()

    def onto(self, t: Tensor) -> Tensor:
        """Return coordinates of locations."""
        return self.coordinate.of(t)

    def place(self, y: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives, at y in [-1, 1] of the way between cuts."""
        half = (high - low) / 2
        t, slope = self.coordinate.locations(low + half * (1 + y))
        return t, slope * half


class Truncated(SoftmaxDistribution):
    r"""A univariate density cut to an interval.

    $$p(t) = \frac{q(t)}{\int_a^b q}\,[a \le t \le b]$$

    All is computed in float64 and is accurate in far tails, too. Masses and quantiles have closed
    forms for torch's and this package's Normal, Laplace and Uniform, and torch's Cauchy,
    Exponential, Gumbel, HalfCauchy, HalfNormal, LogNormal, Pareto and Weibull. Other bases need a
    `log_prob`, but no `cdf`, and are integrated with nodes where q changes between the ends; the
    constructor computes their mass and keeps its graph: more than one backward pass through one
    density needs `retain_graph=True`. Both ends belong to the support where the base is positive
    there.

    The truncated normal `Truncated(Normal(loc, scale), low, high)` is equivalent to
    `scipy.stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale)` and to
    `TruncatedNormal(loc, scale, low, high)` of NumPyro, TensorFlow Probability and TorchRL.

    Args:
        base: The density q (*batch): a continuous univariate distribution of torch or of this
            package.
        low: Lower end a (*batch), learnable; None or -inf for no cut below.
        high: Upper end b (*batch), learnable; None or inf for no cut above.
        validate_args: As in torch.distributions.

    Attributes:
        base: q in float64, with the batch shape of the result.

    Raises:
        ValueError: `base` not a continuous univariate distribution, an end that is NaN, `low` not
            below `high`, shapes that do not broadcast, no mass of the base between the ends, or one
            so far in a tail that it lies within a rounding error of an end.

    References:
        Figurnov et al. (2018), Implicit Reparameterization Gradients. arXiv:1805.08498, for
        `rsample`.

    Examples:
        >>> p = Truncated(torch.distributions.Normal(0.0, 1.0), 30.0, 31.0)
        >>> p.log_mass, p.mean
        (tensor(-454.3213), tensor(30.0333))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.real,
        "high": constraints.real,
    }

    def __init__(
        self,
        base: Distribution,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(base, Distribution) or base.event_shape or is_discrete(base):
            raise ValueError(f"base must be a continuous univariate distribution, got {base!r}")
        part = wrap(base)
        self.alpha, self.low, self.high = broadcast_arguments(
            base=torch.ones_like(part.alpha, dtype=dtype_of(base)),
            low=-math.inf if low is None else low,
            high=math.inf if high is None else high,
        )
        exact = to_float64(part)
        same = exact.batch_shape == self.alpha.shape
        self.base: Any = exact if same else exact.expand(self.alpha.shape)
        law = self._law
        self._own_mass: Tensor | None = None
        if law is not None and self._is_plain(law):
            super().__init__(self.alpha.shape, validate_args=False)
            checks: Any = Distribution._validate_args if validate_args is None else validate_args
            self._validate_args = checks
            return
        super().__init__(self.alpha.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
        self._own_mass = None if law is not None else self._mass_by_quadrature()
        if self._validate_args:
            rule = f"ends between which {type(base).__name__} has a mass that float64 resolves"
            require(self._is_resolved(), "low and high", rule, (self.low, self.high))

    @property
    def _law(self) -> Law | None:
        """The closed forms of the base, if there are any."""
        return law_of(self.base)

    @property
    def _log_mass(self) -> Tensor:
        """Logarithm of the mass between the ends (*batch) in float64."""
        if self._own_mass is not None:
            return self._own_mass
        law: Any = self._law
        mass: Tensor = law.log_mass(self.low.double(), self.high.double())
        return mass

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support (*batch) in float64."""
        if (law := self._law) is not None:
            return law.ends(self.low.double(), self.high.double())
        ends = sort_cuts(intervals_of(self.base).flatten(-2))
        low, high = (_clamp(x.to(ends), ends[0], ends[-1]) for x in (self.low, self.high))
        return low, high

    @property
    def _line(self) -> _Line:
        """The line on which the density is integrated."""
        torch_base = isinstance(self.base, TorchUnivariate)
        return _DoubleExponential(self.base) if torch_base else _Line()

    def _find_cuts(self, line: _Line, needed: tuple[float, int] = _MOMENTS) -> Tensor:
        """Return coordinates (J, *batch) between which a few nodes integrate the density."""
        low, high = self._ends()
        if isinstance(line, _DoubleExponential):
            return self._cuts_on_line(line, line.onto(low), line.onto(high), *needed)
        found = [cuts_of(self.base)]
        for end, other in ((low, high), (high, low)):
            finite = end.isfinite()
            length = self._length(torch.where(finite, end, 0.0), other, found[0])
            layers = torch.where(finite, length, 0.0).unsqueeze(-1) * low.new_tensor(_LAYERS)
            found.append(torch.where(finite, end, math.nan).unsqueeze(-1) + layers)
        return sort_cuts(_clamp(torch.cat(found, -1), low.unsqueeze(-1), high.unsqueeze(-1)))

    def _cuts_on_line(
        self, line: _DoubleExponential, low: Tensor, high: Tensor, negligible: float, count: int
    ) -> Tensor:
        """Return coordinates (J, *batch) between ends that divide where the density matters."""
        ones = (-1, *(1,) * low.dim())
        with torch.no_grad():
            first, last = low, high
            for near in (_COARSE, _EVEN):
                share = low.new_tensor(near).reshape(ones)
                y = first + (last - first) * share
                if near is _COARSE:
                    y = torch.cat([y, last - (last - first) * share[: len(_TINY) + 1].flip(0)])
                t, slope = line.coordinate.locations(y)
                height = self._log_q(t) + slope.log()
                height = torch.where(height < math.inf, height, -math.inf)
                matters = height > height.amax(0) + negligible
                # From the point before the first one that matters to the one after the last.
                reached, left = (x.cumsum(0) > 0 for x in (matters, matters.flip(0)))
                before, after = ~reached, ~left.flip(0)
                first, last = (
                    torch.where(before, y, first).amax(0),
                    torch.where(after, y, last).amin(0),
                )
            share = low.new_tensor([k / count for k in range(count + 1)])
        first, last = torch.where(first > low, first, low), torch.where(last < high, last, high)
        # The coordinate is 0 at the mode, and loc may be a kink.
        more = [torch.zeros_like(first)]
        if (loc := self.base._known("loc")) is not None:
            more.append(line.onto(loc).expand_as(first))
        cuts = first + (last - first) * share.reshape(ones)
        return torch.cat([cuts, _clamp(torch.stack(more), first, last)]).sort(dim=0).values

    def _length(self, end: Tensor, other: Tensor, cuts: Tensor) -> Tensor:
        """Return how far from an end, towards the other, the density changes by a factor of e.

        From a difference of logarithms: exported graphs have no derivatives inside.
        """
        with torch.no_grad():
            side = torch.where(other > end, 1.0, -1.0)
            cuts = torch.cat([cuts, other.unsqueeze(-1)], -1)
            gaps = side.unsqueeze(-1) * (cuts - end.unsqueeze(-1))
            gap = torch.where((gaps > 0) & gaps.isfinite(), gaps, math.inf).amin(-1)
            gap = torch.where(gap.isfinite(), gap, end.abs().clamp_min(1))
            near = end + side * torch.maximum(gap * _STEP, end.abs() * _LEAST_STEP)
            change = (self.base.log_prob(near) - self.base.log_prob(end)).abs()
            length = (near - end) / change
            return torch.where(length.isfinite(), length, 0.0)

    def _between(self, line: _Line, order: int, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (Q, ...) of integrals, `order` between two cuts (J, ...)."""
        y, rule = (x.reshape(-1, *(1,) * (cuts.dim() - 1)) for x in gauss_legendre(order, cuts))
        nodes, slope = line.place(y, cuts[:-1, None], cuts[1:, None])
        return nodes.flatten(0, 1), (rule * slope).flatten(0, 1)

    def _mass_by_quadrature(self) -> Tensor:
        """Return the logarithm of the mass between the ends (*batch)."""
        line = self._line
        nodes, weights = self._between(line, line.order, self._find_cuts(line, _MASSES))
        log_p = self._log_q(nodes)
        # A density may be infinite at an end to which a node is rounded.
        finite = log_p.isfinite()
        peak = torch.where(finite, log_p, torch.finfo(log_p.dtype).min).detach().amax(0)
        total = (weights * torch.where(finite, log_p - peak, -math.inf).exp()).sum(0)
        return peak + total.log()

    def _is_plain(self, law: Law) -> bool:
        """Whether a few operations show that the ends are valid."""
        if not in_eager() or self.alpha.is_meta or torch._C._get_tracing_state() is not None:
            return False
        with torch.no_grad():
            return bool(law.is_resolved(self.low.double(), self.high.double(), _LOST).all())

    @torch.no_grad()
    def _is_resolved(self) -> Tensor:
        """Whether there is mass, and little of it within a rounding error of the ends."""
        low, high = self._ends()
        law = self._law
        # Ends that are the same number for the law have no mass between them.
        apart = low < high if law is None else torch.lt(*law.standardize(low, high)[:2])
        ends = torch.stack([low, high])
        beside = ends.nextafter(ends.flip(0))
        jump = (self.base.log_prob(beside) - self.base.log_prob(ends)).abs()
        lost = self._density(ends) * (beside - ends).abs()
        resolved: Tensor = apart & ~((jump > _LOST) & (lost > _LOST)).any(0)
        resolved = resolved & self._log_mass.isfinite()
        line = self._line
        if law is not None or not isinstance(line, _DoubleExponential):
            return resolved
        # What lies beyond the outermost cuts decays exponentially on the line.
        coordinate, cuts = line.coordinate, self._find_cuts(line)
        bounds = self.base.intervals[..., 0, :].movedim(-1, 0)
        outer = coordinate.locations(torch.stack([cuts[0], cuts[-1]]))[0]
        first = coordinate.onto_line(outer)
        inwards = first.new_tensor([1.0, -1.0]).reshape(-1, *(1,) * self.alpha.dim())
        t, slope = coordinate.from_line(torch.stack([first, first + inwards]))
        height, inner = (self._density(t) * slope).unbind()
        beyond = height / (inner / height).log().clamp(1e-3, 1.0)
        resolved = resolved & ~((ends == bounds) & (beyond > _LOST)).any(0)
        return resolved

    def _log_q(self, t: Tensor) -> Tensor:
        """Return the log density of the base in its support; where it is not finite it is lost."""
        plain = isinstance(self.base, TorchUnivariate) and not torch.is_grad_enabled()
        log_q: Tensor = (self.base.base if plain else self.base).log_prob(t)  # without checks
        return log_q

    def _density(self, t: Tensor) -> Tensor:
        """Return the density between the ends; 0 where rounding to an end makes it infinite."""
        log_p = self._log_q(t)
        density: Tensor = torch.where(log_p.isfinite(), log_p - self._log_mass, -math.inf).exp()
        return density

    def _panels(self, line: _Line) -> tuple[Tensor, Tensor, Tensor]:
        """Return cuts and the masses below them, both (*batch, J), and the density on pieces.

        All masses are 1 up to rounding. A panel between two cuts has pieces of equal length in the
        variable of `line.place`, on which the density is known by masses (K, Q, *batch) at
        Gauss-Legendre nodes.
        """
        cuts, parts = self._find_cuts(line, _MASSES), line.parts
        x, rule = gauss_legendre(line.degree, cuts)
        part, ones = torch.arange(parts, device=cuts.device), (1,) * self.alpha.dim()
        y = _coordinate(x, part.unsqueeze(-1), parts).reshape(parts, -1, *ones)
        nodes, slope = line.place(y, cuts[:-1, None, None], cuts[1:, None, None])
        density = self._density(nodes.flatten(0, 2)).reshape(nodes.shape)
        masses = (rule.reshape(-1, *ones) / parts * slope * density).flatten(0, 1)
        below = masses.sum(1).cumsum(0)[parts - 1 :: parts]
        below = torch.cat([torch.zeros_like(below[:1]), below])
        return cuts.movedim(0, -1), below.movedim(0, -1), masses

    def _with_parameters(
        self,
        shape: Size,
        change: Callable[[Tensor, Size], Tensor],
        instance: SparseDistribution | None = None,
    ) -> "Truncated":
        new: Any = super()._with_parameters(shape, change, instance)
        new.base = self.base._with_parameters(shape, change)
        new._own_mass = None if self._own_mass is None else change(self._own_mass, Size())
        return new  # type: ignore[no-any-return]

    def _select(self, shape: Size, take: Callable[[Tensor, Size], Tensor]) -> "Truncated":
        """Return the density of a part of the batch, with that part of the base."""
        new = self._with_parameters(shape, take)
        new.base = self.base._select(shape, take)
        return new

    def _to_float64(self) -> "Truncated":
        return Truncated(self.base, self.low.double(), self.high.double(), validate_args=False)

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        line = self._line
        cuts = self._find_cuts(line)
        if isinstance(line, _DoubleExponential):
            low, high = self._ends()
            first, last = cuts[0] > line.onto(low), cuts[-1] < line.onto(high)
            t = line.coordinate.locations(cuts)[0]
            # Ends that matter are not rounded.
            first = torch.where(first | low.isinf(), t[0], low)
            last = torch.where(last | high.isinf(), t[-1], high)
            cuts = torch.stack([first, *t[1:-1], last])
        return cuts.movedim(0, -1)

    @property
    def log_mass(self) -> Tensor:
        """Logarithm of the mass of the base between the ends (*batch)."""
        return self._log_mass.to(self.alpha.dtype)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The part of the base's support between the ends, which moves with both."""
        intervals = intervals_of(self.base).to(self.alpha.dtype)
        intervals = _clamp(intervals, self.low[..., None, None], self.high[..., None, None])
        # Under vmap and in compiled graphs values cannot be read; then only bijections differ.
        known = in_eager() and not intervals.is_meta
        if intervals.shape[-2] == 1 and (not known or bool(intervals.isfinite().all())):
            return Interval(intervals[..., 0, 0], intervals[..., 0, 1], self.log_prob)
        empty = intervals.diff(dim=-1) <= 0
        return IntervalUnion.merged(torch.where(empty, math.nan, intervals), self.log_prob)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: if the support is one interval."""
        whole = self._law is not None or intervals_of(self.base).shape[-2] == 1
        return whole or bool(intervals_of(self)[..., 1:, :].isnan().all())

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if the base has none and an end is infinite."""
        if known := self._moments():
            return known[0].to(self.alpha.dtype)
        nodes, weights = self._rule(0)
        return self._moment("mean", (weights * nodes).sum(0))

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if the base has none and an end is infinite."""
        if known := self._moments():
            return known[1].to(self.alpha.dtype)
        nodes, weights = self._rule(0)
        offset = nodes - (weights * nodes).sum(0)
        return self._moment("variance", (weights * offset.square()).sum(0))

    def _moments(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return mean, variance and entropy (*batch) where they are known without a table."""
        law = self._law
        if law is None or not law.has_moments:
            return None
        return law.moments(self.low.double(), self.high.double())

    def _moment(self, name: str, value: Tensor) -> Tensor:
        """Return a moment by quadrature, or that of the base where an infinite tail has none."""
        known = self.base._known(name) if isinstance(self.base, TorchUnivariate) else None
        if known is not None:
            low, high = self._ends()
            exists = known.isfinite() | (low.isfinite() & high.isfinite())
            value = torch.where(exists, value, known.detach())
        return value.to(self.alpha.dtype)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch), without gradient, searched on the support."""
        with torch.no_grad():
            return self._rounded(argmax(self.prob, self._cuts()))

    def _rounded(self, t: Tensor) -> Tensor:
        """Return locations in the type of the parameters, not rounded to an end without density."""
        with torch.no_grad():
            low, high = self.low.detach(), self.high.detach()
            last = torch.where(self.prob(high) > 0, high, high.nextafter(low))
        return torch.minimum(t.to(self.alpha.dtype), last)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        if self._validate_args:
            self._validate_sample(value)
        inside = (self.low <= value) & (value <= self.high)
        log_p = self.base.log_prob(torch.clamp(value, self.low.detach(), self.high.detach()))
        inside = inside & (log_p > -math.inf)
        log_p = torch.where(inside, log_p - self._log_mass, -math.inf)
        return log_p.to(torch.promote_types(self.alpha.dtype, value.dtype))

    def _inside(self) -> Tensor:
        """Return a location between the ends (*batch), without gradient."""
        end = torch.where(self.low.isfinite(), self.low, self.high).detach()
        return end.nan_to_num(posinf=0.0)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function, relatively accurate in the lower tail."""
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._ends()
        inside = (low < value) & (value < high)
        if (law := self._law) is not None:
            t = torch.where(inside, value.double(), high)
            share = torch.exp(law.log_share(low, t, high))
        else:
            line = self._line
            cuts, below, _ = self._panels(line)
            first, last = cuts[..., 0], cuts[..., -1]
            t = line.onto(torch.where(inside, value, self._inside()))
            t = _clamp(t, first, last)
            panel = (cuts[..., 1:-1] <= t.unsqueeze(-1)).sum(-1, keepdim=True)
            start, before = (entries_of(x, panel) for x in (cuts, below))
            share = (before + self._mass_between(line, start, t)) / below[..., -1]
        share = torch.where(inside, share.clamp(max=1), (value >= high).to(share))
        return share.to(torch.promote_types(self.alpha.dtype, value.dtype))

    def _mass_between(self, line: _Line, start: Tensor, t: Tensor) -> Tensor:
        """Return the mass between coordinates with no cut between them."""
        ends = torch.stack(torch.broadcast_tensors(start, t))
        nodes, weights = self._between(line, line.order, ends)
        return (weights * self._density(nodes)).sum(0)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function of probabilities in [0, 1]; its values lie in the support.

        Raises:
            ValueError: A probability outside [0, 1].
        """
        if self._validate_args:
            self._validate_probability(value)
        t = self._quantile(value)
        first, last = self._ends()
        t = torch.where(value >= 1, last, torch.where(value <= 0, first, t))
        return t.to(torch.promote_types(self.alpha.dtype, value.dtype))

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities in (0, 1) in float64; the median of others."""
        inside, (first, last) = (value > 0) & (value < 1), self._ends()
        value = torch.where(inside, value, 0.5).double()
        if (law := self._law) is not None:
            return law.icdf(first, last, value)
        line = self._line
        cuts, below, masses = self._panels(line)
        goal = value * below[..., -1]
        # Detached, as a replayed trace of torch.jit ignores no_grad.
        series, known = _integral_series(masses.detach()), goal.detach()
        # All Legendre polynomials are 1 at the upper end.
        piece = (series.sum(0)[..., :-1] <= known.unsqueeze(-1)).sum(-1, keepdim=True)
        coefficients = [entries_of(x, piece) for x in series]
        x = increasing_root(
            lambda x: _legendre_sum(coefficients, x) - known,
            torch.full_like(known, -1),
            torch.ones_like(known),
            _STEPS,
        )
        panel = piece // line.parts
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        y = _coordinate(x, (piece % line.parts).squeeze(-1), line.parts)
        near = line.place(y, start.detach(), end.detach())[0].detach()
        gap = before - goal + self._mass_between(line, start, line.onto(near).detach())
        height = self._density(near)

        def excess(t: Tensor) -> Tensor:
            return gap + (t - near) * (height + self._density(t)) / 2

        moved = attach_root_gradient(near, excess, self._density)
        t = torch.minimum(torch.maximum(moved.detach(), first), last).detach()
        return t + (moved - moved.detach())

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch), differentiable in the ends and in the base's parameters.

        Raises:
            NotImplementedError: The support has a gap, which samples cannot cross.
        """
        if torch.is_grad_enabled() and not self.has_rsample:
            raise NotImplementedError("rsample needs a support of one interval: use sample")
        shape = self._extended_shape(sample_shape)
        uniform = torch.rand(shape, dtype=torch.float64, device=self.alpha.device)
        t = self._quantile(uniform)
        return t.to(self.alpha.dtype) if self._law is not None else self._rounded(t)

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        if known := self._moments():
            return known[2].to(self.alpha.dtype)
        nodes, weights = self._rule(0)
        log_p = self.log_prob(nodes)
        # The derivative of 0 log 0 would be infinite.
        return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0).to(self.alpha.dtype)

    def _rule(self, order: int, psi: Basis | None = None) -> tuple[Tensor, Tensor]:
        """Return float64 nodes and weights (Q, *batch), `order` or more between two cuts.

        Cuts are those of the density and of a basis.
        """
        line = self._line
        nodes, weights = self._between(line, max(line.order, order), self._cuts_with(line, psi))
        weights = weights * self._density(nodes)
        return nodes, weights / weights.sum(0)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$."""
        require_integer("order", order, 1)
        nodes, weights = self._rule(order // 2)
        return nodes.to(self.alpha.dtype), weights.to(self.alpha.dtype)

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if not isinstance(psi, Basis):
            return super()._quadrature_expect(psi, order)
        if psi.effective_support is None:
            nodes, weights = self._rule(order // 2, psi)
            means: Tensor = (weights.unsqueeze(-1) * psi(nodes)).sum(0)
            return means.to(self.alpha.dtype)
        # Each function where it is not negligible, with cuts of its own.
        line = self._line
        low, high = (line.onto(self._aligned(x)) for x in psi.effective_support)
        shares = self._aligned(self.low.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0])).unsqueeze(1)
        cuts = _join(self._cuts_with(line, psi).unsqueeze(1), low + shares * (high - low))
        cuts = _clamp(cuts, low, high)
        nodes, weights = self._between(line, max(line.order, order // 2), cuts)
        weights = weights * self._density(nodes)
        values = psi.own(nodes.movedim(1, -1))
        return (weights.movedim(1, -1) * values).sum(0).to(self.alpha.dtype)

    def _cuts_with(self, line: _Line, psi: Basis | None) -> Tensor:
        """Return the cuts (J, *batch) with those of a basis."""
        cuts = self._find_cuts(line)
        if psi is None or psi.breaks is None:
            return cuts
        return _join(cuts, line.onto(self._aligned(psi.breaks)))

    def _aligned(self, x: Tensor) -> Tensor:
        """Return numbers (N,) as (N, *ones), with an axis for each one of the batch."""
        return x.to(self.base.alpha).reshape(-1, *(1,) * self.alpha.dim())

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        self.escort(beta)
        nodes, weights = self._rule(_FINE, Stack(phi, psi))
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        covariance = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
        return covariance.to(self.alpha.dtype)


def _coordinate(x: Tensor, part: Tensor, parts: int) -> Tensor:
    """Return the variable of `_Line.place` on a panel at x in [-1, 1] on one of its parts."""
    return (x + 1 + 2 * part) / parts - 1


def _integral_series(masses: Tensor) -> Tensor:
    """Return Legendre coefficients (Q + 1, *batch, K) of a distribution function on pieces."""
    x, _ = gauss_legendre(masses.shape[1], masses)
    polynomials = torch.stack([torch.special.legendre_polynomial_p(x, k) for k in range(len(x))])
    moments = torch.einsum("kq,jq...->k...j", polynomials, masses)
    # The integral of (2 k + 1) P_k is the difference of its neighbours.
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


def _clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Move x, which may be NaN, between ends; unlike `clamp` with derivatives of one of them."""
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


def _join(cuts: Tensor, more: Tensor) -> Tensor:
    """Return cuts (J, ...) and those of others that lie between them, in ascending order."""
    more = _clamp(more, cuts[0], cuts[-1])
    shape = torch.broadcast_shapes(cuts.shape[1:], more.shape[1:])
    return torch.cat([x.expand(len(x), *shape) for x in (cuts, more)]).sort(dim=0).values
