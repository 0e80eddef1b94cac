"""Hamiltonian chains, and whether their moments are those of a law known otherwise."""

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

DOUBLE = torch.float64


def walked(
    model: Callable[..., Any], draws: int, chains: int = 2, warmup: int = 150, jit: bool = False
) -> dict[str, Tensor]:
    """All sites of a model (chains, draws, ...), deterministic ones too."""
    found = []
    for seed in range(chains):
        pyro.set_rng_seed(seed)
        kernel = NUTS(model, max_tree_depth=4, jit_compile=jit, ignore_jit_warnings=jit)
        mcmc = MCMC(kernel, draws, warmup_steps=warmup, disable_progbar=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run()
        samples = mcmc.get_samples()
        names = [name for name in pyro.poutine.trace(model).get_trace().nodes if name[0] != "_"]
        rest = Predictive(model, samples, return_sites=names, parallel=False)()
        found.append({**rest, **samples})
    return {name: torch.stack([chain[name] for chain in found]) for name in found[0]}


def agree(samples: Tensor, mean: Tensor | float, variance: Tensor | float) -> None:
    """Mean and variance within three Monte Carlo standard errors, and chains that have mixed."""
    mean, variance = torch.as_tensor(mean, dtype=DOUBLE), torch.as_tensor(variance, dtype=DOUBLE)
    assert (split_gelman_rubin(samples, 0, 1) < 1.01).all()
    for found, true in ((samples, mean), ((samples - mean).square(), variance)):
        worth = effective_sample_size(found, 0, 1)
        assert (worth > 150).all()
        error = (found.flatten(0, 1).var(0) / worth).sqrt()
        assert ((found.mean((0, 1)) - true).abs() < 3 * error).all()


def moments(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of values under weights of any sum, over all of a grid."""
    mass = weights.sum()
    mean = (weights * values).sum() / mass
    return mean, (weights * (values - mean).square()).sum() / mass


def midpoints(low: float, high: float, count: int) -> Tensor:
    return low + (torch.arange(count, dtype=DOUBLE) + 0.5) * (high - low) / count
