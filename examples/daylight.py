"""Predict electricity from the sun by a density over the time of day that is zero at night.

`python -m examples.daylight` prints a table and draws demo/daylight.png.

References:
    Sheffield Solar, PV_Live: six days of May 2021 in Great Britain, a reading every half hour, in
    multiples of 1e-5 of the capacity; as aeon has them.
"""

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from matplotlib.axes import Axes
from pyro.infer import SVI
from pyro.infer.autoguide import AutoMultivariateNormal, init_to_median
from pyro.infer.importance import vectorized_importance_weights
from pyro.ops.stats import crps_empirical
from torch import Tensor
from tqdm import trange

import sparsefam as sf
from sparsefam.inference import TsallisELBO

from .common import print_table, run
from .data import aeon_file

HOURS = torch.arange(48, dtype=torch.float64) / 2
UNIT = 1e-5
STEPS, DRAWS = 500, 2000
ONE = torch.ones((), dtype=torch.float64)
# Whether the density is compact, and whether the noise is a share of the mean.
MODELS = {
    "normal": (False, False),
    "compact": (True, False),
    "compact, quiet at night": (True, True),
}
PRIORS = {
    "typical": dist.Normal(1.2 * ONE, 0.5),
    "varied": dist.LogNormal(-1.0 * ONE, 0.5),
    "noise": dist.LogNormal(-1.5 * ONE, 1.0),
}
PRIORS_OF_NORMAL = {
    "center": dist.Normal(12.25 * ONE, 0.5),
    "spread": dist.LogNormal(1.2 * ONE, 0.2),
}
PRIORS_OF_COMPACT = {
    "first": dist.Normal(4.7 * ONE, 0.5),
    "last": dist.Normal(19.8 * ONE, 0.5),
    "power": dist.LogNormal(0.5 * ONE, 0.5),
}
Draws = dict[str, Tensor]


def load() -> Tensor:
    """Load the readings (6 days, 48 half-hours), as shares of the capacity."""
    values = np.genfromtxt(aeon_file("solar/solar.csv"), delimiter=",", skip_header=1, usecols=1)
    return torch.as_tensor(values[:288]).reshape(6, 48)


def mean_and_noise(draws: Draws, name: str) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the readings of days (..., 48)."""
    compact, quiet = MODELS[name]
    draws = {site: x.unsqueeze(-1) for site, x in draws.items()}
    if compact:
        first, last = draws["first"], draws["last"]
        p = sf.BetaGaussian((first + last) / 2, (last - first) / 2, 1 + 1 / draws["power"])
    else:
        p = sf.Normal(draws["center"], draws["spread"])
    mean, relative = draws["energy"] * p.prob(HOURS), draws["noise"]
    return mean, relative * mean if quiet else (relative * draws["energy"] / 10).expand_as(mean)


def log_probability(readings: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
    """Return log probabilities of rounded readings of max(0, Normal(mean, noise)).

    Where the noise is zero, the reading is zero for certain.
    """
    certain = noise == 0
    noise = torch.where(certain, 1.0, noise)
    zero = torch.special.log_ndtr((UNIT / 2 - mean) / noise)
    positive = dist.Normal(mean, noise).log_prob(readings) + math.log(UNIT)
    log = torch.where(readings == 0, zero, positive).clamp_max(0.0)
    return torch.where(certain, torch.where(readings == 0, 0.0, -torch.inf), log)


def model_of(name: str, readings: Tensor) -> Callable[[], None]:
    """Return a Pyro model of days (days, 48): an energy a day, spread over the hours by p."""
    priors = (PRIORS_OF_COMPACT if MODELS[name][0] else PRIORS_OF_NORMAL) | PRIORS

    def model() -> None:
        draws = {site: pyro.sample(site, prior) for site, prior in priors.items()}
        with pyro.plate("days", len(readings)):
            energy = dist.LogNormal(draws["typical"], draws["varied"])
            draws["energy"] = pyro.sample("energy", energy)
            mean, noise = mean_and_noise(draws, name)
            pyro.factor("readings", log_probability(readings, mean, noise).sum(-1))

    return model


def posterior(name: str, readings: Tensor) -> tuple[Draws, float]:
    """Fit a normal guide and draw from it with the weights that make it the posterior.

    The guide reaches beyond the posterior's support, so it is fitted by a bound that stays finite.

    Returns:
        Draws of the sites, and how many independent draws the weights are worth.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = model_of(name, readings)
    guide = AutoMultivariateNormal(
        model, init_loc_fn=init_to_median(num_samples=100), init_scale=0.1
    )
    bound = TsallisELBO(0.5, 100, vectorize_particles=True, max_plate_nesting=1)
    optimizer = pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.05 ** (1 / STEPS)})
    svi = SVI(model, guide, optimizer, bound)
    for _ in trange(STEPS, desc=name, disable=None):
        svi.step()
    with torch.no_grad():
        weights, trace, _ = vectorized_importance_weights(
            model, guide, num_samples=10 * DRAWS, max_plate_nesting=1, normalized=False
        )
    shares = weights.reshape(-1).softmax(0)
    chosen = shares.multinomial(DRAWS, replacement=True)
    sites = {site: trace.nodes[site]["value"].detach() for site in trace.stochastic_nodes}
    draws = {site: x.reshape(10 * DRAWS, -1)[chosen].squeeze(-1) for site, x in sites.items()}
    return draws, 1 / shares.square().sum().item()


