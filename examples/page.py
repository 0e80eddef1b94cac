"""Write a page of prose, tables and pictures: one HTML file and its PNGs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .look import LOOKS, Look


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """Return the table under its caption, in a box that scrolls on a narrow screen."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.header)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in self.rows
        )
        return (
            f'<figure><figcaption>{escape(self.caption)}</figcaption><div class="scroll"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
        )


@dataclass(frozen=True)
class Picture:
    """A picture, drawn once for light pages and once for dark ones.

    Attributes:
        name: File name without its ending.
        draw: Draws it in a look.
        text: Description for readers who cannot see it.
        caption: Explanation below the picture, in HTML.
    """

    name: str
    draw: Callable[[Look], Figure]
    text: str
    caption: str = ""

    def save(self, path: Path, look: Look) -> None:
        """Draw one version into a PNG file."""
        with look.applied():
            figure = self.draw(look)
            figure.savefig(path)
            plt.close(figure)

    def write(self, folder: Path) -> str:
        """Write the files and return the HTML that chooses between them."""
        for look in LOOKS:
            self.save(folder / f"{self.name}-{look.name}.png", look)
        return (
            '<figure><div class="scroll"><picture>'
            f'<source media="(prefers-color-scheme: dark)" srcset="{self.name}-dark.png">'
            f'<img src="{self.name}-light.png" alt="{escape(self.text)}"></picture></div>'
            f"<figcaption>{self.caption}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Section:
    """A section of the page and its numbers; a string is a paragraph in HTML."""

    key: str
    title: str
    parts: Sequence[str | Table | Picture]
    results: dict[str, Any] = field(default_factory=dict)


class Page:
    """The file `index.html` in a folder, complete after every section.

    Args:
        folder: Where to write; made if missing.
        title: Title of the page.
        lead: First paragraph, in HTML.
    """

    def __init__(self, folder: Path, title: str, lead: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "index.html"
        self._parts = {"title": escape(title), "lead": lead, "links": "", "body": ""}

    def add(self, section: Section) -> None:
        """Draw the pictures of a section and write the page with it."""
        written = []
        for part in section.parts:
            if isinstance(part, str):
                written.append(f"<p>{part}</p>")
            else:
                is_table = isinstance(part, Table)
                written.append(part.html() if is_table else part.write(self.path.parent))
        title, body = escape(section.title), "\n".join(written)
        self._parts["links"] += f'<a href="#{section.key}">{title}</a>'
        self._parts["body"] += f'<section id="{section.key}"><h2>{title}</h2>\n{body}\n</section>\n'
        html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        for name, text in self._parts.items():
            html = html.replace(f"<!--{name}-->", text)
        self.path.write_text(html, encoding="utf-8")
