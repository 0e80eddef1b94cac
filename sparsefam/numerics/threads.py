"""Threads: pools for compiled loops, and work that is faster on one."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

__all__ = ["map_threads", "one_thread"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_lock, _local = threading.Lock(), threading.local()
_users, _threads = 0, 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread, in a block or, as a decorator, in a function.

    Many small operations gain little from more threads, and wait for each other at every one if a
    core is busy with something else.
    """
    global _users, _threads
    if getattr(_local, "inside", False):
        yield
        return
    with _lock:
        _threads = _threads if _users else torch.get_num_threads()
        _users += 1
    _local.inside = True
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _local.inside = False
        with _lock:
            _users -= 1
            torch.set_num_threads(_threads)


def map_threads(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return `[work(item) for item in items]`, with as many threads as torch uses.

    Work runs at the same time if it releases the interpreter's lock, as compiled loops do.
    """
    items, threads = list(items), torch.get_num_threads()
    if threads < 2 or len(items) < 2:
        return [work(item) for item in items]
    return list(_pool(os.getpid(), threads).map(work, items))


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of a process; threads do not survive a fork."""
    return ThreadPoolExecutor(threads, "sparsefam")
