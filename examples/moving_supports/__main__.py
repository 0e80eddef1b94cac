"""Compare chains on moving supports with reference posteriors: `make inference`.

Prints the table of docs/moving-supports.md; returns 1 if `AutoSupportReparam` exceeds a limit.
"""

import math
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import NormalDist
from typing import NamedTuple

import torch
from pyro.ops.stats import effective_sample_size, split_gelman_rubin

from benchmarks.harness import Table, parser, show_and_write

from . import chains, references
from .chains import OURS, PLAIN, SETTINGS, Chain, methods_of
from .models import MODELS

NAMES = [model.__name__ for model in MODELS]
# Of each chain, where 1000 draws do not suffice.
DRAWS = {"window_mean": 4000, "window_change": 2000}
# The largest R-hat and the least effective sample size.
R_HAT, SIZE = 1.01, 150.0
# The share of the draws below which divergences must stay.
DIVERGENT = 0.01
# The probability that correct chains exceed a limit in the table. Each deviation is normal, and
# the worst of a hundred exceeds three standard errors in one table of four.
FALSE_ALARM = 0.01
CHAINS = 2


class Verdict(NamedTuple):
    """The worst diagnostics of all numbers of all sites.

    Attributes:
        mean: Deviation of a mean from the reference, in standard errors.
        sd: Deviation of a standard deviation, likewise.
        r_hat: Largest split R-hat.
        size: Smallest effective sample size, of the numbers and of their squared deviations.
        count: Number of means and standard deviations.
        divergent: Share of the draws that diverged.
    """

    mean: float
    sd: float
    r_hat: float
    size: float
    count: int
    divergent: float

    def unmet(self) -> list[str]:
        """Return the limits that are exceeded."""
        limit = allowed(self.count)
        broken = {
            "mean": not self.mean < limit,
            "sd": not self.sd < limit,
            "r_hat": not self.r_hat < R_HAT,
            "size": not self.size > SIZE,
            "divergent": not self.divergent < DIVERGENT,
        }
        return [name for name, is_broken in broken.items() if is_broken]


def allowed(count: int) -> float:
    """Return the limit, in standard errors, of the worst deviation of so many numbers."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (len(NAMES) * count) / 2)


def judge(runs: list[Chain], reference: references.Reference) -> Verdict:
    """Judge the draws of chains."""
    sites = [torch.stack([run.draws[site] for run in runs]) for site in reference]
    samples = torch.cat(sites, -1)  # (chains, draws, numbers)
    mean, sd, mean_error, sd_error = (
        torch.tensor([x for site in reference.values() for x in site[key]]).to(samples)
        for key in ("mean", "sd", "mean_error", "sd_error")
    )
    deviations, sizes = [], []
    for x, true, error in (
        (samples, mean, mean_error),
        ((samples - mean).square(), sd.square(), 2 * sd * sd_error),
    ):
        size = effective_sample_size(x, 0, 1)
        error = (x.flatten(0, 1).var(0) / size + error.square()).sqrt()
        deviation = ((x.mean((0, 1)) - true).abs() / error).nan_to_num(math.inf)
        deviations.append(deviation.max().item())
        sizes.append(size.nan_to_num(1.0).min().item())
    r_hat = split_gelman_rubin(samples, 0, 1).nan_to_num(math.inf).max().item()
    divergent = sum(run.divergences for run in runs) / samples.shape[:2].numel()
    return Verdict(*deviations, r_hat, min(sizes), 2 * sd.numel(), divergent)


def row(name: str, method: str, runs: list[Chain], found: Verdict) -> list[str]:
    """Return a row of the table; numbers beyond their limits are bold."""
    unmet, seconds = found.unmet(), sum(run.seconds for run in runs)
    draws = len(next(iter(runs[0].draws.values())))
    cells = {
        "mean": f"{found.mean:.1f}",
        "sd": f"{found.sd:.1f}",
        "r_hat": f"{found.r_hat:.3f}",
        "size": f"{found.size:.0f}",
        "speed": f"{found.size / seconds:.1f}",
        "divergent": str(sum(run.divergences for run in runs)),
    }
    cells = {key: f"**{cell}**" if key in unmet else cell for key, cell in cells.items()}
    label = f"{method}, RestrictedPrior" if method == OURS and name in SETTINGS else method
    return [name, label, f"{CHAINS} x {draws}", *cells.values()]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True)
    options.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    options.add_argument("--draws", type=int, help="of each chain (default: as in the page)")
    options.add_argument("--references", action="store_true", help="compute the references anew")
    chosen = options.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CHAINS, mp_context=spawn, initializer=chains.set_up) as pool:
        if chosen.references:
            pool.submit(references.write).result()
        known, rows, failures = references.load(), [], []
        started = []
        for name in chosen.models:
            draws = chosen.draws or DRAWS.get(name, 1000)
            for method in methods_of(name):
                # The plain chains take longest, and fewer draws show that they are wrong.
                size = draws // 4 if method == PLAIN else draws
                jobs = [
                    pool.submit(chains.run, name, method, size, list(known[name]), seed)
                    for seed in range(CHAINS)
                ]
                started.append((name, method, jobs))
        for name, method, jobs in started:
            runs = [job.result() for job in jobs]
            found = judge(runs, known[name])
            rows.append(row(name, method, runs, found))
            print("  ".join(rows[-1]), flush=True)
            if method == OURS:
                failures += [f"{name}: {limit}" for limit in found.unmet()]
    header = ["model", "NUTS", "draws", "mean", "sd", "R-hat", "ESS", "ESS per s", "divergences"]
    title = "NUTS against reference posteriors, two chains; the worst of all sites"
    table = Table(title, header, rows)
    command = "python -m examples.moving_supports"
    show_and_write("suite", command, [table], chosen.write, "moving-supports.md")
    for line in failures:
        print(f"limit not met: {line}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
