"""Densities cut to intervals, whatever their classes."""

import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from .._numerics.modes import branches_allowed
from .._numerics.quadrature import sort_cuts
from .._numerics.validation import require
from ..supports import Interval, IntervalUnion
from ._line.laws import Law, LawBetween
from ._line.panels import Panels, clamp, or_infinite
from ._torch_adapter import TorchUnivariate, exact_base
from ._torch_laws import facts_of
from .base import SparseDistribution
from .beta_gaussian import PowerDistribution
from .location_scale import LocationScale
from .normal import Laplace, Normal
from .univariate import Geometry, Univariate

__all__ = ["Truncated"]

# Bases with one peak.
_PEAKED = (PowerDistribution, Normal, Laplace, LocationScale)
# Share of the mass that may lie within a rounding error of an end where the density is steep.
_LOST = 1e-8
# By how much the mass between the ends may differ from that of the base's distribution function.
_MISSED = 1e-3


class Truncated(Univariate):
    r"""A univariate density cut to an interval.

    $$p(t) = \frac{q(t)}{\int_a^b q}\,[a \le t \le b]$$

    All is computed in float64 and is accurate in far tails, too. Masses and quantiles have closed
    forms for torch's and this package's Normal, Laplace and Uniform, and torch's Exponential,
    HalfNormal, LogNormal and Pareto. Other bases need a
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

    _members = ("base",)
    _tensors = {"_integrated_log_mass": 0, "_region": 2}

    def __init__(
        self,
        base: Distribution,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        self.base, self.low, self.high = exact_base(base, low=low, high=high)
        law = self._base_law
        self._last_law: LawBetween | None = None
        self._integrated_log_mass: Tensor | None = None
        self._region: Any = None
        checks: Any = Distribution._validate_args if validate_args is None else validate_args
        # Not the constructor of Univariate, which integrates densities.
        if law is not None and (not checks or self._is_surely_valid(law)):
            # With a closed form, and ends that need no check: quick.
            SparseDistribution.__init__(self, self.low.shape, validate_args=False)
            self._validate_args = checks
            return
        SparseDistribution.__init__(self, self.low.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
        if law is None:
            # First where the base matters between the ends, then its mass there, with a graph.
            with torch.no_grad():
                self._region = self._unnormalized_panels().search()
            self._integrated_log_mass = self._unnormalized_panels().integral()
        if self._validate_args:
            rule = f"ends between which {type(base).__name__} has a mass that float64 resolves"
            require(self._is_resolved(), "low and high", rule, (self.low, self.high))

    @property
    def _base_law(self) -> Law | None:
        """The closed forms of the base; None if it is integrated."""
        base: Univariate = self.base
        return base._law

    @property
    def _log_mass(self) -> Tensor:
        """Logarithm of the mass between the ends (*batch) in float64.

        It has a closed form, or is integrated by the constructor if the base has no law.
        """
        if self._integrated_log_mass is not None:
            return self._integrated_log_mass
        return cast(LawBetween, self._law_between).log_mass

    @property
    def _law_between(self) -> LawBetween | None:
        """The law between the ends, None if the base has no law.

        It is stored if it is constant, so that methods share its mass.
        """
        if (law := self._base_law) is None:
            return None
        new, last = LawBetween(law, self.low, self.high), self._last_law
        if last is not None and new.is_same(last):
            return last
        self._last_law = new if new.is_constant else None
        return new

    def geometry(self) -> Geometry:
        """Return the ends of the support, which may be infinite tensors."""
        return Geometry(*(x.to(self._like.dtype) for x in self._ends()))

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends (*batch) in float64, moved into the support of the base."""
        if (law := self._base_law) is not None:
            return law.ends(self.low.double(), self.high.double())
        ends = sort_cuts(self.base._intervals().flatten(-2))
        low, high = (clamp(x.to(ends), ends[0], ends[-1]) for x in (self.low, self.high))
        return low, high

    @property
    def _panels(self) -> Panels:
        panels = self._unnormalized_panels()
        panels.log_mass = self._log_mass
        return panels

    def _unnormalized_panels(self) -> Panels:
        """Return the panels of the base between the ends, from which the log mass is integrated."""
        # In the coordinate of the base powers at its ends and heavy tails are resolved.
        base: Univariate = self.base
        return base._panels.restricted(*self._ends(), self._region)

    def _is_surely_valid(self, law: Law) -> bool:
        """Return whether a few operations show that the ends need no other check.

        They compare rounding errors of the ends with the scale of the law; false is no verdict.
        """
        if not branches_allowed(self._like):
            return False
        with torch.no_grad():
            return bool(law.is_resolved(self.low.double(), self.high.double(), _LOST).all())

    @torch.no_grad()
    def _is_resolved(self) -> Tensor:
        """Return whether float64 resolves the mass between the ends (*batch).

        There must be mass, little of it within a rounding error of an end where the density is
        steep, or beyond the range of the coordinate, and about as much as the distribution function
        of a base from torch says.
        """
        low, high = self._ends()
        law = self._base_law
        # Ends that are the same number for the law have no mass between them.
        apart = low < high if law is None else torch.lt(*law.standardize(low, high)[:2])
        ends = torch.stack([low, high])
        # The next numbers towards the other end, one rounding error inside.
        beside = ends.nextafter(ends.flip(0))
        change = (self.base.log_prob(beside) - self.base.log_prob(ends)).abs()
        log_p = self.base.log_prob(ends)
        density = torch.where(log_p.isfinite(), log_p - self._log_mass, -math.inf).exp()
        lost = density * (beside - ends).abs()
        resolved: Tensor = apart & ~((change > _LOST) & (lost > _LOST)).any(0)
        resolved = resolved & self._log_mass.isfinite()
        if law is not None or not isinstance(self.base, TorchUnivariate):
            return resolved
        if (below := self.base._by_torch("cdf", ends)) is not None:
            missed = (below.diff(dim=0).squeeze(0) - self._log_mass.exp()).abs()
            resolved = resolved & ~(missed > _MISSED)
        # In the variable of `onto_line` the density decays exponentially beyond the outermost cuts.
        # The mass there is height / rate, with the rate from a point one unit farther inwards.
        panels = self._panels
        line: Any = panels.line
        cuts, bounds = panels.cuts(), torch.stack(self.base._ends())
        first = line.onto_line(line.locations(torch.stack([cuts[0], cuts[-1]]))[0])
        inwards = first.new_tensor([1.0, -1.0]).reshape(-1, *(1,) * self._like.dim())
        t, slope = line.from_line(torch.stack([first, first + inwards]))
        height, inner = (panels.density(t) * slope).unbind()
        beyond = height / (inner / height).log().clamp(1e-3, 1.0)
        resolved = resolved & ~((ends == bounds) & (beyond > _LOST)).any(0)
        return resolved

    @property
    def log_mass(self) -> Tensor:
        """Logarithm of the mass of the base between the ends (*batch)."""
        return self._log_mass.to(self._like.dtype)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The part of the base's support between the ends, which moves with both."""
        intervals = self.base._intervals().to(self._like.dtype)
        intervals = clamp(intervals, self.low[..., None, None], self.high[..., None, None])
        # Under vmap and in compiled graphs values cannot be read, and any interval counts as
        # finite: then only bijections differ.
        readable = branches_allowed(intervals)
        if intervals.shape[-2] == 1 and (not readable or bool(intervals.isfinite().all())):
            return Interval(intervals[..., 0, 0], intervals[..., 0, 1], self.log_prob)
        empty = intervals.diff(dim=-1) <= 0
        return IntervalUnion.merged(torch.where(empty, math.nan, intervals), self.log_prob)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: if the support is one interval."""
        is_whole = self._base_law is not None or self.base._intervals().shape[-2] == 1
        return is_whole or bool(self._intervals()[..., 1:, :].isnan().all())

    def _moment(self, n: int, terms: Tensor) -> Tensor:
        """Return a moment of order n, the sum of its terms, infinite or NaN by tail indices."""
        base = self.base
        indices = base.tail_indices() if isinstance(base, TorchUnivariate) else None
        if indices is None:
            return super()._moment(n, terms)
        # A tail that is cut has all moments.
        heavy = [end.isinf() & (n >= x) for end, x in zip(self._ends(), indices, strict=True)]
        return or_infinite(terms.sum(0), n, heavy)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if there is none."""
        law = self._base_law
        if law is None or not law.has_moments:
            return super().mean
        return law.moments(*self._ends())[0].to(self._like.dtype)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if there is none."""
        law = self._base_law
        if law is None or not law.has_moments:
            return super().variance
        return law.moments(*self._ends())[1].to(self._like.dtype)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch); without gradient if it is searched."""
        base = self.base
        if isinstance(base, _PEAKED) or facts_of(getattr(base, "base", base)).has_mode:
            # Of a base with one peak it is the location between the ends next to that.
            return clamp(base.mode, *self._ends()).to(self._like.dtype)
        return super().mode

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch)."""
        law = self._base_law
        if law is None or not law.has_moments:
            return super().entropy()
        return law.entropy(*self._ends()).to(self._like.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        self._check_value(value)
        law = self._base_law
        if law is not None and law.is_on_line:
            # An infinite value lies outside, also of infinite ends: its distance to them is NaN.
            inside = torch.minimum(value - self.low, self.high - value) >= 0
            log_p = law.log_density(torch.where(inside, value.double(), law.loc))
        else:
            inside = (self.low <= value) & (value <= self.high)
            # Moved between the ends, where derivatives exist; results outside are not selected.
            log_p = self.base.log_prob(torch.clamp(value, self.low.detach(), self.high.detach()))
            inside = inside & (log_p > -math.inf)
        log_p = torch.where(inside, log_p - self._log_mass, -math.inf)
        return log_p.to(torch.promote_types(self._like.dtype, value.dtype))

    @property
    def _has_masses(self) -> bool:
        return self._base_law is not None

    def _log_mass_between(self, start: Tensor, end: Tensor) -> Tensor:
        if (law := self._base_law) is None:
            return super()._log_mass_between(start, end)
        return law.log_fraction(*self._ends(), start, end)

    def _inverse(self, q: Tensor) -> Tensor:
        between = self._law_between
        return super()._inverse(q) if between is None else between.icdf(q)

    def _rounded(self, t: Tensor) -> Tensor:
        # The densities of laws are positive at every finite upper end: no location is in danger.
        return super()._rounded(t) if self._base_law is None else t.to(self._like.dtype)
