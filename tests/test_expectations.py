"""Closed forms of expectations against exact values, their gradients, and their registry."""

import math

import numpy as np
import pytest
import torch
from battery import apart
from cases import DOUBLE, Case, every_placed_scalar, every_univariate_case
from references import Pieces
from torch import Tensor

import sparsefam as sf
from sparsefam import BetaLaplace, LocationScale, SparseDistribution
from sparsefam._choice import TABLE, nearest, register_expect
from sparsefam._numerics.gaussian_interval import negligible_distance
from sparsefam.bases import Basis, Fourier, GaussianRBF, Indicator, Polynomial

BOUND = {torch.float32: 2e-6, DOUBLE: 1e-11}


# Narrow and wide
def gaussian_expectations(r: Pieces, centers: list[float]) -> Tensor:
    """E_p[N(t; c, 1)] by a rule that is cut around each center: a narrow one is not missed."""
    found = []
    for c in centers:
        t, weights = r.smooth_rule([c + z for z in (-39, -9, -3, 0, 3, 9, 39)])
        gauss = np.exp(-0.5 * (t - c) ** 2) / math.sqrt(2 * math.pi)
        found.append((weights * r.densities(t)) @ gauss)
    return torch.tensor(found, dtype=DOUBLE)


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
        assert apart(found, exact) < bound


# Where a function, or what is integrated of the density, ends
def means_and_slopes(r: Pieces, loc: float, scale: float) -> list[float]:
    """E_p[N(t; 0, 1)] of a standard density that is moved, and its derivatives in loc and scale."""
    cuts = (-39, -9.5, -6.5, -3, 0, 3, 6.5, 9.5, 39)
    x, weights = r.smooth_rule([(z - loc) / scale for z in cuts])
    z = loc + scale * x
    mass = weights * r.densities(x) * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return [mass.sum(), -(mass * z).sum(), -(mass * z * x).sum()]


@every_placed_scalar
def test_functions_that_end_where_the_density_does(case: Case) -> None:
    standard = Case(case.family, case.parameters | {"loc": 0.0, "scale": 1.0}, case.name)
    (r,) = standard.references

    def found(numbers: Tensor) -> Tensor:
        leaves = standard.leaves(numbers.dtype)
        leaves |= dict(zip(("loc", "scale"), numbers.clone().requires_grad_(), strict=True))
        value = case.family.make(**leaves).expect(GaussianRBF([0.0], 1.0).to(numbers.dtype))
        slopes = torch.autograd.grad(value.sum(), (leaves["loc"], leaves["scale"]))
        return torch.stack([value.squeeze(-1), *slopes], -1).detach().double()

    for dtype, bound in BOUND.items():
        torch.manual_seed(0)
        draws = torch.rand(5, 20000, dtype=dtype)
        side, other = draws[:2].round() * 2 - 1
        scale, beside = torch.exp(4 * draws[2] - 1), 10 ** (-9 * draws[3]) * (draws[4] - 0.5)
        cut = negligible_distance(scale) * (1 + beside)
        numbers = torch.stack(
            [(side * standard(dtype).generator.reach() * scale + other * cut), scale]
        )
        values, few = found(numbers), numbers.T[:100].tolist()
        assert (values - found(numbers.double())).abs().amax() < bound
        exact = torch.tensor([means_and_slopes(r, *pair) for pair in few], dtype=DOUBLE)
        torch.testing.assert_close(values[:100], exact, rtol=0, atol=bound)


# What is not a closed form
@pytest.mark.parametrize(
    "p",
    [BetaLaplace(0.0, 3.0, alpha=1.5), LocationScale(torch.zeros(2), 3.0, lambda x: x**2 / 2)],
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
    with pytest.raises(ValueError, match="order must be (at least|from) 1.*, got 0"):
        p.quadrature(0)


# The registry
@pytest.fixture(autouse=True)
def restore_rules():
    before = dict(TABLE)
    yield
    TABLE.clear()
    TABLE.update(before)


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
    for p, b, expected in (
        (sf.TruncatedParabola, Special, (sf.TruncatedParabola, Polynomial)),
        (sf.BetaGaussian, Special, (sf.BetaGaussian, Special)),
        (sf.SparseCategorical, Indicator, (sf.SparseDistribution, Basis)),
    ):
        (rule,) = nearest(p, b)
        assert rule.function is named[expected]
