"""MkDocs hook: draw the gallery's pictures for every build."""

import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
_commands: list[str] = []


def on_startup(*, command: str, dirty: bool) -> None:
    """Remember whether this is `mkdocs build`; `serve` would draw at every change."""
    _commands[:] = [command]


def on_post_build(config: MkDocsConfig) -> None:
    """Replace the copies of docs/assets, which serve readers of the repository."""
    if _commands == ["build"]:
        assets = Path(config.site_dir).resolve() / "assets"
        draw = [sys.executable, "-m", "examples.gallery", "--out", str(assets)]
        subprocess.run(draw, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
