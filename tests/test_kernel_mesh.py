"""Meshes of kernel families: kernels, bases and tails that they resolve or refuse."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import distance, frozen, jacobian, kernel_density
from references import Array
from scipy import integrate, stats
from torch import Tensor
from torch import distributions as td

from benchmarks.reference import (
    Kernel,
    KernelReference,
    exponential,
    gaussian,
    matern32,
    matern52,
)
from sparsefam import KernelDeformedExp, KernelExp, SparseDistribution
from sparsefam.bases import GaussianRBF

POINTS = np.linspace(0.0625, 0.9375, 8)
WEIGHTS = np.array([1.5, -2.25, 3.0, 0.5, -3.5, 2.0, 1.25, -1.75])
WIDTH, CENTERS = 0.125, np.linspace(-0.25, 1.25, 7)
TOLERANCE = {SINGLE: (2e-6, 2e-5), DOUBLE: (1e-10, 1e-10)}


def bumps(t: Array) -> Array:
    return np.exp(-0.5 * ((t[:, None] - CENTERS) / 0.25) ** 2) / (0.25 * math.sqrt(2 * math.pi))


def basis(dtype: torch.dtype) -> GaussianRBF:
    return GaussianRBF(torch.tensor(CENTERS), 0.25).to(dtype)


def agree(p: SparseDistribution, weights: Tensor, r: KernelReference) -> None:
    """Compare expectations and their gradients."""
    forward, backward = TOLERANCE[weights.dtype]
    means = p.expect(basis(weights.dtype))
    assert distance(means, r.expect(bumps)) < forward
    assert distance(jacobian(means, weights), r.jacobian(bumps)) < backward


def leaf(dtype: torch.dtype, values: Array = WEIGHTS) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# Kernels


def exact_sum(t: Array, c: Array) -> Array:
    return gaussian(WIDTH)(t, c) + matern52(2 * WIDTH)(t, c)


SUM = gp.Sum(frozen(gp.RBF, WIDTH), frozen(gp.Matern52, 2 * WIDTH))
KERNELS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Kernel, bool]] = {
    "RBF": (frozen(gp.RBF, WIDTH), gaussian(WIDTH), False),
    # Pyro's modules look parameters up by name, in a store that all of a process share.
    "another RBF": (frozen(gp.RBF, 2 * WIDTH), gaussian(2 * WIDTH), False),
    "Matern32": (frozen(gp.Matern32, WIDTH), matern32(WIDTH), True),
    "Exponential": (frozen(gp.Exponential, WIDTH), exponential(WIDTH), True),
    "quadratic": (
        lambda x, z: (1 + x @ z.mT).square(),
        lambda t, c: (1 + t[:, None] * c) ** 2,
        False,
    ),
    "sum": (SUM, exact_sum, True),
}


@pytest.mark.parametrize(
    ("alpha", "inside", "dtype"), [(1.0, True, SINGLE), (1.5, False, DOUBLE), (2.0, True, SINGLE)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    kernel, exact, kinked = KERNELS[name]
    kinks = tuple(POINTS.tolist()) if kinked else ()
    r = KernelReference(WEIGHTS, POINTS, exact, WIDTH, alpha=alpha, inside=inside, kinks=kinks)
    weights, points = leaf(dtype), torch.tensor(POINTS, dtype=dtype)
    agree(kernel_density(weights, points, kernel, None, alpha, inside), weights, r)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_kernels_may_be_learned(alpha: float) -> None:
    log = torch.tensor(math.log(WIDTH), dtype=DOUBLE, requires_grad=True)

    def kernel(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((x - z.mT) / log.exp()).square())

    p = kernel_density(torch.tensor(WEIGHTS), torch.tensor(POINTS), kernel, None, alpha)
    (slope,) = torch.autograd.grad(p.expect(basis(DOUBLE)).sum(), log)

    def exact(log: float) -> float:
        r = KernelReference(WEIGHTS, POINTS, gaussian(math.exp(log)), WIDTH, alpha=alpha)
        return float(r.expect(bumps).sum())

    below, above = (exact(math.log(WIDTH) + h) for h in (-1e-4, 1e-4))
    assert abs(slope.item() - (above - below) / 2e-4) < 1e-6


def test_a_kernel_between_the_nodes_is_an_error() -> None:
    def narrow(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(x, z).square() / 1e-12)

    point = torch.tensor([[0.5, 0.5]], dtype=DOUBLE)
    with pytest.raises(ValueError, match="kernel must be smooth between its points"):
        KernelExp(torch.tensor([40.0], dtype=DOUBLE), point, narrow)


# Bases: torch's, and where they are not smooth

BASES: dict[str, tuple[Any, Any, tuple[float, ...]]] = {
    "Uniform": (td.Uniform(-1.0, 3.0), stats.uniform(-1, 4), ()),
    "Normal": (td.Normal(0.5, 0.75), stats.norm(0.5, 0.75), ()),
    "Laplace": (td.Laplace(0.5, 0.25), stats.laplace(0.5, 0.25), (0.5,)),
    "Beta": (td.Beta(2.0, 3.0), stats.beta(2, 3), ()),
    "Exponential": (td.Exponential(1.5), stats.expon(scale=1 / 1.5), ()),
    "StudentT": (td.StudentT(5.0, 0.25, 0.5), stats.t(5, 0.25, 0.5), ()),
}


@pytest.mark.parametrize(
    ("name", "alpha", "inside", "dtype"),
    [
        ("Uniform", 1.5, False, SINGLE),
        ("Normal", 1.0, True, DOUBLE),
        ("Normal", 1.5, True, SINGLE),
        ("Laplace", 2.0, True, SINGLE),
        ("Beta", 1.0, True, DOUBLE),
        ("Exponential", 1.5, False, SINGLE),
        ("StudentT", 1.0, True, DOUBLE),
    ],
)
def test_bases(name: str, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    base, law, kinks = BASES[name]
    r = KernelReference(
        WEIGHTS, POINTS, gaussian(WIDTH), WIDTH, law, kinks, alpha=alpha, inside=inside
    )
    weights, points = leaf(dtype), torch.tensor(POINTS, dtype=dtype)
    p = kernel_density(weights, points, frozen(gp.RBF, WIDTH), base, alpha, inside)
    agree(p, weights, r)
    t = torch.linspace(-1.5, 4.0, 111, dtype=dtype)
    t = t[(t[:, None] - torch.tensor([-1.0, 0.0, 1.0, 3.0, *r.edges])).abs().amin(-1) > 1e-3]
    due = torch.as_tensor(r.density(t.double().numpy()))
    assert torch.equal(p.prob(t) > 0, due > 0)
    bound = 1e-4 if dtype == SINGLE else 1e-9
    torch.testing.assert_close(p.prob(t).double(), due, rtol=bound, atol=bound)
    torch.manual_seed(0)
    draws = p.sample((500,))
    assert stats.kstest(r.cdf(np.sort(draws.double().numpy())), "uniform").pvalue > 1e-3
    assert p.support.check(draws).all()
    if dtype == SINGLE:
        return
    nodes, shares = r.weighted()
    close = 1e-9 if name != "StudentT" else 1e-6
    mean = (shares * nodes).sum()
    assert abs(p.mean.item() - mean) < close
    assert abs(p.variance.item() - (shares * (nodes - mean) ** 2).sum()) < close
    log = np.log(np.maximum(r.density(nodes), 1e-300))
    # The logarithm of Beta is singular at the ends, which meshes do not resolve.
    assert abs(p.entropy().item() + (shares * log).sum()) < (1e-6 if name == "Beta" else close)
    edges, due = p.support.intervals.flatten(), r.edges if alpha > 1 else law.support()
    torch.testing.assert_close(edges, torch.as_tensor(np.array(due)), rtol=0, atol=1e-8)


# Moments under unbounded bases


def bump(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, z).square())


def linear(x: Tensor, z: Tensor) -> Tensor:
    return x @ z.mT


def density(base: Any, dtype: torch.dtype = DOUBLE, kernel: Any = bump) -> KernelDeformedExp:
    """1 + k(t, 1/2) relative to the base, up to its mass."""
    weights, points = torch.ones(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype)
    return KernelDeformedExp(weights, points, kernel, base, 2.0, "outside")


LIGHT: list[tuple[Any, Any]] = [
    (td.StudentT(5.0), stats.t(5)),
    (td.Gumbel(1.0, 1.0), stats.gumbel_r(1)),
    (td.LogNormal(0.0, 1.0), stats.lognorm(1)),
    (td.Weibull(1.0, 0.5), stats.weibull_min(0.5)),
    (td.Pareto(0.25, 5.0), stats.pareto(5, scale=0.25)),
]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize(("base", "law"), LIGHT, ids=[type(base).__name__ for base, _ in LIGHT])
def test_moments_of_light_tails(base: Any, law: Any, dtype: torch.dtype) -> None:
    # The law's own moments, and an integral over where the kernel is.
    def part(power: int) -> float:
        low = max(law.support()[0], -9.5)
        found = integrate.quad(
            lambda s: s**power * math.exp(-0.5 * (s - 0.5) ** 2) * law.pdf(s),
            *(low, 10.5),
            points=[max(low, 0.01), 0.1, 0.5, 1.0],
            limit=200,
        )
        return float(law.moment(power) if power else 1.0) + float(found[0])

    p, (mass, first, second) = density(base, dtype), map(part, range(3))
    mean = first / mass
    close = 2e-5 if dtype == SINGLE else 1e-6
    assert p.mean.item() == pytest.approx(mean, rel=close)
    assert p.variance.item() == pytest.approx(second / mass - mean**2, rel=close)


HEAVY: list[tuple[Any, Any, torch.dtype, int]] = [
    (td.Cauchy(0.5, 1.0), bump, DOUBLE, 1),
    (td.HalfCauchy(1.0), bump, SINGLE, 1),
    (td.StudentT(2.0), bump, DOUBLE, 2),
    # The base has a variance, but the density falls as |t|^-3.
    (td.StudentT(3.0), linear, DOUBLE, 2),
    # The tails that are cut in float32 hold a hundredth of the variance.
    (td.StudentT(2.5), bump, SINGLE, 2),
]


@pytest.mark.parametrize(("base", "kernel", "dtype", "order"), HEAVY)
def test_moments_of_heavy_tails(base: Any, kernel: Any, dtype: torch.dtype, order: int) -> None:
    p = density(base, dtype, kernel)
    name = type(base).__name__
    with pytest.raises(ValueError, match=f"base must be so light .*order {order} .*{name}"):
        _ = p.variance if order == 2 else p.mean
    if order == 2:
        assert p.mean.isfinite()
    assert p.expect(torch.ones_like).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("weight", "dtype"), [(40.0, SINGLE), (20.0, DOUBLE), (100.0, DOUBLE)])
def test_a_density_beyond_the_tail_of_its_base(weight: float, dtype: torch.dtype) -> None:
    weights, points = torch.tensor([weight], dtype=dtype), torch.ones(1, dtype=dtype)
    with pytest.raises(ValueError, match="weights must be so small"):
        _ = KernelExp(weights, points, linear, td.Normal(0.0, 1.0)).mean


def fourth(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT) ** 3 + (x @ z.mT) ** 4


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("points", [[0.5, 1.0], [1.0, 2.0]])
def test_a_power_beyond_the_tail_of_its_base(points: list[float], dtype: torch.dtype) -> None:
    # A score of 1e16 where exp(-t^0.5) is 1e-31: NaN or a negative variance, but for the check.
    parts = (torch.tensor([1.0, 0.5], dtype=dtype), torch.tensor(points, dtype=dtype), fourth)
    with pytest.raises(ValueError, match="weights must be so small"):
        _ = KernelDeformedExp(*parts, td.Weibull(1.0, 0.5), 1.5).mean


def test_moments_along_every_axis() -> None:
    base = [td.Normal(0.0, 1.0), td.Cauchy(0.0, 1.0)]
    p = KernelExp(torch.ones(1), torch.full((1, 2), 0.5), bump, base)
    with pytest.raises(ValueError, match=r"base must be so light .*order 1 .*Cauchy"):
        _ = p.mean
