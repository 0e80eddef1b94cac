"""What the terminal shows: live bars, or a line for each run where there is no screen."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typing_extensions import Self

__all__ = ["Reporter"]


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

    def runs(self, count: int, epochs: int) -> "RunBars":
        """Bars for `count` training runs of so many epochs, as a context."""
        return RunBars(self, self._bars, count, epochs)


class RunBars:
    """One bar for all runs, one for the epochs of the run in progress."""

    def __init__(self, reporter: Reporter, bars: Progress, count: int, epochs: int) -> None:
        self._reporter, self._bars, self._epochs, self._count = reporter, bars, epochs, count
        self._all = bars.add_task("  all epochs", total=count * epochs, note="")
        self._run = bars.add_task("", total=epochs, note="")
        self._done = 0

    def __enter__(self) -> Self:
        # Without a screen rich would write the bars once, at the end; the lines are enough there.
        if self._reporter.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reporter.console.is_terminal:
            self._bars.stop()
        for task in (self._all, self._run):
            self._bars.remove_task(task)

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
