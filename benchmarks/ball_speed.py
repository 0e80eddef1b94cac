"""How fast E_p[psi] is in the plane against the polar rule, and how it grows."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .ball_workload import (
    BATCH,
    FUNCTIONS,
    METHODS,
    REGIMES,
    BallWorkload,
    Method,
    ball_workload,
    by_expect,
    by_polar,
    in_plane,
)
from .picture import Panels, draw_growth
from .report import PAGE, Table, following, write_section
from .sweep import norm_error

__all__ = ["BALL_REQUIRED", "BallRun", "ball_gain", "ball_runs", "measure_ball"]

# What sparsefam must gain over the polar rule by autograd.
BALL_REQUIRED = 30.0
# A block of calls is long enough that what the method before it left in the caches matters little.
ROUNDS, REPEATS = 20, 20
PICTURE = "assets/growth.png"
DIMENSIONS = (1, 2, 3, 5, 8, 16)
BATCHES = (4, 16, 64, 256, 1024)
COUNTS = (25, 100, 400, 1600)
_OURS, _RULE, _ = METHODS


@dataclass(frozen=True)
class BallRun:
    """One method in one regime.

    Attributes:
        regime: A key of REGIMES.
        method: A key of METHODS.
        seconds: Of each repetition, forward and backward.
        row_errors: Largest and median error of E_p[psi] among the densities.
        slope_errors: Of the gradients in loc and in scale_tril, over all densities.
    """

    regime: str
    method: str
    seconds: list[float]
    row_errors: tuple[float, float]
    slope_errors: tuple[float, float]


def ball_runs(regime: str, rounds: int = ROUNDS) -> list[BallRun]:
    """All methods in turn, round by round, so that other work on the machine meets all alike."""
    work = in_plane(REGIMES[regime])
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(rounds):
        for name, method in METHODS.items():
            seconds[name] += _timed(method, work, REPEATS)
    # Float64 by sparsefam, which benchmarks.accuracy holds against an independent reference.
    truth = by_expect(work.double())
    found = []
    for name, method in METHODS.items():
        result = method(work)
        rows = norm_error(result[0], truth[0])
        slopes = zip((result[1], result[2].tril()), truth[1:], strict=True)
        loc, tril = (norm_error(x.flatten(), y.flatten()).item() for x, y in slopes)
        errors = rows.max().item(), rows.median().item()
        found.append(BallRun(regime, name, seconds[name], errors, (loc, tril)))
    return found


def _timed(method: Method, work: BallWorkload, repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        method(work)
        seconds.append(time.perf_counter() - start)
    return seconds


def ball_gain(found: Sequence[BallRun], run: BallRun) -> float:
    """How many times faster a run is than the polar rule by autograd, by medians."""
    rule = next(x for x in found if (x.regime, x.method) == (run.regime, _RULE))
    return statistics.median(rule.seconds) / statistics.median(run.seconds)


def _plane_table(found: Sequence[BallRun]) -> Table:
    rows = []
    for run in found:
        best, middle = min(run.seconds), statistics.median(run.seconds)
        times = [f"{1e3 * best:.2f}", f"{1e3 * middle:.2f}", f"{ball_gain(found, run):.1f}"]
        numbers = [f"{error:.0e}" for error in (*run.row_errors, *run.slope_errors)]
        rows.append([run.regime, run.method, *times, *numbers])
    regimes = "; ".join(f"{name}: {regime.text}" for name, regime in REGIMES.items())
    title = f"In the plane, {BATCH} densities and {FUNCTIONS} basis functions. {regimes}."
    times = ["best ms", "median ms", "gain"]
    errors = ["worst error", "median error", "∂ loc", "∂ scale_tril"]
    return Table(title, ["regime", "method", *times, *errors], rows)


def _milliseconds(method: Method, work: BallWorkload) -> float:
    method(work)
    first = _timed(method, work, 3)
    repeats = min(50, max(5, round(1 / min(first))))
    return 1e3 * statistics.median(_timed(method, work, repeats))


def _growth() -> Panels:
    """Panels: what grows, to its sizes and the milliseconds of the methods."""
    axes = {
        "dimensions D": [(dim, ball_workload(dim, BATCH, FUNCTIONS)) for dim in DIMENSIONS],
        "densities": [(batch, ball_workload(2, batch, FUNCTIONS)) for batch in BATCHES],
        "basis functions": [(count, ball_workload(2, BATCH, count)) for count in COUNTS],
    }
    panels = {}
    for name, works in following(list(axes.items()), "growth"):
        curves = {"sparsefam": [_milliseconds(by_expect, work) for _, work in works]}
        if name != "dimensions D":
            curves["polar rule"] = [_milliseconds(by_polar, work) for _, work in works]
        panels[name] = ([size for size, _ in works], curves)
    return panels


def _growth_table(panels: Panels) -> Table:
    rows = []
    for name, (sizes, curves) in panels.items():
        for method, times in curves.items():
            pairs = zip(sizes, times, strict=True)
            cells = (f"{size}: {time:.{int(time < 10)}f}" for size, time in pairs)
            rows.append([name, method, ", ".join(cells)])
    title = "Median milliseconds as one number grows from D = 2, 64 densities, 100 basis functions."
    return Table(title, ["what grows", "method", "to its value: milliseconds"], rows)


def measure_ball(write: bool, command: str) -> float:
    """Prints the tables, and writes them and the picture if asked; the least gain in a regime."""
    found = [run for regime in following(list(REGIMES), "plane") for run in ball_runs(regime)]
    panels = _growth()
    tables = [_plane_table(found), _growth_table(panels)]
    for table in tables:
        table.show()
    if write:
        draw_growth(PAGE.parent / PICTURE, panels)
        picture = f"![Time against the number of dimensions, densities, basis functions]({PICTURE})"
        write_section("plane", command, [*(table.markdown() for table in tables), picture])
    return min(ball_gain(found, run) for run in found if run.method == _OURS)
