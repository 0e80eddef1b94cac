"""Mixtures against scipy, torch and differences."""

import math
import pickle
from collections.abc import Callable

import pyro
import pyro.distributions
import pytest
import torch
from battery import DOUBLE, SINGLE, number
from laws import DISJOINT, HALF_LINE, NORMALS, UNLIKE, logits
from refusals import refused
from scipy import stats
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck
from torch.testing import assert_close

import sparsefam as sf
from sparsefam import bases
from sparsefam.scores import LogDensity
from sparsefam.supports import AnyOf, IntervalUnion, RealLine

NAN, INF = math.nan, math.inf


# Components of several classes; those of one class are in the battery
SQUARES = bases.Polynomial(2).double()

Ask = Callable[[sf.Mixture], Tensor]


def unlike(logits: Tensor, loc: Tensor, scale: Tensor) -> sf.Mixture:
    (a, b, c), (x, y, z) = loc.unbind(-1), scale.unbind(-1)
    return sf.Mixture(logits, [sf.Triangular(a, x), td.Uniform(b - y, b + y), td.Gumbel(c, z)])


HILLS = bases.GaussianRBF([-0.3, 0.2, 0.8], [0.1, 0.5, 3.0]).double()
AT, LEVELS = number([0.3, -0.2]), number([0.2, 0.7])
MEMBERS: dict[str, Ask] = {
    "log_prob": lambda p: p.log_prob(AT),
    "cdf": lambda p: p.cdf(AT),
    "icdf": lambda p: p.icdf(LEVELS),
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "mode": lambda p: p.mode,
    "entropy": lambda p: p.entropy(),
    "expect": lambda p: p.expect(HILLS),
    "expect-callable": lambda p: p.expect(torch.cos),
    "covariance": lambda p: p.generalized_covariance(HILLS, SQUARES),
}


@pytest.mark.parametrize("name", ["icdf", "entropy", "expect"])
def test_derivatives_are_those_of_differences(name: str) -> None:
    loc = number([[0.5, -0.6, 0.1], [-0.3, 0.4, 0.8]]).requires_grad_()
    weights = number([[0.5, -1.0, 0.25], [0.0, 1.5, -0.5]]).requires_grad_()
    scale = number([[0.8, 1.0, 0.9], [1.05, 0.75, 0.85]]).requires_grad_()
    assert gradcheck(lambda *x: MEMBERS[name](unlike(*x)), (weights, loc, scale))


# Batches
def test_parts_of_a_batch_take_components_of_torch_with_them() -> None:
    rate = number([[1.5], [2.5]]).requires_grad_()
    loc = number([-1.0, 0.5, 2.0]).requires_grad_()
    moved = td.TransformedDistribution(td.Normal(loc, 1.0), [td.AffineTransform(loc, 0.5)])
    parts = [td.Gumbel(loc, 0.5), td.Gamma(rate, rate.detach()), td.Uniform(loc, loc + 1), moved]
    parts += [td.LogNormal(loc, rate), td.HalfNormal(rate), td.Beta(rate, loc.exp())]
    both = td.Normal(torch.stack([loc, 2 * loc], -1), 1.0)
    parts += [td.MixtureSameFamily(td.Categorical(torch.ones(3, 2)), both)]
    p = sf.Mixture(logits(2, 3, 3, 1, 2, 1, 1, 1, 1), [*parts, sf.Triangular(loc, rate)])
    t = torch.linspace(-1, 3, 9, dtype=DOUBLE).reshape(-1, 1, 1).expand(-1, 2, 3)
    mask = torch.tensor([[True, False, True]] * 2)
    for index in ((1,), (slice(None), 2), (..., slice(1, None)), (mask,)):
        q, at = p[index], (slice(None), *index)
        assert_close(q.log_prob(t[at]), p.log_prob(t)[at])
        assert_close(q.variance, p.variance[index])
        assert q.sample((3,)).shape == (3, *q.batch_shape)
        assert all(part.batch_shape == q.batch_shape for part in q.components)
    assert p[0].mean.requires_grad
    assert not p.detach().log_prob(t).requires_grad


