"""Simulation-based calibration of NUTS on models of the suite: are its posteriors right on average?

`python -m examples.moving_supports.calibration [MODEL ...]` prints effective sizes and p-values and
returns 1 unless all ranks are uniform, and those of plain NUTS on `chain` are not.

The rank of a draw of the prior, among draws of the posterior given data that it generated, is
uniform: Talts, Betancourt, Simpson, Vehtari and Gelman (2018), Validating Bayesian Inference
Algorithms with Simulation-Based Calibration. arXiv:1804.06788
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size
from scipy.stats import chisquare
from torch import Tensor

from sparsefam.inference import AutoSupportReparam

from . import chains, models

# A rank among the draws that are kept is one of 100 numbers, which fall into 20 bins.
SIMULATIONS, KEPT, BINS = 200, 99, 20
P_VALUE = 1e-3
# Draws of the chain for each that is kept.
THINNED = {"hierarchy": 4, "bounded_noise": 8, "ellipsoid": 4, "chain": 4}


def calibration(
    name: str, reparam: Callable[..., Any], thin: int
) -> tuple[dict[str, list[float]], float]:
    """Return p-values of uniform ranks by the name of a site, and the least effective sample size.

    All simulations are one model, whose posterior is the product of theirs: one chain samples it.

    Args:
        name: A model of the suite.
        reparam: Applied to the model before NUTS samples it.
        thin: Draws of the chain for each that is kept.
    """

    def joint(seen: Tensor | None = None, **settings: Any) -> None:
        with pyro.plate("simulations", SIMULATIONS, dim=-2):
            getattr(models, name)(seen, **settings)

    trace = poutine.trace(joint).get_trace()
    truth = {
        site: node["value"]
        for site, node in trace.iter_stochastic_nodes()
        if hasattr(node["fn"], "support")
    }
    seen, model, settings = truth.pop("seen"), reparam(joint), chains.SETTINGS.get(name, {})
    kernel = NUTS(model, max_tree_depth=6, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, KEPT * thin, warmup_steps=300, disable_progbar=True)
    mcmc.run(seen, **settings)
    samples = mcmc.get_samples()
    rest = [site for site in truth if site not in samples]
    if rest:
        predictive = Predictive(model, samples, return_sites=rest, parallel=True)
        samples |= predictive(seen, **settings)
    p_values, sizes = {}, []
    for site, values in truth.items():
        draws = samples[site].reshape(KEPT * thin, SIMULATIONS, -1)
        ranks = (draws[::thin] < values.reshape(SIMULATIONS, -1)).sum(0)
        bins = ranks * BINS // (KEPT + 1)
        counts = [torch.bincount(column, minlength=BINS) for column in bins.T]
        p_values[site] = [float(chisquare(count).pvalue) for count in counts]
        sizes.append(effective_sample_size(draws[None], 0, 1).min().item())
        print(name, site, f"size {sizes[-1]:.0f}", *(f"p {p:.4f}" for p in p_values[site]))
    return p_values, min(sizes)


def main(names: Sequence[str] = ()) -> int:
    """Run the command line."""
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
    failed = False
    for name in names or THINNED:
        p_values, size = calibration(name, AutoSupportReparam(), THINNED[name])
        # So that the draws kept are about independent.
        failed |= size <= KEPT or min(map(min, p_values.values())) <= P_VALUE
    if "chain" in (names or THINNED):
        # Plain NUTS is stuck: nearly every step leaves one of 200 moving supports.
        p_values, _ = calibration("chain", lambda model: model, 1)
        failed |= max(p_values["p2"] + p_values["p3"]) >= P_VALUE
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
