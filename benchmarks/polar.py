r"""The rule that research code uses in two dimensions: a mean over angles of radial integrals.

Under the truncated paraboloid, with u = r (cos θ, sin θ) in the unit disc, the integrand on a ray
is $4 r (1 - r^2)$ times a Gaussian in r, which erf and exp integrate. The mean over angles is the
midpoint rule of a periodic function. This is it with no angle counted twice, all rays at once and
as little work as vectorised torch allows: it is what sparsefam is timed against.

Opposite rays make one line, over which $|r| (1 - r^2)$ is integrated at once: three erf instead of
four. Along the line $t = loc + r v$, in units of $\sqrt2 w$, the center is at $x$ along it and $h$
to its side, and the support ends at $\sigma = |v|$.

Powers of two stand for exponentials: torch's exp takes six times as long where it underflows.
"""

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["polar_rule", "polar_rule_by_hand"]

_ROOT_PI = math.sqrt(math.pi)
_LOG2_E = math.log2(math.e)
# Where erf is one; its derivative is an exponential that would underflow farther out.
_FLAT = 9.0


def polar_rule(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, widths: Tensor, angles: int = 100
) -> Tensor:
    r"""E_p[N(t; c_j, w_j^2 I)] (batch, N) under TruncatedParaboloid(loc, scale_tril), D = 2.

    Args:
        loc: Centres (batch, 2).
        scale_tril: Of the supports (batch, 2, 2).
        centers: Of the Gaussians (N, 2).
        widths: Common width, a scalar.
        angles: How many rays, an even number.
    """
    x, h, sigma, offset = _lines(loc, scale_tril, centers, widths, angles)
    aside = torch.mul(h, -_LOG2_E * h)
    ahead, behind, x2 = sigma - x, sigma + x, x.square()
    square, top = sigma.square(), x2 + 1
    errors = torch.erf(ahead.clamp(-_FLAT, _FLAT)) - torch.erf(behind.clamp(-_FLAT, _FLAT))
    errors = torch.add(errors, torch.erf(x.clamp(-_FLAT, _FLAT)), alpha=2)
    cubic = torch.addcmul(x * (_ROOT_PI * (square - 1.5)), x, x2, value=-_ROOT_PI)
    line = torch.exp2(aside) * (errors * cubic)
    rim = torch.exp2(torch.addcmul(aside, ahead, ahead, value=-_LOG2_E))
    line = torch.addcmul(line, rim, torch.addcmul(top, x, sigma))
    rim = torch.exp2(torch.addcmul(aside, behind, behind, value=-_LOG2_E))
    line = torch.addcmul(line, rim, torch.addcmul(top, x, sigma, value=-1))
    # The Gaussian at r = 0 is the same on every line.
    middle = 2 * torch.exp(-offset.square().sum(-2, keepdim=True))
    weight = square.pow(-2).mT  # (batch, 1, lines)
    total = weight @ line + middle * (weight @ (square - 1) - weight @ x2)
    return total.squeeze(-2) / (math.pi * angles * widths.square())


def polar_rule_by_hand(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, widths: Tensor, angles: int = 100
) -> Tensor:
    """The same with a gradient written by hand, which needs no erf and no exp of its own."""
    x, h, sigma, _ = _lines(loc, scale_tril, centers, widths, angles)
    line: Tensor = _Line.apply(x, h, sigma)[0]
    total = sigma.pow(-4).mT @ line
    return total.squeeze(-2) / (math.pi * angles * widths.square())


def _lines(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, widths: Tensor, angles: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x and h (batch, lines, N), sigma (batch, lines, 1); offsets of the centers (batch, 2, N)."""
    turn = torch.arange(angles // 2, dtype=loc.dtype, device=loc.device) * (2 * math.pi / angles)
    directions = torch.stack([turn.cos(), turn.sin()])
    unit = 1 / (math.sqrt(2) * widths)
    ends = (scale_tril @ directions).mT * unit
    sigma = ends.norm(dim=-1, keepdim=True)
    along = ends / sigma
    aside = torch.stack([-along[..., 1], along[..., 0]], -1)
    offset = ((centers - loc.unsqueeze(-2)) * unit).mT
    return along @ offset, aside @ offset, sigma, offset


class _Line(torch.autograd.Function):
    """A line's integral times 2 sigma^4."""

    @staticmethod
    def forward(x: Tensor, h: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
        aside = torch.mul(h, -_LOG2_E * h)
        ahead, behind, x2, square = sigma - x, sigma + x, x * x, sigma * sigma
        errors = torch.erf(ahead).sub_(torch.erf(behind)).add_(torch.erf(x), alpha=2)
        errors.mul_(torch.exp2(aside)).mul_(_ROOT_PI)
        first = torch.addcmul(aside, ahead, ahead, value=-_LOG2_E).exp2_()
        last = torch.addcmul(aside, behind, behind, value=-_LOG2_E).exp2_()
        middle = torch.addcmul(aside, x, x, value=-_LOG2_E).exp2_()
        both, gap = first + last, first - last
        line = (x * errors).mul_(square - 1.5 - x2).addcmul_(x2 + 1, both)
        line.addcmul_(x * sigma, gap).addcmul_(middle, square - 1 - x2, value=2)
        return line, errors, both.sub_(middle, alpha=2), gap

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        x, h, sigma, line, errors, excess, gap = ctx.saved_tensors
        by_x = (sigma * sigma - 1.5 - 3 * (x * x)).mul_(errors)
        by_x.addcmul_(x, excess, value=3).addcmul_(sigma, gap, value=3).mul_(grad)
        by_h = (h * line).mul_(grad).mul_(-2)
        by_sigma = (x * errors).sub_(excess).mul_(grad).sum(-1, keepdim=True) * (2 * sigma)
        return by_x, by_h, by_sigma
