"""The contour in one dimension against mpmath and the closed forms; its mean over a ball."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi
from torch import Tensor

from sparsefam import BetaGaussian, MultivariateBetaGaussian
from sparsefam.numerics.gaussian_ball import contour
from sparsefam.numerics.gaussian_ball import gaussians_under_ball
from sparsefam.numerics.gaussian_interval import gaussian_expectation
from sparsefam.numerics.special import stirling_excess

F32, F64 = torch.float32, torch.float64


def pairs(loc: Tensor, scale: Tensor, centers: Tensor, widths: Tensor, m: Tensor | float) -> Tensor:
    """Each density of one dimension against a Gaussian of its own."""
    columns = torch.broadcast_tensors(loc, scale, centers, widths)

    def pair(loc: Tensor, scale: Tensor, center: Tensor, width: Tensor) -> Tensor:
        found = gaussians_under_ball(loc[None], scale[None, None], center[None, None], width, m)
        return found.squeeze(-1)

    for _ in range(columns[0].dim()):
        pair = torch.func.vmap(pair)
    return pair(*columns)


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
    value = pairs(*inputs)
    exact = float(reference(*(x.item() for x in inputs)))
    # A 1e-7 part of a width moves a Gaussian at the edge by as much: hence not relative alone.
    assert abs(value.item() - exact) < limit * max(exact, 1e-2 / point[3] * min(1, point[1]))


@pytest.mark.parametrize("argument", range(5))
def test_derivatives_against_mpmath(argument: int) -> None:
    for point in (POINTS[0], POINTS[1], POINTS[5]):
        inputs = [torch.tensor(x, dtype=F64, requires_grad=True) for x in point]
        (slope,) = torch.autograd.grad(pairs(*inputs), inputs[argument])

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
        found = _with_slopes(pairs, exact_inputs)
        doubles = [x.double() for x in exact_inputs]
        exact = _with_slopes(lambda *x: gaussian_expectation(*x[:4], profile), doubles)
        for k, limit in enumerate((value_limit, slope_limit, slope_limit)):
            error = (found[k].double() - exact[k]).norm() / exact[k].norm()
            assert error < limit, (ratio, k)


def _with_slopes(function, inputs: list[Tensor]) -> list[Tensor]:
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
        found = _with_slopes(pairs, inputs)
        exact = _with_slopes(pairs, [x.double() for x in inputs])
        for k, limit in enumerate((2e-6, 2e-5, 2e-5)):
            error = (found[k].double() - exact[k]).norm() / exact[k].norm()
            assert error < limit, (ratio, k)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_mean_over_the_ball_against_nested_quadrature(dim: int) -> None:
    m = 1.6
    lam = torch.tensor([0.3, 0.05, 1.2], dtype=F64)[:dim]
    b = torch.tensor([0.4, -0.6, 0.2], dtype=F64)[:dim]
    top = torch.tensor(m, dtype=F64)
    path = contour(lam, b, top, 1 - b.square().sum())
    found = torch.exp(path.log_mean + stirling_excess(top + 1)).item()
    assert found == pytest.approx(_nested(lam.tolist(), b.tolist(), m, 1.0), rel=1e-12)


def hard_pairs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A support 1e4 times as long as thin, and narrow Gaussians around it: loc to spread."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=F64, generator=generator)

    axes = torch.linalg.qr(draw(3, 3))[0] * torch.tensor([1e2, 1.0, 1e-2])
    factor = torch.linalg.cholesky(axes @ axes.mT)
    u = torch.nn.functional.normalize(draw(2000, 3), dim=-1)
    u = u * (1 + 0.6 * torch.rand(2000, 1, dtype=F64, generator=generator))
    inputs = (torch.zeros(3), factor, u @ factor.mT, torch.tensor(1e-3))
    return tuple(x.to(dtype) for x in inputs)


def with_steps(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Another number of steps towards the saddle."""
    monkeypatch.setattr("sparsefam.numerics.gaussian_ball._steps_for", lambda dim: count)


@pytest.mark.parametrize("m", [0.6, 1.0, 5.0])
@pytest.mark.parametrize(("dtype", "limit"), [(F32, 1e-4), (F64, 1e-7)])
def test_a_few_steps_find_the_saddle_of_hard_pairs(
    m: float, dtype: torch.dtype, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = hard_pairs(dtype)
    found = gaussians_under_ball(*inputs, m)
    peak = MultivariateBetaGaussian(*inputs[:2], 1 + 1 / m).log_prob(inputs[0]).exp()
    assert ((found >= 0) & (found <= peak)).all()
    with_steps(monkeypatch, 40)
    exact = gaussians_under_ball(*inputs, m)
    # Float32 rounds exponents near -50, by an amount that depends on the processor.
    least = 1e-24 if dtype == F32 else 1e-30
    torch.testing.assert_close(found, exact, rtol=limit, atol=least * peak.item())


def test_a_saddle_that_is_not_found_leaves_a_bound_without_derivatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loc, factor, centers, width = hard_pairs(F64)
    exact = gaussians_under_ball(loc, factor, centers, width, 1.0)
    with_steps(monkeypatch, 0)
    centers.requires_grad_()
    found = gaussians_under_ball(loc, factor, centers, width, 1.0)
    (slopes,) = torch.autograd.grad(found.sum(), centers)
    lost = (slopes == 0).all(-1) & (found > 0)
    assert 20 < lost.sum() < 1000
    peak = MultivariateBetaGaussian(loc, factor, 2.0).log_prob(loc).exp()
    assert ((found > exact) & (found < peak))[lost].all()
    torch.testing.assert_close(found[~lost], exact[~lost], rtol=1e-3, atol=0)
    assert slopes.isfinite().all()


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
