"""Trains every mechanism on the vowels, seed by seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

import sparsefam as sf

from .mechanisms import Attention, Continuous, Discrete, Examples, NoAttention
from .progress import Reporter, RunBars
from .recordings import Observations, Recordings, load_vowels, observe
from .settings import Settings
from .training import Run, logistic_regression, train

__all__ = [
    "LOGISTIC",
    "NONE",
    "Comparison",
    "choose_penalty",
    "compare",
    "method_name",
    "share_read",
    "vowel_basis",
]

LOGISTIC, NONE = "logistic regression", "no attention"
_CLASSES, _SHARE, _BASIS_SIZE = 9, 0.3, 64
_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Comparison:
    """What the comparison leaves behind.

    Attributes:
        runs: One run for each seed, by method and number of heads (0: no heads).
        models: Mechanisms trained with the first seed and number of heads.
        test: Test examples of the first seed.
        recordings: The whole test recordings.
        errors: Root mean squared error at left-out training points, by penalty.
        penalty: The penalty of least error, which is used.
    """

    runs: dict[tuple[str, int], list[Run]]
    models: dict[str, Attention]
    test: Examples
    recordings: Recordings
    errors: dict[float, float]
    penalty: float


def method_name(name: str, heads: int) -> str:
    """How tables and pictures call a method; 0 heads: it has none."""
    return f"{name}, {heads} heads" if heads else name


def vowel_basis() -> sf.bases.GaussianRBF:
    """64 Gaussians over the domain, half as wide again as they are far apart."""
    return sf.bases.GaussianRBF.grid(_BASIS_SIZE, 1.5 / _BASIS_SIZE)


def choose_penalty(
    observed: Observations, basis: sf.bases.Basis, generator: torch.Generator
) -> dict[float, float]:
    """Root mean squared error at left-out observations, a fifth of them, for each ridge penalty."""
    left_out = observed.mask & (torch.rand(observed.mask.shape, generator=generator) < 0.2)
    # The first observation always stays: a series needs one.
    left_out[:, 0] = False
    kept = observed.mask & ~left_out
    errors = {}
    for penalty in _PENALTIES:
        ridge = sf.attention.RidgeRegression(basis, penalty)
        value = ridge.fit(observed.positions, observed.values.unsqueeze(-1), kept)
        missed = (value(observed.positions).squeeze(-1) - observed.values)[left_out]
        errors[penalty] = missed.square().mean().sqrt().item()
    return errors


def compare(settings: Settings, reporter: Reporter) -> Comparison:
    """Trains and tests all methods; seeds change the sampling, the initialisation, the order.

    Args:
        settings: Seeds, epochs, heads.
        reporter: Told of every epoch.

    Returns:
        The runs, and what pictures need.
    """
    recordings = load_vowels()
    basis = vowel_basis()
    generator = torch.Generator().manual_seed(0)
    errors = choose_penalty(observe(recordings[0], _SHARE, generator), basis, generator)
    penalty = min(errors, key=errors.__getitem__)
    reporter.note(f"ridge penalty {penalty:g}: error {errors[penalty]:.3f} at left-out points")
    builders = _builders(settings.heads)
    runs: dict[tuple[str, int], list[Run]] = {key: [] for key in [(LOGISTIC, 0), *builders]}
    models, tests = {}, []
    with reporter.runs(settings.seeds * len(builders), settings.epochs) as bars:
        for seed in range(settings.seeds):
            data = _examples(recordings, basis, penalty, seed)
            tests.append(data[1])
            runs[LOGISTIC, 0].append(logistic_regression(data))
            for key, build in builders.items():
                torch.manual_seed(seed)
                model = build()
                name = f"seed {seed + 1}, {method_name(*key)}"
                runs[key].append(_train_one(model, name, data, settings, seed, bars))
                if seed == 0 and key[1] == settings.heads[0] and isinstance(model, Attention):
                    models[key[0]] = model
    return Comparison(runs, models, tests[0], recordings[1], errors, penalty)


def _builders(heads: tuple[int, ...]) -> dict[tuple[str, int], Callable[[], nn.Module]]:
    basis = vowel_basis()
    builders: dict[tuple[str, int], Callable[[], nn.Module]] = {
        (NONE, 0): partial(NoAttention, _CLASSES)
    }
    maps = {"softmax": 1.0, "sparsemax": 2.0}
    for count in heads:
        for name, alpha in maps.items():
            builders[f"discrete {name}", count] = partial(Discrete, _CLASSES, count, alpha)
        for name, alpha in maps.items():
            build = partial(Continuous, _CLASSES, count, alpha, basis)
            builders[f"continuous {name}", count] = build
    return builders


def _examples(
    recordings: tuple[Recordings, Recordings], basis: sf.bases.Basis, penalty: float, seed: int
) -> tuple[Examples, Examples]:
    generator = torch.Generator().manual_seed(seed)
    fit, test = (
        Examples.fit(observe(part, _SHARE, generator), basis, penalty) for part in recordings
    )
    return fit, test


def _train_one(
    model: nn.Module,
    name: str,
    data: tuple[Examples, Examples],
    settings: Settings,
    seed: int,
    bars: RunBars,
) -> Run:
    """A run, reported epoch by epoch."""
    bars.begin(name)
    generator = torch.Generator().manual_seed(seed)
    run = train(model, data, settings.epochs, generator, bars.epoch)
    if isinstance(model, Attention):
        with torch.no_grad():
            run = replace(run, read=share_read(model.attend(data[1]), data[1]))
    bars.end(name, f"{100 * run.accuracy:.1f} % in {run.seconds:.1f} s")
    return run


def share_read(attention: sf.SparseDistribution, examples: Examples) -> float:
    """Share of the observed points that a head gives any weight or density, on average."""
    if isinstance(attention, sf.SparseCategorical):
        read = attention.probs > 0
    else:
        # (L, B, heads) to (B, heads, L)
        support: Any = attention.support
        read = support.check(examples.positions.T.unsqueeze(-1)).movedim(0, -1)
    shares = (read & examples.mask.unsqueeze(1)).sum(-1) / examples.mask.sum(-1, keepdim=True)
    return shares.mean().item()
