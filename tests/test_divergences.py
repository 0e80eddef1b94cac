"""KL, Tsallis and Bregman divergences against exact cases, quadrature and samples."""

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pyro.distributions as pyro_distributions
import pytest
import torch
from cases_kernel import POINTS, kernel_density, rbf
from laws import FOREIGN, HEAVIER, LAWS, NARROW, Array, divergence, integral
from scipy import stats
from scipy.integrate import quad
from scipy.special import digamma, ive, roots_legendre
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence
from vectors import DOUBLE, SINGLE, centre, factor, member

import sparsefam as sf
from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)

DRAWS = 20_000


def inside(p: MultivariateBetaGaussian, alpha: float) -> MultivariateBetaGaussian:
    """A density of another centre and shape, whose support holds p's with little to spare."""
    dim = p.event_shape[0]
    loc, tril = p.loc + 0.1, factor(dim, seed=2.0)
    inverse = torch.linalg.inv(tril)
    size = torch.linalg.matrix_norm(inverse @ p.scale_tril, 2) + (inverse @ (p.loc - loc)).norm()
    return MultivariateBetaGaussian(loc, 1.3 * size * tril, alpha)


def by_draws(
    p: MultivariateBetaGaussian, q: torch.distributions.Distribution
) -> tuple[float, float]:
    """The mean log ratio over draws of p, and its standard error."""
    t = p.sample((DRAWS,))
    ratio = p.log_prob(t) - q.log_prob(t)
    return ratio.mean().item(), ratio.std().item() / DRAWS**0.5


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("dim", [1, 2, 16])
def test_against_normals(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    q = MultivariateNormal(p.loc + 0.3, scale_tril=0.8 * factor(dim, seed=1.0))
    found = kl_divergence(p, q)
    # log q is a quadratic, whose expectation the rule integrates exactly.
    nodes, weights = p.quadrature(4)
    expected = -p.entropy() - weights @ q.log_prob(nodes)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    mean, error = by_draws(p, q)
    assert abs(found.item() - mean) < 5 * error
    torchs = torch.distributions.MultivariateNormal(q.loc, scale_tril=q.scale_tril)
    torch.testing.assert_close(kl_divergence(p, torchs), found)
    assert kl_divergence(q, p) == kl_divergence(torchs, p) == math.inf


@pytest.mark.parametrize(("one", "two"), [(2.0, 2.0), (2.0, 1.3), (1.5, 3.0), (3.0, 2.0)])
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_on_one_support_the_whole_edge_is_resolved(dim: int, one: float, two: float) -> None:
    p, q = member(dim, one), member(dim, two)
    m, n = 1 / (one - 1), 1 / (two - 1)
    mean_log = digamma(m + 1) - digamma(m + 1 + dim / 2)
    expected = (p._log_constant() - q._log_constant()).item() + (m - n) * mean_log
    assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("one", "two"), [(2.0, 1.5), (1.05, 2.0), (math.inf, 2.0), (2.0, math.inf)]
)
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_inside_another_support(dim: int, one: float, two: float) -> None:
    p = member(dim, one)
    q = inside(p, two)
    found = kl_divergence(p, q).item()
    mean, error = by_draws(p, q)
    assert abs(found - mean) < 5 * error + 1e-12
    if dim <= 3:  # log q is smooth on all of p's support
        nodes, weights = p.quadrature(96)
        expected = (-p.entropy() - weights @ q.log_prob(nodes)).item()
        assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("dim", [2, 3, 6])
def test_touching_in_a_point(dim: int) -> None:
    e = torch.eye(dim, dtype=DOUBLE)
    p, q = TruncatedParaboloid(e[0], e), TruncatedParaboloid(0 * e[0], 2 * e)
    found = kl_divergence(p, q).item()
    # Integrated over the plane through the two centres' line: t = (1 + r cos, r sin).
    power = dim - 2

    def ring(r: float) -> float:
        def log_gap(a: float) -> float:
            return math.sin(a) ** power * math.log(1 - (1 + 2 * r * math.cos(a) + r * r) / 4)

        mass = quad(lambda a: math.sin(a) ** power, 0, math.pi)[0]
        return quad(log_gap, 0, math.pi, epsabs=1e-11, limit=200)[0] / mass

    top = quad(lambda r: r ** (dim - 1) * (1 - r * r) * ring(r), 0, 1, epsabs=1e-9)[0]
    mean_log = top / quad(lambda r: r ** (dim - 1) * (1 - r * r), 0, 1)[0]
    expected = (-p.entropy() - q._peak_log_prob()).item() - mean_log
    # Beyond three dimensions directions are quasi-random.
    assert found == pytest.approx(expected, abs=2e-8 if dim <= 3 else 2e-4)


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_infinite_as_soon_as_an_edge_is_crossed(dim: int) -> None:
    p = member(dim, 2.0)
    wide = member(dim, 1.5)
    for size, finite in ((1 + 1e-9, True), (1.0, True), (1 - 1e-9, False)):
        q = MultivariateBetaGaussian(wide.loc, size * wide.scale_tril, 1.5)
        assert kl_divergence(p, q).isfinite().item() == finite
        assert (
            kl_divergence(p, MultivariateBetaGaussian(q.loc, q.scale_tril, math.inf)).isfinite()
            == finite
        )
    half = MultivariateBetaGaussian(p.loc, 0.5 * p.scale_tril, 2.0)
    edge = p.loc + 0.5 * p.scale_tril[:, 0]
    for shift, finite in ((1 - 1e-9, True), (1 + 1e-9, False)):
        moved = MultivariateBetaGaussian(p.loc + shift * (edge - p.loc), half.scale_tril, 2.0)
        assert kl_divergence(moved, p).isfinite().item() == finite


def test_batches_broadcast_and_keep_dtype() -> None:
    loc = torch.stack([centre(2, SINGLE), centre(2, SINGLE) + 0.05])[:, None]
    p = MultivariateBetaGaussian(loc, 0.2 * factor(2, SINGLE), torch.tensor([1.5, 2.0, 3.0]))
    q = MultivariateBetaGaussian(centre(2, SINGLE), 2 * factor(2, SINGLE), 1.7)
    found = kl_divergence(p, q)
    assert (found.shape, found.dtype) == ((2, 3), SINGLE)
    for i in range(2):
        for j, alpha in enumerate((1.5, 2.0, 3.0)):
            one = MultivariateBetaGaussian(
                loc[i, 0].double(), 0.2 * factor(2, SINGLE).double(), alpha
            )
            other = MultivariateBetaGaussian(q.loc.double(), q.scale_tril.double(), 1.7)
            assert found[i, j].item() == pytest.approx(kl_divergence(one, other).item(), rel=2e-6)
    swapped = kl_divergence(q, p)
    assert swapped.shape == (2, 3)
    assert swapped.isinf().all()


