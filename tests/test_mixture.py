"""Mixtures of numbers against scipy, torch and quadrature; shapes, copies, arguments."""

import copy
import math
import pickle

import pyro
import pytest
import torch
from mixtures import DOUBLE, KNOWN, Known, logits
from scipy.stats import kstest
from torch import Tensor
from torch import distributions as td

from sparsefam import (
    BetaGaussian,
    KernelDeformedExp,
    Laplace,
    Mixture,
    Normal,
    SparseCategorical,
    TruncatedParabola,
    bases,
    rpm,
)
from sparsefam.scores import LogDensity
from sparsefam.supports import IntervalUnion, RealLine

pytestmark = pytest.mark.slow

SINGLE = torch.float32
every_known = pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}


def locations(known: Known, count: int = 25) -> Tensor:
    """Inside and outside, none on an end."""
    lower, upper = known.marks[0], known.marks[-1]
    return torch.linspace(max(lower, -9.0) - 0.617, min(upper, 9.0) + 0.531, count, dtype=DOUBLE)


# Densities


@every_known
@every_dtype
def test_density_is_scipys(known: Known, dtype: torch.dtype) -> None:
    t = locations(known)
    expected = torch.tensor([known.pdf(x) for x in t.tolist()], dtype=DOUBLE)
    found = known.make(dtype).prob(t.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=1e3 * TOLERANCE[dtype], atol=0)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=TOLERANCE[dtype])


def test_density_is_torchs_where_torchs_is_valid() -> None:
    logits = torch.randn(4, 3, dtype=DOUBLE)
    loc, scale = torch.randn(4, 3, dtype=DOUBLE), torch.rand(4, 3, dtype=DOUBLE) + 0.1
    theirs = td.MixtureSameFamily(td.Categorical(logits=logits), td.Normal(loc, scale))
    t = 2 * torch.randn(50, 4, dtype=DOUBLE)
    for components in (Normal(loc, scale), td.Normal(loc, scale)):
        for weights in (logits, td.Categorical(logits=logits), td.Categorical(logits.softmax(-1))):
            ours = Mixture(weights, components)
            torch.testing.assert_close(ours.log_prob(t), theirs.log_prob(t))
            torch.testing.assert_close(ours.cdf(t), theirs.cdf(t))
            torch.testing.assert_close(ours.mean, theirs.mean)
            torch.testing.assert_close(ours.variance, theirs.variance)


def test_sequences_and_batches_are_one() -> None:
    logits = torch.randn(2, 3, dtype=DOUBLE)
    loc, scale = torch.randn(2, 3, dtype=DOUBLE), torch.rand(3, dtype=DOUBLE) + 0.5
    batched = Mixture(logits, TruncatedParabola(loc, scale))
    apart = Mixture(logits, [TruncatedParabola(loc[:, k], scale[k]) for k in range(3)])
    t, psi = torch.randn(7, 2, dtype=DOUBLE), bases.Polynomial(3).double()
    assert batched.batch_shape == apart.batch_shape == (2,)
    for ask in (
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
    ):
        torch.testing.assert_close(ask(apart), ask(batched), equal_nan=True)


@every_dtype
def test_where_components_vanish_gradients_are_finite(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, dtype=dtype, requires_grad=True)
    loc = torch.tensor([0.0, 2.0, 9.0], dtype=dtype, requires_grad=True)
    low = torch.tensor(0.0, dtype=dtype, requires_grad=True)
    own = Mixture(logits, TruncatedParabola(loc, 0.5))
    high = torch.tensor(1.0, dtype=dtype)
    theirs = Mixture(logits[:2], [td.Uniform(low, high), td.Uniform(low + 2, high + 2)])
    for p, leaves in ((own, (logits, loc)), (theirs, (logits, low))):
        none = p.log_prob(torch.tensor([1.0625, 1.5, -50.0, 1e30, math.inf], dtype=dtype)[1:])
        assert (none == -math.inf).all()
        for slope in torch.autograd.grad(none.sum(), leaves, allow_unused=True):
            assert slope is None or (slope == 0).all()
        some = p.log_prob(torch.tensor([0.25, 2.125], dtype=dtype))
        assert some.isfinite().all()
        slopes = torch.autograd.grad(some[0] + 3 * some[1], leaves)
        assert all(slope.isfinite().all() and slope.any() for slope in slopes)
    # One of three has a density: its logit's slope is 1 less its weight.
    (slope,) = torch.autograd.grad(own.log_prob(torch.tensor(0.25, dtype=dtype)), logits)
    torch.testing.assert_close(slope, torch.tensor([2 / 3, -1 / 3, -1 / 3], dtype=dtype))


