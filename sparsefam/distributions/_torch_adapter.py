"""Give torch's continuous distributions the interface of the densities in this package."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import (
    ComposeTransform,
    Distribution,
    Gamma,
    Independent,
    Kumaraswamy,
    LowRankMultivariateNormal,
    TransformedDistribution,
    Uniform,
    constraints,
)
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

from .._choice import register_expect
from .._numerics.modes import branches_allowed, values_are_readable
from .._numerics.validation import broadcast_arguments, in_float64, map_tensors, require
from ..bases import Basis, Fourier
from ._line.coordinates import Coordinate, DoubleExponential
from ._line.laws import Law
from ._line.panels import Panels, or_infinite
from ._torch_laws import facts_of, torch_class
from .base import SparseDistribution, select_batch, selection
from .beta_gaussian import BetaGaussian
from .elliptical import MultivariateNormal
from .normal import Laplace, Normal
from .univariate import Geometry, Univariate

__all__ = [
    "WRAPPERS",
    "TorchDensity",
    "TorchMultivariate",
    "TorchUnivariate",
    "dtype_of",
    "exact_base",
    "is_discrete",
    "to_float64",
    "wrap",
]

# Twice the nodes between two cuts for functions, and for waves.
_FINE, _WAVES = 64, 512
# A mass below which torch's distribution function, and 1 less it, are not accurate enough.
_SMALL = 1e-3


def _with_parameters(prototype: Normal | Laplace, p: Any) -> SparseDistribution:
    """Return a copy of a density with loc and scale of torch's density p, without checks."""
    alpha = torch.ones_like(p.loc)
    return prototype._replace(p.batch_shape, loc=p.loc, scale=p.scale, alpha=alpha)


# Densities of this package by classes of torch that they take the place of.
WRAPPERS: dict[type | None, Callable[[Any], SparseDistribution]] = {
    torch.distributions.Normal: partial(_with_parameters, Normal(0.0, 1.0, validate_args=False)),
    torch.distributions.Laplace: partial(_with_parameters, Laplace(0.0, 1.0, validate_args=False)),
    torch.distributions.MultivariateNormal: lambda p: MultivariateNormal(
        p.loc, scale_tril=p.scale_tril, validate_args=False
    ),
    LowRankMultivariateNormal: lambda p: MultivariateNormal(
        p.loc, p.covariance_matrix, validate_args=False
    ),
}


def is_discrete(p: Distribution) -> bool:
    """Return whether a distribution has probabilities rather than, or besides, a density."""
    if isinstance(p, SparseDistribution):
        # Its support may be expensive.
        return bool(p.has_enumerate_support) or hasattr(p, "_atoms")
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
        return p._like.dtype
    return _dtype_and_device(p).get("dtype", torch.get_default_dtype())


def _dtype_and_device(p: Distribution) -> dict[str, Any]:
    """Return dtype and device, by name, of the first floating-point tensor of a distribution.

    Distributions that it holds come last. The result is empty if there is no tensor.
    """
    held = vars(p).values()
    for value in held:
        if isinstance(value, Tensor) and value.is_floating_point():
            return {"dtype": value.dtype, "device": value.device}
    return next((_dtype_and_device(value) for value in held if isinstance(value, Distribution)), {})


def wrap(p: Any) -> SparseDistribution:
    """Return a continuous distribution as a density of this package.

    Raises:
        ValueError: A discrete distribution.
    """
    if isinstance(p, SparseDistribution):
        return p
    if is_discrete(p):
        raise ValueError(f"a distribution must be continuous to have a density, got {p}")
    if (wrapper := WRAPPERS.get(torch_class(p))) is not None:
        return wrapper(p)
    if isinstance(p, Independent) and len(p.event_shape) == 1:
        base: Any = p.base_dist
        if torch_class(base) is torch.distributions.Normal or type(base) is Normal:
            scale_tril = base.scale.diag_embed()
            return MultivariateNormal(base.loc, scale_tril=scale_tril, validate_args=False)
    return TorchMultivariate(p) if p.event_shape else TorchUnivariate(p)


def to_float64(p: Any) -> Any:
    """Return the density with its parameters in float64 and without validation.

    Args:
        p: A density of this package or of torch, or `Independent` ones.
    """
    if isinstance(p, Independent) and not isinstance(wrap(p), MultivariateNormal):
        return Independent(
            to_float64(p.base_dist), p.reinterpreted_batch_ndims, validate_args=False
        )
    return wrap(p).to_float64()


