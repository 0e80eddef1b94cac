"""Pictures of the third stage: where each question makes a mechanism look."""

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import sparsefam as sf
from sparsefam.plotting import plot_attention_map

from .canvases import CANVAS, DIGIT, QUESTIONS, Canvases
from .look import Look
from .readers import CELLS, Discrete

__all__ = ["draw_aims"]

_COLUMNS, _NARROW_COLUMNS = 4, 2
# The same in all looks, since the canvases are black in all of them.
_COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")


def draw_aims(look: Look, models: Mapping[str, Discrete], canvases: Canvases) -> Figure:
    """A mechanism in each row, a canvas in each column, and all four questions in each panel."""
    columns = min(_NARROW_COLUMNS if look.narrow else _COLUMNS, len(canvases))
    figure, axes = look.panels(len(models), columns, 2.3)
    for row, (name, model) in enumerate(models.items()):
        for column in range(columns):
            ax = axes[row * columns + column]
            answers = _draw_aims(ax, model, canvases[torch.tensor([column])])
            ax.set_title(answers, loc="left")
            ax.set(xticks=[], yticks=[])
            if column == 0:
                ax.set_ylabel(name.replace(" (", "\n("))
    lines = [Line2D([], [], color=color) for color in _COLORS]
    figure.legend(lines, QUESTIONS, loc="outside lower center", ncols=columns)
    return figure


def _draw_aims(ax: Axes, model: Discrete, canvas: Canvases) -> str:
    """Draws one panel; the model's answers, with the right ones in brackets where they differ."""
    with torch.no_grad():
        attention = model.attend(model.features(canvas))
        answers = model(canvas).argmax(1)[0].tolist()
    ax.set_prop_cycle(color=_COLORS)
    heads = (
        attention.probs.unflatten(-1, (CELLS, CELLS))
        if isinstance(attention, sf.SparseCategorical)
        else attention
    )
    plot_attention_map(heads, canvas.images[0], ax=ax)
    side = DIGIT / CANVAS
    for corner, color in zip(canvas.boxes()[0][0].tolist(), _COLORS, strict=True):
        ax.add_patch(Rectangle(corner, side, side, fill=False, ls=":", lw=1.2, edgecolor=color))
    pairs = zip(answers, canvas.labels[0].tolist(), strict=True)
    return "  ".join(f"{a}" if a == right else f"{a} ({right})" for a, right in pairs)
