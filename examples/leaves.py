"""Third stage: the same mechanisms on outlines of leaves, where many heads read many intervals."""

from functools import partial

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
from .page import Picture, Prose, Section
from .progress import Reporter
from .settings import Settings

__all__ = ["leaves"]

# Test outlines that are drawn, of three species, the mechanisms and how many heads of each.
_SHOWN = (10, 28, 0)
_MECHANISMS = ("truncated parabola", "Gaussian mixture", "kernel sparsemax")
_HEADS = 4


def leaves(settings: Settings, reporter: Reporter) -> Section:
    """Trains, tabulates and draws."""
    heads, epochs = settings.leaf_heads, settings.leaf_epochs
    found = compare(Task("OSULeaf", 6, 0.1, heads, epochs, 3e-4, settings.seeds), reporter)
    reporter.table(HEADER, rows(found.runs))
    parts = [*_task(found), *outcome(found, "leaves"), *_attention(found)]
    return Section("leaves", "Attention on outlines of leaves", parts, results(found))


def _task(found: Comparison) -> list[Prose | Picture]:
    return [
        Prose(
            "Which species is the leaf from? <b>OSULeaf</b> has 442 outlines of leaves of six "
            "species (200 to train, 242 to test), each a series of 427 points, of which 10 % are "
            "kept here. The networks are those of the vowels, with "
            f"{found.task.heads} heads and a learning rate of 3·10<sup>−4</sup>; the penalty is "
            f"chosen in the same way ({found.penalty:g}, error "
            f"{found.errors[found.penalty]:.2f} at left-out points). To keep the tour short, "
            f"training ends after {found.task.epochs} epochs, when the loss still falls. What was "
            "said there about how to read the numbers holds here too."
        ),
        input_picture(
            found,
            "leaves",
            _SHOWN[0],
            "A test outline. The solid line is the value function that is used; where no points "
            "are kept for a while, it tends to zero, the mean of every outline.",
        ),
    ]


def _attention(found: Comparison) -> list[Picture]:
    heads = slice(None, None, max(1, found.task.heads // _HEADS))
    shown = len(range(found.task.heads)[heads])
    some = attention_picture(
        found,
        "leaves",
        {name: partial(found.models[name].attend, heads=heads) for name in _MECHANISMS},
        _SHOWN,
        "species",
        f"Where {shown} of the {found.task.heads} heads look (evenly chosen, first seed). A "
        "truncated parabola is one interval. A mixture has several bumps, but nowhere a density "
        "of zero; nor has the softmax of a kernel. The sparsemax of a kernel reads several "
        f"intervals, their number and their ends set by the data. {interval_counts(found)}",
    )
    everywhere = heads_picture(
        found,
        "leaves",
        "species",
        "The first head in all test outlines, a row for each, sorted by species. No colour: "
        "outside the supports, where the density is exactly zero.",
    )
    return [some, everywhere]
