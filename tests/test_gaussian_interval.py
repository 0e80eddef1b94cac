"""Gaussians under piecewise polynomials against mpmath and dense quadrature; derivatives."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution

from sparsefam.numerics.gaussian_interval import Profile, gaussian_expectation

F32, F64 = torch.float32, torch.float64
PROFILES = {
    "uniform": (0.5,),
    "parabola": (0.75, 0.0, -0.75),
    "triweight": (1.09375, 0.0, -3.28125, 0.0, 3.28125, 0.0, -1.09375),
    "tent": (1.0, -1.0),
    "tent-cubed": (2.0, -6.0, 6.0, -2.0),
}
every_profile = pytest.mark.parametrize("name", PROFILES)
# Ratios of scale to width on both sides of every switch, and close to the one at 2.5.
RATIOS = np.concatenate([np.logspace(-4, 4, 9), [2.4999, 2.5001]])
# Centers in widths from loc and from both edges, as far as 40 widths away.
STEPS = np.concatenate([np.linspace(-40, 40, 21), np.linspace(-4, 4, 9)])


def grid(dtype: torch.dtype, loc: float = 0.3, width: float = 0.37) -> tuple[Tensor, ...]:
    """loc (), scale (R, 1), centers (R, N) and width (): exact numbers of the dtype."""
    scale = RATIOS[:, None] * width
    inside = loc + scale * np.linspace(-0.97, 0.97, 13)
    outside = [loc + side * scale + STEPS * width for side in (-1, 0, 1)]
    values = (loc, scale, np.concatenate([inside, *outside], -1), width)
    return tuple(torch.tensor(v, dtype=dtype) for v in values)


@cache
def dense(dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """E, dE/dloc and dE/dscale on the grid in float64, by 40 subintervals of each half-support.

    In z = (t - c)/w if the support is wide, in x = (t - loc)/scale if it is narrow.
    """
    loc, scale, centers, width = (v.double() for v in grid(dtype))
    h, z0 = scale / width, (loc - centers) / width
    node, weight = (torch.from_numpy(v) for v in roots_legendre(16))
    share = ((torch.arange(40, dtype=F64)[:, None] + (node + 1) / 2) / 40).reshape(-1, 1, 1)
    weight = (weight / 80).repeat(40).reshape(-1, 1, 1)
    totals = {name: [torch.zeros_like(centers) for _ in range(3)] for name in PROFILES}
    for low, high in ((-1.0, 0.0), (0.0, 1.0)):
        start, end = ((z0 + side * h).clamp(-39, 39) for side in (low, high))
        wide = h > 1
        length = torch.where(wide, (end - start) / h, high - low)
        z = torch.where(wide, start + (end - start) * share, z0 + h * (low + share))
        x = torch.where(wide, (z - z0) / h, low + share)
        gauss = weight * length * torch.exp(-0.5 * z * z) / (width * math.sqrt(2 * math.pi))
        for name, coefficients in PROFILES.items():
            mass = gauss * sum(c * x.abs() ** k for k, c in enumerate(coefficients))
            for total, factor in zip(totals[name], (1, -z / width, -x * z / width), strict=True):
                total += (mass * factor).sum(0)
    return totals


def row_errors(found: Tensor, expected: Tensor) -> Tensor:
    return (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)


def by_mpmath(coefficients: tuple[float, ...], *point: float) -> float:
    with mpmath.workdps(30):
        loc, scale, center, width = (mpmath.mpf(v) for v in point)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            f = mpmath.polyval(list(reversed(coefficients)), abs(x))
            return f * mpmath.npdf(loc + scale * x, center, width)

        steps = [(center + k * width - loc) / scale for k in (-12, -4, 0, 4, 12)]
        marks = sorted({x for x in [*steps, mpmath.mpf(0)] if -1 < x < 1})
        return float(mpmath.quad(integrand, [-1, *marks, 1]))


# Values


@every_profile
def test_values_against_mpmath(name: str) -> None:
    points = [
        (0.3, 0.5, 0.9, 0.25),
        (0.3, 0.7, 1.0, 0.02),
        (-1.0, 1e-3, 0.5, 1.0),
        (0.0, 3.0, 2.5, 1.25),
        (0.1, 40.0, 39.0, 0.5),
        (0.0, 0.25, 3.0, 0.5),
    ]
    for point in points:
        # What the largest element of a batch with this scale and width would be.
        largest = min(PROFILES[name][0] / point[1], 0.4 / point[3])
        for dtype, limit in ((F32, 2e-6), (F64, 1e-14)):
            inputs = [torch.tensor(v, dtype=dtype) for v in point]
            exact = by_mpmath(PROFILES[name], *(v.item() for v in inputs))
            found = gaussian_expectation(*inputs, Profile(PROFILES[name])).item()
            assert found == pytest.approx(exact, rel=limit, abs=limit * largest)


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"), [(F32, 2e-6, 2e-5), (F64, 1e-11, 1e-9)], ids=["32", "64"]
)
@every_profile
def test_every_ratio_of_scale_to_width(
    name: str, dtype: torch.dtype, forward: float, backward: float
) -> None:
    exact = dense(dtype)[name]
    loc, scale, centers, width = grid(dtype)
    # One loc and one scale for each pair: their gradients are the derivatives of every element.
    loc = loc.expand_as(centers).clone().requires_grad_()
    scale = scale.expand_as(centers).clone().requires_grad_()
    value = gaussian_expectation(loc, scale, centers, width, Profile(PROFILES[name]))
    slopes = torch.autograd.grad(value.sum(), (loc, scale))
    assert value.dtype == dtype
    assert row_errors(value, exact[0]).max() < forward
    assert row_errors(slopes[0], exact[1]).max() < backward
    assert row_errors(slopes[1], exact[2]).max() < backward


@every_profile
def test_far_centers_give_zeros_and_extreme_ratios_numbers(name: str) -> None:
    for dtype in (F32, F64):
        tiny, huge = (torch.tensor(v, dtype=dtype) for v in (1e-30, 1e30))
        one, zero = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
        profile = Profile(PROFILES[name])
        peak = profile(zero).item()
        found = gaussian_expectation(zero, tiny, zero, one, profile).item()
        assert found == pytest.approx(1 / math.sqrt(2 * math.pi), rel=1e-6)
        found = gaussian_expectation(zero, one, zero, tiny, profile).item()
        assert found == pytest.approx(peak, rel=1e-6)
        assert gaussian_expectation(zero, huge, zero, one, profile).item() == pytest.approx(
            peak * 1e-30, rel=1e-6
        )
        for scale in (tiny, one, huge):
            far = (scale + one) * 1e6
            inputs = [v.clone().requires_grad_() for v in (zero, scale, far, one)]
            value = gaussian_expectation(*inputs, profile)
            assert value.item() == 0
            assert all(g.item() == 0 for g in torch.autograd.grad(value, inputs))


# Derivatives


@every_profile
def test_derivatives_of_two_orders(name: str) -> None:
    points = [(0.3, 0.5, 0.8, 0.7), (0.3, 2.0, 1.9, 0.4), (0.0, 1.0, 0.2, 0.1)]
    columns = zip(*points, strict=True)
    inputs = [torch.tensor(v, dtype=F64, requires_grad=True) for v in columns]

    def evaluate(*inputs: Tensor) -> Tensor:
        return gaussian_expectation(*inputs, Profile(PROFILES[name]))

    assert gradcheck(evaluate, inputs)
    assert gradgradcheck(evaluate, inputs)


def test_gradients_have_the_shapes_of_what_was_broadcast() -> None:
    inputs = [
        torch.rand(shape, dtype=F64).add(0.5).requires_grad_()
        for shape in ((4, 1), (4, 1), (5,), ())
    ]
    value = gaussian_expectation(*inputs, Profile(PROFILES["parabola"]))
    found = torch.autograd.grad(value.sum(), inputs)
    assert [g.shape for g in found] == [x.shape for x in inputs]
    spread = [x.detach().expand(4, 5).clone().requires_grad_() for x in inputs]
    whole = gaussian_expectation(*spread, Profile(PROFILES["parabola"]))
    assert torch.equal(whole, value)
    for g, all_g in zip(found, torch.autograd.grad(whole.sum(), spread), strict=True):
        torch.testing.assert_close(g, all_g.sum_to_size(g.shape))


# Transforms


@pytest.mark.parametrize("name", ["triweight", "tent"])
def test_vmap_and_functional_gradients_are_elementwise(name: str) -> None:
    loc, scale, centers, width = grid(F64)
    loc, scale = loc.expand(len(scale)), scale.squeeze(-1)

    def evaluate(loc: Tensor, scale: Tensor, centers: Tensor) -> Tensor:
        return gaussian_expectation(loc, scale, centers, width, Profile(PROFILES[name]))

    batched = evaluate(loc[:, None], scale[:, None], centers)
    torch.testing.assert_close(
        torch.vmap(evaluate)(loc, scale, centers), batched, rtol=1e-14, atol=0
    )
    across = torch.vmap(evaluate, in_dims=(None, None, 1))(loc, scale, centers)
    torch.testing.assert_close(across, batched.mT, rtol=1e-14, atol=0)
    slopes = torch.vmap(torch.func.grad(lambda *x: evaluate(*x).sum(), (0, 1)))(loc, scale, centers)
    leaves = [loc.clone().requires_grad_(), scale.clone().requires_grad_()]
    total = evaluate(leaves[0][:, None], leaves[1][:, None], centers).sum()
    for found, exact in zip(slopes, torch.autograd.grad(total, leaves), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-12)


def test_a_compiled_graph_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # A graph cannot split the pairs by regime: it computes both and selects.
    monkeypatch.setattr(Distribution, "_validate_args", False)

    def evaluate(*inputs: Tensor) -> Tensor:
        return gaussian_expectation(*inputs, Profile(PROFILES["uniform"]))

    torch._dynamo.reset()
    results = []
    for run in (evaluate, torch.compile(evaluate, fullgraph=True, backend="aot_eager")):
        inputs = [v.clone().requires_grad_() for v in grid(F64)]
        value = run(*inputs)
        results.append((value, *torch.autograd.grad(value.sum(), inputs)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-10, atol=1e-12)


# Profiles


@every_profile
def test_profiles_are_densities_and_know_their_flux(name: str) -> None:
    profile = Profile(PROFILES[name])
    node, weight = (torch.from_numpy(v) for v in roots_legendre(24))
    x, weight = (node + 1) / 2, weight / 2
    assert (2 * weight * profile(x)).sum().item() == pytest.approx(1, rel=1e-14)
    assert torch.equal(profile(-x), profile(x))
    for start in (0.0, 0.3, 0.9):
        v = start + (1 - start) * x
        expected = ((1 - start) * weight * v * profile(v)).sum()
        torch.testing.assert_close(profile.flux(torch.tensor(start, dtype=F64)), expected)
    assert profile.kinked == name.startswith("tent")
