"""How exact E_p[psi] is in many dimensions, for Gaussians under beta-Gaussians of any alpha."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .ball_sweep import QUANTITIES, cases, errors, truths
from .report import Table, following

__all__ = ["BALL_LIMITS", "Row", "Shape", "broken", "rows", "table"]

# Of the value and of each derivative.
BALL_LIMITS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-8)}
DIMENSIONS = (1, 2, 3, 5, 8)
# As float32 holds them: reference, float32 and float64 take the same numbers.
ALPHAS = [float(np.float32(alpha)) for alpha in (1.05, 4 / 3, 1.5, 2.0, 3.0, math.inf)]
RATIOS = [10.0**k for k in range(-3, 4)]


@dataclass(frozen=True)
class Shape:
    """A kind of supports and Gaussians.

    Attributes:
        name: What the table calls it.
        condition: Of scale_tril.
        full: Whether the Gaussians have covariance matrices.
    """

    name: str
    condition: float
    full: bool


SHAPES = (
    Shape("round", 3.0, full=False),
    Shape("thin", 1e4, full=False),
    Shape("thinner", 1e6, full=False),
    Shape("covariances", 1e2, full=True),
)


@dataclass(frozen=True)
class Row:
    """The largest errors of one shape in one dimension, over all alphas and widths.

    Attributes:
        dim: The dimension.
        shape: The shape.
        dtype: What sparsefam computed in.
        plain: Relative error of each quantity, and the width / support where it is.
        judged: The same, relative to what rounding the inputs does where that is more.
    """

    dim: int
    shape: Shape
    dtype: torch.dtype
    plain: list[tuple[float, float]]
    judged: list[tuple[float, float]]


def rows(
    dimensions: Iterable[int] = DIMENSIONS,
    alphas: Sequence[float] = ALPHAS,
    ratios: Sequence[float] = RATIOS,
) -> list[Row]:
    """Measures all shapes in all dimensions; on a line nothing is thin."""
    jobs = [
        (dim, shape)
        for dim in dimensions
        for shape in SHAPES
        if dim > 1 or "thin" not in shape.name
    ]
    return [row for job in following(jobs, "dimensions") for row in _measured(*job, alphas, ratios)]


def _measured(
    dim: int, shape: Shape, alphas: Sequence[float], ratios: Sequence[float]
) -> list[Row]:
    found = cases(dim, shape.condition, ratios, shape.full)
    truth = {alpha: truths(found, alpha) for alpha in alphas}
    out = []
    for dtype in BALL_LIMITS:
        # alpha = inf has no derivative in alpha, and so one quantity less.
        worst = [[(0.0, 0.0)] * 2 for _ in QUANTITIES]
        for alpha in alphas:
            for case, exact in zip(found, truth[alpha], strict=True):
                for kinds, pair in zip(worst, errors(case, exact, alpha, dtype), strict=False):
                    kinds[:] = [max(x, (y, case.ratio)) for x, y in zip(kinds, pair, strict=True)]
        plain, judged = (list(column) for column in zip(*worst, strict=True))
        out.append(Row(dim, shape, dtype, plain, judged))
    return out


def broken(row: Row) -> list[str]:
    """The quantities of a row whose errors are above the limits."""
    first, rest = BALL_LIMITS[row.dtype]
    limits = [first, *[rest] * (len(QUANTITIES) - 1)]
    triples = zip(QUANTITIES, row.judged, limits, strict=True)
    return [name for name, (error, _), limit in triples if error > limit]


def table(found: Sequence[Row]) -> Table:
    """For the page."""
    lines = []
    for row in found:
        cells = [f"{error:.1e} ({ratio:.0e})" for error, ratio in row.plain]
        dtype = str(row.dtype).removeprefix("torch.")
        verdict = "**broken**" if broken(row) else "kept"
        lines.append([str(row.dim), row.shape.name, dtype, *cells, verdict])
    limits = "; ".join(
        f"{a:g} and {b:g} in {str(x).removeprefix('torch.')}" for x, (a, b) in BALL_LIMITS.items()
    )
    title = (
        "Many dimensions: the largest relative error (2-norm over the basis functions) for α in "
        "1.05, 4/3, 3/2, 2, 3 and ∞, and, in brackets, the width / support where it is. Limits of "
        f"value and derivatives: {limits}."
    )
    return Table(title, ["D", "support", "dtype", *QUANTITIES, "limits"], lines)
