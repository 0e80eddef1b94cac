"""Reparameterization of Pyro sites whose support moves, and warnings for sites that need it.

Pyro's kernels and guides take the bijection of a site's support from the first trace and keep it.
They provide no hook at that point, so plain NUTS cannot warn by itself; `check_model` and
`warn_moving_supports` check the model instead, by the tensors that enter its supports.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import (
    ExpandedDistribution,
    MaskedDistribution,
    TorchDistribution,
    TorchDistributionMixin,
)
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.reparam.reparam import Reparam, ReparamMessage, ReparamResult
from pyro.infer.reparam.strategies import Strategy
from pyro.ops.integrator import register_exception_handler
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import InferDict
from pyro.poutine.util import site_is_subsample
from pyro.util import get_rng_state, set_rng_state
from torch import Size, Tensor, UntypedStorage
from torch.distributions import (
    Distribution,
    Independent,
    TransformedDistribution,
    Uniform,
    biject_to,
    constraints,
)
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    Transform,
)
from torch.types import _size
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .._numerics.modes import traced
from .._numerics.validation import require
from ..distributions import EllipticalDistribution, SymmetricDistribution
from ..supports import Ellipsoid, EllipsoidTransform, Interval, IntervalUnion, RealLine

__all__ = [
    "AutoSupportReparam",
    "MovingSupportWarning",
    "Site",
    "SupportReparam",
    "check_model",
    "examine",
    "warn_moving_supports",
]

_Model = Callable[..., object]
_Map = Callable[[Tensor], Tensor]
# A message of Pyro's, which a trace keeps.
Site = dict[str, Any]

# The key in a site's `infer` that marks a site in standard coordinates.
_MARK = "_support_reparam"
# Random starts at which a model is run.
_STARTS = 10
# Operations that take only the shape and the dtype of a tensor.
_LIKE = "empty_like", "full_like", "ones_like", "zeros_like"
_NEW = "new_empty", "new_full", "new_ones", "new_zeros"
_SHAPES = {getattr(torch.ops.aten, name) for name in (*_LIKE, *_NEW)}


class SupportReparam(Reparam):
    r"""Sample a latent site in standard coordinates, in which its support is fixed.

    Hamiltonian Monte Carlo and the automatic guides of Pyro take the bijection of a site's support
    from the first trace and keep it. If the support depends on other latent sites, as in
    $y \sim \mathrm{Uniform}(x, x + 1)$, they silently sample a distribution other than the model's.
    This reparameterizer makes the site `name` a deterministic function of a new site, `name_base`:

    | support of `name` | `name_base` | `name` |
    |---|---|---|
    | interval $[a, b]$ | $v \in [0, 1]$ | $a + (b - a) v$ |
    | half-line from $a$ | $v > 0$ | $a \pm v$ |
    | ellipsoid | $u$ in the unit ball | $\mu + L u$ |
    | union of intervals | level $q \in [0, 1]$, uniform | the quantile of $q$ |
    | any other with a bijection | all of space | its image |

    The distribution of `name` stays the same. On intervals and ellipsoids, the distribution of
    `name_base` does not depend on the location and the scale (it is decentered), which suits
    hierarchical models. Observed sites and sites whose support is given by numbers are left
    unchanged. `pyro.infer.Predictive(model, samples)` recomputes draws of `name` from `name_base`.

    As with Pyro's own reparameterizers, a mask multiplies the density of `name_base`: a site that
    is masked out has no influence on the others.

    Raises:
        ValueError: When the site is sampled: it is discrete, its support has neither a bijection
            nor quantiles, or an end is infinite that is finite elsewhere. In HMC and NUTS that is a
            divergence, because ends may overflow while a step size is sought.

    References:
        Gorinova, Moore and Hoffman (2020), Automatic Reparameterisation of Probabilistic Programs.
        arXiv:1906.03028

    Examples:
        >>> def model():
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     return pyro.sample("y", dist.Uniform(x, x + 1))
        >>> right = pyro.poutine.reparam(model, config={"y": SupportReparam()})
        >>> trace = pyro.poutine.trace(right).get_trace()
        >>> trace.stochastic_nodes
        ['x', 'y_base']
    """

    def apply(self, msg: ReparamMessage) -> ReparamResult:
        """Sample `name_base` and return the message of a deterministic site; Pyro calls this."""
        name, value = msg["name"], msg["value"]
        fn = cast(TorchDistribution, msg["fn"])
        inner = _innermost(fn)
        try:
            coordinates = None if msg["is_observed"] else _coordinates(inner)
        except (NotImplementedError, ValueError) as error:
            rule = "have a support with standard coordinates"
            raise _NoCoordinates(f"site {name!r} must {rule}, got {inner}: {error}") from error
        if coordinates is None:
            return {"fn": fn, "value": value, "is_observed": bool(msg["is_observed"])}
        base_fn, forward, inverse = coordinates
        if not getattr(value, "_pyro_custom_init", True):
            value = None  # Pyro's default start is better in standard coordinates
        start = None if value is None else inverse(value)
        infer = cast(InferDict, {"is_observed": False, _MARK: True})
        base = pyro.sample(f"{name}_base", _wrapped(fn, base_fn), obs=start, infer=infer)
        value = forward(base) if value is None else value
        # The mask leaves all of the density to the base site.
        fixed = dist.Delta(value, event_dim=len(fn.event_shape)).mask(False)
        return {"fn": fixed, "value": value, "is_observed": True}


class AutoSupportReparam(Strategy):
    """Apply `SupportReparam` to each latent site whose support holds tensors, which may move.

    Sites whose support is given by Python numbers are left unchanged, such as `HalfNormal` and
    Pyro's `Uniform(0.0, 1.0)`.

    Examples:
        >>> @AutoSupportReparam()
        ... def model():
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     y = pyro.sample("y", dist.Uniform(x, x + 1))
        ...     pyro.sample("z", dist.Uniform(y, y + 1), obs=torch.tensor(1.0))
        >>> pyro.poutine.trace(model).get_trace().stochastic_nodes
        ['x', 'y_base']
    """

    def configure(self, msg: Site) -> SupportReparam | None:
        """Return the reparameterizer of a site, or None to leave the site unchanged."""
        if msg["is_observed"] or msg["infer"].get(_MARK):
            return None
        support = _support_of(msg["fn"])
        if support is None or support.is_discrete or not _support_tensors(support):
            return None
        return SupportReparam()


class MovingSupportWarning(UserWarning):
    """The support of a latent site moves with other latent sites."""


def check_model(model: _Model, *args: object, **kwargs: object) -> list[str]:
    """Warn of latent sites whose support moves, and of a density that is zero at random starts.

    The model is run once for its supports, and at ten random starts of NUTS, with the sites whose
    support moves in standard coordinates. The random state and the parameter store are restored. A
    model with discrete latent sites is not started: they may be summed out, and the sum can be
    positive where one term is zero.

    Args:
        model: A model of Pyro's.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        The names of the sites whose support moves, which need `SupportReparam`.

    Raises:
        TypeError: `model` is not callable.

    Warns:
        MovingSupportWarning: For each of these sites.
        RuntimeWarning: The density is zero or NaN at all starts, or a `pyro.factor` is -inf or NaN
            at some of them; it names the sites that make it so.
    """
    moved, zeros = examine(model, args, kwargs)
    if zeros and all(zeros):
        warnings.warn(
            f"the density of site {zeros[0]} at {_STARTS} of {_STARTS} random starts, "
            "so NUTS may not start. Use init_strategy=init_to_value(values=...) with values that "
            "all observations allow or, for a latent half-width of bounded noise, "
            "sparsefam.inference.RestrictedPrior",
            RuntimeWarning,
            stacklevel=2,
        )
        return moved
    walls = [sites.factors for sites in zeros if sites.factors]
    if walls:
        warnings.warn(
            f"the density of factor {walls[0]} at {len(walls)} of {_STARTS} random starts, and "
            "NUTS diverges where it runs into that wall. Give the latent site that ends there a "
            "support that does, or sparsefam.inference.RestrictedPrior",
            RuntimeWarning,
            stacklevel=2,
        )
    return moved


def examine(
    model: _Model, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[str], list["Zeros"]]:
    """Run a model, and warn of latent sites whose support moves.

    Returns:
        The sorted names of these sites; and for each of ten random starts the sites whose density
        is zero or NaN. There are no starts if a latent site is discrete.
    """
    if not callable(model):
        raise TypeError(f"model must be callable, got {model!r}")
    watch, zeros, store = _Watch(), [], pyro.get_param_store()
    # The store gets its state back afterwards: parameters that the model makes are dropped.
    with _aside(), store.scope(store.get_state()):
        trace = pyro.poutine.trace(watch(model)).get_trace(*args, **kwargs)
        # It is to be sampled in standard coordinates, and starts there.
        if watch.moved:
            model = AutoSupportReparam()(model)
            trace = pyro.poutine.trace(model).get_trace(*args, **kwargs)
        nodes = [x for _, x in trace.iter_stochastic_nodes() if not site_is_subsample(x)]
        sites = cast(list[Site], nodes)
        for _ in range(_STARTS):
            try:
                start = {x["name"]: init_to_uniform(x) for x in sites}
            except (NotImplementedError, ValueError):
                break  # a site is discrete, or its support has no bijection
            zeros.append(_zeros(model, start, args, kwargs))
    return sorted(watch.moved), zeros


class Zeros(str):
    """The sites whose densities are zero or NaN, in words; empty if there are none.

    Attributes:
        factors: The same for `pyro.factor` statements alone.
    """

    factors: str


@torch.no_grad()
def _zeros(
    model: _Model,
    values: dict[str, Tensor],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Zeros:
    """Return the sites of a model that have density zero or NaN at values of its latent sites.

    The values have the names of the sites as keys; `args` and `kwargs` are the model's arguments.
    """
    with _aside(), pyro.validation_enabled(False):  # validation raises where a density is zero
        trace = pyro.poutine.trace(pyro.poutine.condition(model, values)).get_trace(*args, **kwargs)
        trace.compute_log_prob()
    sites = [cast(Site, x) for x in trace.nodes.values() if x["type"] == "sample"]

    def words(sites: list[Site]) -> str:
        """Return a part of a sentence, such as "'x' is zero and of 'y' is NaN"."""
        zero = [repr(x["name"]) for x in sites if x["log_prob_sum"] == -torch.inf]
        nan = [repr(x["name"]) for x in sites if x["log_prob_sum"].isnan()]
        names = {"zero": ", ".join(zero), "NaN": ", ".join(nan)}
        return " and of ".join(f"{listed} is {kind}" for kind, listed in names.items() if listed)

    description = Zeros(words(sites))
    # Sites of `pyro.factor` have the distribution `Unit`.
    description.factors = words([x for x in sites if isinstance(_innermost(x["fn"]), dist.Unit)])
    return description


@contextmanager
def _aside() -> Iterator[None]:
    """Run a model aside from inference: handlers do not see it, and random numbers stay."""
    random = get_rng_state()
    try:
        with pyro.poutine.block():
            yield
    finally:
        set_rng_state(random)


def warn_moving_supports(model: _Model) -> _Model:
    """Return a model that warns when the support of a latent site moves with other latent sites.

    `NUTS(warn_moving_supports(model))` warns in its first run of the model, where `NUTS(model)`
    would silently sample the wrong distribution; so does `SVI`. Sites that are reparameterized,
    inside or outside of this function, cause no warning.

    Args:
        model: A model of Pyro's.

    Returns:
        The model, which warns with `MovingSupportWarning` once for each site.

    Raises:
        TypeError: `model` is not callable.
    """
    if not callable(model):
        raise TypeError(f"model must be callable, got {model!r}")
    return _Watched(model)


class _Watched:
    """A model whose first run is inside of a `_Watch`, other than runs that torch.jit traces."""

    def __init__(self, model: _Model) -> None:
        self._model, self._has_run = model, False

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._has_run or traced():
            return self._model(*args, **kwargs)
        with _Watch():
            result = self._model(*args, **kwargs)
        self._has_run = True
        return result


class _Dependents(TorchDispatchMode):
    """A set of tensors, which grows by the results of all operations on its members.

    It grows while it is entered, also by operations without a derivative, such as comparisons and
    indices, but neither by numbers that are read, by `item`, `bool` and the like, nor by arrays of
    numpy.
    """

    def __init__(self) -> None:
        super().__init__()
        # By addresses. Storages are kept, so that no other one gets the same address.
        self._memory: dict[int, UntypedStorage] = {}

    def add(self, values: object) -> None:
        """Add the tensors in a nested structure."""
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                # Views and results in place share memory with the tensor that they follow.
                storage = x.untyped_storage()
                self._memory[storage._cdata] = storage

    def has(self, values: object) -> bool:
        """Return whether any tensor in a nested structure is a member."""
        tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
        return any(x.untyped_storage()._cdata in self._memory for x in tensors)

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run an operation of torch, and add its results if an argument is a member."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in _SHAPES and self.has((args, kwargs)):
            self.add(result)
        return result


class _Watch(Messenger):
    """Warns of supports of latent sites that depend on the values of other latent sites.

    Attributes:
        moved: Names of these sites.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = set[str]()
        self._latent = set[str]()  # names of latent sites so far
        self._dependents = _Dependents()  # their values, and all tensors that depend on these

    def __enter__(self) -> "_Watch":
        self._dependents.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._dependents.__exit__(*exception)

    def _pyro_sample(self, msg: Any) -> None:
        """Note the name of a latent site, before its value is sampled."""
        # An outer handler, such as the condition of NUTS, may still make it observed.
        if not (msg["is_observed"] or site_is_subsample(msg)):
            self._latent.add(msg["name"])

    def _pyro_post_sample(self, msg: Site) -> None:
        """Warn if the support of a latent site moves; add the site's value to the dependents."""
        # All reparameterizers have been applied.
        name = msg["name"]
        if name not in self._latent:
            return
        support = _support_of(msg["fn"])
        if support is not None and not support.is_discrete:
            if self._dependents.has(_support_tensors(support)):
                self.moved.add(name)
                warnings.warn(
                    f"the support of site {name!r} moves with other latent sites, but HMC, NUTS "
                    "and automatic guides keep the bijection of the first trace and sample the "
                    f"wrong distribution. Use poutine.reparam(model, config={{{name!r}: "
                    "sparsefam.inference.SupportReparam()}) or "
                    "sparsefam.inference.AutoSupportReparam()(model)",
                    MovingSupportWarning,
                    stacklevel=2,
                )
        self._dependents.add(msg["value"])


