"""Space onto the unit ball and back, against mpmath and automatic differentiation."""

import mpmath as mp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import jacobian

from sparsefam.numerics.special import ball_to_space, space_to_ball, space_to_ball_log_det

DOUBLE = torch.float64
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
# Around both places where a series gives way to a formula (|y| = 2 and |u| = 1/4), and beyond.
RADII = (0.0, 1e-30, 1e-9, 1e-3, 0.1, 0.5, 0.51, 1.3, 1.99, 2.01, 3.0, 6.0, 11.0)
FAR = (12.0, 14.0, 20.0, 100.0, 1e15, 1e30)
every_dimension = pytest.mark.parametrize("size", [1, 2, 5])


def point(radius: float, size: int, dtype: torch.dtype) -> Tensor:
    direction = torch.randn(size, dtype=DOUBLE)
    return (radius * direction / direction.norm()).to(dtype)


def exact(y: Tensor) -> tuple[list[mp.mpf], mp.mpf]:
    """u and the log-determinant by their definitions, in 40 digits."""
    with mp.workdps(40):
        parts = [mp.mpf(x) for x in y.tolist()]
        r = mp.sqrt(mp.fsum(x * x for x in parts))
        ratio = mp.tanh(r / 2) / r if r else mp.mpf(0.5)
        along = -mp.log(2) - 2 * mp.log(mp.cosh(r / 2))
        return [ratio * x for x in parts], along + (len(parts) - 1) * mp.log(ratio)


@every_dimension
@every_dtype
def test_values(dtype: torch.dtype, size: int) -> None:
    eps = torch.finfo(dtype).eps
    for radius in RADII + FAR:
        y = point(radius, size, dtype)
        u, log_det = exact(y)
        # The image stops 2 D eps short of the sphere.
        for found, component in zip(space_to_ball(y).tolist(), u, strict=True):
            assert abs(found - float(component)) <= (2 * size + 4) * eps * min(radius, 1)
        error = abs(space_to_ball_log_det(y).item() - float(log_det))
        assert error <= 4 * eps * (1 + abs(float(log_det)))


@every_dimension
@every_dtype
def test_there_and_back(dtype: torch.dtype, size: int) -> None:
    for radius in RADII:
        y = point(radius, size, dtype)
        found = ball_to_space(space_to_ball(y))
        # An ulp of |u| is cosh^2(|y|/2) of them on the way back.
        condition = 1 + torch.tensor(radius / 2, dtype=DOUBLE).cosh().square().item()
        limit = 8 * size * torch.finfo(dtype).eps * condition * min(radius, 1)
        assert (found - y).abs().max().item() <= limit


@every_dimension
@every_dtype
def test_far_points_stay_inside_and_come_back(dtype: torch.dtype, size: int) -> None:
    y = torch.stack([point(radius, size, dtype) for radius in FAR])
    u = space_to_ball(y)
    assert (u.double().norm(dim=-1) < 1).all()
    back = ball_to_space(u)
    assert back.isfinite().all() and ((back * y).sum(-1) > 0).all()
    # Points that rounding has put on the sphere or outside have finite images too.
    unit = y / y.norm(dim=-1, keepdim=True)
    assert torch.stack([ball_to_space(unit * r) for r in (1.0, 1.1, 1e20)]).isfinite().all()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_log_det_is_that_of_the_jacobian(size: int) -> None:
    for radius in (0.0, 1e-3, 1.0, 1.999, 2.001, 6.0, 12.0):
        y = point(radius, size, DOUBLE)
        expected = torch.linalg.slogdet(jacobian(space_to_ball, y))
        assert expected.sign == 1
        condition = torch.tensor(radius / 2, dtype=DOUBLE).cosh().square()
        error = (space_to_ball_log_det(y) - expected.logabsdet).abs()
        assert error <= 1e-14 * size * condition


@given(st.floats(-6, 6), st.floats(-6, 6))
def test_derivatives(first: float, second: float) -> None:
    y = torch.tensor([first, second], dtype=DOUBLE, requires_grad=True)
    u = space_to_ball(y).detach().requires_grad_()
    assert gradcheck(space_to_ball, y)
    assert gradcheck(space_to_ball_log_det, y)
    assert gradcheck(ball_to_space, u)


def test_derivatives_at_the_centre() -> None:
    y = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    half, two = (c * torch.eye(3, dtype=DOUBLE) for c in (0.5, 2.0))
    torch.testing.assert_close(jacobian(space_to_ball, y), half, rtol=0, atol=0)
    torch.testing.assert_close(jacobian(ball_to_space, y), two, rtol=0, atol=0)
    for function in (space_to_ball, space_to_ball_log_det, ball_to_space):
        assert gradgradcheck(function, y)


@every_dtype
def test_gradients_are_finite_everywhere(dtype: torch.dtype) -> None:
    y = torch.stack([point(radius, 3, dtype) for radius in RADII + FAR]).requires_grad_()
    u = space_to_ball(y)
    for output in (u, space_to_ball_log_det(y), ball_to_space(u)):
        (slope,) = torch.autograd.grad(output.sum(), y, retain_graph=True)
        assert slope.isfinite().all()
