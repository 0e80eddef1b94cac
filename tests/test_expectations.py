"""Closed forms of expectations against exact values, their gradients, and their registry."""

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from math import comb, prod

import numpy as np
import pytest
import torch
from cases import (
    DOUBLE,
    Case,
    every_placed_scalar,
    every_univariate_case,
    every_univariate_scalar,
)
from references import Pieces
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from vectors import elliptical

import sparsefam as sf
from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    EllipticalDistribution,
    LocationScale,
    SparseDistribution,
)
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Product
from sparsefam.dispatch import _RULES, find_expect, register_expect

BOUND = {torch.float32: 2e-6, DOUBLE: 1e-11}


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("order", [1, 2])
def test_moments_are_fractions(order: int) -> None:
    """E[(a + b x)^k] from E[x^(2 j)] under (1 - |x|^order)^m, a ratio of Beta functions."""
    family, m = (BetaLaplace, 2) if order == 1 else (BetaGaussian, 3)
    a, b, half = Fraction(-5, 4), Fraction(3, 8), Fraction(1, order)
    even = [Fraction(1)]
    for j in range(4):  # each two powers of x are 2/order steps of the first argument of Beta
        s = (2 * j + 1) * half
        steps = [s + i for i in range(2 // order)]
        even.append(even[-1] * prod(x / (x + m + 1) for x in steps))
    exact = [
        sum(comb(k, 2 * j) * a ** (k - 2 * j) * b ** (2 * j) * even[j] for j in range(k // 2 + 1))
        for k in range(9)
    ]
    for dtype, bound in BOUND.items():
        p = family(torch.tensor(float(a), dtype=dtype), float(b), 1 + 1 / m)
        found = p.expect(Polynomial(8)).double()
        due = torch.tensor([float(x) for x in exact], dtype=DOUBLE)
        torch.testing.assert_close(found, due, rtol=bound, atol=0)


# Narrow and wide


def gaussian_expectations(r: Pieces, centers: list[float]) -> Tensor:
    """E_p[N(t; c, 1)] by a rule that is cut around each center: a narrow one is not missed."""
    found = []
    for c in centers:
        t, weights = r.smooth_rule([c + z for z in (-39, -9, -3, 0, 3, 9, 39)])
        gauss = np.exp(-0.5 * (t - c) ** 2) / math.sqrt(2 * math.pi)
        found.append((weights * r.densities(t)) @ gauss)
    return torch.tensor(found, dtype=DOUBLE)


@pytest.mark.parametrize("compiled_loops", ["0", "1"], indirect=True)
@pytest.mark.parametrize("ratio", [1e-4, 0.3, 3.0, 1e4])
@every_placed_scalar
def test_gaussians_at_every_ratio_of_scale_to_width(case: Case, ratio: float) -> None:
    loc, scale = torch.tensor([0.3, ratio], dtype=torch.float32).tolist()
    parameters = case.parameters | {"loc": loc, "scale": scale}
    (r,) = (moved := Case(case.family, parameters, case.name)).references
    edge = min(r.intervals[0][1] - loc, 5 * scale)
    steps = [side * edge + k for side in (-1, 0, 1) for k in (-40, -2, -0.5, 0, 0.5, 2, 40)]
    places = loc + torch.tensor(sorted({*steps, 0.3 * edge, 0.8 * edge}), dtype=torch.float64)
    centers = places.float()
    exact = gaussian_expectations(r, centers.double().tolist())
    for dtype, bound in BOUND.items():
        found = moved(dtype).expect(GaussianRBF(centers.to(dtype), 1.0))
        assert error(found, exact) < bound


# What is not a closed form


@pytest.mark.parametrize(
    "p",
    [
        BetaLaplace(0.0, 3.0, alpha=1.5),
        LocationScale(torch.zeros(2), 3.0, lambda x: x**2 / 2),
    ],
    ids=["BetaLaplace", "LocationScale"],
)
def test_frequencies_too_high_to_resolve_are_refused(p: SparseDistribution) -> None:
    fine, coarse = Fourier([1.0, 80.0]), Fourier([1.0, 300.0])
    assert p.expect(fine).isfinite().all()
    with pytest.raises(ValueError, match="frequencies must be below 256 .*got .*300"):
        p.expect(coarse)


@every_univariate_case
def test_callables_keep_their_own_shape(case: Case) -> None:
    p = case()
    assert p.expect(torch.sin).shape == p.batch_shape
    pair = p.expect(lambda t: torch.stack([t, t.square()], -1))
    assert pair.shape == (*p.batch_shape, 2)
    torch.testing.assert_close(pair[..., 0], p.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(pair[..., 1] - p.mean**2, p.variance)
    grid = p.expect(lambda t: torch.ones(*t.shape, 4, 3, dtype=DOUBLE))
    torch.testing.assert_close(grid, torch.ones(*p.batch_shape, 4, 3, dtype=DOUBLE))
    with pytest.raises(ValueError, match="psi must map locations .* got "):
        p.expect(lambda t: t.sum(0))
    with pytest.raises(ValueError, match="order must be at least 1, got 0"):
        p.quadrature(0)


# Learned bases


@every_univariate_scalar
def test_gradients_reach_the_parameters_of_the_basis(case: Case) -> None:
    p = case()
    centers, widths = [-0.25, 0.5], [0.25, 0.5]
    waves, knots = [0.5, 2.0], [-0.5, 0.0, 0.4, 0.7, 1.5]

    def through(basis: Basis, *names: str) -> Callable[..., Tensor]:
        def expectation(*values: Tensor) -> Tensor:
            learned = copy.deepcopy(basis)
            for name, value in zip(names, values, strict=True):
                delattr(learned, name)
                setattr(learned, name, value)
            return p.expect(learned)

        return expectation

    for basis, named in (
        (GaussianRBF(centers, widths), {"centers": centers, "widths": widths}),
        (Fourier(waves), {"frequencies": waves}),
        (BSpline(knots, 2), {"knots": knots}),
    ):
        leaves = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in named.values()]
        assert gradcheck(through(basis.double(), *named), leaves)


# Densities of vectors

LOC = torch.tensor([[0.3125, -0.5, 0.125, 0.75], [-2.0, 1.0, 0.0, 0.5]])
# Well conditioned, and with a condition number of about 1e3.
FACTORS = torch.tensor(
    [
        [[0.75, 0, 0, 0], [0.5, 1.0, 0, 0], [-0.25, 0.125, 0.5, 0], [0.0, 0.5, -1.0, 0.25]],
        [[1.5, 0, 0, 0], [0.75, 2.0**-9, 0, 0], [0.5, -0.25, 0.0625, 0], [1.0, 0.0, 0.25, 0.5]],
    ]
)


def in_plane(alpha: float) -> EllipticalDistribution:
    return elliptical(LOC[:, :2].double(), FACTORS[:, :2, :2].double(), alpha)


def fourier(ndim: int) -> Fourier:
    rows = [[0, 0, 0], [0.5, -0.25, 1], [2, 1, -1], [-3, 4, 0.5], [2**-10, 0, 0]]
    return Fourier([row[:ndim] for row in rows])


BASES_MULTIVARIATE: dict[str, Callable[[int], Basis]] = {
    "fourier": fourier,
    "polynomial": lambda ndim: Polynomial(6, ndim=ndim),
    "stack": lambda ndim: Polynomial(1, ndim=ndim) + fourier(ndim),
    "gaussians": lambda ndim: Product(*[GaussianRBF([-1.0, 0.5], [1.5, 3.0])] * ndim),
    "waves": lambda ndim: Product(*[Fourier([1.0]), Polynomial(2), Fourier([0.5])][:ndim]),
}


# Products


# Derivatives


@pytest.mark.parametrize("name", ["fourier", "polynomial", "gaussians"])
@pytest.mark.parametrize("alpha", [1.0, 1.5, "learned"])
def test_gradients_in_the_density_and_the_basis(alpha: float | str, name: str) -> None:
    psi = Polynomial(4, ndim=2) if name == "polynomial" else BASES_MULTIVARIATE[name](2)
    keys = [key for key, _ in psi.double().named_buffers() if key in psi.state_dict()]
    leaves = [in_plane(2.0).loc, in_plane(2.0).scale_tril]
    leaves += [torch.tensor([1.25, 2.5], dtype=DOUBLE)] if alpha == "learned" else []
    leaves += [psi.get_buffer(key) for key in keys]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def expectation(loc: Tensor, scale_tril: Tensor, *rest: Tensor) -> Tensor:
        index, rest = (rest[0], rest[1:]) if alpha == "learned" else (alpha, rest)
        learned = copy.deepcopy(psi)
        for key, value in zip(keys, rest, strict=True):
            path, _, attribute = key.rpartition(".")
            module = learned.get_submodule(path)
            delattr(module, attribute)
            setattr(module, attribute, value)
        return elliptical(loc, scale_tril.tril(), index).expect(learned)

    assert gradcheck(expectation, leaves, atol=1e-7)
    if name != "gaussians":
        assert gradgradcheck(expectation, leaves, atol=1e-6)


# The registry


@pytest.fixture(autouse=True)
def restore_rules():
    before = dict(_RULES)
    yield
    _RULES.clear()
    _RULES.update(before)


class Constant(Basis):
    """The number one."""

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(t).unsqueeze(-1)

    def __len__(self) -> int:
        return 1


def test_a_users_rule_serves_subclasses_and_replaces_quadrature() -> None:
    p, psi = sf.TruncatedParabola(torch.tensor([0.0, 1.0]), 1.0), Constant()
    torch.testing.assert_close(p.expect(psi), torch.ones(2, 1))

    @register_expect(sf.BetaGaussian, Constant)
    def _(p: sf.BetaGaussian, psi: Constant) -> torch.Tensor:
        return p.loc.unsqueeze(-1) + 41

    torch.testing.assert_close(p.expect(psi), torch.tensor([[41.0], [42.0]]))
    torch.testing.assert_close(sf.Normal(0.0, 1.0).expect(psi), torch.ones(1))


def test_the_nearest_rule_wins_distribution_first() -> None:
    class Special(Polynomial):
        pass

    named = {}
    for p in (sf.SparseDistribution, sf.BetaGaussian, sf.TruncatedParabola):
        for b in (Basis, Polynomial, Special):
            if (p, b) != (sf.TruncatedParabola, Special):
                named[p, b] = register_expect(p, b)(lambda *_, key=(p, b): key)
    assert find_expect(sf.TruncatedParabola, Special) is named[sf.TruncatedParabola, Polynomial]
    assert find_expect(sf.BetaGaussian, Special) is named[sf.BetaGaussian, Special]
    assert find_expect(sf.SparseCategorical, Indicator) is named[sf.SparseDistribution, Basis]
