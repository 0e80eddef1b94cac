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
from ..numerics.validation import (
    attributes,
    differentiable_once,
    in_float64,
    map_tensors,
    require,
    require_integer,
    without_derivative,
)
from ..supports import RealLine
from .base import SparseDistribution, select_batch
from .beta_gaussian import BetaGaussian
from .elliptical import MultivariateNormal
from .kernel_family import KernelDistribution
from .line import DoubleExponential
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
_PIECE_NODES, _FINE = 80, 512
# A log density beyond this, positive or negative, counts as zero density.
_LARGEST_LOG = 640.0
# How much of the mass a rule may miss; the lowest order that misses no more.
_LOST, _LEAST_ORDER = 1e-3, 4
# Subintervals of the range of a density for integrals that involve other densities.
_SUBINTERVALS = 32


def torch_name(p: Distribution) -> str | None:
    """Return the name of the class if it is one of torch's or Pyro's, else None."""
    name = type(p).__name__
    for module in (torch.distributions, pyro.distributions):
        if getattr(module, name, None) is type(p):
            return name
    return None


def is_discrete(p: Distribution) -> bool:
    """Return whether a distribution has probabilities rather than a density."""
    if isinstance(p, SparseDistribution):
        return bool(p.has_enumerate_support)  # its support may be expensive
    support: Any
    try:
        support = type(p).support
        return bool(support.is_discrete)
    except (AttributeError, NotImplementedError):
        support = p.support
        return bool(support.is_discrete)


def dtype_of(p: Distribution) -> torch.dtype:
    """Return the floating-point type of a distribution's parameters."""
    if isinstance(p, SparseDistribution):
        return p.alpha.dtype
    dtype: torch.dtype = _options(p).get("dtype", torch.get_default_dtype())
    return dtype


def _options(p: Distribution) -> dict[str, Any]:
    """Return dtype and device of the first floating-point tensor, empty if there is none."""
    held = attributes(p).values()
    for value in held:
        if isinstance(value, Tensor) and value.is_floating_point():
            return {"dtype": value.dtype, "device": value.device}
    return next((_options(value) for value in held if isinstance(value, Distribution)), {})


def wrap(p: Any) -> SparseDistribution:
    """Return a continuous distribution as a density of this package.

    Raises:
        ValueError: A discrete distribution.
    """
    if isinstance(p, SparseDistribution):
        return p
    if is_discrete(p):
        raise ValueError(f"a distribution must be continuous to have a density, got {p}")
    name = torch_name(p)
    if name in ("Normal", "Laplace"):
        return (Normal if name == "Normal" else Laplace)._of(p.loc, p.scale)
    if name == "MultivariateNormal":
        return MultivariateNormal(p.loc, scale_tril=p.scale_tril, validate_args=False)
    if name == "LowRankMultivariateNormal":
        return MultivariateNormal(p.loc, p.covariance_matrix, validate_args=False)
    if isinstance(p, Independent) and len(p.event_shape) == 1:
        base: Any = p.base_dist
        if torch_name(base) == "Normal" or type(base) is Normal:
            scale_tril = base.scale.diag_embed()
            return MultivariateNormal(base.loc, scale_tril=scale_tril, validate_args=False)
    return TorchDensity(p) if p.event_shape else TorchUnivariate(p)


def to_float64(p: Any) -> Any:
    """Return the density with its parameters in float64 and without validation.

    Args:
        p: A density of this package or of torch, or `Independent` ones.
    """
    if isinstance(p, Independent) and not isinstance(wrap(p), MultivariateNormal):
        return Independent(
            to_float64(p.base_dist), p.reinterpreted_batch_ndims, validate_args=False
        )
    p = wrap(p)
    if type(p) in (Normal, Laplace):
        new = p._with_parameters(p.batch_shape, lambda x, event: x.double())
        new._validate_args = False
        return new
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
    """Return whether every density of the batch is positive on the whole line."""
    if isinstance(p, TorchUnivariate):
        return p.ends == (None, None)
    return isinstance(p.support, RealLine)


