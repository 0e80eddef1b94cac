"""Draws of vectors from kernel families, against masses of cells by quadrature."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.distributions import kernel_family
from sparsefam.distributions.base import SparseDistribution

DOUBLE = torch.float64
WIDTH = 0.15
COUNT = 20_000
# Two hills, and a valley between them; outside the unit box nothing.
PLANE = torch.tensor([[0.2, 0.3], [0.5, 0.5], [0.8, 0.7]], dtype=DOUBLE)
SPACE = torch.tensor([[0.25, 0.3, 0.5], [0.5, 0.5, 0.5], [0.75, 0.7, 0.4]], dtype=DOUBLE)
ONE, TWO = [4.0, -6.0, 3.0], [1.0, 5.0, -2.0]
SETTINGS = [(1.0, True), (1.5, True), (2.0, True), (1.5, False), (2.0, False)]
every_setting = pytest.mark.parametrize(("alpha", "inside"), SETTINGS)


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, z).square() / WIDTH**2)


def make(
    weights: Any, points: Tensor, alpha: float, inside: bool = True, base: Any = None
) -> SparseDistribution:
    w = torch.as_tensor(weights, dtype=points.dtype)
    if alpha == 1:
        return KernelExp(w, points, gaussian, base)
    normalization = "inside" if inside else "outside"
    return KernelDeformedExp(w, points, gaussian, base, alpha, normalization)


def densities(
    weights: list[float],
    points: Tensor,
    alpha: float,
    inside: bool,
    ends: list[tuple[float, float]],
    law: Any,
    fine: int,
) -> np.ndarray[Any, Any]:
    """Masses of a grid's cells: the density at the middles of its `fine` cells along each axis.

    What normalises inside is found by bisection, with numpy alone.
    """
    middles = [low + (high - low) * (np.arange(fine) + 0.5) / fine for low, high in ends]
    grid = np.stack(np.meshgrid(*middles, indexing="ij"), -1)
    away = ((grid[..., None, :] - points.numpy()) ** 2).sum(-1)
    f = (np.exp(-0.5 * away / WIDTH**2) * np.array(weights)).sum(-1)
    volume = np.prod([(high - low) / fine for low, high in ends])
    base = law(grid) * volume
    eps = alpha - 1

    def power(level: float) -> Any:
        if eps == 0:
            return np.exp(f) * base
        return np.maximum(0, 1 + eps * (f - level)) ** (1 / eps) * base

    level = 0.0
    if inside and eps > 0:
        low, high = float(f.min()) - 1, float(f.max()) + 1 / eps
        for _ in range(60):
            level = (low + high) / 2
            low, high = (level, high) if power(level).sum() > 1 else (low, level)
    found: np.ndarray[Any, Any] = power(level)
    return found / found.sum()


def coarse(masses: np.ndarray[Any, Any], cells: int) -> np.ndarray[Any, Any]:
    """Masses (fine, ...) summed over blocks: (cells, ...)."""
    for axis in range(masses.ndim):
        size = masses.shape[axis] // cells
        masses = np.add.reduceat(masses, np.arange(0, cells * size, size), axis=axis)
    return masses


def p_value(draws: Tensor, masses: np.ndarray[Any, Any], ends: list[tuple[float, float]]) -> float:
    """Of the chi-square test of draws (n, D) for cells; those of small mass count as one."""
    cells = masses.shape[0]
    counts, _ = np.histogramdd(draws.double().numpy(), cells, ends)
    assert counts.sum() == len(draws)
    seen, due = counts.ravel(), masses.ravel() * len(draws)
    big = due >= 10
    seen = np.append(seen[big], seen[~big].sum())
    due = np.append(due[big], due[~big].sum())
    if due[-1] < 10:
        assert seen[-1] <= due[-1] + 6 * math.sqrt(due[-1]) + 3
        seen, due = seen[:-1], due[:-1] * seen[:-1].sum() / due[:-1].sum()
    return float(stats.chisquare(seen, due).pvalue)


def box(dim: int) -> list[tuple[float, float]]:
    return [(0.0, 1.0)] * dim


def flat(t: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ones(t.shape[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@every_setting
def test_draws_in_the_plane(alpha: float, inside: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    p = make(ONE, PLANE.to(dtype), alpha, inside)
    draws = p.sample((COUNT,))
    assert draws.dtype == dtype
    assert draws.shape == (COUNT, 2)
    assert p.support.check(draws).all()
    masses = coarse(densities(ONE, PLANE, alpha, inside, box(2), flat, 640), 16)
    assert p_value(draws, masses, box(2)) > 1e-3


@pytest.mark.parametrize(("alpha", "inside"), [(1.0, True), (2.0, True), (1.5, False)])
def test_draws_in_space(alpha: float, inside: bool) -> None:
    torch.manual_seed(1)
    p = make(ONE, SPACE.float(), alpha, inside)
    draws = p.sample((COUNT,))
    assert draws.shape == (COUNT, 3)
    assert p.support.check(draws).all()
    masses = coarse(densities(ONE, SPACE, alpha, inside, box(3), flat, 96), 6)
    assert p_value(draws, masses, box(3)) > 1e-3


def test_the_support_has_holes() -> None:
    # A ring: 1 + f is positive around the middle, but not in it.
    points = torch.tensor([[0.5, 0.5]], dtype=DOUBLE)

    def ring(x: Tensor, z: Tensor) -> Tensor:
        def lift(t: Tensor) -> Tensor:
            away = (t - 0.5).norm(dim=-1, keepdim=True)
            return torch.exp(-200 * (away - 0.3).square())

        return lift(x) @ lift(z).mT

    top = float(ring(points, torch.tensor([[0.8, 0.5]], dtype=DOUBLE)))
    weights = torch.tensor([8.0 / top], dtype=DOUBLE)
    p = KernelDeformedExp(weights, points, ring, None, 2.0, tolerance=1e-5)
    draws = p.sample((COUNT,))
    away = (draws - 0.5).norm(dim=-1)
    edge = (p.log_normalizer - 1).item() / 8  # where exp(-200 (r - 0.3)^2) is
    half = math.sqrt(-math.log(edge) / 200)
    assert (away > 0.3 - half - 1e-9).all()
    assert (away < 0.3 + half + 1e-9).all()
    # Radius and angle, each with its own law.
    r = np.linspace(0.3 - half, 0.3 + half, 2001)
    density = np.maximum(0, 8 * np.exp(-200 * (r - 0.3) ** 2) - 8 * edge) * r
    levels = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    found = np.interp(away.numpy(), r, levels / levels[-1])
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    angle = torch.atan2(draws[:, 1] - 0.5, draws[:, 0] - 0.5).numpy() / (2 * math.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > 1e-3


@every_setting
def test_a_batch_draws_from_each_of_its_densities(alpha: float, inside: bool) -> None:
    torch.manual_seed(2)
    p = make([[ONE], [TWO]], PLANE, alpha, inside)
    draws = p.sample((40, COUNT // 40))
    assert draws.shape == (40, COUNT // 40, 2, 1, 2)
    assert p.support.check(draws).all()
    for row, weights in enumerate((ONE, TWO)):
        masses = coarse(densities(weights, PLANE, alpha, inside, box(2), flat, 640), 16)
        assert p_value(draws[..., row, 0, :].flatten(0, 1), masses, box(2)) > 1e-3


def test_a_batch_with_points_and_exponents_of_its_own() -> None:
    torch.manual_seed(3)
    points = torch.stack([PLANE, 1 - PLANE[:, [1, 0]]])
    alpha = torch.tensor([1.25, 2.0], dtype=DOUBLE)
    weights = torch.tensor([ONE, TWO], dtype=DOUBLE)
    draws = KernelDeformedExp(weights, points, gaussian, None, alpha).sample((COUNT,))
    for row, w in enumerate((ONE, TWO)):
        masses = densities(w, points[row], alpha[row].item(), True, box(2), flat, 640)
        assert p_value(draws[:, row], coarse(masses, 16), box(2)) > 1e-3


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_draws_relative_to_a_base(alpha: float) -> None:
    torch.manual_seed(4)
    base = [td.Normal(0.5, 0.25), td.Exponential(3.0)]
    p = make(ONE, PLANE, alpha, True, base)
    ends = [(-0.75, 1.75), (0.0, 5.0)]

    def law(t: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = stats.norm(0.5, 0.25).pdf(t[..., 0]) * stats.expon(scale=1 / 3).pdf(t[..., 1])
        return np.asarray(found)

    draws = p.sample((COUNT,))
    assert p.support.check(draws).all()
    masses = coarse(densities(ONE, PLANE, alpha, True, ends, law, 1600), 50)
    draws = torch.stack([draws[:, i].clamp(*ends[i]) for i in range(2)], -1)
    assert p_value(draws, masses, ends) > 1e-3


def test_escorts_are_drawn_from() -> None:
    # At alpha = 2 the default escort is uniform on the support.
    torch.manual_seed(5)
    p = make(ONE, PLANE, 2.0)
    draws = p.escort().sample((COUNT,))
    assert p.support.check(draws).all()
    masses = densities(ONE, PLANE, 2.0, True, box(2), flat, 1280)
    uniform = (masses > 0) / (masses > 0).sum()
    assert p_value(draws, coarse(uniform, 16), box(2)) > 1e-3


def test_draws_are_independent() -> None:
    torch.manual_seed(6)
    draws = make(ONE, PLANE, 1.5).sample((COUNT,))
    centred = draws - draws.mean(0)
    for lag, axis in itertools.product((1, 2, 5, 32), range(2)):
        x = centred[:, axis]
        correlation = (x[lag:] * x[:-lag]).mean() / x.square().mean()
        assert abs(correlation.item()) < 4.5 / math.sqrt(COUNT)


def test_seeds_reproduce_draws() -> None:
    p = make([ONE, TWO], PLANE, 2.0)
    torch.manual_seed(7)
    first = p.sample((50,))
    torch.manual_seed(7)
    assert torch.equal(p.sample((50,)), first)
    assert not torch.equal(p.sample((50,)), first)


def test_shapes() -> None:
    p = make([ONE, TWO], PLANE, 2.0)
    assert p.sample().shape == (2, 2)
    assert p.sample((0,)).shape == (0, 2, 2)
    assert p.sample((3, 1)).shape == (3, 1, 2, 2)
    assert not p.sample((3,)).requires_grad


def test_a_large_score() -> None:
    # Peaks that are much higher than what the neighbours of a node let one expect.
    torch.manual_seed(8)
    weights = [60.0, -80.0, 58.0]
    draws = make(weights, PLANE, 1.0).sample((COUNT,))
    masses = densities(weights, PLANE, 1.0, True, box(2), flat, 1280)
    assert p_value(draws, coarse(masses, 64), box(2)) > 1e-3


def test_no_gradients_of_vectors() -> None:
    p = make(ONE, PLANE, 2.0)
    assert not p.has_rsample
    with pytest.raises(NotImplementedError, match="sample for vectors"):
        p.rsample((3,))
    with pytest.raises(NotImplementedError, match="numbers only"):
        p.rsample_components((3,))


def test_a_density_between_the_nodes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its width is a thousandth of the kernel's, which the nodes resolve.
    monkeypatch.setattr(kernel_family, "_ANY_PROPOSALS", 10**4)
    p = make([1e6], PLANE[1:2], 1.0)
    with pytest.raises(RuntimeError, match="100 of 100 draws left.* narrower than the nodes are"):
        p.sample((100,))


def test_a_kernel_between_the_nodes_is_an_error() -> None:
    # On a base a million times as wide.
    def narrow(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(x, z).square() / 1e-12)

    with pytest.raises(ValueError, match="kernel must be smooth between the inducing points"):
        KernelExp(torch.tensor([40.0], dtype=DOUBLE), PLANE[1:2], narrow)
