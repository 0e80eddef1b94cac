"""What is said while loops are compiled, which takes long, once for an installation."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer
from typing import Any

__all__ = ["while_compiling"]

_SECONDS = 5.0
_called: set[tuple[Any, Any]] = set()
_TEXT = "sparsefam compiles its loops, once for this installation: this may take half a minute"


def while_compiling(function: Any, dtype: Any) -> AbstractContextManager[None]:
    """For calls of a function of numba's: says on a terminal why the first one takes so long.

    It is compiled anew for each dtype of its arrays.
    """
    if (function, dtype) in _called or not sys.stderr.isatty():
        return nullcontext()
    _called.add((function, dtype))
    return _announced()


@contextmanager
def _announced() -> Iterator[None]:
    timer = Timer(_SECONDS, print, [_TEXT], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
