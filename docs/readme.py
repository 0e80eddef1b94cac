"""MkDocs hook: README.md is the start page of the site, with the version in the header."""

import re
from pathlib import Path

import sparsefam
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

README = Path(__file__).parents[1] / "README.md"
PICTURE = re.compile(
    r'<picture>.*?docs/([\w/-]+)-light\.png" alt="([^"]*)".*?</picture>', re.S
)


def start_page(text: str) -> str:
    """Return README.md with links and pictures as pages in docs/ have them."""
    # The style sheet shows the wide or the narrow ones.
    parts = [
        rf"![\2](\1{narrow}-{tone}.png#only-{tone}){{ {kind} }}"
        for narrow, kind in (("", ".wide"), ("-narrow", ".narrow"))
        for tone in ("light", "dark")
    ]
    text = PICTURE.sub("\n".join(parts), text).replace("](docs/", "](")
    # Files outside of docs/ are not on the site.
    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]*\.cff)\)", r"\1", text)


def on_config(config: MkDocsConfig) -> None:
    """Show the version beside the name."""
    config.site_name = f"{config.site_name} {sparsefam.__version__}"


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the start page."""
    files.append(
        File.generated(config, "index.md", content=start_page(README.read_text()))
    )
