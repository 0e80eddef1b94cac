"""What a comparison of mechanisms says: its table, its pictures and its numbers."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from .comparison import LOGISTIC, NONE, Comparison, intervals_read
from .page import Picture, Prose, Table
from .series_pictures import (
    View,
    draw_accuracy,
    draw_attention,
    draw_heads,
    draw_input,
    heights_of,
)
from .training import Run, accuracy_cell, summary

__all__ = [
    "HEADER",
    "attention_picture",
    "bumps",
    "heads_picture",
    "input_picture",
    "interval_counts",
    "order",
    "outcome",
    "results",
    "rows",
    "verdict",
]

HEADER = ("method", "accuracy, %", "parameters", "seconds", "read, %", "intervals")
_ONE, _SOME, _MANY = (
    ("Gaussian", "truncated parabola"),
    ("Gaussian mixture",),
    ("kernel softmax", "kernel sparsemax"),
)


def input_picture(found: Comparison, key: str, index: int, caption: str) -> Picture:
    """One test recording, and the value function through the points kept."""
    whole = found.recordings.series[index].reshape(-1)
    example = found.test[torch.tensor([index])]
    return Picture(
        f"{key}-input",
        lambda look: draw_input(look, whole, example, found.penalty),
        "A series of points; some of them highlighted; two curves through these.",
        caption,
    )


def outcome(found: Comparison, key: str) -> list[Prose | Table | Picture]:
    """The verdict, the table and the accuracies of all seeds."""
    task = found.task
    return [
        Prose(f"{verdict(found.runs)} {bumps(found.runs)} {order(found.runs)}"),
        Table(
            f"Test accuracy after {task.epochs} epochs, {task.heads} heads: mean and sample "
            f"standard deviation over the seeds ({task.seeds}), which change the points kept, the "
            "initialisation and the order of training; the number of parameters that are trained; "
            "processor seconds of training a run; read: the share of the observed points to which "
            "a head gives any weight or density; intervals: how many make up the support of a "
            "head's density, on average.",
            HEADER,
            rows(found.runs),
        ),
        Picture(
            f"{key}-accuracy",
            lambda look: draw_accuracy(look, found.runs),
            "Test accuracy of every method: a dot for each seed and a bar at the mean.",
            "A dot for each seed, a bar at the mean.",
        ),
    ]


def attention_picture(
    found: Comparison,
    key: str,
    views: Mapping[str, View],
    indices: Sequence[int],
    label: str,
    caption: str,
) -> Picture:
    """Views of test examples: where mechanisms attend."""
    shown = found.test[torch.tensor(indices)]
    return Picture(
        f"{key}-attention",
        lambda look: draw_attention(look, views, shown, label),
        "Mechanisms in rows, recordings in columns. Above, the series; below, where the heads "
        "attend, with the support of each in a bar.",
        caption,
    )


def heads_picture(found: Comparison, key: str, label: str, caption: str) -> Picture:
    """The first head of the densities of several bumps, in every test recording."""
    labels = found.test.labels
    with torch.no_grad():
        heights = {
            name: heights_of(found.models[name].attend(found.test, [0]), labels)
            for name in (*_SOME, *_MANY)
        }
    return Picture(
        f"{key}-heads",
        lambda look: draw_heads(look, heights, labels, label),
        "Density over position, a row for each test recording, sorted by class; no colour "
        "outside the supports.",
        caption,
    )


def verdict(runs: Mapping[str, Sequence[Run]]) -> str:
    """What the numbers say about attention and the plain classifiers."""
    means = _means(runs)
    plain = {name: means.pop(name) for name in (LOGISTIC, NONE)}
    best, top = max(means, key=means.__getitem__), max(plain, key=plain.__getitem__)
    # no line break before a percent sign
    scores = f"{top} {plain[top]:.1f}\u00a0%, {best} {means[best]:.1f}\u00a0%"
    if plain[top] >= means[best]:
        return (
            "<b>Attention does not win here.</b> A plain classifier, without any attention, beats "
            f"every mechanism on average ({scores}). One number for each head is a bottleneck; "
            "the mechanisms can only be compared with each other."
        )
    seeds = list(zip(runs[best], runs[top], strict=True))
    wins = sum(one.accuracy > other.accuracy for one, other in seeds)
    return (
        "<b>Attention is not shown to help here.</b> The best of the mechanisms, picked after the "
        f"fact, is ahead of the better plain classifier on average ({scores}), and in {wins} of "
        f"{len(seeds)} seeds."
    )


def bumps(runs: Mapping[str, Sequence[Run]]) -> str:
    """How densities of one bump, of eight and of many compare."""
    means = _means(runs)
    one, some, many = (
        " and ".join(f"{means[name]:.1f}" for name in names) for names in (_ONE, _SOME, _MANY)
    )
    return (
        f"Among the densities, those of one bump are right in {one}\u00a0% (Gaussian, truncated "
        f"parabola), the mixture of eight Gaussians in {some}\u00a0%, those of a kernel in "
        f"{many}\u00a0% (softmax, sparsemax). More bumps also take more parameters."
    )


def order(runs: Mapping[str, Sequence[Run]]) -> str:
    """In how many seeds the paper's order of the densities holds."""
    seeds = len(runs[_SOME[0]])
    pairs = [(_ONE, _SOME), (_SOME, _MANY), (_ONE, _MANY)]
    one_some, some_many, one_many = (
        sum(
            max(runs[name][seed].accuracy for name in low)
            < min(runs[name][seed].accuracy for name in high)
            for seed in range(seeds)
        )
        for low, high in pairs
    )
    return (
        "In Moreno et al. (2022, table 2) the densities come in this order: one bump, mixture, "
        f"kernels. Here, in {one_some} of {seeds} seeds both densities of one bump are behind the "
        f"mixture, in {some_many} the mixture is behind both kernels, and in {one_many} both "
        "densities of one bump are behind both kernels."
    )


