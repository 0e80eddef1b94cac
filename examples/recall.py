"""Answer questions about a time long ago from memories of fixed size.

A hundred thousand noisy readings of 41 heartbeats arrive in twenty chunks. Each question asks
afterwards for the mean over an interval. Questions by content show half a heartbeat and ask what
came next. `python -m examples.recall` prints the tables of docs/tutorials/stream.md.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import sparsefam as sf

from .stream import load_pressure
from .training import Run, positive, show, tabulate

CHUNKS, NOISE, TAU, SLOTS = 20, 0.5, 0.9, 512
SHORTEST, LONGEST = 0.012, 0.036  # intervals asked for: half a heartbeat to one and a half
ASKED, STICKINESS, PLACES = 2, 0.03, 16  # the chunk that a sticky memory is asked about
# Chunks of the questions.
AGES = {"last chunk": (19, 20), "half way": (8, 12), "oldest": (0, 4), "asked": (ASKED, ASKED + 1)}
VALUES, APART = 16, 6  # of half a heartbeat shown, and of the half that came next
SIZES, ALPHAS, TEMPERATURES = (128, 256, 512), (1.0, 1.5, 2.0), (0.3, 1.0, 3.0, 10.0)


class Questions(NamedTuple):
    """Intervals, each in one chunk, and the true means: (Q,) each."""

    chunk: Tensor
    low: Tensor
    high: Tensor
    answers: Tensor


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


def chunks(times: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Cut the readings into chunks of equal duration: times (1, l) and values (1, l, 1)."""
    cuts = torch.searchsorted(times, torch.arange(1, CHUNKS) / CHUNKS).tolist()
    pieces = zip(times.tensor_split(cuts), values.tensor_split(cuts), strict=True)
    return [(t.unsqueeze(0), v.reshape(1, -1, 1)) for t, v in pieces]


def remember(times: Tensor, values: Tensor, functions: int) -> tuple[Callable, int]:
    """Feed a `ForgettingMemory`; return a function of questions and the size of the state."""
    basis = sf.bases.GaussianRBF.grid(functions, 1 / functions)
    memory = sf.attention.ForgettingMemory(sf.attention.RidgeRegression(basis, 1.0))
    state = None
    for t, v in chunks(times, values):
        function, state = memory(t, v, state)
    return lambda q: mean_over(function, q.low, q.high), sum(part.numel() for part in state)


def contract(times: Tensor, values: Tensor) -> tuple[Callable, int]:
    """Feed a `ContractingMemory`, which contracts the past at every chunk."""
    basis = sf.bases.GaussianRBF.grid(SLOTS, 1 / SLOTS)
    regression = sf.attention.RidgeRegression(basis, 1.0)
    memory = sf.attention.ContractingMemory(regression, TAU, samples=8 * SLOTS)
    state = None
    for k, (t, v) in enumerate(chunks(times, values)):
        function, state = memory((t * CHUNKS - k).clamp(0, 1), v, state)

    def answer(q: Questions) -> Tensor:
        low, high = (position_now(x * CHUNKS - q.chunk, q.chunk) for x in (q.low, q.high))
        return mean_over(function, low, high)

    return answer, state.numel()


def stick(times: Tensor, values: Tensor) -> tuple[Callable, int]:
    """Feed a `ContractingMemory` that is asked about one chunk again and again."""
    regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(SLOTS, 1 / SLOTS), 1.0)
    memory = sf.attention.ContractingMemory(regression, TAU, 8 * SLOTS, STICKINESS)
    state, densities = None, []

    def moved(share: Tensor, chunk: Tensor) -> Tensor:
        """Return the present positions of shares of chunks."""
        place = share.double()
        for k, density in enumerate(densities):
            later = memory.relocate(place.unsqueeze(0), density).squeeze(0)
            place = torch.where(chunk < k, later, place)
            place = torch.where((chunk == k) & (chunk > 0), TAU + (1 - TAU) * place, place)
        return place

    for k, (t, v) in enumerate(chunks(times, values)):
        density = None
        if k > ASKED:
            low, high = moved(torch.tensor([0.0, 1.0]), torch.tensor([ASKED, ASKED])).float()
            density = sf.BetaGaussian((low + high)[None] / 2, (high - low)[None] / 2, math.inf)
        function, state = memory((t * CHUNKS - k).clamp(0, 1), v, state, density=density)
        densities.append(density)

    def answer(q: Questions) -> Tensor:
        shares = torch.lerp(q.low, q.high, (torch.arange(PLACES).unsqueeze(-1) + 0.5) / PLACES)
        shares = shares * CHUNKS - q.chunk
        now = moved(shares.flatten(), q.chunk.expand_as(shares).flatten())
        return function(now.unsqueeze(0)).reshape(PLACES, -1).mean(0)

    return answer, state.numel()


