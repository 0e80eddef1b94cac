"""Categorical distributions with exact zeros."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import exp_beta
from refusals import refused
from torch import Tensor
from torch.autograd import gradcheck

import sparsefam as sf
from sparsefam import scores

PROBS = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)


def test_log_prob_and_its_gradients() -> None:
    weights = PROBS.clone().requires_grad_()
    p = sf.SparseCategorical(weights, validate_args=False)
    found = p.log_prob(torch.arange(4)[:, None])
    torch.testing.assert_close(found.T.exp(), PROBS)
    assert torch.isneginf(found.T[PROBS == 0]).all()
    (slope,) = torch.autograd.grad(found[torch.isfinite(found)].sum(), weights, retain_graph=True)
    assert torch.isfinite(slope).all()
    (slope,) = torch.autograd.grad(p.log_prob(torch.tensor([1, 0])).sum(), weights)
    assert (slope == 0).all()
    positive = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0, 2, 1])
    assert gradcheck(lambda w: sf.SparseCategorical(w).log_prob(t), (positive,))


def test_samples_have_the_right_frequencies_and_never_probability_zero() -> None:
    p = sf.SparseCategorical(PROBS)
    draws = p.sample((20000,))
    assert draws.shape == (20000, 2)
    for row in range(2):
        share = torch.bincount(draws[:, row], minlength=4) / 20000
        assert (share[PROBS[row] == 0] == 0).all()
        spread = (PROBS[row] * (1 - PROBS[row]) / 20000).sqrt()
        assert ((share - PROBS[row]).abs() <= 5 * spread).all()


def test_expectations_are_sums() -> None:
    p = sf.SparseCategorical(PROBS)
    values = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(p.expect(lambda t: values[t]), PROBS @ values)
    powers = p.expect(sf.bases.Polynomial(2))
    torch.testing.assert_close(powers[0], torch.tensor([1.0, 1.2, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_entropies_and_escorts(alpha: float) -> None:
    p = sf.SparseCategorical(PROBS, alpha)
    shannon = -(PROBS[0][PROBS[0] > 0] * PROBS[0][PROBS[0] > 0].log()).sum()
    assert p.entropy()[0].item() == pytest.approx(shannon.item())
    assert p.entropy()[1].item() == 0
    tsallis = shannon if alpha == 1 else (1 - (PROBS[0] ** alpha).sum()) / (alpha * (alpha - 1))
    assert p.tsallis_entropy()[0].item() == pytest.approx(tsallis.item())
    escort = p.escort(0.5).probs[0]
    expected = torch.where(PROBS[0] > 0, PROBS[0].sqrt(), 0.0)
    torch.testing.assert_close(escort, expected / expected.sum())
    uniform = p.escort(0.0).probs[0]
    torch.testing.assert_close(uniform, (PROBS[0] > 0).double() / 3)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_score_maps_back_to_the_probabilities(alpha: float) -> None:
    p = sf.rpm(scores.Finite(torch.randn(3, 5, dtype=torch.float64)), alpha)
    torch.testing.assert_close(sf.rpm(p.score, alpha).probs, p.probs, rtol=1e-12, atol=1e-14)
    again = exp_beta(p.score.scores - p.log_normalizer.unsqueeze(-1), 2 - p.alpha.unsqueeze(-1))
    torch.testing.assert_close(again, p.probs, rtol=1e-12, atol=1e-14)


def test_expand_shapes_and_enumeration() -> None:
    p = sf.SparseCategorical(PROBS).expand((3, 2))
    assert p.batch_shape == (3, 2)
    assert p.sample((5,)).shape == (5, 3, 2)
    assert p.log_prob(torch.zeros(3, 2, dtype=torch.long)).shape == (3, 2)
    assert p.enumerate_support().shape == (4, 3, 2)
    assert p.enumerate_support(expand=False).shape == (4, 1, 1)
    total = p.log_prob(p.enumerate_support()).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(3, 2, dtype=torch.float64))
    assert torch.equal(sf.SparseCategorical([1, 3]).probs, torch.tensor([0.25, 0.75]))


test_errors_name_the_argument = refused(
    [
        (lambda: sf.SparseCategorical(torch.tensor(0.5)), "probs must have shape"),
        (lambda: sf.SparseCategorical(torch.tensor([0.5, -0.5, 1.0])), "probs must be nonnegative"),
        (lambda: sf.SparseCategorical(torch.tensor([math.nan, 1.0])), "probs must be nonnegative"),
        (lambda: sf.SparseCategorical(torch.zeros(3)), "probs must be positive for some category"),
        (lambda: sf.SparseCategorical(PROBS).log_prob(torch.tensor(4)), "value must be an integer"),
        (lambda: sf.SparseCategorical(PROBS).log_prob(torch.tensor(math.nan)), "value"),
        (lambda: sf.SparseCategorical(PROBS).escort(math.nan), "beta must be a finite number"),
    ]
)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0])
def test_gradients_of_both_modes_with_zeros(alpha: float) -> None:
    f = torch.tensor([0.0, -1e-3, -5e-4, -3.0], dtype=torch.float64)
    change = torch.tensor([0.3, -0.2, 0.5, 1.0], dtype=torch.float64)
    p = sf.rpm(scores.Finite(f), alpha).probs
    assert p[3] == 0 and p[1] > 0
    quantities: list[Callable[[Any], Tensor]] = [
        lambda p: p.entropy(),
        lambda p: p.tsallis_entropy(),
        lambda p: p.escort(0.5).probs,
        lambda p: p.log_prob(torch.tensor([0, 1])),
    ]
    for quantity in quantities:

        def function(f: Tensor, quantity: Callable[[Any], Tensor] = quantity) -> Tensor:
            return quantity(sf.rpm(scores.Finite(f), alpha))

        _, found = torch.func.jvp(function, (f,), (change,))
        due = (function(f + 1e-6 * change) - function(f - 1e-6 * change)) / 2e-6
        torch.testing.assert_close(found, due, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(torch.func.jacrev(function)(f) @ change, found)
