"""How fast E_p[psi] is, forward and backward, beside plain rules and other packages.

Tables for 1-D, 2-D, kernel families and finite sets; `--write` puts them into docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import entmax
import torch
from torch import Tensor

import sparsefam as sf

from .accuracy import kernel_truth
from .cases import (
    CASES,
    Call,
    ball_inputs,
    differentiated,
    kernel_case,
    line_inputs,
    nodes_of,
)
from .harness import Table, allocated_megabytes, alternate, parser, relative_error, write_section
from .reference import ANY_ALPHA, CLOSED
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


def _errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[str]:
    """Return the worst and the median error of a density, and those of each whole gradient."""
    rows = relative_error(found[0], exact[0])
    slopes = [relative_error(x.flatten(), y.flatten()) for x, y in zip(found, exact, strict=True)]
    return [f"{x.item():.0e}" for x in (rows.max(), rows.median(), *slopes[1:])]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def line_table(densities: int = 4096, functions: int = 128, points: int = 1000) -> Table:
    """Compare with the trapezoid rule in 1-D."""
    rows = []
    few = max(1, densities // 128)  # the trapezoid rule's time is in proportion to the densities
    for supports, half_widths in SUPPORTS.items():
        inputs, upstream, psi = line_inputs(densities, functions, 0.02, half_widths)
        exact_psi = sf.bases.GaussianRBF(psi.centers.double(), psi.widths.double())
        grid = torch.linspace(0, 1, points)
        for family in (CLOSED[2], CLOSED[1], CLOSED[0], ANY_ALPHA[2], CLOSED[4]):

            def ours(loc: Tensor, scale: Tensor, family=family, psi=psi) -> Tensor:
                value: Tensor = family.build(loc, scale).expect(psi)
                return value

            def on_supports(loc: Tensor, scale: Tensor, family=family, psi=psi) -> Tensor:
                return trapezoid_on_supports(family, loc, scale, psi, points)

            def on_grid(loc: Tensor, scale: Tensor, family=family, psi=psi, grid=grid) -> Tensor:
                return trapezoid_on_shared_grid(family.build(loc, scale), grid, psi)

            calls = {
                "sparsefam": differentiated(ours, inputs, upstream),
                "trapezoid on supports": differentiated(
                    on_supports, [x[:few] for x in inputs], upstream[:few]
                ),
                "trapezoid on one grid": differentiated(on_grid, inputs, upstream),
            }
            seconds = _seconds(calls)
            seconds["trapezoid on supports"] *= densities / few
            doubles = [x.double() for x in inputs]
            exact = differentiated(
                lambda *x, family=family, psi=exact_psi: family.build(*x).expect(psi),
                doubles,
                upstream.double(),
            )()
            for method, call in calls.items():
                found = call()
                cells = _errors(found, [x[: len(found[0])] for x in exact])
                gain = seconds["trapezoid on supports"] / seconds[method]
                row = [f"{family.name}, {supports}", method, _milliseconds(seconds[method])]
                rows.append([*row, f"{gain:.3g}", *cells])
    title = (
        f"{densities} densities, {functions} basis functions of width 0.02, float32, two threads, "
        "forward and backward. Half-widths: wide 0.1 to 0.5, mixed 0.002 to 0.5, narrow 0.0002 to "
        f"0.02. Gain: over the trapezoid rule on supports, timed on {few} densities. Errors: "
        "against float64."
    )
    header = ["density, supports", "method", "median ms", "gain", "worst error", "median error"]
    return Table(title, [*header, "∂ loc", "∂ scale"], rows)


def ball_table(densities: int = 64, functions: int = 100) -> Table:
    """Compare with the polar rule in 2-D."""
    rows = []
    for regime, (width, half_axes) in REGIMES.items():
        inputs, upstream, psi = ball_inputs(densities, functions, 2, width, half_axes)
        double = sf.bases.GaussianRBF(psi.centers.double(), psi.widths.double())

        def ours(loc: Tensor, tril: Tensor, psi=psi) -> Tensor:
            value: Tensor = sf.TruncatedParaboloid(loc, tril).expect(psi)
            return value

        def polar(loc: Tensor, tril: Tensor, psi=psi) -> Tensor:
            return polar_rule(loc, tril, psi.centers, psi.widths)

        calls = {
            "sparsefam": differentiated(ours, inputs, upstream),
            "polar rule": differentiated(polar, inputs, upstream),
        }
        seconds = _seconds(calls)
        exact = differentiated(
            lambda loc, tril, psi=double: sf.TruncatedParaboloid(loc, tril).expect(psi),
            [x.double() for x in inputs],
            upstream.double(),
        )()
        for method, call in calls.items():
            value, loc, tril = call()
            gain = seconds["polar rule"] / seconds[method]
            cells = [_milliseconds(seconds[method]), f"{gain:.3g}"]
            cells += _errors((value, loc, tril.tril()), (*exact[:2], exact[2].tril()))
            rows.append([regime, method, *cells])
    title = (
        f"2-D: {densities} truncated paraboloids, {functions} basis functions, float32, two "
        "threads, forward and backward. Gain: over the polar rule."
    )
    header = ["setting", "method", "median ms", "gain", "worst error", "median error"]
    return Table(title, [*header, "∂ loc", "∂ scale_tril"], rows)


def growth_table(largest: int = 16) -> Table:
    """Show how times grow with dimensions, densities and basis functions."""
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
    rows, psi = [], case.basis
    for alpha in (2.0, 1.5, 1.0):
        calls: dict[str, Call] = {}
        for inside in (False, True) if alpha > 1 else (True,):
            build = case.builder(alpha, inside)
            shared = nodes_of(build(case.weights[0, 0]))

            def ours(weights: Tensor, build=build, shared=shared) -> Tensor:
                value: Tensor = build(weights, **shared).expect(psi)
                return value

            mode = "" if alpha == 1 else ", inside" if inside else ", outside"
            calls[f"sparsefam{mode}"] = differentiated(ours, (case.weights,), case.upstream)
        products = kernel_products(*fixed, alpha)

        def broadcast(weights: Tensor, alpha=alpha) -> Tensor:
            return kernel_trapezoid(weights, *fixed, alpha)

        calls["trapezoid"] = differentiated(broadcast, (case.weights,), case.upstream)
        calls["trapezoid as products"] = differentiated(products, (case.weights,), case.upstream)
        seconds = _seconds(calls)
        for method, call in calls.items():
            exact = kernel_truth(case.to(torch.float64), alpha, "inside" in method, every)
            cells = []
            for x, true in zip(call(), (exact.value, exact.slope), strict=True):
                errors = relative_error(x.flatten(0, -2)[::every], true)
                cells += [f"{errors.max().item():.0e}", f"{errors.median().item():.0e}"]
            gain = seconds["trapezoid"] / seconds[method]
            times = [_milliseconds(seconds[method]), f"{gain:.3g}"]
            rows.append(
                [f"α = {alpha:g}", method, *times, *cells, f"{allocated_megabytes(call):.0f}"]
            )
    title = (
        f"{batch * heads} densities, 256 inducing points, Gaussian kernel 0.05, 64 functions, "
        "float32, two threads, forward and backward. Gain: over the trapezoid rule of research "
        "code. Errors: of the value and of the gradient in the weights, density by density. MB: "
        "what torch allocates at the peak."
    )
    header = ["density", "method", "median ms", "gain", "worst error", "median error"]
    return Table(title, [*header, "worst ∂", "median ∂", "MB"], rows)


def entmax_table(scores: int = 1 << 17, sizes: Sequence[int] = (16, 256, 4096)) -> Table:
    """Compare the probabilities of finitely many scores with the entmax package, on one thread."""

    def ours(alpha: float) -> Callable[[Tensor], Tensor]:
        return lambda x: sf.rpm(sf.scores.Finite(x), alpha=alpha).probs

    def bisect(alpha: float, steps: int = 50) -> Callable[[Tensor], Tensor]:
        return lambda x: entmax.entmax_bisect(x, alpha, n_iter=steps)

    exact = {2.0: {"sparsemax": entmax.sparsemax}, 1.5: {"entmax15": entmax.entmax15}, 1.3: {}}
    rows = []
    for alpha, others in exact.items():
        methods = {"sparsefam": ours(alpha), **others, "entmax_bisect": bisect(alpha)}
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
        rows += [[f"α = {alpha:g}", m, *cells[m], f"{errors[m]:.0e}"] for m in methods]
    title = (
        f"Nanoseconds a score, probabilities and their gradient, {scores} scores in float32, by "
        "number of categories, one thread; and the largest error of a probability."
    )
    return Table(title, ["map", "method", *(f"{n} categories" for n in sizes), "error"], rows)


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
        for table in tables:
            table.show()
        if options.write:
            write_section(section, _COMMAND, [x.markdown() for x in tables], "benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
