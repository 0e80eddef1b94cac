"""KL, Tsallis and Bregman divergences against closed forms, quadrature and samples."""

import math
from collections.abc import Callable
from functools import cache
from itertools import permutations, product
from typing import Any
from zlib import crc32

import pyro.distributions as pyro_distributions
import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import bell, kernel_density
from laws import LAWS, NARROW, OURS, bregman, divergence, tsallis
from scipy import stats
from scipy.integrate import quad
from scipy.special import beta, roots_legendre
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence
from vectors import center, elliptical, factor, member

import sparsefam as sf

ONE = torch.ones((), dtype=DOUBLE)
ZERO, EYE = torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)


def wrapped(*parts: Any) -> sf.Mixture:
    return sf.Mixture(torch.zeros(len(parts), dtype=DOUBLE), list(parts))


# Univariate densities
@cache
def made(name: str, dtype: torch.dtype = DOUBLE) -> Any:
    """The law, which some take long to make."""
    return LAWS[name](dtype)


@pytest.mark.parametrize("name", LAWS)
def test_kl_of_every_pair_is_the_integral(name: str) -> None:
    p = LAWS[name]
    for other, q in LAWS.items():
        # Two of three pairs, and none of torch's own.
        if crc32(f"{name}, {other}".encode()) % 3 and {p.name, q.name} & {*OURS}:
            found = kl_divergence(made(name), made(other)).item()
            assert found == pytest.approx(divergence(p, q), abs=1e-10, rel=1e-10), other
    if name in ("BetaGaussian-inf", "TruncatedParabola", "KernelExp"):
        # The logarithm bends between the cuts.
        found = kl_divergence(made(name), NARROW()).item()
        assert found == pytest.approx(divergence(p, NARROW), rel=1e-10)


def test_a_density_may_be_infinite_at_an_end() -> None:
    half = torch.tensor(0.5, dtype=DOUBLE)
    ours, theirs = sf.TruncatedParabola(half, half), td.Beta(2 * ONE, 2 * ONE)
    peak = td.Beta(half, 2 * ONE)
    expected = kl_divergence(theirs, peak).item(), kl_divergence(peak, theirs).item()
    assert kl_divergence(ours, peak).item() == pytest.approx(expected[0], rel=1e-10)
    # At an end that is no float64 zero, rounding of locations counts.
    assert kl_divergence(peak, ours).item() == pytest.approx(expected[1], rel=1e-6)


def test_nesting_is_decided_to_rounding_of_the_parameters() -> None:
    for dtype, small in ((SINGLE, 1e-5), (DOUBLE, 1e-13)):
        low, high = torch.tensor([-0.4, 0.6], dtype=dtype)
        q = sf.TruncatedParabola(torch.tensor(0.1, dtype=dtype), torch.tensor(0.5, dtype=dtype))
        assert kl_divergence(td.Uniform(low, high), q).isfinite()
        assert kl_divergence(td.Uniform(low - small, high), q) == math.inf
        assert kl_divergence(td.Uniform(low, high + small), q) == math.inf
        assert kl_divergence(td.Uniform(low + small, high), q).isfinite()


