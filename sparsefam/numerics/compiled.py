"""Loops compiled by numba: when they replace torch operations.

Compiling takes seconds, once per installation: numba keeps the result in a cache on disk. A process
therefore starts with torch operations and uses the loops once it has done so much work that
compiling pays. Work is counted in pairs of a density and a basis function, not in seconds, so that
a program computes the same numbers wherever it runs.

The environment variable SPARSEFAM_COMPILE changes that: with "0" loops are never used, with "1"
from the first call on.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from threading import Timer
from typing import Any

__all__ = ["LEAST_PAIRS", "announce_compiling", "enough_work", "is_available"]

# Torch operations take about 50 ns for a pair, so this is about a second of work.
LEAST_PAIRS = 2**24
_NOTICE_SECONDS = 2.0
_NOTICE = (
    "sparsefam: numba compiles loops, once per installation; this takes some seconds "
    "(`python -m sparsefam.compile` does it ahead, SPARSEFAM_COMPILE=0 switches it off)"
)
_INSTALLED = find_spec("numba") is not None
_setting = os.environ.get("SPARSEFAM_COMPILE", "")
_pairs_done = 0
_announced: set[Any] = set()


def enough_work(pairs: int) -> bool:
    """Add pairs to the work of this process, and return whether to use compiled loops for them.

    The answer may change between a forward pass and its repetition by `torch.utils.checkpoint`,
    which expects the same saved tensors: callers must save the same ones with both answers.
    """
    global _pairs_done
    _pairs_done += pairs
    enough = _setting == "1" or _pairs_done > LEAST_PAIRS
    return enough and is_available() and _has_numba()


def is_available() -> bool:
    """Return whether this process may compile loops, without the slow import of numba."""
    return _setting != "0" and _INSTALLED


@cache
def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except (ImportError, RuntimeError):  # numba is not for this version of numpy or python
        return False
    return True


@contextmanager
def announce_compiling(function: Any) -> Iterator[None]:
    """Print a notice on a terminal if the first call of a function takes long."""
    if function in _announced or not sys.stderr.isatty():
        yield
        return
    _announced.add(function)
    timer = Timer(_NOTICE_SECONDS, print, [_NOTICE], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
