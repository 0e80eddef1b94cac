"""The battery: distribution functions and quantiles of numbers."""

import math

import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bounded, ends
from cases import every_dtype, every_univariate_case, every_univariate_scalar
from torch import Tensor
from torch.autograd import gradcheck

from sparsefam import SparseDistribution
from sparsefam._numerics.roots import increasing_root


def places(p: SparseDistribution) -> Tensor:
    """Locations (11, *batch) from end to end of the support, or within six deviations."""
    lower, upper = ends(p)
    first, last = (
        torch.where(end.isfinite(), end, p.mean + side * p.stddev)
        for end, side in ((lower, -6), (upper, 6))
    )
    shares = torch.tensor([0.002, 0.03, 0.2, 0.4, 0.499, 0.5, 0.6, 0.8, 0.95, 0.99, 0.998])
    return first + shares.reshape(-1, *(1,) * first.dim()).to(first) * (last - first)


def between(case: Case, low: Tensor, high: Tensor) -> Tensor:
    """Masses between places (K, *batch), by quadrature."""
    rows = (x.reshape(len(x), -1).unbind(-1) for x in (low, high))
    found = [
        [
            r.integral(r.density, upper=b, lower=a)
            for a, b in zip(a.tolist(), b.tolist(), strict=True)
        ]
        for r, a, b in zip(case.references, *rows, strict=True)
    ]
    return torch.tensor(found, dtype=DOUBLE).T.reshape(low.shape)


@every_univariate_case
def test_tails_and_intervals_keep_their_digits(case: Case) -> None:
    p, single = case(), case(SINGLE)
    t = places(single).double()
    far = torch.full_like(t, math.inf)
    below, above = between(case, -far, t), between(case, t, far)
    masses = between(case, t[:-1], t[1:])
    # In float32 the distance from an end has been rounded.
    for q, close, least in ((p, 1e-9, 0.0), (single, 4e-6, 1e-6)):
        x, close = t.to(q.alpha.dtype), {"rtol": close, "atol": least}
        for found, expected in (
            (q.cdf(x), below),
            (q.survival(x), above),
            (q.interval_prob(x[:-1], x[1:]), masses),
            (q.log_cdf(x).exp(), below),
            (q.log_survival(x).exp(), above),
            (q.log_interval_prob(x[:-1], x[1:]).exp(), masses),
        ):
            assert found.dtype == q.alpha.dtype
            torch.testing.assert_close(found.double(), expected, **close)
    # Next to 1 a logarithm is what is missing.
    found = torch.where(below > above, p.log_cdf(t), p.log_survival(t))
    missing = torch.log1p(-torch.minimum(below, above))
    torch.testing.assert_close(found, missing, rtol=1e-9, atol=0)
    if bounded(p):
        lower, upper = ends(p)
        outside = torch.stack([lower - 1, upper + 1])
        for logs in (p.log_cdf(outside), p.log_survival(outside).flip(0)):
            assert (logs[0] == -math.inf).all() and (logs[1] == 0).all()


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str
)
@every_univariate_case
def test_sets_of_highest_density_have_their_mass_and_level(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    close = {"rtol": 0.0, "atol": 1e-11 if dtype == DOUBLE else 2e-6}
    for mass in (0.05, 0.8, 0.995):
        found = p.highest_density(mass)
        low, high = (x.movedim(-1, 0) for x in found.intervals.unbind(-1))
        present = ~low.isnan()
        low, high = (torch.where(present, x, low[:1]) for x in (low, high))
        if "inf" in case.name:  # of a uniform density all is level
            assert torch.equal(found.intervals, p.support.intervals)
            assert (p.highest_density_mass(p.mean) == 1).all()
            continue
        total = (p.cdf(high) - p.cdf(low)).sum(0)
        torch.testing.assert_close(total, torch.full_like(total, mass), **close)
        t = places(p)
        assert torch.equal(found.check(p.mode), torch.ones_like(total, dtype=torch.bool))
        # Inside it is higher than outside.
        inside, heights = found.check(t), p.prob(t)
        level = torch.where(inside, heights, math.inf).amin(0)
        assert (torch.where(inside, 0.0, heights) <= level).all()
        # At ends inside the support it is the level.
        first, last = ends(p)
        at = torch.cat([p.prob(low), p.prob(high)])
        inner = torch.cat([(low > first) & present, (high < last) & present])
        spread = torch.where(inner, at, 0.0).amax(0) - torch.where(inner, at, math.inf).amin(0)
        assert (spread <= 10 * close["atol"] * p.prob(p.mode)).all()
        # The ends have the mass as theirs, the mode none: that of float64, as float32 knows half
        # of a mode's digits. Where the density is zero it is 1.
        edges = torch.where(inner, torch.cat([low, high]), case().mode)
        own = torch.where(inner, torch.full_like(at, mass), 0.0)
        found_mass = p.highest_density_mass(edges)
        torch.testing.assert_close(found_mass, own, rtol=0.0, atol=10 * close["atol"])
        ended = last.isfinite()
        beyond = p.highest_density_mass(torch.where(ended, last + p.stddev, 0.0))
        assert (beyond[ended] == 1).all()


@every_univariate_scalar
def test_sets_of_highest_density_have_derivatives(case: Case) -> None:
    inputs = tuple(case.leaves().values())

    def edges(*leaves: Tensor) -> Tensor:
        p = case.of(**dict(zip(case.parameters, leaves, strict=True)))
        return p.highest_density(0.8).intervals.nan_to_num(0.0)

    assert gradcheck(edges, inputs, fast_mode=True)


@every_univariate_case
def test_cdf_ends_at_zero_and_one(case: Case) -> None:
    p = case()
    lower, upper = ends(p)
    torch.testing.assert_close(p.cdf(lower), torch.zeros_like(lower), rtol=0, atol=1e-15)
    torch.testing.assert_close(p.cdf(upper), torch.ones_like(upper), rtol=0, atol=1e-15)
    assert torch.equal(p.cdf(p.mean - 1e3 * p.stddev), torch.zeros_like(lower))
    end, rounding = p.cdf(p.mean + 1e3 * p.stddev), case.rounding(DOUBLE)
    torch.testing.assert_close(end, torch.ones_like(lower), rtol=0, atol=rounding)


@every_dtype
@every_univariate_scalar
def test_icdf_inverts_cdf_from_end_to_end(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    u = torch.tensor([1e-6, 1e-4, 0.03, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=dtype)
    t = p.icdf(u)
    assert (t.diff() > 0).all()
    assert p.support.check(t).all()
    # As good as the rounding of t and of u allows, and of some tens of nodes where cdf is a sum.
    eps = torch.finfo(dtype).eps
    level = torch.ones_like(u) if case.family.signed else u
    allowed = eps * (p.prob(t) * (t.abs() + p.stddev) + level)
    assert ((p.cdf(t) - u).abs() < 16 * allowed).all()
    found = p.icdf(torch.tensor([0.0, 1.0], dtype=dtype))
    torch.testing.assert_close(found, torch.stack(ends(p)), rtol=0, atol=4 * eps)


def test_an_end_is_the_root_where_rounding_puts_it_beyond() -> None:
    zero, one = torch.zeros(1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)
    assert increasing_root(lambda x: (x - 1).clamp_max(-1e-17), zero, one) == 1
    assert increasing_root(lambda x: x.clamp_min(1e-17), zero, one) == 0
