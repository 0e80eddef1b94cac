"""What the examples share: command lines, tables and pictures."""

import inspect
import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

# Lines and areas of axes that are described in a picture.
_MOST = 100


def run(main: Callable[..., None], arguments: Sequence[str] | None = None) -> None:
    """Call a function with the options of a command line, one for each of its arguments.

    `main(seeds: int = 10, rates: tuple[float, ...] = (0.01, 0.03), out: Path = Path("demo"))` has
    the options `--seeds 10 --rates 0.01 0.03 --out demo`. The folder `out` is made.
    """
    parser = ArgumentParser(
        description=sys.modules[main.__module__].__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    for name, argument in inspect.signature(main).parameters.items():
        default = argument.default
        several = {"nargs": "+"} if isinstance(default, tuple) else {}
        kind = type(default[0] if several else default)
        text = f"default: {default}"
        parser.add_argument(f"--{name}", type=kind, default=default, help=text, **several)
    options = vars(parser.parse_args(arguments))
    if "out" in options:
        options["out"].mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # threads cost more than they save in these small models
    main(**options)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, the first to the left."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def mean_sd(values: Any, digits: int) -> str:
    """Return the mean and the sample standard deviation of runs."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def shown(figure: Figure) -> list[list[list[float]]]:
    """Return what a figure shows: for its axes in 2-D, numbers of each line, area and contour.

    They are the least, mean and greatest x, and the least, mean and greatest y. Of axes with very
    many lines and areas the first ones stand for all.
    """
    found = []
    for ax in figure.axes:
        if ax.name != "3d":
            lines = [np.array(line.get_xydata(), dtype=float) for line in ax.lines]
            areas = [path.vertices for part in ax.collections for path in part.get_paths()]
            sets = [points for points in (*lines, *areas) if len(points)][:_MOST]
            rows = [np.stack([x.min(0), x.mean(0), x.max(0)], -1).flatten() for x in sets]
            found.append([[float(f"{number:.4g}") for number in row] for row in rows])
    return found


def save(figure: Figure, path: Path) -> None:
    """Write a picture, and what it shows into its description, for a test to compare."""
    figure.savefig(path, dpi=160, metadata={"Description": json.dumps(shown(figure))})


def stale(figure: Figure, path: Path) -> list[str]:
    """Return what a picture shows otherwise than a figure that was drawn today.

    Numbers may differ by half a percent of the range of their axes.
    """
    with Image.open(path) as picture:
        before = json.loads(picture.text["Description"])
    found, today = [], shown(figure)
    for number, (old, new) in enumerate(zip(before, today, strict=True)):
        if len(old) != len(new):
            found.append(f"axes {number}: {len(old)} lines and areas, today {len(new)}")
            continue
        spread = np.ptp(np.reshape(new, (-1, 2, 3)), axis=(0, 2))
        limits = np.repeat(0.005 * spread, 3)
        for was, now in zip(old, new, strict=True):
            if (np.abs(np.subtract(was, now)) > limits).any():
                found.append(f"axes {number}: {was}, today {now}")
    return found
