"""Truncated densities: far tails, one-sided and infinite ends, gaps, bad input."""

import copy
import math
import pickle
from typing import Any

import mpmath
import pytest
import torch
from battery import DOUBLE, double, number
from cases_kernel import bell
from scipy import special, stats
from torch import distributions as td
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import accuracy
from benchmarks.reference import LAWS, Law
from sparsefam import BetaGaussian, KernelDeformedExp, Mixture, Normal, Truncated, TruncatedParabola
from sparsefam.bases import GaussianRBF

STEP = mpmath.mpf(10) ** -13


@pytest.mark.parametrize("law", [LAWS[0], LAWS[3], LAWS[7]], ids=lambda x: f"{x.name}{x.interval}")
def test_values_and_derivatives_against_mpmath(law: Law) -> None:
    """In the middle and in tails, in both types; derivatives in parameters and ends."""
    assert accuracy.truncated_table([law]).failures == []


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (8.0, 9.0), (-0.002, 0.001)])
def test_gaussians_under_a_truncated_normal_against_mpmath(low: float, high: float) -> None:
    """Between near ends the slopes are differences of nearly equal numbers."""
    centers, width, rows = number([-0.5, 0.25, 8.5]), 0.3125, []

    def exactly(loc: Any, scale: Any, center: float) -> Any:
        def integral(g: Any) -> Any:
            return mpmath.quad(lambda t: g(t) * mpmath.npdf(t, loc, scale), [low, high])

        return integral(lambda t: mpmath.npdf(t, center, width)) / integral(lambda t: 1)

    with mpmath.workdps(30):
        place = [mpmath.mpf(0.25), mpmath.mpf(0.75)]
        for center in centers.tolist():
            row = [exactly(*place, center)]
            for move in ((STEP, 0), (0, STEP)):
                ends = [
                    [x + sign * h for x, h in zip(place, move, strict=True)] for sign in (1, -1)
                ]
                row.append((exactly(*ends[0], center) - exactly(*ends[1], center)) / (2 * STEP))
            rows.append([float(x) for x in row])
    for dtype, close in ((torch.float32, 2e-6), (DOUBLE, 1e-11)):
        leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in (0.25, 0.75)]
        p = Truncated(td.Normal(*leaves), low, high)
        found = p.expect(GaussianRBF(centers.to(dtype), width))
        for value, (due, *slopes) in zip(found, rows, strict=True):
            moved = torch.autograd.grad(value, leaves, retain_graph=True)
            row = torch.stack([value, *moved]).double()
            torch.testing.assert_close(row, number([due, *slopes]), rtol=close, atol=1e-37)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("scale", [0.6875, 0.05])
def test_shares_of_a_far_tail_keep_their_digits(scale: float, side: int) -> None:
    """119 and 1,635 standard deviations from the middle, where masses underflow."""
    loc, end = -81.75, 0.1413
    ends = (0.0, end) if side > 0 else (-end, 0.0)
    p = Truncated(Normal(*double(side * loc, scale)), *double(*ends))
    t = p.icdf(number([1e-9, 0.02, 0.5, 0.98, 0.9999]))
    with mpmath.workdps(40):

        def above(x: float) -> Any:
            return mpmath.ncdf((mpmath.mpf(loc) - mpmath.mpf(x)) / mpmath.mpf(scale))

        due = [(above(0) - above(side * x)) / (above(0) - above(end)) for x in t.tolist()]
        exact = number([float(x if side > 0 else 1 - x) for x in due])
    torch.testing.assert_close(p.cdf(t), exact, rtol=1e-12, atol=1e-14)


