"""Densities of torch's with the members of ours, against scipy."""

import math

import numpy as np
import pytest
import torch
from mixtures import integration_rule
from pyro.distributions import Delta, InverseGamma
from scipy import stats
from scipy.special import gamma
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck

from sparsefam import BetaGaussian, Laplace, MultivariateNormal, Normal, bases
from sparsefam.distributions.adoption import adopted, intervals_of, tail_of
from sparsefam.distributions.coordinate import Coordinate
from sparsefam.distributions.foreign_line import ForeignOnLine

DOUBLE = torch.float64


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=DOUBLE)


KNOWN = {
    "Beta": (td.Beta(number(2.0), number(3.0)), stats.beta(2, 3)),
    "Beta-narrow": (td.Beta(number(2000.0), number(3000.0)), stats.beta(2000, 3000)),
    "Cauchy": (td.Cauchy(number(1.0), number(0.01)), stats.cauchy(1, 0.01)),
    "Chi2": (td.Chi2(number(3.0)), stats.chi2(3)),
    "Exponential": (td.Exponential(number(3.0)), stats.expon(scale=1 / 3)),
    "FisherSnedecor": (td.FisherSnedecor(number(5.0), number(7.0)), stats.f(5, 7)),
    "Gamma": (td.Gamma(number(2.0), number(4.0)), stats.gamma(2, scale=0.25)),
    "Gamma-peak": (td.Gamma(number(0.3), number(1.0)), stats.gamma(0.3)),
    "Gumbel": (td.Gumbel(number(-1.0), number(2.0)), stats.gumbel_r(-1, 2)),
    "HalfCauchy": (td.HalfCauchy(number(1.0)), stats.halfcauchy()),
    "HalfNormal": (td.HalfNormal(number(2.0)), stats.halfnorm(scale=2)),
    "InverseGamma": (InverseGamma(number(3.0), number(2.0)), stats.invgamma(3, scale=2)),
    "LogNormal": (td.LogNormal(number(0.0), number(1.0)), stats.lognorm(1)),
    "Logistic": (
        td.TransformedDistribution(
            td.Uniform(number(0.0), number(1.0)), [td.SigmoidTransform().inv]
        ),
        stats.logistic(),
    ),
    "Pareto": (td.Pareto(number(1.0), number(2.5)), stats.pareto(2.5)),
    "StudentT": (td.StudentT(number(3.0)), stats.t(3)),
    "StudentT-wide": (td.StudentT(number(1.5)), stats.t(1.5)),
    "Uniform": (td.Uniform(number(1.0), number(3.0)), stats.uniform(1, 2)),
    "Weibull": (td.Weibull(number(1.0), number(1.5)), stats.weibull_min(1.5)),
}
every_known = pytest.mark.parametrize("name", KNOWN)
SHARES = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=DOUBLE)


@every_known
def test_distribution_functions_are_scipys(name: str) -> None:
    torchs, scipys = KNOWN[name]
    p, t = adopted(torchs), torch.as_tensor(scipys.ppf(SHARES.numpy()))
    assert isinstance(p, ForeignOnLine)
    below = torch.as_tensor(scipys.cdf(t.numpy()))  # SciPy 1.11's quantiles are of fewer digits
    torch.testing.assert_close(p.cdf(t), below, rtol=0, atol=1e-11)
    above = tail_of(p, t, torch.ones(len(t), dtype=torch.bool))
    torch.testing.assert_close(above, 1 - below, rtol=0, atol=1e-11)
    torch.testing.assert_close(p.icdf(SHARES), t, rtol=1e-8, atol=1e-8)
    lower, upper = intervals_of(p)[0].tolist()
    assert (lower, upper) == pytest.approx(scipys.support())
    outside = torch.tensor([x for x in (lower - 1, upper + 1) if math.isfinite(x)], dtype=DOUBLE)
    assert (p.log_prob(outside) == -math.inf).all()
    assert p.cdf(outside).tolist() == [float(x > upper) for x in outside.tolist()]
    torch.testing.assert_close(p.log_prob(t), torch.as_tensor(scipys.logpdf(t.numpy())))


