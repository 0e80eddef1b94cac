"""Show what sparsefam does on real data: `make demo` runs this.

`python -m examples.tour` writes demo/index.html, its pictures, and demo/results.json, and completes
them after every stage.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import sparsefam as sf

from . import digits, estimation, pickups, series, stream
from .gallery import draw_families, families
from .page import Page
from .training import contest, positive, tabulate

Results = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How much to run: seeds, epochs and sizes by stage."""

    draws: int = 120
    seeds: int = 2
    vowel_epochs: int = 40
    vowel_heads: int = 8
    leaf_epochs: int = 30
    leaf_heads: int = 32
    leaf_seeds: int = 2
    digit_seeds: int = 2
    digit_epochs: int = 3
    canvases: int = 4000
    stream_seeds: int = 2
    stream_epochs: int = 15
    streams: int = 4000
    folds: int = 5


QUICK = Settings(16, 1, 1, 3, 1, 3, 1, 1, 1, 64, 1, 1, 256, 2)


def show_families(_: Settings, page: Page) -> Results:
    """Draw the one-dimensional families and tabulate their moments."""
    rows, results = [], {}
    for name, p in families():
        low, high = p.support.intervals[0].tolist()
        results[name] = {
            "variance": float(p.variance),
            "entropy": float(p.entropy()),
            "tsallis_entropy": float(p.tsallis_entropy()),
        }
        support = "the line" if math.isinf(low) else f"[{low:.3f}, {high:.3f}]"
        rows.append([name, support, *(f"{round(x, 3) + 0.0:.3f}" for x in results[name].values())])
    page.text(
        "A score <i>f</i> and a number α determine a density: the one that maximises the expected "
        "score minus the Tsallis negentropy of index α. At α = 1 (softmax) it is positive "
        "everywhere; above 1 it can be exactly zero."
    )
    page.picture(
        "families",
        draw_families,
        "Nine densities in a grid. Each is shaded over its support, which a bar below the axis "
        "marks: the whole line for the normal and the Laplace, an interval for the others.",
        "Densities with growing α. The first five have the score −t²/2 of the Gaussian, the last "
        "three the score −|t| of the Laplace, and the sixth the score −g′(|t|) for a convex g. As α"
        " grows, the support (bar below the axis) shrinks from the whole line (arrows) to an "
        "interval, outside which the density is exactly zero. Dashed: the escort, under which "
        "gradients are taken.",
    )
    header = ["family", "support", "variance", "entropy", "Tsallis entropy"]
    page.table("The score's parameter σ or b is 1 throughout.", header, rows)
    return results


def show_estimates(settings: Settings, page: Page) -> Results:
    """Estimate densities with gaps and bounds."""
    fitted, rows = estimation.run(estimation.load(), settings.folds)
    page.text(
        "Petal lengths have a gap between species, and the concavity of a cell nucleus cannot be "
        "negative. <code>SparseDensity</code> ends where the data end, or at a bound given by a "
        "base density. A sum of Gaussians puts mass into every gap and beyond every bound."
    )
    page.picture(
        "estimation",
        lambda: estimation.draw(fitted),
        "Three panels: petal lengths, two components with a gap; concavity, which begins at "
        "zero with a jump; contours of length and width of petals, two islands. The dashed "
        "lines of gaussian_kde cross the gap, go below zero, and surround both islands.",
        "Shaded: <code>SparseDensity</code> over its support, which the bar or the outline "
        "marks; data as ticks and dots. Dashed: <code>gaussian_kde</code>.",
    )
    page.table(
        f"Means over {settings.folds} held-out folds. In the gap: mass between 1.95 and 2.95 "
        "cm, or below zero. Missed: held-out measurements at which the density is zero. Score: "
        "integrated squared error up to a constant; less is better.",
        estimation.HEADER,
        rows,
    )
    return {f"{name}: {method}": cells for name, method, *cells in rows}


