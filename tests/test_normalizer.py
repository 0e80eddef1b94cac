"""Weights of deformed exponentials on panels: mass, and derivatives against finite differences."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsefam.numerics import normalizer
from sparsefam.numerics.edges import near_edge
from sparsefam.numerics.effective import edge_pieces, power_weights
from sparsefam.numerics.levels import nearby_level
from sparsefam.numerics.moments import piece_weights, short_weights
from sparsefam.numerics.normalizer import normalized_weights
from sparsefam.numerics.power_integrals import log_integrals, partial_masses
from sparsefam.numerics.quadrature import gauss_legendre
from sparsefam.numerics.truncated import Power

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
    """Sums of hills of width 0.1 at t, (*t, R)."""
    return torch.exp(-((t.unsqueeze(-1) - CENTERS).square()) / 0.02) @ weights.mT


def means(weights: Tensor) -> Tensor:
    return torch.einsum("mgr,nmg->rn", weights, PSI)


def normalized(weights: Tensor, eps: Tensor | float) -> tuple[Tensor, Tensor]:
    level, found, *_ = normalized_weights(scores(weights), MEASURE, eps)
    return level, means(found)


@pytest.mark.parametrize("eps", [1.0, 0.75, 0.5, 1 / 3, 4 / 3 - 1, 0.25, 1e-3])
def test_the_mass_is_one(eps: float) -> None:
    _, found = normalized(WEIGHTS, eps)
    # A power that is no polynomial next to its edges is integrated by a graded rule.
    atol = 1e-13 if float(Power(eps).exponent).is_integer() else 1e-9
    torch.testing.assert_close(found[:, 0], torch.ones(ROWS).double(), rtol=0, atol=atol)


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
        lambda w: log_integrals(scores(w), MEASURE, Power(eps)), weights, atol=1e-6
    )


def test_rows_under_vmap() -> None:
    def value(w: Tensor) -> Tensor:
        return normalized(w.unsqueeze(0), 1.0)[1].squeeze(0)

    each = torch.stack([value(w) for w in WEIGHTS])
    torch.testing.assert_close(torch.func.vmap(value)(WEIGHTS), each, rtol=1e-12, atol=1e-13)
    slopes = torch.func.vmap(torch.func.jacrev(value))(WEIGHTS)
    torch.testing.assert_close(
        slopes, torch.stack([torch.func.jacrev(value)(w) for w in WEIGHTS]), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("eps", [1.0, 0.5, 0.2])
def test_scores_of_any_size_have_a_normaliser(size: float, eps: float) -> None:
    found = normalized(size * WEIGHTS, eps)[1][:, 0]
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e2, 1e5, 1e7])
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


@pytest.mark.parametrize("eps", [1.0, 0.5, 0.2, 0.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_steps_that_look_at_nothing_are_enough(
    eps: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other devices and in compiled graphs, for scores with a deviation of a thousand."""
    size = 1.0 if dtype == torch.float16 else 300.0
    f, measure = scores(size * WEIGHTS).to(dtype), MEASURE.to(dtype)
    eager = normalized_weights(f, measure, eps)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    level, weights, _, mass = normalized_weights(f, measure, eps)
    assert ((mass - 1).abs() < 1e-2).all()
    if dtype != torch.float16:
        close = 1e-5 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(
            means(weights.double()), means(eager[1].double()), rtol=close, atol=close
        )


def parabola_edge(size: float, eps: float) -> float:
    """a with the mass of (eps size (a^2 - u^2))_+^(1 / eps) 1."""
    power = 1 / eps
    mass = (eps * size) ** power * math.gamma(0.5) * math.gamma(power + 1) / math.gamma(power + 1.5)
    return float(mass ** (-1 / (2 * power + 1)))


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4])
def test_weights_integrate_polynomials_to_their_edges(power: int) -> None:
    """One panel, u = (y - a)(b - y) or its negative: exact integrals by numpy's polynomials."""
    a, b = -0.3, 0.62
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    for sign, pieces in ((1, [(a, b)]), (-1, [(-1, a), (b, 1)])):
        u = sign * (x - a) * (b - x)
        of = Power(1.0, float(power))
        weights, lowered = power_weights((u - 1).unsqueeze(-1), w.unsqueeze(-1), of, BOTH)
        inside = np.polynomial.Polynomial([-a * b, a + b, -1]) * sign
        for found, exponent in ((weights, power), (lowered, power - 1)):
            if exponent < 0:
                continue
            for degree in range(8):
                whole = (inside**exponent * np.polynomial.Polynomial.basis(degree)).integ()
                due = sum(whole(high) - whole(low) for low, high in pieces)
                value = float((found.squeeze(-1) * x**degree).sum())
                assert value == pytest.approx(due, abs=1e-14)