def test_divergent_integrals_are_infinite() -> None:
    heavy, wide = (wrapped(td.Cauchy(0 * ONE, k * ONE)) for k in (1, 2))
    assert kl_divergence(heavy, sf.Normal(0 * ONE, ONE)) == math.inf
    assert kl_divergence(heavy, sf.Laplace(0 * ONE, ONE)) == math.inf
    # log((a + b)^2/(4 a b)) of two Cauchy distributions: Chyzak and Nielsen (2019).
    assert kl_divergence(heavy, wide).item() == pytest.approx(math.log(9 / 8), abs=1e-9)
    narrow, wide = sf.Normal(0 * ONE, ONE), sf.Normal(0 * ONE, 2 * ONE)
    # alpha q.variance + (1 - alpha) p.variance must be positive.
    for alpha, finite in ((1.3, True), (1.34, False), (2.0, False)):
        assert sf.tsallis_divergence(wide, narrow, alpha).isfinite() == finite
    assert sf.tsallis_divergence(sf.Laplace(0 * ONE, ONE), narrow, 1.1) == math.inf
    # The integral is exp(alpha (alpha - 1) d^2/2/v) with v = alpha 4 + (1 - alpha) = 7.
    far = sf.Normal(30 * ONE, 2 * ONE)
    expected = 4 / math.sqrt(7) * math.exp(900 / 7)
    assert sf.tsallis_divergence(narrow, far, 2.0).item() == pytest.approx(expected, rel=1e-11)
    # On one support p^alpha q^(1 - alpha) begins with the power alpha m + (1 - alpha) n.
    p, q = sf.BetaGaussian(0 * ONE, ONE, math.inf), sf.TruncatedParabola(0 * ONE, ONE)
    assert sf.tsallis_divergence(p, q, 2.0) == math.inf
    # The integral of (1 - x^2)^(-1/2) is pi.
    expected = (0.5**1.5 * 0.75**-0.5 * math.pi - 1) / 0.5
    assert sf.tsallis_divergence(p, q, 1.5).item() == pytest.approx(expected, abs=1e-6)
    # The square of a density that is infinite at 0 has an integral from the power -1/2 on.
    q = sf.TruncatedParabola(0.5 * ONE, 0.5 * ONE)
    for a, b in ((0.5, 3.5), (0.8, 3.2)):
        p = sf.ScaledBeta(0 * ONE, ONE, a / (a + b), a + b)
        square = beta(2 * a - 1, 2 * b - 1) / beta(a, b) ** 2
        expected = (square - 2 * 6 * a * b / (a + b) / (a + b + 1) + 6 / 5) / 2
        for found in (sf.bregman_divergence(p, q, 2.0), sf.bregman_divergence(q, p, 2.0)):
            assert found.item() == pytest.approx(expected, rel=1e-9)


PAIRS = [
    ("BetaGaussian-1.5", "TruncatedParabola"),
    ("Truncated-Triangular", "KernelExp"),
    ("disjoint", "unlike"),
    ("BetaGaussian-inf", "Laplace"),
    ("Laplace", "torch-uniform"),
    ("torch-normal", "LocationScale-quartic"),
    ("Normal", "Laplace"),
]


@pytest.mark.parametrize("alpha", [0.5, 2.0, 1.25])
@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_tsallis_and_bregman_are_the_integral(p: str, q: str, alpha: float) -> None:
    function, reference = (
        (sf.bregman_divergence, bregman) if alpha == 1.25 else (sf.tsallis_divergence, tsallis)
    )
    expected = reference(LAWS[p], LAWS[q], alpha)
    for dtype, tolerance in ((DOUBLE, 1e-10), (SINGLE, 5e-7)):
        found = function(made(p, dtype), made(q, dtype), alpha)
        assert found.dtype == dtype
        if expected < 1e6 or math.isinf(expected):  # else the reference has lost the tails
            assert found.item() == pytest.approx(expected, rel=tolerance, abs=1e-10)


def test_on_disjoint_supports() -> None:
    loc = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    p, q = sf.TruncatedParabola(0.0, 1.0), sf.TruncatedParabola(loc, 1.0)
    found = sf.tsallis_divergence(p, q, 0.25)
    assert found.item() == pytest.approx(4 / 3, abs=1e-12)
    assert torch.autograd.grad(found, loc)[0] == 0
    found = sf.tsallis_divergence(p, q, 1.5)
    assert (found.item(), torch.autograd.grad(found, loc)[0].item()) == (math.inf, 0.0)
    # Half of the integrals of both squares, each 3/5.
    assert sf.bregman_divergence(p, q, 2.0).item() == pytest.approx(0.6, abs=1e-12)


@pytest.mark.parametrize("dim", [0, 2])
def test_no_digits_are_lost_near_alpha_one(dim: int) -> None:
    pairs: list[tuple[Any, Any]] = [(made("BetaGaussian-1.5"), made("TruncatedParabola"))]
    if dim:
        e = torch.eye(dim, dtype=DOUBLE)
        balls = sf.TruncatedParaboloid(0 * e[0], e), sf.TruncatedParaboloid(0.1 * e[0], 2 * e)
        normals = tuple(sf.MultivariateNormal(p.loc, scale_tril=p.scale_tril) for p in balls)
        pairs = [balls, normals, (balls[0], normals[1])]
    for p, q in pairs:
        at_one = kl_divergence(p, q).item()
        slopes = []
        for gap in (1e-3, 1e-5, 1e-10, 0.0, -1e-10, -1e-5):
            found = sf.tsallis_divergence(p, q, 1 + gap).item()
            # What differs is the slope in alpha, which a loss of digits by 1/gap would swamp.
            assert found == pytest.approx(at_one, abs=10 * abs(gap) + 1e-9)
            if abs(gap) > 1e-6:
                slopes.append((found - at_one) / gap)
            if gap >= 0:
                found = sf.bregman_divergence(p, q, 1 + gap).item()
                assert found == pytest.approx(at_one, abs=20 * gap + 1e-9)
        assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=1e-2)
        assert abs(sf.bregman_divergence(p, p, 1.7).item()) < 1e-15


