"""Questions about a time long ago: memories of fixed size, and as many numbers kept as they are.

A hundred thousand noisy readings of 41 heartbeats arrive in twenty chunks. Afterwards: what was the
mean from a to b? `python -m examples.recall` prints the table of docs/tutorials/stream.md.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import sparsefam as sf

from .progress import Reporter
from .stream_data import load_pressure, parts
from .stream_training import cell

__all__ = [
    "AGES",
    "Questions",
    "Readings",
    "ask",
    "listen",
    "main",
    "memories",
    "position_now",
    "recall",
]

_CHUNKS, _NOISE, _TAU, _SLOTS = 20, 0.5, 0.9, 512
# Widths of the intervals asked for, as shares of the stream: half a beat to one and a half.
_SHORTEST, _LONGEST = 0.012, 0.036
# The chunks in which the questions lie.
AGES = {"last chunk": (19, 20), "half way": (8, 12), "oldest": (0, 4)}
# Scores of readings outside the interval: no weight, unless there are no others.
_OUTSIDE = -50.0


@dataclass(frozen=True)
class Readings:
    """A stream: times in [0, 1], increasing, and values; and what is true at equidistant times."""

    times: Tensor  # (L,)
    values: Tensor  # (L,)
    truth: Tensor  # (samples,)


@dataclass(frozen=True)
class Questions:
    """Midpoints and widths (Q,) of intervals, each in one chunk, and the answers."""

    chunk: Tensor
    middle: Tensor
    width: Tensor
    answers: Tensor

    def ends(
        self, place: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Where intervals begin and end: in the stream, or where `place` has the chunk's share."""
        low, high = self.middle - self.width / 2, self.middle + self.width / 2
        if place is None:
            return low, high
        shares = (low * _CHUNKS - self.chunk, high * _CHUNKS - self.chunk)
        return place(shares[0], self.chunk), place(shares[1], self.chunk)


def listen(length: int, generator: torch.Generator) -> Readings:
    """Readings of the whole recording at random times, with noise."""
    truth = torch.cat(parts(load_pressure()))
    times = torch.rand(length, generator=generator).sort().values
    index = (times * len(truth)).long().clamp(max=len(truth) - 1)
    return Readings(times, truth[index] + _NOISE * torch.randn(length, generator=generator), truth)


def ask(
    truth: Tensor, chunks: tuple[int, int], count: int, generator: torch.Generator
) -> Questions:
    """Questions about chunks from the first (inclusive) to the second (exclusive)."""
    chunk = torch.randint(*chunks, (count,), generator=generator)
    width = _SHORTEST + (_LONGEST - _SHORTEST) * torch.rand(count, generator=generator)
    free = 1 / _CHUNKS - width
    middle = chunk / _CHUNKS + width / 2 + free * torch.rand(count, generator=generator)
    places = (torch.arange(len(truth)) + 0.5) / len(truth)
    inside = (places - middle.unsqueeze(-1)).abs() <= width.unsqueeze(-1) / 2
    return Questions(chunk, middle, width, (truth * inside).sum(-1) / inside.sum(-1))


def remembered(readings: Readings, functions: int) -> tuple[sf.attention.ValueFunction, int]:
    """The function of all chunks, by `ForgettingMemory`, and how many numbers its state has."""
    basis = sf.bases.GaussianRBF.grid(functions, 1 / functions)
    memory = sf.attention.ForgettingMemory(sf.attention.RidgeRegression(basis, 1.0))
    state = None
    for times, values in _chunks(readings):
        function, state = memory(times.unsqueeze(0), values.reshape(1, -1, 1), state)
    if state is None:
        raise ValueError("readings must not be empty")
    return function, sum(part.numel() for part in state)


def contracted(readings: Readings) -> tuple[sf.attention.ValueFunction, int]:
    """The function of all chunks, by `ContractingMemory`, and how many numbers its state has."""
    basis = sf.bases.GaussianRBF.grid(_SLOTS, 1 / _SLOTS)
    regression = sf.attention.RidgeRegression(basis, 1.0)
    memory = sf.attention.ContractingMemory(regression, _TAU, samples=8 * _SLOTS)
    state = None
    for chunk, (times, values) in enumerate(_chunks(readings)):
        within = (times * _CHUNKS - chunk).clamp(0, 1)
        function, state = memory(within.unsqueeze(0), values.reshape(1, -1, 1), state)
    if state is None:
        raise ValueError("readings must not be empty")
    return function, state.numel()


