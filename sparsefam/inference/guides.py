"""An automatic guide of compact densities."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_feasible
from torch import Tensor
from torch.distributions import biject_to

from ..distributions import BetaGaussian, Normal, SparseDistribution

__all__ = ["AutoBetaGaussian"]


class AutoBetaGaussian(AutoNormal):
    r"""As Pyro's `AutoNormal`, but with beta-Gaussians: each site has a guide with a last value.

    In unconstrained space each number of each site has an independent `BetaGaussian` of its own
    `loc` and `scale`, half the width of its support. Carried to the site's support it is an
    interval strictly inside of it: the guide's density is exactly zero elsewhere, and supports are
    nested, so that `Trace_ELBO` is finite. Sites whose support moves need `SupportReparam` first.

    A compact guide is the answer to tails that are not believed in: no sample of it is further out
    than `quantiles([0.0, 1.0])`. As with all that is mean-field, its variances are too small where
    sites depend on each other.

    Args:
        model: A model of Pyro's.
        alpha: Entropic index in [1, inf]: 1 is `AutoNormal`, 2 the truncated parabola.
        init_loc_fn: Where sites start, as for `AutoNormal`.
        init_scale: Standard deviation of each guide at the start, in unconstrained space.
        create_plates: As for `AutoNormal`.

    Raises:
        ValueError: `alpha` below 1, `init_scale` not positive.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms. arXiv:2006.07214

    Examples:
        >>> pyro.set_rng_seed(0)
        >>> def model():
        ...     pyro.sample("z", dist.LogNormal(0.0, 1.0))
        >>> guide = AutoBetaGaussian(model, alpha=2.0, init_scale=0.2)
        >>> _ = guide()
        >>> low, high = guide.quantiles([0.0, 1.0])["z"]
        >>> torch.log(high / low)  # twice the half-width, 0.2 sqrt(5)
        tensor(0.8944)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        alpha: float = 2.0,
        *,
        init_loc_fn: Callable[..., Any] = init_to_feasible,
        init_scale: float = 0.1,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        if not alpha >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha}")
        self.alpha = alpha
        options = {"init_loc_fn": init_loc_fn, "create_plates": create_plates}
        super().__init__(model, init_scale=init_scale * _half_width(alpha), **options)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Samples all sites; arguments as those of the model.

        Returns:
            Values by the names of sites.
        """
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        trace: Any = self.prototype_trace
        plates = self._create_plates(*args, **kwargs)
        result = {}
        for name, site in trace.iter_stochastic_nodes():
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    if frame.vectorized:
                        stack.enter_context(plates[frame.name])
                result[name] = self._sample(name, site["fn"])
        return result

    def _sample(self, name: str, fn: Any) -> Tensor:
        law = self._law(name).to_event(self._event_dims[name])
        free = pyro.sample(f"{name}_unconstrained", law, infer={"is_auxiliary": True})
        transform = biject_to(fn.support)
        value = transform(free)
        log_density: Tensor | float = 0.0
        if poutine.get_mask() is not False:
            slope = transform.inv.log_abs_det_jacobian(value, free)
            log_density = sum_rightmost(slope, slope.dim() - value.dim() + fn.event_dim)
        delta = dist.Delta(value, log_density=log_density, event_dim=fn.event_dim)
        found: Tensor = pyro.sample(name, delta)
        return found

    def _law(self, name: str) -> SparseDistribution:
        loc, scale = self._get_loc_and_scale(name)
        return Normal(loc, scale) if self.alpha == 1 else BetaGaussian(loc, scale, self.alpha)

    @torch.no_grad()
    def quantiles(
        self, quantiles: list[float] | Tensor, *args: Any, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Quantiles of each site, those of 0 and 1 being the ends of its support.

        Args:
            quantiles: Levels between 0 and 1, (Q).
            *args: Not used.
            **kwargs: Not used.

        Returns:
            Values (Q, *shape) by the names of sites.
        """
        found = {}
        trace: Any = self.prototype_trace
        for name, site in trace.iter_stochastic_nodes():
            law = self._law(name)
            levels = torch.as_tensor(quantiles).to(law.mean)
            free = law.icdf(levels.reshape(-1, *(1,) * law.mean.dim()))
            found[name] = biject_to(site["fn"].support)(free)
        return found


def _half_width(alpha: float) -> float:
    """Of the support, for a standard deviation of 1; of a normal, which has none, that."""
    return 1.0 if alpha == 1 else math.sqrt(3 + 2 / (alpha - 1))
