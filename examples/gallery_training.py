"""Trains the networks whose attention the gallery shows, and keeps what they attended to.

`python -m examples.gallery_training` writes examples/gallery_attention.json, in a few minutes. The
recordings are those of aeon's wheel, the digits scikit-learn's.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .canvases import QUESTIONS, load_canvases
from .comparison import builders, value_basis
from .digits import READERS
from .gallery_translation import Pairs, learn, sentence
from .mechanisms import Examples
from .readers import CELLS
from .recordings import load_recordings, observe
from .training import train

__all__ = ["NAMES", "PATH", "images", "main", "speakers", "words"]

NAMES = ("discrete", "softmax", "sparsemax")
PATH = Path(__file__).with_name("gallery_attention.json")
_CLASSES, _EACH, _HEAD = (0, 3, 6), 6, 0
# The questions to the first canvases.
_ASKED = (0, 3)
_CONTINUOUS = ("Gaussian (α = 1)", "truncated paraboloid (α = 2)")


def words(steps: int = 300) -> dict[str, Any]:
    """A German sentence, its translation, and what each English word attends to."""
    german, english = sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    found: dict[str, Any] = {"german": german, "english": english, "right": []}
    for name, alpha in zip(NAMES, (None, 1.0, 2.0), strict=True):
        model, right = learn(alpha, steps)
        found["right"].append(right)
        with torch.no_grad():
            _, attention = model(Pairs.of([german], [english]))
        if alpha is None:
            found[name] = _rounded(attention[0])
        else:
            loc, scale = attention.loc[0, 0], attention.scale[0, 0]
            found[name] = {"loc": _rounded(loc), "scale": _rounded(scale)}
    return found


def images(count: int = 4000, epochs: int = 3) -> dict[str, Any]:
    """Two canvases of digits, a question to each, and where three mechanisms look."""
    data = load_canvases(count, seed=0)
    shown = data[1][torch.arange(len(_ASKED))]
    asked = (torch.arange(len(_ASKED)), torch.tensor(_ASKED))
    found: dict[str, Any] = {
        "images": _rounded(shown.images),
        "corners": shown.corners[asked].tolist(),
        "asked": [QUESTIONS[k] for k in _ASKED],
        "right": [],
    }
    for name, reader in zip(NAMES, ("discrete softmax", *_CONTINUOUS), strict=True):
        torch.manual_seed(0)
        model: Any = READERS[reader]()
        run = train(model, data, epochs, torch.Generator().manual_seed(0), _silent, 1e-2)
        found["right"].append(run.accuracy)
        with torch.no_grad():
            attention = model.attend(model.features(shown))
        if name == "discrete":
            found[name] = _rounded(attention.probs[asked].unflatten(-1, (CELLS, CELLS)))
        else:
            loc, tril = attention.loc[asked], attention.scale_tril[asked]
            found[name] = {"loc": _rounded(loc), "scale_tril": _rounded(tril)}
    return found


def speakers(epochs: int = 40) -> dict[str, Any]:
    """Weights of the first head's kernel sparsemax, for six recordings of three speakers."""
    generator = torch.Generator().manual_seed(0)
    fit, test = (
        Examples.fit(observe(part, 0.3, generator), value_basis(), 1.0)
        for part in load_recordings("JapaneseVowels")
    )
    torch.manual_seed(0)
    model: Any = builders(9, 8)["kernel sparsemax"]()
    run = train(model, (fit, test), epochs, torch.Generator().manual_seed(0), _silent)
    rows = [(test.labels == k).nonzero().flatten()[:_EACH] for k in _CLASSES]
    with torch.no_grad():
        queries = model.query(model.encoder(test[torch.cat(rows)].grid)).unflatten(-1, (8, -1))
    weights = queries[:, _HEAD].unflatten(0, (len(_CLASSES), _EACH))
    names = [k + 1 for k in _CLASSES]
    return {"speakers": names, "weights": _rounded(weights), "right": run.accuracy}


def _silent(epoch: int, loss: float) -> None:
    """No word of an epoch."""


def _rounded(x: Tensor) -> Any:
    """As lists, to five significant digits."""
    return float(f"{x.item():.5g}") if x.dim() == 0 else [_rounded(part) for part in x]


def main() -> None:
    """The command line, which has no options: `--help` says so before anything is trained."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    found = {"words": words(), "images": images(), "speakers": speakers()}
    PATH.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
    print(PATH, *(f"{name}: {part['right']}" for name, part in found.items()), sep="\n")


if __name__ == "__main__":
    main()
