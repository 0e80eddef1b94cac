"""The contour integral against mpmath, nested quadrature and the closed forms."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi
from torch.autograd import gradcheck, gradgradcheck

from sparsefam import BetaGaussian
from sparsefam.numerics.ball import _contour, gaussian_under_power
from sparsefam.numerics.interval import gaussian_expectation
from sparsefam.numerics.special import stirling_excess

F32, F64 = torch.float32, torch.float64


def reference(loc: float, scale: float, center: float, width: float, m: float) -> mpmath.mpf:
    """E_p[N(t; c, w^2)] by adaptive quadrature at 30 digits, split where it bends."""
    with mpmath.workdps(30):
        loc, scale, center, width, m = (mpmath.mpf(x) for x in (loc, scale, center, width, m))
        constant = mpmath.gamma(m + 1.5) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(m + 1))

        def f(theta: mpmath.mpf) -> mpmath.mpf:
            # x = sin(theta) leaves no singular derivative at the edges.
            z = (loc + scale * mpmath.sin(theta) - center) / width
            return mpmath.cos(theta) ** (2 * m + 1) * mpmath.npdf(z) / width

        marks = [(center + k * width - loc) / scale for k in (-12, -4, -1, 0, 1, 4, 12)]
        inner = sorted(mpmath.asin(x) for x in marks if -1 < x < 1)
        return constant * mpmath.quad(f, [-mpmath.pi / 2, *inner, mpmath.pi / 2])


POINTS = [
    (0.3, 0.7, 0.5, 0.1, 1.3),
    (0.3, 0.7, 1.05, 0.02, 0.7),
    (0.0, 1e-3, 0.9, 0.5, 2.6),
    (0.0, 50.0, 49.9, 0.3, 0.25),
    (0.1, 2.0, 0.4, 0.2, 0.0),
    (-0.4, 3.0, 0.2, 0.6, 20.0),
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("dtype", "limit"), [(F32, 1e-6), (F64, 1e-13)])
def test_value_against_mpmath(point: tuple[float, ...], dtype: torch.dtype, limit: float) -> None:
    inputs = [torch.tensor(x, dtype=dtype) for x in point]
    value = gaussian_under_power(*inputs)
    exact = float(reference(*(x.item() for x in inputs)))
    # A 1e-7 part of a width moves a Gaussian at the edge by as much: hence not relative alone.
    assert abs(value.item() - exact) < limit * max(exact, 1e-2 / point[3] * min(1, point[1]))


@pytest.mark.parametrize("argument", range(5))
def test_derivatives_against_mpmath(argument: int) -> None:
    for point in (POINTS[0], POINTS[1], POINTS[5]):
        inputs = [torch.tensor(x, dtype=F64, requires_grad=True) for x in point]
        (slope,) = torch.autograd.grad(gaussian_under_power(*inputs), inputs[argument])

        def shifted(x: mpmath.mpf, point: tuple[float, ...] = point) -> mpmath.mpf:
            return reference(*point[:argument], x, *point[argument + 1 :])

        step = mpmath.mpf("1e-4") * point[argument]
        ends = [shifted(point[argument] + k * step) for k in (-2, -1, 1, 2)]
        exact = float((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step))
        assert slope.item() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("m", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(
    ("dtype", "value_limit", "slope_limit"), [(F32, 2e-6, 2e-5), (F64, 1e-13, 1e-12)]
)
def test_agrees_with_the_closed_form_for_every_width(
    m: float, dtype: torch.dtype, value_limit: float, slope_limit: float
) -> None:
    profile = BetaGaussian(0.0, 1.0, 1 + 1 / m).profile()
    for ratio in np.logspace(-4, 4, 17):
        centers = 0.3 + np.concatenate(
            [np.linspace(-40, 40, 41), ratio * np.linspace(-1.5, 1.5, 61)]
        )
        exact_inputs = [torch.tensor(x, dtype=dtype) for x in (0.3, ratio, centers, 1.0, m)]
        found = _with_slopes(gaussian_under_power, exact_inputs)
        doubles = [x.double() for x in exact_inputs]
        exact = _with_slopes(lambda *x: gaussian_expectation(*x[:4], profile), doubles)
        for k, limit in enumerate((value_limit, slope_limit, slope_limit)):
            error = (found[k].double() - exact[k]).norm() / exact[k].norm()
            assert error < limit, (ratio, k)


def _with_slopes(function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Values, and derivatives in loc and scale of each element."""
    loc, scale = (x.expand(inputs[2].shape).clone().requires_grad_() for x in inputs[:2])
    value = function(loc, scale, *inputs[2:])
    return [value.detach(), *torch.autograd.grad(value.sum(), (loc, scale))]


