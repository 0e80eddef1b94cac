"""What torch allocates."""

from collections.abc import Callable

from torch.profiler import profile


def allocated_megabytes(call: Callable[[], object]) -> float:
    """The most that torch allocates at once during a call, besides what the call returns."""
    with profile(profile_memory=True) as record:
        kept = call()
    events = record.profiler.kineto_results.events()
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    del kept
    return (peak - live) / 1e6
