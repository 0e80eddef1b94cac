"""A quadrature rule on the unit interval for what is singular at its ends."""

from typing import NamedTuple

import torch
from torch import Tensor

from .quadrature import gauss_legendre

__all__ = ["EdgeRule", "edge_rule"]


class EdgeRule(NamedTuple):
    """Nodes by their distance from the nearer end, which may be less than a rounding error of 1.

    Attributes:
        distance: From the nearer end (order,).
        left: Whether that is 0, and not 1.
        weights: (order,).
    """

    distance: Tensor
    left: Tensor
    weights: Tensor

    @property
    def nodes(self) -> Tensor:
        """Nodes on [0, 1]."""
        return torch.where(self.left, self.distance, 1 - self.distance)

    def on(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes and weights (J, order, *batch) on intervals with ends (J, *batch)."""
        low, high = low.unsqueeze(1), high.unsqueeze(1)
        distance, left, weights = (x.reshape(-1, *(1,) * (low.dim() - 2)) for x in self)
        width = high - low
        # Each node from the nearer end.
        return torch.where(left, low + width * distance, high - width * distance), width * weights


def edge_rule(order: int, like: Tensor) -> EdgeRule:
    r"""Gauss-Legendre after $x = y^5 (126 - 420 y + 540 y^2 - 315 y^3 + 70 y^4)$.

    A power m or its product with a logarithm at an end becomes one of $5 m + 4$. With 48 nodes the
    error for $\log x$ is 2e-13, and 1e-15 for $\sqrt x \log x$.
    """
    y, weights = gauss_legendre(order, like)
    near = (1 - y.abs()) / 2
    step = near**5 * (126 - near * (420 - near * (540 - near * (315 - 70 * near))))
    return EdgeRule(step, y < 0, 315 * weights * (near * (1 - near)) ** 4)
