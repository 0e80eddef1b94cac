"""The penalized Fenchel-Young loss of kernel scores, and its minimum by Newton's method."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from ..distributions.kernel_mesh import KernelMesh
from ..kernels import kernel_matrix
from ..numerics.normalizer import initial_normalizer, newton_step, normalized_weights
from ..numerics.truncated_power import Power
from .features import Features, Statistics

__all__ = ["PEAKED", "Fit", "Objective"]

# The alpha below which densities are so much more peaked than their scores that panels which
# resolve these need not resolve them.
PEAKED = 1.2

# What part of the decrease that a step promises it must bring, and the shortest step.
_ARMIJO, _SHORTEST = 1e-4, 1e-8
# With how many coefficients the first steps are not Newton's, and how many these are at most.
_NEWTON, _LBFGS_STEPS = 2000, 200
# Newton steps that take a mass that is nearly 1 to rounding.
_LEVEL_STEPS = 2
# To what panels resolve narrow densities.
_TOLERANCE = 1e-6
# Of numbers, the nodes at least where edges of supports are not located.
_FINE = 512


class _Point(NamedTuple):
    """The loss at coefficients, its slope, and what its curvature is made of.

    Attributes:
        value: The loss.
        level: The normaliser.
        slope: Its derivatives (R,).
        mean: Means of the features under the density (R,).
        lowered: Weights of p^(2 - alpha) at the nodes that have any (q,).
        phi: The features there (q, R).
    """

    value: Tensor
    level: Tensor
    slope: Tensor
    mean: Tensor
    lowered: Tensor
    phi: Tensor

    def factor(self, penalty: float) -> Tensor:
        """Cholesky's factor of the curvature (R, R)."""
        sums = self.lowered @ self.phi
        curvature = (self.lowered.unsqueeze(-1) * self.phi).mT @ self.phi
        curvature -= torch.outer(sums, sums) / self.lowered.sum()
        curvature.diagonal().add_(penalty)
        found: Tensor = torch.linalg.cholesky(curvature)
        return found


class Fit(NamedTuple):
    """A minimum of the loss.

    Attributes:
        coefficients: (R,).
        loss: The loss without its penalty.
        criterion: An estimate of that loss for data that were not seen.
        level: The normaliser.
        steps: How many steps it took.
        decrease: What another step would have promised to take off.
        factor: Cholesky's factor of the curvature (R, R).
        center: Means of the features under p^(2 - alpha), normalised (R,).
    """

    coefficients: Tensor
    loss: float
    criterion: float
    level: float
    steps: int
    decrease: float
    factor: Tensor
    center: Tensor


