"""The adapter of torch's distributions, against scipy."""

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from battery import DOUBLE, number
from pyro.distributions import InverseGamma
from references import pieces
from scipy import stats
from scipy.special import gamma
from torch import Tensor
from torch import distributions as td

from sparsefam import BetaGaussian, Laplace, Mixture, MultivariateNormal, Normal, Truncated, bases
from sparsefam.distributions._torch_adapter import TorchUnivariate, wrap


def transformed(base: td.Distribution, *transforms: td.Transform) -> td.TransformedDistribution:
    return td.TransformedDistribution(base, list(transforms))


KNOWN = {
    "Beta": (td.Beta(number(2000.0), number(3000.0)), stats.beta(2000, 3000)),
    "Cauchy": (td.Cauchy(number(1.0), number(0.01)), stats.cauchy(1, 0.01)),
    "Exponential": (td.Exponential(number(3.0)), stats.expon(scale=1 / 3)),
    "FisherSnedecor": (td.FisherSnedecor(number(5.0), number(7.0)), stats.f(5, 7)),
    "Gamma": (td.Gamma(number(2.0), number(4.0)), stats.gamma(2, scale=0.25)),
    "Gamma-peak": (td.Gamma(number(0.3), number(1.0)), stats.gamma(0.3)),
    "Gumbel": (td.Gumbel(number(-1.0), number(2.0)), stats.gumbel_r(-1, 2)),
    "InverseGamma": (InverseGamma(number(3.0), number(2.0)), stats.invgamma(3, scale=2)),
    "LogNormal": (td.LogNormal(number(0.0), number(1.0)), stats.lognorm(1)),
    "Logistic": (
        transformed(td.Uniform(number(0.0), number(1.0)), td.SigmoidTransform().inv),
        stats.logistic(),
    ),
    "Gamma, doubled": (
        transformed(td.Gamma(number(2.0), number(1.0)), td.AffineTransform(0.0, 2.0)),
        stats.gamma(2, scale=2),
    ),
    "Gamma, shifted": (
        transformed(td.Gamma(number(2.0), number(1.0)), td.AffineTransform(number(-0.1), 2.0)),
        stats.gamma(2, -0.1, 2),
    ),
    "Gamma, logarithm": (
        transformed(td.Gamma(number(2.0), number(1.0)), td.ExpTransform().inv),
        stats.loggamma(2),
    ),
    "Gamma, inverted": (
        transformed(td.Gamma(number(3.0), number(1.0)), td.PowerTransform(number(-1.0))),
        stats.invgamma(3),
    ),
    "Beta, turned": (
        transformed(td.Beta(number(2.0), number(3.0)), td.AffineTransform(1.0, number(-3.0))),
        stats.beta(3, 2, -2, 3),
    ),
    "Beta, inverted": (
        transformed(td.Beta(number(2.0), number(3.0)), td.PowerTransform(number(-1.0))),
        stats.betaprime(3, 2, 1),
    ),
    "Gumbel, turned": (
        transformed(td.Gumbel(number(-1.0), number(2.0)), td.AffineTransform(0.0, number(-1.0))),
        stats.gumbel_l(1, 2),
    ),
    "LogNormal, shifted": (
        transformed(
            td.Normal(number(0.0), number(1.0)),
            td.ComposeTransform([td.ExpTransform(), td.AffineTransform(1.0, 3.0)]),
            td.AffineTransform(0.0, 1.0),
        ),
        stats.lognorm(1, 1, 3),
    ),
    "Pareto": (td.Pareto(number(1.0), number(2.5)), stats.pareto(2.5)),
    "StudentT": (td.StudentT(number(1.5)), stats.t(1.5)),
    "Uniform": (td.Uniform(number(1.0), number(3.0)), stats.uniform(1, 2)),
    "Weibull": (td.Weibull(number(1.0), number(1.5)), stats.weibull_min(1.5)),
}
every_known = pytest.mark.parametrize("name", KNOWN)
SHARES = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=DOUBLE)


