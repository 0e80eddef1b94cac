"""Densities of torch's with the members that those here have."""

import math
from typing import Any, ClassVar

import pyro.distributions
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..numerics.validation import attributes, copied
from .base import SparseDistribution

__all__ = ["ForeignDistribution", "class_name", "is_discrete", "kind_of"]


def class_name(p: Distribution) -> str | None:
    """The name of a distribution's class, if that is torch's or Pyro's and not a user's own."""
    name = type(p).__name__
    known = (getattr(module, name, None) for module in (torch.distributions, pyro.distributions))
    return name if type(p) in known else None


def _unchecked(p: Distribution, widened: bool = False) -> Distribution:
    """A copy without validation, which is for the support and not for what rounding makes of it.

    Args:
        p: The original.
        widened: Whether the copy has its parameters in float64.
    """
    p = copied(p)
    p._validate_args = False
    for name, value in attributes(p).items():
        if isinstance(value, Distribution):
            setattr(p, name, _unchecked(value, widened))
        elif widened and isinstance(value, Tensor) and value.is_floating_point():
            setattr(p, name, value.double())
    return p


def is_discrete(p: Distribution) -> bool:
    """Whether a law has probabilities rather than a density."""
    if isinstance(p, SparseDistribution):
        return bool(p.has_enumerate_support)  # a support may be expensive
    try:
        declared: Any = type(p).support
        return bool(declared.is_discrete)
    except (AttributeError, NotImplementedError):
        support: Any = p.support
        return bool(support.is_discrete)


def kind_of(p: Distribution) -> dict[str, Any]:
    """Type and device of a distribution's parameters; empty where it has none."""
    held = attributes(p).values()
    for value in held:
        if isinstance(value, Tensor) and value.is_floating_point():
            return {"dtype": value.dtype, "device": value.device}
    for value in held:
        if isinstance(value, Distribution):
            return kind_of(value)
    return {}


class ForeignDistribution(SparseDistribution):
    """A continuous distribution of torch's, asked for what the densities here know.

    Off the support `log_prob` is -inf with a zero gradient, whatever the original does there.

    Args:
        base: The original (*batch), which `expand` leaves as it is.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    # Whether to ask a copy with parameters in float64: their formulas lose digits of float32.
    _widened: ClassVar[bool] = False

    def __init__(self, base: Distribution) -> None:
        self._drawn: Any = _unchecked(base)
        # Only a class that is known keeps all it knows in tensors.
        widened = self._widened and class_name(base) is not None
        self.base: Any = _unchecked(base, widened)
        self.alpha = torch.ones(base.batch_shape, **kind_of(self.base))
        Distribution.__init__(self, base.batch_shape, base.event_shape, validate_args=False)

    def __repr__(self) -> str:
        return f"ForeignDistribution({self.base})"

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The original's."""
        support: Constraint = self.base.support
        return support

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the original has it."""
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
        """Covariance matrix (*batch, D, D) of vectors."""
        if isinstance(self.base, torch.distributions.Independent):
            return self.variance.diag_embed()
        return self._required("covariance_matrix")

    @property
    def mode(self) -> Tensor:
        """Mode (*batch, *event)."""
        return self._required("mode")

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; -inf with zero gradient off the support."""
        inside, found = self._looked_up(value)
        # On an end of the support it may be infinite, and its derivatives undefined.
        finite = found.isfinite()
        density = self.base.log_prob(self._moved(value, inside & finite))
        return torch.where(inside, torch.where(finite, density, found), -math.inf)

    def _looked_up(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Whether values are inside, and the log densities of those, without gradient."""
        with torch.no_grad():
            inside = self.base.support.check(value)
            # Some say that they live on the whole line, and are NaN on part of it.
            found = self.base.log_prob(self._moved(value, inside))
            return inside, found.nan_to_num(-math.inf, math.inf, -math.inf)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch, *event)."""
        drawn: Tensor = self._expanded().sample(sample_shape)
        return drawn

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch, *event) with the original's derivatives."""
        drawn: Tensor = self._expanded().rsample(sample_shape)
        return drawn

    def _expanded(self) -> Any:
        p = self._drawn  # whose own `expand` torch 2.11 cannot trace
        return p if p.batch_shape == self.batch_shape else p.expand(self.batch_shape)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """Of densities of numbers only."""
        raise NotImplementedError(f"expectations under {type(self.base).__name__} are not known")

    def _moved(self, value: Tensor, inside: Tensor) -> Tensor:
        """Locations, those that are not inside moved to somewhere that is."""
        inside = inside.reshape((*inside.shape, *(1,) * len(self.event_shape)))
        return torch.where(inside, value, self._inside())

    def _inside(self) -> Tensor:
        """A location in the support (*batch, *event)."""
        known = self._known("mean")
        return self.alpha.new_zeros(self.event_shape) if known is None else known.detach()

    def _known(self, name: str) -> Tensor | None:
        """What the original says, if it does."""
        try:
            found: Tensor = getattr(self.base, name)
        except (AttributeError, NotImplementedError):
            return None
        return found

    def _required(self, name: str) -> Tensor:
        found = self._known(name)
        if found is None:
            raise NotImplementedError(f"{type(self.base).__name__} does not know its {name}")
        return found
