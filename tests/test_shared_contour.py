"""One contour for each row, in float32, against a contour for each pair in float64."""

from typing import Any

import pytest
import torch
from battery import one_graph
from torch import Tensor

from sparsefam._numerics import gaussian_contour, shared_contour
from sparsefam._numerics.gaussian_contour import gaussians_by_pairs

F64 = torch.float64


def gaussians_under_ball(*arguments: Any) -> Tensor:
    """By the shared contour in float32, by contours of pairs in float64."""
    inputs, exponent = arguments[:4], arguments[4]
    is_single = inputs[0].dtype == torch.float32
    function = shared_contour.gaussians_by_shared_contour if is_single else gaussians_by_pairs
    return function(inputs, exponent)


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
    *((1.0, 71.9, 25.0), (1e-3, 16.0, 12.5)),
]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("low", "high", "exponent"), SHAPES)
def test_values_and_gradients(
    dim: int, low: float, high: float, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(40, dim, low, high, extent=max(2.0, 0.3 * high))
    truth = found(inputs, exponent, F64)
    monkeypatch.setattr(gaussian_contour, "_outputs", None)
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
    rows = (*inputs[:3], torch.tensor(0.5).expand(len(inputs[2])))
    served = shared_contour.integrate_rows(rows, 1.0, False)[3]
    assert served.tolist() == [k not in (2, 4, 5, 6, 7) for k in range(9)]


@pytest.mark.parametrize("dim", [2, 3])
def test_blocks_and_left_out_centers_change_nothing(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(23, dim, 0.1, 16.0, extent=9.0)
    inputs[1][5] *= 400  # a row that the contours do not serve
    whole = found(inputs, 1.0, torch.float32)
    monkeypatch.setattr(shared_contour, "_BLOCK", 2**13)
    for x, y in zip(found(inputs, 1.0, torch.float32), whole, strict=True):
        assert (x - y).norm() < 1e-6 * y.norm()


def test_every_mode_has_the_same_numbers() -> None:
    """Compiled graphs, transforms, and devices, on which no value may be read."""
    loc, tril, centers, above = scene(6, 2, 0.1, 8.0)
    tril[3] *= 400
    spread = torch.tensor(0.5).expand(len(centers))

    def values(loc: Tensor, tril: Tensor) -> Tensor:
        return gaussians_under_ball(loc, tril, centers, spread, 1.0)

    def slopes(loc: Tensor, tril: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        leaves = loc.detach().requires_grad_(), tril.detach().requires_grad_()
        return torch.autograd.grad(compiled(*leaves), leaves, above)

    value, each = values(loc, tril), torch.vmap(values)(loc.unsqueeze(1), tril.unsqueeze(1))
    torch.testing.assert_close(each.squeeze(1), value, rtol=0, atol=1e-6 * value.max().item())
    compiled = one_graph(values)
    assert torch.equal(compiled(loc, tril), value)
    _, pull = torch.func.vjp(values, loc, tril)
    expected = found((loc, tril, centers, above), 1.0, torch.float32)[1:]
    for some in (slopes(loc, tril, above), pull(above)):
        for x, y in zip(some, expected, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-6 * y.abs().max().item())
    there = [torch.empty_like(x, device="meta") for x in (loc, tril, centers, spread)]
    moved = gaussians_under_ball(there[0].requires_grad_(), *there[1:], 1.0)
    moved.sum().backward()
    assert moved.shape == value.shape and there[0].grad.shape == loc.shape


def test_widths_that_are_unlike_take_contours_of_pairs() -> None:
    loc, tril, centers, _ = scene(4, 2, 0.1, 8.0)
    spread = torch.linspace(0.4, 0.6, len(centers))
    truth = gaussians_under_ball(*(x.double() for x in (loc, tril, centers, spread)), 1.0)
    for function in (
        gaussians_under_ball,
        torch.vmap(gaussians_under_ball, (0, 0, None, None, None)),
    ):
        value = function(loc, tril, centers, spread, 1.0)
        assert relative(value.double(), truth) < 2e-6


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
