"""Variational inference with progress, and draws of the posterior itself, for the tutorials."""

from collections.abc import Callable
from typing import NamedTuple

import pyro
import torch
from pyro.infer import SVI
from pyro.infer.autoguide import AutoMultivariateNormal, init_to_median
from pyro.infer.importance import vectorized_importance_weights
from torch import Tensor

from sparsefam.inference import TsallisELBO

from .progress import RunBars

__all__ = ["Draws", "Fit", "fit"]

Draws = dict[str, Tensor]


class Fit(NamedTuple):
    """Draws (S, ...) of the sites, and how many independent ones they are worth."""

    draws: Draws
    size: float


def fit(name: str, model: Callable[[], None], steps: int, count: int, bars: RunBars) -> Fit:
    """Fits a normal guide and draws from it by the weights that make it the posterior.

    The guide reaches out of the posterior's support, so that it is fitted by the bound that stays
    finite; what it draws there has weight zero.

    Args:
        name: For the bar.
        model: A model of Pyro's, without arguments, whose plates are at most one deep.
        steps: Of the optimiser.
        count: Draws.
        bars: For one more run of so many epochs as steps.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoMultivariateNormal(
        model, init_loc_fn=init_to_median(num_samples=100), init_scale=0.1
    )
    bound = TsallisELBO(0.5, 100, vectorize_particles=True, max_plate_nesting=1)
    decay = 0.05 ** (1 / steps)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": decay}), bound)
    bars.begin(name)
    for step in range(steps):
        bars.epoch(step + 1, svi.step())
    with torch.no_grad():
        weights, trace, _ = vectorized_importance_weights(
            model, guide, num_samples=10 * count, max_plate_nesting=1, normalized=False
        )
    shares = weights.reshape(-1).softmax(0)
    chosen = shares.multinomial(count, replacement=True)
    size = 1 / shares.square().sum().item()
    sites = {site: trace.nodes[site]["value"].detach() for site in trace.stochastic_nodes}
    bars.end(name, f"{10 * count} draws worth {size:.0f}")
    return Fit(
        {site: x.reshape(10 * count, -1)[chosen].squeeze(-1) for site, x in sites.items()}, size
    )
