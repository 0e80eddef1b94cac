"""Mixtures of vectors."""

import pickle

import pyro.distributions
import pytest
import torch
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck

from sparsefam import Mixture, MultivariateNormal, TruncatedParaboloid, bases
from sparsefam.supports import AnyOf

DOUBLE = torch.float64
LOGITS = torch.tensor([0.3, -0.4, 0.1], dtype=DOUBLE)
LOC = torch.tensor([[0.0, 0.0], [0.5, 0.25], [4.0, -1.0]], dtype=DOUBLE)
TRIL = torch.tensor(
    [[[1.0, 0.0], [0.5, 0.75]], [[0.5, 0.0], [-0.25, 0.5]], [[0.75, 0.0], [0.0, 1.25]]],
    dtype=DOUBLE,
)


def normals(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> Mixture:
    return Mixture(logits, td.MultivariateNormal(loc, scale_tril=tril.tril()))


def paraboloids(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> Mixture:
    return Mixture(logits, TruncatedParaboloid(loc, tril.tril()))


every_mixture = pytest.mark.parametrize("make", [normals, paraboloids])


def test_density_is_torchs() -> None:
    p, t = normals(), 3 * torch.randn(50, 2, dtype=DOUBLE)
    theirs = td.MixtureSameFamily(
        td.Categorical(logits=LOGITS), td.MultivariateNormal(LOC, scale_tril=TRIL)
    )
    assert p.event_shape == (2,) and p.batch_shape == ()
    torch.testing.assert_close(p.log_prob(t), theirs.log_prob(t))
    torch.testing.assert_close(p.mean, theirs.mean)
    torch.testing.assert_close(p.variance, theirs.variance)
    torch.testing.assert_close(p.covariance_matrix.diagonal(), theirs.variance)
    assert p.support is td.constraints.real_vector


@pytest.mark.parametrize(
    "spelling",
    [
        lambda loc, scale: td.Independent(td.Normal(loc, scale), 1),
        lambda loc, scale: pyro.distributions.Normal(loc, scale).to_event(1),
    ],
    ids=["torch", "pyro"],
)
def test_factorised_normals_are_normals(spelling) -> None:
    scale = TRIL.diagonal(dim1=-2, dim2=-1)
    p = Mixture(LOGITS, spelling(LOC, scale))
    q = Mixture(LOGITS, MultivariateNormal(LOC, scale_tril=scale.diag_embed()))
    psi = bases.GaussianRBF.grid(9, 0.5, ndim=2).double()
    torch.testing.assert_close(p.expect(psi), q.expect(psi))
    t = torch.randn(5, 2, dtype=DOUBLE)
    torch.testing.assert_close(p.log_prob(t), q.log_prob(t))


@every_mixture
def test_expectations_are_sums_of_the_components(make) -> None:
    p = make()
    pi = LOGITS.softmax(0)
    psi = bases.Polynomial(2, ndim=2).double() + bases.Fourier([[0.5, 1.0]]).double()
    parts = p.components if make is paraboloids else MultivariateNormal(LOC, scale_tril=TRIL)
    torch.testing.assert_close(p.expect(psi), (pi[:, None] * parts.expect(psi)).sum(0))
    torch.testing.assert_close(p.expect(psi), p.expect(lambda t: psi(t)))
    first, second = p.expect(lambda t: t), p.expect(lambda t: t[..., :, None] * t[..., None, :])
    torch.testing.assert_close(first, p.mean)
    torch.testing.assert_close(second - torch.outer(first, first), p.covariance_matrix)
    torch.testing.assert_close(p.variance, p.covariance_matrix.diagonal())


@every_mixture
def test_covariance_of_coordinates_is_the_covariance_matrix(make) -> None:
    p, psi = make(), bases.Polynomial(2, ndim=2).double()
    found = p.generalized_covariance(psi, psi)
    torch.testing.assert_close(found[1:3, 1:3], p.covariance_matrix)
    values = p.expect(lambda t: (psi(t) - p.expect(psi))[..., :, None] * psi(t)[..., None, :])
    torch.testing.assert_close(found, values, rtol=1e-8, atol=1e-8)


def test_entropy_is_that_of_quadrature() -> None:
    p = normals()
    t = torch.cartesian_prod(*[torch.linspace(-9, 13, 881, dtype=DOUBLE)] * 2)
    log_p = p.log_prob(t)
    # The trapezoidal rule on a whole analytic density is exact.
    exact = -(log_p.exp() * log_p).sum() * (22 / 880) ** 2
    torch.testing.assert_close(p.entropy(), exact, rtol=1e-4, atol=0)
    apart = Mixture(LOGITS[:2], TruncatedParaboloid(10 * LOC[1:], TRIL[1:]))
    pi = LOGITS[:2].softmax(0)
    # Of disjoint components it is the mean of theirs, and that of the weights.
    exact = (pi * apart.components.entropy()).sum() - (pi * pi.log()).sum()
    torch.testing.assert_close(apart.entropy(), exact, rtol=1e-4, atol=0)


def test_support_is_any_of_the_ellipsoids() -> None:
    p = paraboloids()
    assert isinstance(p.support, AnyOf)
    assert p.support.check(LOC).all()
    outside = torch.tensor([[2.0, 0.0], [40.0, 1.0]], dtype=DOUBLE)
    assert not p.support.check(outside).any()
    loc = LOC.clone().requires_grad_()
    found = paraboloids(loc=loc).log_prob(outside)
    assert (found == -torch.inf).all()
    assert torch.autograd.grad(found.sum(), loc)[0].abs().sum() == 0
    apart = Mixture(LOGITS, [TruncatedParaboloid(LOC[k], TRIL[k]) for k in range(3)])
    assert apart.support.check(LOC).all() and not apart.support.check(outside).any()
    excluded = paraboloids(torch.tensor([0.0, 0.0, -torch.inf], dtype=DOUBLE))
    assert excluded.support.check(LOC).tolist() == [True, True, False]


@every_mixture
def test_draws_have_the_moments(make) -> None:
    p = make().expand((2,))
    t = p.sample((40_000,))
    assert t.shape == (40_000, 2, 2) and p.support.check(t).all()
    error = (p.variance / len(t)).sqrt()
    assert ((t.mean(0) - p.mean).abs() < 4.5 * error).all()
    torch.testing.assert_close(t[:, 0].mT.cov(), p.covariance_matrix[0], rtol=0.05, atol=0.05)
    drawn, masses = p.rsample_components((6,))
    assert drawn.shape == (6, 2, 3, 2)
    torch.testing.assert_close(masses, LOGITS.softmax(0).expand(2, 3))


@every_mixture
def test_derivatives_are_those_of_differences(make) -> None:
    leaves = [x.clone().requires_grad_() for x in (LOGITS, LOC, TRIL)]
    psi = bases.GaussianRBF(LOC + 0.1, 0.75).double()
    t = torch.tensor([[0.2, 0.1], [3.9, -0.8]], dtype=DOUBLE)
    assert gradcheck(lambda *x: make(*x).log_prob(t), leaves)
    assert gradcheck(lambda *x: make(*x).expect(psi), leaves)
    assert gradcheck(lambda *x: make(*x).covariance_matrix, leaves)


def test_modes_are_the_best_of_the_components() -> None:
    p = paraboloids().expand((2,))
    best = p.prob(LOC[:, None]).argmax(0)
    torch.testing.assert_close(p.mode, LOC[best])
    assert p.mode.shape == (2, 2)


def test_what_only_numbers_have_is_refused() -> None:
    p = pickle.loads(pickle.dumps(paraboloids()))
    for ask in (p.cdf, p.icdf):
        with pytest.raises(NotImplementedError, match="of numbers"):
            ask(torch.tensor([0.5, 0.5], dtype=DOUBLE))


def test_vectors_of_torchs_own_are_components() -> None:
    shape = torch.tensor([2.0, 3.0, 1.5], dtype=DOUBLE)
    p = Mixture(LOGITS[:2], [td.Dirichlet(shape), td.Dirichlet(shape + 1)])
    t = td.Dirichlet(shape).sample((5,))
    expected = LOGITS[:2].softmax(0)
    theirs = [td.Dirichlet(shape + k).log_prob(t).exp() for k in range(2)]
    torch.testing.assert_close(p.prob(t), (expected[:, None] * torch.stack(theirs)).sum(0))
    assert p.log_prob(torch.tensor([0.5, 0.5, 0.5], dtype=DOUBLE)) == -torch.inf
    assert p.sample((4,)).shape == (4, 3)
    with pytest.raises(NotImplementedError, match="Dirichlet"):
        p.expect(lambda t: t)
