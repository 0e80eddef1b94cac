"""How much of the tour to run."""

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Options of the tour.

    Attributes:
        seeds: Number of repetitions; each has its own random choices.
        epochs: Passes over the training examples in each run.
        heads: Numbers of attention heads to compare; pictures show the first.
    """

    seeds: int = 5
    epochs: int = 40
    heads: tuple[int, ...] = (8, 32)
