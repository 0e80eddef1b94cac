"""Compare numbers of threads, or this checkout with another one.

Every number of threads and every checkout has a process of its own; the processes take turns.
Prints milliseconds of one call, forward and backward, and the ratio to the time of the first number
of threads or, with `--against`, of the other checkout: medians of neighboring calls. The last
column is what torch allocates at the peak.
Nothing else may run on the machine; `--busy` keeps one core busy.
"""

import statistics
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

from .cases import INSIDE, OUTSIDE
from .harness import Case, Table, Worker, alternate, busy, parser, ratio

LENGTHS = {"1k": 1024, "8k": 8192, "64k": 65536}
# Number of threads, and a checkout (None: this one).
Variant = tuple[int, Path | None]


def _settings() -> dict[str, Case]:
    """Return the cases by name."""
    out: dict[str, Case] = {}
    for alpha, family in {"2": "α = 2", "1.5": "α = 3/2", "1.7": "α = 1.7"}.items():
        out[f"1-D 4096 x 128, alpha {alpha}"] = "line", {"family": family}
    out["2-D 64 x 100"] = "ball", {}
    out["2-D 1024 x 196"] = "ball", {"densities": 1024, "functions": 196}
    cube = {"densities": 256, "functions": 216, "width": 0.1, "half_axes": (0.1, 0.3), "ndim": 3}
    out["3-D 256 x 216"] = "ball", cube
    for alpha in (2.0, 1.5):
        for name, length in LENGTHS.items():
            out[f"layer, alpha {alpha:g}, L = {name}"] = "layer", {"alpha": alpha, "length": length}
    out["nn.MultiheadAttention, L = 1k"] = "multihead", {"length": 1024}
    for alpha in (2.0, 1.5):
        for method in (INSIDE, OUTSIDE):
            name = f"kernel 6400 x 64, alpha {alpha:g}, {method.split(', ')[1]}"
            out[name] = "kernel", {"alpha": alpha, "method": method}
    out["SparseDensity, 10000 numbers"] = "density_fit", {}
    return out


SETTINGS = _settings()


def measure(
    case: Case, variants: list[Variant], budget: float, beside: bool
) -> list[tuple[float, float, float]]:
    """Return seconds, their ratio to the first variant's, and megabytes of each variant."""
    with ExitStack() as stack:
        workers = {str(x): stack.enter_context(Worker(*x)).load(case) for x in variants}
        memory = [worker.megabytes() for worker in workers.values()]
        stack.enter_context(busy() if beside else nullcontext())
        seconds = [*alternate(workers, budget).values()]
    return [
        (statistics.median(x), ratio(x, seconds[0]), megabytes)
        for x, megabytes in zip(seconds, memory, strict=True)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, only=True)
    options.add_argument("--against", type=Path, metavar="PATH", help="another checkout")
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--budget", type=float, default=2.0, help="seconds for each measurement")
    options.add_argument("--busy", action="store_true", help="beside a busy process")
    chosen = options.parse_args(arguments)
    groups: list[list[Variant]] = [[(threads, None) for threads in chosen.threads]]
    if chosen.against:
        other = chosen.against.resolve()
        groups = [[(threads, other), (threads, None)] for threads in chosen.threads]
    rows = []
    for name, case in SETTINGS.items():
        if not any(text in name for text in chosen.only):
            continue
        for variants in groups:
            results = measure(case, variants, chosen.budget, chosen.busy)
            for (threads, checkout), (seconds, over, memory) in zip(variants, results, strict=True):
                cells = f"{1e3 * seconds:.3g}", f"{over:.2f}", f"{memory:.0f}"
                rows.append([name, str(threads), "other" if checkout else "this", *cells])
                print("  ".join(rows[-1]), flush=True)
    header = ["forward and backward", "threads", "checkout", "ms", "ratio", "MB"]
    Table("Medians of alternating calls.", header, rows).show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
