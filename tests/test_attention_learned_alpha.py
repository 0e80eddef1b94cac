"""Entropic indices that are learned: their range, their start, their gradients."""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from layers import data
from torch import Tensor
from torch.autograd import gradcheck

from sparsefam.attention import ContinuousAttention, LearnedAlpha
from sparsefam.bases import GaussianRBF

DOUBLE = torch.float64


def make(score: str, alpha: LearnedAlpha) -> ContinuousAttention:
    basis = GaussianRBF.grid(6, 0.2)
    options: dict[str, Any] = {"batch_first": True, "dtype": alpha.weight.dtype, "combine": True}
    return ContinuousAttention(4, 2, basis, alpha, score, **options)


@pytest.mark.parametrize("high", [2.0, 3.0, math.inf])
def test_it_starts_where_it_is_told_and_stays_in_its_range(high: float) -> None:
    alpha = LearnedAlpha(3, start=[1.1, 1.5, 1.9], high=high)
    torch.testing.assert_close(alpha(), torch.tensor([[1.1], [1.5], [1.9]]))
    assert LearnedAlpha(2, start=1.75)().tolist() == [[1.75], [1.75]]
    for start in (torch.tensor([1.25, 1.75]), np.array([1.25, 1.75])):
        torch.testing.assert_close(LearnedAlpha(2, start)(), torch.tensor([[1.25], [1.75]]))
    for weight in (-1e4, 1e4):
        with torch.no_grad():
            alpha.weight.fill_(weight)
        assert ((alpha() >= 1.01) & (alpha() <= high)).all()
    alpha.reset_parameters()
    torch.testing.assert_close(alpha()[:, 0], torch.tensor([1.1, 1.5, 1.9]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_weights_do_not_round_it_to_one(dtype: torch.dtype) -> None:
    alpha = LearnedAlpha(1, start=1.02).to(dtype)
    assert alpha().dtype == torch.float32
    assert 1.015 < alpha().item() < 1.025


@pytest.mark.parametrize("score", ["quadratic", "moments", "kernel", "mixture"])
@pytest.mark.parametrize("start", [[1.02, 1.6], [1.9, 2.6]])
def test_gradients_pass_through_the_layer(score: str, start: list[float]) -> None:
    if score == "kernel":
        start = [min(x, 1.98) for x in start]
    high = 2.0 if max(start) < 2 else math.inf
    layer, inputs = make(score, LearnedAlpha(2, start, high, dtype=DOUBLE)), data(5)
    weight = layer.alpha.weight
    assert dict(layer.named_parameters())["alpha.weight"] is weight

    def context(weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha.weight": weight}, inputs)[0]

    assert gradcheck(context, (weight,), rtol=1e-4, atol=1e-7)
    density = layer(*inputs)[1]
    if score != "mixture":
        expected = torch.tensor(start, dtype=DOUBLE)[:, None].expand(2, 2, 3)
        torch.testing.assert_close(density.alpha, expected)


def test_float32_follows_float64_next_to_one() -> None:
    """Where the derivative in alpha is the difference of large numbers."""
    layer, inputs = make("moments", LearnedAlpha(2, 1.0101, dtype=DOUBLE)), data(5)
    layer(*inputs)[0].square().sum().backward()
    expected = layer.alpha.weight.grad
    layer.zero_grad()
    layer.float()(*(x.float() for x in inputs))[0].square().sum().backward()
    assert (layer.alpha.weight.grad - expected).norm() < 1e-2 * expected.norm()


def test_training_finds_an_index() -> None:
    """The contexts of a layer whose alpha was 1.8 teach another that starts at 1.2."""
    teacher, student = (make("quadratic", LearnedAlpha(2, x)) for x in (1.8, 1.2))
    state = {k: v for k, v in teacher.state_dict().items() if k != "alpha.weight"}
    student.load_state_dict(state, strict=False)
    inputs = data(30, dtype=torch.float32)
    with torch.no_grad():
        target = teacher(*inputs)[0]
    optimiser = torch.optim.Rprop([student.alpha.weight], lr=0.1)
    for _ in range(30):
        optimiser.zero_grad()
        (1e3 * (student(*inputs)[0] - target)).square().sum().backward()
        optimiser.step()
    assert (student.alpha() - 1.8).abs().max() < 0.05


def test_state_is_loaded_as_weights() -> None:
    layer, twin = (make("quadratic", LearnedAlpha(2, x)) for x in (1.3, 1.7))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    inputs = data(dtype=torch.float32)
    assert torch.equal(twin(*inputs)[0], layer(*inputs)[0])
    twin.reset_parameters()
    torch.testing.assert_close(twin.alpha(), torch.full((2, 1), 1.7))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LearnedAlpha(0), "num_heads must be a positive integer, got 0"),
        (lambda: LearnedAlpha(2, high=1.0), "high must be a number above 1.01, got 1.0"),
        (lambda: LearnedAlpha(2, high=math.nan), "high must be a number above 1.01, got nan"),
        (lambda: LearnedAlpha(2, high=None), "high must be a number above 1.01, got None"),
        (lambda: LearnedAlpha(2, "1.5"), "start must be .* between 1.01 and 2.0, got '1.5'"),
        (lambda: LearnedAlpha(1, dtype=torch.int32), "dtype must be floating, got torch.int32"),
        (lambda: LearnedAlpha(2, None), "start must be .* between 1.01 and 2.0, got None"),
        (
            lambda: make("kernel", LearnedAlpha(2, high=3.0)),
            "alpha.high must be at most 2 for score='kernel', got 3.0",
        ),
        (lambda: LearnedAlpha(2, 2.0), "start must be .* between 1.01 and 2.0, got 2.0"),
        (lambda: LearnedAlpha(2, 1.0), "start must be .* between 1.01 and 2.0, got 1.0"),
        (lambda: LearnedAlpha(2, [1.5] * 3), r"start must be a number, or 2 of them, .*got \[1.5"),
        (
            lambda: make("quadratic", LearnedAlpha(3))(*data(dtype=torch.float32)),
            r"alpha must broadcast to .* \(2, 2, 3\), got shape \(3, 1\)",
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