# Categories
def test_categories() -> None:
    p = sf.SparseCategorical(torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=DOUBLE))
    q = torch.tensor([0.25, 0.75, 0.0], dtype=DOUBLE)
    a, b = p.probs[0].numpy(), p.probs[1].numpy()
    half = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    for other in (sf.SparseCategorical(q), td.Categorical(probs=q)):
        found = kl_divergence(p, other)
        assert found[0].item() == pytest.approx(half, abs=1e-14) and found[1] == math.inf
        expected = 0.5 * ((a - q.numpy()) ** 2).sum()
        found = sf.bregman_divergence(p, other, 2.0)[0].item()
        assert found == pytest.approx(expected, abs=1e-14)
    one, two = (sf.SparseCategorical(row) for row in p.probs)
    assert kl_divergence(one, one) == sf.bregman_divergence(one, one, 2.0) == 0
    for alpha in (0.5, 1.5, 2.0):
        expected = ((a**alpha * b ** (1 - alpha)).sum() - 1) / (alpha - 1)
        assert sf.tsallis_divergence(one, two, alpha).item() == pytest.approx(expected, abs=1e-14)
    assert sf.tsallis_divergence(two, one, 1.5) == math.inf
    assert sf.tsallis_divergence(two, one, 0.5).isfinite()
    with pytest.raises(ValueError, match="as many categories, got 3 and 2"):
        kl_divergence(p, sf.SparseCategorical(torch.ones(2)))
    with pytest.raises(ValueError, match="q must be a categorical distribution"):
        kl_divergence(p, sf.Normal(0.0, 1.0))


# Derivatives, transforms and types
GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "one support": (
        lambda a, b, c, d: kl_divergence(sf.BetaGaussian(a, b, c), sf.BetaGaussian(a, b, d)),
        (0.2, 1.0, 1.7, 2.5),
    ),
    "in uniform": (
        lambda a, b, c: kl_divergence(sf.Triangular(a, b), td.Uniform(-c, 2 * c)),
        (0.2, 1.0, 2.0),
    ),
    "ellipses": (
        lambda a, b, c, d: kl_divergence(
            sf.MultivariateBetaGaussian(a, b.tril(), c),
            sf.MultivariateBetaGaussian(0.5 * a, 3 * b.tril().flip(0, 1).mT.clone(), d),
        ),
        ([0.1, -0.2], [[0.5, 0.0], [0.1, 0.6]], 1.7, 2.5),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_integral(name: str) -> None:
    function, numbers = GRADIENTS[name]
    leaves = [torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in numbers]
    assert function(*leaves).isfinite()
    assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-6)


# Round numbers put a center on another's edge, where integrals between cuts are in danger.
def fixed(loc: float, scale: float) -> sf.TruncatedParabola:
    return sf.TruncatedParabola(*torch.tensor([loc, scale], dtype=DOUBLE))


def touching(v: Tensor, scale: float) -> sf.Mixture:
    return sf.Mixture(torch.zeros(2, dtype=DOUBLE), sf.TruncatedParabola(v, scale))


COINCIDING: dict[str, tuple[Any, list[float], float]] = {
    "center and edge": (
        lambda v: kl_divergence(fixed(0.3, 0.4), touching(v, 0.9)),
        [0.1, 0.7],
        1e-4,
    ),
    "two kinks": (
        lambda v: kl_divergence(sf.Triangular(v[0], 1.0), sf.Laplace(v[1], 2.0)),
        [0, 0],
        1e-4,
    ),
    "edge and edge": (
        lambda v: kl_divergence(
            fixed(0.0, 1.0),
            wrapped(
                sf.TruncatedParabola(0 * v[0], v[0]), sf.TruncatedParabola(0 * v[0], 2 + 0 * v[1])
            ),
        ),
        [1.0, 0.0],
        1e-4,
    ),
    "of an entropy": (lambda v: touching(v, 1.0).entropy(), [0.0, 1.0], 1e-7),
}


