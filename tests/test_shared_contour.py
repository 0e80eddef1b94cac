"""One contour for all pairs, in float32, against a contour for each pair in float64."""

import pytest
import torch
from torch import Tensor

import sparsefam as sf
from sparsefam.numerics import shared_contour
from sparsefam.numerics.gaussian_ball import gaussians_under_ball

F64 = torch.float64


def supports(rows: int, dim: int, low: float, high: float) -> Tensor:
    """Factors of ellipsoids with half-axes even on a log scale, turned in any direction."""
    draw = torch.Generator().manual_seed(dim)
    axes = low * (high / low) ** torch.rand(rows, dim, generator=draw, dtype=F64)
    turns = torch.linalg.qr(torch.randn(rows, dim, dim, generator=draw, dtype=F64))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    return (upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).float()


def scene(rows: int, dim: int, low: float, high: float, extent: float = 1.0) -> tuple[Tensor, ...]:
    """loc, scale_tril, centers of width 0.5 around them, and a gradient from above."""
    draw = torch.Generator().manual_seed(0)
    loc = 0.2 * torch.randn(rows, dim, generator=draw)
    centers = extent * (2 * torch.rand(60**dim if dim < 3 else 800, dim, generator=draw) - 1)
    centers = torch.cat([centers[:400], torch.zeros(1, dim)])
    above = torch.randn(rows, len(centers), generator=draw)
    return loc, 0.5 * supports(rows, dim, low, high), centers, above