def exact_base(base: Any, **arguments: Tensor | float) -> tuple[Any, ...]:
    """Return a density of numbers in float64 and arguments, in one batch.

    Args:
        base: The density, of torch or of this package.
        arguments: Numbers and tensors by name, for messages.

    Returns:
        The density in float64, then each argument in the type of `base`, or a longer one.

    Raises:
        ValueError: `base` not a continuous univariate distribution; shapes that do not broadcast.
    """
    if not isinstance(base, Distribution) or base.event_shape or is_discrete(base):
        raise ValueError(f"base must be a continuous univariate distribution, got {base!r}")
    density = wrap(base)
    like = density._like.to(dtype_of(base))
    _, *tensors = broadcast_arguments(base=like, **arguments)
    exact, shape = density.to_float64(), tensors[0].shape
    return exact if exact.batch_shape == shape else exact.expand(shape), *tensors


def _is_transformed(p: Distribution) -> bool:
    """Return whether torch takes the codomain of the last transform for the support.

    The true support, the image of the support of the base, may be smaller.
    """
    inherited: Any = TransformedDistribution.support
    return type(p).support is inherited


def _ends_of(p: Any) -> tuple[Any, Any]:
    """Return the ends of the support of a distribution of numbers, None where there is none."""
    if not _is_transformed(p):
        return _bounds(p.support)
    return _image(ComposeTransform(p.transforms), _ends_of(p.base_dist), dtype_of(p))