@pytest.mark.parametrize("m", [0.0, 0.05, 0.4, 1.43, 10.0, 20.0, 1e3])
def test_float32_keeps_its_digits_for_every_exponent(m: float) -> None:
    for ratio in np.logspace(-4, 4, 17):
        centers = 0.3 + np.concatenate(
            [np.linspace(-40, 40, 41), ratio * np.linspace(-1.5, 1.5, 61)]
        )
        inputs = [torch.tensor(x, dtype=F32) for x in (0.3, ratio, centers, 1.0, m)]
        found = _with_slopes(gaussian_under_power, inputs)
        exact = _with_slopes(gaussian_under_power, [x.double() for x in inputs])
        for k, limit in enumerate((2e-6, 2e-5, 2e-5)):
            error = (found[k].double() - exact[k]).norm() / exact[k].norm()
            assert error < limit, (ratio, k)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_mean_over_the_ball_against_nested_quadrature(dim: int) -> None:
    m = 1.6
    lam = torch.tensor([0.3, 0.05, 1.2], dtype=F64)[:dim]
    b = torch.tensor([0.4, -0.6, 0.2], dtype=F64)[:dim]
    top = torch.tensor(m, dtype=F64)
    path = _contour(lam, b, top, 1 - b.square().sum())
    found = torch.exp(path.log_mean + stirling_excess(top + 1)).item()
    assert found == pytest.approx(_nested(lam.tolist(), b.tolist(), m, 1.0), rel=1e-12)


def _nested(lam: list[float], b: list[float], m: float, room: float) -> float:
    """E[(room - |x|^2)_+^m], coordinate by coordinate, by Gauss-Jacobi rules."""
    if not lam:
        return room**m
    power = m + (len(lam) - 1) / 2
    x, w = roots_jacobi(60, power, power)
    half = math.sqrt(room)
    total = 0.0
    for node, weight in zip(x, w, strict=True):
        left = room * (1 - node * node)
        rest = _nested(lam[1:], b[1:], m, left) / left**power * room**power
        density = math.exp(-((half * node - b[0]) ** 2) / (2 * lam[0]))
        total += weight * half * density / math.sqrt(2 * math.pi * lam[0]) * rest
    return total


def _example() -> tuple[torch.Tensor, ...]:
    columns = ([[0.3], [0.5]], [[0.7], [0.02]], [0.2, 0.51, 1.0], [0.1, 0.3, 0.05], [[1.3], [0.2]])
    return tuple(torch.tensor(x, dtype=F64, requires_grad=True) for x in columns)


def test_first_and_second_derivatives() -> None:
    inputs = _example()
    assert gradcheck(gaussian_under_power, inputs)
    assert gradgradcheck(gaussian_under_power, inputs, atol=1e-6, rtol=1e-5)


def test_vmap_and_compile_agree_with_eager() -> None:
    loc, scale, centers, widths, m = _example()
    eager = gaussian_under_power(loc, scale, centers, widths, m)

    def row(loc: torch.Tensor, scale: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return gaussian_under_power(loc, scale, centers, widths, m)

    torch.testing.assert_close(torch.func.vmap(row)(loc, scale, m), eager)
    slopes = torch.func.vmap(torch.func.grad(lambda *x: row(*x).sum(), argnums=(0, 1, 2)))
    exact = torch.autograd.grad(eager.sum(), (loc, scale, m))
    torch.testing.assert_close(slopes(loc, scale, m), exact)
    compiled = torch.compile(gaussian_under_power, fullgraph=True, backend="aot_eager")
    again = compiled(loc, scale, centers, widths, m)
    torch.testing.assert_close(again, eager)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), (loc, scale, m)), exact)


def test_large_batches_go_in_chunks_without_a_seam() -> None:
    loc = torch.linspace(0, 1, 300, dtype=F64)[:, None]
    centers = torch.linspace(-0.2, 1.2, 128, dtype=F64)
    arguments = [torch.tensor(x, dtype=F64) for x in (0.2, 0.05, 1.7)]
    whole = gaussian_under_power(loc, arguments[0], centers, *arguments[1:])
    rows = [gaussian_under_power(x, arguments[0], centers, *arguments[1:]) for x in loc]
    torch.testing.assert_close(whole, torch.stack(rows), rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_are_finite_with_finite_gradients(scale: float) -> None:
    half = torch.tensor(scale, requires_grad=True)
    alpha = torch.tensor(1.6, requires_grad=True)
    value = gaussian_under_power(
        torch.tensor(0.3), half, torch.tensor([0.0, 0.5]), torch.tensor(0.2), 1 / (alpha - 1)
    )
    slopes = torch.autograd.grad(value.sum(), (half, alpha))
    assert all(torch.isfinite(x).all() for x in (value, *slopes))
