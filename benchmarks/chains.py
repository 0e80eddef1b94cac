"""Hamiltonian chains, and how far their moments are from those of a law known otherwise."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

from sparsefam.inference import AutoSupportReparam

from .posteriors import Posterior

__all__ = ["Verdict", "judged", "verdict", "walked"]

# After 150 steps of warm-up one chain of some has steps so long that it stands still for dozens.
_CHAINS, _WARMUP = 2, 400


class Verdict(NamedTuple):
    """What is worst of all numbers of a site, or of all sites.

    Attributes:
        deviation: Of a mean or a variance from the exact one, in Monte Carlo standard errors.
        r_hat: Largest split R-hat.
        size: Smallest effective sample size, of the numbers and of their squared deviations.
        count: How many means and variances there are.
    """

    deviation: float
    r_hat: float
    size: float
    count: int


def walked(model: Callable[..., Any], draws: int, jit: bool = False) -> dict[str, Tensor]:
    """All sites of a model (chains, draws, ...), deterministic ones too."""
    found = []
    for seed in range(_CHAINS):
        pyro.set_rng_seed(seed)
        kernel = NUTS(model, max_tree_depth=4, jit_compile=jit, ignore_jit_warnings=jit)
        mcmc = MCMC(kernel, draws, warmup_steps=_WARMUP, disable_progbar=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run()
        samples = mcmc.get_samples()
        names = [name for name in pyro.poutine.trace(model).get_trace().nodes if name[0] != "_"]
        rest = Predictive(model, samples, return_sites=names, parallel=False)()
        found.append({**rest, **samples})
    return {name: torch.stack([chain[name] for chain in found]) for name in found[0]}


def verdict(samples: Tensor, mean: Tensor | float, variance: Tensor | float) -> Verdict:
    """Of draws (chains, draws, ...) of numbers whose means and variances are known."""
    deviations, sizes, count = [], [], 0
    for found, true in ((samples, mean), ((samples - mean).square(), variance)):
        size = effective_sample_size(found, 0, 1)
        error = (found.flatten(0, 1).var(0) / size).sqrt()
        deviations.append(((found.mean((0, 1)) - true).abs() / error).max().item())
        sizes.append(size.min().item())
        count += size.numel()
    r_hat = split_gelman_rubin(samples, 0, 1).max().item()
    return Verdict(max(deviations), r_hat, min(sizes), count)


def judged(posterior: Posterior, draws: int) -> dict[str, Verdict]:
    """Two chains on a posterior, by the name of a site."""
    model = AutoSupportReparam()(posterior.model)
    found = walked(model, draws, jit=posterior.jit)
    verdicts = {}
    for name, (mean, variance) in posterior.exact().items():
        samples = found[name.removeprefix("log ")]
        samples = samples.log() if name.startswith("log ") else samples
        verdicts[name] = verdict(samples, mean, variance)
    return verdicts