def _support_of(fn: Distribution) -> Constraint | None:
    """Return the support of a site's distribution, or None if it has none."""
    try:
        support: Constraint | None = getattr(fn, "support", None)
    except NotImplementedError:
        return None
    inner = _innermost(fn)
    # For torch the support of every affine map is the line.
    if isinstance(inner, TransformedDistribution) and inner.support is constraints.real:
        return _affine_support(inner)
    return support


def _affine_support(fn: TransformedDistribution) -> Constraint:
    """Return the support of an affine map of a bounded density, for which torch has the line."""
    transforms = list(fn.transforms)
    # Take off the affine maps at the end, find the ends of the support before, and map these ends.
    affine = []
    while transforms and isinstance(transforms[-1], AffineTransform):
        affine.append(transforms.pop())
    support = transforms[-1].codomain if transforms else _support_of(fn.base_dist)
    low = torch.as_tensor(getattr(support, "lower_bound", -math.inf))
    high = torch.as_tensor(getattr(support, "upper_bound", math.inf))
    for transform in reversed(affine):
        low, high = transform(low), transform(high)
    # A negative scale exchanges the ends.
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    no_low, no_high = low.isneginf().all(), high.isposinf().all()
    if no_low or no_high:
        if no_low and no_high:
            return constraints.real
        return constraints.less_than(high) if no_low else constraints.greater_than_eq(low)
    return constraints.interval(low, high)


