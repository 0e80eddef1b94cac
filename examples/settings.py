"""How much of the tour to run."""

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Options of the tour.

    Attributes:
        seeds: Repetitions on the vowels and on the leaves; each has its own random choices.
        epochs: Passes over the training recordings in each run.
        heads: Number of attention heads on the vowels.
        leaf_epochs: Passes over the training outlines in each run.
        leaf_heads: Number of attention heads on the leaves.
        digit_seeds: Repetitions on the digits; pictures show the first.
        digit_epochs: Passes over the training canvases in each run.
        canvases: Number of training canvases; there are 3/8 as many to test.
        stream_seeds: Repetitions on the streams.
        stream_epochs: Passes over the training streams in each run.
        streams: Number of training streams; there are a quarter as many to test.
        folds: Parts of the measurements that are held out in turn.
    """

    seeds: int = 5
    epochs: int = 40
    heads: int = 8
    leaf_epochs: int = 30
    leaf_heads: int = 32
    digit_seeds: int = 2
    digit_epochs: int = 3
    canvases: int = 4000
    stream_seeds: int = 2
    stream_epochs: int = 15
    streams: int = 4000
    folds: int = 5