def test_gradients_are_those_of_the_integral() -> None:
    def divergence(loc: Tensor, scale: Tensor, one: Tensor, two: Tensor) -> Tensor:
        p = MultivariateBetaGaussian(loc, scale.tril(), one)
        q = MultivariateBetaGaussian(0.5 * loc, 3 * scale.tril().flip(0, 1).mT.clone(), two)
        return kl_divergence(p, q)

    leaves = [
        torch.tensor([0.1, -0.2], dtype=DOUBLE, requires_grad=True),
        torch.tensor([[0.5, 0.0], [0.1, 0.6]], dtype=DOUBLE, requires_grad=True),
        torch.tensor(1.7, dtype=DOUBLE, requires_grad=True),
        torch.tensor(2.5, dtype=DOUBLE, requires_grad=True),
    ]
    assert divergence(*leaves).isfinite()
    assert torch.autograd.gradcheck(divergence, leaves)


def paired(name: str, others: Iterable[str]) -> list[str]:
    """The others that are ours, or all where the named law is."""
    return [other for other in others if LAWS[name].is_ours or LAWS[other].is_ours]


@pytest.mark.parametrize("name", LAWS)
def test_every_pair_is_the_integral(name: str) -> None:
    p = LAWS[name]
    for other in paired(name, LAWS):
        q = LAWS[other]
        found = kl_divergence(p.made(DOUBLE), q.made(DOUBLE)).item()
        assert found == pytest.approx(divergence(p, q), abs=1e-10, rel=1e-10), other


def test_a_logarithm_that_bends_between_cuts() -> None:
    for name in ("normal", "uniform", "parabola", "torch-laplace"):
        p = LAWS[name]
        found = kl_divergence(p.made(DOUBLE), NARROW.made(DOUBLE)).item()
        assert found == pytest.approx(divergence(p, NARROW), rel=1e-10), name


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("one", "two"), [(2.0, 1.5), (1.5, 3.0), (math.inf, 2.0), (math.inf, 1.05), (1.1, math.inf)]
)
def test_on_one_support_it_has_a_closed_form(order: int, one: float, two: float) -> None:
    cls = BetaGaussian if order == 2 else BetaLaplace
    loc, scale = torch.tensor([[0.3, -2.0], [1.7, 0.25]], dtype=DOUBLE)
    p, q = cls(loc, scale, one), cls(loc, scale, two)
    m, n = (1 / (alpha - 1) for alpha in (one, two))
    mean_log = digamma(m + 1) - digamma(m + 1 + 1 / order)
    expected = p._log_constant() - q._log_constant() + (m - n) * mean_log
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 2.0**90])
@pytest.mark.parametrize("loc", [0.0, 2.0**26])
def test_far_away_and_of_any_size(loc: float, scale: float) -> None:
    p, q = TruncatedParabola, Triangular
    one = torch.ones((), dtype=DOUBLE)
    expected = kl_divergence(p(0 * one, one), q(0.25 * one, 2 * one))
    found = kl_divergence(
        p(loc * scale * one, scale * one), q((loc + 0.25) * scale * one, 2 * scale)
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_nesting_is_decided_to_rounding_of_the_parameters() -> None:
    for dtype, small in ((SINGLE, 1e-5), (DOUBLE, 1e-13)):
        low, high = torch.tensor([-0.4, 0.6], dtype=dtype)
        q = TruncatedParabola(torch.tensor(0.1, dtype=dtype), torch.tensor(0.5, dtype=dtype))
        assert kl_divergence(td.Uniform(low, high), q).isfinite()
        assert kl_divergence(td.Uniform(low - small, high), q) == math.inf
        assert kl_divergence(td.Uniform(low, high + small), q) == math.inf
        assert kl_divergence(td.Uniform(low + small, high), q).isfinite()


def test_infinite_where_tails_are_too_heavy() -> None:
    one = torch.ones(1, dtype=DOUBLE)
    heavy = Mixture(0 * one, [td.Cauchy(0 * one[0], one[0])])
    wide = Mixture(0 * one, [td.Cauchy(0 * one[0], 2 * one[0])])
    assert kl_divergence(heavy, Normal(0 * one, one)) == math.inf
    assert kl_divergence(heavy, Laplace(0 * one, one)) == math.inf
    # log((a + b)^2/(4 a b)) of two Cauchy laws: Chyzak and Nielsen (2019).
    assert kl_divergence(heavy, wide).item() == pytest.approx(math.log(9 / 8), abs=1e-9)


GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "powers": (
        lambda a, b, c, d: kl_divergence(BetaGaussian(a, b, c), BetaLaplace(0.1 * a, 3 * b, d)),
        (0.2, 1.0, 1.7, 2.5),
    ),
    "one support": (
        lambda a, b, c, d: kl_divergence(BetaGaussian(a, b, c), BetaGaussian(a, b, d)),
        (0.2, 1.0, 1.7, 2.5),
    ),
    "uniform": (
        lambda a, b, c, d: kl_divergence(td.Uniform(a, b), BetaLaplace(0.3, c, d)),
        (-0.2, 1.0, 2.0, 1.3),
    ),
    "in uniform": (
        lambda a, b, c: kl_divergence(Triangular(a, b), td.Uniform(-c, 2 * c)),
        (0.2, 1.0, 2.0),
    ),
    "laplace": (
        lambda a, b, c, d: kl_divergence(Triangular(a, b), Laplace(c, d)),
        (0.2, 1.0, 0.4, 0.75),
    ),
    "normal": (
        lambda a, b, c: kl_divergence(
            LocationScale(a, b, lambda x: x**3 / 6 + x**2 / 4), td.Normal(c, 1.0)
        ),
        (0.2, 1.0, 0.4),
    ),
    "mixtures": (
        lambda a, b, c: kl_divergence(
            Mixture(a, TruncatedParabola(b, c)), Mixture(-a, Triangular(b, 2 * c))
        ),
        ([0.1, 0.4], [0.3, 1.7], [1.0, 0.5]),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_integral_line(name: str) -> None:
    function, numbers = GRADIENTS[name]
    leaves = [torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in numbers]
    assert function(*leaves).isfinite()
    assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_gradients_in_weights_of_kernel_families(alpha: float) -> None:
    points = torch.tensor(POINTS, dtype=DOUBLE)

    def found(one: Tensor, two: Tensor) -> Tensor:
        p = kernel_density(one, points, rbf, None, alpha)
        return kl_divergence(p, kernel_density(two, points, rbf, None, 1.0))

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        for x in ([-4.0, 1.5, 2.5, 1.0, -3.5], [1.0, -1.0, 2.0, 0.0, 1.0])
    ]
    assert torch.autograd.gradcheck(found, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in LAWS if LAWS[name].is_ours])
