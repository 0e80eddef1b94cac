"""Elliptical densities: parametrizations, accuracy, conditionals and covariances."""

import math

import mpmath
import numpy as np
import pytest
import torch
from cases import every_dtype
from refusals import refused
from scipy.special import betaincinv
from torch import Tensor
from vectors import DOUBLE, center, elliptical, factor, member

from sparsefam import MultivariateBetaGaussian, MultivariateNormal, TruncatedParaboloid


# Parametrizations
@pytest.mark.parametrize("alpha", [1.0, 1.05, 2.0, 3.0])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_parametrizations_come_back(dim: int, alpha: float) -> None:
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


def test_the_paraboloid_takes_no_alpha() -> None:
    loc, matrix = center(3), factor(3) @ factor(3).mT
    p = TruncatedParaboloid.from_sigma(loc, matrix)
    q = MultivariateBetaGaussian.from_sigma(loc, matrix, alpha=2.0)
    assert torch.equal(p.scale_tril, q.scale_tril)
    assert isinstance(p.expand((4,)), TruncatedParaboloid)
    with pytest.raises(TypeError):
        TruncatedParaboloid.from_sigma(loc, matrix, 2.0)


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_the_normal_is_torchs(name: str) -> None:
    loc, tril = torch.stack([center(3), -center(3)]), torch.stack([factor(3), factor(3, seed=1)])
    matrix = tril if name == "scale_tril" else tril @ tril.mT
    torchs = torch.distributions.MultivariateNormal
    p, q = MultivariateNormal(loc, **{name: matrix}), torchs(loc, **{name: matrix})
    assert isinstance(p, torchs)
    t = torch.linspace(-2, 2, 30, dtype=DOUBLE).reshape(5, 2, 3)
    close = {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(p.log_prob(t), q.log_prob(t), **close)
    for quantity in ("variance", "covariance_matrix", "precision_matrix", "scale_tril"):
        torch.testing.assert_close(getattr(p, quantity), getattr(q, quantity), **close)
    other = torchs(loc.flip(0), tril.flip(0) @ tril.flip(0).mT)
    for a, b in ((p, other), (other, p), (p.expand((4, 2)), other)):
        pair = (torchs(x.loc, scale_tril=x.scale_tril) for x in (a, b))
        expected = torch.distributions.kl_divergence(*pair)
        torch.testing.assert_close(torch.distributions.kl_divergence(a, b), expected)
    assert p.support.check(torch.full((3,), 1e9)).all()


# Accuracy
@every_dtype
@pytest.mark.parametrize("dim", [2, 5])
def test_log_prob_of_thin_ellipsoids(dim: int, dtype: torch.dtype) -> None:
    tril = factor(dim, dtype)
    tril[-1, -1] = 1e-6
    loc = center(dim, dtype)
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
    """Return log p in 60 digits, and its condition number with respect to all entries."""
    dim, m = len(t), p.generator.number
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


# Samples
@every_dtype
@pytest.mark.parametrize("dim", [1, 8])
@pytest.mark.parametrize("value", [1.02, 3.0])
def test_draws_move_with_alpha_like_quantiles(value: float, dim: int, dtype: torch.dtype) -> None:
    alpha = torch.full((40,), value, dtype=dtype, requires_grad=True)
    eye = torch.eye(dim, dtype=dtype)
    u = MultivariateBetaGaussian(torch.zeros(dim, dtype=dtype), eye, alpha).rsample()
    squared = u.square().sum(-1)
    (slope,) = torch.autograd.grad(squared.sum(), alpha)
    # The quantile function's slope by a central difference, at the level of each draw.
    with mpmath.workdps(40):
        a, b = mpmath.mpf(dim) / 2, 1 / (value - 1) + 1
        levels = [float(mpmath.betainc(a, b, 0, s, regularized=True)) for s in squared.tolist()]
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


# Arguments
EYE = torch.eye(2)
SINGULAR = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
UPPER = torch.tensor([[0.0, 0.5], [0.0, 0.0]])
ZERO = torch.zeros(2)
REMEDY = r"add a small multiple of the identity, or model the subspace"
test_bad_arguments_are_named = refused(
    [
        (lambda: MultivariateBetaGaussian.from_sigma(ZERO, EYE, 1.0), "alpha must be greater than"),
        (lambda: TruncatedParaboloid.from_sigma(ZERO, SINGULAR), "sigma must be .*" + REMEDY),
        (lambda: TruncatedParaboloid.from_sigma(ZERO, EYE + UPPER), "sigma must be symmetric, got"),
        (
            lambda: MultivariateNormal.from_moments(ZERO, SINGULAR),
            "covariance_matrix must be positive definite, .*" + REMEDY,
        ),
        (lambda: TruncatedParaboloid.from_canonical(ZERO, EYE), "-2 theta2 must be positive def"),
        (lambda: member(2, math.inf).score, "sigma_tril must be"),
        (lambda: member(2).quadrature(1201), "order must be from 1 to 1200, got 1201"),
        (lambda: member(3).marginal([0, -3]), "indices must be distinct"),
        (lambda: member(3).conditional(3, ZERO[:1]), "indices must be distinct"),
        (lambda: member(3).conditional([0, 1, 2], torch.zeros(3)), "indices must leave a coord"),
        (lambda: member(3).conditional(0, 0.5), r"value must be a tensor \(\*batch, 1\), got 0.5"),
        (lambda: member(3).conditional(0, ZERO[:1] + 99), "value must be inside the support, .*99"),
    ]
)


# Conditionals
@pytest.mark.parametrize("alpha", [1.0, 1.05, 2.0, torch.tensor(1.7, dtype=DOUBLE), math.inf])
def test_a_conditional_is_the_density_over_the_marginal(alpha: Tensor | float) -> None:
    p = member(5, alpha)
    t = p.sample((4,))
    for known, rest in (([0, 3, 4], [1, 2]), ([-4], [0, 2, 3, 4]), ([4, -5, 1, 2], [3])):
        q = p.conditional(known, t[:, known])
        assert (q.batch_shape, q.event_shape) == ((4,), (len(rest),))
        ratio = p.log_prob(t) - p.marginal(known).log_prob(t[:, known])
        torch.testing.assert_close(q.log_prob(t[:, rest]), ratio)
    # One coordinate after another.
    inner = p.conditional([3, 0], t[:, [3, 0]]).conditional(-1, t[:, [4]])
    q = p.conditional([0, 3, 4], t[:, [0, 3, 4]])
    for name in ("loc", "scale_tril", "alpha"):
        torch.testing.assert_close(getattr(inner, name), getattr(q, name))


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_gradients_of_conditionals(alpha: float) -> None:
    p = member(3, alpha)
    inputs = [x.requires_grad_() for x in (p.loc, p.scale_tril, p.loc[:1] + 0.1)]

    def entropy(loc: Tensor, scale_tril: Tensor, value: Tensor) -> Tensor:
        given = elliptical(loc, scale_tril.tril(), alpha).conditional(0, value)
        return given.entropy() + given.mean.sum()

    assert torch.autograd.gradcheck(entropy, inputs)
