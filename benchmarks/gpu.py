"""Correctness, waiting and speed on a GPU, and without one the work that calls would give it.

`--device cuda` runs three parts: *right* compares all functions of all families, and layers, with
the CPU's float64; *waiting* forbids calls to wait for the device; *fast* times them beside rivals.
Each result is added to a file of JSON lines at once. `--device cpu --small` tries the command
itself. `--count` counts the operations that calls start on the meta device; `--write` puts them
into docs/gpu.md.
"""

import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from cases import BATCHES
from functions import arguments, function, functions, gradients
from layers import KINDS, data, make_layer
from test_battery_devices import OFTEN, READS_VALUES
from test_battery_precision import LOGARITHMS, error
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode

import sparsefam as sf
from sparsefam._numerics import validation
from sparsefam.attention import ContinuousAttention, LearnedAlpha, RidgeRegression
from sparsefam.bases import GaussianRBF

from . import rivals
from .accuracy import LIMITS
from .cases import kernel_case
from .harness import Table, parser, run

Call = Callable[[], Tensor]
# Relative errors of layers and of their gradients, which a regression increases.
LAYER_LIMITS = {torch.float64: (1e-9, 1e-7), torch.float32: (1e-4, 1e-3)}
CHANNELS, HEADS = 64, 4
SCORES: dict[str, dict[str, Any]] = {
    "quadratic": {},
    "quadratic, α = 1": {"alpha": 1.0},
    "quadratic, learned α": {"alpha": LearnedAlpha(HEADS)},
    "local": {"score": "local"},
    "mixture of 8": {"score": "mixture"},
    "moments": {"score": "moments"},
    "content": {"score": "content"},
    "kernel": {"score": "kernel"},
}
# Scores whose time is quadratic in the length, and the length up to which they are timed.
QUADRATIC_TIME, LONGEST = ("moments",), 2**13


# Counting


class Operations(TorchDispatchMode):
    """Counts operations that a device has to be told to start, and what they read and write.

    An operation of torch may start several kernels: numbers are bounds from below.
    """

    _FREE = ("_unsafe_view", "lift_fresh", "empty", "empty_strided", "empty_like", "new_empty")

    def __init__(self) -> None:
        super().__init__()
        self.count, self.bytes, self.bytes_of_float64 = 0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        written = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, Tensor)]
        name = func._schema.name.split("::")[1]
        if written and not func.is_view and name not in self._FREE:
            self.count += 1
            read = [x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, Tensor)]
            for x in (*read, *written):
                # Numbers that are expanded are read once.
                sizes = (n for n, step in zip(x.shape, x.stride(), strict=True) if step)
                size = math.prod(sizes) * x.element_size()
                self.bytes += size
                self.bytes_of_float64 += size * (x.dtype == torch.float64)
        return result


