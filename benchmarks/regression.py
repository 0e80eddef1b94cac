"""What a ridge regression costs and how exact it is, as sequences and bases grow.

Prints four tables: time and memory against the number of observations, also in a stream, and errors
against a least-squares solution in float64 against the number of functions. `--write` puts them
into docs/value-functions.md.
"""

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefam.attention import RidgeRegression
from sparsefam.bases import Basis, GaussianRBF

from .regression_memory import regression_megabytes, stream
from .report import PAGE, Table, following, write_section

__all__ = ["Accuracy", "Timing", "accuracy", "exponent", "least_squares", "main", "timing"]

LENGTHS = tuple(2**k for k in range(12, 18))
MEMORY_LENGTHS = (2**14, 2**17)
STREAMS = (10**5, 10**6)
FUNCTIONS, CHANNELS = 128, 64
SIZES = (16, 64, 128, 512)
PENALTIES = (1e-4, 1e-2, 1.0)
ROUNDS = 3
_COMMAND = "python -m benchmarks.regression --write"


@dataclass(frozen=True)
class Timing:
    """Median seconds of one thread: forward, backward, and forward where the grid is known."""

    length: int
    forward: float
    backward: float
    known: float


@dataclass(frozen=True)
class Accuracy:
    """Relative errors of a fit to float32 observations: of its function, and of coefficients.

    Attributes:
        size: The number of basis functions.
        penalty: The ridge penalty.
        curve: Of the function, evaluated in float64.
        coefficients: Of the coefficients.
        single: Of the function if all is done in float32; NaN where that has no solution.
    """

    size: int
    penalty: float
    curve: float
    coefficients: float
    single: float


def timing(length: int, functions: int = FUNCTIONS, channels: int = CHANNELS) -> Timing:
    """One sequence at irregular positions."""
    t, basis = torch.rand(1, length), GaussianRBF.grid(functions, 1.5 / functions)
    values = torch.randn(1, length, channels, requires_grad=True)
    anew, kept = RidgeRegression(basis), RidgeRegression(basis)
    slopes = torch.ones(1, functions, channels)
    rounds = []
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        coefficients = anew.fit(t + 0, values).coefficients
        middle = time.process_time()
        torch.autograd.grad(coefficients, values, slopes)
        end = time.process_time()
        kept.fit(t[0], values)
        rounds.append((middle - start, end - middle, time.process_time() - end))
    return Timing(length, *(statistics.median(x) for x in zip(*rounds[1:], strict=True)))


def exponent(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log seconds against log length, by least squares."""
    x = [math.log(length) for length in lengths]
    y = [math.log(second) for second in seconds]
    return statistics.linear_regression(x, y).slope


def least_squares(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    """The coefficients by a QR factorisation of the observations above the penalty's rows.

    No normal equations: in float64 good to rounding times the root of their condition number.
    """
    size = len(basis)
    rows = torch.cat([basis(t.double()), math.sqrt(penalty) * torch.eye(size, dtype=torch.double)])
    right = torch.cat([values.double(), torch.zeros(size, values.shape[-1], dtype=torch.double)])
    orthogonal, upper = torch.linalg.qr(rows)
    return torch.linalg.solve_triangular(upper, orthogonal.mT @ right, upper=True)


def _in_single(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    design = basis(t)
    gram = design.mT @ design + penalty * torch.eye(len(basis))
    factor, failed = torch.linalg.cholesky_ex(gram)
    return torch.cholesky_solve(design.mT @ values, factor) + (math.nan if failed else 0.0)


def accuracy(size: int, penalty: float, length: int = 2048) -> Accuracy:
    """Waves with noise at irregular positions, and functions 1.5 steps wide."""
    generator = torch.Generator().manual_seed(size)
    t = torch.rand(length, generator=generator)
    values = torch.stack([torch.sin(12 * t), torch.cos(40 * t)], -1)
    values = values + 0.3 * torch.randn(length, 2, generator=generator)
    basis = GaussianRBF.grid(size, 1.5 / size)
    exact = least_squares(basis, t, values, penalty)
    found = RidgeRegression(basis, penalty).fit(t, values.unsqueeze(0)).coefficients[0]
    grid = basis(torch.linspace(0, 1, 1001, dtype=torch.double))

    def error(coefficients: Tensor) -> float:
        return float((grid @ (coefficients.double() - exact)).norm() / (grid @ exact).norm())

    single = error(_in_single(basis, t, values, penalty))
    return Accuracy(
        size, penalty, error(found), float((found - exact).norm() / exact.norm()), single
    )


def time_table(rows: Sequence[Timing]) -> Table:
    """Milliseconds, and the exponents of the lengths but for the shortest two."""
    long = rows[2:] if len(rows) > 3 else rows
    names = ("forward", "backward", "known")
    fitted = [
        exponent([row.length for row in long], [getattr(row, name) for row in long])
        for name in names
    ]
    body = [
        [f"{row.length}", *(f"{1e3 * getattr(row, name):.1f} ms" for name in names)] for row in rows
    ]
    return Table(
        f"Time of one fit, N = {FUNCTIONS}, E = {CHANNELS}, float32, one thread",
        ["L", "forward", "backward", "forward, grid known"],
        [*body, ["exponent of L", *(f"{slope:.2f}" for slope in fitted)]],
    )


def memory_table(lengths: Sequence[int]) -> Table:
    """Megabytes besides observations and their gradients, in processes of their own."""
    jobs = [(length, whole) for length in lengths for whole in (False, True)]
    found = {job: regression_megabytes(*job) for job in following(jobs, "memory")}
    rows = [[f"{n}", *(f"{found[n, whole]:.0f} MB" for whole in (False, True))] for n in lengths]
    title = "Peak memory of forward and backward, besides observations and their gradients"
    return Table(title, ["L", "by blocks", "all rows at once"], rows)


def stream_table(found: Mapping[int, tuple[float, float]]) -> Table:
    """What streams of some lengths hold at their peaks, and how far they are from one fit."""
    rows = [
        [f"{n:,}", f"{4 * n * (CHANNELS + 1) / 1e6:.0f} MB", f"{size:.1f} MB", f"{error:.1e}"]
        for n, (size, error) in found.items()
    ]
    title = "Streams in chunks of 1000: memory above that of the first, and one fit"
    return Table(title, ["L", "observations", "memory", "coefficients differ"], rows)


def accuracy_table(rows: Sequence[Accuracy]) -> Table:
    """Relative errors."""
    body = [
        [f"{x.size}", f"{x.penalty:g}", f"{x.curve:.1e}", f"{x.coefficients:.1e}"]
        + ["no solution" if math.isnan(x.single) else f"{x.single:.1e}"]
        for x in rows
    ]
    title = "Relative errors of fits to 2048 observations in float32"
    return Table(title, ["N", "penalty", "function", "coefficients", "function, all float32"], body)


def main() -> None:
    """Prints the tables, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/value-functions.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(size, penalty) for size in SIZES for penalty in PENALTIES]
    tables = [
        # First, while this process is small: others start from its peak.
        memory_table(MEMORY_LENGTHS),
        stream_table({length: stream(length) for length in following(STREAMS, "streams")}),
        time_table([timing(length) for length in following(LENGTHS, "time")]),
        accuracy_table([accuracy(*job) for job in following(jobs, "accuracy")]),
    ]
    for table in tables:
        table.show()
    if options.write:
        page = PAGE.with_name("value-functions.md")
        write_section("regression", _COMMAND, [table.markdown() for table in tables[::-1]], page)


if __name__ == "__main__":
    main()
