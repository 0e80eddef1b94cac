"""Predict electricity from the sun by a density over the time of day that is zero at night.

`python -m examples.daylight` prints the table of docs/tutorials/daylight.md and writes its picture
to demo/daylight.png.

References:
    Sheffield Solar, PV_Live: six days of May 2021 in Great Britain, a reading every half hour, in
    multiples of 1e-5 of the capacity; as aeon has them.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from pyro.infer import SVI
from pyro.infer.autoguide import AutoMultivariateNormal, init_to_median
from pyro.infer.importance import vectorized_importance_weights
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import TsallisELBO

from .data import aeon_file

HOURS = torch.arange(48, dtype=torch.float64) / 2
UNIT = 1e-5
ONE = torch.ones((), dtype=torch.float64)
# Whether the density is compact, and whether the noise is a share of the mean.
MODELS = {
    "normal": (False, False),
    "compact": (True, False),
    "compact, quiet at night": (True, True),
}
Draws = dict[str, Tensor]


def load() -> Tensor:
    """Load the readings (6 days, 48 half-hours), as shares of the capacity."""
    values = np.genfromtxt(aeon_file("solar/solar.csv"), delimiter=",", skip_header=1, usecols=1)
    return torch.as_tensor(values[:288]).reshape(6, 48)


def density(draws: Draws, compact: bool) -> Tensor:
    """Return p at all half-hours (..., 48), per hour; exactly zero outside the lights."""
    if not compact:
        return sf.Normal(draws["centre"][..., None], draws["spread"][..., None]).prob(HOURS)
    first, last, power = (draws[name].unsqueeze(-1) for name in ("first", "last", "power"))
    return sf.BetaGaussian((first + last) / 2, (last - first) / 2, 1 + 1 / power).prob(HOURS)


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


def mean_and_noise(draws: Draws, name: str) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the readings of days (..., 48)."""
    compact, quiet = MODELS[name]
    energy, relative = draws["energy"].unsqueeze(-1), draws["noise"].unsqueeze(-1)
    mean = energy * density(draws, compact)
    return mean, relative * mean if quiet else (relative * energy / 10).expand_as(mean)


def model_of(name: str, readings: Tensor) -> Callable[[], None]:
    """Return a Pyro model of days (days, 48): an energy a day, spread over the hours by p."""
    if MODELS[name][0]:
        priors = {
            "first": dist.Normal(4.7 * ONE, 0.5),
            "last": dist.Normal(19.8 * ONE, 0.5),
            "power": dist.LogNormal(0.5 * ONE, 0.5),
        }
    else:
        priors = {
            "centre": dist.Normal(12.25 * ONE, 0.5),
            "spread": dist.LogNormal(1.2 * ONE, 0.2),
        }
    priors["typical"] = dist.Normal(1.2 * ONE, 0.5)
    priors["varied"] = dist.LogNormal(-1.0 * ONE, 0.5)
    priors["noise"] = dist.LogNormal(-1.5 * ONE, 1.0)

    def model() -> None:
        draws = {site: pyro.sample(site, prior) for site, prior in priors.items()}
        with pyro.plate("days", len(readings)):
            energy = dist.LogNormal(draws["typical"], draws["varied"])
            draws["energy"] = pyro.sample("energy", energy)
            mean, noise = mean_and_noise(draws, name)
            pyro.factor("readings", log_probability(readings, mean, noise).sum(-1))

    return model


def posterior(model: Callable[[], None], steps: int, count: int) -> tuple[Draws, float]:
    """Fit a normal guide and draw from it with the weights that make it the posterior.

    The guide reaches beyond the posterior's support, so it is fitted by a bound that stays finite.

    Returns:
        Draws (count, ...) of the sites, and how many independent draws the weights are worth.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoMultivariateNormal(
        model, init_loc_fn=init_to_median(num_samples=100), init_scale=0.1
    )
    bound = TsallisELBO(0.5, 100, vectorize_particles=True, max_plate_nesting=1)
    optimizer = pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.05 ** (1 / steps)})
    svi = SVI(model, guide, optimizer, bound)
    for _ in range(steps):
        svi.step()
    with torch.no_grad():
        weights, trace, _ = vectorized_importance_weights(
            model, guide, num_samples=10 * count, max_plate_nesting=1, normalized=False
        )
    shares = weights.reshape(-1).softmax(0)
    chosen = shares.multinomial(count, replacement=True)
    sites = {site: trace.nodes[site]["value"].detach() for site in trace.stochastic_nodes}
    draws = {site: x.reshape(10 * count, -1)[chosen].squeeze(-1) for site, x in sites.items()}
    return draws, 1 / shares.square().sum().item()


def predict(name: str, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, noises and readings of a new day for each draw, (S, 48) each."""
    energy = dist.LogNormal(draws["typical"], draws["varied"]).sample()
    mean, noise = mean_and_noise(draws | {"energy": energy}, name)
    readings = (mean + noise * torch.randn_like(mean)).clamp_min(0.0)
    return mean, noise, (readings / UNIT).round() * UNIT


