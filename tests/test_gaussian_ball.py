"""Gaussians under a ball in D dimensions, against nested quadrature and finite differences."""

import math

import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.numerics import gaussian_ball as ball
from sparsefam.numerics.gaussian_ball import gaussians_under_ball, gaussians_under_normal

F32, F64 = torch.float32, torch.float64
KINDS = ["ball", "lowered", "normal"]


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


def nested(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: float) -> Tensor:
    """The same by Gauss-Jacobi along rays of an exact spherical rule."""
    dim = loc.shape[-1]
    x, w = roots_jacobi(60, m, dim / 2 - 1)
    radii, shares = np.sqrt((x + 1) / 2), w / w.sum()
    turns, levels = np.arange(100) * 2 * math.pi / 100, np.polynomial.legendre.leggauss(50)
    if dim == 1:
        directions, sizes = np.array([[1.0], [-1.0]]), np.full(2, 0.5)
    elif dim == 2:
        directions = np.stack([np.cos(turns), np.sin(turns)], -1)
        sizes = np.full(100, 0.01)
    else:
        height, turn = np.meshgrid(levels[0], turns, indexing="ij")
        flat = np.sqrt(1 - height**2)
        directions = np.stack([flat * np.cos(turn), flat * np.sin(turn), height], -1).reshape(-1, 3)
        sizes = np.repeat(levels[1] / 2, 100) / 100
    nodes = (radii[:, None, None] * directions).reshape(-1, dim)
    weights = np.outer(shares, sizes).ravel()
    covariances = spread if spread.dim() > 1 else spread.square()[:, None, None] * torch.eye(dim)
    found = np.empty((len(loc), len(centers)))
    for i, (mu, factor) in enumerate(zip(loc.numpy(), scale_tril.numpy(), strict=True)):
        for j, (c, covariance) in enumerate(zip(centers.numpy(), covariances.numpy(), strict=True)):
            t = mu + nodes @ factor.T
            found[i, j] = weights @ multivariate_normal(c, covariance).pdf(t)
    return torch.from_numpy(found)


