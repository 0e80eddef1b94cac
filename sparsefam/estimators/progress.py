"""What long fits tell of themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Told", "progress"]

Told = Callable[[str], None]


@contextmanager
def progress(title: str, total: int, shown: bool) -> Iterator[Told]:
    """What is called with a line after each of up to `total` steps.

    It shows the line and, where rich is installed, a bar below; nothing unless `shown`.
    """
    if not shown:
        yield lambda line: None
        return
    try:
        from rich.progress import Progress
    except ImportError:
        yield lambda line: print(f"[{title}] {line}")
        return
    with Progress() as bar:
        task = bar.add_task(title, total=total)

        def told(line: str) -> None:
            bar.console.print(line, markup=False, highlight=False)
            bar.advance(task)

        yield told
        # Where candidates get worse the rest is not tried.
        bar.update(task, completed=total)
