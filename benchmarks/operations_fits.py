"""Value functions beside least squares, and density estimates beside kernel density estimates."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits
from torch import Tensor

from sparsefam.attention import RidgeRegression
from sparsefam.bases import GaussianRBF

from .estimation_laws import DENSITIES, GRID, errors
from .estimation_methods import METHODS
from .regression import least_squares
from .report import Table, following
from .turns import processor_seconds

__all__ = ["FITS", "estimate_table", "value_table"]

LENGTHS, FUNCTIONS, CHANNELS, PENALTY = (256, 2048, 16384), 128, 64, 1e-2
OBSERVATIONS, LAW = (100, 1000, 10_000), "two parabolas"

Fit = Callable[[GaussianRBF, Tensor, Tensor], Tensor]


def _ours(basis: GaussianRBF, t: Tensor, values: Tensor) -> Tensor:
    # Positions that are new each time, as others would be remembered.
    fitted = RidgeRegression(basis, PENALTY).fit(t + 0, values.unsqueeze(0))
    return fitted.coefficients[0]


def _lstsq(basis: GaussianRBF, t: Tensor, values: Tensor) -> Tensor:
    ridge = math.sqrt(PENALTY) * torch.eye(len(basis))
    right = torch.cat([values, torch.zeros(len(basis), values.shape[-1])])
    # Not by the default driver, which drops what is small in float32, and with it all accuracy.
    design = torch.cat([basis(t), ridge])
    found: Tensor = torch.linalg.lstsq(design, right, driver="gels").solution
    return found


def _sklearn(basis: GaussianRBF, t: Tensor, values: Tensor) -> Tensor:
    model = Ridge(alpha=PENALTY, fit_intercept=False)
    return torch.from_numpy(model.fit(basis(t).numpy(), values.numpy()).coef_.T)


FITS: dict[str, Fit] = {
    "RidgeRegression.fit": _ours,
    "torch.linalg.lstsq": _lstsq,
    "scikit-learn Ridge": _sklearn,
}


def _observations(length: int) -> tuple[GaussianRBF, Tensor, Tensor]:
    """Waves with noise at irregular positions."""
    draw = torch.Generator().manual_seed(0)
    t = torch.rand(length, generator=draw).sort().values
    waves = torch.sin(t.unsqueeze(-1) * torch.linspace(1, 40, CHANNELS))
    noise = 0.3 * torch.randn(length, CHANNELS, generator=draw)
    return GaussianRBF.grid(FUNCTIONS, 1.5 / FUNCTIONS), t, waves + noise


def _curve_error(fit: Fit, length: int) -> float:
    """Of the function on a grid, in the 2-norm, against a QR factorisation in float64."""
    basis, t, values = _observations(length)
    exact = least_squares(basis, t, values, PENALTY)
    grid = basis(torch.linspace(0, 1, 1001, dtype=torch.double))
    gap = grid @ (fit(basis, t, values).double() - exact)
    return float(gap.norm() / (grid @ exact).norm())


def value_table(lengths: Sequence[int] = LENGTHS, budget: float = 0.5) -> Table:
    """Fits of value functions."""
    cells: dict[str, list[str]] = {name: [] for name in FITS}
    with threadpool_limits(1):
        for length in following(lengths, "value functions"):
            given = _observations(length)
            calls = {name: partial(fit, *given) for name, fit in FITS.items()}
            for name, seconds in processor_seconds(calls, budget).items():
                cells[name] += [f"{1e3 * seconds:.2g}", f"{_curve_error(FITS[name], length):.0e}"]
    columns = [x for length in lengths for x in (f"{length}: ms", "error")]
    return Table(
        f"Fits of {CHANNELS} channels by {FUNCTIONS} functions in float32, penalty {PENALTY:g}, by "
        "the number of observations; error of the function found.",
        ["method", *columns],
        [[name, *row] for name, row in cells.items()],
    )


def estimate_table(sizes: Sequence[int] = OBSERVATIONS) -> Table:
    """Density estimates of one sample of each size, each once: the slow ones take seconds."""
    law, cells = DENSITIES[LAW], {name: list[str]() for name in METHODS}
    with threadpool_limits(1):
        for size in following(sizes, "estimates"):
            x = law.draw(size, np.random.default_rng(0))
            for name, method in METHODS.items():
                start = time.thread_time()
                found = method(x)(GRID)
                seconds = time.thread_time() - start
                cells[name] += [f"{seconds:.2g}", f"{errors(law, found).squared:.1g}"]
    columns = [x for size in sizes for x in (f"{size}: s", "error")]
    return Table(
        f"Estimates of a density of {LAW}: seconds to choose settings, fit and evaluate at "
        f"{len(GRID)} points, by the number of observations; and the integrated squared error.",
        ["method", *columns],
        [[name, *row] for name, row in cells.items()],
    )
