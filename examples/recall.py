"""Answer questions about a time long ago from memories of fixed size.

A hundred thousand noisy readings of 41 heartbeats arrive in twenty chunks. Each question asks
afterwards for the mean over an interval. `python -m examples.recall` prints the second table of
docs/tutorials/stream.md.
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import sparsefam as sf

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


# From questions to answers (Q,).
Memory = Callable[[Questions], Tensor]


def listen(length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return times in [0, 1] and noisy values of readings (L,), and the recording itself."""
    truth = torch.cat(load_pressure())
    times = torch.rand(length, generator=generator).sort().values
    index = (times * len(truth)).long().clamp(max=len(truth) - 1)
    return times, truth[index] + NOISE * torch.randn(length, generator=generator), truth


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


def forget(times: Tensor, values: Tensor, functions: int) -> tuple[Memory, int]:
    """Feed a `ForgettingMemory`, which forgets nothing here; return it and its size in numbers."""
    basis = sf.bases.GaussianRBF.grid(functions, 1 / functions)
    memory = sf.attention.ForgettingMemory(sf.attention.RidgeRegression(basis, 1.0))
    state = None
    for t, v in split(times, values):
        function, state = memory(t, v, state)
    return lambda q: mean_over(function, q.low, q.high), sum(part.numel() for part in state)


def contract(times: Tensor, values: Tensor, functions: int) -> tuple[Memory, int]:
    """Feed a `ContractingMemory`, which contracts the past to [0, TAU] at every chunk."""
    basis = sf.bases.GaussianRBF.grid(functions, 1 / functions)
    regression = sf.attention.RidgeRegression(basis, 1.0)
    memory = sf.attention.ContractingMemory(regression, TAU, samples=8 * functions)
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

    return answer, state.numel()


def mean_over(function: sf.attention.ValueFunction, low: Tensor, high: Tensor) -> Tensor:
    """Return means over intervals: expectations under uniform densities, alpha = inf."""
    density = sf.BetaGaussian((low + high).unsqueeze(0) / 2, (high - low) / 2, math.inf)
    return function.expect(density).flatten()


def keep(times: Tensor, values: Tensor) -> tuple[Memory, int]:
    """Keep readings, and answer with the mean of those in the interval, or of all if none is."""

    def answer(q: Questions) -> Tensor:
        inside = (times >= q.low.unsqueeze(-1)) & (times <= q.high.unsqueeze(-1))
        inside = inside | ~inside.any(-1, keepdim=True)
        return (inside * values).sum(-1) / inside.sum(-1)

    return answer, 2 * len(times)


def recall(length: int, functions: int, seed: int, count: int = 400) -> dict[str, list[float]]:
    """Return the size of each memory and its error by age.

    Each memory is compared with as many numbers of plain readings, two for each: the last ones
    (a window), or a random sample.
    """
    generator = torch.Generator().manual_seed(seed)
    times, values, truth = listen(length, generator)
    memories: dict[str, tuple[Memory, int]] = {}
    for name, memory in {
        "ForgettingMemory": forget(times, values, functions),
        "ContractingMemory": contract(times, values, 512),
    }.items():
        size = min(memory[1] // 2, length)
        sample = torch.randperm(length, generator=generator)[:size]
        memories[name] = memory
        memories[f"window of {size}"] = keep(times[-size:], values[-size:])
        memories[f"sample of {size}"] = keep(times[sample], values[sample])
    found = {name: [float(size)] for name, (_, size) in memories.items()}
    for chunks in AGES.values():
        questions = ask(truth, chunks, count, generator)
        for name, (memory, _) in memories.items():
            missed = memory(questions) - questions.answers
            found[name].append(missed.square().mean().sqrt().item())
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Questions about a time long ago.")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (3)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    runs: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        for name, found in recall(100_000, 192, seed).items():
            runs.setdefault(name, []).append(found)
        print(f"seed {seed + 1} done", file=sys.stderr)
    print(f"{'memory':<20}{'numbers':>9}" + "".join(f"{age:>16}" for age in AGES))
    for name, rows in runs.items():
        (size, *means), (_, *sds) = np.mean(rows, 0), np.std(rows, 0, ddof=1)
        cells = (f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(means, sds, strict=True))
        print(f"{name:<20}{size:>9.0f}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
