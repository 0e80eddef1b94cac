"""Reparameterizers of Pyro's that sample a site where its support stands still."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import (
    ExpandedDistribution,
    MaskedDistribution,
    TorchDistributionMixin,
)
from pyro.infer.reparam.reparam import Reparam, ReparamMessage, ReparamResult
from pyro.infer.reparam.strategies import Strategy
from torch import Tensor
from torch.distributions import Independent, Uniform
from torch.distributions.constraints import Constraint

from ..distributions import EllipticalDistribution, SymmetricDistribution
from ..supports import IntervalUnion
from .coordinates import placement, support_numbers

__all__ = ["AutoSupportReparam", "SupportReparam", "support_of"]

# What marks a site that is in standard coordinates already.
_MARK = "_support_reparam"


class SupportReparam(Reparam):
    r"""Samples a latent site in standard coordinates, in which its support never moves.

    Hamiltonian Monte Carlo and the automatic guides of Pyro take the bijection of a site's support
    from the first trace and keep it. Where the support depends on other latent sites, as that of
    $y \sim \mathrm{Uniform}(x, x + 1)$, they explore another law than the model's, and say nothing.
    Here the site `name` becomes a deterministic function of a new one, `name_base`:

    | support of `name` | `name_base` | `name` |
    |---|---|---|
    | interval $[a, b]$ | $v \in [0, 1]$ | $a + (b - a) v$ |
    | half-line from $a$ | $v > 0$ | $a \pm v$ |
    | ellipsoid | $u$ in the unit ball | $\mu + L u$ |
    | union of intervals | level $q \in [0, 1]$, uniform | the quantile of $q$ |
    | any other with a bijection | all of space | its image |

    The law of `name` is the same. On intervals and ellipsoids that of `name_base` is free of the
    location and the scale (it is decentred), which is what hierarchical models want. Sites that are
    observed are left as they are, and those whose support is fixed. Samples of `name` are
    recomputed from those of `name_base` by `pyro.infer.Predictive(model, samples)`.

    As with the reparameterizers of Pyro's, a mask multiplies the density of `name_base`: a site
    that is masked out has no influence on the others.

    Raises:
        ValueError: When the site is sampled: it is discrete, or its support is neither one piece
            that has a bijection nor one whose quantiles are known.

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
        """The message of a deterministic site, after `name_base` has been sampled.

        Args:
            msg: `name`, `fn`, `value` (or None) and `is_observed` of a site; a value that is not
                observed is where the site starts.
        """
        name, value = msg["name"], msg["value"]
        fn: Any = msg["fn"]
        support = None if msg["is_observed"] else support_of(_innermost(fn))
        if support is None or not (support.is_discrete or support_numbers(support)):
            return {"fn": fn, "value": value, "is_observed": bool(msg["is_observed"])}
        if not getattr(value, "_pyro_custom_init", True):
            value = None  # Pyro's default start, which does better in standard coordinates
        found = _coordinates(name, _innermost(fn), support)
        start = None if value is None else found.locate(value)
        infer: Any = {"is_observed": False, _MARK: True}
        base = pyro.sample(f"{name}_base", _wrapped(fn, found.law), obs=start, infer=infer)
        value = found.place(base) if value is None else value
        fixed = dist.Delta(value, event_dim=len(fn.event_shape)).mask(False)
        return {"fn": fixed, "value": value, "is_observed": True}


class AutoSupportReparam(Strategy):
    """Applies `SupportReparam` to each latent site whose support may move.

    That is each one with a support given by tensors. Those may be constant: nothing tells in one
    trace whether they depend on latent sites. `check_model` tells, and names the sites for which
    `SupportReparam` is enough. `Uniform(0.0, 1.0)` of Pyro's, given by numbers, is left alone.

    Examples:
        >>> @AutoSupportReparam()
        ... def model():
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     y = pyro.sample("y", dist.Uniform(x, x + 1))
        ...     pyro.sample("z", dist.Uniform(y, y + 1), obs=torch.tensor(1.0))
        >>> pyro.poutine.trace(model).get_trace().stochastic_nodes
        ['x', 'y_base']
    """

    def configure(self, msg: dict[str, Any]) -> SupportReparam | None:
        """The reparameterizer of a site, or None."""
        skipped = msg["is_observed"] or msg["infer"].get(_MARK)
        support = None if skipped else support_of(msg["fn"])
        if support is None or support.is_discrete or not support_numbers(support):
            return None
        return SupportReparam()


class _Coordinates(NamedTuple):
    law: TorchDistributionMixin  # of the base
    place: Callable[[Tensor], Tensor]  # from the base to the site
    locate: Callable[[Tensor], Tensor]  # and back


def support_of(fn: Any) -> Constraint | None:
    """The support of what a site is sampled from, if that is a distribution that knows it."""
    try:
        found: Constraint | None = getattr(fn, "support", None)
    except NotImplementedError:
        return None
    return found


def _coordinates(name: str, fn: Any, support: Constraint) -> _Coordinates:
    if isinstance(support, IntervalUnion):
        # Even where there is but one interval: in another trace there may be two.
        level = torch.zeros_like(support.lower_bound).expand(fn.batch_shape)
        return _Coordinates(dist.Uniform(level, level + 1), fn.icdf, fn.cdf)
    try:
        if support.is_discrete:
            raise ValueError("it is discrete")
        place = placement(support)
    except (NotImplementedError, ValueError) as error:
        raise ValueError(
            f"site {name!r} must have a support with standard coordinates, got "
            f"{type(fn).__name__} on {support}: {error}"
        ) from error
    still = _standing_still(fn)
    # Where the law is of a known form, by a map that is a number: in y = a + (b - a) v the digits
    # of v are lost far from zero, those of a uniform's last v even its density.
    from_still = place if still is fn else placement(still.support)
    return _Coordinates(dist.TransformedDistribution(still, [from_still.inv]), place, place.inv)


def _standing_still(fn: Any) -> Any:
    """The law with its place at 0 and its size 1, if that is known; else the law itself."""
    if type(fn) in (Uniform, dist.Uniform):  # a subclass may have a density of its own
        level = torch.zeros_like(fn.low)
        return dist.Uniform(level, level + 1)
    if not isinstance(fn, SymmetricDistribution | EllipticalDistribution):
        return fn
    still: Any = fn.expand(fn.batch_shape)
    still.loc = torch.zeros_like(fn.loc)
    if isinstance(fn, SymmetricDistribution):
        still.scale = torch.ones_like(fn.scale)
    else:
        still.scale_tril = torch.eye(fn.loc.shape[-1]).to(fn.scale_tril).expand_as(fn.scale_tril)
    return still


_WRAPPERS = (Independent, MaskedDistribution, ExpandedDistribution)


def _innermost(fn: Any) -> Any:
    """A distribution without its masks, expansions and reinterpreted dimensions."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def _wrapped(fn: Any, law: TorchDistributionMixin) -> TorchDistributionMixin:
    """A law with the masks, expansions and reinterpreted dimensions of a distribution."""
    if not isinstance(fn, _WRAPPERS):
        return law
    law = _wrapped(fn.base_dist, law)
    if isinstance(fn, Independent):
        new: TorchDistributionMixin = law.to_event(fn.reinterpreted_batch_ndims)
    else:
        masked = isinstance(fn, MaskedDistribution)
        new = law.mask(fn._mask) if masked else law.expand(fn.batch_shape)
    return new
