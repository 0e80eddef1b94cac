"""Translate by attention, and draw where each English word looks among the German ones.

The sentences come from a grammar of a few dozen words, German to English, in which verbs, numbers
and times change places. `python -m examples.translation` trains three networks in a minute or two
and writes the picture of docs/gallery.md to demo/translation.png.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5 and Figure 2:
    densities with the mean and the variance of discrete weights.
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from tqdm import trange

import sparsefam as sf

from .common import run

# Choices for each part of a sentence, German and English.
LISTS = (
    {"ich habe": "i have", "wir haben": "we have", "sie hat": "she has"},
    {"verkauft": "sold", "gekauft": "bought", "gefunden": "found", "gezählt": "counted"},
    {"rote": "red", "grüne": "green", "kleine": "small", "alte": "old"},
    {"äpfel": "apples", "bücher": "books", "karten": "cards", "stühle": "chairs"},
    {"im mai": "in may", "im juli": "in july", "im august": "in august"},
    {"zwanzig": "twenty", "dreißig": "thirty", "vierzig": "forty"},
    {"drei": "three", "vier": "four", "fünf": "five", "sechs": "six"},
)
GERMAN = ["", *dict.fromkeys(" ".join(x for one in LISTS for x in one).split()), "und"]
ENGLISH = ["", *dict.fromkeys(" ".join(x for one in LISTS for x in one.values()).split())]
CHANNELS = 48
# Discrete softmax, normal densities and truncated parabolas.
ALPHAS = {"discrete softmax": None, "continuous softmax": 1.0, "continuous sparsemax": 2.0}


def sentence(choice: list[int], fronted: bool) -> tuple[list[str], list[str]]:
    """Return the ten German and the nine English words of the entries chosen from each list."""
    picked = [list(one.items())[i] for one, i in zip(LISTS, choice, strict=True)]
    subject, verb, color, thing, when, ten, one = (de for de, _ in picked)
    what = f"{one} und {ten} {color} {thing} {verb}"
    who, has = subject.split()
    german = f"{when} {has} {who} {what}" if fronted else f"{subject} {when} {what}"
    subject, verb, color, thing, when, ten, one = (en for _, en in picked)
    return german.split(), f"{subject} {verb} {ten} {one} {color} {thing} {when}".split()


def encode(pairs: list[tuple[list[str], list[str]]]) -> tuple[Tensor, Tensor]:
    """Return the numbers of the words, (B, 10) and (B, 9)."""
    german = [[GERMAN.index(word) for word in de] for de, _ in pairs]
    english = [[ENGLISH.index(word) for word in en] for _, en in pairs]
    return torch.tensor(german), torch.tensor(english)


def draw_pairs(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random sentences."""
    pairs = []
    for _ in range(count):
        choice = [int(torch.randint(len(one), (), generator=generator)) for one in LISTS]
        pairs.append(sentence(choice, bool(torch.rand((), generator=generator) < 0.5)))
    return encode(pairs)


class Translator(nn.Module):
    """Translate by recurrent networks with attention between them."""

    def __init__(self, alpha: float | None) -> None:
        super().__init__()
        self.read = nn.Embedding(len(GERMAN), CHANNELS)
        self.reader = nn.GRU(CHANNELS, CHANNELS // 2, batch_first=True, bidirectional=True)
        self.written = nn.Embedding(len(ENGLISH), CHANNELS)
        self.writer = nn.GRU(CHANNELS, CHANNELS, batch_first=True)
        if alpha is None:
            self.attention: nn.Module = nn.MultiheadAttention(CHANNELS, 1, batch_first=True)
        else:
            regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(30, 0.1))
            self.attention = sf.attention.ContinuousAttention(
                CHANNELS, 1, regression, alpha, score="moments", batch_first=True
            )
        self.word = nn.Linear(2 * CHANNELS, len(ENGLISH))

    def forward(self, german: Tensor, english: Tensor) -> tuple[Tensor, Any]:
        """Return logits (B, 9, words), each given the English words before it, and attention."""
        states, _ = self.reader(self.read(german))
        queries, _ = self.writer(self.written(pad(english[:, :-1], (1, 0))))
        if isinstance(self.attention, nn.MultiheadAttention):
            context, attention = self.attention(queries, states, states)
        else:
            places = (torch.arange(states.shape[1]) + 0.5) / states.shape[1]
            context, attention = self.attention(queries, states, states, places)
        return self.word(torch.cat([queries, context], -1)), attention


def learn(alpha: float | None, steps: int = 300, seed: int = 1) -> tuple[Translator, float]:
    """Train a translator; return it and the share of the words of new sentences it has right.

    Two of the first eight seeds stop at 92 and 97 % with the continuous sparsemax.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Translator(alpha)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in trange(steps, disable=None):
        german, english = draw_pairs(64, generator)
        optimizer.zero_grad()
        cross_entropy(model(german, english)[0].mT, english).backward()
        optimizer.step()
    german, english = draw_pairs(500, generator)
    with torch.no_grad():
        right = model(german, english)[0].argmax(-1) == english
    return model, right.float().mean().item()


@torch.no_grad()
def shares(model: Translator, german: list[str], english: list[str]) -> Tensor:
    """Return the share of each German word in what each English one reads, (9, 10).

    The share of a word is the density's mass in its part of [0, 1].
    """
    _, attention = model(*encode([(german, english)]))
    if isinstance(attention, Tensor):
        return attention[0]
    cdf = attention.cdf(torch.linspace(0, 1, len(german) + 1)[1:-1].reshape(-1, 1, 1, 1))
    # Mass outside [0, 1] belongs to the first and the last word.
    table = pad(pad(cdf[:, 0, 0], (0, 0, 1, 0)), (0, 0, 0, 1), value=1.0).diff(dim=0).mT
    return table.clamp_min(1e-30) if isinstance(attention, sf.Normal) else table  # rounded tails


def draw(tables: dict[str, Tensor], german: list[str], english: list[str]) -> Figure:
    """Draw, like Figure 2 of Martins et al., how English words attend to German ones."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 4.5), sharey=True, layout="constrained")
    for ax, (title, table) in zip(axes, tables.items(), strict=True):
        shown = np.ma.masked_equal(table, 0)
        mesh = ax.pcolormesh(
            shown, norm=PowerNorm(0.5, 0, 1), cmap="Blues", edgecolors="k", linewidth=0.3
        )
        ax.set_facecolor("0.85")
        ax.set(title=title, aspect="equal")
        ax.set_xticks(np.arange(len(german)) + 0.5, german, rotation=90)
    axes[0].set_yticks(np.arange(len(english)) + 0.5, english)
    axes[0].invert_yaxis()
    bar = figure.colorbar(mesh, ax=axes, location="bottom", aspect=60, fraction=0.04)
    bar.set_ticks([0, 0.01, 0.1, 0.25, 0.5, 1])
    bar.set_label("share of a word in what is read; gray: exactly zero")
    return figure


def main(out: Path = Path("demo")) -> None:
    """Train three translators, and draw their attention to one sentence."""
    german, english = sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    tables = {}
    for name, alpha in ALPHAS.items():
        model, right = learn(alpha)
        tables[name] = shares(model, german, english)
        print(f"{name}: {100 * right:.1f} % of the words of new sentences are right", flush=True)
    draw(tables, german, english).savefig(out / "translation.png", dpi=160)


if __name__ == "__main__":
    run(main)
