"""The penalized Fenchel-Young loss of kernel scores, and its minimum by Newton's method."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..distributions.kernel_panels import KernelPanels
from ..numerics.normalizer import normalized_weights
from .features import Features, Statistics

__all__ = ["Fit", "Objective"]

# What part of the decrease that a step promises it must bring, and the shortest step.
_ARMIJO, _SHORTEST = 1e-4, 1e-8


class _Point(NamedTuple):
    """The loss at coefficients, its slope and its curvature."""

    value: Tensor
    slope: Tensor
    curvature: Tensor
    mean: Tensor


class Fit(NamedTuple):
    """A minimum of the loss.

    Attributes:
        coefficients: (R,).
        loss: The loss without its penalty.
        criterion: An estimate of that loss for data that were not seen.
        steps: How many steps it took.
        decrease: What another step would have promised to take off.
    """

    coefficients: Tensor
    loss: float
    criterion: float
    steps: int
    decrease: float


@dataclass(frozen=True)
class Objective:
    r"""$\Omega^*_\alpha(f) - \bar f + \tfrac{\rho}{2} \|f\|^2$, convex in the coefficients of f.

    Attributes:
        features: The functions f is made of.
        panels: Where they are integrated.
        data: What is known of the data.
        alpha: Entropic index from 1 to 2.
    """

    features: Features
    panels: KernelPanels
    data: Statistics
    alpha: float

    def _at(self, c: Tensor, penalty: float) -> _Point:
        phi, measure = self.features.on_nodes, self.panels.measure.unsqueeze(-1)
        eps = self.alpha - 1
        scores = (phi @ c).reshape(measure.shape)
        level, weights, lowered, _ = normalized_weights(scores, measure, eps)
        weights, lowered = weights.flatten(), lowered.flatten()
        mean = weights @ phi
        # Omega* = A + (alpha - 1) Omega(p), and p^(alpha - 1) = 1 + (alpha - 1)(f - A).
        conjugate = (level.squeeze() + eps * (mean @ c)) / self.alpha
        sums = lowered @ phi
        curvature = (lowered.unsqueeze(-1) * phi).mT @ phi - torch.outer(sums, sums) / lowered.sum()
        ridge = penalty * torch.eye(len(c), dtype=c.dtype)
        value = conjugate - self.data.mean @ c + penalty / 2 * (c @ c)
        return _Point(value, mean - self.data.mean + penalty * c, curvature + ridge, mean)

    def minimum(self, start: Tensor, penalty: float, tol: float, max_iter: int) -> Fit:
        """From a start (R,), until a step promises to take off less than `tol`."""
        c, at = start, self._at(start, penalty)
        for steps in range(max_iter + 1):
            factor = torch.linalg.cholesky(at.curvature)
            step = -torch.cholesky_solve(at.slope.unsqueeze(-1), factor).squeeze(-1)
            decrease = -float(at.slope @ step) / 2
            if decrease < tol or steps == max_iter:
                break
            c, at = self._moved(c, at, step, penalty)
        loss = at.value - penalty / 2 * (c @ c)
        # Takeuchi's criterion: what leaving out each observation in turn adds, to first order.
        spread = self.data.spread(at.mean)
        extra = torch.cholesky_solve(spread, factor).trace() / self.data.size
        return Fit(c, float(loss), float(loss + extra), steps, decrease)

    def _moved(self, c: Tensor, at: _Point, step: Tensor, penalty: float) -> tuple[Tensor, _Point]:
        """Along a step, halved until it brings what it promises."""
        promised, size = float(at.slope @ step), 1.0
        while True:
            found = self._at(c + size * step, penalty)
            if found.value <= at.value + _ARMIJO * size * promised or size < _SHORTEST:
                return c + size * step, found
            size /= 2
