"""Infer the time that people take for a gesture: a hierarchy whose support moves.

Ten people picked something up five times each. Log durations are normal around each person's own,
and those follow a parabola, whose support moves with two other unknowns. NUTS in Pyro takes the
interval of its first trace for granted, and samples a wrong posterior without a warning; with
`AutoSupportReparam` it samples the posterior. The picture has histograms of both chains; the line
is the exact posterior.

`python -m examples.pickups` prints a table of docs/tutorials/moving-supports.md and draws its
picture, demo/pickups.png.

References:
    Guna, Humar and Pogacnik (2012), Intuitive gesture based user identification system: ten
    recordings of each of ten people, as aeon has them.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

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

from .common import print_table, run
from .data import read_series

DOUBLE = torch.float64
ONE = torch.ones((), dtype=DOUBLE)
PRIORS = {
    "mean": dist.Normal(4.8 * ONE, 0.7),
    "spread": dist.LogNormal(-0.5 * ONE, 0.5),
    "noise": dist.LogNormal(-1.6 * ONE, 0.5),
}


def load() -> Tensor:
    """Load log durations in frames (10 people, 5)."""
    durations: dict[int, list[int]] = {}
    for (frames,), person in read_series("PickupGestureWiimoteZ/PickupGestureWiimoteZ_TRAIN.ts"):
        durations.setdefault(person, []).append(len(frames))
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
    warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
    runs = []
    for seed in range(2):
        pyro.set_rng_seed(seed)
        kernel = NUTS(
            model,
            full_mass=True,
            target_accept_prob=0.9,
            max_tree_depth=5,
            jit_compile=True,
            ignore_jit_warnings=True,
        )
        hidden = not sys.stderr.isatty()  # progress bars fill a log
        mcmc = MCMC(kernel, draws, warmup_steps=draws, disable_progbar=hidden)
        mcmc.run(seen)
        runs.append(mcmc.get_samples())
    return {site: torch.stack([run[site] for run in runs]) for site in PRIORS}


def solve(seen: Tensor, means: int = 16) -> tuple[dict[str, Tensor], Tensor]:
    """Compute the posterior by quadrature: given a grid, each person is an integral.

    The grid has this number of values of the mean.

    Returns:
        The grid (G) by site, and the posterior's weights on it (G).
    """
    ticks = [torch.linspace(-4, 4, n, dtype=DOUBLE) for n in (means, 16, 16)]
    u, v, w = torch.cartesian_prod(*ticks).unbind(-1)
    # A grid over the posterior, which is narrower than the priors; even in log spread and noise.
    mean, spread, noise = 4.85 + 0.25 * u, torch.exp(-0.6 + 0.24 * v), torch.exp(-1.65 + 0.13 * w)
    grid = {"mean": mean, "spread": spread, "noise": noise}
    log_posterior = sum(PRIORS[site].log_prob(x) for site, x in grid.items())
    log_posterior = log_posterior + (spread * noise).log()
    places = mean + 5**0.5 * spread * ((torch.arange(64, dtype=DOUBLE) + 0.5) / 32 - 1)[:, None]
    shares = population(mean, spread).log_prob(places).log_softmax(0)
    for person in seen:
        durations = dist.Normal(places, noise).log_prob(person[:, None, None]).sum(0)
        log_posterior = log_posterior + torch.logsumexp(durations + shares, 0)
    return grid, log_posterior.softmax(0)


def moments(grid: dict[str, Tensor], weights: Tensor) -> list[str]:
    """Return the posterior mean and standard deviation of each site."""
    x = torch.stack([*grid.values()])
    means = x @ weights
    sds = ((x - means.unsqueeze(-1)).square() @ weights).sqrt()
    return [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(means, sds, strict=True)]


def draw(chains: dict[str, dict[str, Tensor]], grid: dict[str, Tensor], weights: Tensor) -> Figure:
    """Draw the chains next to the exact posterior of the mean."""
    figure, ax = plt.subplots(figsize=(9.4, 2.9), layout="constrained")
    bins = torch.linspace(3.9, 5.7, 37)
    for name, draws in chains.items():
        ax.hist(draws["mean"].flatten(), bins, density=True, alpha=0.45, label=f"NUTS, {name}")
    ticks = grid["mean"].unique()
    mass = weights.reshape(len(ticks), -1).sum(-1)
    ax.plot(ticks, mass / (ticks[1] - ticks[0]), color="k", label="exact")
    ax.set(xlabel="mean log duration of people, in frames", ylabel="posterior density")
    ax.set(xlim=(3.9, 5.7), ylim=(0, None))
    ax.legend()
    return figure


def main(draws: int = 250, out: Path = Path("demo")) -> None:
    """Compare chains with the exact posterior."""
    seen = load()
    chains = {
        "AutoSupportReparam": sample(AutoSupportReparam()(model), seen, draws),
        # The plain chains take most of the time, and fewer draws show that they are wrong.
        "plain": sample(model, seen, draws // 4),
    }
    grid, weights = solve(seen, 61)  # enough for a smooth line
    rows = []
    for name, found in chains.items():
        cells = [f"{x.mean():.3f} ± {x.std():.3f}" for x in found.values()]
        r_hat = max(split_gelman_rubin(x, 0, 1).item() for x in found.values())
        size = min(effective_sample_size(x, 0, 1).item() for x in found.values())
        rows.append([name, *cells, f"{r_hat:.3f}", f"{size:.0f}"])
    rows.append(["exact", *moments(grid, weights), "", ""])
    print_table(["NUTS", *PRIORS, "R-hat", "effective size"], rows)
    draw(chains, grid, weights).savefig(out / "pickups.png", dpi=160)


if __name__ == "__main__":
    run(main)
