r"""Derivatives of a ball integral as averages over the nodes of its contour.

In the frame of `Frame` the integrand at a node $z$ is a Gaussian of $b$ with covariance
$M = \Lambda + A/(2z)$, at $A = I$ and diagonal $\Lambda$. With $S = M^{-1}$, $v = S b$ its
derivatives are polynomials in $S$ and $\tau = S/(2z)$, both free of cancellation:
$S_k = 2 z_0 q_k (1 + q_k \eta_k)$ and $\tau_k = q_k (1 - p_k \eta_k)$ for $z = z_0 (1 + d)$,
$\eta_k = d/(1 + p_k d)$, $q_k = 1 - p_k = 1/(1 + 2 z_0 \lambda_k)$.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .contour import Contour

__all__ = ["Averages", "averages", "lowered_averages", "lowered_value"]


class Averages(NamedTuple):
    """The integral and its derivatives, in units of the integral that the weights belong to.

    Attributes:
        value: (*pairs).
        by_b: (D, *pairs).
        by_ball: In A, symmetric, (D, D, *pairs).
        by_spread: In log kappa for kappa Lambda, (*pairs); or in Lambda, (D, D, *pairs).
        by_exponent: In m, (*pairs); zero where it is not asked for.
    """

    value: Tensor
    by_b: Tensor
    by_ball: Tensor
    by_spread: Tensor
    by_exponent: Tensor


def averages(path: Contour, b: Tensor, lam: Tensor, full: bool) -> Averages:
    """For the exponent that the path was drawn for, which is not differentiated.

    Args:
        path: Nodes and weights.
        b: (D, *pairs).
        lam: (D, *pairs).
        full: Whether `by_spread` is the whole matrix.
    """
    q = path.shrink
    p = 2 * path.saddle * lam * q
    weighted = path.weights * path.steps
    first = weighted.imag.sum(1)
    second = (weighted.unsqueeze(1) * path.steps).imag.sum(2)
    # Exactly one, or zero where there is no path: then there are no derivatives.
    one = path.weights.imag.sum(0).round()
    rise, fall = q * first, p * first
    reach = 2 * path.saddle * q * b
    ball = one + rise.unsqueeze(0) - fall.unsqueeze(1) - _outer(p, q) * second
    by_ball = 0.5 * _outer(q * b, reach) * ball
    by_ball = by_ball - _diagonal(0.5 * q * (one - fall))
    if full:
        level = one + rise.unsqueeze(0) + rise.unsqueeze(1) + _outer(q, q) * second
        by_spread = 0.5 * _outer(reach, reach) * level
        by_spread = by_spread - _diagonal(path.saddle * q * (one + rise))
    else:
        square = second.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        level = reach * b * (one + 2 * rise + q * q * square)
        by_spread = (0.5 * p * (level - (one + rise))).sum(0)
    value, none = torch.ones_like(one), torch.zeros_like(one)
    return Averages(value, -reach * (one + rise), by_ball, by_spread, none)


def lowered_value(path: Contour, b: Tensor, lam: Tensor, share: Tensor) -> Tensor:
    """What `lowered_averages` finds first."""
    excess = _lowering(path, b, lam, share)[2]
    total: Tensor = (path.weights * (1 + excess)).imag.sum(0)
    return total


def lowered_averages(
    path: Contour, b: Tensor, lam: Tensor, full: bool, share: Tensor, drift: Tensor
) -> Averages:
    r"""For an exponent one lower: $r_m = r_{m+1} + s\,\partial_s r_{m+1}/(2m + 2 + D)$.

    The derivative in a factor s of the ball's size is taken under the integral, so that exponents
    near zero, which have no good path of their own, are as exact as the rest.

    Args:
        path: Nodes and weights for the exponent m + 1.
        b: (D, *pairs).
        lam: (D, *pairs).
        full: Whether `by_spread` is the whole matrix.
        share: 1/(2m + 2 + D), (*pairs).
        drift: Derivative in m of the logarithm of what multiplies the path's integral, (*pairs).
    """
    inverse, tau, excess = _lowering(path, b, lam, share)
    weights, shared = path.weights * (1 + excess), share * path.weights
    by_b = b * (2 * shared * tau * inverse - weights * inverse).imag.sum(1)
    mixed = 0.5 * weights - shared * (tau.unsqueeze(0) + tau.unsqueeze(1))
    own = shared * tau - 0.5 * weights
    by_ball = _outer(b, b) * _average(mixed + shared, tau, inverse)
    by_ball = by_ball + _diagonal(((own - shared) * tau).imag.sum(1))
    own_spread = (own * inverse).imag.sum(1)
    if full:
        by_spread = _outer(b, b) * _average(mixed, inverse, inverse) + _diagonal(own_spread)
    else:
        mixed = mixed.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        square = (mixed * inverse * inverse).imag.sum(1)
        by_spread = (lam * (b * b * square + own_spread)).sum(0)
    rate = (drift - path.turns) * (excess + _variation(path, b)) - 2 * share * excess
    by_exponent = (path.weights * rate).imag.sum(0)
    return Averages(weights.imag.sum(0), by_b, by_ball, by_spread, by_exponent)


def _lowering(
    path: Contour, b: Tensor, lam: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """S and tau (D, n, *pairs), and what the derivative in s adds to 1, (n, *pairs)."""
    q = path.shrink.unsqueeze(1)
    p = 2 * path.saddle * lam.unsqueeze(1) * q
    inverse = 2 * path.saddle * q * (1 + q * path.steps)
    tau = q * (1 - p * path.steps)
    return inverse, tau, share * (tau * (b.square().unsqueeze(1) * inverse - 1)).sum(0)


def _variation(path: Contour, b: Tensor) -> Tensor:
    """1 - F(z0)/F(z) for the Gaussian F in the integrand, where it hardly varies; 1 elsewhere.

    A constant F has an integral that does not depend on m. Taken away it leaves the digits of the
    derivative in m where Gaussians are wide against the ball.
    """
    q = path.shrink.unsqueeze(1)
    ratio = -q * path.nodes / (1 + path.nodes)
    x, y = ratio.real, ratio.imag
    bend = path.saddle * (b.unsqueeze(1) * q).square() * path.steps
    u = (0.25 * torch.log1p(x * (2 + x) + y * y) + bend.real).sum(0)
    v = (0.5 * torch.atan2(y, 1 + x) + bend.imag).sum(0)
    even = (u.abs() + v.abs()).amax(0) < 1
    u, v = torch.where(even, u, 0.0), torch.where(even, v, 0.0)
    real = 2 * torch.sin(0.5 * v).square() - torch.expm1(u) * torch.cos(v)
    return torch.complex(torch.where(even, real, 1.0), -torch.exp(u) * torch.sin(v))


def _average(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Sum over nodes of weights (D, D, n, *pairs) times left (D, 1, ...) and right (1, D, ...)."""
    total: Tensor = (weights * left.unsqueeze(1) * right.unsqueeze(0)).imag.sum(2)
    return total


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(1) * right.unsqueeze(0)


def _diagonal(entries: Tensor) -> Tensor:
    """Diagonal matrices (D, D, *pairs) of entries (D, *pairs)."""
    unit = torch.eye(len(entries), dtype=entries.dtype, device=entries.device)
    return unit.reshape(*unit.shape, *(1,) * (entries.dim() - 1)) * entries
