"""The page: prose, tables and pictures in sections, written as one HTML file and its PNGs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .look import LOOKS, Look

__all__ = ["Picture", "Prose", "Section", "Table", "write_page"]

_SHELL = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Prose:
    """A paragraph, in HTML."""

    html: str

    def write(self, folder: Path) -> str:
        """The paragraph."""
        return f"<p>{self.html}</p>"


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column names the row. A cell may be long or empty."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def write(self, folder: Path) -> str:
        """The table under its caption, in a box of its own that scrolls on a narrow screen."""
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
    """A picture, drawn once for each look.

    Attributes:
        name: File name without its ending.
        draw: Draws it in a look.
        text: What it shows, for those who cannot see it.
        caption: What to see in it, in HTML.
    """

    name: str
    draw: Callable[[Look], Figure]
    text: str
    caption: str

    def save(self, path: Path, look: Look) -> None:
        """Draws one version into a PNG file."""
        with look.applied():
            figure = self.draw(look)
            figure.savefig(path)
            plt.close(figure)

    def write(self, folder: Path) -> str:
        """The files, and the element that chooses between them."""
        for look in LOOKS:
            self.save(folder / self._file(look), look)
        sources = "".join(
            f'<source media="{_media(look)}" srcset="{self._file(look)}">' for look in LOOKS
        )
        wide = self._file(Look())
        return (
            f'<figure><picture>{sources}<img src="{wide}" alt="{escape(self.text)}"></picture>'
            f"<figcaption>{self.caption}</figcaption></figure>"
        )

    def _file(self, look: Look) -> str:
        return f"{self.name}-{look.name}.png"


def _media(look: Look) -> str:
    width = "(max-width: 640px)" if look.narrow else "(min-width: 640.02px)"
    return f"{width} and (prefers-color-scheme: {'dark' if look.dark else 'light'})"


@dataclass(frozen=True)
class Section:
    """What a stage of the tour hands back: a part of the page, and its numbers for a program."""

    key: str
    title: str
    parts: Sequence[Prose | Table | Picture]
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> int:
        """How many pictures there are."""
        return sum(isinstance(part, Picture) for part in self.parts)

    def write(self, folder: Path, on_picture: Callable[[str], None]) -> str:
        """The section and the files of its pictures."""
        written = []
        for part in self.parts:
            written.append(part.write(folder))
            if isinstance(part, Picture):
                on_picture(part.name)
        title, parts = escape(self.title), "\n".join(written)
        return f'<section id="{escape(self.key)}"><h2>{title}</h2>\n{parts}\n</section>'


def write_page(
    folder: Path,
    title: str,
    lead: str,
    sections: Sequence[Section],
    on_picture: Callable[[str], None],
) -> Path:
    """Writes `index.html` and all pictures into a folder, which is made if missing.

    Args:
        folder: Where to write.
        title: Title of the page.
        lead: First paragraph, in HTML.
        sections: What follows.
        on_picture: Called with the name of each picture that is drawn.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    links = "".join(f'<a href="#{escape(s.key)}">{escape(s.title)}</a>' for s in sections)
    body = "\n".join(section.write(folder, on_picture) for section in sections)
    html = _SHELL.read_text(encoding="utf-8")
    for name, text in {"title": escape(title), "lead": lead, "links": links, "body": body}.items():
        html = html.replace(f"<!--{name}-->", text)
    page = folder / "index.html"
    page.write_text(html, encoding="utf-8")
    return page
