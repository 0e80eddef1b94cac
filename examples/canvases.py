"""Canvases of four handwritten digits, with a question for each: which digit is top left, ...?

The digits are those of scikit-learn: 1797 images of 8 x 8 pixels, by 43 writers.

References:
    Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits. UCI Machine Learning
    Repository.
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from .batches import Batch

__all__ = ["CANVAS", "DIGIT", "QUESTIONS", "Canvases", "load_canvases", "split_digits"]

# Pixels on a side.
CANVAS, DIGIT = 28, 8
QUESTIONS = ("top left", "top right", "bottom left", "bottom right")
_QUADRANT = CANVAS // 2
# Columns and rows where the quadrants begin, in the order of the questions.
_CORNERS = _QUADRANT * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
_TRAINING_DIGITS = 1200


@dataclass(frozen=True)
class Canvases(Batch):
    """Images in [0, 1], the answers to the four questions, and where each digit begins."""

    images: Tensor  # (B, 28, 28)
    labels: Tensor  # (B, 4)
    corners: Tensor  # (B, 4, 2): column and row, in pixels

    def boxes(self) -> tuple[Tensor, Tensor]:
        """Two opposite corners (x, y) of every digit, in shares of the canvas: (B, 4, 2) each."""
        return self.corners / CANVAS, (self.corners + DIGIT) / CANVAS

    @staticmethod
    def quadrants() -> tuple[Tensor, Tensor]:
        """Two opposite corners (x, y) of every quadrant, in shares of the canvas: (4, 2) each."""
        return _CORNERS / CANVAS, (_CORNERS + _QUADRANT) / CANVAS


def split_digits(generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], ...]:
    """Images (n, 8, 8) and classes (n,) of 1200 digits to train, and of the other 597 to test."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    classes = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(classes), generator=generator)
    parts = order[:_TRAINING_DIGITS], order[_TRAINING_DIGITS:]
    return tuple((images[part], classes[part]) for part in parts)


def _compose(digits: tuple[Tensor, Tensor], count: int, generator: torch.Generator) -> Canvases:
    images, classes = digits
    chosen = torch.randint(len(classes), (count, 4), generator=generator)
    jitter = torch.randint(_QUADRANT - DIGIT + 1, (count, 4, 2), generator=generator)
    corners = _CORNERS + jitter
    # (count, 4, 8) each
    columns, rows = (corners.unsqueeze(-1) + torch.arange(DIGIT)).unbind(-2)
    canvases = torch.zeros(count, CANVAS, CANVAS)
    which = torch.arange(count)[:, None, None, None]
    canvases[which, rows.unsqueeze(-1), columns.unsqueeze(-2)] = images[chosen]
    return Canvases(canvases, classes[chosen], corners)


def load_canvases(count: int, seed: int) -> tuple[Canvases, Canvases]:
    """Canvases to train and to test, of different digits at random places in their quadrants.

    Args:
        count: Number of canvases to train; there are 3/8 as many to test.
        seed: Decides which digits are for testing, which of them meet, and where they lie.

    Returns:
        Training and test canvases.
    """
    generator = torch.Generator().manual_seed(seed)
    train, test = split_digits(generator)
    return _compose(train, count, generator), _compose(test, 3 * count // 8, generator)
