"""A fuzz of wrong calls: each is refused at once by a ValueError that names the argument."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases_kernel import bell
from torch import distributions as td

import sparsefam as sf
from sparsefam import attention, bases, inference, losses
from sparsefam.attention import ContinuousAttention
from sparsefam.estimators import BetaGaussianDensity, SparseDensity

# Three densities each, which no shape of the wrong ones fits.
ZEROS, ONES = torch.zeros(3), torch.ones(3)
DENSITIES: dict[str, sf.SparseDistribution] = {
    "Normal": sf.Normal(ZEROS, 1.0),
    "TruncatedParabola": sf.TruncatedParabola(ZEROS, 1.0),
    "BetaLaplace": sf.BetaLaplace(ZEROS, 1.0, 3.0),
    "ScaledBeta": sf.ScaledBeta(ZEROS, 1.0, 0.5, 3.0),
    "Truncated": sf.Truncated(td.Gamma(ONES, 1.0), 0.125, 4.0),
    "Density": sf.Density(torch.neg, ZEROS, 1.0),
    "Mixture": sf.Mixture(torch.zeros(2), [sf.Normal(ZEROS, 1.0), sf.Triangular(ZEROS, 1.0)]),
    "Hurdle": sf.Hurdle(td.Gamma(ONES, 1.0), 0.25),
    "Censored": sf.Censored(td.Normal(ZEROS, 1.0), 0.0),
}
HUGE = 10**30
NO_NUMBERS: list[Any] = ["a", None, 1j, object(), [], [0.25, 0.5], torch.tensor(True), math.nan]
NO_NUMBERS += [torch.zeros(7), torch.zeros(3, 2), torch.zeros(3, dtype=torch.complex64)]
NO_SIZES: list[Any] = ["a", None, 1j, 2.5, -1, HUGE, 10**400, True, [], math.nan, torch.ones(2)]
NO_SHAPES: list[Any] = ["a", None, 2, 2.5, (-1,), (0.5,), (HUGE,), (2**62, 2**62, 3), torch.ones(2)]
PSI = bases.GaussianRBF([0.0, 1.0], 0.5)

# By argument: the call, and what is wrong.
CALLS: dict[str, tuple[str, Callable[[Any, Any], object], list[Any]]] = {
    **{
        f"{name} {which}": (which, call, [*NO_NUMBERS, HUGE * 1j, *([9.5] * (which == "a"))])
        for name in ("interval_prob", "log_interval_prob")
        for which, call in (
            ("a", lambda p, x, name=name: getattr(p, name)(x, 9.0)),
            ("b", lambda p, x, name=name: getattr(p, name)(-9.0, x)),
        )
    },
    **{
        f"{name} value": ("value", lambda p, x, name=name: getattr(p, name)(x), [*NO_NUMBERS, 0.5])
        for name in ("log_prob", "cdf", "survival", "log_cdf", "log_survival", "icdf")
    },
    "icdf level": ("value", lambda p, x: p.icdf(torch.full((3,), x)), [-0.01, 1.01]),
    "moment n": ("n", lambda p, x: p.moment(x), [*NO_SIZES, 171]),
    "moment central n": ("n", lambda p, x: p.moment(x, central=True), [*NO_SIZES, 171]),
    "moment central": ("central", lambda p, x: p.moment(2, central=x), ["a", 2, torch.ones(2)]),
    "highest_density": (
        "mass",
        lambda p, x: p.highest_density(x),
        [*NO_NUMBERS, 0.0, 1.0, HUGE],
    ),
    "quadrature": ("order", lambda p, x: p.quadrature(x), [*NO_SIZES, 10**9]),
    "expect order": ("order", lambda p, x: p.expect(torch.cos, order=x), [*NO_SIZES, 10**9]),
    "expect basis order": ("order", lambda p, x: p.expect(PSI, order=x), NO_SIZES),
    "expect psi": ("psi", lambda p, x: p.expect(x), ["a", None, 1.0, lambda t: 1.0, torch.sum]),
    "error order": ("order", lambda p, x: p.quadrature_error(PSI, order=x), NO_SIZES),
    "expand": ("batch_shape", lambda p, x: p.expand(x), [*NO_SHAPES, (2,), (3, 5), ()]),
    "sample": ("sample_shape", lambda p, x: p.sample(x), NO_SHAPES),
    "index": ("index", lambda p, x: p[x], ["a", 1.5, 7, (0, 0), 1j]),
    "escort": ("beta", lambda p, x: p.escort(x), ["a", 1j, math.nan, object(), torch.zeros(7)]),
}


def refuse(name: str, call: Callable[[], object]) -> None:
    # The letter a is a word, too.
    named = rf"\b{name} (must|\()" if len(name) == 1 else rf"\b{name}\b"
    with pytest.raises(ValueError, match=rf"(?=[\s\S]*{named})[\s\S]*\bgot\b"):
        call()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("density", DENSITIES)
def test_calls_of_densities(density: str, call: str) -> None:
    p, (name, function, wrong) = DENSITIES[density], CALLS[call]
    if hasattr(p, "_atoms") and call in ("highest_density", "escort"):
        return  # which laws with atoms do not have
    for x in wrong:
        refuse(name, lambda x=x: function(p, x))


OTHERS: dict[str, tuple[str, Callable[[Any], object], list[Any]]] = {
    "Polynomial": ("degree", bases.Polynomial, [*NO_SIZES, 10**9]),
    "Polynomial ndim": ("ndim", lambda x: bases.Polynomial(2, x), ["a", 0, -1, HUGE, 2.5]),
    "monomials": ("degree and ndim", lambda x: bases.Polynomial(x, 100), [10, 100]),
    "BSpline": ("degree", lambda x: bases.BSpline([0.0, 1.0], x), NO_SIZES),
    "embed_dim": ("embed_dim", lambda x: ContinuousAttention(x, 2), NO_SIZES),
    "num_heads": ("num_heads", lambda x: ContinuousAttention(8, x), NO_SIZES),
    "kdim": ("kdim", lambda x: ContinuousAttention(8, 2, kdim=x), [-1, "a", 2.5, HUGE]),
    "layer_scale": (
        "layer_scale",
        lambda x: ContinuousAttention(8, 2, layer_scale=x),
        ["a", 1j, 0.0, -1.0, math.inf, math.nan, 10**400, torch.ones(2)],
    ),
    "log_prob": ("log_prob", lambda x: sf.Density(x, 0.0, 1.0), [None, "a", 1.0, torch.sum]),
    "breakpoints": (
        "breakpoints",
        lambda x: sf.Density(torch.neg, 0.0, 1.0, x),
        [1.0, torch.tensor(0.5), "a", [1j], [None], [math.nan], 1j],
    ),
}


@pytest.mark.parametrize("call", OTHERS)
def test_calls_of_constructors(call: str) -> None:
    name, function, wrong = OTHERS[call]
    for x in wrong:
        refuse(name, lambda x=x: function(x))


LOC, MATRIX, DATA = torch.zeros(2), torch.eye(2), np.linspace(0, 1, 20).reshape(-1, 1)
KERNEL = (torch.ones(1), torch.zeros(1, 1), bell(0.5))
HILLS = bases.GaussianRBF(torch.linspace(0, 1, 5), 0.2)
RIDGE = attention.RidgeRegression(HILLS, domain=(0.0, 1.0))
FUNCTION = RIDGE.fit(torch.linspace(0, 1, 9), torch.zeros(1, 9, 2))
ROW = torch.zeros(1, 1, 2)
QUERY = sf.TruncatedParabola(0.5, 0.2)

# By argument, all that take a float.
FLOATS: dict[str, Callable[[Any], object]] = {
    "alpha BetaGaussian": lambda x: sf.BetaGaussian(0.0, 1.0, x),
    "alpha BetaLaplace": lambda x: sf.BetaLaplace(0.0, 1.0, x),
    "alpha MultivariateBetaGaussian": lambda x: sf.MultivariateBetaGaussian(LOC, MATRIX, alpha=x),
    "alpha KernelDeformedExp": lambda x: sf.KernelDeformedExp(*KERNEL, td.Uniform(-1, 1), x),
    "alpha SparseCategorical": lambda x: sf.SparseCategorical([0.5, 0.5], x),
    "alpha tsallis": lambda x: sf.tsallis_divergence(QUERY, QUERY, x),
    "alpha bregman": lambda x: sf.bregman_divergence(QUERY, QUERY, x),
    "alpha rpm": lambda x: sf.rpm(sf.scores.Quadratic(0.0, 1.0), x),
    "alpha fenchel_young": lambda x: losses.fenchel_young(sf.scores.Quadratic(0.0, 1.0), QUERY, x),
    "alpha ClassificationHead": lambda x: losses.ClassificationHead(2, 3, x),
    "alpha RegressionHead": lambda x: losses.RegressionHead(2, x),
    "alpha ContinuousAttention": lambda x: ContinuousAttention(8, 2, alpha=x),
    "alpha retrieve": lambda x: attention.retrieve(FUNCTION, ROW, x),
    "alpha AutoBetaGaussian": lambda x: inference.AutoBetaGaussian(print, alpha=x),
    "alpha FenchelYoungELBO": lambda x: inference.FenchelYoungELBO(alpha=x),
    "alpha TsallisELBO": lambda x: inference.TsallisELBO(alpha=x),
    "alpha SparseDensity": lambda x: SparseDensity(alpha=x).fit(DATA),
    "alpha BetaGaussianDensity": lambda x: BetaGaussianDensity(alpha=x).fit(DATA),
    "beta escort": lambda x: QUERY.escort(x),
    "beta kernels": lambda x: sf.KernelExp(*KERNEL, td.Uniform(-1, 1)).escort(x),
    "loc": lambda x: sf.Normal(x, 1.0),
    "scale": lambda x: sf.Triangular(0.0, x),
    "low Truncated": lambda x: sf.Truncated(td.Normal(0.0, 1.0), low=x),
    "low Censored": lambda x: sf.Censored(td.Normal(0.0, 1.0), low=x),
    "low Density": lambda x: sf.Density(torch.neg, x, 1.0),
    "high Density": lambda x: sf.Density(torch.neg, 0.0, x),
    "low RestrictedPrior": lambda x: inference.RestrictedPrior(td.Normal(0.0, 1.0), x, 1.0),
    "low ScaledBeta": lambda x: sf.ScaledBeta(x, 1.0, 0.5, 3.0),
    "lower Interval": lambda x: sf.supports.Interval(x, 1.0),
    "gate": lambda x: sf.Hurdle(td.Gamma(1.0, 1.0), x),
    "tolerance KernelExp": lambda x: sf.KernelExp(*KERNEL, td.Uniform(-1, 1), tolerance=x),
    "tolerance": lambda x: sf.KernelDeformedExp(*KERNEL, td.Uniform(-1, 1), 2.0, tolerance=x),
    "knots": lambda x: bases.BSpline([0.0, 1.0, x], 1),
    "frequencies": lambda x: bases.Fourier([1.0, x]),
    "centers": lambda x: bases.GaussianRBF([1.0, x], 0.1),
    "widths": lambda x: bases.GaussianRBF([1.0], x),
    "edges": lambda x: bases.Indicator([0.0, x]),
    "loc Quadratic": lambda x: sf.scores.Quadratic(x, 1.0),
    "sigma": lambda x: sf.scores.Quadratic(0.0, x),
    "b": lambda x: sf.scores.AbsoluteDeviation(0.0, x),
    "width": lambda x: losses.mmd(QUERY, LOC, x),
    "temperature ContinuousAttention": lambda x: ContinuousAttention(8, 2, temperature=x),
    "temperature retrieve": lambda x: attention.retrieve(FUNCTION, ROW, 1.0, x),
    "layer_scale": lambda x: ContinuousAttention(8, 2, layer_scale=x),
    "dropout": lambda x: ContinuousAttention(8, 2, dropout=x),
    "tau": lambda x: attention.ContractingMemory(RIDGE, x),
    "stickiness": lambda x: attention.ContractingMemory(RIDGE, stickiness=x),
    "forgetting_factor": lambda x: attention.ForgettingMemory(RIDGE, x),
    "start": lambda x: attention.LearnedAlpha(2, x),
    "high LearnedAlpha": lambda x: attention.LearnedAlpha(2, 1.5, x),
    "reach": lambda x: attention.LocalScore(x),
    "penalty": lambda x: attention.RidgeRegression(HILLS, penalty=x),
    "smoothing": lambda x: attention.RidgeRegression(HILLS, smoothing=x),
    "domain": lambda x: attention.RidgeRegression(HILLS, domain=(0.0, x)),
    "coverage": lambda x: SparseDensity(coverage=x).fit(DATA),
    "penalty SparseDensity": lambda x: SparseDensity(penalty=x).fit(DATA),
    "tol": lambda x: SparseDensity(tol=x).fit(DATA),
    "tol BetaGaussianDensity": lambda x: BetaGaussianDensity(tol=x).fit(DATA),
    "init_scale": lambda x: inference.AutoBetaGaussian(print, init_scale=x),
}


@pytest.mark.parametrize("call", FLOATS)
def test_integers_that_no_float_holds(call: str) -> None:
    for x in (10**400, -(10**400)):
        with pytest.raises(ValueError, match=rf"\b{call.split()[0]}\b"):
            FLOATS[call](x)
