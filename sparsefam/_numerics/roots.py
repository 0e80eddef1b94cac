"""Roots of increasing functions by a safeguarded method, and their implicit derivatives."""

from collections.abc import Callable

import torch
from torch import Tensor

from .modes import values_are_readable

__all__ = ["attach_root_gradient", "increasing_root"]


def increasing_root(
    function: Callable[[Tensor], Tensor],
    lower: Tensor,
    upper: Tensor,
    iterations: int | None = None,
) -> Tensor:
    """Return the root of an increasing function in [lower, upper], elementwise, without gradient.

    Chandrupatla's method interpolates by an inverse parabola where that is safe and bisects
    elsewhere, so the bracket always shrinks. Brackets of a few roundings stay as they are; on a
    CPU the search ends with the last of them, which changes no root, and elsewhere no value is
    read.

    Args:
        function: Increasing, from a tensor to one of the same shape.
        lower: Lower end, returned where the function is positive there.
        upper: Upper end, returned where the function is negative there, as rounding may make it.
        iterations: The largest number of steps; default 22 in float32 and 64 in float64.

    References:
        Chandrupatla (1997), A new hybrid quadratic/bisection algorithm. Adv. Eng. Softw. 28.
    """
    count = iterations or (22 if lower.dtype == torch.float32 else 64)
    with torch.no_grad():
        # a is the newest location; b brackets the root with it, and c is the end that it replaced.
        b, a = torch.broadcast_tensors(lower.detach(), upper.detach())
        # An end with a value of the wrong sign counts as the root.
        fa, fb = function(a).clamp_min(0), function(b).clamp_max(0)
        c, fc = a, fa
        step, narrow = torch.full_like(a, 0.5), 4 * torch.finfo(a.dtype).eps
        done = fb == 0
        readable = values_are_readable(a)
        for _ in range(count):
            done = done | (fa == 0) | ((b - a).abs() <= narrow * a.abs())
            if readable and bool(done.all()):
                break
            x = a + step * ~done * (b - a)  # a itself where the search is done
            fx = function(x)
            same = torch.sign(fx) == torch.sign(fa)
            c, fc = torch.where(same, a, b), torch.where(same, fa, fb)
            b, fb = torch.where(same, b, a), torch.where(same, fb, fa)
            a, fa = x, fx
            step = _interpolation_step(a, b, c, fa, fb, fc)
        return torch.where(fa.abs() < fb.abs(), a, b)


def _interpolation_step(
    a: Tensor, b: Tensor, c: Tensor, fa: Tensor, fb: Tensor, fc: Tensor
) -> Tensor:
    """Return the fraction of the way from a to b to go next: one half if interpolation is not safe.

    Interpolation takes the parabola of x as a function of f through three points, at f = 0. It is
    safe if the parabola is monotone from b to c, which Chandrupatla's inequalities in xi and phi
    say.

    Args:
        a: The newest location, elementwise.
        b: The other end of the bracket.
        c: The end of the bracket that a replaced.
        fa: The function at a.
        fb: The function at b, of the other sign.
        fc: The function at c.
    """
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
    valid = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
    quadratic = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (
        fc - fb
    )
    eps = torch.finfo(a.dtype).eps
    # At least one rounding from both ends, so that the bracket shrinks.
    tolerance = (eps * a.abs() / (b - a).abs()).clamp(eps, 0.5)
    step = torch.where(valid & torch.isfinite(quadratic), quadratic, 0.5)
    return torch.minimum(torch.maximum(step, tolerance), 1 - tolerance)


def attach_root_gradient(
    root: Tensor, residual: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return a root with the derivatives of the implicit function theorem.

    Two Newton steps leave the value as it is and carry first to third derivatives in the tensors
    that `residual` closes over.

    Args:
        root: Solution of residual(root) = 0, whose own graph is dropped.
        residual: The equation, differentiable in the tensors that it closes over.
        slope: Derivative of `residual` in its argument. Where it is zero, the gradient is zero.
    """
    # Newton's error is squared in each step, in powers of a change of the tensors, too: the first
    # step carries the derivative of order 1, the second those up to 3.
    x = root.detach()
    for _ in range(2):
        rate = slope(x)
        flat = rate == 0
        x = x - torch.where(flat, 0.0, residual(x)) / torch.where(flat, 1.0, rate)
    return x
