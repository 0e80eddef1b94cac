"""The structure of the package, read from its imports: a picture and a map.

As an MkDocs hook it draws the picture into docs/architecture.md. `python docs/structure.py` prints
the map of files, and with `--write` puts it into CONTRIBUTING.md, as tests/test_layering.py checks.
"""

import ast
import html
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparsefam"
PICTURE = "<!-- picture: drawn by docs/structure.py when the site is built -->"
START, END = (
    "<!-- map: made by python docs/structure.py --write -->",
    "<!-- map: end -->",
)
# Pixels of a box, and between boxes.
WIDTH, HEIGHT, GAP_X, GAP_Y = 132, 40, 22, 46


def units() -> dict[str, list[Path]]:
    """Return the folders and single files of the package, with their modules."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name not in ("__init__", "compile"):
            found.setdefault(name, []).append(path)
    return found


def imports(path: Path) -> set[str]:
    """Return the units that a module imports, also inside functions."""
    depth, found = len(path.relative_to(PACKAGE).parts), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = (
                [node.module] if node.module else [alias.name for alias in node.names]
            )
            found |= {name.split(".")[0] for name in names}
    return found


def graph() -> dict[str, set[str]]:
    """Return which units each unit imports, without what follows from other imports."""
    every = units()
    direct = {
        name: set().union(*(imports(p) for p in paths)) & set(every) - {name}
        for name, paths in every.items()
    }

    def below(name: str) -> set[str]:
        return direct[name].union(*(below(other) for other in direct[name]))

    return {
        name: {x for x in used if not any(x in below(y) for y in used)}
        for name, used in direct.items()
    }


def levels() -> list[list[str]]:
    """Return the units in rows, each just above the first row that imports from it."""
    used = graph()

    def first(name: str) -> int:
        return 1 + max((first(other) for other in used[name]), default=-1)

    def last(name: str) -> int:
        users = [last(user) - 1 for user in used if name in used[user]]
        return min(users) if users else first(name)

    rows: dict[int, list[str]] = {}
    for name in used:
        rows.setdefault(last(name), []).append(name)
    return [rows[i] for i in sorted(rows)]


def picture() -> str:
    """Return the structure as SVG: what is imported stands above what imports it."""
    rows = levels()
    columns = max(len(row) for row in rows)
    full = columns * (WIDTH + GAP_X) - GAP_X
    places: dict[str, tuple[float, float]] = {}
    for i, row in enumerate(rows):
        left = (full - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for j, name in enumerate(row):
            places[name] = left + j * (WIDTH + GAP_X), i * (HEIGHT + GAP_Y)
    parts = []
    for name, used in graph().items():
        for other in sorted(used):
            (x1, y1), (x2, y2) = places[other], places[name]
            ends = f'x1="{x1 + WIDTH / 2}" y1="{y1 + HEIGHT}" x2="{x2 + WIDTH / 2}" y2="{y2}"'
            parts.append(f'<line {ends} stroke="currentColor" opacity="0.45"/>')
    for name, (x, y) in places.items():
        count = len([path for path in units()[name] if path.name != "__init__.py"])
        files = f"{count} files" if count > 1 else "1 file"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#e8eaf6" '
            f'stroke="#3949ab"/><text x="{x + WIDTH / 2}" y="{y + 17}" text-anchor="middle" '
            f'font-size="13" fill="#1a237e">{html.escape(name)}</text><text x="{x + WIDTH / 2}" '
            f'y="{y + 32}" text-anchor="middle" font-size="10" fill="#3949ab">{files}</text>'
        )
    size = f'viewBox="-4 -4 {full + 8} {len(rows) * (HEIGHT + GAP_Y) - GAP_Y + 8}"'
    label = "Folders and files of sparsefam; a line goes from what is imported down to what imports it"
    body = "".join(parts)
    return f'<svg {size} role="img" aria-label="{label}" style="max-width: 100%">{body}</svg>'


def file_map() -> str:
    """Return the files of the package with what each is about, as a code block."""
    lines = []
    every = units()
    for row in levels():
        for name in row:
            paths = [path for path in every[name] if path.name != "__init__.py"]
            if len(every[name]) > 1:
                lines.append(f"{name}/")
            for path in paths:
                below = (
                    path.relative_to(PACKAGE / name) if len(every[name]) > 1 else None
                )
                shown = path.name if below is None else f"  {below}"
                lines.append(f"{shown:<28}{summary(path)}")
    return "```\n" + "\n".join(lines) + "\n```"


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return text.split(". ")[0].rstrip(".:")


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Draw the picture where a page asks for it."""
    return markdown.replace(PICTURE, picture()) if PICTURE in markdown else markdown


def contributing(text: str) -> str:
    """Return CONTRIBUTING.md with the map of today."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{file_map()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    target = ROOT / "CONTRIBUTING.md"
    if sys.argv[1:] == ["--write"]:
        target.write_text(contributing(target.read_text()))
    else:
        print(file_map())
