"""Draws from kernel families: gradients over one and several intervals, and vectors."""

import math
from typing import Any

import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch
from battery import DOUBLE
from cases_kernel import ONE, POINTS, TWO, WIDTH, bell, frozen, jacobian, kernel_density
from references import Array, Kernel, gaussian
from scipy import stats
from torch import Tensor
from torch import distributions as td
from torch.distributions import biject_to

from sparsefam import SparseDistribution
from sparsefam.distributions._kernel import vectors as kernel_vectors


# Numbers
def make(weights: Tensor, alpha: float, inside: bool = True) -> SparseDistribution:
    points = torch.tensor(POINTS, dtype=weights.dtype)
    return kernel_density(weights, points, frozen(gp.RBF, WIDTH), None, alpha, inside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_many_draws_are_the_quantiles_of_their_levels(alpha: float, dtype: torch.dtype) -> None:
    """Of two densities, one of them over a gap, whose draws come from a table."""
    p = make(torch.tensor([ONE, TWO], dtype=dtype), alpha)
    torch.manual_seed(0)
    found = p.sample((2, 5000))
    torch.manual_seed(0)
    due = p._line.quantiles(torch.rand((2, 5000, 2), dtype=dtype))
    span = float(due.amax() - due.amin())
    torch.testing.assert_close(
        found, due, rtol=0, atol=span * (4e-8 if dtype == torch.float64 else 4e-6)
    )
    assert not torch.equal(found, due)
    assert (p.log_prob(found) > -math.inf).all()


# Gradients of draws
def moments(t: Array) -> Array:
    return np.stack([t**2, np.sin(5 * t)], -1)


def torch_moments(t: Tensor) -> Tensor:
    return torch.stack([t.square(), torch.sin(5 * t)], -1)


@pytest.mark.parametrize(("alpha", "inside"), [(1.5, False), (2.0, True)])
def test_components_on_several_intervals_have_the_exact_gradient(
    alpha: float, inside: bool
) -> None:
    torch.manual_seed(0)
    weights = torch.tensor(TWO, dtype=DOUBLE, requires_grad=True)
    p, points = make(weights, alpha, inside), np.array(POINTS)
    r = Kernel(np.array(TWO), points, gaussian(WIDTH), WIDTH, alpha=alpha, inside=inside)
    assert not p.has_rsample
    assert len(r.edges) == 4
    # In parts with graphs of their own, whose gradients give the noise of their mean's.
    batches = [p.rsample_components((500,)) for _ in range(20)]
    t, masses = torch.cat([draws for draws, _ in batches]), batches[0][1]
    due = np.diff(r.cdf(r.edges))[::2]
    assert np.abs(masses.detach().numpy() - due).max() < 1e-9
    gap = r.edges[1:3].mean()
    slopes = r.jacobian(lambda t: np.stack([t < gap, t > gap], -1) * 1.0)
    assert np.abs(jacobian(masses, weights).numpy() - slopes).max() < 1e-9
    for k, (a, b) in enumerate(r.edges.reshape(-1, 2)):
        assert ((t[:, k] >= a - 1e-9) & (t[:, k] <= b + 1e-9)).all()
        inner = r.cdf(np.sort(t[:, k].detach().numpy())) - r.cdf(np.array([a]))
        assert stats.kstest(inner / due[k], "uniform").pvalue > 1e-3
    estimates = [(shares[:, None] * torch_moments(draws)).sum(1) for draws, shares in batches]
    values = torch.cat(estimates).detach()
    deviation = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - torch.tensor(r.expect(moments))).abs() < 5 * deviation + 1e-9).all()
    parts = [jacobian(x.mean(0), weights).numpy() for x in estimates]
    goal, noise = r.jacobian(moments), np.std(parts, axis=0) / 20**0.5
    # The plain implicit gradient is a third off.
    assert (np.abs(np.mean(parts, axis=0) - goal) < 6 * noise + 1e-6).all()
    assert noise.max() < 0.03 * np.abs(goal).max()


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


# Vectors, against masses of cells by the midpoint rule
COUNT, SIZE = 20_000, 0.15
# Two modes and a valley between them.
PLANE = torch.tensor([[0.2, 0.3], [0.5, 0.5], [0.8, 0.7]], dtype=DOUBLE)
SPACE = torch.tensor([[0.25, 0.3, 0.5], [0.5, 0.5, 0.5], [0.75, 0.7, 0.4]], dtype=DOUBLE)
# Points of their own for two densities.
OWN = torch.stack([PLANE, 1 - PLANE[:, [1, 0]]])
LEFT, RIGHT = [4.0, -6.0, 3.0], [1.0, 5.0, -2.0]


def of_vectors(
    weights: Any, points: Tensor, alpha: float | Tensor, inside: bool = True, base: Any = None
) -> SparseDistribution:
    return kernel_density(
        torch.as_tensor(weights, dtype=points.dtype), points, bell(SIZE), base, alpha, inside
    )


