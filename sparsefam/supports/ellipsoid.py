"""The ellipsoid, and the bijection that maps space onto it."""

import torch
from torch import Size, Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import Transform

from ..numerics.arguments import broadcast_location_scale, require, require_scale_tril
from ..numerics.radial import ball_to_space, space_to_ball, space_to_ball_log_det

__all__ = ["Ellipsoid", "EllipsoidTransform"]


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


@biject_to.register(Ellipsoid)
@transform_to.register(Ellipsoid)
def _to_ellipsoid(constraint: Ellipsoid) -> Transform:
    return EllipsoidTransform(constraint)
