"""Electricity from the sun in Great Britain, which is exactly zero at night: models and scores.

Six days of May 2021, a reading every half hour, in multiples of 10^-5 of the capacity. What a day
brings is E; a density p over the time of day says when. The last three days are predicted from
the first three.

References:
    Sheffield Solar, PV_Live: the readings, as aeon has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import sparsefam as sf

__all__ = ["HOURS", "MODELS", "Scores", "load", "log_probability", "model_of", "predicted", "score"]

HOURS = torch.arange(48, dtype=torch.float64) / 2
# Readings are rounded to this.
UNIT = 1e-5
MODELS = {
    "normal": (False, False),
    "compact": (True, False),
    "compact, quiet at night": (True, True),
}
ONE = torch.ones((), dtype=torch.float64)


def load() -> Tensor:
    """Readings (6 days, 48 half-hours)."""
    path = distribution("aeon").locate_file("aeon/datasets/data/solar/solar.csv")
    values = np.genfromtxt(str(path), delimiter=",", skip_header=1, usecols=1)
    return torch.as_tensor(values[:288]).reshape(6, 48)


def density(draws: dict[str, Tensor], compact: bool) -> Tensor:
    """p at all half-hours (..., 48), per hour; zero before the first light and after the last."""
    if not compact:
        centre, spread = (draws[name].unsqueeze(-1) for name in ("centre", "spread"))
        return sf.Normal(centre, spread).prob(HOURS)
    first, last, power = (draws[name].unsqueeze(-1) for name in ("first", "last", "power"))
    return sf.BetaGaussian((first + last) / 2, (last - first) / 2, 1 + 1 / power).prob(HOURS)


def log_probability(readings: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
    """Log probability of rounded readings of max(0, Normal(mean, noise)); noise may be zero."""
    certain = noise == 0  # and the mean too
    noise = torch.where(certain, 1.0, noise)
    law = dist.Normal(mean, noise)
    zero = torch.special.log_ndtr((UNIT / 2 - mean) / noise)
    found = torch.where(readings == 0, zero, law.log_prob(readings) + np.log(UNIT))
    sure = torch.where(readings == 0, 0.0, -torch.inf)
    # A density times a width is a probability as long as the width is small.
    return torch.where(certain, sure, found.clamp_max(0.0))


def model_of(name: str, readings: Tensor) -> Callable[[], None]:
    """A model of Pyro's.

    Args:
        name: One of `MODELS`.
        readings: (days, 48).
    """
    compact, quiet = MODELS[name]

    def model() -> None:
        if compact:
            draws = {
                "first": pyro.sample("first", dist.Normal(4.7 * ONE, 0.5)),
                "last": pyro.sample("last", dist.Normal(19.8 * ONE, 0.5)),
                "power": pyro.sample("power", dist.LogNormal(0.5 * ONE, 0.5)),
            }
        else:
            draws = {
                "centre": pyro.sample("centre", dist.Normal(12.25 * ONE, 0.5)),
                "spread": pyro.sample("spread", dist.LogNormal(1.2 * ONE, 0.2)),
            }
        typical = pyro.sample("typical", dist.Normal(1.2 * ONE, 0.5))
        varied = pyro.sample("varied", dist.LogNormal(-1.0 * ONE, 0.5))
        relative = pyro.sample("noise", dist.LogNormal(-1.5 * ONE, 1.0))
        p = density(draws, compact)
        with pyro.plate("days", len(readings)):
            energy = pyro.sample("energy", dist.LogNormal(typical, varied)).unsqueeze(-1)
            mean, noise = _mean_and_noise(p, energy, relative.unsqueeze(-1), quiet)
            pyro.factor("readings", log_probability(readings, mean, noise).sum(-1))

    return model


def _mean_and_noise(
    p: Tensor, energy: Tensor, relative: Tensor, quiet: bool
) -> tuple[Tensor, Tensor]:
    """The noise is a share of the mean, or of a tenth of the day's energy at all hours."""
    mean = energy * p
    noise = relative * mean if quiet else (relative * energy / 10).expand_as(mean)
    return mean, noise


@dataclass(frozen=True)
class Prediction:
    """Of a day not seen, for each draw: means and noises (S, 48), and readings drawn of them."""

    mean: Tensor
    noise: Tensor
    readings: Tensor


def predicted(name: str, draws: dict[str, Tensor]) -> Prediction:
    """A new day for each draw (S) of the sites of the model."""
    compact, quiet = MODELS[name]
    energy = dist.LogNormal(draws["typical"], draws["varied"]).sample().unsqueeze(-1)
    relative = draws["noise"].unsqueeze(-1)
    mean, noise = _mean_and_noise(density(draws, compact), energy, relative, quiet)
    readings = (mean + noise * torch.randn_like(mean)).clamp_min(0.0)
    return Prediction(mean, noise, (readings / UNIT).round() * UNIT)


@dataclass(frozen=True)
class Scores:
    """Means over readings.

    Attributes:
        covered: Share inside the central 90 % interval.
        width: Of that interval.
        crps: Continuous ranked probability score, in the units of the readings.
        log: Log probability of a reading, in nats.
    """

    covered: float
    width: float
    crps: float
    log: float


def score(prediction: Prediction, readings: Tensor, hours: Tensor) -> Scores:
    """Of a day's prediction on days (days, 48), at the hours of a mask (48,)."""
    y, draws = readings[:, hours], prediction.readings[:, hours]
    low, high = draws.quantile(torch.tensor([0.05, 0.95], dtype=y.dtype), dim=0)
    # E|Y - y| - E|Y - Y'|/2, the latter of sorted draws.
    count = len(draws)
    rank = (2 * torch.arange(1, count + 1, dtype=y.dtype) - count - 1) / count**2
    apart = (rank.unsqueeze(-1) * draws.sort(0).values).sum(0)
    crps = (draws.unsqueeze(1) - y).abs().mean(0) - apart
    each = log_probability(y, prediction.mean[:, None, hours], prediction.noise[:, None, hours])
    log = torch.logsumexp(each, 0) - np.log(count)
    inside = (low <= y) & (y <= high)
    means = (inside.double(), high - low, crps, log)
    return Scores(*(x.mean().item() for x in means))
