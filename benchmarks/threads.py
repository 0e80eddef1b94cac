"""Measure time at two threads over time at one: `python -m benchmarks.threads`.

Every number of threads has a process of its own; the processes take turns. Columns: milliseconds of
one call at one thread on a quiet machine; the ratios of the times at two threads and at one, quiet
and beside one busy process; the ratio at eight threads and at one, which on two cores imitates a
machine with fewer free cores than threads. The exit code is 1 if a ratio exceeds its limit. Nothing
else may run on the machine. The limits are for attention and expectations: estimators use one
thread.
"""

import statistics
import sys
from contextlib import ExitStack

from .harness import Case, Table, Worker, alternate, busy, parser, ratio, show_and_write

_COMMAND = "python -m benchmarks.threads --write"
# At most these ratios, quiet and beside one busy process.
QUIET, BUSY = 0.7, 1.15
SETTINGS: dict[str, Case] = {
    "layer, alpha 2, L = 1k": ("layer", {"length": 1024}),
    "nn.MultiheadAttention, L = 1k": ("multihead", {"length": 1024}),
    "layer, alpha 2, L = 8k": ("layer", {"length": 8192}),
    "layer, alpha 1.5, L = 8k": ("layer", {"alpha": 1.5, "length": 8192}),
    "expect, 1-D 4096 x 128, alpha 2": ("line", {"family": "α = 2"}),
    "expect, 1-D 4096 x 128, alpha 1.5": ("line", {"family": "α = 3/2"}),
    "expect, 1-D 4096 x 128, alpha 1.7": ("line", {"family": "α = 1.7"}),
    "expect, 2-D 1024 x 196": ("ball", {"densities": 1024, "functions": 196}),
    "SparseDensity.fit, 10,000 numbers": ("density_fit", {}),
}


def measure(case: Case, budget: float) -> tuple[float, float, float, float]:
    """Return seconds at one thread and the three ratios."""
    with ExitStack() as stack:
        workers = {n: stack.enter_context(Worker(int(n))).load(case) for n in ("1", "2", "8")}
        quiet = alternate(workers, budget)
        del workers["8"]
        with busy():
            beside = alternate(workers, budget)
    ratios = (ratio(quiet["2"], quiet["1"]), ratio(beside["2"], beside["1"]))
    return statistics.median(quiet["1"]), *ratios, ratio(quiet["8"], quiet["1"])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True, only=True)
    options.add_argument("--budget", type=float, default=2.0, help="seconds a worker and condition")
    chosen = options.parse_args(arguments)
    rows, failed = [], False
    for name, case in SETTINGS.items():
        if not any(text in name for text in chosen.only):
            continue
        first, quiet, beside, many = measure(case, chosen.budget)
        met = quiet <= QUIET and beside <= BUSY
        verdict = "" if name.startswith(("nn", "Sparse")) else "met" if met else "not met"
        failed |= verdict == "not met"
        ratios = (f"{x:.2f}" for x in (quiet, beside, many))
        rows.append([name, f"{1e3 * first:.3g}", *ratios, verdict])
        print("  ".join(rows[-1]), flush=True)
    header = ["forward and backward", "ms, 1 thread", "2 / 1, quiet"]
    header += ["2 / 1, beside a busy process", "8 / 1, quiet", f"limits {QUIET:g}, {BUSY:g}"]
    title = "Wall time by number of threads: medians of the ratios of neighbouring calls."
    show_and_write("threads", _COMMAND, [Table(title, header, rows)], chosen.write)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
