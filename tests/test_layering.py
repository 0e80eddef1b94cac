"""The structure of the package: which module imports which, and what an import costs."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[1]

# A module imports from its own layer and those above it in this list. A new module gets a place
# here first.
LAYERS = (
    {"_deprecation", "_numerics", "_types"},
    {"supports", "_feature_maps", "scores", "bases"},
    {"_choice"},
    {"plotting"},
    {"distributions"},
    {"_prediction_map"},
    {"_expectations"},
    {"attention", "losses"},
    {"estimators", "inference"},
    {"__init__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
NUMERICS_USES = ("numpy", "scipy", "sparsefam._numerics", "torch")
# What an import inside a function is for: packages that a user may not have, and their modules.
OPTIONAL = ("matplotlib", "sklearn", "sparsefam.plotting")
HEAVY = ("entmax", "matplotlib", "scipy.special", "scipy.stats", "sklearn", "triton")

IMPORT_SECONDS = 0.5

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "sparsefam").rglob("*.py"))
}


@cache
def imports(module: str, by_functions: bool = True) -> set[str]:
    """What a module imports, as dotted names, with or without what its functions do."""
    is_package = MODULES[module].name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(MODULES[module].read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"{source}.{alias.name}" for alias in node.names}
        elif by_functions or not isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


def in_package(found: set[str]) -> set[str]:
    """The modules of the package among imported names, which may be members of a module."""
    modules = set()
    for name in found:
        if name.split(".")[0] == "sparsefam":
            while name not in MODULES:
                name = name.rpartition(".")[0]
            modules.add(name)
    return modules


def is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def part(module: str) -> str:
    """The piece of the package a module belongs to: sparsefam._numerics.roots is in _numerics."""
    return [*module.split("."), "__init__"][1]


def fresh_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_imports_go_one_way() -> None:
    for module in MODULES:
        assert part(module) in RANK, f"{module} has no place in LAYERS"
        for name in in_package(imports(module)):
            assert RANK[part(name)] <= RANK[part(module)], f"{module} imports {name}"
        for name in imports(module) if part(module) == "_numerics" else ():
            known = is_under(name, NUMERICS_USES) or name.split(".")[0] in sys.stdlib_module_names
            assert known, f"{module} imports {name}"
        for name in imports(module) - imports(module, False):
            assert is_under(name, OPTIONAL), f"a function of {module} imports {name}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: in_package(imports(module)) - {module} for module in MODULES}
    # A package's own modules are what its __init__ is for.
    for module, found in graph.items():
        graph[module] = {x for x in found if not module.startswith(f"{x}.")}
    TopologicalSorter(graph).prepare()  # raises CycleError


# Packages that use densities as users do, and private names of Pyro, torch and Python there.
USERS = ("sparsefam.estimators", "sparsefam.inference")
FOREIGN = {"_cdata", "_get_trace", "_mask", "_replace"}


def private_names(tree: ast.Module) -> set[str]:
    """The private attributes that a module reads of others than its own classes."""
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)} | {"self", "cls"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            of = node.value
            if isinstance(of, ast.Call):
                of = of.func
            if not (isinstance(of, ast.Name) and of.id in {*own, "super"}):
                found.add(node.attr)
    return found


def test_estimators_and_inference_use_public_names_of_densities() -> None:
    for module, path in MODULES.items():
        if is_under(module, USERS):
            assert private_names(ast.parse(path.read_text())) <= FOREIGN, module
            engines = {x for x in imports(module) if is_under(x, ("sparsefam.distributions",))}
            assert not any("._" in name for name in engines), (module, engines)


CODE = """
import json, random, sys, time, warnings
import torch, pyro.distributions

def state():
    return {
        "validation": torch.distributions.Distribution._validate_args,
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "filters": repr(warnings.filters),
        "torch rng": torch.get_rng_state().tolist(),
        "python rng": repr(random.getstate()),
    }

before, start = state(), time.process_time()
import sparsefam
seconds, after = time.process_time() - start, state()
changed = [key for key in before if before[key] != after[key]]
print(json.dumps({"changed": changed, "seconds": seconds, "modules": sorted(sys.modules)}))
"""


def test_import_is_quick_and_leaves_the_process_alone() -> None:
    # Processor time, best of three: other work on the machine does not count against it.
    seconds = []
    while len(seconds) < 3 and min(seconds, default=IMPORT_SECONDS) >= IMPORT_SECONDS:
        report = json.loads(fresh_python(CODE))
        seconds.append(report["seconds"])
    assert min(seconds) < IMPORT_SECONDS, seconds
    assert report["changed"] == []
    assert [name for name in report["modules"] if is_under(name, HEAVY)] == []


def test_one_module_asks_torch_for_its_mode() -> None:
    asks = re.compile(
        r"is_(\w*compiling|exporting|tracing)\(|torch\._(C\.|dynamo|functorch|subclasses)|forward_ad"
    )
    modules = [name for name, path in MODULES.items() if asks.search(path.read_text())]
    assert modules == ["sparsefam._numerics.modes"]
