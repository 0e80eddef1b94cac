"""Feature maps for scores that are linear combinations: of kernels at points, or of a basis."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import pyro
import torch
from pyro.nn import PyroModule
from torch import Size, Tensor, nn

from ._numerics.validation import broadcast_shapes, map_tensors, require
from .bases import Basis, GaussianRBF, Product, Stack, breaks_along

__all__ = [
    "BasisFeatures",
    "FeatureMap",
    "Gaussian",
    "Kernel",
    "KernelFeatures",
    "kernel_matrix",
    "require_kernel",
    "require_weights",
]

# Points whose kernels along an axis are evaluated together.
_BLOCK = 8
# Pairs of locations whose kernels are computed together: as many as fit into a processor's cache.
_PAIRS = 2**15


class FeatureMap(ABC):
    """Functions of a location, whose linear combinations are scores."""

    name: str  # Kind of the functions, for messages
    points: Tensor  # A location of each function, around which it may be narrow (*B, I, D)

    @property
    def batch(self) -> Size:
        """Batch (*B) of densities with functions of their own; empty if all share them."""
        return self.points.shape[:-2]

    @property
    def dim(self) -> int:
        """Number of coordinates of a location."""
        return self.points.shape[-1]

    @abstractmethod
    def at(self, t: Tensor) -> Tensor:
        """Evaluate the functions at locations (q, D): (*B, I, q), float64."""

    @abstractmethod
    def along(self, axis: int, t: Tensor) -> Tensor:
        """Evaluate each of n functions on a line through its point, along an axis, (n, q).

        Args:
            axis: The axis.
            t: Coordinates (q,) on the axis.
        """

    @abstractmethod
    def detach(self) -> "FeatureMap":
        """Return the functions with their tensors detached from the graph."""

    @abstractmethod
    def breaks(self, axis: int) -> Tensor:
        """Coordinates (n,) along an axis at which functions are not smooth, as far as known."""

    def score(self, weights: Tensor, t: Tensor, batch: Size) -> Tensor:
        """Evaluate scores (*S, *batch).

        Args:
            weights: Weights (*batch, I), or a shape that broadcasts.
            t: Locations (*S, *batch, D), or a shape that broadcasts.
            batch: The batch of the scores.
        """
        lead = t.shape[:-1]
        columns = self.at(t.reshape(-1, t.shape[-1])).to(weights)
        if self.batch:
            return _with_batched_features(columns, weights, lead, batch)
        samples = max(0, len(lead) - len(batch))  # the number of axes in *S
        if lead[samples:].numel() == 1:
            # Locations that the batch shares: one matrix product.
            scores = columns.T @ weights.expand(*batch, -1).reshape(-1, weights.shape[-1]).T
            return scores.reshape(lead[:samples] + batch)
        return (columns.T.reshape(*lead, len(columns)) * weights).sum(-1)


def _with_batched_features(columns: Tensor, weights: Tensor, lead: Size, batch: Size) -> Tensor:
    """Return scores (*S, *batch) of densities whose functions differ.

    Args:
        columns: All functions at all locations (*B, I, q).
        weights: Their weights (*batch, I).
        lead: The shape of the q locations, (*S, *batch) or one that broadcasts with it.
        batch: The batch of the densities, to which B expands.
    """
    # Every density is evaluated at all q locations, of which it keeps its own.
    sums = (weights.unsqueeze(-2) @ columns).squeeze(-2)
    sums = sums.expand(*batch, -1).movedim(-1, 0)  # (q, *batch)
    full = broadcast_shapes(lead, batch)
    # The number of the location, from 0 to q - 1, at which each score is wanted.
    index = torch.arange(lead.numel(), device=columns.device).reshape(lead).expand(full)
    rows = sums.reshape(len(sums), *(1,) * (len(full) - len(batch)), *batch)
    return rows.expand(len(sums), *full).gather(0, index.unsqueeze(0)).squeeze(0)


# (n, D), (m, D) to (n, m)
Kernel = Callable[[Tensor, Tensor], Tensor]


def kernel_matrix(kernel: Kernel, points: Tensor, t: Tensor) -> Tensor:
    """Evaluate k(points, t) for (*batch, I, D) and (q, D): (*batch, I, q), in float64.

    Stationary kernels are often written with |x|^2 - 2 x'z + |z|^2, which in float32 has no digits
    left where points are close.

    Raises:
        ValueError: The kernel returns another shape or dtype, or values that are not finite.
    """
    size = t.shape[-1]
    inputs = points.double().reshape(-1, size), t.double()
    if isinstance(kernel, PyroModule) and not kernel._pyro_context.active:
        # Kernels outside a model would share parameters of one name in Pyro's store, and show
        # them to a model that constructs the density.
        with pyro.get_param_store().scope(), pyro.poutine.block():
            values: Tensor = kernel(*inputs)
    else:
        values = kernel(*inputs)
    shape = (points.shape[:-1].numel(), t.shape[0])
    if not isinstance(values, Tensor) or (values.shape, values.dtype) != (shape, torch.float64):
        shapes = f"({shape[0]}, {size}), ({shape[1]}, {size})"
        raise ValueError(f"kernel must map float64 {shapes} to {shape}, got {_kind(values)}")
    # Their sum is finite only if all of them are.
    require(torch.isfinite(values.sum()), "kernel", "finite", "a value that is not")
    return values.reshape(*points.shape[:-1], len(t))


def _kind(value: object) -> str:
    """Describe a tensor by its shape and dtype, other objects by their repr."""
    return f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value)


def require_kernel(kernel: object) -> None:
    """Raise a ValueError for anything but a function or an instance that can be called."""
    if not callable(kernel) or isinstance(kernel, type):
        raise ValueError(f"kernel must be a callable on matrices, got {kernel!r}")


class Gaussian(nn.Module):
    r"""$\exp(-\tfrac12 \sum_d (x_d - y_d)^2 / h_d^2)$, a kernel without parameters to learn.

    Args:
        bandwidth: $h$ (D,).
    """

    bandwidth: Tensor

    def __init__(self, bandwidth: Tensor) -> None:
        super().__init__()
        self.register_buffer("bandwidth", bandwidth)

    def __str__(self) -> str:
        return f"bandwidth {', '.join(f'{h:.3g}' for h in self.bandwidth.tolist())}"

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Evaluate the kernel between (n, D) and (m, D): (n, m)."""
        x, y = x / self.bandwidth, y / self.bandwidth
        rows = max(1, _PAIRS // max(1, len(y)))

        def evaluate(x: Tensor) -> Tensor:
            """Return the kernel between some of the first locations and all others."""
            # By differences, which keep their digits far from zero; torch.cdist has no forward-mode
            # derivative.
            squares = [(a.unsqueeze(-1) - b).square() for a, b in zip(x.T, y.T, strict=True)]
            return torch.exp(-0.5 * sum(squares[1:], squares[0]))

        return torch.cat([evaluate(block) for block in x.split(rows)])


class KernelFeatures(FeatureMap):
    r"""$\phi_i(t) = k(t, t_i)$.

    Args:
        inducing_points: $t_i$: (I,), (I, D) or (*B, I, D).
        kernel: Maps float64 matrices (n, D) and (m, D) to (n, m).

    Raises:
        ValueError: Points that are not a floating tensor, or a kernel that cannot be called.
    """

    name = "kernel"

    def __init__(self, inducing_points: Tensor, kernel: Kernel) -> None:
        _require_floating("inducing_points", inducing_points)
        require_kernel(kernel)
        self.inducing_points, self.kernel = inducing_points, kernel
        points = inducing_points if inducing_points.dim() > 1 else inducing_points.unsqueeze(-1)
        self.points = points

    def at(self, t: Tensor) -> Tensor:
        return kernel_matrix(self.kernel, self.points, t)

    def detach(self) -> "KernelFeatures":
        kernel = map_tensors(self.kernel, Tensor.detach)
        return KernelFeatures(self.inducing_points.detach(), kernel)

    def along(self, axis: int, t: Tensor) -> Tensor:
        points = self.points.double().flatten(0, -2)
        if self.dim == 1:
            return kernel_matrix(self.kernel, points, t.unsqueeze(-1))
        # A few points at a time: only the diagonal of each block is needed.
        pairs = zip(points.split(_BLOCK), _lines(points, axis, t).split(_BLOCK), strict=True)
        blocks = []
        for block, moved in pairs:
            # Each point with all locations on the line of each point of the block.
            matrix = kernel_matrix(self.kernel, block, moved.flatten(0, 1))
            blocks.append(matrix.unflatten(-1, moved.shape[:2]).diagonal().T)
        return torch.cat(blocks)

    def breaks(self, axis: int) -> Tensor:
        return self.points.new_empty(0)


class BasisFeatures(FeatureMap):
    r"""$\phi_i = \psi_i$, the functions of a basis, whose scores have the kernel $\psi(s)'\psi(t)$.

    Args:
        basis: The basis.

    Raises:
        ValueError: Not a basis.
    """

    name = "basis"

    def __init__(self, basis: Basis) -> None:
        if not isinstance(basis, Basis):
            raise ValueError(f"basis must be a basis, got {basis!r}")
        self.basis = basis
        # Points only say where to look for narrow functions: they need no gradients.
        with torch.no_grad():
            self.points = _points_of(basis)

    def at(self, t: Tensor) -> Tensor:
        t = t.double()
        values = self.basis.in_float64(t if self.basis.event_shape else t.squeeze(-1))
        return values.T

    def detach(self) -> "BasisFeatures":
        return BasisFeatures(map_tensors(self.basis, Tensor.detach))

    def along(self, axis: int, t: Tensor) -> Tensor:
        if self.dim == 1:
            return self.at(t.unsqueeze(-1))
        return self.basis.own(_lines(self.points, axis, t).transpose(0, 1)).double().T

    def breaks(self, axis: int) -> Tensor:
        return torch.cat([self.points.new_empty(0), *breaks_along(self.basis, axis)])


def _points_of(basis: Basis) -> Tensor:
    """Return the center of each function (N, D) in float64; 0 for waves and powers."""
    if isinstance(basis, Stack):
        return torch.cat([_points_of(member) for member in basis.bases])
    if isinstance(basis, Product):
        axes = [_points_of(member).squeeze(-1) for member in basis.bases]
        return torch.cartesian_prod(*axes).reshape(-1, len(axes))
    if isinstance(basis, GaussianRBF):
        return basis.centers.double().reshape(len(basis), -1)
    # B-splines have a bounded support, with its middle as the center. Waves and powers have none.
    ends = basis.effective_support
    if ends is None:
        device = [*basis.buffers(), *basis.parameters(), torch.empty(0)][0].device
        shape = len(basis), basis.event_shape.numel()
        return torch.zeros(shape, dtype=torch.float64, device=device)
    return (ends[0].double() + ends[1].double()).unsqueeze(-1) / 2  # numbers: D = 1


def _lines(points: Tensor, axis: int, t: Tensor) -> Tensor:
    """Return points (n, D) moved along an axis to coordinates (q,): (n, q, D)."""
    moved = points.unsqueeze(1).repeat(1, len(t), 1)
    moved[..., axis] = t
    return moved


def require_weights(weights: Tensor, features: FeatureMap) -> None:
    """Raise ValueError unless weights are (*batch, I) for I functions, and batches broadcast."""
    _require_floating("weights", weights)
    shape, count = tuple(weights.shape), features.points.shape[-2]
    if not features.points.numel():
        got = tuple(features.points.shape)
        raise ValueError(f"inducing_points must not be empty, got shape {got}")
    if shape[-1] != count:
        unit = "inducing point" if isinstance(features, KernelFeatures) else "function"
        raise ValueError(f"weights must have one number for each {unit}, {count}, got {shape}")
    try:
        broadcast_shapes(weights.shape[:-1], features.batch)
    except RuntimeError:
        raise ValueError(
            "weights and inducing_points must have batches that broadcast, got "
            f"{shape} and {tuple(features.points.shape)}"
        ) from None


def _require_floating(name: str, value: object) -> None:
    """Raise ValueError unless a value is a floating tensor with one dimension or more."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a floating tensor, got {value!r}")
    if not value.is_floating_point() or value.dim() < 1:
        got = f"{tuple(value.shape)}, {value.dtype}"
        raise ValueError(f"{name} must be a floating tensor with one dimension or more, got {got}")
