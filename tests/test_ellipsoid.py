"""Characteristic functions, quadrature rules, nesting of ellipsoids, and cuts that move."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE, SINGLE, one_graph
from mpmath import mp
from torch import Tensor

from sparsefam import MultivariateBetaGaussian
from sparsefam._numerics import quadrature
from sparsefam._numerics.ellipsoid import (
    direction_rule,
    orthogonalize,
    radial_characteristic,
    radial_rule,
)
from sparsefam._numerics.quadrature import line_integral
from sparsefam.distributions.divergences import _is_inside

# On both sides of the switch at 1, and far out.
SQUARES = [0.0, 1e-12, 1 - 2.0**-12, 1.0, 1 + 2.0**-12, 9.0, 1e4]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_characteristic_and_its_slope_against_mpmath(dtype: torch.dtype) -> None:
    bound = 4e-7 if dtype == SINGLE else 2e-15
    for nu in (0.5, 1.5, 30.0, 1e6):
        square = torch.tensor(SQUARES, dtype=dtype, requires_grad=True)
        found = radial_characteristic(square, torch.tensor(nu, dtype=dtype))
        (slope,) = torch.autograd.grad(found.sum(), square)
        with mp.workdps(60):
            for x, value, tangent in zip(SQUARES, found.tolist(), slope.tolist(), strict=True):
                exact = mp.hyp0f1(nu + 1, -mp.mpf(x) / 4)
                assert value == pytest.approx(float(exact), abs=bound)
                exact = -mp.hyp0f1(nu + 2, -mp.mpf(x) / 4) / (4 * (nu + 1))
                assert tangent == pytest.approx(float(exact), abs=bound)


def total(a: Tensor) -> Tensor:
    x, weights = direction_rule(5, 3, a)
    radii, shares = radial_rule(3, 5, a.square())
    y, rule = quadrature.gauss_legendre(11, a)
    return (weights * torch.exp(a * x[:, 0])).sum() * (shares * radii).sum() * (rule * y**2).sum()


def test_rules_made_inside_a_transform_serve_outside() -> None:
    a = torch.tensor([0.3, 0.9], dtype=DOUBLE)
    quadrature._cached.cache_clear()
    slopes = torch.vmap(torch.func.grad(total))(a)
    with torch.inference_mode():
        direction_rule(6, 3, a)
    for x, slope in zip(a, slopes, strict=True):
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(total(x), x)
        assert found.item() == pytest.approx(slope.item(), rel=1e-12)
        assert direction_rule(6, 3, x)[0].mul(x).sum().requires_grad


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
    offset[40:50] *= 1e-18  # concentric to rounding
    size = longest(matrix, offset)
    ball = MultivariateBetaGaussian(torch.zeros(dim).double(), torch.eye(dim).double(), 1.5)
    # A factor of the same ellipsoid: with Q of M' = QR, R' is lower triangular, up to signs.
    factor = torch.linalg.qr(matrix.mT)[1].mT
    factor = factor * factor.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    for share, expected in ((1 - 1e-9, True), (1 + 1e-9, False)):
        s = share / size
        p = MultivariateBetaGaussian(s[:, None] * offset, s[:, None, None] * factor, 2.0)
        assert (_is_inside(p, ball, torch.finfo(DOUBLE).eps) == expected).all()


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("ratio", [1.0, 1e2, 1e5])
def test_columns_are_orthogonal_to_rounding(dim: int, ratio: float) -> None:
    """Also those of lengths as unlike as the ratio, and of scaled rotations."""
    draw = torch.Generator().manual_seed(0)
    turns = torch.linalg.qr(torch.randn(500, dim, dim, generator=draw, dtype=DOUBLE))[0]
    scales = ratio ** torch.rand(500, dim, 1, generator=draw, dtype=DOUBLE)
    matrix = scales * turns
    rotation, lengths = orthogonalize(matrix)
    unit = torch.eye(dim, dtype=DOUBLE)
    assert (rotation.mT @ rotation - unit).abs().max() < 1e-14
    gram = (matrix @ rotation).mT @ (matrix @ rotation)
    sizes = lengths.unsqueeze(-1) * lengths.unsqueeze(-2)
    assert (gram / sizes - unit).abs().max() < 1e-15 * 10 * ratio
    truth = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(
        lengths.sort(descending=True)[0], truth, rtol=1e-15 * 10 * ratio, atol=0
    )


# Integrals between cuts that move, where values cannot be read
WAYS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(x[None])[0],
    "jacfwd": torch.func.jacfwd,
    "compile": lambda f: lambda x: torch.autograd.grad(one_graph(f)(x.requires_grad_()), x)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_ends_that_move_have_their_derivative(way: str) -> None:
    """Of the integral of exp(t) where the function is zero at the end itself, as some densities."""

    def integral(ends: Tensor) -> Tensor:
        low, middle, high = ends.unbind()
        cuts = torch.stack([low, middle, high, high, low.new_tensor(math.nan)])
        return line_integral(lambda t: torch.where(t < high, t.exp(), 0.0), cuts)

    ends = torch.tensor([-0.25, 0.5, 1.25]).double()
    expected = ends.exp() * torch.tensor([-1.0, 0.0, 1.0])
    found = WAYS[way](integral)(ends)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
