"""README.md and docs/: examples run as they are printed, and nothing public is undocumented."""

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparsefam

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S)


def blocks(text: str) -> Iterator[str]:
    """The Python blocks of a page, each moved down to its own line for the traceback's sake."""
    for match in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, match.start("code")) + textwrap.dedent(match["code"])


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if page.exists() and any(blocks(page.read_text()))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(page.read_text()):
        exec(compile(code, str(page), "exec"), namespace)


def test_blocks_keep_their_lines() -> None:
    text = "Text\n```python\na = 1\n```\n- item\n\n    ```python title=x\n    b = a\n    ```\n"
    assert list(blocks(text)) == ["\n\na = 1\n", "\n\n\n\n\n\n\nb = a\n"]


def public_classes() -> list[type]:
    found = {}
    for info in pkgutil.walk_packages(sparsefam.__path__, "sparsefam."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == info.name:
                found[value.__qualname__] = value
    return [found[name] for name in sorted(found) if not name.startswith("_")]


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)
def test_members_are_documented(cls: type) -> None:
    """By themselves or by a class they override: ruff, which sees one file, cannot ask this."""
    methods = (property, classmethod, staticmethod)
    bare = [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (isinstance(member, methods) or inspect.isfunction(member))
        and not any(vars(base)[name].__doc__ for base in cls.__mro__ if name in vars(base))
    ]
    assert bare == []


def test_examples_are_set_as_code() -> None:
    """Under "Examples:" mkdocstrings sets a session as code, under "Example:" as a quotation."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "sparsefam").rglob("*.py"))
        if re.search(r"^ +Example:$", path.read_text(), re.M)
    ]
    assert found == []