# Bases
@pytest.mark.parametrize(
    ("base", "ends", "mass", "close"),
    [
        (td.Gamma(*double(0.5, 1.0)), (None, 1.0), special.gammainc(0.5, 1.0), 1e-11),
        (td.Gamma(*double(0.5, 1.0)), (40.0, None), special.gammaincc(0.5, 40.0), 1e-11),
        (td.Beta(*double(0.5, 0.5)), (None, 0.25), stats.beta(0.5, 0.5).cdf(0.25), 1e-11),
        # The rounding of locations near 1 counts.
        (td.Beta(*double(0.5, 0.5)), (0.25, None), stats.beta(0.5, 0.5).sf(0.25), 1e-7),
        (td.Cauchy(*double(0.0, 1.0)), (40.0, None), stats.cauchy.sf(40.0), 1e-12),
        # Nearly all the mass of these is at one end, or far away.
        (td.Gamma(*double(0.05, 1.0)), (0.0, 2.0), stats.gamma(0.05).cdf(2.0), 1e-12),
        (td.Chi2(number(0.1)), (None, 0.667), stats.chi2(0.1).cdf(0.667), 1e-12),
        (td.Weibull(*double(1.0, 0.1)), (None, 1.0), -math.expm1(-1.0), 1e-12),
        (td.Beta(*double(0.1, 0.1)), (0.0, 0.5), 0.5, 1e-12),
        (td.StudentT(number(0.1)), (None, 0.4), stats.t(0.1).cdf(0.4), 1e-12),
        # Its variance hardly exists.
        (td.StudentT(number(2.001)), (-6.0, None), stats.t(2.001).sf(-6.0), 1e-12),
        (td.Pareto(*double(1.0, 0.1)), (2.0, None), 2**-0.1, 1e-12),
        (td.LogNormal(*double(0.0, 9.0)), (1.0, None), 0.5, 1e-12),
        (td.LogNormal(*double(0.0, 1.0)), (30.0, 31.0), stats.lognorm(1).sf(30.0), None),
        (td.Uniform(*double(0.0, 4.0)), (1.0, 9.0), 0.75, 1e-13),
        (BetaGaussian(*double(0.0, 1.0), 1.2), (0.5, None), stats.beta(6, 6).sf(0.75), 1e-11),
        (Truncated(Normal(*double(0.0, 1.0)), 0.0), (1.0, None), 2 * stats.norm.sf(1.0), 1e-12),
    ],
    ids=str,
)
def test_masses_and_draws_of_many_bases(
    base: Any, ends: tuple[Any, Any], mass: float, close: float | None
) -> None:
    p = Truncated(base, *ends)
    if close is None:
        mass, close = mass - stats.lognorm(1).sf(31.0), 1e-11
    assert p.log_mass.item() == pytest.approx(math.log(mass), abs=close)
    t = torch.linspace(0.05, 0.95, 7).double()
    torch.testing.assert_close(p.cdf(p.icdf(t)), t, rtol=1e-12, atol=0)
    torch.manual_seed(0)
    draws = p.rsample((400,))
    assert p.support.check(draws).all()
    assert stats.kstest(p.cdf(draws).numpy(), "uniform").pvalue > 1e-3
    psi = p.expect(lambda t: torch.atan(t))
    nodes, weights = p.quadrature(96)
    torch.testing.assert_close(
        (weights * torch.atan(nodes)).sum(), psi, rtol=max(1e-9, close), atol=0
    )


def test_quantiles_keep_their_digits() -> None:
    p = Truncated(td.Normal(*double(0.0, 1.0)), 0.0)
    small = number([1e-12, 1e-6, 0.5])
    torch.testing.assert_close(p.cdf(p.icdf(small)), small, rtol=1e-13, atol=0)
    upper = number([1e-12, 1e-6])
    found = stats.halfnorm.sf(p.icdf(1 - upper).numpy())
    torch.testing.assert_close(torch.from_numpy(found), 1 - (1 - upper), rtol=1e-3, atol=0)


