"""Facts about univariate distributions of torch, by class."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro.distributions
import torch.distributions as td
from torch import Tensor

from ._line.laws import Law

__all__ = ["Facts", "facts_of", "torch_class"]

# From a class of torch to itself, and from one of Pyro to torch's class of the same name, or to
# itself if there is none.
_CLASSES: dict[type, type] = {
    cls: getattr(td, name, cls)
    for module in (td, pyro.distributions)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and issubclass(cls, td.Distribution)
}


class Facts(NamedTuple):
    """Facts that hold for every distribution of a class.

    Attributes:
        is_smooth: Whether the density has no kinks inside of its support.
        has_mode: Whether the density has one peak, and torch's mode is right for all parameters.
        tails: The orders (*batch) from which moments do not exist, by the tail below and the one
            above: powers with which the masses of tails decay. None if they are not known.
        law: The closed forms of masses and quantiles of a distribution; None if it has none.
    """

    is_smooth: bool = False
    has_mode: bool = False
    tails: Callable[[Any], tuple[Tensor | float, Tensor | float]] | None = lambda p: (
        math.inf,
        math.inf,
    )
    law: Callable[[Any], Law | None] = lambda p: None


_FACTS: dict[type | None, Facts] = {
    td.Beta: Facts(is_smooth=True),
    td.Cauchy: Facts(
        is_smooth=True,
        has_mode=True,
        tails=lambda p: (1.0, 1.0),
    ),
    td.Chi2: Facts(is_smooth=True, has_mode=True),
    td.Exponential: Facts(
        is_smooth=True,
        has_mode=True,
        law=lambda p: Law("exponential", 0.0, p.rate.reciprocal(), lower=0.0),
    ),
    td.FisherSnedecor: Facts(is_smooth=True, tails=lambda p: (math.inf, p.df2 / 2)),
    td.Gamma: Facts(is_smooth=True, has_mode=True),
    td.Gumbel: Facts(is_smooth=True, has_mode=True),
    td.HalfCauchy: Facts(
        is_smooth=True,
        has_mode=True,
        tails=lambda p: (math.inf, 1.0),
    ),
    td.HalfNormal: Facts(
        is_smooth=True,
        has_mode=True,
        law=lambda p: Law("normal", 0.0, p.scale, lower=0.0, log_factor=math.log(2)),
    ),
    td.InverseGamma: Facts(is_smooth=True, tails=lambda p: (math.inf, p.concentration)),
    td.Kumaraswamy: Facts(is_smooth=True),
    td.LogNormal: Facts(
        is_smooth=True,
        has_mode=True,
        law=lambda p: Law("normal", p.loc, p.scale, exponential=True, lower=0.0),
    ),
    td.Pareto: Facts(
        is_smooth=True,
        has_mode=True,
        tails=lambda p: (math.inf, p.alpha),
        law=lambda p: Law(
            "exponential", p.scale.log(), p.alpha.reciprocal(), exponential=True, lower=p.scale
        ),
    ),
    td.StudentT: Facts(is_smooth=True, has_mode=True, tails=lambda p: (p.df, p.df)),
    td.Weibull: Facts(is_smooth=True),
}
_UNKNOWN = Facts(tails=None)


def torch_class(p: td.Distribution) -> type | None:
    """Return the class of a distribution, torch's for Pyro's of that name; None if it is a user's.

    The class of a user that derives from torch's may have another `log_prob`.
    """
    return _CLASSES.get(type(p))


def facts_of(p: td.Distribution) -> Facts:
    """Return the facts about the class of a distribution, defaults for classes without any."""
    return _FACTS.get(torch_class(p), _UNKNOWN)