def _bounds(support: Any) -> tuple[Any, Any]:
    """Return the lower and upper bound of a constraint of torch, None where it has none."""
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def _image(transform: Any, ends: tuple[Any, Any], dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the ends of the image of an interval.

    Args:
        transform: A transform of torch, which may be composed of others.
        ends: Lower and upper end, numbers or tensors (*batch); None where there is none.
        dtype: Type of ends that are numbers.

    Raises:
        ValueError: A transform that is not bijective, or one that turns intervals up to an end of
            its domain around in a part of the batch.
    """
    if isinstance(transform, ComposeTransform):
        for part in transform.parts:
            ends = _image(part, ends, dtype)
        return ends
    if not transform.bijective:
        raise ValueError(f"transforms must be bijective, got {transform}")
    domain, codomain = _bounds(transform.domain), _bounds(transform.codomain)
    try:
        sign = transform.sign
    except NotImplementedError:
        return codomain
    # The end of a domain has no image in float64, which logits clamp, but a limit.
    at_limit = [x is None or _coincide(x, bound) for x, bound in zip(ends, domain, strict=True)]
    turns = _turns(transform, sign, at_limit[0] != at_limit[1])
    limits = codomain[::-1] if turns else codomain
    low, high = (
        limit if is_limit else transform(torch.as_tensor(end, dtype=dtype))
        for end, is_limit, limit in zip(ends, at_limit, limits, strict=True)
    )
    if turns:
        return high, low
    if isinstance(low, Tensor) and isinstance(high, Tensor):  # signs may differ
        return torch.minimum(low, high), torch.maximum(low, high)
    return low, high


def _turns(transform: Any, sign: Any, has_one_limit: bool) -> bool:
    """Return whether a transform turns an interval around, so that lower ends become upper ones.

    If just one end of the interval is an end of the domain, infinite or not, whose image is a
    limit, the sign decides about which limit. For others with a sign that is a tensor it returns
    False: `_image` sorts the images of both ends, or takes both limits.

    Args:
        transform: The transform, for messages.
        sign: The sign of its slope, a number or (*batch).
        has_one_limit: Whether just one end is an end of the domain.
    """
    if not isinstance(sign, Tensor):
        return sign < 0
    if not has_one_limit:
        return False
    falls = branches_allowed(sign) and bool((sign < 0).all())
    rule = "of one sign in a batch, to turn intervals up to an end of the domain"
    require(falls | (sign > 0), "transforms", rule, transform)
    return falls


def _coincide(end: Any, bound: Any) -> bool:
    """Return whether an end is the bound of a domain, as is assumed of tensors without values."""
    if bound is None or not isinstance(end, Tensor):
        return bound is not None and end == bound
    return not branches_allowed(end) or bool((end == bound).all())


def _has_gamma(p: object) -> bool:
    """Return whether torch's distribution function has no derivative in a concentration.

    It is the incomplete gamma function, also for distributions that transform a Gamma.
    """
    return p is not None and (isinstance(p, Gamma) or _has_gamma(getattr(p, "base_dist", None)))


class TorchDensity(SparseDistribution):
    """A continuous distribution of torch with the interface of this package.

    Off the support `log_prob` is -inf with zero gradient, whatever torch returns there.

    Args:
        base: The distribution (*batch); `expand` does not change it, as torch.jit cannot trace
            `expand` of some of torch's.

    Attributes:
        base: The distribution in float64, if it is one of torch's or Pyro's classes over numbers;
            its batch broadcasts to the batch of this density.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    _tensors = {"_ones": 0}

    def __init__(self, base: Distribution) -> None:
        self._sampler: Any = map_tensors(base, lambda x: x, _validate_args=False)
        # Torch's univariate formulas are inaccurate in float32. Classes of users are not converted.
        double = not base.event_shape and torch_class(base) is not None
        self.base: Any = map_tensors(self._sampler, in_float64) if double else self._sampler
        self._ones = torch.ones(base.batch_shape, **_dtype_and_device(self.base))
        SparseDistribution.__init__(self, base.batch_shape, base.event_shape, False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base})"

    def __getitem__(self, index: Any) -> Self:
        # The parent checks the index; the distribution of torch is indexed apart.
        shape, take = super().__getitem__(index).batch_shape, selection(index)
        new = type(self)(select_batch(self._expanded(), shape, take))
        t = self._inside().expand(self.batch_shape + self.event_shape)
        # Classes of users may depend on objects that the index does not reach.
        indexed, log_p = new.log_prob(take(t, self.event_shape)), take(self.log_prob(t), Size())
        same = torch.isclose(indexed, log_p, equal_nan=True)
        require(same, type(self.base).__name__, "determined by its parameters", self.base)
        return new

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The support of `base`."""
        return self.base.support

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `base` has differentiable samples."""
        return bool(self.base.has_rsample)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; -inf with zero gradient off the support."""
        with torch.no_grad():
            inside = self.support.check(value)
            # Some distributions are NaN on a part of the support that they declare.
            log_p = self.base.log_prob(self._move_inside(value, inside))
            log_p = log_p.nan_to_num(-math.inf, math.inf, -math.inf)
        if not torch.is_grad_enabled():
            return torch.where(inside, log_p, -math.inf)
        # At an end of the support it may be infinite, with undefined derivatives.
        finite = log_p.isfinite()
        density = self.base.log_prob(self._move_inside(value, inside & finite))
        return torch.where(inside, torch.where(finite, density, log_p), -math.inf)

    def _draw(self, sample_shape: Size) -> Tensor:
        return self._expanded().sample(sample_shape)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch, *event) with torch's derivatives."""
        return self._expanded().rsample(sample_shape)

    def _expanded(self) -> Any:
        """Return the distribution as given, with the batch of this density."""
        p = self._sampler
        return p if p.batch_shape == self.batch_shape else p.expand(self.batch_shape)

    def _move_inside(self, value: Tensor, inside: Tensor) -> Tensor:
        """Return values (..., *batch, *event), replaced by a location inside where they are not.

        Args:
            value: The values.
            inside: Whether they are in the support (..., *batch).
        """
        inside = inside.reshape((*inside.shape, *(1,) * len(self.event_shape)))
        return torch.where(inside, value, self._inside())

    def _inside(self) -> Tensor:
        """Return a location in the support (*batch, *event)."""
        mean = self._by_torch("mean")
        return self._like.new_zeros(self.event_shape) if mean is None else mean.detach()

    def _by_torch(self, name: str, *arguments: Tensor, call: bool = False) -> Tensor | None:
        """Return a property of `base`, or the result of a method; None if it is not implemented.

        Args:
            name: Of the property or the method.
            arguments: Of the method; none for a property.
            call: Whether it is a method without arguments.
        """
        try:
            member: Any = getattr(self.base, name)
            return member(*arguments) if arguments or call else member
        except (AttributeError, NotImplementedError):
            return None


class TorchMultivariate(TorchDensity):
    """A continuous distribution of torch over vectors.

    Args:
        base: The distribution (*batch); `expand` does not change it.
    """

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

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """Raise NotImplementedError: only univariate distributions of torch have a rule."""
        raise NotImplementedError(f"{type(self.base).__name__} has no quadrature rule")

    def _required(self, name: str) -> Tensor:
        """Return a property of `base`, or raise NotImplementedError if it has none of this name."""
        value = self._by_torch(name)
        if value is None:
            raise NotImplementedError(f"{type(self.base).__name__} has no {name}")
        return value


