"""Train the networks whose attention the gallery shows, and save their attention.

`python -m examples.gallery_training` writes examples/gallery_attention.json in a few minutes. The
translation task is a grammar of a few dozen words, German to English, in which verbs, numbers and
times change places.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 5: densities with the
    mean and the variance of discrete weights.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparsefam as sf

from .data import QUESTIONS, Batch, load_canvases, load_series, observe
from .digits import CELLS, PEAK, READERS
from .series import Examples, builders
from .training import accuracy, train

NAMES = ("discrete", "softmax", "sparsemax")
PATH = Path(__file__).with_name("gallery_attention.json")

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


def sentence(choice: list[int], fronted: bool) -> tuple[list[str], list[str]]:
    """Return the German and the English words of the entries chosen from each list."""
    picked = [list(one.items())[i] for one, i in zip(LISTS, choice, strict=True)]
    subject, verb, colour, thing, when, ten, one = (de for de, _ in picked)
    what = f"{one} und {ten} {colour} {thing} {verb}"
    who, has = subject.split()
    german = f"{when} {has} {who} {what}" if fronted else f"{subject} {when} {what}"
    subject, verb, colour, thing, when, ten, one = (en for _, en in picked)
    return german.split(), f"{subject} {verb} {ten} {one} {colour} {thing} {when}".split()


@dataclass(frozen=True)
class Pairs(Batch):
    """Sentences as numbers of words, all equally long."""

    german: Tensor  # (B, 10)
    labels: Tensor  # (B, 9), the English words

    @classmethod
    def of(cls, some: list[tuple[list[str], list[str]]]) -> "Pairs":
        """Encode pairs of sentences."""
        german = [[GERMAN.index(word) for word in de] for de, _ in some]
        english = [[ENGLISH.index(word) for word in en] for _, en in some]
        return cls(torch.tensor(german), torch.tensor(english))


def pairs(count: int, generator: torch.Generator) -> Pairs:
    """Draw random sentences."""

    def draw() -> tuple[list[str], list[str]]:
        choice = [int(torch.randint(len(one), (), generator=generator)) for one in LISTS]
        return sentence(choice, bool(torch.rand((), generator=generator) < 0.5))

    return Pairs.of([draw() for _ in range(count)])


class Translator(nn.Module):
    """Translate by recurrent networks with attention between them.

    Args:
        alpha: 1 attends by normal densities, 2 by truncated parabolas; None by discrete softmax.
    """

    def __init__(self, alpha: float | None) -> None:
        super().__init__()
        self.read = nn.Embedding(len(GERMAN), CHANNELS)
        self.reader = nn.GRU(CHANNELS, CHANNELS // 2, batch_first=True, bidirectional=True)
        self.written = nn.Embedding(len(ENGLISH), CHANNELS)
        self.writer = nn.GRU(CHANNELS, CHANNELS, batch_first=True)
        self.attention: Any
        if alpha is None:
            self.attention = nn.MultiheadAttention(CHANNELS, 1, batch_first=True)
        else:
            options: dict[str, Any] = {"score": "moments", "batch_first": True}
            basis = sf.bases.GaussianRBF.grid(30, 0.1)
            self.attention = sf.attention.ContinuousAttention(
                CHANNELS, 1, basis, alpha=alpha, **options
            )
        self.word = nn.Linear(2 * CHANNELS, len(ENGLISH))

    def forward(self, batch: Pairs) -> tuple[Tensor, Any]:
        """Return logits (B, 9, words), each given the English words before it, and attention."""
        states, _ = self.reader(self.read(batch.german))
        before = torch.cat([torch.zeros_like(batch.labels[:, :1]), batch.labels[:, :-1]], 1)
        queries, _ = self.writer(self.written(before))
        places = (torch.arange(states.shape[1]) + 0.5) / states.shape[1]
        discrete = isinstance(self.attention, nn.MultiheadAttention)
        context, attention = self.attention(
            queries, states, states, *([] if discrete else [places])
        )
        return self.word(torch.cat([queries, context], -1)), attention


def learn(alpha: float | None, steps: int, seed: int = 0) -> tuple[Translator, float]:
    """Train a translator; return it and the share of the words of new sentences it has right."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Translator(alpha)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = pairs(64, generator)
        optimizer.zero_grad()
        cross_entropy(model(batch)[0].mT, batch.labels).backward()
        optimizer.step()
    new = pairs(500, generator)
    with torch.no_grad():
        right = model(new)[0].argmax(-1) == new.labels
    return model.eval(), right.float().mean().item()


