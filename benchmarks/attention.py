"""Cost and accuracy of attention and its regression as sequences grow, beside alternatives.

`--write` puts the tables into docs/long-sequences.md and docs/value-functions.md.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from sklearn.linear_model import Ridge
from torch import Tensor

import sparsefam as sf
from sparsefam.attention import RidgeRegression
from sparsefam.bases import Basis, GaussianRBF

from .cases import CASES
from .harness import Table, allocated_megabytes, alternate, parser, show_and_write

__all__ = ["cost_table", "error_table", "fit_table", "main", "recall_table"]

_COMMAND = "python -m benchmarks.attention --write"
LENGTHS = (256, 1024, 4096, 16384, 65536)
# The longest sequence of discrete attention; the next takes minutes.
LONGEST_DISCRETE = 16384
_METHODS = ("alpha 2", "alpha 1.5", "discrete")


def cost_table(lengths: Sequence[int] = LENGTHS) -> Table:
    """Compare the layer with `nn.MultiheadAttention`, which uses a fused kernel."""
    rows, seconds = [], {}
    for length in lengths:
        calls = {
            f"alpha {alpha:g}": CASES["layer"](alpha=alpha, length=length) for alpha in (2.0, 1.5)
        }
        if length <= LONGEST_DISCRETE:
            calls["discrete"] = CASES["multihead"](length=length)
        rounds = 3 if length <= 4096 else 1
        seconds[length] = alternate(calls, 0.4, rounds, time.perf_counter)
        cells = [f"{seconds[length][name]:.3g}" if name in calls else "" for name in _METHODS]
        gain = seconds[length].get("discrete", math.nan) / seconds[length]["alpha 2"]
        cells.append("" if math.isnan(gain) else f"{gain:.1f}")
        cells += [
            f"{allocated_megabytes(calls[name]):.0f}" if name in calls else "" for name in _METHODS
        ]
        rows.append([str(length), *cells])
    exponents = []
    for name in _METHODS:
        known = {n: x[name] for n, x in seconds.items() if name in x and n >= 1024}
        logs = [[math.log(n) for n in known], [math.log(x) for x in known.values()]]
        slope = statistics.linear_regression(*logs).slope if len(known) > 1 else math.nan
        exponents.append("" if math.isnan(slope) else f"{slope:.2f}")
    title = (
        "Forward and backward of one layer with its projections, 256 channels, 8 heads, 128 "
        "Gaussians, float32, two threads: seconds, the time of discrete attention over that of the "
        "layer at alpha = 2, and megabytes that torch allocates at the peak."
    )
    header = ["L", "alpha 2, s", "alpha 1.5, s", "discrete, s", "ratio"]
    header += ["alpha 2, MB", "alpha 1.5, MB", "discrete, MB"]
    return Table(title, header, [*rows, ["exponent", *exponents, "", "", "", ""]])


def recall_table(lengths: Sequence[int] = (64, 128, 256, 1024, 4096)) -> Table:
    """Measure how well single values of a sequence are recalled through 128 functions."""

    def smooth(length: int, waves: int = 32) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        angles = math.pi * _middles(length).unsqueeze(-1) * torch.arange(1, waves + 1)
        values = angles.cos() @ torch.randn(waves, 32, generator=draw)
        return (values / values.std()).unsqueeze(0)

    def continuous(values: Tensor) -> Tensor:
        """Read each value back by a density as wide as the distance between two."""
        length = values.shape[1]
        function = RidgeRegression(_spaced_basis(128), 1e-2).fit(_middles(length), values)
        density = sf.TruncatedParabola(_middles(length).unsqueeze(0), 1 / length)
        return function.expect(density)

    def discrete(values: Tensor) -> Tensor:
        """Read each value back by softmax over random keys, nearly all weight on its own."""
        draw = torch.Generator().manual_seed(1)
        keys = torch.randn(1, values.shape[1], 64, generator=draw)
        keys = 8 * keys / keys.norm(dim=-1, keepdim=True)
        return torch.nn.functional.scaled_dot_product_attention(8 * keys, keys, values)

    rows = []
    for length in lengths:
        noise = torch.randn(1, length, 32, generator=torch.Generator().manual_seed(0))
        waves = smooth(length)
        pairs = (continuous(noise), noise), (continuous(waves), waves), (discrete(noise), noise)
        rows.append([str(length), *(f"{(x - y).norm() / y.norm():.2g}" for x, y in pairs)])
    title = "Relative error of values recalled one by one, 128 basis functions."
    header = ["L", "continuous, noise", "continuous, 32 waves", "discrete, noise"]
    return Table(title, header, rows)


def _middles(length: int) -> Tensor:
    return (torch.arange(length) + 0.5) / length


def _spaced_basis(size: int) -> GaussianRBF:
    return GaussianRBF.grid(size, 1.5 / size)


def least_squares(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    """Return the coefficients by QR in float64 of the observations above the penalty's rows.

    It avoids normal equations: the error is rounding times the root of their condition number.
    """
    size = len(basis)
    rows = torch.cat([basis(t.double()), math.sqrt(penalty) * torch.eye(size, dtype=torch.double)])
    right = torch.cat([values.double(), torch.zeros(size, values.shape[-1], dtype=torch.double)])
    orthogonal, upper = torch.linalg.qr(rows)
    return torch.linalg.solve_triangular(upper, orthogonal.mT @ right, upper=True)


def _waves(length: int, channels: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return irregular positions and noisy waves."""
    draw = torch.Generator().manual_seed(seed)
    t = torch.rand(length, generator=draw)
    waves = torch.sin(torch.linspace(12, 40, channels) * t.unsqueeze(-1))
    return t, waves + 0.3 * torch.randn(length, channels, generator=draw)


