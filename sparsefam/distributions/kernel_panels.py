"""Where kernel families are integrated: panels on which their scores are polynomials."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..bases import Basis
from ..kernels import Kernel, kernel_matrix
from ..numerics.arguments import require
from ..numerics.panels import Axis, Columns, errors, find_panels, product_rule
from .base_measure import Base, BaseMeasure
from .kernel_refinement import refined, thinned

__all__ = ["KernelPanels"]

_MOST_NODES = 2**18
# Of the tolerance, what the error of a score may be, and the mass that a rule misses.
_SHARE, _MISSED = 0.2, 0.05
# Units of rounding by which a function may differ from a polynomial that it is.
_ROUNDING = 100
# Nodes along each axis at least: edges are not resolved along the first ones.
_LEAST_NODES = {1: 1, 2: 128, 3: 32}
# How many kernels overlap where sums of them are made in float64.
_OVERLAP = 48.0
# At how many nodes a base is compared, and by what part of the largest value kernels may differ.
_LOOKED_AT, _SAME = 16, 1e-6
# Points whose kernels along an axis are evaluated together.
_BLOCK = 8
# For a basis: what tells whether it has changed, and panels for it.
_Finer = WeakKeyDictionary[Basis, tuple[list[tuple[int, int]], "KernelPanels"]]


@dataclass(frozen=True, eq=False)
class KernelPanels:
    """The nodes that densities of one kernel, set of inducing points and base have in common.

    Attributes:
        axes: Panels along each axis. Edges are located along the last one.
        nodes: All nodes (Q, D), float64, the first of every panel before the second of any.
        measure: Quadrature weights times the base density, by panel (m, G), float64.
        base: The base density.
        tolerance: To which scores are polynomials on a panel.
        matrix: The kernel at inducing points and nodes (*B, I, Q), float64, unless it is learned.
        is_wide: Whether so many kernels overlap that sums of them need more digits than float32's.
    """

    axes: tuple[Axis, ...]
    nodes: Tensor
    measure: Tensor
    base: BaseMeasure
    tolerance: float
    matrix: Tensor | None
    is_wide: bool = False
    _finer: _Finer = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_finer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What is remembered for a basis belongs to that basis, not to a copy of it.
        self.__dict__.update(state, _finer=WeakKeyDictionary())

    @classmethod
    def find(
        cls,
        kernel: Kernel,
        inducing_points: Tensor,
        base: BaseMeasure,
        tolerance: float,
        growth: Callable[[Tensor], Tensor],
    ) -> "KernelPanels":
        """Panels for a kernel, as few as the tolerance allows.

        Args:
            kernel: The kernel.
            inducing_points: (*B, I, D).
            base: The base density.
            tolerance: Greatest error of a polynomial, relative to the kernel's greatest value.
            growth: What sqrt(k(t, t)) lets the density grow to, as a logarithm.

        Raises:
            ValueError: A tail that the base does not bound, or no panels within reason.
        """
        with torch.no_grad():
            points = inducing_points.double().reshape(-1, base.dim)
            axes = [
                _find_axis(kernel, points, base, axis, tolerance, growth)
                for axis in range(base.dim)
            ]
            panels = cls.of_axes(axes, base, tolerance)
            panels = panels.with_order(_LEAST_NODES.get(base.dim, 1))
        return panels.with_matrix_of(kernel, inducing_points)

    @classmethod
    def of_axes(cls, axes: list[Axis], base: BaseMeasure, tolerance: float) -> "KernelPanels":
        """The tensor product of axes."""
        count = math.prod(axis.size for axis in axes)
        if count > _MOST_NODES:
            raise ValueError(
                f"tolerance must leave at most {_MOST_NODES} nodes, got {tolerance:g} with {count}"
            )
        nodes, weights = product_rule(axes)
        order = axes[-1].order
        nodes = nodes.reshape(-1, order, len(axes)).transpose(0, 1).flatten(0, 1)
        measure = weights.reshape(-1, order).T * base.log_density(nodes).exp().reshape(order, -1)
        return cls(tuple(axes), nodes, measure, base, tolerance, None)

    def with_matrix_of(self, kernel: Kernel, inducing_points: Tensor) -> "KernelPanels":
        """With the kernel at the nodes, unless it is learned."""
        matrix = kernel_matrix(kernel, inducing_points, self.nodes)
        sums, largest = matrix.abs().sum(-2).amax(), matrix.abs().amax()
        kept = None if matrix.requires_grad else matrix
        return replace(self, matrix=kept, is_wide=bool(sums > _OVERLAP * largest))

    def require_fit(self, kernel: Kernel, points: Tensor, base: Base, dtype: torch.dtype) -> None:
        """Raise unless these are the panels of a kernel, inducing points (*B, I, D) and a base.

        Raises:
            ValueError: Another dimension, base, kernel or inducing points; found for a dtype of
                fewer digits.
        """
        dim = points.shape[-1]
        if self.base.dim != dim:
            raise ValueError(f"panels must have dimension {dim}, got {self.base.dim}")
        if dtype == torch.float64 and self.base.dtype != dtype:
            raise ValueError(f"panels must be of a density in {dtype}, got {self.base.dtype}")
        if not self.base.is_of(base, self.nodes[:: 1 + len(self.nodes) // _LOOKED_AT]):
            raise ValueError(f"panels must be of a density with the same base, got {base}")
        self.base.require_inside("inducing_points", points.double())
        if self.matrix is not None:
            # Where the first of the points is, a kernel is seldom zero.
            place = (self.nodes - points.reshape(-1, dim)[0]).abs().sum(-1).argmin(-1, True)
            found, known = kernel_matrix(kernel, points, self.nodes[place]), self.matrix[..., place]
            rule = "of a density with the same kernel and inducing points"
            if found.shape != known.shape:
                raise ValueError(f"panels must be {rule}, got {tuple(points.shape)} points")
            same = (found - known).abs() <= _SAME * known.abs().amax()
            require(same, "panels", rule, "values that differ")

    def with_order(self, order: int) -> "KernelPanels":
        """Panels halved until each axis has as many nodes; itself if it has."""
        axes = []
        for axis in self.axes:
            while axis.size < order:
                axis = axis.halved()
            axes.append(axis)
        same = all(a.size == b.size for a, b in zip(axes, self.axes, strict=True))
        return self if same else KernelPanels.of_axes(axes, self.base, self.tolerance)

    def for_scores(
        self, scores: Columns, peaked: bool, kernel: Kernel, points: Tensor
    ) -> "KernelPanels":
        """Panels on which scores, not only kernels, are polynomials; itself if they are here.

        Args:
            scores: From locations (q,), float64, to (n, q).
            peaked: Whether their exponentials must be resolved, too, as densities.
            kernel: The kernel.
            points: Inducing points (*B, I, 1), float64.
        """

        def rough(axis: Axis) -> Tensor:
            values = scores(axis.rule()[0].flatten())
            rounding = torch.finfo(values.dtype).eps * values.abs().amax()
            bound = _SHARE * self.tolerance + _ROUNDING * rounding
            return errors(scores, axis).amax(0) / bound

        axis, worst = refined(self.axes[0], rough)
        found = [axis]
        if self.base.is_flat and 0 < worst <= 1:
            columns = partial(_columns, kernel, points.flatten(0, -2), 0)
            thin = thinned(axis, columns, worst)
            found = [thin] if thin is axis or not peaked else [thin, axis]
        if peaked:  # for which a thin axis may have to be halved where the other has not
            found = [refined(axis, partial(self._missed, scores))[0] for axis in found]
        return self._along(min(found, key=lambda axis: axis.size))

    def _along(self, axis: Axis) -> "KernelPanels":
        if axis.order == self.axes[0].order and torch.equal(axis.breaks, self.axes[0].breaks):
            return self
        found = KernelPanels.of_axes([axis], self.base, self.tolerance)
        return replace(found, is_wide=self.is_wide)

    def _missed(self, scores: Columns, axis: Axis) -> Tensor:
        """What the rule misses on panels (P,) of the mass of exponentials, over what it may."""
        nodes, values = axis.rule()[0].flatten(), scores(axis.rule()[0].flatten())
        top = values.amax(-1, keepdim=True)
        # What rounding of a location, and of the score itself, does to a mass.
        steep = (values.diff().abs() / nodes.diff()).amax(-1, True) * nodes.abs().amax()
        rounding = torch.finfo(nodes.dtype).eps * (steep + values.abs().amax(-1, True))

        def masses(axis: Axis, values: Tensor) -> Tensor:
            weights = axis.rule()[1]
            found: Tensor = ((values - top).exp().unflatten(-1, weights.shape) * weights).sum(-1)
            return found

        rough, finer = masses(axis, values), axis.halved()
        fine = masses(finer, scores(finer.rule()[0].flatten()))
        missed = (fine.unflatten(-1, (-1, 2)).sum(-1) - rough).abs()
        due = (_MISSED * self.tolerance / rough.shape[-1] + rounding) * rough.sum(-1, keepdim=True)
        found: Tensor = (missed / due).amax(0)
        return found

    def for_basis(self, psi: Basis) -> "KernelPanels":
        """Panels on which the functions of a basis are polynomials, too; itself if they are here.

        The answer is remembered for as long as the basis does not change. Compiled graphs, which
        cannot look at values, and more than one dimension keep the panels as they are.
        """
        if torch.compiler.is_compiling() or len(self.axes) > 1:
            return self
        state = [(id(x), x._version) for x in (*psi.parameters(), *psi.buffers())]
        known = self._finer.get(psi)
        if known is None or known[0] != state:
            with torch.no_grad():
                known = (state, self._cut_for(psi))
            self._finer[psi] = known
        return known[1]

    def _cut_for(self, psi: Basis) -> "KernelPanels":
        axis, breaks = self.axes[0], psi.breaks
        if breaks is not None:
            axis = axis.cut(breaks)

        def columns(t: Tensor) -> Tensor:
            values: Tensor = psi.in_float64(t) if self.is_wide else psi(t.to(dtype))
            return values.double().T

        dtype = torch.float64 if self.is_wide else _dtype_of(psi)
        tolerance = max(self.tolerance, _ROUNDING * torch.finfo(dtype).eps)

        def excess(axis: Axis) -> Tensor:
            largest = columns(axis.rule()[0].flatten()).abs().amax()
            return errors(columns, axis).amax(0) / (tolerance * largest)

        return self._along(refined(axis, excess)[0])


def _dtype_of(psi: Basis) -> torch.dtype:
    found = [x.dtype for x in (*psi.parameters(), *psi.buffers()) if x.is_floating_point()]
    return found[0] if found else torch.float64


def _find_axis(
    kernel: Kernel,
    points: Tensor,
    base: BaseMeasure,
    axis: int,
    tolerance: float,
    growth: Callable[[Tensor], Tensor],
) -> Axis:
    """Panels along an axis."""
    ends = base.reach(axis, partial(_deviation, kernel, points, axis), growth)
    breaks = base.breaks(axis).to(points)
    found = find_panels(
        partial(_columns, kernel, points, axis),
        lambda t: base.log_factor(axis, t).exp(),
        ends,
        tolerance,
        torch.cat([points[:, axis], breaks]),
        torch.cat([base.scales(axis).to(points), breaks]),
    )
    if found is None:
        raise ValueError(
            "kernel must be smooth between the inducing points, the base "
            f"{base.factors[axis]} next to its ends, or tolerance larger: panels on {ends} do not "
            f"resolve both to {tolerance:g}"
        )
    return found


def _columns(kernel: Kernel, points: Tensor, axis: int, t: Tensor) -> Tensor:
    """The kernel (n, q) between n points and themselves moved along an axis to q coordinates."""
    if points.shape[-1] == 1:
        return kernel_matrix(kernel, points, t.unsqueeze(-1))
    moved = points.unsqueeze(1).repeat(1, len(t), 1)
    moved[..., axis] = t
    # A few points at a time: only the diagonal of each block is needed.
    pairs = zip(points.split(_BLOCK), moved.split(_BLOCK), strict=True)
    blocks = [
        kernel_matrix(kernel, some, to.flatten(0, 1)).unflatten(-1, to.shape[:2]).diagonal().T
        for some, to in pairs
    ]
    return torch.cat(blocks)


def _deviation(kernel: Kernel, points: Tensor, axis: int, t: Tensor) -> Tensor:
    """sqrt(k(t, t)) along an axis through the mean point."""
    moved = points.mean(0).repeat(len(t), 1)
    moved[:, axis] = t
    return kernel_matrix(kernel, moved, moved).diagonal().clamp_min(0).sqrt()
