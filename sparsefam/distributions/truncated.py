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
from .mixture import argmax
from .normal import Normal
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

# Nodes between two cuts, and for covariances of bases.
_NODES, _FINE = 32, 128
# Distances of cuts from an end, in lengths over which the density there changes by a factor of e.
_LAYERS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0)
# Distances of cuts from an end on the line of a distribution of torch.
_LINE_STEPS = (10.0, 40.0, 160.0)
# Steps of the difference that finds these lengths: in distances to the next cut, and at least.
_STEP, _LEAST_STEP = 2.0**-13, 2.0**-44
# Pieces of a panel between two cuts, the nodes in each, and steps of the search for a quantile;
# two Newton steps follow.
_PARTS, _ORDER, _STEPS = 3, 24, 8
# Share of the mass that may lie within a rounding error of an end where the density is steep.
_LOST = 1e-8


class Truncated(SoftmaxDistribution):
    r"""A univariate density cut to an interval.

    $$p(t) = \frac{q(t)}{\int_a^b q}\,[a \le t \le b]$$

    All is computed in float64: the mass of a normal density by error functions, other integrals by
    quadrature with nodes where q changes between the ends. This is accurate in far tails, too. The
    base needs a `log_prob`, but no `cdf`. Both ends belong to the support where the base is
    positive there. The constructor computes the mass between the ends and keeps its graph: more
    than one backward pass through one density needs `retain_graph=True`.

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
        self.base: Any = to_float64(part).expand(self.alpha.shape)
        super().__init__(self.alpha.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
        normal = isinstance(self.base, Normal)
        self._log_mass = self._normal_mass() if normal else self._mass_by_quadrature()
        if self._validate_args:
            rule = f"ends between which {type(base).__name__} has a mass that float64 resolves"
            require(self._is_resolved(), "low and high", rule, (self.low, self.high))

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support (*batch) in float64."""
        ends = sort_cuts(intervals_of(self.base).flatten(-2))
        low, high = (_clamp(x.to(ends), ends[0], ends[-1]) for x in (self.low, self.high))
        return low, high

    def _find_cuts(self) -> Tensor:
        """Return locations (J, *batch) between which a few nodes integrate the density."""
        low, high = self._ends()
        found = [cuts_of(self.base)]
        for end, other in ((low, high), (high, low)):
            finite = end.isfinite()
            length = self._length(torch.where(finite, end, 0.0), other, found[0])
            layers = torch.where(finite, length, 0.0).unsqueeze(-1) * low.new_tensor(_LAYERS)
            found.append(torch.where(finite, end, math.nan).unsqueeze(-1) + layers)
        if isinstance(self.base, TorchUnivariate):
            found.append(self._steps_on_line(low, high))
        return sort_cuts(_clamp(torch.cat(found, -1), low.unsqueeze(-1), high.unsqueeze(-1)))

    def _steps_on_line(self, low: Tensor, high: Tensor) -> Tensor:
        """Return locations (*batch, J) some steps inwards from the ends, on the line of `_graded`.

        Within a part of the base's range that is small on that line, they resolve its powers.
        """
        with torch.no_grad():
            line, steps = self.base._coordinate(), low.new_tensor(_LINE_STEPS)
            steps = steps.reshape(-1, *(1,) * low.dim())
            x = [line.onto_line(low) + steps, line.onto_line(high) - steps]
            t = line.from_line(torch.cat(x))[0].movedim(0, -1)
            return torch.where(t.isfinite(), t, math.nan)

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

    def _between(self, order: int, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (Q, ...) of integrals, `order` between two cuts (J, ...)."""
        y, rule = (x.reshape(-1, *(1,) * (cuts.dim() - 1)) for x in gauss_legendre(order, cuts))
        nodes, slope = self._graded(y, cuts[:-1, None], cuts[1:, None])
        return nodes.flatten(0, 1), (rule * slope).flatten(0, 1)

    def _graded(self, y: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Map y in [-1, 1] to an interval as `graded`; return locations and derivatives in y.

        Distributions of torch are integrated on the line of their coordinate, where powers at an
        end and heavy tails are exponentials.
        """
        if not isinstance(self.base, TorchUnivariate):
            return graded(y, low, high)
        line = self.base._coordinate()
        x, slope = graded(y, line.onto_line(low), line.onto_line(high))
        t, rate = line.from_line(x)
        return t, slope * rate

    def _mass_by_quadrature(self) -> Tensor:
        """Return the logarithm of the mass between the ends (*batch)."""
        cuts = self._find_cuts()
        nodes, weights = self._between(_NODES, cuts)
        log_p = self.base.log_prob(nodes)
        # A density may be infinite at an end to which a node is rounded.
        finite = log_p.isfinite()
        peak = torch.where(finite, log_p, torch.finfo(log_p.dtype).min).detach().amax(0)
        total = (weights * torch.where(finite, log_p - peak, -math.inf).exp()).sum(0)
        return peak + total.log()

    def _normal_mass(self) -> Tensor:
        r"""Return $\log(\Phi(b) - \Phi(a))$, 40 times as fast as quadrature."""
        loc, scale = self.base.loc, self.base.scale
        finite = [x.isfinite() for x in (self.low, self.high)]
        a, b = (
            torch.where(is_finite, (torch.where(is_finite, x, loc) - loc) / scale, far)
            for is_finite, x, far in zip(finite, self._ends(), (-1e9, 1e9), strict=True)
        )
        # In the lower tail.
        flip = a + b > 0
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        # Between near ends differences cancel, but the density hardly changes.
        near = (b - a) * (1 - a) < 1
        width = torch.where(near, b - a, 1.0)
        y, rule = (x.reshape(-1, *(1,) * a.dim()) for x in gauss_legendre(16, a))
        step = width * (1 - y) / 2
        end = torch.where(near, b, 0.0)
        mean = (rule / 2 * torch.exp(end * step - step.square() / 2)).sum(0)
        close = (width * mean).log() - end.square() / 2 - math.log(2 * math.pi) / 2
        a, b = torch.where(near, -1.0, a), torch.where(near, 0.0, b)
        root, below, above = math.sqrt(0.5), b.clamp(max=0), b.clamp_min(0)
        ratio = torch.exp((below - a) * (below + a) / 2) * torch.special.erfcx(-root * a)
        side = (torch.special.erfcx(-root * below) - ratio).log() - math.log(2) - below.square() / 2
        middle = torch.log1p(-(torch.erfc(root * above) + torch.erfc(-root * a)) / 2)
        return torch.where(near, close, torch.where(b > 0, middle, side))

    @torch.no_grad()
    def _is_resolved(self) -> Tensor:
        """Whether there is mass, and little of it within a rounding error of the ends."""
        ends = torch.stack(self._ends())
        beside = ends.nextafter(ends.flip(0))
        jump = (self.base.log_prob(beside) - self.base.log_prob(ends)).abs()
        lost = self._density(ends) * (beside - ends).abs()
        resolved: Tensor = self._log_mass.isfinite() & ~((jump > _LOST) & (lost > _LOST)).any(0)
        if not isinstance(self.base, TorchUnivariate):
            return resolved
        # What lies beyond the outermost cuts decays exponentially on the line.
        line, cuts = self.base._coordinate(), self._find_cuts()
        bounds = self.base.intervals[..., 0, :].movedim(-1, 0)
        first = line.onto_line(torch.stack([cuts[0], cuts[-1]]))
        inwards = first.new_tensor([1.0, -1.0]).reshape(-1, *(1,) * self.alpha.dim())
        t, slope = line.from_line(torch.stack([first, first + inwards]))
        height, inner = (self._density(t) * slope).unbind()
        beyond = height / (inner / height).log().clamp(1e-3, 1.0)
        resolved = resolved & ~((ends == bounds) & (beyond > _LOST)).any(0)
        return resolved

    def _density(self, t: Tensor) -> Tensor:
        """Return the density between the ends; 0 where rounding to an end makes it infinite."""
        log_p = self.base.log_prob(t)
        density: Tensor = torch.where(log_p.isfinite(), log_p - self._log_mass, -math.inf).exp()
        return density

    def _panels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return cuts and the masses below them, both (*batch, J), and the density on pieces.

        All masses are 1 up to rounding. A panel between two cuts has `_PARTS` pieces of equal
        length in the variable of `graded`, in which the density is known by masses (K, Q, *batch)
        at Gauss-Legendre nodes.
        """
        cuts = self._find_cuts()
        x, rule = gauss_legendre(_ORDER, cuts)
        part, ones = torch.arange(_PARTS, device=cuts.device), (1,) * self.alpha.dim()
        y = _coordinate(x, part.unsqueeze(-1)).reshape(_PARTS, -1, *ones)
        nodes, slope = self._graded(y, cuts[:-1, None, None], cuts[1:, None, None])
        density = self._density(nodes.flatten(0, 2)).reshape(nodes.shape)
        masses = (rule.reshape(-1, *ones) / _PARTS * slope * density).flatten(0, 1)
        below = masses.sum(1).cumsum(0)[_PARTS - 1 :: _PARTS]
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
        new._log_mass = change(self._log_mass, Size())
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
        return self._find_cuts().movedim(0, -1)

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
        if intervals.shape[-2] == 1 and (not in_eager() or bool(intervals.isfinite().all())):
            return Interval(intervals[..., 0, 0], intervals[..., 0, 1], self.log_prob)
        empty = intervals.diff(dim=-1) <= 0
        return IntervalUnion.merged(torch.where(empty, math.nan, intervals), self.log_prob)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: if the support is one interval."""
        whole = intervals_of(self.base).shape[-2] == 1
        return whole or bool(intervals_of(self)[..., 1:, :].isnan().all())

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if the base has none and an end is infinite."""
        nodes, weights = self._rule(_NODES)
        return self._moment("mean", (weights * nodes).sum(0))

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if the base has none and an end is infinite."""
        nodes, weights = self._rule(_NODES)
        offset = nodes - (weights * nodes).sum(0)
        return self._moment("variance", (weights * offset.square()).sum(0))

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
        log_p = self.base.log_prob(torch.where(inside, value, self._inside()))
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
        cuts, below, _ = self._panels()
        first, last = cuts[..., 0], cuts[..., -1]
        inside = (first < value) & (value < last)
        t = torch.where(inside, value, (first + last).detach() / 2)
        panel = (cuts[..., 1:-1] <= t.unsqueeze(-1)).sum(-1, keepdim=True)
        start, before = (entries_of(x, panel) for x in (cuts, below))
        share = (before + self._mass_between(start, t)) / below[..., -1]
        share = torch.where(inside, share.clamp(max=1), (value >= last).to(share))
        return share.to(torch.promote_types(self.alpha.dtype, value.dtype))

    def _mass_between(self, start: Tensor, t: Tensor) -> Tensor:
        """Return the mass between locations with no cut between them."""
        nodes, weights = self._between(_NODES, torch.stack(torch.broadcast_tensors(start, t)))
        return (weights * self._density(nodes)).sum(0)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function of probabilities in [0, 1]; its values lie in the support.

        Raises:
            ValueError: A probability outside [0, 1].
        """
        if self._validate_args:
            self._validate_probability(value)
        inside = (value > 0) & (value < 1)
        cuts, below, masses = self._panels()
        goal = torch.where(inside, value, 0.5) * below[..., -1]
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
        panel = piece // _PARTS
        start, end, before = (entries_of(x, panel) for x in (cuts, cuts[..., 1:], below))
        low, high = start.detach(), end.detach()
        near = self._graded(_coordinate(x, (piece % _PARTS).squeeze(-1)), low, high)[0].detach()
        gap, height = before - goal + self._mass_between(start, near), self._density(near)

        def excess(t: Tensor) -> Tensor:
            return gap + (t - near) * (height + self._density(t)) / 2

        moved = attach_root_gradient(near, excess, self._density)
        t = torch.minimum(torch.maximum(moved.detach(), low), high) + (moved - moved.detach())
        first, last = self._ends()
        t = torch.where(value >= 1, last, torch.where(value <= 0, first, t))
        quantile: Tensor = t.to(torch.promote_types(self.alpha.dtype, value.dtype))
        return quantile

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch), differentiable in the ends and in the base's parameters.

        Raises:
            NotImplementedError: The support has a gap, which samples cannot cross.
        """
        if torch.is_grad_enabled() and not self.has_rsample:
            raise NotImplementedError("rsample needs a support of one interval: use sample")
        shape = self._extended_shape(sample_shape)
        uniform = torch.rand(shape, dtype=self._log_mass.dtype, device=self._log_mass.device)
        return self._rounded(self.icdf(uniform))

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        nodes, weights = self._rule(_NODES)
        log_p = self.log_prob(nodes)
        # The derivative of 0 log 0 would be infinite.
        return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0).to(self.alpha.dtype)

    def _rule(self, order: int, cuts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return float64 nodes and weights (Q, *batch), `order` of them between two cuts."""
        cuts = self._find_cuts() if cuts is None else cuts
        nodes, weights = self._between(order, cuts)
        weights = weights * self._density(nodes)
        return nodes, weights / weights.sum(0)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$."""
        require_integer("order", order, 1)
        nodes, weights = self._rule(max(_NODES, order // 2))
        return nodes.to(self.alpha.dtype), weights.to(self.alpha.dtype)

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if not isinstance(psi, Basis):
            return super()._quadrature_expect(psi, order)
        if psi.effective_support is None:
            nodes, weights = self._rule(max(_NODES, order // 2), self._with_breaks(psi))
            means: Tensor = (weights.unsqueeze(-1) * psi(nodes)).sum(0)
            return means.to(self.alpha.dtype)
        # Each function where it is not negligible, with cuts of its own.
        low, high = (self._aligned(x) for x in psi.effective_support)
        shares = self._aligned(self.low.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0])).unsqueeze(1)
        cuts = _join(self._with_breaks(psi).unsqueeze(1), low + shares * (high - low))
        cuts = _clamp(cuts, low, high)
        nodes, weights = self._between(_NODES, cuts)
        weights = weights * self._density(nodes)
        values = psi.own(nodes.movedim(1, -1))
        return (weights.movedim(1, -1) * values).sum(0).to(self.alpha.dtype)

    def _with_breaks(self, psi: Basis) -> Tensor:
        """Return the cuts (J, *batch) with those of a basis."""
        cuts = self._find_cuts()
        return cuts if psi.breaks is None else _join(cuts, self._aligned(psi.breaks))

    def _aligned(self, x: Tensor) -> Tensor:
        """Return numbers (N,) as (N, *ones), with an axis for each one of the batch."""
        return x.to(self._log_mass).reshape(-1, *(1,) * self.alpha.dim())

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        self.escort(beta)
        nodes, weights = self._rule(_FINE, self._with_breaks(Stack(phi, psi)))
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        covariance = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
        return covariance.to(self.alpha.dtype)


def _coordinate(x: Tensor, part: Tensor) -> Tensor:
    """Return the variable of `graded` on a panel at x in [-1, 1] on one of its parts."""
    return (x + 1 + 2 * part) / _PARTS - 1


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