def test_moments_that_do_not_exist_are_not_finite() -> None:
    half = Truncated(td.Cauchy(*double(0.0, 1.0)), 0.0, number([1.0, math.inf]))
    torch.testing.assert_close(half.mean[0], 2 / math.pi * number(2.0).log())
    assert not (half.mean[1].isfinite() or half.variance[1].isfinite())
    heavy = Truncated(td.StudentT(number(1.5)), 0.0)
    assert heavy.mean.isfinite() and heavy.variance == math.inf
    # Of a class about whose tails nothing is known.
    weights = td.Categorical(torch.ones(2).double())
    mixed = Truncated(td.MixtureSameFamily(weights, td.StudentT(number([0.5, 3.0]))), 2.0)
    assert mixed.mean == math.inf and Truncated(mixed.base, 2.0, 9.0).mean.isfinite()


def test_a_gap_of_the_base_is_kept() -> None:
    base = Mixture(torch.zeros(2).double(), TruncatedParabola(number([0.0, 3.0]), 1.0))
    p = Truncated(base, 0.5, 3.0)
    expected = number([[0.5, 1.0], [2.0, 3.0]])
    torch.testing.assert_close(p.support.intervals, expected)
    assert not p.has_rsample
    with pytest.raises(NotImplementedError, match="one interval"):
        p.rsample()
    t = p.sample((500,))
    assert p.support.check(t).all() and (t < 1.5).any() and (t > 1.5).any()
    assert p.prob(number(1.5)) == 0
    whole = Truncated(base, -0.5, 0.5)
    assert whole.has_rsample and whole.support.count == 1


def test_kernel_families_can_be_cut() -> None:
    base = KernelDeformedExp(number([1.0, 2.0]), number([0.3, 0.7]), bell(0.2))
    p = Truncated(base, 0.4, 0.6)
    share = base.cdf(number(0.6)) - base.cdf(number(0.4))
    torch.testing.assert_close(p.log_mass, share.log(), rtol=1e-8, atol=1e-8)
    t = number([0.41, 0.5, 0.59])
    torch.testing.assert_close(p.prob(t), base.prob(t) / share, rtol=1e-8, atol=0)


# Ends
def test_ends_are_batched_and_may_be_infinite() -> None:
    low = number([-math.inf, 0.0, -math.inf, 1.0]).requires_grad_()
    high = number([math.inf, math.inf, 2.0, 1.5])
    p = Truncated(Normal(*double(0.0, 1.0)), low, high)
    expected = torch.special.ndtr(high) - torch.special.ndtr(low)
    torch.testing.assert_close(p.log_mass, expected.log(), rtol=1e-12, atol=1e-14)
    (slope,) = torch.autograd.grad(p.log_mass.sum(), low, retain_graph=True)
    exact = -Normal(*double(0.0, 1.0)).prob(low.detach()) / expected.detach()
    torch.testing.assert_close(slope, exact, rtol=1e-11, atol=1e-14)
    assert p.rsample((5,)).shape == (5, 4)
    for given in (Truncated(Normal(*double(0.0, 1.0)), high=2.0),):
        torch.testing.assert_close(given.log_mass, p.log_mass[2])


def test_peaks_that_the_rule_misses_are_refused() -> None:
    class Narrow(td.Normal):
        """Two narrow peaks, of which nothing but the distribution function tells."""

        parts = Mixture(torch.zeros(2), Normal(*double([-1.0, 20.0], [0.3, 0.01])))
        log_prob, cdf = parts.log_prob, parts.cdf

    with pytest.raises(ValueError, match="ends between which Narrow has a mass that"):
        Truncated(Narrow(*double(0.0, 1.0)), -3.0)