def predict(name: str, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, noises and readings of a new day for each draw, (S, 48) each."""
    energy = dist.LogNormal(draws["typical"], draws["varied"]).sample()
    mean, noise = mean_and_noise(draws | {"energy": energy}, name)
    readings = (mean + noise * torch.randn_like(mean)).clamp_min(0.0)
    return mean, noise, (readings / UNIT).round() * UNIT


def quantiles(x: Tensor, *levels: float) -> Tensor:
    return x.quantile(torch.tensor(levels).to(x), dim=0)


def score(predicted: tuple[Tensor, Tensor, Tensor], days: Tensor, hours: Tensor) -> list[str]:
    """Return coverage and width of the central 90 %, CRPS, and log probability of days (d, 48)."""
    y, (mean, noise, draws) = days[:, hours], (x[:, None, hours] for x in predicted)
    low, high = quantiles(draws, 0.05, 0.95)
    covered = ((low <= y) & (y <= high)).double().mean()
    crps = crps_empirical(draws.expand(-1, *y.shape), y).mean()
    log = (log_probability(y, mean, noise).logsumexp(0) - math.log(len(draws))).mean()
    return [f"{100 * covered:.0f} %", f"{(high - low).mean():.3f}", f"{crps:.4f}", f"{log:.2f}"]


def draw(ax: Axes, name: str, readings: Tensor, days: Tensor) -> None:
    """Draw medians and central 90 % of predicted readings (S, 48) over the hours."""
    low, middle, high = quantiles(readings, 0.05, 0.5, 0.95)
    ax.fill_between(HOURS, low, high, color="#0072B2", alpha=0.25, lw=0, label="central 90 %")
    ax.plot(HOURS, middle, color="#0072B2", label="median")
    ax.plot(HOURS.repeat(len(days)), days.flatten(), ".", color="#D55E00", ms=3.5, label="days")
    ax.set(title=f"density: {name}", xlabel="hour of the day, UTC", ylim=(-0.02, 0.95))
    ax.set_xticks(range(0, 25, 4))


def main(out: Path = Path("demo")) -> None:
    """Fit all models to three days, and predict the other three."""
    seen, unseen = load().split(3)
    predictions = {}
    for name in MODELS:
        draws, size = posterior(name, seen)
        predictions[name] = predict(name, draws)
        print(f"{name}: 20000 weighted draws are worth {size:.0f} independent ones")
        for site in ("first", "last") if "first" in draws else ():
            low, high = quantiles(draws[site], 0.05, 0.95)
            print(f"  {site} light: {draws[site].mean():.2f} h ({low:.2f} to {high:.2f})")
    night = (unseen == 0).all(0)
    rows = []
    for when, hours in {"night": night, "day": ~night, "all": night | ~night}.items():
        for name, predicted in predictions.items():
            rows.append([name, when, *score(predicted, unseen, hours)])
    print_table(["model", "hours", "in 90 %", "width", "CRPS", "log P"], rows)
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 2.9), layout="constrained")
    for ax, name in zip(axes, ("normal", "compact, quiet at night"), strict=True):
        draw(ax, name, predictions[name][2], unseen)
    axes[0].set_ylabel("output, share of capacity")
    axes[0].legend(loc="upper left")
    figure.savefig(out / "daylight.png", dpi=160)


if __name__ == "__main__":
    run(main)
