"""Third stage: a question about an image, answered by attention in two dimensions."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import sparsefam as sf

from .canvases import Canvases, load_canvases
from .digit_pictures import draw_aims
from .page import Picture, Prose, Section, Table
from .progress import Reporter, RunBars
from .readers import Aim, Continuous, Discrete, MeanPooling, Reader, aim_of
from .settings import Settings
from .training import Run, accuracy_cell, summary, train

__all__ = ["MEAN", "READERS", "Answers", "answer", "blind_limit", "digits", "verdict"]

MEAN = "mean pooling"
READERS: dict[str, Callable[[], Reader]] = {
    MEAN: MeanPooling,
    "discrete softmax": Discrete,
    "Gaussian (α = 1)": partial(Continuous, sf.MultivariateNormal),
    "truncated paraboloid (α = 2)": partial(Continuous, sf.TruncatedParaboloid),
}
_PEAK = 1e-2
# Accuracies closer than this are not ranked: seeds alone change them by about half as much.
_CLOSE = 0.02
_SHOWN = 4


@dataclass(frozen=True)
class Answers:
    """What the stage finds.

    Attributes:
        runs: One run for each seed, by method.
        aims: Where attention lay, one for each seed; empty without attention.
        models: Mechanisms trained with the first seed.
        test: Test canvases of the first seed.
    """

    runs: dict[str, list[Run]]
    aims: dict[str, list[Aim]]
    models: dict[str, Discrete]
    test: Canvases


def digits(settings: Settings, reporter: Reporter) -> Section:
    """Trains, tabulates and draws."""
    found = answer(settings, reporter)
    parts = [*_task(settings), *_outcome(found, settings), *_pictures(found), *_caveats()]
    results = {"methods": [{"name": name, **_numbers(found, name)} for name in found.runs]}
    return Section("digits", "Attention over an image", parts, results)


def answer(settings: Settings, reporter: Reporter) -> Answers:
    """Trains and tests all methods; seeds change digits, canvases, initialisation and order.

    Args:
        settings: Seeds, epochs, canvases.
        reporter: Told of every epoch.

    Returns:
        The runs, and what pictures need.
    """
    runs: dict[str, list[Run]] = {name: [] for name in READERS}
    aims: dict[str, list[Aim]] = {name: [] for name in READERS}
    models, tests = {}, []
    with reporter.runs(settings.digit_seeds * len(READERS), settings.digit_epochs) as bars:
        for seed in range(settings.digit_seeds):
            data = load_canvases(settings.canvases, seed)
            tests.append(data[1])
            for name, build in READERS.items():
                torch.manual_seed(seed)
                model = build()
                title = f"seed {seed + 1}, {name}"
                run, aim = _train_one(model, title, data, settings.digit_epochs, seed, bars)
                runs[name].append(run)
                aims[name] += aim
                if seed == 0 and isinstance(model, Discrete):
                    models[name] = model
    return Answers(runs, aims, models, tests[0])


def _train_one(
    model: Reader,
    title: str,
    data: tuple[Canvases, Canvases],
    epochs: int,
    seed: int,
    bars: RunBars,
) -> tuple[Run, list[Aim]]:
    """A run, reported epoch by epoch, and where its attention lay if it has any."""
    bars.begin(title)
    generator = torch.Generator().manual_seed(seed)
    run = train(model, data, epochs, generator, bars.epoch, _PEAK)
    aims = []
    if isinstance(model, Discrete):
        with torch.no_grad():
            aims = [aim_of(model.attend(model.features(data[1])), data[1])]
    bars.end(title, f"{100 * run.accuracy:.1f} % in {run.seconds:.1f} s")
    return run, aims


def _task(settings: Settings) -> list[Prose | Table | Picture]:
    return [
        Prose(
            "<i>Which digit is top left?</i> A canvas of 28 × 28 pixels has one of scikit-learn's "
            "handwritten digits (8 × 8) in each quadrant, at a random place in it. A network sees "
            "the canvas and one of four questions, each of which names a quadrant, and answers "
            "with the class of the digit there. "
            f"{settings.canvases} canvases of 1200 digits to train, "
            f"{3 * settings.canvases // 8} of the other 597 digits to test, four questions each."
        ),
        Prose(
            "All methods share one network of convolutions, which ends in 32 features on a grid of "
            "14 × 14 cells, and differ in what they hand to the classifier, next to the question. "
            "<b>Mean pooling</b> hands it the mean of the features. <b>Discrete softmax</b> gives "
            "each cell a weight, from the question, the cell's features and its place. The "
            "<b>continuous</b> ones take the same weights' mean and covariance, and read a "
            "function of the image, fitted to the features by ridge regression on 7 × 7 Gaussians, "
            "through the density that has them: normal, or a paraboloid clipped at zero, which "
            "lives on an ellipse."
        ),
    ]


def _outcome(found: Answers, settings: Settings) -> list[Prose | Table | Picture]:
    header = [
        "method",
        "accuracy, %",
        "in the quadrant, %",
        "on the digit, %",
        "read, %",
        "seconds",
    ]
    rows = [[name, *_cells(_numbers(found, name))] for name in found.runs]
    return [
        Prose(verdict(found.runs, found.test.labels)),
        Table(
            f"Test accuracy after {settings.digit_epochs} epochs: mean and sample standard "
            f"deviation over the seeds ({settings.digit_seeds}), which change the digits, the "
            "canvases, the initialisation and the order of training. In the quadrant: mass of the "
            "attention in the quadrant that was asked about (evenly spread attention has 25 % "
            "there). On the digit: mass in the 8 × 8 pixels of the digit there (evenly spread: "
            "8 %). Discrete weights count where the centre of their cell lies; the mass of a "
            "density is its own, not that of the weights it was matched to, as the share of 200 "
            "samples; what falls outside the image is lost. Read: share of the cells that have any "
            "weight or, at their centre, density. All three are means over the test questions. "
            "Seconds: processor time of training a run.",
            header,
            rows,
        ),
    ]


def _pictures(found: Answers) -> list[Prose | Table | Picture]:
    shown = found.test[torch.arange(_SHOWN)]
    return [
        Picture(
            "digits",
            lambda look: draw_aims(look, found.models, shown),
            "Three mechanisms in rows, canvases of four digits in columns. Coloured weights or "
            "densities, one colour for each question, and a dotted frame around each digit.",
            "Where each question looks, one colour each: the first test canvases, first seed. "
            "Dotted: the digit that was asked about. Cells: discrete weights. Dashed: the ellipse "
            "that holds all but a thousandth of a normal density, whose support is the whole "
            "plane. Solid: the support of a truncated paraboloid; outside it the fitted function "
            "is not read. A feature sees 16 × 16 pixels, so an ellipse beside its digit may do. "
            "Above: the answers in the order of the questions, the right one in brackets where the "
            "answer is wrong.",
        )
    ]


def _caveats() -> list[Prose | Table | Picture]:
    return [
        Prose(
            "<b>How to read the numbers.</b> There is no validation split: learning rate, epochs, "
            "layers and the width of the Gaussians were chosen with test accuracies in view. The "
            "same writers wrote the digits for training and for testing. The task is built so that "
            "one must look in the right place; it says nothing on which attention is better at "
            "harder ones."
        )
    ]


def verdict(runs: dict[str, list[Run]], labels: Tensor) -> str:
    """What the accuracies say, given the digits of the test canvases (B, 4)."""
    means = {name: fmean(run.accuracy for run in one) for name, one in runs.items()}
    mean = means.pop(MEAN)
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    # no line break before a percent sign
    scores = (
        f"mean pooling {100 * mean:.1f}\u00a0%, the mechanisms {100 * means[least]:.1f}\u00a0% "
        f"({least}) to {100 * means[most]:.1f}\u00a0% ({most})"
    )
    blind = (
        "Whoever knows all four digits, but not which of them is asked for, is right at most "
        f"{100 * blind_limit(labels):.0f}\u00a0% of the time."
    )
    if means[least] < mean + _CLOSE:
        return f"<b>Not every mechanism learned where to look</b> ({scores}). {blind}"
    between = (
        "The mechanisms are less than two points apart, too little to rank them."
        if means[most] - means[least] < _CLOSE
        else f"The best of the mechanisms in this run: {most}."
    )
    return f"<b>Here attention is needed</b> ({scores}). {blind} {between}"


def blind_limit(labels: Tensor) -> float:
    """Share of questions right for one who always answers the commonest digit of the canvas."""
    same = labels.unsqueeze(-1) == labels.unsqueeze(-2)
    return same.float().mean(-1).amax(-1).mean().item()


def _numbers(found: Answers, name: str) -> dict[str, Any]:
    aims = [asdict(aim) for aim in found.aims[name]]
    means = {key: fmean(aim[key] for aim in aims) for key in aims[0]} if aims else {}
    return summary(found.runs[name]) | {"attention": means or None}


def _cells(numbers: dict[str, Any]) -> list[str]:
    aim = numbers["attention"]
    shares = [f"{100 * share:.1f}" for share in aim.values()] if aim else ["–"] * 3
    return [accuracy_cell(numbers), *shares, f"{numbers['mean_seconds']:.1f}"]
