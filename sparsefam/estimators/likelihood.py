r"""Maximum likelihood of beta-Gaussians of a given alpha: a convex problem.

In $z = A x - b$, A lower triangular, the support is the unit ball, and minus the log-likelihood

$$-\log|A| - m \sum_i w_i \log(1 - |A x_i - b|^2),\qquad m = 1/(\alpha - 1),\ \sum_i w_i = 1$$

is convex in A and b together: the logarithmic barrier of the ellipsoids that contain the data. It
has one minimum, which Newton's method finds from any ellipsoid around the data.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Ball", "log_constant", "most_likely"]

# What part of the decrease that a step promises it must bring, and the shortest step.
_ARMIJO, _SHORTEST = 1e-4, 1e-12
# How far inside the support the outermost observation is at first, as a part of the radius.
_INSIDE = 0.9


class Ball(NamedTuple):
    """The affine map of a support onto the unit ball.

    Attributes:
        matrix: A and b side by side, (D, D + 1).
        steps: Newton steps it took.
        decrease: What another would have promised to take off.
    """

    matrix: Tensor
    steps: int = 0
    decrease: float = 0.0

    @classmethod
    def around(cls, x: Tensor) -> "Ball":
        """A ball around zero that contains whitened data (n, D)."""
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        radius = x.norm(dim=1).amax() / _INSIDE
        return cls(torch.cat([eye / radius, torch.zeros_like(eye[:, :1])], 1))


def log_constant(dim: int, m: float) -> float:
    """Logarithm of the constant of (1 - |z|^2)^m on the unit ball."""
    half = dim / 2
    return math.lgamma(m + 1 + half) - math.lgamma(m + 1) - half * math.log(math.pi)


class _Point(NamedTuple):
    """Minus the log-likelihood and its derivatives along what is free in the matrix."""

    value: Tensor
    slope: Tensor
    factor: Tensor


def most_likely(
    x: Tensor, weight: Tensor, m: float, start: Ball, tol: float, max_iter: int
) -> tuple[Ball, float]:
    """The most likely support, and the mean log-likelihood there less `log_constant`.

    Args:
        x: Whitened observations (n, D).
        weight: Positive weights (n,) that sum to 1.
        m: Exponent, positive.
        start: A support that contains all observations.
        tol: The fit ends when a step promises to take less off.
        max_iter: Steps at most.
    """
    dim = x.shape[1]
    rows = torch.cat([x, -torch.ones_like(x[:, :1])], 1)
    free = torch.cat([torch.ones(dim, dim).tril(), torch.ones(dim, 1)], 1).flatten() > 0
    matrix, at = start.matrix, _at(start.matrix, rows, weight, m, free)
    for steps in range(max_iter + 1):
        step = -torch.cholesky_solve(at.slope.unsqueeze(-1), at.factor).squeeze(-1)
        decrease = -float(at.slope @ step) / 2
        if decrease < tol or steps == max_iter:
            break
        full = torch.zeros_like(matrix).flatten().masked_scatter(free, step).reshape(matrix.shape)
        size = _length(matrix, full, rows, weight, m, at.value, decrease)
        matrix = matrix + size * full
        at = _at(matrix, rows, weight, m, free)
    return Ball(matrix, steps, decrease), -float(at.value)


def _value(matrix: Tensor, rows: Tensor, weight: Tensor, m: float) -> Tensor:
    """Infinite where an observation is not inside or an axis is not positive."""
    squares = (rows @ matrix.T).square().sum(1)
    axes = matrix.diagonal()
    if (squares >= 1).any() or (axes <= 0).any():
        return squares.new_tensor(torch.inf)
    return -axes.log().sum() - m * (weight @ torch.log1p(-squares))


def _length(
    matrix: Tensor,
    step: Tensor,
    rows: Tensor,
    weight: Tensor,
    m: float,
    value: Tensor,
    decrease: float,
) -> float:
    """A step's length, halved until it brings what it promises."""
    size = 1.0
    while size > _SHORTEST:
        # Rounding must not keep the last steps from being taken.
        bound = value - 2 * _ARMIJO * size * decrease + 1e-15 * value.abs()
        if _value(matrix + size * step, rows, weight, m) <= bound:
            break
        size /= 2
    return size


def _at(matrix: Tensor, rows: Tensor, weight: Tensor, m: float, free: Tensor) -> _Point:
    z, axes = rows @ matrix.T, matrix.diagonal()
    room = 1 - z.square().sum(1)
    pull = 2 * m * weight / room
    inverse = torch.zeros_like(matrix)
    inverse.diagonal().copy_(1 / axes)
    slope = (pull.unsqueeze(-1) * z).T @ rows - inverse
    outer = torch.einsum("nj,nk->njk", z, rows).flatten(1)[:, free]
    curvature = (2 * (pull / room).unsqueeze(-1) * outer).T @ outer
    own = torch.kron(torch.eye(len(axes), dtype=z.dtype), (pull.unsqueeze(-1) * rows).T @ rows)
    curvature += own[free][:, free] + inverse.square().flatten()[free].diag()
    factor = torch.linalg.cholesky(curvature)
    return _Point(_value(matrix, rows, weight, m), slope.flatten()[free], factor)