def cell_masses(
    p: SparseDistribution, ends: list[tuple[float, float]], cells: int, fine: int
) -> list[Array]:
    """Masses of a grid's cells by each density, summed over `fine` parts of each axis."""
    count = cells * fine
    share = (torch.arange(count, dtype=DOUBLE) + 0.5) / count
    t = torch.cartesian_prod(*[low + (high - low) * share for low, high in ends])
    area = math.prod((high - low) / count for low, high in ends)
    found = []
    for heights in p.prob(t.unsqueeze(1).to(p.mean)).unbind(-1):
        masses = area * heights.double().detach().numpy().reshape([count] * len(ends))
        for axis in range(masses.ndim):
            masses = np.add.reduceat(masses, np.arange(0, count, fine), axis=axis)
        assert masses.sum() == pytest.approx(1, abs=2e-3)
        found.append(masses / masses.sum())
    return found


def p_value(draws: Tensor, masses: Array, ends: list[tuple[float, float]]) -> float:
    """The chi-square test of draws (n, D) in cells; those of small mass count as one."""
    counts, _ = np.histogramdd(draws.double().numpy(), masses.shape[0], ends)
    assert counts.sum() == len(draws)
    seen, due = counts.ravel(), masses.ravel() * len(draws)
    big = due >= 10
    seen, due = np.append(seen[big], seen[~big].sum()), np.append(due[big], due[~big].sum())
    if due[-1] < 10:
        assert seen[-1] <= due[-1] + 6 * math.sqrt(due[-1]) + 3
        seen, due = seen[:-1], due[:-1] * seen[:-1].sum() / due[:-1].sum()
    return float(stats.chisquare(seen, due).pvalue)


NORMAL_AND_EXPONENTIAL = [td.Normal(0.5, 0.25), td.Exponential(3.0)]


# Rows of weights, points, alpha, inside, base, cells along an axis, parts of each.
SCENES: dict[str, tuple[list[list[float]], Tensor, float | Tensor, bool, Any, int, int]] = {
    "outside": ([LEFT, RIGHT], PLANE.float(), 1.5, False, None, 16, 30),
    "space": ([LEFT], SPACE.float(), 2.0, True, None, 6, 16),
    "base": ([LEFT], PLANE, 2.0, True, NORMAL_AND_EXPONENTIAL, 50, 24),
    # Peaks that are much higher than the neighbors of a node let expect.
    "large": ([[60.0, -80.0, 58.0]], PLANE, 1.0, True, None, 64, 20),
    "own": ([LEFT, RIGHT], OWN, torch.tensor([1.25, 2.0]).double(), True, None, 16, 30),
}


@pytest.mark.parametrize("name", SCENES)
def test_draws_fall_into_cells_as_masses_say(name: str) -> None:
    torch.manual_seed(2)
    rows, points, alpha, inside, base, cells, fine = SCENES[name]
    dim = points.shape[-1]
    p = of_vectors(rows, points, alpha, inside, base)
    draws = p.sample((40, COUNT // 40))
    assert draws.shape == (40, COUNT // 40, len(rows), dim) and draws.dtype == points.dtype
    assert p.support.check(draws).all()
    ends = [(-0.75, 1.75), (0.0, 5.0)] if base else [(0.0, 1.0)] * dim
    draws = torch.stack([draws[..., i].clamp(*ends[i]) for i in range(dim)], -1).flatten(0, 1)
    for row, masses in enumerate(cell_masses(p, ends, cells, fine)):
        assert p_value(draws[:, row], masses, ends) > 1e-3


def test_vectors_are_independent_reproducible_and_without_gradient() -> None:
    p = of_vectors([LEFT, RIGHT], PLANE, 2.0)
    torch.manual_seed(7)
    first = p.sample((COUNT,))
    x = first[:, 0, 0] - first[:, 0, 0].mean()
    for lag in (1, 2, 5, 32):
        correlation = (x[lag:] * x[:-lag]).mean() / x.square().mean()
        assert abs(correlation.item()) < 4.5 / math.sqrt(COUNT)
    torch.manual_seed(7)
    assert torch.equal(p.sample((COUNT,)), first) and not first.requires_grad
    assert p.sample((0,)).shape == (0, 2, 2)
    for ask, message in ((p.rsample, "sample for vectors"), (p.rsample_components, "numbers only")):
        with pytest.raises(NotImplementedError, match=message):
            ask((3,))


def test_a_density_between_the_nodes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its width is a thousandth of the kernel's, which the nodes resolve.
    monkeypatch.setattr(kernel_vectors, "_ANY_PROPOSALS", 10**4)
    p = of_vectors([1e6], PLANE[1:2], 1.0)
    with pytest.raises(RuntimeError, match="100 of 100 draws left.* narrower than the nodes are"):
        p.sample((100,))


def test_a_region_of_the_plane_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"known shape.*box.*pyro\.factor"):
        biject_to(of_vectors(LEFT, PLANE, 2.0).support)
