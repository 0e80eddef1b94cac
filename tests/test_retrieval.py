"""Retrieval by iterated attention: its energy, its fixed points, bad input."""

import pytest
import torch
from battery import DOUBLE
from refusals import refused
from torch import Tensor

from sparsefam.attention import ValueFunction, retrieve
from sparsefam.bases import BSpline, Polynomial
from sparsefam.losses import conjugate

SPLINE = BSpline([0.0] * 3 + torch.linspace(0, 1, 30).tolist() + [1.0] * 3, 3).double()
QUERY = torch.ones(2, 3, 6, dtype=DOUBLE)
every_alpha = pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])


def memory() -> ValueFunction:
    return ValueFunction(SPLINE, torch.randn(2, len(SPLINE), 6, dtype=DOUBLE))


def energy(function: ValueFunction, query: Tensor, alpha: float, temperature: float) -> Tensor:
    """The energy of Hopfield-Fenchel-Young networks (B, Lq)."""
    _, density = retrieve(function, query, alpha, temperature, 1)
    return query.square().sum(-1) / 2 - temperature * conjugate(density.score, density)


@pytest.mark.parametrize("alpha", [1.5])
def test_the_energy_decreases_to_a_fixed_point(alpha: float) -> None:
    function, query = memory(), 3 * torch.randn(2, 1, 6, dtype=DOUBLE)
    energies = []
    for _ in range(15):
        energies.append(energy(function, query, alpha, 0.5))
        query, _ = retrieve(function, query, alpha, 0.5, 1)
    changes = torch.stack(energies).diff(dim=0)
    assert (changes < 1e-10).all() and (changes[0] < -1e-3).all()
    end, density = retrieve(function, query, alpha, 0.5, 80)
    again, _ = retrieve(function, end, alpha, 0.5, 1)
    assert (again - end).abs().max() < 1e-4
    assert torch.allclose(function.expect(density), end, atol=1e-12)


@every_alpha
def test_the_gradient_of_the_energy_is_the_step(alpha: float) -> None:
    function = memory()
    query = torch.randn(2, 3, 6, dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(energy(function, query, alpha, 0.7).sum(), query)
    after, _ = retrieve(function, query, alpha, 0.7, 1)
    assert torch.allclose(slope, query - after, atol=1e-10)


test_bad_input_is_named = refused(
    [
        ({"steps": 10_001}, "steps must be from 1 to 10000, got 10001"),
        ({"steps": 0}, "steps must be"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        ({"alpha": 2.5}, "alpha must be in"),
        ({"query": torch.ones(2, 3, 5)}, r"query must be floating, \(2, Lq, 6\), got"),
        ({"function": torch.sin}, "function must be a ValueFunction"),
        ({"function": ValueFunction(Polynomial(2), torch.ones(2, 3, 6))}, "function must have"),
    ],
    of=lambda changes: retrieve(**{"function": memory(), "query": QUERY} | changes),
)