def test_sequences_and_batches_are_one() -> None:
    weights, loc = torch.randn(2, 2, 3, dtype=DOUBLE)
    scale = torch.rand(3, dtype=DOUBLE) + 0.5
    batched = sf.Mixture(weights, sf.TruncatedParabola(loc, scale))
    apart = sf.Mixture(weights, [sf.TruncatedParabola(loc[:, k], scale[k]) for k in range(3)])
    q = apart.expand((3, 2))
    assert batched.batch_shape == apart.batch_shape == (2,)
    asks: list[Ask] = [
        *MEMBERS.values(),
        lambda p: p.support.intervals,
        lambda p: p.quadrature()[1].sum(0),
        lambda p: p.rsample_components()[1],
    ]
    for ask in asks:
        expected = ask(batched)
        assert_close(ask(apart), expected, equal_nan=True)
        found = ask(q)
        assert_close(found, expected.expand_as(found), equal_nan=True)
    draws = q.sample((1000,))
    assert draws.shape == (1000, 3, 2) and (draws[:, 0] != draws[:, 1]).all()
    drawn, masses = q.rsample_components((4,))
    assert drawn.shape == (4, 3, 2, 3) and masses.shape == (3, 2, 3)


def test_support_is_the_union() -> None:
    disjoint = DISJOINT().support
    assert isinstance(disjoint, IntervalUnion)
    assert disjoint.intervals.tolist() == [[-1.0, 1.0], [2.5, 3.5], [4.25, 6.75]]
    assert HALF_LINE().support.intervals.tolist() == [[-3.0, -1.0], [0.0, INF]]
    assert isinstance(NORMALS().support, RealLine)
    line = UNLIKE().support
    assert line.count == 1 and line.intervals[0].tolist() == [-INF, INF]
    batch = sf.Mixture(
        torch.zeros(2), sf.TruncatedParabola(torch.tensor([[0.0, 1.5], [0.0, 9.0]]), 1.0)
    )
    assert batch.support.count.tolist() == [1, 2]


# Weights
def test_excluded_components_count_for_nothing() -> None:
    weights = [torch.tensor([0.3, -INF, 1.0]), td.Categorical(torch.tensor([1.0, 0.0, 2.0]))]
    for given in (*weights, sf.SparseCategorical(torch.tensor([0.2, 0.0, 0.8]))):
        p = sf.Mixture(given, sf.TruncatedParabola(torch.tensor([0.0, 5.0, 10.0]), 1.0))
        assert p.probs[1] == 0
        assert p.support.count == 2 and not p.support.check(torch.tensor(5.0))
        assert p.log_prob(torch.tensor(5.0)) == -INF
        assert p.support.check(p.sample((500,))).all()
        assert ((p.icdf(torch.rand(500)) - 5).abs() > 3).all()


def test_excluded_components_may_be_infinite() -> None:
    """Their means, their densities: none of the others' values and gradients becomes NaN."""
    weights = number([0.0, -INF, 1.0]).requires_grad_()
    one, half = number(1.0), number(0.5)
    own = [td.Uniform(-one, one), td.Uniform(0 * one, 3 * one)]
    kept = number([0.0, 1.0]).requires_grad_()
    for excluded in (td.Pareto(half, half), td.Cauchy(0 * one, one)):
        p, q = sf.Mixture(weights, [own[0], excluded, own[1]]), sf.Mixture(kept, own)
        for ask in (
            lambda p: p.mean,
            lambda p: p.variance,
            lambda p: p.log_prob(0 * half),
            lambda p: p.log_prob(half),
            lambda p: p.cdf(half),
            lambda p: p.entropy(),
        ):
            found, expected = ask(p), ask(q)
            assert_close(found, expected)
            (slope,) = torch.autograd.grad(found, weights)
            (due,) = torch.autograd.grad(expected, kept)
            assert_close(slope[[0, 2]], due)
            assert slope[1] == 0
    normals = [sf.Normal(0 * one, one), td.Cauchy(0 * one, one), sf.Normal(one, half)]
    found = sf.Mixture(weights, normals).generalized_covariance(SQUARES, SQUARES)
    expected = sf.Mixture(kept, normals[::2]).generalized_covariance(SQUARES, SQUARES)
    assert_close(found, expected)