class TorchUnivariate(TorchDensity, Univariate):
    """A continuous univariate distribution of torch, whose density should have one peak.

    Results for classes of torch and Pyro are float64. Quadrature replaces formulas that torch
    lacks.

    Args:
        base: The distribution (*batch).
    """

    _least_order = _FINE

    def geometry(self) -> Geometry:
        """Return the ends of the support, without breakpoints."""
        ones = torch.ones_like(self._like)
        return Geometry(*(None if end is None else end * ones for end in _ends_of(self.base)))

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The support of `base`; if it is transformed, the image of the support of its own base."""
        low, high, _ = self.geometry() if _is_transformed(self.base) else (None, None, None)
        if low is None:
            return self.base.support if high is None else constraints.less_than(high)
        return constraints.greater_than_eq(low) if high is None else constraints.interval(low, high)

    def _intervals(self) -> Tensor:
        return torch.stack(self._ends(), -1).unsqueeze(-2)

    @property
    def _is_unbounded(self) -> bool:
        return self.geometry()[:2] == (None, None)

    def _inside(self) -> Tensor:
        """Return a location in the support (*batch), from its ends."""
        lower, upper = (x if x is None else x.detach() for x in self.geometry()[:2])
        if lower is not None and upper is not None:
            return (lower + upper) / 2
        if lower is not None:
            return lower + lower.abs().clamp_min(1)
        return torch.zeros_like(self._like) if upper is None else upper - upper.abs().clamp_min(1)

    @property
    def _coordinate(self) -> DoubleExponential:
        """The coordinate, around torch's mean, median or mode if there is one."""
        with torch.no_grad():
            center = self._inside()
            half = torch.full_like(center, 0.5)
            middles = self._by_torch("mode"), self._by_torch("icdf", half), self._by_torch("mean")
            for middle in middles:  # the last one that is valid counts
                if middle is not None:
                    within = middle.isfinite() & self.support.check(middle)
                    center = torch.where(within, middle, center)
            # Without a variance, half the width of the uniform density of the same height, or less
            # where the log density is more curved.
            top = self.base.log_prob(center)
            spread = (0.5 * torch.exp(-top)).clamp(1e-9, 1e9)
            if self._is_unbounded:
                # A log density -t^2/(2 s^2) falls by step^2/(2 s^2) in one step: solve it for s.
                step = spread / 64
                fall = top - self.base.log_prob(center + torch.stack([-step, step])).mean(0)
                curved = step / (2 * fall).sqrt()
                spread = torch.where(curved < spread, curved, spread)
            stddev = self._by_torch("stddev")
            if stddev is not None:
                valid = stddev.isfinite() & (stddev > 0)
                if self._is_unbounded and (indices := self.tail_indices()) is not None:
                    # A variance that hardly exists says nothing of the middle.
                    valid = valid & (indices[1] > 2.5)
                spread = torch.where(valid, stddev, spread)
        return DoubleExponential(*self.geometry()[:2], center, spread)

    def _log_q(self, t: Tensor) -> Tensor:
        # Without gradients torch's own, at locations inside: no derivative may be undefined.
        return (self if torch.is_grad_enabled() else self.base).log_prob(t)

    @property
    def _law(self) -> Law | None:
        # Not of classes of users, which may have another `log_prob`. All other distributions are
        # integrated: torch's `cdf` may be approximate.
        return facts_of(self.base).law(self.base)

    @property
    def _panels(self) -> Panels:
        line, name = self._coordinate, type(self.base).__name__
        return Panels(self._log_q, line, self._ends(), kinks=self._possible_kinks(line), name=name)

    def _possible_kinks(self, line: Coordinate) -> Tensor:
        """Return coordinates (J, *batch) of possible kinks: the center, at 0, and loc.

        There are none for a class without kinks.
        """
        center = torch.zeros_like(self._like).unsqueeze(0)
        if facts_of(self.base).is_smooth:
            return center[:0]
        loc = self._by_torch("loc")
        return center if loc is None else torch.cat([center, line.onto(loc).expand_as(center)])

    def cdf(self, value: Tensor) -> Tensor:
        """Return the mass below `value`, by torch's formula if there is one."""
        self._check_value(value)
        below = self._torch_cdf(value)
        return super().cdf(value) if below is None else below

    def _torch_cdf(self, value: Tensor) -> Tensor | None:
        """Return torch's distribution function at values (*sample, *batch), None if it has none."""
        low, high = self._ends()
        inside = (low < value) & (value < high)
        t = torch.where(inside, value, self._inside())
        below = self._by_torch("cdf", t)
        if below is None:
            return None
        if below.requires_grad and _has_gamma(self.base):
            # Torch's value with the derivatives of an integral.
            integral = self._panels.tail(t, torch.zeros_like(inside))
            below = below.detach() + (integral - integral.detach())
        return torch.where(inside, below, (value >= high).to(below.dtype))

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return tails by torch's distribution function where it is accurate, else by integrals."""
        below = None if log or self._has_masses else self._torch_cdf(value)
        if below is None:
            return super()._tail(value, upper, log)
        tail = torch.where(upper, 1 - below, below)
        # In a small tail a difference has lost its digits, and errors of torch's approximations are
        # absolute.
        small = tail < _SMALL
        if values_are_readable(small) and not small.any():
            return tail
        return torch.where(small, super()._tail(value, upper), tail)

    @property
    def _has_masses(self) -> bool:
        return self._law is not None

    def _log_mass_between(self, start: Tensor, end: Tensor) -> Tensor:
        if (law := self._law) is None:
            return super()._log_mass_between(start, end)
        return law.log_mass(start, end)

    def _quantile(self, value: Tensor) -> Tensor:
        quantiles = self._by_torch("icdf", value * torch.ones_like(self._like))
        return super()._quantile(value) if quantiles is None else quantiles

    @property
    def mean(self) -> Tensor:
        """Mean (*batch); not finite if there is none."""
        by_torch = self._by_torch("mean")
        return super().mean if by_torch is None else by_torch

    @property
    def variance(self) -> Tensor:
        """Variance (*batch); not finite if there is none."""
        by_torch = self._by_torch("variance")
        return super().variance if by_torch is None else by_torch

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch); without gradient if it is searched."""
        # Torch's mode of a Kumaraswamy is NaN.
        by_torch = None if torch_class(self.base) is Kumaraswamy else self._by_torch("mode")
        return super().mode if by_torch is None else by_torch

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch)."""
        by_torch = self._by_torch("entropy", call=True)
        return super().entropy() if by_torch is None else by_torch

    def _moment(self, n: int, terms: Tensor) -> Tensor:
        if (indices := self.tail_indices()) is None:
            return super()._moment(n, terms)
        return or_infinite(terms.sum(0), n, [n >= x for x in indices])

    def tail_indices(self) -> tuple[Tensor, Tensor] | None:
        """Return the orders (*batch) from which moments do not exist, by the tail on each side.

        They are None for a class without facts: then the terms of a rule tell.
        """
        if (tails := facts_of(self.base).tails) is None:
            return None
        below, above = tails(self.base)
        zero = torch.zeros_like(self._like)
        return zero + below, zero + above

    def to_float64(self) -> SparseDistribution:
        # A uniform density becomes a BetaGaussian, whose ends are float64 already.
        uniform = self._as_beta_gaussian()
        return super().to_float64() if uniform is None else uniform

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        uniform = self._as_beta_gaussian()
        return super()._expect_basis(psi, order) if uniform is None else uniform.expect(psi, order)

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        if (uniform := self._as_beta_gaussian()) is None:
            return super()._beta_covariance(phi, psi, beta)
        self.escort(beta)  # refuses all but 1
        return uniform.generalized_covariance(phi, psi, 1.0)

    def _as_beta_gaussian(self) -> BetaGaussian | None:
        """Return a uniform density as a BetaGaussian, None for another density.

        A BetaGaussian has closed forms of expectations.
        """
        if torch_class(self.base) is not Uniform:
            return None
        lower, upper = self._ends()
        return BetaGaussian((lower + upper) / 2, (upper - lower) / 2, math.inf, validate_args=False)


@register_expect(TorchUnivariate, Fourier)
def _expect_waves(p: TorchUnivariate, psi: Fourier) -> Tensor:
    """Return expectations of waves (*batch, N) by many nodes, after a check by half as many.

    Raises:
        ValueError: Waves for which the two differ.
    """
    if (uniform := p._as_beta_gaussian()) is not None:
        return uniform.expect(psi)
    fine, coarse = (p._expect_basis(psi, order) for order in (_WAVES, _WAVES // 2))
    fits = (coarse - fine).abs() < 1e-4
    require(fits, "frequencies", f"low enough to integrate {p}", psi.frequencies)
    return fine