def test_an_infinite_divergence_has_zero_gradients(name: str) -> None:
    p = LAWS[name].made(DOUBLE)
    loc = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    found = kl_divergence(p, Triangular(loc, 0.5))
    assert found == math.inf
    (slope,) = torch.autograd.grad(found, loc)
    assert slope == 0
    found = kl_divergence(Laplace(loc, 1.0), BetaGaussian(loc, 2.0, 1.5))
    (slope,) = torch.autograd.grad(found, loc)
    assert (found.item(), slope.item()) == (math.inf, 0.0)


class _Own(TruncatedParabola):
    """A user's subclass."""


def test_types_are_never_ambiguous() -> None:
    # A warning of torch's about ambiguous pairs would be an error here.
    one = torch.ones((), dtype=DOUBLE)
    dense = [Normal(0 * one, one), Laplace(0 * one, one), _Own(0 * one, one)]
    theirs = [
        *(td.Normal(0 * one, one), td.Laplace(0 * one, one), td.Uniform(-one, one)),
        *(
            pyro_distributions.Normal(0 * one, one),
            pyro_distributions.Laplace(0 * one, one),
            pyro_distributions.Uniform(-one, one),
        ),
    ]
    for p, q in [*product(dense, dense + theirs), *product(theirs, dense)]:
        assert not kl_divergence(p, q).isnan()
    for p, q in product(dense[:2] + theirs[:2] + theirs[3:5], repeat=2):
        if type(p).__name__ == type(q).__name__:
            assert kl_divergence(p, q) == 0
    # The half-normal and others keep the closed forms that torch has with a normal.
    assert kl_divergence(td.Gamma(one, one), dense[0]) == kl_divergence(
        td.Gamma(one, one), theirs[0]
    )
    point = pyro_distributions.Delta(0.25 * one)
    for q in dense:
        assert kl_divergence(point, q) == -q.log_prob(0.25 * one)


def test_under_transforms() -> None:
    loc = torch.tensor([-0.5, 0.0, 0.25], dtype=DOUBLE)

    def found(loc: Tensor) -> Tensor:
        p = Mixture(
            torch.zeros(2, dtype=DOUBLE), TruncatedParabola(torch.stack([loc, -loc], -1), 1.0)
        )
        value: Tensor = kl_divergence(p, Laplace(0.1, 1.0))
        return value

    leaf = loc.clone().requires_grad_()
    expected = found(leaf)
    (slopes,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(torch.func.vmap(found)(loc), expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(found))(loc), slopes)
    torch.testing.assert_close(torch.func.grad(found)(loc[0]), slopes[0])


@pytest.mark.slow
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(td.Distribution, "_validate_args", False)

    def found(loc: Tensor, scale: Tensor) -> Tensor:
        value: Tensor = kl_divergence(TruncatedParabola(loc, scale), Laplace(0.1, 1.0))
        return value + sf.tsallis_divergence(td.Uniform(loc, loc + scale), Normal(loc, 1.0), 0.5)

    loc = torch.tensor([-0.5, 0.0, 0.25], dtype=DOUBLE)
    # Torch finds the rule for a pair of types outside of graphs only, the first time.
    expected = found(loc, loc.exp())
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(loc, loc.exp()), expected, rtol=1e-10, atol=0)


def test_categories() -> None:
    p = SparseCategorical(torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=DOUBLE))
    q = torch.tensor([0.25, 0.75, 0.0], dtype=DOUBLE)
    half = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    for other in (SparseCategorical(q), td.Categorical(probs=q)):
        found = kl_divergence(p, other)
        assert found[0].item() == pytest.approx(half, abs=1e-14)
        assert found[1] == math.inf
    assert kl_divergence(td.Categorical(probs=q), p)[0].item() == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-14
    )
    with pytest.raises(ValueError, match="as many categories, got 3 and 2"):
        kl_divergence(p, SparseCategorical(torch.ones(2)))
    with pytest.raises(ValueError, match="q must be a categorical distribution"):
        kl_divergence(p, Normal(0.0, 1.0))


PAIRS = [
    ("biweight", "parabola"),
    ("parabola", "biweight"),
    ("triangle", "kernel"),
    ("kernel-2", "normal"),
    ("disjoint", "unlike"),
    ("uniform", "laplace"),
    ("laplace", "torch-uniform"),
    ("torch-normal", "cubic"),
    ("normal", "laplace"),
]


def exp(log: Array) -> Array:
    return np.where(np.isfinite(log), np.exp(log), 0.0)


def powers(alpha: float) -> Callable[[Array, Array], Array]:
    """p^alpha q^(1 - alpha) where both are positive."""

    def function(p: Array, q: Array) -> Array:
        both = np.isfinite(p) & np.isfinite(q)
        p, q = (np.where(both, x, 0.0) for x in (p, q))
        return np.where(both, np.exp(alpha * p + (1 - alpha) * q), 0.0)

    return function


def tsallis(p: str, q: str, alpha: float) -> float:
    one, two = LAWS[p], LAWS[q]
    outside = integral(lambda a, b: np.where(np.isfinite(b), 0.0, exp(a)), one, two)
    if alpha > 1 and outside > 1e-9:
        return math.inf
    return (integral(powers(alpha), one, two) - 1) / (alpha - 1)


def bregman(p: str, q: str, alpha: float) -> float:
    def function(a: Array, b: Array) -> Array:
        one, two = exp(a), exp(b)
        first = one**alpha / (alpha * (alpha - 1)) + two**alpha / alpha
        return first - one * two ** (alpha - 1) / (alpha - 1)

    return integral(function, LAWS[p], LAWS[q])


@pytest.mark.parametrize("alpha", [0.5, 2.0])
@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_tsallis_is_the_integral(p: str, q: str, alpha: float) -> None:
    expected = tsallis(p, q, alpha)
    if (p, q, alpha) == ("uniform", "laplace", 2.0):
        # Over [0, 1] the reciprocal of exp(-t)/2.
        assert expected == pytest.approx(2 * (math.e - 1) - 1, abs=1e-12)
    for dtype, tolerance in ((DOUBLE, 1e-10), (SINGLE, 5e-7)):
        found = sf.tsallis_divergence(LAWS[p].made(dtype), LAWS[q].made(dtype), alpha)
        assert found.dtype == dtype
        if expected < 1e6 or math.isinf(expected):  # else the reference has lost the tails
            assert found.item() == pytest.approx(expected, rel=tolerance, abs=1e-10)


