"""The battery: everything that is an integral of the density, against scipy's quadrature."""

import math
from itertools import pairwise

import pytest
import torch
from cases import (
    DOUBLE,
    Case,
    Reference,
    ends,
    every_case,
    every_dtype,
    every_scalar,
    every_scored_case,
    interior,
)
from scipy.integrate import quad_vec
from torch import Tensor

from sparsefam import rpm
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Polynomial
from sparsefam.numerics.deformed import exp_beta

CLOSE = {"rtol": 1e-10, "atol": 1e-11}
RBF = GaussianRBF(torch.tensor([-0.5, 0.2, 0.6], dtype=DOUBLE), 0.4)
KNOTS = [-0.5, 0.0, 0.2, 0.5, 0.9]
SPLINE = BSpline(torch.tensor(KNOTS, dtype=DOUBLE), 2)
WAVES = Fourier(torch.tensor([0.5, 3.0], dtype=DOUBLE))


def log_or_zero(x: float) -> float:
    return math.log(x) if x > 0 else 0.0


# The density


@every_case
def test_prob_is_the_stated_density(case: Case) -> None:
    p = case()
    t = interior(p, 20)
    expected = torch.stack(
        [
            case.reference(lambda r, row=row: [r.density(x) for x in row.flatten().tolist()])
            for row in t
        ]
    )
    index = torch.arange(p.batch_shape.numel()).reshape(p.batch_shape)
    expected = expected.gather(-1, index.expand(t.shape).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(p.prob(t), expected, rtol=1e-11, atol=0)
    torch.testing.assert_close(p.log_prob(t), expected.log(), rtol=1e-11, atol=1e-11)


@every_case
def test_the_mass_is_one(case: Case) -> None:
    p = case()
    lower, upper = ends(p)
    lower = torch.maximum(lower, p.mean - 40 * p.stddev)
    upper = torch.minimum(upper, p.mean + 40 * p.stddev)

    def mass(share: float) -> Tensor:
        return ((upper - lower) * p.prob(lower + (upper - lower) * share)).numpy()

    found, _ = quad_vec(mass, 0, 1, points=[0.5], epsabs=1e-12, epsrel=1e-12)
    torch.testing.assert_close(torch.as_tensor(found), torch.ones(p.batch_shape, dtype=DOUBLE))


# Moments and entropies


@every_case
def test_moments_and_mode(case: Case) -> None:
    p = case()
    mean = case.reference(lambda r: r.expect(lambda t: t))
    variance = case.reference(lambda r: r.expect(lambda t: (t - r.centre) ** 2))
    torch.testing.assert_close(p.mean, mean, **CLOSE)
    torch.testing.assert_close(p.variance, variance, **CLOSE)
    torch.testing.assert_close(p.stddev, variance.sqrt(), **CLOSE)
    assert (p.prob(p.mode) >= p.prob(interior(p, 101))).all()


@every_case
def test_shannon_entropy(case: Case) -> None:
    expected = case.reference(lambda r: -r.expect(lambda t: log_or_zero(r.density(t))))
    torch.testing.assert_close(case().entropy(), expected, **CLOSE)


@every_case
def test_tsallis_entropy(case: Case) -> None:
    p = case()
    alpha = p.alpha.flatten().tolist()[0]
    if math.isinf(alpha):
        expected = torch.where(p.prob(p.mode) > 1, -math.inf, 0.0).to(DOUBLE)
    elif alpha == 1:
        expected = p.entropy()
    else:
        powers = torch.stack([_power_integral(case, a) for a in p.alpha.flatten().tolist()], -1)
        index = torch.arange(p.batch_shape.numel()).reshape(p.batch_shape).unsqueeze(-1)
        expected = (1 - powers.gather(-1, index).squeeze(-1)) / (p.alpha * (p.alpha - 1))
    torch.testing.assert_close(p.tsallis_entropy(), expected, **CLOSE)


def _power_integral(case: Case, power: float) -> Tensor:
    return case.reference(lambda r: r.integral(lambda t: r.density(t) ** power))


# The prediction map


@every_scored_case
def test_log_normalizer_completes_the_deformed_exponential(case: Case) -> None:
    p = case()
    t = torch.cat([interior(p), p.mean + 50 * p.stddev.unsqueeze(0)])
    found = exp_beta(p.score(t) - p.log_normalizer, 2 - p.alpha)
    torch.testing.assert_close(found, p.prob(t), rtol=1e-11, atol=1e-14)


@every_scored_case
def test_the_prediction_map_of_the_score_gives_the_density_back(case: Case) -> None:
    p = case()
    alphas = p.alpha.unique()
    q = rpm(p.score, alphas.item() if len(alphas) == 1 else p.alpha)
    assert type(q) is type(p)
    t = interior(p)
    torch.testing.assert_close(q.loc, p.loc, rtol=0, atol=0)
    torch.testing.assert_close(q.prob(t), p.prob(t), rtol=1e-11, atol=0)


# The distribution function


@every_case
def test_cdf_keeps_the_digits_of_the_lower_tail(case: Case) -> None:
    p = case()
    lower, _ = ends(p)
    start = torch.maximum(lower, p.mean - 6 * p.stddev)
    shares = [0.003, 0.1, 0.4, 0.9, 0.999, 1.0, 1.001, 1.3, 1.9]
    t = torch.stack([start + s * (p.mean - start) for s in shares])
    rows = t.reshape(len(t), -1).unbind(-1)
    for i, (r, row) in enumerate(zip(case.references, rows, strict=True)):
        expected = [r.integral(r.density, upper=x) for x in row.tolist()]
        found = p.cdf(t).reshape(len(t), -1)[:, i]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=DOUBLE), rtol=1e-9, atol=0)


