"""Compare chains on moving supports with reference posteriors: `make inference`.

Prints the table of docs/moving-supports.md; returns 1 if `AutoSupportReparam` exceeds a limit.
"""

import math
import sys
from statistics import NormalDist

import torch
from pyro.ops.stats import effective_sample_size, split_gelman_rubin

from benchmarks.harness import Table, in_processes, parser, show_and_write

from . import references
from .chains import OURS, PLAIN, SETTINGS, Chain, Job, methods_of, run, set_up
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


def judge(runs: list[Chain], reference: references.Reference) -> dict[str, tuple[str, bool]]:
    """Judge the draws of chains by their worst number of all sites.

    Returns:
        By column of the table a text, and whether the number is within its limit. They are: the
        deviations of means and standard deviations from the reference, in standard errors; split
        R-hat; the effective sample size of the numbers and of their squared deviations, also by
        second; and the number of divergences.
    """
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
    size, speed = min(sizes), min(sizes) / sum(run.seconds for run in runs)
    divergences, draws = sum(run.divergences for run in runs), samples.shape[:2].numel()
    allowed = NormalDist().inv_cdf(1 - FALSE_ALARM / (len(NAMES) * 2 * sd.numel()) / 2)
    return {
        "mean": (f"{deviations[0]:.1f}", deviations[0] < allowed),
        "sd": (f"{deviations[1]:.1f}", deviations[1] < allowed),
        "R-hat": (f"{r_hat:.3f}", r_hat < R_HAT),
        "ESS": (f"{size:.0f}", size > SIZE),
        "ESS per s": (f"{speed:.1f}", True),
        "divergences": (f"{divergences}", divergences < DIVERGENT * draws),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True)
    options.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    options.add_argument("--draws", type=int, help="of each chain (default: as in the page)")
    options.add_argument("--references", action="store_true", help="compute the references anew")
    chosen = options.parse_args(arguments)
    if chosen.references:
        set_up()
        references.write()
    known, jobs = references.load(), []
    for name in chosen.models:
        draws = chosen.draws or DRAWS.get(name, 1000)
        for method in methods_of(name):
            # The plain chains take longest, and fewer draws show that they are wrong.
            size = draws // 4 if method == PLAIN else draws
            jobs += [Job(name, method, size, list(known[name]), seed) for seed in range(CHAINS)]
    chains = in_processes(run, jobs, CHAINS)
    header, rows, failures = [], [], []
    for k in range(0, len(jobs), CHAINS):
        name, method, draws, *_ = jobs[k]
        found = judge(chains[k : k + CHAINS], known[name])
        label = f"{method}, RestrictedPrior" if method == OURS and name in SETTINGS else method
        cells = [text if is_met else f"**{text}**" for text, is_met in found.values()]
        header = ["model", "NUTS", "draws", *found]
        rows.append([name, label, f"{CHAINS} x {draws}", *cells])
        if method == OURS:
            failures += [f"{name}: {limit}" for limit, (_, is_met) in found.items() if not is_met]
    title = "NUTS against reference posteriors, two chains; the worst of all sites"
    command = "python -m examples.moving_supports"
    table = Table(title, header, rows)
    show_and_write("suite", command, [table], chosen.write, "moving-supports.md")
    for line in failures:
        print(f"limit not met: {line}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