@pytest.mark.parametrize("name", COINCIDING)
@pytest.mark.parametrize("gap", [0.0, 1e-13])
def test_second_derivatives_where_cuts_coincide(name: str, gap: float) -> None:
    function, numbers, close = COINCIDING[name]

    def slope(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(function(x), x)[0]

    at = torch.tensor(numbers, dtype=DOUBLE) + torch.tensor([0.0, gap], dtype=DOUBLE)
    found = torch.autograd.functional.hessian(function, at)
    expected = torch.stack([(slope(at + e) - slope(at - e)) / 2e-5 for e in 1e-5 * EYE])
    torch.testing.assert_close(found, expected, rtol=10 * close, atol=close)


class _Own(sf.TruncatedParabola):
    """A user's subclass."""


def test_types_are_never_ambiguous() -> None:
    # A warning of torch's about ambiguous pairs would be an error here.
    ours = [sf.Normal(0 * ONE, ONE), sf.Laplace(0 * ONE, ONE), _Own(0 * ONE, ONE)]
    theirs = [
        kind(*ends)
        for module in (td, pyro_distributions)
        for kind, ends in (
            (module.Normal, (0 * ONE, ONE)),
            (module.Laplace, (0 * ONE, ONE)),
            (module.Uniform, (-ONE, ONE)),
        )
    ]
    for p, q in [*product(ours, ours + theirs), *product(theirs, ours)]:
        assert not kl_divergence(p, q).isnan()
    for p, q in product(ours[:2] + theirs[:2] + theirs[3:5], repeat=2):
        if type(p).__name__ == type(q).__name__:
            assert kl_divergence(p, q) == 0
    # The half-normal and others keep the closed forms that torch has with a normal.
    gamma = td.Gamma(ONE, ONE)
    assert kl_divergence(gamma, ours[0]) == kl_divergence(gamma, theirs[0])
    point = pyro_distributions.Delta(0.25 * ONE)
    for q in ours:
        assert kl_divergence(point, q) == -q.log_prob(0.25 * ONE)


PARABOLA = sf.TruncatedParabola(0.0, 1.0)
BAD: list[tuple[Any, Any, str]] = [
    (td.Bernoulli(0.5), PARABOLA, "p must be continuous, got Bernoulli"),
    (PARABOLA, td.Poisson(1.0), "q must be continuous, got Poisson"),
    (PARABOLA, 3.0, r"q must be a distribution, got 3\.0"),
    (PARABOLA.expand((2,)), PARABOLA.expand((3,)), r"shapes that broadcast, got \(2,\) and \(3,\)"),
    (PARABOLA, sf.TruncatedParaboloid(ZERO, EYE), r"one event shape, got \(\) and \(2,\)"),
    (
        sf.TruncatedParaboloid(ZERO, EYE),
        td.Independent(td.Bernoulli(torch.ones(2) / 2), 1),
        "q must be continuous, got Independent",
    ),
]


@pytest.mark.parametrize(("p", "q", "message"), BAD, ids=[message[:20] for _, _, message in BAD])
def test_bad_pairs(p: Any, q: Any, message: str) -> None:
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        for alpha in (1.0, 1.5):
            with pytest.raises(ValueError, match=message):
                divergence_of(p, q, alpha)


@pytest.mark.parametrize("alpha", ["2", None, True, torch.tensor(1.5), 1.5 + 0j, 0.0, math.inf])
def test_alpha_is_a_number(alpha: Any) -> None:
    for divergence_of in (sf.tsallis_divergence, sf.bregman_divergence):
        with pytest.raises(ValueError, match="alpha must be .*, got"):
            divergence_of(PARABOLA, PARABOLA, alpha)


def test_other_pairs_are_refused() -> None:
    for q in (td.Gamma(1.0, 1.0), td.LogNormal(0.0, 1.0)):
        with pytest.raises(NotImplementedError):
            kl_divergence(PARABOLA, q)
        with pytest.raises(NotImplementedError, match="no divergence of"):
            sf.tsallis_divergence(PARABOLA, q, 2.0)
    wide = td.Independent(sf.TruncatedParabola(torch.zeros(4, dtype=DOUBLE), 0.1), 1)
    ball = sf.TruncatedParaboloid(torch.zeros(4).double(), torch.eye(4).double())
    with pytest.raises(NotImplementedError, match="more than 3 univariate .* got 4"):
        kl_divergence(wide, ball)


# Multivariate densities
def inside(p: sf.MultivariateBetaGaussian, alpha: float) -> sf.MultivariateBetaGaussian:
    """A density of another center and shape, whose support holds p's with little to spare."""
    dim = p.event_shape[0]
    loc, tril = p.loc + 0.1, factor(dim, seed=2.0)
    inverse = torch.linalg.inv(tril)
    size = torch.linalg.matrix_norm(inverse @ p.scale_tril, 2) + (inverse @ (p.loc - loc)).norm()
    return sf.MultivariateBetaGaussian(loc, 1.3 * size * tril, alpha)


def assert_mean_log_ratio(p: Any, q: Any, found: Tensor, draws: int = 20_000) -> None:
    """Compare with samples of p."""
    t = p.sample((draws,))
    ratio = p.log_prob(t) - q.log_prob(t)
    assert abs(found.item() - ratio.mean().item()) < 5 * ratio.std().item() / draws**0.5 + 1e-12


@pytest.mark.parametrize(
    ("dim", "one", "two"),
    [
        *[(1, 1.05, 1.0), (2, math.inf, 1.0), (16, 1.5, 1.0)],
        *[(1, 2.0, 1.5), (3, 1.05, 2.0), (3, math.inf, 2.0), (16, 2.0, math.inf)],
    ],
)
def test_pairs_of_ellipsoids_and_normals(dim: int, one: float, two: float) -> None:
    p = member(dim, one)
    q = inside(p, two) if two > 1 else elliptical(p.loc + 0.3, 0.8 * factor(dim, seed=1.0), 1.0)
    found = kl_divergence(p, q)
    assert_mean_log_ratio(p, q, found)
    if two == 1 or dim <= 3:  # log q is a quadratic, or smooth on all of p's support
        nodes, weights = p.quadrature(4 if two == 1 else 96)
        expected = -p.entropy() - weights @ q.log_prob(nodes)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 if two == 1 else 1e-10)
    assert kl_divergence(q, p) == math.inf
    if two == 1:
        torchs = td.MultivariateNormal(q.loc, scale_tril=q.scale_tril)
        torch.testing.assert_close(kl_divergence(p, torchs), found)
        assert kl_divergence(torchs, p) == math.inf