def position_now(share: Tensor, chunk: Tensor) -> Tensor:
    """Return the position, after the last chunk, of a share of an earlier chunk."""
    at_first = torch.where(chunk == 0, share, TAU + (1 - TAU) * share)
    return at_first * TAU ** (CHUNKS - 1 - chunk)


def mean_over(function: sf.attention.ValueFunction, low: Tensor, high: Tensor) -> Tensor:
    """Return means over intervals: expectations under uniform densities, alpha = inf."""
    density = sf.BetaGaussian((low + high).unsqueeze(0) / 2, (high - low) / 2, math.inf)
    return function.expect(density).flatten()


def mean_of_kept(times: Tensor, values: Tensor, q: Questions) -> Tensor:
    """Return the mean of the kept readings in each interval, or of all where there is none."""
    inside = (times >= q.low.unsqueeze(-1)) & (times <= q.high.unsqueeze(-1))
    inside = inside | ~inside.any(-1, keepdim=True)
    return (inside * values).sum(-1) / inside.sum(-1)


def recall(length: int, functions: int, seed: int, count: int = 400) -> dict[str, Run]:
    """Return the error of each memory by age, and its size.

    Each memory is compared with as many numbers of plain readings, two for each: the last ones
    (a window), or a random sample.
    """
    generator = torch.Generator().manual_seed(seed)
    times, values, truth = listen(length, generator)
    memories: dict[str, tuple[Callable, int]] = {}
    for name, (answer, size) in {
        "ForgettingMemory": remember(times, values, functions),
        "ContractingMemory": contract(times, values),
        "ContractingMemory, sticky": stick(times, values),
    }.items():
        kept = min(size // 2, length)
        if f"window of {kept}" in memories:  # the same rivals
            memories[name] = answer, size
            continue
        sample = torch.randperm(length, generator=generator)[:kept]
        memories[name] = answer, size
        for rival, index in (("window", torch.arange(length - kept, length)), ("sample", sample)):
            own = times[index], values[index]
            memories[f"{rival} of {kept}"] = partial(mean_of_kept, *own), 2 * kept
    runs: dict[str, Run] = {name: {"numbers": size} for name, (_, size) in memories.items()}
    for age, some in AGES.items():
        questions = ask(truth, some, count, generator)
        for name, (answer, _) in memories.items():
            missed = answer(questions) - questions.answers
            runs[name][age] = missed.square().mean().sqrt().item()
    return runs


def windows(recording: Tensor) -> tuple[Tensor, Tensor]:
    """Return half a heartbeat and the half that came next, from every sample on: (L, VALUES)."""
    found = recording.unfold(0, 2 * VALUES * APART, 1)[:, ::APART]
    return found[:, :VALUES], found[:, VALUES:]


def weigh(past: Tensor, query: Tensor, alpha: float, temperature: float) -> Tensor:
    """Return weights of windows (Q, L) by their distance from queries (Q, VALUES)."""
    scores = (query @ past.T - past.square().sum(-1) / 2) / temperature
    return sf.rpm(sf.scores.Finite(scores), alpha).probs


def recall_by_content(noisy: Tensor, size: int) -> dict[str, Callable]:
    """Return readers (query, alpha, temperature) to values (Q, VALUES) of what came next.

    The memories are `size` coefficients of a function, read by a density or at the readings' times;
    as many readings, with lines between them; and all readings (L,).
    """
    t = (torch.arange(len(noisy)) + 0.5) / len(noisy)
    regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(size, 1 / size), 1.0)
    smooth = regression.fit(t, noisy.reshape(1, -1, 1))(t.unsqueeze(0)).flatten()
    past, following = windows(smooth)
    lengths = past.square().sum(-1, keepdim=True)
    channels = torch.cat([past, lengths, following], -1).unsqueeze(0)
    starts = (torch.arange(len(past)) + 0.5) / len(past)  # none of the domain is left out
    coefficients = regression.fit(starts, channels).coefficients
    keys, offset, values = coefficients.split((VALUES, 1, VALUES), -1)

    def read(query: Tensor, alpha: float, temperature: float) -> Tensor:
        weights = (query @ keys.mT - offset.mT / 2) / temperature
        density = sf.rpm(sf.scores.BasisExpansion(weights, regression.basis), alpha)
        return sf.attention.ValueFunction(regression.basis, values).expect(density).squeeze(0)

    def discrete(past: Tensor, following: Tensor) -> Callable:
        return lambda *options: weigh(past, *options) @ following

    kept = ((torch.arange(size) + 0.5) * len(noisy) / size).long()
    between = torch.from_numpy(np.interp(t, t[kept], noisy[kept])).float()
    return {
        "function": read,
        "function, discrete": discrete(past, following),
        "kept readings": discrete(*windows(between)),
        "all readings": discrete(*windows(noisy)),
    }


