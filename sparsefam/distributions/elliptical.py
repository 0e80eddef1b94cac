"""Densities of vectors with ellipsoidal level sets, in terms of u = scale_tril^-1 (t - loc)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis
from ..numerics.arguments import (
    broadcast_location_scale,
    in_eager,
    in_memory,
    require_integer,
    require_scale_tril,
)
from ..numerics.sphere import REPLICATES, direction_rule, radial_count
from ..supports import Ellipsoid, finite_scale_tril, finite_vector
from .elliptical_covariance import elliptical_covariance
from .factors import lower_factor
from .standardized import StandardizedDistribution

__all__ = ["EllipticalDistribution"]

# The recurrence behind the radii of a normal density overflows at orders beyond.
_LARGEST_ORDER = 1200


class EllipticalDistribution(StandardizedDistribution):
    r"""$p(t) = q(|L^{-1}(t - \mu)|^2)/|L|$: subclasses give $\log q$ and the law of the radius.

    Args:
        loc: Centre $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal.
        alpha: Entropic index (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not a finite vector, `scale_tril` not square, of another dimension than
            `loc`, not finite, not lower triangular, singular or with a negative diagonal, shapes
            that do not broadcast.
    """

    arg_constraints = {"loc": finite_vector, "scale_tril": finite_scale_tril}
    loc: Tensor
    scale_tril: Tensor

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale_tril, self.alpha = broadcast_location_scale(
            loc=loc, scale_tril=scale_tril, alpha=alpha
        )
        # Numbers also while torch.jit traces shapes: a tensor would make constants of float32.
        event = Size((int(self.loc.shape[-1]),))
        base = torch.distributions.Distribution
        seen = validate_args is not False and self._seen_valid()
        try:
            checks = False if seen else validate_args
            base.__init__(self, self.alpha.shape, event, validate_args=checks)
        except ValueError:
            # Says which rule is broken, and what to do about a singular matrix.
            require_scale_tril("scale_tril", self.scale_tril)
            raise
        if seen:
            del self._validate_args
            if validate_args:
                self._validate_args = True

    def _seen_valid(self) -> bool:
        """Whether numpy can see, in a fifth of the time of torch's checks, that all is well."""
        if not (in_eager() and in_memory(self.loc, self.scale_tril)):
            return False
        if list(self.arg_constraints.values()) != [finite_vector, finite_scale_tril]:
            return False
        loc, factor = self.loc.numpy(force=True), self.scale_tril.numpy(force=True)
        # Counted, which takes numpy a quarter of the time of `all` and `any`.
        some = np.count_nonzero
        if any(some(factor[..., i, i + 1 :]) for i in range(factor.shape[-1] - 1)):
            return False
        positive = factor.diagonal(0, -2, -1) > 0
        finite = (np.isfinite(x) for x in (loc, factor))
        return some(positive) == positive.size and all(some(x) == x.size for x in finite)

    @classmethod
    def infer_shapes(cls, **arg_shapes: _size) -> tuple[Size, Size]:
        """Batch and event shape for shapes of the parameters, given by name; for Pyro."""
        events = {"loc": 1, "alpha": 0}  # the others are matrices
        batches = [shape[: len(shape) - events.get(k, 2)] for k, shape in arg_shapes.items()]
        return torch.broadcast_shapes(*batches), Size(arg_shapes["loc"][-1:])

    # What a subclass knows about its standard form.

    def _edge(self) -> float:
        """Radius of the support of u."""
        return 1.0

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""$c = E[u_1^2]$, $E[u_1^2 u_2^2]$ and the latter less $c^2$, each (*batch)."""
        raise NotImplementedError

    def _radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        """Nodes and weights (count, *batch) for |u|; the batch may be left out where all agree."""
        raise NotImplementedError

    def _standard_sample(self, shape: Size) -> Tensor:
        """Draws of u (*shape, D), reparameterised in the parameters of its law."""
        raise NotImplementedError

    def _marginal(self, loc: Tensor, scale_tril: Tensor) -> "EllipticalDistribution":
        """The law of fewer coordinates of t, given its centre and scale."""
        raise NotImplementedError

    # What follows from it.

    def _log_det(self) -> Tensor:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _mapped(self, function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        """Apply a function of matrices (*batch, D, Q) to vectors (*sample, *batch, D).

        Samples become columns, so that `scale_tril` is not copied for each of them. Vectors with
        more entries along a batch axis of size 1 are broadcast instead.
        """
        shape = self.batch_shape + self.event_shape
        if vectors.shape[vectors.dim() - len(shape) :] != shape:
            return function(vectors.unsqueeze(-1)).squeeze(-1)
        count = math.prod(vectors.shape[: vectors.dim() - len(shape)])
        columns = vectors.reshape(count, *shape).movedim(0, -1)
        return function(columns).movedim(-1, 0).reshape(vectors.shape)

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """|u|^2 with points off the support moved to the centre, and which are inside."""
        offset = value - self.loc
        # Points outside the bounding box are moved before they can overflow.
        box = self._edge() * self.scale_tril.abs().sum(-1)
        near = (torch.isfinite(offset) & (offset.abs() <= box)).all(-1)
        u = self._mapped(
            lambda x: torch.linalg.solve_triangular(self.scale_tril, x, upper=False),
            torch.where(near.unsqueeze(-1), offset, 0.0),
        )
        squared = u.square().sum(-1)
        inside = near & (squared < self._edge())
        return torch.where(inside, squared, 0.0), inside

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Constraint:
        """The ellipsoid |u| <= 1."""
        return Ellipsoid(self.loc, self.scale_tril)

    @property
    def mean(self) -> Tensor:
        """The centre (*batch, D)."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The centre (*batch, D)."""
        return self.loc

    @property
    def covariance_matrix(self) -> Tensor:
        r"""$c L L^\top$ with $c = E[u_1^2]$, (*batch, D, D)."""
        return self._moments()[0][..., None, None] * (self.scale_tril @ self.scale_tril.mT)

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of the covariance matrix (*batch, D, D)."""
        unit = torch.eye(self.event_shape[0], dtype=self.loc.dtype, device=self.loc.device)
        inverse = torch.linalg.solve_triangular(self.scale_tril, unit, upper=False)
        precision: Tensor = inverse.mT @ inverse / self._moments()[0][..., None, None]
        return precision

    @property
    def variance(self) -> Tensor:
        """Variances of the coordinates (*batch, D)."""
        return self._moments()[0].unsqueeze(-1) * self.scale_tril.square().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value` (..., D); -inf with zero gradient off the support."""
        if self._validate_args:
            self._validate_sample(value)
        squared, inside = self._standardize(value)
        density = self._standard_log_prob(squared) - self._log_det()
        return torch.where(inside, density, -math.inf)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch, D), differentiable in every parameter."""
        u = self._standard_sample(Size(sample_shape) + self.batch_shape)
        return self.loc + self._mapped(lambda x: self.scale_tril @ x, u)

    def marginal(self, indices: int | Sequence[int]) -> "EllipticalDistribution":
        r"""The law of some coordinates of t, in closed form.

        $$p(t_I) \propto (1 - v^\top v)_+^{m + (D - k)/2}, \qquad
        v = L_I^{-1}(t_I - \mu_I), \quad L_I L_I^\top = (L L^\top)_{II}$$

        for k coordinates; of a normal density, the normal density with their covariance.

        Args:
            indices: Which coordinates, in the order wanted; negative ones count from the end.

        Returns:
            A density of events of shape (k,).

        Raises:
            ValueError: No index, one that is out of range, or one given twice.

        References:
            Fang, Kotz and Ng (1990), Symmetric Multivariate and Related Distributions, sec. 3.1.
        """
        kept = _coordinates(indices, self.event_shape[0])
        index = torch.tensor(kept, device=self.loc.device)
        rows = self.scale_tril.index_select(-2, index)
        return self._marginal(self.loc.index_select(-1, index), lower_factor(rows))

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes (Q, *batch, D) and weights (Q, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        A Gauss rule in the radius times directions. Up to three dimensions it is exact for
        polynomials of degree `order`; beyond, the directions are quasi-random and polynomials
        exact to degree 3. `quadrature_error` tells how well it does.

        Args:
            order: From 1 to 1200.

        Raises:
            ValueError: `order` out of range.

        References:
            Genz and Monahan (1999), A stochastic algorithm for high-dimensional integrals over
            unbounded regions with Gaussian weight. J. Comput. Appl. Math. 112.
        """
        return self._rule(order, 0)

    def _rule(self, order: int, more: int) -> tuple[Tensor, Tensor]:
        """`quadrature`, with more radii than it has."""
        require_integer("order", order, 1, _LARGEST_ORDER)
        dim, batch = self.event_shape[0], self.batch_shape
        directions, shares = direction_rule(dim, order, self.loc)
        radii, weights = (
            x.reshape(x.shape[0], *(x.shape[1:] or (1,) * len(batch)))
            for x in self._radial_rule(radial_count(dim, order) + more)
        )
        steps = (directions @ self.scale_tril.mT).movedim(-2, 0).unsqueeze(1)
        nodes = self.loc + radii.unsqueeze(-1) * steps
        weights = shares.reshape(-1, 1, *(1,) * len(batch)) * weights
        return nodes.flatten(0, 1), weights.expand(nodes.shape[:-1]).flatten(0, 1)

    def _node_count(self, order: int) -> int:
        dim = self.event_shape[0]
        return len(direction_rule(dim, order, self.loc)[1]) * radial_count(dim, order)

    def quadrature_error(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        if self.event_shape[0] <= 3:
            return super().quadrature_error(psi, order)
        if isinstance(psi, Basis):
            self._check_basis("psi", psi)
        # The spread over replicates does not see an error of the radii, which they share.
        rough, fine = (
            (weights * values).unflatten(0, (REPLICATES, -1)).sum(1)
            for weights, values in (
                self._values_at(psi, *self._rule(order, more)) for more in (0, 2)
            )
        )
        spread: Tensor = REPLICATES * rough.std(0) / math.sqrt(REPLICATES)
        error: Tensor = spread + (fine - rough).sum(0).abs()
        return error

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        return elliptical_covariance(self, phi, psi)


def _coordinates(indices: int | Sequence[int], dim: int) -> list[int]:
    given = [indices] if isinstance(indices, int) else list(indices)
    kept = [i % dim for i in given if -dim <= i < dim]
    if not given or len(kept) < len(given) or len(set(kept)) < len(kept):
        raise ValueError(f"indices must be distinct and from {-dim} to {dim - 1}, got {given}")
    return kept
