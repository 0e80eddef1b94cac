"""Marginals, covariances and quadrature of densities of vectors."""

import math

import pytest
import torch
from cases import every_dtype
from scipy.integrate import quad
from scipy.special import hyp0f1
from torch import Tensor
from vectors import DOUBLE, SINGLE, factor, member

from sparsefam import (
    BetaGaussian,
    EllipticalDistribution,
    MultivariateBetaGaussian,
    MultivariateNormal,
    TruncatedParabola,
)
from sparsefam.bases import GaussianRBF, Polynomial

# Marginals


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 3.0, math.inf])
def test_a_marginal_is_the_integral_over_the_rest(alpha: float) -> None:
    p = member(2, alpha)
    for kept in (0, 1):
        q = p.marginal(kept)
        assert q.event_shape == (1,)
        for share in (-0.8, 0.3):
            x = p.loc[kept] + share * p.scale_tril[kept].norm()
            expected = quad(
                lambda y, x=x, kept=kept: _prob(p, x, y, kept),
                *_range(p, 1 - kept),
                epsabs=0,
                epsrel=1e-9,
                limit=400,
                points=[float(p.loc[1 - kept])],
            )[0]
            assert q.prob(x[None]).item() == pytest.approx(expected, rel=2e-7)


def _prob(p: EllipticalDistribution, x: Tensor, y: float, kept: int) -> float:
    pair = [x, torch.tensor(y, dtype=DOUBLE)]
    return p.prob(torch.stack(pair if kept == 0 else pair[::-1])).item()


def _range(p: EllipticalDistribution, axis: int) -> tuple[float, float]:
    half = p.scale_tril[axis].norm().item()
    return p.loc[axis].item() - half, p.loc[axis].item() + half


@pytest.mark.parametrize("alpha", [1.0, 1.5, math.inf, torch.tensor(1.7, dtype=DOUBLE)])
def test_marginals_have_the_moments_and_draws_of_their_coordinates(alpha: Tensor | float) -> None:
    p = member(5, alpha).expand((3,))
    for kept in ([4], [2, 0], [1, 2, 4], [-1, 0], [4, 3, 2, 1, 0], list(range(5))):
        q = p.marginal(kept)
        assert (q.batch_shape, q.event_shape) == (p.batch_shape, (len(kept),))
        torch.testing.assert_close(q.mean, p.mean[:, kept])
        expected = p.covariance_matrix[:, kept][:, :, kept]
        torch.testing.assert_close(q.covariance_matrix, expected, rtol=1e-12, atol=1e-14)
        assert (q.scale_tril.diagonal(dim1=-2, dim2=-1) > 0).all()
    # A function that sees the exponent: the fourth power of one coordinate.
    q = p.marginal([2])
    fourth = p.expect(lambda t: (t[..., 2] - p.loc[0, 2]) ** 4, 256)
    found = q.expect(lambda t: (t[..., 0] - p.loc[0, 2]) ** 4)
    error = p.quadrature_error(lambda t: (t[..., 2] - p.loc[0, 2]) ** 4, 256)
    assert ((found - fourth).abs() < 4 * error).all()
    assert (error < 0.02 * found).all()


def test_a_marginal_of_a_marginal_is_a_marginal() -> None:
    p = member(4, 1.5)
    one, two = p.marginal([3, 0, 2]).marginal([2, 1]), p.marginal([2, 0])
    torch.testing.assert_close(one.scale_tril, two.scale_tril, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(one.alpha, two.alpha, rtol=1e-14, atol=0)


@pytest.mark.parametrize("indices", [[], [0, 0], [0, -3], 3, [-4], [0, 1, 2, 0]])
def test_marginals_of_wrong_coordinates_are_refused(indices: int | list[int]) -> None:
    with pytest.raises(ValueError, match="indices must be distinct and from -3 to 2, got"):
        member(3).marginal(indices)


# Covariances


def canonical(theta1: Tensor, theta2: Tensor, alpha: float) -> EllipticalDistribution:
    if alpha == 1:
        return MultivariateNormal.from_canonical(theta1, theta2)
    return MultivariateBetaGaussian.from_canonical(theta1, theta2, alpha)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 2.0])
