"""Mixtures against scipy, torch and differences."""

import copy
import math
import pickle
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions
import pytest
import torch
from laws import DOUBLE, KNOWN, Array, Law, locations, logits
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck

from sparsefam import (
    KernelDeformedExp,
    Laplace,
    Mixture,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    bases,
    rpm,
)
from sparsefam.scores import LogDensity
from sparsefam.supports import AnyOf, IntervalUnion, RealLine

SINGLE = torch.float32
# The battery is run on mixtures of one class; these have components of several.
NAMES = ["unlike", "half-line"]
every_known = pytest.mark.parametrize("known", [KNOWN[name] for name in NAMES], ids=NAMES)
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])


def test_parts_of_a_batch_take_components_of_torch_with_them() -> None:
    rate = torch.tensor([[1.5], [2.5]], dtype=DOUBLE, requires_grad=True)
    loc = torch.tensor([-1.0, 0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    moved = td.TransformedDistribution(td.Normal(loc, 1.0), [td.AffineTransform(loc, 0.5)])
    parts = [td.Gumbel(loc, 0.5), td.Gamma(rate, rate.detach()), td.Uniform(loc, loc + 1), moved]
    p = Mixture(logits(2, 3, 3, 1, 2), [*parts, Triangular(loc, rate)])
    t = torch.linspace(-1, 3, 9, dtype=DOUBLE).reshape(-1, 1, 1).expand(-1, 2, 3)
    for index in (
        1,
        (slice(None), 2),
        (..., slice(1, None)),
        torch.tensor([[True, False, True]] * 2),
    ):
        q, at = p[index], (slice(None), *(index if isinstance(index, tuple) else (index,)))
        torch.testing.assert_close(q.log_prob(t[at]), p.log_prob(t)[at])
        torch.testing.assert_close(q.variance, p.variance[index])
        torch.testing.assert_close(q.sample((3,)).shape, (3, *q.batch_shape))
        assert isinstance(q.components, list)
        assert all(part.batch_shape == q.batch_shape for part in q.components)
    assert p[0].mean.requires_grad
    assert not p.detach().log_prob(t).requires_grad


def test_sequences_and_batches_are_one() -> None:
    logits = torch.randn(2, 3, dtype=DOUBLE)
    loc, scale = torch.randn(2, 3, dtype=DOUBLE), torch.rand(3, dtype=DOUBLE) + 0.5
    batched = Mixture(logits, TruncatedParabola(loc, scale))
    apart = Mixture(logits, [TruncatedParabola(loc[:, k], scale[k]) for k in range(3)])
    t, psi = torch.randn(7, 2, dtype=DOUBLE), bases.Polynomial(3).double()
    assert batched.batch_shape == apart.batch_shape == (2,)
    asks: list[Callable[[Mixture], Tensor]] = [
        lambda p: p.log_prob(t),
        lambda p: p.cdf(t),
        lambda p: p.icdf(t.sigmoid()),
        lambda p: p.mean,
        lambda p: p.variance,
        lambda p: p.mode,
        lambda p: p.entropy(),
        lambda p: p.expect(psi),
        lambda p: p.expect(lambda t: t**3),
        lambda p: p.generalized_covariance(psi, psi),
        lambda p: p.support.intervals,
        lambda p: p.quadrature()[1].sum(0),
        lambda p: p.rsample_components()[1],
    ]
    for ask in asks:
        torch.testing.assert_close(ask(apart), ask(batched), equal_nan=True)
    q, t = apart.expand((3, 2)), t[:3]
    for ask in asks:
        found = ask(q)
        torch.testing.assert_close(found, ask(apart).expand_as(found), equal_nan=True)
    draws = q.sample((1000,))
    assert draws.shape == (1000, 3, 2) and (draws[:, 0] != draws[:, 1]).all()
    drawn, masses = q.rsample_components((4,))
    assert drawn.shape == (4, 3, 2, 3) and masses.shape == (3, 2, 3)


def test_excluded_components_count_for_nothing() -> None:
    weights = [torch.tensor([0.3, -math.inf, 1.0]), td.Categorical(torch.tensor([1.0, 0.0, 2.0]))]
    for given in (*weights, SparseCategorical(torch.tensor([0.2, 0.0, 0.8]))):
        p = Mixture(given, TruncatedParabola(torch.tensor([0.0, 5.0, 10.0]), 1.0))
        assert p.probs[1] == 0
        assert p.support.count == 2 and not p.support.check(torch.tensor(5.0))
        assert p.log_prob(torch.tensor(5.0)) == -math.inf
        draws = p.sample((500,))
        assert p.support.check(draws).all()
        assert ((p.icdf(torch.rand(500)) - 5).abs() > 3).all()
        kept = Mixture(p.logits[[0, 2]], TruncatedParabola(torch.tensor([0.0, 10.0]), 1.0))
        torch.testing.assert_close(p.entropy(), kept.entropy())
        torch.testing.assert_close(p.mean, kept.mean)


@pytest.mark.parametrize("component", [td.Laplace, td.Uniform, TruncatedParabola])
@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 20.0), (DOUBLE, 90.0)])
def test_a_component_of_vanishing_weight_moves_no_quantile(
    component: type[td.Distribution], dtype: torch.dtype, gap: float
) -> None:
    ends = torch.tensor([[0.2, -0.3], [1.5, 0.1]], dtype=dtype)
    level = torch.tensor([1e-5, 0.3, 0.7, 0.9, 0.99], dtype=dtype)
    p = Mixture(torch.tensor([gap, 0.0], dtype=dtype), component(*ends))
    own = component(*ends[:, 0]).icdf(level)
    torch.testing.assert_close(p.icdf(level), own, rtol=1e-3, atol=0)