def show_series(
    key: str,
    label: str,
    shown: tuple[int, ...],
    names: tuple[str, ...],
    task: series.Task,
    page: Page,
) -> Results:
    """Compare attention mechanisms on a set of series."""
    result = series.compare(task)
    columns = {"accuracy, %": ("accuracy", "±.1f"), "parameters": ("parameters", ",.0f")}
    columns |= {"seconds": ("seconds", ".1f"), "read, %": ("read", ".0f")}
    columns["intervals"] = ("intervals", ".1f")
    with torch.no_grad():
        counts = series.intervals(result.models["kernel sparsemax"].attend(result.test)).double()
    page.text(
        f"The ridge penalty, {result.penalty:g}, is the one that best predicts a left-out fifth of "
        "the training points "
        f"(root mean squared error {result.errors[result.penalty]:.2f}).",
        "Best attention against best without: "
        f"{contest(result.runs, 'accuracy', list(result.models), '.1f')}. The mechanism is picked "
        "after the fact. One number for each head is a bottleneck, so the comparison with the "
        "networks without attention says less than that between mechanisms. In Moreno et al. "
        "(2022, table 2) unimodal densities do worst, mixtures better, kernel densities best.",
    )
    page.table(
        f"Test accuracy after {task.epochs} epochs, {task.heads} heads: mean and sample "
        f"standard deviation over {task.seeds} seeds, which change the points kept, the "
        "initial weights and the order of training. Seconds: processor time of a training run. "
        "Read: share of the observed points to which a head gives any weight or density. "
        "Intervals: mean number of intervals in the support of a head's density.",
        *tabulate(result.runs, columns),
    )
    page.picture(
        f"{key}-attention",
        lambda: series.draw_attention(result, names, shown, label),
        "Mechanisms in rows, recordings in columns. Above, the series; below, where the heads "
        "attend, with the support of each in a bar.",
        "Where the heads look, one colour each (first seed; at most eight heads). Above: the "
        "observed points and the value function. Below: densities, shaded over their supports, "
        "or weights as stems; the bars under the axis are the supports. In all test recordings "
        f"the heads of kernel sparsemax have {counts.mean():.1f} intervals on average, "
        f"{counts.max():.0f} at most.",
    )
    return {"penalty": result.penalty, "left_out_rmse": result.errors, "methods": result.runs}


def show_vowels(settings: Settings, page: Page) -> Results:
    """Compare mechanisms on spoken vowels."""
    page.text(
        "Who is speaking? <b>JapaneseVowels</b> has 640 recordings of nine speakers (270 to train, "
        "370 to test), each 12 channels of 7 to 29 frames. Laid end to end, the channels make one "
        "series of 84 to 348 points, of which models see a random 30 %. Ridge regression on 64 "
        "Gaussians turns each series into a function <i>V</i> on [0, 1]. Continuous attention "
        "reads <i>V</i> through a density; discrete attention weighs the points. The densities are "
        "those of Moreno et al. (2022, table 2): a Gaussian, a truncated parabola, a mixture of "
        "eight Gaussians, and the softmax and the sparsemax of a kernel expansion at 64 points. "
        "All networks share an encoder of the interpolated series. There is no validation split, "
        "and settings were chosen with test accuracies in view, so differences of a few points "
        "mean nothing."
    )
    names = ("discrete sparsemax", "truncated parabola", "Gaussian mixture", "kernel sparsemax")
    sizes = (settings.vowel_heads, settings.vowel_epochs)
    task = series.Task("JapaneseVowels", 9, 0.3, *sizes, 1e-3, settings.seeds)
    return show_series("vowels", "speaker", (0, 150, 300), names, task, page)


def show_leaves(settings: Settings, page: Page) -> Results:
    """Compare mechanisms on outlines of leaves."""
    page.text(
        "Which species is the leaf from? <b>OSULeaf</b> has 442 outlines of leaves of six species "
        "(200 to train, 242 to test), each a series of 427 points, of which 10 % are kept. The "
        "networks are those of the vowels, with more heads. To keep the tour short, training ends "
        "while the loss still falls."
    )
    names = ("truncated parabola", "Gaussian mixture", "kernel sparsemax")
    sizes = (settings.leaf_heads, settings.leaf_epochs)
    task = series.Task("OSULeaf", 6, 0.1, *sizes, 3e-4, settings.leaf_seeds)
    return show_series("leaves", "species", (10, 28, 0), names, task, page)