class _NoCoordinates(ValueError):
    """A site has no standard coordinates: its support has no bijection, or no finite ends."""


# In a chain, which starts where all sites have coordinates, that is a divergence: the ends overflow
# while a step size is sought, and the density is zero there.
register_exception_handler(
    "sparsefam.inference", lambda error: isinstance(error, _NoCoordinates), warn_on_overwrite=False
)


def _coordinates(fn: Distribution) -> tuple[TorchDistributionMixin, _Map, _Map] | None:
    """Return the distribution of the base site, the map from its values to the site's, and back.

    For uniform, symmetric and elliptical densities it is the density at a fixed location and
    scale. Other densities go through the inverse map, which is less accurate: in y = a + (b - a) v
    rounding of y far from zero is a large error of v.

    Returns:
        None for a support that is fixed.

    Raises:
        ValueError, NotImplementedError: There is no bijection of a fixed set onto the support.
    """
    if isinstance(fn, Uniform) and type(fn) in _UNIFORM:
        if not _support_tensors(fn.support):
            return None
        low, width = fn.low, fn.high - fn.low
        require(width < math.inf, "low and high", "finite", (fn.low, fn.high))
        zero = torch.zeros_like(low, requires_grad=False)
        # A Uniform of numbers would have no batch.
        base = _OnUnitInterval(dist.Uniform(zero, zero + 1))
        return base, lambda v: low + width * v, lambda y: (y - low) / width
    if isinstance(fn, SymmetricDistribution):
        edge = fn.generator.edge
        if isinstance(edge, Tensor) or edge < math.inf:
            loc, half = fn.loc, edge * fn.scale
            require(loc.abs() + half < math.inf, "loc and scale", "finite", (loc, fn.scale))
            # The same density with the center and the half-width 1/2: on [0, 1].
            middle = torch.full_like(loc, 0.5)
            base = _OnUnitInterval(fn._replace(loc=middle, scale=middle / edge))
            # Both ends are exact in y = loc + half (2 v - 1), and v is not rounded to multiples of
            # y's spacing.
            return base, lambda v: loc + half * (2 * v - 1), lambda y: ((y - loc) / half + 1) / 2
    support = _support_of(fn)
    if support is None or not (support.is_discrete or _support_tensors(support)):
        return None
    if isinstance(support, IntervalUnion):
        # Also if there is one interval: another trace may have two.
        zero = torch.zeros_like(support.lower_bound).expand(fn.batch_shape)
        return dist.Uniform(zero, zero + 1), fn.icdf, fn.cdf
    if support.is_discrete:
        raise ValueError("it is discrete")
    transform = _transform_onto(support)
    # The base site has the density of `source`, taken to the fixed set by the inverse of a map.
    source, onto_source = fn, transform
    if isinstance(fn, EllipticalDistribution):
        unit = torch.eye(fn.loc.shape[-1]).to(fn.scale_tril).expand_as(fn.scale_tril)
        source = fn._replace(loc=torch.zeros_like(fn.loc), scale_tril=unit)
        onto_source = _transform_onto(source.support)
    return dist.TransformedDistribution(source, [onto_source.inv]), transform, transform.inv