def test_bad_arguments_are_named() -> None:
    base = Normal(*double(0.0, 1.0))
    gap = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([0.0, 5.0]), 1.0))
    below = r"low must be below high, got .*{}\..*1\."
    empty = r"low and high must be ends between which .* has a mass .*, got .*2\..*3\."
    for law, low, high, rule in (
        (base, 2.0, 1.0, below.format(2)),
        (base, 1.0, 1.0, below.format(1)),
        (TruncatedParabola(*double(0.0, 1.0)), 2.0, 3.0, empty),
        (td.Beta(*double(2.0, 2.0)), 2.0, 3.0, empty),
        # Most of the mass is within a rounding error of 1, or of 0.
        (td.Beta(*double(0.1, 0.1)), 0.5, 1.0, empty.replace("2", "0").replace("3", "1")),
        (td.Gamma(*double(0.01, 1.0)), 0.0, 1.0, empty.replace("2", "0").replace("3", "1")),
        (gap, 2.0, 3.0, empty),
        (td.Poisson(torch.tensor(3.0)), 0.0, 1.0, "base must be a continuous .*, got Poisson"),
        (3.0, 0.0, 1.0, "base must be a continuous univariate distribution, got"),
        (base, "left", None, "low must be .*got 'left'"),
    ):
        with pytest.raises(ValueError, match=rule):
            Truncated(law, low, high)


# Operations
class _Counter(TorchDispatchMode):
    """Counts operations, with views and conversions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_step_of_a_policy_takes_few_operations() -> None:
    """To construct, draw and evaluate; a normal density takes 13."""
    loc, scale = torch.linspace(-1, 1, 8).unsqueeze(-1), torch.full((8, 1), 0.5)
    low, high = torch.tensor([[-2.0], [2.0]])
    with torch.no_grad(), _Counter() as counter:
        base = td.Normal(loc, scale, validate_args=False)
        p = Truncated(base, low, high, validate_args=False)
        p.log_prob(p.rsample())
    assert counter.count <= 50


def test_a_mass_that_is_kept_follows_its_parameters() -> None:
    """Changes in place, derivatives, copies, and other elements of the batch."""
    loc, scale, t = *double(0.25, 0.75), number(0.5)
    p, low = Truncated(Normal(loc, scale), -2.0, 2.0), number([-2.0, 0.5, 9.0])
    before = p.log_prob(t)
    for q in (copy.deepcopy(p), pickle.loads(pickle.dumps(p)), p.expand((3,)), p.detach()):
        assert (q.log_prob(t) == before).all()
    assert (
        Truncated(Normal(loc, scale), low, 12.0).log_mass[0]
        == Truncated(Normal(loc, scale), -2.0, 12.0).log_mass
    )
    loc += 0.5
    fresh = Truncated(Normal(loc, scale), -2.0, 2.0)
    assert p.log_prob(t) == fresh.log_prob(t) != before
    assert torch.autograd.grad(p.log_prob(t.requires_grad_()), t)[0] != 0
    scale.requires_grad_()
    slopes = [
        torch.autograd.grad(q.log_mass, scale)[0]
        for q in (p, Truncated(Normal(loc, scale), -2.0, 2.0))
    ]
    assert slopes[0] == slopes[1] != 0


@pytest.mark.parametrize("name", ["Weibull", "LogNormal", "Gumbel", "Cauchy", "Normal", "Pareto"])
@pytest.mark.parametrize("ends", [(None, 2.0), (0.5, None), (0.5, 2.0)])
def test_tails_without_mass(name: str, ends: tuple[float | None, float | None]) -> None:
    parameters = [x.requires_grad_() for x in double(1.0, 2.0)]
    p = Truncated(getattr(td, name)(*parameters), *ends)
    for x in (-math.inf, -1e300, -1e6, -1.0, 0.0, 1e6, 1e300, math.inf):
        t = torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        for function in (p.cdf, p.survival, p.log_cdf, p.log_survival):
            value = function(t)
            assert not value.isnan(), (function, x)
            if value.isfinite() and value.requires_grad:
                inputs = [t, *parameters]
                # The constructor may have computed the mass, with its graph.
                slopes = torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True)
                assert not any(s is not None and s.isnan() for s in slopes), (function, x)
