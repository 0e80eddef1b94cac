"""The words of a review, coloured by what attention makes of them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from .look import Look
from .reviews_data import Corpus, Reviews, Vocabulary, words_of
from .reviews_readers import Attentive

__all__ = ["draw_words"]

_FONT = "DejaVu Sans Mono"
# Width of a letter of the font, in its size; inches that a line of words has.
_LETTER, _WIDE, _NARROW = 0.602, 7.3, 2.3
_POINTS = 801
_CURVE = 1.15
_LEAST = 1e-4


def draw_words(
    look: Look, models: Mapping[str, Attentive], vocabulary: Vocabulary, texts: Corpus
) -> Figure:
    """A panel for each text, and in it a line for each mechanism, below its density if any."""
    lines = sum(1 + _CURVE * model.continuous for model in models.values())
    figure, axes = look.panels(len(texts.texts), 1, 0.24 * lines + 0.4)
    ramp = LinearSegmentedColormap.from_list("ramp", look.ramp)
    colors = ScalarMappable(PowerNorm(0.5, 0, 1), ramp)
    reviews = vocabulary.encode(texts)
    for k, (ax, text) in enumerate(zip(axes, texts.texts, strict=True)):
        _draw_text(look, ax, models, words_of(text), reviews[torch.tensor([k])], colors)
        ax.set_title(text)
    bar = figure.colorbar(colors, ax=axes, location="bottom", aspect=60, fraction=0.03)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0])
    bar.set_label("share of a word in what is read; without colour: none; orange: below zero")
    return figure


def _draw_text(
    look: Look,
    ax: Axes,
    models: Mapping[str, Attentive],
    words: list[str],
    review: Reviews,
    colors: ScalarMappable,
) -> None:
    edges = np.cumsum([0.0, *(len(word) + 1 for word in words)])
    bottom, ticks = 0.0, []
    for model in models.values():
        bottom -= 1 + _CURVE * model.continuous
        ticks.append(bottom + 0.5)
        with torch.no_grad():
            shares = model.shares(review)[0]
            favour = torch.softmax(model(review), -1)[0, 1].item()
        _draw_line(look, ax, words, edges, bottom, (shares / shares.sum()).tolist(), colors)
        ax.text(edges[-1] + 1, bottom + 0.5, f"{100 * favour:.0f} %", va="center", fontsize=8)
        if model.continuous:
            _draw_density(look, ax, model, review, edges, bottom + 1)
    ax.text(edges[-1] + 1, 0.2, "in favour", fontsize=8)
    ax.set_yticks(ticks, list(models))
    ax.set(xlim=(0, edges[-1] + 9), ylim=(bottom - 0.1, 0.3), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _draw_line(
    look: Look,
    ax: Axes,
    words: list[str],
    edges: NDArray[np.float64],
    bottom: float,
    shares: list[float],
    colors: ScalarMappable,
) -> None:
    """Words in boxes; numbers of letters are the unit of the axis."""
    letters = edges[-1] + 9
    size = min(9.0, 72 * (_NARROW if look.narrow else _WIDE) / (_LETTER * letters))
    for word, left, right, share in zip(words, edges, edges[1:], shares, strict=False):
        color, ink = _colors(look, share, colors)
        ax.add_patch(Rectangle((left, bottom + 0.06), right - left, 0.88, facecolor=color, lw=0))
        middle = ((left + right) / 2, bottom + 0.47)
        ax.text(*middle, word, ha="center", va="center", family=_FONT, fontsize=size, color=ink)


def _colors(look: Look, share: float, colors: ScalarMappable) -> tuple[Any, str]:
    """Of a box and of the word in it."""
    if share < -_LEAST:
        return to_rgba(look.palette[1], min(1.0, math.sqrt(-share))), look.ink
    if share <= _LEAST:
        return look.background, look.ink
    red, green, blue, _ = color = colors.to_rgba(min(share, 1.0))
    return color, "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


def _draw_density(
    look: Look,
    ax: Axes,
    model: Attentive,
    review: Reviews,
    edges: NDArray[np.float64],
    bottom: float,
) -> None:
    """The density over [0, 1], in which all words are equally long, stretched with them."""
    t = torch.linspace(0, 1, _POINTS)
    with torch.no_grad():
        prob = model.density(model.states(review), review).prob(t.reshape(-1, 1, 1, 1))
    height = prob.flatten().numpy()
    x = np.interp(t.numpy(), np.linspace(0, 1, len(edges)), edges)
    top = bottom + 0.95 * _CURVE * height / height.max()
    ax.fill_between(x, bottom, top, color=look.palette[2], alpha=0.25, lw=0)
    inside = height > 0
    ax.plot(x[inside], top[inside], color=look.palette[2], lw=1.2)
