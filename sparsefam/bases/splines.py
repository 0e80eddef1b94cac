"""B-splines, and the indicators that are their lowest degree."""

import torch
from torch import Tensor

from ..numerics.arguments import require, require_integer
from .arguments import (
    Values,
    check_locations,
    check_rows,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["BSpline", "Indicator"]


class BSpline(Basis):
    """B-splines on a full knot vector, as `scipy.interpolate.BSpline` takes it.

    Each function is zero outside its knots. At a knot the value is the limit from the right; at
    the last knot, from the left, so that a clamped basis sums to one on the closed interval.

    Args:
        knots: Nondecreasing knots, shape (N + degree + 1,); a parameter stays one.
        degree: Degree of the pieces.

    Raises:
        ValueError: If the degree is negative or the knots are not finite, decrease, are too few or
            are all equal.

    References:
        de Boor (1972), On calculating with B-splines. J. Approximation Theory 6.

    Examples:
        >>> BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1)(torch.tensor(0.25))
        tensor([0.5000, 0.5000, 0.0000])
    """

    knots: Tensor

    def __init__(self, knots: Values, degree: int) -> None:
        super().__init__()
        require_integer("degree", degree, 0)
        knots = floating("knots", knots, common_dtype(knots))
        check_rows("knots", knots, 1)
        if len(knots) < degree + 2:
            raise ValueError(f"knots must be at least degree + 2 = {degree + 2}, got {len(knots)}")
        sorted_ = (knots.diff() >= 0).all() & (knots[0] < knots[-1])
        require(sorted_, "knots", "nondecreasing and not all equal", knots)
        self.degree = degree
        store(self, "knots", knots)

    def __len__(self) -> int:
        return len(self.knots) - self.degree - 1

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        return self.knots[: len(self)], self.knots[self.degree + 1 :]

    @property
    def breaks(self) -> Tensor:
        return self.knots

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        values = self._spans(t)
        # Where all functions vanish the recursion must not meet an infinite location.
        t = t.unsqueeze(-1).clamp(self.knots[0], self.knots[-1])
        for degree in range(1, self.degree + 1):
            start, width = self.knots[:-degree], self.knots[degree:] - self.knots[:-degree]
            rise = torch.where(width > 0, (t - start) / torch.where(width > 0, width, 1), 0)
            values = rise[..., :-1] * values[..., :-1] + (1 - rise[..., 1:]) * values[..., 1:]
        return values

    def _spans(self, t: Tensor) -> Tensor:
        """The functions of degree zero: which span between knots holds t."""
        dtype = torch.promote_types(t.dtype, self.knots.dtype)
        t, left, right = t.unsqueeze(-1), self.knots[:-1], self.knots[1:]
        closed = (right == self.knots[-1]) & (left < right)
        return ((left <= t) & ((t < right) | (closed & (t == right)))).to(dtype)


class Indicator(BSpline):
    """Indicators of adjacent intervals: one between an edge and the next, zero elsewhere.

    Args:
        edges: Strictly increasing edges, shape (N + 1,); a parameter stays one.

    Raises:
        ValueError: If the edges are not finite, do not increase, or are fewer than two.

    Examples:
        >>> Indicator([0.0, 1.0, 3.0])(torch.tensor(1.0))
        tensor([0., 1.])
    """

    def __init__(self, edges: Values) -> None:
        edges = floating("edges", edges, common_dtype(edges))
        rule = "two or more, strictly increasing"
        if edges.ndim != 1 or len(edges) < 2:
            raise ValueError(f"edges must be {rule}, got {edges}")
        check_rows("edges", edges, 1)
        require(edges.diff() > 0, "edges", rule, edges)
        super().__init__(edges, 0)
