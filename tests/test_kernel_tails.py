"""Kernel densities far out on unbounded bases: moments that there are, masses that there are."""

import math
from typing import Any

import pytest
import torch
from battery import DOUBLE, SINGLE
from scipy import integrate, stats
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp


def bump(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, z).square())


def linear(x: Tensor, z: Tensor) -> Tensor:
    return x @ z.mT


def example(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT) ** 3 + (x @ z.mT) ** 4


def density(base: Any, dtype: torch.dtype = DOUBLE, kernel: Any = bump) -> KernelDeformedExp:
    """1 + k(t, 1/2) relative to the base, up to its mass."""
    weights, points = torch.ones(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype)
    return KernelDeformedExp(weights, points, kernel, base, 2.0, "outside")


# Moments

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
    # Of 1 + k: the law's own moments, and an integral over where k is.
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
    (td.Pareto(0.25, 1.5), bump, DOUBLE, 2),
    # The base has a variance, but the density falls as |t|^-3.
    (td.StudentT(3.0), linear, DOUBLE, 2),
    # It has one, too, of which the tails that are cut in float32 hold a hundredth.
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


def test_moments_along_every_axis() -> None:
    points = torch.full((1, 2), 0.5)
    p = KernelExp(torch.ones(1), points, bump, [td.Normal(0.0, 1.0), td.Cauchy(0.0, 1.0)])
    with pytest.raises(ValueError, match=r"base must be so light .*order 1 .*Cauchy"):
        _ = p.mean


# Masses


@pytest.mark.parametrize(("size", "dtype"), [(4.0, SINGLE), (6.0, DOUBLE), (12.0, DOUBLE)])
def test_a_density_in_the_tail_of_its_base(size: float, dtype: torch.dtype) -> None:
    # exp(w t) N(t; 0, 1) is N(t; w, 1), where the kernel's exponential is out of range elsewhere.
    weights, points = torch.tensor([size], dtype=dtype), torch.ones(1, dtype=dtype)
    p = KernelExp(weights, points, linear, td.Normal(0.0, 1.0))
    close = 1e-5 if dtype == SINGLE else 5e-6
    assert p.mean.item() == pytest.approx(size, rel=close)
    assert p.variance.item() == pytest.approx(1.0, rel=close)


@pytest.mark.parametrize(("weight", "dtype"), [(40.0, SINGLE), (20.0, DOUBLE), (100.0, DOUBLE)])
def test_a_density_beyond_the_tail_of_its_base(weight: float, dtype: torch.dtype) -> None:
    weights, points = torch.tensor([weight], dtype=dtype), torch.ones(1, dtype=dtype)
    with pytest.raises(ValueError, match="weights must be so small"):
        _ = KernelExp(weights, points, linear, td.Normal(0.0, 1.0)).mean


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("points", [[0.5, 1.0], [1.0, 2.0]])
def test_a_power_beyond_the_tail_of_its_base(points: list[float], dtype: torch.dtype) -> None:
    # Of a score of 1e16 where exp(-t^0.5) is 1e-31: NaN or a negative variance, but for the check.
    parts = (torch.tensor([1.0, 0.5], dtype=dtype), torch.tensor(points, dtype=dtype), example)
    with pytest.raises(ValueError, match="weights must be so small"):
        _ = KernelDeformedExp(*parts, td.Weibull(1.0, 0.5), 1.5).mean


def test_a_base_that_is_infinite_at_its_ends() -> None:
    # The arcsine law: t = sin(s)^2 with s uniform, which scipy integrates.
    base = td.Beta(*torch.full((2,), 0.5, dtype=DOUBLE))
    parts = (torch.ones(1, dtype=DOUBLE), torch.full((1,), 0.25, dtype=DOUBLE), bump, base)
    with pytest.raises(ValueError, match=r"the base Beta.* next to its ends, or tolerance larger"):
        KernelExp(*parts)

    def integral(power: int) -> float:
        def integrand(s: float) -> float:
            t = math.sin(s) ** 2
            return t**power * math.exp(math.exp(-0.5 * (t - 0.25) ** 2))

        return float(integrate.quad(integrand, 0, math.pi / 2)[0])

    found = KernelExp(*parts, tolerance=1e-5).mean.item()
    assert found == pytest.approx(integral(1) / integral(0), abs=1e-8)
