"""Base measures of kernel families: laws of torch, their tails, products, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, apart
from cases_kernel import bell, jacobian, kernel_density
from references import Array, Kernel, gaussian, gaussians, tanh_sinh
from refusals import refused
from scipy import stats
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.bases import GaussianRBF
from sparsefam.distributions._kernel.base_measure import BaseMeasure

POINTS = np.array([0.25, 0.75])
# Scores that grow, and scores that densities cut off.
POSITIVE, SIGNED = np.array([1.0, 0.5]), np.array([3.0, -4.0])
CENTERS = np.linspace(-0.25, 1.25, 7)
BUMPS = gaussians(CENTERS, 0.25)


# Kernels, for torch and for arrays
near = bell(0.125)


def linear(x: Tensor, z: Tensor) -> Tensor:
    return x @ z.mT


def quadratic(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT).square()


def fourth(x: Tensor, z: Tensor) -> Tensor:
    """Example 1 of the kernel paper."""
    return (x @ z.mT) ** 3 + (x @ z.mT) ** 4


def brownian(x: Tensor, z: Tensor) -> Tensor:
    return torch.minimum(x.abs(), z.abs().mT) * (x * z.mT > 0)


def in_numpy(kernel: Any) -> Callable[[Array, Array], Array]:
    if kernel is near:
        return gaussian(0.125)
    return lambda t, c: kernel(*(torch.as_tensor(x).unsqueeze(-1) for x in (t, c))).numpy()


# By torch, by scipy.
LAWS: dict[str, tuple[Any, Any]] = {
    "Uniform": (td.Uniform(-1.0, 2.0), stats.uniform(-1, 3)),
    "Normal": (td.Normal(0.5, 0.75), stats.norm(0.5, 0.75)),
    "Laplace": (td.Laplace(0.0, 1.0), stats.laplace()),
    "StudentT(3)": (td.StudentT(3.0), stats.t(3)),
    "Cauchy": (td.Cauchy(0.0, 1.0), stats.cauchy()),
    "HalfNormal": (td.HalfNormal(1.0), stats.halfnorm()),
    "Gamma": (td.Gamma(2.0, 1.0), stats.gamma(2)),
    "LogNormal": (td.LogNormal(0.0, 1.0), stats.lognorm(1)),
    "Weibull(1/2)": (td.Weibull(1.0, 0.5), stats.weibull_min(0.5)),
    "Pareto": (td.Pareto(0.125, 5.0), stats.pareto(5, scale=0.125)),
    "Beta": (td.Beta(2.0, 3.0), stats.beta(2, 3)),
}
# Base, kernel, alpha, and how many moments exist: a bounded kernel, then growth that the base
# outweighs (Prop. 1).
DENSITIES = [
    ("Normal", near, 1.0, 2),
    ("StudentT(3)", near, 1.5, 1),
    ("Cauchy", near, 2.0, 0),
    ("Gamma", near, 1.0, 2),
    ("LogNormal", near, 1.5, 2),
    ("Weibull(1/2)", near, 2.0, 2),
    ("Pareto", near, 2.0, 2),
    ("Beta", near, 1.0, 2),
    ("Normal", quadratic, 2.0, 2),
    ("Normal", fourth, 1.25, 2),
    ("Laplace", brownian, 1.0, 2),
    ("HalfNormal", linear, 1.0, 2),
    ("StudentT(3)", quadratic, 2.0, 0),
    ("Uniform", fourth, 1.0, 2),
]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "kernel", "alpha", "moments"), DENSITIES)
def test_densities_and_moments(
    name: str, kernel: Any, alpha: float, moments: int, dtype: torch.dtype
) -> None:
    base, law = LAWS[name]
    inside, heights = name in ("Normal", "Laplace"), SIGNED if kernel is near else POSITIVE
    kinks = (0.0, *POINTS)
    r = Kernel(heights, POINTS, in_numpy(kernel), 0.125, law, kinks, alpha, inside)
    weights, points = (torch.tensor(x, dtype=dtype) for x in (heights, POINTS))
    p = kernel_density(weights.requires_grad_(), points, kernel, base, alpha, inside)
    close = 2e-5 if dtype == SINGLE else 1e-8
    t = np.array([-1.75, -0.25, 0.125, 0.375, 0.875, 2.25])
    due = torch.as_tensor(r.density(t))
    found = p.prob(torch.tensor(t, dtype=dtype)).double()
    torch.testing.assert_close(found, due, rtol=close, atol=0)
    if kernel is near:
        means = p.expect(GaussianRBF(torch.tensor(CENTERS), 0.25).to(dtype))
        assert apart(means, r.expect(BUMPS)) < close
        # The kernel hardly varies where a Pareto density is: most of a covariance cancels.
        wide = 10 if name == "Pareto" else 1
        assert apart(jacobian(means, p.weights), r.jacobian(BUMPS)) < wide * close
        edges = p.support.intervals.double().flatten()
        torch.testing.assert_close(edges, torch.as_tensor(r.edges), rtol=1e-6, atol=10 * close)
        draws = p.sample((500,))
        assert p.support.check(draws).all()
        assert stats.kstest(r.cdf(np.sort(draws.double().numpy())), "uniform").pvalue > 1e-3
    close = 1e-9 if dtype == DOUBLE else close
    nodes, shares = r.weighted()
    mean = shares @ nodes
    if moments:
        assert p.mean.item() == pytest.approx(mean, rel=close)
    if moments > 1:
        assert p.variance.item() == pytest.approx(shares @ (nodes - mean) ** 2, rel=close)
    if moments > 1 and dtype == DOUBLE:
        log = np.log(np.maximum(r.density(nodes), 1e-300))
        assert p.entropy().item() == pytest.approx(-shares @ log, abs=close)


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("weight", [-30.0, 1.0, 1e4])
@pytest.mark.parametrize("shapes", [(2.0, 3.0), (1.0, 4.0), (2.0, 1.0)])
def test_entropies_of_bases_that_vanish_at_an_end(
    shapes: tuple[float, float], weight: float, alpha: float
) -> None:
    kernel, base = bell(0.8), td.Beta(*torch.tensor(shapes, dtype=DOUBLE))
    p = kernel_density(
        torch.tensor([weight], dtype=DOUBLE), torch.zeros(1).double(), kernel, base, alpha
    )
    # Between the ends of its support, in float64.
    t, weights = tanh_sinh(0.01, *p.support.intervals.flatten().numpy())
    log = p.log_prob(torch.as_tensor(t)).clamp_min(-700).numpy()
    assert p.entropy().item() == pytest.approx(-(weights * np.exp(log)) @ log, abs=1e-8)


@pytest.mark.parametrize("width", [1e-7, 1e7])
def test_bases_of_any_width(width: float) -> None:
    # With f = t/width: exp(f) N(0, width) is N(width, width).
    weights, point = torch.tensor([1 / width], dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)
    p = KernelExp(weights, point, linear, td.Normal(torch.zeros((), dtype=DOUBLE), width))
    assert p.mean.item() == pytest.approx(width, rel=1e-9)
    assert p.variance.item() == pytest.approx(width**2, rel=1e-9)


# What is refused: growth that outweighs the base, moments that do not exist, and no bases
GROWTH = [
    ("Normal", quadratic, 1.0),
    ("Normal", fourth, 1.0),
    ("Laplace", linear, 1.0),
    ("LogNormal", linear, 1.0),
    # A power of the score must have a mean.
    ("Cauchy", linear, 2.0),
    ("StudentT(3)", quadratic, 1.5),
]


@pytest.mark.parametrize(("name", "kernel", "alpha"), GROWTH)
def test_growth_that_outweighs_a_base(name: str, kernel: Any, alpha: float) -> None:
    weights, points = torch.as_tensor(POSITIVE), torch.as_tensor(POINTS)
    with pytest.raises(ValueError, match=r"^base must have tails that outweigh"):
        kernel_density(weights, points, kernel, LAWS[name][0], alpha, False)


HEAVY: list[tuple[Any, Any, torch.dtype, int]] = [
    (td.Cauchy(0.5, 1.0), near, DOUBLE, 1),
    (td.HalfCauchy(1.0), near, SINGLE, 1),
    (td.StudentT(2.0), near, DOUBLE, 2),
    # The base has a variance, but the density falls as |t|^-3.
    (td.StudentT(3.0), linear, DOUBLE, 2),
    # The tails that are cut in float32 hold a hundredth of the variance.
    (td.StudentT(2.5), near, SINGLE, 2),
]


@pytest.mark.parametrize(("base", "kernel", "dtype", "order"), HEAVY)
def test_moments_of_heavy_tails(base: Any, kernel: Any, dtype: torch.dtype, order: int) -> None:
    weights, points = torch.ones(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype)
    p = KernelDeformedExp(weights, points, kernel, base, 2.0, "outside")
    name = type(base).__name__
    with pytest.raises(ValueError, match=f"base must be so light .*order {order} .*{name}"):
        _ = p.variance if order == 2 else p.mean
    if order == 2:
        assert p.mean.isfinite()
    assert p.expect(torch.ones_like).item() == pytest.approx(1.0, abs=1e-6)


NORMAL, WEIBULL = td.Normal(0.0, 1.0), td.Weibull(1.0, 0.5)


@pytest.mark.parametrize(
    ("weights", "points", "kernel", "base", "alpha", "dtype"),
    [
        ([40.0], [1.0], linear, NORMAL, 1.0, SINGLE),
        ([20.0], [1.0], linear, NORMAL, 1.0, DOUBLE),
        ([100.0], [1.0], linear, NORMAL, 1.0, DOUBLE),
        # A score of 1e16 where exp(-t^0.5) is 1e-31: NaN or a negative variance, but for the check.
        *(
            ([1.0, 0.5], points, fourth, WEIBULL, 1.5, dtype)
            for points in ([0.5, 1.0], [1.0, 2.0])
            for dtype in (SINGLE, DOUBLE)
        ),
    ],
)
def test_a_density_beyond_the_tail_of_its_base(
    weights: Any, points: Any, kernel: Any, base: Any, alpha: float, dtype: torch.dtype
) -> None:
    tensors = (torch.tensor(x, dtype=dtype) for x in (weights, points))
    with pytest.raises(ValueError, match="weights must be so small"):
        _ = kernel_density(*tensors, kernel, base, alpha).mean


test_what_is_no_base = refused(
    [
        (td.Normal(torch.zeros(2), 1.0), 1, "^base must.*univariate"),
        ([td.Normal(0.0, 1.0)], 2, "^base must.*2 of them"),
        (td.Independent(td.Normal(torch.zeros(3), 1.0), 1), 2, "^base must.*2 univariate"),
        *(
            (family(torch.zeros((), requires_grad=True), 1.0), 1, "^base must.*constant")
            for family in (td.Normal, td.Gumbel, td.LogNormal)
        ),
    ],
    of=lambda base, dim: BaseMeasure(base, dim, DOUBLE),
)


def test_data_may_lie_where_a_base_vanishes_at_its_ends() -> None:
    base = BaseMeasure(td.Beta(2.0, 3.0), 1, DOUBLE)
    base.require_inside("X", torch.tensor([[0.0], [0.5], [1.0]], dtype=DOUBLE))
    with pytest.raises(ValueError, match="X must be inside the support of the base"):
        base.require_inside("X", torch.tensor([[1.5]], dtype=DOUBLE))


# Products
PAIRS = [
    td.Independent(td.Normal(torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.5])), 1),
    [td.Normal(0.0, 1.0), td.Normal(0.5, 0.5)],
]


@pytest.mark.parametrize("base", PAIRS, ids=["Independent", "sequence"])
def test_products_in_the_plane(base: Any) -> None:
    # exp(w'Ct) of a normal law is a normal law.
    points = torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=DOUBLE)
    weights = torch.tensor([0.5, -0.25], dtype=DOUBLE)
    p = KernelExp(weights, points, linear, base, tolerance=1e-5)
    slope = weights @ points
    loc = torch.tensor([0.0, 0.5], dtype=DOUBLE) + torch.tensor([1.0, 0.25]) * slope
    law = td.Independent(td.Normal(loc, torch.tensor([1.0, 0.5], dtype=DOUBLE)), 1)
    t = torch.tensor([[0.1, 0.2], [-1.0, 2.0]], dtype=DOUBLE)
    torch.testing.assert_close(p.log_prob(t), law.log_prob(t), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(p.mean, loc, rtol=1e-5, atol=1e-5)


def test_every_axis_is_checked() -> None:
    point, normal = torch.tensor([[0.5, 0.5]]), td.Normal(0.0, 1.0)
    with pytest.raises(ValueError, match=r"outweigh.*Laplace"):
        KernelExp(torch.ones(1), point, linear, [normal, td.Laplace(0.0, 1.0)])
    assert KernelExp(torch.ones(1), point, linear, [normal, normal]).mean.isfinite().all()
    with pytest.raises(ValueError, match=r"base must be so light .*order 1 .*Cauchy"):
        _ = KernelExp(torch.ones(1), point, near, [normal, td.Cauchy(0.0, 1.0)]).mean
