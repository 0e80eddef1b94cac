"""Chains of three samplers: NUTS of Pyro, with and without `AutoSupportReparam`, and of NumPyro."""

import time
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro.infer import MCMC, NUTS, Predictive
from torch import Tensor

from sparsefam.inference import AutoSupportReparam

from . import models

try:
    import jax
    import numpyro
except ImportError:
    numpyro = None

PLAIN, OURS, NUMPYRO = "Pyro", "AutoSupportReparam", "NumPyro"
# Models whose densities NumPyro lacks, or which it enumerates by means of another package.
ONLY_PYRO = ("triangle", "bounded_noise", "ellipsoid", "separated", "meeting")
# Arguments of the models that run with `AutoSupportReparam` and `RestrictedPrior`.
SETTINGS = {"bounded_noise": {"restricted": True}}
WARMUP, TREE_DEPTH = 400, 5


class Job(NamedTuple):
    """A chain to run; the draws of all these sites are returned."""

    name: str
    method: str
    draws: int
    sites: list[str]
    seed: int


class Chain(NamedTuple):
    """A chain."""

    draws: dict[str, Tensor]  # (N, K) of a site of K numbers
    seconds: float  # of processor time, with compilation and warm-up
    divergences: int  # after the warm-up


def set_up() -> None:
    """Prepare a process for small tensors in float64."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)


def methods_of(name: str) -> list[str]:
    """Return the samplers that can run a model here."""
    return [PLAIN, OURS] + [NUMPYRO] * (numpyro is not None and name not in ONLY_PYRO)


def run(job: Job) -> Chain:
    """Run a chain of a model, in a process of its own."""
    set_up()
    warnings.filterwarnings("ignore", ".torch.jit.* is deprecated")
    start = time.process_time()
    samples, divergences = (_numpyro if job.method == NUMPYRO else _pyro)(job)
    draws = {site: torch.as_tensor(samples[site]).reshape(job.draws, -1) for site in job.sites}
    return Chain(draws, time.process_time() - start, divergences)


def _pyro(job: Job) -> tuple[dict[str, Any], int]:
    model, settings = getattr(models, job.name), {}
    if job.method == OURS:
        model, settings = AutoSupportReparam()(model), SETTINGS.get(job.name, {})
    jit = job.name != "meeting"  # the number of its intervals changes
    pyro.set_rng_seed(job.seed)
    kernel = NUTS(model, max_tree_depth=TREE_DEPTH, jit_compile=jit, ignore_jit_warnings=jit)
    mcmc = MCMC(kernel, job.draws, warmup_steps=WARMUP, disable_progbar=True)
    mcmc.run(**settings)
    samples = mcmc.get_samples()
    rest = [site for site in job.sites if site not in samples]
    if rest:
        samples |= Predictive(model, samples, return_sites=rest, parallel=True)(**settings)
    return samples, len(mcmc.diagnostics()["divergences"]["chain 0"])


def _numpyro(job: Job) -> tuple[dict[str, Any], int]:
    numpyro.enable_x64()
    kernel = numpyro.infer.NUTS(in_numpyro(job.name), max_tree_depth=TREE_DEPTH)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=WARMUP, num_samples=job.draws, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(job.seed), extra_fields=("diverging",))
    samples = {site: np.array(x) for site, x in mcmc.get_samples().items()}
    return samples, int(mcmc.get_extra_fields()["diverging"].sum())


def in_numpyro(name: str) -> Callable[[], None]:
    """Return the same model for NumPyro: its code, with NumPyro's and JAX's modules for Pyro's."""
    scope = {key: _in_jax(value) for key, value in vars(models).items()}
    scope |= {"pyro": numpyro, "dist": numpyro.distributions, "torch": jax.numpy}
    for key, value in vars(models).items():
        if isinstance(value, types.FunctionType):
            defaults = _in_jax(value.__defaults__)
            scope[key] = types.FunctionType(value.__code__, scope, key, defaults)
    return scope[name]


def _in_jax(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_in_jax(x) for x in value)
    return jax.numpy.array(value.numpy()) if isinstance(value, Tensor) else value