def test_torchs_own_mixture_raises_and_has_no_gradient_there() -> None:
    low = torch.tensor([0.0, 1.0], requires_grad=True)
    theirs = td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Uniform(low, low + 1))
    with pytest.raises(ValueError, match="support"):
        theirs.log_prob(torch.tensor(0.5))
    ours = Mixture(torch.zeros(2), td.Uniform(low, low + 1))
    torch.testing.assert_close(
        ours.prob(torch.tensor([0.5, 1.5, 2.5])), torch.tensor([0.5, 0.5, 0])
    )
    assert torch.autograd.grad(ours.log_prob(torch.tensor(2.5)), low)[0].tolist() == [0.0, 0.0]


def test_infinite_densities_are_infinite_and_do_no_harm() -> None:
    shape = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
    p = Mixture(torch.zeros(2).double(), [td.Beta(shape, shape), td.Uniform(shape - 1, shape + 1)])
    assert p.log_prob(torch.tensor(0.0, dtype=DOUBLE)) == math.inf
    (slope,) = torch.autograd.grad(p.log_prob(torch.zeros(2, dtype=DOUBLE)).sum(), shape)
    assert slope.isfinite()


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


# Moments and expectations


@every_known
@every_dtype
def test_moments_entropy_and_mass_are_those_of_quadrature(known: Known, dtype: torch.dtype) -> None:
    p, tolerance = known.make(dtype), TOLERANCE[dtype]
    mean = known.expect(lambda t: t)
    variance = known.expect(lambda t: (t - mean) ** 2)
    entropy = known.expect(lambda t: -math.log(known.pdf(t)) if known.pdf(t) > 0 else 0.0)
    assert p.mean.item() == pytest.approx(mean, rel=tolerance, abs=tolerance)
    assert p.variance.item() == pytest.approx(variance, rel=2 * tolerance)
    assert p.entropy().item() == pytest.approx(entropy, rel=2 * tolerance)
    assert torch.equal(p.tsallis_entropy(), p.entropy())
    nodes, weights = p.quadrature()
    assert weights.sum(0).item() == pytest.approx(1, abs=tolerance)
    cosine = known.expect(math.cos)
    assert (weights * nodes.cos()).sum(0).item() == pytest.approx(cosine, abs=tolerance)
    assert p.expect(torch.cos).item() == pytest.approx(cosine, abs=tolerance)


@every_known
@pytest.mark.parametrize(
    "psi",
    [
        bases.GaussianRBF([-0.3, 0.2, 2.8], [0.1, 0.02, 3.0]),
        bases.Fourier([0.5, 3.0]),
        bases.Polynomial(3),
        bases.BSpline([-0.4, -0.1, 0.1, 0.6, 2.9], 2),
        bases.Indicator([-0.3, 0.1, 2.9]),
        bases.Polynomial(1) + bases.Fourier([1.0]),
    ],
    ids=lambda psi: type(psi).__name__,
)
def test_expectations_are_those_of_quadrature(known: Known, psi: bases.Basis) -> None:
    psi = psi.double()
    breaks = [] if psi.breaks is None else psi.breaks.tolist()
    peaks = [0.14, 0.17, 0.2, 0.23, 0.26] if isinstance(psi, bases.GaussianRBF) else []
    inner = [x for x in breaks + peaks if known.marks[0] < x < known.marks[-1]]
    cut = Known(known.make, known.weights, known.parts, sorted({*known.marks, *inner}))
    expected = [
        cut.expect(lambda t, j=j: psi(torch.tensor(t, dtype=DOUBLE))[j].item())
        for j in range(len(psi))
    ]
    expected = torch.tensor(expected, dtype=DOUBLE)
    found = known.make(DOUBLE).expect(psi)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    single = known.make(SINGLE).expect(copy.deepcopy(psi).float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=2e-6)


