"""Derivatives of kernel scores at data, and the quadratic losses that are made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..kernels import Kernel, kernel_matrix

__all__ = ["Matching", "base_gradient", "kernel_derivatives"]

# Rows of data whose derivatives are in memory at a time.
_CHUNK = 2**11


def kernel_derivatives(kernel: Kernel, points: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivatives (D, n, I) of k(x, points) along each axis of x (n, D)."""
    found = [_along(kernel, points, x, axis) for axis in range(x.shape[1])]
    first, second = zip(*found, strict=True)
    return torch.stack(first), torch.stack(second)


def _along(kernel: Kernel, points: Tensor, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    direction = torch.zeros_like(x)
    direction[:, axis] = 1

    def slope(t: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(
            lambda s: kernel_matrix(kernel, points, s).T, (t,), (direction,)
        )[1]
        return found

    first, second, *_ = torch.func.jvp(slope, (x,), (direction,))
    return first, second


def base_gradient(base: Sequence[Distribution], x: Tensor) -> Tensor:
    """Derivatives of the log density of a base of columns at x (n, D), (n, D).

    Raises:
        ValueError: Where the base has no density, or its logarithm no derivative.
    """
    with torch.enable_grad():
        t = x.detach().requires_grad_()
        log = torch.stack([law.log_prob(t[:, d]) for d, law in enumerate(base)]).sum(0)
        if not torch.isfinite(log).all():
            raise ValueError("X must be inside the support of the base, got values outside")
        if not log.requires_grad:
            raise ValueError(f"base must have log densities with a derivative, got {base}")
        (found,) = torch.autograd.grad(log.sum(), t)
    return found


@dataclass(frozen=True)
class Matching:
    r"""The score matching loss as a sum over observations: $\tfrac12 c^\top G c + b^\top c$.

    Attributes:
        count: Number of observations.
        quadratic: Sum of G (R, R).
        linear: Sum of b (R,).
    """

    count: int
    quadratic: Tensor
    linear: Tensor

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        points: Tensor,
        mixing: Tensor,
        base: Sequence[Distribution],
        x: Tensor,
    ) -> "Matching":
        """Of data (n, D), for features with a mixing matrix (I, R)."""
        size = mixing.shape[1]
        quadratic, linear = x.new_zeros(size, size), x.new_zeros(size)
        for rows in x.split(_CHUNK):
            first, second = (d @ mixing for d in kernel_derivatives(kernel, points, rows))
            drift = base_gradient(base, rows).T.unsqueeze(-1)
            quadratic = quadratic + torch.einsum("dnr,dns->rs", first, first)
            linear = linear + (second + first * drift).sum((0, 1))
        return cls(len(x), quadratic, linear)

    def __add__(self, other: "Matching") -> "Matching":
        return Matching(
            self.count + other.count,
            self.quadratic + other.quadratic,
            self.linear + other.linear,
        )

    def minimum(self, penalty: float) -> Tensor:
        """The coefficients (R,) of the least penalized mean loss."""
        ridge = penalty * torch.eye(len(self.linear), dtype=self.linear.dtype)
        found: Tensor = torch.linalg.solve(self.quadratic / self.count + ridge, self.linear)
        return -found / self.count

    def loss(self, c: Tensor) -> float:
        """The mean loss of coefficients (R,)."""
        return float(0.5 * c @ self.quadratic @ c + self.linear @ c) / self.count
