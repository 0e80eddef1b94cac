"""Quadrature nodes of kernel families: meshes on which their scores are polynomials."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._feature_maps import FeatureMap, KernelFeatures
from ..._numerics.chebyshev_mesh import (
    ChebyshevMesh,
    Columns,
    find_mesh,
    halved_rule,
    interpolation_errors,
    product_rule,
)
from ..._numerics.modes import values_exist
from ..._numerics.validation import require
from ...bases import Basis
from .base_measure import Base, BaseMeasure

__all__ = ["MOST_NODES", "KernelMesh", "dtype_of", "require_inside"]

MOST_NODES = 2**18
# Fractions of the tolerance for the error of a score, and for the mass that a rule misses.
_SCORE_FRACTION, _MASS_FRACTION = 0.2, 0.05
# Interpolation errors up to so many units of rounding of the largest value are not due to a mesh.
_ROUNDING = 100
# Least number of nodes along each axis, by dimension. Subintervals are cut at the edges of supports
# along the last axis only; in several dimensions, many nodes resolve edges across the other axes.
_LEAST_NODES = {1: 1, 2: 128, 3: 32}
# Nodes at which functions are added up at a time, to see how much they overlap.
_CHUNK = 2**14
# The number of overlapping kernels from which on they are summed in float64.
_OVERLAP = 48.0
# Nodes at which bases and functions are compared; the relative difference of equal kernels.
_COMPARED, _SAME = 16, 1e-6
# The largest number of steps, and of steps without progress after which errors are rounding.
_MOST_STEPS, _PATIENCE = 24, 4
# The ratio of successive cuts toward an end at which the log density of the base is infinite, and
# their number: 0.25^24 is 4e-15, near the rounding of float64.
_GRADES, _GRADED = 0.25, 24
# The ratio of an error to its bound below which an error that does not fall is rounding.
_ROUGH = 1e4


@dataclass(frozen=True, eq=False)
class KernelMesh:
    """Nodes shared by densities of one base, whose scores are sums of the same functions.

    Axes are divided into subintervals with Gauss-Legendre nodes. On the last axis each subinterval
    has m of them, and stands for G subintervals at all nodes of the other axes; Q = m G in all.
    """

    axes: tuple[ChebyshevMesh, ...]  # Edges of supports are located along the last one
    nodes: Tensor  # (Q, D), float64, the first of every subinterval before the second of any
    measure: Tensor  # Quadrature weights times the base density, by subinterval (m, G), float64
    base: BaseMeasure
    tolerance: float  # Relative error to which scores are polynomials
    matrix: Tensor | None  # The functions at the nodes (*B, I, Q), float64, if they are kept
    is_wide: bool = False  # Whether so many functions overlap that their sums need float64
    basis: Basis | None = None  # A basis whose functions are polynomials, too

    @classmethod
    def find(
        cls,
        features: FeatureMap,
        base: BaseMeasure,
        tolerance: float,
        growth: Callable[[Tensor], Tensor],
    ) -> "KernelMesh":
        """Find a mesh on which functions are polynomials, with as few nodes as possible.

        Args:
            features: The functions.
            base: The base density.
            tolerance: Error of the polynomials, relative to the greatest value of a function.
            growth: From locations (q, D) to upper bounds (q,) of the log density less the base's.

        Raises:
            ValueError: The base does not outweigh the growth of the functions, or a mesh would be
                too large.
        """
        least = _LEAST_NODES.get(base.dim, 1)
        with torch.no_grad():
            axes = [_find_axis(features, base, axis, tolerance, growth) for axis in range(base.dim)]
            return cls.of_axes(axes, base, tolerance).with_least_nodes(least)

    @classmethod
    def of_axes(
        cls, axes: list[ChebyshevMesh], base: BaseMeasure, tolerance: float
    ) -> "KernelMesh":
        """Return the tensor product of axes, without a matrix of functions."""
        count = math.prod(axis.size for axis in axes)
        if count > MOST_NODES:
            raise ValueError(
                f"tolerance must leave at most {MOST_NODES} nodes, got {tolerance:g} with {count}"
            )
        nodes, weights = product_rule(axes)
        order = axes[-1].order
        # A subinterval has m successive nodes, at different locations on the last axis only. With
        # nodes (m, G) sums over subintervals are sums over the first axis.
        nodes = nodes.reshape(-1, order, len(axes)).transpose(0, 1).flatten(0, 1)
        measure = weights.reshape(-1, order).T * base.log_density(nodes).exp().reshape(order, -1)
        return cls(tuple(axes), nodes, measure, base, tolerance, None)

    def with_matrix_of(self, features: FeatureMap) -> "KernelMesh":
        """Return the mesh with `is_wide` of some functions, and with their matrix if constant."""
        # Where the sum of the sizes of functions is many times the largest one, they overlap so
        # much that they are nearly dependent, and weights of opposite signs cancel.
        matrix = features.at(self.nodes)
        sizes = [(x.abs().sum(-2).amax(), x.abs().amax()) for x in matrix.split(_CHUNK, -1)]
        sums, largest = (torch.stack(x).amax() for x in zip(*sizes, strict=True))
        kept = None if matrix.requires_grad else matrix
        return replace(self, matrix=kept, is_wide=bool(sums > _OVERLAP * largest))

    def __getstate__(self) -> dict[str, Any]:
        # The matrix would be most of a saved model, and follows from the functions.
        return self.__dict__ | {"matrix": None}

    def to(self, device: torch.device) -> "KernelMesh":
        """Return the mesh on another device, with the same base."""
        axes = tuple(axis._replace(breaks=axis.breaks.to(device)) for axis in self.axes)
        matrix = None if self.matrix is None else self.matrix.to(device)
        nodes, measure = self.nodes.to(device), self.measure.to(device)
        return replace(self, axes=axes, nodes=nodes, measure=measure, matrix=matrix)

    def require_fit(
        self, features: FeatureMap, base: Base, dtype: torch.dtype, validate: bool
    ) -> None:
        """Raise unless this is the mesh of some functions and a base.

        Args:
            features: The functions.
            base: The base, as for `BaseMeasure`.
            dtype: Of the weights of the functions.
            validate: Whether to compare values, too, at a few nodes; else shapes and dtypes only.

        Raises:
            ValueError: Another dimension, base or other functions; a mesh of a dtype with fewer
                digits.
        """
        dim, points = features.dim, features.points
        if self.base.dim != dim:
            raise ValueError(f"mesh must have dimension {dim}, got {self.base.dim}")
        if dtype == torch.float64 and self.base.dtype != dtype:
            raise ValueError(f"mesh must be of a density in {dtype}, got {self.base.dtype}")
        points_too = " and inducing points" if isinstance(features, KernelFeatures) else ""
        rule = f"of a density with the same {features.name}{points_too}"
        if self.matrix is not None and points.shape[:-1] != self.matrix.shape[:-1]:
            raise ValueError(f"mesh must be {rule}, got {tuple(points.shape)} points")
        if not validate:
            return
        if not self.base.is_of(base, self.nodes[:: 1 + len(self.nodes) // _COMPARED]):
            raise ValueError(f"mesh must be of a density with the same base, got {base}")
        require_inside(self.base, features)
        require(torch.as_tensor(self.has(features)), "mesh", rule, "values that differ")

    def has(self, features: FeatureMap) -> bool:
        """Return whether functions have the values that the mesh keeps, compared at a few nodes."""
        if self.matrix is None:
            return True
        # Functions are compared at the nodes next to some of their points, where few are zero.
        points = features.points.reshape(-1, features.dim)
        points = points[:: 1 + len(points) // _COMPARED].unsqueeze(1)
        nearest = (self.nodes - points).abs().sum(-1).argmin(-1)
        values, stored = features.at(self.nodes[nearest]), self.matrix[..., nearest]
        if values.shape != stored.shape:
            return False
        return bool(((values - stored).abs() <= _SAME * stored.abs().amax()).all())

    def graded(self) -> "KernelMesh":
        """Return the mesh with cuts toward ends at which the base's log density is infinite.

        It is the mesh itself if there is none, or if there would be too many nodes.
        """
        if not any(map(any, self.base.poles)):
            return self
        # Geometric cuts resolve the singularity of a logarithm.
        axes = []
        for axis, (below, above) in zip(self.axes, self.base.poles, strict=True):
            breaks = axis.breaks
            ratios = _GRADES ** torch.arange(1, _GRADED + 1).to(breaks)
            # All cuts at an end where the log density is infinite, which counts as 1, else none.
            lower = breaks[0] + (breaks[1] - breaks[0]) * ratios[: _GRADED * below]
            upper = breaks[-1] - (breaks[-1] - breaks[-2]) * ratios[: _GRADED * above]
            axes.append(axis.cut(torch.cat([lower, upper])))
        if math.prod(axis.size for axis in axes) > MOST_NODES:
            return self
        return replace(KernelMesh.of_axes(axes, self.base, self.tolerance), is_wide=self.is_wide)

    def restricted(self, base: BaseMeasure) -> "KernelMesh":
        """Return the mesh for its base restricted to a region, cut at the ends of intervals.

        Args:
            base: The restricted base.
        """
        # The matrix of functions serves as long as the nodes are the same.
        ends = base.jumps()
        if not len(ends):
            axes, matrix = list(self.axes), self.matrix
        else:
            axes, matrix = [self.axes[0].cut(ends)], None
        restricted = KernelMesh.of_axes(axes, base, self.tolerance)
        return replace(restricted, is_wide=self.is_wide, matrix=matrix)

    def with_least_nodes(self, count: int) -> "KernelMesh":
        """Return a mesh with subintervals halved until each axis has at least `count` nodes.

        It is the mesh itself if each axis has them, else one without a matrix of functions.
        """
        axes = []
        for axis in self.axes:
            while axis.size < count:
                axis = axis.halved()
            axes.append(axis)
        same = all(a.size == b.size for a, b in zip(axes, self.axes, strict=True))
        if same:
            return self
        return replace(KernelMesh.of_axes(axes, self.base, self.tolerance), is_wide=self.is_wide)

    def for_scores(self, scores: Columns, peaked: bool) -> "KernelMesh":
        """Return the univariate mesh, refined until polynomials match scores; itself if they do.

        On this mesh they match the functions that scores are made of, relative to the largest value
        of each, and large weights multiply the errors. Those of scores are absolute.

        Args:
            scores: The scores f, from locations (q,) to (R, q).
            peaked: Whether densities are so much narrower than scores, at alpha near 1, that the
                integrals of e^f are checked, too.
        """

        def excess(axis: ChebyshevMesh) -> Tensor:
            """Return the largest error of the scores on each subinterval, over the allowed one."""
            values = scores(axis.rule()[0].flatten())
            rounding = torch.finfo(values.dtype).eps * values.abs().amax()
            bound = _SCORE_FRACTION * self.tolerance + _ROUNDING * rounding
            return interpolation_errors(scores, axis).amax(0) / bound

        axis = _refined(self.axes[0], excess)
        return self._along(_refined(axis, partial(self._mass_errors, scores)) if peaked else axis)

    def _along(self, axis: ChebyshevMesh) -> "KernelMesh":
        """Return the univariate mesh with another axis; itself if the axis is the same."""
        if axis.order == self.axes[0].order and torch.equal(axis.breaks, self.axes[0].breaks):
            return self
        mesh = KernelMesh.of_axes([axis], self.base, self.tolerance)
        return replace(mesh, is_wide=self.is_wide)

    def _mass_errors(self, scores: Columns, axis: ChebyshevMesh) -> Tensor:
        """Return the error of the integral of e^f on each subinterval (P,), over the allowed one.

        Args:
            scores: The scores f, from locations (q,) to (R, q). The largest error of all counts.
            axis: The mesh.
        """
        nodes, values = axis.rule()[0].flatten(), scores(axis.rule()[0].flatten())
        # The largest value of e^f is scaled to 1, which changes no relative error.
        top = values.amax(-1, keepdim=True)
        # Rounding a location t changes e^f by eps |t f'(t)|, and rounding f by eps |f|, relatively.
        steep = (values.diff().abs() / nodes.diff()).amax(-1, True) * nodes.abs().amax()
        rounding = torch.finfo(nodes.dtype).eps * (steep + values.abs().amax(-1, True))

        # The error of a rule, from the difference to the rule on halved subintervals.
        weights = axis.rule()[1]
        values = (values - top).unflatten(-1, weights.shape)
        coarse = (values.exp() * weights).sum(-1)
        halves, fine_weights = halved_rule(axis.order, values)
        fine = ((values @ halves.T).exp() * fine_weights).sum(-1) * axis.breaks.diff()
        allowed = _MASS_FRACTION * self.tolerance / coarse.shape[-1] + rounding
        errors: Tensor = (fine - coarse).abs() / (allowed * coarse.sum(-1, keepdim=True))
        return errors.amax(0)

    @torch.no_grad()
    def for_basis(self, psi: Basis) -> "KernelMesh":
        """Return a mesh on which the functions of a basis are polynomials, too; itself if they are.

        In compiled graphs, which cannot read values, and in several dimensions it is the mesh
        itself.
        """
        if psi is self.basis or not values_exist(self.nodes):
            return self
        if len(self.axes) > 1:
            return self
        axis, breaks = self.axes[0], psi.breaks
        if breaks is not None:
            axis = axis.cut(breaks)

        def columns(t: Tensor) -> Tensor:
            """Return the functions (N, q) at locations (q,)."""
            return psi.in_float64(t).T

        # No finer than the rounding errors of the basis, unless sums are float64.
        dtype = torch.float64 if self.is_wide else dtype_of(psi)
        tolerance = max(self.tolerance, _ROUNDING * torch.finfo(dtype).eps)

        def excess(axis: ChebyshevMesh) -> Tensor:
            """Return the largest error of the basis on each subinterval, over the allowed one."""
            largest = columns(axis.rule()[0].flatten()).abs().amax()
            return interpolation_errors(columns, axis).amax(0) / (tolerance * largest)

        return self._along(_refined(axis, excess))


def require_inside(base: BaseMeasure, features: FeatureMap) -> None:
    """Raise ValueError unless inducing points are in the support of a base."""
    if isinstance(features, KernelFeatures):
        base.require_inside("inducing_points", features.points.double())


def dtype_of(psi: Basis) -> torch.dtype:
    """Return the dtype of a basis's tensors; float64 if it has none."""
    dtypes = [x.dtype for x in (*psi.parameters(), *psi.buffers()) if x.is_floating_point()]
    return dtypes[0] if dtypes else torch.float64


