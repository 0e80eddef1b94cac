"""The penalized Fenchel-Young loss of kernel scores, and its minimum by Newton's method."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..distributions.kernel_mesh import KernelMesh
from ..feature_maps import KernelFeatures
from ..kernels import Kernel, kernel_matrix
from ..numerics.chebyshev_mesh import ChebyshevMesh
from ..numerics.normalizer import initial_normalizer, newton_step, normalized_weights
from ..numerics.truncated_power import Power
from .data import sum_over

if TYPE_CHECKING:  # some builds of torch lack process groups
    from torch.distributed import ProcessGroup

__all__ = ["PEAKED", "Features", "Fit", "Objective", "Statistics", "whitening"]

# Below this alpha the mesh of a fit must resolve the density, not only its score.
PEAKED = 1.2

# Eigenvalues of the kernel matrix below this share of the largest are taken for rounding.
_RANK = 1e-10
# Rows of data whose kernel values are in memory at a time.
_CHUNK = 2**13
# Nodes in one product of a Hessian, so few that their features fit into a processor's cache.
_NODES = 2**10
# Armijo's constant, and the shortest step along a direction. The secant's root replaces a step
# that fails within these shares of it.
_ARMIJO, _SHORTEST, _SHRINK = 1e-4, 1e-8, (0.05, 0.5)
# Newton steps on a normaliser that is nearly right.
_NORMALIZER_STEPS = 2
# The least number of nodes for sums that ignore edges of the support, in one dimension.
_FINE = 512
# Error of the mass on a subinterval, relative to the whole mass, above which it is halved: of a
# density without edges, and with edges.
_SMOOTH_ERROR, _EDGE_ERROR = 1e-7, 1e-2
# Rounds of refinement and fit, halvings in one round, and nodes beyond which none is added.
_MOST_REFINED, _HALVINGS, _MOST_NODES = 12, 12, 2**13


def whitening(kernel: Kernel, points: Tensor) -> Tensor:
    """Return the matrix (I, R) from coefficients of orthonormal functions to kernel weights."""
    values, vectors = torch.linalg.eigh(kernel_matrix(kernel, points, points))
    keep = values > _RANK * values[-1]
    mixing: Tensor = vectors[:, keep] / values[keep].sqrt()
    return mixing


@dataclass(frozen=True)
class Features:
    r"""Orthonormal functions of the space that kernels at inducing points span.

    With $K = Q \Lambda Q^\top$ they are $\phi = \Lambda^{-1/2} Q^\top k(\cdot, t_i)$: a score
    $c^\top \phi$ has the squared norm $c^\top c$, and penalties are well-conditioned.
    """

    kernel: Kernel
    points: Tensor  # Inducing points (I, D)
    mixing: Tensor  # Matrix from coefficients to kernel weights, (I, R)
    on_nodes: Tensor  # Values at the nodes of a mesh (Q, R)

    @classmethod
    def of(cls, kernel: Kernel, points: Tensor, mesh: KernelMesh) -> "Features":
        """Whiten a kernel at inducing points (I, D) and evaluate it at the nodes of a mesh."""
        mixing = whitening(kernel, points)
        return cls(kernel, points, mixing, mixing[:0]).on(mesh)

    def on(self, mesh: KernelMesh) -> "Features":
        """Evaluate the functions at the nodes of another mesh."""
        matrix = mesh.matrix
        if matrix is None:
            matrix = kernel_matrix(self.kernel, self.points, mesh.nodes).detach()
        return replace(self, on_nodes=matrix.T @ self.mixing)

    def at(self, x: Tensor) -> Tensor:
        """Evaluate the functions at locations (n, D): (n, R)."""
        return kernel_matrix(self.kernel, self.points, x).T @ self.mixing


@dataclass(frozen=True)
class Statistics:
    """Sums over weighted data that determine a fit. Sums over parts of the data add up."""

    weight: Tensor  # Sum of the weights
    squares: Tensor  # Sum of their squares
    first: Tensor  # Weighted sum of the features (R,)
    second: Tensor  # Weighted sum of their outer products (R, R)

    @classmethod
    def of(
        cls, features: Features, x: Tensor, weight: Tensor, group: "ProcessGroup | None" = None
    ) -> "Statistics":
        """Sum over locations (n, D) with weights (n,), in chunks, and over all ranks of a group."""
        size = features.mixing.shape[1]
        first, second = x.new_zeros(size), x.new_zeros(size, size)
        for rows, share in zip(x.split(_CHUNK), weight.split(_CHUNK), strict=True):
            phi = features.at(rows)
            first = first + share @ phi
            second = second + (share.unsqueeze(-1) * phi).mT @ phi
        parts = weight.sum(), weight.square().sum(), first, second
        return cls(*[sum_over(part, group) for part in parts])

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.weight + other.weight,
            self.squares + other.squares,
            self.first + other.first,
            self.second + other.second,
        )

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the features (R,)."""
        return self.first / self.weight

    @property
    def size(self) -> Tensor:
        """Kish's effective number of observations."""
        return self.weight.square() / self.squares

    def second_moment(self, center: Tensor) -> Tensor:
        """Mean outer product of deviations from a center (R,): (R, R)."""
        d = self.mean - center
        covariance = self.second / self.weight - torch.outer(self.mean, self.mean)
        return covariance + torch.outer(d, d)


