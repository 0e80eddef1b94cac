"""All tables of the documentation, one part after the other: `make bench`.

Each part runs in a process of its own, as `python -m benchmarks.NAME` does, so that the memory of
one is not counted for another. Parts with a page write their tables there with `--write`.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from .report import Table, console

__all__ = ["PARTS", "Part", "main"]


class Part(NamedTuple):
    """A module with a command line of its own.

    Attributes:
        minutes: That it takes on a quiet machine with two cores.
        text: What it measures.
        page: Of docs/.
        sections: Of that page, all of which it writes; none if it only prints.
        flags: For its command line.
    """

    minutes: float
    text: str
    page: str = "benchmarks.md"
    sections: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


PARTS = {
    "accuracy": Part(
        6,
        "how exact expectations are, against independent references",
        sections=("accuracy", "dimensions", "kernel accuracy"),
    ),
    "expectations": Part(
        9,
        "expectations beside plain rules: a line, the plane, kernel families; overhead of calls",
        sections=("expectations", "plane", "kernels", "overhead"),
    ),
    "pairs": Part(
        1, "nanoseconds a density and a basis function on one thread", sections=("pairs",)
    ),
    "operations": Part(
        1,
        "draws, log densities, fits and estimates beside what one could use instead",
        sections=("operations",),
    ),
    "ceilings": Part(
        0.5, "what hot operations cost at least on this machine", sections=("ceilings",)
    ),
    "kernel_passes": Part(1, "where the time of kernel families goes", sections=("passes",)),
    "regression": Part(
        3, "value functions: time, memory, errors", "value-functions.md", ("regression",)
    ),
    "communication": Part(0.5, "a model of many machines", "distributed.md", ("communication",)),
    "attention": Part(
        8, "attention beside scaled_dot_product_attention", "long-sequences.md", ("attention",)
    ),
    "density_estimation": Part(
        16,
        "density estimates beside kernel density estimates",
        sections=("density estimation",),
        flags=("--jobs", "2"),
    ),
    "inference": Part(3, "Hamiltonian chains against quadrature"),
}


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {name:<20}{part.minutes:>4g} min  {part.text}" for name, part in PARTS.items()]
    lines.append(f"  {'all':<20}{sum(part.minutes for part in PARTS.values()):>4g} min")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="parts, and about how long they take:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="these parts"
    )
    parser.add_argument("--write", action="store_true", help="update the pages of docs/")
    return parser


def _run(name: str, write: bool) -> str:
    """What became of a part."""
    part = PARTS[name]
    written = ["--write"] if write and part.sections else []
    command = [sys.executable, "-m", f"benchmarks.{name}", *part.flags, *written]
    code = subprocess.run(command, check=False).returncode
    return f"exit code {code}" if code else "done"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if a part fails, or falls short of what it asks."""
    options = _parser().parse_args(arguments)
    rows = []
    for i, name in enumerate(options.only, 1):
        part = PARTS[name]
        minutes = f"about {part.minutes:g} min"
        console.rule(f"{i} of {len(options.only)}: {name}, {part.text} ({minutes})")
        start = time.perf_counter()
        outcome = _run(name, options.write)
        rows.append([name, f"{(time.perf_counter() - start) / 60:.1f}", outcome])
    Table("What was run.", ["part", "minutes", "outcome"], rows).show()
    return int(any(outcome.startswith("exit") for _, _, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
