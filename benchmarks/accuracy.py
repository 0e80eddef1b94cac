"""How exact E_p[psi] is for Gaussian basis functions: `make accuracy`.

On a line against mpmath, in many dimensions against steepest descent in extended precision, for
kernel families against rules in float64 between the exact edges of their supports; and how exact
divergences of vectors are, slice by slice. Prints the tables and fails if an error is above its
limit; for kernel families, whose float32 limits not every density keeps, if it is far above.
`--write` puts them into docs/benchmarks.md, with a picture.
"""

import argparse
import math
import sys
from collections.abc import Sequence

import torch

import sparsefam as sf

from . import ball_accuracy, divergence_accuracy, kernel_accuracy
from .families import ANY_ALPHA, CLOSED, Family
from .picture import draw
from .report import PAGE, Table, console, following, write_section
from .sweep import QUANTITIES, Case, cases, errors, fixed_grid, ours, today

__all__ = ["LIMITS", "broken", "main", "near_one", "worst"]

# Of the value and of each derivative.
LIMITS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-9)}
RATIOS = [10 ** (k / 4) for k in range(-16, 17)]
PICTURE = "assets/accuracy.png"
_COMMAND = "python -m benchmarks.accuracy --write"
_CLOSED_TITLE = (
    "Exponents with a closed form: the largest relative error (2-norm over the basis functions) "
    "and, in brackets, the scale / width where it is. Limits of value and derivatives: "
    + "; ".join(
        f"{a:g} and {b:g} in {str(x).removeprefix('torch.')}" for x, (a, b) in LIMITS.items()
    )
    + "."
)

# A family and dtype, and for each quantity its largest error and the scale / width where it is.
Row = tuple[Family, torch.dtype, list[tuple[float, float]]]


def worst(family: Family, dtype: torch.dtype, sweep: Sequence[Case]) -> Row:
    """The largest errors over a sweep."""
    columns = zip(*(errors(family, case, dtype) for case in sweep), strict=True)
    ratios = [case.ratio for case in sweep]
    return family, dtype, [max(zip(column, ratios, strict=True)) for column in columns]


def broken(row: Row) -> list[str]:
    """The quantities of a row whose errors are above the limits."""
    _, dtype, found = row
    limits = [LIMITS[dtype][0], *[LIMITS[dtype][1]] * (len(found) - 1)]
    names = zip(QUANTITIES, found, limits, strict=False)
    return [name for name, (error, _), limit in names if error > limit]


def near_one(slope: float) -> list[float]:
    """Largest |log_prob - Normal.log_prob| within three sigma at alpha = 1 + slope.

    In float64, in float32, and in float32 with alpha a tensor; then the noise of the second.
    """
    loc, sigma = torch.tensor(0.37), torch.tensor(0.05)
    t = loc + sigma * torch.linspace(-3, 3, 601)

    def log_prob(dtype: torch.dtype, alpha: float | torch.Tensor) -> torch.Tensor:
        p = sf.BetaGaussian.from_sigma(loc.to(dtype), sigma.to(dtype), alpha)
        return p.log_prob(t.to(dtype))

    def limit(dtype: torch.dtype) -> torch.Tensor:
        return sf.Normal(loc.to(dtype), sigma.to(dtype)).log_prob(t.to(dtype))

    single, double = torch.float32, torch.float64
    gaps = [
        log_prob(double, 1 + slope) - limit(double),
        log_prob(single, 1 + slope) - limit(single),
        log_prob(single, torch.tensor(1 + slope)) - limit(single),
    ]
    return [gap.abs().max().item() for gap in (*gaps, gaps[1] - gaps[0])]


def _cells(row: Row) -> list[str]:
    family, dtype, found = row
    cells = [f"{error:.1e} ({ratio:.2g})" for error, ratio in found]
    missing = ["–"] * (len(QUANTITIES) - len(cells))
    return [family.name, str(dtype).removeprefix("torch."), *cells, *missing]


def _rows(families: Sequence[Family], sweep: Sequence[Case], text: str) -> list[Row]:
    jobs = [(family, dtype) for family in families for dtype in LIMITS]
    return [worst(family, dtype, sweep) for family, dtype in following(jobs, text)]


