"""What the examples share: command lines and tables."""

import inspect
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch


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