def show_stream(settings: Settings, page: Page) -> Results:
    """Answer questions to a stream of blood pressure."""
    seeds, epochs = settings.stream_seeds, settings.stream_epochs
    result = stream.compare(seeds, epochs, (3e-2,), settings.streams)
    best = contest(result.runs, stream.SAMPLINGS[0], stream.OURS, ".3f", sign=-1)
    page.text(
        "What was the mean from <i>a</i> to <i>b</i>? Of 2.8 heartbeats of arterial blood pressure "
        "96 noisy readings at random times are left; in a block outside the interval all readings "
        "are saturated. docs/tutorials/stream.md has the details, and ten seeds."
    )
    page.table(
        "Root mean squared error of the answers, whose standard deviation is "
        f"{result.test.labels.std().item():.2f}, after {epochs} epochs: mean and sample "
        f"standard deviation over {seeds} seeds. Seconds: processor time of a training run.",
        *tabulate(result.runs, stream.COLUMNS),
    )
    page.picture(
        "stream",
        lambda: stream.draw(result),
        "Three streams with a block of saturated readings; below them densities over the "
        "interval asked for, the dense one with tails into the block.",
        "Test streams whose saturated block (grey) is close to the interval asked for (dotted "
        "lines). Above: readings, value function and recording. Below: where the head looks. "
        "Softmax has tails into the block, sparsemax ends sooner, and at α = ∞ the density is "
        "uniform on an interval.",
    )
    page.text(
        f"Best continuous attention against best other method: {best}. The task is made for it: "
        "the answer is an expectation under a density over an interval."
    )
    return {"penalty": result.penalty, "methods": result.runs}


def show_posterior(settings: Settings, page: Page) -> Results:
    """Sample a posterior whose support moves."""
    result = pickups.run(settings.draws)
    rows = result.rows()
    page.text(
        "Ten people picked something up five times each. Log durations are normal around each "
        "person's own, and those follow a parabola, whose support moves with two other unknowns. "
        "NUTS in Pyro takes the interval of its first trace for granted; with "
        "<code>AutoSupportReparam</code> it samples the posterior (docs/tutorials/pickups.md)."
    )
    page.table(
        f"Mean and standard deviation of the log durations' mean, spread and noise: two chains of "
        f"{settings.draws} draws, of plain NUTS a quarter, and quadrature.",
        pickups.HEADER,
        rows,
    )
    page.picture(
        "posterior",
        lambda: pickups.draw(result),
        "Left: the predicted density of people's log durations under a parabola and under a normal."
        " Right: histograms of the two chains; one follows the exact posterior, one is elsewhere.",
        "Left: predicted log durations of people who were not seen. Right: posterior of the mean, "
        "by the chains and exact.",
    )
    return {name: cells for name, *cells in rows}


def show_digits(settings: Settings, page: Page) -> Results:
    """Answer questions about images of digits."""
    seeds, epochs = settings.digit_seeds, settings.digit_epochs
    result = digits.answer(settings.canvases, epochs, seeds)
    limit = digits.blind_limit(result.test.labels)
    page.text(
        "<i>Which digit is top left?</i> A canvas of 28 × 28 pixels has one of scikit-learn's "
        "handwritten digits in each quadrant, at a random place, and each of four questions names "
        f"a quadrant. {settings.canvases} canvases of 1200 digits to train, "
        f"{3 * settings.canvases // 8} canvases of the other 597 digits to test.",
        "All methods share a convolutional network, which ends in 14 × 14 features. Mean pooling "
        "classifies their mean, discrete softmax weighs them by the question, and continuous "
        "attention reads a function fitted to them through the density with the mean and "
        "covariance of the same weights.",
        "Best attention against no attention: "
        f"{contest(result.runs, 'accuracy', list(result.models), '.1f')}. A method that knew all "
        "four digits, but not the question, could be right at most "
        f"{limit:.0f}\u00a0% of the time. "
        "Two seeds do not tell the mechanisms apart; <code>python -m examples.digits</code> trains "
        "ten, and docs/gallery.md has its table.",
    )
    page.table(
        f"Test accuracy after {epochs} epochs: mean and sample standard deviation over {seeds} "
        "seeds. Quadrant: attention mass in the quadrant asked about (25 % for uniform "
        "attention). Digit: mass in the 8 × 8 pixels of the digit (8 %). Read: share of "
        "the cells with any weight or density. Seconds: processor time of a training run. "
        "Settings were chosen with test accuracies in view.",
        *tabulate(result.runs, digits.COLUMNS),
    )
    page.picture(
        "digits",
        lambda: digits.draw_aims(result),
        "Three mechanisms in rows, canvases of four digits in columns. Coloured weights or "
        "densities, one colour for each question, and a dotted frame around each digit.",
        "Where each question looks (first seed). Dotted: the digit asked about. Cells: discrete"
        " weights. Dashed: the ellipse that holds 99.9 % of a normal density. Solid: the "
        "support of a truncated paraboloid, outside which nothing is read. Above: the answers, "
        "with the correct one in brackets after a wrong one.",
    )
    return {"methods": result.runs}


