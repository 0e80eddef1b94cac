"""Tables for the terminal and for docs/benchmarks.md, and a bar for what takes long."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table as RichTable

__all__ = ["PAGE", "Table", "console", "following", "write_section"]

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
T = TypeVar("T")
console = Console(highlight=False)
if not console.is_terminal:  # a file has no width to fit
    console = Console(highlight=False, width=140)


@dataclass(frozen=True)
class Table:
    """Rows of text under a header and a title, the first column naming the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Prints it."""
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, name in enumerate(self.header):
            table.add_column(name, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        """The same for a page."""
        lines = [
            self.header,
            [":--", *["--:"] * (len(self.header) - 1)],
            *self.rows,
        ]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def following(items: Sequence[T], text: str) -> Iterable[T]:
    """The items one by one, with a bar where there is a screen."""
    silent = not console.is_terminal
    return track(items, text, console=console, transient=True, disable=silent)


def write_section(name: str, command: str, parts: Iterable[str], page: Path | None = None) -> None:
    """Replaces what stands between the section's two marks in a page."""
    page = PAGE if page is None else page
    machine = (
        f"`{command}`, one run on a 2-core x86-64 machine, torch {torch.__version__.split('+')[0]} "
        f"CPU, {date.today().isoformat()}."
    )
    begin, end = f"<!-- {name}: made by {command} -->", f"<!-- {name}: end -->"
    body = "\n\n".join([begin, machine, *parts, end])
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text, count = pattern.subn(lambda _: body, page.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{page.name} must have one section {begin} ... {end}, got {count}")
    page.write_text(text, encoding="utf-8")
