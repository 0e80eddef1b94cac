"""README.md and docs/: examples run as they are printed, and nothing public is undocumented."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import json
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparsefam
from benchmarks import readme
from examples.common import stale

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\[(sparsefam[\w.]+)\]")
# Modules of functions and classes that users meet, besides those that sparsefam itself names.
MODULES = ("sparsefam", "sparsefam.distributions", "sparsefam.estimators")
BLOCK = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S)


def blocks(text: str) -> Iterator[str]:
    """The Python blocks of a page, each moved down to its own line for the traceback's sake."""
    for match in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, match.start("code")) + textwrap.dedent(match["code"])


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if page.exists() and any(blocks(page.read_text()))]


# Pages that take long.
LONG = (
    *("docs/inference.md", "docs/recipes.md", "docs/start/pyro.md"),
    *("docs/tobit.md", "docs/tutorials/moving-supports.md"),
)


def timed_pages() -> list[Any]:
    names = {page: str(page.relative_to(ROOT)) for page in pages()}
    slow = {True: [pytest.mark.slow], False: []}
    return [pytest.param(x, id=name, marks=slow[name in LONG]) for x, name in names.items()]


@pytest.mark.parametrize("page", timed_pages())
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(page.read_text()):
        exec(compile(code, str(page), "exec"), namespace)
    if page.name == "density.md":  # whose picture needs no training and no chains
        assert stale(namespace["figure"], ROOT / "docs/assets/start-density.png") == []


def script(name: str) -> ModuleType:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notebooks_hold_the_blocks_of_their_pages() -> None:
    pytest.importorskip("mkdocs")
    notebooks = script("notebooks")
    for page in notebooks.PAGES:
        text = page.read_text()
        cells = json.loads(notebooks.notebook(text))["cells"]
        code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        assert code == [block.strip() for block in blocks(text)]
        words = "".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
        assert words.startswith("# ") and ".md" not in words and "![" not in words


def resolve(path: str) -> Any:
    """The class or function at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_names() -> Iterator[tuple[str, Any]]:
    parts = [f"sparsefam.{n}" for n in sparsefam.__all__ if inspect.ismodule(getattr(sparsefam, n))]
    for module in map(importlib.import_module, [*MODULES, *parts]):
        for name in module.__all__:
            if not inspect.ismodule(value := getattr(module, name)):
                yield f"{module.__name__}.{name}", value


def test_public_names_have_a_place() -> None:
    """In the list of names, whose links the build of the site checks; constants by name only."""
    text = (ROOT / "docs/api/index.md").read_text()
    linked = [resolve(path) for path in LINK.findall(text)]
    missing = [
        path
        for path, value in public_names()
        if not any(value is x for x in linked)
        and f"`{path.removeprefix('sparsefam.')}`" not in text
    ]
    assert missing == []


def dotted(node: ast.AST) -> str:
    """The path of a name of sparsefam, or nothing."""
    if isinstance(node, ast.Attribute):
        path = dotted(node.value)
        return path and f"{path}.{node.attr}"
    return "sparsefam" if isinstance(node, ast.Name) and node.id in ("sf", "sparsefam") else ""


def test_examples_use_listed_names() -> None:
    """Names that have a place by the test above, in pages and in examples/."""
    listed = {path for path, _ in public_names()}
    modules = {"sparsefam", *(path.rpartition(".")[0] for path in listed)}
    sources = [block for page in pages() for block in blocks(page.read_text())]
    sources += [path.read_text() for path in sorted(ROOT.glob("examples/*.py"))]
    used = set()
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(code)) for code in sources):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparsefam"):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            used |= {a.name for a in node.names if a.name.startswith("sparsefam")}
        elif dotted(node).rpartition(".")[0] in modules:
            used.add(dotted(node))
    assert len(used) > 50 and used - listed - modules == {"sparsefam.__version__"}


def test_code_fits_the_page() -> None:
    """A page in a window of 1280 pixels shows 88 letters of a line."""
    for page in pages():
        lines = "\n".join(blocks(page.read_text())).splitlines()
        assert max(map(len, lines)) <= 88, page


def test_the_changelog_begins_with_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.M)[0] == sparsefam.__version__


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    for link in ("".join(pair) for pair in links):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            assert (ROOT / path).is_file(), link
            titles = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.M) if anchor else []
            slugs = [re.sub(r"[^\w\- ]", "", x.lower()).replace(" ", "-") for x in titles]
            assert not anchor or anchor in slugs, link


def test_numbers_of_the_readme_are_those_of_the_tables() -> None:
    """Made by `python -m benchmarks.readme --write`."""
    assert readme.measured().markdown() in (ROOT / "README.md").read_text()


def test_numbers_and_references_of_the_paper_exist() -> None:
    """Those of README.md and of docs/networks.md, and those of paper.bib."""
    paper, bib = ((ROOT / "paper" / name).read_text() for name in ("paper.md", "paper.bib"))
    results = readme.measured().markdown()
    networks, _, _ = (ROOT / "docs/networks.md").read_text().partition("the sampling of training:")
    for number in ("0.06%", "9.40%", "4e-7", "2.0", "30.7", "46", "12", "26"):
        assert number in paper and number in results, number
    rows = re.findall(r"^\| ([\w +-]+) \| ([\d.]+) \|$", paper, re.M)
    assert len(rows) == 10
    for model, mean in rows:
        assert re.search(rf"^\| {re.escape(model)} \|.* \| {mean} \|$", networks, re.M), model
    cited = re.findall(r"@(\w+)", paper)
    assert set(cited) == set(re.findall(r"^@\w+\{(\w+),", bib, re.M))


@pytest.mark.slow
@pytest.mark.parametrize("pair", readme.NEIGHBORS, ids=lambda pair: pair.what)
def test_lines_of_other_libraries_go_wrong_as_the_readme_says(pair: readme.Pair) -> None:
    pytest.importorskip(pair.package, exc_type=ImportError)
    assert f"| {' | '.join(readme.row(pair))} |" in (ROOT / "README.md").read_text()


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


# The limit of all words, without tables that commands write.
WORDS = 26_000


def test_pages_are_in_plain_english() -> None:
    words = script("words")
    pages = {str(page.relative_to(ROOT)): page.read_text() for page in words.pages()}
    assert sum(map(words.words, pages.values())) <= WORDS
    assert {name: found for name, text in pages.items() if (found := words.faults(text))} == {}
    assert {name: words.undefined(pages[name]) for name in words.FIRST} == {
        name: [] for name in words.FIRST
    }


def test_contributing_has_the_map_of_files() -> None:
    """Made by `python docs/structure.py --write`."""
    structure, text = script("structure"), (ROOT / "CONTRIBUTING.md").read_text()
    assert text == structure.contributing(text)
    assert structure.picture().startswith("<svg")
