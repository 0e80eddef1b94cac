"""Answer questions about a time long ago from memories of fixed size.

A hundred thousand noisy readings of 41 heartbeats arrive in twenty chunks. Each question asks
afterwards for the mean over an interval. `python -m examples.recall` prints the second table of
docs/tutorials/stream.md.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import trange

import sparsefam as sf

from .common import mean_sd, print_table, run
from .data import load_pressure

CHUNKS, NOISE, TAU = 20, 0.5, 0.9
SHORTEST, LONGEST = 0.012, 0.036  # intervals asked for: half a heartbeat to one and a half
AGES = {"last chunk": (19, 20), "half way": (8, 12), "oldest": (0, 4)}  # chunks of the questions


class Questions(NamedTuple):
    """Intervals, each in one chunk, and the true means: (Q,) each."""

    chunk: Tensor
    low: Tensor
    high: Tensor
    answers: Tensor


class Memory(NamedTuple):
    """Its size in numbers, and a function from questions to answers (Q,)."""

    size: int
    answer: Callable[[Questions], Tensor]


def ask(
    truth: Tensor, chunks: tuple[int, int], count: int, generator: torch.Generator
) -> Questions:
    """Draw questions about a range of chunks."""
    chunk = torch.randint(*chunks, (count,), generator=generator)
    width = SHORTEST + (LONGEST - SHORTEST) * torch.rand(count, generator=generator)
    free = 1 / CHUNKS - width
    low = chunk / CHUNKS + free * torch.rand(count, generator=generator)
    places = (torch.arange(len(truth)) + 0.5) / len(truth)
    inside = (places >= low.unsqueeze(-1)) & (places <= (low + width).unsqueeze(-1))
    return Questions(chunk, low, low + width, (truth * inside).sum(-1) / inside.sum(-1))


def split(times: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Cut the readings into chunks of equal duration: times (1, l) and values (1, l, 1)."""
    cuts = torch.searchsorted(times, torch.arange(1, CHUNKS) / CHUNKS).tolist()
    pieces = zip(times.tensor_split(cuts), values.tensor_split(cuts), strict=True)
    return [(t.unsqueeze(0), v.reshape(1, -1, 1)) for t, v in pieces]


def regression(functions: int) -> sf.attention.RidgeRegression:
    basis = sf.bases.GaussianRBF.grid(functions, 1 / functions)
    return sf.attention.RidgeRegression(basis, 1.0)


def mean_over(function: sf.attention.ValueFunction, low: Tensor, high: Tensor) -> Tensor:
    """Return means over intervals: expectations under uniform densities, alpha = inf."""
    density = sf.BetaGaussian((low + high).unsqueeze(0) / 2, (high - low) / 2, math.inf)
    return function.expect(density).flatten()


def forget(times: Tensor, values: Tensor, functions: int) -> Memory:
    """Feed a `ForgettingMemory`, which forgets nothing here."""
    memory, state = sf.attention.ForgettingMemory(regression(functions)), None
    for t, v in split(times, values):
        function, state = memory(t, v, state)
    size = sum(part.numel() for part in state)
    return Memory(size, lambda q: mean_over(function, q.low, q.high))


def contract(times: Tensor, values: Tensor, functions: int) -> Memory:
    """Feed a `ContractingMemory`, which contracts the past to [0, TAU] at every chunk."""
    memory = sf.attention.ContractingMemory(regression(functions), TAU, samples=8 * functions)
    state = None
    for k, (t, v) in enumerate(split(times, values)):
        function, state = memory((t * CHUNKS - k).clamp(0, 1), v, state)

    def position_now(time: Tensor, chunk: Tensor) -> Tensor:
        """Return where a time lies in [0, 1] after the contractions since its chunk came."""
        share = time * CHUNKS - chunk  # of the chunk, in [0, 1]
        at_first = torch.where(chunk == 0, share, TAU + (1 - TAU) * share)
        return at_first * TAU ** (CHUNKS - 1 - chunk)

    def answer(q: Questions) -> Tensor:
        return mean_over(function, position_now(q.low, q.chunk), position_now(q.high, q.chunk))

    return Memory(state.numel(), answer)


def keep(times: Tensor, values: Tensor) -> Memory:
    """Keep readings, and answer with the mean of those in the interval, or of all if none is."""

    def answer(q: Questions) -> Tensor:
        inside = (times >= q.low.unsqueeze(-1)) & (times <= q.high.unsqueeze(-1))
        inside = inside | ~inside.any(-1, keepdim=True)
        return (inside * values).sum(-1) / inside.sum(-1)

    return Memory(2 * len(times), answer)


def recall(length: int, seed: int, count: int = 400) -> tuple[dict[str, Memory], list[list[float]]]:
    """Return memories, and by age the error of each.

    Each memory is compared with as many numbers of plain readings, two for each: the last ones
    (a window), or a random sample.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.cat(load_pressure())
    times = torch.rand(length, generator=generator).sort().values
    index = (times * len(truth)).long().clamp(max=len(truth) - 1)
    values = truth[index] + NOISE * torch.randn(length, generator=generator)
    memories = {}
    for name, memory in {
        "ForgettingMemory": forget(times, values, 192),
        "ContractingMemory": contract(times, values, 512),
    }.items():
        size = min(memory.size // 2, length)
        sample = torch.randperm(length, generator=generator)[:size]
        memories[name] = memory
        memories[f"window of {size}"] = keep(times[-size:], values[-size:])
        memories[f"sample of {size}"] = keep(times[sample], values[sample])
    errors = []
    for chunks in AGES.values():
        q = ask(truth, chunks, count, generator)
        missed = [memory.answer(q) - q.answers for memory in memories.values()]
        errors.append([x.square().mean().sqrt().item() for x in missed])
    return memories, errors


def main(seeds: int = 3) -> None:
    """Compare the memories with several seeds, at least two."""
    results = [recall(100_000, seed) for seed in trange(seeds, disable=None)]
    errors = np.array([errors for _, errors in results])  # (seeds, ages, memories)
    rows = []
    for k, (name, memory) in enumerate(results[0][0].items()):
        cells = [mean_sd(errors[:, age, k], 3) for age in range(len(AGES))]
        rows.append([name, f"{memory.size}", *cells])
    print_table(["memory", "numbers", *AGES], rows)


if __name__ == "__main__":
    run(main)