@pytest.mark.parametrize("alpha", [1.25, 2.0])
@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_bregman_is_the_integral(p: str, q: str, alpha: float) -> None:
    expected = bregman(p, q, alpha)
    for dtype, tolerance in ((DOUBLE, 1e-10), (SINGLE, 5e-7)):
        found = sf.bregman_divergence(LAWS[p].made(dtype), LAWS[q].made(dtype), alpha)
        assert found.dtype == dtype
        assert found.item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("alpha", [0.25, 0.9, 1.5, 2.5])
def test_tsallis_of_normals_has_a_closed_form(alpha: float) -> None:
    loc, scale = torch.tensor([[0.0, 1.0, -3.0], [1.0, 0.7, 0.5]], dtype=DOUBLE)
    p, q = Normal(loc, scale), td.Normal(0 * loc, scale.new_tensor(1.1))
    # The variance of p^alpha q^(1 - alpha), normalised, is p's times q's over this.
    mixed = alpha * q.variance + (1 - alpha) * p.variance
    power = torch.log(q.stddev**alpha * p.stddev ** (1 - alpha)) - 0.5 * mixed.log()
    power = power - 0.5 * alpha * (1 - alpha) * loc.square() / mixed
    expected = torch.expm1(power) / (alpha - 1)
    torch.testing.assert_close(sf.tsallis_divergence(p, q, alpha), expected, rtol=1e-10, atol=1e-12)


def test_tsallis_is_infinite_without_an_integral() -> None:
    one = torch.ones((), dtype=DOUBLE)
    narrow, wide = Normal(0 * one, one), Normal(0 * one, 2 * one)
    # alpha q.variance + (1 - alpha) p.variance must be positive.
    for alpha, finite in ((1.3, True), (1.34, False), (2.0, False)):
        assert sf.tsallis_divergence(wide, narrow, alpha).isfinite() == finite
    assert sf.tsallis_divergence(Laplace(0 * one, one), narrow, 1.1) == math.inf
    # On one support p^alpha q^(1 - alpha) begins with the power alpha m + (1 - alpha) n.
    p = BetaGaussian(0 * one, one, math.inf)
    q = TruncatedParabola(0 * one, one)
    assert sf.tsallis_divergence(p, q, 2.0) == math.inf
    # The integral of (1 - x^2)^(-1/2) is pi.
    expected = (0.5**1.5 * 0.75**-0.5 * math.pi - 1) / 0.5
    assert sf.tsallis_divergence(p, q, 1.5).item() == pytest.approx(expected, abs=1e-6)


def test_on_disjoint_supports() -> None:
    loc = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    p, q = TruncatedParabola(0.0, 1.0), TruncatedParabola(loc, 1.0)
    for alpha in (0.25, 0.5, 0.75):
        found = sf.tsallis_divergence(p, q, alpha)
        assert found.item() == pytest.approx(1 / (1 - alpha), abs=1e-12)
        assert torch.autograd.grad(found, loc)[0] == 0
    found = sf.tsallis_divergence(p, q, 1.5)
    assert (found.item(), torch.autograd.grad(found, loc)[0].item()) == (math.inf, 0.0)
    # Half of the integrals of both squares, each 3/5.
    assert sf.bregman_divergence(p, q, 2.0).item() == pytest.approx(0.6, abs=1e-12)


@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_bregman_is_what_its_name_says(alpha: float) -> None:
    one = torch.ones((), dtype=DOUBLE)
    p = BetaGaussian(0.2 * one, 0.7 * one, alpha)
    q = BetaGaussian(0 * one, 1.3 * one, alpha)

    def slope(t: Tensor) -> Tensor:
        # Of Omega at q, up to a constant: that of q's support is enough, as p lives there.
        return q.prob(t) ** (alpha - 1) / (alpha - 1)

    expected = q.tsallis_entropy() - p.tsallis_entropy() - p.expect(slope) + q.expect(slope)
    found = sf.bregman_divergence(p, q, alpha)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    # Omega*(f) + Omega(p) - <f, p>, where Omega*(f) = <f, q> - Omega(q).
    f = q.score
    conjugate = q.expect(f) + q.tsallis_entropy()
    loss = conjugate - p.tsallis_entropy() - p.expect(f)
    torch.testing.assert_close(found, loss, rtol=1e-11, atol=1e-11)
    beyond = BetaGaussian(1.0 * one, 0.7 * one, alpha)
    loss = conjugate - beyond.tsallis_entropy() - beyond.expect(f)
    assert loss > sf.bregman_divergence(beyond, q, alpha) + 1e-3


def test_limits_at_one() -> None:
    p, q = (LAWS[name].made(DOUBLE) for name in ("biweight", "parabola"))
    at_one = kl_divergence(p, q)
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        assert divergence_of(p, q, 1.0) == at_one
        near = divergence_of(p, q, 1 + 1e-9)
        assert near.item() == pytest.approx(at_one.item(), abs=1e-8)
        assert divergence_of(p, p, 1.7).item() == pytest.approx(0, abs=1e-15)
    below = sf.tsallis_divergence(p, q, 1 - 1e-9)
    assert below.item() == pytest.approx(at_one.item(), abs=1e-8)


NAMED_GRADIENTS = {
    "tsallis-0.5": lambda p, q: sf.tsallis_divergence(p, q, 0.5),
    "tsallis-2": lambda p, q: sf.tsallis_divergence(q, p, 2.0),
    "bregman-1.5": lambda p, q: sf.bregman_divergence(p, q, 1.5),
    "bregman-2": lambda p, q: sf.bregman_divergence(p, q, 2.0),
}


@pytest.mark.parametrize("name", NAMED_GRADIENTS)
def test_gradients(name: str) -> None:
    def function(loc: Tensor, scale: Tensor, alpha: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return NAMED_GRADIENTS[name](BetaGaussian(loc, scale, alpha), td.Uniform(low, high))

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in (0.2, 1.5, 1.7, -0.25, 0.75)
    ]
    assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-6)


