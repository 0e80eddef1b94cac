"""Counts of what a reader has to hold: lines, files, circles, overrides, functions used once.

`python -m benchmarks.structure [ROOT]` prints them, for this checkout or another one.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules(root: Path) -> dict[str, ast.Module]:
    """Return the package's modules by their dotted names."""
    paths = sorted((root / "sparsefam").rglob("*.py"))
    names = (".".join(path.relative_to(root).with_suffix("").parts) for path in paths)
    trees = (ast.parse(path.read_text()) for path in paths)
    return {name.removesuffix(".__init__"): tree for name, tree in zip(names, trees, strict=True)}


def length(node: ast.AST) -> int:
    """Return the number of lines of a function."""
    first = min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))  # type: ignore[attr-defined]
    return int(node.end_lineno) - first + 1  # type: ignore[attr-defined]


def imports(name: str, tree: ast.Module, is_package: bool, known: set[str]) -> set[str]:
    """Return which modules of the package a module imports, also inside functions."""
    package = name if is_package else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            named = {f"{source}.{alias.name}" for alias in node.names}
            found |= (named & known) | ({source} & known if not named <= known else set())
    return found - {name}


def circle(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that import themselves by way of others."""

    def below(name: str) -> set[str]:
        seen: set[str] = set()
        todo = [*graph[name]]
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += graph[other]
        return seen

    return {name for name in graph if name in below(name)}


def is_abstract(f: ast.FunctionDef) -> bool:
    """Return whether a method only raises NotImplementedError, or has no body."""
    body = [
        x for x in f.body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))
    ]
    return (
        not body
        or "NotImplementedError" in ast.unparse(body[0])
        or any("abstract" in ast.unparse(x) for x in f.decorator_list)
    )


def overrides(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Find methods that replace a concrete method of a class of the package."""
    classes = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
        return {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}

    def ancestors(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in node.bases:
            parent = classes.get(ast.unparse(base).split("[")[0].split(".")[-1])
            if parent is not None and parent is not node:
                yield parent
                yield from ancestors(parent)

    for node in classes.values():
        for name in methods(node):
            if name.startswith("__"):
                continue
            found = [f for c in ancestors(node) if (f := methods(c).get(name)) is not None]
            if found and not is_abstract(found[0]):
                yield f"{node.name}.{name}"


def called_once(trees: dict[str, ast.Module]) -> dict[str, int]:
    """Return private functions and methods that are named in one place, with their lines."""
    every = [node for tree in trees.values() for node in ast.walk(tree)]
    used = Counter(node.id for node in every if isinstance(node, ast.Name))
    used += Counter(node.attr for node in every if isinstance(node, ast.Attribute))
    private = [
        node
        for node in every
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("_")
        and not node.name.startswith("__")
    ]
    defined = Counter(node.name for node in private)
    return {
        node.name: length(node)
        for node in private
        if used[node.name] == 1 and defined[node.name] == 1
    }


def main(root: Path) -> None:
    """Print the counts of a checkout."""
    trees = modules(root)
    paths = {
        path: len(path.read_text().splitlines()) for path in (root / "sparsefam").rglob("*.py")
    }
    largest = max(paths, key=paths.__getitem__)
    packages = {
        ".".join(path.parent.relative_to(root).parts)
        for path in paths
        if path.name == "__init__.py"
    }
    graph = {
        name: imports(name, tree, name in packages, set(trees)) for name, tree in trees.items()
    }
    once = called_once(trees)
    tests = [path.read_text().splitlines() for path in (root / "tests").rglob("*.py")]
    rows = {
        "package, lines / files": f"{sum(paths.values()):,} / {len(paths)}",
        "largest file": f"{paths[largest]:,} ({largest.relative_to(root)})",
        "files in a circle of imports": f"{len(circle(graph))}",
        "concrete methods overridden": f"{len(list(overrides(trees)))}",
        "private functions named in one place, lines": f"{sum(once.values()):,} ({len(once)})",
        "tests, lines": f"{sum(map(len, tests)):,}",
    }
    for name, value in rows.items():
        print(f"{name:46}{value}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
