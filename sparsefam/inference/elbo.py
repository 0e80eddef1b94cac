"""Variational objectives that are finite for supports that are not nested."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import cast

import numpy as np
import torch
from pyro.distributions.torch_distribution import MaskedDistribution
from pyro.distributions.util import is_identically_zero, scale_and_mask, sum_rightmost
from pyro.infer import Trace_ELBO
from pyro.infer.elbo import ELBO
from pyro.poutine.trace_struct import Trace
from pyro.util import warn_if_nan
from torch import Tensor
from torch.distributions import Distribution, Independent

from .._numerics.validation import as_number, require, require_integer
from ..distributions import SparseDistribution
from ..losses import checked_alpha, conjugate
from .guides import AutoBetaGaussian
from .reparam import Site

__all__ = ["FenchelYoungELBO", "TsallisELBO"]

_Program = Callable[..., object]  # a model or a guide

# The weight of the newest particles in the running scale.
_NEWEST = 0.1


class _ParticleELBO(ELBO):
    """An objective that is estimated from the log densities of independent particles.

    A subclass may keep a state from one step to the next.
    """

    _state: float | None = None  # Left by the last step; None before the first one

    def __init__(self, num_particles: int, **kwargs: object) -> None:
        require_integer("num_particles", num_particles, 1)
        super().__init__(num_particles=num_particles, **kwargs)

    def loss(self, model: _Program, guide: _Program, *args: object, **kwargs: object) -> float:
        """Return an estimate of the loss, the negative bound; the state does not change."""
        with torch.no_grad():
            loss, _, _ = self._estimate(self._get_traces(model, guide, args, kwargs))
            return float(warn_if_nan(loss, "loss"))

    def differentiable_loss(
        self, model: _Program, guide: _Program, *args: object, **kwargs: object
    ) -> Tensor:
        """Return an estimate whose gradient estimates the loss's."""
        traces = self._get_traces(model, guide, args, kwargs)
        loss, surrogate, self._state = self._estimate(traces)
        # The value of the loss, with the gradient of the surrogate.
        return warn_if_nan(loss, "loss") + (surrogate - surrogate.detach())

    def loss_and_grads(
        self, model: _Program, guide: _Program, *args: object, **kwargs: object
    ) -> float:
        """Return an estimate and add its gradients to the parameters'."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _estimate(
        self, traces: Iterable[tuple[Trace, Trace]]
    ) -> tuple[Tensor, Tensor, float | None]:
        """Estimate the loss from traces of model and guide.

        Returns:
            The loss, a number; a surrogate, whose gradient estimates the gradient of the loss; and
            the state after this step.
        """
        raise NotImplementedError

    def _particles(
        self, trace: Trace, term: Callable[[Site], Tensor | float] = itemgetter("log_prob")
    ) -> Tensor:
        """Return the sum of a term over all sites, for each particle (K,) of a trace.

        K is `num_particles` if they are vectorized, else 1. The term maps a site to numbers (the
        site's batch), or to the number 0.
        """
        count = self.num_particles if self.vectorize_particles else 1
        total = torch.zeros(count)
        for site in trace.nodes.values():
            if site["type"] == "sample":
                value = term(cast(Site, site))
                if isinstance(value, Tensor) and not is_identically_zero(value):
                    # Vectorized particles are the leading dimension of every term.
                    total = total.to(value.device) + value.reshape(count, -1).sum(-1)
        return total

    def _get_traces(
        self, model: _Program, guide: _Program, args: object, kwargs: object
    ) -> Iterator[tuple[Trace, Trace]]:
        """Yield traces of model and guide, one pair for each run; see `_get_trace`."""
        if isinstance(guide, AutoBetaGaussian):
            # The loss stays finite where the density of the model is zero.
            guide.objective_needs_support = False
        return super()._get_traces(model, guide, args, kwargs)

    # Runs guide and model once, with log densities, and score parts of the guide, at their sites.
    _get_trace = Trace_ELBO._get_trace


class TsallisELBO(_ParticleELBO):
    r"""Evidence lower bound with Tsallis' divergence, finite for any supports.

    The usual bound is $-\infty$ if the guide $q$ has mass where the posterior has none. This bound
    deforms the logarithm, $\ln_\alpha r = (r^{1-\alpha} - 1)/(1 - \alpha)$ with
    $0 < \alpha < 1$, whose value at $r = 0$ is finite:

    $$\mathcal{L} = c + E_q\left[\ln_\alpha\frac{p(x, z)}{q(z)\,e^c}\right]
    = c + \ln_\alpha\frac{p(x)}{e^c} -
    \left(\frac{p(x)}{e^c}\right)^{1-\alpha} D_\alpha(q\,\|\,p(\cdot \mid x))$$

    with $D_\alpha$ of `tsallis_divergence`, at most $1/(1 - \alpha)$. For any scale $c$ the guide
    that maximizes it has the least $D_\alpha$; as $\alpha \to 1$ it is the usual bound. The scale
    follows the Rényi bound $\log E_q[(p(x, z)/q(z))^{1-\alpha}]/(1 - \alpha)$, to which it is then
    equal, so that it does not overflow.

    Gradients are pathwise for reparameterized sites; other sites use the score function with the
    deformed logarithm in place of the log ratio. Pathwise gradients miss mass that crosses an edge
    where the posterior jumps, as with a uniform prior; sample such sites of the guide from
    `guide_density.has_rsample_(False)`. The guide's own density must then vanish at its ends: the
    score of one that jumps (`alpha=inf`) has the wrong mean, and for `alpha` of 2 and above it has
    infinite variance. Pathwise gradients are right where densities vanish continuously.

    Args:
        alpha: Order, between 0 and 1. A smaller order penalizes mass off the support less, and has
            noisier gradients in many dimensions.
        num_particles: Number of samples of the guide for each step. Each is a run of the guide and
            the model, unless `vectorize_particles=True` makes them a dimension of one run.
        **kwargs: Options of Pyro's `ELBO`: `vectorize_particles`, `max_plate_nesting` and so on.

    Raises:
        ValueError: `alpha` not between 0 and 1; `num_particles` not a positive integer. On the
            first step: no particle is on the support of the model.

    Warns:
        RuntimeWarning: No particle of a step is on the support. The bound is finite and flat.

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
        >>> TsallisELBO(0.5, 1000).loss(model, guide)  # 2 log 2: the supports overlap by half
        1.4
    """

    def __init__(self, alpha: float = 0.5, num_particles: int = 8, **kwargs: object) -> None:
        if not 0 < as_number(alpha) < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha!r}")
        super().__init__(num_particles, **kwargs)
        self.alpha: float = alpha

    def _estimate(self, traces: Iterable[tuple[Trace, Trace]]) -> tuple[Tensor, Tensor, float]:
        """Estimate the negative bound, and return the three results of the base class.

        The state is (1 - alpha) c, with the running scale c. Vectors are (K,), one number for each
        particle.
        """
        terms = [
            (self._particles(m), self._particles(g), self._particles(g, _score_term))
            for m, g in traces
        ]
        # Log densities of each particle under the model, under the guide, and under its sites
        # without pathwise gradients.
        log_p, log_q, log_score = (torch.cat(x) for x in zip(*terms, strict=True))
        # Written so that a particle with a density of NaN is inside, and `warn_if_nan` reports it.
        inside = ~((log_p == -math.inf) | (log_q == -math.inf))
        log_w = torch.where(inside, log_p, 0.0) - torch.where(inside, log_q, 0.0)
        # In float64, as differences of large logarithms follow.
        log_power = torch.where(inside, (1 - self.alpha) * log_w.detach().double(), -math.inf)
        log_moment = self._running_log_moment(log_power)
        ratio = torch.exp(log_power - log_moment)
        # c + E[ln_alpha(w / e^c)] with w^(1 - alpha) / e^((1 - alpha) c) = ratio.
        bound = (log_moment + ratio.mean() - 1) / (1 - self.alpha)
        # Scores have mean zero, so a constant may be subtracted from their weight: with alpha the
        # total weight of log q is zero where the ratio is 1, and the variance small.
        score = torch.where(log_q == -math.inf, 0.0, log_score) * (ratio - self.alpha)
        score = score / (1 - self.alpha)
        # The ratio is constant here: d ln_alpha(w / e^c) = ratio d log w is the pathwise gradient.
        return -bound, -(ratio * log_w + score).mean(), log_moment

    def _running_log_moment(self, log_power: Tensor) -> float:
        """Return the log of a running mean of w^(1 - alpha), from log w^(1 - alpha) (K,)."""
        count = len(log_power)
        newest = torch.logsumexp(log_power, 0).item() - math.log(count)
        old = self._state
        if old is None:
            old = newest
        if old == -math.inf:
            raise ValueError(
                "guide must overlap the support of the model, got no particle of "
                f"{count} with a positive density: start it elsewhere or use more particles"
            )
        if newest == -math.inf:
            warnings.warn(
                f"none of {count} particles is on the support of the model: this step has no "
                "gradient; if it goes on, use smaller steps or more particles",
                RuntimeWarning,
                stacklevel=4,
            )
        # The moving average of moments, in logarithms.
        terms = old + math.log(1 - _NEWEST), newest + math.log(_NEWEST)
        return float(np.logaddexp(*terms))


class FenchelYoungELBO(_ParticleELBO):
    r"""Fenchel-Young free energy: finite for any supports, with gradients where densities are zero.

    The usual bound is $E_q[-\log p(x, z)] - H(q)$, with Shannon's entropy $H$. Here the regularizer
    is Tsallis' negative entropy, and each site of the model has its Fenchel-Young loss:

    $$\mathcal{F}(q) = E_q\Big[\sum_i \ell_i\Big] + \Omega_\alpha(q), \qquad
    \Omega_\alpha(q) = E_q\left[\frac{q^{\alpha - 1} - 1}{\alpha(\alpha - 1)}\right]$$

    A site whose distribution is one of this package with a score $f_i$ has the loss
    $\ell_i = \Omega^*_{\alpha_i}(f_i) - f_i$ of `fenchel_young`, also finite off its support.
    Other sites have $\ell_i = -\log p_i$, which is that loss at an index of 1.

    The best of all guides is $q^* = \exp_{2-\alpha}(-\sum_i \ell_i - A)$, the prediction map `rpm`
    of the negative losses, and $\mathcal{F}(q) - \mathcal{F}(q^*)$ is the Fenchel-Young loss
    $L_\alpha(-\sum_i \ell_i;\, q)$. This generalized posterior is Bayes' only if alpha and all
    $\alpha_i$ are 1: its location is often similar, but its width, its support and its dependence
    on the units of $z$ are not. To find Bayes' posterior use `TsallisELBO`, which may start from
    the guide that is found here. Gradients are pathwise, or by the score function for sites that
    are not reparameterized.

    Args:
        alpha: Entropic index of the guide's regularizer, at least 1. A guide whose sites have the
            same alpha can contain the best density.
        num_particles: Number of samples of the guide for each step.
        **kwargs: Options of Pyro's `ELBO`: `vectorize_particles`, `max_plate_nesting` and so on.

    Raises:
        ValueError: `alpha` below 1 or infinite; `num_particles` not a positive integer. At a step:
            a site of the model with an alpha of infinity, or whose loss is infinite.

    References:
        Sklaviadis et al. (2025), Fenchel-Young variational inference. arXiv:2502.10295
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.

    Examples:
        >>> import pyro
        >>> from sparsefam import BetaGaussian
        >>> model = lambda: pyro.sample("z", BetaGaussian(0.0, 1.0, 2.0))
        >>> guide = lambda: pyro.sample("z", BetaGaussian(5.0, 1.0, 2.0))
        >>> pyro.set_rng_seed(0)
        >>> FenchelYoungELBO(2.0, 1000).loss(model, guide)  # 25 x 3/4, by samples
        18.8
    """

    def __init__(self, alpha: float = 2.0, num_particles: int = 8, **kwargs: object) -> None:
        super().__init__(num_particles, **kwargs)
        self.alpha = checked_alpha(alpha)

    def _estimate(self, traces: Iterable[tuple[Trace, Trace]]) -> tuple[Tensor, Tensor, None]:
        """Estimate the free energy, and return the results of the base class, without a state."""
        terms = [
            (self._particles(m, _site_loss), self._particles(g), self._particles(g, _score_term))
            for m, g in traces
        ]
        losses, log_q, log_score = (torch.cat(x) for x in zip(*terms, strict=True))
        eps = self.alpha - 1  # Omega(q) = E_q[(q^eps - 1) / eps] / alpha
        # A sample may be rounded to an end of the guide, where the density is zero.
        log_score = torch.where(log_score == -math.inf, 0.0, log_score)
        if eps == 0:
            regularizer = torch.where(log_q == -math.inf, 0.0, log_q)
        else:
            regularizer = torch.expm1(eps * log_q) / eps
        energy = losses + regularizer / self.alpha
        # REINFORCE for sites without pathwise gradients: E[energy d log q]. For other sites the
        # score term is 0, and the gradient of the energy is pathwise.
        surrogate = (energy + log_score * energy.detach()).mean()
        return energy.detach().mean(), surrogate, None


def _site_loss(site: Site) -> Tensor:
    """Return the Fenchel-Young loss of a site's value (the site's batch), scaled and masked.

    Raises:
        ValueError: It is infinite, or the site has no score.
    """
    try:
        loss: Tensor = _fenchel_young(site["fn"], site["value"])
    except ValueError as error:
        raise ValueError(f"site {site['name']!r} must have a score: {error}") from error
    loss = scale_and_mask(loss, site["scale"], site["mask"])
    if (loss == math.inf).any():
        raise ValueError(
            f"site {site['name']!r} must have a finite Fenchel-Young loss, got inf: "
            f"{type(site['fn']).__name__} has no score off its support; use TsallisELBO"
        )
    return loss


def _fenchel_young(fn: Distribution, value: Tensor) -> Tensor:
    """Return losses of values (batch of fn): of the score, or without one minus the log density."""
    if isinstance(fn, Independent):
        inner = _fenchel_young(fn.base_dist, value)
        loss: Tensor = sum_rightmost(inner, fn.reinterpreted_batch_ndims)
    elif isinstance(fn, MaskedDistribution):
        loss = scale_and_mask(_fenchel_young(fn.base_dist, value), mask=fn._mask)
    elif isinstance(fn, SparseDistribution):
        require(fn.alpha < math.inf, "alpha", "finite for a Fenchel-Young loss", fn.alpha)
        loss = conjugate(fn.score, fn) - fn.score(value)
    else:
        loss = -fn.log_prob(value)
    return loss


def _score_term(site: Site) -> Tensor | float:
    """Return the log density (the site's batch) whose gradient is the score of the guide.

    For sites with pathwise gradients, which need no score, it is the number 0.
    """
    return site["score_parts"].score_function
