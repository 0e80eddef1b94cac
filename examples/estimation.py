"""Density estimates of measurements, where zeros are real: a stage of the tour, and a tutorial.

`python -m examples.estimation` prints the numbers of docs/tutorials/estimation.md and writes its
picture to `demo/estimation.png`.
"""

import argparse
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

import sparsefam as sf
from sparsefam.plotting import plot_density

from .estimation_fits import METHODS, Case, Check, check, load, sparse
from .look import Look
from .page import Picture, Prose, Section, Table
from .progress import Reporter
from .settings import Settings

__all__ = ["estimation", "main"]

_PROSE = (
    "Lengths of petals have a gap between species; the concavity of a cell nucleus cannot be "
    "negative. <code>SparseDensity</code> ends where the data end; where a bound is known, it is "
    "told by a base density. A sum of Gaussians puts mass into every gap and beyond every bound."
)
_HEADER = ["measured", "estimate", "where nothing is", "missed", "score"]


def estimation(settings: Settings, reporter: Reporter) -> Section:
    """Fits, checks and the picture."""
    cases = load()
    densities, checks = _fitted(cases, settings.folds, reporter)
    rows = [[*key, *_cells(found)] for key, found in checks.items()]
    reporter.table(_HEADER, rows)
    caption = (
        f"Means over {settings.folds} folds that were held out. Where nothing is: mass between "
        "1.95 and 2.95 cm, or below zero. Missed: held-out measurements at which a density is "
        "zero. Score: integrated squared error but for a constant; less is better."
    )
    return Section(
        "estimation",
        "Density estimates with true zeros",
        [Prose(_PROSE), _picture(cases, densities), Table(caption, _HEADER, rows)],
        {f"{name}: {method}": asdict(found) for (name, method), found in checks.items()},
    )


def _fitted(
    cases: list[Case], folds: int, reporter: Reporter
) -> tuple[list[sf.SparseDistribution], dict[tuple[str, str], Check]]:
    """Densities of all data; checks by what was measured and method."""
    densities, checks = [], {}
    with reporter.steps(len(cases) * (1 + len(METHODS))) as done:
        for case in cases:
            model = sparse(case, case.data)
            densities.append(model.density_)
            done(f"{case.name}: fitted")
            # As for the others, the width is chosen once; the penalty is chosen in each fold.
            known = replace(case, bandwidth=tuple(model.bandwidth_))
            for method in METHODS:
                checks[case.name, method] = check(known, method, folds)
                done(f"{case.name}: {method}, {folds} folds held out")
    return densities, checks


def _cells(found: Check) -> list[str]:
    return [f"{found.empty:.2%}", f"{found.missed:.1%}", f"{found.score:.3f}"]


def _picture(cases: list[Case], densities: list[sf.SparseDistribution]) -> Picture:
    return Picture(
        "estimation",
        partial(_draw, cases=cases, densities=densities),
        "Three panels: lengths of petals, two hills with a gap; concavity, which begins at zero "
        "with a jump; contours of length and width of petals, two islands. The dashed lines of "
        "gaussian_kde go through the gap, below zero, and around both islands.",
        "Shaded: <code>SparseDensity</code> over its support, which the bar below and the outline "
        "on the right mark; data as marks and dots. Dashed: <code>gaussian_kde</code>.",
    )


def _draw(look: Look, cases: list[Case], densities: list[sf.SparseDistribution]) -> Figure:
    figure, axes = look.panels(3 if look.narrow else 1, 1 if look.narrow else 3, 2.7)
    for ax, case, p in zip(axes, cases, densities, strict=True):
        ax.set_xlabel(case.name)
        plane = len(case.view) == 2
        (_draw_plane if plane else _draw_line)(look, ax, case, p)
    axes[0].legend(loc="upper right")
    return figure


def _draw_line(look: Look, ax: Axes, case: Case, p: sf.SparseDistribution) -> None:
    low, high = case.data.min(), case.data.max()
    margin = 0.18 * (high - low)
    view = (float(low - margin), float(high + margin))
    plot_density(p, ax, label="SparseDensity", color=look.palette[0], data=case.data, view=view)
    t = np.linspace(*view, 601)
    smooth = gaussian_kde(case.data.T)(t)
    ax.plot(t, smooth, "--", color=look.palette[3], label="gaussian_kde", gid="smooth")


def _draw_plane(look: Look, ax: Axes, case: Case, p: sf.SparseDistribution) -> None:
    view = tuple(
        (float(x.min() - 0.18 * np.ptp(x)), float(x.max() + 0.18 * np.ptp(x))) for x in case.data.T
    )
    plot_density(p, ax, color=look.palette[0], data=case.data, view=view)
    grid = np.meshgrid(*(np.linspace(*side, 151) for side in view))
    smooth = gaussian_kde(case.data.T)
    height = smooth(np.reshape(grid, (2, -1))).reshape(grid[0].shape)
    levels = height.max() * np.array([0.02, 0.25, 0.5])
    style = {"linestyles": "--", "linewidths": 1.1}
    ax.contour(*grid, height, levels, colors=[look.palette[3]], **style).set_gid("smooth")
    ax.set_xlabel("petal length, cm")
    ax.set_ylabel("petal width, cm")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Density estimates of measurements.")
    parser.add_argument("--folds", type=int, default=Settings.folds, help="held out in turn (5)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, reporter = time.perf_counter(), Reporter()
    section = estimation(Settings(folds=options.folds), reporter)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "estimation.png"
    for part in section.parts:
        if isinstance(part, Picture):
            part.save(path, Look())
    reporter.note(f"{path}  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