@pytest.mark.parametrize("component", [td.Laplace, td.Uniform, sf.TruncatedParabola])
@pytest.mark.parametrize(("dtype", "gap"), [(SINGLE, 20.0), (DOUBLE, 90.0)])
def test_a_component_of_vanishing_weight_moves_no_quantile(
    component: type[td.Distribution], dtype: torch.dtype, gap: float
) -> None:
    ends = torch.tensor([[0.2, -0.3], [1.5, 0.1]], dtype=dtype)
    level = torch.tensor([1e-5, 0.3, 0.7, 0.9, 0.99], dtype=dtype)
    p = sf.Mixture(torch.tensor([gap, 0.0], dtype=dtype), component(*ends))
    assert_close(p.icdf(level), component(*ends[:, 0]).icdf(level), rtol=1e-3, atol=0)


# Components of several intervals
def test_nested_mixtures_are_mixtures() -> None:
    inner = sf.Mixture(torch.zeros(2), sf.TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0))
    outer = sf.Mixture(torch.tensor([0.0, 1.0]), [inner, sf.Laplace(9.0, 0.1)])
    a, b = torch.softmax(torch.tensor([0.0, 1.0]), 0).tolist()
    parts = [sf.TruncatedParabola(0.0, 1.0), sf.TruncatedParabola(3.0, 1.0), sf.Laplace(9.0, 0.1)]
    flat = sf.Mixture(torch.tensor([a / 2, a / 2, b]).log(), parts)
    t, u = torch.linspace(-2, 10, 13), torch.linspace(0.01, 0.99, 12)
    assert_close(outer.log_prob(t), flat.log_prob(t))
    assert_close(outer.icdf(u), flat.icdf(u))
    assert_close(outer.entropy(), flat.entropy())
    draws, masses = outer.rsample_components((3,))
    assert draws.shape == (3, 3)
    assert_close(masses, flat.probs)
    # Torch has no distribution function of Beta.
    beta = sf.Mixture(torch.zeros(2), [td.Beta(2.0, 3.0), sf.TruncatedParabola(0.5, 0.5)])
    nested = sf.Mixture(torch.zeros(2), [beta, sf.TruncatedParabola(0.5, 0.5)])
    below = 0.25 * stats.beta(2, 3).cdf(0.3) + 0.75 * 0.216
    assert nested.has_rsample and nested.cdf(torch.tensor(0.3)).item() == pytest.approx(below)


# Digits
def test_quantiles_skip_gaps_and_end_where_the_support_does() -> None:
    p = DISJOINT()
    # At 0.3 exactly everything in the gap would do; the left end is the smallest.
    u = number([0.0, 0.3 - 1e-15, 0.3 + 1e-15, 0.9 + 1e-15, 1.0])
    assert_close(p.icdf(u), number([-1.0, 1.0, 2.5, 4.25, 6.75]), rtol=0, atol=1e-6)
    dense = torch.cat([0.3 + torch.linspace(-1e-6, 1e-6, 4001).double(), torch.rand(4000).double()])
    assert p.support.check(p.icdf(dense)).all()
    assert p.support.check(DISJOINT(SINGLE).icdf(dense.float())).all()
    assert NORMALS().icdf(u)[[0, -1]].tolist() == [-INF, INF]


