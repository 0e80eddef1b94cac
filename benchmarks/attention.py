"""Cost of attention and its regression as sequences grow, beside alternatives.

`--write` puts the tables into docs/learn/attention.md.
"""

import sys
from collections.abc import Sequence

from .harness import Case, Table, costs, parser, run

# The longest sequence of discrete attention; the next takes minutes.
LONGEST_DISCRETE = 16384
_METHODS = ("alpha 2", "alpha 1.5", "discrete")


def cost_table(lengths: Sequence[int] = (256, 1024, 4096, 16384, 65536)) -> Table:
    """Compare the layer with `nn.MultiheadAttention`, which uses a fused kernel."""
    groups: list[dict[str, Case]] = []
    for length in lengths:
        cases: list[Case] = [("layer", {"alpha": a, "length": length}) for a in (2.0, 1.5)]
        cases += [("multihead", {"length": length})] * (length <= LONGEST_DISCRETE)
        groups.append(dict(zip(_METHODS, cases, strict=False)))
    rows = []
    for length, cost in zip(lengths, costs(groups, 2), strict=True):
        known = [cost.get(x) for x in _METHODS]
        cells = [f"{x.seconds:.3g}" if x else "" for x in known]
        cells.append(f"{known[-1].seconds / known[0].seconds:.1f}" if all(known) else "")
        rows.append([str(length), *cells, *(f"{x.megabytes:.0f}" if x else "" for x in known)])
    title = (
        "Forward and backward of one layer with its projections, 256 channels, 8 heads, 128 "
        "Gaussians, float32, two threads: seconds, the time of discrete attention over that of the "
        "layer at alpha = 2, and megabytes that torch allocates at the peak."
    )
    header = ["L", "alpha 2, s", "alpha 1.5, s", "discrete, s", "ratio"]
    return Table(title, [*header, *(f"{x}, MB" for x in _METHODS)], rows)


def spline_table(
    counts: Sequence[int] = (128, 4096),
    lengths: Sequence[int] = (4096, 65536),
    queries: int = 16,
) -> Table:
    """Compare fits by many B-splines, and reading them, with as many Gaussians as few B-splines."""
    parts = {f"fit, L = {length}": ("fit", length) for length in lengths}
    parts[f"values at {lengths[-1]} places"] = "values", lengths[-1]
    parts[f"contexts of {queries} queries"] = "contexts", queries
    groups: list[dict[str, Case]] = []
    for part, length in parts.values():
        settings = {"part": part, "length": length}
        gaussians = settings | {"count": counts[0], "gaussians": True}
        groups.append({f"{counts[0]} Gaussians": ("value_function", gaussians)})
        groups[-1] |= {f"{n}": ("value_function", settings | {"count": n}) for n in counts}
    rows = []
    for name, cost in zip(parts, costs(groups, 1), strict=True):
        cells = [f"{1e3 * x.seconds:.3g}" for x in cost.values()]
        rows.append([name, *cells, *(f"{x.megabytes:.0f}" for x in cost.values())])
    title = (
        "Value functions of 64 channels by N cubic B-splines, and by Gaussians as a comparison, "
        "float32, one thread: milliseconds and megabytes that torch allocates at the peak, of fits "
        "with backward, of values, and of contexts at alpha = 1.5 with half-width 0.1."
    )
    names = list(groups[0])
    return Table(title, ["", *(f"{x}, ms" for x in names), *(f"{x}, MB" for x in names)], rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    sections = {"attention": lambda: [cost_table()], "splines": lambda: [spline_table()]}
    return run("attention", sections, options.write, "learn/attention.md")


if __name__ == "__main__":
    sys.exit(main())
