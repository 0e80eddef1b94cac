"""What the densities of kernel scores share, whatever becomes of the score."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..bases import Basis
from ..kernels import (
    Kernel,
    expansion,
    expansion_alpha,
    expansion_points,
    gram_matrix,
    kernel_matrix,
    require_kernel,
)
from ..numerics.arguments import in_eager, in_memory, require

from ..supports import finite_vector
from .base import SparseDistribution
from .base_measure import BaseMeasure
from .kernel_mode import highest_location
from .kernel_panels import KernelPanels
from .kernel_tails import require_moment, require_resolved
from .once import once

__all__ = ["KernelDistribution"]

# Errors of the polynomials on panels, by dimension, in float32 and float64.
_TOLERANCE = {1: (1e-5, 1e-11), 2: (1e-5, 1e-7), 3: (1e-3, 1e-4)}
# In float32 of numbers where large weights cancel, which takes few nodes in any case.
_OF_WIDE = 1e-6
# Below this alpha densities are so much more peaked than scores that panels must resolve them, too.
_PEAKED = 1.2
_MARGIN = 4.0
# From here on the last bit of a score in float32 is more than a millionth.
_LARGE = 16.0


class KernelDistribution(SparseDistribution):
    r"""A density of the score $f(t) = \sum_i w_i k(t, t_i)$ relative to a base density.

    All integrals are sums over nodes that the batch shares, with weights of its own for each
    density: an expectation is one matrix product. Subclasses say what becomes of the score.

    The normaliser and these weights are computed once, and kept with their graph: more than one
    backward pass through one density takes `retain_graph=True`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"weights": finite_vector}
    weights: Tensor
    inducing_points: Tensor

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor,
        kernel: Kernel,
        base: Distribution | Sequence[Distribution] | None,
        alpha: Tensor | float,
        tolerance: float | None,
        panels: KernelPanels | None,
        validate_args: bool | None,
    ) -> None:
        points = expansion_points(weights, inducing_points)
        require_kernel(kernel)
        self.alpha = expansion_alpha(weights, points, alpha)
        batch = self.alpha.shape
        self.weights = weights.expand(*batch, -1)
        self.inducing_points, self.kernel, self.base = inducing_points, kernel, base
        self._points = points
        event = points.shape[-1:] if points.shape[-1] > 1 else Size()
        super().__init__(batch, event, validate_args=validate_args)
        if not self._validate_args:  # else torch has looked
            require(finite_vector.check(weights), "weights", "finite", weights)
        self._require_alpha()
        self.panels = self._find_panels(tolerance) if panels is None else self._checked(panels)
        if panels is None:
            require_resolved(self)

    def _require_alpha(self) -> None:
        """Raise unless there is a density of this alpha."""

    def _checked(self, panels: KernelPanels) -> KernelPanels:
        if not isinstance(panels, KernelPanels):
            raise ValueError(f"panels must be those of another density, got {panels!r}")
        if not torch.compiler.is_compiling():
            with torch.no_grad():
                panels.require_fit(self.kernel, self._points, self.base, self.weights.dtype)
        return panels

    def _find_panels(self, tolerance: float | None) -> KernelPanels:
        rough, fine = _TOLERANCE.get(self._points.shape[-1], _TOLERANCE[3])
        if by_default := tolerance is None:
            tolerance = fine if self.weights.dtype == torch.float64 else rough
        if not isinstance(tolerance, Real) or not 0 < tolerance < math.inf:
            raise ValueError(f"tolerance must be a positive, finite number, got {tolerance!r}")
        base = BaseMeasure(self.base, self._points.shape[-1], self.weights.dtype)
        points = self._points.detach().double()
        base.require_inside("inducing_points", points)
        gram = gram_matrix(self.kernel, points)
        weights = self.weights.detach().double().unsqueeze(-1)
        squares = (weights.mT @ gram @ weights).flatten().tolist()
        norm = math.sqrt(max([0.0, *squares]))

        # |f(t)| is at most its norm times sqrt(k(t, t)); other scores may have larger norms.
        def growth(deviation: Tensor) -> Tensor:
            return self._growth(_MARGIN * norm * deviation)

        find = partial(KernelPanels.find, self.kernel, self._points, base, growth=growth)
        panels = find(tolerance=float(tolerance))
        if by_default and panels.is_wide and not self.event_shape and tolerance > _OF_WIDE:
            panels = find(tolerance=_OF_WIDE)
        if self.event_shape or not squares:
            return panels
        with torch.no_grad():
            exact, peaked = self._exact_scores, bool((self.alpha < _PEAKED).any())
            finer = panels.for_scores(exact, peaked, self.kernel, points)
        return panels if finer is panels else finer.with_matrix_of(self.kernel, self._points)

    def _exact_scores(self, t: Tensor) -> Tensor:
        """f of every row at locations (q,), float64, (R, q)."""
        located = t.reshape(-1, *(1,) * (len(self.batch_shape) + 1))
        weights = self.weights.detach().double()
        found = expansion(self.kernel, self._points, weights, located, self.batch_shape)
        return found.reshape(len(t), -1).T

    def _growth(self, size: Tensor) -> Tensor:
        """Logarithm of what p may be, relative to the base, where |f| is `size`."""
        raise NotImplementedError

    # Scores

    def _score_at(self, t: Tensor) -> Tensor:
        """f at locations (*S, *batch, *event), broadcast against the batch."""
        located = t if self.event_shape else t.unsqueeze(-1)
        return expansion(self.kernel, self._points, self.weights, located, self.batch_shape)

    @once
    def _scores(self) -> Tensor:
        """f at its own nodes, (m, G, R), in the dtype in which all sums over nodes are made.

        For densities of numbers in float32 it is float64 where kernels are so wide that large
        weights cancel in these sums, and where scores are so large that their last bits count, if
        that can be looked at for nothing.
        """
        dtype, on_line = self.weights.dtype, not self.event_shape
        if on_line and self.panels.is_wide:
            dtype = torch.float64
        found = self._scores_in(dtype, self.panels)
        looked_at = dtype == torch.float32 and in_eager() and in_memory(found)
        if on_line and looked_at and found.numel():
            low, high = found.detach().aminmax()
            if max(-float(low), float(high)) > _LARGE:
                return self._scores_in(torch.float64, self.panels)
        return found

    @property
    def _dtype(self) -> torch.dtype:
        """In which all sums over nodes are made."""
        return self._scores.dtype

    def _scores_on(self, panels: KernelPanels) -> Tensor:
        """f at the nodes of panels, a column for each density, (m, G, R)."""
        return self._scores if panels is self.panels else self._scores_in(self._dtype, panels)

    def _scores_in(self, dtype: torch.dtype, panels: KernelPanels) -> Tensor:
        """The same in another dtype."""
        matrix = panels.matrix
        if matrix is None:
            matrix = kernel_matrix(self.kernel, self._points, panels.nodes)
        # In vectors, too, which take too many nodes for all else to be in float64.
        weights = self.weights.to(torch.float64 if self.panels.is_wide else dtype)
        matrix = matrix.to(weights)
        if matrix.dim() == 2:
            scores = matrix.T @ weights.reshape(-1, weights.shape[-1]).T
        else:
            scores = (weights.unsqueeze(-2) @ matrix).reshape(-1, matrix.shape[-1]).T
        return scores.to(dtype).reshape(*panels.measure.shape, -1)

    @property
    def _mass(self) -> Tensor:
        """What the weights are too large by, (R,)."""
        raise NotImplementedError

    def _unnormalized_on(self, panels: KernelPanels) -> Tensor:
        """Weights (m, G, R) at the nodes of any panels, up to the mass."""
        raise NotImplementedError

    def _weights_on(self, panels: KernelPanels) -> Tensor:
        """Weights (m, G, R) at the nodes of any panels: their sum with g is E_p[g]."""
        return self._unnormalized_on(panels) / self._mass

    def _log_relative(self, scores: Tensor) -> Tensor:
        """log p relative to the base, of scores (*S, *batch)."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density; -inf off the support, with zero gradient."""
        if self._validate_args:
            self._validate_sample(value)
        locations = value if self.event_shape else value.unsqueeze(-1)
        base = self.panels.base.log_density(locations.detach()).to(self.weights.dtype)
        inside = torch.isfinite(base)
        lifted = inside.unsqueeze(-1) if self.event_shape else inside
        safe = torch.where(lifted, value, self._inner_location().to(value.dtype))
        log = self._log_relative(self._score_at(safe))
        slope = self._base_slope(locations, inside)
        return torch.where(inside, log + base + slope, -math.inf)

    def _base_slope(self, locations: Tensor, inside: Tensor) -> Tensor:
        """Zero, with the derivative of the base's log density in the location."""
        if not locations.requires_grad:
            return torch.zeros_like(inside, dtype=self.weights.dtype)
        inner = self._inner_location().reshape(-1).to(locations.dtype)
        safe = torch.where(inside.unsqueeze(-1), locations, inner)
        log = self.panels.base.log_density(safe)
        return (log - log.detach()).to(self.weights.dtype)

    def _inner_location(self) -> Tensor:
        """Somewhere in the base's support, (*event)."""
        return self._points.detach().reshape(-1, *self.event_shape)[0]

    # Integrals

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes (Q, *batch, *event) and weights (Q, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        The nodes are the same for every density. Weights next to an edge of the support are
        effective ones: right for smooth g, but they may be negative.

        Args:
            order: Panels are halved until there are at least this many nodes on each axis.

        Raises:
            ValueError: `order` below 1.
        """
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}")
        panels = self.panels.with_order(order)
        weights = self._weights_on(panels).to(self.weights.dtype)
        count = len(panels.nodes)
        nodes = panels.nodes.to(self.weights).reshape(count, *(1,) * len(self.batch_shape), -1)
        nodes = nodes.expand(count, *self.batch_shape, -1)
        weights = weights.reshape(count, *self.batch_shape)
        return nodes if self.event_shape else nodes.squeeze(-1), weights

    def _means(self, values: Tensor, panels: KernelPanels) -> Tensor:
        """Expectations (*batch, N) of functions with values (Q, N) at nodes, centred gradients."""
        weights = self._unnormalized_on(panels).reshape(len(panels.nodes), -1)
        means = _ratio(weights, values).to(self.weights.dtype)
        return means.reshape(*self.batch_shape, values.shape[1])

    def _values_of(self, psi: Basis, panels: KernelPanels) -> Tensor:
        nodes = panels.nodes if self.event_shape else panels.nodes.squeeze(-1)
        if self._dtype != self.weights.dtype:
            return psi.in_float64(nodes)
        values: Tensor = psi(nodes.to(self.weights))
        return values

    def _moment(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Expectation of a function from nodes (Q, D) to (Q, N)."""
        return self._means(function(self.panels.nodes.to(self._dtype)), self.panels)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event); a ValueError where the base's tails leave none."""
        require_moment(self, 1)
        found = self._moment(lambda t: t)
        return found if self.event_shape else found.squeeze(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of each component (*batch, *event)."""
        found = self.covariance_matrix.diagonal(dim1=-2, dim2=-1)
        return found if self.event_shape else found.squeeze(-1)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, D, D), also of a single number; a ValueError where there is none."""
        require_moment(self, 2)
        mean = self._moment(lambda t: t)
        nodes = self.panels.nodes.to(self._dtype)
        offset = nodes - mean.unsqueeze(-2)
        weights = self._weights_on(self.panels).reshape(len(nodes), -1).T
        weights = weights.reshape(*self.batch_shape, len(nodes), 1)
        return ((weights * offset).mT @ offset).to(self.weights.dtype)

    @property
    @torch.no_grad()
    def mode(self) -> Tensor:
        """Where the density is largest (*batch, *event), by search from the best node."""
        return highest_location(self)
def _ratio(weights, values):
    sums = weights.T @ torch.cat([values, values.new_ones(len(values), 1)], -1)
    return sums[:, :-1] / sums[:, -1:]