def intervals_of(p: Any) -> Tensor:
    """Return the support of a univariate density as intervals (*batch, J, 2)."""
    support: Any = p if isinstance(p, TorchUnivariate) else p.support
    intervals: Tensor = support.intervals
    return intervals


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

    Less than a rounding error of the mass lies outside.
    """
    if (own := getattr(p, "_cuts", None)) is not None:
        cuts: Tensor = own()
        return cuts
    ends = intervals_of(p).flatten(-2)
    if isinstance(p, KernelDistribution) and bool((p.alpha > 1).any()):
        # Ends that are roots have no derivatives. First ones of integrals need them only where a
        # density jumps, as a uniform escort does.
        limit = without_derivative if bool(p.alpha.isinf().any()) else differentiable_once
        ends = ends + 0 * limit(p.weights).sum(-1, keepdim=True)
    nodes = p.quadrature()[0].detach()
    inner = nodes[:: max(1, len(nodes) // 32)].movedim(0, -1)
    return torch.cat([torch.where(ends.isfinite(), ends, math.nan), inner.to(ends)], -1)


class TorchDensity(SparseDistribution):
    """A continuous distribution of torch with the interface of this package.

    Off the support `log_prob` is -inf with zero gradient, whatever torch returns there.

    Args:
        base: The distribution (*batch); `expand` does not change it.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, base: Distribution) -> None:
        self._sampler: Any = map_tensors(base, lambda x: x, _validate_args=False)
        # Torch's univariate formulas are inaccurate in float32. Classes of users are not converted.
        double = not base.event_shape and torch_name(base) is not None
        self.base: Any = map_tensors(self._sampler, in_float64) if double else self._sampler
        self.alpha = torch.ones(base.batch_shape, **_options(self.base))
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base})"

    def _select(self, shape: Size, take: Callable[[Tensor, Size], Tensor]) -> "TorchDensity":
        part = type(self)(select_batch(self._expanded(), shape, take))
        t = self._inside().expand(self.batch_shape + self.event_shape)
        found, log_p = part.log_prob(take(t, self.event_shape)), take(self.log_prob(t), Size())
        same = torch.isclose(found, log_p, equal_nan=True)
        require(same, type(self.base).__name__, "determined by its parameters", self.base)
        return part

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
        """Return the log density; -inf with zero gradient off the support."""
        inside, log_p = self._evaluate(value)
        if not torch.is_grad_enabled():
            return torch.where(inside, log_p, -math.inf)
        # At an end of the support it may be infinite, with undefined derivatives.
        finite = log_p.isfinite()
        density = self.base.log_prob(self._move_inside(value, inside & finite))
        return torch.where(inside, torch.where(finite, density, log_p), -math.inf)

    def _evaluate(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return which values are inside, and log densities without gradient."""
        with torch.no_grad():
            inside = self.base.support.check(value)
            # Some distributions are NaN on a part of the support that they declare.
            log_p = self.base.log_prob(self._move_inside(value, inside))
            return inside, log_p.nan_to_num(-math.inf, math.inf, -math.inf)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch, *event)."""
        drawn: Tensor = self._expanded().sample(sample_shape)
        return drawn

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch, *event) with torch's derivatives."""
        drawn: Tensor = self._expanded().rsample(sample_shape)
        return drawn

    def _expanded(self) -> Any:
        p = self._sampler  # torch.jit cannot trace some of torch's `expand`
        return p if p.batch_shape == self.batch_shape else p.expand(self.batch_shape)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """Raise NotImplementedError: only univariate distributions of torch have a rule."""
        raise NotImplementedError(f"{type(self.base).__name__} has no quadrature rule")

    def _move_inside(self, value: Tensor, inside: Tensor) -> Tensor:
        """Replace values outside the support by a location inside."""
        inside = inside.reshape((*inside.shape, *(1,) * len(self.event_shape)))
        return torch.where(inside, value, self._inside())

    def _inside(self) -> Tensor:
        """Return a location in the support (*batch, *event)."""
        known = self._known("mean")
        return self.alpha.new_zeros(self.event_shape) if known is None else known.detach()

    def _known(self, name: str, *arguments: Tensor) -> Tensor | None:
        """Return a property or the value of a method of `base`, None if it is not implemented."""
        try:
            member: Any = getattr(self.base, name)
            value: Tensor = member(*arguments) if arguments else member
            return value
        except (AttributeError, NotImplementedError):
            return None

    def _required(self, name: str, *arguments: Tensor) -> Tensor:
        value = self._known(name, *arguments)
        if value is None:
            raise NotImplementedError(f"{type(self.base).__name__} has no {name}")
        return value


