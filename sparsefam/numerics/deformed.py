r"""Deformed exponentials and logarithms, accurate through $\beta = 1$.

The textbook forms $[1 + (1-\beta)u]_+^{1/(1-\beta)}$ and $(u^{1-\beta} - 1)/(1-\beta)$ are
undefined at $\beta = 1$ and inaccurate near it. Both are written in terms of two smooth functions,
`log1p_ratio` and `expm1_ratio`.
"""

import math

import torch
from torch import Tensor

__all__ = ["exp_beta", "expm1_ratio", "log1p_ratio", "log_beta"]

# Below this a series is used, of which ten terms have float64 accuracy. Above it the second
# derivatives of the quotients lose a factor of about 1/_SWITCH**2.
_SWITCH = 0.25


def log1p_ratio(x: Tensor) -> Tensor:
    r"""Return $\log(1 + x)/x$, or 1 at $x = 0$, with all its derivatives.

    Args:
        x: Any shape, $x > -1$.
    """
    small = x.abs() < _SWITCH
    near = torch.where(small, x, 0.0)
    far = torch.where(small, 1.0, x)
    # log1p(x) = 2 artanh(x/(2+x)): a series in y^2 <= 1/49.
    half = 1 / (2 + near)
    y2 = (near * half).square()
    series = torch.full_like(x, 1 / 21)
    for k in range(9, -1, -1):
        series = series * y2 + 1 / (2 * k + 1)
    return torch.where(small, 2 * half * series, torch.log1p(far) / far)


def expm1_ratio(x: Tensor) -> Tensor:
    r"""Return $(e^x - 1)/x$, or 1 at $x = 0$, with all its derivatives.

    Args:
        x: Any shape.
    """
    small = x.abs() < _SWITCH
    near = torch.where(small, x, 0.0)
    far = torch.where(small, 1.0, x)
    series = torch.full_like(x, 1 / math.factorial(12))
    for k in range(11, 0, -1):
        series = series * near + 1 / math.factorial(k)
    return torch.where(small, series, torch.expm1(far) / far)


def exp_beta(u: Tensor, beta: Tensor | float) -> Tensor:
    r"""Return the deformed exponential $[1 + (1-\beta)u]_+^{1/(1-\beta)}$, and $e^u$ at 1.

    Where the bracket is not positive the value is 0 with a zero gradient for $\beta < 1$
    (the edge of a sparse support) and $+\infty$ for $\beta > 1$ (the pole of a heavy tail).

    Args:
        u: Any shape.
        beta: Deformation, broadcast against `u`.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 4.
    """
    slope = 1 - torch.as_tensor(beta, dtype=u.dtype, device=u.device)
    x = slope * u
    inside = x > -1
    # The pole is on the right; the edge, and -inf if beta is 1, on the left.
    edge = torch.where(u > 0, math.inf, 0.0).to(u.dtype)
    u, x = torch.where(inside, u, 0.0), torch.where(inside, x, 0.0)
    return torch.where(inside, torch.exp(u * log1p_ratio(x)), edge)


def log_beta(u: Tensor, beta: Tensor | float) -> Tensor:
    r"""Return the deformed logarithm $(u^{1-\beta} - 1)/(1-\beta)$, and $\log u$ at 1.

    The inverse of `exp_beta`. At $u = 0$ it is $-1/(1-\beta)$ for $\beta < 1$, else $-\infty$.

    Args:
        u: Any shape, $u \ge 0$.
        beta: Deformation, broadcast against `u`.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 4.
    """
    slope = 1 - torch.as_tensor(beta, dtype=u.dtype, device=u.device)
    positive = u > 0
    log_u = torch.log(torch.where(positive, u, 1.0))
    concave = slope > 0
    at_zero = torch.where(concave, -1 / torch.where(concave, slope, 1.0), -math.inf).to(u.dtype)
    return torch.where(positive, log_u * expm1_ratio(slope * log_u), at_zero)
