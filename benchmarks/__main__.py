"""All tables of the documentation, one part after the other: `make bench`.

Each part runs in a process of its own, as `python -m benchmarks.NAME` does, so that the memory of
one part does not count for another.
"""

import subprocess
import sys
from collections.abc import Sequence

from .harness import parser

# Minutes on a quiet machine with two cores, and what it measures.
PARTS = {
    "accuracy": (7, "errors against independent references"),
    "expect": (4, "time of expectations beside plain rules"),
    "methods": (5, "time of every method beside scipy and torch"),
    "content": (4, "attention by content beside the trapezoid rule"),
    "recall": (1, "recall from N functions beside discrete attention"),
    "layers": (1, "layers with each score beside that of torch"),
    "attention": (3, "the layer beside that of torch, and its regression"),
    "estimation": (13, "density estimates beside kernel density estimates, and their coverage"),
}
# Not part of `make bench`: they take hours, or need a quiet machine or a clean commit.
OTHERS = {
    "sites": (1, "Pyro sites in standard coordinates beside normal ones"),
    "first_call": (5, "the first calls of a fresh clone"),
    "networks": (150, "classifiers of irregular series; starts again where it stopped"),
    "readme": (1, "the numbers of README, and lines of other libraries"),
    "gpu": (8, "a GPU's results and times; with --count, what calls would start on one"),
    "compare": (10, "numbers of threads, or this checkout against another one"),
    "contours": (1, "errors of the contours of rows; with --fit, their constants in an hour"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a part fails or exceeds a limit."""
    lines = [f"  {name:<14}{x[0]:>3} min  {x[1]}" for name, x in (PARTS | OTHERS).items()]
    lines.insert(len(PARTS), "run apart:")
    options = parser(f"{__doc__}\nparts:\n" + "\n".join(lines), write=True)
    options.prog = "python -m benchmarks"
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    chosen = options.parse_args(arguments)
    failed = []
    for name in chosen.only:
        minutes, text = PARTS[name]
        print(f"\n{name}: {text} (about {minutes} min)", flush=True)
        extra = ["--write"] if chosen.write else []
        command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall parts done")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
