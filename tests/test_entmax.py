"""Softmax, sparsemax and entmax against mpmath, and their derivatives."""

import mpmath
import numpy as np
import pytest
import torch
from battery import DOUBLE, one_graph
from cases import every_dtype
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam._numerics.entmax import entmax


def exactly(scores: Tensor, alpha: float) -> Tensor:
    """Row by row, by bisection for the normalizer to 30 digits of probabilities."""
    rows, times = [], max(1.0, alpha - 1)  # a power of 1 / (alpha - 1) leaves fewer digits
    with mpmath.workdps(int(30 * times)):
        for row in scores.double().reshape(-1, scores.shape[-1]).tolist():
            f, eps = [mpmath.mpf(x) for x in row], mpmath.mpf(alpha) - 1

            def p(level: mpmath.mpf, f: list[mpmath.mpf] = f, eps: mpmath.mpf = eps) -> list:
                return [max(1 + eps * (x - level), 0) ** (1 / eps) for x in f]

            low = max(f)
            high = low + mpmath.log(len(f)) + 1
            for _ in range(int(100 * times)):
                middle = (low + high) / 2
                low, high = (middle, high) if sum(p(middle)) > 1 else (low, middle)
            rows.append([float(x) for x in p(low)])
    return torch.tensor(rows, dtype=DOUBLE).reshape(scores.shape)


@pytest.mark.parametrize(
    ("alpha", "spread"),
    [(1.001, 1.0), (1.5, 0.01), (1.5, 100.0), (2.0, 1.0), (2.5, 1.0), (5.0, 100.0), (12.0, 0.01)],
)
@every_dtype
def test_probabilities_are_exact(dtype: torch.dtype, alpha: float, spread: float) -> None:
    # The reference takes many digits, and as much time, where powers are steep.
    scores = spread * torch.randn(*((2, 8) if alpha < 4 else (1, 4))).to(dtype)
    expected, tolerance = exactly(scores, alpha), 16 * torch.finfo(dtype).eps
    as_tensor = torch.tensor(alpha, dtype=DOUBLE).to(dtype)
    if float(as_tensor) == alpha:
        assert (entmax(scores, as_tensor) - expected).abs().max() < tolerance
    found = entmax(scores, alpha)
    assert (found - expected).abs().max() < tolerance
    assert ((found > 0) & (expected == 0)).float().mean() < 0.1


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
@every_dtype
def test_scores_that_nearly_tie_or_are_many(dtype: torch.dtype, alpha: float) -> None:
    tied = torch.zeros(4, 4, dtype=dtype)
    # The second score is next to the threshold of the first, 1 / (alpha - 1) below.
    tied[:, 1:] = -1 / (alpha - 1) + torch.tensor([1e-4, 1e-6, 0.0, -1e-6])[:, None].to(dtype)
    tied[:, 2] -= 1e-6
    assert (entmax(tied, alpha) - exactly(tied, alpha)).abs().max() < 16 * torch.finfo(dtype).eps
    # Each step of Newton's method may leave out one score only.
    steps = -1 + 2.0 ** -torch.arange(40, dtype=dtype)
    for scores in (steps.cumsum(0), -torch.arange(2000, dtype=dtype) / 1e5):
        found = entmax(scores, alpha)
        assert abs(found.sum() - 1) < 64 * torch.finfo(dtype).eps
        level = (found.double() ** (alpha - 1) / (alpha - 1) - scores.double())[found > 0]
        close = 64 * torch.finfo(dtype).eps * (1 + scores.abs().max())
        assert level.max() - level.min() < close  # one normalizer
        assert torch.equal(
            torch.func.vmap(lambda f: entmax(f, alpha))(scores[None])[0] > 0, found > 0
        )


def test_derivatives() -> None:
    scores = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True)
    index = torch.tensor([1.01, 1.6, 2.3], dtype=DOUBLE, requires_grad=True)
    for alpha in (1.02, 1.5, 2.0, 2.4, 6.0):
        assert gradcheck(lambda f, alpha=alpha: entmax(f, alpha), scores)
        assert gradgradcheck(lambda f, alpha=alpha: entmax(f, alpha), scores)
    assert gradcheck(entmax, (scores, index)) and gradgradcheck(entmax, (scores, index))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 4.0])
def test_transforms_and_compiled_graphs(alpha: float) -> None:
    scores, change = torch.randn(3, 6, dtype=DOUBLE), torch.randn(3, 6, dtype=DOUBLE)
    due = torch.autograd.functional.jacobian(lambda f: entmax(f, alpha), scores)
    _, moved = torch.func.jvp(lambda f: entmax(f, alpha), (scores,), (change,))
    torch.testing.assert_close(moved, (due * change).sum((-1, -2)))
    torch.testing.assert_close(torch.func.jacfwd(lambda f: entmax(f, alpha))(scores), due)
    mapped = torch.func.vmap(torch.func.jacrev(lambda f: entmax(f, alpha)))(scores)
    torch.testing.assert_close(mapped, torch.stack([due[i, :, i] for i in range(3)]))
    found = one_graph(lambda f: entmax(f, alpha))(scores)
    torch.testing.assert_close(found, entmax(scores, alpha), rtol=0, atol=1e-15)
    if alpha > 1:
        index = torch.tensor(alpha, dtype=DOUBLE)
        _, moved = torch.func.jvp(lambda a: entmax(scores, a), (index,), (torch.ones_like(index),))
        due = torch.autograd.functional.jacobian(lambda a: entmax(scores, a), index)
        torch.testing.assert_close(moved, due)

        def total(f: Tensor) -> Tensor:
            return entmax(f, alpha).square().sum()

        hessian = torch.autograd.functional.hessian(total, scores[0])
        torch.testing.assert_close(torch.func.hessian(total)(scores[0]), hessian)


def test_gradients_where_a_probability_is_small() -> None:
    scores = torch.tensor([0.6, 0.4 - 2.0**-40, 0.0], dtype=DOUBLE) ** 4 / 4
    p = entmax(scores, 5.0)
    assert 0 < p[2] < 1e-9
    jacobian = torch.autograd.functional.jacobian(lambda f: entmax(f, 5.0), scores)
    assert torch.equal(jacobian.sum(0), torch.zeros_like(p))
    # The slope of the third, its power of -3, cancels: what the others gain it loses.
    slopes = p[:2] ** -3
    due = [[slopes[0], 0, -slopes[0]], [0, slopes[1], -slopes[1]], [*-slopes, slopes.sum()]]
    torch.testing.assert_close(jacobian, torch.tensor(due, dtype=DOUBLE), rtol=1e-10, atol=1e-10)


@every_dtype
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


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_rows_do_not_depend_on_each_other(alpha: float) -> None:
    """To the last bit: what masked attention returns must not depend on what it may not read."""
    scores = 5 * torch.randn(64, 40)
    others = torch.cat([scores[:32], 100 * torch.randn(32, 40)])
    assert torch.equal(entmax(scores, alpha)[:32], entmax(others, alpha)[:32])
