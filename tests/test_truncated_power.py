"""Weights of truncated powers against exact integrals of polynomials."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsefam.numerics.quadrature import gauss_legendre
from sparsefam.numerics.truncated_power import (
    Power,
    below,
    integrals,
    positive_pieces,
    power_quantiles,
    power_weights,
)


def element(order: int = 8) -> tuple[Tensor, Tensor]:
    return gauss_legendre(order, torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("power", [0, 1, 2, 4])
def test_weights_integrate_polynomials_to_their_edges(power: int) -> None:
    """One panel, u = (y - a)(b - y) or its negative: exact integrals by numpy's polynomials."""
    a, b = -0.3, 0.62
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    for sign, pieces in ((1, [(a, b)]), (-1, [(-1, a), (b, 1)])):
        u = sign * (x - a) * (b - x)
        of = Power(1.0, float(power))
        weights, lowered = power_weights((u - 1).unsqueeze(-1), w.unsqueeze(-1), of)
        inside = np.polynomial.Polynomial([-a * b, a + b, -1]) * sign
        for found, exponent in ((weights, power), (lowered, power - 1)):
            if exponent < 0:
                continue
            for degree in range(8):
                whole = (inside**exponent * np.polynomial.Polynomial.basis(degree)).integ()
                due = sum(whole(high) - whole(low) for low, high in pieces)
                value = float((found.squeeze(-1) * x**degree).sum())
                assert value == pytest.approx(due, abs=1e-14)


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-5])
def test_a_dip_between_nodes_is_found(gap: float) -> None:
    """A hole narrower than the distance of nodes and of check points."""
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    for center in (0.0, 0.037, 0.0975, 0.51, -0.86):  # 0.0975: midway between check points
        u = (x - center).square() - gap**2
        weights, _ = power_weights((u - 1).unsqueeze(-1), w.unsqueeze(-1), Power(1.0))
        low, high = center - gap, center + gap
        whole = np.polynomial.Polynomial([center**2 - gap**2, -2 * center, 1]).integ()
        due = whole(low) - whole(-1) + whole(1) - whole(high)
        assert float(weights.sum()) == pytest.approx(due, abs=1e-14)
        pieces = positive_pieces(u.unsqueeze(-1))
        assert pieces.upper[0].item() == pytest.approx(low, abs=1e-9)


def test_an_integral_up_to_a_limit() -> None:
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    upper = torch.tensor([-1.0, -0.5, 0.1, 0.9, 1.0], dtype=torch.float64)
    u = (x + 0.2).unsqueeze(-1).expand(-1, 5)
    (found,) = integrals(
        *below(u - 1, w.unsqueeze(-1).expand(-1, 5), upper), Power(1.0), ("power",)
    )
    due = (upper + 0.2).clamp_min(0).square() / 2
    torch.testing.assert_close(found.sum(0), due, rtol=0, atol=1e-14)


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_keep_their_digits_as_eps_vanishes(eps: float, dtype: torch.dtype) -> None:
    x = torch.tensor([-3.0, -0.5, 0.0, 0.25, 2.0], dtype=dtype)
    due = torch.exp(torch.log1p(eps * x.double()) / eps)
    for exponent in (eps, torch.full((5,), eps, dtype=torch.float64).to(dtype)):
        found = Power(exponent).at(x)
        torch.testing.assert_close(found.double(), due, rtol=20 * torch.finfo(dtype).eps, atol=0)


def test_powers_of_nothing_are_nothing() -> None:
    x = torch.tensor([-2.0, -1.0, 0.5])
    for power in (Power(1.0), Power(1.0, 1.0, 1), Power(0.7, 1.0, 2)):
        found = power.at(x / power.eps)
        assert found[:2].tolist() == [0, 0]
        assert found[2] > 0


@pytest.mark.parametrize("order", [12, 22])
@pytest.mark.parametrize("end", [-1, 1])
def test_an_edge_between_the_last_node_and_the_end_is_found(order: int, end: int) -> None:
    """An exponential that is positive where no node is."""
    x, w = element(order)
    u = torch.expm1(order / 4 * (end * x - 0.9999)).unsqueeze(-1)
    assert u.amax() < 0
    (found,) = power_weights(u - 1, w.unsqueeze(-1), Power(1.0), ("power",))
    assert found.sum() > 0


def test_several_pieces_and_their_quantiles() -> None:
    x, w = element(12)
    u = torch.cos(3 * torch.pi * x).unsqueeze(-1)
    pieces = positive_pieces(u)
    assert pieces.column.tolist() == [0, 0, 0]
    torch.testing.assert_close(
        pieces.lower, torch.tensor([-5, -1, 3]).double() / 6, rtol=0, atol=1e-2
    )
    (weights,) = power_weights(u - 1, w.unsqueeze(-1), Power(1.0), ("power",))
    mass = weights.sum()
    for share in (0.1, 0.5, 0.9):
        y = power_quantiles(u - 1, torch.ones_like(u), Power(1.0), share * mass.reshape(1))
        (found,) = integrals(*below(u - 1, w.unsqueeze(-1), y), Power(1.0), ("power",))
        torch.testing.assert_close(found.sum(), share * mass, rtol=0, atol=1e-13)
