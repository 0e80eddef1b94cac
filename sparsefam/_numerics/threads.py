"""Work that is faster on one thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]

_lock, _local = threading.Lock(), threading.local()
# Threads inside of `one_thread`, and torch's number of threads when none was.
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