class Stage(NamedTuple):
    """A section of the page, with what to take away and the function that returns its numbers."""

    key: str
    title: str
    cost: str  # on one core
    takeaway: str
    show: Callable[[Settings, Page], Results]


STAGES = [
    Stage(
        "estimation",
        "Density estimates with true zeros",
        "half a minute",
        "The estimate is zero in gaps and beyond bounds, and fits as well as a tuned kernel.",
        show_estimates,
    ),
    Stage(
        "stream",
        "Intervals read from a stream",
        "a minute",
        "Attention learns which interval to read, and its density is zero elsewhere.",
        show_stream,
    ),
    Stage(
        "posterior",
        "A posterior whose support moves",
        "half a minute",
        "Plain NUTS is wrong here without saying so; one line of code cures it.",
        show_posterior,
    ),
    Stage(
        "digits",
        "Attention over an image",
        "a minute",
        "A mean and a covariance read an image about as well as a weight for every cell.",
        show_digits,
    ),
    Stage(
        "families",
        "One-dimensional families",
        "a second",
        "One number, α, leads from the normal density to the uniform.",
        show_families,
    ),
    Stage(
        "vowels",
        "The papers' comparison: spoken vowels",
        "a minute",
        "Densities with several modes beat those with one; without attention it is better still.",
        show_vowels,
    ),
    Stage(
        "leaves",
        "The papers' comparison: outlines of leaves",
        "a minute",
        "Kernel densities beat unimodal ones again, but not the network without attention.",
        show_leaves,
    ),
]


def run(settings: Settings, folder: Path) -> None:
    """Run all stages, and write the page and `results.json` after each."""
    # The operations are small, so more threads would not help; with one, results repeat exactly.
    torch.set_num_threads(1)
    start = time.perf_counter()
    lead = (
        "Densities that can be exactly zero, and attention built on them. Every number and picture "
        "on this page was made by <code>python -m examples.tour</code> with sparsefam "
        f"{sf.__version__} and torch {torch.__version__}; the numbers are also in "
        "<a href='results.json'>results.json</a>."
    )
    page = Page(folder, "sparsefam: a tour", lead)
    versions = {"sparsefam": sf.__version__, "torch": torch.__version__}
    results: Results = {"settings": asdict(settings), "versions": versions}
    for number, stage in enumerate(STAGES, 1):
        print(f"{number}/{len(STAGES)} {stage.title} (about {stage.cost})", flush=True)
        page.section(stage.key, stage.title, stage.takeaway)
        results[stage.key] = stage.show(settings, page)
        page.end()
        (folder / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    print(f"{page.path.resolve().as_uri()} ({time.perf_counter() - start:.0f} s in all)")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run the tour and write its page.")
    parser.add_argument("--seeds", type=positive, help="repetitions of every network (2)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that tries all parts")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    if options.seeds is not None:
        names = ("seeds", "leaf_seeds", "digit_seeds", "stream_seeds")
        settings = replace(settings, **dict.fromkeys(names, options.seeds))
    run(settings, options.out)


if __name__ == "__main__":
    main()
