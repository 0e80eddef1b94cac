"""Divergences far away, of sharp and of heavy densities, near alpha = 1; bad arguments."""

import math
from typing import Any

import pyro.distributions as pyro_distributions
import pytest
import torch
from laws import FOREIGN, HEAVIER, LAWS, divergence
from scipy.integrate import quad
from scipy.special import ive
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

import sparsefam as sf
from sparsefam import (
    Laplace,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    TruncatedParabola,
    TruncatedParaboloid,
)

SINGLE, DOUBLE = torch.float32, torch.float64
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


@pytest.mark.parametrize("m", [20.0, 2.0**33])
def test_sharp_ones(m: float) -> None:
    def ball(loc: float, size: float, n: float) -> MultivariateBetaGaussian:
        return MultivariateBetaGaussian(loc * EYE[0], size * EYE, 1 + 1 / n)

    for size, n in ((1.0, m / 2), (1.5, m), (1.0, 1.0)):
        p, q = ball(0.0, 1.0, m), ball(0.0, size, n)
        for alpha in (0.5, 1.5, 2.0):
            # In y = |t|^2, of which the mass is at 1/m.
            def product(z: float, size: float = size, n: float = n, alpha: float = alpha) -> float:
                logs = math.log1p(-z / m), math.log1p(-z / m / size**2)
                return math.exp(alpha * m * logs[0] + (1 - alpha) * n * logs[1])

            cuts = [0.0, *(x for x in (3.0, 30.0, 300.0) if x < m), min(m, 3000.0)]
            whole = math.fsum(
                quad(product, a, b, epsabs=0, epsrel=1e-12, limit=200)[0]
                for a, b in zip(cuts, cuts[1:], strict=False)
            )
            whole *= (1 + 1 / m) * ((n + 1) / (m + 1) / size**2) ** (1 - alpha)
            expected = (whole - 1) / (alpha - 1)
            found = sf.tsallis_divergence(p, q, alpha).item()
            assert found == pytest.approx(expected, rel=1e-8), (size, n, alpha)
    # Normals of variance 1/(2 m), to 1/m.
    if m > 100:
        p, q = ball(0.0, 1.0, m), ball(0.1 / math.sqrt(m), 1.0, m)
        expected = -math.expm1(-0.005) / (2 * math.pi) * m
        assert sf.bregman_divergence(p, q, 2.0).item() == pytest.approx(expected, rel=1e-6)
        expected = -2 * math.expm1(-0.0025)
        assert sf.tsallis_divergence(p, q, 0.5).item() == pytest.approx(expected, rel=1e-6)


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


def test_mass_that_only_the_logarithm_shows() -> None:
    # Beyond all mass of p to rounding the square of t, as in log q, still has some.
    p = td.StudentT(torch.tensor(2.2, dtype=DOUBLE))
    q = Normal(torch.zeros((), dtype=DOUBLE), 1.0)
    expected = -p.entropy() + 0.5 * (math.log(2 * math.pi) + p.variance)
    found = kl_divergence(wrapped(p), q)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


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


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_ellipses_in_mixtures(dtype: torch.dtype) -> None:
    eye, zero = EYE.to(dtype), ZERO.to(dtype)
    small = torch.finfo(dtype).eps * 1e3
    weights = torch.zeros(1, dtype=dtype)
    loc = torch.stack([zero, zero + 3])
    two = TruncatedParaboloid(loc, torch.stack([eye, 2 * eye]))
    for size, finite in ((1.0, True), (1 + small, False), (1 - small, True)):
        p = TruncatedParaboloid(zero, size * eye)
        for q in (Mixture(weights, [TruncatedParaboloid(zero, eye)]), Mixture(loc[1], two)):
            for one in (p, Mixture(weights, [p])):
                assert kl_divergence(one, q).isfinite() == finite, (size, q)
    # What reaches no further along an axis may still reach beyond an edge.
    corner = 0.5 / math.sqrt(2) + zero
    ball = Mixture(weights, [TruncatedParaboloid(zero, eye)])
    for size, finite in ((0.5, True), (0.5 + small, False), (0.5 - small, True)):
        assert kl_divergence(TruncatedParaboloid(corner, size * eye), ball).isfinite() == finite
    # A component without weight holds nothing.
    aside = TruncatedParaboloid(torch.stack([zero, zero + 0.9]), eye)
    point = TruncatedParaboloid(zero, 1e-12 * eye)
    assert kl_divergence(point, Mixture(torch.tensor([-math.inf, 0.0]), aside)) == math.inf
    gone = torch.tensor([-math.inf, 0.0], dtype=dtype)
    assert kl_divergence(TruncatedParaboloid(zero, eye), Mixture(gone, two)) == math.inf
    assert kl_divergence(Mixture(gone, two), TruncatedParaboloid(zero + 3, 2 * eye)).isfinite()