class _OnUnitInterval(TorchDistribution):
    """A density on [0, 1] whose support is given by numbers, as nothing moves it.

    Args:
        density: The same density, whose support may hold tensors.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    support = constraints.unit_interval

    def __init__(self, density: Distribution) -> None:
        self._density, self.has_rsample = density, density.has_rsample
        super().__init__(density.batch_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._density.log_prob(value)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        return self._density.sample(sample_shape)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        return self._density.rsample(sample_shape)

    def expand(self, batch_shape: _size, _instance: object = None) -> "_OnUnitInterval":
        return _OnUnitInterval(self._density.expand(batch_shape))


_UNIFORM = (Uniform, dist.Uniform)  # a subclass may have another density
_WRAPPERS = (Independent, MaskedDistribution, ExpandedDistribution)


def _innermost(fn: Distribution) -> Distribution:
    """Remove masks, expansions and reinterpreted dimensions from a distribution."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def _wrapped(fn: Distribution, base: TorchDistributionMixin) -> TorchDistributionMixin:
    """Apply the masks, expansions and reinterpreted dimensions of `fn` to another distribution."""
    if not isinstance(fn, _WRAPPERS):
        return base
    base = _wrapped(fn.base_dist, base)
    if isinstance(fn, Independent):
        return base.to_event(fn.reinterpreted_batch_ndims)
    masked = isinstance(fn, MaskedDistribution)
    return base.mask(fn._mask) if masked else base.expand(fn.batch_shape)


