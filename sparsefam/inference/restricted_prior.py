"""`RestrictedPrior`: a prior that is zero wherever the likelihood must be zero."""

import math
from typing import ClassVar, cast

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import Distribution, biject_to, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from .._numerics.validation import as_tensors, broadcast_shapes
from ..supports import Interval, IntervalUnion

__all__ = ["RestrictedPrior"]


class RestrictedPrior(TorchDistribution):
    r"""A prior that is zero wherever the likelihood must be zero, not renormalized.

    Noise of half-width $s$ that is bounded allows no residual above $s$. Chains that sample $s$
    from its prior run into that wall, and diverge there. If the largest residual $r$ is known when
    $s$ is sampled, $s$ can be sampled where the posterior is positive:

        s = pyro.sample("s", RestrictedPrior(dist.LogNormal(0.0, 1.0), low=r))

    The density equals the prior between the ends and is zero elsewhere. It has the prior's mass
    there, not mass one, so that the posterior stays the same as long as the likelihood is zero
    outside. The support moves with $r$: apply `AutoSupportReparam`, which samples $s - r > 0$, and
    between two ends the fraction of the interval. Data must not be subsampled, because all
    observations determine the ends.

    Two numbers must be a lower and a higher end. Tensors may depend on latent sites, and the
    interval be empty at some of their values: the density is zero there, which a chain rejects.

    A sample is a place to start, between the ends; it is not a draw of the prior.

    Args:
        prior: A continuous univariate prior (*batch) whose support is one interval.
        low: Lower end (*batch), for instance the largest absolute residual; None for no end.
        high: Upper end (*batch); None for no end.

    Raises:
        ValueError: Not a distribution, or one that is discrete, of vectors or on several intervals;
            neither end given; ends that are no real numbers; numbers between which nothing is left
            of the prior's support; shapes that do not broadcast.

    Examples:
        >>> s = RestrictedPrior(torch.distributions.Exponential(1.0), low=torch.tensor(2.0))
        >>> s.log_prob(torch.tensor([1.0, 3.0]))
        tensor([-inf, -3.])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        prior: Distribution,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
    ) -> None:
        if not isinstance(prior, Distribution):
            raise ValueError(f"prior must be a distribution, got {prior!r}")
        support = cast(Constraint, prior.support)
        if support.is_discrete or support.event_dim or isinstance(support, IntervalUnion):
            rule = "continuous and univariate, on one interval"
            raise ValueError(f"prior must be {rule}, got {prior} on {support}")
        if low is None and high is None:
            raise ValueError("low or high must be given, got None for both")
        self.prior = prior
        infinite = {"low": -math.inf, "high": math.inf}
        given = {"low": low, "high": high}
        ends = as_tensors(**{n: infinite[n] if end is None else end for n, end in given.items()})
        least = getattr(support, "lower_bound", -math.inf)
        most = getattr(support, "upper_bound", math.inf)
        # Only numbers are compared: tensors may depend on latent sites, and their values vary.
        lowers, uppers = [
            [x for x in pair if x is not None and not isinstance(x, Tensor)]
            for pair in ((low, least), (high, most))
        ]
        if not max(lowers, default=-math.inf) < min(uppers, default=math.inf):
            rule = "low must be below high, inside of the prior's support"
            raise ValueError(f"{rule}, got {low} and {high} for {prior} on {support}")
        self.low = torch.maximum(ends["low"], torch.as_tensor(least).to(ends["low"]))
        self.high = torch.minimum(ends["high"], torch.as_tensor(most).to(ends["high"]))
        shapes = self.low.shape, self.high.shape
        try:
            shape = broadcast_shapes(prior.batch_shape, *shapes)
        except RuntimeError as error:
            raise ValueError(f"prior, low and high must broadcast: {error}") from error
        super().__init__(shape, validate_args=False)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """The interval or the half-line between the ends; one of length 1 if it is empty."""
        if (self.low == -math.inf).all():
            return constraints.less_than(self.high)
        if (self.high == math.inf).all():
            return constraints.greater_than(self.low)
        # A bijection needs an interval; the density is zero on this one.
        return Interval(self.low, torch.where(self.low < self.high, self.high, self.low + 1))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the prior between the ends; -inf outside of them."""
        inside = (value >= self.low) & (value <= self.high)
        # Outside, the prior may raise or have NaN for a gradient: ask it at some inner point.
        anywhere = biject_to(self.prior.support)(torch.zeros_like(value))
        log_density: Tensor = self.prior.log_prob(torch.where(inside, value, anywhere))
        return torch.where(inside, log_density, -math.inf)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Return random starting points, between the ends (*sample, *batch)."""
        shape, like = self.shape(sample_shape), self.low
        # Any point between the ends is a start, so the bijection takes noise there.
        noise = torch.randn(shape, dtype=like.dtype, device=like.device)
        return biject_to(self.support)(noise).detach()

    def expand(self, batch_shape: _size, _instance: object = None) -> "RestrictedPrior":
        """Return the prior with a larger batch."""
        ends = self.low.expand(batch_shape), self.high.expand(batch_shape)
        return RestrictedPrior(self.prior.expand(batch_shape), *ends)
