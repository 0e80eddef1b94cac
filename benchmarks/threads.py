"""Measure time at two threads over time at one: `python -m benchmarks.threads`.

Every number of threads has a process of its own; the processes take turns. Columns: milliseconds of
one call at one thread on a quiet machine; the ratios of the times at two threads and at one, quiet
and beside one busy process; the ratio at eight threads and at one, which on two cores imitates a
machine with fewer free cores than threads. The exit code is 1 if a ratio exceeds its limit. Nothing
else may run on the machine.
"""

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from .harness import Table, Worker, alternate_workers, busy, parser, ratio, show_and_write

__all__ = ["main"]

_COMMAND = "python -m benchmarks.threads --write"
# At most these ratios, quiet and beside one busy process.
QUIET, BUSY = 0.7, 1.15
LENGTHS = {"1k": 1024, "8k": 8192, "64k": 65536}


def _settings() -> dict[str, tuple[str, dict[str, object]]]:
    """Return the case and its settings by name."""
    out: dict[str, tuple[str, dict[str, object]]] = {}
    for name, length in LENGTHS.items():
        for alpha in (2.0, 1.5, 1.7):
            out[f"layer, alpha {alpha:g}, L = {name}"] = "layer", dict(alpha=alpha, length=length)
        if name != "64k":  # takes minutes
            out[f"nn.MultiheadAttention, L = {name}"] = "multihead", dict(length=length)
        out[f"MLP, L = {name}"] = "mlp", dict(length=length)
    for alpha in (2.0, 1.5, 1.7):
        out[f"expect, 1-D 4096 x 128, alpha {alpha:g}"] = "line", dict(alpha=alpha)
    out["expect, 2-D 1024 x 196"] = "ball", dict(densities=1024, functions=196)
    return out


def measure(
    case: str, settings: dict[str, object], checkout: Path | None, budget: float
) -> tuple[float, float, float, float]:
    """Return seconds at one thread and the three ratios."""
    with ExitStack() as stack:
        workers = {
            n: stack.enter_context(Worker(case, settings, int(n), checkout))
            for n in ("1", "2", "8")
        }
        quiet = alternate_workers(workers, budget)
        del workers["8"]
        with busy():
            beside = alternate_workers(workers, budget)
    ratios = (ratio(quiet["2"], quiet["1"]), ratio(beside["2"], beside["1"]))
    return statistics.median(quiet["1"]), *ratios, ratio(quiet["8"], quiet["1"])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True)
    options.add_argument("--only", nargs="+", metavar="TEXT", help="settings that contain a text")
    options.add_argument("--against", type=Path, metavar="PATH", help="another checkout, beside")
    options.add_argument("--budget", type=float, default=2.0, help="seconds a worker and condition")
    chosen = options.parse_args(arguments)
    checkouts = {"": None} if chosen.against is None else {"": None, " (against)": chosen.against}
    rows, failed = [], False
    for name, (case, settings) in _settings().items():
        if chosen.only and not any(text in name for text in chosen.only):
            continue
        for label, checkout in checkouts.items():
            first, quiet, beside, many = measure(case, settings, checkout, chosen.budget)
            met = quiet <= QUIET and beside <= BUSY
            ours = case in ("layer", "line", "ball")
            failed |= ours and checkout is None and not met
            verdict = ("met" if met else "not met") if ours else ""
            rows.append(
                [name + label, f"{1e3 * first:.3g}", f"{quiet:.2f}", f"{beside:.2f}"]
                + [f"{many:.2f}", verdict]
            )
            print("  ".join(rows[-1]), flush=True)
    header = ["forward and backward", "ms, 1 thread", "2 / 1, quiet"]
    header += ["2 / 1, beside a busy process", "8 / 1, quiet", f"limits {QUIET:g}, {BUSY:g}"]
    title = "Wall time by number of threads: medians of the ratios of neighbouring calls."
    show_and_write("threads", _COMMAND, [Table(title, header, rows)], chosen.write)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