@every_known
def test_expectations_are_scipys(name: str) -> None:
    torchs, scipys = KNOWN[name]
    p = adopted(torchs)
    nodes, weights = p.quadrature()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    rbf = bases.GaussianRBF([0.3, 1.0, 1.5, 2.5], [0.05, 0.5, 0.01, 3.0]).double()
    spline = bases.BSpline([-0.4, 0.2, 0.5, 1.0, 2.0], 2).double()
    # All but a rounding error of the mass, the bulk of it, and where the functions are narrow.
    lower, upper = scipys.support()
    first, last = max(lower, scipys.ppf(1e-15), -30), min(upper, scipys.ppf(1 - 1e-15), 30)
    marks = [*scipys.ppf([0.01, 0.2, 0.4, 0.6, 0.8, 0.99]), -0.4, 0.05, 0.2, 0.3, 0.4, 0.5, 0.55]
    marks += [1.0, 1.4, 1.45, 1.5, 1.55, 1.6, 2.0, -25.0, -7.0, -2.0, 3.0, 5.0, 12.0, 25.0]
    marks += [lower + 10.0**k for k in range(-40, 0)]  # it may be infinite there
    inner = {x for x in marks if first < x < last}
    t, dt = integration_rule(sorted({*inner, first, last}))
    for psi in (rbf, spline):
        expected = (psi(torch.as_tensor(t)).mT.numpy() * (scipys.pdf(t) * dt)).sum(-1)
        torch.testing.assert_close(p.expect(psi), torch.as_tensor(expected), rtol=1e-8, atol=1e-8)
    if math.isfinite(scipys.mean()):
        assert p.mean.item() == pytest.approx(scipys.mean(), abs=1e-9)
        assert (weights * nodes).sum().item() == pytest.approx(scipys.mean(), rel=1e-6, abs=1e-9)
    if math.isfinite(scipys.var()):
        assert p.variance.item() == pytest.approx(scipys.var(), rel=1e-8)


WAVES = {
    "Exponential": (td.Exponential(number(2.0)), lambda w: 1 / (1 - 0.5j * w)),
    "Gamma": (td.Gamma(number(3.0), number(1.0)), lambda w: (1 - 1j * w) ** -3.0),
    "Gumbel": (td.Gumbel(number(0.5), number(1.0)), lambda w: gamma(1 - 1j * w) * np.exp(0.5j * w)),
}


