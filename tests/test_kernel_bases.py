"""Kernel densities of other kernels than Gaussian ones, and relative to other bases."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import distance, frozen, jacobian, kernel_density
from kernel_references import (
    Kernel,
    KernelReference,
    exponential,
    gaussian,
    matern32,
    matern52,
    rational_quadratic,
)
from references import Array
from scipy import stats
from torch import Tensor, distributions

from sparsefam import SparseDistribution
from sparsefam.bases import GaussianRBF

POINTS = np.linspace(0.0625, 0.9375, 8)
WEIGHTS = np.array([1.5, -2.25, 3.0, 0.5, -3.5, 2.0, 1.25, -1.75])
WIDTH, CENTERS = 0.125, np.linspace(-0.25, 1.25, 7)
TOLERANCE = {SINGLE: (2e-6, 2e-5), DOUBLE: (1e-10, 1e-10)}
SETTINGS = [(1.0, True), (1.5, False), (2.0, True)]

every_setting = pytest.mark.parametrize(("alpha", "inside"), SETTINGS)
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])


def hills(t: Array) -> Array:
    return np.exp(-0.5 * ((t[:, None] - CENTERS) / 0.25) ** 2) / (0.25 * math.sqrt(2 * math.pi))


def basis(dtype: torch.dtype) -> GaussianRBF:
    return GaussianRBF(torch.tensor(CENTERS), 0.25).to(dtype)


def agree(p: SparseDistribution, weights: Tensor, r: KernelReference) -> None:
    """Expectations and their gradients."""
    forward, backward = TOLERANCE[weights.dtype]
    means = p.expect(basis(weights.dtype))
    assert distance(means, r.expect(hills)) < forward
    assert distance(jacobian(means, weights), r.jacobian(hills)) < backward


def leaf(dtype: torch.dtype, values: Array = WEIGHTS) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# Kernels


def multiquadric(x: Tensor, z: Tensor) -> Tensor:
    return (1 + ((x - z.mT) / WIDTH).square()).rsqrt()


def quadratic(x: Tensor, z: Tensor) -> Tensor:
    return (1 + x @ z.mT).square()


def wide(profile: Callable[[float], Kernel]) -> Kernel:
    return profile(WIDTH)


KERNELS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Kernel, bool]] = {
    "RBF": (frozen(gp.RBF, WIDTH), gaussian(WIDTH), False),
    "Matern32": (frozen(gp.Matern32, WIDTH), matern32(WIDTH), True),
    "Matern52": (frozen(gp.Matern52, WIDTH), matern52(WIDTH), True),
    "Exponential": (frozen(gp.Exponential, WIDTH), exponential(WIDTH), True),
    "RationalQuadratic": (frozen(gp.RationalQuadratic, WIDTH), rational_quadratic(WIDTH), False),
    "multiquadric": (
        multiquadric,
        lambda t, c: (1 + ((t[:, None] - c) / WIDTH) ** 2) ** -0.5,
        False,
    ),
    "quadratic": (quadratic, lambda t, c: (1 + t[:, None] * c) ** 2, False),
}


@every_dtype
@every_setting
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    kernel, exact, kinked = KERNELS[name]
    kinks = tuple(POINTS.tolist()) if kinked else ()
    r = KernelReference(WEIGHTS, POINTS, exact, WIDTH, alpha=alpha, inside=inside, kinks=kinks)
    weights = leaf(dtype)
    p = kernel_density(weights, torch.tensor(POINTS, dtype=dtype), kernel, None, alpha, inside)
    agree(p, weights, r)


def test_a_sum_of_kernels() -> None:
    kernel = gp.Sum(frozen(gp.RBF, WIDTH), frozen(gp.Matern52, 2 * WIDTH))
    r = KernelReference(
        WEIGHTS,
        POINTS,
        lambda t, c: gaussian(WIDTH)(t, c) + matern52(2 * WIDTH)(t, c),
        WIDTH,
        kinks=tuple(POINTS.tolist()),
    )
    weights = leaf(DOUBLE)
    agree(kernel_density(weights, torch.tensor(POINTS), kernel), weights, r)


def test_kernels_keep_their_own_parameters() -> None:
    # Pyro's modules look parameters up by name, in a store that all of a process share.
    for width in (0.25, 0.0625):
        r = KernelReference(WEIGHTS, POINTS, gaussian(width), width)
        weights = leaf(DOUBLE)
        agree(kernel_density(weights, torch.tensor(POINTS), frozen(gp.RBF, width)), weights, r)


def test_kernels_may_be_learned() -> None:
    weights, points = leaf(DOUBLE), torch.tensor(POINTS)
    for alpha in (1.0, 1.5, 2.0):
        log = torch.tensor(math.log(WIDTH), dtype=DOUBLE, requires_grad=True)
        found = _of_width(weights, points, log, alpha)
        (slope,) = torch.autograd.grad(found, log)
        steps = [_exact_of_width(math.log(WIDTH) + h, alpha) for h in (-1e-4, 1e-4)]
        assert abs(slope.item() - (steps[1] - steps[0]) / 2e-4) < 1e-6


def _of_width(weights: Tensor, points: Tensor, log: Tensor, alpha: float) -> Tensor:
    def kernel(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((x - z.mT) / log.exp()).square())

    return kernel_density(weights, points, kernel, None, alpha).expect(basis(DOUBLE)).sum()


def _exact_of_width(log: float, alpha: float) -> float:
    r = KernelReference(WEIGHTS, POINTS, gaussian(math.exp(log)), WIDTH, alpha=alpha)
    return float(r.expect(hills).sum())


# Bases: torch's, scipy's, and where they are not smooth


BASES: dict[str, tuple[Any, Any, tuple[float, ...]]] = {
    "Uniform": (distributions.Uniform(-1.0, 3.0), stats.uniform(-1, 4), ()),
    "Normal": (distributions.Normal(0.5, 0.75), stats.norm(0.5, 0.75), ()),
    "Laplace": (distributions.Laplace(0.5, 0.25), stats.laplace(0.5, 0.25), (0.5,)),
    "Beta": (distributions.Beta(2.0, 3.0), stats.beta(2, 3), ()),
    "Exponential": (distributions.Exponential(1.5), stats.expon(scale=1 / 1.5), ()),
    "StudentT": (distributions.StudentT(5.0, 0.25, 0.5), stats.t(5, 0.25, 0.5), ()),
}
every_base = pytest.mark.parametrize("name", BASES)


def pair(
    name: str, alpha: float, inside: bool, dtype: torch.dtype
) -> tuple[SparseDistribution, Tensor, KernelReference]:
    base, law, kinks = BASES[name]
    r = KernelReference(
        WEIGHTS, POINTS, gaussian(WIDTH), WIDTH, law, kinks, alpha=alpha, inside=inside
    )
    weights, points = leaf(dtype), torch.tensor(POINTS, dtype=dtype)
    return kernel_density(weights, points, frozen(gp.RBF, WIDTH), base, alpha, inside), weights, r


# Every base, every setting and both dtypes, each several times; `make test-slow` has the others.
COMBINATIONS = [
    pytest.param(
        *(name, alpha, inside, dtype),
        marks=[] if (i + j + k) % 6 == 0 else pytest.mark.slow,
        id=f"{name}-{alpha}-{str(dtype)[6:]}",
    )
    for i, name in enumerate(BASES)
    for j, (alpha, inside) in enumerate(SETTINGS)
    for k, dtype in enumerate([SINGLE, DOUBLE])
]


@pytest.mark.parametrize(("name", "alpha", "inside", "dtype"), COMBINATIONS)
def test_bases(name: str, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    p, weights, r = pair(name, alpha, inside, dtype)
    agree(p, weights, r)
    t = torch.linspace(-1.5, 4.0, 111, dtype=dtype)
    clear = (t[:, None] - torch.tensor([-1.0, 0.0, 1.0, 3.0, *r.edges])).abs().amin(-1) > 1e-3
    found, expected = p.prob(t)[clear], torch.as_tensor(r.density(t[clear].double().numpy()))
    assert torch.equal(found > 0, expected > 0)
    bound = 1e-4 if dtype == SINGLE else 1e-9
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)


@pytest.mark.slow
@every_base
@every_setting
def test_members_relative_to_a_base(name: str, alpha: float, inside: bool) -> None:
    p, _, r = pair(name, alpha, inside, DOUBLE)
    t, shares = r.weighted()
    mean = (shares * t).sum()
    variance = (shares * (t - mean) ** 2).sum()
    close = 1e-9 if name != "StudentT" else 1e-6
    assert abs(p.mean.item() - mean) < close
    assert abs(p.variance.item() - variance) < close
    log = np.log(np.maximum(r.density(t), 1e-300))
    if name == "Beta":
        # Its logarithm is singular at the ends, which mesh do not resolve: 1e-7 is missing.
        assert abs(p.entropy().item() + (shares * log).sum()) < 1e-6
    else:
        assert abs(p.entropy().item() + (shares * log).sum()) < close
    # Relative to the base, as the prediction map has it.
    relative = log - np.log(np.maximum(r.law.pdf(t), 1e-300))
    powers = r.weighted(alpha)[1].sum()
    tsallis = (shares * relative).sum() if alpha == 1 else (powers - 1) / (alpha * (alpha - 1))
    assert abs(p.tsallis_entropy().item() + tsallis) < 1e-9


@pytest.mark.slow
@every_base
@every_setting
def test_edges_on_other_intervals(name: str, alpha: float, inside: bool) -> None:
    p, _, r = pair(name, alpha, inside, DOUBLE)
    (low, high), (first, last) = r.law.support(), p.support.intervals.flatten()[[0, -1]].tolist()
    expected = r.edges if alpha > 1 else np.array([low, high])
    found = p.support.intervals.flatten().numpy()
    found = found[~np.isnan(found)]
    assert len(found) == len(expected)
    same = np.isclose(found, expected, rtol=0, atol=1e-8) | (found == expected)
    assert same.all(), (found, expected, first, last)


@pytest.mark.slow
@every_base
def test_draws_relative_to_a_base(name: str) -> None:
    for alpha, inside in SETTINGS:
        p, _, r = pair(name, alpha, inside, DOUBLE)
        draws = np.sort(p.sample((4_000,)).numpy())
        assert stats.kstest(r.cdf(draws), "uniform").pvalue > 1e-3
        assert p.support.check(torch.as_tensor(draws)).all()


# Growth


def fourth(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT) ** 3 + (x @ z.mT) ** 4


def test_scores_that_outgrow_their_base_are_refused() -> None:
    # Example 1 of the kernel paper, and the same where the base bounds it.
    weights, points = torch.tensor([1.0, -0.5]), torch.tensor([0.5, 1.0])
    normal = distributions.Normal(0.0, 1.0)
    with pytest.raises(ValueError, match=r"(base|kernel)[\s\S]*(tails|grow)"):
        kernel_density(weights, points, fourth, normal, 1.0)
    p = kernel_density(weights, points, fourth, distributions.Uniform(-1.0, 1.0), 1.0)
    assert p.expect(torch.ones_like).isfinite()


def test_powers_of_scores_that_a_base_bounds_are_accepted() -> None:
    # Of a quartic score the deformed density at alpha = 2 is but a quartic against the normal.
    weights, points = leaf(DOUBLE, np.array([1.0, -0.5])), torch.tensor([0.5, 1.0], dtype=DOUBLE)
    p = kernel_density(weights, points, fourth, distributions.Normal(0.0, 1.0), 2.0)
    r = KernelReference(
        np.array([1.0, -0.5]),
        np.array([0.5, 1.0]),
        lambda t, c: (t[:, None] * c) ** 3 + (t[:, None] * c) ** 4,
        0.5,
        stats.norm(),
    )
    agree(p, weights, r)


def test_linear_scores_of_a_normal_base_shift_it() -> None:
    # exp(w c t) N(t; 0, 1) is N(t; w c, 1): nothing that this file integrates.
    weights, points = torch.tensor([1.5], dtype=DOUBLE), torch.tensor([0.5], dtype=DOUBLE)
    normal = distributions.Normal(torch.zeros((), dtype=DOUBLE), 1.0)
    p = kernel_density(weights, points, lambda x, z: x @ z.mT, normal, 1.0)
    t = torch.linspace(-3, 4, 50, dtype=DOUBLE)
    expected = distributions.Normal(torch.tensor(0.75, dtype=DOUBLE), 1.0).log_prob(t)
    torch.testing.assert_close(p.log_prob(t), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.mean, torch.tensor(0.75, dtype=DOUBLE), rtol=1e-10, atol=0)
