"""Pyro sites in standard coordinates beside normal ones, and particles of `TsallisELBO` at once.

Both sides of a ratio run in turn in one process of one thread. `--write` puts the tables into
docs/inference.md; the exit code is 1 if a ratio of sites exceeds its limit.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad

import sparsefam as sf
from sparsefam.inference import AutoBetaGaussian, AutoSupportReparam, TsallisELBO

from .harness import Table, parser, ratio, run

NORMAL = "Normal(loc, scale)"
SITES: dict[str, Callable[..., dist.TorchDistribution]] = {
    NORMAL: dist.Normal,
    "TruncatedParabola(0.0, 1.0)": lambda loc, scale: sf.TruncatedParabola(0.0, 1.0),
    "TruncatedParabola(loc, scale)": sf.TruncatedParabola,
    "Triangular(loc, scale)": sf.Triangular,
    "Uniform(loc, loc + scale)": lambda loc, scale: dist.Uniform(loc, loc + scale),
}
# Of the ratio of the time to that of normals.
LIMIT = 2.6
TOSSES = torch.tensor([1.0, 0.0, 1.0, 0.0])


def sites_table(calls: int = 30, rounds: int = 30) -> Table:
    """Time the potential of NUTS and its gradient for five sites of each distribution."""

    def potential(site: Callable[..., dist.TorchDistribution], jit: bool) -> Callable[[], object]:
        def model() -> None:
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
            for i in range(5):
                pyro.sample(f"site_{i}", site(loc, scale))

        start, function, _, _ = initialize_model(
            AutoSupportReparam()(model),
            jit_compile=jit,
            skip_jit_warnings=True,
        )

        def call() -> object:
            return potential_grad(function, dict(start))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of tracing
            for _ in range(3 * jit):
                call()
        return call

    with pyro.validation_enabled(False):  # as in chains
        seconds, jitted = (
            _in_turn({name: potential(site, jit) for name, site in SITES.items()}, calls, rounds)
            for jit in (False, True)
        )
    rows, failures = [], []
    for name, times in seconds.items():
        found = ratio(times, seconds[NORMAL])
        if found > LIMIT:
            failures.append(f"{name}: {found:.1f} of the time of normals, at most {LIMIT}")
        shown = [statistics.median(x) for x in (times, jitted[name])]
        cells = [f"{1e3 * x:.2f}" for x in shown]
        rows.append([name, cells[0], f"{found:.2f}", cells[1], f"{shown[0] / shown[1]:.1f}"])
    title = (
        "Potential and gradient of a model with latent `loc` and `scale` and five sites of "
        "one distribution, with `AutoSupportReparam`; milliseconds of processor time, one thread."
    )
    header = ["sites", "ms", "ratio to normals", "ms, jit_compile=True", "gain"]
    return Table(title, header, rows, failures)


def particles_table(calls: int = 3, rounds: int = 5) -> Table:
    """Time a step of `TsallisELBO` with 20 particles, one after the other and at once."""

    def model() -> None:
        z = pyro.sample("z", sf.BetaGaussian(0.0, 1.0, alpha=1.5))
        with pyro.plate("tosses", 4):
            pyro.sample("toss", dist.Bernoulli((1 + z).clamp(0, 2) / 2), obs=TOSSES)

    def step(at_once: bool) -> Callable[[], object]:
        pyro.clear_param_store()
        bound = TsallisELBO(0.5, 20, vectorize_particles=at_once)
        return SVI(model, AutoBetaGaussian(model), pyro.optim.Adam({"lr": 1e-3}), bound).step

    names = {"one after the other": False, "vectorize_particles=True": True}
    seconds = _in_turn({name: step(at_once) for name, at_once in names.items()}, calls, rounds)
    slow, fast = seconds.values()
    rows = [
        [name, f"{1e3 * statistics.median(times):.1f}", f"{ratio(times, fast):.1f}"]
        for name, times in zip(names, (slow, fast), strict=True)
    ]
    title = (
        "A step of `TsallisELBO` with 20 particles and four tosses of a coin; milliseconds of "
        "processor time, one thread."
    )
    return Table(title, ["particles", "ms", "ratio"], rows)


def _in_turn(
    functions: Mapping[str, Callable[[], object]], calls: int, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of a call of each function in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.process_time()
            for _ in range(calls):
                function()
            seconds[name].append((time.process_time() - start) / calls)
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)
    sections = {"sites": lambda: [sites_table()], "particles": lambda: [particles_table()]}
    return run("sites", sections, options.write, "inference.md")


if __name__ == "__main__":
    sys.exit(main())
