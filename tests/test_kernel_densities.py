"""Kernel densities on the unit interval, against the float64 reference."""

import math

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import ALPHAS, WIDTHS, density, distance, expansion, jacobian, reference
from kernel_references import KernelReference
from references import Array
from torch import Tensor

from sparsefam import KernelDeformedExp, KernelExp, SparseDistribution
from sparsefam.bases import BSpline, GaussianRBF, Indicator

TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}
CENTERS = np.linspace(0, 1, 9)

every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
every_width = pytest.mark.parametrize("width", WIDTHS)
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)
either = pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])


def hills(t: Array, width: float = 0.125) -> Array:
    peak = width * math.sqrt(2 * math.pi)
    return np.exp(-0.5 * ((t[:, None] - CENTERS) / width) ** 2) / peak


def basis(dtype: torch.dtype, width: float = 0.125) -> GaussianRBF:
    return GaussianRBF(torch.tensor(CENTERS), width).to(dtype)


def log_normalizer(r: KernelReference) -> float:
    """As `log_normalizer` has it, of either normalization."""
    if r.inside:
        return r.normalizer
    return -math.expm1(-r.eps * math.log(r.normalizer)) / r.eps


# Accuracy


@every_dtype
@every_width
@either
@every_alpha
def test_normalizers_expectations_and_gradients(
    alpha: float, inside: bool, width: float, dtype: torch.dtype
) -> None:
    if alpha == 1 and not inside:
        pytest.skip("at alpha = 1 both are the same")
    r, p = reference(width, alpha, inside), density(width, alpha, inside, dtype)
    # Only where the exponent is an integer are effective weights exact for a polynomial score.
    tolerance = TOLERANCE[dtype] * (10 if alpha == 1.8 and dtype == DOUBLE else 1)
    assert len(p.mesh.nodes) <= 512 or dtype == DOUBLE
    scale = max(1.0, abs(log_normalizer(r)))
    assert abs(p.log_normalizer.item() - log_normalizer(r)) < tolerance * scale
    means = p.expect(basis(dtype))
    assert means.dtype == dtype
    assert distance(means, r.expect(hills)) < tolerance
    assert distance(jacobian(means, p.weights), r.jacobian(hills)) < tolerance


@every_dtype
@every_width
@either
def test_derivatives_in_alpha(inside: bool, width: float, dtype: torch.dtype) -> None:
    for value in (1.125, 1.5, 1.8125):
        r = reference(width, value, inside)
        alpha = torch.tensor(value, dtype=dtype, requires_grad=True)
        weights, points = (torch.tensor(x, dtype=dtype) for x in expansion(width))
        fixed = density(width, value, inside, dtype)
        p = KernelDeformedExp(
            weights, points, fixed.kernel, None, alpha, "inside" if inside else "outside"
        )
        means = p.expect(basis(dtype))
        assert distance(means, r.expect(hills)) < TOLERANCE[dtype]
        assert distance(jacobian(means, alpha), r.slope(hills)) < 30 * TOLERANCE[dtype]


@every_width
def test_bases_narrower_than_the_kernel_get_the_nodes_they_need(width: float) -> None:
    narrow = 0.02
    for alpha in (1.0, 2.0):
        r, p = reference(width, alpha), density(width, alpha)
        found = p.expect(basis(DOUBLE, narrow))
        assert distance(found, r.expect(lambda t: hills(t, narrow))) < 1e-10


@every_alpha
def test_bases_with_breaks(alpha: float) -> None:
    r, p = reference(0.05, alpha), density(0.05, alpha)
    edges = [0.0, 0.3125, 0.34375, 0.8125]
    levels = r.cdf(np.array(edges))
    assert distance(p.expect(Indicator(edges).to(DOUBLE)), np.diff(levels)) < 1e-10
    psi = BSpline([0.125, 0.25, 0.5625, 0.6875, 1.0], 2).to(DOUBLE)

    def splines(t: Array) -> Array:
        return psi(torch.as_tensor(t)).numpy()

    expected = r.expect(splines, marks=psi.breaks.numpy())
    assert distance(p.expect(psi), expected) < 1e-10


# The limit, and large scores


@every_dtype
@pytest.mark.parametrize("eps", [1e-3, 1e-4, 1e-6])
@either
def test_the_limit_of_alpha_is_met_without_noise(
    inside: bool, eps: float, dtype: torch.dtype
) -> None:
    r, p = reference(0.05, 1 + eps, inside), density(0.05, 1 + eps, inside, dtype)
    means = p.expect(basis(dtype))
    assert distance(means, r.expect(hills)) < TOLERANCE[dtype]
    slopes = jacobian(means, p.weights)
    assert distance(slopes, r.jacobian(hills)) < TOLERANCE[dtype]
    limit = reference(0.05, 1.0)
    assert distance(means, limit.expect(hills)) < TOLERANCE[dtype] + 10 * eps
    assert distance(slopes, limit.jacobian(hills)) < TOLERANCE[dtype] + 10 * eps
    t = torch.linspace(0.01, 0.99, 40, dtype=dtype)
    assert distance(p.prob(t), r.density(t.double().numpy())) < TOLERANCE[dtype]