def _chunks(readings: Readings) -> list[tuple[Tensor, Tensor]]:
    ends = torch.arange(1, _CHUNKS) / _CHUNKS
    cuts = torch.searchsorted(readings.times, ends).tolist()
    pieces = (x.tensor_split(cuts) for x in (readings.times, readings.values))
    return list(zip(*pieces, strict=True))


def position_now(share: Tensor, chunk: Tensor) -> Tensor:
    """Where the contracting memory has a place (a share of its chunk) after the last chunk."""
    at_first = torch.where(chunk == 0, share, _TAU + (1 - _TAU) * share)
    return at_first * _TAU ** (_CHUNKS - 1 - chunk)


def _read(function: sf.attention.ValueFunction, low: Tensor, high: Tensor) -> Tensor:
    """Means over intervals: expectations under uniform densities, alpha = inf."""
    density = sf.BetaGaussian((low + high).unsqueeze(0) / 2, (high - low) / 2, math.inf)
    return function.expect(density).flatten()


def _attend(readings: Readings, kept: Tensor, questions: Questions) -> Tensor:
    """Discrete softmax attention to those kept that lie in the interval; to all, if none do."""
    distance = (readings.times[kept] - questions.middle.unsqueeze(-1)).abs()
    scores = torch.where(distance <= questions.width.unsqueeze(-1) / 2, 0.0, _OUTSIDE)
    means: Tensor = sf.rpm(sf.scores.Finite(scores), 1.0).probs @ readings.values[kept]
    return means


@dataclass(frozen=True)
class Memory:
    """What answers questions, and how many numbers it is made of."""

    numbers: int
    answer: Callable[[Questions], Tensor]


def memories(readings: Readings, functions: int, generator: torch.Generator) -> dict[str, Memory]:
    """Two memories of the stream, each with readings that are as many numbers: time and value."""
    function, numbers = remembered(readings, functions)
    squeezed, fewer = contracted(readings)
    found = {}
    for name, size, answer in (
        ("ForgettingMemory", numbers, lambda asked: _read(function, *asked.ends())),
        ("ContractingMemory", fewer, lambda asked: _read(squeezed, *asked.ends(position_now))),
    ):
        kept = min(size // 2, len(readings.times))
        last = torch.arange(len(readings.times) - kept, len(readings.times))
        sample = torch.randperm(len(readings.times), generator=generator)[:kept]
        found[name] = Memory(size, answer)
        found[f"window of {kept}"] = Memory(2 * kept, partial(_attend, readings, last))
        found[f"sample of {kept}"] = Memory(2 * kept, partial(_attend, readings, sample))
    return found


def recall(
    length: int, functions: int, seed: int, count: int = 400
) -> tuple[dict[str, list[float]], dict[str, int], float]:
    """Errors of each memory by age, its numbers, and the standard deviation of the answers."""
    generator = torch.Generator().manual_seed(seed)
    readings = listen(length, generator)
    found = memories(readings, functions, generator)
    questions = [ask(readings.truth, chunks, count, generator) for chunks in AGES.values()]
    errors = {
        name: [
            (memory.answer(asked) - asked.answers).square().mean().sqrt().item()
            for asked in questions
        ]
        for name, memory in found.items()
    }
    sizes = {name: memory.numbers for name, memory in found.items()}
    return errors, sizes, torch.cat([asked.answers for asked in questions]).std().item()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Questions about a time long ago.")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--length", type=int, default=100_000, help="readings (100000)")
    parser.add_argument("--functions", type=int, default=192, help="of ForgettingMemory (192)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, reporter = time.perf_counter(), Reporter()
    reporter.stage(f"{options.length} readings in {_CHUNKS} chunks")
    found = []
    with reporter.steps(options.seeds) as ended:
        for seed in range(options.seeds):
            found.append(recall(options.length, options.functions, seed))
            ended(f"seed {seed + 1}")
    _, sizes, spread = found[0]
    rows = [
        [
            name,
            str(size),
            *(cell([run[0][name][age] for run in found]) for age in range(len(AGES))),
        ]
        for name, size in sizes.items()
    ]
    reporter.table(["memory", "numbers", *AGES], rows)
    seconds = time.perf_counter() - start
    reporter.note(f"standard deviation of the answers {spread:.2f}  ({seconds:.0f} s in all)")


if __name__ == "__main__":
    main()