def test_quantiles_of_the_tails_keep_their_digits() -> None:
    loc, scale = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])
    p = sf.Mixture(torch.zeros(2), sf.Normal(loc, scale))
    known = sf.Mixture(torch.zeros(2).double(), sf.Normal(loc.double(), scale.double()))
    low = torch.tensor([1e-30, 1e-12, 1e-6])
    high = 1 - torch.tensor([2.0**-24, 2.0**-20, 2.0**-12])
    for u in (low, high):
        assert_close(p.icdf(u).double(), known.icdf(u.double()), rtol=2e-6, atol=0)


# Draws
def parabolas(logits: Tensor, loc: Tensor, scale: Tensor) -> sf.Mixture:
    return sf.Mixture(logits, sf.TruncatedParabola(loc, scale))


def test_over_gaps_draws_have_no_derivative() -> None:
    vectors = sf.Mixture(torch.zeros(2), sf.MultivariateNormal(torch.zeros(2, 2), torch.eye(2)))
    for q in (DISJOINT(), vectors):
        assert not q.has_rsample
        with pytest.raises(NotImplementedError, match="rsample_components"):
            q.rsample()
    # In one row of the batch only.
    loc = torch.tensor([[0.0, 1.0], [0.0, 9.0]])
    assert not parabolas(torch.zeros(2), loc, torch.tensor(1.0)).has_rsample
    assert parabolas(torch.zeros(2), loc[:1], torch.tensor(1.0)).has_rsample


def test_draws_of_components_have_right_derivatives_over_gaps() -> None:
    weights = logits(0.3, 0.6, 0.1).requires_grad_()
    loc, scale = number([0.0, 3.0, 5.5]).requires_grad_(), number([1.0, 0.5, 1.25]).requires_grad_()
    args = (weights, loc, scale)
    p = parabolas(*args)
    # E[t^2] is the sum of pi_k (loc_k^2 + scale_k^2/5).
    second = loc.square() + scale.square() / 5
    pi = weights.softmax(0)
    by_hand = [pi * (second - (pi * second).sum()), 2 * pi * loc, 0.4 * pi * scale]
    (whole,) = torch.autograd.grad(p.expect(lambda t: t**2), weights)
    assert_close(whole, by_hand[0])
    found = []
    for _ in range(40):
        t, masses = parabolas(*args).rsample_components((500,))
        assert t.shape == (500, 3) and masses.shape == (3,)
        assert p.support.check(t).all()
        value = (masses * t.square()).sum(-1).mean()
        found.append(torch.cat(torch.autograd.grad(value, args)))
    means = torch.stack(found)
    error = means.std(0) / math.sqrt(len(means))
    assert ((means.mean(0) - torch.cat(by_hand)).abs() <= 4.5 * error + 1e-12).all()
    # While the implicit gradient is far off: mass cannot cross the gap.
    t = p._attach_sample(p.sample((20_000,)))
    (biased,) = torch.autograd.grad(t.square().mean(), weights)
    assert (biased - by_hand[0]).norm() > 0.2 * by_hand[0].norm()


# Vectors
LOGITS = number([0.3, -0.4, 0.1])
LOC = number([[0.0, 0.0], [0.5, 0.25], [4.0, -1.0]])
TRIL = number([[[1.0, 0.0], [0.5, 0.75]], [[0.5, 0.0], [-0.25, 0.5]], [[0.75, 0.0], [0.0, 1.25]]])


