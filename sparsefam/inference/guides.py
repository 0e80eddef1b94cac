"""`AutoBetaGaussian`: an automatic guide with compact support."""

import math
import warnings
from collections.abc import Callable
from typing import cast

import torch
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_feasible
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Distribution, biject_to

from .._numerics.validation import as_number
from ..distributions import BetaGaussian
from .reparam import Site, examine

__all__ = ["AutoBetaGaussian"]


class AutoBetaGaussian(AutoNormal):
    r"""Mean-field guide like Pyro's `AutoNormal`, with compact beta-Gaussians for normals.

    In unconstrained space, each element of each site has an independent `BetaGaussian` with its own
    `loc` and `scale`, the half-width of its support. The bijection maps that to an interval inside
    the site's support; the guide's density is exactly zero elsewhere. So `Trace_ELBO` is finite for
    models whose densities are positive on their sites' supports. A likelihood with bounded support
    can make it infinite, even from a feasible start: use `TsallisELBO` then. Sites whose support
    moves need `SupportReparam` first. When the guide is first called, it runs the model at ten
    random values of the latent sites and warns of both.

    No sample lies outside of `quantiles([0.0, 1.0])`. As with all mean-field guides, variances are
    too small where sites depend on each other.

    Args:
        model: A Pyro model.
        alpha: Entropic index in (1, inf]: 2 is the truncated parabola, inf the uniform density. Use
            `AutoNormal` for alpha = 1.
        init_loc_fn: Initial values of sites, as for `AutoNormal`.
        init_scale: Initial standard deviation of each guide, in unconstrained space.
        create_plates: As for `AutoNormal`.

    Raises:
        TypeError: `model` is not callable.
        ValueError: `alpha` is not a number above 1, or `init_scale` is not positive.

    Warns:
        MovingSupportWarning: At the first call, for each latent site whose support moves.
        RuntimeWarning: At the first call, unless it is by `TsallisELBO` or `FenchelYoungELBO`: the
            density of the model is zero or NaN at some values of the latent sites. It names the
            sites that make it so.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms. arXiv:2006.07214

    Examples:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> pyro.clear_param_store()  # of guides before this one
        >>> pyro.set_rng_seed(0)
        >>> def model():
        ...     pyro.sample("z", dist.LogNormal(0.0, 1.0))
        >>> guide = AutoBetaGaussian(model, alpha=2.0, init_scale=0.2)
        >>> _ = guide()
        >>> low, high = guide.quantiles([0.0, 1.0])["z"]
        >>> torch.log(high / low)  # twice the half-width, 0.2 sqrt(5)
        tensor(0.8944)
    """

    # Objectives that are finite where the density of the model is zero set this to False.
    objective_needs_support = True

    def __init__(
        self,
        model: Callable[..., object],
        alpha: float = 2.0,
        *,
        init_loc_fn: Callable[..., object] = init_to_feasible,
        init_scale: float = 0.1,
        create_plates: Callable[..., object] | None = None,
    ) -> None:
        if not callable(model):
            raise TypeError(f"model must be callable, got {model!r}")
        if not as_number(alpha) > 1:
            raise ValueError(f"alpha must be a number above 1, got {alpha!r}; 1 is AutoNormal")
        if not 0 < as_number(init_scale) < math.inf:
            raise ValueError(f"init_scale must be positive and finite, got {init_scale!r}")
        self.alpha: float = alpha
        options = {"init_loc_fn": init_loc_fn, "create_plates": create_plates}
        # The half-width of a density with standard deviation 1: in the variance
        # scale^2 / (3 + 2 / (alpha - 1)) the scale is the half-width.
        half_width = math.sqrt(3 + 2 / (alpha - 1))
        super().__init__(model, init_scale=init_scale * half_width, **options)

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Sample all sites; takes the arguments of the model.

        Returns:
            Values by the names of sites.
        """
        # AutoNormal samples normals in unconstrained space, and maps them onto the supports.
        with _CompactNormals(self.alpha):
            values: dict[str, Tensor] = super().forward(*args, **kwargs)
        return values

    def _setup_prototype(self, *args: object, **kwargs: object) -> None:
        """Make the parameters at the first call, and warn of supports and densities of zero."""
        super()._setup_prototype(*args, **kwargs)
        _, zeros = examine(self.model, args, kwargs)
        # One description for each random start, empty where the density is positive.
        if self.objective_needs_support and any(zeros):
            warnings.warn(
                f"the density of site {next(filter(None, zeros))} at some values of the latent "
                "sites, and Trace_ELBO is infinite if the guide reaches them. Use "
                "sparsefam.inference.TsallisELBO or FenchelYoungELBO",
                RuntimeWarning,
                stacklevel=3,
            )

    @torch.no_grad()
    def quantiles(
        self, quantiles: list[float] | Tensor, *args: object, **kwargs: object
    ) -> dict[str, Tensor]:
        """Return quantiles of each site; levels 0 and 1 give the ends of the guide's support.

        Args:
            quantiles: Levels between 0 and 1, (Q).
            *args: Not used.
            **kwargs: Not used.

        Returns:
            Values (Q, *shape) by the names of sites.
        """
        values = {}
        trace = cast(Trace, self.prototype_trace)
        for name, site in trace.iter_stochastic_nodes():
            loc, scale = self._get_loc_and_scale(name)
            guide = BetaGaussian(loc, scale, self.alpha)
            levels = torch.as_tensor(quantiles).to(guide.mean)
            free = guide.icdf(levels.reshape(-1, *(1,) * guide.mean.dim()))
            values[name] = biject_to(cast(Distribution, site["fn"]).support)(free)
        return values


class _CompactNormals(Messenger):
    """Replaces the normals of `AutoNormal`, in unconstrained space."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def _pyro_sample(self, msg: Site) -> None:
        """Give a site of unconstrained values the beta-Gaussian with the same loc and scale."""
        # So `AutoNormal` marks its sites in unconstrained space.
        if msg["infer"].get("is_auxiliary"):
            fn = msg["fn"]
            normal = fn.base_dist if fn.event_dim else fn
            guide = BetaGaussian(normal.loc, normal.scale, self.alpha)
            msg["fn"] = guide.to_event(fn.event_dim)
