"""The penalized Fenchel-Young loss of kernel scores, and its minimum by Newton's method."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from .._feature_maps import Kernel, kernel_matrix
from .._numerics.chebyshev_mesh import ChebyshevMesh
from .._numerics.deformed import Power
from .._numerics.normalizer import lower_bound, newton_from_below
from ..distributions import KernelDistribution
from ._data import chunks, merged

__all__ = ["Cells", "Evaluation", "Fit", "Minimum", "Objective", "minimize", "whitening"]

# Armijo's constant, the least and the greatest factor by which a step along a direction is
# shortened, and the shortest step.
_ARMIJO, _LEAST_FACTOR, _GREATEST_FACTOR, _SHORTEST = 1e-4, 0.1, 0.5, 1e-12
# Rounding may add this fraction of a value to it.
_ROUNDING = 1e-15
# Eigenvalues of the kernel matrix below this fraction of the largest are taken for rounding.
_RANK = 1e-10
# Nodes in one product of a Hessian, so few that their features fit into a processor's cache.
_NODES = 2**10
# In one dimension densities have so many times the nodes of their kernels, up to a maximum: their
# edges are steeper than any kernel.
_FINE, _MOST_NODES = 8, 2**13
# Newton steps on the normalizer end when one is so small that its square is rounding.
_MOST_STEPS, _NEAR = 50, 1e-8


class Evaluation(NamedTuple):
    """A function at a point x (R,)."""

    value: float
    slope: Tensor  # Gradient (R,)
    hessian: Callable[[], Tensor]  # Returns the Hessian (R, R)


class Minimum(NamedTuple):
    """The end of a minimization."""

    x: Tensor  # (R,)
    value: float
    factor: Tensor  # Cholesky factor of the Hessian (R, R)
    steps: int  # Number of Newton steps
    decrease: float  # Decrease that another step promises, relative to values above 1


def minimize(
    evaluate: Callable[[Tensor], Evaluation], start: Tensor, tol: float, max_iter: int
) -> Minimum:
    """Minimize a convex function by damped Newton steps.

    They end when a step promises a decrease below `tol`, relative to values above 1: half the
    squared Newton decrement, which is the whole decrease of a quadratic function.

    Args:
        evaluate: The function at points x (R,): inf, with any slope, off its domain.
        start: A point (R,) at which the function is finite.
        tol: The least decrease for which a step is taken.
        max_iter: The greatest number of steps.

    References:
        Boyd and Vandenberghe (2004), Convex Optimization, section 9.5.
    """
    x, at = start, evaluate(start)
    for steps in range(max_iter + 1):
        factor = torch.linalg.cholesky(at.hessian())
        # The decrease g' H^-1 g / 2 of the quadratic model is half the squared decrement, and minus
        # half the slope g' step along the step.
        step = -torch.cholesky_solve(at.slope.unsqueeze(-1), factor).squeeze(-1)
        decrease, size = -float(at.slope @ step) / 2, 1.0
        if decrease < tol * max(1.0, abs(at.value)) or steps == max_iter:
            break
        moved = evaluate(x + step)
        # The step is shortened to `size` times its length until the function falls by a fraction
        # of 2 size decrease, by which a linear function with this slope would fall.
        bound = at.value + _ROUNDING * abs(at.value)
        while not moved.value <= bound - 2 * _ARMIJO * size * decrease and size > _SHORTEST:
            size *= _shortening(moved.value - at.value, 2 * size * decrease)
            moved = evaluate(x + size * step)
        if size <= _SHORTEST:  # rounding hides a decrease
            break
        x, at = x + size * step, moved
    return Minimum(x, at.value, factor, steps, decrease / max(1.0, abs(at.value)))


def _shortening(rise: float, promised: float) -> float:
    """Return the factor by which a step is shortened: to the minimum of a parabola, within limits.

    Args:
        rise: The increase of the function over the step.
        promised: Minus the slope along the step, the decrease that a linear function would have.
    """
    if not rise < math.inf:
        return _GREATEST_FACTOR
    # The parabola -promised s + (rise + promised) s^2 is 0 at 0, with that slope, and rise at 1.
    return min(max(promised / (2 * (rise + promised)), _LEAST_FACTOR), _GREATEST_FACTOR)


def whitening(kernel: Kernel, points: Tensor) -> Tensor:
    """Return the matrix W (I, R) from coefficients of orthonormal functions to kernel weights.

    With K = Q L Q' at the inducing points (I, D) it is Q L^(-1/2), without the columns of
    eigenvalues that are rounding.
    """
    # Functions with kernel weights W have the inner products W' K W, here the identity.
    values, vectors = torch.linalg.eigh(kernel_matrix(kernel, points, points))
    keep = values > _RANK * values[-1]
    return vectors[:, keep] / values[keep].sqrt()


@dataclass(frozen=True)
class Cells:
    """Cells of the unit of rounding, in which rounded observations may have been anywhere."""

    unit: Tensor  # Of each column (D,), 0 if it is not rounded
    limits: Tensor  # Bounds of each column (D, 2), at which cells end; infinite if there are none

    def ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper ends (n, D) of the cells of observations (n, D)."""
        low, high = self.limits.T
        return torch.maximum(x - self.unit / 2, low), torch.minimum(x + self.unit / 2, high)

    def mean(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the means (n, ...) of smooth functions over the cells of observations (n, D).

        Gauss's rule has four nodes for one column, and two for each of several. Along columns that
        are not rounded its only node is the observation.

        Args:
            f: From locations (n, D) to values (n, ...).
            x: Observations (n, D).
        """
        low, high = self.ends(x)
        nodes, weights = leggauss(4 if len(self.unit) == 1 else 2)
        rule = list(zip(nodes.tolist(), (weights / 2).tolist(), strict=True))
        total = x.new_zeros(())
        for pairs in itertools.product(*(rule if unit else [(0.0, 1.0)] for unit in self.unit)):
            # A node of the product rule in [-1, 1]^D, and the weights whose product it has.
            position, factors = zip(*pairs, strict=True)
            nodes_in_cells = (low + high) / 2 + (high - low) / 2 * x.new_tensor(position)
            total = total + math.prod(factors) * f(nodes_in_cells)
        return total


@dataclass(frozen=True)
class Objective:
    r"""$\Omega^*_\alpha(f) - \bar f + \tfrac{\rho}{2} \|f\|^2$, convex in the coefficients of f.

    The score $f = c^\top \phi$ is a sum of orthonormal functions of the space that kernels at
    inducing points span: with $K = Q \Lambda Q^\top$ they are
    $\phi = \Lambda^{-1/2} Q^\top k(\cdot, t_i)$. So $\|f\|^2 = c^\top c$, and penalties are
    well-conditioned. Densities are integrated by sums over nodes, without locating the edges of
    their supports. The loss depends on the data by sums only, which are taken in chunks. In one
    dimension these are sums over the nodes, between which the functions are polynomials.
    """

    alpha: float  # Entropic index from 1 to 2
    kernel: Kernel
    points: Tensor  # Inducing points (I, D)
    mixing: Tensor  # Matrix from coefficients to kernel weights, (I, R)
    axis: ChebyshevMesh | None  # In one dimension: intervals on which functions are polynomials
    measure: Tensor  # Weights of nodes (Q,)
    on_nodes: Tensor  # The functions at the nodes (Q, R)
    finer: Tensor  # Weights of twice as many nodes along each axis (Q',)
    on_finer: Tensor  # The functions at these, float32, to show if the nodes are enough (Q', R)
    cells: "Cells"  # Of rounded observations
    weight: Tensor  # Sum of the weights of the data
    squares: Tensor  # Sum of their squares
    first: Tensor  # Weighted sum of the functions at the data (R,)
    second: Tensor  # Weighted sum of their outer products (R, R)

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        alpha: float,
        kernel: Kernel,
        points: Tensor,
        p: KernelDistribution,
        cells: "Cells",
        x: Tensor,
        weight: Tensor,
    ) -> "Objective":
        """Evaluate the functions at the nodes of a density, and at data.

        Args:
            alpha: Entropic index.
            kernel: The kernel.
            points: Inducing points (I, D).
            p: A density with this kernel and these points, whose nodes resolve the kernel.
            cells: Of rounded observations.
            x: Observations (n, D).
            weight: Their weights (n,).
        """
        mesh = p.mesh
        if len(mesh.axes) == 1:
            mesh = mesh.with_least_nodes(min(_FINE * mesh.axes[0].size, _MOST_NODES))
            finer = mesh.with_least_nodes(2 * mesh.axes[0].size)
        else:
            # Gauss's rule integrates polynomials of twice the degree that it interpolates.
            coarse = [axis._replace(order=axis.order // 2) for axis in mesh.axes]
            mesh, finer = mesh.of_axes(coarse, mesh.base, mesh.tolerance), mesh
        mixing = whitening(kernel, points)

        def on(nodes: Tensor, dtype: torch.dtype) -> Tensor:
            """Return the functions at nodes (Q, D): (Q, R)."""
            features = torch.empty(len(nodes), mixing.shape[1], dtype=dtype)
            for t, rows in chunks(nodes, features):
                rows.copy_(kernel_matrix(kernel, points, t).T @ mixing)
            return features

        total, squares = torch.stack([weight.sum(), weight @ weight])
        later = mixing.new_zeros(0)  # In place of the sums over data, which `sums_over` returns
        without_data = cls(
            alpha,
            kernel,
            points,
            mixing,
            mesh.axes[0] if len(mesh.axes) == 1 else None,
            mesh.measure.flatten(),
            on(mesh.nodes, torch.float64),
            finer.measure.flatten(),
            on(finer.nodes, torch.float32),
            cells,
            total,
            squares,
            later,
            later,
        )
        first, second = without_data.sums_over(x, weight)
        return replace(without_data, first=first, second=second)

    def sums_over(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return weighted sums over data: of the functions (R,), and of their products (R, R).

        In one dimension the data become weights of the nodes between which the functions are
        polynomials. Functions are evaluated at rounded data, vectors and data beyond the nodes.

        Args:
            x: Observations (n, D).
            weight: Their weights (n,).
        """
        nodal = torch.zeros_like(self.measure)  # Weights of nodes for sums over the data
        first = nodal.new_zeros(self.on_nodes.shape[1])
        second = torch.outer(first, first)  # Zeros (R, R)
        if self.cells.unit.all():
            x, weight = merged(x, weight)
        for rows, w in chunks(x, weight):
            if self.axis is not None and not self.cells.unit.any():
                near = ((self.axis.breaks[0] <= rows) & (rows <= self.axis.breaks[-1])).squeeze(-1)
                # A polynomial at x is a sum of its values at the nodes, with these coefficients. On
                # so many nodes that holds for products of two functions, too.
                cell, coefficients = self.axis.shares(rows[near, 0])
                masses = (w[near].unsqueeze(-1) * coefficients).T
                # Through a view of `nodal`: nodes of a cell by cells.
                nodal.reshape(self.axis.order, -1).index_add_(1, cell, masses)
                rows, w = rows[~near], w[~near]
            if len(rows):
                phi = self.cells.mean(self.features, rows)
                first = first + w @ phi
                second = second + (w.unsqueeze(-1) * phi).mT @ phi
        first = first + nodal @ self.on_nodes
        return first, second + (nodal.unsqueeze(-1) * self.on_nodes).mT @ self.on_nodes

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the functions at the data (R,)."""
        return self.first / self.weight

    @property
    def observations(self) -> Tensor:
        """Kish's effective number of observations."""
        return self.weight.square() / self.squares

    def features(self, x: Tensor) -> Tensor:
        """Evaluate the functions at locations (n, D): (n, R)."""
        return kernel_matrix(self.kernel, self.points, x).T @ self.mixing

    def _normalized(self, c: Tensor, tangent: "Tangent | None" = None) -> "Normalized":
        """Return the density of coefficients c (R,) at the nodes, with its normalizer.

        A tangent of the normalizer at other coefficients gives a lower bound to start from.
        """
        scores, eps = self.on_nodes @ c, self.alpha - 1
        power, top = Power(eps), scores.amax()
        # From here on scores and the level are relative to the top: A is level + top.
        relative, measure = scores - top, self.measure

        def sums(level: Tensor) -> tuple[Tensor, Tensor]:
            """Return the mass, and minus its derivative in the level."""
            mass, rate = (measure @ v for v in power.pair(relative - level))
            return mass, rate

        if eps == 0:
            level = torch.logsumexp(relative + measure.log(), 0)
        else:
            if tangent is None:
                # Each node as a subinterval of its own, of one density: (1, Q, 1).
                low = lower_bound(relative.reshape(1, -1, 1), measure.reshape(1, -1, 1), eps)
            else:  # A is convex, so that its tangent is below.
                low = (tangent.level + tangent.center @ (c - tangent.c) - top).reshape(1)
            level = newton_from_below(sums, low, eps, _MOST_STEPS, _NEAR, readable=True)
        # The pair is the density p and its escort p^(2 - alpha), the derivative of p in the score.
        weights, escort = (measure * v for v in power.pair(relative - level))
        # Differentiating the mass 1 gives the gradient of A: the mean under p^(2 - alpha).
        center = escort @ self.on_nodes / escort.sum()
        return Normalized(Tangent(c, level + top, center), weights, escort)

    def evaluate(
        self, c: Tensor, penalty: float, tangent: "Tangent | None" = None
    ) -> tuple[Evaluation, "Tangent"]:
        """Evaluate the penalized loss at coefficients c (R,), and the tangent of the normalizer.

        A tangent at other coefficients saves steps of the search for the normalizer.
        """
        density = self._normalized(c, tangent)
        escort, center = density.escort, density.tangent.center
        mean = density.weights @ self.on_nodes
        # Omega* = A + (alpha - 1) Omega(p), with Omega(p) = (E_p[f] - A) / alpha, as follows from
        # p^(alpha - 1) = 1 + (alpha - 1)(f - A).
        conjugate = (density.tangent.level + (self.alpha - 1) * (mean @ c)) / self.alpha
        value = conjugate - self.mean @ c + penalty / 2 * (c @ c)

        def hessian() -> Tensor:
            """Return the Hessian (R, R) of the penalized loss."""
            # The covariance of the functions under p^(2 - alpha), times the mass of that.
            matrix = torch.outer(center, -center * escort.sum())
            for w, phi in zip(escort.split(_NODES), self.on_nodes.split(_NODES), strict=True):
                # Most nodes are off the support in two and three dimensions.
                (on,) = torch.nonzero(w, as_tuple=True)
                phi = phi[on]
                matrix.addmm_((w[on].unsqueeze(-1) * phi).mT, phi)
            matrix.diagonal().add_(penalty)
            return matrix

        return Evaluation(float(value), mean - self.mean + penalty * c, hessian), density.tangent

    def minimum(self, start: Tensor, penalty: float, tol: float, max_iter: int) -> "Fit":
        """Return the minimum of the penalized loss, and estimates of its loss for new data.

        Args:
            start: Coefficients (R,).
            penalty: The factor of half the squared norm.
            tol: As for `minimize`.
            max_iter: As for `minimize`.
        """
        tangent: Tangent | None = None  # Of the last evaluation, from which the next one starts

        def evaluate(c: Tensor) -> Evaluation:
            nonlocal tangent
            at, tangent = self.evaluate(c, penalty, tangent)
            return at

        minimum = minimize(evaluate, start, tol, max_iter)
        (_, normalizer, center), weights, _ = self._normalized(minimum.x)
        loss = minimum.value - penalty / 2 * float(minimum.x @ minimum.x)
        # Takeuchi's criterion adds the effect of leaving out each observation, to first order: the
        # trace of H^-1 J / n, with the Hessian H and the mean J of g g', where the loss of one
        # observation has the gradient g = E_p[phi] - phi(x).
        mean_gradient = weights @ self.on_nodes - self.mean
        covariance = self.second / self.weight - torch.outer(self.mean, self.mean)
        spread = (covariance + torch.outer(mean_gradient, mean_gradient)) / self.observations
        optimism = float(torch.cholesky_solve(spread, minimum.factor).trace())
        scores = (self.on_finer @ minimum.x.float()).double()
        p = Power(self.alpha - 1).at(scores - normalizer)
        error = abs(float(self.finer @ p) - 1)
        return Fit(self, penalty, minimum, loss, loss + optimism, error, center)


class Tangent(NamedTuple):
    """The normalizer A at coefficients, and its gradient."""

    c: Tensor  # (R,)
    level: Tensor  # A, one number
    center: Tensor  # Means of the functions under the escort p^(2 - alpha), normalized (R,)


class Normalized(NamedTuple):
    """A density at the nodes."""

    tangent: Tangent
    weights: Tensor  # Of p (Q,)
    escort: Tensor  # Of p^(2 - alpha) (Q,)


class Fit(NamedTuple):
    """A minimum of the penalized loss."""

    objective: Objective
    penalty: float
    minimum: Minimum
    loss: float  # The loss without its penalty
    criterion: float  # Takeuchi's estimate of that loss for new data
    error: float  # The error of the mass by the sum over nodes
    center: Tensor  # Means of the functions under the escort p^(2 - alpha), normalized (R,)