def test_excluded_components_may_be_infinite() -> None:
    """Their means, their densities: none of the others' values and gradients becomes NaN."""
    logits = torch.tensor([0.0, -math.inf, 1.0], dtype=DOUBLE, requires_grad=True)
    one, half = torch.ones((), dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE)
    own = [td.Uniform(-one, one), td.Uniform(0 * one, 3 * one)]
    kept = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    psi = bases.Polynomial(2).double()
    for excluded in (td.Pareto(half, half), td.Cauchy(0 * one, one)):
        p = Mixture(logits, [own[0], excluded, own[1]])
        q = Mixture(kept + torch.tensor([0.0, 1.0]), own)
        for ask in (
            lambda p: p.mean,
            lambda p: p.variance,
            lambda p: p.log_prob(0 * half),
            lambda p: p.log_prob(half),
            lambda p: p.cdf(half),
            lambda p: p.entropy(),
        ):
            found, expected = ask(p), ask(q)
            torch.testing.assert_close(found, expected)
            (slope,) = torch.autograd.grad(found, logits)
            (due,) = torch.autograd.grad(expected, kept)
            torch.testing.assert_close(slope[[0, 2]], due)
            assert slope[1] == 0
    normals = [Normal(0 * one, one), td.Cauchy(0 * one, one), Normal(one, half)]
    found = Mixture(logits, normals).generalized_covariance(psi, psi)
    expected = Mixture(logits[[0, 2]], normals[::2]).generalized_covariance(psi, psi)
    torch.testing.assert_close(found, expected)


def test_support_is_the_union() -> None:
    disjoint = KNOWN["disjoint"].make(DOUBLE).support
    assert isinstance(disjoint, IntervalUnion)
    expected = [[-1.0, 1.0], [2.5, 3.5], [4.25, 6.75]]
    assert disjoint.intervals.tolist() == expected
    half = KNOWN["half-line"].make(DOUBLE).support.intervals
    assert half.tolist() == [[-3.0, -1.0], [0.0, math.inf]]
    assert isinstance(KNOWN["normals"].make(DOUBLE).support, RealLine)
    line = KNOWN["unlike"].make(DOUBLE).support
    assert line.count == 1 and line.intervals[0].tolist() == [-math.inf, math.inf]
    batch = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([[0.0, 1.5], [0.0, 9.0]]), 1.0))
    assert batch.support.count.tolist() == [1, 2]
    assert batch.has_rsample is False


