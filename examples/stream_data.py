"""A recording of blood pressure read irregularly, and questions: what was the mean from a to b?

A stream is 512 consecutive samples, 2.8 heartbeats, of which 96 readings are left, with noise. In a
block outside of the interval that is asked for, all readings are saturated: somebody flushes the
line.

References:
    Wu and Keogh (2021), Current Time Series Anomaly Detection Benchmarks are Flawed and are
    Creating the Illusion of Progress. The recording is number 135 of their archive.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from torch import Tensor

import sparsefam as sf

from .batches import Batch
from .recordings import Observations, interpolate

__all__ = [
    "GRID",
    "SAMPLINGS",
    "SATURATED",
    "Streams",
    "load_pressure",
    "parts",
    "read_streams",
]

GRID = 128
# How readings are placed: as in training, and otherwise.
SAMPLINGS = ("as in training", "half as many", "a gap", "more when low", "bursts")
# What a saturated reading says, in standard deviations above the mean.
SATURATED = 4.0
_SAMPLES, _READINGS, _NOISE = 512, 96, 0.1
_BLOCK, _GAP, _BURSTS, _BURST_SIGMA = 0.15, 0.15, 12, 0.01
_SHORTEST, _LONGEST = 0.05, 0.35
_FILE = "aeon/datasets/data/KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16_TEST.csv"


@dataclass(frozen=True)
class Streams(Batch):
    """Streams with a question each, and what methods make of the readings."""

    positions: Tensor  # (B, L), increasing, in [0, 1]
    values: Tensor  # (B, L)
    question: Tensor  # (B, 2): midpoint and width of the interval
    labels: Tensor  # (B,): the mean over it
    block: Tensor  # (B, 2): where the saturated block begins and ends
    whole: Tensor  # (B, samples), without noise and saturation
    grid: Tensor  # (B, GRID): straight lines through the readings
    coefficients: Tensor  # (B, N, 1): the value function

    def fitted(self, regression: sf.attention.RidgeRegression) -> "Streams":
        """The same with value functions."""
        found = regression.fit(self.positions, self.values.unsqueeze(-1)).coefficients
        return Streams(**(vars(self) | {"coefficients": found}))


def load_pressure() -> Tensor:
    """The 7501 samples, in mmHg, from the installed aeon wheel (never imported).

    Raises:
        FileNotFoundError: aeon is not installed, or has no such file.
    """
    try:
        path = Path(str(distribution("aeon").locate_file(_FILE)))
    except PackageNotFoundError:
        path = Path("aeon is not installed")
    if not path.is_file():
        raise FileNotFoundError(
            f"the recording of blood pressure is missing ({path}); `make demo` installs it, "
            "and so does: pip install --no-deps aeon==1.6.0"
        )
    rows = path.read_text(encoding="utf-8").splitlines()[1:]
    return torch.tensor([float(row.split(",")[1]) for row in rows])


def parts(pressure: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first 60 % to train, the next 15 % to validate, the rest to test, standardised."""
    first, second = round(0.6 * len(pressure)), round(0.75 * len(pressure))
    fit = pressure[:first]
    standard = (pressure - fit.mean()) / fit.std()
    return standard[:first], standard[first:second], standard[second:]


def read_streams(
    part: Tensor, count: int, generator: torch.Generator, sampling: str = SAMPLINGS[0]
) -> Streams:
    """Streams from random places of a part of the recording, questions and readings.

    Args:
        part: Standardised samples.
        count: How many streams.
        generator: Decides everything random.
        sampling: How readings are placed, one of `SAMPLINGS`.

    Raises:
        ValueError: Another `sampling`.
    """
    start = torch.randint(0, len(part) - _SAMPLES + 1, (count, 1), generator=generator)
    whole = part[start + torch.arange(_SAMPLES)]
    times = (torch.arange(_SAMPLES) + 0.5) / _SAMPLES
    width = _SHORTEST + (_LONGEST - _SHORTEST) * torch.rand(count, 1, generator=generator)
    middle = width / 2 + (1 - width) * torch.rand(count, 1, generator=generator)
    asked = (times - middle).abs() <= width / 2
    answer = (whole * asked).sum(-1) / asked.sum(-1)
    block = _block(middle - width / 2, middle + width / 2, generator)
    readings = _READINGS // 2 if sampling == "half as many" else _READINGS
    odds = _odds(whole, times, sampling, generator)
    index = torch.multinomial(odds, readings, generator=generator).sort(-1).values
    positions = times[index]
    values = whole.gather(1, index) + _NOISE * torch.randn(index.shape, generator=generator)
    values = torch.where((positions - block.mean(-1, True)).abs() < _BLOCK / 2, SATURATED, values)
    question = torch.cat([middle, width], -1)
    seen = Observations(positions, values, torch.ones_like(index, dtype=torch.bool), answer)
    grid = interpolate(seen, GRID)
    none = values.new_zeros(count, 0, 1)
    return Streams(positions, values, question, answer, block, whole, grid, none)


def _block(low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """Beginnings and ends (B, 2) of blocks outside of intervals from low to high (B, 1)."""
    begin = torch.arange(_SAMPLES) / _SAMPLES
    apart = (begin + _BLOCK <= low) | (begin >= high)
    possible = apart & (begin + _BLOCK <= 1)
    begin = begin[torch.multinomial(possible.float(), 1, generator=generator)]
    return torch.cat([begin, begin + _BLOCK], -1)


def _odds(whole: Tensor, times: Tensor, sampling: str, generator: torch.Generator) -> Tensor:
    """How likely each sample is to be read (B, samples), up to a factor."""
    if sampling == "a gap":
        begin = (1 - _GAP) * torch.rand(len(whole), 1, generator=generator)
        return ((times < begin) | (times > begin + _GAP)).float()
    if sampling == "more when low":
        return (-whole).exp()
    if sampling == "bursts":
        centers = torch.rand(len(whole), 1, _BURSTS, generator=generator)
        distance = (times.unsqueeze(-1) - centers) / _BURST_SIGMA
        # Samples between the bursts are read only where there are too few in them.
        return (-0.5 * distance.square()).exp().sum(-1) + 1e-9
    if sampling in SAMPLINGS:
        return torch.ones_like(whole)
    raise ValueError(f"sampling must be one of {SAMPLINGS}, got {sampling!r}")