def test_categories_named() -> None:
    one, two = [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]
    p, q = (SparseCategorical(torch.tensor(x, dtype=DOUBLE)) for x in (one, two))
    a, b = np.array(one), np.array(two)
    for alpha in (0.5, 1.5, 2.0):
        expected = ((a**alpha * b ** (1 - alpha)).sum() - 1) / (alpha - 1)
        assert sf.tsallis_divergence(p, q, alpha).item() == pytest.approx(expected, abs=1e-14)
    assert sf.tsallis_divergence(q, p, 1.5) == math.inf
    assert sf.tsallis_divergence(q, p, 0.5).isfinite()
    expected = 0.5 * ((a - b) ** 2).sum()
    for other in (q, td.Categorical(probs=q.probs)):
        assert sf.bregman_divergence(p, other, 2.0).item() == pytest.approx(expected, abs=1e-14)


def heights(law: sf.EllipticalDistribution, x: Array, rho: Array) -> Array:
    """Density of a law with a round scale and its centre on the first axis."""
    radius, dim = law.scale_tril[0, 0].item(), law.event_shape[0]
    squared = ((x - law.loc[0].item()) ** 2 + rho**2) / radius**2
    if isinstance(law, sf.MultivariateNormal):
        return np.asarray(np.exp(-squared / 2) / (2 * math.pi * radius**2) ** (dim / 2))
    m = 1 / (law.alpha.item() - 1)
    top = math.gamma(m + 1 + dim / 2) / math.gamma(m + 1) / math.pi ** (dim / 2) / radius**dim
    return np.asarray(top * (1 - squared).clip(0) ** m)


def common(
    p: sf.EllipticalDistribution, q: sf.EllipticalDistribution, one: float, two: float
) -> float:
    """The integral of p^one q^two over balls, slice by slice along the axis of their centres."""
    dim = p.event_shape[0]
    centres, radii = (
        [f(law) for law in (p, q)]
        for f in (lambda law: law.loc[0].item(), lambda law: law.scale_tril[0, 0].item())
    )
    radii = [
        12 * r if isinstance(law, sf.MultivariateNormal) else r
        for law, r in zip((p, q), radii, strict=True)
    ]
    low = max(c - r for c, r in zip(centres, radii, strict=True))
    high = min(c + r for c, r in zip(centres, radii, strict=True))
    gap = centres[1] - centres[0]
    meet = centres[0] + (gap**2 + radii[0] ** 2 - radii[1] ** 2) / (2 * gap)
    y = np.linspace(-3.1, 3.1, 161)
    share = 1 / (1 + np.exp(-np.pi * np.sinh(y)))
    rule = (y[1] - y[0]) * np.pi * np.cosh(y) * share * (1 - share)
    total = 0.0
    cuts = sorted({low, high, min(max(meet, low), high)})
    for a, b in zip(cuts, cuts[1:], strict=False):
        x = a + (b - a) * share
        chords = [r**2 - (x - c) ** 2 for c, r in zip(centres, radii, strict=True)]
        top = np.sqrt(np.minimum(*chords).clip(0))[:, None]
        rho = top * share
        values = [heights(law, x[:, None], rho) for law in (p, q)]
        alive = (values[0] > 0) & (values[1] > 0)
        powers = [np.where(alive, v, 1.0) ** k for v, k in zip(values, (one, two), strict=True)]
        around = 2 if dim == 2 else 2 * math.pi * rho
        slices = (top * rule * around * np.where(alive, powers[0] * powers[1], 0.0)).sum(-1)
        total += float((b - a) * (rule * slices).sum())
    return total


def ball(dim: int, loc: float, radius: float, alpha: float) -> sf.EllipticalDistribution:
    centre = torch.zeros(dim, dtype=DOUBLE)
    centre[0] = loc
    tril = radius * torch.eye(dim, dtype=DOUBLE)
    if alpha == 1:
        return sf.MultivariateNormal(centre, scale_tril=tril)
    return sf.MultivariateBetaGaussian(centre, tril, alpha)


BALLS = {
    "crossing": ((0.0, 1.0, 1.5), (0.7, 0.8, 1.5)),
    "apart": ((0.0, 1.0, 1.5), (1.25, 0.75, 1.5)),
    "sparsemax": ((0.0, 1.0, 2.0), (0.7, 0.8, 2.0)),
    "nested": ((0.1, 0.5, 2.0), (0.0, 1.0, 1.5)),
    "around": ((0.1, 1.0, 2.0), (0.0, 0.3, 1.5)),
    "in a normal": ((0.1, 1.0, 1.5), (0.5, 0.7, 1.0)),
    "of a normal": ((0.1, 0.4, 1.0), (0.5, 1.0, 1.5)),
    "normals": ((0.1, 0.4, 1.0), (0.5, 1.0, 1.0)),
}


# In space some of what the plane has.
SLOW = ("apart", "sparsemax", "around")


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        pytest.param(name, dim, marks=[pytest.mark.slow] if dim == 3 and name in SLOW else [])
        for name in BALLS
        for dim in (2, 3)
    ],
)
def test_balls(name: str, dim: int) -> None:
    p, q = (ball(dim, *numbers) for numbers in BALLS[name])
    # Exact where p lies inside q; quadrature under p has three to five digits where edges cross.
    tolerance = 1e-7 if name in ("nested", "in a normal", "normals") else 5e-3
    for alpha in (0.5, 1.5, 2.0):
        found = sf.tsallis_divergence(p, q, alpha).item()
        if alpha < 1 or name in ("nested", "in a normal", "normals"):
            expected = (common(p, q, alpha, 1 - alpha) - 1) / (alpha - 1)
            assert found == pytest.approx(expected, rel=tolerance), alpha
        else:
            assert found == math.inf
        if alpha > 1:
            own = [common(x, ball(dim, 0.01, 50.0, math.inf), alpha, 0.0) for x in (p, q)]
            expected = own[0] / (alpha * (alpha - 1)) + own[1] / alpha
            expected -= common(p, q, 1.0, alpha - 1) / (alpha - 1)
            found = sf.bregman_divergence(p, q, alpha).item()
            assert found == pytest.approx(expected, rel=tolerance), alpha


EYE = torch.eye(2, dtype=DOUBLE)


ZERO = torch.zeros(2, dtype=DOUBLE)


def wrapped(*parts: Any) -> Mixture:
    return Mixture(torch.zeros(len(parts), dtype=DOUBLE), list(parts))