def test_kernel_densities_are_components() -> None:
    """Their supports have several intervals each, and their draws several pieces."""

    def kernel(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-50 * (x.unsqueeze(-2) - z).square().sum(-1))

    weights = torch.tensor([[3.0, -4.0, 2.0], [-1.0, -9.0, 2.0]], dtype=DOUBLE)
    own = KernelDeformedExp(weights, torch.tensor([0.1, 0.5, 0.9], dtype=DOUBLE), kernel)
    loc = torch.tensor(3.0, dtype=DOUBLE)
    p = Mixture(logits(0.25, 0.75), [own, TruncatedParabola(loc, 1.0)])
    assert p.support.count.tolist() == (own.support.count + 1).tolist()
    t = torch.linspace(-0.5, 4.5, 41, dtype=DOUBLE).unsqueeze(-1)
    theirs = TruncatedParabola(loc, 1.0)
    torch.testing.assert_close(p.prob(t), 0.25 * own.prob(t) + 0.75 * theirs.prob(t))
    torch.testing.assert_close(p.mean, 0.25 * own.mean + 0.75 * 3)
    # Of disjoint components the entropy is the mean of theirs, and that of the weights.
    mixed = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    parts = 0.25 * own.entropy() + 0.75 * theirs.entropy()
    torch.testing.assert_close(p.entropy(), parts + mixed, rtol=1e-9, atol=0)
    draws, masses = p.rsample_components((7,))
    assert draws.shape[0] == 7 and draws.shape[1:] == masses.shape
    torch.testing.assert_close(masses.sum(-1), torch.ones(2, dtype=DOUBLE))
    assert p.support.check(p.sample((1000,))).all()


TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}


def values(psi: bases.Basis, t: Array) -> Array:
    """Functions at locations (Q,), one in a row (N, Q)."""
    return psi(torch.as_tensor(t)).mT.numpy()


@every_known
@every_dtype
def test_moments_entropy_and_mass_are_those_of_quadrature(known: Law, dtype: torch.dtype) -> None:
    p, tolerance = known.make(dtype), TOLERANCE[dtype]
    mean = known.expect(lambda t: t)
    variance = known.expect(lambda t: (t - mean) ** 2)
    entropy = known.expect(lambda t: -np.maximum(known.log_pdf(t), -700.0))
    assert p.mean.item() == pytest.approx(mean, rel=tolerance, abs=tolerance)
    assert p.variance.item() == pytest.approx(variance, rel=2 * tolerance)
    assert p.entropy().item() == pytest.approx(entropy, rel=2 * tolerance)
    assert torch.equal(p.tsallis_entropy(), p.entropy())
    nodes, weights = p.quadrature()
    assert weights.sum(0).item() == pytest.approx(1, abs=tolerance)
    cosine = known.expect(np.cos)
    assert (weights * nodes.cos()).sum(0).item() == pytest.approx(cosine, abs=tolerance)
    assert p.expect(torch.cos).item() == pytest.approx(cosine, abs=tolerance)


# About Gaussians of width 0.03 there.
NARROW = [c + x for c in (-0.25, 0.2, 3.0) for x in (-0.25, -0.12, -0.06, 0.0, 0.06, 0.12, 0.25)]
BASES = {
    "GaussianRBF": bases.GaussianRBF([-0.3, 0.2, 2.8], [0.1, 0.02, 3.0]),
    "Fourier": bases.Fourier([0.5, 3.0]),
    "Polynomial": bases.Polynomial(3),
    "BSpline": bases.BSpline([-0.4, -0.1, 0.1, 0.6, 2.9], 2),
    "Indicator": bases.Indicator([-0.3, 0.1, 2.9]),
    "Stack": bases.Polynomial(1) + bases.Fourier([1.0]),
}


@every_known
@pytest.mark.parametrize("psi", BASES.values(), ids=list(BASES))
def test_expectations_are_those_of_quadrature(known: Law, psi: bases.Basis) -> None:
    psi = copy.deepcopy(psi).double()
    breaks = [] if psi.breaks is None else psi.breaks.tolist()
    expected = torch.as_tensor(known.expect(lambda t: values(psi, t), *breaks, *NARROW))
    found = known.make(DOUBLE).expect(psi)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    single = known.make(SINGLE).expect(copy.deepcopy(psi).float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=2e-6)


