"""Second stage: continuous attention on spoken vowels, next to discrete attention and to none."""

from statistics import fmean
from typing import Any

import torch

from .comparison import (
    LOGISTIC,
    NONE,
    Comparison,
    compare,
    method_name,
    vowel_basis,
)
from .page import Picture, Prose, Section, Table
from .progress import Reporter
from .settings import Settings
from .training import Run, accuracy_cell, summary
from .vowel_pictures import draw_accuracy, draw_attention, draw_input

__all__ = ["verdict", "vowels"]

# Test recordings that are drawn, of three speakers.
_SHOWN = (0, 150, 300)


def vowels(settings: Settings, reporter: Reporter) -> Section:
    """Trains, tabulates and draws."""
    found = compare(settings, reporter)
    parts = [*_task(found), *_outcome(found, settings), *_attention(found), *_caveats(found)]
    return Section("vowels", "Attention on spoken vowels", parts, _results(found))


def _task(found: Comparison) -> list[Prose | Table | Picture]:
    whole = found.recordings.series[_SHOWN[0]].reshape(-1)
    example = found.test[torch.tensor(_SHOWN[:1])]
    rows = [[f"{penalty:g}", f"{error:.3f}"] for penalty, error in found.errors.items()]
    return [
        Prose(
            "Who is speaking? <b>JapaneseVowels</b> has 640 recordings of nine speakers (270 to "
            "train, 370 to test), each 12 channels of 7 to 29 frames. Here the channels are laid "
            "end to end into one series of 84 to 348 points, and 30 % of the points, chosen at "
            "random, are all that a model sees: irregular series of unequal length. A ridge "
            "regression on 64 Gaussians turns each into a function <i>V</i> on [0, 1]. Continuous "
            "attention reads <i>V</i> through a density, discrete attention weighs the points."
        ),
        Picture(
            "input",
            lambda look: draw_input(look, whole, example, vowel_basis(), found.penalty),
            "A series of points; a third of them highlighted; two curves through these.",
            "A test recording. The solid line is the value function that is used; the dotted one, "
            "with a penalty of 0.1, passes closer to the points and swings between them.",
        ),
        Table(
            "The penalty is the one that best predicts a left-out fifth of the training points; "
            "labels and test recordings play no part.",
            ["ridge penalty", "root mean squared error"],
            rows,
        ),
    ]


def _outcome(found: Comparison, settings: Settings) -> list[Prose | Table | Picture]:
    named = {method_name(*key): runs for key, runs in found.runs.items()}
    rows = [[name, *_cells(runs)] for name, runs in named.items()]
    header = ["method", "accuracy, %", "seconds", "read, %"]
    return [
        Prose(verdict(found)),
        Table(
            f"Test accuracy after {settings.epochs} epochs: mean and sample standard deviation "
            f"over the seeds ({settings.seeds}), which change the points kept, the initialisation "
            "and the order of training; seconds of training a run, on one thread; read: the share "
            "of the observed points to which a head gives any weight or density.",
            header,
            rows,
        ),
        Picture(
            "accuracy",
            lambda look: draw_accuracy(look, named),
            "Test accuracy of every method: a dot for each seed and a bar at the mean.",
            "A dot for each seed, a bar at the mean.",
        ),
    ]


def _attention(found: Comparison) -> list[Prose | Table | Picture]:
    heads = next(iter(found.models.values())).heads
    shown = found.test[torch.tensor(_SHOWN)]
    return [
        Picture(
            "attention",
            lambda look: draw_attention(look, found.models, shown, vowel_basis()),
            "Four mechanisms in rows, three recordings in columns. Above, the series; below, where "
            "the heads attend, with the support of each in a bar.",
            f"Where {heads} heads look, one colour each (first seed). Above: the observed points "
            "and the value function. Below: densities, shaded over their supports, or weights as "
            "stems; the bars under the axis are the supports. A softmax attends to everything a "
            "little, a sparsemax to an interval or to a few points and to nothing else.",
        )
    ]


def _caveats(found: Comparison) -> list[Prose | Table | Picture]:
    return [
        Prose(
            "<b>How to read the numbers.</b> There is no validation split. The data set, the share "
            "of points kept, the learning rate (10<sup>−3</sup>, Adam, batches of 32), the epochs "
            "and the numbers of heads come from earlier work that had test accuracies in view, and "
            "the form of the mechanisms was settled with test accuracies in view as well. So all "
            "numbers are a little flattering, and differences of a few points mean nothing. This "
            "shows that the layers train on irregular data and what they attend to; it is no "
            "evidence that attention helps."
        ),
        Prose(
            "All networks share one encoder of the interpolated series (128 points; convolution "
            "with 4 filters of size 5, pooling, two layers of 256). “No attention” classifies its "
            "features by a linear layer; with attention, the features only choose where to look, "
            "and the classifier sees one number for each head. Continuous heads have a centre and "
            "a width; discrete heads have 17 numbers, and so may look at several places. All start "
            "from about the same scores, −(t − μ)²/2σ² with the centres μ spread over the domain "
            "and σ = 0.1. Logistic regression is on the standardised interpolated series."
        ),
    ]


def verdict(found: Comparison) -> str:
    """What the numbers say about attention and the plain classifiers."""
    means = {key: 100 * fmean(run.accuracy for run in runs) for key, runs in found.runs.items()}
    plain = {key: means.pop(key) for key in ((LOGISTIC, 0), (NONE, 0))}
    best, top = max(means, key=means.__getitem__), max(plain, key=plain.__getitem__)
    # no line break before a percent sign
    scores = f"{top[0]} {plain[top]:.1f}\u00a0%, {method_name(*best)} {means[best]:.1f}\u00a0%"
    if plain[top] >= means[best]:
        return (
            "<b>Attention does not win here.</b> A plain classifier, without any attention, beats "
            f"every mechanism ({scores}). One number for each head is a bottleneck, and the "
            "fewer heads, the narrower; the mechanisms can only be compared with each other."
        )
    return (
        "<b>Attention is not needed here.</b> The best of the mechanisms, picked after the fact, "
        f"is ahead of the plain classifiers in this run ({scores}); in earlier work, with more "
        "seeds, the plain classifiers beat every attention mechanism on these data."
    )


def _cells(runs: list[Run]) -> list[str]:
    found = _statistics(runs)
    read = found["read"]
    return [
        accuracy_cell(found),
        f"{found['mean_seconds']:.1f}",
        "–" if read is None else f"{100 * read:.0f}",
    ]


def _statistics(runs: list[Run]) -> dict[str, Any]:
    read = [run.read for run in runs if run.read is not None]
    return summary(runs) | {"read": fmean(read) if read else None}


def _results(found: Comparison) -> dict[str, Any]:
    return {
        "methods": [
            {"name": name, "heads": heads, **_statistics(runs)}
            for (name, heads), runs in found.runs.items()
        ],
        "penalty": found.penalty,
        "left_out_rmse": {f"{penalty:g}": error for penalty, error in found.errors.items()},
    }