@every_dtype
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.5, 2.0])
def test_small_and_large_scores_are_normalised(
    alpha: float, size: float, dtype: torch.dtype
) -> None:
    p = density(0.05, alpha, True, dtype, size)
    _, weights = p.quadrature()
    eps = torch.finfo(dtype).eps
    assert abs(weights.sum().item() - 1) < 10 * eps
    means = p.expect(basis(dtype))
    assert means.isfinite().all()
    assert jacobian(means, p.weights).isfinite().all()
    r = reference(0.05, alpha, True, size)
    close = 2e-6 if dtype == SINGLE else 1e-12
    assert distance(means, r.expect(hills)) < close
    # Next to the top of the score; the normalizer itself is as large as that.
    rounding = eps * np.abs(r.weights).sum()
    assert abs(p.log_normalizer.item() - r.normalizer) < rounding + close


def near(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-200 * torch.cdist(x, y).square())


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_large_scores_keep_their_digits_in_batches(alpha: float) -> None:
    """Narrow supports on a panel of large scores: of moments that cancel little would be left."""
    draw = torch.Generator().manual_seed(0)
    points = torch.linspace(0, 1, 21, dtype=DOUBLE)
    weights = 300 * torch.randn(100, 21, generator=draw, dtype=torch.float32)
    means = []
    for dtype in (SINGLE, DOUBLE):
        base = torch.distributions.Uniform(*torch.tensor([0.0, 1.0], dtype=dtype))
        p = KernelDeformedExp(weights.to(dtype), points.to(dtype), near, base, alpha)
        means.append(torch.stack([p.mean, p.stddev]).double())
    assert (means[0] - means[1]).abs().amax() < 2e-5
    assert distance(means[0], means[1].numpy()) < 2e-6


# Supports


def edges_of(p: SparseDistribution) -> list[Tensor]:
    """Ends of the intervals of each density."""
    rows = p.support.intervals.detach().double().reshape(-1, p.support.intervals.shape[-2] * 2)
    return [row[~row.isnan()] for row in rows]


@every_dtype
@every_width
@either
@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.8, 2.0])
def test_edges_of_the_support(alpha: float, inside: bool, width: float, dtype: torch.dtype) -> None:
    (found,) = edges_of(density(width, alpha, inside, dtype))
    expected = reference(width, alpha, inside).edges
    assert len(found) == len(expected)
    assert np.abs(found.numpy() - expected).max() < (1e-6 if dtype == SINGLE else 1e-9)


@every_dtype
def test_counts_of_intervals_in_a_large_batch(dtype: torch.dtype) -> None:
    # Outside, edges are roots of the score itself: many references cost little.
    width, count = 0.05, 100
    rows = [expansion(width, 3.0, seed) for seed in range(count)]
    weights = torch.tensor(np.stack([row for row, _ in rows]), dtype=dtype)
    points = torch.tensor(rows[0][1], dtype=dtype)
    p = KernelDeformedExp(weights, points, density(width, 2.0).kernel, None, 2.0, "outside")
    right = 0
    for seed, found in enumerate(edges_of(p)):
        expected = reference(width, 2.0, False, 3.0, seed).edges
        if len(found) == len(expected):
            right += 1
            assert np.abs(found.numpy() - expected).max() < (1e-5 if dtype == SINGLE else 1e-8)
    # Float32 cannot tell a near miss from a crossing.
    assert right >= (count if dtype == DOUBLE else count - 1)
    assert p.support.count.shape == (count,)


@every_dtype
def test_the_check_of_the_support_is_where_the_density_is_positive(dtype: torch.dtype) -> None:
    p, r = density(0.05, 2.0, True, dtype), reference(0.05, 2.0, True)
    margin = 2e-6 if dtype == SINGLE else 1e-9
    for i, edge in enumerate(r.edges):
        sides = torch.tensor([edge - margin, edge + margin], dtype=dtype)
        positive = torch.tensor([bool(i % 2), not i % 2])
        assert torch.equal(p.support.check(sides), positive)
        assert torch.equal(p.prob(sides) > 0, positive)
        assert torch.equal(p.log_prob(sides) > -math.inf, positive)


def test_kernel_exp_fills_the_base() -> None:
    p = density(0.05, 1.0)
    assert isinstance(p, KernelExp)
    torch.testing.assert_close(p.support.intervals, torch.tensor([[0.0, 1.0]], dtype=DOUBLE))


@every_dtype
@every_alpha
@either
def test_log_prob_at_any_location(inside: bool, alpha: float, dtype: torch.dtype) -> None:
    p, r = density(0.05, alpha, inside, dtype), reference(0.05, alpha, inside)
    t = torch.linspace(-0.25, 1.25, 151, dtype=dtype)
    expected = torch.as_tensor(r.density(t.double().numpy()))
    clear = (t[:, None] - torch.tensor([0.0, 1.0, *r.edges])).abs().amin(-1) > 1e-3
    t, expected = t[clear], expected[clear]
    assert torch.equal(p.prob(t) > 0, expected > 0)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == SINGLE else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(p.prob(t).double(), expected, **close)
    torch.testing.assert_close(p.log_prob(t).double(), expected.log(), **close)
