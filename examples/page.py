"""Write a page of prose, tables and pictures: one HTML file and its PNGs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .look import LOOKS, Look

__all__ = ["Picture", "Section", "Table", "write_page"]


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
        text: What it shows, for readers who cannot see it.
        caption: What to notice, in HTML.
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
    """A section of the page, and its numbers for a program; a string is a paragraph in HTML."""

    key: str
    title: str
    parts: Sequence[str | Table | Picture]
    results: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> str:
        """Write the pictures and return the HTML."""
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(f"<p>{part}</p>")
            else:
                written.append(part.html() if isinstance(part, Table) else part.write(folder))
        title, parts = escape(self.title), "\n".join(written)
        return f'<section id="{self.key}"><h2>{title}</h2>\n{parts}\n</section>'


def write_page(folder: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write `index.html` and all pictures into a folder and return the page.

    Args:
        folder: Where to write; made if missing.
        title: Title of the page.
        lead: First paragraph, in HTML.
        sections: The sections.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "title": escape(title),
        "lead": lead,
        "links": "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections),
        "body": "\n".join(section.write(folder) for section in sections),
    }
    html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"<!--{name}-->", text)
    page = folder / "index.html"
    page.write_text(html, encoding="utf-8")
    return page