def test_a_normal_far_away() -> None:
    p = TruncatedParaboloid(ZERO, EYE)
    d = 10.0
    # The mean of exp(|t - d|^2/2) over circles is a Bessel function.
    found = quad(
        lambda r: (1 - r * r) ** 2 * r * ive(0, d * r) * math.exp(d * r + r * r / 2), 0, 1
    )[0]
    expected = 2 * math.pi * 2 * math.pi * (2 / math.pi) ** 2 * math.exp(d * d / 2) * found - 1
    for distance, value in ((d, expected), (40.0, math.inf), (1e3, math.inf)):
        loc = torch.tensor([distance, 0.0], dtype=DOUBLE, requires_grad=True)
        q = MultivariateNormal(loc, scale_tril=EYE)
        found = sf.tsallis_divergence(p, q, 2.0)
        assert found.item() == pytest.approx(value, rel=1e-8)
        (slope,) = torch.autograd.grad(found, loc)
        assert slope[0] == 0 if math.isinf(value) else slope[0] > expected
        near = distance < 20
        below = sf.tsallis_divergence(p, q, 0.5).item()
        assert below == pytest.approx(2.0, abs=1e-4 if near else 1e-12)
        # Half of the integrals of both squares: 4/(3 pi), and 1/(4 pi).
        apart = 0.5 * (4 / (3 * math.pi) + 1 / (4 * math.pi))
        assert sf.bregman_divergence(p, q, 2.0).item() == pytest.approx(apart, abs=1e-10)


def test_overflow_is_infinite() -> None:
    loc = torch.tensor(1000.0, dtype=DOUBLE, requires_grad=True)
    wide = td.Normal(loc, 2.0)
    vector = MultivariateNormal(loc.unsqueeze(-1), scale_tril=2 * torch.eye(1).double())
    pairs: list[tuple[Any, Any]] = [
        (Normal(0 * loc.detach(), 1.0), wide),
        (Laplace(0 * loc.detach(), 1.0), wide),
        (MultivariateNormal(ZERO[:1], scale_tril=EYE[:1, :1]), vector),
        (TruncatedParaboloid(ZERO[:1], EYE[:1, :1]), vector),
    ]
    for p, q in pairs:
        alpha = 1.1 if isinstance(p, Laplace) else 4.0
        found = sf.tsallis_divergence(p, q, alpha)
        assert found == math.inf
        assert torch.autograd.grad(found, loc)[0] == 0
    # Not yet: exp(alpha (alpha - 1) d^2/2/v) with v = alpha 4 + (1 - alpha) = 7.
    p, q = Normal(0 * loc.detach(), 1.0), Normal(30 + 0 * loc, 2.0)
    expected = 4 / math.sqrt(7) * math.exp(900 / 7)
    assert sf.tsallis_divergence(p, q, 2.0).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dim", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_at_alpha_near_one_vectors_lose_no_digits(dim: int) -> None:
    eye = torch.eye(dim, dtype=DOUBLE)
    balls = TruncatedParaboloid(0 * eye[0], eye), TruncatedParaboloid(0.1 * eye[0], 2 * eye)
    normals = tuple(MultivariateNormal(p.loc, scale_tril=p.scale_tril) for p in balls)
    for p, q in ((balls[0], balls[1]), normals, (balls[0], normals[1])):
        at_one = kl_divergence(p, q).item()
        slopes = []
        for gap in (1e-3, 1e-5, 1e-10, -1e-10, -1e-5):
            found = sf.tsallis_divergence(p, q, 1 + gap).item()
            # What differs is the slope in alpha, which a loss of digits by 1/gap would swamp.
            assert found == pytest.approx(at_one, abs=10 * abs(gap) + 1e-9)
            if abs(gap) > 1e-6:
                slopes.append((found - at_one) / gap)
            if gap > 0:
                found = sf.bregman_divergence(p, q, 1 + gap).item()
                assert found == pytest.approx(at_one, abs=20 * gap + 1e-9)
        assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=1e-2)


# Whose logarithms underflow where those of the others do not.
TAILS = {**FOREIGN, "normal": LAWS["normal"], "laplace": LAWS["laplace"]}


@pytest.mark.parametrize("name", TAILS)
def test_torchs_other_densities(name: str) -> None:
    p = TAILS[name]
    law = wrapped(p.made(DOUBLE))
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        assert divergence_of(law, law, 1.5).item() == pytest.approx(0, abs=1e-14)
    for other, q in TAILS.items():
        expected = math.inf if (name, other) in HEAVIER else divergence(p, q)
        found = kl_divergence(law, wrapped(q.made(DOUBLE))).item()
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-10), other


def test_unbounded_ones_do_not_fit_in_bounded_ones() -> None:
    normal, ball = MultivariateNormal(ZERO, scale_tril=EYE), TruncatedParaboloid(ZERO, 30 * EYE)
    product = td.Independent(td.Laplace(ZERO, 1.0), 1)
    box = td.Independent(td.Uniform(ZERO - 40, ZERO + 40), 1)
    bounded = [ball, wrapped(ball), wrapped(ball, ball), box, wrapped(box)]
    for p in (wrapped(normal), wrapped(ball, normal), normal, product):
        for q in bounded:
            if isinstance(p, td.Independent) and isinstance(q, td.Independent):
                continue  # torch's own
            assert kl_divergence(p, q) == math.inf, (p, q)
        assert kl_divergence(p, wrapped(ball, normal)).isfinite()


BAD: list[tuple[Any, Any, str]] = [
    (td.Bernoulli(0.5), TruncatedParabola(0.0, 1.0), "p must be continuous, got Bernoulli"),
    (TruncatedParabola(0.0, 1.0), td.Poisson(1.0), "q must be continuous, got Poisson"),
    (TruncatedParabola(0.0, 1.0), 3.0, r"q must be a distribution, got 3\.0"),
    (None, TruncatedParabola(0.0, 1.0), "p must be a distribution, got None"),
    (
        TruncatedParabola(torch.zeros(2), 1.0),
        TruncatedParabola(torch.zeros(3), 1.0),
        r"p and q must have batch shapes that broadcast, got \(2,\) and \(3,\)",
    ),
    (
        SparseCategorical(torch.ones(2, 4)),
        td.Categorical(torch.ones(3, 4)),
        r"batch shapes that broadcast, got \(2,\) and \(3,\)",
    ),
    (
        TruncatedParaboloid(torch.zeros(2), torch.eye(2)),
        td.Independent(td.Bernoulli(torch.ones(2) / 2), 1),
        "q must be continuous, got Independent",
    ),
]


@pytest.mark.parametrize(("p", "q", "message"), BAD, ids=[message[:40] for _, _, message in BAD])
def test_what_has_no_divergence_is_refused(p: Any, q: Any, message: str) -> None:
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        for alpha in (1.0, 1.5):
            with pytest.raises(ValueError, match=message):
                divergence_of(p, q, alpha)
    if all(isinstance(x, td.Distribution) for x in (p, q)):
        with pytest.raises((ValueError, NotImplementedError)):
            kl_divergence(p, q)


