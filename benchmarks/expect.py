"""Time of E_p[psi], forward and backward, beside plain rules.

Tables for 1-D, 2-D and kernel families; `--write` puts them into docs/benchmarks.md.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import product

import torch

from .accuracy import kernel_truth
from .cases import (
    CASES,
    FAMILIES,
    INSIDE,
    ON_SUPPORTS,
    OURS,
    OUTSIDE,
    POLAR,
    PRODUCTS,
    TRAPEZOID,
    kernel_case,
)
from .harness import Case, Cost, Table, costs, parser, relative_error, run

SUPPORTS = ("wide", "narrow")
# Width of the basis functions and half-axes; the first are those of visual question answering.
REGIMES = {
    "half-axes 0.1 to 0.5, variance 0.001": (0.001**0.5, (0.1, 0.5)),
    "half-axes 0.1 to 0.5, width 0.1": (0.1, (0.1, 0.5)),
    "half-axes 0.5 to 2, variance 0.001": (0.001**0.5, (0.5, 2.0)),
}


def _against_float64(case: Case, _: Cost) -> list[str]:
    """Return the worst and the median error of a density, and those of each whole gradient.

    Float64 is the package's, which `benchmarks.accuracy` checks.
    """
    name, settings = case
    found = CASES[name](**settings)()
    exact = CASES[name](**{**settings, "method": OURS, "double": True})()
    rows, *slopes = zip(found, (x[: len(found[0])] for x in exact), strict=True)
    errors = relative_error(*rows)
    whole = [relative_error(x.flatten(), y.flatten()) for x, y in slopes]
    return [f"{x.item():.0e}" for x in (errors.max(), errors.median(), *whole)]


def _table(
    title: str,
    columns: Sequence[str],
    groups: dict[str, dict[str, Case]],
    baseline: str,
    errors: Callable[[Case, Cost], list[str]] = _against_float64,
    scale: float = 1.0,
) -> Table:
    """Return a row for each method of each group: time, gain over a baseline, errors.

    Times of the baseline count `scale` times.
    """
    rows = []
    for (label, cases), cost in zip(groups.items(), costs([*groups.values()], 2), strict=True):
        seconds = {x: cost[x].seconds * (scale if x == baseline else 1) for x in cases}
        for method, case in cases.items():
            gain = seconds[baseline] / seconds[method]
            cells = [label, method, f"{1e3 * seconds[method]:.3g}", f"{gain:.3g}"]
            rows.append([*cells, *errors(case, cost[method])])
    first, *rest = columns
    header = [first, "method", "median ms", "gain", "worst error", "median error", *rest]
    return Table(title, header, rows)


def line_table(densities: int = 4096, functions: int = 128, points: int = 1000) -> Table:
    """Compare with the trapezoid rule in 1-D."""
    size = {"densities": densities, "functions": functions, "points": points}
    groups: dict[str, dict[str, Case]] = {}
    for supports, family in product(SUPPORTS, FAMILIES):
        settings = {**size, "family": family, "supports": supports}
        methods = {x: ("line", {**settings, "method": x}) for x in (OURS, ON_SUPPORTS)}
        groups[f"{family}, {supports}"] = methods
    few = max(1, densities // 128)
    title = (
        f"{densities} densities, {functions} basis functions of width 0.02, float32, two threads, "
        "forward and backward. Half-widths: wide 0.1 to 0.5, narrow 0.0002 to 0.02. Gain: over the "
        f"trapezoid rule on supports, timed on {few} densities. Errors: against float64."
    )
    columns = ["density, supports", "∂ loc", "∂ scale"]
    return _table(title, columns, groups, ON_SUPPORTS, scale=densities / few)


def ball_table(densities: int = 64, functions: int = 100) -> Table:
    """Compare with the polar rule in 2-D."""
    size, groups = {"densities": densities, "functions": functions}, {}
    for label, (width, half_axes) in REGIMES.items():
        settings = {**size, "width": width, "half_axes": half_axes}
        groups[label] = {x: ("ball", {**settings, "method": x}) for x in (OURS, POLAR)}
    title = (
        f"2-D: {densities} truncated paraboloids, {functions} basis functions, float32, two "
        "threads, forward and backward. Gain: over the polar rule."
    )
    return _table(title, ["setting", "∂ loc", "∂ scale_tril"], groups, POLAR)


def kernel_table(batch: int = 64, heads: int = 100, every: int = 40) -> Table:
    """Compare kernel families with the trapezoid rule on 100 nodes."""
    drawn = kernel_case((batch, heads), 0.05, 3.0, (0.1, 0.5)).to(torch.float32)

    def errors(case: Case, cost: Cost) -> list[str]:
        name, settings = case
        exact = kernel_truth(drawn, settings["alpha"], settings["method"] == INSIDE, every)
        cells = []
        for x, true in zip(CASES[name](**settings)(), (exact.value, exact.slope), strict=True):
            gap = relative_error(x.flatten(0, -2)[::every], true)
            cells += [f"{gap.max().item():.0e}", f"{gap.median().item():.0e}"]
        return [*cells, f"{cost.megabytes:.0f}"]

    groups = {}
    for alpha in (2.0, 1.5, 1.0):
        methods = *((OURS,) if alpha == 1 else (OUTSIDE, INSIDE)), TRAPEZOID, PRODUCTS
        common = {"alpha": alpha, "shape": (batch, heads)}
        groups[f"α = {alpha:g}"] = {x: ("kernel", {**common, "method": x}) for x in methods}
    title = (
        f"{batch * heads} densities, 256 inducing points, Gaussian kernel 0.05, 64 functions, "
        "float32, two threads, forward and backward. Gain: over the trapezoid rule of research "
        "code. Errors: of the value and of the gradient in the weights, density by density. MB: "
        "what torch allocates at the peak."
    )
    columns = ["density", "worst ∂", "median ∂", "MB"]
    return _table(title, columns, groups, TRAPEZOID, errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(2)
    sections = {
        "expectations": lambda: [line_table()],
        "plane": lambda: [ball_table()],
        "kernels": lambda: [kernel_table()],
    }
    return run("expect", sections, options.write)


if __name__ == "__main__":
    sys.exit(main())