@dataclass(frozen=True)
class Objective:
    r"""$\Omega^*_\alpha(f) - \bar f + \tfrac{\rho}{2} \|f\|^2$, convex in the coefficients of f.

    Attributes:
        features: The functions f is made of.
        panels: Where they are integrated.
        data: What is known of the data.
        alpha: Entropic index from 1 to 2.
        is_rough: Whether to sum over the nodes as if densities had no edges between them.
    """

    features: Features
    panels: KernelMesh
    data: Statistics
    alpha: float
    is_rough: bool = False

    def __str__(self) -> str:
        return f"alpha {self.alpha:g}, {self.features.kernel}"

    def roughly(self) -> "Objective":
        """The same but for edges, with more nodes of numbers, so that these matter less."""
        if self.alpha == 1:
            return self
        features, panels = self.features, self.panels
        if len(panels.axes) == 1:
            panels = panels.with_order(_FINE)
        if panels is not self.panels:
            features = features.on(panels.with_matrix_of(features.kernel, features.points))
        return replace(self, features=features, panels=panels, is_rough=True)

    def resolving(self, c: Tensor) -> "Objective":
        """The same on panels that resolve the density of coefficients (R,); itself if its own do.

        Beyond one dimension nothing is refined. No finer than losses are compared: large weights
        that cancel leave scores fewer digits than a density's own panels ask for at first.
        """
        features = self.features
        if self.alpha >= PEAKED or len(self.panels.axes) > 1:
            return self
        kernel, points = features.kernel, features.points
        weights = features.mixing @ c

        def scores(t: Tensor) -> Tensor:
            return weights.unsqueeze(0) @ kernel_matrix(kernel, points, t.unsqueeze(-1))

        own = replace(self.panels, tolerance=max(self.panels.tolerance, _TOLERANCE))
        panels = own.for_scores(scores, True, kernel, points)
        if panels is own:
            return self
        panels = panels.with_matrix_of(kernel, points)
        return replace(self, features=features.on(panels), panels=panels)

    def level(self, c: Tensor) -> float:
        """The normaliser at coefficients (R,)."""
        return float(self._at(c, 0.0).level)

    def _at(self, c: Tensor, penalty: float) -> _Point:
        phi, measure = self.features.on_nodes, self.panels.measure.unsqueeze(-1)
        eps = self.alpha - 1
        scores = (phi @ c).reshape(measure.shape)
        normalized = _at_nodes if self.is_rough else normalized_weights
        level, weights, lowered, *_ = normalized(scores, measure, eps)
        weights, lowered = weights.flatten(), lowered.flatten()
        # In the plane and in space most nodes are off the support.
        (on,) = torch.nonzero((weights != 0) | (lowered != 0), as_tuple=True)
        weights, lowered, phi = weights[on], lowered[on], phi[on]
        mean = weights @ phi
        # Omega* = A + (alpha - 1) Omega(p), and p^(alpha - 1) = 1 + (alpha - 1)(f - A).
        conjugate = (level.squeeze() + eps * (mean @ c)) / self.alpha
        value = conjugate - self.data.mean @ c + penalty / 2 * (c @ c)
        slope = mean - self.data.mean + penalty * c
        return _Point(value, level.squeeze(), slope, mean, lowered, phi)

    def minimum(self, start: Tensor, penalty: float, tol: float, max_iter: int) -> Fit:
        """From a start (R,), until a step promises to take off less than `tol`."""
        c = start if len(start) <= _NEWTON else self._approached(start, penalty, tol)
        at = self._at(c, penalty)
        for steps in range(max_iter + 1):
            factor = at.factor(penalty)
            step = -torch.cholesky_solve(at.slope.unsqueeze(-1), factor).squeeze(-1)
            decrease = -float(at.slope @ step) / 2
            if decrease < tol or steps == max_iter:
                break
            moved = self._moved(c, at, step, penalty)
            if moved is None:
                break
            c, at = moved
        loss = at.value - penalty / 2 * (c @ c)
        # Takeuchi's criterion: what leaving out each observation in turn adds, to first order.
        spread = self.data.spread(at.mean)
        extra = torch.cholesky_solve(spread, factor).trace() / self.data.size
        center = at.lowered @ at.phi / at.lowered.sum()
        found = (float(loss), float(loss + extra), float(at.level))
        return Fit(c, *found, steps, decrease, factor, center)

    def _approached(self, start: Tensor, penalty: float, tol: float) -> Tensor:
        """Coefficients near the minimum by L-BFGS, whose steps need no curvature."""

        def loss(c: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            at = self._at(torch.from_numpy(c), penalty)
            return float(at.value), at.slope.numpy()

        # By the penalty's curvature, what is left is at most the slope's square over twice that.
        close = (2 * penalty * tol / len(start)) ** 0.5
        options = {"gtol": close, "ftol": 0.0, "maxiter": _LBFGS_STEPS}
        found = minimize(loss, start.numpy(), method="L-BFGS-B", jac=True, options=options)
        return torch.from_numpy(found.x)

    def _moved(
        self, c: Tensor, at: _Point, step: Tensor, penalty: float
    ) -> tuple[Tensor, _Point] | None:
        """Along a step, halved until it brings what it promises; None where rounding hides that."""
        promised, size = float(at.slope @ step), 1.0
        while size >= _SHORTEST:
            found = self._at(c + size * step, penalty)
            if found.value <= at.value + _ARMIJO * size * promised:
                return c + size * step, found
            size /= 2
        return None


def _at_nodes(scores: Tensor, measure: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`normalized_weights` of the rule alone: the level (1,), weights of p and of p^(2 - alpha)."""
    of, top = Power(eps), scores.amax()
    x = scores - top
    level = initial_normalizer(x, measure, of)
    for _ in range(_LEVEL_STEPS):
        power, lowered = (measure * v for v in of.pair(x - level))
        level = level + newton_step(power.sum(), lowered.sum(), eps)
    power, lowered = (measure * v for v in of.pair(x - level))
    return level + top, power, lowered
