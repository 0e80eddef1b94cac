"""Derivatives of mixtures: of members, of draws; under transforms."""

import math

import pytest
import torch
from mixtures import DOUBLE, KNOWN, logits
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck, gradgradcheck

from sparsefam import Mixture, MultivariateNormal, Normal, Triangular, TruncatedParabola, bases
from sparsefam import Mixture as _M
attached = _M._attach_sample

PSI = bases.GaussianRBF([-0.3, 0.2, 0.8], [0.1, 0.5, 3.0]).double()
POWERS = bases.Polynomial(1).double()


def normals(logits: Tensor, loc: Tensor, scale: Tensor) -> Mixture:
    return Mixture(logits, td.Normal(loc, scale))


def parabolas(logits: Tensor, loc: Tensor, scale: Tensor) -> Mixture:
    return Mixture(logits, TruncatedParabola(loc, scale))


def unlike(logits: Tensor, loc: Tensor, scale: Tensor) -> Mixture:
    (a, b, c), (x, y, z) = loc.unbind(-1), scale.unbind(-1)
    return Mixture(logits, [Triangular(a, x), td.Uniform(b - y, b + y), td.Gumbel(c, z)])


def leaves(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    found = torch.randn(3, *shape, 3, dtype=DOUBLE, generator=generator)
    found[1] = 0.6 * found[1]
    found[2] = 0.7 + 0.4 * found[2].sigmoid()
    return tuple(x.clone().requires_grad_() for x in found)


T = torch.tensor([0.3, -0.2], dtype=DOUBLE)
U = torch.tensor([0.2, 0.7], dtype=DOUBLE)
MEMBERS = {
    "log_prob": lambda p: p.log_prob(T),
    "cdf": lambda p: p.cdf(T),
    "icdf": lambda p: p.icdf(U),
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "entropy": lambda p: p.entropy(),
    "expect": lambda p: p.expect(PSI),
    "expect-callable": lambda p: p.expect(torch.cos),
    "covariance": lambda p: p.generalized_covariance(PSI, POWERS),
}
every_member = pytest.mark.parametrize("member", MEMBERS.values(), ids=list(MEMBERS))
every_mixture = pytest.mark.parametrize("make", [normals, parabolas, unlike])


@every_member
@every_mixture
def test_derivatives_are_those_of_differences(make, member) -> None:
    assert gradcheck(lambda *x: member(make(*x)), leaves(2))


SECOND = ("log_prob", "cdf", "icdf", "expect", "entropy")


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_those_of_differences(name: str) -> None:
    member = MEMBERS[name]
    assert gradgradcheck(lambda *x: member(normals(*x)), leaves(), fast_mode=True)
    assert gradgradcheck(lambda *x: member(parabolas(*x)), leaves(), atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("gap", [0.0, 0.5, 5.0])
def test_entropies_have_derivatives_where_densities_vanish(gap: float) -> None:
    """Touching, apart by a gap narrower than the quadrature's pieces, and far apart."""
    weights, scale = logits(0.25, 0.75).requires_grad_(), torch.tensor([1.0, 0.5], dtype=DOUBLE)
    loc = torch.tensor([0.0, 1.5 + gap], dtype=DOUBLE, requires_grad=True)
    scale.requires_grad_()
    p = Mixture(weights, TruncatedParabola(loc, scale))
    slopes = torch.autograd.grad(p.entropy(), (weights, loc, scale), create_graph=True)
    # Of disjoint components it is the mean of theirs, log(scale) + const, and that of the weights.
    pi = weights.softmax(0)
    const = TruncatedParabola(0.0, 1.0).entropy().double()
    by_hand = (pi * (TruncatedParabola(loc, scale).entropy() - pi.log())).sum()
    torch.testing.assert_close(p.entropy(), by_hand)
    torch.testing.assert_close(const + scale.log(), TruncatedParabola(loc, scale).entropy())
    expected = torch.autograd.grad(by_hand, (weights, scale), create_graph=True)
    for found, exact in zip((slopes[0], slopes[2]), expected, strict=True):
        torch.testing.assert_close(found, exact)
    if gap:
        torch.testing.assert_close(slopes[1], torch.zeros(2, dtype=DOUBLE), rtol=0, atol=1e-9)
        second = torch.autograd.grad(slopes[2][0], scale)[0]
        exact = torch.autograd.grad(expected[1][0], scale)[0]
        torch.testing.assert_close(second, exact, rtol=1e-6, atol=1e-9)


# T and U have an entry for each of the batch, so each of the mapped sees both.
@every_member
@pytest.mark.parametrize("make", [normals, parabolas, unlike])
def test_mapped_they_are_the_same(make, member) -> None:
    def ask(*args: Tensor) -> Tensor:
        return member(make(*args))

    args = tuple(x.detach() for x in leaves(2))
    wide = tuple(x.unsqueeze(1).expand(2, 2, 3) for x in args)
    mapped = torch.func.vmap(ask)(*wide)
    torch.testing.assert_close(mapped.diagonal().movedim(-1, 0), ask(*args))


def test_value_gets_the_slope_of_the_density() -> None:
    p = parabolas(*(x.detach() for x in leaves()))
    t = torch.tensor([-0.4, 0.1, 0.5, 50.0], dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(p.cdf(t).sum(), t)
    torch.testing.assert_close(slope, p.prob(t))
    u = torch.tensor([0.2, 0.7], dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(p.icdf(u).sum(), u)
    torch.testing.assert_close(slope, 1 / p.prob(p.icdf(u)))


# Draws


def assert_mean(samples: Tensor, expected: Tensor) -> None:
    """Means over the first axis within four and a half of their own standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - expected).abs() <= 4.5 * error + 1e-12).all()


@every_mixture
def test_draws_from_one_interval_have_right_derivatives(make) -> None:
    args = leaves()
    p = make(*args)
    assert p.has_rsample
    expected = torch.cat(torch.autograd.grad(p.mean.square() + p.variance, args))
    found = []
    for _ in range(40):
        t = make(*args).rsample((1000,))
        assert p.support.check(t).all()
        found.append(torch.cat(torch.autograd.grad(t.square().mean(), args)))
    assert_mean(torch.stack(found), expected)


def test_draws_of_a_normal_mixture_have_the_derivatives_in_closed_form() -> None:
    """dt/dlogit_k is -pi_k (F_k - F)/p, dt/dloc_k the responsibility, times x for the scale."""
    weights, loc, scale = leaves()
    p = normals(weights, loc, scale)
    t = p.rsample((300,))
    found = [
        torch.stack([torch.autograd.grad(x, leaf, retain_graph=True)[0] for x in t])
        for leaf in (weights, loc, scale)
    ]
    parts, at = Normal(loc, scale), t.detach().unsqueeze(-1)
    shares = p.probs * parts.prob(at) / p.prob(at[:, 0]).unsqueeze(-1)
    tails = parts.cdf(at) - p.cdf(at[:, 0]).unsqueeze(-1)
    expected = [
        -p.probs * tails / p.prob(at[:, 0]).unsqueeze(-1),
        shares,
        shares * (at - loc) / scale,
    ]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_derivatives_of_draws_keep_their_digits_in_both_tails() -> None:
    def slopes(dtype: torch.dtype) -> list[Tensor]:
        args = tuple(x.detach().to(dtype).requires_grad_() for x in leaves())
        t = normals(*args).icdf(torch.tensor([2.0**-20, 1 - 2.0**-20], dtype=dtype))
        return [torch.cat(torch.autograd.grad(x, args, retain_graph=True)).double() for x in t]

    for single, double in zip(slopes(torch.float32), slopes(DOUBLE), strict=True):
        torch.testing.assert_close(single, double, rtol=1e-4, atol=1e-5)


def test_over_gaps_draws_have_no_derivative() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    vectors = Mixture(torch.zeros(2), MultivariateNormal(torch.zeros(2, 2), torch.eye(2)))
    for q in (p, vectors):
        assert not q.has_rsample
        with pytest.raises(NotImplementedError, match="rsample_components"):
            q.rsample()
    # In one row of the batch only.
    loc = torch.tensor([[0.0, 1.0], [0.0, 9.0]])
    assert not Mixture(torch.zeros(2), TruncatedParabola(loc, 1.0)).has_rsample
    assert Mixture(torch.zeros(2), TruncatedParabola(loc[:1], 1.0)).has_rsample


def test_draws_of_components_have_right_derivatives_over_gaps() -> None:
    weights = logits(0.3, 0.6, 0.1).requires_grad_()
    loc = torch.tensor([0.0, 3.0, 5.5], dtype=DOUBLE, requires_grad=True)
    scale = torch.tensor([1.0, 0.5, 1.25], dtype=DOUBLE, requires_grad=True)
    args = (weights, loc, scale)
    p = parabolas(*args)
    # E[t^2] is the sum of pi_k (loc_k^2 + scale_k^2/5).
    second = loc.square() + scale.square() / 5
    pi = weights.softmax(0)
    by_hand = [pi * (second - (pi * second).sum()), 2 * pi * loc, 0.4 * pi * scale]
    (whole,) = torch.autograd.grad(p.expect(lambda t: t**2), weights)
    torch.testing.assert_close(whole, by_hand[0])
    found = []
    for _ in range(40):
        t, masses = parabolas(*args).rsample_components((500,))
        assert t.shape == (500, 3) and masses.shape == (3,)
        assert p.support.check(t).all()
        value = (masses * t.square()).sum(-1).mean()
        found.append(torch.cat(torch.autograd.grad(value, args)))
    assert_mean(torch.stack(found), torch.cat(by_hand).detach())
    # While the implicit gradient is far off: mass cannot cross the gap.
    t = attached(p, p.sample((20_000,)))
    (biased,) = torch.autograd.grad(t.square().mean(), weights)
    assert (biased - by_hand[0]).norm() > 0.2 * by_hand[0].norm()


def test_components_without_derivatives_are_named() -> None:
    theirs = td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), 1.0))
    p = Mixture(torch.zeros(1), [theirs])
    with pytest.raises(NotImplementedError, match="(?s)MixtureSame.* has no differentiable draws"):
        p.rsample_components()
