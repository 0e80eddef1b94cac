"""What a call costs beside its arithmetic: what a process waits for, and `log_prob` of few numbers.

Prints three tables; `make bench` ends with them. The yardstick of `log_prob` is what a user would
write without sparsefam: `torch.distributions.Normal.log_prob`, which stands for a distribution's
own bookkeeping, and the density's formula as bare torch calls.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

import sparsefam as sf

from .report import Table, console, write_section

__all__ = ["DENSITIES", "Density", "measure_overhead", "ratio", "seconds"]

# What a call may take, in units of the yardstick; and the import beyond torch's and Pyro's.
_LIMIT, _IMPORT_LIMIT = 2.0, 0.5
SHAPES = ((), (1000,))
_ROUNDS, _CALLS, _IMPORTS = 41, 20, 3


def _parabola(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    u = (x - loc) / scale
    return torch.where(u.abs() < 1, math.log(0.75) + torch.log1p(-u * u) - scale.log(), -math.inf)


def _biweight(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    u = (x - loc) / scale
    log_p = math.log(15 / 16) + 2 * torch.log1p(-u * u) - scale.log()
    return torch.where(u.abs() < 1, log_p, -math.inf)


def _triangle(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    size = ((x - loc) / scale).abs()
    return torch.where(size < 1, torch.log1p(-size) - scale.log(), -math.inf)


def _laplace(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -(x - loc).abs() / scale - (2 * scale).log()


# What is compiled when first asked for: what comes before it, and the code.
_FIRST = {
    "expectation": (
        "import torch, sparsefam as sf\n"
        "p, psi = sf.TruncatedParabola(torch.zeros(2), 1.0), sf.bases.GaussianRBF.grid(16, 0.1)",
        "p.expect(psi)",
    ),
    "kernel deformed family": (
        "import torch, sparsefam as sf\n"
        "from pyro.contrib.gp.kernels import RBF\n"
        "weights, points = torch.ones(3), torch.tensor([0.2, 0.5, 0.8])\n"
        "kernel = RBF(1, lengthscale=torch.tensor(0.1))",
        "sf.KernelDeformedExp(weights, points, kernel).log_normalizer",
    ),
}


@dataclass(frozen=True)
class Density:
    """A density as a class of sparsefam, and its formula as bare torch calls."""

    name: str
    make: Callable[..., Distribution]
    formula: Callable[[Tensor, Tensor, Tensor], Tensor]


DENSITIES = (
    Density("TruncatedParabola", sf.TruncatedParabola, _parabola),
    Density("BetaGaussian, alpha 1.5", lambda *x, **o: sf.BetaGaussian(*x, 1.5, **o), _biweight),
    Density("Triangular", sf.Triangular, _triangle),
    Density("Laplace", sf.Laplace, _laplace),
)


def seconds(functions: Sequence[Callable[[], object]], rounds: int = _ROUNDS) -> list[list[float]]:
    """Of the processor for a call of each, round by round: other work meets all alike.

    What waits for other programs is not counted, which would meet long calls more often.
    """
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for times, function in zip(found, functions, strict=True):
            start = time.thread_time()
            for _ in range(_CALLS):
                function()
            times.append((time.thread_time() - start) / _CALLS)
    return found


def ratio(ours: Sequence[float], normal: Sequence[float], formula: Sequence[float]) -> float:
    """A call in units of the yardstick: the median of what each round says."""
    rounds = zip(ours, normal, formula, strict=True)
    return statistics.median(a / (b + c) for a, b, c in rounds)


def _row(
    density: Density, shape: tuple[int, ...], validate: bool
) -> tuple[list[str], tuple[float, float]]:
    """Of one density and shape; and the ratios, without construction and with it."""
    loc, scale, x = torch.full(shape, 0.25), torch.full(shape, 1.5), torch.full(shape, 0.75)
    p = density.make(loc, scale, validate_args=validate)
    q = Normal(loc, scale, validate_args=validate)
    times = seconds(
        [
            lambda: p.log_prob(x),
            lambda: q.log_prob(x),
            lambda: density.formula(x, loc, scale),
            lambda: density.make(loc, scale, validate_args=validate).log_prob(x),
            lambda: Normal(loc, scale, validate_args=validate).log_prob(x),
        ]
    )
    ours, normal, formula, both, normal_both = times
    ratios = ratio(ours, normal, formula), ratio(both, normal_both, formula)
    numbers = [f"{1e6 * statistics.median(t):.0f}" for t in (ours, normal, formula)]
    checked = "on" if validate else "off"
    return [density.name, str(shape), checked, *numbers, *(f"{r:.1f}" for r in ratios)], ratios


def _of_process(before: str, code: str, **environment: str) -> float:
    """Seconds of the processor for some code in a process of its own, after other code."""
    start, end = "start = time.process_time()", "print(time.process_time() - start)"
    command = [sys.executable, "-c", "\n".join(["import time", before, start, code, end])]
    everything = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=everything)
    return float(done.stdout)


def _waits() -> Table:
    """Before a process has its first numbers; the best of a few, but for what compiles."""
    torch_and_pyro = "import torch, pyro, pyro.distributions"
    imported = min(_of_process(torch_and_pyro, "import sparsefam") for _ in range(_IMPORTS))
    rows = [["import, after torch and Pyro", f"{imported:.2f}", f"{_IMPORT_LIMIT:g}"]]
    for name, (before, code) in _FIRST.items():
        with tempfile.TemporaryDirectory() as cache:
            compiling, *loading = (
                _of_process(before, code, NUMBA_CACHE_DIR=cache) for _ in range(_IMPORTS + 1)
            )
        rows += [
            [f"first {name} of an installation: compiles", f"{compiling:.1f}", ""],
            [f"first {name} of a later process: loads", f"{min(loading):.1f}", ""],
        ]
    what = "What a process waits for: time of the processor."
    return Table(what, ["what", "seconds", "allowed"], rows)


def measure_overhead(write: bool, command: str) -> None:
    """Prints the tables, and how the worst compares with what is allowed."""
    waits = _waits()
    cases = product(SHAPES, DENSITIES, (True, False))
    found = [_row(density, shape, validate) for shape, density, validate in cases]
    rows, ratios = zip(*found, strict=True)
    header = ["density", "shape", "validation", "log_prob µs", "Normal µs", "formula µs"]
    tables = [
        Table(
            "One call of log_prob in float32, and how many times Normal's with the formula it is.",
            [*header, "ratio", "ratio with construction"],
            rows,
        ),
        waits,
    ]
    for table in tables:
        table.show()
    if write:
        write_section("overhead", command, [table.markdown() for table in tables])
    alone, made = (max(column) for column in zip(*ratios, strict=True))
    console.print(
        f"log_prob: at most {alone:.1f} times Normal and the formula, {made:.1f} with construction "
        f"({_LIMIT:g} allowed)"
    )
