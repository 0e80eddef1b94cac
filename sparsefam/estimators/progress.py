"""What long fits tell of themselves."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Told", "progress"]

Told = Callable[[str], None]

# Seconds after which a fit shows how far it is, if it was not asked to.
_LONG = 5.0


@contextmanager
def progress(title: str, total: int, shown: bool | None) -> Iterator[Told]:
    """What is called with a line after each of up to `total` steps.

    Where `shown` it prints the line and, if rich is installed, a bar below. Where it is None there
    is a bar alone, of what takes more than seconds, on stderr if that is a terminal.
    """
    bar = _bar(shown) if shown or (shown is None and sys.stderr.isatty()) else None
    if bar is None:
        yield (lambda line: print(f"[{title}] {line}")) if shown else (lambda line: None)
        return
    task, begun = bar.add_task(title, total=total), time.monotonic()

    def told(line: str) -> None:
        bar.advance(task)
        if shown:
            bar.console.print(line, markup=False, highlight=False)
        elif not bar.live.is_started and time.monotonic() - begun > _LONG:
            _start(bar)

    if shown:
        _start(bar)
    try:
        yield told
        # Where candidates get worse the rest is not tried.
        bar.update(task, completed=total)
    finally:
        if bar.live.is_started:  # else it would print an empty line
            bar.stop()


def _bar(shown: bool | None) -> Any:
    """One of rich's that is not on the screen yet, None where rich is missing."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(console=Console(stderr=not shown))


def _start(bar: Any) -> None:
    """Shows it, unless somebody's own is on the screen, next to which rich 13 has no place."""
    from rich.errors import LiveError

    with suppress(LiveError):
        bar.start()