def found(inputs: tuple[Tensor, ...], exponent: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Values and gradients; in float64 by contours of pairs."""
    loc, tril = (x.to(dtype).requires_grad_() for x in inputs[:2])
    spread = torch.tensor(0.5, dtype=dtype).expand(len(inputs[2]))
    values = gaussians_under_ball(loc, tril, inputs[2].to(dtype), spread, exponent)
    slopes = torch.autograd.grad(values, (loc, tril), inputs[3].to(dtype))
    return values.detach().double(), *(x.double() for x in slopes)


def relative(x: Tensor, y: Tensor) -> float:
    """The largest norm-wise error of a row."""
    return ((x - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).max().item()


SHAPES = [
    *((1e-3, 8.0, 1.0), (0.1, 16.0, 3.0), (16.0, 24.0, 1.0), (1.0, 71.9, 1.0), (1.0, 71.9, 3.0)),
    *((1.0, 71.9, 25.0), (1e-3, 16.0, 12.5), (1e-3, 8.0, 0.5), (1.0, 71.9, 0.9)),
]


@pytest.mark.parametrize(
    ("dim", "low", "high", "exponent"),
    [(dim, *shape) for dim in (1, 2, 3) for shape in SHAPES if dim == 1 or shape[-1] >= 1],
)
def test_values_and_gradients(
    dim: int, low: float, high: float, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(40, dim, low, high, extent=max(2.0, 0.3 * high))
    truth = found(inputs, exponent, F64)
    monkeypatch.setattr("sparsefam.numerics.gaussian_ball._integrate", None)
    monkeypatch.setattr(shared_contour, "_LEAST_SHARE", 1e-3)
    value, by_loc, by_tril = found(inputs, exponent, torch.float32)
    assert relative(value, truth[0]) < 2e-6
    for x, y in ((by_loc, truth[1]), (by_tril, truth[2])):
        assert (x - y).norm() < 5e-6 * y.norm()


def test_rows_without_a_near_center_take_contours_of_pairs() -> None:
    """A support as long as hundreds of widths, and some far from every center, among others."""
    inputs = scene(9, 2, 1.0, 8.0)
    inputs[1][2] *= 400
    inputs[0][4:8] += torch.tensor([4.0, 5.0, 6.2, 40.0]).unsqueeze(-1)
    near = [x for x in range(9) if x != 7]
    for x, y in zip(found(inputs, 1.0, torch.float32), found(inputs, 1.0, F64), strict=True):
        assert relative(x[near], y[near]) < 2e-5
        assert not x[7].any()
    arrays = [x.detach().numpy() for x in inputs[:3]]
    assert (shared_contour._integrate(*arrays, 0.5, 1.0, False).active < 0).any()


def test_threads_have_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = scene(23, 2, 1.0, 8.0)
    inputs[1][5] *= 400  # a row that the shared contour does not serve
    whole = found(inputs, 1.0, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(shared_contour, "_PAIRS_PER_THREAD", 1000)
    assert [x.stop - x.start for x in shared_contour._parts(23, 401)] == [5, 6, 6, 6]
    for x, y in zip(found(inputs, 1.0, torch.float32), whole, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("name", "value"), [("_setting", "0"), ("_INSTALLED", False), ("_has_numba", lambda: False)]
)
def test_without_compiled_loops(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, name, value)
    monkeypatch.setattr(shared_contour, "_loops", None)
    inputs = scene(3, 2, 1.0, 8.0)
    for x, y in zip(found(inputs, 1.0, torch.float32), found(inputs, 1.0, F64), strict=True):
        assert relative(x, y) < 2e-5


@pytest.mark.parametrize("width", [1e-13, 1e15])
def test_units_as_small_or_large_as_float32_holds(width: float) -> None:
    loc, tril, centers, _ = scene(3, 2, 1.0, 8.0)
    inputs = [2 * width * x for x in (loc, tril, centers)] + [torch.full((len(centers),), width)]
    value = gaussians_under_ball(*inputs, 1.0)
    truth = gaussians_under_ball(*(x.double() for x in inputs), 1.0)
    assert relative(value.double(), truth) < 2e-6


@pytest.mark.parametrize("alpha", [2.0, 4 / 3])
def test_closed_forms_serve_the_rows_that_it_leaves(alpha: float) -> None:
    """One support among others is 1000 widths long, and one is far from every center."""

    def results(dtype: torch.dtype) -> list[Tensor]:
        loc = torch.tensor([0.3, 0.5, 5.0, 0.4], dtype=dtype, requires_grad=True)
        scale = torch.tensor([0.2, 20.0, 0.1, 1e-4], dtype=dtype, requires_grad=True)
        centers = torch.linspace(0, 1, 50).to(dtype)
        psi = sf.bases.GaussianRBF(centers, torch.tensor(0.02).to(dtype))
        value = sf.BetaGaussian(loc, scale, alpha).expect(psi)
        above = torch.sin(torch.arange(200.0)).reshape(4, 50).to(dtype)
        slopes = torch.autograd.grad(value, (loc, scale), above, create_graph=True)
        (curvature,) = torch.autograd.grad(slopes[0].sum(), scale)
        return [value, *(x.unsqueeze(-1) for x in (*slopes, curvature))]

    rows = [0, 1, 3]  # what is far is zero to float32
    for x, y in zip(results(torch.float32), results(F64), strict=True):
        assert relative(x[rows].double(), y[rows]) < 2e-5
        assert not x[2].any()


@pytest.mark.parametrize("batch", [(), (3, 1)])
def test_values_may_be_changed_in_place(batch: tuple[int, ...]) -> None:
    loc = torch.zeros(*batch, 1, requires_grad=True)
    inputs = torch.full((*batch, 1, 1), 0.3), torch.rand(20, 1), torch.tensor(0.1).expand(20)
    whole = gaussians_under_ball(loc, *inputs, 1.0)
    (expected,) = torch.autograd.grad(3 * whole.sum(), loc)
    (found,) = torch.autograd.grad(gaussians_under_ball(loc, *inputs, 1.0).mul_(3).sum(), loc)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_are_those_of_pairs() -> None:
    inputs = scene(3, 2, 1.0, 8.0)

    def curvature(dtype: torch.dtype) -> Tensor:
        loc = inputs[0].to(dtype).requires_grad_()
        spread = torch.tensor(0.5, dtype=dtype).expand(len(inputs[2]))
        values = gaussians_under_ball(loc, inputs[1].to(dtype), inputs[2].to(dtype), spread, 1.0)
        slope = torch.autograd.grad(values, loc, inputs[3].to(dtype), create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), loc)[0]

    assert relative(curvature(torch.float32).double(), curvature(F64)) < 2e-5


def test_gradients_of_many_outputs_at_once() -> None:
    loc, tril, centers, _ = scene(3, 2, 1.0, 8.0)
    loc.requires_grad_()
    spread = torch.tensor(0.5).expand(len(centers))
    total = gaussians_under_ball(loc, tril, centers, spread, 1.0).sum(-1)
    (batched,) = torch.autograd.grad(
        total, loc, torch.eye(3), is_grads_batched=True, retain_graph=True
    )
    mapped = torch.vmap(lambda grad: torch.autograd.grad(total, loc, grad, retain_graph=True)[0])
    each = torch.stack([torch.autograd.grad(x, loc, retain_graph=True)[0] for x in total])
    for found in (batched, mapped(torch.eye(3))):
        torch.testing.assert_close(found, each, rtol=1e-5, atol=1e-5)


def test_blocks_of_centers_have_no_seam() -> None:
    """400 centers within reach go by two blocks; each alone goes by one."""
    inputs = scene(3, 2, 8.0, 8.0)
    whole = found(inputs, 1.0, torch.float32)[0]
    for j in (0, 255, 256, 257, 399):
        one = (*inputs[:2], inputs[2][j : j + 1].clone(), inputs[3][:, j : j + 1])
        assert relative(found(one, 1.0, torch.float32)[0], whole[:, j : j + 1]) < 1e-6


def test_no_row_with_digits() -> None:
    inputs = scene(2, 2, 200.0, 300.0)
    for x, y in zip(found(inputs, 1.0, torch.float32), found(inputs, 1.0, F64), strict=True):
        assert relative(x, y) < 2e-5