@every_known
@pytest.mark.parametrize("name", ["Fourier", "narrow", "Stack"])
def test_covariances_are_those_of_quadrature(known: Law, name: str) -> None:
    phi = bases.Polynomial(2).double()
    narrow = bases.GaussianRBF(torch.tensor([-0.25, 0.2, 3.0], dtype=DOUBLE), 0.03125)
    psi = {"Fourier": bases.Fourier([1.5]).double(), "narrow": narrow, "Stack": phi + narrow}[name]
    means = [known.expect(lambda t, b=b: values(b, t), *NARROW)[:, None] for b in (phi, psi)]
    rows = [
        known.expect(
            lambda t, j=j: (values(phi, t) - means[0])[j] * (values(psi, t) - means[1]), *NARROW
        )
        for j in range(3)
    ]
    p = known.make(DOUBLE)
    for beta in (None, 1, torch.tensor(1.0)):
        found = p.generalized_covariance(phi, psi, beta)
        torch.testing.assert_close(found, torch.as_tensor(np.stack(rows)), rtol=1e-10, atol=1e-11)


def test_covariance_of_powers_does_not_cancel() -> None:
    """At 100 the fifth digit of t is the first of what the components differ by."""
    loc, scale = torch.tensor([100.0, 100.0234375]), torch.tensor(0.0078125)
    psi = bases.Polynomial(3)
    single = Mixture(torch.zeros(2), Normal(loc, scale)).generalized_covariance(psi, psi)
    double = Mixture(torch.zeros(2), Normal(loc.double(), scale.double()))
    exact = double.generalized_covariance(psi.double(), psi)
    torch.testing.assert_close(single.double(), exact, rtol=2e-6, atol=0)
    assert exact.shape == (4, 4)


@every_known
@every_dtype
def test_distribution_function_is_scipys(known: Law, dtype: torch.dtype) -> None:
    t, p = locations(known), known.make(dtype)
    expected = torch.as_tensor(known.cdf(t.numpy()))
    found = p.cdf(t.to(dtype)).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])
    u = torch.tensor([1e-4, 0.1, 0.25, 0.35, 0.5, 0.7, 0.8999, 0.95, 0.999], dtype=dtype)
    quantiles = p.icdf(u)
    assert p.support.check(quantiles).all()
    back = torch.as_tensor(known.cdf(quantiles.double().numpy()))
    # The spacing of quantiles, times the density.
    atol = {SINGLE: 3e-6, DOUBLE: 1e-10}[dtype]
    torch.testing.assert_close(back, u.double(), rtol=0, atol=atol)
    assert (quantiles.diff() > 0).all()


def test_quantiles_skip_gaps_and_end_where_the_support_does() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    # At 0.3 exactly everything in the gap would do; the left end is the smallest.
    u = torch.tensor([0.0, 0.3 - 1e-15, 0.3 + 1e-15, 0.9 + 1e-15, 1.0], dtype=DOUBLE)
    expected = torch.tensor([-1.0, 1.0, 2.5, 4.25, 6.75], dtype=DOUBLE)
    torch.testing.assert_close(p.icdf(u), expected, rtol=0, atol=1e-6)
    dense = torch.cat([0.3 + torch.linspace(-1e-6, 1e-6, 4001).double(), torch.rand(4000).double()])
    assert p.support.check(p.icdf(dense)).all()
    assert p.support.check(KNOWN["disjoint"].make(SINGLE).icdf(dense.float())).all()
    assert KNOWN["normals"].make(DOUBLE).icdf(u)[[0, -1]].tolist() == [-math.inf, math.inf]
    with pytest.raises(ValueError, match=r"value must be a probability in \[0, 1\]"):
        p.icdf(torch.tensor(1.5))


def test_nested_mixtures_are_mixtures() -> None:
    inner = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0))
    outer = Mixture(torch.tensor([0.0, 1.0]), [inner, Laplace(9.0, 0.1)])
    share = torch.softmax(torch.tensor([0.0, 1.0]), 0)
    logits = torch.log(torch.stack([share[0] / 2, share[0] / 2, share[1]]))
    flat = Mixture(logits, [*(TruncatedParabola(x, 1.0) for x in (0.0, 3.0)), Laplace(9.0, 0.1)])
    t, u = torch.linspace(-2, 10, 13), torch.linspace(0.01, 0.99, 12)
    torch.testing.assert_close(outer.log_prob(t), flat.log_prob(t))
    torch.testing.assert_close(outer.icdf(u), flat.icdf(u))
    torch.testing.assert_close(outer.entropy(), flat.entropy())
    draws, masses = outer.rsample_components((3,))
    assert draws.shape == (3, 3)
    torch.testing.assert_close(masses, flat.probs)