class Checks:
    """Counts checks of arguments, each of which waits for a device."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *tensors: Tensor) -> bool:
        self.count += any(x.is_meta for x in tensors)
        return False


def counts(name: str, build: Callable[[], Call]) -> list[str]:
    """Return a row of the table of a call, forward and backward, on the meta device."""
    call = build()
    call()  # makes constants
    checks, forward, backward = Checks(), Operations(), Operations()
    with patch.object(validation, "values_exist", checks), forward:
        value = call()
    with backward:
        value.sum().backward()
    total = forward.bytes + backward.bytes
    share = (forward.bytes_of_float64 + backward.bytes_of_float64) / total
    numbers = (forward.count, backward.count, f"{total / 2**20:.3g}", f"{share:.0%}", checks.count)
    return [name, *map(str, numbers)]


def count_table(only: Sequence[str] = ("",)) -> Table:
    """Count what layers, expectations and densities start."""
    meta = torch.device("meta")
    calls = {
        f"layer, {name}": partial(layer_call, options, 256, 16, meta)
        for name, options in SCORES.items()
    }
    calls |= {
        f"expect 4096 x 128, {name}": partial(line_call, name, 4096, 128, meta) for name in LINE
    }
    calls["expect 1024 x 196, 2-D"] = partial(plane_call, 1024, 196, meta)
    for name in ("log_prob", "rsample"):
        calls[f"{name}, 4096 truncated parabolas"] = partial(density_call, name, 4096, meta)
    names = [name for name in calls if any(text in name for text in only)]
    with patch.object(Distribution, "_validate_args", False):
        rows = [counts(name, calls[name]) for name in names]
    title = (
        "Operations started without validation, forward and backward; megabytes that they read and "
        "write if each runs by itself, and the share of float64; checks that wait for a value. "
        f"Layers: 16 sequences of 256 positions, {CHANNELS} channels, {HEADS} heads, 64 functions, "
        "float32."
    )
    header = ["call", "forward", "backward", "MB", "float64", "checks that wait"]
    return Table(title, header, rows)


# Calls


def _leaf(device: torch.device, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return random numbers between two ends that require grad."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return (low + (high - low) * x).to(device).requires_grad_()


def layer_call(
    options: dict[str, Any], length: int, batch: int, device: torch.device, functions: int = 64
) -> Call:
    """Return a call of a layer with a score."""
    regression = RidgeRegression(GaussianRBF.grid(functions, 1.6 / functions), validate_args=False)
    own = {"num_heads": HEADS, "batch_first": True, **copy.deepcopy(options)}
    layer = ContinuousAttention(CHANNELS, regression=regression, **own).to(device)
    x = _leaf(device, batch, length, CHANNELS, low=-2, high=2)
    return lambda: layer(x, x, x, need_weights=False)[0]


def discrete_call(length: int, batch: int, device: torch.device) -> Call:
    """Return a call of the layer of torch, which has a fused kernel."""
    layer = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True, device=device)
    x = _leaf(device, batch, length, CHANNELS, low=-2, high=2)
    return lambda: layer(x, x, x, need_weights=False)[0]


LINE: dict[str, Callable[[Tensor, Tensor], sf.SparseDistribution]] = {
    "α = 2": sf.TruncatedParabola,
    "α = 3/2": lambda loc, scale: sf.BetaGaussian(loc, scale, 1.5),
    "α = 1.7": lambda loc, scale: sf.BetaGaussian(loc, scale, 1.7),
    "triangular": sf.Triangular,
    "Laplace": sf.Laplace,
}


def line_call(
    family: str, densities: int, functions: int, device: torch.device, rival: bool = False
) -> Call:
    """Return expectations in 1-D, ours or by the trapezoid rule on supports."""
    leaves = _leaf(device, densities), _leaf(device, densities, low=0.1, high=0.5)
    psi = GaussianRBF.grid(functions, 0.02).to(device)
    if rival:
        return lambda: rivals.trapezoid_on_supports(LINE[family], *leaves, psi)
    return lambda: LINE[family](*leaves).expect(psi)


def plane_call(densities: int, functions: int, device: torch.device, rival: bool = False) -> Call:
    """Return expectations in 2-D, ours or by the polar rule."""
    loc, axes = _leaf(device, densities, 2), _leaf(device, densities, 2, low=0.1, high=0.5)
    psi: Any = GaussianRBF.grid(functions, 0.1, ndim=2).to(device)
    if rival:
        return lambda: rivals.polar_rule(loc, axes.diag_embed(), psi.centers, psi.widths[0])
    return lambda: sf.TruncatedParaboloid(loc, axes.diag_embed()).expect(psi)


def kernel_call(densities: int, device: torch.device, rival: bool = False) -> Call:
    """Return expectations of kernel densities, ours or by products of matrices."""
    case = kernel_case((densities,), 0.05, 3.0, (0.1, 0.5)).to(torch.float32)
    tensors = {k: x.to(device) for k, x in vars(case).items() if isinstance(x, Tensor)}
    case = replace(case, **tensors)
    weights, fixed = case.weights.requires_grad_(), (case.bandwidth, case.centers, case.widths)
    if rival:
        with device:
            rule = rivals.kernel_products(case.points, *fixed, 2.0)
        return lambda: rule(weights)
    density, basis = case.builder(2.0, inside=True, share=True), case.basis
    return lambda: density(weights).expect(basis)


def density_call(name: str, count: int, device: torch.device) -> Call:
    """Return a call of a method of truncated parabolas."""
    leaves = _leaf(device, count), _leaf(device, count, low=0.1, high=0.5)
    asked = () if name == "rsample" else (_leaf(device, count),)
    return lambda: getattr(sf.TruncatedParabola(*leaves), name)(*asked)


# Running


class Results:
    """Results, each added to a file at once; a failure is a result, too."""

    def __init__(self, path: Path) -> None:
        self.path, self.failures, self.end = path, list[str](), math.inf

    def add(self, part: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure, unless no time is left; a result with `failed` or an exception is a failure."""
        start, result = time.monotonic(), dict[str, Any]()
        try:
            result = measure() if start < self.end else {"left out": "no time"}
        except Exception as caught:  # noqa: BLE001 what follows must run
            result = {"failed": f"{type(caught).__name__}: {str(caught)[:300]}"}
        if "failed" in result:
            self.failures.append(f"{part}, {name}: {result['failed']}")
        line = {"part": part, "name": name, **result, "took": round(time.monotonic() - start, 2)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)