BALLS = {
    "crossing": ((0.0, 1.0, 1.5), (0.7, 0.8, 1.5)),
    "nested": ((0.1, 0.5, 2.0), (0.0, 1.0, 1.5)),
    "around": ((0.1, 1.0, 2.0), (0.0, 0.3, 1.5)),
    "in a normal": ((0.1, 1.0, 1.5), (0.5, 0.7, 1.0)),
    "of a normal": ((0.1, 0.4, 1.0), (0.5, 1.0, 1.5)),
    "normals": ((0.1, 0.4, 1.0), (0.5, 1.0, 1.0)),
}


def ball(loc: float, radius: float, alpha: float) -> Any:
    return elliptical(loc * EYE[0], radius * EYE, alpha)


@pytest.mark.parametrize("name", BALLS)
def test_tsallis_and_bregman_of_balls(name: str) -> None:
    p, q = (ball(*numbers) for numbers in BALLS[name])
    x = torch.linspace(-4, 4, 801, dtype=DOUBLE)
    t, cell = torch.cartesian_prod(x, x), 0.01**2
    log_p, log_q = p.log_prob(t), q.log_prob(t)
    one, two = log_p.exp(), log_q.exp()
    for alpha in (0.5, 1.5, 2.0):
        # The integral of p^alpha times the mean of q^(1 - alpha) under p's escort.
        escort = p.escort(alpha)
        nodes, weights = escort.quadrature(96)
        scale = torch.exp(alpha * p.log_prob(p.loc) - escort.log_prob(p.loc))
        both = scale * (weights @ torch.exp((1 - alpha) * q.log_prob(nodes)))
        nested = bool(q.log_prob(nodes).isfinite().all())
        if not nested and alpha < 1:
            both = cell * (one**alpha * two ** (1 - alpha)).sum()
        # Exact where p lies inside q; quadrature has three to five digits where edges cross.
        found = sf.tsallis_divergence(p, q, alpha).item()
        expected = (both.item() - 1) / (alpha - 1)
        assert found == pytest.approx(expected, rel=1e-7 if nested else 5e-3), alpha
        if alpha > 1:
            gap = one**alpha / (alpha * (alpha - 1)) + two**alpha / alpha
            gap = gap - one * two ** (alpha - 1) / (alpha - 1)
            expected = cell * gap.sum().item()
            if nested:  # integrals of powers are quotients of a density and its escort
                t, rule = p.quadrature(96)
                own = torch.exp(alpha * q.log_prob(q.loc) - q.escort(alpha).log_prob(q.loc))
                cross = rule @ torch.exp((alpha - 1) * q.log_prob(t))
                expected = (
                    scale / (alpha * (alpha - 1)) - cross / (alpha - 1) + own / alpha
                ).item()
            found = sf.bregman_divergence(p, q, alpha).item()
            assert found == pytest.approx(expected, rel=1e-7 if nested else 5e-3), alpha


