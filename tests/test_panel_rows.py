"""Effective weights and levels by compiled loops, against those of any tensors in float64."""

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial import Chebyshev
from torch import Tensor

from sparsefam.numerics import level_loops, panel_rows
from sparsefam.numerics.edges import panel_rule, several_pieces
from sparsefam.numerics.normalizer import normalized_weights
from sparsefam.numerics.panel_rows import is_for_loops, weigh
from sparsefam.numerics.power_integrals import effective_weights
from sparsefam.numerics.quadrature import gauss_legendre
from sparsefam.numerics.root_loops import find_pieces
from sparsefam.numerics.truncated import Power

F64 = torch.float64


def scene(order: int, panels: int, rows: int, width: float = 0.1) -> tuple[Tensor, Tensor]:
    """Scores (m, G, R) with a deviation of 3, and weights (m, G, 1) of a sloping base."""
    x, w = gauss_legendre(order, torch.zeros((), dtype=F64))
    nodes = (torch.arange(panels) + (x.unsqueeze(-1) + 1) / 2) / panels
    measure = w.unsqueeze(-1) / (2 * panels) * (0.5 + nodes)
    draw = torch.Generator().manual_seed(order)
    centers = torch.linspace(-0.2, 1.2, 40, dtype=F64)
    hills = torch.exp(-((nodes.unsqueeze(-1) - centers) / width).square() / 2)
    f = hills @ torch.randn(40, rows, generator=draw, dtype=F64)
    f = 3 * f / f.std()
    # Of a density whose top is just above zero "outside" only the last bits of scores are left.
    f -= (f.flatten(0, 1).amax(0) - 1).clamp_max(0)
    return f.float(), measure.unsqueeze(-1).float()


def worst(found: Tensor, truth: Tensor) -> float:
    """The largest norm-wise error of a row."""
    error, size = (x.flatten(0, 1).norm(dim=0) for x in (found.double() - truth, truth))
    assert not error[size == 0].any()
    return (error / size)[size > 0].max().item()