def test_what_mixtures_do_not_have() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    assert isinstance(p.score, LogDensity) and rpm(p.score, 1.0) is p
    with pytest.raises(ValueError, match="alpha must be 1 for the logarithm of a density"):
        rpm(p.score, 2.0)
    psi = bases.Polynomial(1)
    for refuse in (p.escort, lambda beta: p.generalized_covariance(psi, psi, beta)):
        with pytest.raises(ValueError, match="beta must be 1 for a Mixture.* got 0.5"):
            refuse(0.5)
    with pytest.raises(NotImplementedError, match="multivariate mixtures only"):
        _ = p.covariance_matrix
    vectors = pickle.loads(pickle.dumps(paraboloids()))
    for ask in (vectors.cdf, vectors.icdf):
        with pytest.raises(NotImplementedError, match="univariate mixtures only"):
            ask(torch.tensor([0.5, 0.5], dtype=DOUBLE))
    theirs = td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), 1.0))
    with pytest.raises(NotImplementedError, match="(?s)MixtureSame.* no differentiable"):
        Mixture(torch.zeros(1), [theirs]).rsample_components()


NAN, INF = math.nan, math.inf
PAIR = Normal(torch.zeros(2), 1.0)


@pytest.mark.parametrize(
    ("logits", "components", "message"),
    [
        (torch.tensor([0.0, NAN]), PAIR, "(?s)logits .*numbers below inf.*nan"),
        (torch.tensor([-INF, -INF]), PAIR, "(?s)logits .*at least one of them above -inf"),
        (torch.zeros(3), PAIR, r"logits must have shape \(\*batch, K\) for K = 2 .* got \(3,\)"),
        (
            torch.zeros(3, 2),
            Normal(torch.zeros(4, 2), 1.0),
            r"components must .*\(3,\), got \[\(4,\)\]",
        ),
        (torch.zeros(2), Normal(0.0, 1.0), r"components must have batch shape \(\*batch, K >= 1\)"),
        (torch.zeros(0), [], "components must be a distribution .* or a sequence"),
        (torch.zeros(2), td.Poisson(torch.ones(2)), "components must be continuous, got Poisson"),
        (
            torch.zeros(2),
            [Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)],
            r"components must have batches that broadcast .* got \[\(2,\), \(3,\)\]",
        ),
        (
            torch.zeros(2),
            [Normal(0.0, 1.0), td.MultivariateNormal(torch.zeros(2), torch.eye(2))],
            r"components must have one event shape, got \[\(\), \(2,\)\]",
        ),
    ],
)
def test_bad_arguments_are_refused(logits: object, components: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(logits, components)


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


@every_member
def test_derivatives_are_those_of_differences(member) -> None:
    assert gradcheck(lambda *x: member(unlike(*x)), leaves(2))


def assert_mean(samples: Tensor, expected: Tensor) -> None:
    """Means over the first axis within four and a half of their own standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - expected).abs() <= 4.5 * error + 1e-12).all()


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
    t = p._attach_sample(p.sample((20_000,)))
    (biased,) = torch.autograd.grad(t.square().mean(), weights)
    assert (biased - by_hand[0]).norm() > 0.2 * by_hand[0].norm()


def test_compiled_draws_have_the_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(td.Distribution, "_validate_args", False)

    def draw(*args: Tensor) -> Tensor:
        return parabolas(*args).rsample((50,))

    torch._dynamo.reset()
    args = leaves()
    t = torch.compile(draw, fullgraph=True, backend="aot_eager")(*args)
    p = parabolas(*args)
    assert t.shape == (50,) and p.support.check(t).all()
    found = torch.autograd.grad(t.square().sum(), args)
    expected = torch.autograd.grad(p._attach_sample(t.detach()).square().sum(), args)
    torch.testing.assert_close(found, expected)
    weights, loc, scale = args
    with pytest.raises(RuntimeError, match="use rsample_components"):
        torch.compile(draw, fullgraph=True, backend="aot_eager")(weights, 99 * loc, scale)


LOGITS = torch.tensor([0.3, -0.4, 0.1], dtype=DOUBLE)
LOC = torch.tensor([[0.0, 0.0], [0.5, 0.25], [4.0, -1.0]], dtype=DOUBLE)
TRIL = torch.tensor(
    [[[1.0, 0.0], [0.5, 0.75]], [[0.5, 0.0], [-0.25, 0.5]], [[0.75, 0.0], [0.0, 1.25]]],
    dtype=DOUBLE,
)


def v_normals(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> Mixture:
    return Mixture(logits, td.MultivariateNormal(loc, scale_tril=tril.tril()))


def paraboloids(logits: Tensor = LOGITS, loc: Tensor = LOC, tril: Tensor = TRIL) -> Mixture:
    return Mixture(logits, TruncatedParaboloid(loc, tril.tril()))


def test_vectors_of_torch_are_components() -> None:
    scale = TRIL.diagonal(dim1=-2, dim2=-1)
    t = 3 * torch.randn(50, 2, dtype=DOUBLE)
    for theirs in (
        td.MultivariateNormal(LOC, scale_tril=TRIL),
        td.Independent(td.Normal(LOC, scale), 1),
        pyro.distributions.Normal(LOC, scale).to_event(1),
    ):
        p = Mixture(LOGITS, theirs)
        expected = td.MixtureSameFamily(td.Categorical(logits=LOGITS), theirs)
        assert p.event_shape == (2,) and p.support is td.constraints.real_vector
        torch.testing.assert_close(p.log_prob(t), expected.log_prob(t))
        torch.testing.assert_close(p.mean, expected.mean)
        torch.testing.assert_close(p.variance, expected.variance)
    shape = torch.tensor([2.0, 3.0, 1.5], dtype=DOUBLE)
    p = Mixture(LOGITS[:2], [td.Dirichlet(shape), td.Dirichlet(shape + 1)])
    t = td.Dirichlet(shape).sample((5,))
    each = torch.stack([td.Dirichlet(shape + k).log_prob(t).exp() for k in range(2)])
    torch.testing.assert_close(p.prob(t), LOGITS[:2].softmax(0) @ each)
    assert p.log_prob(torch.tensor([0.5, 0.5, 0.5], dtype=DOUBLE)) == -torch.inf
    assert p.sample((4,)).shape == (4, 3)
    with pytest.raises(NotImplementedError, match="Dirichlet"):
        p.expect(lambda t: t)


v_every_mixture = pytest.mark.parametrize("make", [v_normals, paraboloids])


@v_every_mixture
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


@v_every_mixture
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


@v_every_mixture
def test_derivatives_are_those_of_differences_v(make) -> None:
    leaves = [x.clone().requires_grad_() for x in (LOGITS, LOC, TRIL)]
    psi = bases.GaussianRBF(LOC + 0.1, 0.75).double()
    t = torch.tensor([[0.2, 0.1], [3.9, -0.8]], dtype=DOUBLE)
    assert gradcheck(lambda *x: make(*x).log_prob(t), leaves)
    assert gradcheck(lambda *x: make(*x).expect(psi), leaves)
    assert gradcheck(lambda *x: make(*x).covariance_matrix, leaves)


@pytest.mark.parametrize("gap", [0.0, 1e-13, 1e-8])
def test_second_derivatives_of_entropies_where_a_centre_meets_an_edge(gap: float) -> None:
    def entropy(v: Tensor) -> Tensor:
        return Mixture(torch.zeros(2, dtype=DOUBLE), TruncatedParabola(v, 1.0)).entropy()

    def slope(v: Tensor) -> Tensor:
        v = v.requires_grad_()
        return torch.autograd.grad(entropy(v), v)[0]

    at = torch.tensor([0.0, 1.0 + gap], dtype=DOUBLE)
    found = torch.autograd.functional.hessian(entropy, at)
    steps = 1e-5 * torch.eye(2, dtype=DOUBLE)
    expected = torch.stack([(slope(at + e) - slope(at - e)) / 2e-5 for e in steps])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_quantiles_of_the_tails_keep_their_digits() -> None:
    loc, scale = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])
    p = Mixture(torch.zeros(2), Normal(loc, scale))
    known = Mixture(torch.zeros(2).double(), Normal(loc.double(), scale.double()))
    low = torch.tensor([1e-30, 1e-12, 1e-6])
    high = 1 - torch.tensor([2.0**-24, 2.0**-20, 2.0**-12])
    for u in (low, high):
        torch.testing.assert_close(p.icdf(u).double(), known.icdf(u.double()), rtol=2e-6, atol=0)
