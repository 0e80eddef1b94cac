"""All tables of the documentation, one part after the other: `make bench`.

Each part runs in a process of its own, as `python -m benchmarks.NAME` does, so that the memory of
one part does not count for another.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from .harness import Table, parser

__all__ = ["PARTS", "Part", "main"]


class Part(NamedTuple):
    """A module with a command line of its own.

    Attributes:
        minutes: About how long it takes on a quiet machine with two cores.
        text: What it measures.
        sections: The sections of docs/ that it writes, by page; none if it only prints.
    """

    minutes: float
    text: str
    sections: dict[str, tuple[str, ...]]


PARTS = {
    "accuracy": Part(
        6,
        "errors of expectations against independent references",
        {"benchmarks.md": ("accuracy", "dimensions", "kernel accuracy")},
    ),
    "expect": Part(
        2,
        "time of expectations beside plain rules, and of entmax",
        {"benchmarks.md": ("expectations", "plane", "kernels", "entmax")},
    ),
    "attention": Part(
        3,
        "the layer and its regression beside nn.MultiheadAttention and least squares",
        {"long-sequences.md": ("attention",), "value-functions.md": ("regression",)},
    ),
    "estimation": Part(
        3,
        "density estimates beside kernel density estimates",
        {"benchmarks.md": ("density estimation",)},
    ),
    "inference": Part(3, "Hamiltonian chains against quadrature", {}),
}
# Not of `make bench`: they need a quiet machine, or a clean commit.
OTHERS = {
    "first_call": "what the first calls of a fresh clone cost (5 min)",
    "threads": "time at two threads over time at one (7 min)",
    "compare": "this checkout against another one (10 min)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a part fails or exceeds a limit."""
    options = parser(__doc__, write=True)
    options.prog = "python -m benchmarks"
    lines = [f"  {name:<12}{part.minutes:>3g} min  {part.text}" for name, part in PARTS.items()]
    lines += ["run apart:"] + [f"  {name:<12}         {text}" for name, text in OTHERS.items()]
    options.epilog = "parts:\n" + "\n".join(lines)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    chosen = options.parse_args(arguments)
    rows, failed = [], False
    for name in chosen.only:
        part = PARTS[name]
        print(f"\n{name}: {part.text} (about {part.minutes:g} min)", flush=True)
        written = ["--write"] if chosen.write and part.sections else []
        start = time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}", *written]
        code = subprocess.run(command, check=False).returncode
        failed |= code != 0
        outcome = f"exit code {code}" if code else "done"
        rows.append([name, f"{(time.perf_counter() - start) / 60:.1f}", outcome])
    Table("Parts that were run.", ["part", "minutes", "outcome"], rows).show()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
