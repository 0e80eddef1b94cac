"""Infer the time that people take for a gesture: a hierarchy whose support moves.

`python -m examples.pickups` prints the table of docs/tutorials/pickups.md and writes its picture
to demo/pickups.png.

References:
    Guna, Humar and Pogacnik (2012), Intuitive gesture based user identification system: ten
    recordings of each of ten people, as aeon has them.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
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


def population(mean: Tensor, spread: Tensor) -> sf.TruncatedParabola:
    """Return the density of people's own log durations, by its mean and standard deviation."""
    return sf.TruncatedParabola(mean, spread * 5**0.5)


def model(seen: Tensor) -> None:
    """Pyro model in which the support of `person` moves with `mean` and `spread`."""
    mean, spread, noise = (pyro.sample(site, prior) for site, prior in PRIORS.items())
    with pyro.plate("people", len(seen)):
        person = pyro.sample("person", population(mean, spread))
        with pyro.plate("times", seen.shape[1]):
            pyro.sample("duration", dist.Normal(person, noise), obs=seen.T)


def sample(model: Callable[[Tensor], None], seen: Tensor, draws: int) -> dict[str, Tensor]:
    """Run two chains of NUTS and return draws (2, draws) of each site."""
    runs = []
    for seed in range(2):
        pyro.set_rng_seed(seed)
        options: dict[str, Any] = {"full_mass": True, "target_accept_prob": 0.9}
        options |= {"max_tree_depth": 5, "jit_compile": True, "ignore_jit_warnings": True}
        mcmc = MCMC(NUTS(model, **options), draws, warmup_steps=draws)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run(seen)
        runs.append(mcmc.get_samples())
    return {site: torch.stack([run[site] for run in runs]) for site in PRIORS}


def solve(seen: Tensor, size: int = 16, nodes: int = 64) -> tuple[dict[str, Tensor], Tensor]:
    """Compute the posterior by quadrature: given a grid, each person is an integral.

    Returns:
        The grid (G) by site, and the posterior's weights on it (G).
    """
    ticks = (torch.linspace(-4, 4, size, dtype=DOUBLE),) * 3
    u, v, w = (x.reshape(-1) for x in torch.meshgrid(*ticks, indexing="ij"))
    # A grid over the posterior, which is narrower than the priors; even in log spread and noise.
    mean, spread, noise = 4.85 + 0.25 * u, torch.exp(-0.6 + 0.24 * v), torch.exp(-1.65 + 0.13 * w)
    grid = {"mean": mean, "spread": spread, "noise": noise}
    total = sum(PRIORS[site].log_prob(x) for site, x in grid.items()) + (spread * noise).log()
    x = 2 * (torch.arange(nodes, dtype=DOUBLE).unsqueeze(-1) + 0.5) / nodes - 1
    places = mean + 5**0.5 * spread * x
    shares = population(mean, spread).log_prob(places).log_softmax(0)
    likelihood = dist.Normal(places, noise)
    for person in seen:
        durations = likelihood.log_prob(person.reshape(-1, 1, 1)).sum(0)
        total = total + torch.logsumexp(durations + shares, 0)
    return grid, total.softmax(0)


def moments(grid: dict[str, Tensor], weights: Tensor) -> list[str]:
    """Return the posterior mean and standard deviation of each site."""
    cells = []
    for x in grid.values():
        mean = (weights * x).sum()
        cells.append(f"{mean:.3f} ± {(weights * (x - mean).square()).sum().sqrt():.3f}")
    return cells


def draw(chains: dict[str, dict[str, Tensor]], grid: dict[str, Tensor], weights: Tensor) -> Figure:
    """Draw the chains next to the exact posterior of the mean."""
    figure, ax = plt.subplots(figsize=(9.4, 2.9), layout="constrained")
    bins = torch.linspace(3.9, 5.7, 37)
    for (name, draws), color in zip(chains.items(), ("C0", "C1"), strict=True):
        style = {"density": True, "histtype": "stepfilled", "alpha": 0.45, "color": color}
        ax.hist(draws["mean"].flatten(), bins, label=f"NUTS, {name}", **style)
    ticks = grid["mean"].unique()
    mass = weights.reshape(len(ticks), -1).sum(-1)
    ax.plot(ticks, mass / (ticks[1] - ticks[0]), color="k", label="exact")
    ax.set(xlabel="mean log duration of people, in frames", ylabel="posterior density")
    ax.set(xlim=(3.9, 5.7), ylim=(0, None))
    ax.legend()
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Durations of a gesture.")
    parser.add_argument("--draws", type=int, default=250, help="of each chain (250)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seen = load()
    # The plain chains take most of the time: a quarter as many draws shows that they are wrong.
    chains = {
        "AutoSupportReparam": sample(AutoSupportReparam()(model), seen, options.draws),
        "plain": sample(model, seen, options.draws // 4),
    }
    grid, weights = solve(seen)
    print(f"{'NUTS':<20}" + "".join(f"{site:>15}" for site in PRIORS) + "  R-hat  effective size")
    for name, draws in chains.items():
        r_hat = max(split_gelman_rubin(x, 0, 1).item() for x in draws.values())
        size = min(effective_sample_size(x, 0, 1).item() for x in draws.values())
        cells = "".join(f"{f'{x.mean():.3f} ± {x.std():.3f}':>15}" for x in draws.values())
        print(f"{name:<20}{cells}  {r_hat:.3f}  {size:>14.0f}")
    print(f"{'exact':<20}" + "".join(f"{cell:>15}" for cell in moments(grid, weights)))
    options.out.mkdir(parents=True, exist_ok=True)
    draw(chains, grid, weights).savefig(options.out / "pickups.png", dpi=160)


if __name__ == "__main__":
    main()
