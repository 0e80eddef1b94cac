"""Show what sparsefam does on real data: `make demo` runs this.

`python -m examples.tour` runs the examples one after another, and puts what they print and draw on
one page, demo/index.html, which it completes after every stage.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

import sparsefam as sf

from . import digits, estimation, pickups, series, stream


class Stage(NamedTuple):
    """A section of the page: an example, what to take away, and how to read what it shows."""

    title: str
    cost: str  # on one core
    main: Callable[[list[str]], None]
    options: str
    quick: str  # options of a tiny run
    picture: str
    takeaway: str
    text: str


STAGES = [
    Stage(
        "Density estimates with true zeros",
        "half a minute",
        estimation.main,
        "--folds 5",
        "--folds 2",
        "estimation.png",
        "Estimates are zero beyond bounds and in most of a gap; they fit like tuned kernels.",
        "Petal lengths have a gap between species, and the concavity of a cell nucleus cannot be "
        "negative. Shaded: <code>SparseDensity</code> over its support, which the bar or the "
        "outline marks; dashed: <code>gaussian_kde</code>, which has mass in every gap and beyond "
        "every bound. In the gap: mass between 1.95 and 2.95 cm, or below zero. Missed: held-out "
        "measurements at which the density is zero. Score: integrated squared error up to a "
        "constant; less is better. More: docs/tutorials/estimation.md.",
    ),
    Stage(
        "Intervals read from a stream",
        "a minute",
        stream.main,
        "--seeds 2 --epochs 15 --rates 0.03",
        "--seeds 2 --epochs 1 --rates 0.03 --streams 256",
        "stream.png",
        "Attention learns which interval to read, and its density is zero elsewhere.",
        "What was the mean from <i>a</i> to <i>b</i>? Of 2.8 heartbeats of arterial blood pressure "
        "96 noisy readings are left; in a block outside the interval (grey) all are saturated. "
        "Softmax has tails into the block, sparsemax ends sooner, and at α = ∞ the density is "
        "uniform on an interval. The table has root mean squared errors, also where readings are "
        "placed otherwise than in training. The task is made for attention over intervals. More, "
        "with ten seeds: docs/tutorials/stream.md.",
    ),
    Stage(
        "A posterior whose support moves",
        "half a minute",
        pickups.main,
        "--draws 120",
        "--draws 16",
        "pickups.png",
        "Plain NUTS is wrong here without saying so; one line of code cures it.",
        "Ten people picked something up five times each. Log durations are normal around each "
        "person's own, and those follow a parabola, whose support moves with two other unknowns. "
        "NUTS in Pyro takes the interval of its first trace for granted; with "
        "<code>AutoSupportReparam</code> it samples the posterior. More: "
        "docs/tutorials/pickups.md.",
    ),
    Stage(
        "Attention over an image",
        "a minute",
        digits.main,
        "--seeds 2",
        "--seeds 2 --epochs 1 --canvases 64",
        "digits.png",
        "A mean and a covariance read an image about as well as a weight for every cell.",
        "<i>Which digit is top left?</i> Each of four questions, a colour each, names a quadrant. "
        "Cells: discrete weights. Dashed: the ellipse that holds 99.9 % of a normal density. "
        "Solid: the support of a truncated paraboloid, outside which nothing is read. Dotted: the "
        "digit asked about. Above: the answers. The table has the accuracy, the mass in the "
        "quadrant and on the digit, and the share of the cells that is read. Two seeds do not tell "
        "the mechanisms apart; docs/gallery.md has ten.",
    ),
    Stage(
        "The papers' comparison: spoken vowels",
        "a minute",
        series.main,
        "--seeds 2",
        "--seeds 2 --epochs 1",
        "series.png",
        "Densities with several modes beat those with one; without attention it is better still.",
        "Who is speaking? Networks see a random 30 % of each recording, and continuous attention "
        "reads a function fitted to it. The picture has one head of kernel sparsemax on recordings "
        "of three speakers, with the supports below. One number for each head is a bottleneck, so "
        "the comparison with the network without attention says less than that between mechanisms. "
        "Settings were chosen with test accuracies in view, so differences of a few points mean "
        "nothing.",
    ),
]


def run(folder: Path, quick: bool) -> None:
    """Run all stages, and write the page after each."""
    folder.mkdir(parents=True, exist_ok=True)
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    versions = f"{sf.__version__} and torch {torch.__version__}"
    template = template.replace("<!--versions-->", versions)
    body, path, start = "", folder / "index.html", time.perf_counter()
    for number, stage in enumerate(STAGES, 1):
        print(f"{number}/{len(STAGES)} {stage.title} (about {stage.cost})", flush=True)
        printed = io.StringIO()
        options = (stage.quick if quick else stage.options).split()
        with contextlib.redirect_stdout(printed):
            stage.main([*options, "--out", str(folder)])
        print(printed.getvalue(), flush=True)
        command = f"python -m {stage.main.__module__} {' '.join(options)}"
        body += (
            f'<section><h2>{stage.title}</h2>\n<p class="lead">{stage.takeaway}</p>\n'
            f'<p>{stage.text}</p>\n<figure><img src="{stage.picture}" alt="{stage.title}">'
            f"</figure>\n<pre>{escape(printed.getvalue())}</pre>\n"
            f"<p><code>{command}</code></p></section>\n"
        )
        path.write_text(template.replace("<!--body-->", body), encoding="utf-8")
    print(f"{path.resolve().as_uri()} ({time.perf_counter() - start:.0f} s in all)")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run the tour and write its page.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that tries all parts")
    options = parser.parse_args(arguments)
    run(options.out, options.quick)


if __name__ == "__main__":
    main()
