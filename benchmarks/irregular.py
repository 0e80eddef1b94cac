"""Irregular series to classify: data sets in aeon's wheel with few of their frames, and two tasks.

A task or a data set gives times (B, L) in (0, 1), values (B, L, C), padding (B, L), true where
there is no frame, and labels (B,).
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from examples.data import aeon_file

Part = tuple[Tensor, Tensor, Tensor, Tensor]
# Length of a burst, cycles in the unit of time, standard deviation of the noise.
BURST, FREQUENCIES, NOISE = 0.12, (3.0, 6.0, 9.0, 12.0), 0.2


@lru_cache
def read(data: str) -> tuple[list[tuple[Tensor, int]], list[tuple[Tensor, int]]]:
    """Return the series (L, C) of a data set of aeon, standardised, with numbers for labels."""
    parts: list[list[tuple[Tensor, str]]] = []
    for name in ("TRAIN", "TEST"):
        lines = aeon_file(f"{data}/{data}_{name}.ts").read_text(encoding="utf-8").splitlines()
        rows = [line.split(":") for line in lines if line.strip() and line[0] not in "#@%"]
        parts.append(
            [
                (torch.tensor([[float(x) for x in c.split(",")] for c in row[:-1]]).T, row[-1])
                for row in rows
            ]
        )
    labels = sorted({label for _, label in parts[0]})
    frames = torch.cat([x for x, _ in parts[0]])
    mean, deviation = frames.mean(0), frames.std(0)
    first, second = (
        [((x - mean) / deviation, labels.index(label)) for x, label in part] for part in parts
    )
    return first, second


def kept(sampling: str, length: int, generator: torch.Generator) -> Tensor:
    """Draw which of so many frames are observed: their numbers, in order."""
    order, frames = torch.randperm(length, generator=generator), torch.arange(length)
    if sampling == "regular":  # every other one
        return frames[::2]
    if sampling == "half":
        return order[: (length + 1) // 2].sort().values
    if sampling == "gaps":  # half of what two gaps leave, each a fifth of the series
        starts = 0.8 * length * torch.rand(2, 1, generator=generator)
        left = order[~((frames >= starts) & (frames < starts + length / 5)).any(0)[order]]
        return left[: (len(left) + 1) // 2].sort().values
    if sampling == "bursts":  # four of consecutive frames, each a tenth of the series
        size = max(length // 10, 1)
        starts = torch.randint(length - size + 1, (4, 1), generator=generator)
        return (starts + torch.arange(size)).unique()
    # "short": the first half, or more, of a series of which two fifths are kept.
    few = max(2 * length // 5, 2)
    end = int(torch.randint(few // 2, few + 1, (), generator=generator))
    return order[:few].sort().values[:end]


def sampled(
    series: Sequence[tuple[Tensor, int]], sampling: str, generator: torch.Generator
) -> Part:
    """Draw the observed frames of each series, at times in (0, 1), and pad them."""
    which = [kept(sampling, len(x), generator) for x, _ in series]
    times = [(i + 0.5) / len(x) for i, (x, _) in zip(which, series, strict=True)]
    values = [x[i] for i, (x, _) in zip(which, series, strict=True)]
    lengths = torch.tensor([len(i) for i in which])
    padding = torch.arange(int(lengths.max())) >= lengths[:, None]
    labels = torch.tensor([label for _, label in series])
    return pad_sequence(times, True), pad_sequence(values, True), padding, labels


def bursts(count: int, generator: torch.Generator) -> Part:
    """Draw oscillations of four frequencies, seen in four bursts of ten frames.

    Every burst has a phase of its own, so that a frame, or one burst's phase, says nothing about
    the frequency: only the shape within a burst does.
    """
    labels = torch.arange(count) % 4
    starts = torch.rand(count, 4, 1, generator=generator) * (1 - BURST)
    times = starts + BURST * torch.rand(count, 4, 10, generator=generator)
    phases = 2 * torch.pi * torch.rand(count, 4, 1, generator=generator)
    frequencies = torch.tensor(FREQUENCIES)[labels, None, None]
    values = torch.sin(2 * torch.pi * frequencies * times + phases).flatten(1)
    values = values + NOISE * torch.randn(values.shape, generator=generator)
    times, order = times.flatten(1).sort(-1)
    values = values.gather(-1, order)
    return times, values[..., None], torch.zeros_like(times, dtype=torch.bool), labels


def where(count: int, generator: torch.Generator) -> Part:
    """Draw noise with peaks at four places, of which one, by its sign, is the label."""
    labels = torch.arange(count) % 2
    times = torch.rand(count, 200, generator=generator).sort(-1).values
    signs = 2.0 * torch.randint(2, (count, 4, 1), generator=generator) - 1
    signs[:, 0, 0] = 2.0 * labels - 1
    places = torch.tensor([0.8, 0.15, 0.35, 0.55])[:, None]
    peaks = 1.5 * (signs * torch.exp(-(((times[:, None] - places) / 0.02) ** 2))).sum(1)
    values = torch.randn(count, 200, generator=generator) + peaks
    return times, values[..., None], torch.zeros_like(times, dtype=torch.bool), labels


GENERATED = {"bursts": bursts, "where": where}


def draw(data: str, sampling: str, seed: int, tested: int) -> tuple[Part, Part]:
    """Return what is trained on and what is tested on: 400 series each, or those of the data set.

    Args:
        data: A name in GENERATED or a data set of aeon.
        sampling: As in `kept`.
        seed: Decides about all that is random.
        tested: The most series of a data set to test on, at random.
    """
    generator = torch.Generator().manual_seed(seed)
    if data in GENERATED:
        return GENERATED[data](400, generator), GENERATED[data](400, generator)
    train, test = read(data)
    chosen = torch.randperm(len(test), generator=generator)[:tested].tolist()
    first = sampled(train, sampling, generator)
    return first, sampled([test[i] for i in chosen], sampling, generator)