class _Point(NamedTuple):
    """The loss at coefficients, and what its derivatives need."""

    value: Tensor  # The loss
    normalizer: Tensor  # The normaliser A
    slope: Tensor  # Gradient (R,)
    mean: Tensor  # Means of the features under the density (R,)
    escort: Tensor  # Weights of p^(2 - alpha) at the nodes (Q,)


class Fit(NamedTuple):
    """A minimum of the loss."""

    coefficients: Tensor  # (R,)
    loss: float  # The loss without its penalty
    criterion: float  # Takeuchi's estimate of that loss for new data
    normalizer: float  # The normaliser A
    steps: int  # Number of Newton steps
    decrease: float  # The decrease that another step promises
    factor: Tensor  # Cholesky factor of the curvature (R, R)
    center: Tensor  # Means of the features under the escort p^(2 - alpha), normalised (R,)


@dataclass(frozen=True)
class Objective:
    r"""$\Omega^*_\alpha(f) - \bar f + \tfrac{\rho}{2} \|f\|^2$, convex in the coefficients of f."""

    features: Features  # The functions that span the scores
    mesh: KernelMesh  # The mesh on which densities are integrated
    data: Statistics  # Sums over the data
    alpha: float  # Entropic index from 1 to 2
    ignores_edges: bool = False  # Whether to sum over nodes without locating the support's edges

    def __str__(self) -> str:
        return f"alpha {self.alpha:g}, {self.features.kernel}"

    def ignoring_edges(self) -> "Objective":
        """The same by sums over nodes, for a quick search: more in one dimension, else fewer."""
        axes = self.mesh.axes
        if len(axes) > 1:
            # Gauss's rule integrates polynomials of twice the degree that it interpolates.
            coarse = [axis._replace(order=axis.order // 2) for axis in axes]
            mesh = KernelMesh.of_axes(coarse, self.mesh.base, self.mesh.tolerance)
        elif self.alpha == 1:
            return self
        else:
            mesh = self.mesh.with_order(_FINE)
        return replace(self, ignores_edges=self.alpha > 1)._on(mesh)

    def _on(self, mesh: KernelMesh) -> "Objective":
        if mesh is self.mesh:
            return self
        features = KernelFeatures(self.features.points, self.features.kernel)
        mesh = mesh.with_matrix_of(features)
        return replace(self, features=self.features.on(mesh), mesh=mesh)

    def resolved_minimum(
        self, start: Tensor, penalty: float, tol: float, max_iter: int
    ) -> tuple["Objective", Fit]:
        """Minimise on a mesh that resolves the density; return the objective on that mesh, too.

        Between nodes that are too far apart the score could rise around observations unnoticed by
        the integral. The mesh is therefore refined at the density's peaks and the fit repeated.
        """
        problem = self
        for _ in range(_MOST_REFINED):
            fit = problem.minimum(start, penalty, tol, max_iter)
            refined = problem._refined(fit)
            if refined is problem:
                return problem, fit
            problem, start = refined, fit.coefficients
        if self.ignores_edges:
            return problem, fit
        raise ValueError(
            "penalty must be larger, or bandwidth or alpha, for nodes to resolve the density, got "
            f"penalty {penalty:g}, {self}"
        )

    def _refined(self, fit: Fit) -> "Objective":
        """Return the problem with subintervals halved where they miss mass; itself if none does."""
        if len(self.mesh.axes) > 1 or not (self.ignores_edges or self.alpha < PEAKED):
            return self
        limit = _SMOOTH_ERROR if self.alpha < PEAKED else _EDGE_ERROR
        kernel, points, base = self.features.kernel, self.features.points, self.mesh.base
        weights, power = self.features.mixing @ fit.coefficients, Power(self.alpha - 1)

        def masses(axis: ChebyshevMesh) -> tuple[Tensor, Tensor]:
            """Masses on subintervals (P,), and the rounding error of log densities there."""
            t, measure = axis.rule()
            f = (weights @ kernel_matrix(kernel, points, t.reshape(-1, 1))).reshape(t.shape)
            density = power.at(f - fit.normalizer) * base.log_factor(0, t).exp()
            steep = (f.diff() / t.diff()).abs().amax(-1) * t.abs().amax()
            rounding = torch.finfo(t.dtype).eps * (steep + f.abs().amax(-1))
            return (measure * density).sum(-1), rounding

        axis = self.mesh.axes[0]
        for _ in range(_HALVINGS):
            coarse, rounding = masses(axis)
            fine = masses(axis.halved())[0].unflatten(-1, (-1, 2)).sum(-1)
            wrong = (coarse - fine).abs() > limit * fine.sum() + rounding * fine
            if not wrong.any() or axis.size > _MOST_NODES:
                break
            axis = axis.cut(((axis.breaks[:-1] + axis.breaks[1:]) / 2)[wrong])
        if axis is self.mesh.axes[0]:
            return self
        return self._on(KernelMesh.of_axes([axis], base, self.mesh.tolerance))

    def _at(self, c: Tensor, penalty: float) -> _Point:
        phi, measure = self.features.on_nodes, self.mesh.measure.unsqueeze(-1)
        eps = self.alpha - 1
        scores = (phi @ c).reshape(measure.shape)
        normalized = _sum_over_nodes if self.ignores_edges else normalized_weights
        normalizer, weights, escort, *_ = normalized(scores, measure, eps)
        mean = weights.flatten() @ phi
        # Omega* = A + (alpha - 1) Omega(p), and p^(alpha - 1) = 1 + (alpha - 1)(f - A).
        conjugate = (normalizer.squeeze() + eps * (mean @ c)) / self.alpha
        value = conjugate - self.data.mean @ c + penalty / 2 * (c @ c)
        slope = mean - self.data.mean + penalty * c
        return _Point(value, normalizer.squeeze(), slope, mean, escort.flatten())

    def _curvature(self, at: _Point, penalty: float) -> tuple[Tensor, Tensor]:
        """Cholesky factor of the Hessian (R, R), and the escort's means of the features (R,)."""
        phi, mass = self.features.on_nodes, at.escort.sum()
        center = at.escort @ phi / mass
        hessian = -mass * torch.outer(center, center)
        for escort, rows in zip(at.escort.split(_NODES), phi.split(_NODES), strict=True):
            # Most nodes are off the support in two and three dimensions.
            (on,) = torch.nonzero(escort, as_tuple=True)
            some = rows[on]
            hessian.addmm_((escort[on].unsqueeze(-1) * some).mT, some)
        hessian.diagonal().add_(penalty)
        if (at.escort < 0).any() and torch.linalg.cholesky_ex(hessian).info:
            # Weights of subintervals with an edge may be negative.
            return self._curvature(at._replace(escort=at.escort.clamp_min(0)), penalty)
        return torch.linalg.cholesky(hessian), center

    def minimum(self, start: Tensor, penalty: float, tol: float, max_iter: int) -> Fit:
        """Minimise from a start (R,) until a step promises a decrease below `tol`."""
        c, at = start, self._at(start, penalty)
        for steps in range(max_iter + 1):
            factor, center = self._curvature(at, penalty)
            step = -torch.cholesky_solve(at.slope.unsqueeze(-1), factor).squeeze(-1)
            decrease = -float(at.slope @ step) / 2
            if decrease < tol or steps == max_iter:
                break
            moved = self._moved(c, at, step, penalty)
            if moved is None:
                break
            c, at = moved
        loss = float(at.value - penalty / 2 * (c @ c))
        # Takeuchi's criterion adds the effect of leaving out each observation, to first order.
        spread = self.data.second_moment(at.mean)
        optimism = torch.cholesky_solve(spread, factor).trace() / self.data.size
        criterion, normalizer = loss + float(optimism), float(at.normalizer)
        return Fit(c, loss, criterion, normalizer, steps, decrease, factor, center)

    def _moved(
        self, c: Tensor, at: _Point, step: Tensor, penalty: float
    ) -> tuple[Tensor, _Point] | None:
        """Step along a direction by Armijo's rule; None where rounding hides a decrease."""
        promised, size = float(at.slope @ step), 1.0
        while size >= _SHORTEST:
            moved = self._at(c + size * step, penalty)
            if moved.value <= at.value + _ARMIJO * size * promised:
                return c + size * step, moved
            # The loss is convex, so the derivative along the step increases: its secant's root.
            share = promised / min(promised - float(moved.slope @ step), promised)
            size *= min(max(share, _SHRINK[0]), _SHRINK[1])
        return None


def _sum_over_nodes(scores: Tensor, measure: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normaliser (1,), weights of p and of p^(2 - alpha), by the nodes alone."""
    power, top = Power(eps), scores.amax()
    x = scores - top
    normalizer = initial_normalizer(x, measure, power)
    for _ in range(_NORMALIZER_STEPS):
        weights, escort = (measure * v for v in power.pair(x - normalizer))
        normalizer = normalizer + newton_step(weights.sum(), escort.sum(), eps)
    weights, escort = (measure * v for v in power.pair(x - normalizer))
    return normalizer + top, weights, escort
