"""Deformed exponentials on a mesh, where its nodes show little of them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsefam._numerics import cells, normalizer
from sparsefam._numerics.cells import positive_pieces, power_weights, rough_masses
from sparsefam._numerics.deformed import Power
from sparsefam._numerics.quadrature import gauss_legendre
from sparsefam._numerics.truncated_power import sum_nodes

LIKE = torch.zeros((), dtype=torch.float64)
PAIR = ("power", "lowered")
# Waves of many phases on a mesh of eight subintervals.
NODES, WEIGHTS = gauss_legendre(10, LIKE)
T = (torch.arange(8).unsqueeze(-1) + (NODES.reshape(-1, 1, 1) + 1) / 2) / 8
MEASURE = (WEIGHTS / 16).reshape(-1, 1, 1).expand(10, 8, 1)
PHASES = torch.linspace(0, 6, 50, dtype=torch.float64)
WAVES = 3 * torch.sin(20 * T + PHASES)


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-5])
def test_a_dip_between_nodes_is_found(gap: float) -> None:
    """A hole narrower than the distance of nodes and of check points."""
    x, w = gauss_legendre(8, LIKE)
    # 0.0975 is midway between check points, -0.9937 between the first two.
    for center in (0.0, 0.037, 0.0975, 0.51, -0.86, *((-0.9937,) if gap < 5e-3 else ())):
        u = (x - center).square() - gap**2
        weights, _ = power_weights((u - 1).unsqueeze(-1), w.unsqueeze(-1), Power(1.0), PAIR)
        low, high = center - gap, center + gap
        whole = np.polynomial.Polynomial([center**2 - gap**2, -2 * center, 1]).integ()
        due = whole(low) - whole(-1) + whole(1) - whole(high)
        assert float(weights.sum()) == pytest.approx(due, abs=1e-14)
        pieces = positive_pieces(u.unsqueeze(-1))
        assert pieces.upper[0].item() == pytest.approx(low, abs=1e-9)


def test_a_step_may_go_beyond_the_level() -> None:
    """From a hill of mass below 1 down to a plain, which then has more mass than was missing."""
    x, w = gauss_legendre(16, LIKE)
    nodes = torch.arange(16) / 16 + (x.unsqueeze(-1) + 1) / 32
    measure = (w / 32).reshape(-1, 1, 1).expand(16, 16, 1)
    heights = torch.linspace(3, 12, 400, dtype=torch.float64)
    f = heights * torch.exp(-0.5 * ((nodes.unsqueeze(-1) - 0.5) / 0.05).square())
    solution = normalizer._newton(torch.full_like(heights, 1.02), f, measure, Power(1.0))
    mass = sum_nodes(power_weights(f - solution.A, measure, Power(1.0), PAIR)[0])
    torch.testing.assert_close(mass, torch.ones_like(heights), rtol=0, atol=1e-12)


@pytest.mark.parametrize("eps", [1.0, 0.5, 0.7])
def test_edges_are_the_same_where_values_are_not_read(
    eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where all subintervals have as many pieces, of which some are empty."""
    f = WAVES + PHASES * T
    due = normalizer.normalized_weights(f, MEASURE, eps)
    monkeypatch.setattr(cells, "values_are_readable", lambda x: False)
    found = normalizer.normalized_weights(f, MEASURE, eps)
    torch.testing.assert_close(found, due, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eps", [1.0, 0.5])
def test_rough_masses_leave_one_step(eps: float) -> None:
    due = [sum_nodes(v) for v in power_weights(WAVES - 1, MEASURE, Power(eps), PAIR)]
    mass, rate = rough_masses(WAVES - 1, MEASURE, Power(eps))
    torch.testing.assert_close(mass, due[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(rate, due[1], rtol=0, atol=2e-2)


@pytest.mark.parametrize("learned", [False, True])
def test_blocks_of_rows_change_nothing(learned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, first derivatives and, where alpha is a number, second ones."""
    eps: Tensor | float = torch.linspace(0.3, 0.9, 50, dtype=torch.float64) if learned else 0.5
    f = WAVES.clone().requires_grad_()
    leaves = [f, *([eps.requires_grad_()] if isinstance(eps, Tensor) else [])]

    def results() -> list[Tensor]:
        A, weights, _, _ = normalizer.normalized_weights(f, MEASURE, eps)
        total = (weights * T.sin()).sum() + A.square().sum()
        first = torch.autograd.grad(total, leaves, create_graph=not learned)
        rest = [] if learned else torch.autograd.grad(first[0].square().sum(), f)
        return [A, weights, *first, *rest]

    whole = results()
    monkeypatch.setattr(normalizer, "_ELEMENTS", 80 * 7)
    torch.testing.assert_close(results(), whole, rtol=1e-12, atol=1e-14)
