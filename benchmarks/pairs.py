"""What one (density, basis function) pair costs on one thread, value and gradients.

Prints two tables: on a line, for alpha = 2, 1.5, 1.1 and 3 beside autograd through the trapezoid
rule; and in three and eight dimensions beside autograd through a tensor rule. `--write` puts them
into docs/benchmarks.md.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

import sparsefam as sf

from . import ball_workload, workload
from .ball_workload import BallWorkload
from .families import ANY_ALPHA, CLOSED, Family
from .report import Table, console, following, write_section
from .sweep import norm_error
from .turns import processor_seconds
from .workload import FUNCTIONS, REGIMES

__all__ = ["ALLOWED", "ball_table", "by_quadrature", "line_table", "main"]

_COMMAND = "python -m benchmarks.pairs --write"
# The families, and the nanoseconds that are asked for.
ALLOWED = ((CLOSED[2], 80), (CLOSED[1], 250), (ANY_ALPHA[1], 250), (ANY_ALPHA[3], 250))
_OURS, _RULE = "sparsefam", "trapezoid, autograd"
DENSITIES = (64, 512, 4096)
DIMENSIONS, BALLS, BALL_FUNCTIONS = (3, 8), (8, 64, 1024), 100
ORDERS = (16, 32)
# Nodes times densities times functions at a time in the tensor rule.
_AT_ONCE = 1 << 22

_Result = tuple[Tensor, ...]


def by_quadrature(order: int, work: BallWorkload) -> _Result:
    """By the rule of `quadrature` and autograd, as many densities at a time as fit the cache."""
    parts = []
    each = sf.TruncatedParaboloid(work.loc[:1], work.scale_tril[:1]).quadrature(order)[1].numel()
    step = max(1, _AT_ONCE // (each * len(work.psi)))
    for first in range(0, len(work.loc), step):
        rows = slice(first, first + step)
        loc, tril = (x[rows].detach().requires_grad_() for x in (work.loc, work.scale_tril))
        nodes, weights = sf.TruncatedParaboloid(loc, tril).quadrature(order)
        value = (weights.unsqueeze(-1) * work.psi(nodes)).sum(0)
        slopes = torch.autograd.grad(value, (loc, tril), work.upstream[rows])
        parts.append((value.detach(), slopes[0], slopes[1].tril()))
    return tuple(torch.cat(x) for x in zip(*parts, strict=True))


def _errors(found: _Result, truth: _Result) -> list[str]:
    """Of the worst density, and of all gradients together."""
    worst = norm_error(found[0], truth[0]).max()
    slopes = (
        norm_error(x.flatten(), y.flatten()) for x, y in zip(found[1:], truth[1:], strict=True)
    )
    return [f"{worst:.0e}", f"{max(slopes):.0e}"]


def _nanoseconds(
    methods: Mapping[str, Callable[[], object]], pairs: int, budget: float
) -> dict[str, float]:
    """One method after the other.

    When the rule has freed hundreds of megabytes, short calls take ten times as long until memory
    is theirs again.
    """
    times = {name: processor_seconds({name: call}, budget) for name, call in methods.items()}
    return {name: 1e9 * times[name][name] / pairs for name in methods}


def _line_rows(
    family: Family, allowed: int, regime: str, sizes: Sequence[int], budget: float
) -> list[list[str]]:
    cells: dict[str, list[str]] = {_OURS: [], _RULE: []}
    checked = workload.workload(regime, sizes[0])
    for size in sizes:
        work = workload.workload(regime, size)
        methods = {_OURS: partial(workload.by_expect, family, work)}
        if size == sizes[0]:  # the rule takes ten thousand nanoseconds a pair, however many
            methods[_RULE] = partial(workload.on_supports, family, work)
        found = _nanoseconds(methods, size * FUNCTIONS, budget)
        for name, row in cells.items():
            row.append(f"{found[name]:.0f}" if name in found else "")
    truth = workload.by_expect(family, checked.double())
    results = {
        _OURS: workload.by_expect(family, checked),
        _RULE: workload.on_supports(family, checked),
    }
    asked = {_OURS: str(allowed), _RULE: ""}
    title = f"{family.name}, {regime}"
    return [
        [title, name, *cells[name], asked[name], *_errors(results[name], truth)] for name in cells
    ]


def line_table(sizes: Sequence[int] = DENSITIES, budget: float = 0.3) -> Table:
    """On a line."""
    jobs = list(product(ALLOWED, REGIMES))
    rows = [
        row
        for (family, allowed), regime in following(jobs, "a line")
        for row in _line_rows(family, allowed, regime, sizes, budget)
    ]
    text = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in REGIMES.items())
    return Table(
        f"Nanoseconds a pair on a line, {FUNCTIONS} basis functions 0.02 wide, by the number of "
        f"densities. Half-widths of supports: {text}.",
        ["supports", "method", *map(str, sizes), "asked", "worst error", "gradients"],
        rows,
    )


def _ball_rows(dim: int, sizes: Sequence[int], budget: float) -> list[list[str]]:
    methods: dict[str, Callable[[BallWorkload], _Result]] = {_OURS: ball_workload.by_expect}
    methods |= {f"quadrature({n}), autograd": partial(by_quadrature, n) for n in ORDERS}
    cells: dict[str, list[str]] = {name: [] for name in methods}
    for size in sizes:
        work = ball_workload.ball_workload(dim, size, BALL_FUNCTIONS)
        calls = {
            name: partial(method, work)
            for name, method in methods.items()
            if name == _OURS or size == sizes[0]
        }
        found = _nanoseconds(calls, size * BALL_FUNCTIONS, budget)
        for name, row in cells.items():
            row.append(f"{found[name]:.0f}" if name in found else "")
    checked = ball_workload.ball_workload(dim, sizes[0], BALL_FUNCTIONS)
    truth = ball_workload.by_expect(checked.double())
    return [
        [f"D = {dim}", name, *cells[name], *_errors(method(checked), truth)]
        for name, method in methods.items()
    ]


def ball_table(sizes: Sequence[int] = BALLS, budget: float = 0.3) -> Table:
    """In more dimensions."""
    rows = [row for dim in following(DIMENSIONS, "balls") for row in _ball_rows(dim, sizes, budget)]
    return Table(
        f"Nanoseconds a pair in D dimensions, truncated paraboloids, {BALL_FUNCTIONS} basis "
        "functions 0.1 wide in the unit cube, half-axes 0.1 to 0.5, by the number of densities.",
        ["supports", "method", *map(str, sizes), "worst error", "gradients"],
        rows,
    )


def main() -> None:
    """Prints the tables, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = [line_table(), ball_table()]
    for table in tables:
        table.show()
    if options.write:
        write_section("pairs", _COMMAND, [table.markdown() for table in tables])
        console.print("docs/benchmarks.md: written")


if __name__ == "__main__":
    main()