@every_known
def test_covariances_are_those_of_quadrature(known: Known) -> None:
    phi, psi = bases.Polynomial(2).double(), bases.Fourier([1.5]).double()
    values = [lambda t, j=j: t**j for j in range(3)]
    waves = [lambda t: math.cos(1.5 * t), lambda t: math.sin(1.5 * t)]
    means = [[known.expect(f) for f in fs] for fs in (values, waves)]
    expected = [
        [
            known.expect(lambda t, f=f, g=g, a=a, b=b: (f(t) - a) * (g(t) - b))
            for g, b in zip(waves, means[1], strict=True)
        ]
        for f, a in zip(values, means[0], strict=True)
    ]
    p = known.make(DOUBLE)
    for beta in (None, 1, torch.tensor(1.0)):
        found = p.generalized_covariance(phi, psi, beta)
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=DOUBLE), rtol=1e-8, atol=1e-9
        )


def test_covariance_of_powers_does_not_cancel() -> None:
    """At 100 the fifth digit of t is the first of what the components differ by."""
    loc, scale = torch.tensor([100.0, 100.0234375]), torch.tensor(0.0078125)
    psi = bases.Polynomial(3)
    single = Mixture(torch.zeros(2), Normal(loc, scale)).generalized_covariance(psi, psi)
    double = Mixture(torch.zeros(2), Normal(loc.double(), scale.double()))
    exact = double.generalized_covariance(psi.double(), psi)
    torch.testing.assert_close(single.double(), exact, rtol=2e-6, atol=0)
    assert exact.shape == (4, 4)


# Distribution functions


@every_known
@every_dtype
def test_distribution_function_is_scipys(known: Known, dtype: torch.dtype) -> None:
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


def test_quantiles_of_the_tails_keep_their_digits() -> None:
    loc, scale = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])
    p = Mixture(torch.zeros(2), Normal(loc, scale))
    known = Mixture(torch.zeros(2).double(), Normal(loc.double(), scale.double()))
    low = torch.tensor([1e-30, 1e-12, 1e-6])
    high = 1 - torch.tensor([2.0**-24, 2.0**-20, 2.0**-12])
    for u in (low, high):
        torch.testing.assert_close(p.icdf(u).double(), known.icdf(u.double()), rtol=2e-6, atol=0)


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


@every_known
def test_modes_are_the_highest_points(known: Known) -> None:
    for dtype in (SINGLE, DOUBLE):
        mode = known.make(dtype).mode.double().item()
        t = torch.linspace(max(known.marks[0], -9), min(known.marks[-1], 9), 50_001, dtype=DOUBLE)
        p = known.make(DOUBLE)
        height = p.prob(torch.tensor(mode, dtype=DOUBLE))
        assert height >= p.prob(t).max() * (1 - 1e-6)


def test_mode_between_components_is_found() -> None:
    p = Mixture(torch.zeros(2).double(), Normal(torch.tensor([-0.9, 0.9]).double(), 1.0))
    assert p.mode.abs() < 1e-6  # the components' own modes are lower


# Supports


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


