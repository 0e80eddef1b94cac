"""Times of calls that take turns, on one thread: what else runs on the machine meets all alike."""

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["processor_seconds"]


def processor_seconds(
    calls: Mapping[str, Callable[[], object]], budget: float = 0.4, least: int = 3
) -> dict[str, float]:
    """Median seconds of the processor for each, after one call of each that does not count.

    What waits for other programs is not counted; set the number of threads to one before, as only
    the calling thread's time is.

    Args:
        calls: By name.
        budget: Seconds by the clock after which no new round begins.
        least: Rounds that are made in any case.
    """
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    end, rounds = time.perf_counter() + budget, 0
    while rounds < least or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.thread_time()
            call()
            found[name].append(time.thread_time() - start)
        rounds += 1
    return {name: statistics.median(times) for name, times in found.items()}