def _support_tensors(support: Constraint) -> list[Tensor]:
    """Return the tensors that determine a support: none if it is a fixed set.

    A set with Python numbers for bounds, such as `constraints.unit_interval`, is fixed.
    """
    if isinstance(support, RealLine):
        return []
    tensors: list[Tensor] = []
    for value in vars(support).values():
        for member in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(member, Tensor):
                tensors.append(member)
            elif isinstance(member, Constraint):
                tensors.extend(_support_tensors(member))
    return tensors


class _FromUnitInterval(AffineTransform):
    """A linear map whose domain, for torch, is the unit interval in place of the line."""

    domain = constraints.unit_interval


def _transform_onto(support: Constraint) -> Transform:
    """Return the map of a fixed set onto a support; see `SupportReparam`.

    Raises:
        ValueError, NotImplementedError: A support without a bijection.
    """
    if isinstance(support, constraints.independent):
        inner = _transform_onto(support.base_constraint)
        return IndependentTransform(inner, support.reinterpreted_batch_ndims)
    if isinstance(support, Ellipsoid):
        center = torch.zeros_like(support.loc.detach())
        ball = Ellipsoid(center, torch.eye(center.shape[-1]).to(center))
        return ComposeTransform([EllipsoidTransform(ball).inv, biject_to(support)])
    if isinstance(support, (Interval, constraints.interval, constraints.half_open_interval)):
        lower, upper = torch.as_tensor(support.lower_bound), torch.as_tensor(support.upper_bound)
        require(lower.isfinite(), "lower_bound", "finite", lower)
        if upper.isfinite().all():
            return _FromUnitInterval(lower, upper - lower)
        # y = a + (b - a) v, or a + v / (1 - v) where b is infinite. Both have 1 / (y - a) linear in
        # 1 / v: 1 / ((b - a) v), or 1 / v - 1.
        bounded, reciprocal = upper.isfinite(), PowerTransform(lower.new_tensor(-1.0))
        rate = 1 / torch.where(bounded, upper - lower, 1.0)
        linear = AffineTransform(torch.where(bounded, 0.0, -rate), rate)
        # The first map changes no value: it gives the composition its domain.
        on_unit, shift = _FromUnitInterval(0.0, 1.0), AffineTransform(lower, 1)
        return ComposeTransform([on_unit, reciprocal, linear, reciprocal, shift])
    onto: Transform = biject_to(support)
    half_lines = constraints.greater_than, constraints.greater_than_eq, constraints.less_than
    # Torch maps x to a + e^x or a - e^x. After a logarithm that is a + v or a - v, for v > 0.
    return ComposeTransform([ExpTransform().inv, onto]) if isinstance(support, half_lines) else onto
