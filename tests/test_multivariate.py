"""Densities of vectors: against the line, against their definition, against exact integrals."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cases import every_dtype
from scipy.integrate import quad
from scipy.special import betaincinv
from torch import Tensor
from vectors import DOUBLE, centre, factor, member

import sparsefam as sf
from sparsefam import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
    TruncatedParaboloid,
)
from sparsefam.bases import GaussianRBF, Polynomial

ALPHAS = [1.05, 4 / 3, 1.5, 1.7, 2.0, 3.0, math.inf]
PROPER = ALPHAS[:-1]


# One dimension


SHARED: dict[str, Callable[[Any], Tensor]] = {
    "variance": lambda p: p.variance,
    "mode": lambda p: p.mode,
    "mean": lambda p: p.mean,
    "stddev": lambda p: p.stddev,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
    "escort 0.4": lambda p: p.escort(0.4).entropy(),
    "escort 1.5": lambda p: p.escort(1.5).variance,
}


@every_dtype
@pytest.mark.parametrize("alpha", [1.0, *ALPHAS])
def test_one_dimension_is_the_line(alpha: float, dtype: torch.dtype) -> None:
    loc = torch.tensor([[0.3], [-2.0]], dtype=dtype)
    scale = torch.tensor([0.02, 0.7, 30.0], dtype=dtype)
    matrix = scale[:, None, None]
    p: SparseDistribution
    q: SparseDistribution
    if alpha == 1:
        p, q = MultivariateNormal(loc[..., None], scale_tril=matrix), Normal(loc, scale)
    else:
        p = MultivariateBetaGaussian(loc[..., None], matrix, alpha)
        q = BetaGaussian(loc, scale, alpha)
    close = {"rtol": 16 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}
    for name, quantity in SHARED.items():
        found, expected = quantity(p), quantity(q)
        torch.testing.assert_close(found.reshape(expected.shape), expected, msg=name, **close)
    t = loc + scale * torch.linspace(-1.2, 1.2, 25, dtype=dtype)[:, None, None]
    torch.testing.assert_close(p.log_prob(t[..., None]), q.log_prob(t), **close)
    torch.testing.assert_close(p.prob(t[..., None]), q.prob(t), **close)


@pytest.mark.parametrize("alpha", PROPER)
def test_one_dimension_has_the_lines_parametrisations(alpha: float) -> None:
    loc, width = torch.tensor([0.3, -2.0], dtype=DOUBLE), torch.tensor([0.05, 4.0], dtype=DOUBLE)
    vector, matrix = loc[:, None], width.square()[:, None, None]
    pairs = [
        (
            MultivariateBetaGaussian.from_sigma(vector, matrix, alpha),
            BetaGaussian.from_sigma(loc, width, alpha),
        ),
        (
            MultivariateBetaGaussian.from_moments(vector, matrix, alpha),
            BetaGaussian.from_moments(loc, width**2, alpha),
        ),
        (
            MultivariateBetaGaussian.from_canonical(vector, -matrix, alpha),
            BetaGaussian.from_canonical(loc, -(width**2), alpha),
        ),
    ]
    for p, q in pairs:
        torch.testing.assert_close(p.loc[:, 0], q.loc, rtol=1e-14, atol=0)
        torch.testing.assert_close(p.scale_tril[:, 0, 0], q.scale, rtol=1e-13, atol=0)
        torch.testing.assert_close(p.sigma_tril[:, 0, 0], q.sigma, rtol=1e-13, atol=0)
        torch.testing.assert_close(p.sigma[:, 0, 0], q.sigma**2, rtol=1e-13, atol=0)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0])
def test_one_dimension_has_the_lines_covariances(alpha: float) -> None:
    loc, scale = torch.tensor(0.3, dtype=DOUBLE), torch.tensor(0.7, dtype=DOUBLE)
    p = MultivariateBetaGaussian(loc[None], scale[None, None], alpha)
    q = BetaGaussian(loc, scale, alpha)
    hills = torch.tensor([-0.2, 0.5], dtype=DOUBLE)
    for beta in (None, 0.0, 1.0, 1.7):
        found = p.generalized_covariance(Polynomial(2, ndim=1), Polynomial(2, ndim=1), beta)
        expected = q.generalized_covariance(Polynomial(2), Polynomial(2), beta)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
        found = p.generalized_covariance(Polynomial(2, 1), GaussianRBF(hills[:, None], 0.5), beta)
        expected = q.generalized_covariance(Polynomial(2), GaussianRBF(hills, 0.5), beta)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_one_dimension_repeats_the_draws_of_the_line() -> None:
    for alpha in (1.5, torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)):
        draws = []
        for p in (
            MultivariateBetaGaussian(torch.zeros(1, dtype=DOUBLE), torch.eye(1).double(), alpha),
            BetaGaussian(torch.zeros((), dtype=DOUBLE), 1.0, alpha),
        ):
            torch.manual_seed(1)
            draws.append(p.rsample((50,)).flatten())
        torch.testing.assert_close(draws[0], draws[1], rtol=1e-14, atol=0)
        if isinstance(alpha, Tensor):
            slopes = [torch.autograd.grad(x.square().sum(), alpha)[0] for x in draws]
            torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-11, atol=0)


# The definition


@pytest.mark.parametrize("alpha", PROPER)
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 16])
def test_sigma_makes_the_clipped_score_a_density(dim: int, alpha: float) -> None:
    # p = [(alpha - 1)(f + R^2/2)]_+^m; its mass is that of r^(D-1) over the sphere's surface.
    p = MultivariateBetaGaussian.from_sigma_tril(centre(dim), factor(dim), alpha)
    radius = torch.exp((p.scale_tril.logdet() - factor(dim).logdet()) / dim).item()
    torch.testing.assert_close(p.scale_tril, radius * factor(dim), rtol=1e-13, atol=1e-14)
    m = 1 / (alpha - 1)

    def mass(r: float) -> float:
        return r ** (dim - 1) * ((alpha - 1) * (radius**2 - r**2) / 2) ** m

    surface = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2) * factor(dim).det().item()
    found = surface * quad(mass, 0, radius, epsabs=0, epsrel=1e-12, limit=200)[0]
    assert found == pytest.approx(1, rel=1e-10)
    shift = p.mean + 0.3 * p.scale_tril[..., 0]
    level = (alpha - 1) * (p.score(shift) + radius**2 / 2)
    torch.testing.assert_close(p.log_prob(shift), m * level.log(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, *PROPER])
@pytest.mark.parametrize("dim", [1, 2, 5, 16])
def test_parametrisations_come_back(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    options = () if alpha == 1 else (alpha,)
    precision = torch.linalg.inv(p.sigma)
    theta1 = (precision @ p.loc[:, None]).squeeze(-1)
    for q in (
        type(p).from_sigma(p.loc, p.sigma, *options),
        type(p).from_sigma_tril(p.loc, p.sigma_tril, *options),
        type(p).from_moments(p.mean, p.covariance_matrix, *options),
        type(p).from_canonical(theta1, -precision / 2, *options),
    ):
        assert type(q) is type(p)
        size = 1e-13 * torch.linalg.cond(p.scale_tril).item() ** 2
        torch.testing.assert_close(q.loc, p.loc, rtol=0, atol=size)
        torch.testing.assert_close(q.scale_tril, p.scale_tril, rtol=0, atol=size)
    torch.testing.assert_close(p.precision_matrix @ p.covariance_matrix, torch.eye(dim).double())


def test_the_paraboloid_takes_no_alpha_and_agrees_with_its_family() -> None:
    loc, tril = centre(3), factor(3)
    covariance = tril @ tril.mT
    for special, general in (
        (TruncatedParaboloid(loc, tril), MultivariateBetaGaussian(loc, tril, 2.0)),
        (
            TruncatedParaboloid.from_sigma(loc, covariance),
            MultivariateBetaGaussian.from_sigma(loc, covariance, 2.0),
        ),
        (
            TruncatedParaboloid.from_sigma_tril(loc, tril),
            MultivariateBetaGaussian.from_sigma_tril(loc, tril, 2.0),
        ),
        (
            TruncatedParaboloid.from_moments(loc, covariance),
            MultivariateBetaGaussian.from_moments(loc, covariance, 2.0),
        ),
        (
            TruncatedParaboloid.from_canonical(loc, -covariance),
            MultivariateBetaGaussian.from_canonical(loc, -covariance, 2.0),
        ),
    ):
        assert torch.equal(special.scale_tril, general.scale_tril)
        assert torch.equal(special.loc, general.loc)
        assert torch.equal(special.entropy(), general.entropy())
    assert isinstance(TruncatedParaboloid(loc, tril).expand((4,)), TruncatedParaboloid)


def test_the_normal_is_torchs() -> None:
    loc, tril = torch.stack([centre(3), -centre(3)]), torch.stack([factor(3), factor(3, seed=1)])
    p, q = (
        MultivariateNormal(loc, scale_tril=tril),
        torch.distributions.MultivariateNormal(loc, None, None, tril),
    )
    assert isinstance(p, torch.distributions.MultivariateNormal)
    t = torch.linspace(-2, 2, 30, dtype=DOUBLE).reshape(5, 2, 3)
    close = {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(p.log_prob(t), q.log_prob(t), **close)
    torch.testing.assert_close(p.entropy(), q.entropy(), **close)
    torch.testing.assert_close(p.variance, q.variance, **close)
    torch.testing.assert_close(p.covariance_matrix, q.covariance_matrix, **close)
    torch.testing.assert_close(p.precision_matrix, q.precision_matrix, **close)
    other = torch.distributions.MultivariateNormal(loc.flip(0), tril.flip(0) @ tril.flip(0).mT)
    for a, b in ((p, other), (other, p), (p.expand((4, 2)), other)):
        expected = torch.distributions.kl_divergence(
            *(
                torch.distributions.MultivariateNormal(x.loc, scale_tril=x.scale_tril)
                for x in (a, b)
            )
        )
        torch.testing.assert_close(torch.distributions.kl_divergence(a, b), expected)
    assert p.support.check(torch.full((3,), 1e9)).all()


# Digits


@every_dtype
@pytest.mark.parametrize("dim", [2, 5])
def test_thin_ellipsoids_keep_the_digits_of_their_entries(dim: int, dtype: torch.dtype) -> None:
    # The exact |u|^2 of the very numbers that the density is given, from exact fractions.
    tril = factor(dim, dtype)
    tril[-1, -1] = 1e-6
    loc = centre(dim, dtype)
    assert torch.linalg.cond(tril.double()) > 5e5
    p = MultivariateBetaGaussian(loc, tril, 1.5)
    u = 0.6 * torch.nn.functional.normalize(torch.cos(torch.arange(6.0 * dim).reshape(6, dim)))
    t = loc + (tril @ u.to(dtype).mT).mT
    for row, found in zip(t, p.log_prob(t), strict=True):
        exact, moved = exact_log_prob(p, row)
        assert abs(found.item() - exact) < 8 * torch.finfo(dtype).eps * moved
    relative = (p.covariance_matrix - (tril.double() @ tril.double().mT) / (dim + 6)).abs()
    assert (relative <= 4 * torch.finfo(dtype).eps * p.covariance_matrix.abs().max()).all()


def exact_log_prob(p: MultivariateBetaGaussian, t: Tensor) -> tuple[float, float]:
    """And how much it moves, relatively to one rounding, if every entry is rounded."""
    dim, m = len(t), p._fixed_exponent
    with mpmath.workdps(60):
        tril = mpmath.matrix(p.scale_tril.double().tolist())
        offset = mpmath.matrix(
            [mpmath.mpf(a) - mpmath.mpf(b) for a, b in zip(t.tolist(), p.loc.tolist(), strict=True)]
        )
        inverse = tril**-1
        u = inverse * offset
        squared = sum(x**2 for x in u)
        log_c = mpmath.loggamma(m + 1 + dim / 2) - mpmath.loggamma(m + 1)
        log_c -= mpmath.mpf(dim) / 2 * mpmath.log(mpmath.pi)
        log_det = sum(mpmath.log(tril[i, i]) for i in range(dim))
        value = log_c + m * mpmath.log(1 - squared) - log_det
        slope = 2 * m / (1 - squared)
        sizes = [
            abs(x) + sum(abs(tril[i, j] * u[j]) for j in range(dim)) for i, x in enumerate(offset)
        ]
        moved = sum(abs(u[i] * inverse[i, j]) * sizes[j] for i in range(dim) for j in range(dim))
        return float(value), float(1 + abs(value) + abs(log_det) + slope * moved)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0])
def test_derivatives_at_the_centre_and_at_isotropic_scales_are_right(alpha: float) -> None:
    # Where a norm has no second derivative and eigenvectors are not determined.
    loc = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    tril = (0.5 * torch.eye(3, dtype=DOUBLE)).requires_grad_()

    def log_prob(loc: Tensor, tril: Tensor) -> Tensor:
        at = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.0, 0.2]], dtype=DOUBLE)
        if alpha == 1:
            return MultivariateNormal(loc, scale_tril=tril.tril()).log_prob(at)
        return MultivariateBetaGaussian(loc, tril.tril(), alpha).log_prob(at)

    assert torch.autograd.gradcheck(log_prob, (loc, tril))
    assert torch.autograd.gradgradcheck(log_prob, (loc, tril))


# Draws


@every_dtype
@pytest.mark.parametrize("dim", [1, 2, 8])
@pytest.mark.parametrize("value", [1.02, 1.5, 3.0])
def test_draws_move_with_alpha_like_quantiles(value: float, dim: int, dtype: torch.dtype) -> None:
    alpha = torch.full((40,), value, dtype=dtype, requires_grad=True)
    eye = torch.eye(dim, dtype=dtype)
    u = MultivariateBetaGaussian(torch.zeros(dim, dtype=dtype), eye, alpha).rsample()
    squared = u.square().sum(-1)
    (slope,) = torch.autograd.grad(squared.sum(), alpha)
    # The quantile function's slope by a central difference, at the level of each draw.
    with mpmath.workdps(40):
        levels = [_level(s, dim, 1 / (value - 1)) for s in squared.tolist()]
    step = 1e-4 * (value - 1)
    high, low = (
        betaincinv(dim / 2, 1 / (value + s - 1) + 1, np.array(levels)) for s in (step, -step)
    )
    expected = torch.from_numpy((high - low) / (2 * step))
    close = (slope.double() - expected).abs() < 2e-6 * expected.abs().max() + 1e-4 * expected.abs()
    # Near one the level itself has no digits left to invert.
    known = torch.tensor(levels) < 1 - 1e-9
    assert close[known].all()
    assert known.sum() > 35


def _level(squared: float, dim: int, m: float) -> float:
    return float(mpmath.betainc(mpmath.mpf(dim) / 2, m + 1, 0, squared, regularized=True))


@pytest.mark.parametrize("alpha", [1.0, 1.2, 2.0, math.inf])
def test_draws_have_the_moments_of_the_density(alpha: float) -> None:
    p = member(16, alpha)
    t = p.sample((20_000,)) - p.loc
    u = torch.linalg.solve_triangular(p.scale_tril, t.mT, upper=False)
    found = u @ u.mT / u.shape[-1] / p._moments()[0]
    assert (found - torch.eye(16)).abs().max() < 6 * math.sqrt(2 / 20_000)


# Shapes and arguments


def test_numbers_serve_where_tensors_do_and_samples_may_be_none() -> None:
    p = MultivariateBetaGaussian(centre(3), factor(3), alpha=torch.tensor([1.5, 2.0]).double())
    assert (p.batch_shape, p.event_shape) == ((2,), (3,))
    assert p.rsample((0,)).shape == (0, 2, 3)
    assert p.log_prob(torch.zeros(0, 2, 3, dtype=DOUBLE)).shape == (0, 2)
    assert p.log_prob(centre(3)).shape == (2,)
    assert p.log_prob(torch.zeros(7, 1, 3, dtype=DOUBLE)).shape == (7, 2)


EYE = torch.eye(2)
SINGULAR = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
INDEFINITE = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
ZERO = torch.zeros(2)
REMEDY = r"add a small multiple of the identity, or model the subspace"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedParaboloid(ZERO, torch.ones(2, 3)), r"scale_tril must be square.*2, 3"),
        (lambda: TruncatedParaboloid(ZERO, torch.eye(3)), r"scale_tril must be .*2, 2.*3, 3"),
        (
            lambda: TruncatedParaboloid(torch.tensor(0.0), EYE),
            r"loc must have shape \(\*batch, D\)",
        ),
        (lambda: TruncatedParaboloid(ZERO, SINGULAR), r"scale_tril must be lower triangular"),
        (lambda: TruncatedParaboloid(ZERO, -EYE), r"scale_tril must be .*positive diagonal"),
        (lambda: TruncatedParaboloid(ZERO, 0 * EYE), "scale_tril must be nonsingular.*" + REMEDY),
        (lambda: TruncatedParaboloid(ZERO, EYE / 0), r"scale_tril must be finite, got.*inf"),
        (lambda: TruncatedParaboloid(ZERO * math.nan, EYE), r"loc[\s\S]*nan"),
        (
            lambda: MultivariateNormal(torch.zeros(3, 2), scale_tril=EYE.expand(4, 2, 2)),
            r"shapes must broadcast .*loc \(3, 2\), scale_tril \(4, 2, 2\)",
        ),
        (
            lambda: MultivariateNormal(ZERO, scale_tril=INDEFINITE),
            "scale_tril must be lower triangular",
        ),
        (lambda: MultivariateBetaGaussian(ZERO, EYE, 1.0), r"alpha[\s\S]*1"),
        (lambda: MultivariateBetaGaussian(ZERO, EYE, "2"), "alpha must be a number or a tensor"),
        (lambda: BetaGaussian(0.0, 1.0, "2"), "alpha must be a number or a tensor, got '2'"),
        (
            lambda: MultivariateBetaGaussian.from_sigma(ZERO, EYE, 1.0),
            "alpha must be greater than 1, got 1.0",
        ),
        (
            lambda: MultivariateBetaGaussian.from_moments(ZERO, EYE, 0.5),
            "alpha must be greater than 1, got 0.5",
        ),
        (
            lambda: TruncatedParaboloid.from_sigma(ZERO, SINGULAR),
            "sigma must be positive definite, and is singular .*" + REMEDY,
        ),
        (lambda: TruncatedParaboloid.from_sigma(ZERO, EYE.tril(-1) + EYE * 0), "sigma must be"),
        (
            lambda: TruncatedParaboloid.from_sigma(ZERO, torch.tensor([[1.0, 0.5], [0.0, 1.0]])),
            "sigma must be symmetric, got",
        ),
        (lambda: TruncatedParaboloid.from_sigma_tril(ZERO, 0 * EYE), "sigma_tril must be nonsing"),
        (
            lambda: TruncatedParaboloid.from_moments(ZERO, INDEFINITE),
            "covariance_matrix must be positive definite, .*" + REMEDY,
        ),
        (
            lambda: MultivariateNormal.from_moments(ZERO, SINGULAR),
            "covariance_matrix must be positive definite, .*" + REMEDY,
        ),
        (
            lambda: MultivariateNormal.from_moments(ZERO, torch.eye(3)),
            r"covariance_matrix must be square, \(\*batch, 2, 2\) like mean",
        ),
        (lambda: MultivariateNormal.from_canonical(ZERO, EYE), "-2 theta2 must be positive def"),
        (lambda: TruncatedParaboloid.from_canonical(ZERO, 0 * EYE), "-2 theta2 must be positive"),
        (lambda: member(2, math.inf).score, "sigma_tril must be"),
        (lambda: member(2).log_prob(torch.zeros(3)), r"value must broadcast .*end in event shape"),
        (lambda: member(2).log_prob(torch.tensor([0.0, math.nan])), "value must be real"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_the_normal_takes_the_matrices_that_torchs_takes(name: str) -> None:
    loc, matrix = torch.tensor([0.3, -1.0], dtype=DOUBLE), torch.tensor([[2.0, 0.6], [0.6, 0.5]])
    matrix = matrix.double().tril() if name == "scale_tril" else matrix.double()
    p = MultivariateNormal(loc, **{name: matrix})
    q = torch.distributions.MultivariateNormal(loc, **{name: matrix})
    t = torch.randn(7, 2, dtype=DOUBLE)
    torch.testing.assert_close(p.log_prob(t), q.log_prob(t), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(p.scale_tril, q.scale_tril, rtol=1e-13, atol=0)
    shapes = MultivariateNormal.infer_shapes(loc=(3, 2), **{name: (2, 2)})
    assert shapes == (torch.Size([3]), torch.Size([2]))


def test_the_normal_wants_one_matrix() -> None:
    for matrices in ({}, {"covariance_matrix": EYE, "scale_tril": EYE}):
        with pytest.raises(ValueError, match="exactly one of .* must be given, got"):
            MultivariateNormal(ZERO, **matrices)


def test_log_prob_broadcasts_batch_axes_of_size_one() -> None:
    factor = torch.tensor([[2.0, 0.0], [0.5, 1.0]])
    value = torch.linspace(-1.0, 1.0, 30).reshape(3, 5, 2)
    for make in (
        sf.TruncatedParaboloid,
        lambda loc, tril: sf.MultivariateBetaGaussian(loc, tril, 1.5),
        lambda loc, tril: sf.MultivariateNormal(loc, scale_tril=tril),
    ):
        p = make(torch.zeros(1, 2), factor)
        assert torch.equal(p.log_prob(value), make(torch.zeros(2), factor).log_prob(value))
        q = make(torch.zeros(3, 1, 2), factor)
        assert torch.equal(q.log_prob(value), make(torch.zeros(3, 5, 2), factor).log_prob(value))