def follow(seeds: int, sizes: tuple[int, ...], count: int = 200) -> dict[str, list[Run]]:
    """Return the error of what came next, by memory and size.

    Temperatures are the best for one more seed.
    """
    truth = torch.cat(load_pressure())
    shown, due = windows(truth)
    names = ("function", "function, discrete", "kept readings", "all readings")
    every = list(product(names, ALPHAS, TEMPERATURES))

    def missed(seed: int, size: int, options: list[tuple[str, float, float]]) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        noisy = truth + NOISE * torch.randn(truth.shape, generator=generator)
        index = torch.randperm(len(shown), generator=generator)[:count]
        query = shown[index] + NOISE * torch.randn(count, VALUES, generator=generator)
        readers = recall_by_content(noisy, size)
        found = (readers[name](query, *others) for name, *others in options)
        return [(x - due[index]).square().mean().sqrt().item() for x in found]

    runs: dict[str, list[Run]] = {}
    for size in sizes:
        tried = dict(zip(every, missed(seeds, size, every), strict=True))
        groups = product(names, ALPHAS)
        best = [min((key for key in every if key[:2] == g), key=tried.__getitem__) for g in groups]
        for seed in range(seeds):
            for (name, alpha, _), error in zip(best, missed(seed, size, best), strict=True):
                rows = runs.setdefault(f"{name}, α = {alpha:g}", [{} for _ in range(seeds)])
                rows[seed][str(size)] = error
        print(f"  {size} functions done", flush=True)
    return runs


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Questions about a time long ago.")
    parser.add_argument("--seeds", type=positive, default=3, help="repetitions (3)")
    parser.add_argument("--length", type=int, default=100_000, help="readings (100000)")
    parser.add_argument("--functions", type=int, default=192, help="of ForgettingMemory (192)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{options.length} readings in {CHUNKS} chunks, {options.seeds} seeds")
    runs: dict[str, list[Run]] = {}
    for seed in range(options.seeds):
        for name, run in recall(options.length, options.functions, seed).items():
            runs.setdefault(name, []).append(run)
        print(f"  seed {seed + 1} done", flush=True)
    columns = {"numbers": ("numbers", ".0f"), **{age: (age, "±.3f") for age in AGES}}
    show(*tabulate(runs, columns))
    print("By content: what came after half a heartbeat like this one?")
    show(*tabulate(follow(options.seeds, SIZES), {str(n): (str(n), "±.3f") for n in SIZES}))


if __name__ == "__main__":
    main()
