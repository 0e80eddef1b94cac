r"""Dirichlet energies: the matrices of $\int \nabla V \cdot \nabla V$ for linear combinations V."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .interpolation import matrix
from .quadrature import MAKERS, Numbers, gauss_legendre, table

__all__ = ["PanelRule", "energy_scale", "gaussian_energy", "quadrature_energy"]

# Nodes of a panel: functions are taken for polynomials of degree 11 there.
_ORDER = 12


def energy_scale(box: Sequence[tuple[float, float]]) -> list[float]:
    """Return the factors a_d of an energy for each axis of a box, squared sides over the volume.

    They make the energy the mean over the box of squared slopes in units of the sides, which does
    not depend on the unit of locations.
    """
    sides = [high - low for low, high in box]
    return [side**2 / math.prod(sides) for side in sides]


def gaussian_energy(centers: Tensor, covariance: Tensor, scale: Tensor) -> Tensor:
    r"""Return $\sum_d a_d \int \partial_d \psi_i\, \partial_d \psi_j$ of normal densities, (N, N).

    With $\delta = \mu_i - \mu_j$ and $\Lambda = (\Sigma_i + \Sigma_j)^{-1}$ the integral is
    $[\Lambda_{dd} - (\Lambda \delta)_d^2]\, \mathcal N(\delta; 0, \Lambda^{-1})$.

    Args:
        centers: Shape (N, D).
        covariance: Shape (N, D, D); variances (N, 1), of round Gaussians; or 1 in place of N.
        scale: The factors $a_d$, shape (D,).
    """
    offset = centers.unsqueeze(1) - centers
    both = covariance.unsqueeze(1) + covariance
    if covariance.dim() == 2:
        precision, log_volume = 1 / both, 0.5 * centers.shape[-1] * both.log().squeeze(-1)
        solved = precision * offset
    else:
        factor = torch.linalg.cholesky_ex(both)[0]
        inverse = torch.cholesky_inverse(factor)
        precision = inverse.diagonal(dim1=-2, dim2=-1)
        log_volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        solved = (inverse @ offset.unsqueeze(-1)).squeeze(-1)
    log_constant = 0.5 * centers.shape[-1] * math.log(2 * math.pi)
    density = torch.exp(-0.5 * (solved * offset).sum(-1) - log_volume - log_constant)
    return ((precision - solved.square()) * scale).sum(-1) * density


def _slopes(order: int) -> Numbers:
    """Return the matrix from values at Gauss nodes to slopes of the polynomial there."""
    nodes = MAKERS["gauss"](order)[0]
    return matrix(nodes, nodes, derivative=1)


MAKERS["slopes"] = _slopes


class PanelRule:
    """Gauss nodes on the P panels between cuts, and the slopes of functions there.

    Args:
        cuts: Increasing locations (P + 1,), which may coincide.
        order: The number of nodes on each panel.

    Attributes:
        nodes: Shape (P * order,).
        weights: Weights of an integral, shape (P, order, 1).
    """

    def __init__(self, cuts: Tensor, order: int) -> None:
        y, weights = gauss_legendre(order, cuts)
        half = (cuts.diff() / 2).unsqueeze(-1)
        self.order = order
        self.nodes = (cuts[:-1].unsqueeze(-1) + half * (1 + y)).flatten()
        self.weights = (half * weights).unsqueeze(-1)
        # dy/dt of each panel (P, 1, 1), from y in [-1, 1]; 0 gives an empty panel no slopes.
        self._rate = torch.where(half > 0, 1 / half, 0).unsqueeze(-1)

    def slopes(self, values: Tensor) -> Tensor:
        """Return derivatives (P, order, n) from values (P, order, n) at the nodes."""
        return self._rate * (table("slopes", (self.order,), values) @ values)


def quadrature_energy(
    functions: Callable[[Tensor], Tensor],
    cuts: Sequence[Tensor],
    scale: Sequence[float],
    order: int = _ORDER,
) -> Tensor:
    """Return the matrix of `gaussian_energy` for other functions, between the first and last cuts.

    Args:
        functions: Maps locations (Q,), or (Q, D) on D axes, to values (Q, N).
        cuts: For each axis the increasing ends of panels on which functions are smooth.
        scale: The factor $a_d$ of each axis.
        order: Nodes on each panel, exact for polynomials of a lower degree.
    """
    rules = [PanelRule(ends, order) for ends in cuts]
    values = functions(torch.cartesian_prod(*(rule.nodes for rule in rules)))
    shape = [len(rule.nodes) for rule in rules]
    weights = torch.cartesian_prod(*(rule.weights.flatten() for rule in rules))
    weights = weights.reshape(len(values), -1).prod(-1).reshape(*shape, 1)
    grid = values.reshape(*shape, -1)
    energy = values.new_zeros(values.shape[-1], values.shape[-1])
    for axis, rule in enumerate(rules):
        # Nodes of this axis are rows, by panel; nodes of other axes and functions are columns.
        lines = grid.movedim(axis, 0)
        slopes = rule.slopes(lines.reshape(-1, rule.order, lines[0].numel()))
        slopes = slopes.reshape(lines.shape).movedim(0, axis)
        energy = energy + scale[axis] * (weights * slopes).flatten(0, -2).mT @ slopes.flatten(0, -2)
    return energy
