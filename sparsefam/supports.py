"""Where a density lives: constraints that know their intervals and their bijections."""

import math

import torch
from torch import Size, Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyTransform,
    SigmoidTransform,
    Transform,
    identity_transform,
)

from .numerics.arguments import broadcast_location_scale, require, require_scale_tril
from .numerics.radial import ball_to_space, space_to_ball, space_to_ball_log_det

__all__ = [
    "Ellipsoid",
    "Interval",
    "RealLine",
    "finite",
    "finite_scale_tril",
    "finite_vector",
    "positive_finite",
]


class Interval(constraints.Constraint):
    """Bounded interval [lower, upper], batched; its bounds may depend on parameters.

    Args:
        lower: Lower ends (*batch).
        upper: Upper ends (*batch).
    """

    is_discrete = False
    event_dim = 0

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self.lower_bound = lower
        self.upper_bound = upper
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each value lies in the interval."""
        return (self.lower_bound <= value) & (value <= self.upper_bound)

    @property
    def intervals(self) -> Tensor:
        """The one interval, (*batch, 1, 2)."""
        return torch.stack([self.lower_bound, self.upper_bound], -1).unsqueeze(-2)

    def __repr__(self) -> str:
        return f"Interval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class RealLine(constraints.Constraint):
    """The whole line, with the batch shape, dtype and device of a parameter.

    Args:
        like: Any parameter of the distribution, (*batch).
    """

    is_discrete = False
    event_dim = 0

    def __init__(self, like: Tensor) -> None:
        self._like = like.detach()
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is a number."""
        return ~torch.isnan(value)

    @property
    def intervals(self) -> Tensor:
        """(-inf, inf), (*batch, 1, 2)."""
        ends = self._like.new_tensor([-math.inf, math.inf])
        return ends.expand(*self._like.shape, 1, 2)

    def __repr__(self) -> str:
        return "RealLine()"


class Ellipsoid(constraints.Constraint):
    r"""Closed ellipsoid $|L^{-1}(t - \mu)| \le 1$, batched; it may depend on parameters.

    Args:
        loc: Centre $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the ellipsoid.

    Raises:
        ValueError: `loc` not finite, `scale_tril` not square, of another dimension than `loc`, not
            finite, not lower triangular or with a diagonal that is not positive.
    """

    is_discrete = False
    event_dim = 1

    def __init__(self, loc: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.scale_tril = broadcast_location_scale(loc=loc, scale_tril=scale_tril)
        require(torch.isfinite(self.loc), "loc", "finite", self.loc)
        require_scale_tril("scale_tril", self.scale_tril)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each location (..., D) lies in the ellipsoid, as far as its rounding tells."""
        u = self._standardize(value)
        size = torch.linalg.vector_norm(u, dim=-1)
        # Rounding t and loc, or L u, moves u by at most this: much, if L is ill-conditioned.
        nearest = (u / size.clamp_min(1).unsqueeze(-1)).abs()
        moved = self.scale_tril.abs() @ nearest.unsqueeze(-1) + 2 * self.loc.abs().unsqueeze(-1)
        eye = torch.eye(value.shape[-1], dtype=u.dtype, device=u.device)
        inverse = torch.linalg.solve_triangular(self.scale_tril, eye, upper=False)
        slack = torch.linalg.vector_norm(inverse.abs() @ moved, dim=(-2, -1))
        inside: Tensor = size <= 1 + torch.finfo(u.dtype).eps * slack
        return inside

    def _standardize(self, value: Tensor) -> Tensor:
        """u = L^-1 (t - loc)."""
        offset = (value - self.loc).unsqueeze(-1)
        u: Tensor = torch.linalg.solve_triangular(self.scale_tril, offset, upper=False)
        return u.squeeze(-1)

    def __repr__(self) -> str:
        return f"Ellipsoid(loc={self.loc}, scale_tril={self.scale_tril})"


class _Finite(constraints.Constraint):
    """Finite real numbers; `constraints.real` lets infinities pass."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value)


class _PositiveFinite(constraints.Constraint):
    """Positive finite numbers; `constraints.positive` lets infinity pass."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value) & (value > 0)


class _FiniteScaleTril(constraints.Constraint):
    """Finite lower-triangular matrices with positive diagonals.

    `constraints.lower_cholesky` lets infinity pass.
    """

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        if value.dim() < 2 or value.shape[-2] != value.shape[-1]:
            return value.new_zeros(value.shape[:-2], dtype=torch.bool)
        positive = (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)
        valid: Tensor = positive & ((value.triu(1) == 0) & value.isfinite()).all(-1).all(-1)
        return valid


finite = _Finite()
finite_scale_tril = _FiniteScaleTril()
finite_vector = constraints.independent(finite, 1)
positive_finite = _PositiveFinite()


class EllipsoidTransform(Transform):
    r"""Smooth bijection from $\mathbb R^D$ onto the inside of an ellipsoid.

    $$t = \mu + L \frac{y}{|y|} \tanh\frac{|y|}{2}$$

    On the line it is the one of `Interval`.

    Args:
        support: The ellipsoid.
        cache_size: As in torch.distributions.
    """

    domain = constraints.real_vector
    codomain: Ellipsoid
    bijective = True

    def __init__(self, support: Ellipsoid, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = support

    def with_cache(self, cache_size: int = 1) -> "EllipsoidTransform":
        """The same transform with another cache."""
        return EllipsoidTransform(self.codomain, cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EllipsoidTransform):
            return False
        a, b = self.codomain, other.codomain
        return torch.equal(a.loc, b.loc) and torch.equal(a.scale_tril, b.scale_tril)

    def _call(self, x: Tensor) -> Tensor:
        u = space_to_ball(x).unsqueeze(-1)
        return self.codomain.loc + (self.codomain.scale_tril @ u).squeeze(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return ball_to_space(self.codomain._standardize(y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Exact logarithm of the volume factor (*batch)."""
        diagonal = self.codomain.scale_tril.diagonal(dim1=-2, dim2=-1)
        return space_to_ball_log_det(x) + diagonal.log().sum(-1)

    def forward_shape(self, shape: Size) -> Size:
        """The shape of t for y of a shape."""
        broadcast: Size = torch.broadcast_shapes(shape, self.codomain.loc.shape)
        return broadcast

    def inverse_shape(self, shape: Size) -> Size:
        """The shape of y for t of a shape."""
        return self.forward_shape(shape)


@biject_to.register(Interval)
@transform_to.register(Interval)
def _to_interval(constraint: Interval) -> Transform:
    width = constraint.upper_bound - constraint.lower_bound
    return ComposeTransform([SigmoidTransform(), AffineTransform(constraint.lower_bound, width)])


@biject_to.register(Ellipsoid)
@transform_to.register(Ellipsoid)
def _to_ellipsoid(constraint: Ellipsoid) -> Transform:
    return EllipsoidTransform(constraint)


@biject_to.register(_FiniteScaleTril)
@transform_to.register(_FiniteScaleTril)
def _to_scale_tril(constraint: constraints.Constraint) -> Transform:
    return LowerCholeskyTransform()


@biject_to.register(RealLine)
@transform_to.register(RealLine)
@biject_to.register(_Finite)
@transform_to.register(_Finite)
def _to_line(constraint: constraints.Constraint) -> Transform:
    return identity_transform


@biject_to.register(_PositiveFinite)
@transform_to.register(_PositiveFinite)
def _to_positive(constraint: constraints.Constraint) -> Transform:
    return ExpTransform()
