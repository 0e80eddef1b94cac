"""Load the data of the examples: recordings from the aeon wheel, digits from scikit-learn.

aeon is installed only for the plain data files in its wheel. It is never imported.

References:
    Kudo, Toyama and Shimbo (1999), Multidimensional curve classification using passing-through
    regions. Pattern Recognition Letters 20. (JapaneseVowels)
    Grandhi, Content-Based Image Retrieval: Plant Species Identification. MSc thesis. (OSULeaf)
    Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits. UCI Machine Learning
    Repository.
"""

from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import Self


def aeon_file(name: str) -> Path:
    """Return the path of a data file in the installed aeon wheel, below aeon/datasets/data.

    Raises:
        FileNotFoundError: aeon is not installed, or has no such file.
    """
    try:
        path = Path(str(distribution("aeon").locate_file(f"aeon/datasets/data/{name}")))
    except PackageNotFoundError:
        path = Path("aeon is not installed")
    if not path.is_file():
        raise FileNotFoundError(
            f"the data file {name} is missing ({path}); `make demo` installs it, "
            "and so does: pip install --no-deps aeon==1.6.0"
        )
    return path


class Batch:
    """Base of frozen dataclasses of tensors with one row for each example."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Self:
        own: Any = self
        return type(self)(*(getattr(self, field.name)[index] for field in fields(own)))


def load_series(name: str, part: str) -> tuple[list[Tensor], Tensor]:
    """Load the recordings of JapaneseVowels or OSULeaf, part TRAIN or TEST.

    Returns:
        The series, each (channels, frames), and their classes 0, 1, ... (B,).
    """
    lines = aeon_file(f"{name}/{name}_{part}.ts").read_text(encoding="utf-8").splitlines()
    series, labels = [], []
    for line in lines:
        if line and line[0] not in "#@":
            *channels, label = line.split(":")
            series.append(torch.tensor([[float(x) for x in c.split(",")] for c in channels]))
            labels.append(int(label) - 1)
    return series, torch.tensor(labels)


@dataclass(frozen=True)
class Series(Batch):
    """Irregularly observed series, padded behind to the longest."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    mask: Tensor  # (B, L), True where there is an observation
    labels: Tensor  # (B,)


def observe(
    recordings: tuple[list[Tensor], Tensor], share: float, generator: torch.Generator
) -> Series:
    """Lay the channels of each recording end to end and keep a random share of the points.

    Point i of n lies at position (i + 1/2)/n.
    """
    flat = [series.reshape(-1) for series in recordings[0]]
    kept = [
        torch.randperm(len(x), generator=generator)[: max(1, round(share * len(x)))].sort().values
        for x in flat
    ]
    pairs = list(zip(flat, kept, strict=True))
    return Series(
        pad_sequence([(index + 0.5) / len(x) for x, index in pairs], batch_first=True),
        pad_sequence([x[index] for x, index in pairs], batch_first=True),
        pad_sequence([torch.ones(len(index), dtype=torch.bool) for index in kept], True),
        recordings[1],
    )


def interpolate(seen: Series, size: int) -> Tensor:
    """Interpolate linearly at (g + 1/2)/size, constant before the first and after the last point.

    Returns:
        Values (B, size).
    """
    grid = ((torch.arange(size) + 0.5) / size).expand(len(seen), size).contiguous()
    t = seen.positions.masked_fill(~seen.mask, torch.inf)
    # Padding lies at infinity, where the share below is zero.
    right = torch.searchsorted(t, grid).clamp(max=t.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    start, end = t.gather(-1, left), t.gather(-1, right)
    share = ((grid - start) / (end - start).clamp_min(1e-9)).clamp(0, 1)
    return torch.lerp(seen.values.gather(-1, left), seen.values.gather(-1, right), share)


# Sides of a canvas, of its quadrants and of a digit, in pixels.
CANVAS, QUADRANT, DIGIT = 28, 14, 8
QUESTIONS = ("top left", "top right", "bottom left", "bottom right")
# Column and row at which each quadrant begins, in the order of the questions.
_CORNERS = QUADRANT * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
_TRAINING_DIGITS = 1200


@dataclass(frozen=True)
class Canvases(Batch):
    """Images of four handwritten digits each, one in each quadrant."""

    images: Tensor  # (B, 28, 28), in [0, 1]
    labels: Tensor  # (B, 4), the digits, in the order of the questions
    corners: Tensor  # (B, 4, 2), column and row at which each digit begins, in pixels

    def boxes(self) -> tuple[Tensor, Tensor]:
        """Return opposite corners (x, y) of the digits, in [0, 1]: (B, 4, 2) each."""
        return self.corners / CANVAS, (self.corners + DIGIT) / CANVAS

    @staticmethod
    def quadrants() -> tuple[Tensor, Tensor]:
        """Return opposite corners (x, y) of the quadrants, in [0, 1]: (4, 2) each."""
        return _CORNERS / CANVAS, (_CORNERS + QUADRANT) / CANVAS


def load_canvases(count: int, seed: int) -> tuple[Canvases, Canvases]:
    """Compose `count` canvases to train and 3/8 as many to test, from different digits.

    scikit-learn has 1797 digits of 8 x 8 pixels by 43 writers; the seed decides which 1200 are for
    training, which digits share a canvas, and where in its quadrant each digit lies.
    """
    generator = torch.Generator().manual_seed(seed)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    classes = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(classes), generator=generator)
    fit, test = order[:_TRAINING_DIGITS], order[_TRAINING_DIGITS:]

    def compose(some: Tensor, count: int) -> Canvases:
        chosen = some[torch.randint(len(some), (count, 4), generator=generator)]
        offsets = torch.randint(QUADRANT - DIGIT + 1, (count, 4, 2), generator=generator)
        corners = _CORNERS + offsets
        columns, rows = (corners.unsqueeze(-1) + torch.arange(DIGIT)).unbind(-2)  # (count, 4, 8)
        canvases = torch.zeros(count, CANVAS, CANVAS)
        which = torch.arange(count)[:, None, None, None]
        canvases[which, rows.unsqueeze(-1), columns.unsqueeze(-2)] = images[chosen]
        return Canvases(canvases, classes[chosen], corners)

    return compose(fit, count), compose(test, 3 * count // 8)
