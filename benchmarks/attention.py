"""The core of continuous attention against `scaled_dot_product_attention`, as sequences grow.

Prints three tables; with `--write` they go to docs/long-sequences.md, with a picture.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from .attention_core import Cost, Method, cost, discrete, narrow, wide
from .attention_recall import discrete_recall, recall_error, signal, sparse_recall
from .picture import draw_growth
from .regression import exponent
from .report import PAGE, Table, console, following, write_section

__all__ = [
    "cost_table",
    "crossing",
    "draw_costs",
    "main",
    "measured",
    "memory_table",
    "recall_table",
    "summary",
    "times",
]

LENGTHS = (256, 1024, 4096, 16384)
LONGEST = 65536
RECALLED = (64, 128, 256, 1024, 4096)
WAVES = 32
METHODS: dict[str, Method] = {"continuous": wide, "narrow": narrow, "discrete": discrete}
KINDS = ("forward", "forward and backward")
# Best of so many, for as long as it does not take long.
ROUNDS, _PATIENCE = 5, 4096
PAGE_OF_ATTENTION = PAGE.with_name("long-sequences.md")
PICTURE = PAGE.parent / "assets" / "attention.png"
COMMAND = "python -m benchmarks.attention --write"

Costs = dict[str, list[Cost]]


def measured(lengths: Sequence[int], longest: int) -> Costs:
    """All costs; those of the longest without gradients."""
    jobs = [(name, length) for length in (*lengths, longest) for name in METHODS]
    found: Costs = {name: [] for name in METHODS}
    for name, length in following(jobs, "time and memory"):
        rounds = ROUNDS if length <= _PATIENCE or name != "discrete" else 1
        found[name].append(cost(METHODS[name], length, length != longest, rounds))
    return found


def cost_table(found: Costs) -> Table:
    """Seconds, and the exponents that they grow with."""
    header, names = ["L"], [*METHODS]
    for kind in KINDS:
        header += [f"{kind}: {names[0]}", *names[1:], "ratio"]
    columns = {(k, name): dict(times(found[name], k)) for k in KINDS for name in names}
    rows = []
    for length in sorted({x.length for x in found["discrete"]}):
        row = [f"{length}"]
        for kind in KINDS:
            row += _compared([columns[kind, name].get(length) for name in names])
        rows.append(row)
    slopes = ["exponent"]
    for kind in KINDS:
        slopes += [*(_exponent(columns[kind, name]) for name in names), ""]
    title = "Seconds, and how many times as long discrete attention takes as continuous attention."
    return Table(title, header, [*rows, slopes])


def memory_table(found: Costs) -> Table:
    """Megabytes besides inputs and outputs."""
    rows = [
        [f"{each[0].length}", "forward" if each[0].training is None else "forward and backward"]
        + [f"{x.megabytes:.2f}" for x in each]
        for each in zip(*found.values(), strict=True)
    ]
    title = "Megabytes at the peak, besides inputs and outputs."
    return Table(title, ["L", "of", *METHODS], rows)


def times(costs: Sequence[Cost], kind: str) -> list[tuple[int, float]]:
    """Lengths and the seconds of a kind, where they were measured."""
    training = kind != KINDS[0]
    pairs = [(x.length, x.training if training else x.forward) for x in costs]
    return [(length, seconds) for length, seconds in pairs if seconds is not None]


def _compared(seconds: Sequence[float | None]) -> list[str]:
    known = [x for x in seconds if x is not None]
    if len(known) < len(seconds):
        return [""] * (len(seconds) + 1)
    return [*(f"{x:.3g}" for x in known), f"{known[-1] / known[0]:.1f}"]


def _exponent(seconds: dict[int, float]) -> str:
    """Of the lengths from 1024 on where there are: before, calls are what takes time."""
    long = {length: x for length, x in seconds.items() if length >= 1024}
    known = long if len(long) > 1 else seconds
    return f"{exponent([*known], [*known.values()]):.2f}" if len(known) > 1 else ""


def crossing(
    lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]
) -> float | None:
    """The length from which on the first is faster, by straight lines between logarithms."""
    gaps = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    for (m, high), (n, low) in pairwise(zip(lengths, gaps, strict=True)):
        if high > 0 >= low:
            return float(m * (n / m) ** (high / (high - low)))
    return None


def recall_table(lengths: Sequence[int]) -> Table:
    """Errors of recalling one value of many."""
    rows = []
    for length in lengths:
        noise, smooth = signal(length, None), signal(length, WAVES)
        rows.append(
            [f"{length}", f"{recall_error(sparse_recall(noise), noise):.2g}"]
            + [f"{recall_error(sparse_recall(smooth), smooth):.2g}"]
            + [f"{recall_error(discrete_recall(noise), noise):.2g}"]
        )
    title = "Relative error of values recalled one by one, 128 basis functions."
    header = ["L", "continuous, noise", f"continuous, {WAVES} waves", "discrete, noise"]
    return Table(title, header, rows)


def summary(found: Costs) -> str:
    """Where the two cross."""
    said = []
    for kind in KINDS:
        ours, theirs = (dict(times(found[name], kind)) for name in ("continuous", "discrete"))
        at = crossing([*ours], [*ours.values()], [*theirs.values()])
        if at is not None:
            said.append(f"{kind} from {round(at, -2):.0f} positions on")
    return f"Continuous attention is the faster one {', and '.join(said)}." if said else ""


def main() -> None:
    """Prints the tables, and writes the page and its picture if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--longest", type=int, default=LONGEST, help="forward only")
    parser.add_argument("--write", action="store_true", help="write docs/long-sequences.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = measured(options.lengths, options.longest)
    tables = [cost_table(found), memory_table(found), recall_table(RECALLED)]
    for table in tables:
        table.show()
    console.print(summary(found))
    if options.write:
        draw_costs(PICTURE, found)
        parts = [f"Threads: {options.threads}. {summary(found)}", *(t.markdown() for t in tables)]
        write_section("attention", COMMAND, parts, PAGE_OF_ATTENTION)


def draw_costs(path: Path, found: Costs) -> None:
    """Milliseconds against length, a panel for each kind."""
    panels = {}
    for kind in KINDS:
        curves = {name: dict(times(costs, kind)) for name, costs in found.items()}
        sizes = [*curves["discrete"]]
        panels[f"length, {kind}"] = (
            sizes,
            {name: [1e3 * x for x in known.values()] for name, known in curves.items()},
        )
    draw_growth(path, panels, "ms")


if __name__ == "__main__":
    main()
