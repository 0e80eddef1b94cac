"""Memories: chunks against the whole, weights against a weighted regression, resets, constants."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparsefam.attention import (
    ContractingMemory,
    ForgettingMemory,
    RidgeRegression,
    Statistics,
    ValueFunction,
)
from sparsefam.bases import GaussianRBF

BASIS = GaussianRBF.grid(12, widths=0.08)
DOUBLE = torch.float64


def sequence(batch: int = 2, length: int = 60, channels: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(batch, length, dtype=DOUBLE, generator=generator)
    return positions, torch.randn(batch, length, channels, dtype=DOUBLE, generator=generator)


def chunks(*parts: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*[part.split((7, 30, 1, 22), 1) for part in parts], strict=True))


def regression(penalty: float = 1e-2) -> RidgeRegression:
    return RidgeRegression(BASIS.double(), penalty)


def test_chunks_are_the_whole() -> None:
    positions, values = sequence()
    mask = torch.rand(2, 60, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[:, 37] = torch.tensor([False, True])  # all that one example has of a chunk
    memory, state = ForgettingMemory(regression()), None
    for t, h, m in chunks(positions, values, mask):
        function, state = memory(t, h, state, m)
    whole = regression().fit(positions, values, mask)
    torch.testing.assert_close(function.coefficients, whole.coefficients, rtol=1e-10, atol=1e-11)


def test_older_chunks_count_less() -> None:
    """Against numpy's least squares with rows weighed by age."""
    positions, values = sequence(batch=1)
    memory, state = ForgettingMemory(regression(), keep=0.5), None
    for t, h in chunks(positions, values):
        function, state = memory(t, h, state)
    ages = np.repeat([3, 2, 1, 0], [7, 30, 1, 22])
    root = np.sqrt(0.5**ages)[:, None]
    design = BASIS(positions[0]).detach().numpy() * root
    rows = np.concatenate([design, 0.1 * np.eye(12)])
    right = np.concatenate([values[0].numpy() * root, np.zeros((12, 3))])
    due = np.linalg.lstsq(rows, right, rcond=None)[0]
    np.testing.assert_allclose(function.coefficients[0].numpy(), due, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", [ForgettingMemory, ContractingMemory])
def test_a_reset_forgets_one_example(kind: type) -> None:
    positions, values = sequence()
    memory = kind(regression())
    _, state = memory(positions, values)
    reset = torch.tensor([True, False])
    function, _ = memory(positions, 2 * values, state, reset=reset)
    fresh, _ = memory(positions, 2 * values)
    kept, _ = memory(positions, 2 * values, state)
    torch.testing.assert_close(function.coefficients[0], fresh.coefficients[0])
    torch.testing.assert_close(function.coefficients[1], kept.coefficients[1])
    assert (fresh.coefficients[1] - kept.coefficients[1]).abs().max() > 0.1


@pytest.mark.parametrize("kind", [ForgettingMemory, ContractingMemory])
def test_what_is_forgotten_may_be_nan(kind: type) -> None:
    positions, values = sequence()
    memory = kind(regression())
    _, state = memory(positions, values)
    if isinstance(state, Tensor):
        state = torch.where(torch.tensor([True, False]).reshape(2, 1, 1), torch.nan, state)
    else:
        state = Statistics(*[x.index_fill(0, torch.tensor([0]), torch.nan) for x in state])
    function, _ = memory(positions, values, state, reset=torch.tensor([True, False]))
    fresh, _ = memory(positions, values)
    torch.testing.assert_close(function.coefficients[0], fresh.coefficients[0])
    assert function.coefficients.isfinite().all()


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_only_the_values_are_rounded_by_half_precision(dtype: torch.dtype) -> None:
    """Coefficients that cancel, and a state that comes back with every chunk, would lose more."""
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


def test_the_past_is_squeezed() -> None:
    """The first function goes to the left, and further left as the others come."""
    t = torch.linspace(0, 1, 80, dtype=DOUBLE)
    fine = RidgeRegression(GaussianRBF.grid(40, widths=0.04).double(), 1e-6)
    memory, state = ContractingMemory(fine, tau=0.5), None
    for part in (torch.sin(3 * t), math.sin(3) * torch.cos(t), math.sin(3) * math.cos(1) + 0 * t):
        function, state = memory(t.unsqueeze(0), part.reshape(1, -1, 1), state)
    x = torch.linspace(0, 1, 201, dtype=DOUBLE)
    # Where they meet there are kinks, which functions of width 0.04 round off.
    x = x[((x - 0.25).abs() > 0.08) & ((x - 0.5).abs() > 0.08)]
    late = math.sin(3) * torch.where(x < 0.5, torch.cos(4 * x - 1), math.cos(1))
    due = torch.where(x < 0.25, torch.sin(12 * x), late)
    found = function(x.unsqueeze(0)).flatten()
    torch.testing.assert_close(found, due, rtol=0, atol=0.01)


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


@pytest.mark.parametrize("kind", [ForgettingMemory, ContractingMemory])
def test_steps_are_checkpointed(kind: type) -> None:
    """Formed anew in backward, a state that went in and came out has the same gradients."""
    positions, values = sequence()
    values.requires_grad_()
    memory = kind(regression())

    def slope(step: Callable[..., tuple[ValueFunction, Any]]) -> Tensor:
        state = None
        for t, h in chunks(positions, values):
            function, state = step(t, h, state)
        (found,) = torch.autograd.grad(function.coefficients.square().sum(), values)
        return found

    torch.testing.assert_close(
        slope(partial(checkpoint, memory, use_reentrant=False)), slope(memory), rtol=0, atol=0
    )


def test_a_state_is_kept_in_a_file(tmp_path: Path) -> None:
    positions, values = sequence()
    memory = ForgettingMemory(regression())
    _, state = memory(positions, values)
    torch.save(state._asdict(), tmp_path / "state.pt")
    again = Statistics(**torch.load(tmp_path / "state.pt", weights_only=True))
    found, exact = (memory(positions, values, old)[0].coefficients for old in (again, state))
    assert torch.equal(found, exact)


@pytest.mark.parametrize("length", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_long_stream_needs_no_more_memory_and_is_the_whole(length: int) -> None:
    """Float32 values: one shot against chunks of a thousand."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(1, length, generator=generator)
    values = torch.sin(9 * positions).unsqueeze(-1) + 0.1
    fit = RidgeRegression(GaussianRBF.grid(16, widths=0.06), 1e-2)
    memory, state, sizes = ForgettingMemory(fit), None, set()
    for t, h in zip(positions.split(1000, 1), values.split(1000, 1), strict=True):
        function, state = memory(t, h, state)
        sizes.add(sum(part.numel() for part in state))
    assert sizes == {16 * 16 + 16 + 2}
    whole = fit.fit(positions, values)
    error = (function.coefficients - whole.coefficients).norm() / whole.coefficients.norm()
    assert error < 1e-6


SUMS = regression().statistics(*sequence(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ContractingMemory(regression())(torch.ones(2, 3), torch.ones(2, 3)),
            "values must have shape",
        ),
        (lambda: ForgettingMemory(None), "regression must be a RidgeRegression, got None"),
        (lambda: ContractingMemory(None), "regression must be a RidgeRegression, got None"),
        (
            lambda: ForgettingMemory(regression())(*sequence(2), torch.zeros(2, 12, 3)),
            "state must be a Statistics, got Tensor",
        ),
        (
            lambda: ForgettingMemory(regression())(*sequence(2), mask="x"),
            "mask must be a tensor, got str",
        ),
        (
            lambda: ForgettingMemory(regression())(*sequence(2))[1].plus(None),
            "other must be a Statistics, got NoneType",
        ),
        (lambda: SUMS.plus(SUMS, math.nan), "keep must be from 0 to 1, got nan"),
        (lambda: SUMS.plus(SUMS, 1.5), "keep must be from 0 to 1, got 1.5"),
        (
            lambda: SUMS.plus(SUMS, torch.tensor([1.0, -0.5])),
            r"keep must be from 0 to 1, got -0.5 at index \[1\]",
        ),
        (lambda: SUMS.plus(SUMS, torch.ones(2) + 0j), "keep must be a number or a tensor, got ten"),
        (
            lambda: SUMS.plus(SUMS._replace(gram=SUMS.gram[:, 1:, 1:])),
            r"other.gram must have shape \(2, 12, 12\).*, got \(2, 11, 11\)",
        ),
        (
            lambda: SUMS.plus(SUMS._replace(sum_of_squares=SUMS.sum_of_squares.float())),
            "other.sum_of_squares must be floating, of one dtype with all, got torch.float32",
        ),
        (lambda: regression().solve("x"), "statistics must be a Statistics, got str"),
        (
            lambda: regression().solve(SUMS._replace(num_observations=None)),
            "statistics.num_observations must be floating, of one dtype with all, got None",
        ),
        (
            lambda: regression().solve(SUMS._replace(cross=SUMS.cross / 0)),
            "statistics.cross must be finite, got -?inf at index .0, 0, 0.",
        ),
        (
            lambda: regression().solve(SUMS, torch.complex64),
            "dtype must be floating, got torch.complex64",
        ),
        (
            lambda: ForgettingMemory(regression())(
                *sequence(2), SUMS._replace(num_observations=SUMS.num_observations * math.nan)
            ),
            "state.num_observations must be finite where it is not reset, got nan at index .0.",
        ),
        (
            lambda: ContractingMemory(regression())(*sequence(2), SUMS.cross * math.nan),
            "state must be finite where it is not reset, got nan at index .0, 0, 0.",
        ),
        (
            lambda: ContractingMemory(regression())(*sequence(2), SUMS.cross.long()),
            "state must be floating, of 2 .*, got .2, 12, 3. of torch.int64",
        ),
        (
            lambda: ContractingMemory(regression())(sequence(2)[0] + 0j, sequence(2)[1]),
            "positions must be real numbers, got torch.complex128",
        ),
        (
            lambda: ValueFunction(BASIS, SUMS.sum_of_squares),
            r"coefficients must .* \(B, 12, E\), got \(2,\)",
        ),
        (lambda: ValueFunction(None, SUMS.cross), "basis must be a Basis, got None"),
        (lambda: ValueFunction(BASIS, SUMS.cross)("t"), "t must be a tensor, got str"),
        (
            lambda: ValueFunction(BASIS, SUMS.cross).expect(None),
            "density must have expectations, got None",
        ),
        *(
            (
                lambda keep=keep: ForgettingMemory(regression(), keep=keep),
                f"keep must be above 0 and at most 1, got {keep}",
            )
            for keep in (1.5, 0.0, None)
        ),
        (lambda: ContractingMemory(regression(), tau=1.0), "tau must be between 0 and 1"),
        (lambda: ContractingMemory(regression(), samples=0), "samples must be a positive integer"),
        (
            lambda: ContractingMemory(RidgeRegression(GaussianRBF.grid(4, widths=0.1, ndim=2))),
            "regression must have a basis of numbers",
        ),
        (
            lambda: ContractingMemory(regression())(2 * torch.ones(1, 3), torch.ones(1, 3, 1)),
            r"positions must be in \[0, 1\]",
        ),
        (
            lambda: ForgettingMemory(regression())(
                *sequence(2), ForgettingMemory(regression())(*sequence(3))[1]
            ),
            "state must be floating, of 2 examples, 12 functions, 3 channels, got .3, 12, 3.",
        ),
        (
            lambda: ContractingMemory(regression())(
                *sequence(2), ForgettingMemory(regression())(*sequence(2))[1]
            ),
            "state must be floating, of 2 examples, .* 3 channels, got Statistics",
        ),
        (
            lambda: ForgettingMemory(regression())(
                *sequence(2), ForgettingMemory(regression())(*sequence(2))[1], reset=torch.ones(2)
            ),
            r"reset must be boolean of shape \(2,\), got torch.float32 of shape \(2,\)",
        ),
        (
            lambda: ForgettingMemory(regression())(*sequence(2), reset=torch.tensor([True])),
            r"reset must be boolean of shape \(2,\), got torch.bool of shape \(1,\)",
        ),
        (
            lambda: ContractingMemory(regression())(*sequence(2), reset=torch.ones(2)),
            "reset must be boolean",
        ),
    ],
)
def test_bad_arguments(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
