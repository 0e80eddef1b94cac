"""Gaussians under a ball: the contour of each pair against quadrature in longdouble."""

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from references import Array, tanh_sinh
from torch import Tensor

from sparsefam import MultivariateBetaGaussian
from sparsefam._numerics.gaussian_contour import gaussians_by_pairs

F32, F64 = torch.float32, torch.float64


def gaussians_under_ball(*arguments: Any) -> Tensor:
    return gaussians_by_pairs(arguments[:4], arguments[4])


@pytest.mark.parametrize("double", [0, 3])
def test_the_widest_input_says_what_is_computed(double: int) -> None:
    tril = torch.stack([0.5 * torch.eye(2), torch.tensor([[0.4, 0.0], [-0.3, 0.7]])])
    m = torch.tensor([0.4, 1.7])
    inputs = [0.3 * torch.randn(2, 2), tril, 0.5 * torch.randn(3, 2), 0.25 + torch.rand(3), m]
    inputs = [(x.double() if i == double else x).requires_grad_() for i, x in enumerate(inputs)]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    value, exact_value = (gaussians_under_ball(*x) for x in (inputs, exact_inputs))
    assert torch.equal(value, exact_value)
    slopes = torch.autograd.grad(value.square().sum(), inputs)
    exact = torch.autograd.grad(exact_value.square().sum(), exact_inputs)
    for x, slope, exact_slope in zip(inputs, slopes, exact, strict=True):
        assert slope.dtype == x.dtype
        torch.testing.assert_close(slope, exact_slope.to(x.dtype), rtol=1e-6, atol=0)


# One dimension
def pairs(*inputs: Tensor) -> Tensor:
    """Densities (n,), each against a Gaussian of its own: loc, scale, center, width, and m."""

    def pair(loc: Tensor, scale: Tensor, center: Tensor, width: Tensor, m: Tensor) -> Tensor:
        found = gaussians_under_ball(loc[None], scale[None, None], center[None, None], width, m)
        return found.squeeze(-1)

    return torch.func.vmap(pair, (0, 0, 0, 0, 0 if isinstance(inputs[4], Tensor) else None))(
        *inputs
    )


# Of the value, of the slopes in loc and scale, and in the exponent.
LIMITS = {F32: (2e-6, 2e-5, 2e-5, 2e-5), F64: (1e-13, 1e-12, 1e-12, 1e-9)}


def exactly(loc: float, scale: float, centers: Array, m: float) -> list[Tensor]:
    """Expectations of N(t; c, 1), and their derivatives in loc, scale and m."""
    middle, s = np.longdouble(loc) - centers, np.longdouble(scale)
    peaks = [(side - middle) / s for side in (-14, 0, 14)]
    cuts = np.sort(np.clip([0 * middle - 1, 0 * middle, 0 * middle + 1, *peaks], -1, 1), 0)
    x, weights = tanh_sinh(1 / 32, cuts[:-1, :, None], cuts[1:, :, None], np.longdouble)
    y, base = middle[:, None] + s * x, ((1 - x) * (1 + x)).clip(1e-300)
    with mp.workdps(30):
        half, power = mp.mpf(1) / 2, mp.mpf(m) + 1
        height = 1 / mp.beta(half, power) / mp.sqrt(2 * mp.pi)
        rise = mp.digamma(power + half) - mp.digamma(power)
    height, rise = (np.longdouble(mp.nstr(v, 25)) for v in (height, rise))
    mass = height * weights * base ** np.longdouble(m) * np.exp(-(y**2) / 2)
    parts = mass, -mass * y, -mass * x * y, mass * (np.log(base) + rise)
    return [torch.from_numpy(np.float64(part.sum((0, -1)))) for part in parts]


@pytest.mark.parametrize("m", [0.0, 0.05, 0.4, 1.43, 3.0, 1e3])
def test_every_width_and_exponent(m: float) -> None:
    """Values, and derivatives in loc, scale and the exponent, which then is a tensor."""
    m = torch.tensor(m).item()
    for ratio in (1e-4, 1e-2, 1.0, 1e2, 3e3):
        around = [np.linspace(-40, 40, 41), ratio * np.linspace(-1.5, 1.5, 61)]
        columns = 0.3, ratio, 0.3 + np.concatenate(around), 1.0, m
        rows = [np.broadcast_to(np.float32(x), (102,)).copy() for x in columns]
        exact = exactly(rows[0][0], rows[1][0], rows[2], m)
        for dtype, limits in LIMITS.items():
            *inputs, power = (torch.from_numpy(x).to(dtype).requires_grad_() for x in rows)
            value = pairs(*inputs, m)
            slopes = torch.autograd.grad(value.sum(), inputs[:2])
            found = [value.detach(), *slopes]
            if 0 < m < 100:  # an exponent may be learned
                found += torch.autograd.grad(pairs(*inputs, power).sum(), power)
            for x, y, limit in zip(found, exact, limits, strict=False):
                # A value that hardly varies with the exponent is rounded.
                least = 1e-16 * exact[0].norm() if y is exact[3] else 0.0
                assert (x.double() - y).norm() < limit * y.norm() + least, (ratio, dtype)


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


@pytest.mark.parametrize("m", [0.6, 5.0])
@pytest.mark.parametrize(("dtype", "limit"), [(F32, 1e-4), (F64, 1e-7)])
def test_a_few_steps_find_the_saddle_of_hard_pairs(
    m: float, dtype: torch.dtype, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = hard_pairs(dtype)
    found = gaussians_under_ball(*inputs, m)
    peak = MultivariateBetaGaussian(*inputs[:2], 1 + 1 / m).log_prob(inputs[0]).exp()
    assert ((found >= 0) & (found <= peak)).all()
    monkeypatch.setattr("sparsefam._numerics.gaussian_contour._steps_for", lambda dim: 40)
    exact = gaussians_under_ball(*inputs, m)
    # Float32 rounds exponents near -50, by an amount that depends on the processor.
    least = 1e-24 if dtype == F32 else 1e-30
    torch.testing.assert_close(found, exact, rtol=limit, atol=least * peak.item())
