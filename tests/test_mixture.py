"""Mixtures of numbers: densities, modes and supports, against scipy and torch."""

import math

import pytest
import torch
from mixtures import DOUBLE, KNOWN, Known, locations, logits
from torch import Tensor
from torch import distributions as td

from sparsefam import (
    KernelDeformedExp,
    Mixture,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    TruncatedParabola,
    bases,
)
from sparsefam.supports import IntervalUnion, RealLine

SINGLE = torch.float32
every_known = pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
every_dtype = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}


# Densities


@every_known
@every_dtype
def test_density_is_scipys(known: Known, dtype: torch.dtype) -> None:
    t = locations(known).to(dtype)
    expected = torch.tensor([known.pdf(x) for x in t.tolist()], dtype=DOUBLE)
    found = known.make(dtype).prob(t)
    assert found.dtype == dtype
    # Rounding of a logarithm; where there is no density, none at all.
    logs = torch.where(expected > 0, expected.log(), 0.0).abs()
    allowed = 4 * torch.finfo(dtype).eps * (1 + logs) * expected
    assert ((found.double() - expected).abs() <= allowed).all()


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
    for excluded in (td.Pareto(half, half), td.Cauchy(0 * one, one), td.Beta(half, half)):
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


def test_empty_batches_are_answered() -> None:
    loc = torch.zeros(0, 2)
    for parts in (TruncatedParabola(loc, 1.0), [Normal(0.0, 1.0), td.Gamma(*torch.ones(2))]):
        p = Mixture(loc, parts)
        assert p.sample((3,)).shape == (3, 0) and p.rsample().shape == (0,)
        assert p.icdf(torch.tensor(0.3)).shape == p.entropy().shape == p.mode.shape == (0,)
    vectors = Mixture(loc, MultivariateNormal(torch.zeros(0, 2, 3), torch.eye(3)))
    assert vectors.sample((3,)).shape == (3, 0, 3) and vectors.covariance_matrix.shape == (0, 3, 3)


# Modes and supports


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
