"""The benchmarks of kernel families: the reference, the trapezoid rules, limits and aims."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor

from benchmarks.kernel_accuracy import (
    KERNEL_LIMITS,
    KERNEL_QUANTITIES,
    KernelError,
    kernel_errors,
    kernel_failures,
    kernel_tables,
    kernel_unmet,
)
from benchmarks.kernel_passes import passes
from benchmarks.kernel_reference import GaussianScore, bumps, truth
from benchmarks.kernel_rivals import Products, density, trapezoid_broadcast
from benchmarks.kernel_speed import (
    KernelRun,
    kernel_runs,
    kernel_shortfalls,
    kernel_table,
    ratios,
)
from benchmarks.kernel_workload import (
    METHODS,
    KernelDensity,
    draw_weights,
    kernel_workload,
    spread_basis,
)
from benchmarks.sweep import norm_error

SINGLE, DOUBLE = torch.float32, torch.float64
ALPHAS = (1.0, 1.25, 1.5, 1.75, 2.0)
FAMILIES = [KernelDensity(alpha, inside) for alpha in ALPHAS for inside in (True, False)]


def double(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


# Two scores with several intervals at most levels.
SCORE = GaussianScore(
    double([[3.0, -4.0, 2.0, -3.0, 4.0], [-1.0, 2.5, 0.5, 1.0, -2.0]]),
    double([0.0, 0.2, 0.45, 0.7, 0.9]),
    0.08,
)
CENTERS, WIDTHS = double([0.1, 0.5, 0.8]), double([0.05, 0.1, 0.4])
UPSTREAM = double([[1.0, -0.5, 2.0], [0.3, 1.0, -1.0]])


class Direct:
    """Densities by scipy: adaptive quadrature between edges that a fine scan brackets."""

    def __init__(self, weights: NDArray[np.float64], family: KernelDensity) -> None:
        self.weights, self.family = weights, family
        self.eps = family.alpha - 1
        scan = np.linspace(0, 1, 2001)
        self.f_scan = np.array([self.f(t) for t in scan])
        self.scan = scan

    def f(self, t: float) -> float:
        z = (t - SCORE.points.numpy()) / SCORE.bandwidth
        return float(self.weights @ np.exp(-(z**2) / 2))

    def p(self, t: float, a: float) -> float:
        if not self.eps:
            return math.exp(self.f(t) - a)
        return max(1 + self.eps * (self.f(t) - a), 0.0) ** (1 / self.eps)

    def edges(self, a: float) -> list[float]:
        level = a - 1 / self.eps if self.eps else -math.inf
        above = self.f_scan > level
        crossed = np.flatnonzero(above[1:] != above[:-1])
        found = [
            brentq(lambda t: self.f(t) - level, *self.scan[k : k + 2], xtol=1e-15) for k in crossed
        ]
        return [0.0, *found, 1.0]

    def integral(self, a: float, center: float = 0.0, width: float = 0.0) -> float:
        """Of the density, or of its product with a Gaussian density."""

        def at(t: float) -> float:
            psi = math.exp(-(((t - center) / width) ** 2) / 2) / width if width else 1.0
            return self.p(t, a) * psi

        cuts = self.edges(a)
        parts = [
            quad(at, *np.clip([low, high], 0, 1), epsabs=1e-13, epsrel=1e-13, limit=200)[0]
            for low, high in pairwise(cuts)
        ]
        return sum(parts) / (math.sqrt(2 * math.pi) if width else 1.0)

    def normalizer(self) -> float:
        if not self.eps:
            return math.log(self.integral(0.0))
        if self.family.inside:
            ends = self.f_scan.min(), self.f_scan.max()
            return brentq(lambda a: self.integral(a) - 1, *ends, xtol=1e-14)
        return (1 - self.integral(0.0) ** -self.eps) / self.eps

    def value(self) -> NDArray[np.float64]:
        outside = self.eps > 0 and not self.family.inside
        a = 0.0 if outside else self.normalizer()
        pairs = zip(CENTERS.tolist(), WIDTHS.tolist(), strict=True)
        return np.array([self.integral(a, *pair) for pair in pairs]) / self.integral(a)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_reference_is_the_integral(family: KernelDensity) -> None:
    found = truth(SCORE, family.alpha, family.inside, bumps(CENTERS, WIDTHS), UPSTREAM)
    for row, weights in enumerate(SCORE.weights.numpy()):
        direct = Direct(weights, family)
        assert found.normalizer[row].item() == pytest.approx(direct.normalizer(), abs=1e-11)
        np.testing.assert_allclose(found.value[row], direct.value(), rtol=1e-11)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_slope_of_the_reference(family: KernelDensity) -> None:
    step = 1e-5
    psi = bumps(CENTERS, WIDTHS)
    found = truth(SCORE, family.alpha, family.inside, psi, UPSTREAM).slope
    for i in range(len(SCORE.points)):
        ends = []
        for side in (step, -step):
            moved = SCORE.weights.clone()
            moved[:, i] += side
            score = replace(SCORE, weights=moved)
            ends.append(truth(score, family.alpha, family.inside, psi, UPSTREAM).value)
        slope = (UPSTREAM * (ends[0] - ends[1])).sum(-1) / (2 * step)
        torch.testing.assert_close(found[:, i], slope, rtol=0, atol=1e-7)


@pytest.mark.parametrize("height", [-0.5, 0.0, 1 - 1e-3, 1 - 1e-9])
def test_edges_are_found_next_to_a_tangent(height: float) -> None:
    """Of a bump exp(-z^2/2) with a dip beside it, which a grid could step over."""
    score = GaussianScore(double([[1.0, -1.0]]), double([0.3, 0.7]), 0.03)
    edges = score.edges(double([height]))[0]
    if height > 0:
        away = 0.03 * math.sqrt(-2 * math.log(height))
        expected = double([0.3 - away, 0.3 + away])
        torch.testing.assert_close(edges, expected, rtol=0, atol=1e-15 / max(away, 1e-8))
    elif height < 0:
        away = 0.03 * math.sqrt(2 * math.log(2))
        torch.testing.assert_close(edges, double([0.7 - away, 0.7 + away]))
    else:
        assert edges[0].item() == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_rules_are_one_rule_that_converges(alpha: float) -> None:
    fixed = SCORE.points, SCORE.bandwidth, CENTERS, WIDTHS
    weights = SCORE.weights.unsqueeze(1).clone().requires_grad_()  # (batch, heads, I)
    exact = truth(SCORE, alpha, False, bumps(CENTERS, WIDTHS), UPSTREAM)
    errors = []
    for count in (100, 3201):
        values = (
            trapezoid_broadcast(weights, *fixed, alpha, count),
            Products.of(*fixed, count).expect(weights, alpha),
        )
        slopes = [torch.autograd.grad(x, weights, UPSTREAM.unsqueeze(1))[0] for x in values]
        torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-11, atol=1e-11)
        found = values[0].squeeze(1), slopes[0].squeeze(1)
        pairs = zip(found, (exact.value, exact.slope), strict=True)
        errors.append([norm_error(x, y).max().item() for x, y in pairs])
    # At alpha = 2 the gradient jumps at the edges, and the rule is of first order.
    assert errors[1][0] < 3e-6
    assert errors[1][1] < (3e-3 if alpha == 2 else 3e-5)
    assert errors[0][0] > 100 * errors[1][0]


def test_rules_take_the_score_as_it_is() -> None:
    f = double([[-2.0, -0.5, 3.0]])
    torch.testing.assert_close(density(f, 2.0), double([[0.0, 0.5, 4.0]]))
    torch.testing.assert_close(density(f, 1.5), double([[0.0, 0.5625, 6.25]]))
    torch.testing.assert_close(density(f, 1.25), double([[0.0625, 0.875**4, 1.75**4]]))
    torch.testing.assert_close(density(f, 1.0), (f - 3).exp())


@pytest.mark.parametrize(("bandwidth", "spread"), [(0.2, 1.0), (0.02, 10.0)])
def test_scores_spread_as_they_say(bandwidth: float, spread: float) -> None:
    weights = draw_weights((20,), bandwidth, spread).double()
    score = GaussianScore(weights, torch.linspace(0, 1, weights.shape[-1]).double(), bandwidth)
    f = weights @ score.kernel(torch.linspace(0, 1, 3000).double()).T
    torch.testing.assert_close(f.std(-1), torch.full((20,), spread).double(), rtol=0.02, atol=0)
    assert f.amax(-1).min() > 0


@pytest.fixture(scope="module")
def small() -> list[KernelError]:
    families = [KernelDensity(2.0, inside=True), KernelDensity(1.5, inside=False)]
    return kernel_errors(families, bandwidths=[0.05], spreads=[3.0], rows=2)


def test_limits_are_kept(small: list[KernelError]) -> None:
    assert [x.dtype for x in small] == [SINGLE, DOUBLE] * 2
    assert kernel_unmet(small) == kernel_failures(small) == []
    single, double, by_setting = kernel_tables(small)
    for table in (single, double):
        assert [row[0] for row in table.rows] == ["α = 2, inside", "α = 1.5, outside"]
    assert [row[0] for row in by_setting.rows] == ["0.05, 3"]
    for table in (single, double, by_setting):
        assert [(row[-3], row[-1]) for row in table.rows] == [("100 %", "met")] * len(table.rows)
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_limits_are_noticed(small: list[KernelError]) -> None:
    for x in small:
        limit = KERNEL_LIMITS[x.dtype]
        for i, name in enumerate(KERNEL_QUANTITIES):
            for wrong in (1.01 * limit, 200 * limit, math.nan, math.inf):
                errors = x.errors.clone()
                errors[i, 1] = wrong
                moved = replace(x, errors=errors)
                assert [text.split()[0] for text in moved.unmet()] == name.split()[:1]
                assert bool(moved.broken()) == (not wrong < 100 * limit)
                table = kernel_tables([*small, moved])[x.dtype == DOUBLE]
                verdicts = {row[0]: row[-1] for row in table.rows}
                assert verdicts.pop(x.density.name) == "**not met**"
                assert list(verdicts.values()) == ["met"]
            errors = x.errors.clone()
            errors[i] = 3 * limit  # all of them, none by much
            assert len(replace(x, errors=errors).broken()) == 1


def test_nodes_are_counted(small: list[KernelError]) -> None:
    for x in small:
        many = replace(x, nodes=513)
        assert many.unmet() == (["513 nodes"] if x.dtype == SINGLE else [])
        reported = replace(many, density=KernelDensity(1.75, inside=True), errors=x.errors + 1)
        assert reported.unmet() == reported.broken() == []


def test_rounding_is_that_of_float32(small: list[KernelError]) -> None:
    for x in small:
        assert 1e-10 < x.rounding.amin() < x.rounding.amax() < 2e-6


def test_methods_compute_the_same() -> None:
    work = kernel_workload(batch=2, heads=10)
    found = kernel_runs(2.0, work, rounds=1)
    names = [(run.density.name, run.method) for run in found]
    ours, broadcast, products, same = METHODS
    assert names == [
        ("α = 2, outside", ours),
        ("α = 2, inside", ours),
        ("α = 2, outside", broadcast),
        ("α = 2, outside", products),
        ("α = 2, outside", same),
    ]
    for run in found[:2]:
        assert max(*run.value_errors, *run.slope_errors) < 2e-6
    for run in found[2:]:
        assert 1e-5 < max(run.value_errors) < 1e-2
        assert 1e-3 < max(run.slope_errors) < 0.5
    memory = {(run.density, run.method): 1.0 for run in found}
    assert [len(row) for row in kernel_table(found, memory).rows] == [13] * 5


def test_aims_compare_medians() -> None:
    ours, broadcast, products, same = METHODS
    density, none = KernelDensity(2.0, inside=False), (0.0, 0.0)
    found = [
        KernelRun(density, ours, [0.03, 0.1, 9.0], none, (1e-3, 1e-6)),
        KernelRun(density, broadcast, [3.0, 1.6, 0.1], none, (1.0, 2e-3)),
        KernelRun(density, products, [0.001, 0.05, 0.06], none, (1.0, 2e-3)),
        KernelRun(density, same, [0.08], none, (1.0, 2e-3)),
        KernelRun(KernelDensity(1.5, inside=False), broadcast, [99.0], none, none),
    ]
    assert ratios(found, found[0]) == pytest.approx((16, 2, 1.25, 2000))
    assert kernel_shortfalls(found) == []
    memory = {(run.density, run.method): 1.0 for run in found}
    assert [row[-1] for row in kernel_table(found[:4], memory).rows] == ["–", "", "", ""]
    slow = replace(found[0], seconds=[0.2], slope_errors=(1e-3, 1e-5))
    assert len(kernel_shortfalls([slow, *found[1:]])) == 4
    first = kernel_table([slow, *found[1:4]], memory).rows[0]
    assert first[-1] == "gain, times products, times same, median ∂"


def test_basis_of_the_reference() -> None:
    psi = spread_basis([0.025, 0.1, 0.5])
    found = bumps(psi.centers, psi.widths)(double(0.37))
    torch.testing.assert_close(found, psi(double(0.37)))
    assert psi.widths[:4].tolist() == pytest.approx([0.025, 0.1, 0.5, 0.025])


@pytest.mark.parametrize("method", ["sparsefam", "trapezoid, products"])
def test_products_of_matrices_are_counted(method: str) -> None:
    """Scores and expectations, the mass among them, forward and backward; edges are not."""
    nodes, found = passes(KernelDensity(2.0, inside=False), method, kernel_workload(1, 7))
    assert found.flops == 2 * 7 * nodes * 2 * (256 + 64 + 1)
