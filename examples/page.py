"""Write a page of prose, tables and pictures: one HTML file and its PNGs."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .look import LOOKS
from .training import show


class Page:
    """The file `index.html` in a folder, to which sections are added. Texts are HTML.

    Args:
        folder: Where to write; made if missing.
        title: Title of the page.
        lead: First paragraph.
    """

    def __init__(self, folder: Path, title: str, lead: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "index.html"
        self._head, self._links, self._body = {"title": escape(title), "lead": lead}, "", ""

    def section(self, key: str, title: str, takeaway: str) -> None:
        """Begin a section with one sentence that says what to take away."""
        self._links += f'<a href="#{key}">{escape(title)}</a>'
        self._body += f'<section id="{key}"><h2>{escape(title)}</h2>\n'
        self._body += f'<p class="lead">{escape(takeaway)}</p>\n'

    def text(self, *paragraphs: str) -> None:
        """Add paragraphs."""
        self._body += "".join(f"<p>{text}</p>\n" for text in paragraphs)

    def table(self, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table and add it; its first column names the row."""
        show(header, rows)
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in rows
        )
        self._body += (
            f'<figure><figcaption>{escape(caption)}</figcaption><div class="scroll"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>\n"
        )

    def picture(self, name: str, draw: Callable[[], Figure], text: str, caption: str) -> None:
        """Draw a picture for light and dark pages; `text` is for readers who cannot see it."""
        for look, settings in LOOKS.items():
            with mpl.rc_context(settings):
                figure = draw()
                figure.savefig(self.path.with_name(f"{name}-{look}.png"))
                plt.close(figure)
        self._body += (
            '<figure><div class="scroll"><picture>'
            f'<source media="(prefers-color-scheme: dark)" srcset="{name}-dark.png">'
            f'<img src="{name}-light.png" alt="{escape(text)}"></picture></div>'
            f"<figcaption>{caption}</figcaption></figure>\n"
        )

    def end(self) -> None:
        """End the section and write the page."""
        self._body += "</section>\n"
        html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        for name, text in {**self._head, "links": self._links, "body": self._body}.items():
            html = html.replace(f"<!--{name}-->", text)
        self.path.write_text(html, encoding="utf-8")
