"""Cost and accuracy of attention and its regression as sequences grow, beside alternatives.

`--write` puts the tables into docs/long-sequences.md and docs/value-functions.md.
"""

import math
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefam.attention import RidgeRegression
from sparsefam.bases import Basis, GaussianRBF

from .cases import CASES, waves
from .harness import Case, Table, allocated_megabytes, medians, parser, show_and_write

_COMMAND = "python -m benchmarks.attention --write"
# The longest sequence of discrete attention; the next takes minutes.
LONGEST_DISCRETE = 16384
_METHODS = ("alpha 2", "alpha 1.5", "discrete")


def cost_table(lengths: Sequence[int] = (256, 1024, 4096, 16384, 65536)) -> Table:
    """Compare the layer with `nn.MultiheadAttention`, which uses a fused kernel."""
    groups: list[dict[str, Case]] = []
    for length in lengths:
        cases: dict[str, Case] = {
            f"alpha {alpha:g}": ("layer", {"alpha": alpha, "length": length})
            for alpha in (2.0, 1.5)
        }
        if length <= LONGEST_DISCRETE:
            cases["discrete"] = "multihead", {"length": length}
        groups.append(cases)
    rows = []
    for length, cases, seconds in zip(lengths, groups, medians(groups, 2), strict=True):
        cells = [f"{seconds[x]:.3g}" if x in cases else "" for x in _METHODS]
        gain = seconds.get("discrete", math.nan) / seconds["alpha 2"]
        cells.append("" if math.isnan(gain) else f"{gain:.1f}")
        for method in _METHODS:
            name, settings = cases.get(method, ("", {}))
            cells.append(f"{allocated_megabytes(CASES[name](**settings)):.0f}" if name else "")
        rows.append([str(length), *cells])
    title = (
        "Forward and backward of one layer with its projections, 256 channels, 8 heads, 128 "
        "Gaussians, float32, two threads: seconds, the time of discrete attention over that of the "
        "layer at alpha = 2, and megabytes that torch allocates at the peak."
    )
    header = ["L", "alpha 2, s", "alpha 1.5, s", "discrete, s", "ratio"]
    return Table(title, [*header, *(f"{x}, MB" for x in _METHODS)], rows)


def least_squares(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    """Return the coefficients by QR in float64 of the observations above the penalty's rows.

    It avoids normal equations: the error is rounding times the root of their condition number.
    """
    size = len(basis)
    rows = torch.cat([basis(t.double()), math.sqrt(penalty) * torch.eye(size, dtype=torch.double)])
    right = torch.cat([values.double(), torch.zeros(size, values.shape[-1], dtype=torch.double)])
    orthogonal, upper = torch.linalg.qr(rows)
    return torch.linalg.solve_triangular(upper, orthogonal.mT @ right, upper=True)


def _curve_error(basis: Basis, result: Tensor, exact: Tensor) -> float:
    grid = basis(torch.linspace(0, 1, 1001, dtype=torch.double))
    return float((grid @ (result.double() - exact)).norm() / (grid @ exact).norm())


def error_table(sizes: Sequence[int] = (16, 64, 128, 512), length: int = 2048) -> Table:
    """Compare a fit with least squares in float64, and with a fit in float32 throughout."""
    rows = []
    for size in sizes:
        basis = GaussianRBF.grid(size, 1.5 / size)
        t, values = waves(length, 2, size)
        design = basis(t)
        for penalty in (1e-4, 1e-2, 1.0):
            exact = least_squares(basis, t, values, penalty)
            fitted = RidgeRegression(basis, penalty).fit(t, values.unsqueeze(0)).coefficients[0]
            gram = design.mT @ design + penalty * torch.eye(size)
            factor, failed = torch.linalg.cholesky_ex(gram)
            single = torch.cholesky_solve(design.mT @ values, factor)
            rows.append(
                [str(size), f"{penalty:g}", f"{_curve_error(basis, fitted, exact):.1e}"]
                + [f"{float((fitted - exact).norm() / exact.norm()):.1e}"]
                + ["no solution" if failed else f"{_curve_error(basis, single, exact):.1e}"]
            )
    title = f"Relative errors of fits to {length} observations in float32."
    header = ["N", "penalty", "function", "coefficients", "function, all float32"]
    return Table(title, header, rows)


def fit_table(lengths: Sequence[int] = (256, 2048, 16384, 131072), longest: int = 16384) -> Table:
    """Compare the time of a fit with least squares and scikit-learn, on one thread."""
    basis, fits = GaussianRBF.grid(128, 1.5 / 128), ("fit", "lstsq", "scikit-learn Ridge")
    groups: list[dict[str, Case]] = []
    for length in lengths:
        methods = ("step", *fits) if length <= longest else ("step", "fit")
        groups.append({x: ("ridge", {"length": length, "method": x}) for x in methods})
    rows = []
    for length, cases, seconds in zip(lengths, groups, medians(groups, 1), strict=True):
        exact = least_squares(basis, *waves(length, 64, 0), 1e-2)
        cells = [str(length), f"{1e3 * seconds['step']:.3g}"]
        for method in fits:
            if method in cases:
                (result,) = CASES["ridge"](length, method)()
                cells += [
                    f"{1e3 * seconds[method]:.3g}",
                    f"{_curve_error(basis, result, exact):.0e}",
                ]
            else:
                cells += ["", ""]
        steps = (CASES["ridge"](length, "step", whole) for whole in (False, True))
        rows.append([*cells, *(f"{allocated_megabytes(x):.0f}" for x in steps)])
    title = (
        "Fits of 64 channels by 128 functions, penalty 0.01, float32, one thread: milliseconds, "
        "relative error of the function, and megabytes that torch allocates at the peak of forward "
        "and backward, by blocks of rows and with all rows at once."
    )
    header = ["L", "forward and backward", "fit", "error", "lstsq", "error", "scikit-learn Ridge"]
    header += ["error", "MB", "MB, all rows"]
    return Table(title, header, rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)
    regression = [error_table(), fit_table()]
    torch.set_num_threads(2)
    show_and_write("attention", _COMMAND, [cost_table()], options.write, "long-sequences.md")
    show_and_write("regression", _COMMAND, regression, options.write, "value-functions.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
