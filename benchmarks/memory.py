"""How much memory a method needs at its peak."""

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch.profiler import profile

from .families import Family
from .workload import FAMILIES, METHODS, workload

__all__ = ["allocated_megabytes", "peak_megabytes", "resident_megabytes"]


def peak_megabytes(family: Family, method: str, regime: str, threads: int) -> float:
    """Peak resident memory of one call, above that of the same process after a tiny call.

    In a fresh process, so that nothing is left over from before. Ask before the calling process
    has done large work: a child starts from its parent's peak, below which nothing shows.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, family.name, method, regime, threads).result()


def _measure(family: str, method: str, regime: str, threads: int) -> float:
    # Families hold functions without names, which no process can send to another.
    torch.set_num_threads(threads)
    chosen = next(known for known in FAMILIES if known.name == family)
    work, tiny = workload(regime), workload(regime, densities=2)
    METHODS[method](chosen, tiny)
    before = resident_megabytes()
    METHODS[method](chosen, work)
    return resident_megabytes() - before


def resident_megabytes() -> float:
    """The most memory that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def allocated_megabytes(call: Callable[[], object]) -> float:
    """The most that torch allocates at once during a call, besides what the call returns.

    Exact, as the allocator's own account: of anything smaller than a few megabytes the resident
    memory of a process says nothing.
    """
    with profile(profile_memory=True) as record:
        kept = call()
    results = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    events = [event for event in results if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del kept
    return (peak - live) / 1e6
