"""What the terminal shows: live bars, or a line for each step where there is no screen."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count as counter

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["Reporter", "RunBars"]


class Reporter:
    """Reports stages and, inside a stage, training runs epoch by epoch.

    Args:
        console: Where to write; default the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )

    def stage(self, title: str) -> None:
        """A stage begins."""
        self.console.print(title, style="bold")

    def note(self, line: str) -> None:
        """A line that stays."""
        self.console.print(f"  {line}")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table that stays; its first column names the row."""
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
        for column, name in enumerate(header):
            table.add_column(name, justify="right" if column else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.console.print(Padding(table, (0, 0, 0, 2), expand=False))

    @contextmanager
    def steps(self, count: int) -> Iterator[Callable[[str], None]]:
        """A bar for `count` steps, as a context: to be called with the name of each that ended."""
        done = counter(1)
        with self._live({"": count}) as (task,):

            def ended(name: str) -> None:
                self._bars.advance(task)
                self.note(f"{next(done):3d}/{count}  {name}")

            yield ended

    @contextmanager
    def runs(self, count: int, epochs: int) -> Iterator["RunBars"]:
        """Bars for `count` training runs of so many epochs, as a context."""
        with self._live({"all epochs": count * epochs, "": epochs}) as tasks:
            yield RunBars(self, self._bars, tasks, count)

    @contextmanager
    def _live(self, totals: dict[str, int]) -> Iterator[list[TaskID]]:
        """Bars by name, shown while the context lasts."""
        tasks = [
            self._bars.add_task(f"  {name}", total=total, note="") for name, total in totals.items()
        ]
        # Without a screen rich would write the bars once, at the end; the lines are enough there.
        try:
            with self._bars if self.console.is_terminal else nullcontext():
                yield tasks
        finally:
            for task in tasks:
                self._bars.remove_task(task)


class RunBars:
    """One bar for all runs, one for the epochs of the run in progress."""

    def __init__(
        self, reporter: Reporter, bars: Progress, tasks: Sequence[TaskID], count: int
    ) -> None:
        self._reporter, self._bars, self._count, self._done = reporter, bars, count, 0
        self._all, self._run = tasks

    def begin(self, name: str) -> None:
        """A run begins."""
        self._bars.reset(self._run, description=f"  {name}", note="")

    def epoch(self, number: int, loss: float) -> None:
        """An epoch of the run ended."""
        self._bars.update(self._run, completed=number, note=f"loss {loss:.2f}")
        self._bars.advance(self._all)

    def end(self, name: str, outcome: str) -> None:
        """The run ended."""
        self._done += 1
        self._reporter.note(f"{self._done:3d}/{self._count}  {name}: {outcome}")