BOTH = ("power", "lowered")


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-5])
def test_a_dip_between_nodes_is_found(gap: float) -> None:
    """A hole narrower than the distance of nodes and of check points."""
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    for center in (0.0, 0.037, 0.51, -0.86):
        u = (x - center).square() - gap**2
        weights, _ = power_weights((u - 1).unsqueeze(-1), w.unsqueeze(-1), Power(1.0), BOTH)
        low, high = center - gap, center + gap
        whole = np.polynomial.Polynomial([center**2 - gap**2, -2 * center, 1]).integ()
        due = whole(low) - whole(-1) + whole(1) - whole(high)
        assert float(weights.sum()) == pytest.approx(due, abs=1e-14)
        pieces = edge_pieces((u - 1).unsqueeze(-1), Power(1.0))
        assert pieces.upper[0].item() == pytest.approx(low, abs=1e-9)


def test_a_panel_may_end_early() -> None:
    x, w = gauss_legendre(8, torch.zeros((), dtype=torch.float64))
    upper = torch.tensor([-1.0, -0.5, 0.1, 0.9, 1.0], dtype=torch.float64)
    u = (x + 0.2).unsqueeze(-1).expand(-1, 5)
    found = partial_masses(u - 1, w.unsqueeze(-1), Power(1.0), upper)
    due = (upper + 0.2).clamp_min(0).square() / 2
    torch.testing.assert_close(found, due, rtol=0, atol=1e-14)


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


@pytest.mark.parametrize("power", [0, 1, 2])
@pytest.mark.parametrize("rising", [False, True])
def test_a_single_piece_is_weighted_as_any_is(power: int, rising: bool) -> None:
    """Powers of y - r, or of r - y, times Lagrange polynomials, by numpy's antiderivatives."""
    x, _ = gauss_legendre(6, torch.zeros((), dtype=torch.float64))
    roots = torch.tensor([-0.97, -0.2, 0.4, 1.0], dtype=torch.float64)
    ones = torch.ones_like(roots)
    lower, upper = (roots, ones) if rising else (-ones, roots)
    sign = torch.full_like(roots, -1 if rising else 1)
    u = -sign * (x.unsqueeze(-1) - roots)
    shares = piece_weights(6, power, lower.unsqueeze(0), upper.unsqueeze(0))
    (found,) = short_weights(u, [power], shares)
    for column, root in enumerate(roots.tolist()):
        base = np.polynomial.Polynomial([-root, 1]) * (1 if rising else -1)
        for degree in range(6):
            whole = (base**power * np.polynomial.Polynomial.basis(degree)).integ()
            due = whole(1) - whole(root) if rising else whole(root) - whole(-1)
            assert float((found[:, column] * x**degree).sum()) == pytest.approx(due, abs=1e-14)


@pytest.mark.parametrize("order", [6, 12, 22])
@pytest.mark.parametrize("end", [-1, 1])
def test_edges_between_the_outermost_nodes_and_the_ends_are_near(order: int, end: int) -> None:
    """Of exponentials that are above zero where no node is."""
    x, _ = gauss_legendre(order, torch.zeros((), dtype=torch.float64))
    u = torch.expm1(order / 4 * (end * x - 0.9999)).unsqueeze(-1)
    assert u.amax() < 0
    assert near_edge(u, 0.0).tolist() == [0]
    assert near_edge(u, 1.0).tolist() == []


@pytest.mark.parametrize("eps", [1.0, 0.5])
def test_the_search_begins_near_the_level(eps: float) -> None:
    """A parabola under its top, with two edges, whose level has a closed form."""
    size = 30.0
    due = 1 / eps - size * parabola_edge(size, eps) ** 2
    f = -size * (NODES - 0.37).square().unsqueeze(-1)
    level = nearby_level(f, MEASURE, Power(eps))
    assert level.item() == pytest.approx(due, abs=1e-3 if eps == 1.0 else 1e-2)


def test_a_step_may_go_beyond_the_level() -> None:
    """From a hill of mass below 1 down to a plain, which then has more mass than was missing."""
    nodes, measure = grid()
    heights = torch.linspace(3, 12, 400, dtype=torch.float64)
    f = heights * torch.exp(-0.5 * ((nodes.unsqueeze(-1) - 0.5) / 0.05).square())
    start = torch.full_like(heights, 1.02)
    found = normalizer._settled(start, f, measure, Power(1.0), None)
    first = normalizer._at(start, f, measure, Power(1.0)).mass
    assert ((first > 0.9) & (first < 1)).sum() > 10
    torch.testing.assert_close(found.mass, torch.ones_like(heights), rtol=0, atol=1e-12)