def interval_counts(found: Comparison) -> str:
    """How many intervals the heads of the kernel sparsemax have, in words."""
    with torch.no_grad():
        counts = intervals_read(found.models["kernel sparsemax"].attend(found.test))
    if counts is None:
        raise ValueError("found must have densities as kernel sparsemax, got weights")
    several = (counts > 1).double().mean().item()
    return (
        "Over all test recordings, a head of the kernel sparsemax has "
        f"{counts.double().mean().item():.1f} intervals on average, {int(counts.max())} at most, "
        f"and more than one in {100 * several:.0f}\u00a0% of the cases."
    )


def _means(runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    return {name: 100 * fmean(run.accuracy for run in some) for name, some in runs.items()}


def rows(runs: Mapping[str, list[Run]]) -> list[list[str]]:
    """A row of the table for each method."""
    return [[name, *_cells(some)] for name, some in runs.items()]


def _cells(runs: list[Run]) -> list[str]:
    found = _statistics(runs)
    read, intervals = found["read"], found["intervals"]
    return [
        accuracy_cell(found),
        f"{found['parameters']:,}".replace(",", "\u00a0"),
        f"{found['mean_seconds']:.1f}",
        "–" if read is None else f"{100 * read:.0f}",
        "–" if intervals is None else f"{intervals:.1f}",
    ]


def _statistics(runs: list[Run]) -> dict[str, Any]:
    found = summary(runs)
    for name in ("read", "intervals"):
        values = [getattr(run, name) for run in runs]
        found[name] = None if None in values else fmean(values)
    return found


def results(found: Comparison) -> dict[str, Any]:
    """The comparison as numbers for a program."""
    return {
        "methods": [
            {"name": name, "heads": found.task.heads, **_statistics(runs)}
            for name, runs in found.runs.items()
        ],
        "penalty": found.penalty,
        "left_out_rmse": {f"{penalty:g}": error for penalty, error in found.errors.items()},
    }
