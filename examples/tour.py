"""Everything sparsefam does, on real input, ending in a page: `make demo` runs this.

`python -m examples.tour` writes `demo/index.html`, its pictures, and `demo/results.json`.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

import sparsefam as sf

from .digits import digits
from .estimation import estimation
from .families import families
from .leaves import leaves
from .page import Section, write_page
from .progress import Reporter
from .settings import Settings
from .stream import stream
from .vowels import vowels

__all__ = ["STAGES", "main", "run"]

# A stage takes the settings and the reporter and hands back its part of the page.
STAGES: dict[str, Callable[[Settings, Reporter], Section]] = {
    "One-dimensional families": families,
    "Density estimates with true zeros": estimation,
    "Attention on spoken vowels": vowels,
    "Attention on outlines of leaves": leaves,
    "Questions to a stream": stream,
    "Attention over an image": digits,
}

# Settings that are options of the command line.
_COUNTS = {
    "seeds": "repetitions on the vowels and on the leaves",
    "epochs": "epochs of a run on the vowels",
    "leaf_epochs": "epochs of a run on the leaves",
    "digit_seeds": "repetitions on the digits",
    "digit_epochs": "epochs of a run on the digits",
    "stream_seeds": "repetitions on the streams",
    "stream_epochs": "epochs of a run on the streams",
}
_QUICK = Settings(
    2,
    1,
    3,
    leaf_epochs=1,
    leaf_heads=3,
    digit_seeds=2,
    digit_epochs=1,
    canvases=64,
    stream_seeds=1,
    stream_epochs=1,
    streams=256,
    folds=2,
)


def run(settings: Settings, folder: Path, reporter: Reporter) -> Path:
    """Runs all stages and writes the page.

    Args:
        settings: How much to run.
        folder: Where the page, its pictures and `results.json` go.
        reporter: Told of the progress.

    Returns:
        The page.
    """
    # The operations are small: further threads would only wait for each other. One thread also
    # adds in one order, so that a seed gives the same numbers each time.
    torch.set_num_threads(1)
    start = time.perf_counter()
    sections = []
    for title, stage in STAGES.items():
        reporter.stage(title)
        sections.append(stage(settings, reporter))
    reporter.stage("Writing the page")
    with reporter.steps(sum(section.pictures for section in sections)) as drawn:
        page = write_page(folder, "sparsefam: a tour", _lead(settings), sections, drawn)
    results = {
        "settings": asdict(settings),
        "versions": {"sparsefam": sf.__version__, "torch": torch.__version__},
        **{section.key: section.results for section in sections},
    }
    (folder / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    reporter.note(f"{page.resolve().as_uri()}  ({time.perf_counter() - start:.0f} s in all)")
    return page


def _lead(settings: Settings) -> str:
    quick = " --quick" if settings.heads == _QUICK.heads else ""
    options = "".join(f" --{_dashed(name)} {getattr(settings, name)}" for name in _COUNTS)
    command = f"python -m examples.tour{quick}{options}"
    return (
        "Densities that can be exactly zero, and attention built on them. Every number and picture "
        f"on this page was made by <code>{command}</code>, sparsefam {sf.__version__}, "
        f"torch {torch.__version__}; the numbers are also in <a href='results.json'>"
        "results.json</a>."
    )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    defaults = Settings()
    parser = argparse.ArgumentParser(description="Run the tour and write its page.")
    for name, meaning in _COUNTS.items():
        text = f"{meaning} ({getattr(defaults, name)})"
        parser.add_argument(f"--{_dashed(name)}", type=_positive, help=text)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    parser.add_argument("--quick", action="store_true", help="a tiny run: are all parts sound?")
    options = parser.parse_args(arguments)
    settings = _QUICK if options.quick else defaults
    given = {name: getattr(options, name) for name in _COUNTS}
    settings = replace(settings, **{name: n for name, n in given.items() if n is not None})
    run(settings, options.out, Reporter())


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    main()
