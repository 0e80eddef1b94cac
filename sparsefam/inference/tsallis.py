"""An objective for variational inference that stays finite where supports are not nested."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions.util import is_identically_zero
from pyro.infer import Trace_ELBO
from pyro.infer.elbo import ELBO
from pyro.poutine.trace_struct import Trace
from pyro.util import warn_if_nan
from torch import Tensor

from ..numerics.validation import is_count

__all__ = ["TsallisELBO"]

# The weight of the newest particles in the running scale.
_SHARE = 0.1


class TsallisELBO(ELBO):
    r"""The evidence lower bound of Tsallis' divergence, finite whatever the supports.

    The usual bound is $-\infty$ wherever the guide $q$ puts mass that the posterior does not. Here
    the logarithm is deformed, $\ln_\alpha r = (r^{1-\alpha} - 1)/(1 - \alpha)$ with
    $0 < \alpha < 1$, whose value at $r = 0$ is finite:

    $$\mathcal{L} = c + E_q\left[\ln_\alpha\frac{p(x, z)}{q(z)\,e^c}\right]
    = c + \ln_\alpha\frac{p(x)}{e^c} -
    \left(\frac{p(x)}{e^c}\right)^{1-\alpha} D_\alpha(q\,\|\,p(\cdot \mid x))$$

    with $D_\alpha$ of `tsallis_divergence`, at most $1/(1 - \alpha)$. For any scale $c$ the guide
    that maximises it has the least $D_\alpha$; as $\alpha \to 1$ it is the usual bound. The scale
    follows $\log E_q[(p(x, z)/q(z))^{1-\alpha}]/(1 - \alpha)$, the Rényi bound, so that neither
    overflows: there the two are equal. Pyro's `RenyiELBO` is this bound with the particles of one
    step for its scale, and NaN if none of them is inside.

    Gradients are pathwise for sites that are reparameterized, else those of scores with the
    deformed logarithm, which is about zero, in place of the log ratio. Pathwise gradients know
    nothing of mass that crosses an edge where the posterior jumps, as that of a uniform prior does;
    sample such sites of the guide from `law.has_rsample_(False)`. The guide's own density must then
    vanish at its ends: the score of one that jumps (`alpha=inf`) has the wrong mean, and that of
    `alpha` from 2 on no variance. Where densities vanish continuously pathwise gradients are right.

    Args:
        alpha: Order, between 0 and 1. Smaller ones forgive mass off the support more and have
            noisier gradients in many dimensions.
        num_particles: Samples of the guide for each step.
        **kwargs: As for all of Pyro's bounds: `vectorize_particles`, `max_plate_nesting` and so on.

    Raises:
        ValueError: `alpha` not between 0 and 1; `num_particles` not a positive integer. On a step:
            none of the particles up to now has been on the support of the model.

    Warns:
        RuntimeWarning: On a step: none of its particles has been on the support. The bound is
            finite, and flat.

    References:
        Li and Turner (2016), Rényi divergence variational inference. arXiv:1602.02311
        Furuichi, Yanagi and Kuriyama (2004), Fundamental properties of Tsallis relative entropy.
        arXiv:cond-mat/0406178

    Examples:
        >>> import pyro
        >>> from sparsefam import BetaGaussian
        >>> model = lambda: pyro.sample("z", BetaGaussian(0.0, 1.0, math.inf))
        >>> guide = lambda: pyro.sample("z", BetaGaussian(1.0, 1.0, math.inf))
        >>> pyro.set_rng_seed(0)
        >>> TsallisELBO(0.5, 1000).loss(model, guide)  # 2 log 2, as they share a half of each
        1.4
    """

    def __init__(self, alpha: float = 0.5, num_particles: int = 8, **kwargs: Any) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        if not is_count(num_particles):
            raise ValueError(f"num_particles must be a positive integer, got {num_particles}")
        super().__init__(num_particles=num_particles, **kwargs)
        self.alpha = alpha
        self._log_moment: float | None = None  # of the running scale, (1 - alpha) c

    def loss(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> float:
        """An estimate of the negative bound; the running scale is left as it was."""
        kept = self._log_moment
        with torch.no_grad():
            found, _ = self._estimate(model, guide, args, kwargs)
        self._log_moment = kept
        return found

    def differentiable_loss(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """An estimate whose gradient estimates that of the negative bound."""
        found, surrogate = self._estimate(model, guide, args, kwargs)
        return found + (surrogate - surrogate.detach())

    def loss_and_grads(
        self, model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> float:
        """An estimate; its gradients are added to those of the parameters."""
        found, surrogate = self._estimate(model, guide, args, kwargs)
        if surrogate.requires_grad:
            surrogate.backward(retain_graph=self.retain_graph)
        return found

    def _estimate(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[float, Tensor]:
        """The negative bound, and what has its gradients."""
        parts = [
            (self._sums(m, "log_prob"), self._sums(g, "log_prob"), self._sums(g, "score"))
            for m, g in self._get_traces(model, guide, args, kwargs)
        ]
        log_p, log_q, log_r = (torch.cat(x) for x in zip(*parts, strict=True))
        # A NaN, unlike these, is to be seen.
        inside = ~((log_p == -math.inf) | (log_q == -math.inf))
        log_w = torch.where(inside, log_p, 0.0) - torch.where(inside, log_q, 0.0)
        power = torch.where(inside, (1 - self.alpha) * log_w.detach().double(), -math.inf)
        log_moment = self._rescaled(power)
        ratio = torch.exp(power - log_moment)
        mean: Tensor = warn_if_nan(ratio.mean(), "loss")
        bound = (log_moment + mean.item() - 1) / (1 - self.alpha)
        # A score has no mean, outside and inside together: the constant alpha makes its variance
        # small, as with it the weight of log q is zero in all at a ratio of 1.
        score = torch.where(log_q == -math.inf, 0.0, log_r) * (ratio - self.alpha)
        score = score / (1 - self.alpha)
        return -bound, -(ratio * log_w + score).mean()

    def _rescaled(self, power: Tensor) -> float:
        """The running logarithm of the mean of e^power, with these new ones."""
        newest = torch.logsumexp(power, 0).item() - math.log(len(power))
        old = self._log_moment
        if old is None:
            old = newest
        if old == -math.inf:
            raise ValueError(
                "guide must overlap the support of the model, got no particle of "
                f"{len(power)} with a positive density: start it elsewhere or use more particles"
            )
        if newest == -math.inf:
            warnings.warn(
                f"none of {len(power)} particles is on the support of the model: this step has no "
                "gradient; if it goes on, use smaller steps or more particles",
                RuntimeWarning,
                stacklevel=4,
            )
        terms = torch.tensor(
            [old + math.log(1 - _SHARE), newest + math.log(_SHARE)], dtype=torch.float64
        )
        self._log_moment = torch.logsumexp(terms, 0).item()
        return self._log_moment

    def _sums(self, trace: Trace, what: str) -> Tensor:
        """Log densities of all sites, or those of the sites without pathwise gradients (K,)."""
        count = self.num_particles if self.vectorize_particles else 1
        total = torch.zeros(count)
        for site in trace.nodes.values():
            if site["type"] == "sample":
                found = site["log_prob"] if what == "log_prob" else site["score_parts"][1]
                if not is_identically_zero(found):
                    total = total.to(found.device) + found.reshape(count, -1).sum(-1)
        return total

    _get_trace = Trace_ELBO._get_trace
