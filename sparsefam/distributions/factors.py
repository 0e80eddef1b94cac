"""Triangular factors of matrices that are known only as products or inverses."""

import torch
from torch import Tensor

from ..numerics.arguments import broadcast_location_scale, cholesky_factor

__all__ = ["canonical_score", "inverse_factor", "lower_factor"]


def lower_factor(rows: Tensor) -> Tensor:
    """Lower-triangular L (*batch, k, k), positive diagonal, with L L' = rows rows'.

    By an orthogonal transformation of the rows (*batch, k, D), whose products would lose half of
    the digits.
    """
    _, upper = torch.linalg.qr(rows.mT)
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype)
    factor: Tensor = (upper * sign.unsqueeze(-1)).mT
    return factor


def inverse_factor(factor: Tensor) -> Tensor:
    """Lower-triangular L (*batch, D, D) with L L' the inverse of factor factor'."""
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit.expand_as(factor), upper=False)
    return lower_factor(inverse.mT)


def canonical_score(theta1: Tensor, theta2: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and sigma_tril of the score theta1't + t'theta2 t.

    Raises:
        ValueError: `theta2` not symmetric and negative definite.
    """
    theta1, theta2 = broadcast_location_scale(theta1=theta1, theta2=theta2)
    factor = cholesky_factor("-2 theta2", -2 * theta2)
    sigma_tril = inverse_factor(factor)
    loc = sigma_tril @ (sigma_tril.mT @ theta1.unsqueeze(-1))
    return loc.squeeze(-1), sigma_tril
