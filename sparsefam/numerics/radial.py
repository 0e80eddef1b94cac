r"""Euclidean space onto the open unit ball, along every ray by the same function.

$$u = \frac{y}{|y|} \tanh\frac{|y|}{2}, \qquad
\left|\frac{\partial u}{\partial y}\right|
= \frac{1}{2 \cosh^2(|y|/2)} \left(\frac{\tanh(|y|/2)}{|y|}\right)^{D-1}$$

On the line this is the logistic function, stretched to $(-1, 1)$. A density that vanishes at the
sphere like a power of the distance has exponential tails in $y$, which random walks find their way
back from; under $y/\sqrt{1 + |y|^2}$ its tails would be those of Student's t.
"""

import math

import torch
from torch import Tensor

__all__ = ["ball_to_space", "space_to_ball", "space_to_ball_log_det"]

# Below these squares the continued fractions below reach float64.
_TANH_NEAR, _TANH_DEPTH = 1.0, 10
_ATANH_NEAR, _ATANH_DEPTH = 0.0625, 10


def space_to_ball(y: Tensor) -> Tensor:
    """The point u of the open unit ball that y (..., D) is mapped to."""
    near, small, r = _split(y / 2, _TANH_NEAR)
    # Rounded to the sphere itself, a point could not come back.
    far = torch.tanh(r).clamp(max=_rim(y)) / r
    return y / 2 * torch.where(small, _tanh_ratio(near), far)


def space_to_ball_log_det(y: Tensor) -> Tensor:
    r"""$\log|\det \partial u / \partial y|$ of `space_to_ball` at y (..., D), shape (...)."""
    near, small, r = (x.squeeze(-1) for x in _split(y / 2, _TANH_NEAR))
    ratio = _tanh_ratio(near)
    across = torch.where(small, ratio, torch.tanh(r) / r).log() - math.log(2)
    # 1/cosh^2, whose logarithm is linear far out, where 1 - tanh^2 has no digits.
    far = 2 * math.log(2) - 2 * r - 2 * torch.log1p(torch.exp(-2 * r))
    along = torch.where(small, torch.log1p(-near * ratio.square()), far) - math.log(2)
    return along + (y.shape[-1] - 1) * across


def ball_to_space(u: Tensor) -> Tensor:
    """The inverse of `space_to_ball`; points on the sphere or outside go where its rim does."""
    near, small, r = _split(u, _ATANH_NEAR)
    inside = r.clamp(max=_rim(u))
    far = torch.log1p(2 * inside / (1 - inside)) / (2 * r)
    return 2 * u * torch.where(small, _atanh_ratio(near), far)


def _rim(x: Tensor) -> float:
    """The largest radius that is mapped to; the affine map that follows rounds in D terms."""
    return 1 - 2 * x.shape[-1] * torch.finfo(x.dtype).eps


def _split(x: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """|x|^2 where it is below the limit, else 0; where it is; |x| where it is not, else 1."""
    square = x.square().sum(-1, keepdim=True)
    small = square < limit
    # Neither of the two may overflow, nor have no slope, where the other one serves.
    size = x.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(small, torch.ones_like(x), x / torch.where(small, 1.0, size))
    norm = unit.square().sum(-1, keepdim=True).sqrt() * size
    return torch.where(small, square, 0.0), small, torch.where(small, 1.0, norm)


def _tanh_ratio(s: Tensor) -> Tensor:
    r"""$\tanh(\sqrt s)/\sqrt s$, by Lambert's continued fraction."""
    total = torch.full_like(s, 2 * _TANH_DEPTH + 1)
    for k in range(_TANH_DEPTH - 1, -1, -1):
        total = 2 * k + 1 + s / total
    return 1 / total


def _atanh_ratio(s: Tensor) -> Tensor:
    r"""$\operatorname{artanh}(\sqrt s)/\sqrt s$, by Gauss's continued fraction."""
    total = torch.full_like(s, 2 * _ATANH_DEPTH + 1)
    for k in range(_ATANH_DEPTH - 1, -1, -1):
        total = 2 * k + 1 - (k + 1) ** 2 * s / total
    return 1 / total
