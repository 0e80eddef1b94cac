"""Kernel densities on the line: distribution functions, quantiles, draws and their gradients."""

import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import ONE, POINTS, TWO, WIDTH, density, frozen, kernel_density, reference
from kernel_references import KernelReference, gaussian
from references import Array
from scipy.stats import kstest
from torch import Tensor

from sparsefam import SparseDistribution

every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
every_alpha = pytest.mark.parametrize("alpha", [1.0, 1.5, 1.8, 2.0])
either = pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])


def make(weights: Tensor, alpha: float, inside: bool = True) -> SparseDistribution:
    points = torch.tensor(POINTS, dtype=weights.dtype)
    return kernel_density(weights, points, frozen(gp.RBF, WIDTH), None, alpha, inside)


def exact(weights: list[float], alpha: float, inside: bool = True) -> KernelReference:
    kernel = gaussian(WIDTH)
    return KernelReference(
        np.array(weights), np.array(POINTS), kernel, WIDTH, alpha=alpha, inside=inside
    )


# Distribution functions


@every_dtype
@either
@every_alpha
@pytest.mark.parametrize("width", [0.2, 0.05])
def test_cdf(width: float, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    p, r = density(width, alpha, inside, dtype), reference(width, alpha, inside)
    t = torch.linspace(-0.1, 1.1, 241, dtype=dtype)
    expected = torch.as_tensor(r.cdf(t.double().numpy()))
    bound = 2e-6 if dtype == SINGLE else 1e-9
    torch.testing.assert_close(p.cdf(t).double(), expected, rtol=0, atol=bound)
    assert (p.cdf(t).diff() >= -bound).all()


@every_dtype
@either
@every_alpha
def test_icdf_inverts_cdf(alpha: float, inside: bool, dtype: torch.dtype) -> None:
    p = density(0.05, alpha, inside, dtype)
    u = torch.linspace(0.001, 0.999, 301, dtype=dtype)
    t = p.icdf(u)
    assert (t.diff() >= 0).all()
    assert p.support.check(t).all()
    bound = 4e-6 if dtype == SINGLE else 1e-9
    torch.testing.assert_close(p.cdf(t), u, rtol=0, atol=bound)
    ends = p.icdf(torch.tensor([0.0, 1.0], dtype=dtype))
    support = p.support.intervals.flatten()
    support = support[~support.isnan()]
    torch.testing.assert_close(ends, support[[0, -1]], rtol=0, atol=1e-5)


@every_alpha
def test_derivatives_of_the_cdf(alpha: float) -> None:
    p, r = density(0.05, alpha), reference(0.05, alpha)
    # A value of the distribution function is the expectation of a step.
    at = r.edges[0] + (r.edges[1] - r.edges[0]) * np.array([0.2, 0.6])
    t = torch.tensor(at, requires_grad=True)
    for i, x in enumerate(at):
        slope, own = torch.autograd.grad(p.cdf(t)[i], (p.weights, t), retain_graph=True)
        expected = r.jacobian(lambda s, x=x: (s < x)[:, None] * 1.0, np.array([x]))[0]
        assert np.abs(slope.numpy() - expected).max() < 1e-9
        assert abs(own[i].item() - r.density(np.array([x]))[0]) < 1e-8
        quantile = p.icdf(torch.tensor(r.cdf(np.array([x]))))
        (moved,) = torch.autograd.grad(quantile, p.weights, retain_graph=True)
        assert np.abs(moved.numpy() + expected / r.density(np.array([x]))).max() < 1e-7


# Draws


@pytest.mark.parametrize(
    ("alpha", "inside", "dtype"),
    [
        (1.0, True, SINGLE),
        (1.5, True, SINGLE),
        (1.5, False, SINGLE),
        pytest.param(1.8, True, DOUBLE, marks=pytest.mark.slow),
        (2.0, True, SINGLE),
        pytest.param(2.0, False, SINGLE, marks=pytest.mark.slow),
    ],
)
def test_many_draws_follow_the_density(alpha: float, inside: bool, dtype: torch.dtype) -> None:
    p = density(0.05, alpha, inside, dtype, size=3.0, seed=5)
    r = reference(0.05, alpha, inside, 3.0, 5)
    # Where the exponent is no integer, quantiles take several times as long.
    draws = p.sample((30_000 if alpha == 1.8 else 100_000,))
    assert draws.dtype == dtype
    assert p.support.check(draws).all()
    assert (p.log_prob(draws) > -torch.inf).double().mean() > 0.9999
    levels = r.cdf(np.sort(draws.double().numpy()))
    assert kstest(levels, "uniform").pvalue > 1e-3
    slack = 1e-6 if dtype == SINGLE else 1e-9
    beyond = np.searchsorted(r.edges, draws.double().numpy()) % 2 == 0
    near = np.abs(draws.double().numpy()[:, None] - r.edges).min(-1) < slack
    assert not (beyond & ~near).any()


def test_a_batch_draws_from_each_of_its_densities() -> None:
    p = make(torch.tensor([ONE, TWO], dtype=DOUBLE), 2.0)
    draws = p.sample((20_000,))
    assert draws.shape == (20_000, 2)
    for i, weights in enumerate((ONE, TWO)):
        levels = exact(weights, 2.0).cdf(np.sort(draws[:, i].numpy()))
        assert kstest(levels, "uniform").pvalue > 1e-3


# Gradients of draws


def moments(t: Array) -> Array:
    return np.stack([t**2, np.sin(5 * t)], -1)


def torch_moments(t: Tensor) -> Tensor:
    return torch.stack([t.square(), torch.sin(5 * t)], -1)


def level_rule() -> tuple[Tensor, Tensor]:
    """Levels u and weights, dense at 0 and 1, where quantiles are roots: s^6/(s^6 + (1 - s)^6)."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    s = (nodes + 1) / 2
    low, high = s**6, (1 - s) ** 6
    slopes = 6 * (s * (1 - s)) ** 5 / (low + high) ** 2
    return torch.tensor(low / (low + high)), torch.tensor(weights / 2 * slopes)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 1.8, 2.0])
def test_rsample_on_one_interval_has_the_exact_gradient(alpha: float) -> None:
    weights = torch.tensor(ONE, dtype=DOUBLE, requires_grad=True)
    p, r = make(weights, alpha), exact(ONE, alpha)
    assert p.has_rsample
    # Levels at the nodes of a rule: the mean is an integral, not an estimate.
    levels, shares = level_rule()
    t = p.icdf(levels)
    found = jacobian_of((shares[:, None] * torch_moments(t)).sum(0), weights)
    expected = r.jacobian(moments)
    assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()
    # And rsample is that at random levels.
    torch.manual_seed(1)
    draws = p.rsample((2_000,))
    (slope,) = torch.autograd.grad(draws.square().sum(), weights, retain_graph=True)
    again = p.icdf(p.cdf(draws.detach()).detach())
    (same,) = torch.autograd.grad(again.square().sum(), weights)
    torch.testing.assert_close(slope, same, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_quantiles_at_the_ends_move_with_the_edges(alpha: float) -> None:
    weights = torch.tensor(ONE, dtype=DOUBLE, requires_grad=True)
    found = jacobian_of(make(weights, alpha).icdf(torch.tensor([0.0, 1.0], dtype=DOUBLE)), weights)
    step = 1e-6
    for i in range(len(ONE)):
        moved = [weights.detach() + s * step * torch.eye(len(ONE))[i] for s in (1, -1)]
        above, below = (make(w, alpha).support.intervals[0].numpy() for w in moved)
        assert found[:, i] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7)


def jacobian_of(values: Tensor, inputs: Tensor) -> Array:
    rows = [torch.autograd.grad(v, inputs, retain_graph=True)[0] for v in values]
    return torch.stack(rows).numpy()


@either
@pytest.mark.parametrize("alpha", [1.5, 1.8, 2.0])
def test_components_on_several_intervals_have_the_exact_gradient(
    alpha: float, inside: bool
) -> None:
    weights = torch.tensor(TWO, dtype=DOUBLE, requires_grad=True)
    p, r = make(weights, alpha, inside), exact(TWO, alpha, inside)
    assert not p.has_rsample
    assert len(r.edges) == 4
    # In parts, each with a graph of its own, whose gradients tell how noisy that of all is.
    batches = [p.rsample_components((1_000,)) for _ in range(20)]
    t, masses = torch.cat([draws for draws, _ in batches]), batches[0][1]
    assert t.shape == (20_000, 2)
    assert masses.shape == (2,)
    expected = r.masses()
    assert np.abs(masses.detach().numpy() - expected).max() < 1e-9
    for k, (a, b) in enumerate(r.edges.reshape(-1, 2)):
        assert ((t[:, k] >= a - 1e-9) & (t[:, k] <= b + 1e-9)).all()
        inner = r.cdf(np.sort(t[:, k].detach().numpy())) - r.cdf(np.array([a]))
        assert kstest(inner / expected[k], "uniform").pvalue > 1e-3
    estimates = [(shares[:, None] * torch_moments(draws)).sum(1) for draws, shares in batches]
    values = torch.cat(estimates)
    # The estimate's own noise; the plain implicit gradient is a third off.
    spread = values.detach().std(0) / len(values) ** 0.5
    means = r.expect(moments)
    assert ((values.detach().mean(0) - torch.tensor(means)).abs() < 5 * spread + 1e-9).all()
    parts, goal = [jacobian_of(x.mean(0), weights) for x in estimates], r.jacobian(moments)
    noise = np.std(parts, axis=0) / 20**0.5
    assert (np.abs(np.mean(parts, axis=0) - goal) < 6 * noise + 1e-6).all()
    assert noise.max() < 0.02 * np.abs(goal).max()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_quantiles_over_a_gap_have_a_gradient_that_is_wrong_by_a_third(alpha: float) -> None:
    # Why there is no rsample: of a second moment, with levels at the nodes of a Gauss rule.
    weights = torch.tensor(TWO, dtype=DOUBLE, requires_grad=True)
    p, r = make(weights, alpha), exact(TWO, alpha)
    nodes, shares = np.polynomial.legendre.leggauss(200)
    t = p.icdf(torch.tensor((nodes + 1) / 2))
    (found,) = torch.autograd.grad((torch.tensor(shares / 2) * t.square()).sum(), weights)
    expected = r.jacobian(lambda t: t[:, None] ** 2)[0]
    error = np.linalg.norm(found.numpy() - expected) / np.linalg.norm(expected)
    assert 0.25 < error < 0.45


def test_masses_of_components_have_the_exact_gradient() -> None:
    weights = torch.tensor(TWO, dtype=DOUBLE, requires_grad=True)
    for alpha in (1.5, 1.8, 2.0):
        p, r = make(weights, alpha), exact(TWO, alpha)
        _, masses = p.rsample_components()
        gap = r.edges[1:3].mean()
        expected = r.jacobian(lambda t, gap=gap: np.stack([t < gap, t > gap], -1) * 1.0)
        assert np.abs(jacobian_of(masses, weights) - expected).max() < 1e-9


def test_absent_components_have_no_mass() -> None:
    weights = torch.tensor([ONE, TWO], dtype=DOUBLE, requires_grad=True)
    p = make(weights, 2.0)
    t, masses = p.rsample_components((5,))
    assert t.shape == (5, 2, 2)
    assert masses.shape == (2, 2)
    assert masses[0, 1] == 0
    torch.testing.assert_close(masses.sum(-1), torch.ones(2, dtype=DOUBLE), rtol=0, atol=1e-9)
    assert p.support.check(t[..., 0]).all()
    assert p.log_prob(t.movedim(-1, 0)).isfinite().all()
    (slope,) = torch.autograd.grad((masses * t.cos()).sum(), weights)
    assert slope.isfinite().all()


def test_draws_over_gaps_have_no_gradient() -> None:
    p = make(torch.tensor(TWO, requires_grad=True), 2.0)
    assert not p.sample((3,)).requires_grad
    with pytest.raises(NotImplementedError, match="rsample_components"):
        p.rsample((3,))
    # One density of a batch is enough.
    both = make(torch.tensor([ONE, TWO]), 2.0)
    assert not both.has_rsample
    assert make(torch.tensor([ONE, ONE]), 2.0).has_rsample
