"""What a fit is made with where nothing is given: a box, inducing points, a kernel, panels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor
from torch.distributions import Distribution, Uniform

from ..distributions import KernelDeformedExp, KernelExp
from ..distributions.kernel_panels import KernelPanels
from ..kernels import Kernel
from .features import Features, Statistics
from .newton import Objective

__all__ = ["Gaussian", "box", "density", "objective", "spread"]

Base = Distribution | Sequence[Distribution] | None

# Of the range of the data, how far the box goes beyond it.
_MARGIN = 0.25
# The size of the score for which panels are made, and the alpha below which they are halved, as
# densities are more peaked than their scores there.
_SIZE, _PEAKED = 10.0, 1.2


@dataclass(frozen=True)
class Gaussian:
    r"""$\exp(-\tfrac12 \sum_d (x_d - y_d)^2 / h_d^2)$.

    Pyro's has parameters to be learned, and so is evaluated anew wherever it is used.
    """

    bandwidth: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The kernel between (n, D) and (m, D): (n, m)."""
        # Not torch.cdist: it has no derivatives in forward mode.
        pairs = zip((x / self.bandwidth).unbind(-1), (y / self.bandwidth).unbind(-1), strict=True)
        squares = sum(((u.unsqueeze(-1) - v).square() for u, v in pairs), torch.zeros(()))
        return torch.exp(-0.5 * squares)


def box(x: Tensor) -> list[Uniform]:
    """Uniform densities on the range of data (n, D), and somewhat beyond."""
    low, high = x.amin(0), x.amax(0)
    margin = _MARGIN * (high - low)
    ends = zip(low - margin, high + margin, strict=True)
    return [Uniform(a, b, validate_args=False) for a, b in ends]


def spread(x: Tensor, weight: Tensor, count: int, random_state: Any) -> Tensor:
    """Inducing points (I, D) for data (n, D): a grid of numbers, some of the vectors."""
    if x.shape[1] == 1:
        low, high = float(x.amin()), float(x.amax())
        margin = _MARGIN * (high - low)
        return torch.linspace(low - margin, high + margin, count, dtype=x.dtype).unsqueeze(-1)
    scaled = ((x - x.mean(0)) / x.std(0)).numpy()
    used = weight.numpy() > 0
    count = min(count, int(used.sum()))
    _, places = kmeans_plusplus(scaled[used], count, random_state=random_state)
    return x[torch.as_tensor(used)][torch.as_tensor(places)]


def objective(
    kernel: Kernel, points: Tensor, base: Base, x: Tensor, weight: Tensor, alpha: float
) -> Objective:
    """What is to be minimised for data (n, D) with weights (n,)."""
    panels = _panels(kernel, points, base, alpha)
    features = Features.of(kernel, points, panels)
    return Objective(features, panels, Statistics.of(features, x, weight), alpha)


def _panels(kernel: Kernel, points: Tensor, base: Base, alpha: float) -> KernelPanels:
    typical = torch.zeros(len(points), dtype=points.dtype)
    typical[0] = _SIZE
    found = density(kernel, points, typical, base, alpha).panels
    if alpha < _PEAKED:
        found = found.with_order(2 * max(axis.size for axis in found.axes))
        found = found.with_matrix_of(kernel, points)
    return found


def density(
    kernel: Kernel, points: Tensor, weights: Tensor, base: Base, alpha: float
) -> KernelExp | KernelDeformedExp:
    """The density of a score with weights (I,) at inducing points (I, D)."""
    located = points.squeeze(-1) if points.shape[-1] == 1 else points
    if alpha == 1:
        return KernelExp(weights, located, kernel, base)
    return KernelDeformedExp(weights, located, kernel, base, alpha)
