"""Reference posteriors without Markov chains: prior draws, weighted by the likelihood.

A draw from the prior follows the order of the model, so moving supports need no transform. Draws
are quantiles of scrambled Sobol' points, and the spread between scrambles yields standard errors.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.quasirandom import SobolEngine

from .models import GARCH, MODELS, garch11

PATH = Path(__file__).parent / "references.json"
# Mean, standard deviation and their standard errors by the name of a site.
Reference = dict[str, dict[str, Any]]


class _Quantiles(Messenger):
    """Draws each continuous scalar site at the levels of the next columns of (N, D) points."""

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self._points, self._used = points, 0

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        fn = msg["fn"]
        if msg["is_observed"] or msg["value"] is not None or not hasattr(fn, "icdf"):
            return
        count = fn.batch_shape.numel() // len(self._points)
        levels = self._points[:, self._used : self._used + count].reshape(fn.batch_shape)
        try:
            msg["value"] = fn.icdf(levels)
        except NotImplementedError:
            return
        self._used += count


def prior_draws(model: Callable[[], None], points: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return draws (N, ...) of the prior by the name of a site, and their log likelihoods (N).

    Args:
        model: A Pyro model, with plates in the last dimension or none.
        points: Uniform numbers (N, D), D at least the number of continuous scalars.
    """
    draws = pyro.plate("draws", len(points), dim=-2)
    with torch.no_grad(), _Quantiles(points), draws:
        trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    sites = [site for site in trace.nodes.values() if site["type"] == "sample"]
    log_likelihood = sum(
        site["log_prob"].reshape(len(points), -1).sum(-1) for site in sites if site["is_observed"]
    )
    values = {
        name: trace.nodes[name]["value"].reshape(len(points), -1)
        for name, site in trace.iter_stochastic_nodes()
        if hasattr(site["fn"], "support") and not site["fn"].support.is_discrete
    }
    return values, log_likelihood


def reference(model: Callable[[], None], size: int = 2**15, scrambles: int = 16) -> Reference:
    """Return the posterior moments of all continuous sites, with standard errors."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(scrambles):
        pyro.set_rng_seed(seed)
        points = SobolEngine(16, scramble=True, seed=seed).draw(size, dtype=torch.float64)
        values, log_likelihood = prior_draws(model, points.clamp(1e-12, 1 - 1e-12))
        weights = log_likelihood.softmax(0)
        for name, x in values.items():
            mean = weights @ x
            sd = (weights @ (x - mean).square()).sqrt()
            found.setdefault(name, []).append(torch.stack([mean, sd]))
    out = {}
    for name, each in found.items():
        rounds = torch.stack(each)
        error = rounds.std(0) / math.sqrt(scrambles)
        numbers = [x.tolist() for x in (*rounds.mean(0), *error)]
        out[name] = dict(zip(("mean", "sd", "mean_error", "sd_error"), numbers, strict=True))
    return out


def load() -> dict[str, Reference]:
    """Return the references of all models; that of garch11 is by Stan."""
    found: dict[str, Reference] = json.loads(PATH.read_text(encoding="utf-8"))
    size = GARCH["draws"]
    found["garch11"] = {
        name: {
            "mean": [mean],
            "sd": [sd],
            "mean_error": [sd / math.sqrt(size)],
            "sd_error": [sd / math.sqrt(2 * size)],
        }
        for (name, mean), sd in zip(GARCH["mean"].items(), GARCH["sd"].values(), strict=True)
    }
    return found


def write() -> None:
    """Compute the references of all models but garch11."""
    found = {}
    for model in MODELS:
        if model is not garch11:
            found[model.__name__] = reference(model)
            print(model.__name__, flush=True)
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
