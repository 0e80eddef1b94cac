"""Whether Hamiltonian chains find posteriors known by quadrature: `python -m benchmarks.inference`.

It prints the table of docs/inference.md, in about five minutes.
"""

import argparse
import sys
from collections.abc import Iterable
from statistics import NormalDist

import torch

from .chains import Verdict, judged
from .posteriors import POSTERIORS
from .report import Table, console, following

__all__ = ["allowed", "main", "unmet", "worst"]

# At most so large an R-hat, and at least this effective sample size.
_R_HAT, _SIZE = 1.01, 150.0
# The probability that chains which are right are called wrong anywhere in the table. Each deviation
# is normal, and the worst of some dozens is beyond three standard errors in one table of eleven:
# as often as whatever changes the last digits lets the chains take another course.
_FALSE_ALARM = 0.01


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of all sites."""
    deviations, r_hats, sizes, counts = zip(*verdicts, strict=True)
    return Verdict(max(deviations), max(r_hats), min(sizes), sum(counts))


def allowed(count: int) -> float:
    """What the worst of so many numbers of a model may deviate by, in standard errors."""
    share = _FALSE_ALARM / (len(POSTERIORS) * count)
    return NormalDist().inv_cdf(1 - share / 2)


def unmet(found: Verdict) -> list[str]:
    """The limits that are broken."""
    broken = {
        "deviation": not found.deviation < allowed(found.count),
        "r_hat": not found.r_hat < _R_HAT,
        "size": not found.size > _SIZE,
    }
    return [name for name, is_broken in broken.items() if is_broken]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description="NUTS on supports that move.")
    parser.add_argument("--draws", type=int, help="of each chain (those of the page)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small
    rows, failures = [], []
    for name, posterior in following(list(POSTERIORS.items()), "chains"):
        draws = options.draws or posterior.draws
        found = worst(judged(posterior, draws).values())
        rows.append(
            [name, f"2 x {draws}", f"{found.deviation:.1f}", f"{allowed(found.count):.1f}"]
            + [f"{found.r_hat:.4f}", f"{found.size:.0f}"]
        )
        failures += [f"{name}: {limit}" for limit in unmet(found)]
        console.print("  ".join(rows[-1]))
    header = ["model", "draws", "deviation in standard errors", "allowed"]
    header += ["R-hat", "effective sample size"]
    Table("NUTS against quadrature, two chains; the worst of all sites", header, rows).show()
    for line in failures:
        console.print(f"limit not met: {line}", style="bold red")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
