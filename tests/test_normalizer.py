"""The normaliser of deformed exponentials: mass, and derivatives by finite differences."""

import math

import pytest
import torch
from torch import Tensor

from sparsefam.numerics import normalizer
from sparsefam.numerics.normalizer import normalized_weights
from sparsefam.numerics.quadrature import gauss_legendre
from sparsefam.numerics.truncated_power import Power, integrals, power_weights, sum_nodes

PANELS, ORDER, ROWS = 16, 16, 3


def grid() -> tuple[Tensor, Tensor]:
    """Nodes (m, G) and weights (m, G, 1) on [0, 1]."""
    x, w = gauss_legendre(ORDER, torch.zeros((), dtype=torch.float64))
    start = torch.arange(PANELS) / PANELS
    return start + (x.unsqueeze(-1) + 1) / (2 * PANELS), (
        w.reshape(-1, 1, 1) / (2 * PANELS)
    ).expand(ORDER, PANELS, 1)


NODES, MEASURE = grid()
CENTERS = torch.linspace(0, 1, 8, dtype=torch.float64)
WEIGHTS = 3 * torch.randn(ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
PSI = torch.stack([torch.ones_like(NODES), NODES, NODES.square(), torch.sin(5 * NODES)])


def scores(weights: Tensor, t: Tensor = NODES) -> Tensor:
    """Sums of Gaussians of width 0.1 at t, (*t, R)."""
    return torch.exp(-((t.unsqueeze(-1) - CENTERS).square()) / 0.02) @ weights.mT


def means(weights: Tensor) -> Tensor:
    return torch.einsum("mgr,nmg->rn", weights, PSI)


def normalized(weights: Tensor, eps: Tensor | float) -> tuple[Tensor, Tensor]:
    level, found, *_ = normalized_weights(scores(weights), MEASURE, eps)
    return level, means(found)


@pytest.mark.parametrize("eps", [1.0, 0.5, 0.25, 0.1])
def test_gradients_in_scores(eps: float) -> None:
    weights = WEIGHTS[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: normalized(w, eps), weights, atol=1e-6)


@pytest.mark.parametrize("eps", [1.0, 0.5, 0.25])
def test_second_gradients_in_scores(eps: float) -> None:
    weights = WEIGHTS[:1].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda w: normalized(w, eps), weights, atol=1e-5)


@pytest.mark.parametrize("eps", [0.9, 0.5, 0.25, 1e-2])
def test_gradients_in_the_exponent(eps: float) -> None:
    exponent = torch.full((ROWS,), eps, dtype=torch.float64, requires_grad=True)

    def found(e: Tensor) -> tuple[Tensor, Tensor]:
        return normalized(WEIGHTS, e)

    # Derivatives of effective weights next to edges are those of a graded rule.
    assert torch.autograd.gradcheck(found, exponent, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("eps", [1.0, 0.5, 0.0])
def test_gradients_of_log_integrals(eps: float) -> None:
    weights = WEIGHTS[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: sum_nodes(integrals(scores(w), MEASURE, Power(eps), ("log",))[0]),
        weights,
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e2, 1e7])
@pytest.mark.parametrize("eps", [1.0, 0.5])
def test_large_scores_are_normalised_to_their_rounding(
    eps: float, size: float, dtype: torch.dtype
) -> None:
    """A parabola under its top, with the level in closed form, by ever more steps."""
    due = 1 / eps - size * parabola_edge(size, eps) ** 2
    f = -size * (NODES - 0.37).square().to(dtype).unsqueeze(-1)
    level, _, _, mass = normalized_weights(f, MEASURE.to(dtype), eps)
    # Rounding of the scores at the ends of [0, 1].
    noise = torch.finfo(dtype).eps * (50 + 4 * size)
    assert mass.item() == pytest.approx(1, abs=min(noise, 0.25))
    assert level.item() == pytest.approx(due, abs=noise)


def parabola_edge(size: float, eps: float) -> float:
    """a with the mass of (eps size (a^2 - u^2))_+^(1 / eps) 1."""
    power = 1 / eps
    mass = (eps * size) ** power * math.gamma(0.5) * math.gamma(power + 1) / math.gamma(power + 1.5)
    return float(mass ** (-1 / (2 * power + 1)))


def test_a_step_may_go_beyond_the_level() -> None:
    """From a hill of mass below 1 down to a plain, which then has more mass than was missing."""
    nodes, measure = grid()
    heights = torch.linspace(3, 12, 400, dtype=torch.float64)
    f = heights * torch.exp(-0.5 * ((nodes.unsqueeze(-1) - 0.5) / 0.05).square())
    start = torch.full_like(heights, 1.02)
    solution = normalizer._newton(start, f, measure, Power(1.0))
    first = sum_nodes(power_weights(f - start, measure, Power(1.0))[0])
    mass = sum_nodes(power_weights(f - solution.A, measure, Power(1.0))[0])
    assert ((first > 0.9) & (first < 1)).sum() > 10
    torch.testing.assert_close(mass, torch.ones_like(heights), rtol=0, atol=1e-12)