@every_known
def test_distribution_functions_are_scipys(name: str) -> None:
    torchs, scipys = KNOWN[name]
    p, t = wrap(torchs), torch.as_tensor(scipys.ppf(SHARES.numpy()))
    assert isinstance(p, TorchUnivariate)
    below = torch.as_tensor(scipys.cdf(t.numpy()))  # SciPy 1.11's quantiles are less accurate
    torch.testing.assert_close(p.log_prob(t), torch.as_tensor(scipys.logpdf(t.numpy())))
    lower, upper = p._intervals()[0].tolist()
    assert (lower, upper) == pytest.approx(scipys.support())
    outside = torch.tensor([x for x in (lower - 1, upper + 1) if math.isfinite(x)], dtype=DOUBLE)
    assert (p.log_prob(outside) == -math.inf).all()
    torch.testing.assert_close(p.cdf(t), below, rtol=0, atol=1e-11)
    above = p.survival(t)
    torch.testing.assert_close(above, 1 - below, rtol=0, atol=1e-11)
    torch.testing.assert_close(p.icdf(SHARES), t, rtol=1e-8, atol=1e-8)
    assert p.cdf(outside).tolist() == [float(x > upper) for x in outside.tolist()]


def _beta(a: float, b: float, t: float) -> Any:
    return mp.betainc(a, b, 0, t, regularized=True)


def _gamma(k: float, start: Any, end: Any) -> Any:
    return mp.gammainc(k, start, end, regularized=True)