def score(predicted: tuple[Tensor, Tensor, Tensor], days: Tensor, hours: Tensor) -> list[str]:
    """Return coverage and width of the central 90 %, CRPS, and log probability of days (d, 48)."""
    y, (mean, noise, draws) = days[:, hours], (x[:, hours] for x in predicted)
    low, high = draws.quantile(torch.tensor([0.05, 0.95]).to(y), dim=0)
    covered = ((low <= y) & (y <= high)).double().mean()
    # E|Y - y| - E|Y - Y'|/2, the latter from sorted draws.
    rank = (2 * torch.arange(1, len(draws) + 1) - len(draws) - 1) / len(draws) ** 2
    apart = (rank.unsqueeze(-1) * draws.sort(0).values).sum(0)
    crps = ((draws.unsqueeze(1) - y).abs().mean(0) - apart).mean()
    each = log_probability(y, mean.unsqueeze(1), noise.unsqueeze(1))
    log = (torch.logsumexp(each, 0) - math.log(len(draws))).mean()
    return [f"{100 * covered:.0f} %", f"{(high - low).mean():.3f}", f"{crps:.4f}", f"{log:.2f}"]


def draw(predictions: dict[str, Tensor], days: Tensor) -> Figure:
    """Draw medians and central 90 % of predicted readings (S, 48) over the hours."""
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 2.9), layout="constrained")
    for ax, (name, readings) in zip(axes, predictions.items(), strict=True):
        low, middle, high = readings.quantile(torch.tensor([0.05, 0.5, 0.95]).to(days), dim=0)
        ax.fill_between(HOURS, low, high, color="#0072B2", alpha=0.25, lw=0, label="central 90 %")
        ax.plot(HOURS, middle, color="#0072B2", label="median")
        ax.plot(HOURS.repeat(len(days)), days.flatten(), ".", color="#D55E00", ms=3.5, label="days")
        ax.set(title=f"density: {name}", xlabel="hour of the day, UTC", ylim=(-0.02, 0.95))
        ax.set_xticks(range(0, 25, 4))
    axes[0].set_ylabel("output, share of capacity")
    axes[0].legend(loc="upper left")
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Electricity from the sun, and nights.")
    parser.add_argument("--steps", type=int, default=500, help="of each optimisation (500)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    readings = load()
    seen, unseen = readings[:3], readings[3:]
    predictions = {}
    for name in MODELS:
        draws, size = posterior(model_of(name, seen), options.steps, 2000)
        predictions[name] = predict(name, draws)
        print(f"{name}: 20000 weighted draws are worth {size:.0f} independent ones")
        for site in ("first", "last") if "first" in draws else ():
            low, high = draws[site].quantile(torch.tensor([0.05, 0.95]).to(draws[site])).tolist()
            print(f"  {site} light: {draws[site].mean():.2f} h ({low:.2f} to {high:.2f})")
    night = (unseen == 0).all(0)
    print("| model | hours | in 90 % | width | CRPS | log P |")
    for when, hours in {"night": night, "day": ~night, "all": night | ~night}.items():
        for name, predicted in predictions.items():
            print("| " + " | ".join([name, when, *score(predicted, unseen, hours)]) + " |")
    options.out.mkdir(parents=True, exist_ok=True)
    shown = {name: predictions[name][2] for name in ("normal", "compact, quiet at night")}
    draw(shown, unseen).savefig(options.out / "daylight.png", dpi=160)


if __name__ == "__main__":
    main()
