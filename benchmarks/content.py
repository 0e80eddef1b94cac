"""Attention by content beside the trapezoid rule of 1000 points, as research code computes it.

Scores and values are functions of one basis; the expectation of the basis under each query's
density is timed, forward only, since the rule serves networks that are already trained.
`--write` puts the tables into docs/benchmarks.md.
"""

import math
import sys
from collections.abc import Sequence
from itertools import product

from .accuracy import kernel_truth
from .cases import CASES, MESH_KNOWN, OURS, PRODUCTS, TRAPEZOID, content_case
from .harness import Table, costs, parser, relative_error, run

METHODS = OURS, MESH_KNOWN, TRAPEZOID, PRODUCTS
CHECKED = 192  # one density in so many is compared with the reference


def time_table(
    settings: Sequence[tuple[int, float]] = ((256, 1), (256, 10), (256, 100), (1024, 1)),
) -> Table:
    """Compare time, memory and error with the trapezoid rule, by N and deviation of scores."""
    kinds = [
        {"functions": n, "alpha": alpha, "deviation": deviation}
        for (n, deviation), alpha in product(settings, (1.0, 1.5))
    ]
    groups = [{x: ("content", {**kind, "method": x}) for x in METHODS} for kind in kinds]
    rows = []
    for kind, cost in zip(kinds, costs(groups, 1), strict=True):
        cells = [f"{x:g}" for x in kind.values()]
        cells += [f"{1e3 * cost[x].seconds:.3g}" for x in METHODS]
        cells.append(f"{cost[TRAPEZOID].seconds / cost[OURS].seconds:.1f}")
        cells += [f"{cost[x].megabytes:.0f}" for x in (OURS, TRAPEZOID)]
        case = content_case(kind["functions"], kind["deviation"])
        exact = kernel_truth(case, kind["alpha"], True, CHECKED).value
        for method in (OURS, TRAPEZOID):
            found = CASES["content"](**kind, method=method)()[0].flatten(0, -2)[::CHECKED]
            error = relative_error(found, exact).max().item()
            cells.append(f"{error:.0e}" if math.isfinite(error) else "NaN")
        rows.append(cells)
    title = (
        "12 heads, 32 queries, N Gaussians 1.5 steps wide, forward, float32, one thread: "
        "milliseconds, the time of the trapezoid rule over that of the package, megabytes that "
        "torch allocates at the peak, and the largest relative error of an expectation."
    )
    header = ["N", "alpha", "sd of scores", *(f"{x}, ms" for x in METHODS)]
    header += ["ratio", "sparsefam, MB", "trapezoid, MB", "sparsefam, error", "trapezoid, error"]
    return Table(title, header, rows)


def share_table(functions: int = 256, deviations: Sequence[float] = (1, 10, 100)) -> Table:
    """Show which share of the domain is read."""
    rows = []
    for alpha in (1.0, 1.2, 1.5, 2.0):
        cells = []
        for deviation in deviations:
            case = content_case(functions, deviation)
            ends = case.builder(alpha, True)(case.weights).support.intervals
            cells.append(f"{100 * ends.diff(dim=-1).nansum((-2, -1)).mean():.3g} %")
        rows.append([f"{alpha:g}", *cells])
    title = f"Mean share of the domain on which a density is positive, N = {functions}."
    return Table(title, ["alpha", *(f"sd of scores {x:g}" for x in deviations)], rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    return run("content", {"content": lambda: [time_table(), share_table()]}, options.write)


if __name__ == "__main__":
    sys.exit(main())