def test_support_follows_the_parameters() -> None:
    loc = torch.tensor([0.0, 3.0], requires_grad=True)
    p = Mixture(torch.zeros(2), TruncatedParabola(loc, 1.0))
    (slope,) = torch.autograd.grad(p.support.intervals[1, 0], loc)
    assert slope.tolist() == [0.0, 1.0]


# Copies, shapes, errors


def test_copies_say_the_same() -> None:
    p = KNOWN["unlike"].make(DOUBLE)
    t = torch.linspace(-1, 3, 9, dtype=DOUBLE)
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), p.escort(), p.escort(1.0)):
        torch.testing.assert_close(q.log_prob(t), p.log_prob(t))


@pytest.mark.parametrize("batched", [True, False])
def test_expanded_batches_are_independent_copies(batched: bool) -> None:
    loc = torch.tensor([[0.0, 3.0], [1.0, 9.0]])
    parts = Normal(loc, 0.5) if batched else [Normal(loc[:, 0], 0.5), td.Normal(loc[:, 1], 0.5)]
    p = Mixture(torch.tensor([0.0, 1.0]), parts)
    q = p.expand((3, 2))
    assert isinstance(q, Mixture) and q.batch_shape == (3, 2) and q.logits.shape == (3, 2, 2)
    draws = q.sample((1000,))
    assert draws.shape == (1000, 3, 2)
    assert (draws[:, 0] != draws[:, 1]).all()
    t, psi = torch.randn(5, 3, 2), bases.Polynomial(2)
    torch.testing.assert_close(q.log_prob(t), p.log_prob(t))
    torch.testing.assert_close(q.cdf(t), p.cdf(t))
    for ask in (
        lambda p: p.mean,
        lambda p: p.variance,
        lambda p: p.mode,
        lambda p: p.entropy(),
        lambda p: p.expect(psi),
        lambda p: p.expect(torch.cos),
        lambda p: p.generalized_covariance(psi, psi),
        lambda p: p.icdf(torch.tensor(0.25)),
        lambda p: p.rsample_components()[1],
        lambda p: p.support.intervals,
    ):
        torch.testing.assert_close(ask(q), ask(p).expand_as(ask(q)))
    t, masses = q.rsample_components((4,))
    assert t.shape == (4, 3, 2, 2) and masses.shape == (3, 2, 2)
    nodes, weights = q.quadrature(8)
    assert nodes.shape == weights.shape and nodes.shape[1:] == (3, 2)


def test_members_that_follow_from_alpha() -> None:
    p = KNOWN["disjoint"].make(DOUBLE).expand((2,))
    assert p.alpha.tolist() == [1.0, 1.0] and p.log_normalizer.tolist() == [0.0, 0.0]
    assert isinstance(p.score, LogDensity)
    t = torch.tensor([0.5, 3.0], dtype=DOUBLE)
    torch.testing.assert_close(p.score(t), p.log_prob(t))
    assert rpm(p.score, 1.0) is p
    with pytest.raises(ValueError, match="alpha must be 1 for the logarithm of a density"):
        rpm(p.score, 2.0)
    psi = bases.Polynomial(1)
    for refuse in (p.escort, lambda beta: p.generalized_covariance(psi, psi, beta)):
        with pytest.raises(ValueError, match="beta must be 1 for a mixture.* got 0.5"):
            refuse(0.5)
    with pytest.raises(ValueError, match="density must be a distribution, got 3"):
        LogDensity(3)


NAN, INF = math.nan, math.inf
PAIR = Normal(torch.zeros(2), 1.0)


