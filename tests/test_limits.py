"""What the families tend to: the normal and Laplace's density as alpha goes to 1.

And what becomes of expectations where the half-width is far from the size of everything else.
"""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import DOUBLE, every_dtype
from torch import Tensor

from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Normal,
    SparseDistribution,
    SymmetricDistribution,
    TruncatedParabola,
)
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial

LIMITS = {
    "gaussian": (BetaGaussian.from_sigma, Normal),
    "laplace": (BetaLaplace.from_b, Laplace),
}
every_limit = pytest.mark.parametrize("name", LIMITS)
ALPHAS: dict[str, Callable[[float, torch.dtype], Tensor | float]] = {
    "number": lambda e, dtype: 1 + e,
    "tensor": lambda e, dtype: torch.tensor(1.0, dtype=dtype) + e,
}
CENTERS, SHARES = torch.linspace(-2, 2, 9), torch.linspace(-3, 3, 41).unsqueeze(-1)


def locations(p: SparseDistribution) -> Tensor:
    """Within three score scales of loc, for the parameters of `difference`."""
    return p.loc + p.loc.new_tensor([0.5, 2.0]) * SHARES.to(p.loc.dtype)


QUANTITIES: dict[str, Callable[[SparseDistribution], Tensor]] = {
    "log_prob": lambda p: p.log_prob(locations(p)),
    "cdf": lambda p: p.cdf(locations(p)),
    "icdf": lambda p: p.icdf(p.loc.new_tensor([[0.01], [0.4]])),
    "variance": lambda p: p.variance,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
    "rbf": lambda p: p.expect(GaussianRBF(CENTERS.to(p.loc.dtype), 0.5)),
    "waves": lambda p: p.expect(Fourier(p.loc.new_tensor([0.5, 2.0]))),
}


def difference(name: str, quantity: str, alpha: Tensor | float, dtype: torch.dtype) -> float:
    """The largest, in units of the limit where that is above one."""
    family, limit = LIMITS[name]
    loc, width = torch.tensor([[0.25, -0.5], [0.5, 2.0]], dtype=dtype)
    found, goal = (
        QUANTITIES[quantity](p).double() for p in (family(loc, width, alpha), limit(loc, width))
    )
    return (found - goal).abs().max().item() / max(1, goal.abs().max().item())


@pytest.mark.parametrize("kind", ALPHAS)
@pytest.mark.parametrize("quantity", QUANTITIES)
@every_limit
def test_the_distance_to_the_limit_is_linear_in_alpha_down_to_rounding(
    name: str, quantity: str, kind: str
) -> None:
    rate = difference(name, quantity, 1 + 1e-4, DOUBLE) / 1e-4
    for dtype, noise in ((DOUBLE, 1e-9), (torch.float32, 1e-5)):
        for e in (1e-3, 1e-4, 1e-5, 1e-6):
            alpha = ALPHAS[kind](e, dtype)
            gap = float(torch.as_tensor(alpha, dtype=dtype).double()) - 1
            found = difference(name, quantity, alpha, dtype)
            assert abs(found - rate * gap) < 0.05 * rate * gap + noise


@every_dtype
@every_limit
def test_gradients_stay_finite_next_to_the_limit(name: str, dtype: torch.dtype) -> None:
    family, _ = LIMITS[name]
    leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (0.25, 0.5, 1 + 1e-6)]
    for quantity, function in QUANTITIES.items():
        value = function(family(*leaves)).sum()
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        assert all(g.isfinite() for g in found), quantity


@every_limit
def test_the_score_scale_survives_the_round_trip(name: str) -> None:
    family, _ = LIMITS[name]
    for alpha in (1 + 1e-6, 1.01, 1.5, 2.0, 7.0, 1e3):
        width = torch.tensor([1e-3, 0.5, 40.0])
        p = family(0.0, width, alpha)
        back = p.sigma if name == "gaussian" else p.b
        # The half-width goes with a power of it that vanishes as alpha grows.
        condition = 1 + (alpha - 1) / (2 if name == "gaussian" else 1)
        torch.testing.assert_close(back, width, rtol=2e-6 * condition, atol=0)


# Half-widths far from everything else

EXTREMES = (1e-30, 1e30)
WIDTHS: dict[str, Callable[..., SymmetricDistribution]] = {
    "parabola": TruncatedParabola,
    "gaussian-1.3": partial(BetaGaussian, alpha=1.3),
    "laplace-1.7": partial(BetaLaplace, alpha=1.7),
    "location-scale": partial(LocationScale, g=lambda x: x**4 / 4 + x**2 / 3),
    "normal": Normal,
    "laplace": Laplace,
}
every_width = pytest.mark.parametrize("make", WIDTHS.values(), ids=WIDTHS)
BASES: dict[str, Callable[[torch.dtype], Basis]] = {
    "rbf": lambda dtype: GaussianRBF(torch.tensor([0.0, 0.3125, 3.0], dtype=dtype), 0.25),
    "spline": lambda dtype: BSpline(torch.tensor([-1, -1, -1, 0, 0.5, 2, 2, 2], dtype=dtype), 2),
    "indicator": lambda dtype: Indicator(torch.tensor([-1.0, 0.0, 0.3125, 2.0], dtype=dtype)),
    "polynomial": lambda dtype: Polynomial(2),
}
every_basis = pytest.mark.parametrize("name", BASES)


