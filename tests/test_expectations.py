"""Every family with every basis against scipy's quadrature, in both precisions."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from cases import (
    DOUBLE,
    Case,
    every_placed_scalar,
    every_univariate_case,
    every_univariate_scalar,
)
from references import Line
from scipy.integrate import quad
from torch import Tensor
from torch.autograd import gradcheck

from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    LocationScale,
    Normal,
    SparseDistribution,
    Triangular,
    TruncatedParabola,
)
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial

BOUND = {torch.float32: 2e-6, DOUBLE: 1e-11}
KNOTS = [-0.5, -0.5, -0.5, 0.0, 0.3125, 0.3125, 0.75, 1.0, 1.0]
# Each basis with the points between which its functions are smooth.
BASES: dict[str, tuple[Basis, list[float]]] = {
    "rbf-wide": (GaussianRBF([-2.0, 0.0, 0.25, 1.0, 9.0], 4.0), []),
    "rbf": (GaussianRBF([-1.0, -0.375, 0.0, 0.25, 1.0, 2.0], 0.25), []),
    "rbf-narrow": (
        GaussianRBF([-0.375, 0.0, 0.3125, 0.9375, 1.0, 2.0], 2.0**-7),
        [c + k / 16 for c in (-0.375, 0.0, 0.3125, 0.9375, 1.0, 2.0) for k in (-1, 0, 1)],
    ),
    "fourier": (Fourier([0.0, 0.5, 2.0, 8.0, 1.0]), []),
    "polynomial": (Polynomial(5), []),
    "indicator": (Indicator([-1.0, 0.0, 0.3125, 0.5, 3.0]), [-1.0, 0.0, 0.3125, 0.5, 3.0]),
    "spline": (BSpline(KNOTS, 2), KNOTS),
    "spline-linear": (BSpline([-0.5, 0.25, 0.5, 2.0], 1), [-0.5, 0.25, 0.5, 2.0]),
    "stack": (Polynomial(1) + Indicator([0.0, 0.5]) + GaussianRBF([0.25], 0.5), [0.0, 0.5]),
}


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", BASES)
@every_placed_scalar
def test_against_scipy(case: Case, name: str) -> None:
    psi, breaks = BASES[name]
    (r,) = case.references
    low, high = r.ends
    marks = [low, *sorted({t for t in [*breaks, r.centre] if low < t < high}), high]
    exact = psi.double()

    def value(t: float, j: int) -> float:
        return exact(torch.tensor(t, dtype=DOUBLE))[j].item() * r.density(t)

    expected = [
        sum(
            quad(value, a, b, (j,), epsabs=1e-14, epsrel=1e-12, limit=200)[0]
            for a, b in pairwise(marks)
        )
        for j in range(len(psi))
    ]
    for dtype, bound in BOUND.items():
        found = case(dtype).expect(psi.to(dtype))
        assert found.dtype == dtype
        assert error(found, torch.tensor(expected, dtype=DOUBLE)) < bound


# Narrow and wide


def gaussian_expectations(r: Line, centers: list[float], width: float) -> list[float]:
    """E_p[N(t; c, w^2)] as an integral over z = (t - c)/w: a narrow Gaussian is not missed."""
    found = []
    for c in centers:
        ends = [(end - c) / width for end in (*r.ends, r.centre)]
        marks = sorted({min(max(z, -39.0), 39.0) for z in [*ends, -9, -3, 0, 3, 9]})
        start, stop = (min(max(z, -39.0), 39.0) for z in ends[:2])
        inside = [z for z in marks if start <= z <= stop]
        found.append(
            sum(
                quad(
                    lambda z, c=c: math.exp(-0.5 * z * z) * r.density(c + width * z),
                    *(a, b),
                    epsabs=1e-14 * r.density(r.centre),
                    epsrel=1e-12,
                    limit=200,
                )[0]
                for a, b in pairwise(inside)
            )
            / math.sqrt(2 * math.pi)
        )
    return found


@pytest.mark.parametrize("ratio", [1e-4, 1e-3, 0.01, 0.1, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4])
@every_placed_scalar
def test_gaussians_at_every_ratio_of_scale_to_width(case: Case, ratio: float) -> None:
    scale = torch.tensor(ratio, dtype=torch.float32).item()
    parameters = case.parameters | {"loc": 0.0, "scale": scale}
    (r,) = (moved := Case(case.family, parameters, case.name)).references
    edge = min(r.ends[1], 5 * scale)
    steps = [side * edge + k for side in (-1, 0, 1) for k in (-40, -2, -0.5, 0, 0.5, 2, 40)]
    centers = torch.tensor(sorted({*steps, 0.3 * edge, 0.8 * edge}), dtype=torch.float32)
    exact = torch.tensor(gaussian_expectations(r, centers.tolist(), 1.0), dtype=DOUBLE)
    for dtype, bound in BOUND.items():
        found = moved(dtype).expect(GaussianRBF(centers.to(dtype), 1.0))
        assert error(found, exact) < bound


# Proposition 3


@pytest.mark.parametrize("alpha", [1.0, 1.25, 4 / 3, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("name", ["rbf", "fourier", "polynomial", "spline-linear"])
def test_the_jacobian_in_canonical_parameters_is_the_covariance_under_the_escort(
    alpha: float, name: str
) -> None:
    psi = BASES[name][0].double()
    theta = torch.tensor([[0.5, -0.8], [-1.0, -3.0]], dtype=DOUBLE).unbind(-1)

    def density(first: Tensor, second: Tensor) -> SparseDistribution:
        if alpha == 1:
            return Normal(-first / (2 * second), (-0.5 / second).sqrt())
        return BetaGaussian.from_canonical(first, second, alpha)

    def total(*theta: Tensor) -> Tensor:
        return density(*theta).expect(psi).sum(0)

    first, second = torch.autograd.functional.jacobian(total, theta)
    expected = torch.stack([first.mT, second.mT], 1)
    found = density(*theta).generalized_covariance(Polynomial(2), psi)[:, 1:]
    assert error(found, expected) < 1e-10


def test_the_canonical_parameters_of_the_parabola_are_those_of_its_family() -> None:
    theta = torch.tensor([0.5, -0.8], dtype=DOUBLE)
    special, general = (
        TruncatedParabola.from_canonical(*theta),
        BetaGaussian.from_canonical(*theta, alpha=2.0),
    )
    for p in (special, general):
        assert p.loc.item() == pytest.approx(0.5 / 1.6, rel=1e-14)
        assert p.sigma.item() == pytest.approx(math.sqrt(0.5 / 0.8), rel=1e-14)
        t = torch.linspace(-1, 1, 5, dtype=DOUBLE)
        line = theta[0] * t + theta[1] * t**2
        torch.testing.assert_close(p.score(t) - p.score(t[:1]), line - line[:1])
    with pytest.raises(ValueError, match="theta2 must be negative and finite, got .*0.5"):
        BetaGaussian.from_canonical(0.0, 0.5, alpha=1.5)


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


def test_triangular_waves_agree_with_those_of_the_family() -> None:
    frequencies = torch.linspace(0, 80, 41, dtype=DOUBLE)
    closed = Triangular(0.3, 0.7).expect(Fourier(frequencies))
    general = BetaLaplace(0.3, 0.7, alpha=2.0).expect(Fourier(frequencies))
    torch.testing.assert_close(closed.double(), general.double(), rtol=0, atol=3e-7)


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


@every_univariate_scalar
def test_a_stack_is_its_parts_side_by_side(case: Case) -> None:
    parts = [BASES[name][0].double() for name in ("rbf", "polynomial", "indicator", "fourier")]
    p = case()
    whole = p.expect(parts[0] + parts[1] + (parts[2] + parts[3]))
    assert torch.equal(whole, torch.cat([p.expect(part) for part in parts]))


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
