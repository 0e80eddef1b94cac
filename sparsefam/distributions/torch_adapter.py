"""Give torch's continuous distributions the interface of the densities in this package."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import pyro.distributions
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Independent, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis, Fourier
from ..numerics.quadrature import gauss_legendre
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import attributes, copied, require, without_derivative
from ..supports import RealLine
from .base import SparseDistribution
from .beta_gaussian import BetaGaussian
from .elliptical import MultivariateNormal
from .kernel_family import KernelDistribution
from .normal import Laplace, Normal
from .univariate import SymmetricDistribution

__all__ = [
    "TorchDensity",
    "TorchUnivariate",
    "cuts_of",
    "dtype_of",
    "intervals_of",
    "is_discrete",
    "is_unbounded",
    "tail_of",
    "to_float64",
    "torch_name",
    "wrap",
]

# Gauss-Legendre nodes between two cuts of a basis; order of the trapezoidal rule for waves and
# products of two bases.
_PART, _FINE = 80, 512
# A log density beyond this, positive or negative, counts as zero density.
_FAINT = 640.0
# How much of a mass of one a quadrature rule may miss, and the lowest order that gets so far.
_LOST, _FEWEST = 0.02, 4
# Subintervals into which the range of a density is cut for integrals that involve other densities.
_PIECES = 16


def torch_name(p: Distribution) -> str | None:
    """Return the name of a class of torch or Pyro, and None for a user's own class."""
    name = type(p).__name__
    for module in (torch.distributions, pyro.distributions):
        if getattr(module, name, None) is type(p):
            return name
    return None


def is_discrete(p: Distribution) -> bool:
    """Whether a distribution has probabilities rather than a density."""
    if isinstance(p, SparseDistribution):
        return bool(p.has_enumerate_support)  # its support may be expensive
    try:
        declared: Any = type(p).support
        return bool(declared.is_discrete)
    except (AttributeError, NotImplementedError):
        support: Any = p.support
        return bool(support.is_discrete)


def dtype_of(p: Distribution) -> torch.dtype:
    """Return the floating-point type of a distribution's parameters."""
    if isinstance(p, SparseDistribution):
        return p.alpha.dtype
    found: torch.dtype = _options(p).get("dtype", torch.get_default_dtype())
    return found


def _options(p: Distribution) -> dict[str, Any]:
    """Type and device of the first parameter; empty for a distribution without parameters."""
    held = attributes(p).values()
    for value in held:
        if isinstance(value, Tensor) and value.is_floating_point():
            return {"dtype": value.dtype, "device": value.device}
    for value in held:
        if isinstance(value, Distribution):
            return _options(value)
    return {}


def wrap(p: Any) -> SparseDistribution:
    """Return the same distribution as a density of this package, by its own class if there is one.

    Raises:
        ValueError: A discrete distribution.
    """
    if isinstance(p, SparseDistribution):
        return p
    if is_discrete(p):
        raise ValueError(f"a distribution must be continuous to have a density, got {p}")
    name = torch_name(p)
    if name == "Normal":
        return Normal(p.loc, p.scale, validate_args=False)
    if name == "Laplace":
        return Laplace(p.loc, p.scale, validate_args=False)
    if name == "MultivariateNormal":
        return MultivariateNormal(p.loc, scale_tril=p.scale_tril, validate_args=False)
    if name == "LowRankMultivariateNormal":
        return MultivariateNormal(p.loc, p.covariance_matrix, validate_args=False)
    if isinstance(p, Independent) and len(p.event_shape) == 1:
        base: Any = p.base_dist
        if torch_name(base) == "Normal" or type(base) is Normal:
            return MultivariateNormal(
                base.loc, scale_tril=base.scale.diag_embed(), validate_args=False
            )
    return TorchDensity(p) if p.event_shape else TorchUnivariate(p)


def to_float64(p: Any) -> Any:
    """Return the same density with its parameters in float64 and without validation.

    Escorts of kernel families keep their type.

    Args:
        p: A density of this package or of torch, or `Independent` ones.
    """
    if isinstance(p, Independent) and not isinstance(wrap(p), MultivariateNormal):
        return Independent(
            to_float64(p.base_dist), p.reinterpreted_batch_ndims, validate_args=False
        )
    p = wrap(p)
    if isinstance(p, TorchUnivariate) and torch_name(p.base) == "Uniform":
        return p._uniform()
    if isinstance(p, KernelDistribution):
        return p if p.alpha.dtype == torch.float64 else p.to_float64()
    if (convert := getattr(p, "_to_float64", None)) is not None:
        return convert()
    new = p.expand(p.batch_shape)
    new._validate_args = False
    for name, value in attributes(p).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.double())
    return new