# Distributions of torch, the mass above a location far out, or below one, and such locations.
FAR: dict[str, tuple[str, tuple[float, ...], bool, Callable[[Any], Any], tuple[float, ...]]] = {
    "Gamma": ("Gamma", (2.0, 1.0), True, lambda t: _gamma(2, t, mp.inf), (40.0, 90.0, 600.0)),
    "Gamma at 0": ("Gamma", (0.5, 1.0), False, lambda t: _gamma(0.5, 0, t), (1e-50, 1e-200)),
    "Chi2": ("Chi2", (3.0,), True, lambda t: _gamma(1.5, t / 2, mp.inf), (90.0, 1200.0)),
    "InverseGamma": ("InverseGamma", (3.0, 1.0), True, lambda t: _gamma(3, 0, 1 / t), (1e5, 1e90)),
    "Beta": ("Beta", (50.0, 50.0), False, lambda t: _beta(50, 50, t), (0.05, 1e-5)),
    "StudentT": (
        "StudentT",
        (5.0,),
        True,
        lambda t: _beta(2.5, 0.5, 5 / (5 + t * t)) / 2,
        (1e5, 1e7, 1e59),
    ),
    "FisherSnedecor": (
        "FisherSnedecor",
        (3.0, 5.0),
        True,
        lambda t: _beta(2.5, 1.5, 5 / (5 + 3 * t)),
        (1e5, 1e110),
    ),
    "Gumbel": ("Gumbel", (0.0, 1.0), True, lambda t: -mp.expm1(-mp.exp(-t)), (50.0, 600.0)),
    "Gumbel below": ("Gumbel", (0.0, 1.0), False, lambda t: mp.exp(-mp.exp(-t)), (-3.0, -6.5)),
    "Weibull": ("Weibull", (1.0, 2.0), True, lambda t: mp.exp(-t * t), (5.0, 25.0)),
    "Cauchy": ("Cauchy", (0.0, 1.0), True, lambda t: mp.atan(1 / t) / mp.pi, (1e5, 1e100)),
    "LogNormal": (
        "LogNormal",
        (0.0, 1.0),
        True,
        lambda t: mp.erfc(mp.log(t) / mp.sqrt(2)) / 2,
        (1e5, 1e15),
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_tails_have_digits_at_any_distance(name: str) -> None:
    cls, numbers, upper, mass, far = FAR[name]
    base = getattr(td, cls)(*(torch.tensor(x, dtype=DOUBLE) for x in numbers))
    t = torch.tensor(far, dtype=DOUBLE)
    # Half as far from the middle, or twice.
    inner = t / 2 if upper == (t > 0).all() else 2 * t
    with mp.workdps(50):
        outside, inside = ([mass(mp.mpf(float(x))) for x in y] for y in (t, inner))
        tails = torch.tensor([float(mp.log(x)) for x in outside], dtype=DOUBLE)
        between = [float(mp.log(y - x)) for x, y in zip(outside, inside, strict=True)]
    for p in (wrap(base), Truncated(base)):
        found = p.log_survival(t) if upper else p.log_cdf(t)
        torch.testing.assert_close(found, tails, rtol=1e-11, atol=1e-9)
        ends = (inner, t) if upper else (t, inner)
        found = p.log_interval_prob(*ends)
        torch.testing.assert_close(
            found, torch.tensor(between, dtype=DOUBLE), rtol=1e-11, atol=1e-9
        )
    # The slope of a log tail is the hazard.
    x = t.clone().requires_grad_()
    log_tail = p.log_survival(x) if upper else p.log_cdf(x)
    (slope,) = torch.autograd.grad(log_tail.sum(), x)
    hazard = (p.log_prob(t) - tails).exp()
    torch.testing.assert_close(slope, -hazard if upper else hazard, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", ["FisherSnedecor", "StudentT"])
def test_upper_tails_without_a_formula_have_digits(name: str) -> None:
    torchs, scipys = KNOWN[name]
    t = torch.as_tensor(scipys.isf([1e-3, 1e-8, 1e-14]))
    due = torch.as_tensor(scipys.sf(t.numpy()))
    torch.testing.assert_close(wrap(torchs).survival(t), due, rtol=1e-6, atol=0)


@every_known
def test_expectations_are_scipys(name: str) -> None:
    torchs, scipys = KNOWN[name]
    p = wrap(torchs)
    nodes, weights = p.quadrature()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    rbf = bases.GaussianRBF([0.3, 1.0, 1.5, 2.5], [0.05, 0.5, 0.01, 3.0]).double()
    spline = bases.BSpline([-0.4, 0.2, 0.5, 1.0, 2.0], 2).double()
    # Divides the range at quantiles and where the functions are narrow.
    lower, upper = scipys.support()
    first, last = max(lower, scipys.ppf(1e-15), -30), min(upper, scipys.ppf(1 - 1e-15), 30)
    marks = [*scipys.ppf([0.01, 0.2, 0.4, 0.6, 0.8, 0.99]), -0.4, 0.05, 0.2, 0.3, 0.4, 0.5, 0.55]
    marks += [1.0, 1.4, 1.45, 1.5, 1.55, 1.6, 2.0, -25.0, -7.0, -2.0, 3.0, 5.0, 12.0, 25.0]
    marks += [lower + 10.0**k for k in range(-40, 0)]  # it may be infinite there
    inner = {x for x in marks if first < x < last}
    t, dt = pieces(scipys.pdf, sorted({*inner, first, last})).rule()
    for psi in (rbf, spline):
        expected = (psi(torch.as_tensor(t)).mT.numpy() * (scipys.pdf(t) * dt)).sum(-1)
        torch.testing.assert_close(p.expect(psi), torch.as_tensor(expected), rtol=1e-8, atol=1e-8)
    if math.isfinite(scipys.mean()):
        assert p.mean.item() == pytest.approx(scipys.mean(), abs=1e-9)
        assert (weights * nodes).sum().item() == pytest.approx(scipys.mean(), rel=1e-6, abs=1e-9)
    if math.isfinite(scipys.var()):
        assert p.variance.item() == pytest.approx(scipys.var(), rel=1e-8)


def test_waves_have_the_characteristic_function_or_are_refused() -> None:
    frequencies = [0.1, 1.0, 5.0, 10.0]
    waves = bases.Fourier(torch.tensor(frequencies, dtype=DOUBLE))
    p = td.Gumbel(number(0.5), number(1.0))
    exact = np.array([gamma(1 - 1j * w) * np.exp(0.5j * w) for w in frequencies])
    expected = torch.as_tensor(np.concatenate([exact.real, exact.imag]))
    torch.testing.assert_close(wrap(p).expect(waves), expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="frequencies must be low enough to integrate .*Gumbel"):
        wrap(p).expect(bases.Fourier([1000.0]))


def test_own_classes_are_preferred() -> None:
    loc, scale = torch.zeros(3), torch.ones(3)
    assert type(wrap(td.Normal(loc, scale))) is Normal
    assert type(wrap(td.Laplace(loc, scale))) is Laplace
    assert type(wrap(td.MultivariateNormal(loc, torch.eye(3)))) is MultivariateNormal
    assert type(wrap(td.Independent(td.Normal(loc, scale), 1))) is MultivariateNormal
    parts = td.Normal(number([-1.0, 20.0]), number([0.3, 0.01]))
    mixed = td.MixtureSameFamily(td.Categorical(torch.ones(2)), parts)
    assert type(wrap(mixed)) is Mixture
    assert Truncated(mixed, -3.0).log_mass.item() == pytest.approx(0.0, abs=1e-10)
    own = BetaGaussian(0.0, 1.0, 1.5)
    assert wrap(own) is own

    class Shifted(td.Normal):
        """A user's own class may mean anything."""

        def log_prob(self, value: Tensor) -> Tensor:
            return super().log_prob(value - 1)

    found = wrap(Shifted(loc, scale)).log_prob(torch.ones(3))
    torch.testing.assert_close(found, Normal(loc, scale).log_prob(torch.zeros(3)))


class Mirrored(td.Distribution):
    """A Gamma distribution mirrored at 0, which has no more than log_prob and support."""

    arg_constraints = {}
    support = td.constraints.less_than(0.0)

    def __init__(self, shape: Tensor) -> None:
        self.gamma = td.Gamma(shape, 4.0 * torch.ones_like(shape))
        super().__init__(shape.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.gamma.log_prob(-value)


def test_a_density_needs_no_more_than_log_prob_and_support() -> None:
    p, q = wrap(Mirrored(number(2.0))), stats.gamma(2, scale=0.25)
    t = -torch.as_tensor(q.ppf(SHARES.numpy()))
    torch.testing.assert_close(p.log_prob(t), torch.as_tensor(q.logpdf(-t.numpy())))
    torch.testing.assert_close(p.icdf(1 - SHARES), t, rtol=1e-9, atol=0)
    assert p.entropy().item() == pytest.approx(q.entropy()) and p.mode.item() == pytest.approx(
        -0.25
    )
    assert p.mean.item() == pytest.approx(-0.5) and p.variance.item() == pytest.approx(0.125)
    assert p._intervals().tolist() == [[-math.inf, 0.0]]


def test_a_half_line_turned_in_a_part_of_a_batch_is_refused() -> None:
    base = td.Gamma(number(2.0), number([1.0, 1.0]))
    with pytest.raises(ValueError, match="transforms must be of one sign in a batch"):
        Truncated(transformed(base, td.AffineTransform(0.0, number([2.0, -2.0]))), 0.0, 1.0)
    base = td.Beta(number([2.0, 2.0]), number(3.0))
    with pytest.raises(ValueError, match="to turn intervals up to an end of the domain"):
        wrap(transformed(base, td.PowerTransform(number([1.0, -1.0])))).cdf(number(2.0))
    with pytest.raises(ValueError, match="transforms must be bijective, got AbsTransform"):
        wrap(transformed(td.Normal(number(0.0), number(1.0)), td.AbsTransform())).cdf(number(1.0))


def test_the_mode_is_searched_where_torchs_is_nan() -> None:
    p = td.Kumaraswamy(number(2.0), number(3.0))
    assert wrap(p).mode.item() == pytest.approx((1 / 5) ** 0.5)


def test_discrete_distributions_and_missing_mass_are_refused() -> None:
    with pytest.raises(ValueError, match="must be continuous to have a density"):
        wrap(td.Poisson(number(1.0)))
    # A pole that rounding cuts off.
    p = wrap(td.Gamma(number(0.01), number(1.0)))
    assert p.log_prob(number(0.5)).item() == pytest.approx(stats.gamma(0.01).logpdf(0.5))
    with pytest.raises(ValueError, match="Gamma must be a density on the line whose mass"):
        p.expect(torch.tanh)
    with pytest.raises(ValueError, match="order must be from 1"):
        p.quadrature(0)
