"""Scores in coordinates in which their norm is that of a vector, and what data say of them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..distributions.kernel_mesh import KernelMesh
from ..kernels import Kernel, kernel_matrix
from ..numerics.distributed import sum_over_ranks

if TYPE_CHECKING:  # not every build of torch has them
    from torch.distributed import ProcessGroup

__all__ = ["Features", "Statistics", "whitening"]

# Eigenvalues of the kernel matrix below this part of the largest are rounding, or soon will be.
_RANK = 1e-10
# Rows of data whose kernels are in memory at a time.
_CHUNK = 2**13


def whitening(kernel: Kernel, points: Tensor) -> Tensor:
    """From coefficients of orthonormal functions to weights of kernels, (I, R)."""
    values, vectors = torch.linalg.eigh(kernel_matrix(kernel, points, points))
    keep = values > _RANK * values[-1]
    mixing: Tensor = vectors[:, keep] / values[keep].sqrt()
    return mixing


@dataclass(frozen=True)
class Features:
    r"""Orthonormal functions of the space that kernels at inducing points span.

    With $K = Q \Lambda Q^\top$ they are $\phi = \Lambda^{-1/2} Q^\top k(\cdot, t_i)$: a score
    $c^\top \phi$ has the squared norm $c^\top c$, and penalties are well-conditioned.

    Attributes:
        kernel: The kernel.
        points: Inducing points (I, D).
        mixing: From coefficients to weights, (I, R).
        on_nodes: The functions at the nodes of panels, (Q, R).
    """

    kernel: Kernel
    points: Tensor
    mixing: Tensor
    on_nodes: Tensor

    @classmethod
    def of(cls, kernel: Kernel, points: Tensor, panels: KernelMesh) -> "Features":
        """Those of inducing points (I, D), at the nodes of panels."""
        mixing = whitening(kernel, points)
        return cls(kernel, points, mixing, mixing[:0]).on(panels)

    def on(self, panels: KernelMesh) -> "Features":
        """The same at the nodes of other panels."""
        matrix = panels.matrix
        if matrix is None:
            matrix = kernel_matrix(self.kernel, self.points, panels.nodes).detach()
        return replace(self, on_nodes=matrix.T @ self.mixing)

    def at(self, x: Tensor) -> Tensor:
        """The functions at locations (n, D): (n, R)."""
        return kernel_matrix(self.kernel, self.points, x).T @ self.mixing


@dataclass(frozen=True)
class Statistics:
    """What a fit needs to know of weighted data; those of all data are the sum of their parts'.

    Attributes:
        weight: Sum of the weights.
        squares: Sum of their squares.
        first: Weighted sum of the features (R,).
        second: Weighted sum of their products (R, R).
    """

    weight: Tensor
    squares: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, features: Features, x: Tensor, weight: Tensor) -> "Statistics":
        """Of locations (n, D) with weights (n,), in chunks."""
        size = features.mixing.shape[1]
        first, second = x.new_zeros(size), x.new_zeros(size, size)
        for rows, share in zip(x.split(_CHUNK), weight.split(_CHUNK), strict=True):
            phi = features.at(rows)
            first = first + share @ phi
            second = second + (share.unsqueeze(-1) * phi).mT @ phi
        return cls(weight.sum(), weight.square().sum(), first, second)

    def over_ranks(self, group: "ProcessGroup | None") -> "Statistics":
        """The sums over all processes of a group, by one reduction; itself without one."""
        if group is None:
            return self
        parts = [self.weight, self.squares, self.first, self.second]
        flat = sum_over_ranks(torch.cat([part.reshape(-1) for part in parts]), group)
        pieces = flat.split([part.numel() for part in parts])
        return Statistics(*[a.reshape(b.shape) for a, b in zip(pieces, parts, strict=True)])

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.weight + other.weight,
            self.squares + other.squares,
            self.first + other.first,
            self.second + other.second,
        )

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the features (R,)."""
        return self.first / self.weight

    @property
    def size(self) -> Tensor:
        """Kish's effective number of observations."""
        return self.weight.square() / self.squares

    def spread(self, center: Tensor) -> Tensor:
        """Mean product of deviations from a center (R,): (R, R)."""
        d = self.mean - center
        own = self.second / self.weight - torch.outer(self.mean, self.mean)
        return own + torch.outer(d, d)