def is_unbounded(p: Any) -> bool:
    """Whether every density of the batch is positive on the whole line."""
    if isinstance(p, TorchUnivariate):
        return p.ends == (None, None)
    return isinstance(p.support, RealLine)


def intervals_of(p: Any) -> Tensor:
    """Return the support of a univariate density as intervals (*batch, J, 2)."""
    found: Tensor = p.intervals if isinstance(p, TorchUnivariate) else p.support.intervals
    return found


def tail_of(p: SparseDistribution, value: Tensor, upper: Tensor) -> Tensor:
    """Return the mass below each value, or above it where `upper`.

    A small mass keeps its relative accuracy under the symmetric densities of this package.
    """
    if isinstance(p, SymmetricDistribution):
        x, inside = p._standardize(value)
        outside = ((value < p.loc) == upper).to(x.dtype)
        return torch.where(inside, p._standard_cdf(torch.where(upper, -x, x)), outside)
    below = p.cdf(value)
    return torch.where(upper, 1 - below, below)


def cuts_of(p: Any) -> Tensor:
    """Return locations (*batch, J), in any order, between which a density is smooth.

    The first and the last leave out no more than a rounding error of the mass.
    """
    if isinstance(p, SymmetricDistribution):
        # Besides the ends and the possible kink in the middle, two that round numbers rarely meet.
        share = p.loc.new_tensor([-1.0, -0.2371, 0.0, 0.2371, 1.0])
        half = p._reach() * p.scale
        return p.loc.unsqueeze(-1) + half.unsqueeze(-1) * share
    if isinstance(p, TorchUnivariate):
        first, last = p.bulk
        share = torch.linspace(0, 1, _PIECES + 1).to(p.alpha)
        y = first + (last - first) * share.reshape(-1, *(1,) * p.alpha.dim())
        return p.coordinate.locations(y)[0].movedim(0, -1)
    if (own := getattr(p, "_cuts", None)) is not None:
        found: Tensor = own()
        return found
    ends = intervals_of(p).flatten(-2)
    if isinstance(p, KernelDistribution) and bool(p.alpha.isinf().any()):
        # A uniform escort jumps at ends whose derivatives are unknown.
        ends = ends + 0 * without_derivative(p.weights).sum(-1, keepdim=True)
    nodes = p.quadrature()[0].detach()
    inner = nodes[:: max(1, len(nodes) // 32)].movedim(0, -1)
    return torch.cat([torch.where(ends.isfinite(), ends, math.nan), inner.to(ends)], -1)


def _unchecked(p: Distribution, double: bool = False) -> Distribution:
    """Return a copy without validation, optionally with its parameters in float64."""
    p = copied(p)
    p._validate_args = False
    for name, value in attributes(p).items():
        if isinstance(value, Distribution):
            setattr(p, name, _unchecked(value, double))
        elif double and isinstance(value, Tensor) and value.is_floating_point():
            setattr(p, name, value.double())
    return p


class TorchDensity(SparseDistribution):
    """A continuous distribution of torch with the interface of this package.

    Off the support `log_prob` is -inf with a zero gradient, whatever torch's own does there.

    Args:
        base: The distribution (*batch); `expand` does not change it.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    # Whether to evaluate a copy with float64 parameters: torch's formulas lose digits of float32.
    _in_float64: ClassVar[bool] = False

    def __init__(self, base: Distribution) -> None:
        self._sampler: Any = _unchecked(base)
        # A user's own class may keep numbers elsewhere than in tensors.
        self.base: Any = _unchecked(base, self._in_float64 and torch_name(base) is not None)
        self.alpha = torch.ones(base.batch_shape, **_options(self.base))
        Distribution.__init__(self, base.batch_shape, base.event_shape, validate_args=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base})"

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The support of `base`."""
        support: Constraint = self.base.support
        return support

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `base` has differentiable samples."""
        return bool(self.base.has_rsample)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event)."""
        return self._required("mean")

    @property
    def variance(self) -> Tensor:
        """Variance (*batch, *event)."""
        return self._required("variance")

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance matrix (*batch, D, D) of a multivariate density."""
        if isinstance(self.base, Independent):
            return self.variance.diag_embed()
        return self._required("covariance_matrix")

    @property
    def mode(self) -> Tensor:
        """Mode (*batch, *event)."""
        return self._required("mode")

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; -inf with zero gradient off the support."""
        inside, found = self._evaluate(value)
        # At an end of the support it may be infinite, with undefined derivatives.
        finite = found.isfinite()
        density = self.base.log_prob(self._moved(value, inside & finite))
        return torch.where(inside, torch.where(finite, density, found), -math.inf)

    def _evaluate(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return which values are inside and their log densities, without gradient."""
        with torch.no_grad():
            inside = self.base.support.check(value)
            # Some claim the whole line as support, and are NaN on a part of it.
            found = self.base.log_prob(self._moved(value, inside))
            return inside, found.nan_to_num(-math.inf, math.inf, -math.inf)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch, *event)."""
        drawn: Tensor = self._expanded().sample(sample_shape)
        return drawn

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch, *event) with torch's derivatives."""
        drawn: Tensor = self._expanded().rsample(sample_shape)
        return drawn

    def _expanded(self) -> Any:
        p = self._sampler  # some of torch's `expand` cannot be traced
        return p if p.batch_shape == self.batch_shape else p.expand(self.batch_shape)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """Raise NotImplementedError: only univariate distributions of torch have a rule."""
        raise NotImplementedError(f"{type(self.base).__name__} has no quadrature rule")

    def _moved(self, value: Tensor, inside: Tensor) -> Tensor:
        """Return the values with those outside replaced by a location in the support."""
        inside = inside.reshape((*inside.shape, *(1,) * len(self.event_shape)))
        return torch.where(inside, value, self._inside())

    def _inside(self) -> Tensor:
        """Return a location in the support (*batch, *event)."""
        known = self._known("mean")
        return self.alpha.new_zeros(self.event_shape) if known is None else known.detach()

    def _known(self, name: str, *arguments: Tensor) -> Tensor | None:
        """Return a property or the value of a method of `base`, None if it is not implemented."""
        try:
            found: Any = getattr(self.base, name)
            value: Tensor = found(*arguments) if arguments else found
            return value
        except (AttributeError, NotImplementedError):
            return None

    def _required(self, name: str, *arguments: Tensor) -> Tensor:
        found = self._known(name, *arguments)
        if found is None:
            raise NotImplementedError(f"{type(self.base).__name__} has no {name}")
        return found


class _Coordinate:
    r"""$t = T(a + b \sinh y)$ with T logistic, exponential or a hyperbolic sine, by the support.

    Whatever the tails of a density and the powers with which it begins at the ends of its support,
    it decays double exponentially in y, so that few nodes integrate it to rounding.

    Args:
        lower: Lower end of the support (*batch); None if there is none.
        upper: Upper end (*batch); None if there is none.
        centre: A location (*batch) inside the support near most of the mass.
        spread: Approximately the standard deviation (*batch).

    References:
        Takahasi and Mori (1974), Double exponential formulas for numerical integration. Publ. Res.
        Inst. Math. Sci. 9.
    """

    reach = 5.0  # all but a rounding error of the mass, and exp(sinh 5) = 1e32 does not overflow

    def __init__(
        self, lower: Tensor | None, upper: Tensor | None, centre: Tensor, spread: Tensor
    ) -> None:
        self.lower, self.upper = lower, upper
        # The integral depends on the ends only, so the other two need no gradient.
        self._centre, self._spread = centre.detach(), spread.detach()
        if centre.dtype != torch.float64:
            self.reach = 4.2
        slope = None
        if lower is not None and upper is not None:
            width = (upper - lower).detach()
            share = ((centre - lower.detach()) / width).clamp(1e-6, 1 - 1e-6)
            self._a, slope = torch.logit(share), spread / width / (share * (1 - share))
        elif lower is not None:
            gap = _positive(centre - lower.detach())
            self._a, slope = gap.log(), spread / gap
        elif upper is not None:
            gap = _positive(upper.detach() - centre)
            self._a, slope = -gap.log(), spread / gap
        else:
            self._a = torch.zeros_like(centre)
        self._b = torch.ones_like(centre) if slope is None else slope.clamp(max=2.0)

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return t and dt/dy at y (..., *batch)."""
        x, slope = self._a + self._b * y.sinh(), self._b * y.cosh()
        if self.lower is not None and self.upper is not None:
            width, share = self.upper - self.lower, torch.sigmoid(x)
            return self.lower + width * share, width * share * torch.sigmoid(-x) * slope
        if self.lower is not None:
            return self.lower + x.exp(), x.exp() * slope
        if self.upper is not None:
            return self.upper - (-x).exp(), (-x).exp() * slope
        return self._centre + self._spread * x.sinh(), self._spread * x.cosh() * slope

    def of(self, t: Tensor) -> Tensor:
        """Return y at t (..., *batch), clamped to the range."""
        if self.lower is not None and self.upper is not None:
            share = (t - self.lower) / (self.upper - self.lower)
            info = torch.finfo(t.dtype)
            x = torch.logit(share.clamp(info.tiny, 1 - info.eps / 2))
        elif self.lower is not None:
            x = _positive(t - self.lower).log()
        elif self.upper is not None:
            x = -_positive(self.upper - t).log()
        else:
            x = torch.asinh((t - self._centre) / self._spread)
        return torch.asinh((x - self._a) / self._b).clamp(-self.reach, self.reach)


def _positive(gap: Tensor) -> Tensor:
    """Return the distance to an end, positive also where rounding put the point on the end."""
    return gap.clamp_min(torch.finfo(gap.dtype).tiny)


class TorchUnivariate(TorchDensity):
    """A continuous univariate distribution of torch, whose density should have one peak.

    Classes of torch and Pyro answer in float64. `cdf` and `icdf` need torch's `cdf`.

    Args:
        base: The distribution (*batch).
    """

    _in_float64 = True

    @property
    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        """Lower and upper end of the support (*batch), None where there is none."""
        bounds = (getattr(self.base.support, f"{name}_bound", None) for name in ("lower", "upper"))
        lower, upper = (
            None
            if x is None
            else torch.as_tensor(x, dtype=self.alpha.dtype, device=self.alpha.device).expand(
                self.alpha.shape
            )
            for x in bounds
        )
        return lower, upper

    @property
    def intervals(self) -> Tensor:
        """The support as an interval (*batch, 1, 2)."""
        lower, upper = self.ends
        infinite = torch.full_like(self.alpha, math.inf)
        ends = [-infinite if lower is None else lower, infinite if upper is None else upper]
        return torch.stack(ends, -1).unsqueeze(-2)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch)."""
        known = self._known("mean")
        return self.expect(lambda t: t) if known is None else known

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        known, mean = self._known("variance"), self.mean
        return self.expect(lambda t: (t - mean).square()) if known is None else known

    def _inside(self) -> Tensor:
        lower, upper = (x if x is None else x.detach() for x in self.ends)
        if lower is not None and upper is not None:
            return (lower + upper) / 2
        if lower is not None:
            return lower + lower.abs().clamp_min(1)
        return torch.zeros_like(self.alpha) if upper is None else upper - upper.abs().clamp_min(1)

    @property
    def coordinate(self) -> _Coordinate:
        """The variable of integration."""
        with torch.no_grad():
            centre = self._inside()
            half = torch.full_like(centre, 0.5)
            for known in (self._known("mode"), self._known("icdf", half), self._known("mean")):
                if known is not None:
                    within = known.isfinite() & self.base.support.check(known)
                    centre = torch.where(within, known, centre)
            # Without a variance, half the width of the uniform density of the same height.
            wide = (0.5 * torch.exp(-self.base.log_prob(centre))).clamp(1e-9, 1e9)
            spread = self._known("stddev")
            if spread is not None:
                wide = torch.where(spread.isfinite() & (spread > 0), spread, wide)
        return _Coordinate(*self.ends, centre, wide)

    @property
    def bulk(self) -> tuple[Tensor, Tensor]:
        """First and last value of the coordinate (*batch) between which the mass lies."""
        c, count = self.coordinate, 64
        y = torch.linspace(-c.reach, c.reach, count + 1).to(self.alpha)
        y = y.reshape(-1, *(1,) * self.alpha.dim())
        with torch.no_grad():
            t, slope = c.locations(y)
            inside, found = self._evaluate(t)
            height = torch.where(inside & (found < math.inf), found + slope.log(), -math.inf)
            alive = height > height.amax(0) - _FAINT / 8
            step = 2 * c.reach / count
            first = torch.where(alive, y, c.reach).amin(0) - step
            last = torch.where(alive, y, -c.reach).amax(0) + step
        return first.clamp(min=-c.reach), last.clamp(max=c.reach)

    def _weighted(self, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return locations at y (Q, ...), and the weights times the density in y."""
        t, slope = self.coordinate.locations(y)
        # A density may be infinite on an end, and its slope infinite where it underflows.
        inside, found = self._evaluate(t)
        alive = inside & (found.abs() < _FAINT)
        t = self._moved(t, alive)
        weights = weights * slope * torch.exp(self.base.log_prob(t))
        return t, torch.where(alive, weights, 0.0)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights, both (4 order + 1 >= 17, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        Raises:
            ValueError: The weights do not sum to one, or `order` is not positive.
        """
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}")
        first, last = self.bulk
        count = 4 * max(order, _FEWEST)
        share = torch.linspace(0, 1, count + 1).to(self.alpha)
        y = first + (last - first) * share.reshape(-1, *(1,) * self.alpha.dim())
        nodes, weights = self._weighted(y, (last - first) / count)
        mass = weights.sum(0)
        rule = "a density on the line whose mass at these nodes is 1"
        require((mass - 1).abs() < _LOST, type(self.base).__name__, rule, mass)
        return nodes, weights / mass

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function, where torch has one.

        Raises:
            NotImplementedError: Torch has none.
        """
        inside = self.base.support.check(value)
        found = self._required("cdf", self._moved(value, inside))
        return torch.where(inside, found, (value > self._inside()).to(found.dtype))

    @property
    def has_cdf(self) -> bool:
        """Whether torch has the distribution function."""
        with torch.no_grad():
            return self._known("cdf", self._inside()) is not None

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function, by root finding where torch has only a `cdf`."""
        value = value * torch.ones_like(self.alpha)
        if (known := self._known("icdf", value)) is not None:
            return known
        c, end = self.coordinate, torch.full_like(value, self.coordinate.reach)

        def excess(t: Tensor) -> Tensor:
            return self.cdf(t) - value

        y = increasing_root(lambda y: excess(c.locations(y)[0]), -end, end)
        t = attach_root_gradient(c.locations(y)[0], excess, self.prob)
        low, high = self.intervals[..., 0, :].unbind(-1)
        return torch.where(value <= 0, low, torch.where(value >= 1, high, t))

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if isinstance(psi, Basis) and torch_name(self.base) == "Uniform":
            return self._uniform().expect(psi, order)
        if isinstance(psi, Basis) and psi.effective_support is not None:
            return self._expect_between_cuts(psi)
        if not isinstance(psi, Fourier):
            return super()._quadrature_expect(psi, order)
        weights, values = self._quadrature_values(psi, _FINE)
        found = (weights * values).sum(0)
        # Every other node is a rule, too, with about the root of the error.
        rough = (weights * values)[::2].sum(0) / weights[::2].sum(0)
        fits = (rough - found).abs() < 1e-4
        require(fits, "frequencies", f"low enough to integrate {self}", psi.frequencies)
        return found

    def _uniform(self) -> BetaGaussian:
        """Return a uniform distribution as the class that has closed forms."""
        lower, upper = self.intervals[..., 0, :].unbind(-1)
        return BetaGaussian((lower + upper) / 2, (upper - lower) / 2, math.inf, validate_args=False)

    def _expect_between_cuts(self, psi: Basis) -> Tensor:
        """Integrate each function where it is not zero, cut where it is not smooth."""
        c, ones, (first, last) = self.coordinate, (1,) * self.alpha.dim(), self.bulk
        low, high = (
            torch.minimum(torch.maximum(c.of(x.reshape(-1, *ones).to(self.alpha)), first), last)
            for x in psi.effective_support or ()
        )
        cuts = [low]
        if psi.breaks is not None:
            inner = c.of(psi.breaks.reshape(-1, 1, *ones).to(self.alpha))
            cuts += torch.minimum(torch.maximum(inner, low), high).unbind()
        x, rule = (v.reshape(-1, *(1,) * low.dim()) for v in gauss_legendre(_PART, self.alpha))
        found = torch.zeros_like(low).movedim(0, -1)
        for a, b in pairwise([*cuts, high]):
            half = (b - a) / 2
            nodes, weights = self._weighted(a + half * (1 + x), half * rule)
            values = psi.own(nodes.movedim(1, -1))
            found = found + (weights.movedim(1, -1) * values).sum(0)
        return found

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        if torch_name(self.base) == "Uniform":
            return self._uniform().generalized_covariance(phi, psi, 1.0)
        nodes, weights = self.quadrature(_FINE)
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
