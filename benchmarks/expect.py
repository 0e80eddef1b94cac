"""Time of E_p[psi], forward and backward, beside plain rules and other packages.

Tables for 1-D, 2-D, kernel families and finite sets; `--write` puts them into docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import entmax
import torch
from torch import Tensor

import sparsefam as sf

from .accuracy import kernel_reference
from .cases import CASES, Call, ball_inputs, differentiated, kernel_case, line_inputs
from .harness import Table, allocated_megabytes, alternate, parser, relative_error, show_and_write
from .reference import ANY_ALPHA, CLOSED, Family
from .rivals import (
    kernel_products,
    kernel_trapezoid,
    polar_rule,
    trapezoid_on_shared_grid,
    trapezoid_on_supports,
)

__all__ = ["ball_table", "entmax_table", "growth_table", "kernel_table", "line_table", "main"]

_COMMAND = "python -m benchmarks.expect --write"
# Half-widths of the supports; the basis functions have width 0.02.
SUPPORTS = {"wide": (0.1, 0.5), "mixed": (0.002, 0.5), "narrow": (0.0002, 0.02)}
# Width of the basis functions and half-axes; the first are those of visual question answering.
REGIMES = {
    "half-axes 0.1 to 0.5, variance 0.001": (0.001**0.5, (0.1, 0.5)),
    "half-axes 0.1 to 0.5, width 0.1": (0.1, (0.1, 0.5)),
    "half-axes 0.5 to 2, variance 0.001": (0.001**0.5, (0.5, 2.0)),
}


def _seconds(calls: Mapping[str, Call], budget: float = 1.0) -> dict[str, float]:
    return alternate(calls, budget, clock=time.perf_counter)


def _errors(result: Sequence[Tensor], exact: Sequence[Tensor]) -> list[str]:
    """Return the worst and the median error of a density, and those of each whole gradient."""
    rows = relative_error(result[0], exact[0])
    slopes = [relative_error(x.flatten(), y.flatten()) for x, y in zip(result, exact, strict=True)]
    return [f"{x.item():.0e}" for x in (rows.max(), rows.median(), *slopes[1:])]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def line_table(densities: int = 4096, functions: int = 128, points: int = 1000) -> Table:
    """Compare with the trapezoid rule in 1-D."""
    few = max(1, densities // 128)  # the trapezoid rule's time is in proportion to the densities
    grid = torch.linspace(0, 1, points)

    def rows(family: Family, supports: str) -> list[list[str]]:
        inputs, upstream, psi = line_inputs(densities, functions, 0.02, SUPPORTS[supports])
        first = [x[:few] for x in inputs]
        calls = {
            "sparsefam": differentiated(lambda *x: family.build(*x).expect(psi), inputs, upstream),
            "trapezoid on supports": differentiated(
                lambda *x: trapezoid_on_supports(family, *x, psi, points), first, upstream[:few]
            ),
            "trapezoid on one grid": differentiated(
                lambda *x: trapezoid_on_shared_grid(family.build(*x), grid, psi), inputs, upstream
            ),
        }
        seconds = _seconds(calls)
        seconds["trapezoid on supports"] *= densities / few
        double = sf.bases.GaussianRBF(psi.centers.double(), psi.widths.double())
        doubles = [x.double() for x in inputs]
        exact = differentiated(
            lambda *x: family.build(*x).expect(double), doubles, upstream.double()
        )()
        table = []
        for method, call in calls.items():
            result = call()
            gain = seconds["trapezoid on supports"] / seconds[method]
            row = [f"{family.name}, {supports}", method, _milliseconds(seconds[method])]
            errors = _errors(result, [x[: len(result[0])] for x in exact])
            table.append([*row, f"{gain:.3g}", *errors])
        return table

    families = (CLOSED[2], CLOSED[1], CLOSED[0], ANY_ALPHA[2], CLOSED[4])
    all_rows = [row for supports in SUPPORTS for x in families for row in rows(x, supports)]
    title = (
        f"{densities} densities, {functions} basis functions of width 0.02, float32, two threads, "
        "forward and backward. Half-widths: wide 0.1 to 0.5, mixed 0.002 to 0.5, narrow 0.0002 to "
        f"0.02. Gain: over the trapezoid rule on supports, timed on {few} densities. Errors: "
        "against float64."
    )
    header = ["density, supports", "method", "median ms", "gain", "worst error", "median error"]
    return Table(title, [*header, "∂ loc", "∂ scale"], all_rows)


def ball_table(densities: int = 64, functions: int = 100) -> Table:
    """Compare with the polar rule in 2-D."""

    def rows(regime: str) -> list[list[str]]:
        width, half_axes = REGIMES[regime]
        inputs, upstream, psi = ball_inputs(densities, functions, 2, width, half_axes)
        double = sf.bases.GaussianRBF(psi.centers.double(), psi.widths.double())

        def expect(basis: sf.bases.GaussianRBF) -> Callable[..., Any]:
            return lambda *x: sf.TruncatedParaboloid(*x).expect(basis)

        calls = {
            "sparsefam": differentiated(expect(psi), inputs, upstream),
            "polar rule": differentiated(
                lambda *x: polar_rule(*x, psi.centers, psi.widths), inputs, upstream
            ),
        }
        seconds = _seconds(calls)
        doubles = [x.double() for x in inputs]
        *exact, exact_tril = differentiated(expect(double), doubles, upstream.double())()
        table = []
        for method, call in calls.items():
            *result, tril = call()
            cells = [
                _milliseconds(seconds[method]),
                f"{seconds['polar rule'] / seconds[method]:.3g}",
            ]
            errors = _errors((*result, tril.tril()), (*exact, exact_tril.tril()))
            table.append([regime, method, *cells, *errors])
        return table

    title = (
        f"2-D: {densities} truncated paraboloids, {functions} basis functions, float32, two "
        "threads, forward and backward. Gain: over the polar rule."
    )
    header = ["setting", "method", "median ms", "gain", "worst error", "median error"]
    all_rows = [row for regime in REGIMES for row in rows(regime)]
    return Table(title, [*header, "∂ loc", "∂ scale_tril"], all_rows)


def growth_table(largest: int = 16) -> Table:
    """Measure how times grow with dimensions, densities and basis functions."""
    common = {"width": 0.1, "random": True}
    axes: dict[str, list[dict[str, int]]] = {
        "ndim": [dict(ndim=d) for d in (1, 2, 3, 5, 8, 16) if d <= largest],
        "densities": [dict(densities=16 * n) for n in (1, 4, 16, 64) if n <= 4 * largest],
        "functions": [dict(functions=25 * n) for n in (1, 4, 16, 64) if n <= 4 * largest],
    }
    rows = []
    for name, settings in axes.items():
        calls = {str(x[name]): CASES["ball"](**common, **x) for x in settings}
        seconds = _seconds(calls)
        cells = ", ".join(f"{size}: {_milliseconds(x)}" for size, x in seconds.items())
        rows.append([{"ndim": "dimensions", "functions": "basis functions"}.get(name, name), cells])
    title = "Median milliseconds as one number grows from D = 2, 64 densities, 100 basis functions."
    return Table(title, ["number", "its value: milliseconds"], rows)


def kernel_table(batch: int = 64, heads: int = 100, every: int = 40) -> Table:
    """Compare kernel families with the trapezoid rule on 100 nodes."""
    case = kernel_case((batch, heads), 0.05, 3.0, (0.1, 0.5)).to(torch.float32)
    fixed = case.points, case.bandwidth, case.centers, case.widths

    def rows(alpha: float) -> list[list[str]]:
        def ours(inside: bool) -> Callable[[Tensor], Any]:
            build = case.builder(alpha, inside, share=True)
            return lambda weights: build(weights).expect(case.basis)

        methods: dict[str, Callable[[Tensor], Tensor]] = {"sparsefam": ours(True)}
        if alpha > 1:
            methods = {"sparsefam, outside": ours(False), "sparsefam, inside": ours(True)}
        methods["trapezoid"] = lambda weights: kernel_trapezoid(weights, *fixed, alpha)
        methods["trapezoid as products"] = kernel_products(*fixed, alpha)
        calls = {
            name: differentiated(method, (case.weights,), case.upstream)
            for name, method in methods.items()
        }
        seconds = _seconds(calls)
        table = []
        for method, call in calls.items():
            exact = kernel_reference(case.to(torch.float64), alpha, "inside" in method, every)
            cells = []
            for x, true in zip(call(), (exact.value, exact.slope), strict=True):
                errors = relative_error(x.flatten(0, -2)[::every], true)
                cells += [f"{errors.max().item():.0e}", f"{errors.median().item():.0e}"]
            gain = seconds["trapezoid"] / seconds[method]
            row = [f"α = {alpha:g}", method, _milliseconds(seconds[method]), f"{gain:.3g}"]
            table.append([*row, *cells, f"{allocated_megabytes(call):.0f}"])
        return table

    title = (
        f"{batch * heads} densities, 256 inducing points, Gaussian kernel 0.05, 64 functions, "
        "float32, two threads, forward and backward. Gain: over the trapezoid rule of research "
        "code. Errors: of the value and of the gradient in the weights, density by density. MB: "
        "what torch allocates at the peak."
    )
    header = ["density", "method", "median ms", "gain", "worst error", "median error"]
    all_rows = [row for alpha in (2.0, 1.5, 1.0) for row in rows(alpha)]
    return Table(title, [*header, "worst ∂", "median ∂", "MB"], all_rows)


def entmax_table(scores: int = 1 << 17, sizes: Sequence[int] = (16, 256, 4096)) -> Table:
    """Compare the probabilities of finitely many scores with the entmax package, on one thread."""

    def bisect(alpha: float, steps: int = 50) -> Callable[[Tensor], Tensor]:
        return lambda x: entmax.entmax_bisect(x, alpha, n_iter=steps)

    def rows(alpha: float, exact: dict[str, Callable[[Tensor], Tensor]]) -> list[list[str]]:
        methods = {"sparsefam": lambda x: sf.rpm(sf.scores.Finite(x), alpha=alpha).probs}
        methods |= exact | {"entmax_bisect": bisect(alpha)}
        cells: dict[str, list[str]] = {name: [] for name in methods}
        errors: dict[str, float] = dict.fromkeys(methods, 0.0)
        for size in sizes:
            draw = torch.Generator().manual_seed(0)
            x = 3 * torch.randn(scores // size, size, generator=draw)
            calls = {name: differentiated(m, (x,), x) for name, m in methods.items()}
            for name, seconds in alternate(calls, 0.2).items():
                cells[name].append(f"{1e9 * seconds / x.numel():.0f}")
                gap = methods[name](x[:64]) - bisect(alpha, 100)(x[:64].double())
                errors[name] = max(errors[name], gap.abs().max().item())
        return [[f"α = {alpha:g}", m, *cells[m], f"{errors[m]:.0e}"] for m in methods]

    known = {2.0: {"sparsemax": entmax.sparsemax}, 1.5: {"entmax15": entmax.entmax15}, 1.3: {}}
    title = (
        f"Nanoseconds a score, probabilities and their gradient, {scores} scores in float32, by "
        "number of categories, one thread; and the largest error of a probability."
    )
    header = ["map", "method", *(f"{n} categories" for n in sizes), "error"]
    return Table(title, header, [row for pair in known.items() for row in rows(*pair)])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(2)
    sections = {
        "expectations": [line_table()],
        "plane": [ball_table(), growth_table()],
        "kernels": [kernel_table()],
    }
    torch.set_num_threads(1)
    sections["entmax"] = [entmax_table()]
    for section, tables in sections.items():
        show_and_write(section, _COMMAND, tables, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