def by_torch(function: Callable[..., Any], x: Tensor, measure: Tensor, of: Any) -> Any:
    """The same in float64, without loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_rows, "_LEAST", {})
        return function(x.double(), measure.double(), of)


@pytest.mark.parametrize("order", [5, 8, 12, 13])
@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_weights(order: int, exponent: int) -> None:
    f, measure = scene(order, 120 // order, 300)
    # Of an escort the exponent is not the inverse of eps.
    for of in (Power(1 / exponent), Power(1 / (exponent + 1), 1.0, 1)):
        assert is_for_loops(f, measure, of)
        weights, lowered = effective_weights(f, measure, of)
        truth = by_torch(effective_weights, f, measure, of)
        assert worst(weights, truth[0]) < 1.5e-6
        assert worst(lowered, truth[1]) < (4e-5 if exponent == 1 else 1.5e-6)


@pytest.mark.parametrize("order", [5, 8, 12, 13])
@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_levels(order: int, exponent: int) -> None:
    f, measure = scene(order, 120 // order, 300)
    level, weights, lowered, mass = normalized_weights(f, measure, 1 / exponent)
    truth = by_torch(normalized_weights, f, measure, 1 / exponent)
    torch.testing.assert_close(level.double(), truth[0], rtol=2e-7, atol=2e-6)
    assert worst(weights, truth[1]) < 1.5e-6
    # Where an edge is nearly flat the jump of the lowered weights lies where rounding puts it.
    error = (lowered - truth[2]).flatten(0, 1).norm(dim=0) / truth[2].flatten(0, 1).norm(dim=0)
    assert error.quantile(0.98) < (1e-5 if exponent == 1 else 1.5e-6)
    assert (weights.flatten(0, 1).double().sum(0) - 1).abs().max() < 1e-6
    assert (mass - 1).abs().max() < 2e-6


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_float64(exponent: int) -> None:
    """Of panels on which scores are polynomials to rounding; moments, as weights are not unique."""
    f, measure = (x.double() for x in scene(24, 10, 300, width=0.2))
    eps, t = 1 / exponent, torch.linspace(0, 1, 240, dtype=F64)
    waves = torch.cos(torch.arange(8) * t.unsqueeze(-1))
    assert is_for_loops(f, measure, Power(eps))
    assert not is_for_loops(f[..., :10], measure, Power(eps))  # not worth compiling
    for function, of in ((effective_weights, Power(eps)), (normalized_weights, eps)):
        found, truth = function(f, measure, of), by_torch(function, f, measure, of)
        for one, other in zip(found, truth, strict=True):
            pair = one, other
            if one.dim() == 3:
                pair = tuple(w.transpose(0, 1).flatten(0, 1).T @ waves for w in pair)
            torch.testing.assert_close(*pair, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_levels_are_found_side_by_side(exponent: int) -> None:
    """With a base that is no constant, too: rows that are not done go on one by one, slowly."""
    f, measure = scene(12, 10, 128)
    f = f - f.flatten(0, 1).amax(0)
    truth, *_ = by_torch(normalized_weights, f, measure, 1 / exponent)
    rules = panel_rows._rules(12, exponent, torch.float32)
    shares, scale = measure.squeeze(-1).numpy(), np.float32(1 / exponent)
    rules = *rules, panel_rows._base_series(shares, *rules[0][:2])
    level = np.zeros(128, np.float32)
    level_loops.rough_levels(f.numpy(), shares, exponent, level)
    edges = level_loops.near_edges(f.numpy(), level, rules, scale, np.float32(0.05))
    level_loops.step_with_edges(f.numpy(), shares, rules, exponent, edges, level)
    error = np.abs(level - truth.numpy())
    assert np.quantile(error, 0.9) < 3e-6
    assert error.max() < 1e-4


@pytest.mark.parametrize("alpha", [2.0, 1.5, 4 / 3, 1.25])
def test_exponents_are_whole_whatever_rounding_makes_of_alpha(alpha: float) -> None:
    f, measure = scene(5, 4, 3)
    for order in range(3):
        of = Power(alpha - 1, 1.0, order)
        assert float(of.exponent).is_integer()
        assert is_for_loops(f, measure, of) == (of.exponent >= 1)
    assert Power(1e-300, 1e300).exponent == float("inf")


@pytest.mark.parametrize("eps", [1.0, 0.5])
def test_scores_that_are_large_or_narrow(eps: float) -> None:
    """Scores of thousands, whose differences still have digits, and needles."""
    f, measure = scene(12, 40, 64, width=0.03)
    f = f * torch.logspace(-4, 3, 64) + torch.linspace(-1e3, 1e3, 64)
    _, weights, *_ = normalized_weights(f, measure, eps)
    truth = by_torch(normalized_weights, f, measure, eps)
    assert worst(weights, truth[1]) < 2e-4
    assert (weights.flatten(0, 1).double().sum(0) - 1).abs().max() < 1e-6


def test_more_nodes_than_a_block_has() -> None:
    """So many that fewer densities go at a time, as in many dimensions."""
    f, measure = scene(8, 2**13, 40)
    _, weights, *_ = normalized_weights(f, measure, 1.0)
    assert worst(weights, by_torch(normalized_weights, f, measure, 1.0)[1]) < 1.5e-6


def test_threads_share_the_rows() -> None:
    f, measure = scene(12, 10, 1001)
    before = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        found.append(weigh(f, measure, Power(0.5), normalized=True))
    torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert one.isfinite().all()


def test_pieces_are_all_found() -> None:
    """Of polynomials with up to five roots: near pairs, and pairs between check points."""
    draw = np.random.default_rng(0)
    x, _ = gauss_legendre(9, torch.zeros((), dtype=F64))
    due, values = [], []
    for count in range(6):
        for gap in (0.01, 0.05, 0.2) if count < 3 else (0.25, 0.3, 0.35):
            roots = draw.uniform(-1.2, 1.2) + gap * np.arange(count)
            u = np.polynomial.Polynomial([2.0, draw.uniform(-0.5, 0.5)]) * draw.choice([-1, 1])
            for root in roots:
                u = u * np.polynomial.Polynomial([-root, 1])
            u = u / np.abs(u(x.numpy())).max()
            values.append(u(x.numpy()))
            inside = [-1, *roots[np.abs(roots) < 1], 1]
            pieces = [pair for pair in pairwise(inside) if u(sum(pair) / 2) > 0]
            due.append(pieces if len(inside) > 2 else [])
    u, panel = torch.tensor(np.array(values).T).float(), panel_rule(9, torch.zeros(()))
    checks, series = ((part @ u).numpy() for part in (panel.checks, panel.coefficients))
    shift = np.zeros(u.shape[1], np.float32)
    (column, ends), _ = find_pieces(checks, series, panel.points.numpy(), shift, False)
    for k, pieces in enumerate(due):
        found = ends.T[column == k]
        assert len(found) == len(pieces)
        np.testing.assert_allclose(found, np.reshape(pieces, (-1, 2)), rtol=0, atol=2e-4)


def needles(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Polynomials of degree 11 that are just above zero at a peak between check points."""
    draw, order, found = np.random.default_rng(0), 12, []
    points = panel_rule(order, torch.zeros((), dtype=F64)).points.numpy()
    while len(found) < count:
        u = Chebyshev(draw.normal(size=order) * 0.7 ** np.arange(order))
        x = draw.choice([root.real for root in u.deriv().roots() if abs(root.imag) < 1e-9] or [2])
        i = np.abs(points - x).argmin()
        if 0 < i < len(points) - 1 and u.deriv(2)(x) < 0:
            # Up to a tenth of how far it falls from one check point to the next.
            height = -u.deriv(2)(x) * (points[i + 1] - points[i - 1]) ** 2 / 8
            u = u - u(x) + height * draw.uniform(0.01, 0.1)
            if (u(points[i - 1 : i + 2]) < 0).all():
                found.append((u.coef, x))
    return np.array([u for u, _ in found]).T, np.array([x for _, x in found])


def test_needles_are_found() -> None:
    """By loops and by torch, but next to another vertex; at a reach of 1.2 2.5% were missed."""
    series, peaks = needles(1000)
    panel = panel_rule(12, torch.zeros((), dtype=F64))
    values = torch.linalg.solve(panel.coefficients, torch.from_numpy(series))
    checks, points = (panel.checks @ values).numpy(), panel.points.numpy()
    (column, (lower, upper)), _ = find_pieces(checks, series, points, np.zeros(1000), False)
    found = column[(lower < peaks[column]) & (peaks[column] < upper)]
    assert len(set(found.tolist())) == len(found) >= 995
    pieces = several_pieces(values, panel)
    within = (pieces.lower.numpy() < peaks) & (peaks < pieces.upper.numpy())
    assert within.sum(0).max() == 1 and within.sum() >= 995


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "sparsefam.numerics.panel_loops", None)
    panel_rows._loops.cache_clear()
    yield
    panel_rows._loops.cache_clear()


@pytest.mark.usefixtures("no_numba")
@pytest.mark.parametrize("eps", [1.0, 0.5, 1 / 3])
def test_without_numba(eps: float) -> None:
    f, measure = scene(12, 10, 50)
    assert not is_for_loops(f, measure, Power(eps))
    _, weights, *_ = normalized_weights(f, measure, eps)
    truth = by_torch(normalized_weights, f, measure, eps)
    assert worst(weights, truth[1]) < 1.5e-6
