"""Infer the time that ten people take for a gesture: a hierarchy whose support moves.

`python -m examples.pickups` prints the tables of docs/tutorials/pickups.md and writes its picture
to demo/pickups.png.

References:
    Guna, Humar and Pogacnik (2012), Intuitive gesture based user identification system: ten
    recordings of each of ten people, as aeon has them.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import AutoSupportReparam

from .data import aeon_file
from .look import LOOKS, WIDTH
from .training import show

SITES = ("mean", "spread", "noise")
MODELS = ("parabola", "normal")
HEADER = ["NUTS", *SITES, "R-hat", "effective size"]
DOUBLE = torch.float64
ONE = torch.ones((), dtype=DOUBLE)
PRIORS = {
    "mean": dist.Normal(4.8 * ONE, 0.7),
    "spread": dist.LogNormal(-0.5 * ONE, 0.5),
    "noise": dist.LogNormal(-1.6 * ONE, 0.5),
}


def load() -> Tensor:
    """Load log durations in frames (10 people, 5)."""
    path = aeon_file("PickupGestureWiimoteZ/PickupGestureWiimoteZ_TRAIN.ts")
    durations: dict[int, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and line[0] not in "#@":
            series, person = line.rsplit(":", 1)
            durations.setdefault(int(person), []).append(series.count(",") + 1.0)
    return torch.tensor([durations[person] for person in sorted(durations)], dtype=DOUBLE).log()


def population(name: str, mean: Tensor, spread: Tensor) -> dist.TorchDistribution:
    """Return the density of people's own log durations, by its mean and standard deviation."""
    if name == "parabola":
        return sf.TruncatedParabola(mean, spread * 5**0.5)
    return dist.Normal(mean, spread)


def model_of(name: str, seen: Tensor) -> Callable[[], None]:
    """Return a Pyro model in which the support of `person` moves with `mean` and `spread`."""

    def model() -> None:
        mean, spread, noise = (pyro.sample(site, PRIORS[site]) for site in SITES)
        with pyro.plate("people", len(seen)):
            person = pyro.sample("person", population(name, mean, spread))
            with pyro.plate("times", seen.shape[1]):
                pyro.sample("duration", dist.Normal(person, noise), obs=seen.T)

    return model


def sample(model: Callable[[], None], draws: int, chains: int = 2) -> dict[str, Tensor]:
    """Run NUTS and return draws (chains, draws) of each site."""
    runs = []
    for seed in range(chains):
        pyro.set_rng_seed(seed)
        options: dict[str, Any] = {"full_mass": True, "target_accept_prob": 0.9}
        options |= {"max_tree_depth": 5, "jit_compile": True, "ignore_jit_warnings": True}
        mcmc = MCMC(NUTS(model, **options), draws, warmup_steps=draws)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run()
        runs.append(mcmc.get_samples())
    return {site: torch.stack([run[site] for run in runs]) for site in SITES}


@dataclass(frozen=True)
class Exact:
    """The posterior by quadrature, on a grid (G) over mean, spread and noise."""

    mean: Tensor
    spread: Tensor
    noise: Tensor
    prior: Tensor  # log prior weights (G)
    people: Tensor  # log likelihoods of each person's durations (10, G)
    places: Tensor  # own durations to integrate over (Q, G)
    shares: Tensor  # their weights in the population (Q, G)

    def weights(self, without: int | None = None) -> Tensor:
        """Return posterior weights (G), with all people or without one."""
        total = self.prior + self.people.sum(0)
        return (total if without is None else total - self.people[without]).softmax(0)

    def moments(self, site: str) -> tuple[float, float]:
        """Return the posterior mean and standard deviation of a site."""
        weights, x = self.weights(), getattr(self, site)
        mean = (weights * x).sum()
        return mean.item(), (weights * (x - mean).square()).sum().sqrt().item()


class Posterior(NamedTuple):
    """Chains of the parabola by name, and both models solved by quadrature."""

    seen: Tensor
    chains: dict[str, dict[str, Tensor]]
    exact: dict[str, Exact]

    def rows(self) -> list[list[str]]:
        """Return the moments of the chains and the exact ones."""
        moments = [self.exact["parabola"].moments(site) for site in SITES]
        exact = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in moments]
        chains = [chain_row(name, draws) for name, draws in self.chains.items()]
        return [*chains, ["exact", *exact, "–", "–"]]


