"""Second stage: continuous attention on spoken vowels, next to discrete attention and to none."""

from .comparison import Comparison, Task, compare
from .outcome import (
    HEADER,
    attention_picture,
    heads_picture,
    input_picture,
    interval_counts,
    outcome,
    results,
    rows,
)
from .page import Picture, Prose, Section, Table
from .progress import Reporter
from .settings import Settings

__all__ = ["vowels"]

# Test recordings that are drawn, of three speakers, and the mechanisms shown on them.
_SHOWN = (0, 150, 300)
_MECHANISMS = (
    "discrete sparsemax",
    "truncated parabola",
    "Gaussian mixture",
    "kernel softmax",
    "kernel sparsemax",
)


def vowels(settings: Settings, reporter: Reporter) -> Section:
    """Trains, tabulates and draws."""
    found = compare(
        Task("JapaneseVowels", 9, 0.3, settings.heads, settings.epochs, 1e-3, settings.seeds),
        reporter,
    )
    reporter.table(HEADER, rows(found.runs))
    parts = [*_task(found), *outcome(found, "vowels"), *_attention(found), *_caveats()]
    return Section("vowels", "Attention on spoken vowels", parts, results(found))


def _task(found: Comparison) -> list[Prose | Table | Picture]:
    errors = [[f"{penalty:g}", f"{error:.3f}"] for penalty, error in found.errors.items()]
    return [
        Prose(
            "Who is speaking? <b>JapaneseVowels</b> has 640 recordings of nine speakers (270 to "
            "train, 370 to test), each 12 channels of 7 to 29 frames. Here the channels are laid "
            "end to end into one series of 84 to 348 points, and 30 % of the points, chosen at "
            "random, are all that a model sees: irregular series of unequal length. A ridge "
            "regression on 64 Gaussians turns each into a function <i>V</i> on [0, 1]. Continuous "
            "attention reads <i>V</i> through a density, discrete attention weighs the points. "
            "The densities are the five that Moreno et al. (2022, table 2) compare: a Gaussian, a "
            "truncated parabola, a mixture of eight Gaussians, and the softmax and the sparsemax "
            "of a kernel expansion, a score of 64 narrow bumps."
        ),
        input_picture(
            found,
            "vowels",
            _SHOWN[0],
            "A test recording. The solid line is the value function that is used; the dotted one, "
            "with a penalty of 0.1, passes closer to the points and swings between them.",
        ),
        Table(
            "The penalty is the one that best predicts a left-out fifth of the training points; "
            "labels and test recordings play no part.",
            ["ridge penalty", "root mean squared error"],
            errors,
        ),
    ]


def _attention(found: Comparison) -> list[Picture]:
    heads = attention_picture(
        found,
        "vowels",
        {name: found.models[name].attend for name in _MECHANISMS},
        _SHOWN,
        "speaker",
        f"Where {found.task.heads} heads look, one colour each (first seed). Above: the observed "
        "points and the value function. Below: densities, shaded over their supports, or weights "
        "as stems, each panel to its own scale; the bars under the axis are the supports. A "
        "softmax attends to everything a little, a sparsemax to an interval, to several, or to a "
        "few points, and to nothing else. "
        f"{interval_counts(found)}",
    )
    everywhere = heads_picture(
        found,
        "vowels",
        "speaker",
        "The first head of the first seed in all test recordings, a row for each, sorted by "
        "speaker (figure 1 of Moreno et al. shows one head like this). No colour: outside the "
        "supports, where the density is exactly zero.",
    )
    return [heads, everywhere]


def _caveats() -> list[Prose]:
    return [
        Prose(
            "<b>How to read the numbers.</b> There is no validation split. The data set, the share "
            "of points kept, the learning rate (10<sup>−3</sup>, Adam, batches of 32), the epochs "
            "and the number of heads come from earlier work that had test accuracies in view, and "
            "the form and the starting values of the mechanisms were settled with test accuracies "
            "in view as well. So all numbers are a little flattering, and differences of a few "
            "points mean nothing. This shows that the layers train on irregular data and what they "
            "attend to; it is no evidence that attention helps."
        ),
        Prose(
            "All networks share one encoder of the interpolated series (128 points; convolution "
            "with 4 filters of size 5, pooling, two layers of 256). “No attention” classifies its "
            "features by a linear layer; with attention, the features only choose where to look, "
            "and the classifier sees one number for each head. A head has a centre and a width "
            "(Gaussian, parabola), 24 numbers (mixture), 64 (kernels: one for each inducing point "
            "of a Gaussian kernel with a length scale of 0.03), or 17 (discrete). Heads with a "
            "centre start spread over the domain, with σ = 0.1; discrete heads start from about "
            "the same scores; a mixture’s eight bumps start spread over the domain, with "
            "σ = 0.05; kernels start near the uniform density, with weights drawn eight times as "
            "wide as usual, which keeps the heads apart. Logistic regression is on the "
            "standardised interpolated series."
        ),
    ]
