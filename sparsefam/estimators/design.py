"""What a fit is made with where nothing is given: a box, inducing points, a kernel, panels."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus
from torch import Tensor
from torch.distributions import Uniform

from ..distributions import KernelDeformedExp, KernelExp
from ..distributions.base_measure import Base, BaseMeasure
from ..distributions.kernel_mesh import KernelMesh
from ..kernels import Kernel
from .extent import Extent, gathered
from .features import Features, Statistics
from .newton import PEAKED, Objective

if TYPE_CHECKING:  # not every build of torch has them
    from torch.distributed import ProcessGroup

__all__ = ["Gaussian", "box", "density", "objective", "spread", "width"]

# Of the range of the data, how far the box goes beyond it.
_MARGIN = 0.25
# The size of the score for which panels are made; where densities are more peaked they are halved.
_SIZE = 10.0
# Units of rounding that panels are not asked to resolve, and to what they resolve scores otherwise:
# in the plane and in space only edges along the last axis are located, which leaves fewer digits.
_ROUNDING, _RESOLVED = 256, {1: 1e-11, 2: 1e-6, 3: 1e-3}


@dataclass(frozen=True)
class Gaussian:
    r"""$\exp(-\tfrac12 \sum_d (x_d - y_d)^2 / h_d^2)$.

    Pyro's has parameters to be learned, and so is evaluated anew wherever it is used.
    """

    bandwidth: Tensor

    def __str__(self) -> str:
        return f"bandwidth {', '.join(f'{h:.3g}' for h in self.bandwidth.tolist())}"

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The kernel between (n, D) and (m, D): (n, m)."""
        # Not torch.cdist: it has no derivatives in forward mode.
        pairs = zip((x / self.bandwidth).unbind(-1), (y / self.bandwidth).unbind(-1), strict=True)
        squares = sum(((u.unsqueeze(-1) - v).square() for u, v in pairs), torch.zeros(()))
        return torch.exp(-0.5 * squares)


def width(kernel: Kernel) -> NDArray[np.float64] | None:
    """The bandwidth (D,) of a Gaussian; None of another kernel."""
    return kernel.bandwidth.numpy() if isinstance(kernel, Gaussian) else None


def box(extent: Extent) -> list[Uniform]:
    """Uniform densities on the range of the data, and somewhat beyond."""
    margin = _MARGIN * (extent.high - extent.low)
    ends = zip(extent.low - margin, extent.high + margin, strict=True)
    return [Uniform(a, b, validate_args=False) for a, b in ends]


def spread(
    x: Tensor,
    weight: Tensor,
    extent: Extent,
    base: BaseMeasure,
    count: int,
    random_state: Any,
    group: "ProcessGroup | None" = None,
) -> Tensor:
    """Inducing points (I, D) for data (n, D): a grid in the base for numbers, else some data."""
    if x.shape[1] == 1:
        margin = _MARGIN * (extent.high - extent.low)
        bounds = base.bounds(0)
        low = (extent.low - margin).clamp_min(bounds[0])
        high = (extent.high + margin).clamp_max(bounds[1])
        share = torch.linspace(0, 1, count, dtype=x.dtype)
        return torch.lerp(low, high, share).unsqueeze(-1)
    used = x[weight > 0]
    shares = 1 if group is None else dist.get_world_size(group)
    count = -(-count // shares)
    scaled = ((used - extent.mean) / extent.deviation).numpy()
    _, places = kmeans_plusplus(scaled, min(count, len(used)), random_state=random_state)
    # Every rank gives the same number; what is there twice is left out by whitening.
    places = places if group is None else np.resize(places, count)
    return gathered(used[torch.as_tensor(places)], group)


def objective(
    kernel: Kernel,
    points: Tensor,
    base: Base,
    alpha: float,
    data: Callable[[Features], Statistics],
) -> Objective:
    """What is to be minimised."""
    panels = _panels(kernel, points, base, alpha)
    features = Features.of(kernel, points, panels)
    return Objective(features, panels, data(features), alpha)


def _panels(kernel: Kernel, points: Tensor, base: Base, alpha: float) -> KernelMesh:
    typical = torch.zeros(len(points), dtype=points.dtype)
    typical[0] = _SIZE
    found = density(kernel, points, typical, base, alpha).panels
    if alpha < PEAKED:
        found = found.with_order(2 * max(axis.size for axis in found.axes))
        found = found.with_matrix_of(kernel, points)
    return found


def density(
    kernel: Kernel, points: Tensor, weights: Tensor, base: Base, alpha: float
) -> KernelExp | KernelDeformedExp:
    """The density of a score with weights (I,) at inducing points (I, D)."""
    located = points.squeeze(-1) if points.shape[-1] == 1 else points
    tolerance = _tolerance(points)
    if alpha == 1:
        return KernelExp(weights, located, kernel, base, tolerance=tolerance)
    return KernelDeformedExp(weights, located, kernel, base, alpha, tolerance=tolerance)


def _tolerance(points: Tensor) -> float:
    """To what kernels are resolved; far from zero no finer than rounding is."""
    span = (points.amax(0) - points.amin(0)).clamp_min(torch.finfo(points.dtype).tiny)
    far = float((points.abs().amax(0) / span).amax())
    rounding = _ROUNDING * torch.finfo(points.dtype).eps * far
    resolved = _RESOLVED[points.shape[-1]]
    return max(resolved, rounding) if math.isfinite(rounding) else resolved