def solve(name: str, seen: Tensor, size: int = 16, nodes: int = 64) -> Exact:
    """Tabulate the posterior: given the grid, each person is a one-dimensional integral."""
    ticks = (torch.linspace(-4, 4, size, dtype=DOUBLE),) * 3
    u, v, w = (x.reshape(-1) for x in torch.meshgrid(*ticks, indexing="ij"))
    # A grid over the posterior, which is narrower than the priors; even in log spread and noise.
    mean, spread, noise = 4.85 + 0.25 * u, torch.exp(-0.6 + 0.24 * v), torch.exp(-1.65 + 0.13 * w)
    values = {"mean": mean, "spread": spread, "noise": noise}
    prior = sum(PRIORS[site].log_prob(x) for site, x in values.items())
    prior = prior + spread.log() + noise.log()
    half_width = 5**0.5 if name == "parabola" else 4.0
    x = half_width * (2 * (torch.arange(nodes, dtype=DOUBLE) + 0.5) / nodes - 1).unsqueeze(-1)
    places = mean + spread * x
    shares = population(name, mean, spread).log_prob(places).softmax(0)
    likelihood = dist.Normal(places, noise)
    own = [likelihood.log_prob(one.reshape(-1, 1, 1)).sum(0) + shares.log() for one in seen]
    people = torch.stack([torch.logsumexp(one, 0) for one in own])
    return Exact(mean, spread, noise, prior, people, places, shares)


def chain_row(name: str, draws: dict[str, Tensor]) -> list[str]:
    """Return moments, R-hat and effective size of chains."""
    r_hat = max(split_gelman_rubin(x, 0, 1).item() for x in draws.values())
    size = min(effective_sample_size(x, 0, 1).item() for x in draws.values())
    moments = [f"{x.mean():.3f} ± {x.std():.3f}" for x in draws.values()]
    return [name, *moments, f"{r_hat:.3f}", f"{size:.0f}"]


def prediction_row(name: str, exact: Exact) -> list[str]:
    """Return where 99 % of durations of new people lie, and the log density of left-out people."""
    log = sum(
        torch.logsumexp(exact.weights(without=k).log() + people, 0).item()
        for k, people in enumerate(exact.people)
    )
    values, joint = torch.arange(2, 8, 0.02, dtype=DOUBLE), exact.shares * exact.weights()
    further = dist.Normal(exact.places, exact.noise)
    cdf = torch.stack([(joint * further.cdf(x)).sum() for x in values])
    low, high = np.exp(np.interp((0.005, 0.995), cdf, values))
    return [name, f"{low:.0f} to {high:.0f}", f"{log:.1f}"]


def draw(result: Posterior) -> Figure:
    """Draw the predicted densities of people, and the chains next to the exact posterior."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.9))
    t = torch.linspace(2.5, 7.0, 451, dtype=DOUBLE)
    for name, one in result.exact.items():
        p = population(name, one.mean.unsqueeze(-1), one.spread.unsqueeze(-1))
        left.plot(t, one.weights() @ p.log_prob(t).exp(), label=name)
    means = result.seen.mean(1)
    left.plot(means, torch.zeros(len(means)), "C7|", ms=14, label="people's means")
    left.set(title="people not seen", xlabel="log duration of a person, in frames")
    left.set(ylabel="density of people", ylim=(0, None))
    parabola, bins = result.exact["parabola"], torch.linspace(3.9, 5.7, 37)
    for (name, draws), color in zip(result.chains.items(), ("C2", "C4"), strict=True):
        style = {"density": True, "histtype": "stepfilled", "alpha": 0.45, "color": color}
        right.hist(draws["mean"].flatten(), bins, label=f"NUTS, {name}", **style)
    ticks, weights = parabola.mean.unique(), parabola.weights()
    mass = torch.stack([weights[parabola.mean == x].sum() for x in ticks])
    right.plot(ticks, mass / (ticks[1] - ticks[0]), color="C7", label="exact")
    right.set(title="the chains", xlabel="mean log duration of people", xlim=(3.9, 5.7))
    right.set(ylabel="posterior density", ylim=(0, None))
    for ax in (left, right):
        ax.legend(fontsize="small", loc="upper right")
    return figure


def run(draws: int) -> Posterior:
    """Sample the posterior with and without `AutoSupportReparam`, and solve both models."""
    seen = load()
    model = model_of("parabola", seen)
    # The plain chains take most of the time: a quarter as many draws shows that they are wrong.
    chains = {
        "AutoSupportReparam": sample(AutoSupportReparam()(model), draws),
        "plain": sample(model, draws // 4),
    }
    return Posterior(seen, chains, {name: solve(name, seen) for name in MODELS})


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Durations of a gesture.")
    parser.add_argument("--draws", type=int, default=250, help="of each chain (250)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    if options.draws < 16:
        parser.error(f"--draws must be at least 16, got {options.draws}")
    torch.set_num_threads(1)
    result = run(options.draws)
    show(HEADER, result.rows())
    predictions = [prediction_row(name, one) for name, one in result.exact.items()]
    show(["people's density", "new, 99 % of", "log p of new"], predictions)
    options.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(LOOKS["light"]):
        draw(result).savefig(options.out / "pickups.png")


if __name__ == "__main__":
    main()