@every_case
def test_cdf_ends_at_zero_and_one(case: Case) -> None:
    p = case()
    lower, upper = ends(p)
    torch.testing.assert_close(p.cdf(lower), torch.zeros_like(lower), rtol=0, atol=1e-15)
    torch.testing.assert_close(p.cdf(upper), torch.ones_like(upper), rtol=0, atol=1e-15)
    assert torch.equal(p.cdf(p.mean - 1e3 * p.stddev), torch.zeros_like(lower))
    assert torch.equal(p.cdf(p.mean + 1e3 * p.stddev), torch.ones_like(lower))


@every_case
def test_the_slope_of_cdf_is_the_density(case: Case) -> None:
    p = case()
    t = torch.cat([interior(p), p.mean.unsqueeze(0)]).requires_grad_()
    (slope,) = torch.autograd.grad(p.cdf(t).sum(), t)
    torch.testing.assert_close(slope, p.prob(t).detach(), rtol=1e-10, atol=1e-12)


@every_dtype
@every_scalar
def test_icdf_inverts_cdf_far_into_the_tails(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    u = torch.tensor([1e-6, 1e-4, 0.03, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=dtype)
    t = p.icdf(u)
    assert (t.diff() > 0).all()
    assert p.support.check(t).all()
    # As good as the rounding of t and of u allows, and of some tens of nodes where cdf is a sum.
    eps = torch.finfo(dtype).eps
    allowed = eps * (p.prob(t) * (t.abs() + p.stddev) + u)
    assert ((p.cdf(t) - u).abs() < 16 * allowed).all()


@every_dtype
@every_scalar
def test_icdf_of_zero_and_one_are_the_ends(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    lower, upper = ends(p)
    eps = torch.finfo(dtype).eps
    for u, end in ((0.0, lower), (1.0, upper)):
        t = p.icdf(torch.tensor(u, dtype=dtype))
        torch.testing.assert_close(t, end, rtol=0, atol=4 * eps)


# Expectations


@every_case
def test_quadrature_integrates_any_smooth_function(case: Case) -> None:
    p = case()
    for torch_g, g, order in (
        (torch.ones_like, lambda t: 1.0, 64),
        (lambda t: t**3, lambda t: t**3, 64),
        (lambda t: torch.tanh(t / 4), lambda t: math.tanh(t / 4), 64),
        # Laplace's tail of 40 scales is 120 radians long where the scale is 3.
        (torch.cos, math.cos, 200),
    ):
        nodes, weights = p.quadrature(order)
        assert (weights >= 0).all()
        expected = case.reference(lambda r, g=g: r.expect(g))
        torch.testing.assert_close((weights * torch_g(nodes)).sum(0), expected, **CLOSE)
        torch.testing.assert_close(p.expect(torch_g, order), expected, **CLOSE)


@every_case
def test_escorts_are_powers_on_the_same_support(case: Case) -> None:
    p = case()
    t = interior(p)
    lower, upper = ends(p)
    for beta in case.family.escorts:
        q = p.escort(beta)
        power = 2 - p.alpha if beta is None else beta
        ratio = q.log_prob(t) - power * p.log_prob(t)
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(q.expect(torch.ones_like), torch.ones_like(lower))
        torch.testing.assert_close(ends(q), (lower, upper))
        if beta == 0:
            level = (1 / (upper - lower)).expand_as(t)
            torch.testing.assert_close(q.prob(t), level, rtol=1e-12, atol=0)
        if beta == 1:
            torch.testing.assert_close(q.prob(t), p.prob(t), rtol=1e-12, atol=0)


@every_case
def test_escorts_that_do_not_exist_are_refused(case: Case) -> None:
    for beta in case.family.no_escorts:
        with pytest.raises(ValueError, match="beta must "):
            case().escort(beta)


@every_scalar
@pytest.mark.parametrize(
    ("phi", "psi"),
    [(Polynomial(2), RBF), (RBF, RBF), (SPLINE, WAVES), (Polynomial(2), WAVES), (SPLINE, RBF)],
    ids=["powers-rbf", "rbf-rbf", "spline-waves", "powers-waves", "spline-rbf"],
)
def test_generalized_covariance(case: Case, phi: Basis, psi: Basis) -> None:
    p = case()
    for beta in case.family.escorts:
        power = (2 - p.alpha).item() if beta is None else beta
        expected = _covariance(case.references[0], phi, psi, power)
        found = p.generalized_covariance(phi, psi, beta)
        assert ((found - expected).norm() / expected.norm()).item() < 1e-10, beta


def _covariance(r: Reference, phi: Basis, psi: Basis, power: float) -> Tensor:
    """Eq. 17 from sums of 1, phi, psi and their products against p^beta."""
    marks = sorted({*r.ends, r.centre, *(t for t in KNOTS if r.ends[0] < t < r.ends[1])})
    t, w = (torch.cat(v) for v in zip(*(_tanh_sinh(a, b) for a, b in pairwise(marks)), strict=True))
    w = w * torch.tensor([r.density(x) for x in t.tolist()], dtype=DOUBLE) ** power
    f, g = phi(t), psi(t)
    return (w[:, None] * f).mT @ g - torch.outer(w @ f, w @ g) / w.sum()


def _tanh_sinh(low: float, high: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights that no power of the distance to an end disturbs."""
    step = 0.01
    s = torch.arange(-330, 331, dtype=DOUBLE) * step
    angle = 0.5 * math.pi * torch.sinh(s)
    weights = 0.5 * math.pi * step * torch.cosh(s) / torch.cosh(angle).square()
    half = 0.5 * (high - low)
    # From the nearer end, whose digits the density needs.
    gap = 2 * half / (1 + torch.exp(2 * angle.abs()))
    return torch.where(s < 0, low + gap, high - gap), half * weights
