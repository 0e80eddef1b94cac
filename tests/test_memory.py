"""Memories: chunks against the whole, against a weighted regression, resets, gradients."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE
from refusals import refused
from torch import Tensor

import sparsefam as sf
from sparsefam.attention import (
    ContractingMemory,
    ForgettingMemory,
    NormalEquations,
    RidgeRegression,
)
from sparsefam.bases import GaussianRBF

BASIS = GaussianRBF.grid(12, widths=0.08)


def sequence(batch: int = 2, length: int = 60, channels: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(batch, length, dtype=DOUBLE, generator=generator)
    return positions, torch.randn(batch, length, channels, dtype=DOUBLE, generator=generator)


def chunks(*parts: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*[part.split((7, 30, 1, 22), 1) for part in parts], strict=True))


def regression(penalty: float = 1e-2) -> RidgeRegression:
    return RidgeRegression(BASIS.double(), penalty)


@pytest.mark.parametrize("keep", [1.0, 0.7])
@pytest.mark.parametrize("smooth", [False, True])
def test_chunks_are_a_regression_on_what_they_remember(keep: float, smooth: bool) -> None:
    """Against numpy's least squares with rows weighed by age, of one example since its reset."""
    positions, values = sequence()
    mask = torch.rand(2, 60, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[:, 37] = torch.tensor([False, True])  # all that one example has of a chunk
    fit = RidgeRegression(BASIS.double(), smoothing=1e-2) if smooth else regression()
    rough = BASIS.double().roughness(BASIS.domain) if smooth else torch.eye(12, dtype=DOUBLE)
    penalty = 0.1 * torch.linalg.cholesky(rough + smooth * 1e-3 * rough.diagonal().diag()).mT
    memory, state = ForgettingMemory(fit, keep), None
    for i, (t, h, seen) in enumerate(chunks(positions, values, mask)):
        reset = torch.tensor([True, False]) if i == 1 else None
        function, state = memory(t, h, state, seen, reset)
    for b in range(2):
        weight = mask[b].numpy() * keep ** np.repeat([3, 2, 1, 0], [7, 30, 1, 22])
        weight[: 7 if b == 0 else 0] = 0
        root = np.sqrt(weight)[:, None]
        rows = np.concatenate([root * BASIS(positions[b]).numpy(), penalty.numpy()])
        mean = smooth * weight @ values[b].numpy() / weight.sum()
        right = np.concatenate([root * (values[b].numpy() - mean), np.zeros((12, 3))])
        due = np.linalg.lstsq(rows, right, rcond=None)[0]
        np.testing.assert_allclose(function.coefficients[b].numpy(), due, rtol=1e-8, atol=1e-9)
        if smooth:
            np.testing.assert_allclose(function.constant[b].numpy(), mean, rtol=1e-12)
        assert state.num_observations[b].item() == pytest.approx(weight.sum(), rel=1e-14)
    assert memory.regression.solve(state).coefficients.dtype == torch.get_default_dtype()


@pytest.mark.parametrize("junk", [False, True])
@pytest.mark.parametrize("kind", [ForgettingMemory, ContractingMemory])
def test_a_reset_forgets_one_example(kind: type, junk: bool) -> None:
    positions, values = sequence()
    density = {"density": attended(0.3)} if kind is ContractingMemory else {}
    memory = partial(kind(regression()), **density)
    _, state = memory(positions, values)
    kept, _ = memory(positions, 2 * values, state)
    fresh, _ = memory(positions, 2 * values)
    reset = torch.tensor([True, False])
    if junk and isinstance(state, Tensor):
        state = torch.where(reset.reshape(2, 1, 1), torch.nan, state)
    elif junk:
        state = NormalEquations(*[x.index_fill(0, torch.tensor([0]), torch.nan) for x in state])
    function, _ = memory(positions, 2 * values, state, reset=reset)
    torch.testing.assert_close(function.coefficients[0], fresh.coefficients[0])
    torch.testing.assert_close(function.coefficients[1], kept.coefficients[1])
    assert (fresh.coefficients[1] - kept.coefficients[1]).abs().max() > 0.1


def test_a_shared_grid_stays_one_matrix() -> None:
    _, values = sequence()
    t = torch.linspace(0, 1, 60, dtype=DOUBLE)
    memory = ForgettingMemory(regression())
    _, state = memory(t, values)
    _, state = memory(t, values, state)
    assert state.gram.shape == (1, 12, 12)
    # But not where only one example has a past.
    reset = torch.tensor([True, False])
    found, state = memory(t, values, state, reset=reset)
    assert state.gram.shape == (2, 12, 12)
    once, thrice = (regression(p).fit(t, values).coefficients for p in (1e-2, 1e-2 / 3))
    torch.testing.assert_close(found.coefficients[0], once[0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.coefficients[1], thrice[1], rtol=1e-9, atol=1e-10)


def test_half_precision_rounds_only_the_values() -> None:
    """Coefficients that cancel, and a state that returns with every chunk, would lose more."""
    dtype = torch.bfloat16
    positions, values = sequence()
    for memory in (ForgettingMemory(regression()), ContractingMemory(regression())):
        found = []
        for h in (values.to(dtype), values.to(dtype).float()):
            _, state = memory(positions, h)
            with torch.autocast("cpu", dtype, enabled=h.dtype == dtype):
                function, _ = memory(positions, h, state)
                found.append(function(positions))
            assert function.coefficients.dtype == torch.float32
        assert torch.equal(*found)


def attended(center: float, width: float = 0.05) -> sf.SparseDistribution:
    """Two heads of three queries that look at one place."""
    centers = center + 0.01 * torch.arange(6, dtype=DOUBLE).reshape(1, 2, 3)
    return sf.TruncatedParabola(centers, width)


def scattered() -> dict[str, sf.SparseDistribution | None]:
    draw = torch.Generator().manual_seed(2)
    places = torch.rand(2, 2, 3, dtype=DOUBLE, generator=draw)
    weights = 4 * torch.randn(1, 4, 12, dtype=DOUBLE, generator=draw)
    return {
        "parabolas": sf.TruncatedParabola(places, 0.01 + 0.3 * places),
        "normal, beyond [0, 1]": sf.Normal(places[:, 0, 0], 0.5),
        "content": sf.rpm(sf.scores.BasisExpansion(weights, regression().basis), 1.5),
        "outside": sf.TruncatedParabola(places[:1] + 5, 0.1),
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("name", "stickiness"),
    [("parabolas", 0.0), ("nothing", 1.0), *((name, 0.5) for name in scattered())],
)
def test_sticky_memories_are_read_at_quantiles_of_the_mean_density(
    name: str, stickiness: float
) -> None:
    """Against bisection of averaged distribution functions and numpy's least squares."""
    positions, values = sequence()
    density, memory = scattered()[name], ContractingMemory(regression(), 0.4, 48, stickiness)
    _, state = memory(positions, values)
    found, again = (memory(positions, -values, state, density=density) for _ in range(2))
    assert torch.equal(found[1], again[1])

    def below(t: Tensor, example: int) -> Tensor:
        if density is None:
            return t

        def mass(t: Tensor) -> Tensor:
            shape = [-1, *[1] * len(density.batch_shape)]
            at_t = density.cdf(t.reshape(shape).expand(-1, *density.batch_shape))
            return at_t[:, example % at_t.shape[1]].reshape(len(t), -1).mean(-1)

        start, end = mass(torch.tensor([0.0, 1.0], dtype=DOUBLE))
        return (1 - stickiness * (end - start)) * t + stickiness * (mass(t) - start)

    levels = (torch.arange(48, dtype=DOUBLE) + 0.5) / 48
    for i in range(2):
        low, high = torch.zeros_like(levels), torch.ones_like(levels)
        for _ in range(50):
            read = (low + high) / 2
            above = below(read, i) > levels
            low, high = torch.where(above, low, read), torch.where(above, read, high)
        past = BASIS(read).detach() @ state[i]
        where = torch.cat([0.4 * levels, 0.4 + 0.6 * positions[i]])
        rows = np.concatenate([BASIS(where).detach().numpy(), 0.1 * np.eye(12)])
        right = np.concatenate([past.numpy(), -values[i].numpy(), np.zeros((12, 3))])
        due = np.linalg.lstsq(rows, right, rcond=None)[0]
        np.testing.assert_allclose(found[1][i].numpy(), due, rtol=1e-9, atol=1e-9)
        moved = memory.relocate(read.expand(2, -1), density)[i]
        np.testing.assert_allclose(moved.numpy(), 0.4 * levels.numpy(), atol=1e-12)


def test_densities_get_no_gradient() -> None:
    positions, values = sequence()
    center = torch.tensor([0.3], dtype=DOUBLE, requires_grad=True)
    memory = ContractingMemory(regression())
    _, state = memory(positions, values.requires_grad_())
    function, _ = memory(positions, values, state, density=sf.TruncatedParabola(center, 0.2))
    slopes = torch.autograd.grad(function.coefficients.sum(), (values, center), allow_unused=True)
    assert slopes[0].abs().max() > 0 and slopes[1] is None


@pytest.mark.parametrize("kind", [ForgettingMemory, ContractingMemory])
def test_gradients_reach_back_to_the_horizon(kind: type) -> None:
    positions, values = sequence(length=20)
    first, second = values.clone().requires_grad_(), values.clone().requires_grad_()
    memory = kind(regression())

    def after(first: Tensor, second: Tensor) -> Tensor:
        _, state = memory(positions, first)
        function, _ = memory(positions, second, state)
        found: Tensor = function.coefficients
        return found

    assert torch.autograd.gradcheck(after, (first[:, :, :1], second[:, :, :1]))
    _, state = memory(positions, first)
    function, _ = memory(positions, second, state.detach())
    slopes = torch.autograd.grad(function.coefficients.sum(), (first, second), allow_unused=True)
    assert slopes[0] is None
    assert slopes[1].abs().max() > 0


SUMS = regression().statistics(*sequence(2))
OTHERS = regression().statistics(*sequence(3))
NO_COUNT = SUMS._replace(num_observations=SUMS.num_observations * math.nan)
PLANE = RidgeRegression(GaussianRBF.grid(4, widths=0.1, ndim=2))


def forgetting(*state: Any, **options: Any) -> object:
    return ForgettingMemory(regression())(*sequence(2), *state, **options)


def contracting(*state: Any, **options: Any) -> object:
    return ContractingMemory(regression())(*sequence(2), *state, **options)


def attending(density: Any) -> object:
    return contracting(SUMS.cross, density=density)


test_bad_arguments_are_named = refused(
    [
        (lambda: ForgettingMemory(regression(), 1.5), "forgetting_factor must be above 0"),
        (lambda: ContractingMemory(regression(), tau=1.0), "tau must be between 0 and 1"),
        (lambda: ContractingMemory(regression(), samples=0), "samples must be at least 1, got 0"),
        (lambda: ContractingMemory(regression(), stickiness=1.5), "must be from 0 to 1, got 1.5"),
        (lambda: ContractingMemory(PLANE), "regression must have a basis of numbers"),
        (lambda: attending(sf.Normal(torch.zeros(3), 1)), r"batch shape \(2, ...\) or \(1, ...\)"),
        (lambda: attending(sf.SparseCategorical(torch.ones(2, 3))), "density must be univariate"),
        (lambda: forgetting(torch.zeros(2, 12, 3)), "state must be a NormalEquations, got Tensor"),
        (lambda: forgetting(OTHERS), r"state.cross must have shape \(2, 12, 3\), got \(3, 12, 3\)"),
        (lambda: forgetting(NO_COUNT), "num_observations must be finite, got nan at index .0."),
        (lambda: contracting(SUMS.cross * math.nan), "cross must be finite, got nan at index .0"),
        (lambda: forgetting(SUMS, reset=torch.ones(2)), "reset must be boolean, got torch.float32"),
        (
            lambda: ContractingMemory(regression())(2 * torch.ones(1, 3), torch.ones(1, 3, 1)),
            r"positions must be in \[0, 1\]",
        ),
    ]
)
