"""Weights of truncated powers against exact integrals of polynomials."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsefam.numerics.quadrature import gauss_legendre
from sparsefam.numerics.truncated_power import (
    Power,
    positive_pieces,
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


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_keep_their_digits_as_eps_vanishes(eps: float, dtype: torch.dtype) -> None:
    x = torch.tensor([-3.0, -0.5, 0.0, 0.25, 2.0], dtype=dtype)
    due = torch.exp(torch.log1p(eps * x.double()) / eps)
    for exponent in (eps, torch.full((5,), eps, dtype=torch.float64).to(dtype)):
        found = Power(exponent).at(x)
        torch.testing.assert_close(found.double(), due, rtol=20 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("order", [12, 22])
@pytest.mark.parametrize("end", [-1, 1])
def test_an_edge_between_the_last_node_and_the_end_is_found(order: int, end: int) -> None:
    """An exponential that is positive where no node is."""
    x, w = element(order)
    u = torch.expm1(order / 4 * (end * x - 0.9999)).unsqueeze(-1)
    assert u.amax() < 0
    (found,) = power_weights(u - 1, w.unsqueeze(-1), Power(1.0), ("power",))
    assert found.sum() > 0
