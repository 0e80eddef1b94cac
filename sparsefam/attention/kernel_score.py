"""Attention of any shape: kernel scores whose weights are read off the query."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..bases import Basis
from ..distributions import KernelDeformedExp, KernelExp, SparseDistribution
from ..distributions.kernel_mesh import KernelMesh
from ..kernels import Kernel, kernel_matrix
from ..numerics.arguments import require
from .arguments import Box
from .inducing import ends, gaussian, locations, uniform
from .placement import affinity, places
from .scores import ScoreProjection, by_head

__all__ = ["KernelScore"]

# Before training: the score at its highest, and by how much it varies with queries whose channels
# have a variance of one.
_FIRST_HEIGHT = 1.0
_FIRST_DEVIATION = 0.3
# Scores grow in training, and panels are not found anew for it: in float32 these have a tolerance
# below the densities' default.
_TOLERANCE = 1e-6
_TINY = 1e-30
# Share of the domain by which conversion between dtypes may move an inducing point.
_SLACK = 1e-2


class KernelScore(ScoreProjection):
    r"""A kernel expansion for each head: a weight for each inducing point.

    The nodes of all integrals, and the kernel there, are found once for this kernel, these inducing
    points and the layer's basis. `prepare` finds them again when any of these has changed; changes
    through `.data` in place are not seen.

    Args:
        embed_dim: Channels of the queries.
        heads: Number of densities for each query.
        box: The domain.
        inducing_points: Their locations (I[, D]), or their number.
        kernel: The kernel; None is a Gaussian one.
        normalization: As in `KernelDeformedExp`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: Inducing points of another shape, outside the box, or a number that is no
            positive integer to the power D.
    """

    inducing_points: Tensor
    _found: KernelMesh | None
    _panels: KernelMesh | None
    _state: list[tuple[Any, ...]]

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        box: Box,
        inducing_points: Tensor | int = 64,
        kernel: Kernel | None = None,
        normalization: Literal["inside", "outside"] = "inside",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if normalization not in ("inside", "outside"):
            raise ValueError(f"normalization must be 'inside' or 'outside', got {normalization!r}")
        if isinstance(kernel, type):
            raise ValueError(f"kernel must be a function or an instance, got the class {kernel!r}")
        points = locations(inducing_points, box)
        super().__init__(embed_dim, heads * len(points), heads, box, device, dtype)
        self.register_buffer("inducing_points", points.to(self.weight))
        self.kernel = gaussian(len(points), box) if kernel is None else kernel
        if isinstance(self.kernel, nn.Module):
            self.kernel.to(device=device, dtype=dtype)
        self.normalization = normalization
        self._forget()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, inducing_points={len(self.inducing_points)}"

    @torch.no_grad()
    def spread(self) -> None:
        """Scores with a low and wide bump for each head, evenly over the domain."""
        if self.weight.is_meta:
            return
        points, (low, high) = self._points().double(), ends(self.box, self.inducing_points)
        gram = kernel_matrix(self.kernel, points, points)
        own = places(self.heads, len(self.box)).to(points)
        bumps = affinity(own, (points - low) / (high - low))
        # A kernel may be zero wherever it is looked at.
        height = (bumps @ gram).abs().amax(-1, keepdim=True).clamp_min(_TINY)
        self.bias.copy_((_FIRST_HEIGHT * bumps / height).flatten())
        size = float(gram.square().sum(-1).mean().sqrt().clamp_min(_TINY))
        nn.init.normal_(self.weight, std=_FIRST_DEVIATION / size / self.in_features**0.5)

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float = 1.0
    ) -> SparseDistribution:
        """Densities (B, heads, Lq) of channels (B, channels, Lq)."""
        weights = by_head(channels / temperature, (self.heads, len(self.inducing_points)))
        base = uniform(*ends(self.box, self.inducing_points))
        parts = (weights, self._points(), self.kernel, base)
        if not isinstance(alpha, Tensor) and alpha == 1:
            return KernelExp(*parts, panels=self._panels)
        return KernelDeformedExp(*parts, alpha, self.normalization, panels=self._panels)

    def _points(self) -> Tensor:
        """Inducing points (I, D)."""
        low, high = ends(self.box, self.inducing_points)
        # In another dtype, the outermost ones may have been rounded across the ends.
        points = self.inducing_points.detach().reshape(-1, len(self.box))
        return torch.maximum(torch.minimum(points, high), low)

    # Panels

    def prepare(self, basis: Basis) -> None:
        """Finds the panels, unless kernel, inducing points and basis are as they were."""
        if torch.compiler.is_compiling():
            return
        if self.weight.is_meta:
            self._forget()
            return
        state = self._dependencies()
        # Panels outlive this call, and a learned kernel must be seen to be learned.
        with torch.inference_mode(False), torch.enable_grad():
            # Of a learned kernel that is no module nothing tells whether it has changed.
            watched = isinstance(self.kernel, nn.Module)
            found = self._found if _same(state, self._state) else None
            if found is None or (not watched and found.matrix is None):
                self._forget()
                found = self._find()
                self._found, self._state = found, state
            cut = found.for_basis(basis)
            if self._panels is None or self._panels.nodes is not cut.nodes:
                self._panels = cut.with_matrix_of(self.kernel, self._points())

    def _forget(self) -> None:
        self._found, self._panels, self._state = None, None, []

    def _find(self) -> KernelMesh:
        points, (low, high) = self._points(), ends(self.box, self.inducing_points)
        moved = (self.inducing_points.detach().reshape(points.shape) - points).abs()
        rule = f"in the domain {self.box}"
        require(moved <= _SLACK * (high - low), "inducing_points", rule, self.inducing_points)
        tolerance = None if points.dtype == torch.float64 else _TOLERANCE
        parts = (torch.zeros_like(points[:, 0]), points, self.kernel, uniform(low, high))
        return KernelDeformedExp(*parts, tolerance=tolerance).panels

    def _dependencies(self) -> list[tuple[Any, ...]]:
        """What panels depend on, besides the basis, and in which state it is.

        Each is kept alive, and what a tensor stores too: else another could take its place.
        """
        tensors = [self.inducing_points]
        if isinstance(self.kernel, nn.Module):
            tensors += [*self.kernel.parameters(), *self.kernel.buffers()]
        return [(self.kernel, None), *((x, x.detach(), *_facts(x)) for x in tensors)]

    def __getstate__(self) -> dict[str, Any]:
        # What is known belongs to these tensors, not to those of a copy.
        return self.__dict__ | {"_found": None, "_panels": None, "_state": []}


def _facts(x: Tensor) -> tuple[Any, ...]:
    version = None if x.is_inference() else x._version
    return x.data_ptr(), x.requires_grad, x.dtype, x.device, version


def _same(state: list[tuple[Any, ...]], known: list[tuple[Any, ...]]) -> bool:
    return len(state) == len(known) and all(
        now[0] is then[0] and now[2:] == then[2:] for now, then in zip(state, known, strict=True)
    )