@pytest.mark.parametrize("name", WAVES)
def test_waves_have_the_characteristic_function_or_are_refused(name: str) -> None:
    p, characteristic = WAVES[name]
    frequencies = [0.1, 1.0, 5.0, 10.0]
    exact = np.array([characteristic(w) for w in frequencies])
    found = adopted(p).expect(bases.Fourier(torch.tensor(frequencies, dtype=DOUBLE)))
    expected = torch.as_tensor(np.concatenate([exact.real, exact.imag]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=f"frequencies must be low enough to integrate .*{name}"):
        adopted(p).expect(bases.Fourier([1000.0]))


def test_steep_tails_have_finite_derivatives() -> None:
    """A Gumbel density underflows where its logarithm is -1e300, with a slope to match."""
    psi = bases.GaussianRBF(torch.tensor([-1.0, 0.5, 2.0], dtype=DOUBLE), 3.0)
    for scale in (1e-4, 1e-2, 1.0):
        loc = number(0.75).requires_grad_()
        p = adopted(td.Gumbel(loc, number(scale)))
        t = torch.linspace(-8, 45, 200_001, dtype=DOUBLE) * scale + 0.75
        # The trapezoidal rule on a whole analytic density is exact.
        value, slope = torch.func.jvp(psi, (t,), (torch.ones_like(t),))
        mass = adopted(td.Gumbel(number(0.75), number(scale))).prob(t).unsqueeze(-1)
        exact, slopes = ((mass * x).sum(0) * (t[1] - t[0]) for x in (value, slope))
        torch.testing.assert_close(p.expect(psi), exact, rtol=1e-8, atol=0)
        for j in range(3):
            (found,) = torch.autograd.grad(p.expect(psi)[j], loc)
            torch.testing.assert_close(found, slopes[j], rtol=1e-6, atol=0)


def test_own_classes_take_over_where_there_are_some() -> None:
    loc, scale = torch.zeros(3), torch.ones(3)
    assert type(adopted(td.Normal(loc, scale))) is Normal
    assert type(adopted(td.Laplace(loc, scale))) is Laplace
    assert type(adopted(td.MultivariateNormal(loc, torch.eye(3)))) is MultivariateNormal
    assert type(adopted(td.Independent(td.Normal(loc, scale), 1))) is MultivariateNormal
    own = BetaGaussian(0.0, 1.0, 1.5)
    assert adopted(own) is own

    class Shifted(td.Normal):
        """A user's own class may mean anything."""

        def log_prob(self, value: Tensor) -> Tensor:
            return super().log_prob(value - 1)

    found = adopted(Shifted(loc, scale)).log_prob(torch.ones(3))
    torch.testing.assert_close(found, Normal(loc, scale).log_prob(torch.zeros(3)))


def test_derivatives_are_those_of_differences() -> None:
    a, b = (number(x).requires_grad_() for x in (2.3, 3.4))
    t, u = number(0.4), torch.tensor([0.2, 0.7], dtype=DOUBLE)
    psi = bases.GaussianRBF([0.3, 0.5], 0.1).double()
    for make in (td.Beta, td.Gamma, lambda a, b: td.Uniform(-a, b)):
        for ask in (
            lambda p: p.cdf(t),
            lambda p: p.icdf(u),
            lambda p: p.expect(psi),
            lambda p: p.expect(torch.tanh),
            lambda p: p.generalized_covariance(psi, psi),
        ):
            assert gradcheck(lambda a, b, make=make, ask=ask: ask(adopted(make(a, b))), (a, b))


class Mirrored(td.Distribution):
    """A Gamma law mirrored at 0, which says nothing but its density and support."""

    arg_constraints = {}
    support = td.constraints.less_than(0.0)

    def __init__(self, shape: Tensor) -> None:
        self.gamma = td.Gamma(shape, 4.0 * torch.ones_like(shape))
        super().__init__(shape.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.gamma.log_prob(-value)


def test_densities_of_which_torch_knows_little_are_integrated() -> None:
    p, q = adopted(Mirrored(number(2.0))), stats.gamma(2, scale=0.25)
    t = -torch.as_tensor(q.ppf(SHARES.numpy()))
    torch.testing.assert_close(p.cdf(t), 1 - SHARES, rtol=0, atol=1e-10)
    torch.testing.assert_close(p.icdf(1 - SHARES), t, rtol=1e-7, atol=0)
    assert p.mean.item() == pytest.approx(-0.5) and p.variance.item() == pytest.approx(0.125)
    assert intervals_of(p).tolist() == [[-math.inf, 0.0]]
    with pytest.raises(NotImplementedError, match="Mirrored does not know its mode"):
        _ = p.mode


@pytest.mark.parametrize("ends", [(0.5, 3.0), (0.5, None), (None, 3.0), (None, None)])
def test_coordinates_go_from_end_to_end(ends: tuple[float | None, float | None]) -> None:
    lower, upper = (x if x is None else number(x) for x in ends)
    c = Coordinate(lower, upper, number(1.0), number(0.25))
    y = torch.linspace(-0.6, 0.6, 9, dtype=DOUBLE).requires_grad_() * c.reach
    t, slope = c.locations(y)
    torch.testing.assert_close(c.of(t), y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(t.sum(), y)[0], slope)
    first, _, last = c.locations(torch.tensor([-1.0, 0.0, 1.0], dtype=DOUBLE) * c.reach)[0]
    assert first == pytest.approx(ends[0], abs=1e-3) if ends[0] is not None else first < -50
    assert last == pytest.approx(ends[1], abs=1e-3) if ends[1] is not None else last > 50
    assert c.locations(number(0.0))[0] == pytest.approx(1.0)


def test_means_that_torch_does_not_know_are_integrated() -> None:
    logistic = adopted(KNOWN["Logistic"][0])
    assert logistic.mean == pytest.approx(0, abs=1e-12)
    assert logistic.variance == pytest.approx(math.pi**2 / 3, rel=1e-10)
    with pytest.raises(ValueError, match="order must be at least 1"):
        logistic.quadrature(0)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (td.VonMises(number(0.0), number(1.0)), "VonMises must be a density on a line"),
        (td.Independent(td.VonMises(torch.zeros(2), torch.ones(2)), 1), "VonMises must be"),
        (Delta(number(0.0)), "Delta must be a density"),
        (td.TransformedDistribution(td.Normal(number(0.0), 1.0), [td.ExpTransform()]), None),
        (td.ContinuousBernoulli(number(0.3)), None),
        (td.Poisson(number(1.0)), "a law must be continuous"),
        (
            td.MixtureSameFamily(
                td.Categorical(torch.ones(2)), td.Normal(number(1e4) * torch.arange(2), number(1.0))
            ),
            "MixtureSameFamily must be a density on a line, of mass 1 at these nodes, got",
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, td.Distribution) else "",
)
def test_laws_without_a_mass_of_one_are_refused(law: td.Distribution, words: str | None) -> None:
    if words is None:
        for order in (1, 64):
            assert adopted(law).quadrature(order)[1].sum(0).allclose(number(1.0))
    else:
        with pytest.raises(ValueError, match=words):
            adopted(law)


def test_sums_that_miss_mass_are_refused() -> None:
    """A density with a pole that rounding cuts off: its logarithm is known, its mean is not."""
    p = adopted(td.Gamma(number(0.01), number(1.0)))
    assert p.log_prob(number(0.5)).item() == pytest.approx(stats.gamma(0.01).logpdf(0.5))
    with pytest.raises(ValueError, match="Gamma must be a density on a line, of mass 1 at these"):
        p.expect(torch.tanh)


def test_quantiles_integrate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    p, made = adopted(td.Gamma(number(2.0), number(4.0))), []
    masses = ForeignOnLine._kept_masses._function
    monkeypatch.setattr(
        ForeignOnLine._kept_masses, "_function", lambda p: made.append(p) or masses(p)
    )
    batch = p.expand((3,))
    for q in (p, batch):
        with torch.no_grad():
            q.icdf(SHARES.unsqueeze(-1))
    assert made == [p, batch]