def test_tsallis_on_one_ellipse() -> None:
    """p^alpha q^(1 - alpha) is a power of the distance to the edge, integrable above -1."""
    p, q = sf.MultivariateBetaGaussian(ZERO, EYE, math.inf), sf.TruncatedParaboloid(ZERO, EYE)
    assert sf.tsallis_divergence(p, q, 2.0) == math.inf
    # In the plane the integral of (1 - r^2)^(-1/2) is 2 pi.
    expected = (math.pi**-1.5 * (2 / math.pi) ** -0.5 * 2 * math.pi - 1) / 0.5
    assert sf.tsallis_divergence(p, q, 1.5).item() == pytest.approx(expected, rel=1e-6)


def test_unbounded_ones_do_not_fit_in_bounded_ones() -> None:
    normal, far_ball = (
        sf.MultivariateNormal(ZERO, scale_tril=EYE),
        sf.TruncatedParaboloid(ZERO, 30 * EYE),
    )
    laplace = td.Independent(td.Laplace(ZERO, 1.0), 1)
    box = td.Independent(td.Uniform(ZERO - 40, ZERO + 40), 1)
    bounded = [far_ball, wrapped(far_ball), wrapped(far_ball, far_ball), box, wrapped(box)]
    for p in (wrapped(normal), wrapped(far_ball, normal), normal, laplace):
        for q in bounded:
            if not isinstance(p, td.Independent) or not isinstance(q, td.Independent):
                assert kl_divergence(p, q) == math.inf, (p, q)
        assert kl_divergence(p, wrapped(far_ball, normal)).isfinite()


def marginal_mean(p: Any, d: int, alpha: float, log_q: Any, kink: float) -> float:
    """E[log q(t_d)] under the marginal density of a coordinate of an elliptical density."""
    loc, spread = p.loc[d].item(), p.scale_tril[d].norm().item()
    law, low, high = stats.norm(loc, spread), loc - 12 * spread, loc + 12 * spread
    if alpha != 1:
        m = 1 / (alpha - 1) + (p.event_shape[0] - 1) / 2
        low, high = loc - spread, loc + spread
        law = stats.beta(m + 1, m + 1, low, 2 * spread)
    cuts = sorted({low, high, min(max(kink, low), high)})
    return math.fsum(
        quad(lambda t: law.pdf(t) * log_q(t), a, b, epsabs=1e-13, epsrel=1e-13)[0]
        for a, b in zip(cuts, cuts[1:], strict=False)
    )


@pytest.mark.parametrize(("dim", "alpha"), [(2, 1.0), (2, math.inf), (6, 1.5)])
def test_against_independent_ones(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    loc = p.loc + torch.linspace(-0.4, 0.3, dim, dtype=DOUBLE)
    scale = torch.linspace(0.6, 1.1, dim, dtype=DOUBLE)
    for theirs, known in ((td.Laplace, stats.laplace), (td.Normal, stats.norm)):
        terms = [
            marginal_mean(p, d, alpha, known(loc[d].item(), scale[d].item()).logpdf, loc[d].item())
            for d in range(dim)
        ]
        q = td.Independent(theirs(loc, scale), 1)
        expected = -p.entropy().item() - math.fsum(terms)
        assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-10)
        if dim <= 3:
            narrow = sf.MultivariateBetaGaussian(loc, 0.1 * factor(dim), 2.0)
            assert kl_divergence(q, narrow) == math.inf
    # In a box nesting is exact.
    p = member(dim, 1.5)
    reach = p.scale_tril.norm(dim=-1)
    for size, finite in ((1 + 1e-9, True), (1.0, True), (1 - 1e-9, False)):
        box = td.Independent(td.Uniform(p.loc - size * reach, p.loc + 2 * reach), 1)
        area = ((2 + size) * reach).log().sum()
        expected = float(area - p.entropy()) if finite else math.inf
        assert kl_divergence(p, box).item() == pytest.approx(expected, abs=1e-12)


