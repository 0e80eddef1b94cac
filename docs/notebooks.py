"""Pages as notebooks, and their pictures: docs/start, and one tutorial.

As an MkDocs hook it adds to the site a notebook for each of these pages. `python
docs/notebooks.py` runs the pages and keeps the pictures that they save in docs/assets.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
PAGES = [*sorted(DOCS.glob("start/*.md")), DOCS / "tutorials" / "moving-supports.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)


def cells(page: str) -> list[tuple[str, str]]:
    """Return the kinds and texts of a page's cells, without pictures, which the code draws."""
    parts = BLOCK.split(re.sub(r"^!\[[^\]]*\]\([^)]*\)\n+", "", page, flags=re.M))
    # Links lead nowhere from a notebook, except to other sites.
    parts[::2] = [
        re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text) for text in parts[::2]
    ]
    kinds = ("markdown", "code")
    return [
        (kinds[i % 2], text.strip()) for i, text in enumerate(parts) if text.strip()
    ]


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook, version 4.5, that has not been run."""
    made: list[dict[str, Any]] = []
    for kind, text in cells(page):
        cell = {"id": str(len(made)), "cell_type": kind, "metadata": {}, "source": text}
        made.append(
            cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the notebooks, to which the pages link."""
    for path in PAGES:
        name = path.relative_to(DOCS).with_suffix(".ipynb").as_posix()
        files.append(File.generated(config, name, content=notebook(path.read_text())))
    return files


def on_page_markdown(markdown: str, *, page: Page, **context: Any) -> str:
    """Link to the notebook below the title."""
    path = DOCS / page.file.src_uri
    if path not in PAGES:
        return markdown
    title, _, rest = markdown.partition("\n")
    return f"{title}\n\n[Download this page as a notebook]({path.stem}.ipynb)\n{rest}"


if __name__ == "__main__":
    mpl.use("Agg")
    mpl.rcParams["savefig.dpi"] = 160
    os.chdir(DOCS / "assets")
    sys.path.insert(0, str(DOCS.parent))
    from examples.common import shown

    def save(figure: Figure, path: str, write: Any = Figure.savefig) -> None:
        """Save with what is shown, for a test to compare."""
        write(figure, path, metadata={"Description": json.dumps(shown(figure))})

    Figure.savefig = save  # type: ignore[method-assign]
    for path in PAGES:
        print(path.name)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for code in BLOCK.findall(path.read_text()):
            exec(compile(code, str(path), "exec"), namespace)
