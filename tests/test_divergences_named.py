"""Tsallis and Bregman divergences: closed forms, quadrature, what defines them, and limits."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from laws import LAWS, Array, integral
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

import sparsefam as sf
from sparsefam import BetaGaussian, Laplace, Normal, SparseCategorical, TruncatedParabola

SINGLE, DOUBLE = torch.float32, torch.float64
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


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.25, 2.0])
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


@pytest.mark.parametrize("alpha", [1.25, 2.0, 3.0])
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
    for divergence in (sf.tsallis_divergence, sf.bregman_divergence):
        assert divergence(p, q, 1.0) == at_one
        near = divergence(p, q, 1 + 1e-9)
        assert near.item() == pytest.approx(at_one.item(), abs=1e-8)
        assert divergence(p, p, 1.7).item() == pytest.approx(0, abs=1e-15)
    below = sf.tsallis_divergence(p, q, 1 - 1e-9)
    assert below.item() == pytest.approx(at_one.item(), abs=1e-8)


GRADIENTS = {
    "tsallis-0.5": lambda p, q: sf.tsallis_divergence(p, q, 0.5),
    "tsallis-2": lambda p, q: sf.tsallis_divergence(q, p, 2.0),
    "bregman-1.5": lambda p, q: sf.bregman_divergence(p, q, 1.5),
    "bregman-2": lambda p, q: sf.bregman_divergence(p, q, 2.0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    def function(loc: Tensor, scale: Tensor, alpha: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return GRADIENTS[name](BetaGaussian(loc, scale, alpha), td.Uniform(low, high))

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in (0.2, 1.5, 1.7, -0.25, 0.75)
    ]
    assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-6)


def test_categories() -> None:
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
    tolerance = 1e-7 if dim == 2 else 1e-5
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


def test_ellipses_are_balls_seen_askew() -> None:
    skew = torch.tensor([[1.3, 0.0], [0.4, 0.6]], dtype=DOUBLE)
    p, q = (ball(2, *numbers) for numbers in BALLS["crossing"])
    moved = [
        sf.MultivariateBetaGaussian(
            skew @ x.loc + 5, torch.linalg.cholesky(skew @ x.covariance_matrix @ skew.mT) * 3, 1.5
        )
        for x in (p, q)
    ]
    # The covariance is the squared radius over D + 2 m + 2 = 8.
    moved = [
        sf.MultivariateBetaGaussian(x.loc, x.scale_tril * math.sqrt(8) / 3, 1.5) for x in moved
    ]
    found = sf.tsallis_divergence(*moved, 0.5)
    assert found.item() == pytest.approx(sf.tsallis_divergence(p, q, 0.5).item(), rel=1e-8)
    # Powers of a density scale with the volume to the power 1 - alpha.
    found = sf.bregman_divergence(*moved, 2.0) * skew.det()
    assert found.item() == pytest.approx(sf.bregman_divergence(p, q, 2.0).item(), rel=1e-8)


def test_gradients_of_ellipses() -> None:
    def function(loc: Tensor, scale: Tensor, alpha: Tensor) -> Tensor:
        p = sf.MultivariateBetaGaussian(loc, scale.tril(), alpha)
        q = ball(2, 0.7, 0.8, 1.5)
        bounds = sf.bregman_divergence(p, q, 2.0) + sf.tsallis_divergence(p, q, 0.5)
        return bounds + sf.tsallis_divergence(p, ball(2, 0.0, 1.0, 1.0), 1.5)

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        for x in ([0.1, 0.2], [[0.9, 0.0], [0.1, 0.7]], 1.5)
    ]
    assert torch.autograd.gradcheck(function, leaves, atol=1e-5, rtol=1e-5)


def test_bad_arguments() -> None:
    p = TruncatedParabola(0.0, 1.0)
    for alpha in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="alpha must be positive and finite, got"):
            sf.tsallis_divergence(p, p, alpha)
    for alpha in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="alpha must be at least 1 and finite, got"):
            sf.bregman_divergence(p, p, alpha)
    vector = sf.TruncatedParaboloid(torch.zeros(2), torch.eye(2))
    for divergence in (sf.tsallis_divergence, sf.bregman_divergence):
        with pytest.raises(ValueError, match=r"one event shape, got \(\) and \(2,\)"):
            divergence(p, vector, 2.0)
        large = sf.TruncatedParaboloid(torch.zeros(4), torch.eye(4))
        with pytest.raises(
            NotImplementedError, match=r"up to 3 dimensions, got TruncatedParaboloid"
        ):
            divergence(large, large, 2.0)
        assert divergence(vector, vector, 1.0).item() == pytest.approx(0, abs=1e-6)
