"""Derivatives where an end, a center, a breakpoint or a location of functions are the same number.

There a branch that is right for values can move with the wrong one of the two.
"""

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from battery import double, number
from torch import Tensor
from torch import distributions as td
from torch.autograd import gradcheck

import sparsefam as sf
from sparsefam.bases import BSpline, GaussianRBF


def _mixed(loc: Tensor, scale: Tensor) -> sf.Mixture:
    return sf.Mixture(double(0, 0), [sf.TruncatedParabola(loc, scale), sf.Triangular(loc, scale)])


# All have loc 0.5 and scale 1.
LAWS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "Normal": sf.Normal,
    "Laplace": sf.Laplace,
    "TruncatedParabola": sf.TruncatedParabola,
    "BetaGaussian": lambda loc, scale: sf.BetaGaussian(loc, scale, 1.5),
    "BetaLaplace": lambda loc, scale: sf.BetaLaplace(loc, scale, 1.75),
    "LocationScale": lambda loc, scale: sf.LocationScale(loc, scale, torch.cosh),
    "ScaledBeta": lambda loc, scale: sf.ScaledBeta(loc - scale, loc + scale, loc, 4.0),
    "Mixture": _mixed,
    "Gumbel": td.Gumbel,
    "SoftLaplace": dist.SoftLaplace,
}
# With locations between the ends.
ENDS: dict[str, tuple[Callable[[Any, Tensor], Any], Tensor]] = {
    "hurdle": (lambda p, end: sf.Hurdle(p, end), double(0.5, 0.75)),
    "beside": (lambda p, end: sf.Truncated(p, 0.0, 2 * end), double(0.5, 0.75)),
    "above": (lambda p, end: sf.Truncated(p, end, 1.0), double(0.625, 0.75)),
    "below": (lambda p, end: sf.Truncated(p, 0.0, end), double(0.25, 0.375)),
}


def quantities(p: Any, t: Tensor) -> Tensor:
    """Of a law, at ascending locations between its ends and atoms."""
    psi = [GaussianRBF([0.5], 0.25).double(), BSpline([0.0, 0.5, 1.0], 1).double()]
    return torch.cat(
        [
            torch.stack([p.mean, p.variance, p.entropy(), p.skewness]),
            *(p.icdf(double(0.3, 0.8)), *(p.expect(x) for x in psi)),
            *(f(t) for f in (p.cdf, p.survival, p.log_cdf, p.log_survival)),
            *(f(t[:-1], t[1:]) for f in (p.interval_prob, p.log_interval_prob)),
        ]
    )


@pytest.mark.parametrize("where", ENDS)
@pytest.mark.parametrize("name", LAWS)
def test_ends_at_centers(name: str, where: str) -> None:
    cut, t = ENDS[where]

    def found(loc: Tensor, scale: Tensor, end: Tensor) -> Tensor:
        return quantities(cut(LAWS[name](loc, scale), end), t)

    leaves = [number(x).requires_grad_() for x in (0.5, 1.0, 0.5)]
    assert gradcheck(found, leaves, fast_mode=True)


def test_breakpoints_at_ends() -> None:
    def found(rate: Tensor, low: Tensor, high: Tensor) -> Tensor:
        p = sf.Density(lambda t, a: -a * (t - 0.25).abs(), low, high, [0.0, 0.25, 1.0], a=rate)
        return quantities(p, double(0.25, 0.5))

    leaves = [number(x).requires_grad_() for x in (1.5, 0.0, 1.0)]
    assert gradcheck(found, leaves, fast_mode=True)


# Without coincidences, of every kind of base
BASES: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "Normal": (sf.Normal, (0.25, 1.25)),
    "Gamma": (td.Gamma, (2.0, 1.5)),
    "Gamma-pole": (td.Gamma, (0.75, 1.5)),
    "Chi2": (td.Chi2, (3.0,)),
    "InverseGamma": (dist.InverseGamma, (9.0, 8.0)),
    "log-Gamma": (
        lambda k, r: td.TransformedDistribution(td.Gamma(k, r), [td.ExpTransform().inv]),
        (2.0, 1.5),
    ),
    "Gammas": (
        lambda k, r: sf.Mixture(0 * k + torch.zeros(2), td.Gamma(k + double(0, 1), r)),
        (2, 1.5),
    ),
    "Beta": (td.Beta, (2.0, 3.0)),
    "StudentT": (td.StudentT, (12.0, 0.5, 1.5)),
    "Weibull": (td.Weibull, (1.25, 1.75)),
    "BetaLaplace": (sf.BetaLaplace, (1.0, 2.0, 1.75)),
    "ScaledBeta": (sf.ScaledBeta, (0.0, 3.0, 1.0, 4.0)),
    "Density": (lambda a: sf.Density(lambda t, a: -a * t**1.5, 0.0, 2.0, a=a), (1.25,)),
    "Truncated": (lambda k, r: sf.Truncated(td.Gamma(k, r), 0.125, 4.0), (2.0, 1.5)),
}
QUICK = ["Normal", "Gamma", "InverseGamma", "log-Gamma", "Weibull"]
SLOW = [name for name in BASES if name not in QUICK]


@pytest.mark.parametrize("law", [sf.Hurdle, sf.Censored], ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", QUICK + [pytest.param(x, marks=pytest.mark.slow) for x in SLOW])
def test_gradients_of_every_method(name: str, law: Any) -> None:
    make, numbers = BASES[name]
    levels = sf.Hurdle(make(*map(number, numbers)), 0.0).icdf(double(0.25, 0.5, 0.625, 0.875))
    own = [0.375] if law is sf.Hurdle else levels[[0, -1]].tolist()
    leaves = [number(x).requires_grad_() for x in (*numbers, *own)]

    def found(*leaves: Tensor) -> Tensor:
        p, t = law(make(*leaves[: len(numbers)]), *leaves[len(numbers) :]), levels[1:-1]
        moments = [p.stddev, p.kurtosis, p.moment(3), p.moment(2, central=True)]
        others = torch.stack([*moments, p.median, p.expect(torch.cos)])
        return torch.cat([quantities(p, t), others, p.log_prob(t), p.quadrature()[1].sum(0, True)])

    assert gradcheck(found, leaves, fast_mode=True)
