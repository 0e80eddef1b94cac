"""Threads for compiled loops: torch's own, where they can be had.

After an operation these go on spinning for some milliseconds, in wait for the next one. Threads of
others get half a core from them in the meantime.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

__all__ = ["by_threads"]

# What links to the OpenMP that torch runs on.
_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_global_deps.so"
_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_OWNER = os.getpid()
_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


def by_threads(work: Callable[[_Part], _Found], parts: Sequence[_Part], count: int) -> list[_Found]:
    """What `work` makes of each part, by so many threads at once where it lets others run.

    Raises:
        BaseException: The first that `work` raises, after all parts.
    """
    # OpenMP's threads do not outlive a fork, and in a child are waited for without end.
    run = _in_openmp() if os.getpid() == _OWNER else None
    if run is None:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(work, parts))
    found: dict[int, _Found] = {}
    errors: list[BaseException] = []
    # One iterator for all, which gives every part to one thread.
    left = enumerate(parts)

    def take(_: Any) -> None:
        for place, part in left:
            try:
                found[place] = work(part)
            except BaseException as error:  # nothing can pass through OpenMP
                errors.append(error)

    run(_Task(take), None, count, 0)
    if errors:
        raise errors[0]
    return [found[place] for place in range(len(parts))]


@cache
def _in_openmp() -> Any:
    """What runs a task on several threads of torch's; None where there is no GNU OpenMP."""
    try:
        run = ctypes.CDLL(str(_LIBRARY)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    run.restype, run.argtypes = None, (_Task, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    return run
