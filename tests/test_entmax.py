"""Softmax, sparsemax and entmax against mpmath, and their derivatives."""

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.numerics.entmax import entmax

DOUBLE = torch.float64


def exactly(scores: Tensor, alpha: float) -> Tensor:
    """Row by row to 30 digits, by bisection for the normaliser."""
    rows = []
    with mpmath.workdps(30):
        for row in scores.double().reshape(-1, scores.shape[-1]).tolist():
            f, eps = [mpmath.mpf(x) for x in row], mpmath.mpf(alpha) - 1

            def p(level: mpmath.mpf, f: list[mpmath.mpf] = f, eps: mpmath.mpf = eps) -> list:
                return [max(1 + eps * (x - level), 0) ** (1 / eps) for x in f]

            low = max(f)
            high = low + mpmath.log(len(f)) + 1
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if sum(p(middle)) > 1 else (low, middle)
            rows.append([float(x) for x in p(low)])
    return torch.tensor(rows, dtype=DOUBLE).reshape(scores.shape)


@pytest.mark.parametrize("spread", [0.01, 100.0])
@pytest.mark.parametrize("alpha", [1.001, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_probabilities_are_exact(dtype: torch.dtype, alpha: float, spread: float) -> None:
    scores = spread * torch.randn(2, 12).to(dtype)
    expected = exactly(scores, alpha)
    # Beyond 2 probabilities jump off at the threshold: a root of the distance to it.
    eps = torch.finfo(dtype).eps
    tolerance = 16 * eps if alpha <= 2 else 16 * eps**0.5
    as_tensor = torch.tensor(alpha, dtype=DOUBLE).to(dtype)
    if float(as_tensor) == alpha:
        assert (entmax(scores, as_tensor) - expected).abs().max() < tolerance
    found = entmax(scores, alpha)
    assert (found - expected).abs().max() < tolerance
    assert ((found > 0) & (expected == 0)).float().mean() < 0.1


def test_derivatives() -> None:
    scores = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True)
    index = torch.tensor([1.01, 1.6, 2.3], dtype=DOUBLE, requires_grad=True)
    for alpha in (1.02, 2.0, 2.4):
        assert gradcheck(lambda f, alpha=alpha: entmax(f, alpha), scores)
        assert gradgradcheck(lambda f, alpha=alpha: entmax(f, alpha), scores)
    assert gradcheck(entmax, (scores, index)) and gradgradcheck(entmax, (scores, index))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("alpha", [1.0, 1 + 2.0**-20, 1.125])
def test_the_derivative_in_alpha_keeps_its_digits_next_to_one(
    dtype: torch.dtype, alpha: float
) -> None:
    scores, weights = torch.randn(8, dtype=dtype), np.arange(8)
    index = torch.tensor(alpha, dtype=dtype, requires_grad=True)
    (found,) = torch.autograd.grad((entmax(scores, index) * torch.arange(8)).sum(), index)
    step = 2.0**-18
    # On both sides of 1 the same formula holds.
    ends = [exactly(scores, alpha + move * step) for move in (-0.99, 1.01)]
    expected = float((ends[1] - ends[0]).numpy() @ weights) / (2 * step)
    assert found.item() == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0])
def test_whole_and_half_precise_numbers(alpha: float) -> None:
    scores = torch.tensor([3, 1, 2, 2])
    expected = entmax(scores.float(), alpha)
    assert torch.equal(entmax(scores, alpha), expected)
    assert torch.equal(entmax(scores.bfloat16(), alpha), expected.bfloat16())


def test_equal_and_excluded_and_single_scores() -> None:
    for alpha in (1.0, 1.3, 2.0, 3.0, torch.tensor(1.7)):
        assert torch.allclose(entmax(torch.full((5,), 7.0), alpha), torch.full((5,), 0.2))
        assert entmax(torch.tensor([1e30]), alpha).item() == 1
        found = entmax(torch.tensor([0.3, -torch.inf, 0.3]), alpha)
        assert torch.equal(found, torch.tensor([0.5, 0.0, 0.5]))
