"""Time of an attention layer with each score, beside `nn.MultiheadAttention`: `--write`.

Both layers have the projections, the batch and the sequences in common, are called one after the
other on one thread, forward and backward, and are timed by the processor time of the thread: the
median of the ratios of neighboring calls.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._inductor.utils import fresh_cache

from sparsefam._numerics.threads import one_thread
from sparsefam.attention import ContinuousAttention, LearnedAlpha, RidgeRegression
from sparsefam.bases import GaussianRBF

from .harness import Table, parser, run

CHANNELS, HEADS, BATCH, CALLS = 64, 4, 16, 7
# Length, number of functions, and options.
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "quadratic, L = 128": (128, 32, {}),
    "quadratic, L = 256": (256, 64, {}),
    "quadratic, L = 512": (512, 64, {}),
    "quadratic, α = 1, L = 256": (256, 64, {"alpha": 1.0}),
    "quadratic, α = 1.7, L = 256": (256, 64, {"alpha": 1.7}),
    "quadratic, learned α, L = 256": (256, 64, {"alpha": LearnedAlpha(HEADS)}),
    "local, 8 heads, L = 128": (128, 32, {"score": "local", "num_heads": 8}),
    "local, 8 heads, L = 256": (256, 64, {"score": "local", "num_heads": 8}),
    "local, 8 heads, L = 512": (512, 64, {"score": "local", "num_heads": 8}),
    "4 local and 4 quadratic heads, L = 256": (
        256,
        64,
        {"score": [("local", 4), ("quadratic", 4)], "num_heads": 8},
    ),
    "mixture of 8, L = 256": (256, 64, {"score": "mixture"}),
    "moments, L = 256": (256, 64, {"score": "moments"}),
    "moments, L = 2048": (2048, 64, {"score": "moments"}),
    "content, α = 1, L = 256": (256, 64, {"score": "content", "alpha": 1.0}),
    "content, L = 256": (256, 64, {"score": "content"}),
    "kernel, α = 1, L = 256": (256, 64, {"score": "kernel", "alpha": 1.0}),
    "kernel, L = 256": (256, 64, {"score": "kernel"}),
}
# The layers that are also compiled.
COMPILED = (
    *("quadratic, L = 128", "quadratic, L = 256", "quadratic, L = 512"),
    *("quadratic, learned α, L = 256", "mixture of 8, L = 256", "moments, L = 256"),
    "local, 8 heads, L = 256",
)


def _step(layer: nn.Module, batch: int, length: int) -> Callable[[], None]:
    x = torch.randn(batch, length, CHANNELS, requires_grad=True)

    def step() -> None:
        layer(x, x, x, need_weights=False)[0].square().sum().backward()

    return step


def _seconds(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def _elapsed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


@one_thread()
def layer_table(
    names: Sequence[str] = tuple(CASES),
    batch: int = BATCH,
    compiled: Sequence[str] = (),
    dynamic: bool | None = None,
) -> Table:
    """Return the time of each layer over that of discrete attention."""
    rows = []
    for name in names:
        length, functions, options = CASES[name]
        basis = GaussianRBF.grid(functions, 1.6 / functions)
        regression = RidgeRegression(basis, validate_args=False)
        own: Any = {"num_heads": HEADS, "batch_first": True, **options}
        layer = ContinuousAttention(CHANNELS, regression=regression, **own)
        other = nn.MultiheadAttention(CHANNELS, own["num_heads"], batch_first=True)
        again = [torch.compile(layer, fullgraph=True, dynamic=dynamic)] * (name in compiled)
        layers = [layer, other, *again]
        steps = [_step(x, batch, length) for x in layers]
        torch.compiler.reset()
        with fresh_cache():
            first = [_elapsed(x) for x in steps]
        rounds = [[_seconds(x) for x in steps] for _ in range(CALLS)]
        ratios = [
            statistics.median(x[i] / x[1] for x in rounds) for i in (0, *range(2, len(steps)))
        ]
        times = [f"{1e3 * min(x):.1f}" for x in list(zip(*rounds, strict=True))[:2]]
        shown = [f"{x:.2f}" for x in ratios] + [f"{x:.0f}" for x in first[2:]]
        rows.append([name, *times, *shown, *[""] * (6 - 1 - len(times) - len(shown))])
        print("  ".join(rows[-1]), flush=True)
    title = (
        f"Forward and backward of layers of {CHANNELS} channels, {HEADS} heads if no other number "
        f"is given, {batch} sequences, N = L/4 functions and at most 64, α = 2 if no other is "
        "named, float32, one thread: milliseconds, the median of the ratios of neighboring calls, "
        "the same compiled, and the seconds that compiling takes."
    )
    header = ["score", "ms", "nn.MultiheadAttention, ms", "ratio", "compiled", "compiling, s"]
    return Table(title, header, rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True)
    text = "compile for all lengths at once, as torch.compile(layer, dynamic=True)"
    options.add_argument("--dynamic", action="store_const", const=True, help=text)
    chosen = options.parse_args(arguments)
    return run(
        "layers",
        {"layers": lambda: [layer_table(compiled=COMPILED, dynamic=chosen.dynamic)]},
        chosen.write,
        "learn/attention.md",
    )


if __name__ == "__main__":
    sys.exit(main())