def _find_axis(
    features: FeatureMap,
    base: BaseMeasure,
    axis: int,
    tolerance: float,
    growth: Callable[[Tensor], Tensor],
) -> ChebyshevMesh:
    """Find the mesh of an axis, on which functions are polynomials and the base is integrated.

    Args:
        features: The functions; they are considered on lines along the axis through their points.
        base: The base density.
        axis: The number of the axis.
        tolerance: As for `KernelMesh.find`.
        growth: As for `KernelMesh.find`.
    """
    points = features.points.double().flatten(0, -2)

    def along_line(t: Tensor) -> Tensor:
        """Return the growth along a line through the mean point."""
        line = points.mean(0).repeat(len(t), 1)
        line[:, axis] = t
        return growth(line)

    ends = base.negligible_beyond(axis, along_line)
    breaks = torch.cat([x.to(points) for x in (features.breaks(axis), base.jumps())])
    mesh = find_mesh(
        partial(features.along, axis),
        lambda t: base.log_factor(axis, t).exp(),
        ends,
        tolerance,
        torch.cat([points[:, axis], breaks]),
        torch.cat([base.scales(axis).to(points), breaks]),
    )
    if mesh is None:
        raise ValueError(
            f"{features.name} must be smooth between its points, the base {base.factors[axis]} "
            f"next to its ends, or tolerance larger: a mesh on {ends} does not resolve both to "
            f"{tolerance:g}"
        )
    return mesh


def _refined(axis: ChebyshevMesh, excess: Callable[[ChebyshevMesh], Tensor]) -> ChebyshevMesh:
    """Refine a mesh until no error exceeds its bound, or rounding stops it.

    Args:
        axis: The mesh at first.
        excess: From a mesh to the errors on its subintervals (P,), over their bounds.
    """
    # While errors are above `_ROUGH`, the mesh is far too coarse for steps to show progress. A step
    # is wasted if it does not halve the error.
    best, wasted = _ROUGH, 0
    for _ in range(_MOST_STEPS):
        errors = excess(axis)
        worst = float(errors.amax())
        if worst <= 1 or wasted == _PATIENCE:
            break
        if worst <= best / 2:
            best, wasted = worst, 0
        elif best < _ROUGH:
            wasted += 1
        axis = axis.refined(errors > 1)
    return axis