@pytest.mark.parametrize("dim", [2, 3, 7])
def test_the_covariance_is_the_jacobian_of_the_moments(dim: int, alpha: float) -> None:
    # Prop. 3: d E_p[psi] / d theta for the score theta' phi, with phi all monomials to degree 2.
    p = member(dim, alpha)
    precision = torch.linalg.inv(p.sigma)
    rows, columns = torch.triu_indices(dim, dim)

    def moments(theta: Tensor) -> Tensor:
        matrix = torch.zeros(dim, dim, dtype=DOUBLE).index_put((rows, columns), theta[dim:])
        q = canonical(theta[:dim], (matrix + matrix.mT) / 2, alpha)
        second = q.covariance_matrix + torch.outer(q.mean, q.mean)
        return torch.cat([torch.ones(1, dtype=DOUBLE), q.mean, second[rows, columns]])

    quadratic = -precision / 2 * (2 - torch.eye(dim))
    theta = torch.cat([(precision @ p.loc[:, None]).squeeze(-1), quadratic[rows, columns]])
    jacobian = torch.autograd.functional.jacobian(moments, theta)
    found = p.generalized_covariance(Polynomial(2, ndim=dim), Polynomial(2, ndim=dim))
    torch.testing.assert_close(found[0], torch.zeros_like(found[0]))
    error = (found[1:].mT - jacobian).norm() / jacobian.norm()
    assert error < 1e-10


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_covariances_of_quadratics_agree_with_quadrature(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    phi, psi = Polynomial(2, ndim=dim), Polynomial(1, ndim=dim)
    for one, two in ((phi, phi), (phi, psi), (psi, phi)):
        nodes, weights = p.quadrature(4)
        f, g = (b(nodes) - weights @ b(nodes) for b in (one, two))
        expected = torch.einsum("q,qm,qn->mn", weights, f, g)
        found = p.generalized_covariance(one, two, beta=1.0)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_covariances_far_from_the_origin_keep_their_digits() -> None:
    loc = torch.tensor([100.0, -50.0])
    p = MultivariateBetaGaussian(loc, 0.01 * factor(2, SINGLE), 1.5)
    exact = MultivariateBetaGaussian(loc.double(), p.scale_tril.double(), 1.5)
    phi = Polynomial(2, ndim=2)
    found, expected = (q.generalized_covariance(phi, phi) for q in (p, exact))
    assert (found - expected).norm() < 2e-6 * expected.norm()


@pytest.mark.parametrize("alpha", [1.2, 2.0])
def test_covariances_with_other_functions_are_jacobians_too(alpha: float) -> None:
    p = member(2, alpha)
    psi = GaussianRBF(torch.tensor([[0.9, 0.5], [0.2, -1.0]], dtype=DOUBLE), 0.6)

    def mean(loc: Tensor) -> Tensor:
        q = MultivariateBetaGaussian(loc, p.scale_tril, alpha)
        return q._quadrature_expect(psi, 96)

    # Sigma^-1 times a shift of loc is the change of the score's linear coefficients.
    jacobian = torch.autograd.functional.jacobian(mean, p.loc) @ p.sigma
    found = p.generalized_covariance(Polynomial(1, ndim=2), psi)[1:].mT
    assert (found - jacobian).norm() < 1e-8 * jacobian.norm()


# Quadrature


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0, math.inf, torch.tensor(1.7, dtype=DOUBLE)])
@pytest.mark.parametrize(("dim", "order"), [(1, 5), (2, 3), (2, 6), (3, 4), (3, 7)])
def test_quadrature_is_exact_to_its_order(dim: int, order: int, alpha: Tensor | float) -> None:
    p = member(dim, alpha)
    psi = Polynomial(order, ndim=dim)
    (nodes, weights), (fine, shares) = p.quadrature(order), p.quadrature(3 * order)
    assert len(nodes) < len(fine)
    assert nodes.shape == (*weights.shape, dim)
    torch.testing.assert_close(weights @ psi(nodes), shares @ psi(fine), rtol=1e-12, atol=1e-13)
    assert p.quadrature_error(psi, order).max() < 1e-12