PLANE_POINTS, plane_rbf = ((0.25, 0.3125), (0.75, 0.625)), bell(0.3125)


def kernel(weights: tuple[float, float], dtype: torch.dtype = DOUBLE) -> Any:
    points = torch.tensor(PLANE_POINTS, dtype=dtype)
    return kernel_density(torch.tensor(weights, dtype=dtype), points, plane_rbf, None, 1.0)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_laws_of_the_unit_square(dtype: torch.dtype) -> None:
    """Kernel densities and the uniform one, in each other and in others: (law, logarithm)."""
    x, w = (torch.from_numpy(a) / 2 for a in roots_legendre(60))
    t, rule = torch.cartesian_prod(0.5 + x, 0.5 + x), torch.outer(w, w).flatten()

    def kernels(weights: tuple[float, float]) -> tuple[Any, Tensor]:
        score = plane_rbf(t, torch.tensor(PLANE_POINTS)) @ torch.tensor(weights, dtype=DOUBLE)
        return kernel(weights, dtype), score - (rule @ score.exp()).log()

    loc, scale = torch.tensor([[0.3, 0.55], [0.5, 0.75]], dtype=dtype)
    log_normal = td.Normal(loc.double(), scale.double()).log_prob(t).sum(-1)
    normals = [
        td.Independent(td.Normal(loc, scale), 1),
        sf.MultivariateNormal(loc, scale_tril=scale.diag_embed()),
        td.MultivariateNormal(loc, scale_tril=scale.diag_embed()),
    ]
    tril = torch.tensor([[1.5, 0.0], [0.2, 1.25]], dtype=DOUBLE)
    wide = [elliptical(loc.double(), tril, alpha) for alpha in (1.0, 1.5, 2.0)]
    box = td.Independent(td.Uniform(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)), 1)
    own = [kernels((2.0, -1.0)), kernels((0.5, 1.5)), (box, torch.zeros(len(t), dtype=DOUBLE))]
    wider = [(elliptical(loc, tril.to(dtype), q.alpha.item()), q.log_prob(t)) for q in wide]
    wider += [(normal, log_normal) for normal in normals]
    pairs = [*permutations(own, 2), *product(own[:2], wider), *product(own[2:], wider[:4])]
    for (p, log_p), (q, log_q) in pairs:
        expected = ((rule * log_p.exp()) @ (log_p - log_q)).item()
        found = kl_divergence(p, q)
        assert found.dtype == dtype
        # Nodes of kernel families are for 1e-7 in float64, 1e-5 in float32.
        tolerance = 2e-6 if dtype == SINGLE else 1e-10 if p is box else 1e-8
        assert found.item() == pytest.approx(expected, rel=tolerance)
    for (p, _), (q, _) in product(own[:2], wider):
        assert kl_divergence(q, p) == math.inf
    assert kl_divergence(box, sf.TruncatedParaboloid(loc, 0.5 * scale.diag_embed())) == math.inf


def test_mixtures_of_vectors() -> None:
    loc = torch.stack([center(2), center(2) + 0.3])
    p = sf.Mixture(torch.zeros(2).double(), sf.MultivariateBetaGaussian(loc, factor(2), 1.5))
    q = sf.MultivariateNormal(center(2) + 0.1, scale_tril=factor(2, seed=1.0))
    wide = sf.MultivariateBetaGaussian(center(2), 3 * EYE, 1.5)
    for other in (q, wide, wrapped(wide)):
        assert_mean_log_ratio(p, other, kl_divergence(p, other))
    same = p.expand(p.batch_shape)
    assert kl_divergence(p, same).item() == pytest.approx(0, abs=1e-12)
    assert kl_divergence(wide, p) == kl_divergence(q, p) == math.inf
