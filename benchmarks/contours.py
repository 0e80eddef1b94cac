"""Fit the contours of `sparsefam._numerics.shared_contour`, or measure their errors.

A contour is a hyperbola that serves a range of exponents and all supports whose half-axes are at
most so many widths long. Its shape has the least error of expectations, relative to the largest one
that a center anywhere could have, in two and three dimensions; its number of nodes is the
smallest with an error below the limit. `--fit` takes an hour and prints the constants.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from sparsefam._numerics.gaussian_contour import gaussians_by_pairs
from sparsefam._numerics.shared_contour import (
    CONTOURS,
    LEAST_EXPONENT,
    LOG_ZERO,
    hyperbola,
    integrate_rows,
)

Array = NDArray[Any]

# Largest exponents, with shapes (size, angle, step, stretch) from which searches start.
STARTS = {
    3.0: ((12.0, 0.61, 0.2, 0.018), (8.0, 0.4, 0.24, -0.022), (5.6, 0.3, 0.13, -0.0013)),
    12.5: ((35.0, 0.79, 0.098, 0.17), (18.0, 0.51, 0.12, 0.001), (11.0, 0.31, 0.11, 0.008)),
    25.0: ((64.0, 0.72, 0.077, 0.01), (40.0, 0.55, 0.071, 0.0015), (28.0, 0.33, 0.062, 0.0025)),
}
LENGTHS = (4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 72.0)
LEAST_COUNT, LIMIT = 6, 1e-6
_SUPPORTS, _EVALUATIONS, _INVALID = 20, 250, 1e3


class Supports(NamedTuple):
    """Supports of one exponent, whose axes are those of the coordinates, and centers around them.

    In units of the width.
    """

    exponent: float
    half_axes: Array  # (R, D)
    centers: Array  # (R, N, D), from the middle to where nothing is left
    exact: Array  # Expectations, relative to the largest that a center anywhere could have, (R, N)
    largest: Array  # (R)


def supports(least: float, most: float, longest: float, count: int, seed: int) -> list[Supports]:
    """Return supports of all shapes with half-axes up to `longest`."""
    draw, out = np.random.default_rng(seed), []
    for dim, m in product((2, 3), (least, (least + most) / 2, most)):
        half = longest * draw.uniform(0, 1, (count, dim)) ** 2
        half[: count // 2 + 1, 0] = longest
        half[0], half[1, 1:], half[2] = longest, 1e-3, 1e-3
        units = np.vstack([np.eye(dim), np.abs(draw.normal(size=(1, dim)))])
        units /= np.linalg.norm(units, axis=-1, keepdims=True)
        radii = 1 / np.sqrt((units**2 / (half[:, None] ** 2 + 0.01)).sum(-1))
        # To the edge of a support, and from there on by widths.
        radii = radii[..., None]
        lengths = np.concatenate([radii * np.linspace(0, 1, 6), radii + np.linspace(0.5, 6, 8)], -1)
        centers = (lengths[..., None] * units[:, None]).reshape(count, -1, dim)
        z = 2.5 * half.max(-1, keepdims=True) + 4
        reach = (half**2 + 2 * z) * (1 - LOG_ZERO / z)
        centers[(centers**2 / reach[:, None]).sum(-1) > 1] = 0
        exact = np.stack([_expectations(*x, m) for x in zip(half, centers, strict=True)])
        largest = exact.max(-1)
        out.append(Supports(m, half, centers, exact / largest[:, None], largest))
    return out


def _expectations(half: Array, centers: Array, exponent: float) -> Array:
    arrays = np.zeros((1, len(half))), np.diag(half)[None], centers, np.ones(())
    loc, tril, at, width = map(torch.from_numpy, arrays)
    return gaussians_by_pairs((loc, tril, at, width), exponent)[0].numpy()


def error(shape: Sequence[float], count: int, given: list[Supports]) -> float:
    """Return the largest error of the contour, with an estimate of rounding in float32."""
    size, _, step, stretch = shape
    t = (count - 0.5) * step
    if not (size > 0 and 0 < step < 1 and 1 + 3 * stretch * t * t > 0):
        return _INVALID
    worst = 0.0
    for x in given:
        nodes, fronts = hyperbola(count, shape, x.exponent, x.half_axes.shape[-1])
        moved = nodes[:, None, None] + 0.5 * x.half_axes**2
        waves = np.einsum("krd,rnd->krn", -0.5 * nodes[:, None, None] / moved, x.centers**2)
        front = fronts[:, None] / np.sqrt(moved).prod(-1) / x.largest
        with np.errstate(all="ignore"):
            terms = front[..., None] * np.exp(waves)
            rounding = 2.0**-24 * np.sqrt(((np.abs(terms) * (1 + 0.5 * np.abs(waves))) ** 2).sum(0))
            found = np.max(np.abs(terms.real.sum(0) - x.exact) + rounding)
        worst = max(worst, found) if math.isfinite(found) else _INVALID
    return worst


def fit(given: list[Supports], count: int, starts: Any) -> tuple[int, Array, float]:
    """Return the smallest number of nodes, at least `count`, their shape and its error."""
    while True:
        for start in starts:
            shape = np.array(start)
            for _ in range(2):
                steps = np.diag([0.15, 0.1, 0.12, 0.0]) * shape + np.diag([0, 0.02, 0, 0.01])
                found = minimize(
                    lambda x, n=count: math.log(error(x, n, given)),
                    shape,
                    method="Nelder-Mead",
                    options={
                        "maxfev": _EVALUATIONS,
                        "initial_simplex": np.vstack([shape, shape + steps]),
                    },
                )
                shape = found.x
            if (least := math.exp(found.fun)) < LIMIT:
                return count, shape, least
        count += 1


def show_fits(only: list[float]) -> None:
    """Print the contours of every range of exponents."""
    for least, most in zip((LEAST_EXPONENT, *STARTS), STARTS, strict=False):
        if only and most not in only:
            continue
        starts, count = STARTS[most], LEAST_COUNT
        for longest in LENGTHS:
            given = supports(least, most, longest, _SUPPORTS, 0)
            count, shape, least_error = fit(given, count, starts)
            starts = (tuple(shape), *STARTS[most])
            numbers = ", ".join(f"{x:.4g}" for x in shape)
            print(f"{most}: {longest}: ({count}, ({numbers})),  # {least_error:.1e}", flush=True)


def measured(least: float, most: float, longest: float, count: int = 20) -> float:
    """Return the largest error of expectations in float32, relative to the largest one."""
    worst = 0.0
    for x in supports(least, most, longest, count, 1):
        for half, centers, exact, largest in zip(*x[1:], strict=True):
            arrays = np.zeros((1, len(half))), np.diag(half)[None], centers, np.ones(len(centers))
            loc, tril, at, width = (torch.from_numpy(y).float() for y in arrays)
            values = integrate_rows((loc, tril, at, width), x.exponent, False)[0]
            worst = max(worst, float(np.abs(values[0].numpy() / largest - exact).max()))
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fit", type=float, nargs="*", metavar="M", help="largest exponents")
    chosen = options.parse_args(arguments)
    if chosen.fit is not None:
        show_fits(chosen.fit)
        return 0
    for least, most in zip((LEAST_EXPONENT, *CONTOURS), CONTOURS, strict=False):
        for longest, (count, _) in CONTOURS[most].items():
            found = measured(least, most, longest)
            print(f"m <= {most}, half-axes <= {longest}: {count} nodes, error {found:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
