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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    return run(
        "attention", {"attention": lambda: [cost_table()]}, options.write, "learn/attention.md"
    )


if __name__ == "__main__":
    sys.exit(main())
