"""Spoken vowels and outlines of leaves: recordings, as irregular series.

JapaneseVowels has nine speakers who say two vowels; every recording is 12 channels (linear
prediction coefficients) of 7 to 29 frames. Laid end to end, the channels make one series of 84 to
348 points. OSULeaf has outlines of leaves of six species, each one series of 427 points. A share
of the points, chosen at random, is kept.

References:
    Kudo, Toyama and Shimbo (1999), Multidimensional curve classification using passing-through
    regions. Pattern Recognition Letters 20.
    Grandhi, Content-Based Image Retrieval: Plant Species Identification. MSc thesis.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Observations", "Recordings", "interpolate", "load_recordings", "observe", "read_ts"]

_FOLDER = "aeon/datasets/data"


@dataclass(frozen=True)
class Recordings:
    """Whole recordings: series of shape (channels, frames), and a class 0, 1, ... for each."""

    series: list[Tensor]
    labels: Tensor


@dataclass(frozen=True)
class Observations:
    """Irregular series, padded to the longest: (B, L) each, labels (B,); mask True = observed."""

    positions: Tensor
    values: Tensor
    mask: Tensor
    labels: Tensor


def read_ts(path: Path) -> tuple[list[Tensor], list[str]]:
    """Reads a .ts file: channels between colons, the class behind the last one.

    Args:
        path: The file.

    Returns:
        Series (channels, frames), and the class of each as it is written.

    Raises:
        ValueError: A file without data.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    data = [line for line in lines if line and not line.startswith(("#", "@"))]
    if not data:
        raise ValueError(f"path must be a .ts file with data, got {path}")
    series, labels = [], []
    for line in data:
        *channels, label = line.split(":")
        series.append(torch.tensor([[float(x) for x in c.split(",")] for c in channels]))
        labels.append(label)
    return series, labels


def load_recordings(name: str) -> tuple[Recordings, Recordings]:
    """The training and the test recordings, from the installed aeon wheel (never imported).

    Args:
        name: JapaneseVowels or OSULeaf.

    Raises:
        FileNotFoundError: aeon is not installed, or has no such files.
    """
    try:
        folder = Path(str(distribution("aeon").locate_file(_FOLDER))) / name
    except PackageNotFoundError:
        folder = Path("aeon is not installed")
    train, test = (folder / f"{name}_{part}.ts" for part in ("TRAIN", "TEST"))
    if not (train.is_file() and test.is_file()):
        raise FileNotFoundError(
            f"the {name} recordings are missing ({folder}); `make demo` installs them, "
            "and so does: pip install --no-deps aeon==1.6.0"
        )
    return _recordings(train), _recordings(test)


def _recordings(path: Path) -> Recordings:
    series, labels = read_ts(path)
    return Recordings(series, torch.tensor([int(label) - 1 for label in labels]))


def observe(recordings: Recordings, share: float, generator: torch.Generator) -> Observations:
    """Lays the channels of each recording end to end and keeps a random share of the points.

    Point i of n lies at (i + 1/2)/n, so that channel k of K fills [k/K, (k + 1)/K].

    Args:
        recordings: Whole recordings.
        share: Share of the points to keep, in (0, 1]; at least one of each series stays.
        generator: Decides which.

    Returns:
        The observations, positions increasing, padded with zeros at the end.

    Raises:
        ValueError: `share` outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")
    flat = [series.reshape(-1) for series in recordings.series]
    kept = [
        torch.randperm(len(x), generator=generator)[: max(1, round(share * len(x)))].sort().values
        for x in flat
    ]
    pairs = list(zip(flat, kept, strict=True))
    pad = torch.nn.utils.rnn.pad_sequence
    return Observations(
        pad([(index + 0.5) / len(x) for x, index in pairs], batch_first=True),
        pad([x[index] for x, index in pairs], batch_first=True),
        pad([torch.ones(len(index), dtype=torch.bool) for index in kept], batch_first=True),
        recordings.labels,
    )


def interpolate(observed: Observations, size: int) -> Tensor:
    """Values between the observations, by straight lines; constant before the first and after
    the last.

    Args:
        observed: Irregular series.
        size: Number of points, at (g + 1/2)/size.

    Returns:
        (B, size).
    """
    grid = (torch.arange(size) + 0.5) / size
    grid = grid.expand(len(observed.labels), size).contiguous()
    t = observed.positions.masked_fill(~observed.mask, torch.inf)
    # Towards padding, at infinity, nothing changes.
    right = torch.searchsorted(t, grid).clamp(max=t.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    start, end = t.gather(-1, left), t.gather(-1, right)
    share = ((grid - start) / (end - start).clamp_min(1e-9)).clamp(0, 1)
    return torch.lerp(observed.values.gather(-1, left), observed.values.gather(-1, right), share)
