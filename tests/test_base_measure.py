"""Base measures of kernel families: torch's laws, their products, and kernels that they bound."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.distributions.base import SparseDistribution
from sparsefam.distributions.base_measure import BaseMeasure

DOUBLE = torch.float64
POINTS, WEIGHTS = (0.3, 0.7), (1.0, 0.5)


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=DOUBLE)


def smooth(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-2 * (x - z.mT).square())


def vectors(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-2 * torch.cdist(x, z).square())


def linear(x: Tensor, z: Tensor) -> Tensor:
    return x @ z.mT


def quadratic(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT).square()


def example(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z.mT) ** 3 + (x @ z.mT) ** 4


def brownian(x: Tensor, z: Tensor) -> Tensor:
    return torch.minimum(x.abs(), z.abs().mT) * (x * z.mT > 0)


def density(
    kernel: Any, base: Any, alpha: float, weights: Any = WEIGHTS, points: Any = POINTS
) -> SparseDistribution:
    w, t = torch.tensor(weights, dtype=DOUBLE), torch.tensor(points, dtype=DOUBLE)
    if alpha == 1:
        return KernelExp(w, t, kernel, base)
    return KernelDeformedExp(w, t, kernel, base, alpha, "outside")


# Laws: by torch, by scipy, where they end.

LAWS: dict[str, tuple[Any, Any]] = {
    "Uniform": (td.Uniform(-1.0, 2.0), stats.uniform(-1, 3)),
    "Normal": (td.Normal(0.0, 1.0), stats.norm()),
    "Laplace": (td.Laplace(0.0, 1.0), stats.laplace()),
    "StudentT": (td.StudentT(3.0), stats.t(3)),
    "Cauchy": (td.Cauchy(0.0, 1.0), stats.cauchy()),
    "Gumbel": (td.Gumbel(0.0, 1.0), stats.gumbel_r()),
    "Exponential": (td.Exponential(1.0), stats.expon()),
    "HalfNormal": (td.HalfNormal(1.0), stats.halfnorm()),
    "Gamma": (td.Gamma(2.0, 1.0), stats.gamma(2)),
    "LogNormal": (td.LogNormal(0.0, 1.0), stats.lognorm(1)),
    "Weibull": (td.Weibull(1.0, 2.0), stats.weibull_min(2)),
    "Pareto": (td.Pareto(0.125, 3.0), stats.pareto(3, scale=0.125)),
    "Beta": (td.Beta(2.0, 3.0), stats.beta(2, 3)),
    "Logistic": (
        td.TransformedDistribution(td.Uniform(0.0, 1.0), [td.SigmoidTransform().inv]),
        stats.logistic(),
    ),
}
every_law = pytest.mark.parametrize("name", LAWS)


NODES, SHARES = np.polynomial.legendre.leggauss(40)


def integral(f: Any, law: Any) -> float:
    """Of f, from (n,) to (n,), against a law, on pieces that grow away from its middle."""
    low, high = law.support()
    steps = np.concatenate([np.linspace(0.25, 8, 32), 2.0 ** np.arange(4, 70)])
    middle, near = law.median(), 2.0 ** -np.arange(1, 60)
    ends = [middle - steps, [middle, 0, *POINTS], middle + steps, low + near if low > -9 else []]
    ends = np.unique(np.clip(np.concatenate(ends), low, high))
    half = np.diff(ends)[:, None] / 2
    t = (ends[:-1, None] + half * (1 + NODES)).ravel()
    with np.errstate(over="ignore"):
        density = law.pdf(t)
    alive = density > 0
    return math.fsum((half * SHARES).ravel()[alive] * density[alive] * f(t[alive]))


def relative(kernel: Any, alpha: float) -> Any:
    """The density relative to its base, but for its mass."""
    eps = alpha - 1
    points = torch.tensor(POINTS, dtype=DOUBLE).unsqueeze(-1)

    def values(t: Any) -> Any:
        columns = kernel(points, torch.as_tensor(t, dtype=DOUBLE).unsqueeze(-1))
        f = (torch.tensor(WEIGHTS, dtype=DOUBLE) @ columns).numpy()
        return np.exp(f) if eps == 0 else np.maximum(0, 1 + eps * f) ** (1 / eps)

    return values


def check_density(name: str, kernel: Any, alpha: float) -> None:
    base, law = LAWS[name]
    p, q = density(kernel, base, alpha), relative(kernel, alpha)
    t = np.array([0.4])
    expected = np.log(q(t) * law.pdf(t) / integral(q, law))
    assert abs(p.log_prob(torch.as_tensor(t)).item() - expected.item()) < 1e-8


@every_law
def test_masses_of_a_bounded_kernel(name: str) -> None:
    check_density(name, smooth, (1.0, 1.5, 2.0)[list(LAWS).index(name) % 3])


@pytest.mark.parametrize("width", [1e-7, 1e7])
def test_bases_of_any_width(width: float) -> None:
    # With f = t/width: exp(f) N(0, width) is N(width, width).
    p = density(linear, td.Normal(number(0.0), width), 1.0, [1 / width], [1.0])
    assert abs(p.mean.item() / width - 1) < 1e-9
    assert abs(p.variance.item() / width**2 - 1) < 1e-9


# Growth: Prop. 1, with the exponents of tail and kernel

LAWFUL = [
    ("Normal", quadratic, 2.0),
    ("Normal", example, 1.25),
    ("Laplace", brownian, 1.0),
    ("Gumbel", brownian, 1.0),
    ("HalfNormal", linear, 1.0),
    ("Exponential", example, 2.0),
    ("StudentT", quadratic, 2.0),
    ("Uniform", example, 1.0),
]


@pytest.mark.parametrize(("name", "kernel", "alpha"), LAWFUL)
def test_growth_that_a_base_outweighs(name: str, kernel: Any, alpha: float) -> None:
    check_density(name, kernel, alpha)


REFUSED = [
    ("Normal", quadratic, 1.0),
    # Example 1 of the kernel paper.
    ("Normal", example, 1.0),
    ("Laplace", linear, 1.0),
    ("LogNormal", linear, 1.0),
    # A power of the score must have a mean.
    ("Cauchy", linear, 2.0),
    ("StudentT", quadratic, 1.5),
]


@pytest.mark.parametrize(("name", "kernel", "alpha"), REFUSED)
def test_growth_that_outweighs_a_base(name: str, kernel: Any, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"^base must have tails.*Prop\. 1"):
        density(kernel, LAWS[name][0], alpha, [1.0, 0.5])


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


def test_growth_is_checked_along_every_axis() -> None:
    points, weights = torch.tensor([[0.5, 0.5]]), torch.ones(1)
    base = [td.Normal(0.0, 1.0), td.Laplace(0.0, 1.0)]
    with pytest.raises(ValueError, match=r"Prop\. 1.*Laplace"):
        KernelExp(weights, points, linear, base)
    assert KernelExp(weights, points, linear, [base[0], base[0]]).mean.isfinite().all()


@pytest.mark.parametrize(
    "law",
    [
        td.LogNormal(torch.zeros(2), torch.tensor([0.5, 0.6])),
        td.HalfNormal(torch.tensor([1.0, 2.0])),
        td.Beta(torch.tensor([2.0, 3.0]), torch.tensor([2.0, 4.0])),
        td.Gumbel(torch.zeros(2), torch.ones(2)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_a_batch_of_distributions_that_keep_parameters_in_others(law: Any) -> None:
    points = torch.tensor([[0.4, 0.5], [0.6, 0.7]])
    p = KernelExp(torch.zeros(2), points, vectors, td.Independent(law, 1))
    torch.testing.assert_close(p.mean, law.mean, rtol=1e-5, atol=1e-5)


def test_a_batch_of_mixtures_is_divided() -> None:
    loc = torch.tensor([[-1.0, 0.0], [1.0, 3.0]])
    mixed = td.MixtureSameFamily(td.Categorical(torch.ones(2, 2)), td.Normal(loc, 1.0))
    p = KernelExp(torch.zeros(1), torch.zeros(1, 2), vectors, td.Independent(mixed, 1))
    torch.testing.assert_close(p.mean, loc.mean(-1), rtol=1e-5, atol=1e-5)


# Arguments


WRONG: list[tuple[Any, int, str]] = [
    (td.Normal(torch.zeros(2), 1.0), 1, "univariate"),
    ([td.Normal(0.0, 1.0)], 2, "2 of them"),
    (td.Independent(td.Normal(torch.zeros(3), 1.0), 1), 2, "2 univariate"),
]


@pytest.mark.parametrize(("base", "dim", "rule"), WRONG)
def test_what_is_no_base(base: Any, dim: int, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^base must.*{rule}"):
        BaseMeasure(base, dim, DOUBLE)


@pytest.mark.parametrize("family", [td.Normal, td.Gumbel, td.LogNormal])
def test_bases_are_constant(family: Any) -> None:
    with pytest.raises(ValueError, match="^base must be constant"):
        BaseMeasure(family(torch.zeros((), requires_grad=True), 1.0), 1, DOUBLE)


def test_data_may_lie_where_a_base_vanishes_at_its_ends() -> None:
    base = BaseMeasure(td.Beta(2.0, 3.0), 1, DOUBLE)
    base.require_inside("X", torch.tensor([[0.0], [0.5], [1.0]], dtype=DOUBLE))
    with pytest.raises(ValueError, match="X must be inside the support of the base"):
        base.require_inside("X", torch.tensor([[1.5]], dtype=DOUBLE))
