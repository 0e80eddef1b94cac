"""Roots of monotone functions: safeguarded, of fixed cost, differentiable implicitly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .validation import without_derivative

__all__ = ["attach_quantile", "attach_root_gradient", "attach_slope", "increasing_root"]


def increasing_root(
    function: Callable[[Tensor], Tensor],
    lower: Tensor,
    upper: Tensor,
    iterations: int | None = None,
) -> Tensor:
    """Root of an increasing `function` in [lower, upper], elementwise, without gradient.

    Chandrupatla's method: inverse quadratic interpolation where it is safe, bisection where it
    is not, so that the bracket always shrinks. The count is fixed, hence no host sync.

    Args:
        function: Increasing in its argument, same shape out as in.
        lower: Where the function is at most zero, else this is the answer.
        upper: Where it is at least zero, likewise: rounding may say otherwise of a root there.
        iterations: Default 22 for float32 and 44 for float64 (measured; see the tests).

    References:
        Chandrupatla (1997), A new hybrid quadratic/bisection algorithm. Adv. Eng. Softw. 28.
    """
    count = iterations or (22 if lower.dtype == torch.float32 else 44)
    with torch.no_grad():
        b, a = torch.broadcast_tensors(lower.detach(), upper.detach())
        fa, fb = function(a).clamp_min(0), function(b).clamp_max(0)
        c, fc = a, fa
        step = torch.full_like(a, 0.5)
        for _ in range(count):
            x = a + step * (b - a)
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
    """Fraction of [a, b] to go: by inverse quadratic interpolation if valid, else one half."""
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
    valid = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
    quadratic = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (
        fc - fb
    )
    eps = torch.finfo(a.dtype).eps
    tolerance = (eps * a.abs() / (b - a).abs()).clamp(eps, 0.5)
    step = torch.where(valid & torch.isfinite(quadratic), quadratic, 0.5)
    return torch.minimum(torch.maximum(step, tolerance), 1 - tolerance)


def attach_root_gradient(
    root: Tensor, residual: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Tensor:
    """Give `root` the derivatives of the implicit function that it solves.

    Two Newton steps from a root leave its value as it is and carry the implicit function
    theorem's first and second (even third) derivatives in whatever tensors `residual` closes over.

    Args:
        root: Solution of residual(root) = 0; its own history is dropped.
        residual: The equation, differentiable in what it closes over.
        slope: Derivative of `residual` in its argument. Where it is zero, so is the gradient.
    """
    x = root.detach()
    for _ in range(2):
        rate = slope(x)
        flat = rate == 0
        x = x - torch.where(flat, 0.0, residual(x)) / torch.where(flat, 1.0, rate)
    return x


def attach_slope(mass: Tensor, t: Tensor, density: Tensor) -> Tensor:
    """A distribution function at t, with its derivative in t."""
    found: Tensor = _Sloped.apply(mass, t, density)
    return found


def attach_quantile(t: Tensor, mass: Tensor, level: Tensor | None, density: Tensor) -> Tensor:
    """Quantiles t with the derivatives of the function that they are: dt = (dq - dF)/p.

    Args:
        t: The quantiles.
        mass: The distribution function F at them, with derivatives in the parameters.
        level: q, if it has derivatives.
        density: p at t.
    """
    if level is not None:
        mass = mass - level
    found: Tensor = _Quantile.apply(t, mass, density)
    return found


class _Sloped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mass: Tensor, t: Tensor, density: Tensor) -> Tensor:
        return mass.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return grad, grad * ctx.saved_tensors[0], None


class _Quantile(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, mass: Tensor, density: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        density = without_derivative(ctx.saved_tensors[0])
        alive = density > 0
        return None, torch.where(alive, -grad, 0.0) / torch.where(alive, density, 1.0), None
