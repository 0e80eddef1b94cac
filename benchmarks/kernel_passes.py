"""Where the time of kernel families goes: what their arithmetic must do, counted as it runs.

`python -m benchmarks.kernel_passes` counts, in a forward and a backward pass of the densities of
`kernel_speed`, the products of matrices and the passes over tensors with a number for every density
and node; `--write` puts that into docs/benchmarks.md.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .kernel_speed import DENSITIES
from .kernel_workload import METHODS, KernelDensity, KernelWorkload, kernel_workload
from .report import Table, write_section

__all__ = ["Passes", "main", "passes"]

_COMMAND = "python -m benchmarks.kernel_passes --write"
_TITLE = (
    "One thread, 6400 densities. Products: those of scores, expectations and their gradients. "
    "Passes: other operations on tensors with a number for every density and node. Rest: "
    "operations on less. Bound: products at the rate of a large one plus all bytes at that of a "
    "sum of two such tensors, both measured in the same run."
)
_HEADER = ["density", "method", "nodes", "Gflop", "ms", "passes", "GB", "ms", "rest", "GB", "ms"]
_ROUNDS = 7


class Passes(TorchDispatchMode):
    """Counts what runs inside.

    Attributes:
        flops: Of products of matrices with one of `rows` rows or columns: those of all densities.
        large: Other operations on tensors of at least `least` numbers, and their bytes.
        small: The other ones, and theirs.
    """

    def __init__(self, least: int, rows: int) -> None:
        super().__init__()
        self._least, self._rows = least, rows
        self.flops, self.large, self.small = 0, [0, 0], [0, 0]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, found)) if _is_data(x)]
        if func.is_view or not tensors:
            return found
        largest = max(x.numel() for x in tensors)
        is_product = func is torch.ops.aten.mm.default
        if is_product and self._rows in (*args[0].shape, *args[1].shape):
            self.flops += 2 * args[0].numel() * args[1].shape[1]
        else:
            count = self.large if largest >= self._least else self.small
            count[0] += 1
            count[1] += sum(x.numel() * x.element_size() for x in tensors)
        return found


def _is_data(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def passes(density: KernelDensity, method: str, work: KernelWorkload) -> tuple[int, Passes]:
    """The nodes, and what a forward and a backward pass do."""
    count = work.products.kernel.shape[1]
    if method == "sparsefam":
        count = len(work.panels(density).nodes)
    rows = work.weights.shape[:-1].numel()
    with Passes(count * rows, rows) as found:
        METHODS[method](density, work)
    return count, found


def _best(function: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def _rates(work: KernelWorkload) -> tuple[float, float]:
    """Operations and bytes in a second."""
    weights = work.weights.flatten(0, -2)
    square = torch.randn(weights.shape[1], weights.shape[1])
    other = torch.randn_like(weights)
    flops = 2 * weights.numel() * len(square) / _best(lambda: weights @ square)
    return flops, 12 * weights.numel() / _best(lambda: weights + other)


def passes_table(work: KernelWorkload) -> Table:
    """All densities, and the rule as products for the first of each alpha."""
    flop_rate, byte_rate = _rates(work)
    rows: list[list[str]] = []
    for density in DENSITIES:
        methods = ["sparsefam"]
        if not density.inside:
            methods.append("trapezoid, products")
        for method in methods:
            count, found = passes(density, method, work)
            seconds = _best(lambda d=density, m=method: METHODS[m](d, work))  # type: ignore[misc]
            product = found.flops / flop_rate
            parts = [f"{found.flops / 1e9:.2f}", f"{1e3 * product:.1f}"]
            bound = product
            for number, size in (found.large, found.small):
                bound += size / byte_rate
                parts += [str(number), f"{size / 1e9:.2f}", f"{1e3 * size / byte_rate:.1f}"]
            ends = [f"{1e3 * bound:.0f}", f"{1e3 * seconds:.0f}", f"{seconds / bound:.1f}"]
            rows.append([density.name, method, str(count), *parts, *ends])
    rates = f" Here {flop_rate / 1e9:.0f} Gflop/s and {byte_rate / 1e9:.0f} GB/s."
    return Table(_TITLE + rates, [*_HEADER, "bound ms", "best ms", "over bound"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table, and writes it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table = passes_table(kernel_workload())
    table.show()
    if options.write:
        write_section("passes", _COMMAND, [table.markdown()])


if __name__ == "__main__":
    main()