class TorchUnivariate(TorchDensity):
    """A continuous univariate distribution of torch, whose density should have one peak.

    Results for classes of torch and Pyro are float64. `cdf` and `icdf` need torch's `cdf`.

    Args:
        base: The distribution (*batch).
    """

    @property
    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        """Lower and upper end of the support (*batch), None where there is none."""

        def end(name: str) -> Tensor | None:
            bound = getattr(self.base.support, name, None)
            return None if bound is None else bound * torch.ones_like(self.alpha)

        return end("lower_bound"), end("upper_bound")

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

    def _coordinate(self) -> DoubleExponential:
        with torch.no_grad():
            centre = self._inside()
            half = torch.full_like(centre, 0.5)
            for known in (self._known("mode"), self._known("icdf", half), self._known("mean")):
                if known is not None:
                    within = known.isfinite() & self.base.support.check(known)
                    centre = torch.where(within, known, centre)
            # Without a variance, half the width of the uniform density of the same height, or less
            # where the log density is more curved.
            top = self.base.log_prob(centre)
            spread = (0.5 * torch.exp(-top)).clamp(1e-9, 1e9)
            if self.ends == (None, None):
                step = spread / 64
                fall = top - (self.base.log_prob(centre + torch.stack([-step, step]))).amin(0)
                curved = step / (2 * fall).sqrt()
                spread = torch.where(curved < spread, curved, spread)
            known = self._known("stddev")
            if known is not None:
                spread = torch.where(known.isfinite() & (known > 0), known, spread)
        return DoubleExponential(*self.ends, centre, spread)

    def _main_interval(self, coordinate: DoubleExponential) -> tuple[Tensor, Tensor]:
        """Return the coordinates (*batch) between which the mass lies."""
        limit, count = coordinate.limit, 64
        share = self._steps(-1.0, count)
        y = limit * share
        with torch.no_grad():
            t, slope = coordinate.locations(y)
            inside, log_p = self._evaluate(t)
            height = torch.where(inside & (log_p < math.inf), log_p + slope.log(), -math.inf)
            matters = height > height.amax(0) - _LARGEST_LOG / 8
            step = 2 * limit / count
            first = torch.where(matters, y, limit).amin(0) - step
            last = torch.where(matters, y, -limit).amax(0) + step
        return torch.maximum(first, -limit), torch.minimum(last, limit)

    def _steps(self, start: float, count: int) -> Tensor:
        """Return count + 1 equidistant numbers from `start` to 1, (count + 1, *ones)."""
        dtype, device = self.alpha.dtype, self.alpha.device
        steps = torch.linspace(start, 1, count + 1, dtype=dtype, device=device)
        return steps.reshape(-1, *(1,) * self.alpha.dim())

    def _grid(self, coordinate: DoubleExponential, count: int) -> tuple[Tensor, Tensor]:
        """Return count + 1 equidistant coordinates (count + 1, *batch) and their distance."""
        first, last = self._main_interval(coordinate)
        share = self._steps(0.0, count)
        y = first + (last - first) * share
        return y, (last - first) / count

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        coordinate = self._coordinate()
        y, _ = self._grid(coordinate, _SUBINTERVALS)
        return coordinate.locations(y)[0].movedim(0, -1)

    def _weighted_nodes(
        self, coordinate: DoubleExponential, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return locations at y (Q, ...), and the weights times the density of y."""
        t, slope = coordinate.locations(y)
        # A density may be infinite at an end, and its derivative infinite where it underflows.
        inside, log_p = self._evaluate(t)
        positive = inside & (log_p.abs() < _LARGEST_LOG)
        t = self._move_inside(t, positive)
        weights = weights * slope * torch.exp(self.base.log_prob(t))
        return t, torch.where(positive, weights, 0.0)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights, (4 order + 1, *batch), with $\sum_q w_q g(t_q) \to E_p[g]$.

        Raises:
            ValueError: The weights do not sum to one, or `order` is not positive.
        """
        require_integer("order", order, 1)
        coordinate = self._coordinate()
        y, step = self._grid(coordinate, 4 * max(order, _LEAST_ORDER))
        nodes, weights = self._weighted_nodes(coordinate, y, step)
        mass = weights.sum(0)
        rule = "a density on the line whose mass at these nodes is 1"
        require((mass - 1).abs() < _LOST, type(self.base).__name__, rule, mass)
        return nodes, weights / mass

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function.

        Raises:
            NotImplementedError: Torch does not implement it.
        """
        inside = self.base.support.check(value)
        below = self._required("cdf", self._move_inside(value, inside))
        return torch.where(inside, below, (value > self._inside()).to(below.dtype))

    @property
    def has_cdf(self) -> bool:
        """Whether torch implements the distribution function."""
        with torch.no_grad():
            return self._known("cdf", self._inside()) is not None

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles, by root finding if torch implements only `cdf`."""
        value = value * torch.ones_like(self.alpha)
        if (known := self._known("icdf", value)) is not None:
            return known
        coordinate = self._coordinate()
        end = coordinate.limit * torch.ones_like(value)

        def excess(t: Tensor) -> Tensor:
            return self.cdf(t) - value

        y = increasing_root(lambda y: excess(coordinate.locations(y)[0]), -end, end)
        t = attach_root_gradient(coordinate.locations(y)[0], excess, self.prob)
        low, high = self.intervals[..., 0, :].unbind(-1)
        return torch.where(value <= 0, low, torch.where(value >= 1, high, t))

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if isinstance(psi, Basis) and torch_name(self.base) == "Uniform":
            return self._uniform().expect(psi, order)
        if isinstance(psi, Basis) and psi.effective_support is not None:
            return self._expect_between_cuts(psi)
        if not isinstance(psi, Fourier):
            return super()._quadrature_expect(psi, order)
        terms = self._weighted_values(psi, *self.quadrature(_FINE))
        # Every other node is a rule of about the square root of the error.
        means, rough = terms.sum(0), 2 * terms[::2].sum(0)
        fits = (rough - means).abs() < 1e-4
        require(fits, "frequencies", f"low enough to integrate {self}", psi.frequencies)
        return means

    def _uniform(self) -> BetaGaussian:
        """Return a uniform distribution as the class that has closed forms."""
        lower, upper = self.intervals[..., 0, :].unbind(-1)
        return BetaGaussian((lower + upper) / 2, (upper - lower) / 2, math.inf, validate_args=False)

    def _expect_between_cuts(self, psi: Basis) -> Tensor:
        """Integrate each function where it is not negligible, cut where it is not smooth."""
        coordinate, ones = self._coordinate(), (1,) * self.alpha.dim()
        first, last = self._main_interval(coordinate)

        def locate(t: Tensor) -> Tensor:
            y = coordinate.onto(t.reshape(*t.shape, *ones).to(self.alpha))
            return torch.minimum(torch.maximum(y, first), last)

        low, high = (locate(end) for end in psi.effective_support or ())
        cuts = [low]
        if psi.breaks is not None:
            inner = locate(psi.breaks.unsqueeze(-1))
            cuts += torch.minimum(torch.maximum(inner, low), high).unbind()
        x, rule = (
            v.reshape(-1, *(1,) * low.dim()) for v in gauss_legendre(_PIECE_NODES, self.alpha)
        )
        means = torch.zeros_like(low).movedim(0, -1)
        for a, b in pairwise([*cuts, high]):
            half = (b - a) / 2
            nodes, weights = self._weighted_nodes(coordinate, a + half * (1 + x), half * rule)
            values = psi.own(nodes.movedim(1, -1))
            means = means + (weights.movedim(1, -1) * values).sum(0)
        return means

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        if torch_name(self.base) == "Uniform":
            return self._uniform().generalized_covariance(phi, psi, 1.0)
        nodes, weights = self.quadrature(_FINE)
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
