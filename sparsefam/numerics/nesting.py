"""Whether one ellipsoid lies inside another."""

import torch
from torch import Tensor

from .ellipsoid import orthogonalize

__all__ = ["lies_in_ball"]

# Halvings of the multiplier's bracket: to rounding in float64.
_HALVINGS = 60


@torch.no_grad()
def lies_in_ball(matrix: Tensor, offset: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    r"""Whether $|M v + d| \le 1$ for all $|v| \le 1$.

    The largest value of $|M v + d|^2$ is, by duality without a gap,
    $$\min_{\lambda \ge \sigma_1^2}
    \lambda + |d|^2 + \sum_k \frac{\sigma_k^2 d_k^2}{\lambda - \sigma_k^2},$$
    with the singular values $\sigma_k$ of M and d along its left singular vectors. The minimum is
    convex in one number, found by bisection of fixed length: no search over directions.

    Args:
        matrix: M, float64 (*batch, D, D).
        offset: d, float64 (*batch, D).
        slack: What the largest value may exceed 1 by, as rounding of M and d makes it (*batch).

    References:
        Boyd and Vandenberghe (2004), Convex Optimization, App. B.1, on the duality.
    """
    rotation, lengths = orthogonalize(matrix.mT)
    along = (rotation.mT @ offset.unsqueeze(-1)).squeeze(-1)
    squares = lengths.square()
    shares = squares * along.square()
    low = squares.amax(-1, keepdim=True)
    # Here |v| <= 1 for the v that the multiplier belongs to.
    high = low + low.sqrt() * torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        size = _ratio(shares, (middle - squares).square()).sum(-1, keepdim=True)
        low, high = torch.where(size > 1, middle, low), torch.where(size > 1, high, middle)
    largest = high.squeeze(-1) + (along.square() + _ratio(shares, high - squares)).sum(-1)
    inside: Tensor = largest <= 1 + slack
    return inside


def _ratio(share: Tensor, gap: Tensor) -> Tensor:
    """share/gap, 0 where there is no share."""
    return torch.where(share > 0, share / gap, 0.0)