@pytest.mark.parametrize("full", [False, True], ids=["isotropic", "full"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("m", [0.0, 0.3, 1.0, 2.3])
def test_values_against_nested_quadrature(dim: int, full: bool, m: float) -> None:
    inputs = example(dim, full)[:4]
    exact = nested(*inputs, m)
    for dtype, limit in ((F32, 6e-7), (F64, 1e-12)):
        rounded = [x.to(dtype) for x in inputs]
        for exponent in (m, torch.full((2,), m, dtype=dtype)):
            found = gaussians_under_ball(*rounded, exponent)
            assert found.dtype == dtype
            assert (found.double() - exact).norm() < limit * exact.norm()


@pytest.mark.parametrize("full", [False, True], ids=["isotropic", "full"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_normal_limit_is_scipys(dim: int, full: bool) -> None:
    loc, scale_tril, centers, spread, _ = example(dim, full)
    found = gaussians_under_normal(loc, scale_tril, centers, spread)
    spread = spread if full else spread.square()[:, None, None] * torch.eye(dim)
    covariances = spread + (scale_tril @ scale_tril.mT).unsqueeze(1)
    for i, j in np.ndindex(*found.shape):
        law = multivariate_normal(loc[i].numpy(), covariances[i, j].numpy())
        assert found[i, j].item() == pytest.approx(law.pdf(centers[j].numpy()), rel=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_large_exponents_tend_to_the_normal_limit(dim: int) -> None:
    loc, scale_tril, centers, spread, _ = example(dim, full=False)
    normal = gaussians_under_normal(loc, scale_tril, centers, spread)
    for m in (1e5, 1e7):
        found = gaussians_under_ball(loc, (2 * m) ** 0.5 * scale_tril, centers, spread, m)
        assert ((found / normal - 1).abs() < 10 * dim / m + 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [False, True], ids=["isotropic", "full"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_first_and_second_derivatives(dim: int, full: bool, kind: str) -> None:
    inputs = [x.clone().requires_grad_() for x in example(dim, full, count=2)]
    if kind != "lowered":
        inputs[4] = inputs[4].detach()

    def integral(loc: Tensor, factor: Tensor, centers: Tensor, spread: Tensor, m: Tensor) -> Tensor:
        spread = (spread + spread.mT) / 2 if full else spread
        return ball._integrate((loc, factor.tril(), centers, spread), m, kind)

    assert gradcheck(integral, inputs)
    assert gradgradcheck(integral, inputs, atol=1e-6, rtol=1e-5)


def _loss(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: Tensor) -> Tensor:
    return gaussians_under_ball(loc, scale_tril, centers, spread, m).square().sum()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_integrated_in_float32(dtype: torch.dtype) -> None:
    inputs = [x.to(dtype).requires_grad_() for x in example(2, full=False)]
    wide = [x.detach().float().requires_grad_() for x in inputs]
    for narrow, exact in (
        (gaussians_under_ball(*inputs), gaussians_under_ball(*wide)),
        (gaussians_under_ball(*inputs[:4], 4 / 3), gaussians_under_ball(*wide[:4], 4 / 3)),
        (gaussians_under_normal(*inputs[:4]), gaussians_under_normal(*wide[:4])),
    ):
        assert torch.equal(narrow, exact.to(dtype))
    slopes, exact_slopes = (torch.autograd.grad(_loss(*x), x) for x in (inputs, wide))
    for slope, exact_slope in zip(slopes, exact_slopes, strict=True):
        assert slope.dtype == dtype
        assert (slope - exact_slope).norm() < 2 * torch.finfo(dtype).eps * exact_slope.norm()


@pytest.mark.parametrize("double", range(4))
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [False, True], ids=["isotropic", "full"])
def test_without_gradients_values_are_the_same(full: bool, kind: str) -> None:
    *inputs, m = example(3, full)
    expected = ball._integrate(tuple(inputs), m, kind)
    with torch.no_grad():
        found = ball._integrate(tuple(inputs), m, kind)
        mapped = torch.func.vmap(lambda loc: ball._integrate((loc, *inputs[1:]), m, kind))
        torch.testing.assert_close(mapped(inputs[0][None])[0], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_vmap_agrees_with_the_batch() -> None:
    loc, scale_tril, centers, spread, m = example(2, full=False)
    whole = gaussians_under_ball(loc, scale_tril, centers, spread, m)
    mapped = torch.func.vmap(gaussians_under_ball, (0, 0, None, None, 0))
    torch.testing.assert_close(mapped(loc, scale_tril, centers, spread, m), whole)
    slopes = torch.func.grad(_loss, (0, 1, 4))
    mapped = torch.func.vmap(slopes, (0, 0, None, None, 0))
    found = mapped(loc, scale_tril, centers, spread, m)
    torch.testing.assert_close(found, slopes(loc, scale_tril, centers, spread, m))


@pytest.mark.parametrize("full", [False, True], ids=["isotropic", "full"])
def test_compiles_into_one_graph(full: bool) -> None:
    inputs = [x.requires_grad_() for x in example(2, full)]
    compiled = torch.compile(_loss, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*inputs), _loss(*inputs)
    torch.testing.assert_close(found, expected)
    slopes, exact = (torch.autograd.grad(x, inputs) for x in (found, expected))
    torch.testing.assert_close(slopes, exact)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), expected)


def test_large_batches_go_in_chunks_without_a_seam() -> None:
    _, scale_tril, centers, spread, _ = example(2, full=False, count=128)
    loc = torch.rand(300, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    whole = gaussians_under_ball(loc, scale_tril[1].expand(300, 2, 2), centers, spread, 0.7)
    rows = [gaussians_under_ball(x, scale_tril[1], centers, spread, 0.7) for x in loc]
    torch.testing.assert_close(whole, torch.stack(rows), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_are_finite_with_finite_gradients(scale: float, dim: int) -> None:
    factor = (scale * torch.eye(dim)).requires_grad_()
    alpha = torch.tensor(1.6, requires_grad=True)
    centers = torch.stack([torch.zeros(dim), 0.5 * torch.ones(dim)])
    value = gaussians_under_ball(
        torch.full((dim,), 0.3), factor, centers, torch.tensor(0.2), 1 / (alpha - 1)
    )
    slopes = torch.autograd.grad(value.sum(), (factor, alpha))
    assert all(torch.isfinite(x).all() for x in (value, *slopes))


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