def _error_table(title: str, rows: Sequence[Row]) -> Table:
    cells = [[*_cells(row), "**broken**" if broken(row) else "kept"] for row in rows]
    return Table(title, ["density", "dtype", *QUANTITIES, "limits"], cells)


def _today_table(sweep: Sequence[Case]) -> Table:
    shown = [case for case in sweep if round(math.log10(case.ratio), 6).is_integer()]
    rows = []
    for family in CLOSED:
        found = [today(family, case) for case in shown]
        rows.append([family.name, *(f"{error:.0e}" for error in found)])
    return Table(
        "For contrast, the closed form in use today, which expands the density around t = 0: "
        "error of the value in float32 on the same inputs (loc = 0.37, width 0.05), by scale / "
        "width.",
        ["density", *(f"{case.ratio:.0e}" for case in shown)],
        rows,
    )


def _near_one_table() -> Table:
    rows = []
    for k in range(1, 7):
        rows.append([f"1 + 1e-{k}", *(f"{x:.1e}" for x in near_one(10.0**-k))])
    return Table(
        "α → 1: largest difference between the log densities of BetaGaussian.from_sigma and of "
        "the normal within three σ. Noise: float32 less float64.",
        ["α", "float64", "float32", "float32, α a tensor", "noise"],
        rows,
    )


def _draw(sweep: Sequence[Case]) -> None:
    curves = {
        "sparsefam": ours,
        "closed form around t = 0, in use today": today,
        "trapezoid, 1000 points over all basis functions": fixed_grid,
    }
    panels = {
        f"{family.name}, float32": {
            label: [error(family, case) for case in sweep] for label, error in curves.items()
        }
        for family in (CLOSED[2], CLOSED[1], CLOSED[0])
    }
    draw(PAGE.parent / PICTURE, RATIOS, panels, LIMITS[torch.float32][0])


def _line(write: bool) -> list[str]:
    """In one dimension; what is above the limits."""
    near, far = cases(RATIOS, 0.37, 0.05), cases(RATIOS, -7.3, 1.0)
    closed = _rows(CLOSED, near + far, "closed forms")
    rest = _rows(ANY_ALPHA, near[::2], "any other alpha")
    tables = [
        _error_table(_CLOSED_TITLE, closed),
        _error_table("Any other α, by a contour integral: the same errors and limits.", rest),
        _today_table(near),
        _near_one_table(),
    ]
    for table in tables:
        table.show()
    if write:
        _draw(near)
        picture = f"![Error against scale over width, in three panels]({PICTURE})"
        write_section("accuracy", _COMMAND, [*(table.markdown() for table in tables), picture])
    return [f"{_cells(row)[:2]}: {broken(row)}" for row in closed + rest if broken(row)]


def _dimensions(write: bool) -> list[str]:
    """In many dimensions; what is above the limits."""
    rows = ball_accuracy.rows()
    table = ball_accuracy.table(rows)
    table.show()
    if write:
        write_section("dimensions", _COMMAND, [table.markdown()])
    names = [(row, ball_accuracy.broken(row)) for row in rows]
    return [f"D = {row.dim}, {row.shape.name}, {row.dtype}: {name}" for row, name in names if name]


def _kernels(write: bool) -> list[str]:
    """Of kernel families; what is far above the limits."""
    found = kernel_accuracy.kernel_errors()
    tables = kernel_accuracy.kernel_tables(found)
    for table in tables:
        table.show()
    for line in kernel_accuracy.kernel_unmet(found):
        console.print(f"limit not met: {line}")
    if write:
        write_section("kernel accuracy", _COMMAND, [table.markdown() for table in tables])
    return kernel_accuracy.kernel_failures(found)


def _divergences() -> list[str]:
    """Of vectors, on no page; what is above the limits."""
    found = divergence_accuracy.divergence_errors()
    divergence_accuracy.divergence_table(found).show()
    return divergence_accuracy.divergence_failures(found)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description="How exact expectations are.")
    parser.add_argument("--write", action="store_true", help=f"update docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small
    failures = [line for part in (_line, _dimensions, _kernels) for line in part(options.write)]
    failures += _divergences()
    for line in failures:
        console.print(f"above the limit: {line}", style="bold red")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