def words(steps: int = 300) -> dict[str, Any]:
    """Return a German sentence, its translation, and the attention of each English word."""
    german, english = sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    saved: dict[str, Any] = {"german": german, "english": english, "right": []}
    for name, alpha in zip(NAMES, (None, 1.0, 2.0), strict=True):
        model, right = learn(alpha, steps)
        saved["right"].append(right)
        with torch.no_grad():
            _, attention = model(Pairs.of([(german, english)]))
        if alpha is None:
            saved[name] = rounded(attention[0])
        else:
            saved[name] = {x: rounded(getattr(attention, x)[0, 0]) for x in ("loc", "scale")}
    return saved


def images(count: int = 4000, epochs: int = 3) -> dict[str, Any]:
    """Return two canvases of digits, a question to each, and where three mechanisms look."""
    fit, test = load_canvases(count, seed=0)
    shown, questions = test[torch.arange(2)], (0, 3)
    asked = (torch.arange(2), torch.tensor(questions))
    saved: dict[str, Any] = {
        "images": rounded(shown.images),
        "corners": shown.corners[asked].tolist(),
        "asked": [QUESTIONS[k] for k in questions],
        "right": [],
    }
    for name, build in zip(NAMES, list(READERS.values())[1:], strict=True):
        torch.manual_seed(0)
        model: Any = build()
        train(model, fit, epochs, 0, peak=PEAK)
        with torch.no_grad():
            saved["right"].append(accuracy(model(test), test.labels) / 100)
            attention = model.attend(model.features(shown))[asked]
        if name == "discrete":
            saved[name] = rounded(attention.probs.unflatten(-1, (CELLS, CELLS)))
        else:
            loc, tril = attention.loc, attention.scale_tril
            saved[name] = {"loc": rounded(loc), "scale_tril": rounded(tril)}
    return saved


def speakers(epochs: int = 40) -> dict[str, Any]:
    """Return kernel weights of the first head for six recordings of each of three speakers."""
    generator = torch.Generator().manual_seed(0)
    fit, test = (
        Examples.fit(observe(load_series("JapaneseVowels", part), 0.3, generator), 1.0)
        for part in ("TRAIN", "TEST")
    )
    torch.manual_seed(0)
    model: Any = builders(9, 8)["kernel sparsemax"]()
    train(model, fit, epochs, 0)
    classes = (0, 3, 6)
    some = torch.cat([(test.labels == k).nonzero().flatten()[:6] for k in classes])
    with torch.no_grad():
        right = accuracy(model(test), test.labels) / 100
        weights = model.attend(test[some]).weights[:, 0].unflatten(0, (3, 6))
    return {"speakers": [k + 1 for k in classes], "weights": rounded(weights), "right": right}


def rounded(x: Tensor) -> Any:
    """Convert to lists of numbers with five significant digits."""
    return float(f"{x.item():.5g}") if x.dim() == 0 else [rounded(part) for part in x]


def main() -> None:
    """Run the command line, which has no options."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    saved = {"words": words(), "images": images(), "speakers": speakers()}
    PATH.write_text(json.dumps(saved, ensure_ascii=False) + "\n", encoding="utf-8")
    print(PATH, *(f"{name}: {part['right']}" for name, part in saved.items()), sep="\n")


if __name__ == "__main__":
    main()