@pytest.mark.parametrize("alpha", ["2", None, True, torch.tensor(1.5), 1.5 + 0j])
def test_alpha_is_a_number(alpha: Any) -> None:
    p = TruncatedParabola(0.0, 1.0)
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        with pytest.raises(ValueError, match="alpha must be a number, got"):
            divergence_of(p, p, alpha)


PLANE_POINTS, PLANE_WIDTH = ((0.25, 0.3125), (0.75, 0.625)), 0.3125


def plane_rbf(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (x.unsqueeze(1) - z.unsqueeze(0)).square().sum(-1) / PLANE_WIDTH**2)


def kernel(weights: tuple[float, float], alpha: float, dtype: torch.dtype = DOUBLE) -> Any:
    points = torch.tensor(PLANE_POINTS, dtype=dtype)
    return kernel_density(torch.tensor(weights, dtype=dtype), points, plane_rbf, None, alpha)


def grid(count: int) -> tuple[Array, Array]:
    """Nodes (Q, 2) and weights of the unit square."""
    x, w = roots_legendre(count)
    x, w = (x + 1) / 2, w / 2
    return np.stack([a.ravel() for a in np.meshgrid(x, x)], -1), np.outer(w, w).ravel()


def vectors_heights(weights: tuple[float, float], alpha: float, t: Array, rule: Array) -> Array:
    """The density relative to the uniform one on the square, at nodes of a rule."""
    squares = ((t[:, None] - np.array(PLANE_POINTS)) ** 2).sum(-1)
    score = np.exp(-0.5 * squares / PLANE_WIDTH**2) @ np.array(weights)
    if alpha == 1:
        found = np.exp(score)
        return np.asarray(found / (rule * found).sum())
    low, high = score.min() - 1 / (alpha - 1), score.max()
    for _ in range(80):
        level = (low + high) / 2
        found = (1 + (alpha - 1) * (score - level)).clip(0) ** (1 / (alpha - 1))
        low, high = (level, high) if (rule * found).sum() > 1 else (low, level)
    return np.asarray(found)


def marginal_mean(p: Any, d: int, alpha: float, log_q: Any, kink: float) -> float:
    """E[log q(t_d)] under the law that one coordinate of an elliptical density has."""
    loc, spread = p.loc[d].item(), p.scale_tril[d].norm().item()
    if alpha == 1:
        law, low, high = stats.norm(loc, spread), loc - 12 * spread, loc + 12 * spread
    else:
        m = 1 / (alpha - 1) + (p.event_shape[0] - 1) / 2
        law, low, high = (
            stats.beta(m + 1, m + 1, loc - spread, 2 * spread),
            loc - spread,
            loc + spread,
        )
    cuts = sorted({low, high, min(max(kink, low), high)})
    parts = [
        quad(lambda t: law.pdf(t) * log_q(t), a, b, epsabs=1e-13, epsrel=1e-13)[0]
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    return math.fsum(parts)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_against_independent_ones(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    loc = p.loc + torch.linspace(-0.4, 0.3, dim, dtype=DOUBLE)
    scale = torch.linspace(0.6, 1.1, dim, dtype=DOUBLE)
    for theirs, known in ((td.Laplace, stats.laplace), (td.Normal, stats.norm)):
        terms = [
            marginal_mean(p, d, alpha, known(loc[d].item(), scale[d].item()).logpdf, loc[d].item())
            for d in range(dim)
        ]
        found = kl_divergence(p, td.Independent(theirs(loc, scale), 1)).item()
        assert found == pytest.approx(-p.entropy().item() - math.fsum(terms), abs=1e-10)
        narrow = MultivariateBetaGaussian(loc, 0.1 * factor(dim), 2.0)
        assert kl_divergence(td.Independent(theirs(loc, scale), 1), narrow) == math.inf


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_in_a_box(dim: int) -> None:
    p = member(dim, 1.5)
    reach = p.scale_tril.norm(dim=-1)
    for size, finite in ((1 + 1e-9, True), (1.0, True), (1 - 1e-9, False)):
        box = td.Independent(td.Uniform(p.loc - size * reach, p.loc + 2 * reach), 1)
        found = kl_divergence(p, box)
        expected = ((2 + size) * reach).log().sum() - p.entropy() if finite else math.inf
        assert found.item() == pytest.approx(float(expected), abs=1e-12)


def test_a_box_in_an_ellipse() -> None:
    low, high = torch.tensor([[-0.2, 0.1], [0.4, 0.5]], dtype=DOUBLE)
    box = td.Independent(td.Uniform(low, high), 1)
    t, rule = grid(40)
    t = low.numpy() + (high - low).numpy() * t
    for alpha in (1.0, 1.5, 2.0):
        tril = torch.tensor([[1.0, 0.0], [0.2, 0.9]], dtype=DOUBLE)
        q: Any = MultivariateNormal(0 * low, scale_tril=tril)
        squares = (np.linalg.solve(tril.numpy(), t.T) ** 2).sum(0)
        log_q = -squares / 2 - math.log(2 * math.pi) - math.log(0.9)
        if alpha > 1:
            m = 1 / (alpha - 1)
            q = MultivariateBetaGaussian(0 * low, tril, alpha)
            log_q = m * np.log(1 - squares) + math.log((m + 1) / math.pi / 0.9)
        area = (high - low).prod().item()
        assert kl_divergence(box, q).item() == pytest.approx(
            -math.log(area) - (rule * log_q).sum(), abs=1e-10
        )
    half = TruncatedParaboloid(0 * low, 0.5 * tril)
    assert kl_divergence(box, half) == math.inf
    wide = td.Independent(TruncatedParabola(torch.zeros(4, dtype=DOUBLE), 0.1), 1)
    with pytest.raises(NotImplementedError, match="more than 3 univariate .* got 4"):
        kl_divergence(
            wide, MultivariateBetaGaussian(torch.zeros(4).double(), torch.eye(4).double(), 2)
        )


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_kernel_families_of_vectors(dtype: torch.dtype) -> None:
    one, two = (2.0, -1.0), (0.5, 1.5)
    t, rule = grid(60)
    p, q = (vectors_heights(w, 1.0, t, rule) for w in (one, two))
    density = kernel(one, 1.0, dtype)
    # Their nodes are for 1e-7 in float64, 1e-5 in float32.
    tolerance = 1e-8 if dtype == DOUBLE else 2e-6
    found = kl_divergence(density, kernel(two, 1.0, dtype))
    assert found.dtype == dtype
    assert found.item() == pytest.approx((rule * p * np.log(p / q)).sum(), rel=tolerance)
    loc, scale = torch.tensor([[0.3, 0.55], [0.5, 0.75]], dtype=dtype)
    at = loc.double().numpy()
    log_normal = stats.norm(at, [0.5, 0.75]).logpdf(t).sum(-1)
    expected = (rule * p * (np.log(p) - log_normal)).sum()
    for normal in (
        td.Independent(td.Normal(loc, scale), 1),
        MultivariateNormal(loc, scale_tril=scale.diag_embed()),
        td.MultivariateNormal(loc, scale_tril=scale.diag_embed()),
    ):
        assert kl_divergence(density, normal).item() == pytest.approx(expected, rel=tolerance)
        assert kl_divergence(normal, density) == math.inf
    box = td.Independent(td.Uniform(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)), 1)
    expected = (rule * p * np.log(p)).sum()
    assert kl_divergence(density, box).item() == pytest.approx(expected, rel=tolerance)
    expected = -(rule * np.log(p)).sum()
    assert kl_divergence(box, density).item() == pytest.approx(expected, rel=tolerance)


def test_an_ellipse_in_a_kernel_family() -> None:
    p = MultivariateBetaGaussian(
        torch.full((2,), 0.5, dtype=DOUBLE), 0.375 * torch.eye(2).double(), 1.5
    )
    t, rule = grid(60)
    weights = (2.0, -1.0)
    squares = ((t[:, None] - np.array(PLANE_POINTS)) ** 2).sum(-1)
    level = math.log(
        (rule * np.exp(np.exp(-0.5 * squares / PLANE_WIDTH**2) @ np.array(weights))).sum()
    )
    nodes, shares = p.quadrature(200)
    squares = ((nodes.numpy()[:, None] - np.array(PLANE_POINTS)) ** 2).sum(-1)
    log_q = np.exp(-0.5 * squares / PLANE_WIDTH**2) @ np.array(weights) - level
    expected = -p.entropy().item() - (shares.numpy() * log_q).sum()
    assert kl_divergence(p, kernel(weights, 1.0)).item() == pytest.approx(expected, abs=1e-9)
    outside = MultivariateBetaGaussian(p.loc, 1.4 * p.scale_tril, 1.5)
    assert kl_divergence(outside, kernel(weights, 1.0)) == math.inf


def test_mixtures_of_vectors() -> None:
    loc = torch.stack([centre(2), centre(2) + 0.3])
    p = Mixture(torch.zeros(2).double(), MultivariateBetaGaussian(loc, factor(2), 1.5))
    q = MultivariateNormal(centre(2) + 0.1, scale_tril=factor(2, seed=1.0))
    wide = MultivariateBetaGaussian(centre(2), 3 * torch.eye(2).double(), 1.5)
    for other in (q, wide, Mixture(torch.zeros(1).double(), [wide])):
        draws = p.sample((20_000,))
        ratio = p.log_prob(draws) - other.log_prob(draws)
        found = kl_divergence(p, other).item()
        assert abs(found - ratio.mean().item()) < 5 * ratio.std().item() / 20_000**0.5
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-12)
    assert kl_divergence(wide, p) == kl_divergence(q, p) == math.inf


