"""Probabilities of finitely many scores, with their gradient, beside the entmax package."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import entmax
import torch
from torch import Tensor

import sparsefam as sf

from .report import Table, following
from .turns import processor_seconds

__all__ = ["METHODS", "simplex_table"]

Map = Callable[[Tensor], Tensor]
SIZES = (16, 256, 4096)
_NUMBERS = 1 << 17  # scores in all
_OURS = "sparsefam"


def _ours(alpha: float) -> Map:
    return lambda scores: sf.rpm(sf.scores.Finite(scores), alpha=alpha).probs


def _bisected(alpha: float, steps: int = 50) -> Map:
    return lambda scores: entmax.entmax_bisect(scores, alpha, n_iter=steps)


# By alpha, ours first; the package has an exact algorithm for 2 and 1.5.
METHODS: dict[float, Mapping[str, Map]] = {
    2.0: {_OURS: _ours(2.0), "sparsemax": entmax.sparsemax, "entmax_bisect": _bisected(2.0)},
    1.5: {_OURS: _ours(1.5), "entmax15": entmax.entmax15, "entmax_bisect": _bisected(1.5)},
    1.3: {_OURS: _ours(1.3), "entmax_bisect": _bisected(1.3)},
}


def _scores(size: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return 3 * torch.randn(_NUMBERS // size, size, generator=draw)


def _with_gradient(method: Map, scores: Tensor) -> None:
    leaf = scores.detach().requires_grad_()
    torch.autograd.grad(method(leaf), leaf, scores)


def _error(method: Map, alpha: float, size: int) -> float:
    """The largest error of a probability, against bisection in float64 until rounding."""
    scores = _scores(size)[:64]
    return float((method(scores) - _bisected(alpha, 100)(scores.double())).abs().max())


def _rows(alpha: float, sizes: Sequence[int], budget: float) -> list[list[str]]:
    cells: dict[str, list[str]] = {name: [] for name in METHODS[alpha]}
    for size in sizes:
        scores = _scores(size)
        calls = {
            name: partial(_with_gradient, method, scores) for name, method in METHODS[alpha].items()
        }
        for name, seconds in processor_seconds(calls, budget).items():
            cells[name].append(f"{1e9 * seconds / _NUMBERS:.0f}")
    return [
        [
            f"α = {alpha:g}",
            name,
            *cells[name],
            *(f"{_error(method, alpha, size):.0e}" for size in (sizes[0], sizes[-1])),
        ]
        for name, method in METHODS[alpha].items()
    ]


def simplex_table(sizes: Sequence[int] = SIZES, budget: float = 0.2) -> Table:
    """All maps."""
    jobs = list(METHODS)
    rows = [row for alpha in following(jobs, "scores") for row in _rows(alpha, sizes, budget)]
    return Table(
        f"Nanoseconds a score, probabilities and their gradient, {_NUMBERS} scores in float32, by "
        "how many categories; and the largest error of a probability.",
        [
            "map",
            "method",
            *(f"{size} categories" for size in sizes),
            *(f"error, {size}" for size in (sizes[0], sizes[-1])),
        ],
        rows,
    )
