"""Second tutorial: how long people take for a gesture, a hierarchy whose support moves.

`python -m examples.pickups` prints the numbers of docs/tutorials/pickups.md and writes its picture
to `demo/pickups.png`.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

from sparsefam.inference import AutoSupportReparam

from .gestures import MODELS, Table, load, model_of, population, tabulated
from .look import Look
from .progress import Reporter, RunBars

__all__ = ["central", "main"]

_SITES = ("mean", "spread", "noise")
_CHAINS = 2


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Durations of a gesture.")
    parser.add_argument("--draws", type=int, default=250, help="of each chain (250)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, reporter = time.perf_counter(), Reporter()
    seen, unseen = load()
    model = model_of("parabola", seen)
    models = {"SupportReparam": AutoSupportReparam()(model), "plain": model}
    reporter.stage("Chains of the hierarchy with a parabola, and what is exact")
    # The plain chains, which freeze, take most of the time: a quarter of them shows it.
    with reporter.runs(_CHAINS * len(models), 2 * options.draws) as bars:
        chains = {
            name: _walk(name, x, options.draws // (4 if x is model else 1), bars)
            for name, x in models.items()
        }
    tables = {name: tabulated(name, seen) for name in MODELS}
    reporter.table(["NUTS", *_SITES, "R-hat", "size"], _chain_rows(chains, tables["parabola"]))
    reporter.stage("Durations not seen")
    header = ["people's density", "same in 90 %", "new in 90 %", "new, 99 % of", "log p of new"]
    reporter.table(header, [_row(name, x, seen, unseen) for name, x in tables.items()])
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "pickups.png"
    look = Look()
    with look.applied():
        _draw(look, chains, tables, seen).savefig(path)
    reporter.note(f"{path}  ({time.perf_counter() - start:.0f} s in all)")


def _walk(name: str, model: Callable[[], None], draws: int, bars: RunBars) -> dict[str, Tensor]:
    """Draws (chains, draws) of the numbers of the population."""
    found = []
    for seed in range(_CHAINS):
        pyro.set_rng_seed(seed)
        title = f"{name}, chain {seed + 1}"
        bars.begin(title)
        # Standard coordinates bend where a person is near the edge: smaller steps pay.
        options: dict[str, Any] = {"full_mass": True, "target_accept_prob": 0.9}
        options |= {"max_tree_depth": 5, "jit_compile": True, "ignore_jit_warnings": True}
        kernel = NUTS(model, **options)
        mcmc = MCMC(
            kernel,
            draws,
            warmup_steps=draws,
            disable_progbar=True,
            hook_fn=_hook(bars),
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run()
        found.append(mcmc.get_samples())
        bars.end(title, f"{draws} draws")
    return {site: torch.stack([chain[site] for chain in found]) for site in _SITES}


def _hook(bars: RunBars) -> Callable[..., None]:
    """Tells the bars of each draw, and of minus its log density."""
    numbers = count(1)
    return lambda kernel, *_: bars.epoch(next(numbers), float(kernel._potential_energy_last))


def _chain_rows(chains: dict[str, dict[str, Tensor]], table: Table) -> list[list[str]]:
    rows = []
    for name, draws in chains.items():
        moments = [f"{x.mean():.3f} ± {x.std():.3f}" for x in draws.values()]
        r_hat = max(split_gelman_rubin(x, 0, 1).item() for x in draws.values())
        size = min(effective_sample_size(x, 0, 1).item() for x in draws.values())
        rows.append([name, *moments, f"{r_hat:.3f}", f"{size:.0f}"])
    weights = table.weights()
    exact = []
    for site in _SITES:
        x: Tensor = getattr(table, site)
        mean = (weights * x).sum()
        exact.append(f"{mean:.3f} ± {(weights * (x - mean).square()).sum().sqrt():.3f}")
    return [*rows, ["exact", *exact, "", ""]]


def central(table: Table, joint: Tensor, value: Tensor, share: float = 0.9) -> Tensor:
    """Which of the durations (M) are in the central interval of that share."""
    return (table.below(joint, value) - 0.5).abs() <= share / 2


def _row(name: str, table: Table, seen: Tensor, unseen: Tensor) -> list[str]:
    same, new, log = [], [], 0.0
    for person in range(len(seen)):
        same.append(central(table, table.known(person), unseen[person]))
        rest = table.weights(person)
        all_ten = torch.cat([seen[person], unseen[person]])
        new.append(central(table, table.stranger(rest), all_ten))
        log += torch.logsumexp(rest.log() + table.people[person], 0).item()
    # In frames, interpolated between steps of the logarithm.
    values = torch.arange(200, 800, 2, dtype=seen.dtype) / 100
    levels = table.below(table.stranger(table.weights()), values)
    low, high = np.exp(np.interp((0.005, 0.995), levels, values))
    shares = [f"{100 * torch.cat(x).double().mean():.0f} %" for x in (same, new)]
    return [name, *shares, f"{low:.0f} to {high:.0f}", f"{log:.1f}"]


def _draw(
    look: Look, chains: dict[str, dict[str, Tensor]], tables: dict[str, Table], seen: Tensor
) -> Figure:
    figure, (left, right) = look.panels(1, 2, 2.9)
    _draw_people(look, left, tables, seen)
    _draw_chains(look, right, chains, tables["parabola"])
    for ax in (left, right):
        ax.set_ylim(bottom=0)
    return figure


def _draw_people(look: Look, ax: Axes, tables: dict[str, Table], seen: Tensor) -> None:
    places = torch.linspace(2.5, 7.0, 451, dtype=seen.dtype)
    for name, table, color in zip(tables, tables.values(), look.palette[:2], strict=True):
        weights = table.weights()
        kept = weights > 1e-4 * weights.max()
        law = population(name, table.mean[kept].unsqueeze(-1), table.spread[kept].unsqueeze(-1))
        prob = law.log_prob(places).exp()
        ax.plot(places, (weights[kept].unsqueeze(-1) * prob).sum(0), color=color, label=name)
    ink = look.palette[3]
    ax.plot(seen.mean(1), torch.zeros(len(seen)), "|", ms=14, color=ink, label="people's means")
    ax.set_xlabel("log duration of a person, in frames")
    ax.set_ylabel("density of people")
    ax.set_title("people not seen")
    ax.legend(loc="upper left")


def _draw_chains(look: Look, ax: Axes, chains: dict[str, dict[str, Tensor]], table: Table) -> None:
    x, weights = table.mean, table.weights()
    kept = x.unique()
    heights = torch.stack([weights[x == value].sum() for value in kept]) / (kept[1] - kept[0])
    bins = torch.linspace(3.9, 5.7, 37)
    filled = {"density": True, "histtype": "stepfilled", "alpha": 0.45}
    for (name, draws), color in zip(
        chains.items(), (look.palette[2], look.palette[5]), strict=True
    ):
        ax.hist(draws["mean"].flatten(), bins, color=color, label=f"NUTS, {name}", **filled)
    ax.plot(kept, heights, color=look.ink, label="exact")
    ax.set_xlabel("mean log duration of people")
    ax.set_ylabel("posterior density")
    ax.set_title("the chains")
    ax.set_xlim(3.9, 5.7)
    ax.legend(loc="upper right")


if __name__ == "__main__":
    main()