def v_normals(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> sf.Mixture:
    return sf.Mixture(logits, td.MultivariateNormal(loc, scale_tril=tril.tril()))


def paraboloids(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> sf.Mixture:
    return sf.Mixture(logits, sf.TruncatedParaboloid(loc, tril.tril()))


every_mixture_of_vectors = pytest.mark.parametrize("make", [v_normals, paraboloids])


@every_mixture_of_vectors
def test_expectations_are_sums_of_the_components(make: Callable[..., sf.Mixture]) -> None:
    p, pi = make(), LOGITS.softmax(0)
    psi = bases.Polynomial(2, ndim=2).double() + bases.Fourier([[0.5, 1.0]]).double()
    parts = p.components if make is paraboloids else sf.MultivariateNormal(LOC, scale_tril=TRIL)
    assert_close(p.expect(psi), (pi[:, None] * parts.expect(psi)).sum(0))
    assert_close(p.expect(psi), p.expect(lambda t: psi(t)))
    first, second = p.expect(lambda t: t), p.expect(lambda t: t[..., :, None] * t[..., None, :])
    assert_close(first, p.mean)
    assert_close(second - torch.outer(first, first), p.covariance_matrix)
    assert_close(p.variance, p.covariance_matrix.diagonal())


@every_mixture_of_vectors
def test_draws_have_the_moments(make: Callable[..., sf.Mixture]) -> None:
    p = make().expand((2,))
    t = p.sample((40_000,))
    assert t.shape == (40_000, 2, 2) and p.support.check(t).all()
    error = (p.variance / len(t)).sqrt()
    assert ((t.mean(0) - p.mean).abs() < 4.5 * error).all()
    assert_close(t[:, 0].mT.cov(), p.covariance_matrix[0], rtol=0.05, atol=0.05)
    drawn, masses = p.rsample_components((6,))
    assert drawn.shape == (6, 2, 3, 2)
    assert_close(masses, LOGITS.softmax(0).expand(2, 3))


@every_mixture_of_vectors
def test_derivatives_of_mixtures_of_vectors(make: Callable[..., sf.Mixture]) -> None:
    leaves = [x.clone().requires_grad_() for x in (LOGITS, LOC, TRIL)]
    psi, t = bases.GaussianRBF(LOC + 0.1, 0.75).double(), number([[0.2, 0.1], [3.9, -0.8]])
    assert gradcheck(lambda *x: make(*x).log_prob(t), leaves)
    assert gradcheck(lambda *x: make(*x).expect(psi), leaves)
    assert gradcheck(lambda *x: make(*x).covariance_matrix, leaves)


def test_vectors_of_torch_are_components() -> None:
    scale = TRIL.diagonal(dim1=-2, dim2=-1)
    t = 3 * torch.randn(50, 2, dtype=DOUBLE)
    for theirs in (
        td.MultivariateNormal(LOC, scale_tril=TRIL),
        td.Independent(td.Normal(LOC, scale), 1),
        pyro.distributions.Normal(LOC, scale).to_event(1),
    ):
        p = sf.Mixture(LOGITS, theirs)
        expected = td.MixtureSameFamily(td.Categorical(logits=LOGITS), theirs)
        assert p.event_shape == (2,) and p.support is td.constraints.real_vector
        assert_close(p.log_prob(t), expected.log_prob(t))
        assert_close(p.mean, expected.mean)
        assert_close(p.variance, expected.variance)
    shape = number([2.0, 3.0, 1.5])
    p = sf.Mixture(LOGITS[:2], [td.Dirichlet(shape), td.Dirichlet(shape + 1)])
    t = td.Dirichlet(shape).sample((5,))
    each = torch.stack([td.Dirichlet(shape + k).log_prob(t).exp() for k in range(2)])
    assert_close(p.prob(t), LOGITS[:2].softmax(0) @ each)
    assert p.log_prob(number([0.5, 0.5, 0.5])) == -INF
    assert p.sample((4,)).shape == (4, 3)
    with pytest.raises(NotImplementedError, match="Dirichlet"):
        p.expect(lambda t: t)


def test_support_is_any_of_the_ellipsoids() -> None:
    outside = number([[2.0, 0.0], [40.0, 1.0]])
    for p in (
        paraboloids(),
        sf.Mixture(LOGITS, [sf.TruncatedParaboloid(LOC[k], TRIL[k]) for k in range(3)]),
    ):
        assert isinstance(p.support, AnyOf)
        assert p.support.check(LOC).all() and not p.support.check(outside).any()
    loc = LOC.clone().requires_grad_()
    found = paraboloids(loc=loc).log_prob(outside)
    assert (found == -INF).all()
    assert not torch.autograd.grad(found.sum(), loc)[0].any()
    excluded = paraboloids(number([0.0, 0.0, -INF]))
    assert excluded.support.check(LOC).tolist() == [True, True, False]


# Errors
def test_what_mixtures_do_not_have() -> None:
    p = DISJOINT()
    assert isinstance(p.score, LogDensity) and sf.rpm(p.score, 1.0) is p
    with pytest.raises(ValueError, match="alpha must be 1 for the logarithm of a density"):
        sf.rpm(p.score, 2.0)
    for refuse in (p.escort, lambda beta: p.generalized_covariance(SQUARES, SQUARES, beta)):
        with pytest.raises(ValueError, match="beta must be 1 for a Mixture.* got 0.5"):
            refuse(0.5)
    with pytest.raises(NotImplementedError, match="multivariate mixtures only"):
        _ = p.covariance_matrix
    vectors = pickle.loads(pickle.dumps(paraboloids()))
    for ask in (vectors.cdf, vectors.icdf):
        with pytest.raises(NotImplementedError, match="densities of numbers only"):
            ask(number([0.5, 0.5]))
    theirs = td.VonMises(number(0.0), number(1.0))
    with pytest.raises(NotImplementedError, match="(?s)VonMises.* no differentiable"):
        sf.Mixture(torch.zeros(1), [theirs]).rsample_components()


def normal(*shape: int) -> sf.Normal:
    return sf.Normal(torch.zeros(shape), 1.0)


test_bad_arguments_are_named = refused(
    [
        ([0.0, NAN], normal(2), "(?s)logits .*numbers below inf.*nan"),
        ([-INF, -INF], normal(2), "(?s)logits .*at least one of them above -inf"),
        ([0.0] * 3, normal(2), r"logits must have shape \(\*batch, K\) for K = 2 .* got \(3,\)"),
        ([[0.0] * 2] * 3, normal(4, 2), r"components must .*\(3,\), got \[\(4,\)\]"),
        ([0.0] * 2, normal(), r"components must have batch shape \(\*batch, K >= 1\)"),
        ([], [], "components must be a distribution .* or a sequence"),
        ([0.0] * 2, td.Poisson(torch.ones(2)), "components must be continuous, got Poisson"),
        (
            [0.0] * 2,
            [normal(2), normal(3)],
            r"components must have batches that broadcast .* got \[\(2,\), \(3,\)\]",
        ),
        (
            [0.0] * 2,
            [normal(), td.MultivariateNormal(torch.zeros(2), torch.eye(2))],
            r"components must have one event shape, got \[\(\), \(2,\)\]",
        ),
    ],
    of=lambda logits, components: sf.Mixture(torch.tensor(logits), components),
)


def test_heavy_tails_beyond_the_largest_float32() -> None:
    unit = torch.tensor(1e30)
    student = td.StudentT(torch.tensor(5.0), unit, unit)
    p = sf.Mixture(torch.zeros(2), [sf.TruncatedParabola(0 * unit, unit), student])
    one = torch.tensor(1.0)
    q = sf.Mixture(torch.zeros(2), [sf.TruncatedParabola(0.0, 1.0), td.StudentT(5 * one, one, one)])
    nodes, weights = p.quadrature()
    assert nodes.isfinite().all() and weights.sum().item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(p.mode / unit, q.mode, rtol=1e-5, atol=0)
    means = p.expect(lambda t: torch.cos(t / unit)), q.expect(torch.cos)
    torch.testing.assert_close(*means, rtol=1e-5, atol=0)


def test_the_mode_is_found_beside_a_cut_of_another_component() -> None:
    # The cut at 0.528 of one component lies beside the center of the other.
    student = td.StudentT(number(4.95783), number(0.237013), number(2.817362))
    normal = sf.Normal(number(0.550933), number(2.817362))
    p = sf.Mixture(torch.zeros(2, dtype=DOUBLE), [student, normal])
    t = torch.linspace(-3, 3, 6001, dtype=DOUBLE)
    assert (p.mode - t[p.prob(t).argmax()]).abs() < 1e-3