@every_dtype
@pytest.mark.parametrize("alpha", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("dim", [4, 16])
def test_quadrature_beyond_three_dimensions_is_exact_to_degree_three(
    dim: int, alpha: float, dtype: torch.dtype
) -> None:
    p = member(dim, alpha)
    rest = {} if alpha == 1 else {"alpha": alpha}
    p = type(p)(p.loc.to(dtype), scale_tril=p.scale_tril.to(dtype), **rest)
    nodes, weights = p.quadrature(8)
    x, tolerance = nodes - p.loc, 2e-6 if dtype == SINGLE else 1e-12
    torch.testing.assert_close(weights @ x, torch.zeros_like(p.loc), rtol=0, atol=tolerance)
    second = torch.einsum("q,qi,qj->ij", weights, x, x)
    torch.testing.assert_close(second, p.covariance_matrix, rtol=0, atol=tolerance)
    third = torch.einsum("q,qi,qj,qk->ijk", weights, x, x, x)
    assert third.abs().max() < tolerance


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_the_error_estimate_is_about_the_error(alpha: float, dim: int) -> None:
    # E[cos w'(t - loc)] by its Bessel function; frequencies that the rules miss by various amounts.
    p = member(dim, alpha)
    directions = torch.cos(torch.arange(8.0 * dim, dtype=DOUBLE)).reshape(8, dim)
    rho = torch.tensor([4.0, 7.0, 11.0, 15.0, 18.0, 22.0, 25.0, 29.0], dtype=DOUBLE)
    along = (p.scale_tril.mT @ directions.mT).norm(dim=0)
    waves = directions * ((rho / 4 if dim > 3 or alpha == 1 else rho) / along)[:, None]
    size = (p.scale_tril.mT @ waves.mT).square().sum(0)
    exact = torch.exp(-size / 2)
    if alpha > 1:
        exact = torch.from_numpy(hyp0f1(1 / (alpha - 1) + 1 + dim / 2, -size.numpy() / 4))

    def g(t: Tensor) -> Tensor:
        return torch.cos((t - p.loc) @ waves.mT)

    order = 24
    nodes, weights = p.quadrature(order)
    error = (weights @ g(nodes) - exact).abs()
    claimed = p.quadrature_error(g, order)
    assert claimed.shape == (8,)
    assert (claimed >= 0).all()
    noise = 1e-13
    if dim > 3:
        assert (error < 5 * claimed + noise).all()
        assert claimed.max() < 0.1
    else:
        assert (error < 3 * claimed + noise).all()
        assert (claimed < 3 * error + noise + p.quadrature_error(g, order + order // 2 + 1)).all()


def test_the_error_estimate_serves_the_line() -> None:
    p = BetaGaussian(torch.tensor([0.2, 5.0], dtype=DOUBLE), 1.0, 1.5)
    found = p.quadrature_error(lambda t: torch.stack([t**2, torch.cos(60 * t)], -1), 12)
    assert found.shape == (2, 2)
    assert (found[:, 0] < 1e-6).all()
    assert (found[:, 1] > 1e-3).all()


@pytest.mark.parametrize("order", [0, -1, 1201])
def test_orders_out_of_range_are_refused(order: int) -> None:
    with pytest.raises(ValueError, match=f"order must be from 1 to 1200, got {order}"):
        member(2).quadrature(order)


def test_bases_of_another_event_shape_are_refused() -> None:
    p, q = member(2), TruncatedParabola(0.0, 1.0)
    message = r"must take locations of event shape \(2,\), got \(\)"
    with pytest.raises(ValueError, match="psi " + message):
        p.expect(GaussianRBF([0.0, 1.0], 0.5))
    with pytest.raises(ValueError, match="psi " + message):
        p.quadrature_error(Polynomial(2))
    with pytest.raises(ValueError, match="phi " + message):
        p.generalized_covariance(Polynomial(2), Polynomial(2, ndim=2))
    with pytest.raises(ValueError, match=r"psi must take .* shape \(2,\), got \(3,\)"):
        p.generalized_covariance(Polynomial(2, ndim=2), Polynomial(2, ndim=3))
    with pytest.raises(ValueError, match=r"psi must take .* shape \(\), got \(2,\)"):
        q.expect(Polynomial(2, ndim=2))
