"""Densities from functions, against scipy: open ends, narrow peaks, powers, tails, bad input."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE
from refusals import refused
from scipy import stats
from torch import Tensor
from torch.distributions import Cauchy, kl_divergence

from sparsefam import Density, Mixture, Normal, Truncated, TruncatedParabola, bases

LEVELS = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.9, 0.999], dtype=DOUBLE)


def normal(t: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((t - loc) / scale).square()


def power(t: Tensor, m: Tensor) -> Tensor:
    return m * torch.log((1 - t.square()).clamp_min(0))


def make(
    function: Callable[..., Tensor], low: float, high: float, marks: Any = (), **parameters: float
) -> Density:
    given = {name: torch.tensor(x, dtype=DOUBLE) for name, x in parameters.items()}
    ends = (x if math.isinf(x) else torch.tensor(x, dtype=DOUBLE) for x in (low, high))
    return Density(function, *ends, marks, **given)


LINE, HALF = (-math.inf, math.inf, ()), (0.0, math.inf, ())


def student(t: Tensor, a: Tensor) -> Tensor:
    return -(a + 1) / 2 * torch.log1p(t.square() / a)


# The function, ends and breakpoints, parameters, the distribution of scipy, and the error. Of a far
# peak rounding of locations is 1e-10 of the scale.
LAWS: dict[str, tuple[Any, ...]] = {
    "normal": (normal, LINE, {"loc": 3.0, "scale": 2.0}, stats.norm(3, 2), 1e-13),
    "far peak": (normal, LINE, {"loc": 1e3, "scale": 1e-3}, stats.norm(1e3, 1e-3), 1e-9),
    "narrow peak": (
        *(normal, (0.0, 2e3, ()), {"loc": 1000.3, "scale": 1e-3}),
        *(stats.norm(1000.3, 1e-3), 1e-9),
    ),
    "exponential": (lambda t, a: -a * t, HALF, {"a": 3.0}, stats.expon(0, 1 / 3), 1e-13),
    "gamma": (lambda t, a: (a - 1) * t.log() - t, HALF, {"a": 0.3}, stats.gamma(0.3), 1e-12),
    "beta": (
        lambda t, a: (a - 1) * torch.log(t) - 0.3 * torch.log1p(-t),
        *((0.0, 1.0, ()), {"a": 0.6}, stats.beta(0.6, 0.7), 1e-8),
    ),
    "laplace": (
        lambda t, a: -(t - 1).abs() / a,
        *((-math.inf, math.inf, (1.0,)), {"a": 0.5}, stats.laplace(1, 0.5), 1e-13),
    ),
    "student": (student, LINE, {"a": 3.0}, stats.t(3), 1e-13),
    "root": (power, (-2.0, 3.0, (-1.0, 1.0)), {"m": 0.5}, stats.rdist(3), 2e-11),
    "open root": (power, (-math.inf, math.inf, (1, -1)), {"m": 0.5}, stats.rdist(3), 2e-11),
}


@pytest.mark.parametrize("name", LAWS)
def test_quantities_are_scipys(name: str) -> None:
    function, ends, parameters, law, close = LAWS[name]
    p, t = make(function, *ends, **parameters), torch.as_tensor(law.ppf(LEVELS.numpy()))
    found = [(p.mean - law.mean()) / law.std(), p.variance / law.var() - 1]
    found += [p.entropy() - law.entropy(), *(p.cdf(t) - torch.as_tensor(law.cdf(t.numpy())))]
    found += [*(p.log_prob(t) - torch.as_tensor(law.logpdf(t.numpy())))]
    found += [*(torch.as_tensor(law.cdf(p.icdf(LEVELS).numpy())) - LEVELS)]
    assert torch.stack(found).abs().max() < close
    assert p.prob(p.mode) >= p.prob(t).max()
    torch.manual_seed(0)
    assert stats.kstest(p.rsample((400,)).numpy(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("unit", [1e-150, 1e-30, 1e30, 1e150])
@pytest.mark.parametrize("name", LAWS)
def test_quantities_scale_with_the_unit(name: str, unit: float) -> None:
    function, (low, high, marks), parameters, law, close = LAWS[name]
    if name in ("far peak", "narrow peak"):
        return  # next to each other in float64

    def scaled(t: Tensor, **given: Tensor) -> Tensor:
        return function(t / unit, **given)

    ends = low * unit if low else low, high * unit, [x * unit for x in marks]
    p, t = make(scaled, *ends, **parameters), torch.as_tensor(law.ppf(LEVELS.numpy()))
    found = [(p.mean / unit - law.mean()) / law.std()]
    found += [p.entropy() - math.log(unit) - law.entropy(), *(p.cdf(t * unit) - LEVELS)]
    found += [*(torch.as_tensor(law.cdf((p.icdf(LEVELS) / unit).numpy())) - LEVELS)]
    assert torch.stack(found).abs().max() < 10 * close


def test_moments_that_do_not_exist_are_infinite_or_nan() -> None:
    p = make(lambda t, a: -a * torch.log1p(t.square()), -math.inf, math.inf, a=1.0)
    assert p.entropy().item() == pytest.approx(math.log(4 * math.pi), abs=1e-12)
    assert p.mean.isnan() and p.variance == math.inf
    # The tail that is left has the sign.
    cut = Truncated(p, torch.tensor([2.0, -math.inf, 2.0]), torch.tensor([math.inf, 2.0, 3.0]))
    assert cut.mean[:2].tolist() == [math.inf, -math.inf]
    between = Truncated(Cauchy(*torch.tensor([0.0, 1.0], dtype=DOUBLE)), 2.0, 3.0)
    torch.testing.assert_close(cut.mean[2], between.mean)


def test_densities_mix_truncate_and_compare() -> None:
    p = make(normal, -8.0, 9.0, loc=0.5, scale=1.0)
    q = Normal(*torch.tensor([0.5, 1.0], dtype=DOUBLE))
    cut = Truncated(p, 1.0, 2.0)
    torch.testing.assert_close(cut.mean, Truncated(q, 1.0, 2.0).mean, rtol=1e-12, atol=0)
    other = TruncatedParabola(*torch.tensor([0.0, 1.0], dtype=DOUBLE))
    mixed, exact = (Mixture(torch.zeros(2, dtype=DOUBLE), [x, other]) for x in (p, q))
    torch.testing.assert_close(mixed.entropy(), exact.entropy(), rtol=1e-10, atol=0)
    torch.testing.assert_close(mixed.icdf(LEVELS), exact.icdf(LEVELS), rtol=1e-9, atol=1e-9)
    expected = kl_divergence(other, q)
    torch.testing.assert_close(kl_divergence(other, p), expected, rtol=1e-11, atol=0)


def test_breakpoints_may_be_learned() -> None:
    edge = torch.tensor(0.25, dtype=DOUBLE, requires_grad=True)

    def mean(edge: Tensor) -> Tensor:
        p = Density(lambda t, e: torch.where(t < e, 0.0, 1.0), 0.0, 1.0, [edge], e=edge)
        return torch.cat([p.mean[None], p.expect(bases.GaussianRBF([0.5], 0.1).double())])

    (slope,) = torch.autograd.grad(mean(edge)[0], edge)
    # The density is e on [0, edge] and 1 up to a factor.
    rise = math.e - 1
    mass, first = 0.25 + 0.75 * math.e, 0.5 * (math.e - 0.0625 * rise)
    exact = (-0.25 * rise * mass + first * rise) / mass**2
    assert slope.item() == pytest.approx(exact, rel=1e-9)
    assert torch.autograd.gradcheck(mean, edge)


# Integrals of the first are infinite, of the next too slow for float64.
TAILS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "level": (lambda t: 0 * t, 0.0),
    "rising": (torch.log, 0.0),
    "1/t": (lambda t: -torch.log1p(t), 0.0),
    "1/(t log t)": (lambda t: -(t * t.log()).log(), 2.0),
    "1/sqrt(t)": (lambda t: -0.5 * torch.log1p(t), 0.0),
    "overflows": (lambda t: -0.5 * torch.log1p(t.square()), 0.0),
    "t**-1.01": (lambda t: -1.01 * t.log(), 1.0),
    "1/(t log(t)**2)": (lambda t: -(t * t.log().square()).log(), 2.0),
}


@pytest.mark.parametrize("name", TAILS)
def test_tails_without_an_integral_are_refused(name: str) -> None:
    function, start = TAILS[name]
    for f, ends in (
        (function, (start, math.inf)),
        (lambda t: function(-t), (-math.inf, -start)),
        (lambda t: function(t.abs() + start), (-math.inf, math.inf)),
    ):
        with pytest.raises(ValueError, match=r"log_prob must be .*got"):
            Density(f, *ends, [0.0])


@pytest.mark.parametrize("power", [1.05, 1.5, 4.0])
def test_tails_of_powers_have_their_mass(power: float) -> None:
    p = Density(lambda t: -power * t.log(), 1.0, math.inf)
    assert p._log_mass.exp().item() == pytest.approx(1 / (power - 1), rel=1e-9)


@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)])
@pytest.mark.parametrize("widths", [(1e-4, 1e-4), (3e-4, 1e-4)])
def test_peaks_at_breakpoints(widths: tuple[float, float], ends: tuple[float, float]) -> None:
    laws = [stats.norm(loc, width) for loc, width in zip((0.1, 0.9), widths, strict=True)]

    def log_prob(t: Tensor) -> Tensor:
        parts = [-0.5 * ((t - x.mean()) / x.std()) ** 2 - math.log(x.std()) for x in laws]
        return torch.logaddexp(*parts)

    p = Density(log_prob, *ends, [0.1, 0.9])
    masses = [x.cdf(ends[1]) - x.cdf(ends[0]) for x in laws]
    below = sum(x.cdf(0.5) - x.cdf(ends[0]) for x in laws) / sum(masses)
    assert p.cdf(torch.tensor(0.5, dtype=DOUBLE)).item() == pytest.approx(below, rel=1e-10)
    mass = math.sqrt(2 * math.pi) * sum(masses)
    assert p._log_mass.exp().item() == pytest.approx(mass, rel=1e-10)


test_bad_arguments_are_named = refused(
    [
        ((torch.neg, 2.0, 1.0), "low must be below high"),
        ((torch.neg, 0.0, torch.tensor(math.inf)), "high must be a finite tensor, got inf"),
        ((torch.sum, 0.0, 1.0), "log_prob must map locations .* to a tensor of that shape, got"),
        ((lambda t: torch.sqrt(t - 1), 0.0, 2.0), "log_prob must be a number, or -inf"),
        ((lambda t: torch.log(0 * t), 0.0, 2.0), "with a finite integral, got -?(inf|nan)"),
        ((torch.square, 0.0, math.inf), "smooth between breakpoints"),
        ((lambda t: 9 * torch.sin(300 * t), 0.0, 1.0), "smooth between breakpoints"),
        ((lambda t: -1.5 * t.log(), 0.0, 1.0), "smooth between breakpoints"),
    ],
    of=lambda arguments: Density(*arguments),
)


@pytest.mark.parametrize("name", [*dir(Density), "alpha", "_own"])
def test_parameters_may_not_shadow_members(name: str) -> None:
    if name not in ("low", "high", "log_prob"):  # which are arguments of the constructor
        with pytest.raises(ValueError, match=f"parameters must have names .*, got '{name}'"):
            Density(lambda t, **_: -t, 0.0, 1.0, **{name: 1.0})
