"""What is said while loops are compiled, which takes long, once for an installation."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer
from typing import Any

__all__ = ["while_compiling"]

_SECONDS = 5.0
_TEXT = "sparsefam compiles its loops, once for this installation: this may take half a minute"


def while_compiling(function: Any, dtype: Any) -> AbstractContextManager[None]:
    """For calls of a function of numba's: says on a terminal why the first one takes so long.

    Its first argument is an array of the dtype, for each of which it is compiled anew.
    """
    known = any(str(types[0].dtype) == str(dtype) for types in function.overloads)
    return nullcontext() if known or not sys.stderr.isatty() else _announced()


@contextmanager
def _announced() -> Iterator[None]:
    timer = Timer(_SECONDS, print, [_TEXT], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
