"""Expectations of kernel families by the trapezoid rule, twice: as published, and as products."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Products", "density", "trapezoid_broadcast"]


def density(f: Tensor, alpha: float) -> Tensor:
    r"""$\exp_{2-\alpha}(f)$, not normalised.

    Research code takes off the maximum of f first, for any alpha. That is another density unless
    alpha = 1, so it is done for alpha = 1 only: what is compared then is two ways to one number.
    """
    if alpha == 1:
        return torch.exp(f - f.detach().amax(-1, keepdim=True))
    bracket = torch.relu(1 + (alpha - 1) * f)
    if alpha == 1.5:  # faster than a power
        return bracket.square()
    return bracket if alpha == 2 else bracket ** (1 / (alpha - 1))


def trapezoid_broadcast(
    weights: Tensor,
    points: Tensor,
    bandwidth: float,
    centers: Tensor,
    widths: Tensor,
    alpha: float,
    count: int = 100,
) -> Tensor:
    """E_p[psi] (batch, heads, N) as research code has it: tensors (batch, heads, N, count).

    Basis functions and kernel are evaluated in every call, there as here.

    Args:
        weights: Of the scores, (batch, heads, I).
        points: Inducing points (I,).
        bandwidth: Of the Gaussian kernel.
        centers: Of the basis functions, (N,).
        widths: Of the basis functions, (N,).
        alpha: From 1 to 2.
        count: Of the nodes on [0, 1].
    """
    t = torch.linspace(0, 1, count, dtype=weights.dtype)
    psi = _gaussian((t - centers.unsqueeze(-1)) / widths.unsqueeze(-1))
    psi = psi / (widths.unsqueeze(-1) * math.sqrt(2 * math.pi))
    f = weights @ _gaussian((t - points.unsqueeze(-1)) / bandwidth)
    p = density(f.unsqueeze(-2), alpha)
    mass = torch.trapezoid(p, t, dim=-1).unsqueeze(-1)
    return torch.trapezoid(psi * p / mass, t, dim=-1)


@dataclass(frozen=True)
class Products:
    """A rule as two products of matrices, with all that is fixed made beforehand.

    Attributes:
        kernel: Between inducing points and nodes, (I, count).
        moments: Basis functions and a last one that is 1, times the rule's weights, (count, N + 1).
    """

    kernel: Tensor
    moments: Tensor

    @staticmethod
    def of(
        points: Tensor, bandwidth: float, centers: Tensor, widths: Tensor, count: int = 100
    ) -> "Products":
        """The trapezoid rule with `count` nodes on [0, 1]."""
        t = torch.linspace(0, 1, count, dtype=points.dtype).unsqueeze(-1)
        step = torch.full_like(t, 1 / (count - 1))
        step[0] = step[-1] = step[0] / 2
        return Products.by_rule(t, step, points, bandwidth, centers, widths)

    @staticmethod
    def by_rule(
        t: Tensor, share: Tensor, points: Tensor, bandwidth: float, centers: Tensor, widths: Tensor
    ) -> "Products":
        """Any rule with nodes and weights (count, 1)."""
        psi = _gaussian((t - centers) / widths) / (widths * math.sqrt(2 * math.pi))
        kernel = _gaussian((t - points) / bandwidth).T.contiguous()
        return Products(kernel, share * torch.cat([psi, torch.ones_like(t)], -1))

    def expect(self, weights: Tensor, alpha: float) -> Tensor:
        """E_p[psi] (batch, heads, N) for weights (batch, heads, I)."""
        sums = density(weights @ self.kernel, alpha) @ self.moments
        return sums[..., :-1] / sums[..., -1:]


def _gaussian(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2)