def leaves(loc: float, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of float32, whatever the dtype, that require grad."""
    single = torch.tensor([loc, scale]).to(dtype)
    return single[0].clone().requires_grad_(), single[1].clone().requires_grad_()


def slopes(value: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    weights = torch.linspace(0.5, 1.7, value.numel(), dtype=value.dtype).reshape(value.shape)
    found = torch.autograd.grad(value, inputs, weights, allow_unused=True, materialize_grads=True)
    return torch.stack(found)


@every_basis
@every_width
def test_expectations_and_gradients_at_extreme_half_widths(
    make: Callable[..., SymmetricDistribution], name: str
) -> None:
    for loc, scale in itertools.product((0.1875, -40.0), EXTREMES):
        found, expected = [], []
        for dtype, results in ((torch.float32, found), (DOUBLE, expected)):
            inputs = leaves(loc, scale, dtype)
            value = make(*inputs).expect(BASES[name](dtype))
            results += [value.detach(), slopes(value, inputs)]
        assert all(x.isfinite().all() for x in expected)
        for single, double in zip(found, expected, strict=True):
            torch.testing.assert_close(single, double.float(), rtol=2e-6, atol=5e-7)


@every_dtype
@pytest.mark.parametrize("beta", [1.0, 0.5])
@every_width
def test_covariances_and_gradients_at_extreme_half_widths(
    make: Callable[..., SymmetricDistribution], beta: float, dtype: torch.dtype
) -> None:
    if isinstance(make, partial) and make.func is LocationScale and beta != 1:
        pytest.skip("has no such escort")
    pairs = [("rbf", "rbf"), ("spline", "indicator"), *itertools.product(["polynomial"], BASES)]
    for scale in (*EXTREMES, 1e8):
        inputs = leaves(0.1875, scale, dtype)
        for phi, psi in pairs:
            value = make(*inputs).generalized_covariance(BASES[phi](dtype), BASES[psi](dtype), beta)
            assert not value.isnan().any()
            assert not slopes(value, inputs).isnan().any()


@every_width
def test_covariances_that_overflow_are_infinite_and_no_others(
    make: Callable[..., SymmetricDistribution],
) -> None:
    for scale, degree, name in ((1e8, 3, "rbf"), (1e30, 2, "spline"), (1e15, 3, "polynomial")):
        found, expected = (
            make(*leaves(0.1875, scale, dtype)).generalized_covariance(
                BASES[name](dtype), Polynomial(degree), 1.0
            )
            for dtype in (torch.float32, DOUBLE)
        )
        expected = expected.float()
        if name == "polynomial":
            # Those of an even with an odd power, all but zero, are rounding errors of the others.
            found, expected = found[1:, 1::2], expected[1:, 1::2]
            found, expected = found[::2], expected[::2]
            assert expected.isinf().tolist() == [[False, True]]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@every_dtype
@every_width
def test_covariances_of_powers_keep_their_digits(
    make: Callable[..., SymmetricDistribution], dtype: torch.dtype
) -> None:
    for loc, scale in itertools.product((0.0, 0.1875, -100.0), (1e-9, 1e-5, 1e-2, 1.0, 1e3)):
        p = make(*(x.detach() for x in leaves(loc, scale, dtype)))
        wide = make(*(x.detach() for x in leaves(loc, scale, DOUBLE)))
        v, centre = wide.variance, wide.loc
        fourth = wide.scale**4 * wide._standard_moment(4) - v**2
        zero = torch.zeros_like(v)
        expected = [[zero] * 3, [zero, v, 2 * centre * v], [zero, 2 * centre * v]]
        expected[2].append(fourth + 4 * centre**2 * v)
        found = p.generalized_covariance(Polynomial(2), Polynomial(2), 1.0).double()
        for i, j in itertools.product(range(3), repeat=2):
            size = (expected[i][i] * expected[j][j]).sqrt()
            # The rule leaves out e^-18 of the mass in float32: more of Laplace's fourth moment.
            limit = 1e-12 if dtype == DOUBLE else 2e-4 if make is Laplace else 1e-5
            assert (found[i, j] - expected[i][j]).abs() <= limit * size


@every_width
def test_covariances_of_waves_keep_their_digits(make: Callable[..., SymmetricDistribution]) -> None:
    for loc, scale in itertools.product((0.0, 0.1875, 10.0), (1e-9, 1e-5, 1e-2, 1.0, 3.0)):
        found, expected = (
            make(*leaves(loc, scale, dtype)).generalized_covariance(
                Fourier(torch.tensor([0.5, 2.0], dtype=dtype)), Polynomial(1), 1.0
            )
            for dtype in (torch.float32, DOUBLE)
        )
        error = (found.double() - expected).norm() / expected.norm()
        assert error < (1e-5 if make is Laplace else 2e-6)


@every_dtype
@every_width
def test_narrow_densities_see_values_and_sides_of_jumps(
    make: Callable[..., SymmetricDistribution], dtype: torch.dtype
) -> None:
    edges = torch.tensor([-1.0, 0.3125, 2.0], dtype=dtype)
    knots = torch.tensor([-1, -1, -1, 0, 0.5, 2, 2, 2], dtype=dtype)
    limit = 2e-6 if dtype == torch.float32 else 1e-11
    for scale in (1e-3, 1e-5, 1e-7, 1e-9, 1e-30):
        on_edge = make(*leaves(0.3125, scale, dtype))
        halves = torch.full((2,), 0.5, dtype=dtype)
        torch.testing.assert_close(on_edge.expect(Indicator(edges)), halves, rtol=limit, atol=0)
        spline = BSpline(knots, 2)
        value = on_edge.expect(spline)
        assert (value.sum() - 1).abs() < limit
        # Within the variance times half of the second derivative.
        distance = (value - spline(on_edge.loc)).abs().max()
        assert distance <= 10 * on_edge.variance + limit
