"""How fast E_p[psi] is for kernel families, forward and backward, against the trapezoid rule."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .kernel_memory import kernel_megabytes
from .kernel_workload import (
    METHODS,
    KernelDensity,
    KernelWorkload,
    kernel_workload,
)
from .report import Table, following, write_section
from .sweep import norm_error

__all__ = [
    "KernelRun",
    "kernel_runs",
    "kernel_shortfalls",
    "kernel_table",
    "measure_kernels",
    "megabytes",
]

# First of each alpha what research code computes, but for its shift of the score.
DENSITIES = (
    KernelDensity(2.0, inside=False),
    KernelDensity(2.0, inside=True),
    KernelDensity(1.5, inside=False),
    KernelDensity(1.5, inside=True),
    KernelDensity(1.0, inside=False),
)
ROUNDS = 3
# Sparsefam must be this many times faster than research code, take no more than this many times
# the time of the products, of products with as many nodes, and have a gradient this many times more
# exact than the former two.
FASTER, SLOWER, SAME_NODES, NEARER = 15.0, 3.0, 2.0, 1000.0
# The reference is asked for one density in so many.
EVERY = 40
_OURS, _BROADCAST, _PRODUCTS, _SAME = METHODS
_TITLE = (
    "6400 densities (batch 64, 100 heads), 256 inducing points, Gaussian kernel 0.05, 64 basis "
    "functions. Gain: over the rule of research code. Times products: the median over that of the "
    "rule as products; times same: over that of products on the same nodes. Errors: of the value "
    "and of the gradient in the weights, density by density."
)
_HEADER = [
    "density",
    "method",
    "best ms",
    "median ms",
    "gain",
    "times products",
    "times same",
    "worst error",
    "median error",
    "worst ∂",
    "median ∂",
    "MB",
    "not met",
]


@dataclass(frozen=True)
class KernelRun:
    """One method on one density.

    Attributes:
        density: What was asked for.
        method: A key of METHODS.
        seconds: Of each repetition.
        value_errors: Largest and median error of E_p[psi] among the densities.
        slope_errors: Of the gradients in the weights.
    """

    density: KernelDensity
    method: str
    seconds: list[float]
    value_errors: tuple[float, float]
    slope_errors: tuple[float, float]


Job = tuple[KernelDensity, str]


def jobs(alpha: float) -> list[Job]:
    """Sparsefam's densities, then the rules, which know one of them."""
    densities = [density for density in DENSITIES if density.alpha == alpha]
    ours = [(density, _OURS) for density in densities]
    return [*ours, *((densities[0], rule) for rule in (_BROADCAST, _PRODUCTS, _SAME))]


def kernel_runs(alpha: float, work: KernelWorkload, rounds: int = ROUNDS) -> list[KernelRun]:
    """All in turn, round by round, so that other work on the machine meets all alike."""
    seconds: dict[Job, list[float]] = {job: [] for job in jobs(alpha)}
    results: dict[Job, tuple[Tensor, Tensor]] = {}
    for _ in range(rounds):
        for (density, method), times in seconds.items():
            for _ in range(1 if method == _BROADCAST else 4):
                start = time.perf_counter()
                found = METHODS[method](density, work)
                times.append(time.perf_counter() - start)
                results[density, method] = found
    return [
        KernelRun(*job, seconds[job], *_errors(job[0], found, work))
        for job, found in results.items()
    ]


def _errors(
    density: KernelDensity, found: tuple[Tensor, Tensor], work: KernelWorkload
) -> list[tuple[float, float]]:
    """Largest and median, of values and of gradients."""
    truth = density.truth(work, EVERY)
    out = []
    for x, exact in zip(found, (truth.value, truth.slope), strict=True):
        errors = norm_error(x.flatten(0, -2)[::EVERY], exact)
        out.append((errors.max().item(), errors.median().item()))
    return out


def _middle(run: KernelRun) -> float:
    return statistics.median(run.seconds)


def _rule(found: Sequence[KernelRun], run: KernelRun, method: str) -> KernelRun:
    """The rule that a run is held against."""
    return next(
        other
        for other in found
        if (other.density.alpha, other.method) == (run.density.alpha, method)
    )


def ratios(found: Sequence[KernelRun], run: KernelRun) -> tuple[float, float, float, float]:
    """Gain over research code, time over that of the products, and of those on the same nodes.

    By medians; last comes the gain in exactness.
    """
    broadcast, products, same = (_rule(found, run, x) for x in (_BROADCAST, _PRODUCTS, _SAME))
    nearer = products.slope_errors[1] / run.slope_errors[1]
    time = _middle(run)
    return _middle(broadcast) / time, time / _middle(products), time / _middle(same), nearer


def short_of(found: Sequence[KernelRun], run: KernelRun) -> dict[str, str]:
    """The aims of which a run of sparsefam falls short: their columns, and words."""
    gain, slower, same, nearer = ratios(found, run)
    out = {}
    if not gain >= FASTER:
        out["gain"] = f"{gain:.1f} times faster than research code ({FASTER:g} asked)"
    if not slower <= SLOWER:
        out["times products"] = f"{slower:.1f} times the time of products ({SLOWER:g} allowed)"
    if not same <= SAME_NODES:
        out["times same"] = f"{same:.1f} times that on the same nodes ({SAME_NODES:g} allowed)"
    if not nearer >= NEARER:
        out["median ∂"] = f"gradient {nearer:.0f} times as exact ({NEARER:g} asked)"
    return out


def kernel_shortfalls(found: Sequence[KernelRun]) -> list[str]:
    """What falls short of the aims, in words."""
    return [
        f"{run.density.name}: {text}"
        for run in found
        if run.method == _OURS
        for text in short_of(found, run).values()
    ]


def megabytes(threads: int) -> dict[Job, float]:
    """Peak memory of all; to be asked before this process has grown."""
    alphas = dict.fromkeys(density.alpha for density in DENSITIES)
    every = [job for alpha in alphas for job in jobs(alpha)]
    return {job: kernel_megabytes(*job, threads) for job in following(every, "memory")}


def kernel_table(found: Sequence[KernelRun], memory: dict[Job, float]) -> Table:
    """Times, errors and memory."""
    rows = []
    for run in found:
        gain, slower, same, _ = ratios(found, run)
        times = [f"{1e3 * min(run.seconds):.0f}", f"{1e3 * _middle(run):.0f}"]
        shares = [f"{gain:.{int(gain < 10)}f}", f"{slower:.1f}", f"{same:.1f}"]
        errors = [f"{error:.0e}" for error in (*run.value_errors, *run.slope_errors)]
        peak = f"{memory[run.density, run.method]:.0f}"
        short = ", ".join(short_of(found, run)) or "–" if run.method == _OURS else ""
        rows.append([run.density.name, run.method, *times, *shares, *errors, peak, short])
    return Table(_TITLE, _HEADER, rows)


def measure_kernels(write: bool, command: str, memory: dict[Job, float]) -> list[str]:
    """Prints the table, and writes it if asked; what falls short of the aims."""
    work = kernel_workload()
    alphas = list(dict.fromkeys(density.alpha for density in DENSITIES))
    found = [run for alpha in following(alphas, "kernels") for run in kernel_runs(alpha, work)]
    table = kernel_table(found, memory)
    table.show()
    if write:
        write_section("kernels", command, [table.markdown()])
    return kernel_shortfalls(found)
