"""Compare this checkout with another one: `python -m benchmarks.compare --against PATH`.

Both run the same cases in processes of their own that take turns, at one thread and at two. Prints
milliseconds forward and backward (medians), the ratio of this checkout's to the other's, and the
megabytes that torch allocates at the peak. The exit code is 1 if a ratio exceeds its limit.
Without `--against` it prints times and memory of this checkout.
"""

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from .cases import INSIDE, OUTSIDE
from .harness import Case, Table, Worker, alternate, parser, ratio

LENGTHS = {"1k": 1024, "8k": 8192, "64k": 65536}


def _settings() -> dict[str, tuple[Case, float]]:
    """Return the case and the largest ratio, by name."""
    out: dict[str, tuple[Case, float]] = {}
    for alpha, family in {"2": "α = 2", "1.5": "α = 3/2", "1.7": "α = 1.7"}.items():
        out[f"1-D 4096 x 128, alpha {alpha}"] = ("line", {"family": family}), 1.2
    out["2-D 64 x 100"] = ("ball", {}), 1.2
    out["2-D 1024 x 196"] = ("ball", {"densities": 1024, "functions": 196}), 1.2
    for alpha, limit in ((2.0, 1.2), (1.5, 0.75)):
        for name, length in LENGTHS.items():
            settings = {"alpha": alpha, "length": length}
            out[f"layer, alpha {alpha:g}, L = {name}"] = ("layer", settings), limit
    for alpha in (2.0, 1.5):
        for method in (INSIDE, OUTSIDE):
            name = f"kernel 6400 x 64, alpha {alpha:g}, {method.split(', ')[1]}"
            out[name] = ("kernel", {"alpha": alpha, "method": method}), 2.5
    out["SparseDensity, 10000 numbers"] = ("density_fit", {}), 1.2
    return out


SETTINGS = _settings()


def measure(
    case: Case, threads: int, checkouts: list[Path | None], budget: float
) -> tuple[list[float], list[float], float]:
    """Return seconds and megabytes of each checkout, and the ratio of the first to the last."""
    with ExitStack() as stack:
        workers = {
            str(i): stack.enter_context(Worker(threads, checkout)).load(case)
            for i, checkout in enumerate(checkouts)
        }
        memory = [worker.megabytes() for worker in workers.values()]
        seconds = list(alternate(workers, budget).values())
    return [statistics.median(x) for x in seconds], memory, ratio(seconds[0], seconds[-1])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, only=True)
    options.add_argument("--against", type=Path, metavar="PATH", help="another checkout")
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--budget", type=float, default=2.0, help="seconds for each measurement")
    chosen = options.parse_args(arguments)
    checkouts = [None] if chosen.against is None else [None, chosen.against.resolve()]
    rows, failed = [], False
    for name, (case, limit) in SETTINGS.items():
        if not any(text in name for text in chosen.only):
            continue
        for threads in chosen.threads:
            seconds, memory, over = measure(case, threads, checkouts, chosen.budget)
            row = [name, str(threads), *(f"{1e3 * x:.3g}" for x in seconds)]
            row += [f"{x:.0f}" for x in memory]
            if len(checkouts) > 1:
                failed |= over > limit
                row += [f"{over:.2f}", f"{limit:g}", "met" if over <= limit else "**not met**"]
            rows.append(row)
            print("  ".join(row), flush=True)
    header = ["forward and backward", "threads", "ms", "MB"]
    if len(checkouts) > 1:
        header = [*header[:3], "against, ms", "MB", "against, MB", "ratio", "at most", "limit"]
    Table(
        "Medians of alternating calls; megabytes that torch allocates at the peak.", header, rows
    ).show()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
