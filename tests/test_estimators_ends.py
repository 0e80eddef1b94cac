"""Where the supports of estimates end, and densities that are conditioned on intervals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch.distributions import Uniform, kl_divergence

from sparsefam import KernelDeformedExp
from sparsefam.distributions.uniform_on import UniformOn
from sparsefam.estimators import SparseDensity
from sparsefam.estimators.sparse_density import Extremes

GIVEN: dict[str, Any] = {"bandwidth": 0.15, "penalty": 1e-4, "inducing_points": 20}


def two_uniforms(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(count) < 0.5, 0.3 * rng.random(count), 1 - 0.4 * rng.random(count))


def box(x: np.ndarray) -> Uniform:
    """The default base, which as a given one is not cut."""
    margin = 0.25 * np.ptp(x)
    ends = torch.tensor([x.min() - margin, x.max() + margin], dtype=torch.float64)
    return Uniform(*ends, validate_args=False)


def test_beyond_the_data_is_no_more_than_half_of_what_they_miss() -> None:
    x, alpha = two_uniforms(150), 1.5
    model = SparseDensity(alpha, **GIVEN).fit(x[:, None])
    p, whole = model.density_, SparseDensity(alpha, base=box(x), **GIVEN).fit(x[:, None]).density_
    uncut = whole.support.intervals
    groups, due = [x[x < 0.45], x[x > 0.45]], 0.5 / 150
    assert model.support_.shape == (2, 2)
    for (low, high), data in zip(model.support_, groups, strict=True):
        ends = torch.tensor([low, data.min(), data.max(), high])
        beyond = whole.cdf(ends).diff()[[0, 2]]
        own = torch.isin(ends[[0, 3]], uncut)
        torch.testing.assert_close(beyond[~own], torch.full_like(beyond[~own], due))
        assert (beyond[own] <= due).all()
    # Elsewhere it is the density that it was, but for a constant.
    at = torch.linspace(-0.2, 1.2, 501, dtype=torch.float64)
    inside = p.support.check(at)
    mass = float(whole.cdf(p.support.intervals).diff().sum())
    torch.testing.assert_close(p.prob(at)[inside], whole.prob(at)[inside] / mass)
    assert (p.prob(at)[~inside] == 0).all() and (whole.prob(at)[~inside] > 0).any()
    assert float(kl_divergence(p, whole)) == pytest.approx(-math.log(mass), abs=1e-8)


def test_intervals_without_data_are_left_out() -> None:
    x = 0.5 + 0.5 * np.random.default_rng(0).beta(3, 3, 60)
    settings: dict[str, Any] = {"bandwidth": 0.06, "penalty": 1e-8, "inducing_points": 60}
    whole = SparseDensity(base=box(x), **settings).fit(x[:, None])
    model = SparseDensity(**settings).fit(x[:, None])
    empty = [((a <= x) & (x <= b)).sum() == 0 for a, b in whole.support_]
    assert any(empty)
    assert len(model.support_) == len(empty) - sum(empty)
    assert (model.score_samples(x[:, None]) > -np.inf).all()


def test_nothing_is_cut_of_a_density_that_is_positive_everywhere() -> None:
    x = two_uniforms(50)
    model = SparseDensity(1.0, **GIVEN).fit(x[:, None])
    np.testing.assert_allclose(model.support_[0], [float(box(x).low), float(box(x).high)])


def test_parts_of_the_data_have_the_outermost_of_all() -> None:
    x, ones = torch.from_numpy(two_uniforms(200)).unsqueeze(-1), torch.ones(200).double()
    base = [Uniform(-0.25, 1.25)]
    parts = Extremes.merged(
        [Extremes.of(x[:90], ones[:90], base[0]), Extremes.of(x[90:], ones[90:], base[0])]
    )
    lower, upper = torch.tensor([0.0, 0.31, 0.6]), torch.tensor([0.2, 0.59, 2.0])
    found, weight = parts.within(lower, upper)
    assert weight.tolist() == [1, 0, 1]
    for (first, last), low, high in zip(found, lower, upper, strict=True):
        due = x[(x >= low) & (x <= high)]
        assert (first, last) == ((due.min(), due.max()) if len(due) else (torch.inf, -torch.inf))
    seen = x[:, 0] < 0.5
    unseen, weight = Extremes.of(x[seen], ones[seen], base[0]).within(lower, upper)
    assert unseen[2].tolist() == [torch.inf, -torch.inf] and weight[2] == 0


def test_ties_of_parts_are_those_of_all() -> None:
    x = torch.tensor([0.2, 0.5, 0.2, 0.2, 0.5, 0.3], dtype=torch.float64).unsqueeze(-1)
    weight, base = torch.tensor([1.0, 2.0, 3.0, 0.0, 5.0, 7.0]).double(), [Uniform(0.0, 1.0)]
    parts = [Extremes.of(x[some], weight[some], base[0]) for some in (slice(0, 2), slice(2, 6))]
    for both in (Extremes.merged(parts), Extremes.of(x, weight, base[0])):
        at, largest = both.within(torch.tensor([0.0, 0.1]), torch.tensor([1.0, 0.25]))
        assert at.tolist() == [[0.2, 0.5], [0.2, 0.2]]
        assert largest.tolist() == [7, 4]


@pytest.mark.parametrize("share", [0.95, 0.5])
def test_a_value_of_many_observations_keeps_its_mass(share: float) -> None:
    many, rest = int(200 * share), np.random.default_rng(0).normal(size=200 - int(200 * share))
    x = np.concatenate([np.zeros(many), rest])
    p = SparseDensity(bandwidth=0.04, penalty=1e-5).fit(x[:, None]).density_
    near = torch.tensor([-0.05, 0.05], dtype=torch.float64)
    assert float(p.cdf(near).diff()) == pytest.approx((np.abs(x) < 0.05).mean(), abs=0.04)


def test_more_data_move_the_ends() -> None:
    x = two_uniforms(300)[:, None]
    model = SparseDensity(**GIVEN).fit(x[:100])
    first = model.support_
    model.partial_fit(x[100:])
    whole, uncut = model.support_, SparseDensity(base=box(x[:100]), **GIVEN).fit(x).support_
    assert not np.allclose(first, whole, atol=1e-4)
    assert (uncut[0, 0] <= whole[0, 0] <= x.min()) and (x.max() <= whole[-1, 1] <= uncut[-1, 1])


@pytest.mark.parametrize("smooth", [True, False])
def test_a_density_on_intervals(smooth: bool) -> None:
    """Its integrals, under a kernel with kinks, too, whose panels must end where the base does."""
    gaps = torch.tensor([[0.1, 0.4], [0.7, 0.9]], dtype=torch.float64)
    base = UniformOn(gaps, Uniform(0.0, 1.0))
    assert float(base.mean) == pytest.approx((0.15 * 0.5 + 0.32 / 2) / 0.5)
    due = (0.063 / 3 + (0.729 - 0.343) / 3) / 0.5 - float(base.mean) ** 2
    assert float(base.variance) == pytest.approx(due)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        away = (x - y.T).abs() / 0.2
        return torch.exp(-0.5 * away**2 if smooth else -away)

    points = torch.tensor([0.0, 0.5, 0.8], dtype=torch.float64)  # also off the intervals
    p = KernelDeformedExp(torch.tensor([1.0, -0.5, 0.7]).double(), points, kernel, base)

    def integral(of: Any) -> float:
        parts = [quad(lambda t: float(of(torch.tensor(t))), *ends)[0] for ends in gaps.tolist()]
        return sum(parts)

    torch.testing.assert_close(p.support.intervals, gaps)
    assert integral(p.prob) == pytest.approx(1, abs=1e-7)
    assert float(p.mean) == pytest.approx(integral(lambda t: t * p.prob(t)), abs=1e-7)
    entropy = integral(lambda t: -p.prob(t) * p.log_prob(t))
    assert float(p.entropy()) == pytest.approx(entropy, abs=1e-7)
    assert float(p.cdf(torch.tensor(0.55))) == pytest.approx(
        quad(lambda t: float(p.prob(torch.tensor(t))), 0.1, 0.4)[0], abs=1e-7
    )
    assert p.support.check(p.sample((200,))).all()
    levels = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    torch.testing.assert_close(p.cdf(p.icdf(levels)), levels)
