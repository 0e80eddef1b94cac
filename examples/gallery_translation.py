"""A small translation task, learned with discrete attention and with continuous attention.

German sentences whose verbs, numbers and times stand elsewhere than in English, from a grammar of
a few dozen words: enough for attention to have something to find, and learned in a minute.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: densities with the
    mean and the variance of discrete weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparsefam as sf

from .batches import Batch

__all__ = ["Pairs", "Translator", "learn", "pairs", "sentence"]

_SUBJECTS = {"ich habe": "i have", "wir haben": "we have", "sie hat": "she has"}
_VERBS = {"verkauft": "sold", "gekauft": "bought", "gefunden": "found", "gezählt": "counted"}
_COLOURS = {"rote": "red", "grüne": "green", "kleine": "small", "alte": "old"}
_THINGS = {"äpfel": "apples", "bücher": "books", "karten": "cards", "stühle": "chairs"}
_TIMES = {"im mai": "in may", "im juli": "in july", "im august": "in august"}
_TENS = {"zwanzig": "twenty", "dreißig": "thirty", "vierzig": "forty"}
_ONES = {"drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
_LISTS = (_SUBJECTS, _VERBS, _COLOURS, _THINGS, _TIMES, _TENS, _ONES)

_WORDS = {
    side: ["", *dict.fromkeys(" ".join(w for one in _LISTS for w in pick(one)).split())]
    for side, pick in {"de": dict.keys, "en": dict.values}.items()
}
_WORDS["de"] += ["und"]
_CHANNELS, _BASIS, _WIDTH = 48, 30, 0.1
_BATCH, _RATE = 64, 3e-3


def sentence(choice: list[int], fronted: bool) -> tuple[list[str], list[str]]:
    """The German words and the English ones, of the entries chosen from each list."""
    picked = [list(one.items())[i] for one, i in zip(_LISTS, choice, strict=True)]
    subject, verb, colour, thing, when, ten, one = (de for de, _ in picked)
    what = f"{one} und {ten} {colour} {thing} {verb}"
    who, has = subject.split()
    german = f"{when} {has} {who} {what}" if fronted else f"{subject} {when} {what}"
    subject, verb, colour, thing, when, ten, one = (en for _, en in picked)
    return german.split(), f"{subject} {verb} {ten} {one} {colour} {thing} {when}".split()


@dataclass(frozen=True)
class Pairs(Batch):
    """Sentences as numbers of words; all are equally long."""

    german: Tensor  # (B, 10)
    labels: Tensor  # (B, 9), the English words

    @classmethod
    def of(cls, german: list[list[str]], english: list[list[str]]) -> "Pairs":
        """From words."""
        numbers = [
            torch.tensor([[_WORDS[side].index(word) for word in one] for one in many])
            for side, many in (("de", german), ("en", english))
        ]
        return cls(*numbers)


def pairs(count: int, generator: torch.Generator) -> Pairs:
    """Random sentences."""
    drawn = [
        sentence(
            [int(torch.randint(len(one), (), generator=generator)) for one in _LISTS],
            bool(torch.rand((), generator=generator) < 0.5),
        )
        for _ in range(count)
    ]
    german, english = zip(*drawn, strict=True)
    return Pairs.of(list(german), list(english))


class Translator(nn.Module):
    """Recurrent reader and writer, with attention between.

    Args:
        alpha: Of the densities: 1 for normals, 2 for parabolas; None for discrete softmax.
    """

    def __init__(self, alpha: float | None) -> None:
        super().__init__()
        self.read = nn.Embedding(len(_WORDS["de"]), _CHANNELS)
        self.reader = nn.GRU(_CHANNELS, _CHANNELS // 2, batch_first=True, bidirectional=True)
        self.written = nn.Embedding(len(_WORDS["en"]), _CHANNELS)
        self.writer = nn.GRU(_CHANNELS, _CHANNELS, batch_first=True)
        self.attention: Any
        if alpha is None:
            self.attention = nn.MultiheadAttention(_CHANNELS, 1, batch_first=True)
        else:
            basis = sf.bases.GaussianRBF.grid(_BASIS, _WIDTH)
            self.attention = sf.attention.ContinuousAttention(
                _CHANNELS, 1, basis, alpha=alpha, score="moments", batch_first=True
            )
        self.word = nn.Linear(2 * _CHANNELS, len(_WORDS["en"]))

    def forward(self, batch: Pairs) -> tuple[Tensor, Any]:
        """Logits (B, 9, words) of each English word after those before it, and the attention."""
        states, _ = self.reader(self.read(batch.german))
        before = torch.cat([torch.zeros_like(batch.labels[:, :1]), batch.labels[:, :-1]], 1)
        queries, _ = self.writer(self.written(before))
        if isinstance(self.attention, nn.MultiheadAttention):
            context, found = self.attention(queries, states, states)
        else:
            places = (torch.arange(states.shape[1]) + 0.5) / states.shape[1]
            context, found = self.attention(queries, states, states, places)
        return self.word(torch.cat([queries, context], -1)), found


def learn(alpha: float | None, steps: int, seed: int = 0) -> tuple[Translator, float]:
    """A trained translator, and the share of the words of new sentences that it has right."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Translator(alpha)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    for _ in range(steps):
        batch = pairs(_BATCH, generator)
        optimizer.zero_grad()
        cross_entropy(model(batch)[0].mT, batch.labels).backward()
        optimizer.step()
    new = pairs(500, generator)
    with torch.no_grad():
        right = model(new)[0].argmax(-1) == new.labels
    return model.eval(), right.float().mean().item()