def _judged(values: Sequence[float], limits: Sequence[float]) -> dict[str, Any]:
    shown: dict[str, Any] = {"error": f"{values[0]:.1e}", "of gradients": f"{values[1]:.1e}"}
    met = all(value <= limit for value, limit in zip(values, limits, strict=True))
    return shown if met else {**shown, "failed": f"limits {limits[0]:.0e}, {limits[1]:.0e}"}


def right(results: Results, device: torch.device, small: bool) -> None:
    """Compare functions of all families, and layers, with the CPU's float64."""

    def family(case: Any, name: str, dtype: torch.dtype) -> dict[str, Any]:
        evaluate, exact = function(case, name), arguments(case, name)
        inputs = [x.detach().to(device, dtype).requires_grad_() for x in exact]
        expected, found = evaluate(*exact), evaluate(*inputs)
        if found.device.type != device.type:
            return {"failed": f"on {found.device}"}
        finite, floor = expected.isfinite(), float(name in LOGARITHMS) or 1e-20
        # Where nodes are shared, a derivative that is zero is a sum that cancels.
        least = expected.abs().max().item() if case.family.signed and expected.numel() else 1e-20
        pairs = zip(gradients(found, (*inputs,)), gradients(expected, exact), strict=True)
        slopes, due = (torch.cat([x.cpu().flatten() for x in y]) for y in zip(*pairs, strict=True))
        errors = error(found.cpu()[finite], expected[finite], floor), error(slopes, due, least)
        return _judged(errors, LIMITS[dtype])

    def layer(score: str, combine: bool, dtype: torch.dtype, rounded: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        exact, inputs = make_layer(score, combine, 2.0), data()
        moved = copy.deepcopy(exact).to(device, torch.float32 if rounded else dtype)
        autocast = torch.autocast(device.type, dtype) if rounded else nullcontext()
        outputs, slopes = [], []
        for module, mode in ((exact, nullcontext()), (moved, autocast)):
            like = module.out_proj.weight
            leaves = [x.detach().to(like).requires_grad_() for x in inputs[:3]]
            with mode:
                context = module(*leaves, inputs[3].to(like))[0]
            outputs.append(context.detach().double().cpu())
            asked = [*leaves, *(x for x in module.parameters() if x.requires_grad)]
            grads = torch.autograd.grad(context.float().sum(), asked, allow_unused=True)
            slopes.append(torch.cat([x.double().cpu().flatten() for x in grads if x is not None]))
        rounding = torch.finfo(dtype).eps
        limits = (8 * rounding, 32 * rounding) if rounded else LAYER_LIMITS[dtype]
        return _judged((error(*outputs[::-1]), error(*slopes[::-1])), limits)

    for case in BATCHES[:: 8 if small else 1]:
        for name in functions(case):
            if small and name not in OFTEN:
                continue
            for dtype in LIMITS:
                label = f"{case.name}: {name}, {dtype}"
                results.add("right", label, partial(family, case, name, dtype))
    half = (torch.bfloat16,) if small else (torch.bfloat16, torch.float16)
    for score, combine in KINDS[:: 4 if small else 1]:
        for dtype in (*LIMITS, *half):
            label = f"layer, {score}{', combine' * combine}, {dtype}"
            results.add("right", label, partial(layer, score, combine, dtype, dtype in half))


@contextmanager
def _no_waiting(device: torch.device) -> Iterator[None]:
    """Raise an error where a call waits for the device."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def waiting(results: Results, device: torch.device, small: bool) -> None:
    """Call functions that must not wait for the device, eager and compiled."""

    def attempt(
        build: Callable[[], Call], known: bool = False, compiled: bool = False
    ) -> dict[str, Any]:
        call = torch.compile(build(), fullgraph=True) if compiled else build()
        call().sum().backward()  # makes constants, and compiles
        try:
            with _no_waiting(device):
                call().sum().backward()
        except RuntimeError as caught:
            return {"waits" if known else "failed": str(caught)[:300]}
        return {}

    def asked(case: Any, name: str) -> Call:
        evaluate = function(case, name)
        inputs = [x.detach().to(device).requires_grad_() for x in arguments(case, name)]
        return lambda: evaluate(*inputs)

    for case in BATCHES[:: 8 if small else 1]:
        family = case.name.removesuffix("-batch")
        for name in sorted(set(OFTEN) & set(functions(case))):
            known = family.startswith("Kernel") or name in READS_VALUES.get(family, ())
            build = partial(asked, case, name)
            results.add("waiting", f"{case.name}: {name}", partial(attempt, build, known))
    calls = {f"layer, {k}": partial(layer_call, x, 64, 2, device, 16) for k, x in SCORES.items()}
    for name, build in calls.items():
        results.add("waiting", name, partial(attempt, build))
    graphs = {
        "log_prob": partial(density_call, "log_prob", 64, device),
        "expect": partial(line_call, "α = 2", 64, 128, device),
        **{name: calls[name] for name in ("layer, quadratic", "layer, local")},
    }
    for name in list(graphs)[: 1 if small else None]:
        results.add("waiting", f"{name}, compiled", partial(attempt, graphs[name], compiled=True))


def _seconds(call: Callable[[], object], device: torch.device, budget: float = 0.4) -> float:
    """Return the median time of a call, after two calls: at most 20 in a budget of seconds."""
    times, end = list[float](), math.inf
    for i in range(22):
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
        else:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        end = time.perf_counter() + budget if i == 1 else end
        if i > 1 and time.perf_counter() > end:
            break
    return statistics.median(times[2:])


def fast(results: Results, device: torch.device, small: bool) -> None:
    """Time calls, forward and backward, and what they use of the device."""
    block = torch.empty(2**20 if small else 2**28, device=device)
    bandwidth = 2 * block.numel() * block.element_size() / _seconds(block.clone, device)
    results.add("fast", "copy", lambda: {"GB/s": round(bandwidth / 1e9)})
    del block

    def measure(build: Callable[[], Call], half: bool = False) -> dict[str, Any]:
        call = build()

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                value = call()
            value.float().sum().backward()

        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = _seconds(step, device)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        with Operations() as done:
            step()
        share = done.bytes / seconds / bandwidth
        shown = {"ms": round(1e3 * seconds, 3), "MB": round(peak / 2**20), "started": done.count}
        return {**shown, "of bandwidth": f"{share:.0%}"}

    sizes = (64, 16, 16) if small else (4096, 1024, 6400)
    for rival in (False, True):
        ending = ", rival" * rival
        # The rule on supports holds a thousand nodes for each pair.
        few = max(1, sizes[0] // 32) if rival else sizes[0]
        calls = {
            f"expect {few} x 128": partial(line_call, "α = 2", few, 128, device, rival),
            f"expect {sizes[1]} x 196, 2-D": partial(plane_call, sizes[1], 196, device, rival),
            f"kernel {sizes[2]} x 64": partial(kernel_call, sizes[2], device, rival),
        }
        for name, build in calls.items():
            results.add("fast", name + ending, partial(measure, build))
    count = 10**3 if small else 10**6
    for name in ("log_prob", "rsample", "icdf"):
        build = partial(density_call, name, count, device)
        results.add("fast", f"{name} of {count:,}", partial(measure, build))
    for length in (64,) if small else (2**8, 2**10, 2**13, 2**16):
        batch = 1 if small else max(1, 2**14 // length)
        layers = {"torch": partial(discrete_call, length, batch, device)}
        for name, options in SCORES.items():
            if name not in QUADRATIC_TIME or length <= LONGEST:
                layers[name] = partial(layer_call, options, length, batch, device)
        for half, (name, build) in product((False, True), layers.items()):
            label = f"layer, {name}, L = {length}{', bfloat16' * half}"
            results.add("fast", label, partial(measure, build, half))


# The parts, and the share of the time at which each ends.
PARTS = {"right": (right, 0.4), "waiting": (waiting, 0.6), "fast": (fast, 1.0)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if something failed."""
    options = parser(__doc__, write=True, only=True)
    options.add_argument("--count", action="store_true", help="count operations, without a device")
    options.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    options.add_argument("--small", action="store_true", help="a few small calls of each part")
    options.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    text = "after which calls are left out"
    options.add_argument("--minutes", type=float, default=7.5, help=text)
    options.add_argument("--results", type=Path, default=Path("gpu.jsonl"))
    chosen = options.parse_args(arguments)
    if chosen.count or chosen.write:
        make = {"launches": lambda: [count_table(chosen.only)]}
        return run("gpu --count", make, chosen.write, "gpu.md")
    results, start = Results(chosen.results), time.monotonic()
    with patch.object(Distribution, "_validate_args", False):
        for part in chosen.part:
            run_part, share = PARTS[part]
            results.end = start + 60 * chosen.minutes * share
            run_part(results, chosen.device, chosen.small)
    print(*results.failures or ["no failure"], sep="\n")
    return int(bool(results.failures))


if __name__ == "__main__":
    sys.exit(main())
