"""Gaussians under a ball in D dimensions against closed forms, mpmath and differences."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from sparsefam import BetaGaussian, MultivariateBetaGaussian
from sparsefam.numerics.gaussian_ball import gaussians_under_ball
from sparsefam.numerics.gaussian_interval import gaussian_expectation

F32, F64 = torch.float32, torch.float64


def example(dim: int, full: bool, rows: int = 2, count: int = 3) -> tuple[Tensor, ...]:
    """loc, scale_tril, centers, spread and m; the first density is isotropic."""
    generator = torch.Generator().manual_seed(dim)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=F64, generator=generator)

    scale_tril = (0.4 * draw(rows, dim, dim)).tril(-1)
    scale_tril = scale_tril + torch.diag_embed(0.3 + 0.3 * draw(rows, dim).abs())
    scale_tril[0] = 0.5 * torch.eye(dim)
    root = 0.3 * draw(count, dim, dim)
    covariances = root @ root.mT + 0.1 * torch.eye(dim)
    widths = 0.25 + 0.4 * torch.rand(count, dtype=F64, generator=generator)
    m = torch.linspace(0.4, 1.7, rows, dtype=F64)
    return (
        0.3 * draw(rows, dim),
        scale_tril,
        0.5 * draw(count, dim),
        covariances if full else widths,
        m,
    )


def _loss(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: Tensor) -> Tensor:
    return gaussians_under_ball(loc, scale_tril, centers, spread, m).square().sum()


@pytest.mark.parametrize("double", [0, 3])
def test_the_widest_input_says_what_is_computed(double: int) -> None:
    inputs = [x.float().requires_grad_() for x in example(2, full=False)]
    inputs[double] = inputs[double].detach().double().requires_grad_()
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    slopes = torch.autograd.grad(_loss(*inputs), inputs)
    exact = torch.autograd.grad(_loss(*exact_inputs), exact_inputs)
    compiled = torch.compile(gaussians_under_ball, fullgraph=True, backend="aot_eager")
    for function in (gaussians_under_ball, compiled):
        assert torch.equal(function(*inputs), gaussians_under_ball(*exact_inputs))
    for x, slope, exact_slope in zip(inputs, slopes, exact, strict=True):
        assert slope.dtype == x.dtype
        torch.testing.assert_close(slope, exact_slope.to(x.dtype), rtol=1e-6, atol=0)


def test_axes_may_be_of_very_different_length() -> None:
    # The thin axis adds nothing to the Gaussian: what is left is the law of the long one.
    thin = torch.tensor([[0.7, 0.0], [0.3, 1e-6]], dtype=F32)
    centers = torch.tensor([[0.1, 0.2], [0.8, 0.3], [-0.6, -0.2]])
    width, m = torch.tensor(0.05), 1.0
    found = gaussians_under_ball(torch.zeros(2), thin, centers, width, m)
    along = thin[:, 0] / thin[:, 0].norm()
    middle, off = centers @ along, centers @ torch.stack([-along[1], along[0]])
    line = gaussians_under_ball(
        torch.zeros(1), thin[:, 0].norm().reshape(1, 1), middle[:, None], width, m + 0.5
    )
    exact = line * torch.exp(-0.5 * (off / width).square()) / (width * math.sqrt(2 * math.pi))
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=1e-6 * exact.max().item())


# The contour in one dimension


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


# The second Gaussian is much wider than the support: its expectation hardly varies with m.
POINTS = [(0.3, 0.7, 1.05, 0.02, 0.7), (0.0, 1e-3, 0.9, 0.5, 2.6), (-0.4, 3.0, 0.2, 0.6, 20.0)]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("dtype", "limit"), [(F32, 2e-5), (F64, 1e-9)])
def test_slope_in_the_exponent_against_mpmath(
    point: tuple[float, ...], dtype: torch.dtype, limit: float
) -> None:
    *others, m = (torch.tensor(x, dtype=dtype) for x in point)
    (slope,) = torch.autograd.grad(pairs(*others, m.requires_grad_()), m)
    fixed, step = [x.item() for x in others], mpmath.mpf("1e-4") * m.item()
    ends = [reference(*fixed, m.item() + k * step) for k in (-2, -1, 1, 2)]
    exact = float((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step))
    assert slope.item() == pytest.approx(exact, rel=limit)


@pytest.mark.parametrize("m", [0.0, 0.05, 0.4, 1.0, 1.43, 3.0, 20.0, 1e3])
def test_every_width_and_exponent(m: float) -> None:
    """Float32 against float64, and float64 against the closed form."""
    for ratio in np.logspace(-4, 4, 9):
        around = [np.linspace(-40, 40, 41), ratio * np.linspace(-1.5, 1.5, 61)]
        points = (0.3, ratio, 0.3 + np.concatenate(around), 1.0, m)
        inputs = [torch.tensor(x, dtype=F32) for x in points]
        found, exact = (_with_slopes(pairs, x) for x in (inputs, [x.double() for x in inputs]))
        _agree(found, exact, 2e-6, 2e-5)
        if m in (1.0, 3.0):
            profile = BetaGaussian(0.0, 1.0, 1 + 1 / m).profile()
            doubles = [x.double() for x in inputs]
            closed = _with_slopes(lambda *x, f=profile: gaussian_expectation(*x[:4], f), doubles)
            _agree(exact, closed, 1e-13, 1e-12)


def _agree(found: list[Tensor], exact: list[Tensor], forward: float, backward: float) -> None:
    for x, y, limit in zip(found, exact, (forward, backward, backward), strict=True):
        assert (x.double() - y).norm() < limit * y.norm()


def _with_slopes(function, inputs: list[Tensor]) -> list[Tensor]:
    """Values, and derivatives in loc and scale of each element."""
    loc, scale = (x.expand(inputs[2].shape).clone().requires_grad_() for x in inputs[:2])
    value = function(loc, scale, *inputs[2:])
    return [value.detach(), *torch.autograd.grad(value.sum(), (loc, scale))]


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
    """Take another number of steps towards the saddle."""
    monkeypatch.setattr("sparsefam.numerics.gaussian_ball._steps_for", lambda dim: count)


@pytest.mark.parametrize("m", [0.6, 5.0])
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