# Second derivatives where cuts coincide: round numbers put a centre on another's edge


def touching(v: Tensor) -> sf.Mixture:
    return Mixture(torch.zeros(2, dtype=DOUBLE), TruncatedParabola(v, 0.9))


COINCIDING: dict[str, tuple[Any, list[float]]] = {
    "centre and edge": (lambda v: kl_divergence(fixed(0.3, 0.4), touching(v)), [0.1, 0.7]),
    "two kinks": (lambda v: kl_divergence(sf.Triangular(v[0], 1.0), Laplace(v[1], 2.0)), [0, 0]),
    "edge and edge": (
        lambda v: kl_divergence(
            fixed(0.0, 1.0),
            Mixture(
                torch.zeros(2, dtype=DOUBLE),
                TruncatedParabola(0 * v, torch.stack([v[0], 0 * v[0] + 2])),
            ),
        ),
        [1.0, 0.0],
    ),
    "tsallis": (lambda v: sf.tsallis_divergence(fixed(0.3, 0.4), touching(v), 1.5), [0.1, 0.7]),
    "bregman": (lambda v: sf.bregman_divergence(fixed(0.3, 0.4), touching(v), 2.0), [0.1, 0.7]),
}


def fixed(loc: float, scale: float) -> TruncatedParabola:
    return TruncatedParabola(*torch.tensor([loc, scale], dtype=DOUBLE))


@pytest.mark.parametrize("name", COINCIDING)
@pytest.mark.parametrize("gap", [0.0, 1e-13, 1e-8])
def test_second_derivatives_where_cuts_coincide(name: str, gap: float) -> None:
    function, numbers = COINCIDING[name]
    at = torch.tensor(numbers, dtype=DOUBLE) + torch.tensor([0.0, gap], dtype=DOUBLE)
    found = torch.autograd.functional.hessian(function, at)
    torch.testing.assert_close(found, differences(function, at), rtol=1e-4, atol=1e-4)


def differences(function: Any, at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of the gradient."""

    def slope(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        (found,) = torch.autograd.grad(function(x), x)
        return found

    steps = step * torch.eye(len(at), dtype=DOUBLE)
    return torch.stack([(slope(at + e) - slope(at - e)) / (2 * step) for e in steps])


def test_a_uniform_escort_of_a_kernel_family_refuses_derivatives() -> None:
    weights = torch.tensor([-4.0, 1.5, 2.5, 1.0, -3.5], dtype=DOUBLE, requires_grad=True)
    points = torch.tensor(POINTS, dtype=DOUBLE)
    p = kernel_density(weights, points, rbf, None, 2.0).escort()
    found = kl_divergence(p, kernel_density(weights.detach(), points, rbf, None, 1.0))
    assert found.isfinite()
    with pytest.raises(RuntimeError, match="derivatives exist"):
        found.backward()


def test_other_pairs_are_refused() -> None:
    p = TruncatedParabola(0.0, 1.0)
    for q in (td.Gamma(1.0, 1.0), td.LogNormal(0.0, 1.0)):
        with pytest.raises(NotImplementedError):
            kl_divergence(p, q)
        with pytest.raises(NotImplementedError, match="no divergence of"):
            sf.tsallis_divergence(p, q, 2.0)
    for q in (td.Gamma(1.0, 1.0),):
        assert kl_divergence(Mixture(torch.zeros(1), [q]), Normal(0.0, 1.0)).isfinite()
