"""What hot operations must at least cost on this CPU, what they launch, and what they take.

`python -m benchmarks.ceilings` measures what the machine can do (multiply-adds, exponentials and
error functions a second, bytes a second) and holds each operation against it. `--write` puts the
table into docs/benchmarks.md.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sparsefam as sf

from .ball_workload import REGIMES, by_expect, in_plane
from .report import Table, following, write_section

__all__ = ["Launches", "Operation", "launches", "measure", "operations"]

ROWS, FUNCTIONS = 4096, 64
DRAWS = 1 << 20
LENGTH, CHANNELS = 4096, 512
# What only makes another tensor of the same numbers launches nothing.
_VIEWS = ("view", "expand", "transpose", "slice", "select", "unsqueeze", "squeeze", "detach", "t.")


@dataclass(frozen=True)
class Operation:
    """Something to time, and what no way of doing it could leave out.

    Attributes:
        run: Does it once.
        adds: Multiply-adds.
        exps: Exponentials, sines and cosines.
        erfs: Error functions.
        bytes: Read and written once.
    """

    run: Callable[[], Any]
    adds: float = 0.0
    exps: float = 0.0
    erfs: float = 0.0
    bytes: float = 0.0


@dataclass
class Launches(TorchDispatchMode):
    """Counts operators of torch that do work, not numpy's, and the bytes that they write."""

    count: int = 0
    written: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not name.startswith(_VIEWS):
            self.count += 1
            self.names[name] = self.names.get(name, 0) + 1
            outputs = found if isinstance(found, tuple | list) else (found,)
            self.written += sum(x.nbytes for x in outputs if isinstance(x, Tensor))
        return found


def launches(run: Callable[[], Any]) -> Launches:
    """What one run launches, after another that filled the caches."""
    run()
    with Launches() as found:
        run()
    return found


def _line(alpha: float) -> Callable[[], Any]:
    draw = torch.Generator().manual_seed(0)
    psi = sf.bases.GaussianRBF.grid(FUNCTIONS, 0.02)
    loc, scale = torch.rand(ROWS, generator=draw), 0.1 + 0.3 * torch.rand(ROWS, generator=draw)
    above = torch.randn(ROWS, FUNCTIONS, generator=draw)

    def run() -> tuple[Tensor, ...]:
        leaves = loc.clone().requires_grad_(), scale.clone().requires_grad_()
        return torch.autograd.grad(sf.BetaGaussian(*leaves, alpha).expect(psi), leaves, above)

    return run


def _density() -> tuple[sf.TruncatedParabola, Tensor]:
    p = sf.TruncatedParabola(torch.tensor(0.5), torch.tensor(0.4))
    return p, torch.linspace(0, 1, DRAWS)


def _fit() -> Callable[[], Tensor]:
    draw = torch.Generator().manual_seed(0)
    positions = torch.rand(LENGTH, generator=draw).sort().values
    values = torch.randn(1, LENGTH, CHANNELS, generator=draw)
    regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(128, 1.5 / 128), 0.1)
    return lambda: regression.fit(positions, values).coefficients


def operations() -> dict[str, Operation]:
    """The operations by name; expectations with their gradients in the density."""
    pairs, plane = ROWS * FUNCTIONS, in_plane(REGIMES["narrow"])
    p, t = _density()
    return {
        "expectations, alpha 2": Operation(
            _line(2.0), adds=20 * pairs, exps=2 * pairs, erfs=2 * pairs, bytes=8 * pairs
        ),
        "expectations, alpha 1.7": Operation(
            _line(1.7), adds=22 * 8 * pairs, exps=22 * 3 * pairs, bytes=8 * pairs
        ),
        "expectations in the plane": Operation(
            lambda: by_expect(plane), adds=11 * 20 * 6400, exps=11 * 3 * 6400, bytes=8 * 6400
        ),
        "ridge regression, 128 functions": Operation(
            _fit(),
            adds=LENGTH * 128 * (128 + CHANNELS),
            exps=LENGTH * 128,
            bytes=4 * LENGTH * (CHANNELS + 1),
        ),
        "log_prob": Operation(lambda: p.log_prob(t), adds=2 * DRAWS, exps=DRAWS, bytes=8 * DRAWS),
        "rsample": Operation(lambda: p.rsample((DRAWS,)), exps=2 * DRAWS, bytes=4 * DRAWS),
    }


def _best(run: Callable[[], Any], seconds: float = 1.0) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _ceilings() -> dict[str, float]:
    """Per second: multiply-adds, exponentials, error functions, bytes."""
    square, short, long = torch.randn(1024, 1024), torch.randn(1 << 16), torch.randn(1 << 25)
    out, copy = torch.empty_like(short), torch.empty_like(long)
    return {
        "adds": 1024**3 / _best(lambda: square @ square),
        "exps": short.numel() / _best(lambda: torch.exp(short, out=out)),
        "erfs": short.numel() / _best(lambda: torch.erf(short, out=out)),
        "bytes": 2 * long.nbytes / _best(lambda: copy.copy_(long)),
    }


def measure() -> list[Table]:
    """What the machine can do, and how far the operations are from it."""
    can = _ceilings()
    rows = []
    for name, operation in following(list(operations().items()), "ceilings"):
        work = sum(getattr(operation, x) / can[x] for x in ("adds", "exps", "erfs"))
        moved, taken = operation.bytes / can["bytes"], _best(operation.run)
        found = launches(operation.run)
        times = [f"{1e3 * x:.3g}" for x in (work, moved, taken)]
        share = f"{100 * max(work, moved) / taken:.0f} %"
        written = f"{found.written / 1e6:.3g}"
        rows.append([name, *times, share, str(found.count), written])
    units = {"adds": "multiply-adds", "exps": "exp", "erfs": "erf", "bytes": "bytes"}
    ceilings = [[units[x], f"{rate / 1e9:.3g}"] for x, rate in can.items()]
    threads = f"{torch.get_num_threads()} threads"
    header = ["operation", "ms of arithmetic", "of memory", "taken", "of the bound"]
    return [
        Table(f"What this machine does, 10^9 a second, {threads}.", ["what", "rate"], ceilings),
        Table(
            "At least, and in fact; operators of torch, and what they write.",
            [*header, "launches", "MB written"],
            rows,
        ),
    ]


def main() -> None:
    """Prints the tables, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put them into docs/benchmarks.md")
    write = parser.parse_args().write
    tables = measure()
    for table in tables:
        table.show()
    if write:
        command = "python -m benchmarks.ceilings --write"
        write_section("ceilings", command, [table.markdown() for table in tables])


if __name__ == "__main__":
    main()