BAD: list[tuple[Any, Any, str]] = [
    (td.Bernoulli(0.5), TruncatedParabola(0.0, 1.0), "p must be continuous, got Bernoulli"),
    (TruncatedParabola(0.0, 1.0), td.Poisson(1.0), "q must be continuous, got Poisson"),
    (
        TruncatedParabola(0.0, 1.0),
        pyro_distributions.Delta(torch.zeros(())),
        "q must be continuous, got Delta",
    ),
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


def test_what_independent_does_not_reinterpret() -> None:
    p, q = TruncatedParabola(0.0, 1.0), Normal(0.25, 2.0)

    def bare(x: td.Distribution) -> td.Independent:
        return td.Independent(td.Independent(x, 0), 0)

    expected = kl_divergence(p, q)
    for one, two in (
        (bare(p), q),
        (p, bare(q)),
        (p, bare(td.Normal(0.25, 2.0))),
        (bare(p), bare(q)),
    ):
        assert kl_divergence(one, two) == expected
    found: Tensor = sf.tsallis_divergence(bare(p), bare(td.Normal(0.25, 2.0)), 0.5)
    assert found == sf.tsallis_divergence(p, q, 0.5)


def test_the_narrower_density_keeps_its_digits() -> None:
    """On the line against both moved by hand, in the plane against what is left of the integral."""
    wide, narrow = (
        (double_number(0.0), double_number(1.0)),
        (double_number(0.3), double_number(1e-12)),
    )
    moved = (double_number(-0.3), double_number(1.0)), (double_number(0.0), double_number(1e-12))
    found = sf.bregman_divergence(sf.TruncatedParabola(*wide), sf.TruncatedParabola(*narrow), 1.5)
    due = sf.bregman_divergence(
        sf.TruncatedParabola(*moved[0]), sf.TruncatedParabola(*moved[1]), 1.5
    )
    torch.testing.assert_close(found, due, rtol=1e-11, atol=0)
    eye = torch.eye(2, dtype=torch.float64)
    small = sf.TruncatedParaboloid(torch.full((2,), 0.1).double(), 1e-12 * eye)
    found = sf.bregman_divergence(small, sf.TruncatedParaboloid(0 * eye[0], eye), 1.5)
    # All but a millionth of a millionth is int p^1.5/0.75, in polar coordinates.
    leading = (2 / math.pi) ** 1.5 * 1e12 * math.pi * 0.4 / 0.75
    assert found.item() == pytest.approx(leading, rel=1e-6)


def double_number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_laws_of_torch_at_alpha_one() -> None:
    p, q = (
        td.LogNormal(double_number(0.0), double_number(0.5)),
        td.Gamma(double_number(2.0), double_number(1.0)),
    )
    near = sf.tsallis_divergence(p, q, 1 - 1e-9)
    torch.testing.assert_close(sf.tsallis_divergence(p, q, 1.0), near, rtol=1e-7, atol=0)