def _curve_error(basis: Basis, result: Tensor, exact: Tensor) -> float:
    grid = basis(torch.linspace(0, 1, 1001, dtype=torch.double))
    return float((grid @ (result.double() - exact)).norm() / (grid @ exact).norm())


def error_table(sizes: Sequence[int] = (16, 64, 128, 512), length: int = 2048) -> Table:
    """Compare a fit with least squares in float64, and with a fit in float32 throughout."""
    rows = []
    for size in sizes:
        basis = _spaced_basis(size)
        t, values = _waves(length, 2, size)
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
    basis, penalty = _spaced_basis(128), 1e-2

    def row(length: int) -> list[str]:
        t, values = _waves(length, 64, 0)
        regression = RidgeRegression(basis, penalty)
        whole = RidgeRegression(basis, penalty, chunk_size=length)

        def fit() -> Tensor:
            # A copy of the positions, since the Gram matrix of known ones is kept.
            return regression.fit(t + 0, values.unsqueeze(0)).coefficients[0]

        def step(regression: RidgeRegression) -> Tensor:
            x = values.unsqueeze(0).detach().requires_grad_()
            coefficients = regression.fit(t + 0, x).coefficients
            return torch.autograd.grad(coefficients.square().sum(), x)[0]

        def lstsq() -> Tensor:
            design = torch.cat([basis(t), math.sqrt(penalty) * torch.eye(len(basis))])
            right = torch.cat([values, torch.zeros(len(basis), values.shape[-1])])
            return torch.linalg.lstsq(design, right, driver="gels").solution

        def ridge() -> Tensor:
            model = Ridge(penalty, fit_intercept=False).fit(basis(t).numpy(), values.numpy())
            return torch.from_numpy(model.coef_.T)

        fits: dict[str, Callable[[], Tensor]] = {"fit": fit}
        if length <= longest:
            fits |= {"lstsq": lstsq, "ridge": ridge}
        exact = least_squares(basis, t, values, penalty)
        seconds = alternate({**fits, "step": lambda: step(regression)})
        cells = [str(length), f"{1e3 * seconds['step']:.3g}"]
        for name in ("fit", "lstsq", "ridge"):
            if name in fits:
                error = _curve_error(basis, fits[name](), exact)
                cells += [f"{1e3 * seconds[name]:.3g}", f"{error:.0e}"]
            else:
                cells += ["", ""]
        memory = (allocated_megabytes(lambda x=x: step(x)) for x in (regression, whole))
        return [*cells, *(f"{x:.0f}" for x in memory)]

    title = (
        "Fits of 64 channels by 128 functions, penalty 0.01, float32, one thread: milliseconds, "
        "relative error of the function, and megabytes that torch allocates at the peak of forward "
        "and backward, by blocks of rows and with all rows at once."
    )
    header = ["L", "forward and backward", "fit", "error", "lstsq", "error", "scikit-learn Ridge"]
    header += ["error", "MB", "MB, all rows"]
    return Table(title, header, [row(length) for length in lengths])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)
    regression = [error_table(), fit_table()]
    torch.set_num_threads(2)
    attention = [cost_table(), recall_table()]
    show_and_write("attention", _COMMAND, attention, options.write, "long-sequences.md")
    show_and_write("regression", _COMMAND, regression, options.write, "value-functions.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