@pytest.mark.parametrize(
    ("logits", "components", "message"),
    [
        (torch.tensor([0.0, NAN]), PAIR, "logits must be numbers below inf, got .*nan"),
        (torch.tensor([0.0, INF]), PAIR, "logits must be numbers below inf, got .*inf"),
        (torch.tensor([-INF, -INF]), PAIR, "logits must be above -inf for at least one component"),
        (torch.zeros(3), PAIR, r"logits must have shape \(\*batch, K\) for K = 2 .* got \(3,\)"),
        (torch.zeros(3, 2), Normal(torch.zeros(4, 2), 1.0), r"logits must have a batch .*\(4,\)"),
        (torch.tensor(0.0), PAIR, "logits must be a tensor"),
        ([0.0, 1.0], PAIR, "logits must be a tensor"),
        (torch.zeros(2), Normal(0.0, 1.0), r"components must have batch shape \(\*batch, K >= 1\)"),
        (torch.zeros(0), Normal(torch.zeros(0), 1.0), "components must be at least one, got none"),
        (torch.zeros(0), [], "components must be a distribution .* or a sequence"),
        (torch.zeros(2), [PAIR, 3], "components must be a distribution .* or a sequence"),
        (torch.zeros(2), 3, "components must be a distribution .* or a sequence"),
        (torch.zeros(2), td.Poisson(torch.ones(2)), "components must be continuous, got Poisson"),
        (torch.zeros(1), [td.Independent(td.Poisson(torch.ones(2)), 1)], "must be continuous"),
        (
            torch.zeros(2),
            [Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)],
            r"components must have batches that broadcast, got \[\(2,\), \(3,\)\]",
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


def test_bad_values_and_bases_are_refused() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    for value in (torch.tensor(NAN), torch.tensor([0.0, NAN])):
        with pytest.raises(ValueError, match="value must be real"):
            p.log_prob(value)
    with pytest.raises(ValueError, match="value must broadcast"):
        p.expand((3,)).log_prob(torch.zeros(4))
    with pytest.raises(ValueError, match="psi must take locations of event shape"):
        p.expect(bases.Polynomial(1, ndim=2))
    with pytest.raises(ValueError, match="parameter scale"):
        Mixture(torch.zeros(1), [BetaGaussian(0.0, -1.0, 2.0)])


def test_integer_logits_are_numbers() -> None:
    p = Mixture(torch.tensor([0, 1]), PAIR)
    torch.testing.assert_close(p.probs, torch.tensor([0.0, 1.0]).softmax(-1))


def test_nested_mixtures_are_mixtures() -> None:
    inner = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0))
    outer = Mixture(torch.tensor([0.0, 1.0]), [inner, Laplace(9.0, 0.1)])
    weights = torch.softmax(torch.tensor([0.0, 1.0]), 0)
    flat = Mixture(
        torch.log(torch.stack([weights[0] / 2, weights[0] / 2, weights[1]])),
        [TruncatedParabola(0.0, 1.0), TruncatedParabola(3.0, 1.0), Laplace(9.0, 0.1)],
    )
    t = torch.linspace(-2, 10, 13)
    torch.testing.assert_close(outer.log_prob(t), flat.log_prob(t))
    u = torch.linspace(0.01, 0.99, 12)
    torch.testing.assert_close(outer.icdf(u), flat.icdf(u))
    torch.testing.assert_close(outer.entropy(), flat.entropy())
    draws, masses = outer.rsample_components((3,))
    assert draws.shape == (3, 3)
    torch.testing.assert_close(masses, flat.probs)


def test_pyro_samples_and_scores_it() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)

    def model() -> Tensor:
        with pyro.plate("n", 5):
            return pyro.sample("t", p)

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["t"]
    torch.testing.assert_close(site["log_prob"], p.log_prob(site["value"]))


# Draws


@every_known
@every_dtype
def test_draws_follow_the_distribution_function(known: Known, dtype: torch.dtype) -> None:
    p = known.make(dtype)
    draws = p.sample((100_000,))
    assert draws.dtype == dtype and p.support.check(draws).all()
    assert kstest(draws.double().numpy(), known.cdf).pvalue > 1e-3
    quantiles = p.icdf(torch.rand(5_000, dtype=dtype))
    assert p.support.check(quantiles).all()
    assert kstest(quantiles.double().numpy(), known.cdf).pvalue > 1e-3


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
