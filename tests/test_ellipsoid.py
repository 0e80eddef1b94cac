"""Characteristic functions, quadrature rules and nesting of elliptical densities."""

import mpmath as mp
import pytest
import torch
from cases import every_dtype
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam import MultivariateBetaGaussian
from sparsefam.distributions.divergences import _is_inside
from sparsefam.numerics import quadrature
from sparsefam.numerics.ellipsoid import (
    direction_rule,
    radial_characteristic,
    radial_rule,
)
from sparsefam.numerics.special import characteristic

SINGLE, DOUBLE = torch.float32, torch.float64
EXPONENTS = [0.0, 1e-3, 0.5, 1.0, 3.7, 1e3, 1e6, 1e10]
ORDERS = [0.5, 1.5, 30.0, 1e6]
# On both sides of the switch at 1, and far out.
SQUARES = [0.0, 1e-12, 1 - 2.0**-12, 1.0, 1 + 2.0**-12, 9.0, 1e4]


# Characteristic functions


@every_dtype
def test_characteristic_and_its_slope_against_mpmath(dtype: torch.dtype) -> None:
    bound = 4e-7 if dtype == SINGLE else 2e-15
    for nu in ORDERS:
        square = torch.tensor(SQUARES, dtype=dtype, requires_grad=True)
        order = torch.tensor(nu, dtype=dtype)
        found = radial_characteristic(square, order)
        (slope,) = torch.autograd.grad(found.sum(), square)
        with mp.workdps(60):
            for x, value, tangent in zip(SQUARES, found.tolist(), slope.tolist(), strict=True):
                exact = mp.hyp0f1(nu + 1, -mp.mpf(x) / 4)
                assert value == pytest.approx(float(exact), abs=bound)
                exact = -mp.hyp0f1(nu + 2, -mp.mpf(x) / 4) / (4 * (nu + 1))
                assert tangent == pytest.approx(float(exact), abs=bound)


def test_gradients_of_the_characteristic() -> None:
    square = torch.tensor([0.0, 0.3, 0.999, 1.001, 30.0], dtype=DOUBLE, requires_grad=True)
    nu = torch.tensor([0.5, 1.5, 2.0, 2.0, 8.0], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(radial_characteristic, (square, nu + 1))
    assert gradgradcheck(radial_characteristic, (square, nu + 1))
    torch.testing.assert_close(
        radial_characteristic(square, nu), characteristic(square.sqrt(), nu), rtol=0, atol=1e-15
    )
    # At zero |w| has no second derivative, its square has.
    hessian = torch.autograd.functional.hessian(
        lambda w: radial_characteristic(w.square().sum(), nu[2]), torch.zeros(3, dtype=DOUBLE)
    )
    torch.testing.assert_close(hessian, torch.eye(3, dtype=DOUBLE) / -6)


# Radii


@pytest.mark.parametrize("dim", [1, 2, 16])
@pytest.mark.parametrize("count", [1, 2, 17, 40])
def test_radii_integrate_even_powers(count: int, dim: int) -> None:
    m = torch.tensor(EXPONENTS, dtype=DOUBLE)
    radii, weights = radial_rule(count, dim, m)
    assert radii.shape == weights.shape == (count, len(m))
    assert ((radii > 0) & (radii < 1)).all()
    assert (radii.diff(dim=0) > 0).all()
    assert (weights >= 0).all()
    log_power, misses = torch.zeros_like(radii), []
    for k in range(2 * count + 1):
        misses.append(((weights * log_power.exp()).sum(0) - 1).abs())
        log_power = log_power + torch.log(radii.square() * (1 + (m + 1) / (dim / 2 + k)))
    assert torch.stack(misses[:-1]).max() < 1e-12
    # And no further.
    assert count > 2 or (misses[-1] > 1e-5).all()


def test_radii_are_differentiable_in_the_exponent() -> None:
    m = torch.tensor([0.3, 2.0, 15.0], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda m: radial_rule(9, 3, m), m)
    assert gradgradcheck(lambda m: radial_rule(4, 2, m), m)


def test_radii_in_float32() -> None:
    m = torch.tensor(EXPONENTS, dtype=SINGLE)
    for a, b in zip(radial_rule(33, 2, m), radial_rule(33, 2, m.double()), strict=True):
        assert a.dtype == SINGLE
        torch.testing.assert_close(a.double(), b, rtol=2e-7, atol=1e-38)


# Caches


def total(a: Tensor) -> Tensor:
    x, weights = direction_rule(5, 3, a)
    radii, shares = radial_rule(3, 5, a.square())
    y, rule = quadrature.gauss_legendre(11, a)
    return (weights * torch.exp(a * x[:, 0])).sum() * (shares * radii).sum() * (rule * y**2).sum()


def test_rules_made_inside_a_transform_serve_outside_and_in_compiled_graphs() -> None:
    a = torch.tensor([0.3, 0.9], dtype=DOUBLE)
    quadrature._cached.cache_clear()
    slopes = torch.vmap(torch.func.grad(total))(a)
    with torch.inference_mode():
        direction_rule(6, 3, a)
    torch._dynamo.reset()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for x, slope in zip(a, slopes, strict=True):
        x = x.clone().requires_grad_()
        assert compiled(x).item() == pytest.approx(total(x).item(), rel=1e-14)
        (found,) = torch.autograd.grad(total(x), x)
        assert found.item() == pytest.approx(slope.item(), rel=1e-12)
        assert direction_rule(6, 3, x)[0].mul(x).sum().requires_grad


# Ellipsoids in a ball


def longest(matrix: Tensor, offset: Tensor) -> Tensor:
    """Return the largest |M v + d| by ascent from many directions."""
    v = torch.randn(300, matrix.shape[-1], dtype=DOUBLE).expand(len(matrix), -1, -1)
    for _ in range(300):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        image = v @ matrix.mT + offset[:, None]
        v = image @ matrix
    return image.norm(dim=-1).amax(-1)


@pytest.mark.parametrize("dim", [1, 2, 6])
def test_nesting_is_decided_on_both_sides_of_touching(dim: int) -> None:
    matrix, offset = torch.randn(60, dim, dim, dtype=DOUBLE), torch.randn(60, dim, dtype=DOUBLE)
    matrix[:10] = matrix[:10] @ torch.diag(1e-6 ** torch.arange(dim).clamp_max(1)).double()  # thin
    offset[5:20] = 0  # concentric
    matrix[20:30] = torch.eye(dim, dtype=DOUBLE) * torch.rand(10, 1, 1, dtype=DOUBLE)  # round
    offset[30:40, 0] = 1e-9
    size = longest(matrix, offset)
    ball = MultivariateBetaGaussian(torch.zeros(dim).double(), torch.eye(dim).double(), 1.5)
    # A factor of the same ellipsoid: with Q of M' = QR, R' is lower triangular, up to signs.
    factor = torch.linalg.qr(matrix.mT)[1].mT
    factor = factor * factor.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    for share, expected in ((1 - 1e-9, True), (1 + 1e-9, False)):
        s = share / size
        p = MultivariateBetaGaussian(s[:, None] * offset, s[:, None, None] * factor, 2.0)
        assert (_is_inside(p, ball, torch.finfo(DOUBLE).eps) == expected).all()
