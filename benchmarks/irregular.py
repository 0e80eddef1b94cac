"""Irregular series to classify: data sets in aeon's wheel with few of their frames, and two tasks.

A part of a task is times (B, L) in (0, 1), values (B, L, C), padding (B, L), true where there is no
frame, and labels (B,). A network is trained on one sampling and tested on five.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from examples.data import aeon_file

Part = tuple[Tensor, Tensor, Tensor, Tensor]
Series = list[tuple[Tensor, int]]
# Length of a burst, and cycles in the unit of time.
BURST, FREQUENCIES = 0.12, (3.0, 6.0, 9.0, 12.0)
# Only each of so many frames is ever seen, and the most series of a test set.
STRIDES, TESTED = {"ArrowHead": 2, "OSULeaf": 2, "ACSF1": 6}, 300
AS_TRAINED = "as trained"


@lru_cache
def read(data: str) -> tuple[Series, Series]:
    """Return the series (L, C) of a data set of aeon, standardized, with numbers for labels."""
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
    first, second = ([(x, labels.index(label)) for x, label in part] for part in parts)
    return standardized(first, second, STRIDES.get(data, 1))


def standardized(first: Series, second: Series, stride: int = 1) -> tuple[Series, Series]:
    """Standardize each of so many frames by the mean and deviation of all in the first part."""
    frames = torch.cat([x for x, _ in first])
    mean, deviation = frames.mean(0), frames.std(0)
    first, second = (
        [((x[::stride] - mean) / deviation, label) for x, label in part] for part in (first, second)
    )
    return first, second


def kept(sampling: str, length: int, generator: torch.Generator) -> Tensor:
    """Draw which of so many frames are observed: their numbers, in order.

    A sampling is "60", say, for 60 frames at random, or a name in SAMPLINGS.
    """
    order, frames = torch.randperm(length, generator=generator), torch.arange(length)
    if sampling == "all":
        return frames
    if sampling in ("half", "quarter"):
        few = length // 4 if sampling == "quarter" else (length + 1) // 2
        return order[: max(few, 1)].sort().values
    if sampling.isdigit():
        return order[: int(sampling)].sort().values
    if sampling == "gaps":  # half of what two gaps leave, each a fifth of the series
        starts = 0.8 * length * torch.rand(2, 1, generator=generator)
        left = order[~((frames >= starts) & (frames < starts + length / 5)).any(0)[order]]
        return left[: (len(left) + 1) // 2].sort().values
    # "bursts": four of consecutive frames, each a tenth of the series
    size = max(length // 10, 1)
    starts = torch.randint(length - size + 1, (4, 1), generator=generator)
    return (starts + torch.arange(size)).unique()


def sampled(
    series: Sequence[tuple[Tensor, int]], sampling: str, generator: torch.Generator
) -> Part:
    """Draw the observed frames of each series, at times in (0, 1), and pad them."""
    which = [kept(sampling, len(x), generator) for x, _ in series]
    times = [(i + 0.5) / len(x) for i, (x, _) in zip(which, series, strict=True)]
    values = [x[i] for i, (x, _) in zip(which, series, strict=True)]
    return padded(times, values, torch.tensor([label for _, label in series]))


def padded(times: Sequence[Tensor], values: Sequence[Tensor], labels: Tensor) -> Part:
    """Join series of times (L,) and values (L, C)."""
    lengths = torch.tensor([len(x) for x in times])
    padding = torch.arange(int(lengths.max())) >= lengths[:, None]
    return pad_sequence(list(times), True), pad_sequence(list(values), True), padding, labels


def take(part: Part, index: Tensor) -> Part:
    """Choose series, without the columns in which all of them are padded."""
    times, values, padding, labels = (x[index] for x in part)
    length = int((~padding).sum(-1).max())
    return times[:, :length], values[:, :length], padding[:, :length], labels


def bursts(
    count: int, generator: torch.Generator, noise: float, frames: int = 10, number: int = 4
) -> Part:
    """Draw oscillations of four frequencies, seen in short bursts of frames.

    Every burst has a phase of its own, so that a frame, or one burst's phase, says nothing about
    the frequency: only the shape within a burst does.
    """
    labels = torch.arange(count) % 4
    starts = torch.rand(count, number, 1, generator=generator) * (1 - BURST)
    times = starts + BURST * torch.rand(count, number, frames, generator=generator)
    phases = 2 * torch.pi * torch.rand(count, number, 1, generator=generator)
    frequencies = torch.tensor(FREQUENCIES)[labels, None, None]
    values = torch.sin(2 * torch.pi * frequencies * times + phases).flatten(1)
    values = values + noise * torch.randn(values.shape, generator=generator)
    times, order = times.flatten(1).sort(-1)
    values = values.gather(-1, order)
    return times, values[..., None], torch.zeros_like(times, dtype=torch.bool), labels


def where(count: int, generator: torch.Generator, frames: int = 100, exponent: float = 1.0) -> Part:
    """Draw noise with peaks at four places, of which one, by its sign, is the label.

    Times are uniform numbers to the power `exponent`: above 1 more of them are early.
    """
    labels = torch.arange(count) % 2
    times = torch.rand(count, frames, generator=generator).pow(exponent).sort(-1).values
    signs = 2.0 * torch.randint(2, (count, 4, 1), generator=generator) - 1
    signs[:, 0, 0] = 2.0 * labels - 1
    places = torch.tensor([0.8, 0.15, 0.35, 0.55])[:, None]
    peaks = 1.5 * (signs * torch.exp(-(((times[:, None] - places) / 0.02) ** 2))).sum(1)
    values = torch.randn(count, frames, generator=generator) + peaks
    return times, values[..., None], torch.zeros_like(times, dtype=torch.bool), labels


Generate = Callable[..., Part]
GENERATED: dict[str, tuple[Generate, dict[str, dict[str, float]]]] = {
    **{
        f"bursts, noise {noise}": (
            partial(bursts, noise=noise),
            {
                AS_TRAINED: {},
                "5 a burst": {"frames": 5},
                "20 a burst": {"frames": 20},
                "2 bursts": {"number": 2},
                "8 bursts": {"number": 8},
            },
        )
        for noise in (0.2, 0.5)
    },
    "where": (
        where,
        {
            AS_TRAINED: {},
            "50 frames": {"frames": 50},
            "200 frames": {"frames": 200},
            "more early": {"exponent": 2.0},
            "more late": {"exponent": 0.5},
        },
    ),
}
REAL = ("GunPoint", "ArrowHead", "OSULeaf", "ItalyPowerDemand", "JapaneseVowels", "ACSF1")
SAMPLINGS = {AS_TRAINED: "half", "quarter": "quarter", "gaps": "gaps", "bursts": "bursts"}
SAMPLINGS |= {"all": "all"}
# Of no account for settings, and read from wheels: see `held_out`.
HELD_OUT = ("Trace", "watch")
TASKS = (*GENERATED, *REAL)


def draw(task: str, seed: int, tested: int | None = None) -> tuple[Part, dict[str, Part]]:
    """Return what is trained on, and what is tested on by the name of its sampling.

    Args:
        task: A name in TASKS.
        seed: Decides about all that is random.
        tested: The most series of a test set, at random; TESTED if None.
    """
    tested = TESTED if tested is None else tested
    generator = torch.Generator().manual_seed(seed)
    if task in GENERATED:
        make, samplings = GENERATED[task]
        train = make(400, generator)
        return train, {name: make(tested, generator, **x) for name, x in samplings.items()}
    return seen(*read(task), generator, tested)


def seen(
    first: Series, second: Series, generator: torch.Generator, tested: int, trained: str = "half"
) -> tuple[Part, dict[str, Part]]:
    """Draw the frames of what is trained on, and of what is tested on for each sampling.

    Args:
        first: To train on.
        second: To test on.
        generator: Decides about all that is random.
        tested: The most series of a test set, at random.
        trained: The sampling that is trained on.
    """
    chosen = torch.randperm(len(second), generator=generator)[:tested].tolist()
    train, test = sampled(first, trained, generator), [second[i] for i in chosen]
    samplings = SAMPLINGS | {AS_TRAINED: trained}
    return train, {name: sampled(test, x, generator) for name, x in samplings.items()}


def draw_validation(task: str, seed: int, repeats: int = 4) -> tuple[Part, dict[str, Part]]:
    """Return two parts of a training set, to choose settings: the second is not trained on.

    Every series of the second part is seen `repeats` times, with other frames.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    if task in GENERATED:
        make = GENERATED[task][0]
        return make(400, generator), {AS_TRAINED: make(TESTED, generator)}
    series = read(task)[0]
    order = torch.randperm(len(series), generator=generator).tolist()
    cut = 2 * len(series) // 3
    train, test = ([series[i] for i in part] for part in (order[:cut], order[cut:]))
    return sampled(train, "half", generator), {
        AS_TRAINED: sampled(test * repeats, "half", generator)
    }
